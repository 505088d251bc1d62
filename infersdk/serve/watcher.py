"""Looks at the files of the models and at the configuration, and loads anew what has changed."""

from __future__ import annotations

import asyncio
import functools
import os
from typing import TYPE_CHECKING, Any

import msgspec

from .._text import logger
from ..errors import ConfigError, ModelError
from ..importers.loading import source_files
from ..model_source import ModelSource
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
        except Exception:
            _log.exception("the configuration cannot be looked at, and stays as it was")
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
    """What changes with a model: its table, and the sizes and times of its files.

    Raises:
        ConfigError: the configuration cannot be read.
    """
    return {
        name: (
            msgspec.json.encode(table, order="sorted", enc_hook=repr),
            [_states(path) for path in sorted(repository.files(table))],
        )
        for name, table in repository.tables().items()
    }


def _states(path: str) -> list[tuple[Any, ...]]:
    """The states of a file that a table names, and of the files that belong to it, such as external weights."""
    state = _state(path)
    return [state, *(_state(file) for file in _other_files(path, state))]


@functools.lru_cache(256)
def _other_files(path: str, state: tuple[Any, ...]) -> tuple[str, ...]:
    """The files besides `path` that a model consists of. They are read from it once for each of its states."""
    try:
        return tuple(str(file) for file in source_files(ModelSource.of(path)) if str(file) != path)
    except (ConfigError, ModelError):  # none, or damaged: loading says how
        return ()


def _state(path: str) -> tuple[Any, ...]:
    try:
        status = os.stat(path)
    except (OSError, ValueError):  # ValueError: it is not text of the file system
        return (path,)
    return path, status.st_size, status.st_mtime_ns, status.st_ino
