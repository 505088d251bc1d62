"""TensorRT 10 and later (backend "tensorrt"), and TensorRT for RTX (backend "tensorrt-rtx").

`infersdk.load("model.onnx", backend="tensorrt")` builds an engine for the GPU that is there, keeps it in the cache, and
runs it; `build()` makes an engine file, with TensorRT-RTX on a machine that has no GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ._trt.flavour import FLAVOURS
from ._trt.options import Options, Range

if TYPE_CHECKING:
    import os

    from ..cache import Manifest
    from ..model_source import ModelLike
    from ._trt.infer import TensorRtInfer, TensorRtRtxInfer

__all__ = ["Options", "Range", "TensorRtInfer", "TensorRtRtxInfer", "build"]


def __getattr__(name: str) -> Any:
    """The classes, once their runtime could be imported: the registry then tells what is missing."""
    if name in ("TensorRtInfer", "TensorRtRtxInfer"):
        from ._trt import infer

        result = getattr(infer, name)
        result.flavour.trt  # noqa: B018 - the import
        return result
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def build(
    onnx: ModelLike,
    output: str | os.PathLike[str],
    *,
    backend: str | None = None,
    compute_capabilities: Sequence[str] = (),
    device: str | None = None,
    precision: str | None = None,
    max_batch: int | None = None,
    **options: Any,
) -> Manifest:
    """Builds an engine file, and its manifest in the same folder (`model.engine` and `model.engine.json`).

    Args:
        onnx: the model.
        output: the engine file; what is there is replaced when the new one is whole.
        backend: `"tensorrt"` or `"tensorrt-rtx"`; None is the one that builds for named compute capabilities if there
            are any, and else `"tensorrt"`.
        compute_capabilities: GPUs to build for, as `("8.6", "8.9")`: TensorRT-RTX alone, which needs no GPU to build.
            Without them it builds for all from 8.0 on, and TensorRT for `device`.
        device: the GPU that TensorRT builds on and for; `"cuda:0"` if not said.
        precision, max_batch, **options: as for `infersdk.load()`.

    Returns:
        The manifest.

    Raises:
        BackendError, ModelError, ConfigError: as `infersdk.load()` does.
        OutputError: the file cannot be written.
    """
    from ..config import convert
    from ..device import Device
    from ..errors import ConfigError, OutputError
    from ..graph.digest import model_digest
    from ..model_source import ModelSource
    from ..registry import backend_class
    from ._cuda import cuda_device
    from ._trt.build import build_engine, named_targets
    from ._trt.engine import write_engine

    if backend is None:
        backend = "tensorrt-rtx" if compute_capabilities else "tensorrt"
    if backend not in FLAVOURS:
        raise ConfigError(f"backend {backend!r} builds no engine files; {' and '.join(FLAVOURS)} do")
    backend_class(backend)  # its runtime is there
    target_device = Device.parse(device or "cuda:0")
    if target_device.kind != "cuda":
        raise ConfigError(f"an engine is built for an NVIDIA GPU, not for {device!r}")
    target = Path(output)
    if not target.absolute().parent.is_dir():
        raise OutputError(f"cannot write {str(target)!r}: there is no folder {str(target.parent)!r}")
    flavour = FLAVOURS[backend]
    model = ModelSource.of(onnx)
    arguments: dict[str, Any] = {
        "precision": precision,
        "max_batch": max_batch,
        "options": convert(options, Options, f"options of backend {backend!r}"),
        "capabilities": named_targets(compute_capabilities),
        "device": None if flavour.capability_targeting else cuda_device(target_device.index),
    }
    data, details = build_engine(flavour, model, digest=model_digest(model), **arguments)
    return write_engine(target, data, details, backend)
