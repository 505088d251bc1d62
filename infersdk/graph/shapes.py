"""Shape inference for a graph."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["infer_shapes"]


def infer_shapes(model: ir.Model, inputs: Mapping[str, Sequence[int]] = MappingProxyType({})) -> None:
    """Infers shapes and types and stores them in the values of the model.

    ONNX's inference stops at a Reshape with a computed target. The length of the target often gives the rank of the
    output, so the rank is stored and inference is repeated.

    Args:
        inputs: the shapes of inputs, which let inference evaluate shape arithmetic.
    """
    import onnx_ir as ir
    from onnx_ir.passes.common import ShapeInferencePass

    inference = ShapeInferencePass(check_type=False, strict_mode=False, data_prop=True)
    for value in model.graph.inputs:
        if (shape := inputs.get(value.name or "")) is not None:
            value.shape = ir.Shape(shape)
    while True:
        with _quiet():  # unknown shapes are no reason for a warning
            inference(model)
        if not _write_ranks(model.graph):
            return


def _write_ranks(graph: ir.Graph) -> bool:
    """Sets the rank of Reshape outputs from the length of the target; returns whether there were any."""
    import onnx_ir as ir

    written = False
    for node in graph:
        if node.op_type != "Reshape" or len(node.inputs) < 2 or node.inputs[1] is None or node.outputs[0].shape:
            continue
        length = node.inputs[1].shape
        if node.outputs[0].shape is None and length is not None and len(length) == 1 and isinstance(length[0], int):
            node.outputs[0].shape = ir.Shape([None] * length[0])
            written = True
    return written


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    logger = logging.getLogger("onnx_ir.passes.common.shape_inference")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before
