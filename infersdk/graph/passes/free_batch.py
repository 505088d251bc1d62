"""A model that was exported for one batch size, for batches of any size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ...errors import UnsupportedModelError
from ..shape_change import ShapeChange
from ._sizes import BATCH, data_inputs, fixed, lift_constants, shapes_of, write_outputs

if TYPE_CHECKING:
    import onnx_ir as ir

    from ...model_source import ModelSource

__all__ = ["FreeBatch", "free_batch"]

#: Stands for a batch of any size while shapes are traced: a prime that no other size is a multiple of.
_EXAMPLE = 7919


@dataclass(frozen=True)
class FreeBatch:
    """Makes the first axis of all inputs free, and whatever in the graph was written for its size.

    A model whose batch is free stays as it is.

    Raises (`apply`):
        UnsupportedModelError: inputs have different first axes, or a node works on the batch as a whole; the message
            names it. The model is changed in part then: discard it.
    """

    name: ClassVar[str] = "free-batch"
    version: ClassVar[int] = 1

    def concerns(self, source: ModelSource) -> bool:
        return True

    def apply(self, model: ir.Model) -> bool:
        return free_batch(model) is not None


def free_batch(model: ir.Model) -> ShapeChange | None:
    """Frees the batch; returns what had to change, or None if it is free. Errors are those of the pass."""
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
    before = {name: [size, *shape[1:]] for name, shape in shapes_of(model).items() if shape}
    after = {name: [_EXAMPLE, *shape[1:]] for name, shape in before.items()}
    change = ShapeChange(model, before, after, free_batch=True)
    change.run()
    for value in inputs:
        if value.shape:
            value.shape = ir.Shape([BATCH, *list(value.shape)[1:]])
    write_outputs(model, change, batch=_EXAMPLE)
    return change
