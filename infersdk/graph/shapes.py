"""Shape inference, for a graph and node by node.

Inference of a whole graph stops silently at the first node that does not fit. Node by node, the failing node is known
and can be rewritten before the next node.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import UnsupportedModelError
from .types import RANDOM, element_types, inner_graphs, parameter_at, schema_of

if TYPE_CHECKING:
    import numpy.typing as npt
    import onnx_ir as ir

__all__ = ["Shape", "ShapeTrace", "infer_shapes", "is_unknown", "node_label"]


def infer_shapes(model: ir.Model, inputs: Mapping[str, Sequence[int]] = MappingProxyType({})) -> None:
    """Infers shapes and types and stores them in the values of the model.

    ONNX's inference stops at a Reshape with a computed target. The length of the target often gives the rank of the
    output, so the rank is stored and inference is repeated. Sequences without a declared type remain without one.

    Args:
        inputs: the shapes of inputs, which let inference evaluate shape arithmetic.
    """
    import onnx_ir as ir
    from onnx_ir.passes.common import ShapeInferencePass

    inference = ShapeInferencePass(check_type=False, strict_mode=False, data_prop=True)
    for value in model.graph.inputs:
        if (shape := inputs.get(value.name or "")) is not None:
            value.shape = ir.Shape(shape)
    sequences = [value for value in _sequences(model) if value.type is None]
    while True:
        with _quiet():  # unknown shapes are no reason for a warning
            inference(model)
        for value in sequences:  # the pass stores the type of their elements
            value.type = value.shape = None
        if not _write_ranks(model.graph):
            return


def is_unknown(size: int | ir.SymbolicDim) -> bool:
    """Whether an inferred size has no number, and no name but one that inference generated."""
    return not isinstance(size, int) and (size.value or "unk__").startswith("unk__")


def _sequences(model: ir.Model) -> set[ir.Value]:
    """The outputs of nodes that may be sequences or optional values, but not those of an If without such inputs."""
    import onnx_ir as ir

    result = {value for value in model.graph.inputs if not isinstance(value.type, ir.TensorType)}
    for node in model.graph.all_nodes():
        schema = schema_of(node, model.graph.opset_imports)
        for index, output in enumerate(node.outputs):
            if schema is None or (parameter := parameter_at(schema.outputs, index)) is None:
                continue
            kinds = {kind.partition("(")[0] for kind in parameter.types}
            if "tensor" not in kinds or (len(kinds) > 1 and not result.isdisjoint(node.inputs)):
                result.add(output)
    return result


def _write_ranks(graph: ir.Graph) -> bool:
    """Sets the rank of Reshape outputs from the length of the target; returns whether there were any."""
    import onnx_ir as ir

    written = False
    for node in graph:
        if node.op_type != "Reshape" or len(node.inputs) < 2 or node.inputs[1] is None or node.outputs[0].shape:
            continue
        length = node.inputs[1].shape
        if node.outputs[0].shape is None and length is not None and len(length) == 1 and isinstance(length[0], int):
            node.outputs[0].shape = ir.Shape([None] * length[0])
            written = True
    return written


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    logger = logging.getLogger("onnx_ir.passes.common.shape_inference")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


#: The size of each axis; None if it depends on data.
Shape = tuple["int | None", ...]

#: Operators without shape inference in the standard, whose output has the shape of the first input.
_SAME_SHAPE = frozenset({"GroupNormalization", "MeanVarianceNormalization"})
#: Larger arrays are not sizes, and are not evaluated.
_LARGEST_DATA = 1 << 12


def node_label(node: ir.Node) -> str:
    """The description of a node for messages: `node 'conv1' (Conv)`."""
    return f"node {node.name or node.outputs[0].name!r} ({node.op_type})"


class ShapeTrace:
    """The shapes of values, and the contents of small arrays, for fixed input shapes.

    Attributes:
        shapes: the shapes of values of known rank.
        data: the contents of constants, and of values computed from constants and shapes.
        types: the known element types.
        opset: the version of the standard operators.
    """

    def __init__(self, model: ir.Model, inputs: Mapping[str, Sequence[int]]) -> None:
        self._model = model
        self.opset = model.graph.opset_imports.get("", 1)
        self.types = element_types(model)
        self.shapes: dict[ir.Value, Shape] = {}
        self.data: dict[ir.Value, npt.NDArray[Any]] = {}
        for name, value in model.graph.initializers.items():
            if value.const_value is not None and name not in inputs:
                self.know(value)
        for value in model.graph.inputs:
            if (shape := inputs.get(value.name or "")) is not None:
                self.shapes[value] = tuple(shape)

    def know(self, value: ir.Value) -> None:
        """Adds a weight."""
        assert value.const_value is not None
        self.types[value] = value.const_value.dtype
        self.shapes[value] = tuple(value.const_value.shape.numpy())
        if value.const_value.size <= _LARGEST_DATA and value.const_value.dtype.name != "STRING":
            self.data[value] = value.const_value.numpy()

    def step(self, node: ir.Node) -> None:
        """Infers the output shapes of a node. The nodes that compute its inputs must come before.

        Raises:
            UnsupportedModelError: the node does not accept inputs of these shapes.
        """
        if inner_graphs(node):
            return  # shapes from branches and loops may differ between runs
        if not self._compute(node):
            self._infer(node)

    def _compute(self, node: ir.Node) -> bool:
        """Evaluates a node if all its inputs are known and small; returns whether it did."""
        import onnx_ir as ir
        from onnx.reference.ops import load_op

        if node.op_type in RANDOM or (not node.inputs and node.op_type != "Constant"):
            return False
        arrays = [None if value is None else self._read(node, value) for value in node.inputs]
        if any(array is None and value is not None for array, value in zip(arrays, node.inputs, strict=True)):
            return False
        try:
            run = load_op("" if node.domain == "ai.onnx" else node.domain, node.op_type, self.opset)
            settings = {"log": lambda *_: None, "opsets": {"": self.opset}, "new_ops": None, "verbose": 0}
            results = run(ir.to_proto(node), settings).run(*arrays)
        except Exception:  # not in the reference implementation; its shape is inferred instead
            return False
        if any(not isinstance(array, np.ndarray | np.generic) or array.size > _LARGEST_DATA for array in results):
            return False
        for output, array in zip(node.outputs, results, strict=False):
            self.data[output] = np.asarray(array)
            self.shapes[output] = tuple(np.shape(array))
            self.types[output] = ir.DataType.from_numpy(self.data[output].dtype)
        return True

    def _read(self, node: ir.Node, value: ir.Value) -> npt.NDArray[Any] | None:
        """The contents of an input of a node; any for Shape and Size, which read only the shape. None if unknown."""
        shape = self.shapes.get(value, (None,))
        sizes = [size for size in shape if size is not None]
        if node.op_type in ("Shape", "Size") and len(sizes) == len(shape):
            return np.broadcast_to(0.0, sizes)
        return self.data.get(value)

    def _infer(self, node: ir.Node) -> None:
        import onnx
        import onnx_ir as ir

        schema = schema_of(node, self._model.graph.opset_imports)
        if schema is None or any(value is not None and value not in self.types for value in node.inputs):
            return
        kinds, data = {}, {}
        for value in node.inputs:
            if value is not None and value.name:
                kinds[value.name] = onnx.helper.make_tensor_type_proto(int(self.types[value]), self.shapes.get(value))
                if value in self.data:
                    data[value.name] = onnx.numpy_helper.from_array(self.data[value], value.name)
        opsets = [onnx.helper.make_opsetid(d, v) for d, v in self._model.graph.opset_imports.items()]
        try:
            results = onnx.shape_inference.infer_node_outputs(
                schema,
                ir.to_proto(node),
                kinds,
                data,
                opset_imports=opsets,
                ir_version=self._model.ir_version or 8,
            )
        except Exception as error:  # it raises several types
            raise UnsupportedModelError(f"{node_label(node)} does not fit: {' '.join(str(error).split())}") from None
        if node.op_type in _SAME_SHAPE and node.inputs[0] in self.shapes:
            self.shapes[node.outputs[0]] = self.shapes[node.inputs[0]]
        for output in node.outputs:
            kind = results.get(output.name or "")
            if kind is not None and kind.tensor_type.elem_type and output not in self.types:
                self.types[output] = ir.DataType(kind.tensor_type.elem_type)
            if kind is not None and kind.tensor_type.HasField("shape"):
                sizes = [dim.dim_value if dim.HasField("dim_value") else -1 for dim in kind.tensor_type.shape.dim]
                self.shapes[output] = tuple(size if size >= 0 else None for size in sizes)
