"""Instance masks as a column of `Detections`: one bit for each pixel of a box, unpacked where it is looked at."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from ...errors import ShapeError
from ...ops import MASK, PackedMasks
from ...ops.masks import mask_polygons
from .indices import row_number, row_positions

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Mask", "Masks", "decompressed_runs", "edges", "eroded"]


class Masks(Sequence["Mask"]):
    """The masks of an image, one for each box. Slices, masks of booleans and positions choose some of them.

    Args:
        packed: The masks as the operations give them.
    """

    __slots__ = ("_packed",)

    def __init__(self, packed: PackedMasks) -> None:
        self._packed = packed

    @classmethod
    def of(cls, planes: npt.ArrayLike) -> Masks:
        """Masks from an array `[n, height, width]` of the image; values other than 0 belong to a mask.

        Raises:
            ShapeError: The array has not three dimensions.
        """
        pixels = np.asarray(planes) != 0
        if pixels.ndim != 3:
            raise ShapeError(f"the masks have shape {pixels.shape}; use (masks, height, width)")
        n, height, width = pixels.shape
        stride = -(-width // 32) * 4
        bits = np.zeros((n, height, stride), np.uint8)
        bits[:, :, : -(-width // 8)] = np.packbits(pixels, axis=2, bitorder="little")
        layout = np.zeros(n, MASK)
        layout["width"], layout["height"], layout["stride"] = width, height, stride
        layout["offset"] = np.arange(n, dtype=np.int64) * (height * stride)
        return cls(PackedMasks((width, height), layout, bits.reshape(-1)))

    @classmethod
    def concatenate(cls, several: Sequence[Masks], size: tuple[int, int]) -> Masks:
        """The masks of several lists in one, for an image of `size`, which is that of each list."""
        layouts, bits, start = [np.zeros(0, MASK)], [np.zeros(0, np.uint8)], 0
        for masks in several:
            layout = masks._packed.layout.copy()
            layout["offset"] += start
            start += len(masks._packed.bits)
            layouts.append(layout)
            bits.append(masks._packed.bits)
        return cls(PackedMasks(size, np.concatenate(layouts), np.concatenate(bits)))

    def placed(self, offset: tuple[int, int], size: tuple[int, int]) -> Masks:
        """The same masks within a larger image of `size`, in which this one's upper left corner is at `offset`."""
        layout = self._packed.layout.copy()
        layout["x"] += offset[0]
        layout["y"] += offset[1]
        return Masks(PackedMasks(size, layout, self._packed.bits))

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) of the image."""
        return self._packed.size

    @property
    def areas(self) -> npt.NDArray[np.int64]:
        """(N,) int64: the pixels of each mask."""
        return np.array([self._packed.area(i) for i in range(len(self))], np.int64)

    @property
    def nbytes(self) -> int:
        """The bytes that these masks take."""
        return int((self._packed.layout["stride"].astype(np.int64) * self._packed.layout["height"]).sum())

    def numpy(self) -> npt.NDArray[np.bool_]:
        """All masks unpacked: (N, height, width) of bool. For many masks of large images, take one after the other."""
        width, height = self.size
        planes = np.zeros((len(self), height, width), np.bool_)
        for plane, mask in zip(planes, self, strict=True):
            x, y, w, h = mask.box
            plane[y : y + h, x : x + w] = mask.crop()
        return planes

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return self.numpy().astype(bool if dtype is None else dtype, copy=False)

    def __len__(self) -> int:
        return len(self._packed)

    def __iter__(self) -> Iterator[Mask]:
        return (Mask(self._packed, index) for index in range(len(self)))

    @overload
    def __getitem__(self, index: int) -> Mask: ...
    @overload
    def __getitem__(self, index: slice | Sequence[int] | Sequence[bool] | npt.NDArray[Any]) -> Masks: ...
    def __getitem__(self, index: Any) -> Any:
        if (position := row_number(index)) is not None:
            if not -len(self) <= position < len(self):
                raise IndexError(f"there is no mask {position}; there are {len(self)}")
            return Mask(self._packed, position % len(self))
        chosen = row_positions(index, len(self), type(self).__name__)
        return Masks(PackedMasks(self.size, self._packed.layout[chosen], self._packed.bits))

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self)} of {self.size[0]} x {self.size[1]}>"

    def __reduce__(self) -> tuple[Any, ...]:
        packed = self._packed
        rows = [packed.rows(i).reshape(-1) for i in range(len(self))]
        layout = packed.layout.copy()
        layout["offset"] = np.cumsum([0, *(row.nbytes for row in rows)])[: len(rows)]
        bits = np.concatenate(rows) if rows else np.zeros(0, np.uint8)
        return Masks, (PackedMasks(packed.size, layout, bits),)


class Mask:
    """One mask of an image.

    Attributes:
        size: (width, height) of the image.
        box: (x, y, width, height) of the part of the image that the mask holds pixels of; all others are 0.
    """

    __slots__ = ("_index", "_packed", "box")

    def __init__(self, packed: PackedMasks, index: int) -> None:
        self._packed, self._index = packed, index
        x, y, width, height = packed.layout[index].tolist()[:4]
        self.box: tuple[int, int, int, int] = (x, y, width, height)

    @property
    def size(self) -> tuple[int, int]:
        return self._packed.size

    @property
    def area(self) -> int:
        """The pixels of the mask."""
        return self._packed.area(self._index)

    def crop(self) -> npt.NDArray[np.bool_]:
        """The pixels within `box`: (height, width) of bool."""
        return self._packed.crop(self._index)

    def numpy(self) -> npt.NDArray[np.bool_]:
        """The pixels of the image: (height, width) of bool."""
        return self._packed[self._index]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return self.numpy().astype(bool if dtype is None else dtype, copy=False)

    def runs(self) -> npt.NDArray[np.uint32]:
        """The run lengths in the image, as COCO defines them: down the columns, first a run of zeros."""
        return self._packed.runs(self._index)

    def to_coco(self) -> dict[str, Any]:
        """The mask as COCO's compressed run lengths: `{"size": [height, width], "counts": "..."}`."""
        return {"size": list(self.size[::-1]), "counts": compress_runs(self.runs())}

    def polygons(self, *, tolerance: float = 0.0) -> list[npt.NDArray[np.float32]]:
        """The outlines in pixels of the image, each (k, 2) of x and y. See `infersdk.ops.masks.mask_polygons`."""
        return mask_polygons(self.crop(), offset=self.box[:2], tolerance=tolerance)

    def __eq__(self, other: object) -> bool:
        return self.to_coco() == other.to_coco() if isinstance(other, Mask) else NotImplemented

    def __hash__(self) -> int:
        return hash((self.size, self.area))

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.area} pixels in {self.size[0]} x {self.size[1]}>"

    def __reduce__(self) -> tuple[Any, ...]:
        alone = Masks(PackedMasks(self.size, self._packed.layout[self._index : self._index + 1], self._packed.bits))
        return operator.getitem, (alone, 0)


