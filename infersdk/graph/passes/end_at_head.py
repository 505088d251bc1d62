"""Removes the decoding of boxes from a detector.

The outputs become the maps of the head, or the inputs of YOLOv5's last convolutions (the features). The decoding in the
graph processes all of YOLOv5's 25,200 x 85 values, and nearly all are below the threshold. A native decoder that starts
at the maps computes only the boxes above the threshold. Starting at the features also avoids most of the last
convolutions, a twelfth of the work of the smallest YOLOv5.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import msgspec

from ..files import has_sparse_weights, load_proto
from ..graph_end import UnprovenError
from ..weights import free_name, taken_names
from ._sizes import data_inputs, fixed
from .base import Pass

if TYPE_CHECKING:
    import onnx_ir as ir

    from ...core.model_source import ModelSource
    from ..head_rules import HeadEnd
    from ..raw_head import RawHead

__all__ = ["EndAtHead"]


@dataclass(frozen=True)
class EndAtHead(Pass):
    """Cuts a detector at the maps or features of its head, and stores their decoding in the metadata (`RawHead`).

    The pass requires a graph that matches `head_rules`, float32 or float16 maps, a fixed image size, and a head within
    the limits of the native decoder. Other models are not changed; `find()` gives the reason.
    """

    name: ClassVar[str] = "end-at-head"
    version: ClassVar[int] = 8

    def concerns(self, source: ModelSource) -> bool:
        if not source.is_onnx or not all(source.mentions(word) for word in (b"Sigmoid", b"Concat", b"Reshape")):
            return False
        return not has_sparse_weights(load_proto(source))  # `read_model` raises an error for these

    def find(self, model: ir.Model) -> RawHead:
        """The head of a model, with the present names of the maps.

        Raises:
            UnprovenError: the model does not end with a known head; the message gives the reason.
        """
        return _find(model).head

    def apply(self, model: ir.Model) -> bool:
        import onnx_ir as ir
        from onnx_ir.passes.common import RemoveUnusedNodesPass

        try:
            end = _find(model)
        except UnprovenError:
            return False
        graph, image = model.graph, _images(model)
        assert image.shape is not None
        batch, taken, names = image.shape[0], taken_names(graph), {}
        for index, (value, dims) in enumerate(end.values.items()):
            names[value.name] = name = free_name(f"head_{index}", taken)
            taken.add(name)
            value.name, value.type, value.shape = name, ir.TensorType(end.dtype), ir.Shape([batch, *dims[1:]])
        graph.outputs[:] = end.values
        RemoveUnusedNodesPass()(model)
        levels = [msgspec.structs.replace(one, maps=tuple(names[name] for name in one.maps)) for one in end.head.levels]
        msgspec.structs.replace(end.head, levels=tuple(levels)).write(model.metadata_props)
        return True


def _find(model: ir.Model) -> HeadEnd:
    """Finds the head for one image: the maps of convolutions contain the images of a batch in order."""
    from ..head_rules import find_head

    image = _images(model)
    sizes = [fixed(dim) for dim in image.shape or ()]
    if not all(sizes[1:]):
        raise UnprovenError("the size of its images is free")
    return find_head(model, image, [size or 1 for size in sizes])


def _images(model: ir.Model) -> ir.Value:
    """The image input.

    Raises:
        UnprovenError: there is no single image input.
    """
    inputs = data_inputs(model)
    if len(inputs) != 1 or inputs[0].shape is None or len(inputs[0].shape) != 4:
        raise UnprovenError("it does not have one input of images")
    return inputs[0]
