"""Removes the decoding of boxes from a detector.

The outputs become the maps of the head, or the inputs of YOLOv5's last convolutions (the features). The decoding in the
graph processes all of YOLOv5's 25,200 x 85 values, and nearly all are below the threshold. A native decoder that starts
at the maps computes only the boxes above the threshold. Starting at the features also avoids most of the last
convolutions, a twelfth of the work of the smallest YOLOv5.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from ..files import proto_graphs, proto_of
from ..graph_end import GraphEnd, UnprovenError
from ..weights import free_name
from .base import Pass, needs_operators

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx_ir as ir

    from ..raw_head import RawHead

__all__ = ["EndAtHead"]


@dataclass(frozen=True)
class EndAtHead(Pass):
    """Cuts a detector at the maps or features of its head, and stores their decoding in the metadata (`RawHead`).

    The pass requires a graph that matches `head_rules`, float32 or float16 maps, a fixed image size, and a head within
    the limits of the native decoder. Other models are not changed; `find()` gives the reason.
    """

    name: ClassVar[str] = "end-at-head"
    version: ClassVar[int] = 7
    concerns = needs_operators(b"Sigmoid", b"Concat", b"Reshape")

    def find(self, proto: Any) -> RawHead:
        """The head of an `onnx.ModelProto`, with the present names of the maps.

        Raises:
            UnprovenError: the model does not end with a known head; the message gives the reason.
        """
        return _find(proto)[0]

    def apply(self, model: ir.Model) -> bool:
        import onnx_ir as ir

        proto = proto_of(model)
        if not self.apply_to_proto(proto):
            return False
        ended = ir.from_proto(proto)
        for name, value in ended.graph.initializers.items():
            if name in model.graph.initializers:  # the tensor may have external data
                value.const_value = model.graph.initializers[name].const_value
        model.graph = ended.graph
        model.metadata_props.update(ended.metadata_props)
        return True

    def apply_to_proto(self, proto: Any) -> bool:
        """`apply()` for an `onnx.ModelProto`."""
        from onnx import helper

        try:
            head, end = _find(proto)
        except UnprovenError:
            return False
        graph = proto.graph
        batch = _images(proto).type.tensor_type.shape.dim[0]
        taken = {name for node in graph.node for name in (node.name, *node.input, *node.output)}
        taken |= {one.name for one in (*graph.input, *graph.initializer, *graph.node)}
        names = {}
        for index, old in enumerate(head.names):
            names[old] = free_name(f"head_{index}", taken)
        for node in (node for one in proto_graphs(graph) for node in one.node):
            for field in (node.input, node.output):
                for index, old in enumerate(field):
                    if old in names:
                        field[index] = names[old]
        del graph.output[:]
        for old, name in names.items():
            dims = [batch.dim_value or batch.dim_param or None, *end.dims(old)[1:]]
            graph.output.append(helper.make_tensor_value_info(name, end.dtype(old), dims))
        _drop_unused(graph)
        levels = [msgspec.structs.replace(one, maps=tuple(names[name] for name in one.maps)) for one in head.levels]
        metadata = {one.key: one.value for one in proto.metadata_props}
        msgspec.structs.replace(head, levels=tuple(levels)).write(metadata)
        helper.set_model_props(proto, metadata)
        return True


def _find(proto: Any) -> tuple[RawHead, GraphEnd]:
    """Finds the head for one image: the maps of convolutions contain the images of a batch in order."""
    from ..head_rules import find_head

    value = _images(proto)
    sizes = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
    if proto.graph.sparse_initializer:
        raise UnprovenError("it has sparse weights")
    if len(sizes) != 4 or not all(sizes[1:]):
        raise UnprovenError("the size of its images is free")
    return find_head(proto, value.name, [sizes[0] or 1, *sizes[1:]])


def _images(proto: Any) -> Any:
    """The image input."""
    weights = {one.name for one in proto.graph.initializer}
    inputs = [one for one in proto.graph.input if one.name not in weights]
    if len(inputs) != 1 or len(inputs[0].type.tensor_type.shape.dim) != 4:
        raise UnprovenError("it does not have one input of images")
    return inputs[0]


# ---- removing unused elements ----


def _drop_unused(graph: Any) -> None:
    """Removes the nodes, weights and declared values that no output needs."""
    makers: Mapping[str, int] = {name: index for index, node in enumerate(graph.node) for name in node.output if name}
    used, kept = {one.name for one in graph.output}, set()
    waiting = list(used)
    while waiting:
        index = makers.get(waiting.pop())
        if index is not None and index not in kept:
            kept.add(index)
            node = graph.node[index]
            inner = [one for a in node.attribute for g in (a.g, *a.graphs) for one in proto_graphs(g)]
            read = {*node.input, *(one.name for g in inner for one in g.output)}
            read |= {name for g in inner for one in g.node for name in one.input}
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
