"""infersdk: one stable inference interface over TensorRT, ONNX Runtime and OpenVINO.

::

    import infersdk

    infer = infersdk.load("yolov5s.onnx", backend="onnxruntime")     # the stable Infer
    detector = infersdk.models.YOLOv5("yolov5s.onnx")                # images in, boxes out

Importing this package imports no runtime: each backend is imported when it is asked for. Nor does it import NumPy: what
stands here is imported when it is first looked at.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ._lib import lib, text
from .errors import InferSDKError

if TYPE_CHECKING:
    from . import errors, models, ops
    from .device import Device
    from .infer import Infer
    from .memory import Head, MixMemory, memory_stats
    from .models import ModelGroup
    from .pipeline import Pipeline
    from .registry import backends as list_backends
    from .registry import load
    from .stream import Event, Stream, device_count, device_info
    from .target import Target
    from .tensor import Tensor, pinned_empty
    from .tensor_spec import TensorSpec

__all__ = [
    "Device",
    "Event",
    "Head",
    "Infer",
    "InferSDKError",
    "MixMemory",
    "ModelGroup",
    "Pipeline",
    "Stream",
    "Target",
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

#: Where each name comes from: "module:attribute", or a module alone.
_HOMES = {
    "Device": "device:Device",
    "Event": "stream:Event",
    "Head": "memory:Head",
    "Infer": "infer:Infer",
    "MixMemory": "memory:MixMemory",
    "ModelGroup": "models.composed:ModelGroup",
    "Pipeline": "pipeline:Pipeline",
    "Stream": "stream:Stream",
    "Target": "target:Target",
    "Tensor": "tensor:Tensor",
    "TensorSpec": "tensor_spec:TensorSpec",
    "device_count": "stream:device_count",
    "device_info": "stream:device_info",
    "errors": "errors",
    "list_backends": "registry:backends",
    "load": "registry:load",
    "memory_stats": "memory:memory_stats",
    "models": "models",
    "ops": "ops",
    "pinned_empty": "tensor:pinned_empty",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = _HOMES[name].partition(":")
    result = importlib.import_module(f".{module}", __name__)
    globals()[name] = value = getattr(result, attribute) if attribute else result
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
