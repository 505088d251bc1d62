"""FP32 graphs as FP16 ones, for runtimes that run a graph in the types it is written in.

The work is ONNX Runtime's converter: weights and operators become float16, casts go where the two meet, and operators
that float16 does not suit (`DEFAULT_OP_BLOCK_LIST` there) stay as they were.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from ..errors import BackendUnavailableError, UnsupportedModelError
from .info import load_onnx, precision_of

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

__all__ = ["to_fp16"]


def to_fp16(
    model: str | os.PathLike[str], *, keep_io: bool = True, keep_ops: Sequence[str] = (), keep_nodes: Sequence[str] = ()
) -> Any:
    """The model with weights and arithmetic in float16, as an `onnx.ModelProto`.

    Args:
        model: an ONNX file in FP32.
        keep_io: inputs and outputs keep their types.
        keep_ops: operator types that stay float32, besides those that always do.
        keep_nodes: names of nodes that stay float32.

    Raises:
        ModelNotFoundError, ModelFormatError: there is no such file, or it is no ONNX model.
        UnsupportedModelError: it is not FP32, or cannot be converted.
        BackendUnavailableError: the `onnx` or `onnxruntime` package is not installed.
    """
    whole = load_onnx(model)
    precision = precision_of(whole)
    if precision != "fp32":
        raise UnsupportedModelError(f"{str(model)!r} is {precision} already; only an fp32 model is made fp16")
    try:
        from onnxruntime.transformers import float16
    except ImportError as error:
        raise BackendUnavailableError(
            f'converting a model to fp16 needs {error.name}: pip install "infersdk[onnxruntime]" onnx'
        ) from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # weights too small for float16 are rounded, as is the way of it
            converted = float16.convert_float_to_float16(
                whole,
                keep_io_types=keep_io,
                op_block_list=[*float16.DEFAULT_OP_BLOCK_LIST, *keep_ops],
                node_block_list=list(keep_nodes),
            )
    except Exception as error:  # it has no exceptions of its own
        raise UnsupportedModelError(f"{str(model)!r} cannot be converted to fp16: {error}") from error
    if precision_of(converted) != "fp16":
        raise UnsupportedModelError(f"{str(model)!r} stays {precision_of(converted)}: hardly any of it can be fp16")
    return converted
