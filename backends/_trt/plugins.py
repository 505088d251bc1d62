"""Custom operators on TensorRT: plugins of the third version, and creators that make them from attributes of nodes.

TensorRT-RTX 1.6 parses no plugin nodes; there a model is cut at its custom operators instead.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...custom_ops.native import Node, native_op
from ...custom_ops.operator_set import custom_nodes
from ...custom_ops.shapes import Algebra, evaluate
from ...errors import CustomOpError

if TYPE_CHECKING:
    import onnx_ir as ir
    import tensorrt

    from ...core.device import Device
    from ...custom_ops.declaration import CustomOp, Signature
    from ...custom_ops.operator_set import OperatorSet
    from .flavour import Flavour

__all__ = ["mark_nodes", "register_operators"]


def register_operators(flavour: Flavour, ops: OperatorSet, device: Device) -> None:
    """Registers the operators with the runtime, for building and reading engines.

    A class replaces an earlier one with the same domain, name and version.

    Raises:
        CustomOpError: the runtime refuses one.
    """
    registry: tensorrt.IPluginRegistry = flavour.trt.get_plugin_registry()
    for op in ops:
        key = (flavour.backend, op.domain, op.name, op.version)
        known = _creators.get(key)
        if known is not None and known[0] is op:
            continue
        if known is not None:
            registry.deregister_creator(known[1])
        creator = _creator(flavour.trt, op, device)
        if not registry.register_creator(creator, op.domain):
            raise CustomOpError(f"operator {op.title()}: {flavour.title} refuses it as a plugin; is its name taken?")
        _creators[key] = op, creator


#: The registry does not keep the creators alive.
_creators: dict[tuple[str, str, str, int], tuple[type[CustomOp], Any]] = {}


def mark_nodes(model: ir.Model, ops: OperatorSet, what: str) -> None:
    """Adds the plugin and the default values to each custom node, since the parser does not read domains."""
    import onnx_ir as ir

    for node in custom_nodes(model, ops, what):
        for attribute in node.op.attributes:
            value, kind = getattr(node.op, attribute.name), ir.AttributeType[attribute.onnx_kind]
            value = int(value) if isinstance(value, bool) else value
            node.raw.attributes[attribute.name] = ir.Attr(attribute.name, kind, value)
        node.raw.attributes["plugin_version"] = ir.AttrString("plugin_version", str(node.op.version))
        node.raw.attributes["plugin_namespace"] = ir.AttrString("plugin_namespace", node.op.domain)


# ---- attributes as fields ----


def _fields(trt: Any, op: type[CustomOp], values: dict[str, Any] | None) -> Any:
    """The attributes as TensorRT's fields; without values, the names and types."""
    kinds = {
        "INT": (np.int64, trt.PluginFieldType.INT64), "INTS": (np.int64, trt.PluginFieldType.INT64),
        "FLOAT": (np.float32, trt.PluginFieldType.FLOAT32), "FLOATS": (np.float32, trt.PluginFieldType.FLOAT32),
        "STRING": (np.int8, trt.PluginFieldType.CHAR),
    }  # fmt: skip
    made = []
    for attribute in op.attributes:
        dtype, kind = kinds[attribute.onnx_kind]
        value = () if values is None else values[attribute.name]
        data = list(value.encode()) if isinstance(value, str) else value
        made.append(trt.PluginField(attribute.name, np.atleast_1d(np.asarray(data, dtype)), kind))
    return trt.PluginFieldCollection(made)


def _values(op: type[CustomOp], fields: tensorrt.PluginFieldCollection) -> dict[str, Any]:
    known = {attribute.name: attribute for attribute in op.attributes}
    values: dict[str, Any] = {}
    for field in fields:
        if field.name not in known:
            continue  # the version and the namespace
        data: Any = [] if field.data is None else np.asarray(field.data).ravel()
        kind = known[field.name].onnx_kind
        if kind == "STRING":
            values[field.name] = np.asarray(data, np.int8).tobytes().rstrip(b"\0").decode()
        elif kind in ("INTS", "FLOATS"):
            values[field.name] = tuple(item.item() for item in data)
        elif len(data):
            values[field.name] = data[0].item()
    return values


# ---- the plugin ----


