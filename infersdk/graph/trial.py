"""Whether a model really loads: each runtime is asked, instead of a table of operators."""

from __future__ import annotations

import importlib
import importlib.util
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..errors import BackendUnavailableError, ConfigError, InferSDKError
from .info import onnx_info

__all__ = ["TRIALS", "TrialResult", "try_model"]

#: What a free axis other than the batch is built for.
_SIZE = 640


@dataclass(frozen=True)
class TrialResult:
    """What a runtime said.

    Attributes:
        backend: its name.
        status: `"ok"`, `"failed"`, or `"not tried"`.
        detail: why it failed, or was not tried; empty if it is all right.
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
) -> list[TrialResult]:
    """Loads the model on the runtimes of this machine.

    ONNX Runtime makes a session for the processor. OpenVINO is asked which nodes it has on the processor, and compiles.
    TensorRT-RTX builds an engine, which needs no GPU; a build is the only thing that tells.

    Args:
        backends: names out of `TRIALS`; None is all.
        shapes: of inputs with free axes, for TensorRT-RTX; other free axes are 1 for the batch, and else 640.
        compute_capability: the GPU that TensorRT-RTX builds for.

    Raises:
        ConfigError: there is no trial for a backend.
        ModelNotFoundError, ModelFormatError: there is no such model.
    """
    for name in backends or ():
        if name not in TRIALS:
            raise ConfigError(f"there is no trial for {name!r}; there are {', '.join(TRIALS)}")
    onnx_info(path)
    return [_try(name, path, shapes, compute_capability) for name in backends or TRIALS]


def _try(name: str, path: Path, shapes: Mapping[str, Sequence[int]], capability: str) -> TrialResult:
    started = time.monotonic()
    status, detail = "ok", ""
    try:
        detail = TRIALS[name](path, shapes, capability)
        status = "failed" if detail else "ok"
    except BackendUnavailableError as error:
        status, detail = "not tried", str(error)
    except InferSDKError as error:
        status, detail = "failed", str(error)
    return TrialResult(name, status, " ".join(detail.split()), round(time.monotonic() - started, 3))


def _onnxruntime(path: Path, shapes: Mapping[str, Sequence[int]], capability: str) -> str:
    from ..registry import load

    load(path, "onnxruntime", device="cpu").close()
    return ""


def _openvino(path: Path, shapes: Mapping[str, Sequence[int]], capability: str) -> str:
    """Empty, or the nodes that OpenVINO does not have on the processor."""
    from ..registry import load

    load(path, "openvino", device="cpu").close()  # compiles, so that what is written down below is not all there is
    import openvino

    core = openvino.Core()
    model = core.read_model(str(path))
    known = core.query_model(model, "CPU")
    missing = [f"{op.get_friendly_name()} ({op.get_type_name()})" for op in model.get_ops()
               if op.get_friendly_name() not in known]  # fmt: skip
    return f"{len(missing)} nodes are not supported: {', '.join(missing[:5])}" if missing else ""


def _tensorrt_rtx(path: Path, shapes: Mapping[str, Sequence[int]], capability: str) -> str:
    if importlib.util.find_spec("tensorrt_rtx") is None and importlib.util.find_spec("tensorrt_rtx_bindings") is None:
        raise BackendUnavailableError(
            "backend 'tensorrt-rtx' needs tensorrt_rtx, which is not installed: pip install \"infersdk[tensorrt-rtx]\""
        )
    build = importlib.import_module("infersdk.backends.tensorrt").build  # backends are known as strings alone
    with tempfile.TemporaryDirectory(prefix="infersdk-") as folder:
        build(
            path, Path(folder, "trial.engine"), backend="tensorrt-rtx", compute_capabilities=(capability,),
            profiles=_profiles(path, shapes),
        )  # fmt: skip
    return ""


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


#: How each runtime is asked. Each returns why it failed, or nothing.
TRIALS: dict[str, Callable[[Path, Mapping[str, Sequence[int]], str], str]] = {
    "onnxruntime": _onnxruntime, "openvino": _openvino, "tensorrt-rtx": _tensorrt_rtx,
}  # fmt: skip
