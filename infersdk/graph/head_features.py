"""Which levels of YOLOv5's head may be decoded from the features that their last convolutions have."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec
import numpy as np

from .factors import constant_of
from .head_levels import node_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx_ir as ir

    from .head_levels import HeadProof
    from .raw_head import HeadLevel, RawHead

__all__ = ["at_features"]

_Map = TypeVar("_Map")

#: What a convolution may have otherwise than by default, and what it has to be, of one of 1 x 1.
_PLAIN = {"strides": (1, 1), "pads": (0, 0, 0, 0), "kernel_shape": (1, 1)}


def at_features(
    proof: HeadProof, head: RawHead, maps: Sequence[_Map | ir.Value]
) -> tuple[RawHead, list[_Map | ir.Value]]:
    """The head with its levels at their features, where a convolution of 1 x 1 with constant weights in float32 makes
    the map of them, and the values of the graph that the levels then are. Other levels stay.
    """
    if head.layout != "yolov5":
        return head, list(maps)
    found = [_features(proof, level, one) for level, one in zip(head.levels, maps, strict=True)]
    values = [*maps, *(one[1] for one in found if one is not None)]
    levels, ends = list(head.levels), list(maps)
    for index, one in enumerate(found):
        if one is not None and values.count(one[1]) == 1:  # each level is an output of its own
            levels[index], ends[index] = one
    return msgspec.structs.replace(head, levels=tuple(levels)), ends


def _features(proof: HeadProof, level: HeadLevel, one: object) -> tuple[HeadLevel, ir.Value] | None:
    """A level at its features, and their value; None where what makes its map is not such a convolution."""
    import onnx_ir as ir

    conv = node_of(one, "Conv") if isinstance(one, ir.Value) else None
    if conv is None or level.channels_last:
        return None
    features, weights = conv.inputs[0], constant_of(conv.inputs[1])
    with_bias = len(conv.inputs) > 2 and conv.inputs[2] is not None
    bias = constant_of(conv.inputs[2]) if with_bias else np.zeros(len(weights) if weights is not None else 0, "f4")
    if features is None or features.producer() is None or weights is None or bias is None or not _is_pointwise(conv):
        return None
    sizes = (weights.shape[1], *proof.dims(one)[2:]) if weights.ndim == 4 else ()  # type: ignore[arg-type]
    fits = weights.shape[2:] == (1, 1) and tuple(proof.dims(features)[1:]) == sizes and bias.shape == weights.shape[:1]
    is_float = proof.dtype(features) == ir.DataType.FLOAT and weights.dtype == bias.dtype == np.float32
    if not (fits and is_float and np.isfinite(weights).all() and np.isfinite(bias).all()):
        return None
    own = msgspec.structs.replace(
        level, maps=(features.name or "",), weights=weights.astype("<f4").tobytes(), bias=bias.astype("<f4").tobytes()
    )
    return own, features


def _is_pointwise(conv: ir.Node) -> bool:
    """Whether its attributes are those of a convolution of 1 x 1 that sees each position, and all channels."""
    if conv.attributes.get_int("group", 1) != 1:
        return False
    if conv.attributes.get_string("auto_pad", "NOTSET") not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        return False
    return all(tuple(conv.attributes.get_ints(name, wanted)) == wanted for name, wanted in _PLAIN.items())
