"""Reloads models when their files or their configuration change."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ..config import model_files, read, server_table
from ..core.files import file_state
from ..core.model_source import ModelSource
from ..core.text import logger
from ..errors import ConfigError, ModelError, text_of
from ..importers.loading import source_files
from .errors import RequestError
from .repository import ModelEntry, served_tables, version_tables
from .settings import ServerSettings

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from .repository import Repository

__all__ = ["Signatures", "signatures", "watch"]

_log = logger("infersdk.serve")


class Signatures(NamedTuple):
    """The state of a configuration; two equal ones have no change between them.

    `models` has the table of each model, with the sizes and modification times of its files.
    """

    server: ServerSettings
    models: dict[str, Any]


async def watch(repository: Repository, interval: float, loaded: Signatures) -> None:
    """Checks every `interval` seconds until it is cancelled. Start it when the models are loaded.

    Args:
        loaded: the `signatures()` from before loading, so that changes during loading are detected.

    A change is applied when two consecutive checks agree: files that are still being written are ignored. If loading
    fails, the error is logged and the previous versions serve on until the files change again. A configuration that
    cannot be read is logged once, until its error changes.
    """
    before = loaded
    told: str | None = None
    while True:
        await asyncio.sleep(interval)
        try:
            now = await asyncio.to_thread(signatures, repository.config)
        except Exception as error:
            if (text := text_of(error)) != told:
                trace = None if isinstance(error, ConfigError) else error
                _log.error("the configuration cannot be read; the previous one stays in use: %s", text, exc_info=trace)
            told = text
            continue
        told = None
        if now == before and now != loaded:
            await _apply(repository, loaded, now)
            loaded = now
        before = now


async def _apply(repository: Repository, loaded: Signatures, now: Signatures) -> None:
    if now.server != loaded.server:
        _log.warning("the table server has changed; it takes effect after a restart")
    for name in loaded.models.keys() - now.models.keys():
        _log.info("model %r is not in the configuration any more", name)
        await repository.remove(name)
    for name, signature in now.models.items():
        if loaded.models.get(name) != signature:
            _log.info("model %r has changed", name)
            if not repository.models.setdefault(name, ModelEntry()).is_unloaded:
                with contextlib.suppress(RequestError):  # `load()` has logged it
                    await repository.load(name)


def signatures(config: str | os.PathLike[str] | Mapping[str, Any]) -> Signatures:
    """The current state of the configuration."""
    configuration = read(config)
    models = {
        name: (
            msgspec.json.encode(table, order="sorted", enc_hook=repr),
            [_states(path) for path in sorted(set().union(*map(model_files, version_tables(name, table).values())))],
        )
        for name, table in served_tables(configuration).items()
    }
    return Signatures(ServerSettings.of(server_table(configuration)), models)


def _states(path: str) -> list[tuple[Any, ...]]:
    """The states of a model file and of the files that it refers to."""
    state = file_state(path)
    return [(path, state), *((file, file_state(file)) for file in _other_files(path, state))]


@functools.lru_cache(256)
def _other_files(path: str, state: tuple[int, int, int] | None) -> tuple[str, ...]:
    """The other files of a model, such as external weights; cached for each state of `path`."""
    try:
        return tuple(str(file) for file in source_files(ModelSource.of(path)) if str(file) != path)
    except (ConfigError, ModelError):  # missing or damaged: loading reports the reason
        return ()
