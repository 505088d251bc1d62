"""Finds floating-point nodes that compute indices and sizes rather than data.

Exports sometimes compute shapes, grid positions and class numbers in floating point, such as `Shape -> Cast -> Mul ->
Floor -> Cast`, or the position of the best score divided by the number of classes. Such numbers must be exact up to
millions; float16 is exact only up to 2048.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["index_nodes"]

#: Operators whose results are always data.
_DATA = frozenset({"Conv", "ConvTranspose", "Gemm", "LSTM", "GRU", "RNN"})
#: Operators whose integer results are indices or sizes, even if computed from data.
_INDICES = frozenset(
    {"ArgMax", "ArgMin", "Multinomial", "NonMaxSuppression", "NonZero", "Range", "Shape", "Size", "TopK", "Unique"}
)


class _Kind(enum.IntEnum):
    """The contents of a value. The largest kind of the inputs decides."""

    CONSTANT = 0
    INDEX = 1
    DATA = 2


def index_nodes(graph: ir.Graph, types: Mapping[ir.Value, ir.DataType]) -> set[ir.Node]:
    """The nodes of a graph, without subgraphs, whose floating-point results are indices or sizes.

    Such a result depends only on constants and on 32- or 64-bit integers that the graph computes: shapes, positions of
    maxima, ranges. An integer input of the model counts as data, since it may be a mask.

    Args:
        types: `element_types` of the model.
    """
    kinds: dict[ir.Value, _Kind] = dict.fromkeys(graph.initializers.values(), _Kind.CONSTANT)
    result = set()
    for node in graph:
        read = node.inputs[:1] if node.op_type == "CastLike" else node.inputs  # of its second one, the type alone
        inputs = [(value, kinds.get(value, _Kind.DATA)) for value in read if value is not None]
        of_floats = max((kind for value, kind in inputs if _is_float(types.get(value))), default=None)
        of_others = max((kind for value, kind in inputs if not _is_float(types.get(value))), default=_Kind.CONSTANT)
        for output in node.outputs:
            kinds[output] = _kind(node, types.get(output), of_floats, of_others)
            if kinds[output] == _Kind.INDEX and _is_float(types.get(output)):
                result.add(node)
    return result


def _kind(node: ir.Node, gives: ir.DataType | None, of_floats: _Kind | None, of_others: _Kind) -> _Kind:
    if node.op_type in _DATA:
        return _Kind.DATA
    of_all = max(of_floats or _Kind.CONSTANT, of_others)
    if _is_float(gives):
        if of_floats is None:
            # A Cast of an index, or a value (filled, random, looked up) whose shape alone depends on indices.
            return of_others if node.op_type in ("Cast", "CastLike") or of_others == _Kind.DATA else _Kind.CONSTANT
        return _Kind.DATA if of_floats == _Kind.CONSTANT and of_others == _Kind.DATA else of_floats
    if gives is not None and gives.name in ("INT32", "INT64", "UINT32", "UINT64"):
        return _Kind.INDEX if node.op_type in _INDICES and (of_all or node.op_type in ("Shape", "Size")) else of_all
    return _Kind.DATA if of_all else _Kind.CONSTANT  # a mask


def _is_float(kind: ir.DataType | None) -> bool:
    return kind is not None and kind.is_floating_point()
