"""The number of connections that the file descriptors of the process allow."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from .._text import logger
from ..errors import ConfigError
from .shared_memory import MOST_REGIONS

if TYPE_CHECKING:
    from .settings import ServerSettings

__all__ = ["connection_limit"]

_log = logger("infersdk.serve")

#: Descriptors that connections leave to model files, libraries and logs.
_RESERVE = 96


def connection_limit(settings: ServerSettings) -> int:
    """The connections that each port may have at a time: `max_connections`, or fewer where the process may not open so
    many files (`ulimit -n`), which is logged.

    Raises:
        ConfigError: no descriptor is left for connections.
    """
    import resource  # here: systems without it can import the package

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
