"""Functions for passes that change sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import ConfigError

if TYPE_CHECKING:
    import onnx_ir as ir

    from ..shape_change import ShapeChange

__all__ = ["BATCH", "data_inputs", "fixed", "lift_constants", "shapes_of", "write_outputs"]

#: The name of a free batch.
BATCH = "batch"

#: The example size of free axes in shape traces: a multiple of common strides.
_FREE_SIZE = 640


def lift_constants(model: ir.Model) -> bool:
    """Converts Constant nodes to weights; returns whether there were any."""
    from onnx_ir.passes.common import LiftConstantsToInitializersPass

    return bool(LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model).modified)


def data_inputs(model: ir.Model) -> list[ir.Value]:
    """The inputs that are not weights."""
    return [value for value in model.graph.inputs if value.name not in model.graph.initializers]


def fixed(dim: object) -> int | None:
    """The size of an axis; None if it is free, which some exporters write as -1."""
    return dim if isinstance(dim, int) and dim >= 0 else None


def shapes_of(model: ir.Model) -> dict[str, list[int]]:
    """A fixed shape for each input, with example sizes for free axes: 1 for the first, else 640."""
    shapes = {}
    for value in data_inputs(model):
        if value.shape is None:
            raise ConfigError(f"input {value.name!r} has no shape")
        sizes = [fixed(dim) for dim in value.shape]
        shapes[value.name or ""] = [
            size if size is not None else 1 if axis == 0 else _FREE_SIZE for axis, size in enumerate(sizes)
        ]
    return shapes


def write_outputs(model: ir.Model, change: ShapeChange, *, batch: int | None = None) -> None:
    """Declares the shapes of the outputs after a change. Free axes remain free.

    Args:
        batch: the example size of a free batch in the change.
    """
    import onnx_ir as ir

    for output in model.graph.outputs:
        new, declared = change.new.shapes.get(output), output.shape
        if declared is None:
            continue
        if new is None or len(declared) != len(new):
            output.shape = ir.Shape([None] * len(declared))  # the checker requires a rank
            continue
        dims: list[int | str | None] = []
        for dim, size in zip(declared, new, strict=True):
            if fixed(dim) is None:
                dims.append(dim.value if isinstance(dim, ir.SymbolicDim) else None)
            elif size == batch:
                dims.append(BATCH)
            else:  # multiples of the batch have no name
                dims.append(None if batch and size is not None and size % batch == 0 else size)
        output.shape = ir.Shape(dims)
