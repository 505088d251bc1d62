"""Makes the image size of a model free up to its present size.

`ShapeChange` finds the constants that depend on the image size. This module replaces each of them by nodes that compute
it from the size of the input. The target of a Reshape becomes -1 or is computed. A grid of cells is sliced to the rows
and columns of the input. The grid of a smaller size is the upper left corner of a larger one, so results are exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
        self._value, self._rows = value, rows = image
        old, new = (tuple(shapes[value.name or ""][rows : rows + 2]) for shapes in (before, after))
        super().__init__(model, before, after, image=((old[0], old[1]), (new[0], new[1])))
        self._height, self._start = old[0], self._builder(next(iter(model.graph)))
        self._by_stride: dict[int, ir.Value] = {}  # computed rows and columns of the image (1) and of maps
        self._cut: dict[tuple[ir.Value, tuple[int, ...]], ir.Value] = {}  # sliced grids

    # ---- replacing constants ----

    def _write(self, node: ir.Node, index: int, array: npt.NDArray[Any]) -> None:
        before = node.inputs[index]
        old = self._constant(before)
        if node.op_type in ("Expand", "Resize") or (node.op_type == "Slice" and array.max(initial=0) > 1 << 40):
            super()._write(node, index, array)  # these constants are valid for any size
            return
        if old is None or node.op_type != "Concat":
            raise self._error(node, "its limits cannot be computed from the size of the image")
        self._replace(node, index, self._entries(node, old.tolist(), array.tolist()))

    def _write_grid(
        self, node: ir.Node, index: int, axes: Sequence[int], array: npt.NDArray[Any], levels: Sequence[Size]
    ) -> None:
        """Slices the grid to the cells of the input: `array` is its upper left corner."""
        grid = node.inputs[index]
        assert grid is not None
        assert grid.const_value is not None
        old = grid.const_value.numpy()
        if not levels or any(level not in self._sizes for level in levels):
            raise self._error(
                node, f"its constant of shape {list(old.shape)} is not a grid of positions that can be sliced"
            )
        if (grid, array.shape) not in self._cut:
            build = self._builder(node)
            sliced = (self._plane if len(axes) == 2 else self._levels)(build, old, axes[0], levels)
            self._cut[grid, array.shape] = self._traced(build, sliced)
        self._replace(node, index, self._cut[grid, array.shape])

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
        stride, build = round(self._height / rows), self._start
        if not self._by_stride:
            limits = build.ints(self._rows), build.ints(self._rows + 2)
            self._by_stride[1] = self._traced(build, build("Slice", build("Shape", self._value), *limits))
        if stride not in self._by_stride:
            # Rounded up, as in a convolution with padding.
            up = build("Add", self._by_stride[1], build.ints(stride - 1))
            self._by_stride[stride] = self._traced(build, build("Div", up, build.ints(stride)))
        return self._by_stride[stride]

    # ---- grids ----

    def _plane(self, build: GraphBuilder, array: npt.NDArray[Any], axis: int, levels: Sequence[Size]) -> ir.Value:
        """Slices `array`, with the rows and columns of a level along `axis` and the next axis."""
        ends = self._size_of(levels[0][0])
        return build("Slice", array, build.ints(0, 0), ends, build.ints(axis, axis + 1))

    def _levels(self, build: GraphBuilder, array: npt.NDArray[Any], axis: int, levels: Sequence[Size]) -> ir.Value:
        """Slices `array`, with the cells of all levels along `axis`."""
        flat = build.ints(*array.shape[:axis], -1, *array.shape[axis + 1 :])
        parts = []
        for (rows, columns), part in zip(
            levels, np.split(array, np.cumsum([prod(level) for level in levels])[:-1], axis=axis), strict=True
        ):
            plane = part.reshape(*array.shape[:axis], rows, columns, *array.shape[axis + 1 :])
            parts.append(build("Reshape", self._plane(build, plane, axis, [(rows, columns)]), flat))
        return build("Concat", *parts, axis=axis) if len(parts) > 1 else parts[0]

    # ---- nodes ----

    def _builder(self, before: ir.Node) -> GraphBuilder:
        return GraphBuilder(self._model.graph, f"{before.name or before.op_type}/size/", before)
