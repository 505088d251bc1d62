"""Makes the image size of a model free up to its present size.

`ShapeChange` finds the constants that depend on the image size. This module replaces each of them by nodes that compute
it from the size of the input. The target of a Reshape becomes -1 or is computed. A grid of cells is sliced to the rows
and columns of the input. The grid of a smaller size is the upper left corner of a larger one, so results are exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from .builder import GraphBuilder
from .shape_change import ShapeChange

if TYPE_CHECKING:
    import numpy.typing as npt
    import onnx_ir as ir

__all__ = ["SizeFreeing"]

Size = tuple[int, int]


class SizeFreeing(ShapeChange):
    """Rewrites a model for images of any size up to its own.

    Args:
        model: a model whose constants are weights.
        image: the image input, and the axis of its rows.
        before, after: as in `ShapeChange`. `after` is an example, whose rows and columns differ from each other and
            from those before.
    """

    opens = True

    def __init__(
        self,
        model: ir.Model,
        image: tuple[ir.Value, int],
        before: Mapping[str, Sequence[int]],
        after: Mapping[str, Sequence[int]],
    ) -> None:
        value, rows = image
        old, new = (tuple(shapes[value.name or ""][rows : rows + 2]) for shapes in (before, after))
        super().__init__(model, before, after, image=((old[0], old[1]), (new[0], new[1])))
        self._old_image: Size = (old[0], old[1])
        self._value, self._rows = value, rows
        self._size: ir.Value | None = None  # the rows and columns of the image, computed
        self._scaled_sizes: dict[int, ir.Value] = {}  # the same for feature maps, by stride
        self._cut: dict[tuple[ir.Value, tuple[int, ...]], ir.Value] = {}  # sliced grids

    # ---- replacing constants ----

    def _write(self, node: ir.Node, index: int, array: npt.NDArray[Any]) -> None:
        before = node.inputs[index]
        old = self._constant(before)
        if node.op_type in ("Expand", "Resize") or (node.op_type == "Slice" and array.max(initial=0) > 1 << 40):
            super()._write(node, index, array)  # these constants are valid for any size
            return
        if old is None or before is None or node.op_type in ("Slice", "Split"):
            raise self._error(node, "its limits cannot be computed from the size of the image")
        if old.ndim == 1 and node.op_type == "Concat":
            self._replace(node, index, self._entries(node, old.tolist(), array.tolist()))
            return
        made = self._cut.get((before, array.shape))
        if made is None:
            made = self._cut[before, array.shape] = self._grid(node, old, array)
        self._replace(node, index, made)

    def _write_target(self, node: ir.Node, entries: Sequence[int]) -> None:
        target = node.inputs[1]
        assert target is not None
        old = [int(entry) for entry in self.new.data[target]]
        changed = [index for index, (a, b) in enumerate(zip(old, entries, strict=True)) if a != b]
        if target.is_initializer() and len(changed) == 1 and -1 not in entries:
            open_entries = [-1 if index in changed else entry for index, entry in enumerate(entries)]
            super()._write(node, 1, np.asarray(open_entries, np.int64))
        elif target.is_initializer():
            self._replace(node, 1, self._entries(node, old, entries))
        else:
            super()._write_target(node, entries)

    # ---- sizes ----

    def _entries(self, node: ir.Node, old: Sequence[int], new: Sequence[int]) -> ir.Value:
        """Entries of a shape. Those that change are computed from the image size."""
        build = self._builder(node)
        parts: list[Any] = [
            build.ints(after) if before == after else self._entry_of(node, build, before, after)
            for before, after in zip(old, new, strict=True)
        ]
        return self._traced(build, build("Concat", *parts, axis=0) if len(parts) > 1 else parts[0])

    def _entry_of(self, node: ir.Node, build: GraphBuilder, old: int, new: int) -> ir.Value:
        """The rows, columns or cells of a feature map, as an array of one element."""
        for (rows, columns), (new_rows, new_columns) in self._sizes.items():
            size = self._size_of(rows)
            if (old, new) == (rows, new_rows):
                return self._traced(build, build("Slice", size, build.ints(0), build.ints(1)))
            if (old, new) == (columns, new_columns):
                return self._traced(build, build("Slice", size, build.ints(1), build.ints(2)))
            if (old, new) == (rows * columns, new_rows * new_columns):
                return self._traced(build, build("ReduceProd", size, keepdims=1))
        raise self._error(node, f"its size {old} cannot be computed from the size of the image")

    def _size_of(self, rows: int) -> ir.Value:
        """The rows and columns, int64 [2], of the feature map with `rows` rows for the old image size."""
        stride = round(self._old_image[0] / rows)
        if stride not in self._scaled_sizes:
            build = self._builder(next(iter(self._model.graph)) if self._size is None else self._behind_size)
            if self._size is None:
                axes = build.ints(self._rows), build.ints(self._rows + 2)
                self._size = self._traced(build, build("Slice", build("Shape", self._value), *axes))
            # Rounded up, as in a convolution with padding.
            up = build("Add", self._size, build.ints(stride - 1))
            self._scaled_sizes[stride] = self._traced(build, build("Div", up, build.ints(stride)))
        return self._scaled_sizes[stride]

    @property
    def _behind_size(self) -> ir.Node:
        """The node before which the sizes of feature maps are inserted."""
        assert self._size is not None
        users = [use.node for use in self._size.uses()]
        return users[0]

    # ---- grids ----

    def _grid(self, node: ir.Node, old: npt.NDArray[Any], new: npt.NDArray[Any]) -> ir.Value:
        """Slices a constant with a value per cell to the cells of the input."""
        axes = [axis for axis, (a, b) in enumerate(zip(old.shape, new.shape, strict=True)) if a != b]
        build = self._builder(node)
        if len(axes) == 2 and axes[1] == axes[0] + 1 and (old.shape[axes[0]], old.shape[axes[1]]) in self._sizes:
            made = self._plane(build, old, axes[0])
            if np.array_equal(old[_corner(axes[0], new.shape[axes[0]], new.shape[axes[1]])], new):
                return self._traced(build, made)
        elif len(axes) == 1:
            (axis,) = axes
            for levels in self._level_lists(old.shape[axis]):
                if np.array_equal(self._cut_levels(old, axis, levels), new):
                    return self._traced(build, self._levels(build, old, axis, levels))
        raise self._error(
            node, f"its constant of shape {list(old.shape)} is not a grid of positions that can be sliced"
        )

    def _plane(self, build: GraphBuilder, array: npt.NDArray[Any], axis: int) -> ir.Value:
        """Slices `array`, with rows and columns along `axis` and the next axis."""
        ends = self._size_of(array.shape[axis])
        made: ir.Value = build("Slice", array, build.ints(0, 0), ends, build.ints(axis, axis + 1))
        return made

    def _level_lists(self, cells: int) -> Iterator[list[Size]]:
        """All divisions of `cells` into consecutive feature maps, the largest first. A feature map may repeat."""
        known = sorted(self._sizes, key=lambda size: -prod(size))

        def of(rest: int, first: int) -> Iterator[list[Size]]:
            if rest == 0:
                yield []
            for index in range(first, len(known)):
                if prod(known[index]) <= rest:
                    for tail in of(rest - prod(known[index]), index):
                        yield [known[index], *tail]

        yield from of(cells, 0)

    def _cut_levels(self, array: npt.NDArray[Any], axis: int, levels: Sequence[Size]) -> npt.NDArray[Any]:
        """The result of `_levels()` for the example size."""
        cut = []
        for level, plane in _planes(array, axis, levels):
            kept = plane[_corner(axis, *self._sizes[level])]
            cut.append(kept.reshape(*array.shape[:axis], -1, *array.shape[axis + 1 :]))
        return np.concatenate(cut, axis=axis)

    def _levels(self, build: GraphBuilder, array: npt.NDArray[Any], axis: int, levels: Sequence[Size]) -> ir.Value:
        flat = build.ints(array.shape[:axis], -1, array.shape[axis + 1 :])
        parts = [build("Reshape", self._plane(build, plane, axis), flat) for _, plane in _planes(array, axis, levels)]
        made: ir.Value = build("Concat", *parts, axis=axis) if len(parts) > 1 else parts[0]
        return made

    # ---- nodes ----

    def _builder(self, before: ir.Node) -> GraphBuilder:
        return GraphBuilder(self._model.graph, f"{before.name or before.op_type}/size/", before)


def _corner(axis: int, rows: int, columns: int) -> tuple[slice, ...]:
    return (*[slice(None)] * axis, slice(rows), slice(columns))


def _planes(array: npt.NDArray[Any], axis: int, levels: Sequence[Size]) -> Iterator[tuple[Size, npt.NDArray[Any]]]:
    """Splits an axis of cells into levels, each with its rows and columns along two axes."""
    start = 0
    for rows, columns in levels:
        part = array.take(range(start, start + rows * columns), axis=axis)
        yield (rows, columns), part.reshape(*array.shape[:axis], rows, columns, *array.shape[axis + 1 :])
        start += rows * columns
