"""The process of a server: its file descriptors and garbage collection."""

from __future__ import annotations

import gc
import os
import sys
from typing import TYPE_CHECKING

from ..core.text import logger
from ..errors import ConfigError
from .shared_memory import MOST_REGIONS

if TYPE_CHECKING:
    from .settings import ServerSettings

__all__ = ["connection_limit", "freeze"]

_log = logger("infersdk.serve")

#: File descriptors reserved for model files, libraries and logs.
_RESERVE = 96


def connection_limit(settings: ServerSettings) -> int:
    """The maximum number of simultaneous connections of each port.

    It is `max_connections`, or fewer with a warning if the process may not open as many files (`ulimit -n`).

    Raises:
        ConfigError: no file descriptor is available for connections.
    """
    if sys.platform == "win32":  # has no such limit
        return settings.max_connections
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return settings.max_connections
    reserve = len(os.listdir("/dev/fd")) + _RESERVE + (MOST_REGIONS if settings.shared_memory_prefix else 0)
    ports = sum(port is not None for port in (settings.http_port, settings.grpc_port))
    allowed = (limit - reserve) // ports
    if allowed < 1:
        raise ConfigError(
            f"server: the process may open {limit:,} files, and needs {reserve:,} besides connections; raise the limit "
            "(ulimit -n)"
        )
    if allowed < settings.max_connections:
        _log.warning(
            "the process may open %s files (ulimit -n): each port takes at most %s connections, not max_connections = "
            "%s", f"{limit:,}", f"{allowed:,}", f"{settings.max_connections:,}",
        )  # fmt: skip
    return min(allowed, settings.max_connections)


def freeze() -> None:
    """Collects garbage, then excludes all remaining objects from later collections.

    A full collection stops all threads for some 30 ms because it visits each object of the loaded packages and models.
    Another call visits all objects again, so the objects of a closed model are freed.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
