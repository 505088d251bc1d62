"""A level of YOLOv5's head that is computed as several matrix products, as the quantiser for ONNX Runtime writes it.

The quantiser takes the map [n, h, w, A * values] of a level apart: for each anchor one product gives the values that a
box is computed from, and another one the other scores, which are a sigmoid alone (`infersdk.quant.heads`). Here the
graph is followed back to these products. All are of the same rows, and of columns of their own, so that one product of
all columns gives the map.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .builder import GraphBuilder
from .factors import constant_of
from .head_levels import HeadProof, UnprovenError, node_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    import onnx_ir as ir

__all__ = ["ProductMap", "boxes_of_products", "map_of_products"]

#: The attributes of a Gemm that is a matrix product with a bias, and no more.
_GEMM = {"transA": 0, "transB": 0, "alpha": 1.0, "beta": 1.0}
#: The types of the codes of its operands: weights, and a bias.
_CODES = {1: ("int8", "uint8"), 2: ("int32",)}


@dataclass(frozen=True)
class ProductMap:
    """A map [n, h, w, channels] whose channels are computed by several matrix products.

    Attributes:
        products: Gemm nodes of the same rows, in the order of the channels.
        target: with which a Reshape makes [n, 1, h, w, columns] of the rows of the first one.
        dims: of the map; None where one is not known.
    """

    products: tuple[ir.Node, ...]
    target: ir.Value
    dims: tuple[int | None, ...]

    @property
    def rows(self) -> ir.Value:
        """What the first product gives."""
        return self.products[0].outputs[0]

    def write(self, graph: ir.Graph, name: str) -> ir.Value:
        """Writes one product of all channels behind the other nodes; returns the map."""
        build = GraphBuilder(graph, f"{name}/")
        inputs = [self.products[0].inputs[0], _joined_weights(build, "weight", self._operands(1), axis=1)]
        if len(self.products[0].inputs) > 2:
            inputs.append(_joined_weights(build, "bias", self._operands(2), axis=0))
        sizes = build("Gather", self.target, build.ints(0, 2, 3))  # not numbers: the model may be resized
        shape = build("Concat", sizes, build.ints(int(self.dims[-1] or 0)), axis=0)
        result: ir.Value = build("Reshape", build("Gemm", *inputs, name="product"), shape, name="positions")
        return result

    def _operands(self, index: int) -> list[_Weights]:
        return [_weights_of(node, index) for node in self.products]


# ---- the proof ----


def boxes_of_products(proof: HeadProof, values: Sequence[ir.Value | None]) -> tuple[list[ir.Value], ir.Value] | None:
    """The anchors of a level that begins with `values`, and the boxes of all of them.

    Args:
        values: what the levels are joined from, of this level on.

    Returns:
        What each anchor gives, [n, positions, values], and [n, A, positions, b], the first b values of each; None if
        the first of `values` is no anchor's.

    Raises:
        UnprovenError: the others are not those of the next anchors.
    """
    first = _boxes_of_anchor(proof, values[0], 0)
    count = proof.side(first, 1)
    if first is None or count is None:
        return None
    anchors = [value for value in values[:count] if value is not None]
    if len(anchors) < count or any(_boxes_of_anchor(proof, one, i) is not first for i, one in enumerate(anchors)):
        raise UnprovenError(f"{first.name!r} has the boxes of {count} anchors, and they are not joined in their order")
    return anchors, first


def _boxes_of_anchor(proof: HeadProof, value: ir.Value | None, anchor: int) -> ir.Value | None:
    """What the values of an anchor's boxes are gathered from, in front of its other scores; None for another form."""
    joined = node_of(value, "Concat")
    if joined is None or len(joined.inputs) != 2 or joined.attributes.get_int("axis", 0) not in (2, -1):
        return None
    gather = node_of(joined.inputs[0], "Gather")
    if gather is None or len(proof.dims(value)) != 3 or len(proof.dims(gather.inputs[0])) != 4:
        return None
    index = constant_of(gather.inputs[1])
    if gather.attributes.get_int("axis", 0) not in (1, -3) or index is None or index.ndim or index.item() != anchor:
        return None
    return gather.inputs[0]


def map_of_products(
    proof: HeadProof, grouped: ir.Value, anchors: Sequence[ir.Value], dims: tuple[int, int, int, int]
) -> tuple[ProductMap, int]:
    """The map of a level, and the values of a box in it.

    Args:
        grouped: the logits of the values that boxes are computed from, [n, A, h, w, b].
        anchors: what each anchor gives, [n, positions, values].
        dims: A, h, w and b.

    Raises:
        UnprovenError: these are not products of the same rows.
    """
    count, height, width, computed = dims
    joined = node_of(grouped, "Concat")
    if joined is None or joined.attributes.get_int("axis", 0) not in (1, -4) or len(joined.inputs) != count:
        raise UnprovenError(f"{grouped.name!r} does not join the products of {count} anchors")
    boxes = [_reshaped(proof, one, [1, height, width, computed]) for one in joined.inputs]
    kept = proof.side(anchors[0].producer().inputs[1], -1)  # type: ignore[union-attr]
    products = []
    for reshape, anchor in zip(boxes, anchors, strict=True):
        scores = _reshaped(proof, anchor.producer().inputs[1], [height * width, kept])  # type: ignore[union-attr]
        sigmoid = node_of(scores.inputs[0], "Sigmoid")
        if sigmoid is None:
            raise UnprovenError(f"{scores.name!r} does not give sigmoids of a product")
        products += [_product(proof, reshape.inputs[0], computed), _product(proof, sigmoid.inputs[0], kept)]
    _check_products(proof, products)
    target = boxes[0].inputs[1]
    assert target is not None
    assert kept is not None
    batch = proof.dims(boxes[0].outputs[0])[0]
    values = computed + kept
    return ProductMap(tuple(products), target, (batch, height, width, count * values)), values


