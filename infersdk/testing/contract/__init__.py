"""InferContract: the tests that every backend passes, for those of this package and for yours.

::

    from infersdk.testing import InferContract

    class TestMyBackend(InferContract):
        backend = "mine"

Attributes of the class declare unsupported features; their tests are skipped with the reason. The
models are small ONNX files, made here; the reference for all results is ONNX Runtime in FP32 on the processor, so this
needs `pytest`, `onnx` and `onnxruntime`. A `conftest.py` with
`pytest.register_assert_rewrite("infersdk.testing.contract")` makes failures tell more.
"""

from __future__ import annotations

from .declarations import DeclarationContract
from .errors import ErrorContract
from .life import LifeContract, device_memory_used, resident_bytes
from .results import ResultContract
from .tensors import TensorContract

__all__ = ["InferContract", "device_memory_used", "resident_bytes"]


class InferContract(DeclarationContract, ResultContract, TensorContract, ErrorContract, LifeContract):
    """Inherit it, name the backend, and declare its features by the attributes of `base.ContractBase`."""
