"""Shared memory regions registered by clients, for inputs and outputs."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Mapping
from typing import Any

from .errors import RequestError, Status
from .regions import HANDLE_NBYTES, CudaRegion, HostRegion, Region, RegionPart

__all__ = ["MOST_REGIONS", "SharedMemoryRegions"]

_FOLDER = "/dev/shm"  # see shm_overview(7)
#: Maximum number of regions, each of which holds an open file, and the maximum length of their names.
MOST_REGIONS, _LONGEST_NAME = 512, 256


class SharedMemoryRegions:
    """The regions of a server, by name. It is thread-safe.

    Args:
        prefix: required prefix of the keys; None refuses every region.
    """

    def __init__(self, prefix: str | None) -> None:
        self._prefix = prefix
        self._regions: dict[str, Region] = {}
        self._lock = threading.Lock()

    def register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Maps a region of the host.

        Raises:
            RequestError: the name is taken or not valid, the key is not allowed, or there is no such memory of that
                size.
        """
        self._check_key(name, key)
        what = f"failed to register shared memory region {name!r}"
        if offset < 0 or byte_size < 1:
            raise RequestError(f"{what}: offset {offset} and byte_size {byte_size} are not valid")
        with self._lock:
            self._check_name(name, what)
            try:
                file = os.open(_FOLDER + key, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            except (OSError, ValueError) as error:
                reason = getattr(error, "strerror", None) or error
                raise RequestError(f"{what}: key {key!r} cannot be opened: {reason}") from None
            try:
                self._check_file(file, what, key, offset + byte_size)
            except BaseException:
                os.close(file)
                raise
            self._regions[name] = HostRegion(name, key, offset, byte_size, file)

    def register_cuda(self, name: str, handle: bytes, device_id: int, byte_size: int) -> None:
        """Opens a region of a CUDA device.

        Raises:
            RequestError: the name is taken or not valid, no region is allowed, or there is no such memory of that size.
        """
        what = f"failed to register CUDA shared memory region {name!r}"
        if self._prefix is None:
            raise self._not_allowed(what)
        if len(handle) != HANDLE_NBYTES:
            raise RequestError(
                f"{what}: raw_handle has the {HANDLE_NBYTES} bytes of a cudaIpcMemHandle_t, not {len(handle)}"
            )
        if byte_size < 1 or not 0 <= device_id < 1 << 31:
            raise RequestError(f"{what}: device_id {device_id}, byte_size {byte_size} are not valid")
        with self._lock:
            self._check_name(name, what)
            self._regions[name] = CudaRegion(name, handle, device_id, byte_size)

    def _check_name(self, name: str, what: str) -> None:
        if not 1 <= len(name) <= _LONGEST_NAME:  # `unregister()` takes an empty name as all regions
            raise RequestError(
                f"{what}: a region has a name of 1 to {_LONGEST_NAME} characters, and this one has {len(name):,}"
            )
        if name in self._regions:
            raise RequestError(f"shared memory region {name!r} already in manager; unregister it", Status.EXISTS)
        if len(self._regions) >= MOST_REGIONS:
            raise RequestError(f"{what}: {MOST_REGIONS} are registered; unregister others", Status.TOO_LARGE)

    def _not_allowed(self, what: str) -> RequestError:
        return RequestError(
            f"{what}: this server takes no shared memory; its configuration allows it: shared_memory_prefix = "
            '"/frames-" under [server]',
            Status.FORBIDDEN,
        )

    def _check_key(self, name: str, key: str) -> None:
        if self._prefix is None:
            raise self._not_allowed(f"failed to register shared memory region {name!r}")
        rooted = key if key.startswith("/") else f"/{key}"
        if key != rooted or not key.startswith(self._prefix) or "/" in key[1:] or key in ("/", "/.", "/.."):
            raise RequestError(
                f"failed to register shared memory region {name!r}: the key {key!r} is not allowed; keys of this "
                f"server begin with {self._prefix!r}, and have no further slash",
                Status.FORBIDDEN,
            )

    def _check_file(self, file: int, what: str, key: str, end: int) -> None:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise RequestError(f"{what}: key {key!r} is not shared memory")
        if status.st_size < end:
            raise RequestError(f"{what}: key {key!r} has {status.st_size:,} bytes, and {end:,} are registered")

    def unregister(self, name: str, *, cuda: bool = False) -> None:
        """Removes a region, or all of its kind if `name` is empty. As in Triton, a missing region is not an error."""
        kind = CudaRegion if cuda else HostRegion
        with self._lock:
            names = [name] if name else list(self._regions)
            for one in names:
                if isinstance(self._regions.get(one), kind):
                    del self._regions[one]

    def status(self, name: str = "", *, cuda: bool = False) -> list[dict[str, Any]]:
        """The fields of the regions of the host, or of CUDA devices; with a name those of the region of that name.

        Raises:
            RequestError: there is no such region.
        """
        kind = CudaRegion if cuda else HostRegion
        with self._lock:
            regions = [region for region in self._regions.values() if isinstance(region, kind)]
        found = [region.fields for region in regions if name in ("", region.name)]
        if name and not found:
            text = "CUDA" if cuda else "system"
            raise RequestError(f"Unable to find {text} shared memory region: {name!r}; register it", Status.NOT_FOUND)
        return found

    def part(self, parameters: Mapping[str, Any], what: str) -> RegionPart | None:
        """The memory that the parameters of an input or output name; None if they name none.

        Args:
            what: the input or output, for messages.

        Raises:
            RequestError: a parameter is wrong, there is no region of that name, or the part is not in it.
        """
        name = parameters.get("shared_memory_region")
        if name is None:
            return None
        offset, size = parameters.get("shared_memory_offset", 0), parameters.get("shared_memory_byte_size")
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
                f"bytes {offset:,} to {offset + size:,} were asked for"
            )
        return RegionPart(region, offset, size)

    def close(self) -> None:
        """Removes all regions."""
        with self._lock:
            self._regions.clear()
