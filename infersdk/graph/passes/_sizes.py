"""Functions for passes that change sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import ConfigError
from ..weights import data_inputs

if TYPE_CHECKING:
    import onnx_ir as ir

    from ..shape_change import ShapeChange

__all__ = ["BATCH", "fixed", "has_name", "lift_constants", "shapes_of", "write_outputs"]

#: The name of a free batch.
BATCH = "batch"


def lift_constants(model: ir.Model) -> None:
    """Converts Constant nodes to weights."""
    from onnx_ir.passes.common import LiftConstantsToInitializersPass

    LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)


def fixed(dim: object) -> int | None:
    """The size of an axis; None if it is free, which some exporters write as -1."""
    return dim if isinstance(dim, int) and dim >= 0 else None


def has_name(dim: object) -> bool:
    """Whether a free axis has a name, which is no placeholder such as `?`."""
    text = getattr(dim, "value", None)
    return text is not None and any(map(str.isalnum, text))


def shapes_of(model: ir.Model, batch: int = 1, size: int = 640, apart: int = 0) -> dict[str, list[int]]:
    """A fixed shape for each input, with example sizes for free axes: `batch` for the first, else `size`.

    640 is a multiple of common strides.

    Args:
        apart: the distance between the examples of two axes that may differ at run time: of batches, and of other sizes
            in units of 64. Axes with the same name do not differ.
    """
    shapes: dict[str, list[int]] = {}
    examples: dict[object, int] = {}
    for value in data_inputs(model):
        if value.shape is None:
            raise ConfigError(f"input {value.name!r} has no declared shape; export the model with one")
        shape = shapes[value.name or ""] = []
        for axis, dim in enumerate(value.shape):
            if (given := fixed(dim)) is None:
                key = (str(dim), axis == 0) if has_name(dim) else (value, axis)
                steps = apart * len(examples)
                given = examples.setdefault(key, size + 64 * steps if axis else batch + steps)
            shape.append(given)
    return shapes


def write_outputs(model: ir.Model, change: ShapeChange, *, batch: int | None = None) -> None:
    """Declares the shapes of the outputs after a change. Free axes remain free, and those of a free size become free.

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
        old = change.old.shapes.get(output, new)
        for axis, (dim, before, size) in enumerate(zip(declared, old, new, strict=True)):
            if fixed(dim) is None:
                dims.append(dim.value if isinstance(dim, ir.SymbolicDim) else None)
            elif change.opens and before != size:
                dims.append(f"{output.name}_{axis}")
            elif size == batch:
                dims.append(BATCH)
            else:  # multiples of the batch have no name
                dims.append(None if batch and size is not None and size % batch == 0 else size)
        output.shape = ir.Shape(dims)
