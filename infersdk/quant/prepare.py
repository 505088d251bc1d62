"""Prepares a model for quantisation: inferred shapes, folded constants, merged batch normalisation.

Strided Slices before a convolution are folded into it. In small detectors they take more time than INT8 saves.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import BackendUnavailableError, UnsupportedModelError
from ..graph.files import read_model, write_large
from ..graph.passes import FoldSpaceToDepth, NameNodes, StaticReshapes, apply_passes
from ..graph.passes.set_opset import at_least_opset
from ..graph.precision import precision_of
from ..graph.shapes import infer_shapes

if TYPE_CHECKING:
    import os

    import onnx_ir as ir

__all__ = ["MIN_OPSET", "prepare"]

#: The first opset with scales per channel.
MIN_OPSET = 13


def prepare(path: str | os.PathLike[str]) -> ir.Model:
    """Reads and prepares a model. Each node gets a name. Results differ by rounding only."""
    model = read_model(path)
    precision = precision_of(model)
    if precision == "int8":
        raise UnsupportedModelError(f"{str(path)!r} is quantised already; use the original fp32 model")
    if precision != "fp32":
        raise UnsupportedModelError(f"{str(path)!r} is {precision}; quantisation needs an fp32 model")
    try:
        at_least_opset(model, MIN_OPSET)
    except UnsupportedModelError as error:
        raise UnsupportedModelError(f"{str(path)!r} cannot have a scale for each channel: {error}") from None
    infer_shapes(model)
    FoldSpaceToDepth().apply(model)  # ONNX Runtime would write the Slices as another operator
    prepared = _folded(model, path)
    apply_passes(prepared, [NameNodes(), StaticReshapes()])
    infer_shapes(prepared)
    return prepared


def _folded(model: ir.Model, path: str | os.PathLike[str]) -> ir.Model:
    """The model after ONNX Runtime's basic optimisations, which use only standard operators."""
    try:
        import onnxruntime
    except ImportError as error:
        raise BackendUnavailableError(
            f'quantising {str(path)!r} needs {error.name}: pip install "infersdk[onnxruntime]"'
        ) from None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "source.onnx", Path(folder) / "prepared.onnx"
        write_large(model, source)
        options.optimized_model_filepath = str(target)
        if len(list(source.parent.iterdir())) > 1:
            options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "prepared.data")
        try:
            onnxruntime.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # the runtime has no root of its own exceptions
            raise UnsupportedModelError(f"{str(path)!r} cannot be prepared for quantisation: {error}") from None
        prepared = read_model(target)
        for value in prepared.graph.initializers.values():
            if value.const_value is not None:
                value.const_value.numpy()  # reads a separate file of weights, and keeps them
    from onnx_ir.passes.common import RemoveUnusedOpsetsPass

    RemoveUnusedOpsetsPass()(prepared)
    return prepared
