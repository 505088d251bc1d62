"""Kernels that TensorRT-RTX compiles when it runs: kept for the process, and in the cache for later processes.

A runtime cache has the kernels of an engine. All loads of an engine in a process share one, so that the second load
compiles nothing. TensorRT-RTX 1.6.1 also leaks memory for each cache: 0.16 MiB for reading or writing that of a small
network, and 2 to 3 MiB for compiling.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...core.process_end import at_end
from ...errors import OutputError

if TYPE_CHECKING:
    from ...core.cache import Cache
    from .gpu import CudaDevice

__all__ = ["Compiled", "compiled_for"]

#: Maximum number of engines whose kernels a process keeps. The least recently loaded one is dropped first.
KEPT = 32


class Compiled:
    """The kernels of one engine on one device.

    Attributes:
        raw: the runtime's cache, for the configuration of a context.
        nbytes: the size of the stored kernels.
    """

    def __init__(self, raw: Any, key: str, cache: Cache | None, device: CudaDevice, backend: str, label: str) -> None:
        self.raw, self.nbytes = raw, 0
        self._key, self._cache, self._device = key, cache, device
        self._backend, self._label = backend, label
        self._guard = threading.Lock()
        if cache is not None and (result := cache.get(key)) and raw.deserialize(result[0]):
            self.nbytes = len(result[0])

    def keep(self) -> None:
        """Stores all kernels, if there are more than stored ones."""
        if self._cache is None:
            return
        with self._guard, self._device.current(), contextlib.suppress(OutputError):  # only later loads take longer
            blob = self.raw.serialize()
            data = bytes(blob) if blob is not None else b""
            if len(data) > self.nbytes:  # the order of the same kernels varies
                self._cache.put(self._key, data, kind="compiled", backend=self._backend, label=self._label)
                self.nbytes = len(data)


_held: OrderedDict[tuple[Any, ...], Compiled] = OrderedDict()
_guard = threading.Lock()


def compiled_for(
    make: Callable[[], Any], key: str, cache: Cache | None, device: CudaDevice, backend: str, label: str
) -> Compiled:
    """The kernels of the engine with this key. `make` returns an empty cache of the runtime."""
    entry = (key, str(device), None if cache is None else str(cache.folder))
    with _guard:
        result = _held.get(entry)
        if result is None:
            result = _held[entry] = Compiled(make(), key, cache, device, backend, label)
        _held.move_to_end(entry)
        given_up = _held.popitem(last=False)[1] if len(_held) > KEPT else None
    if given_up is not None:
        given_up.keep()
    return result


# Kernels are also compiled during later runs and for later shapes: these are stored at the end of the process.
@at_end.callback
def _keep_all() -> None:
    for compiled in list(_held.values()):
        with contextlib.suppress(Exception):  # the driver may have ended
            compiled.keep()
