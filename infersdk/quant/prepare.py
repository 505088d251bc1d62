"""A model made ready to be quantised: shapes inferred, constants folded, batch normalisation merged.

Two forms that runtimes compute slowly, in 8 bits as in floating point, are written as others of the same numbers:
Slices in front of a convolution, and poolings of several windows. In a small detector they take longer than INT8 saves.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import BackendUnavailableError, ModelFormatError, UnsupportedModelError
from ..graph.files import read_model, write_model
from ..graph.passes import ChainPoolings, FoldSpaceToDepth, NameNodes, StaticReshapes, apply_passes
from ..graph.precision import precision_of
from ..graph.shapes import infer_shapes
from ..graph.weights import weights_size

if TYPE_CHECKING:
    import os

    import onnx_ir as ir

__all__ = ["MIN_OPSET", "prepare"]

#: The first opset with a scale for each channel.
MIN_OPSET = 13


def prepare(path: str | os.PathLike[str]) -> ir.Model:
    """The model with shapes inferred, constants folded and batch normalisation merged; each node has a name.

    Results stay the same but for rounding.

    Raises:
        ModelNotFoundError, ModelFormatError: there is no such file, or it is not an ONNX model.
        UnsupportedModelError: it is quantised already, is not FP32, or ONNX Runtime cannot load it.
        BackendUnavailableError: the `onnx`, `onnx_ir` or `onnxruntime` package is not installed.
    """
    model = read_model(path)
    precision = precision_of(model)
    if precision == "int8":
        raise UnsupportedModelError(f"{str(path)!r} is quantised already; start from the model that it was made of")
    if precision != "fp32":
        raise UnsupportedModelError(f"{str(path)!r} is {precision}; quantisation starts from an fp32 model")
    prepared = _folded(_raised(model, path), path)
    if apply_passes(prepared, [NameNodes(), StaticReshapes(), FoldSpaceToDepth(), ChainPoolings()]):
        infer_shapes(prepared)
    return prepared


def _raised(model: ir.Model, path: str | os.PathLike[str]) -> ir.Model:
    """The model in opset 13 or later."""
    import onnx
    import onnx_ir as ir

    opset = model.graph.opset_imports.get("", 0)
    if opset >= MIN_OPSET:
        return model
    try:
        proto = onnx.version_converter.convert_version(ir.to_proto(ir.external_data.load_to_model(model)), MIN_OPSET)
    except Exception as error:  # whatever its C++ throws
        raise UnsupportedModelError(
            f"{str(path)!r} is of opset {opset}, and a scale for each channel needs {MIN_OPSET}; converting it fails: "
            f"{error}"
        ) from None
    converted: ir.Model = ir.from_proto(proto)
    return converted


def _folded(model: ir.Model, path: str | os.PathLike[str]) -> ir.Model:
    """As ONNX Runtime writes it after the optimisations that keep to ONNX's own operators."""
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
        external = "source.data" if weights_size(model) > 2**30 else None
        write_model(model, source, external_data=external)
        options.optimized_model_filepath = str(target)
        if external:
            options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "prepared.data")
        try:
            onnxruntime.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])
            prepared = read_model(target)
        except ModelFormatError:
            raise
        except Exception as error:  # the runtime has no root of its own exceptions
            raise UnsupportedModelError(f"{str(path)!r} cannot be prepared for quantisation: {error}") from None
        import onnx_ir as ir

        ir.external_data.load_to_model(prepared)
    used = {node.domain for node in prepared.graph.all_nodes()} | {""}
    for domain in list(prepared.graph.opset_imports):
        if domain.replace("ai.onnx", "", 1) not in used:
            del prepared.graph.opset_imports[domain]
    infer_shapes(prepared)
    return prepared
