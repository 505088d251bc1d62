"""The metadata of a model that ends at the maps of its head, for decoding outside of the model."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["MOST_ANCHORS", "MOST_BINS", "MOST_LEVELS", "HeadLevel", "RawHead"]

_KEY = "infersdk.raw_head"

#: Limits of `RawHeadDecoder`: levels of a head, anchors of a cell, bins of a distance.
MOST_LEVELS, MOST_ANCHORS, MOST_BINS = 8, 8, 64


class HeadLevel(msgspec.Struct, frozen=True, kw_only=True):
    """One feature map of a head.

    Attributes:
        maps: the names of its outputs. YOLOv5: the map `[batch, anchors * values, height, width]`, or the features
            `[batch, features, height, width]` from which the last convolution computes it. YOLOv8: the map of the boxes
            `[batch, 4 * bins, height, width]` and the map of the classes.
        stride: the stride in pixels.
        anchors: YOLOv5: width and height of each anchor in pixels.
        weights, bias: YOLOv5 features: the last convolution in little-endian float32, `[anchors * values, features]`
            and `[anchors * values]`; empty for a map.
    """

    maps: tuple[str, ...]
    stride: int
    anchors: tuple[tuple[float, float], ...] = ()
    weights: bytes = b""
    bias: bytes = b""

    def convolution(self) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]] | None:
        """The weights, `[anchors * values, features]`, and biases of the last convolution; None for a map."""
        if not self.weights:
            return None
        bias = np.frombuffer(self.bias, "<f4").astype(np.float32, copy=False)
        return np.frombuffer(self.weights, "<f4").astype(np.float32, copy=False).reshape(len(bias), -1), bias


class RawHead(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The head of a model without its decoding, as stored in the metadata of the model.

    Attributes:
        layout: the layout, as in `DetectionDecoder`.
        output: the name of the decoded output.
        values: values per box of that output: YOLOv5 5 + classes, YOLOv8 4 + classes.
        levels: the levels in the order of that output.
        bins: YOLOv8: the values of the bins of a distance.
    """

    layout: Literal["yolov5", "yolov8"]
    output: str
    values: int
    levels: tuple[HeadLevel, ...]
    bins: tuple[float, ...] = ()

    def write(self, metadata: MutableMapping[str, str]) -> None:
        """Writes the head into the metadata of a model."""
        metadata[_KEY] = msgspec.json.encode(self).decode()

    @classmethod
    def read(cls, metadata: Mapping[str, str]) -> RawHead | None:
        """Reads the head from the metadata of a model; None if there is no valid head."""
        try:
            return msgspec.json.decode(metadata[_KEY], type=cls)
        except (KeyError, ValueError, RecursionError):
            return None

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of all maps, in the order of the levels."""
        return tuple(name for level in self.levels for name in level.maps)
