"""Whether a model really loads: each runtime is asked, instead of a table of operators."""

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

from ..custom_ops.cutting import cut
from ..custom_ops.onnx_schema import registered
from ..custom_ops.operator_set import operators_for
from ..errors import BackendUnavailableError, ConfigError, InferSDKError
from ..model_source import ModelSource
from .domains import foreign_domains
from .files import read_model, write_model
from .info import onnx_info

if TYPE_CHECKING:
    from ..custom_ops import CustomOp
    from ..custom_ops.operator_set import OperatorSet

__all__ = ["TRIALS", "TrialResult", "refuses_version", "try_model"]

#: What a free axis other than the batch is built for.
_SIZE = 640


@dataclass(frozen=True)
class TrialResult:
    """What a runtime said.

    Attributes:
        backend: its name.
        status: `"ok"`, `"failed"`, or `"not tried"`.
        detail: why it failed, or was not tried, or how it runs where that is not as one model; else empty.
        seconds: how long it took.
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

    ONNX Runtime makes a session for the processor. OpenVINO is asked which nodes it has on the processor, and compiles.
    TensorRT-RTX builds an engine, which needs no GPU; a build is the only thing that tells.

    Args:
        backends: names out of `TRIALS`; None is all.
        shapes: of inputs with free axes, for TensorRT-RTX; other free axes are 1 for the batch, and else 640.
        compute_capability: the GPU that TensorRT-RTX builds for.
        custom_ops: as for `load()`.

    Raises:
        ConfigError: there is no trial for a backend.
        ModelNotFoundError, ModelFormatError: there is no such model.
    """
    for name in backends or ():
        if name not in TRIALS:
            raise ConfigError(f"there is no trial for {name!r}; there are {', '.join(TRIALS)}")
    onnx_info(path)
    source = ModelSource.of(path)
    operators = operators_for(source, custom_ops) if custom_ops or foreign_domains(source) else None
    request = _Request(Path(path), shapes, compute_capability, operators, custom_ops)
    return [_try(name, request) for name in backends or TRIALS]


@functools.cache
def refuses_version(backend: str, opset: int, ir_version: int) -> str:
    """Why an installed runtime does not read files of that version; empty where it does, or is not installed.

    It is asked with a model of one Identity, so that nothing else can be the reason.
    """
    import onnx

    if importlib.util.find_spec(backend) is None:
        return ""
    from ..registry import load

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
    """What a runtime is asked for."""

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


def _onnxruntime(request: _Request) -> tuple[str, str]:
    from ..registry import load

    load(request.path, "onnxruntime", device="cpu", custom_ops=request.custom_ops).close()
    return "ok", ""


def _openvino(request: _Request) -> tuple[str, str]:
    """Failed with the nodes that OpenVINO does not have on the processor. Custom operators are asked for by loading."""
    from ..registry import load

    # It compiles, so that what is written down below is not all there is.
    load(request.path, "openvino", device="cpu", custom_ops=request.custom_ops).close()
    if request.operators is not None:
        return "ok", ""
    import openvino

    core = openvino.Core()
    model = core.read_model(str(request.path))
    known = core.query_model(model, "CPU")
    missing = [f"{op.get_friendly_name()} ({op.get_type_name()})" for op in model.get_ops()
               if op.get_friendly_name() not in known]  # fmt: skip
    if missing:
        return "failed", f"{len(missing)} nodes are not supported: {', '.join(missing[:5])}"
    return "ok", ""


def _tensorrt_rtx(request: _Request) -> tuple[str, str]:
    """Builds an engine; of a model with custom operators that the runtime does not take, one for each segment."""
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
            write_model(segment.model, path, external_data=f"{path.name}.data")
            _build(path, request, Path(folder))
    kernels = len(plan.kernels)
    return "ok", f"cut at {kernels} custom node{'s' * (kernels > 1)}: {len(plan.segments)} engines"


def _build(path: Path, request: _Request, folder: Path) -> None:
    build = importlib.import_module("infersdk.backends.tensorrt").build  # backends are known as strings alone
    build(
        path, folder / "trial.engine", backend="tensorrt-rtx", compute_capabilities=(request.capability,),
        profiles=_profiles(path, request.shapes),
    )  # fmt: skip


def _profiles(path: Path, shapes: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """A range of one shape for each input whose free axes are others than the batch."""
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


#: How each runtime is asked. Each returns a status, and what there is to say about it.
TRIALS: dict[str, Callable[[_Request], tuple[str, str]]] = {
    "onnxruntime": _onnxruntime, "openvino": _openvino, "tensorrt-rtx": _tensorrt_rtx,
}  # fmt: skip
