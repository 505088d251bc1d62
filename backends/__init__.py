"""Backends: one module a runtime, imported by `infersdk.load()` when one is asked for."""

import sys
from types import ModuleType

if __name__ != "infersdk.backends":
    raise ImportError("this folder is the package infersdk.backends; import it by that name")


class _Callable(ModuleType):
    """Once imported, this package takes the place of the function `infersdk.backends()`: so it answers as that does."""

    def __call__(self) -> list[str]:
        from ..registry import backends

        return backends()


sys.modules[__name__].__class__ = _Callable
