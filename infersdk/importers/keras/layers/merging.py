"""Layers of several inputs."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

from ..tensors import Tensor, broadcast
from ..translation import LayerCall, layer

_OPERATORS = {"Add": "Add", "Subtract": "Sub", "Multiply": "Mul", "Maximum": "Max", "Minimum": "Min", "Average": "Add"}


def elementwise(call: LayerCall, operator: str, values: list[Tensor]) -> Tensor:
    """An operator on values, with channels first where all of them have that form."""
    shape = broadcast([value.shape for value in values])
    if all(value.is_channels_first and value.rank == len(shape) for value in values):
        made = reduce(lambda a, b: call.build(operator, a, b), [value.first() for value in values])
        return Tensor(call.build, shape, first=made, dtype=values[0].dtype)
    rank = max(value.rank for value in values)
    ready = []
    for value in values:  # Keras adds axes behind the batch
        missing = rank - value.rank
        ready.append(
            value.last() if not missing else call.build("Unsqueeze", value.last(), call.i64(*range(1, 1 + missing)))
        )
    made = reduce(lambda a, b: call.build(operator, a, b), ready)
    return Tensor(call.build, shape, last=made, dtype=values[0].dtype)


@layer("Add", "Subtract", "Multiply", "Maximum", "Minimum", "Average")
def merge(call: LayerCall) -> Tensor:
    if len(call.inputs) < 2:
        raise call.damaged(f"it has {len(call.inputs)} inputs")
    made = elementwise(call, _OPERATORS[call.kind], call.inputs)
    return (
        made if call.kind != "Average" else made.map(lambda x: call.build("Mul", x, np.float32(1 / len(call.inputs))))
    )


@layer("Concatenate")
def concatenate(call: LayerCall) -> Tensor:
    rank = call.x.rank
    axis = call.ints("axis", 1, -1)[0]
    if not -rank <= axis < rank or any(value.rank != rank for value in call.inputs):
        raise call.damaged(f"axis={axis} of {[value.rank for value in call.inputs]} axes")
    axis %= rank
    sizes = [value.shape[axis] for value in call.inputs]
    total = None if None in sizes else sum(size for size in sizes if size is not None)
    shape = (*call.x.shape[:axis], total, *call.x.shape[axis + 1 :])
    if all(value.is_channels_first for value in call.inputs):
        moved = 1 if axis == rank - 1 else axis + 1 if axis else 0
        made = call.build("Concat", *(value.first() for value in call.inputs), axis=moved)
        return Tensor(call.build, shape, first=made)
    return call.tensor(call.build("Concat", *(value.last() for value in call.inputs), axis=axis), shape)


@layer("Dot")
def dot(call: LayerCall) -> Tensor:
    """The sum of products along an axis of each, for every pair of the others: Keras's batch_dot."""
    first, second = call.inputs
    given = call.config.get("axes")
    axes: list[Any] = list(given) if isinstance(given, (list, tuple)) else [given, given]
    if len(axes) != 2 or any(not isinstance(axis, int) for axis in axes):
        raise call.damaged(f"axes={given!r}")
    a, b = axes[0] % first.rank, axes[1] % second.rank
    x, y = first.last(), second.last()
    if call.flag("normalize"):
        x, y = (
            call.build(
                "Div",
                v,
                call.build(
                    "Sqrt",
                    call.build("Max", call.build("ReduceSumSquare", v, call.i64(axis), keepdims=1), np.float32(1e-12)),
                ),
            )
            for v, axis in ((x, a), (y, b))
        )
    letters = "abcdefgh"
    left = letters[: first.rank]
    right = "a" + "".join(left[a] if axis == b else "mnopqrst"[axis] for axis in range(1, second.rank))
    out = "a" + "".join(c for c in left[1:] if c != left[a]) + "".join(c for c in right[1:] if c != left[a])
    made = call.build("Einsum", x, y, equation=f"{left},{right}->{out}")
    sizes = dict(zip(left, first.shape, strict=True)) | dict(zip(right[1:], second.shape[1:], strict=True))
    shape: tuple[Any, ...] = tuple(sizes[c] for c in out)
    if len(shape) == 1:
        return call.tensor(call.build("Unsqueeze", made, call.i64(1)), (*shape, 1))
    return call.tensor(made, shape)
