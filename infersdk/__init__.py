"""infersdk: one stable inference interface over TensorRT, ONNX Runtime and OpenVINO.

::

    import infersdk

    infer = infersdk.load("yolov5s.onnx", backend="onnxruntime")     # the stable Infer
    detector = infersdk.models.YOLOv5("yolov5s.onnx")                # pictures in, boxes out

Importing this package imports no runtime: each backend is imported when it is asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ._lib import lib, text
from .device import Device
from .errors import InferSDKError
from .infer import Infer, TensorSpec
from .registry import backends as list_backends
from .registry import load
from .stream import Event, Stream, device_count, device_info
from .tensor import Head, MixMemory, Tensor, memory_stats, pinned_empty

if TYPE_CHECKING:
    from . import errors, models, ops

__all__ = [
    "Device",
    "Event",
    "Head",
    "Infer",
    "InferSDKError",
    "MixMemory",
    "Stream",
    "Tensor",
    "TensorSpec",
    "__version__",
    "device_count",
    "device_info",
    "errors",
    "list_backends",
    "load",
    "memory_stats",
    "models",
    "ops",
    "pinned_empty",
]

__version__: str = text(lib.ifs_version())


def __getattr__(name: str) -> Any:
    """Submodules are imported when they are first looked at, so that `import infersdk` stays quick."""
    if name in ("errors", "models", "ops"):
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
