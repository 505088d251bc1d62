"""Replaces computed Reshape targets by constants."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from ...errors import ConfigError, UnsupportedModelError
from ..builder import GraphBuilder
from ..shapes import ShapeTrace
from ._sizes import shapes_of
from .base import Pass

if TYPE_CHECKING:
    import onnx_ir as ir

    from ..shapes import Shape

__all__ = ["StaticReshapes", "computed_targets", "trace_example"]

#: Example sizes (batch, other axes, distance between axes) for free axes. A constant target must fit all of them.
_EXAMPLES = ((1, 640, 1), (3, 960, 2), (2, 320, 3))
#: Further sizes that the target must fit where the model accepts them: large batches and small axes.
_FURTHER = ((64, 32), (1, 1))


@dataclass(frozen=True)
class StaticReshapes(Pass):
    """Replaces computed Reshape targets by constants with 0 (axis of the input) and at most one -1.

    A target is replaced if the same constant fits three examples of the free axes. Axes of different names, and axes
    without names, have different sizes there; a model that refuses them is not changed. The constant also fits size 1,
    and size 32 with batch 64, where the model accepts them. A limit that no example reaches, such as that of
    `min(size, 5000)`, has no effect on the constant. Unused nodes are removed.
    """

    name: ClassVar[str] = "static-reshapes"
    version: ClassVar[int] = 3

    def apply(self, model: ir.Model) -> bool:
        from onnx_ir.passes.common import RemoveUnusedNodesPass

        result = list(computed_targets(model))
        build = GraphBuilder(model.graph)
        for node, target in result:
            node.replace_input_with(1, build.constant(build.ints(*target), f"{node.outputs[0].name}_target"))
        if result:
            RemoveUnusedNodesPass()(model)
        return bool(result)


def computed_targets(model: ir.Model) -> Iterator[tuple[ir.Node, list[int]]]:
    """Yields each Reshape with a computed target that a constant can replace, and the constant."""
    traces = [trace for example in _EXAMPLES if (trace := trace_example(model, *example)) is not None]
    if len(traces) < len(_EXAMPLES):
        return
    traces += [trace for example in _FURTHER if (trace := trace_example(model, *example)) is not None]
    for node in model.graph:
        if node.op_type != "Reshape" or len(node.inputs) < 2 or node.attributes.get_int("allowzero", 0) != 0:
            continue
        source, target = node.inputs[0], node.inputs[1]
        maker = target.producer() if target is not None else None
        if source is None or target is None or maker is None or maker.op_type == "Constant":
            continue
        sizes = [trace.data.get(target) for trace in traces]
        shapes = [trace.shapes.get(source, ()) for trace in traces]
        numbers = _as_numbers(sizes, shapes)
        if numbers is not None:
            yield node, numbers


def _as_numbers(sizes: list[Any], shapes: list[Shape]) -> list[int] | None:
    """A target with 0 for axes of the input and at most one -1; None if there is no such target."""
    if any(one is None for one in sizes) or len({len(one) for one in sizes}) > 1:
        return None
    result: list[int] = []
    for index, values in enumerate(zip(*sizes, strict=True)):
        if all(index < len(shape) and shape[index] == value for shape, value in zip(shapes, values, strict=True)):
            result.append(0)
        elif len(set(values)) == 1:
            result.append(int(values[0]))
        else:
            result.append(-1)
    return result if result.count(-1) <= 1 else None


def trace_example(model: ir.Model, batch: int, size: int, apart: int = 0) -> ShapeTrace | None:
    """Traces the shapes for example sizes of the free axes (`shapes_of`); None if the model does not accept them."""
    try:
        trace = ShapeTrace(model, shapes_of(model, batch, size, apart))
        for node in model.graph:
            trace.step(node)
    except (ConfigError, UnsupportedModelError):
        return None
    return trace
