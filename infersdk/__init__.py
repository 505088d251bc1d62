"""infersdk: one stable inference interface over TensorRT, ONNX Runtime and OpenVINO.

::

    import infersdk

    infer = infersdk.load("yolov5s.onnx", backend="onnxruntime")     # the stable Infer
    detector = infersdk.models.YOLOv5("yolov5s.onnx")                # images in, boxes out

Importing this package imports no runtime: each backend is imported when it is used. Nor does it import NumPy:
attributes are imported on first access.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

try:
    from .core._lib import lib, text
except ModuleNotFoundError as error:
    if error.name != "infersdk._native":
        raise
    from ._checkout import use_installed

    use_installed()
    from .core._lib import lib, text
from .errors import InferSDKError

if TYPE_CHECKING:
    from . import errors, models, ops
    from .core.device import Device
    from .core.memory import Head, MixMemory, memory_stats
    from .core.stream import Event, Stream, device_count, device_info
    from .core.target import Target
    from .core.tensor import Tensor, pinned_empty
    from .core.tensor_spec import TensorSpec
    from .infer import Infer
    from .loading.registry import backends as list_backends
    from .loading.registry import load
    from .models import ModelGroup
    from .pipeline import Pipeline

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
    "Device": "core.device:Device",
    "Event": "core.stream:Event",
    "Head": "core.memory:Head",
    "Infer": "infer:Infer",
    "MixMemory": "core.memory:MixMemory",
    "ModelGroup": "models.composed:ModelGroup",
    "Pipeline": "pipeline:Pipeline",
    "Stream": "core.stream:Stream",
    "Target": "core.target:Target",
    "Tensor": "core.tensor:Tensor",
    "TensorSpec": "core.tensor_spec:TensorSpec",
    "device_count": "core.stream:device_count",
    "device_info": "core.stream:device_info",
    "errors": "errors",
    "list_backends": "loading.registry:backends",
    "load": "loading.registry:load",
    "memory_stats": "core.memory:memory_stats",
    "models": "models",
    "ops": "ops",
    "pinned_empty": "core.tensor:pinned_empty",
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
