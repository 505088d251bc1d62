"""An adapter from an Infer backend to `onnx.backend.base.Backend`, for ONNX's test suite.

The ONNX project ships its operator tests as a suite that any implementation of its `Backend` interface can run
through (https://onnx.ai/onnx/repo-docs/ImplementingAnOnnxBackend.html)::

    from onnx.backend.test import BackendTest
    from infersdk.testing.onnx_backend import backend_for

    globals().update(BackendTest(backend_for("onnxruntime"), __name__).test_cases)   # for pytest or unittest to find

Each model is written to a file, loaded by `infersdk.load()`, and called.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from onnx.backend.base import Backend, BackendRep, namedtupledict

from ..core.device import Device
from ..errors import DeviceUnavailableError
from ..loading.registry import backend_class, load

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt
    import onnx

    from ..infer import Infer

__all__ = ["InferBackend", "InferBackendRep", "backend_for"]


class InferBackendRep(BackendRep):  # type: ignore[misc]  # onnx is looked at without its types
    """A model that is ready to run: an `Infer`, called with inputs by their position.

    Attributes:
        infer: the model.
        input_names: the inputs of the ONNX graph, in its order. A runtime may have removed some of them (an input
            of which only the type is used); their values are ignored.
    """

    def __init__(self, infer: Infer, input_names: Sequence[str]) -> None:
        self.infer = infer
        self.input_names = tuple(input_names)

    def run(self, inputs: Sequence[npt.ArrayLike], **_: Any) -> tuple[npt.NDArray[Any], ...]:
        """Takes a value for each input of the graph, an array for most; returns the outputs in order, also by name."""
        taken = {spec.name for spec in self.infer.input_specs}
        given = zip(self.input_names, inputs, strict=True)
        outputs = self.infer({name: array for name, array in given if name in taken})
        named: tuple[npt.NDArray[Any], ...] = namedtupledict("Outputs", list(outputs))(*outputs.values())
        return named


class InferBackend(Backend):  # type: ignore[misc]
    """`backend_for()` makes the subclass for one backend; the interface is of class methods throughout."""

    #: The name that `infersdk.load()` knows it by.
    name: ClassVar[str]
    #: Further arguments of `infersdk.load()`.
    options: ClassVar[Mapping[str, Any]] = {}

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **_: Any) -> InferBackendRep:
        """Loads the model. Errors are those of `infersdk.load()`."""
        with tempfile.TemporaryDirectory(prefix="infersdk-") as folder:
            file = Path(folder, "model.onnx")
            file.write_bytes(model.SerializeToString())
            infer = load(file, cls.name, device=Device.parse(device.lower()), **cls.options)
        weights = {tensor.name for tensor in model.graph.initializer}
        return InferBackendRep(infer, [value.name for value in model.graph.input if value.name not in weights])

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """`"CPU"`, `"CUDA"` or `"CUDA:1"`: whether the runtime, as it is installed, has a device of that kind."""
        try:
            kind = Device.parse(device.lower()).kind
        except DeviceUnavailableError:
            return False
        devices = backend_class(cls.name).declaration.probe().devices
        return kind in {Device.parse(name).kind for name in devices}


def backend_for(name: str, **options: Any) -> type[InferBackend]:
    """The ONNX backend over an infersdk backend, built in or registered.

    Args:
        name: what `infersdk.load(backend=...)` takes.
        options: handed to `load()` as they are.

    Raises:
        BackendNotFoundError, BackendUnavailableError: there is no backend of that name, or it does not import.
    """
    backend_class(name)
    title = "".join(part.capitalize() for part in name.split("_"))
    return type(f"{title}Backend", (InferBackend,), {"name": name, "options": options})
