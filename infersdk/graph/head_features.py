"""Which levels of YOLOv5's head may be decoded from the features that their last convolutions have."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec
import numpy as np

from .factors import constant_of
from .head_levels import is_pointwise, node_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx_ir as ir

    from .head_levels import HeadProof
    from .raw_head import HeadLevel, RawHead

__all__ = ["at_features"]

_Map = TypeVar("_Map")


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
    if features is None or features.producer() is None or weights is None or not is_pointwise(conv, weights):
        return None
    given = conv.inputs[2] if len(conv.inputs) > 2 else None
    bias = np.zeros(len(weights), np.float32) if given is None else constant_of(given)
    if bias is None or bias.shape != weights.shape[:1] or not np.isfinite(bias).all():
        return None
    is_float = proof.dtype(features) == ir.DataType.FLOAT and weights.dtype == bias.dtype == np.float32
    if not is_float or proof.dims(features)[1:] != [weights.shape[1], *proof.dims(conv.outputs[0])[2:]]:
        return None
    own = msgspec.structs.replace(
        level, maps=(features.name or "",), weights=weights.astype("<f4").tobytes(), bias=bias.astype("<f4").tobytes()
    )
    return own, features
