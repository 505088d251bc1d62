"""What a model says of its outputs that ends at the convolutions of its head, and leaves the decoding to its user."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["MOST_ANCHORS", "MOST_BINS", "MOST_LEVELS", "HeadLevel", "RawHead"]

_KEY = "infersdk.raw_head"

#: What `RawHeadDecoder` takes: levels of a head, boxes of a cell, bins of a distance.
MOST_LEVELS, MOST_ANCHORS, MOST_BINS = 8, 8, 64


class HeadLevel(msgspec.Struct, frozen=True, kw_only=True):
    """One feature map of a head.

    Attributes:
        maps: the names of its outputs: one `[batch, anchors * values, height, width]` of YOLOv5, or of the features
            `[batch, features, height, width]` of which the last convolution would make it; of YOLOv8 that of the boxes,
            `[batch, 4 * bins, height, width]`, and that of the classes.
        stride: pixels of the input from cell to cell.
        anchors: YOLOv5: width and height of each box of a cell, in pixels of the input.
        channels_last: YOLOv5: whether the map is `[batch, height, width, anchors * values]`.
        weights, bias: YOLOv5: of that convolution, in little-endian float32, `[anchors * values, features]` and
            `[anchors * values]`; empty for a map.
    """

    maps: tuple[str, ...]
    stride: int
    anchors: tuple[tuple[float, float], ...] = ()
    channels_last: bool = False
    weights: bytes = b""
    bias: bytes = b""

    def convolution(self) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]] | None:
        """The weights, `[anchors * values, features]`, and biases of the last convolution; None for a map."""
        if not self.weights:
            return None
        bias = np.frombuffer(self.bias, "<f4").astype(np.float32, copy=False)
        return np.frombuffer(self.weights, "<f4").astype(np.float32, copy=False).reshape(len(bias), -1), bias

    def sides(self, shape: Sequence[int | str | None]) -> tuple[int | str | None, int | str | None]:
        """The height and width in the shape of a map."""
        height, width = shape[1:3] if self.channels_last else shape[2:4]
        return height, width


class RawHead(msgspec.Struct, frozen=True, kw_only=True):
    """The head of a model without its decoding. It stands in the model's metadata.

    Attributes:
        layout: the head, as `DetectionDecoder` names it.
        output: the name of the output that the decoding gave.
        values: the values of a box there: of YOLOv5 5 + classes, of YOLOv8 4 + classes.
        levels: in the order of the rows of that output.
        bins: YOLOv8: what the softmax of the logits of a distance weighs.
    """

    layout: Literal["yolov5", "yolov8"]
    output: str
    values: int
    levels: tuple[HeadLevel, ...]
    bins: tuple[float, ...] = ()

    def write(self, metadata: MutableMapping[str, str]) -> None:
        """Puts the head into a model's metadata."""
        metadata[_KEY] = msgspec.json.encode(self).decode()

    @classmethod
    def read(cls, metadata: Mapping[str, str]) -> RawHead | None:
        """The head in a model's metadata; None where there is none that can be read."""
        try:
            return msgspec.json.decode(metadata[_KEY], type=cls)
        except (KeyError, msgspec.DecodeError):
            return None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all maps, in the order of the levels."""
        return tuple(name for level in self.levels for name in level.maps)
