"""A detector without the decoding of its boxes: its outputs are the maps of the last convolutions, or of the matrix
products that a quantiser makes of them, or the features that YOLOv5's last convolutions have.

The decoding reads and writes each of YOLOv5's 25,200 x 85 values several times, and nearly all of them are below the
threshold. A decoder that starts at the maps computes the others alone; one that starts at the features does without
nearly all of the last convolutions, which are a twelfth of all that the smallest YOLOv5 computes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import msgspec

from ...errors import ConfigError, UnsupportedModelError
from ..anchor_heads import find_anchor_head
from ..anchor_products import ProductMap
from ..distance_heads import find_distance_head
from ..head_features import at_features
from ..head_levels import HeadProof, UnprovenError
from ..raw_head import MOST_ANCHORS, MOST_BINS, MOST_LEVELS
from ..weights import drop_unused_weights, taken_names
from ._sizes import data_inputs, fixed, shapes_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx_ir as ir

    from ...model_source import ModelSource
    from ..raw_head import RawHead

    #: A value of the graph, or what one can be made of.
    _Map = ir.Value | ProductMap

__all__ = ["EndAtHead"]

#: The axis that is 1 for one image, and this for so many, is that of the images.
_IMAGES = 3


@dataclass(frozen=True)
class EndAtHead:
    """Ends a detector at the maps of its head, or at the features of maps, and writes into its metadata how they are
    decoded (`RawHead`).

    It does so where the graph proves that it ends with one of the decodings that `RawHead` names, in float32 or
    float16, for images of one size, and no larger than what the native decoder takes. Any other model stays as it is;
    `find()` says why.
    """

    name: ClassVar[str] = "end-at-head"
    version: ClassVar[int] = 4

    def concerns(self, source: ModelSource) -> bool:
        return source.is_onnx and all(source.mentions(word) for word in (b"Sigmoid", b"Concat", b"Reshape"))

    def find(self, model: ir.Model) -> RawHead:
        """The head of a model, with the names that the maps have in it.

        Raises:
            UnprovenError: the model ends with something else; the message has the reason.
        """
        return _find(model)[0]

    def apply(self, model: ir.Model) -> bool:
        import onnx_ir as ir
        from onnx_ir.passes.common import RemoveUnusedNodesPass

        try:
            head, maps, proof = _find(model)
        except UnprovenError:
            return False
        graph, taken = model.graph, taken_names(model.graph)
        batch = next(iter(data_inputs(model)[0].shape or ()))
        names = {}
        graph.outputs.clear()
        for index, (old, one) in enumerate(zip(head.names, maps, strict=True)):
            names[old] = name = _free_name(f"head_{index}", taken)
            kind, dims = _type_of(proof, one), _dims_of(proof, one)
            assert kind is not None
            value = one.write(graph, name) if isinstance(one, ProductMap) else one  # features, too
            value.name, value.type, value.shape = name, ir.TensorType(kind), ir.Shape([batch, *dims[1:]])
            graph.outputs.append(value)
        RemoveUnusedNodesPass()(model)
        drop_unused_weights(graph)
        levels = [msgspec.structs.replace(one, maps=tuple(names[name] for name in one.maps)) for one in head.levels]
        msgspec.structs.replace(head, levels=tuple(levels)).write(model.metadata_props)
        return True


def _find(model: ir.Model) -> tuple[RawHead, Sequence[_Map], HeadProof]:
    """The head, its maps, and the sizes of the graph."""
    image = _image_sides(model)
    try:
        proof = HeadProof(model, shapes_of(model))
        head, maps = _find_in(proof)
        _check_limits(head)
        _check_maps(proof, head, maps, image)
        _check_batch(model, head)
        head, maps = at_features(proof, head, maps)
    except (ConfigError, UnsupportedModelError) as error:
        raise UnprovenError(str(error)) from None
    return head, maps, proof


def _check_batch(model: ir.Model, head: RawHead) -> None:
    """The maps of a free batch are those of one image, one image behind the other.

    A convolution gives them so. Where channels come last, a Reshape does, with sizes that a graph computes: what they
    are for one image does not say what they are for several.

    Raises:
        UnprovenError: they are not.
    """
    (images,) = data_inputs(model)
    if not any(level.channels_last for level in head.levels) or fixed(next(iter(images.shape or ()))) is not None:
        return
    shapes = shapes_of(model)
    shapes[images.name or ""][0] = _IMAGES
    proof = HeadProof(model, shapes)
    found, maps = _find_in(proof)
    if found != head or any(_dims_of(proof, one)[0] != _IMAGES for one in maps):
        raise UnprovenError(f"its maps of {_IMAGES} images are not {_IMAGES} times those of one")


def _find_in(proof: HeadProof) -> tuple[RawHead, Sequence[_Map]]:
    """The head and its maps, of either form."""
    try:
        return find_anchor_head(proof)
    except UnprovenError as error:
        reason = str(error)  # the error itself would keep the graph, by the frames of its traceback
    try:
        return find_distance_head(proof)
    except UnprovenError as error:
        raise UnprovenError(f"as YOLOv5's head: {reason}; as YOLOv8's: {error}") from None


def _dims_of(proof: HeadProof, one: _Map) -> list[int | None]:
    return list(one.dims) if isinstance(one, ProductMap) else proof.dims(one)


def _type_of(proof: HeadProof, one: _Map) -> ir.DataType | None:
    return proof.dtype(one.rows if isinstance(one, ProductMap) else one)


def _free_name(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def _image_sides(model: ir.Model) -> tuple[int, int]:
    """The height and width of the input of images.

    Raises:
        UnprovenError: there is no such input, or it leaves them open.
    """
    inputs = data_inputs(model)
    if len(inputs) != 1 or inputs[0].shape is None or len(inputs[0].shape) != 4:
        raise UnprovenError("it does not have one input of images")
    sides = [fixed(side) for side in inputs[0].shape]
    height, width = sides[1:3] if sides[1] != 3 and sides[3] == 3 else sides[2:]
    if height is None or width is None:
        raise UnprovenError("it leaves the size of its images open")
    return height, width


def _check_limits(head: RawHead) -> None:
    """The native decoder takes a head of this size.

    Raises:
        UnprovenError: it does not.
    """
    anchors = max(len(level.anchors) for level in head.levels)
    counts = (
        ("levels", len(head.levels), MOST_LEVELS),
        ("anchors a cell", anchors, MOST_ANCHORS),
        ("bins a distance", len(head.bins), MOST_BINS),
    )
    for what, count, most in counts:
        if count > most:
            raise UnprovenError(f"its head has {count} {what}, and the native decoder takes at most {most}")


def _check_maps(proof: HeadProof, head: RawHead, maps: Sequence[_Map], image: tuple[int, int]) -> None:
    """The maps are of different names, and have a cell for each `stride` pixels of the image.

    Raises:
        UnprovenError: they have not, or are of another type than float32 and float16.
    """
    import onnx_ir as ir

    if len(set(head.names)) < len(maps):
        raise UnprovenError("several of its levels have one map")
    levels = [level for level in head.levels for _ in level.maps]
    for one, name, level in zip(maps, head.names, levels, strict=True):
        dims, kind = _dims_of(proof, one), _type_of(proof, one)
        if tuple(side * level.stride for side in level.sides(dims) if isinstance(side, int)) != image:
            raise UnprovenError(f"{name!r} of shape {dims} is not a grid of {level.stride} pixels a cell")
        if kind not in (ir.DataType.FLOAT, ir.DataType.FLOAT16):
            raise UnprovenError(f"{name!r} is {kind}, not float32 or float16")
