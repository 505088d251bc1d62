"""Poolings of one value with windows of several sizes, one behind the other.

Spatial pyramid pooling takes maxima over 5x5, 9x9 and 13x13 positions around each. The maxima over 9x9 are those over
5x5 of the maxima over 5x5, and so on. A runtime that looks at each position of a window looks at 75 then, not at 275.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    import onnx_ir as ir

    from ...model_source import ModelSource

__all__ = ["ChainPoolings"]


@dataclass(frozen=True)
class ChainPoolings:
    """Lets a MaxPool around each position read another one of smaller windows. All numbers stay the same."""

    name: ClassVar[str] = "chain-poolings"
    version: ClassVar[int] = 1

    def concerns(self, source: ModelSource) -> bool:
        return source.is_onnx and source.mentions(b"MaxPool")

    def apply(self, model: ir.Model) -> bool:
        changed = False
        for value in dict.fromkeys(node.inputs[0] for node in model.graph if node.op_type == "MaxPool"):
            if value is not None:
                changed |= _chain(model.graph, value)
        return changed


def _chain(graph: ir.Graph, value: ir.Value) -> bool:
    """Chains the poolings of a value; returns whether one reads another then."""
    poolings = [(window, use.node) for use in value.uses() if use.node.graph is graph and (window := _window(use.node))]
    poolings.sort(key=lambda pooling: pooling[0])
    changed = False
    for index, (large, second) in enumerate(poolings):
        for small, first in reversed(poolings[:index]):
            between = [1 + wide - narrow for narrow, wide in zip(small, large, strict=True)]
            if min(between) >= 1 and max(between) > 1:
                _read(second, first.outputs[0], between)
                changed = True
                break
    if changed:
        graph.sort()
    return changed


def _window(node: ir.Node) -> tuple[int, ...]:
    """The rows and columns of a pooling of maxima around each position; () for any other node."""
    attributes = node.attributes
    if node.op_type != "MaxPool" or node.domain or len(node.outputs) != 1:
        return ()
    if attributes.get_string("auto_pad", "NOTSET") != "NOTSET":
        return ()
    window = tuple(attributes.get_ints("kernel_shape", []))
    plain = [*attributes.get_ints("strides", []), *attributes.get_ints("dilations", [])]
    around = [side // 2 for side in window] * 2
    if any(side % 2 == 0 for side in window) or any(number != 1 for number in plain):
        return ()
    return window if list(attributes.get_ints("pads", [0] * len(around))) == around else ()


def _read(node: ir.Node, value: ir.Value, window: list[int]) -> None:
    """Lets a pooling read another value with another window."""
    import onnx_ir as ir

    node.replace_input_with(0, value)
    for name, numbers in (("kernel_shape", window), ("pads", [side // 2 for side in window] * 2)):
        node.attributes[name] = ir.AttrInt64s(name, numbers)
