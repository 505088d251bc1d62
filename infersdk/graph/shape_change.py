"""Rewrites the constants of a graph that depend on the input size.

Exports contain sizes as constants: Reshape targets, Resize sizes, Slice limits, and grids of cells (`regrouping`). Two
shape traces of the graph run side by side, one with the old size and one with the new. The constants of a node are
rewritten if it does not fit the new size, or if its meaning would change. A node whose constants cannot be rewritten
raises an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import UnsupportedModelError
from .batch_rows import UNKNOWN, BatchRows, UnknownBatchError
from .builder import GraphBuilder
from .regrouping import level_limits, regrid, regroup, resolve_target
from .shapes import ShapeTrace, node_label
from .weights import add_weight, drop_unused_weights, free_name, repeated, value_names

if TYPE_CHECKING:
    import numpy.typing as npt
    import onnx_ir as ir

__all__ = ["ShapeChange"]

_ELEMENTWISE = frozenset(
    {"Add", "Sub", "Mul", "Div", "Pow", "Min", "Max", "Mod", "Where", "PRelu", "Equal", "Less", "Greater", "And", "Or",
     "LessOrEqual", "GreaterOrEqual", "Xor", "Sum", "Mean", "LayerNormalization"}
)  # fmt: skip
#: A pool with a kernel of at most this size may be local, even if its input is no larger.
_LOCAL = 3
#: The inputs that give the size of the output.
_TARGETS = {"Expand": 1, "GridSample": 1, "Resize": 3, "Tile": 1}
#: The axes of the data, of the given rank, that constant indices select from.
_SELECTED: dict[str, Callable[[ir.Node, int, npt.NDArray[Any]], Iterable[int]]] = {
    # The first and the last element are the same for each size.
    "Gather": lambda node, rank, index: [] if {*index.flat} <= {0, -1} else [node.attributes.get_int("axis", 0) % rank],
    "GatherND": lambda node, rank, index: range(node.attributes.get_int("batch_dims", 0) + index.shape[-1]),
    "ScatterND": lambda node, rank, index: range(index.shape[-1]),
    "GridSample": lambda node, rank, index: range(2, rank),
    **dict.fromkeys(("GatherElements", "ScatterElements"), lambda node, rank, index: range(rank)),
}
_END = np.iinfo(np.int64).max


class ShapeChange:
    """Rewrites a model for inputs of other shapes.

    Args:
        model: a model whose constants are weights (`LiftConstantsToInitializersPass`).
        before, after: the old and new fixed shapes of the inputs.
        free_batch: whether the batch becomes free; `after` contains an example of it.
        image: the old and new rows and columns of the image, if they change.

    Attributes:
        old, new: the traces. They exclude values that depend on nodes with data-dependent shapes.
        changed: the nodes whose constants were rewritten, in the order of the changes.
        opens: whether the new size is only an example, and constants have to fit other sizes too.
    """

    opens = False

    def __init__(
        self,
        model: ir.Model,
        before: Mapping[str, Sequence[int]],
        after: Mapping[str, Sequence[int]],
        *,
        free_batch: bool = False,
        image: tuple[tuple[int, int], tuple[int, int]] | None = None,
    ) -> None:
        self._model, self._free, self._image = model, free_batch, image
        self.old, self.new = ShapeTrace(model, before), ShapeTrace(model, after)
        self.changed: dict[ir.Node, None] = {}
        sizes = next(((shape[0], after[name][0]) for name, shape in before.items() if shape), (1, 1))
        self._batches = BatchRows(self.old, self.new, sizes) if free_batch else None
        self._sizes: dict[tuple[int, int], tuple[int, int]] = {}  # of feature maps, before and after
        self._mends: dict[str, Callable[[ir.Node], None]] = {
            "Reshape": self._mend_reshape, "Resize": self._mend_resize, "Slice": self._mend_slice,
            "Split": self._mend_split, "Expand": self._mend_expand, "Concat": self._mend_concat,
            "LSTM": self._mend_states, "GRU": self._mend_states, "RNN": self._mend_states,
            **dict.fromkeys(("AveragePool", "Conv", "LpPool", "MaxPool"), self._mend_kernel),
        }  # fmt: skip

    def run(self) -> None:
        """Rewrites the model."""
        for node in list(self._model.graph):
            self.old.step(node)
            if node.op_type in _ELEMENTWISE:
                self._mend_elementwise(node)
            elif mend := self._mends.get(node.op_type):
                mend(node)
            self.new.step(node)
            self._check(node)
            self._check_batch(node)
        for output in self._model.graph.outputs:
            if self._batches is not None and not self._batches.is_batch(output):
                raise UnsupportedModelError(
                    f"the first axis of output {output.name!r} {list(self.old.shapes[output])} is not the batch"
                )
        for node in self._model.graph:
            for output in node.outputs:
                if not output.is_graph_output():
                    output.shape = output.type = None  # outdated; a type without a shape is not valid
        drop_unused_weights(self._model.graph)

    # ---- both traces ----

    def _shapes(self, value: ir.Value | None) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """The old and the new shape of a value; None if a size is unknown."""
        if value is None:
            return None
        old, new = self.old.shapes.get(value), self.new.shapes.get(value)
        if old is None or new is None or None in old or None in new or len(old) != len(new):
            return None
        return tuple(map(int, old)), tuple(map(int, new))  # type: ignore[arg-type]

    def _constant(self, value: ir.Value | None) -> npt.NDArray[Any] | None:
        """The array of a value that depends neither on the inputs nor on their sizes; else None."""
        if value is None:
            return None
        if value.is_initializer() and value.const_value is not None:
            return value.const_value.numpy()
        old, new = self.old.data.get(value), self.new.data.get(value)
        return old if old is not None and new is not None and np.array_equal(old, new) else None

    def _check(self, node: ir.Node) -> None:
        if self._image is not None:
            self._check_constants(node)
        for output in node.outputs:
            old, new = self.old.shapes.get(output), self.new.shapes.get(output)
            if old is not None and new is not None and len(old) != len(new):
                raise self._error(node, f"its output has {len(new)} axes instead of {len(old)}")
            if (known := self._shapes(output)) is not None and self._is_feature_map(*known):
                self._sizes[known[0][2], known[0][3]] = known[1][2], known[1][3]

    def _check_constants(self, node: ir.Node) -> None:
        """Raises an error if a constant input holds positions in, or the size of, an input or map that changes."""
        if node.op_type == "Einsum":
            self._check_einsum(node)
        index, selected = _TARGETS.get(node.op_type, 1), _SELECTED.get(node.op_type)
        if (selected is None and node.op_type not in _TARGETS) or index >= len(node.inputs):
            return
        data, result = self._shapes(node.inputs[0]), self._shapes(node.outputs[0])
        constant = self._constant(node.inputs[index])
        if data is None or constant is None:
            return
        if selected and any(data[0][axis] != data[1][axis] for axis in selected(node, len(data[0]), constant)):
            raise self._error(node, f"its input {index} is a constant with positions in an input of {list(data[0])}")
        if node.op_type in _TARGETS and result is not None and len(result[0]) > 1:
            old, new = ((shape[-2], shape[-1]) for shape in result)
            if (wanted := self._sizes.get(old, new)) != new:
                raise self._error(node, f"its constant size gives an output of {list(new)} instead of {list(wanted)}")

    def _check_einsum(self, node: ir.Node) -> None:
        sizes: dict[str, set[int]] = {}
        equation = node.attributes.get_string("equation", "").replace(" ", "")
        for term, value in zip(equation.partition("->")[0].split(","), node.inputs, strict=True):
            head, _, tail = term.partition("...")
            shape = self.new.shapes.get(value, ()) if value is not None else ()
            for label, size in zip(head + tail, shape[: len(head)] + shape[len(shape) - len(tail) :], strict=False):
                sizes.setdefault(label, set()).add(size or 1)
        for label, found in sizes.items():
            if len(found - {1}) > 1:
                raise self._error(node, f"axis {label!r} of {equation!r} would have the sizes {sorted(found)}")

    def _check_batch(self, node: ir.Node) -> None:
        if self._batches is not None and (why := self._batches.step(node)) is not None:
            error = self._error(node, why)
            raise UnknownBatchError(str(error)) if why in UNKNOWN else error

    def _is_feature_map(self, old: Sequence[int], new: Sequence[int]) -> bool:
        """Whether the shapes are [n, c, rows, columns], with the same stride for the old and the new image."""
        if self._image is None or len(old) != 4 or not all((*old, *new)):
            return False
        stride = max(1, round(self._image[0][0] / old[2]))
        return all(
            -(-pixels // stride) == size
            for image, shape in zip(self._image, (old, new), strict=True)
            for pixels, size in zip(image, shape[2:], strict=True)
        )

    def _error(self, node: ir.Node, why: str) -> UnsupportedModelError:
        what = "other batch sizes" if self._free else "other input sizes"
        return UnsupportedModelError(f"{node_label(node)} does not support {what}: {why}")

    def _write(self, node: ir.Node, index: int, array: npt.NDArray[Any]) -> None:
        """Replaces an input of a node by another constant."""
        before = node.inputs[index]
        name = f"{(before.name if before is not None else None) or node.name}_resized"
        value = add_weight(self._model.graph, free_name(name, value_names(self._model.graph)), array)
        self.new.know(value)
        self._replace(node, index, value)

    def _replace(self, node: ir.Node, index: int, value: ir.Value | None) -> None:
        node.replace_input_with(index, value)
        self.changed[node] = None

    def _traced(self, build: GraphBuilder, value: ir.Value) -> ir.Value:
        """Adds the new nodes of a builder to the traces, for another size only to that; returns `value`."""
        traces = [self.new] if self._batches is None else [self.old, self.new]
        for node in build.nodes:
            for trace in traces:
                for constant in node.inputs:
                    if constant is not None and constant.is_initializer() and constant not in trace.shapes:
                        trace.know(constant)
                if node.outputs[0] not in trace.shapes:
                    trace.step(node)
            self._check_batch(node)
        return value

    # ---- Reshape ----

    def _mend_reshape(self, node: ir.Node) -> None:
        shapes, result = self._shapes(node.inputs[0]), self.old.shapes.get(node.outputs[0])
        target = self.new.data.get(node.inputs[1]) if len(node.inputs) > 1 and node.inputs[1] is not None else None
        if shapes is None or shapes[0] == shapes[1] or target is None or result is None or None in result:
            return
        keeps_zero = not node.attributes.get_int("allowzero", 0)
        try:
            wanted = regroup(*shapes, [int(size or 0) for size in result], self._sizes)
        except ValueError as error:
            if self._constant(node.inputs[1]) is None and resolve_target(target, shapes[1], keeps_zero):
                return  # the target is computed from the size
            raise self._error(node, str(error)) from None
        if resolve_target(target, shapes[1], keeps_zero) == wanted:
            return
        entries = [int(entry) for entry in target]
        for index, (old, size) in enumerate(zip(result, wanted, strict=True)):
            if size != old and entries[index] != -1 and not (entries[index] == 0 and keeps_zero):
                entries[index] = self._entry(node, index, size, entries, shapes, wanted, keeps_zero)
        self._write_target(node, entries)

    def _entry(
        self, node: ir.Node, index: int, size: int, entries: list[int], shapes: tuple[Sequence[int], Sequence[int]],
        wanted: Sequence[int], keeps_zero: bool,
    ) -> int:  # fmt: skip
        """A target entry: a size, or for a free batch 0 or -1."""
        if not self._free:
            return size
        if keeps_zero and index < len(shapes[1]) and shapes[1][index] == size:
            return 0
        for other, entry in enumerate(entries):
            if entry == -1 and other != index:
                if wanted[other] % shapes[1][0] == 0:
                    raise self._error(node, f"two entries of its target {entries} depend on the batch")
                entries[other] = wanted[other]
        return -1

    def _write_target(self, node: ir.Node, entries: Sequence[int]) -> None:
        source = node.inputs[1]
        assert source is not None
        maker = source.producer()
        if source.is_initializer():
            self._write(node, 1, np.asarray(entries, np.int64))
        elif maker is not None and maker.op_type == "Concat":
            self._write_parts(maker, entries)
        else:
            raise self._error(node, "its target is not computed from shapes")

    def _write_parts(self, concat: ir.Node, entries: Sequence[int]) -> None:
        """Rewrites the constant parts of a concatenated target; the other parts are computed from shapes."""
        start = 0
        for index, part in enumerate(concat.inputs):
            now = self.new.data[part]  # type: ignore[index]
            wanted = np.asarray(entries[start : start + now.size], now.dtype)
            start += now.size
            if np.array_equal(now, wanted):
                continue
            if self._constant(part) is None:
                raise self._error(concat, f"it computes {now.tolist()}, but {wanted.tolist()} is required")
            self._write(concat, index, wanted)
        self.new.step(concat)

    # ---- other sizes ----

    def _mend_resize(self, node: ir.Node) -> None:
        shapes = self._shapes(node.inputs[0])
        sizes = self._constant(node.inputs[3]) if len(node.inputs) > 3 else None
        if shapes is None or shapes[0] == shapes[1] or sizes is None or "axes" in node.attributes:
            return
        if self._free or self.opens:
            factors = (sizes / np.asarray(shapes[0])).astype(np.float32)
            if not np.array_equal(np.floor(factors * np.asarray(shapes[0], np.float32)), sizes):
                raise self._error(node, f"its sizes {sizes.tolist()} are not exact multiples of {list(shapes[0])}")
            self._write(node, 2, factors)
            node.resize_inputs(3)
            return
        self._write(node, 3, self._scaled(node, sizes, *shapes))

    def _mend_slice(self, node: ir.Node) -> None:
        shapes = self._shapes(node.inputs[0])
        if shapes is None or shapes[0] == shapes[1]:
            return
        if len(node.inputs) < 3:
            raise self._error(node, "its limits are attributes (before opset 10); raise the opset first")
        starts, ends = self._constant(node.inputs[1]), self._constant(node.inputs[2])
        axes = self._constant(node.inputs[3]) if len(node.inputs) > 3 else None
        if starts is None or ends is None:
            return
        order = [int(axis) for axis in axes] if axes is not None else list(range(starts.size))
        old, new = ([shape[axis] for axis in order] for shape in shapes)
        for index, limits in ((1, starts), (2, ends)):
            made = self._limits(node, limits, old, new, end=index == 2)
            if not np.array_equal(made, limits):
                self._write(node, index, made)

    def _limits(
        self, node: ir.Node, limits: npt.NDArray[Any], old: Sequence[int], new: Sequence[int], *, end: bool
    ) -> npt.NDArray[Any]:
        made: npt.NDArray[Any] = limits.copy()
        for index, (before, after) in enumerate(zip(old, new, strict=True)):
            limit = int(limits[index])
            if before == after or limit <= 0 or limit > before or (limit == before and not end):
                continue
            if limit == before:
                made[index] = _END if self._free or self.opens else after
            elif self._free:
                raise self._error(node, f"it slices the batch at {limit}")
            elif (moved := level_limits(self._sizes, before, after).get(limit)) is not None:
                made[index] = moved
            elif end or 2 * limit == before:
                raise self._error(node, f"its limit {limit} of {before} has no known equivalent in {after}")
        return made

    def _mend_split(self, node: ir.Node) -> None:
        shapes = self._shapes(node.inputs[0])
        axis = node.attributes.get_int("axis", 0)
        if shapes is None or shapes[0][axis] == shapes[1][axis]:
            return
        if self._free:
            raise self._error(node, "it splits the batch")
        sizes = self._constant(node.inputs[1]) if len(node.inputs) > 1 else None
        if sizes is not None:
            before, after = shapes[0][axis], shapes[1][axis]
            limits = level_limits(self._sizes, before, after)
            ends = [limits.get(int(end)) for end in np.cumsum(sizes)]
            if None not in ends:
                made = np.diff(np.asarray(ends, sizes.dtype), prepend=0)
            else:
                made = self._scaled(node, sizes, [before] * sizes.size, [after] * sizes.size)
            self._write(node, 1, made)
        elif "split" in node.attributes:
            raise self._error(node, "its sizes are attributes (before opset 13); raise the opset first")

    def _mend_kernel(self, node: ir.Node) -> None:
        """Makes a pool over a whole map global. A kernel that the new map cannot hold raises an error."""
        shapes = self._shapes(node.inputs[0])
        weights = self._shapes(node.inputs[1]) if node.op_type == "Conv" else None
        if self._image is None or shapes is None or shapes[0][2:] == shapes[1][2:]:
            return
        old, new = (shape[2:] for shape in shapes)
        kernel = tuple(node.attributes.get_ints("kernel_shape", weights[0][2:] if weights is not None else ()))
        if len(kernel) != len(old):
            return  # computed weights of unknown shape
        pads = node.attributes.get_ints("pads", [0] * 2 * len(kernel))
        dilations = node.attributes.get_ints("dilations", [1] * len(kernel))
        padded = [size + sum(pads[axis :: len(kernel)]) for axis, size in enumerate(new)]
        whole = [size for size, before, after in zip(kernel, old, new, strict=True) if size == before != after]
        if node.op_type != "Conv" and whole and not any(pads):
            single = set(self.old.shapes.get(node.outputs[0], ())[2:]) == {1}
            indices = any(output.uses() for output in node.outputs[1:])  # which a global pool does not have
            if kernel == old and max(kernel) > _LOCAL and single and not indices:
                order = node.attributes.get("p")  # of LpPool
                node.op_type = f"Global{node.op_type}"
                node.attributes.clear()
                if order is not None:
                    node.attributes.add(order)
                node.resize_outputs(1)
                self.changed[node] = None
                return
            if kernel == old or max(whole) > _LOCAL:
                raise self._error(node, f"its kernel {list(kernel)} may be that of its whole input of {list(old)}")
        if not node.attributes.get_string("auto_pad", "").startswith("SAME") and any(
            (size - 1) * step + 1 > most for size, step, most in zip(kernel, dilations, padded, strict=True)
        ):
            raise self._error(node, f"its kernel {list(kernel)} is larger than its padded input of {padded}")

    def _scaled(
        self, node: ir.Node, sizes: npt.NDArray[Any], old: Sequence[int], new: Sequence[int]
    ) -> npt.NDArray[Any]:
        products = sizes.astype(np.int64) * np.asarray(new)
        if np.any(products % np.asarray(old)):
            raise self._error(node, f"{sizes.tolist()} of {list(old)} does not scale to whole numbers of {list(new)}")
        scaled: npt.NDArray[Any] = (products // np.asarray(old)).astype(sizes.dtype)
        return scaled

    def _mend_expand(self, node: ir.Node) -> None:
        shapes, target = self._shapes(node.inputs[0]), self._constant(node.inputs[1])
        if shapes is None or shapes[0] == shapes[1] or target is None:
            return
        made, offset = target.copy(), target.size - len(shapes[0])
        for axis, (before, after) in enumerate(zip(*shapes, strict=True)):
            if before != after and offset + axis >= 0 and made[offset + axis] == before:
                made[offset + axis] = 1  # keeps the size of the data
        if not np.array_equal(made, target):
            self._write(node, 1, made)

    # ---- constants as large as the data ----

    def _mend_elementwise(self, node: ir.Node) -> None:
        pairs = [self._shapes(value) for value in node.inputs if value is not None and not value.is_initializer()]
        others = [shapes for shapes in pairs if shapes is not None]
        if not others or len(others) < len(pairs):
            return
        old = np.broadcast_shapes(*(before for before, _ in others))
        try:
            new = np.broadcast_shapes(*(after for _, after in others))
        except ValueError:
            shapes = " and ".join(str(list(before)) for before, _ in others)
            raise self._error(node, f"its inputs of the shapes {shapes} would not broadcast") from None
        for index, value in enumerate(node.inputs):
            array = self._constant(value) if value is not None and value.is_initializer() else None
            if array is not None:
                self._fit(node, index, array, old, new)

    def _fit(self, node: ir.Node, index: int, array: npt.NDArray[Any], old: Sequence[int], new: Sequence[int]) -> None:
        """Rewrites a constant for data of another size, if it depends on the size."""
        lead = len(old) - array.ndim
        axes = [
            axis
            for axis, size in enumerate(array.shape)
            if lead + axis >= 0 and size != 1 and size == old[lead + axis] != new[lead + axis]
        ]
        if not axes:
            return
        if self._free:
            first = repeated(array, axes[0])
            if len(axes) > 1 or first is None:
                raise self._error(node, f"its constant of shape {list(array.shape)} differs between images")
            self._write(node, index, first)
            return
        made = regrid(array, axes, [new[lead + axis] for axis in axes], self._sizes)
        if made is None:
            raise self._error(
                node, f"its constant of shape {list(array.shape)} depends on the size and is not a grid of positions"
            )
        self._write_grid(node, index, axes, *made)

    def _write_grid(
        self, node: ir.Node, index: int, axes: Sequence[int], array: npt.NDArray[Any], levels: Sequence[tuple[int, int]]
    ) -> None:
        """Replaces a grid of cells along `axes`, which consists of `levels` (their old sizes)."""
        self._write(node, index, array)

    # ---- a free batch ----

    def _mend_concat(self, node: ir.Node) -> None:
        """Repeats a constant that is concatenated with the data, such as a class token, for each image."""
        if not self._free:
            return
        known = [self._shapes(value) for value in node.inputs]
        model = next((i for i, s in enumerate(known) if s is not None and s[0] != s[1]), None)
        if model is None:
            return
        _, after = known[model] or ((), ())
        axis = node.attributes.get_int("axis", 0) % len(after)
        for index, value in enumerate(node.inputs):
            shapes = known[index]
            if shapes is None or shapes[0] != shapes[1] or value is None or axis == 0 or shapes[1][0] == after[0]:
                continue
            if shapes[1][0] != 1:
                raise self._error(node, f"its constant is for a batch of {shapes[1][0]}")
            self._repeat(node, index, model, len(after))

    def _repeat(self, node: ir.Node, index: int, model: int, rank: int) -> None:
        """Expands an input along the first axis to the size of another input."""
        value, like = node.inputs[index], node.inputs[model]
        build = GraphBuilder(self._model.graph, f"{node.name}/repeat/", node)
        batch = build("Gather", build("Shape", like), build.ints(0), axis=0)
        target = build("Concat", batch, np.ones(rank - 1, np.int64), axis=0)
        repeated = build("Expand", value, target)
        self._replace(node, index, self._traced(build, repeated))

    def _mend_states(self, node: ir.Node) -> None:
        """Removes initial states of zeros from a recurrent layer, which are its default."""
        for index in range(5, min(7, len(node.inputs))):
            states = self._constant(node.inputs[index])
            if not self._free or states is None:
                continue
            if np.any(states):
                raise self._error(node, "its initial states are not 0")
            self._replace(node, index, None)
