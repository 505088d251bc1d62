"""Folds the space-to-depth step of a detector into the convolution after it.

YOLOX, and YOLOv5 up to release 5, slice an image into four images of every second row and column, concatenate their
channels, and convolve the result. A 3x3 filter over these channels equals a 6x6 filter over the image with twice the
stride. Slicing takes longer than the convolution on some runtimes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from ..builder import GraphBuilder
from ..weights import constant_of
from .base import Pass, needs_operators

if TYPE_CHECKING:
    import numpy.typing as npt
    import onnx_ir as ir

__all__ = ["FoldSpaceToDepth"]

#: A Slice with this end or a larger one includes the last element of any axis.
_ENDLESS = np.iinfo(np.int32).max


@dataclass(frozen=True)
class FoldSpaceToDepth(Pass):
    """Folds concatenated strided Slices into the convolutions that read them.

    Results differ only by the order of summation.
    """

    name: ClassVar[str] = "fold-space-to-depth"
    version: ClassVar[int] = 2
    concerns = needs_operators(b"Slice", b"Concat", b"Conv")

    def apply(self, model: ir.Model) -> bool:
        from onnx_ir.passes.common import RemoveUnusedNodesPass

        graph = model.graph
        changed = False
        for node in list(graph):
            blocks = _blocks_of(node)
            if blocks is None or not _only_convolved(node.outputs[0]):
                continue
            for convolution in list(node.outputs[0].consumers()):
                _widen(graph, convolution, blocks)
            changed = True
        if changed:
            RemoveUnusedNodesPass()(model)
        return changed


class _Blocks(NamedTuple):
    """A value that consists of blocks of channels, each a strided view of another value.

    Attributes:
        source: the other value, [n, c, height, width].
        steps: the vertical and horizontal stride.
        offsets: the first row and column of each block of c channels.
    """

    source: ir.Value
    steps: tuple[int, int]
    offsets: tuple[tuple[int, int], ...]


def _blocks_of(node: ir.Node) -> _Blocks | None:
    """The blocks that a node concatenates; None if its output is not made of strided views of one value."""
    if node.op_type != "Concat" or node.domain or node.attributes.get_int("axis", 0) not in (1, -3):
        return None
    views = [view for value in node.inputs if value is not None and (view := _view_of(value)) is not None]
    if len(views) < len(node.inputs) or len({view[:2] for view in views}) != 1:
        return None
    blocks = _Blocks(views[0].source, views[0].steps, tuple(view.offsets[0] for view in views))
    shape = blocks.source.shape
    if shape is None or len(shape) != 4 or max(blocks.steps) < 2:
        return None
    divides = all(
        _divides(shape[2 + axis], blocks.steps[axis], {one[axis] for one in blocks.offsets}) for axis in (0, 1)
    )
    return blocks if divides else None


def _divides(size: int | ir.SymbolicDim, step: int, offsets: set[int]) -> bool:
    """Whether the height or the width of a value is a multiple of the stride.

    If the size is unknown: blocks with the first and the last offset have equal sizes only if it is.
    """
    return size % step == 0 if isinstance(size, int) else {0, step - 1} <= offsets


def _view_of(value: ir.Value) -> _Blocks | None:
    """The strided view (one block) that consecutive Slices compute; None if one of them does something else."""
    steps, offsets = [1, 1], [0, 0]
    while (maker := value.producer()) is not None and maker.op_type == "Slice" and not maker.domain:
        sliced = _slices(maker)
        if sliced is None or maker.inputs[0] is None:
            return None
        for axis, (start, step) in sliced.items():
            # This Slice runs before the ones already handled.
            offsets[axis], steps[axis] = start + offsets[axis] * step, steps[axis] * step
        value = maker.inputs[0]
    inside = all(offset < step for offset, step in zip(offsets, steps, strict=True))
    return _Blocks(value, (steps[0], steps[1]), ((offsets[0], offsets[1]),)) if inside else None


def _slices(node: ir.Node) -> dict[int, tuple[int, int]] | None:
    """The start and the step along the height (0) and width (1); None for Slices of channels or with an early end."""
    shape = node.inputs[0].shape if node.inputs[0] is not None else None
    arrays = [constant_of(value) for value in node.inputs[1:]]
    if shape is None or len(shape) != 4 or len(arrays) < 2 or any(array is None for array in arrays):
        return None
    starts, ends, *rest = ([int(number) for number in array.reshape(-1)] for array in arrays if array is not None)
    axes = rest[0] if rest else list(range(len(starts)))
    steps = rest[1] if len(rest) > 1 else [1] * len(starts)
    result = {}
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        size = shape[axis % 4]
        whole = end >= (size if isinstance(size, int) else _ENDLESS)
        if axis % 4 < 2 or start < 0 or step < 1 or not whole:
            return None
        result[axis % 4 - 2] = (start, step)
    return result


def _only_convolved(value: ir.Value) -> bool:
    """Whether only convolutions that can be widened read a value."""
    uses, maker = list(value.uses()), value.producer()
    if not uses or value.is_graph_output() or maker is None:
        return False
    return all(use.node.graph is maker.graph and _can_widen(use.node, use.idx) for use in uses)


def _can_widen(node: ir.Node, index: int) -> bool:
    if node.op_type != "Conv" or node.domain or index != 0 or len(node.inputs) < 2:
        return False
    get = node.attributes
    if get.get_int("group", 1) != 1 or set(get.get_ints("dilations", [1])) != {1}:
        return False
    return get.get_string("auto_pad", "NOTSET") == "NOTSET" and constant_of(node.inputs[1]) is not None


def _widen(graph: ir.Graph, node: ir.Node, blocks: _Blocks) -> None:
    """Replaces the input of a convolution by the source of its blocks, with wider weights."""
    import onnx_ir as ir

    old = node.inputs[1]
    assert old is not None
    weights = constant_of(old)
    assert weights is not None
    wide = _wide_weights(weights, blocks)
    node.replace_input_with(0, blocks.source)
    node.replace_input_with(1, GraphBuilder(graph).constant(wide, f"{old.name}_wide"))
    steps = blocks.steps
    numbers: Mapping[str, list[int]] = {
        "kernel_shape": list(wide.shape[2:]),
        "strides": [a * b for a, b in zip(node.attributes.get_ints("strides", [1, 1]), steps, strict=True)],
        "pads": [a * b for a, b in zip(node.attributes.get_ints("pads", [0] * 4), steps * 2, strict=True)],
    }
    for key, values in numbers.items():
        node.attributes[key] = ir.AttrInt64s(key, values)


def _wide_weights(weights: npt.NDArray[np.floating], blocks: _Blocks) -> npt.NDArray[np.floating]:
    """Weights over blocks as weights over the source, [outputs, channels, rows, columns]."""
    results, _, rows, columns = weights.shape
    (down, right), count = blocks.steps, weights.shape[1] // len(blocks.offsets)
    wide = np.zeros((results, count, rows * down, columns * right), weights.dtype)
    for number, (y, x) in enumerate(blocks.offsets):
        wide[:, :, y::down, x::right] += weights[:, number * count : (number + 1) * count]
    return wide
