"""Shared memory regions registered by clients, for inputs and outputs."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from ..errors import ConfigError
from .errors import RequestError, Status
from .regions import CudaRegion, HostRegion, Region, RegionPart

__all__ = ["MOST_REGIONS", "SharedMemoryRegions"]

#: Maximum number of regions, each of which holds an open file, and the maximum length of their names.
MOST_REGIONS, _LONGEST_NAME = 512, 256


class SharedMemoryRegions:
    """The regions of a server, by name. Any thread may call `part()`; the event loop calls all other methods.

    The methods raise RequestError for a request that cannot be fulfilled.

    Args:
        prefix: required prefix of the keys; None refuses every region.

    Raises:
        ConfigError: a prefix on a system other than Linux.
    """

    def __init__(self, prefix: str | None) -> None:
        if prefix is not None and sys.platform != "linux":
            raise ConfigError(f"server: shared_memory_prefix = {prefix!r} needs Linux; leave it out on {sys.platform}")
        self._prefix = prefix
        self._regions: dict[str, Region] = {}

    def register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Opens a region of the host."""
        what = f"failed to register shared memory region {name!r}"
        prefix = self._check_free(name, what)
        if not key.startswith(prefix) or "/" in key[1:] or key in ("/", "/.", "/.."):
            raise RequestError(
                f"{what}: the key {key!r} is not allowed; keys of this server begin with {prefix!r}, and have no "
                "further slash",
                Status.FORBIDDEN,
            )
        self._regions[name] = HostRegion(name, key, offset, byte_size)

    def register_cuda(self, name: str, handle: bytes, device_id: int, byte_size: int) -> None:
        """Opens a region of a CUDA device."""
        self._check_free(name, f"failed to register CUDA shared memory region {name!r}")
        self._regions[name] = CudaRegion(name, handle, device_id, byte_size)

    def _check_free(self, name: str, what: str) -> str:
        """The prefix of the keys. Raises RequestError if no region of this name can be registered."""
        if self._prefix is None:
            raise RequestError(
                f"{what}: this server takes no shared memory; its configuration allows it: shared_memory_prefix = "
                '"/frames-" under [server]',
                Status.FORBIDDEN,
            )
        if not 1 <= len(name) <= _LONGEST_NAME:  # `unregister()` takes an empty name as all regions
            raise RequestError(
                f"{what}: a region has a name of 1 to {_LONGEST_NAME} characters, and this one has {len(name):,}"
            )
        if name in self._regions:
            raise RequestError(f"shared memory region {name!r} already in manager; unregister it", Status.EXISTS)
        if len(self._regions) >= MOST_REGIONS:
            raise RequestError(f"{what}: {MOST_REGIONS} are registered; unregister others", Status.TOO_LARGE)
        return self._prefix

    def unregister(self, name: str = "", *, cuda: bool = False) -> None:
        """Removes a region, or all of its kind if `name` is empty. As in Triton, a missing region is not an error."""
        kind = CudaRegion if cuda else HostRegion
        for one in [name] if name else list(self._regions):
            if isinstance(self._regions.get(one), kind):
                del self._regions[one]

    def status(self, name: str = "", *, cuda: bool = False) -> list[dict[str, Any]]:
        """The fields of the regions of the host, or of CUDA devices; with a name those of the region of that name."""
        kind = CudaRegion if cuda else HostRegion
        regions = [region for region in self._regions.values() if isinstance(region, kind)]
        found = [region.fields for region in regions if name in ("", region.name)]
        if name and not found:
            text = "CUDA" if cuda else "system"
            raise RequestError(f"Unable to find {text} shared memory region: {name!r}; register it", Status.NOT_FOUND)
        return found

    def part(self, parameters: Mapping[str, Any], what: str) -> RegionPart | None:
        """The memory that the parameters of an input or output name; None if they name none; `what` is for messages."""
        name = parameters.get("shared_memory_region")
        offset, size = parameters.get("shared_memory_offset", 0), parameters.get("shared_memory_byte_size")
        if name is None and size is None and not offset:
            return None
        if type(name) is not str or type(offset) is not int or type(size) is not int or offset < 0 or size < 0:
            raise RequestError(
                f"{what}: shared memory has a region's name, an offset and a size, not {name!r}, {offset!r}, {size!r}"
            )
        region = self._regions.get(name)
        if region is None:
            raise RequestError(f"Unable to find system shared memory region: {name!r}; register it", Status.NOT_FOUND)
        if offset + size > region.byte_size:
            raise RequestError(
                f"Invalid offset + byte size for shared memory region: {name!r} has {region.byte_size:,} bytes, and "
                f"bytes {offset:,} to {offset + size:,} were requested"
            )
        return RegionPart(region, offset, size)

    def close(self) -> None:
        """Removes all regions."""
        self._regions.clear()
