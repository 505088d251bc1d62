"""A detector without the decoding of its boxes: its outputs are the maps of the last convolutions, or of the matrix
products that a quantiser makes of them, or the features that YOLOv5's last convolutions have.

The decoding reads and writes each of YOLOv5's 25,200 x 85 values several times, and nearly all of them are below the
threshold. A decoder that starts at the maps computes the others alone; one that starts at the features does without
nearly all of the last convolutions, which are a twelfth of all that the smallest YOLOv5 computes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import numpy as np

from ..files import proto_of
from ..graph_end import UnprovenError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import onnx_ir as ir

    from ...model_source import ModelSource
    from ..head_rules import HeadEnd
    from ..raw_head import RawHead

__all__ = ["EndAtHead"]

#: The axis that is 1 for one image, and this for so many, is that of the images.
_IMAGES = 3


@dataclass(frozen=True)
class EndAtHead:
    """Ends a detector at the maps of its head, or at the features of maps, and writes into its metadata how they are
    decoded (`RawHead`).

    It does so where the graph follows one of the rules of `head_rules`, in float32 or float16, for images of one size,
    and no larger than what the native decoder takes. Any other model stays as it is; `find()` says why.
    """

    name: ClassVar[str] = "end-at-head"
    version: ClassVar[int] = 5

    def concerns(self, source: ModelSource) -> bool:
        return source.is_onnx and all(source.mentions(word) for word in (b"Sigmoid", b"Concat", b"Reshape"))

    def find(self, proto: Any) -> RawHead:
        """The head of an `onnx.ModelProto`, with the names that the maps have in it.

        Raises:
            UnprovenError: the model ends with something else; the message has the reason.
        """
        return _find(proto).head

    def apply(self, model: ir.Model) -> bool:
        import onnx_ir as ir

        proto = proto_of(model)
        if not self.apply_to_proto(proto):
            return False
        ended = ir.from_proto(proto)
        for name, value in ended.graph.initializers.items():
            if name in model.graph.initializers:  # the tensor may be in another file
                value.const_value = model.graph.initializers[name].const_value
        model.graph = ended.graph
        model.metadata_props.update(ended.metadata_props)
        return True

    def apply_to_proto(self, proto: Any) -> bool:
        """As `apply()`, of an `onnx.ModelProto`."""
        from onnx import helper

        try:
            end = _find(proto)
        except UnprovenError:
            return False
        graph = proto.graph
        batch = _images(proto).type.tensor_type.shape.dim[0]
        taken = {name for node in graph.node for name in (node.name, *node.input, *node.output)}
        taken |= {one.name for one in (*graph.input, *graph.initializer, *graph.node)}
        names = {}
        for index, old in enumerate(end.head.names):
            names[old] = name = _free_name(f"head_{index}", taken)
            if old in end.products:
                _write_products(graph, end, old, name)
        for node in _nodes_in(graph):
            for field in (node.input, node.output):
                for index, old in enumerate(field):
                    if old in names and old not in end.products:
                        field[index] = names[old]
        del graph.output[:]
        for old, name in names.items():
            dims = [batch.dim_value or batch.dim_param or None, *end.dims[old][1:]]
            graph.output.append(helper.make_tensor_value_info(name, end.types[old], dims))
        _drop_unused(graph)
        levels = [msgspec.structs.replace(one, maps=tuple(names[name] for name in one.maps)) for one in end.head.levels]
        metadata = {one.key: one.value for one in proto.metadata_props}
        msgspec.structs.replace(end.head, levels=tuple(levels)).write(metadata)
        helper.set_model_props(proto, metadata)
        return True


def _find(proto: Any) -> HeadEnd:
    """The head, of one image. The maps of a free batch are those of one image, one image behind the other.

    A convolution gives them so. Where channels come last, a Reshape does, with sizes that a graph computes: what they
    are for one image does not say what they are for several.
    """
    from ..head_rules import find_head

    value = _images(proto)
    sizes = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
    if proto.graph.sparse_initializer:
        raise UnprovenError("it has sparse weights")
    if len(sizes) != 4 or not all(sizes[1:]):
        raise UnprovenError("it leaves the size of its images open")
    first = find_head(proto, value.name, [sizes[0] or 1, *sizes[1:]])
    if not sizes[0] and any(level.channels_last for level in first.head.levels):
        others = find_head(proto, value.name, [_IMAGES, *sizes[1:]])
        if others.head != first.head:
            raise UnprovenError(f"its maps of {_IMAGES} images are not {_IMAGES} times those of one")
    return first


def _images(proto: Any) -> Any:
    """The input of images.

    Raises:
        UnprovenError: there is no such input.
    """
    weights = {one.name for one in proto.graph.initializer}
    inputs = [one for one in proto.graph.input if one.name not in weights]
    if len(inputs) != 1 or len(inputs[0].type.tensor_type.shape.dim) != 4:
        raise UnprovenError("it does not have one input of images")
    return inputs[0]


def _free_name(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def _write_products(graph: Any, end: HeadEnd, first: str, name: str) -> None:
    """Writes one product of the columns of several behind the other nodes, and the map `name` of it."""
    from onnx import helper, numpy_helper

    makers = {output: node for node in graph.node for output in node.output}
    weights = {one.name: numpy_helper.to_array(one) for one in graph.initializer}
    weights |= {
        node.output[0]: numpy_helper.to_array(node.attribute[0].t) for node in graph.node if node.op_type == "Constant"
    }
    gemms = [makers[product] for product in end.products[first]]
    target = next(node.input[1] for node in graph.node if node.op_type == "Reshape" and node.input[0] == first)

    def weight(array: Any, what: str) -> str:
        graph.initializer.append(numpy_helper.from_array(np.asarray(array), f"{name}/{what}"))
        return f"{name}/{what}"

    def node(kind: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        graph.node.append(helper.make_node(kind, inputs, [output], name=f"{name}/{kind}_{output}", **attributes))
        return output

    operands = [gemms[0].input[0]]
    for index, what in list(enumerate(("", "weight", "bias")))[1 : len(gemms[0].input)]:
        restored = [makers[gemm.input[index]].input for gemm in gemms]
        parts = [
            weight(np.concatenate([weights[one[part]] for one in restored], axis=-1), f"{what}{suffix}")
            for part, suffix in enumerate(("", "_scale", "_zero_point"))
        ]
        operands.append(node("DequantizeLinear", parts, f"{name}/{what}_dequantized", axis=2 - index))
    # The sizes come from the graph, not in numbers: the model may be resized.
    sizes = node("Gather", [target, weight(np.array([0, 2, 3]), "axes")], f"{name}/sizes")
    channels = weight(np.array([end.dims[first][3]]), "channels")
    shape = node("Concat", [sizes, channels], f"{name}/shape", axis=0)
    node("Reshape", [node("Gemm", operands, f"{name}/product"), shape], name)


# ---- what is not used any more ----


def _nodes_in(graph: Any) -> Iterator[Any]:
    """The nodes of a graph, and of those within it."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _nodes_in(inner)


def _drop_unused(graph: Any) -> None:
    """Takes out the nodes, weights and declared values that no output needs."""
    makers: Mapping[str, int] = {name: index for index, node in enumerate(graph.node) for name in node.output if name}
    used, kept = {one.name for one in graph.output}, set()
    waiting = list(used)
    while waiting:
        index = makers.get(waiting.pop())
        if index is not None and index not in kept:
            kept.add(index)
            node = graph.node[index]
            inner = [one for a in node.attribute for g in (a.g, *a.graphs) for one in _nodes_in(g)]
            outer = [one.name for a in node.attribute for g in (a.g, *a.graphs) for one in g.output]
            read = {name for one in (node, *inner) for name in one.input} | set(outer)
            waiting += read - used
            used |= read
    made = {name for index in kept for name in graph.node[index].output}
    for field, needed in (
        (graph.node, [index in kept for index in range(len(graph.node))]),
        (graph.initializer, [one.name in used for one in graph.initializer]),
        (graph.value_info, [one.name in made for one in graph.value_info]),
    ):
        for index in reversed(range(len(field))):
            if not needed[index]:
                del field[index]
