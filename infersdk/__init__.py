"""infersdk: one stable inference interface over TensorRT, ONNX Runtime and OpenVINO.

::

    import infersdk

    infer = infersdk.load("yolov5s.onnx", backend="onnxruntime")     # the stable Infer
    detector = infersdk.models.YOLOv5("yolov5s.onnx")                # images in, boxes out

Importing this package imports no runtime: each backend is imported when it is used. Nor does it import NumPy:
attributes are imported on first access.
"""

from __future__ import annotations

from os import environ as _environ
from typing import TYPE_CHECKING

# ONNX Runtime 1.29 and later sends names and hashes of models to Microsoft, unless this is set before it is imported.
_environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

try:
    from .core._lib import lib, text
except ModuleNotFoundError as error:
    if error.name != "infersdk._native":
        raise
    from ._checkout import use_installed

    use_installed()
    from .core._lib import lib, text
from .core import process_end as _process_end  # noqa: F401 - it registers a handler of atexit
from .core.lazy import lazy
from .errors import InferSDKError as InferSDKError

if TYPE_CHECKING:  # `as` exports a name to type checkers
    from . import errors as errors
    from . import models as models
    from . import ops as ops
    from .core.device import Device as Device
    from .core.memory import Head as Head
    from .core.memory import MixMemory as MixMemory
    from .core.memory import memory_stats as memory_stats
    from .core.stream import Event as Event
    from .core.stream import Stream as Stream
    from .core.stream import device_count as device_count
    from .core.stream import device_info as device_info
    from .core.target import Target as Target
    from .core.tensor import Tensor as Tensor
    from .core.tensor import pinned_empty as pinned_empty
    from .core.tensor_spec import TensorSpec as TensorSpec
    from .infer import Infer as Infer
    from .loading.registry import list_backends as list_backends
    from .loading.registry import load as load
    from .models.composed import ModelGroup as ModelGroup
    from .pipeline import Pipeline as Pipeline

__version__: str = text(lib.ifs_version())

#: The names of each module.
_MODULES = {
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
}

__getattr__, __dir__ = lazy(__name__, _MODULES)
if not TYPE_CHECKING:  # type checkers read the imports above
    __all__ = [name for names in ("InferSDKError __version__", *_MODULES.values()) for name in names.split()]
