"""Looks at the files of the models and at the configuration, and loads anew what has changed."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

import msgspec

from .._text import logger
from ..errors import ConfigError
from .errors import RequestError

if TYPE_CHECKING:
    from .repository import Repository

__all__ = ["signatures", "watch"]

_log = logger("infersdk.serve")


async def watch(repository: Repository, interval: float, loaded: dict[str, Any]) -> None:
    """Looks every `interval` seconds, until it is cancelled. Start it when the models are loaded.

    Args:
        loaded: the `signatures()` from before they were loaded: what changed while they were is seen.

    A change counts when two looks in a row see the same: a file that is still being written is left alone. A model that
    cannot be loaded is logged, and what served before serves on; it is tried again when its files change again.
    """
    before = loaded
    while True:
        await asyncio.sleep(interval)
        try:
            now = await asyncio.to_thread(signatures, repository)
        except ConfigError as error:
            _log.error("the configuration cannot be read, and stays as it was: %s", error)
            continue
        if now == before and now != loaded:
            await _apply(repository, loaded, now)
            loaded = now
        before = now


async def _apply(repository: Repository, loaded: dict[str, Any], now: dict[str, Any]) -> None:
    for name in loaded.keys() - now.keys():
        _log.info("model %r is not in the configuration any more", name)
        await repository.remove(name)
    for name, signature in now.items():
        if loaded.get(name) != signature:
            _log.info("model %r has changed", name)
            repository.add(name)
            try:
                await repository.load(name)
            except RequestError as error:
                _log.error("%s; what served before serves on", error.message)


def signatures(repository: Repository) -> dict[str, Any]:
    """What changes with a model: its table, and the sizes and times of its files."""
    return {
        name: (msgspec.json.encode(table, order="sorted"), [_state(path) for path in sorted(repository.files(table))])
        for name, table in repository.tables().items()
    }


def _state(path: str) -> tuple[Any, ...]:
    try:
        status = os.stat(path)
    except OSError:
        return (path,)
    return path, status.st_size, status.st_mtime_ns, status.st_ino
