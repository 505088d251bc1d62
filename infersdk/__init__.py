"""infersdk: one stable inference interface over TensorRT, ONNX Runtime and OpenVINO.

::

    import infersdk

    infer = infersdk.load("yolov5s.onnx", backend="onnxruntime")     # the stable Infer
    detector = infersdk.models.YOLOv5("yolov5s.onnx")                # images in, boxes out

Importing this package imports no runtime: each backend is imported when it is used. Nor does it import NumPy:
attributes are imported on first access.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    from .core._lib import lib, text
except ModuleNotFoundError as error:
    if error.name != "infersdk._native":
        raise
    from ._checkout import use_installed

    use_installed()
    from .core._lib import lib, text
from .core.lazy import lazy
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
    from .loading.registry import list_backends, load
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

__getattr__, __dir__ = lazy(
    __name__,
    {
        "core.device": "Device",
        "core.memory": "Head MixMemory memory_stats",
        "core.stream": "Event Stream device_count device_info",
        "core.target": "Target",
        "core.tensor": "Tensor pinned_empty",
        "core.tensor_spec": "TensorSpec",
        "errors": "errors",
        "infer": "Infer",
        "loading.registry": "list_backends load",
        "models": "models",
        "models.composed": "ModelGroup",
        "ops": "ops",
        "pipeline": "Pipeline",
    },
)