class _Expressions(Algebra):
    """Sizes as TensorRT's expressions."""

    def __init__(self, trt: Any, builder: tensorrt.IExprBuilder) -> None:
        kinds = trt.DimensionOperation
        self._builder = builder
        self._kinds = {
            "+": kinds.SUM, "-": kinds.SUB, "*": kinds.PROD, "//": kinds.FLOOR_DIV, "ceil_div": kinds.CEIL_DIV,
            "min": kinds.MIN, "max": kinds.MAX,
        }  # fmt: skip

    def constant(self, value: int) -> Any:
        return self._builder.constant(value)

    def apply(self, operation: str, left: Any, right: Any) -> Any:
        return self._builder.operation(self._kinds[operation], left, right)


@functools.cache
def _plugin_class(trt: Any) -> type[Any]:
    types = {
        name: getattr(trt.DataType, theirs)
        for name, theirs in (
            ("float32", "FLOAT"), ("float16", "HALF"), ("int8", "INT8"), ("int32", "INT32"), ("int64", "INT64"),
            ("bool", "BOOL"), ("uint8", "UINT8"),
        )
        if hasattr(trt.DataType, theirs)
    }  # fmt: skip
    names = {kind: name for name, kind in types.items()}

    class Plugin(trt.IPluginV3, trt.IPluginV3OneCore, trt.IPluginV3OneBuild, trt.IPluginV3OneRuntime):  # type: ignore[misc]
        """An operator with its attributes, as one node of a network."""

        def __init__(self, op: CustomOp, name: str, device: Device) -> None:
            for base in (trt.IPluginV3, trt.IPluginV3OneCore, trt.IPluginV3OneBuild, trt.IPluginV3OneRuntime):
                base.__init__(self)
            self.op, self.node, self.device = op, name, device
            self.num_outputs = len(op.outputs)
            self.plugin_name, self.plugin_version, self.plugin_namespace = op.name, str(op.version), op.domain
            self._nodes: dict[Signature, Node] = {}

        def clone(self) -> Plugin:
            return Plugin(self.op, self.node, self.device)

        def get_capability_interface(self, kind: Any) -> Plugin:
            return self

        def attach_to_context(self, context: Any) -> Plugin:
            return self.clone()

        def get_fields_to_serialize(self) -> Any:
            self._kept = _fields(trt, type(self.op), self.op.values())  # TensorRT reads it later
            return self._kept

        def get_output_data_types(self, given: Sequence[Any]) -> list[Any]:
            signature = self.op.signature_for([names.get(kind, str(kind)) for kind in given])
            return [types[name] for name in signature.outputs]

        def get_output_shapes(self, inputs: Any, shape_inputs: Any, builder: Any) -> list[Any]:
            shapes = [[shape[i] for i in range(len(shape))] for shape in inputs]
            algebra, made = _Expressions(trt, builder), []
            for shape in self.op.rule([len(shape) for shape in shapes]).outputs:
                dims = trt.DimsExprs(len(shape))
                for axis, size in enumerate(shape):
                    dims[axis] = evaluate(size, shapes, algebra)
                made.append(dims)
            return made

        def supports_format_combination(self, position: int, tensors: Any, count: int) -> bool:
            if tensors[position].desc.format != trt.TensorFormat.LINEAR:
                return False
            given = [names.get(tensors[i].desc.type) for i in range(position + 1)]
            return any([*s.inputs, *s.outputs][: position + 1] == given for s in self.op.signatures())

        def configure_plugin(self, inputs: Any, outputs: Any) -> None: ...

        def on_shape_change(self, inputs: Any, outputs: Any) -> None: ...

        def enqueue(
            self, sources: Any, results: Any, inputs: Sequence[int], outputs: Sequence[int], workspace: int, stream: int
        ) -> None:
            node = self._node_for(tuple(names[desc.type] for desc in sources))
            node.run(
                [(at, tuple(desc.dims)) for at, desc in zip(inputs, sources, strict=True)],
                [(at, tuple(desc.dims)) for at, desc in zip(outputs, results, strict=True)],
                stream,
            )

        def _node_for(self, given: tuple[str, ...]) -> Node:
            signature = self.op.signature_for(given)
            if signature not in self._nodes:
                native = native_op(type(self.op), signature, self.device)
                self._nodes[signature] = Node(self.op, native, self.node)
            return self._nodes[signature]

    return Plugin


def _creator(trt: Any, op: type[CustomOp], device: Device) -> Any:
    plugin = _plugin_class(trt)

    class Creator(trt.IPluginCreatorV3One):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IPluginCreatorV3One.__init__(self)
            self.name, self.plugin_version, self.plugin_namespace = op.name, str(op.version), op.domain
            self.field_names = _fields(trt, op, None)

        def create_plugin(self, name: str, fields: Any, phase: Any) -> Any:
            return plugin(op.of(_values(op, fields), name), name, device)

    return Creator()