def _reshaped(proof: HeadProof, value: ir.Value | None, dims: list[int | None]) -> ir.Node:
    """The Reshape that makes [n, *dims] of rows."""
    reshape = node_of(value, "Reshape")
    if reshape is None or None in dims or proof.dims(value)[1:] != dims or len(proof.dims(reshape.inputs[0])) != 2:
        name = value.name if value is not None else None
        raise UnprovenError(f"{name!r} of shape {proof.dims(value)} is not made of the rows of a product by a Reshape")
    return reshape


def _product(proof: HeadProof, rows: ir.Value | None, columns: int | None) -> ir.Node:
    """The Gemm that gives rows of so many columns."""
    gemm = node_of(rows, "Gemm")
    if gemm is None or proof.side(rows, 1) != columns:
        raise UnprovenError(f"{rows.name if rows is not None else None!r} is not a product of {columns} columns")
    return gemm


def _check_products(proof: HeadProof, products: Sequence[ir.Node]) -> None:
    """Their columns can be those of one product."""
    first = products[0]
    for node in products:
        name = node.name
        if node.inputs[0] is not first.inputs[0] or proof.dims(node.outputs[0])[0] != proof.dims(first.outputs[0])[0]:
            raise UnprovenError(f"{name!r} is not a product of the rows that {first.name!r} is one of")
        for attribute in node.attributes.values():
            if _GEMM.get(attribute.name) != attribute.value:
                raise UnprovenError(f"{name!r} is not a plain product: {attribute.name} is {attribute.value}")
        if len(node.inputs) != len(first.inputs) or None in node.inputs:
            raise UnprovenError(f"{name!r} has other operands than {first.name!r}")
        columns = proof.side(node.outputs[0], 1)
        for index in range(1, len(node.inputs)):
            _weights_of(node, index).check(_weights_of(first, index), columns, 2 - index)


# ---- weights ----


@dataclass(frozen=True)
class _Weights:
    """Weights that a DequantizeLinear gives, with a scale for each column."""

    name: str
    codes: npt.NDArray[Any]
    scales: npt.NDArray[Any]
    zeros: npt.NDArray[Any]

    def check(self, other: _Weights, columns: int | None, axis: int) -> None:
        """They can be joined with others along the columns."""
        sides = (self.codes.ndim == axis + 1, self.codes.shape[-1:] == (columns,), self.scales.shape == (columns,))
        same = self.codes.shape[:axis] == other.codes.shape[:axis] and self.scales.dtype == other.scales.dtype
        kinds = {self.codes.dtype, self.zeros.dtype, other.codes.dtype, other.zeros.dtype}
        if not all(sides) or not same or len(kinds) > 1 or self.zeros.shape != self.scales.shape:
            raise UnprovenError(f"the weights of {self.name!r} do not have a scale and a zero point for each column")


def _weights_of(node: ir.Node, index: int) -> _Weights:
    """An operand of a product: its weights [channels, columns], or its bias [columns].

    Raises:
        UnprovenError: it is not constant, or of another form than a DequantizeLinear of codes along the columns.
    """
    restore = node_of(node.inputs[index], "DequantizeLinear")
    parts = [constant_of(one) for one in restore.inputs] if restore is not None else []
    found = [part for part in parts if part is not None]
    if restore is None or len(parts) != 3 or len(found) != 3 or found[0].dtype.name not in _CODES[index]:
        raise UnprovenError(f"operand {index} of {node.name!r} is not constant in {' or '.join(_CODES[index])}")
    if restore.attributes.keys() - {"axis"} or restore.attributes.get_int("axis", 1) not in (2 - index, -1):
        raise UnprovenError(f"operand {index} of {node.name!r} does not have its scales along the columns")
    return _Weights(node.name or "", *found)


def _joined_weights(build: GraphBuilder, name: str, parts: Sequence[_Weights], axis: int) -> ir.Value:
    """The columns of all parts, one part behind the other, as one operand."""
    codes = build.constant(np.concatenate([part.codes for part in parts], axis=axis), name)
    scales = build.constant(np.concatenate([part.scales for part in parts]), f"{name}_scale")
    zeros = build.constant(np.concatenate([part.zeros for part in parts]), f"{name}_zero_point")
    result: ir.Value = build("DequantizeLinear", codes, scales, zeros, axis=axis, name=f"{name}_dequantized")
    return result
