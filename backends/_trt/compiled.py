"""What TensorRT-RTX compiles when it runs: kept for the process, and in the cache for the next.

A runtime cache holds the kernels of an engine. All that load the same engine in a process share one, for two reasons: a
second load then compiles nothing, and the runtime never gives back what it takes to read, compile or write such a cache
(0.16 MiB to read or write that of a small network, 2 to 3 MiB to compile it, seen with 1.6.1). So each is done once.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...errors import OutputError

if TYPE_CHECKING:
    from ...cache import Cache
    from .._cuda import CudaDevice

__all__ = ["Compiled", "compiled_for"]

#: Engines whose kernels a process holds, the least recently loaded given up first.
KEPT = 32


class Compiled:
    """The kernels of one engine on one device.

    Attributes:
        raw: the runtime's own cache, for the configuration of a context.
        nbytes: the size of what is stored of it.
    """

    def __init__(self, raw: Any, key: str, cache: Cache | None, device: CudaDevice, backend: str, label: str) -> None:
        self.raw, self.nbytes = raw, 0
        self._key, self._cache, self._device = key, cache, device
        self._backend, self._label = backend, label
        self._guard = threading.Lock()
        if cache is not None and (result := cache.get(key)) and raw.deserialize(result[0]):
            self.nbytes = len(result[0])

    def keep_first(self) -> None:
        """Stores the kernels of a first run; nothing if there are some in store already."""
        if not self.nbytes:
            self.keep()

    def keep(self) -> None:
        """Stores all there are, if they are more than is stored."""
        if self._cache is None:
            return
        with self._guard, self._device, contextlib.suppress(OutputError):  # it saves time, no more
            blob = self.raw.serialize()
            data = bytes(blob) if blob is not None else b""
            if len(data) > self.nbytes:  # the runtime writes the same kernels in another order each time
                self._cache.put(self._key, data, kind="compiled", backend=self._backend, label=self._label)
                self.nbytes = len(data)


_held: OrderedDict[tuple[Any, ...], Compiled] = OrderedDict()
_guard = threading.Lock()


def compiled_for(
    make: Callable[[], Any], key: str, cache: Cache | None, device: CudaDevice, backend: str, label: str
) -> Compiled:
    """The kernels of the engine that `key` stands for; `make` gives an empty cache of the runtime's."""
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


# Kernels may be compiled beside later runs, and for shapes that come later: what there is at the end is stored too.
@atexit.register
def _keep_all() -> None:
    for compiled in list(_held.values()):
        with contextlib.suppress(Exception):  # the process is going, and so may be the driver
            compiled.keep()
