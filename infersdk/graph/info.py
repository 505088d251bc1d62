"""What an ONNX file says of itself, without running it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import BackendUnavailableError, ModelFormatError
from ..infer import model_file
from ..tensor_spec import TensorSpec

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

__all__ = ["ModelInfo", "load_onnx", "onnx_info"]


@dataclass(frozen=True)
class ModelInfo:
    """The outside of a model, and what it is made of.

    `precision` is the arithmetic that the graph asks for in most of its layers: `"int8"` where both factors of a layer
    are quantised, else the type that it computes in. `parameters` counts the elements of the weights.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    opset: int
    ir_version: int
    producer: str
    metadata: Mapping[str, str]
    operators: Mapping[str, int]
    parameters: int
    precision: str


def load_onnx(path: str | os.PathLike[str], *, external_data: bool = True) -> Any:
    """The `onnx.ModelProto` at `path`.

    Raises:
        ModelFormatError: it is not an ONNX file.
        BackendUnavailableError: the `onnx` package is not installed.
    """
    try:
        import onnx
    except ImportError:
        raise BackendUnavailableError(
            'looking into an ONNX file needs the onnx package: pip install "onnx>=1.17"'
        ) from None
    file = model_file(path)
    try:
        model = onnx.load(str(file), load_external_data=external_data)
    except Exception as error:  # protobuf's own exceptions differ between its implementations
        raise ModelFormatError(f"{str(file)!r} is not an ONNX model, or is corrupt: {error}") from None
    if not model.graph.output:
        raise ModelFormatError(f"{str(file)!r} is not an ONNX model: it has no graph with outputs")
    return model


def onnx_info(path: str | os.PathLike[str]) -> ModelInfo:
    """Reads the outside of an ONNX model. Errors are those of `load_onnx`."""
    model = load_onnx(path, external_data=False)
    weights = {tensor.name for tensor in model.graph.initializer}
    return ModelInfo(
        inputs=tuple(_spec(value) for value in model.graph.input if value.name not in weights),
        outputs=tuple(_spec(value) for value in model.graph.output),
        opset=next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 0),
        ir_version=model.ir_version,
        producer=f"{model.producer_name} {model.producer_version}".strip(),
        metadata={entry.key: entry.value for entry in model.metadata_props},
        operators=Counter(node.op_type for node in model.graph.node),
        parameters=sum(prod(tensor.dims) for tensor in model.graph.initializer),
        precision=precision_of(model),
    )


def precision_of(model: Any) -> str:
    """The arithmetic that a graph asks for in most of its layers; in one without any, the type of its inputs."""
    import onnx

    from .precision import layer_precisions, main_precision

    if counts := layer_precisions(model, executed=False):
        return main_precision(counts)
    names = {onnx.TensorProto.FLOAT16: "fp16", onnx.TensorProto.BFLOAT16: "bf16"}
    return next((names.get(value.type.tensor_type.elem_type, "fp32") for value in model.graph.input), "fp32")


def _spec(value: Any) -> TensorSpec:
    import onnx

    kind = value.type.tensor_type
    try:
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type))
    except KeyError:
        dtype = np.dtype(object)
    dims = [d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in kind.shape.dim]
    return TensorSpec(value.name, dtype, tuple(dims))
