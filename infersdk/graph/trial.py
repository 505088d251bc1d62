"""Tests whether a model loads on each installed runtime."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import re
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from ..core.model_source import ModelSource
from ..custom_ops.cutting import cut
from ..custom_ops.operator_set import operators_for
from ..errors import BackendUnavailableError, ConfigError, InferSDKError
from .files import read_model, write_large
from .passes._sizes import fixed, shapes_of
from .weights import data_inputs

if TYPE_CHECKING:
    import onnx_ir as ir

    from ..custom_ops import CustomOp
    from ..custom_ops.operator_set import OperatorSet

__all__ = ["TrialResult", "refuses_version", "try_model"]

_BACKENDS = ("onnxruntime", "openvino", "tensorrt-rtx")


@dataclass(frozen=True)
class TrialResult:
    """The result for one runtime.

    Attributes:
        backend: the name of the backend.
        status: `"ok"`, `"failed"`, or `"not tried"`.
        detail: the reason, or how a model with custom operators is divided; else empty.
        seconds: the duration.
    """

    backend: str
    status: str
    detail: str
    seconds: float


def try_model(
    path: Path,
    backends: Sequence[str] | None = None,
    *,
    shapes: Mapping[str, Sequence[int]] = MappingProxyType({}),
    compute_capability: str = "8.9",
    custom_ops: Sequence[type[CustomOp]] = (),
) -> list[TrialResult]:
    """Loads the model on the runtimes of this machine.

    ONNX Runtime and OpenVINO load it for the processor. TensorRT-RTX builds an engine, which needs no GPU.

    Args:
        backends: `"onnxruntime"`, `"openvino"`, `"tensorrt-rtx"`; None means all.
        shapes: shapes of inputs with free axes for TensorRT-RTX. By default a free batch is 1 and other free axes 640.
        compute_capability: the compute capability that TensorRT-RTX builds for.
        custom_ops: as in `load()`.

    Raises:
        ConfigError: a backend is unknown, the compute capability has another form, or `shapes` names something that is
            no input.
        ModelNotFoundError, ModelFormatError: the file does not exist or is not a model.
    """
    for name in backends or ():
        if name not in _BACKENDS:
            raise ConfigError(f"cannot try backend {name!r}; use one of {', '.join(_BACKENDS)}")
    if not re.fullmatch(r"\d+\.\d", compute_capability):
        raise ConfigError(f"a compute capability is a number such as 8.9, not {compute_capability!r}")
    model, source, results = read_model(path), ModelSource.of(path), []
    inputs = [value.name for value in data_inputs(model)]
    for name in shapes:
        if name not in inputs:
            raise ConfigError(f"a shape is given for {name!r}; the model's inputs are {inputs}")
    operators = operators_for(source, custom_ops)
    for name in backends or _BACKENDS:
        started, status, detail = time.monotonic(), "ok", ""
        try:
            if name == "tensorrt-rtx":
                detail = _build(Path(path), model, shapes, compute_capability, operators)
            else:
                from ..loading.registry import load

                load(path, name, device="cpu", custom_ops=custom_ops).close()
        except BackendUnavailableError as error:
            status, detail = "not tried", str(error)
        except InferSDKError as error:
            status, detail = "failed", str(error)
        results.append(TrialResult(name, status, " ".join(detail.split()), round(time.monotonic() - started, 3)))
    return results


def _build(
    path: Path, model: ir.Model, shapes: Mapping[str, Sequence[int]], compute_capability: str,
    operators: OperatorSet | None,
) -> str:  # fmt: skip
    """Builds an engine, or one per segment of a model with custom operators; returns how the model is divided."""
    parts, detail = [model], ""
    if operators is not None:
        plan = cut(model, operators, path.name)
        parts, count = [segment.model for segment in plan.segments], len(plan.kernels)
        detail = f"cut at {count} custom node{'s' * (count > 1)}: {len(parts)} engines"
    build = importlib.import_module("infersdk.backends.tensorrt").build  # backends are imported by name only
    with tempfile.TemporaryDirectory(prefix="infersdk-") as folder:
        for number, part in enumerate(parts):
            sizes = shapes_of(part) | {name: list(shape) for name, shape in shapes.items()}
            free = [value for value in data_inputs(part) if None in map(fixed, value.shape or ())]
            build(
                path if part is model else write_large(part, Path(folder, f"part{number}.onnx")),
                Path(folder, "trial.engine"),
                backend="tensorrt-rtx",
                compute_capabilities=(compute_capability,),
                profiles={value.name: dict.fromkeys(("min", "opt", "max"), sizes[value.name or ""]) for value in free},
            )
    return detail


@functools.cache
def refuses_version(backend: str, opset: int, ir_version: int) -> str:
    """The reason why an installed runtime rejects files of that version; empty if it does not or is not installed.

    The test model is a single Identity node, so that there is no other reason.
    """
    import onnx.parser

    if importlib.util.find_spec(backend) is None:
        return ""
    from ..loading.registry import load

    header = f'<ir_version: {ir_version}, opset_import: ["": {opset}]>'
    model = onnx.parser.parse_model(f"{header} g (float[1] x) => (float[1] y) {{ y = Identity (x) }}")
    try:
        load(model.SerializeToString(), backend, device="cpu").close()
    except InferSDKError as error:
        return " ".join(str(error).split())
    return ""
