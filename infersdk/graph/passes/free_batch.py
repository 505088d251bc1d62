"""Makes a fixed batch size free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ...errors import UnsupportedModelError
from ..shape_change import ShapeChange
from ..weights import data_inputs
from ._sizes import BATCH, fixed, lift_constants, shapes_of, write_outputs
from .base import Pass

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["FreeBatch", "free_batch"]

#: The example batch size in shape traces: a prime, so that no other size is a multiple of it.
_EXAMPLE = 7919


@dataclass(frozen=True)
class FreeBatch(Pass):
    """Makes the first axis of all inputs free and rewrites constants that depend on it.

    A model with a free batch is not changed.

    Raises (`apply`):
        UnsupportedModelError: the first axes of the inputs differ, or a node is not known to compute each image
            separately; the message names it. The model may be partly changed; discard it.
    """

    name: ClassVar[str] = "free-batch"
    version: ClassVar[int] = 2

    def apply(self, model: ir.Model) -> bool:
        return free_batch(model) is not None


def free_batch(model: ir.Model) -> ShapeChange | None:
    """Frees the batch; returns the change, or None if the batch is free. Raises the errors of the pass."""
    import onnx_ir as ir

    inputs = data_inputs(model)
    sizes = {value.name: fixed(value.shape[0]) if value.shape else None for value in inputs}
    known = {size for size in sizes.values() if size is not None}
    if not known:
        return None
    if len(known) > 1:
        raise UnsupportedModelError(f"the first axes of the inputs differ ({sizes}): none of them is the batch")
    lift_constants(model)
    (size,) = known
    before = {name: [size, *shape[1:]] if shape else [] for name, shape in shapes_of(model).items()}
    after = {name: [_EXAMPLE, *shape[1:]] if shape else [] for name, shape in before.items()}
    change = ShapeChange(model, before, after, free_batch=True)
    change.run()
    for value in inputs:
        if value.shape:
            value.shape = ir.Shape([BATCH, *list(value.shape)[1:]])
    write_outputs(model, change, batch=_EXAMPLE)
    return change