def edges(pixels: npt.NDArray[np.bool_]) -> tuple[int, int, int, int]:
    """Left, top, right and bottom edge of the pixels that are True; those of the first pixel where there are none."""
    columns, rows = np.flatnonzero(pixels.any(axis=0)), np.flatnonzero(pixels.any(axis=1))
    return (int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1) if rows.size else (0, 0, 1, 1)


def eroded(pixels: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """The pixels of a mask whose four neighbours are in it."""
    framed = np.pad(pixels, 1)
    return pixels & framed[:-2, 1:-1] & framed[2:, 1:-1] & framed[1:-1, :-2] & framed[1:-1, 2:]


def compress_runs(runs: npt.NDArray[np.uint32]) -> str:
    """Run lengths in COCO's compressed form.

    From the fourth on, a length is stored as its difference to the length two places before. A number is stored in
    groups of five bits, the lowest first. A group is a character from code 48 on; its sixth bit is set if another group
    follows.
    """
    values = runs.astype(np.int64)
    values[3:] -= runs[1:-2].astype(np.int64)
    groups = np.zeros((len(values), 7), np.uint8)  # 32 bits and a sign take at most seven
    used = np.zeros(groups.shape, np.bool_)
    open_ones = np.ones(len(values), np.bool_)
    for place in range(groups.shape[1]):
        low = values & 31
        values >>= 5
        more = open_ones & np.where(low & 16, values != -1, values != 0)
        groups[:, place], used[:, place] = low + 32 * more + 48, open_ones
        open_ones = more
    return groups[used].tobytes().decode("ascii")


def decompressed_runs(text: str) -> npt.NDArray[np.int64]:
    """The run lengths that `compress_runs()` has written."""
    values: list[int] = []
    value = shift = 0
    for group in text.encode("ascii"):
        value |= (group - 48 & 31) << shift
        shift += 5
        if group - 48 & 32:
            continue
        if group - 48 & 16:
            value -= 1 << shift
        values.append(value + (values[-2] if len(values) > 2 else 0))
        value = shift = 0
    return np.array(values, np.int64)
