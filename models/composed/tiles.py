"""Large images in tiles: a detector runs on each part at full resolution, and the results are merged."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from numbers import Real
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeAlias

from ...errors import ConfigError
from ..declaration import UNCHECKED, Fraction, argument
from ..preprocessor import as_size
from ..results import Detections
from .base import Composed, require_boxes, whole_image
from .merging import Merge, merge_views

if TYPE_CHECKING:
    from ...image import HostImage, ImageSource
    from ..vision import VisionModel
    from .image_request import ImageRequest

__all__ = ["Tile", "Tiled", "tile_grid"]

#: Merges the results of the views of an image, in order.
_MergesViews: TypeAlias = "Callable[[Sequence[Detections]], Detections]"


class Tile(NamedTuple):
    """A part of an image, by its edges in pixels."""

    left: int
    top: int
    right: int
    bottom: int


def tile_grid(size: tuple[int, int], tile: int | tuple[int, int], overlap: float = 0.2) -> list[Tile]:
    """The tiles of an image, row by row.

    Neighbours overlap by the whole part of `overlap` times a tile's side. The last tile of a row or column ends at the
    image's edge and overlaps more: all tiles have the same size. An image smaller than a tile is one tile.

    Args:
        size: (width, height) of the image.
        tile: (width, height) of a tile, or its side.
        overlap: at least 0 and below 1.

    Raises:
        ConfigError: a side of the image or the tile is not a whole number from 1, or `overlap` is out of range.
    """
    whole, part = as_size(size, "size"), as_size(tile, "tile")
    if whole is None or part is None:
        raise ConfigError(f"size is {size} and tile {tile}; give both, in pixels: tile_grid((1920, 1080), 640)")
    if not isinstance(overlap, Real) or not 0 <= overlap < 1:
        raise ConfigError(f"overlap is a share of a tile's side, from 0 to below 1, not {overlap!r}")
    columns, rows = (_starts(side, of_tile, overlap) for side, of_tile in zip(whole, part, strict=True))
    return [
        Tile(left, top, min(left + part[0], whole[0]), min(top + part[1], whole[1])) for top in rows for left in columns
    ]


def _starts(side: int, tile: int, overlap: float) -> list[int]:
    """Where the tiles along one side begin."""
    step = max(tile - int(overlap * tile + 1e-9), 1)  # 0.29 * 100 is a little below 29
    starts = [0]
    while starts[-1] + tile < side:
        starts.append(min(starts[-1] + step, side - tile))
    return starts


class Tiled(Composed[Detections]):
    """A model of boxes on large images: it runs on overlapping tiles, whose results are merged.

    ::

        detector = Tiled(models.load("yolov8n.onnx"), tile=640, overlap=0.2)
        boxes = detector("aerial.jpg")

    Masks, keypoints and oriented boxes come along. The tiles of one image, or of many, fill the model's batches.
    Settings of the model and of a call hold for each tile: with `max_det=1` each gives up to one box.

    Args:
        model: a wrapper whose results are `Detections`.
        tile: the side of a tile in pixels, or (width, height); None is the size of the model's input.
        overlap: how far neighbours overlap, as a share of a tile's side: 0 to below 1. An object that is smaller than
            the overlap is whole in one tile at least.
        whole_image: whether the model also runs on the whole image at reduced size, for objects larger than a tile.
        merge: how boxes of one object are merged. `"nms"` keeps the best one. `"union"` makes one box around all that
            match the best one. `"weighted"` is weighted boxes fusion: each box joins the group whose average it matches
            best, and the result is the weighted average of the group. It takes 0.3 s for 10,000 crowded boxes. Both
            join the masks; score, keypoints and other columns are those of the best box. Oriented boxes take `"nms"`.
        match: `"smaller"` compares the intersection of two boxes with the smaller one, so that a part that a tile's
            edge cut off belongs to the whole; `"iou"` with their union. Oriented boxes match by their probabilistic
            IoU (`infersdk.ops.nms_oriented`).
        threshold: the match above which two boxes show one object.
        class_agnostic: whether boxes of different classes are merged too.

    Raises:
        ConfigError: a setting has a wrong value.
        UnsupportedModelError: the results of the model are not `Detections`, or they are oriented boxes and `merge` is
            not `"nms"`. The first result raises it where the task of the model is not `obb`.
    """

    parts = ("model",)
    model: VisionModel[Detections] = argument(kw_only=False)
    tile: Annotated[int | Sequence[int] | None, UNCHECKED] = None
    overlap: float = 0.2
    whole_image: bool = True
    merge: Literal["nms", "union", "weighted"] = "nms"
    match: Literal["iou", "smaller"] = "smaller"
    threshold: Fraction = 0.5
    class_agnostic: bool = False

    def _prepare(self) -> None:
        require_boxes(self.model)
        tile = as_size(self.tile, "tile") or getattr(self.model, "input_size", None)
        if tile is None:
            kind = type(self.model).__name__
            raise ConfigError(f"{kind} has no input size of its own; pass the side of a tile: tile=640")
        self._tile: tuple[int, int] = tile
        self._merge = Merge(self.merge, self.match, self.threshold, self.class_agnostic)
        if self.model.task == "obb":
            self._merge.check_oriented()
        tile_grid((1, 1), self._tile, self.overlap)  # checks them

    def tiles(self, size: tuple[int, int]) -> list[Tile]:
        """The tiles of an image of (width, height)."""
        return tile_grid(size, self._tile, self.overlap)

    def _stream(self, images: Iterable[ImageSource | HostImage], parameters: Mapping[str, Any]) -> Iterator[Detections]:
        """The views of successive images fill the batches together."""
        pending: deque[tuple[int, _MergesViews]] = deque()  # of each image: the number of its views

        def sources() -> Iterator[Any]:
            for image in images:
                views, merge = self._views(image)
                pending.append((len(views), merge))
                yield from views

        results = self.model.stream(sources(), **parameters)
        for first in results:
            count, merge = pending.popleft()
            yield merge([first, *islice(results, count - 1)])

    def _begin(self, image: ImageSource | HostImage, request: ImageRequest) -> None:
        """The views go into the model's pipeline together. The first one that fails fails the image, and those that
        have not left are cancelled.
        """
        views, merge = self._views(image)
        request.submit(self.model, views, lambda found: request.end(merge(found)), request.parameters, fail_early=True)

    def _views(self, image: ImageSource | HostImage) -> tuple[list[Any], _MergesViews]:
        """The images for the model, at least one, and the function that merges their results."""
        whole = whole_image(image, self.model.channel_order, self.model.details.image_device, self._pools)
        tiles = self.tiles(whole.size)
        views: list[Any] = [whole.crop(tile) for tile in tiles]
        corners = [(tile.left, tile.top) for tile in tiles]
        if len(views) == 1:
            views = [whole]
        elif self.whole_image:
            views.append(whole)
            corners.append((0, 0))
        return views, lambda found: merge_views(found, corners, whole.size, self._merge, whole.decoder)

    def __repr__(self) -> str:
        return f"<Tiled {self._tile[0]} x {self._tile[1]}, overlap {self.overlap}: {self.model!r}>"
