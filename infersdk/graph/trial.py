"""Tests whether a model loads on each installed runtime."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ..core.model_source import ModelSource
from ..custom_ops.cutting import cut
from ..custom_ops.onnx_schema import registered
from ..custom_ops.operator_set import operators_for
from ..errors import BackendUnavailableError, ConfigError, InferSDKError
from .domains import foreign_domains
from .files import read_model, write_large
from .info import onnx_info

if TYPE_CHECKING:
    from ..custom_ops import CustomOp
    from ..custom_ops.operator_set import OperatorSet

__all__ = ["TRIALS", "TrialResult", "refuses_version", "try_model"]

#: The size of free axes other than the batch.
_SIZE = 640


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
        backends: names from `TRIALS`; None means all.
        shapes: shapes of inputs with free axes for TensorRT-RTX. By default a free batch is 1 and other free axes 640.
        compute_capability: the compute capability that TensorRT-RTX builds for.
        custom_ops: as in `load()`.

    Raises:
        ConfigError: a backend is unknown.
        ModelNotFoundError, ModelFormatError: the file does not exist or is not a model.
    """
    for name in backends or ():
        if name not in TRIALS:
            raise ConfigError(f"cannot try backend {name!r}; use one of {', '.join(TRIALS)}")
    onnx_info(path)
    source = ModelSource.of(path)
    operators = operators_for(source, custom_ops) if custom_ops or foreign_domains(source) else None
    request = _Request(Path(path), shapes, compute_capability, operators, custom_ops)
    return [_try(name, request) for name in backends or TRIALS]


@functools.cache
def refuses_version(backend: str, opset: int, ir_version: int) -> str:
    """The reason why an installed runtime rejects files of that version; empty if it does not or is not installed.

    The test model is a single Identity node, so that there is no other reason.
    """
    import onnx

    if importlib.util.find_spec(backend) is None:
        return ""
    from ..loading.registry import load

    values = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy"]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["x"], ["y"])], "g", values[:1], values[1:])
    opsets = [onnx.helper.make_opsetid("", opset)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=ir_version)
    try:
        load(model.SerializeToString(), backend, device="cpu").close()
    except InferSDKError as error:
        return " ".join(str(error).split())
    return ""


@dataclass(frozen=True)
class _Request:
    """The parameters of a trial."""

    path: Path
    shapes: Mapping[str, Sequence[int]]
    capability: str
    operators: OperatorSet | None
    custom_ops: Sequence[type[CustomOp]]


def _try(name: str, request: _Request) -> TrialResult:
    started = time.monotonic()
    try:
        status, detail = TRIALS[name](request)
    except BackendUnavailableError as error:
        status, detail = "not tried", str(error)
    except InferSDKError as error:
        status, detail = "failed", str(error)
    return TrialResult(name, status, " ".join(detail.split()), round(time.monotonic() - started, 3))


def _load(backend: str, request: _Request) -> tuple[str, str]:
    from ..loading.registry import load

    load(request.path, backend, device="cpu", custom_ops=request.custom_ops).close()
    return "ok", ""


def _tensorrt_rtx(request: _Request) -> tuple[str, str]:
    """Builds an engine, or one per segment of a model with custom operators."""
    if importlib.util.find_spec("tensorrt_rtx") is None and importlib.util.find_spec("tensorrt_rtx_bindings") is None:
        raise BackendUnavailableError(
            "backend 'tensorrt-rtx' needs tensorrt_rtx, which is not installed: pip install \"infersdk[tensorrt-rtx]\""
        )
    with tempfile.TemporaryDirectory(prefix="infersdk-") as folder:
        if request.operators is None:
            _build(request.path, request, Path(folder))
            return "ok", ""
        with registered(*request.operators):
            plan = cut(read_model(request.path), request.operators, request.path.name)
        for number, segment in enumerate(plan.segments):
            path = Path(folder, f"segment{number}.onnx")
            write_large(segment.model, path)
            _build(path, request, Path(folder))
    kernels = len(plan.kernels)
    return "ok", f"cut at {kernels} custom node{'s' * (kernels > 1)}: {len(plan.segments)} engines"


def _build(path: Path, request: _Request, folder: Path) -> None:
    build = importlib.import_module("infersdk.backends.tensorrt").build
    build(
        path, folder / "trial.engine", backend="tensorrt-rtx", compute_capabilities=(request.capability,),
        profiles=_profiles(path, request.shapes),
    )  # fmt: skip


def _profiles(path: Path, shapes: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """A profile with one shape for each input that has free axes other than the batch."""
    profiles = {}
    for spec in onnx_info(path).inputs:
        if spec.name in shapes:
            sizes = [int(size) for size in shapes[spec.name]]
        elif any(not isinstance(dim, int) or dim < 0 for dim in spec.shape[1:]):
            sizes = [
                dim if isinstance(dim, int) and dim >= 0 else 1 if axis == 0 else _SIZE
                for axis, dim in enumerate(spec.shape)
            ]
        else:
            continue
        profiles[spec.name] = {"min": sizes, "opt": sizes, "max": sizes}
    return profiles


#: The trial of each runtime, which returns a status and a detail.
TRIALS: dict[str, Callable[[_Request], tuple[str, str]]] = {
    "onnxruntime": functools.partial(_load, "onnxruntime"), "openvino": functools.partial(_load, "openvino"),
    "tensorrt-rtx": _tensorrt_rtx,
}  # fmt: skip
