"""TensorRT 10 and later (backend "tensorrt"), and TensorRT for RTX (backend "tensorrt-rtx").

`infersdk.load("model.onnx", backend="tensorrt")` builds an engine for the present GPU, keeps it in the cache, and runs
it. `build()` writes an engine file; TensorRT-RTX needs no GPU for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ._trt.flavour import FLAVOURS
from ._trt.options import Options, Range

if TYPE_CHECKING:
    import os

    from ..core.cache import Manifest
    from ..core.model_source import ModelLike
    from ._trt.infer import TensorRtInfer, TensorRtRtxInfer

__all__ = ["Options", "Range", "TensorRtInfer", "TensorRtRtxInfer", "build"]


def __getattr__(name: str) -> Any:
    """The classes, after importing their runtime: the registry reports a missing one."""
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

    A model with custom operators has no engine file: `infersdk.load()` divides it at these operators.

    Args:
        onnx: the model.
        output: the engine file, not a file of the model; an existing one is replaced when the new one is complete.
        backend: `"tensorrt"` or `"tensorrt-rtx"`; None is `"tensorrt-rtx"` with compute capabilities, otherwise
            `"tensorrt"`.
        compute_capabilities: GPUs to build for, as `("8.6", "8.9")`, with TensorRT-RTX alone. Without them it builds
            for all from 8.0 on, and TensorRT for `device`.
        device: the GPU that TensorRT builds on and for; None is `"cuda:0"`. TensorRT-RTX takes none.
        precision, max_batch, **options: as for `infersdk.load()`.

    Returns:
        The manifest.

    Raises:
        BackendError, ModelError, ConfigError: as `infersdk.load()` does.
        CustomOpError: the model has custom operators of infersdk or of an installed package, or one that is not
            declared and has the name of an operator of TensorRT.
        OutputError: the file cannot be written.
    """
    from ..config import convert
    from ..core.device import Device
    from ..core.files import check_output
    from ..core.model_source import ModelSource
    from ..core.target import check_precision
    from ..custom_ops.operator_set import operators_for
    from ..errors import ConfigError, CustomOpError, OutputError
    from ..graph.files import files_of
    from ..loading.registry import backend_class, checked_max_batch
    from ._trt.build import build_engine, named_targets
    from ._trt.engine import manifest_path, write_engine
    from ._trt.gpu import cuda_device

    if backend is None:
        backend = "tensorrt-rtx" if compute_capabilities else "tensorrt"
    if backend not in FLAVOURS:
        raise ConfigError(f"backend {backend!r} builds no engine files; {' and '.join(FLAVOURS)} do")
    backend_class(backend)  # raises if its runtime is missing
    check_precision(precision)
    max_batch = checked_max_batch(max_batch)
    target_device = Device.parse(device or "cuda:0")
    if target_device.kind != "cuda":
        raise ConfigError(f"an engine is built for an NVIDIA GPU, not for {device!r}")
    if device is not None and FLAVOURS[backend].rtx:
        raise ConfigError(f"{backend} builds without a GPU, not on {device!r}; name GPUs by their compute capabilities")
    target = Path(output)
    if not target.absolute().parent.is_dir():
        raise OutputError(f"cannot write {str(target)!r}: there is no folder {str(target.parent)!r}")
    flavour = FLAVOURS[backend]
    model = ModelSource.of(onnx)
    if inputs := files_of(model):
        for file in (target, manifest_path(target)):
            check_output(inputs[0], file, *inputs[1:])
    if (custom_ops := operators_for(model, None)) is not None:
        names = ", ".join(op.title() for op in custom_ops.values())
        raise CustomOpError(
            f"{model.name} has custom operators ({names}), which an engine file "
            f"cannot contain; load the ONNX file with backend={backend!r}, which divides the model there and keeps the "
            "engines of the segments in the cache"
        )
    data, details = build_engine(
        flavour, model, precision=precision, max_batch=max_batch,
        options=convert(options, Options, f"options of backend {backend!r}"),
        capabilities=named_targets(compute_capabilities),
        device=None if flavour.rtx else cuda_device(target_device.index),
    )  # fmt: skip
    return write_engine(target, data, details, backend)
