"""Reads the description of an ONNX file without running it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..core.tensor_spec import TensorSpec
from .files import borrowed_model
from .precision import precision_of
from .weights import constant_tensor, data_inputs, graph_values

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx_ir as ir

    from ..core.model_source import ModelLike

__all__ = ["FREE_SIZE", "ModelInfo", "onnx_info", "tensor_spec"]

#: The key in the metadata of a model that `FreeSize` has changed: `[width, height, stride]`, the sizes that it takes.
FREE_SIZE = "infersdk.free_size"


@dataclass(frozen=True)
class ModelInfo:
    """The inputs, outputs and contents of a model.

    `precision` is the precision of most layers: `"int8"` if both factors of a layer are quantised, else its element
    type. `parameters` is the number of elements of weights and constants, those of subgraphs included.
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


def onnx_info(model: ModelLike) -> ModelInfo:
    """Reads the `ModelInfo` of a model. Raises the errors of `read_model`."""
    with borrowed_model(model) as result:
        graph = result.graph
        values = {value for one in result.graphs() for _, value in graph_values(one)}
        return ModelInfo(
            inputs=tuple(map(tensor_spec, data_inputs(result))),
            outputs=tuple(map(tensor_spec, graph.outputs)),
            opset=graph.opset_imports.get("", 0),
            ir_version=result.ir_version,
            producer=f"{result.producer_name or ''} {result.producer_version or ''}".strip(),
            metadata=dict(result.metadata_props),
            operators=Counter(node.op_type for node in graph),
            parameters=sum(tensor.size for tensor in map(constant_tensor, values) if tensor is not None),
            precision=precision_of(result),
        )


def tensor_spec(value: ir.Value) -> TensorSpec:
    """The name, element type and shape of a value. The type of values that are not tensors is `object`. An axis of size
    -1, as some exporters write it, is free.
    """
    import onnx_ir as ir

    dtype = np.dtype(object)  # for values that are not tensors
    if isinstance(value.type, ir.TensorType) and value.type.dtype != ir.DataType.UNDEFINED:
        dtype = value.type.dtype.numpy()
    dims = [dim.value if isinstance(dim, ir.SymbolicDim) else dim if dim >= 0 else None for dim in value.shape or ()]
    return TensorSpec(value.name or "", dtype, tuple(dims))
