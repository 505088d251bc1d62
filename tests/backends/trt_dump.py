"""What a real module of TensorRT has, as JSON on stdout: `python trt_dump.py MODULE [SITE]`.

No function of the runtime is called, so its libraries may be empty; the classes that the backend derives are made.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import sys
import threading
from types import ModuleType
from typing import Any


def members(module: ModuleType) -> dict[str, dict[str, Any]]:
    """Of each class: its members, with the docstrings of functions, which hold their signatures; of each enum its
    values.
    """
    found: dict[str, dict[str, Any]] = {}

    def add(name: str, kind: type) -> None:
        own = found[name] = {}
        for key in dir(kind):
            value = inspect.getattr_static(kind, key)
            if isinstance(value, type) and key != "__class__":
                add(f"{name}.{key}", value)
            own[key] = (getattr(kind, key).__doc__ or "") if callable(getattr(kind, key, None)) else None

    for name, kind in vars(module).items():
        if isinstance(kind, type):
            add(name, kind)
    return found


def derive(module: ModuleType) -> list[str]:
    """Makes the backend's own classes on top of the module's; their names."""
    from infersdk.backends._trt import contexts, flavour, progress

    made = [
        flavour._make_logger(module), contexts.make_allocator(module),
        progress.make_monitor(module, None, threading.Event()),
    ]  # fmt: skip
    return [one.__name__ if isinstance(one, type) else type(one).__name__ for one in made]


if __name__ == "__main__":
    if len(sys.argv) > 2:
        sys.path.insert(0, sys.argv[2])
    trt = importlib.import_module(sys.argv[1])
    file = next(value.__file__ for name, value in vars(trt).items() if name in ("tensorrt", "tensorrt_rtx"))
    report = {
        "file": file, "version": trt.__version__, "names": dir(trt), "members": members(trt), "derived": derive(trt),
    }  # fmt: skip
    json.dump(report, sys.stdout)
    sys.stdout.flush()
    os._exit(0)  # the end of the runtime would call its libraries
