"""The models of a configuration and their versions: loading, lookup, replacement and closing.

A version is loaded and warmed up before it serves, and closed after its last request. Loading and closing run on
separate threads; lookups run in the thread of the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from numbers import Real
from time import monotonic
from typing import TYPE_CHECKING, Any

import msgspec

from ..config import convert, model_tables, read
from ..core.text import logger
from ..errors import ClosedError, ConfigError, InferSDKError, text_of
from ..loading.registry import load_table
from ..models import create
from ..pipeline import PipelineSettings
from .errors import RequestError, Status, retry_after
from .images import ImageEndpoint
from .networks import NetworkEndpoint
from .shadow import Shadow

if TYPE_CHECKING:
    from ..core.backend import Progress
    from .endpoint import Endpoint
    from .settings import ServerSettings

__all__ = ["ModelEntry", "Repository", "load_endpoint", "newest_table", "served_tables", "version_tables"]

_log = logger("infersdk.serve")

#: Threads that wait for the last requests of versions and free them.
_CLOSERS = 4
_VERSION = re.compile(r"0|[1-9][0-9]{0,18}")
#: The reason of a model that a client unloaded.
_UNLOADED = "unloaded"
#: Seconds between checks of the pipelines, and between attempts to reload a failed model.
_RELOAD_CHECK, _RELOAD_PAUSE = 1.0, 60.0


@dataclass(slots=True)
class ModelEntry:
    """A model of the configuration.

    Attributes:
        state: `"LOADING"`, `"READY"` or `"UNAVAILABLE"`.
        reason: why it is not ready, or why the last load failed.
        retry_at: the time of the next load after a failure, by `monotonic()`; 0 without a failure.
    """

    versions: dict[str, Endpoint] = field(default_factory=dict)
    state: str = "LOADING"
    reason: str = "it waits for its turn"
    loads: int = 0
    retry_at: float = 0.0

    @property
    def fault(self) -> BaseException | None:
        """The exception that ended a pipeline of a version; None while all accept requests."""
        return next((one.fault for one in self.versions.values() if one.fault is not None), None)

    @property
    def is_unloaded(self) -> bool:
        """Whether a client has unloaded it."""
        return self.reason == _UNLOADED


class Repository:
    """The models of a configuration. The methods raise RequestError for a model that they cannot find or load.

    Args:
        config: a file or a mapping. A file is read again for each load.

    Attributes:
        on_closed: called in the thread of the event loop after a version was closed.
        report: called there with a line when a model starts to load and when it serves; logs by default.

    Raises:
        ConfigError: the configuration cannot be read, or has no models.
    """

    def __init__(self, config: str | os.PathLike[str] | Mapping[str, Any], settings: ServerSettings) -> None:
        self.on_closed: Callable[[], None] = lambda: None
        self.report: Callable[[str], None] = _log.info
        self.config, self._settings = config, settings
        self.models = {name: ModelEntry() for name in served_tables(config)}
        self._loader = ThreadPoolExecutor(1, "infersdk-load")
        self._closer = ThreadPoolExecutor(_CLOSERS, "infersdk-close")
        self._loading = set[asyncio.Task[None]]()
        self._closing = set[asyncio.Future[None]]()
        self._closed = False

    # ---- lookups ----

    def find(self, name: str, version: str = "") -> Endpoint:
        """The endpoint for requests to a model that is ready."""
        if version and not version.isdecimal():
            raise RequestError(
                f"version {version[:100]!r} of model {name!r} is not a number; leave it out for the newest"
            )
        entry = self.models.get(name)
        if entry is None:
            raise RequestError(f"Request for unknown model: {name!r} is not found", Status.NOT_FOUND)
        if not entry.versions:
            reason = f": {entry.reason}" if entry.reason else ""
            raise RequestError(
                f"Request for unknown model: {name!r} is not ready, its state is {entry.state}{reason}",
                Status.NOT_FOUND if entry.is_unloaded else Status.UNAVAILABLE,
            )
        endpoint = entry.versions.get(version or max(entry.versions, key=int))
        if endpoint is None:
            raise RequestError(
                f"Request for unknown model: {name!r} version {version!r} is not found; its versions are "
                f"{', '.join(entry.versions)}",
                Status.NOT_FOUND,
            )
        if (fault := endpoint.fault) is not None:
            raise RequestError(
                f"model {name!r} has failed, and is loaded again: {text_of(fault)}",
                Status.UNAVAILABLE,
                retry_after(_RELOAD_CHECK),
            )
        return endpoint

    def endpoints(self) -> Iterator[Endpoint]:
        """All serving versions."""
        for entry in self.models.values():
            yield from entry.versions.values()

    def image_models(self) -> list[str]:
        """The names of the serving models that take images."""
        return list(dict.fromkeys(one.name for one in self.endpoints() if isinstance(one, ImageEndpoint)))

    @property
    def ready(self) -> bool:
        """Whether all models serve. Models unloaded by a client count as ready."""
        return all(entry.fault is None if entry.versions else entry.is_unloaded for entry in self.models.values())

    # ---- loading ----

    async def load_all(self) -> None:
        """Loads each model, except those that a client unloads meanwhile. Raises the error of one that fails."""
        for name, entry in list(self.models.items()):
            if not entry.is_unloaded:
                await self._load(name)

    async def load(self, name: str) -> None:
        """Reloads a model. The previous versions serve until it is ready, and serve on if it cannot be loaded."""
        if name not in self.models:
            raise RequestError(f"failed to load {name!r}: the configuration has no such model", Status.NOT_FOUND)
        try:
            await self._load(name)
        except Exception as error:
            _log.error("loading model %r failed", name, exc_info=error)
            text = text_of(error) if isinstance(error, InferSDKError) else "the server's log has the reason"
            raise RequestError(f"failed to load {name!r}: {text}") from None

    async def _load(self, name: str) -> None:
        """Loads a model, even if the caller is cancelled: a loading thread cannot be stopped, so its result is used or
        closed.
        """
        task = asyncio.ensure_future(self._load_and_swap(name))
        self._loading.add(task)
        task.add_done_callback(self._loading.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # the caller may be cancelled
        await asyncio.shield(task)

    async def _load_and_swap(self, name: str) -> None:
        entry, loop = self.models[name], asyncio.get_running_loop()
        if not entry.versions or entry.fault is not None:
            entry.state, entry.reason = "LOADING", ""
        self.report(f"{name}: loading")
        started = monotonic()
        failed = {version for version, endpoint in entry.versions.items() if endpoint.difference is not None}
        try:
            loaded = await loop.run_in_executor(self._loader, self._load_versions, name, failed)
        except BaseException as error:
            if not entry.is_unloaded:
                entry.reason = text_of(error)
            if not entry.versions or entry.fault is not None:
                entry.state = "UNAVAILABLE"
            raise
        if self.models.get(name) is not entry:
            self._close_later(list(loaded.values()))
            raise ConfigError(f"model {name!r} was taken out of the configuration while it was loaded")
        if entry.is_unloaded:  # by a client, while it was loaded
            self._close_later(list(loaded.values()))
            return
        replaced = list(entry.versions.values())
        for version in loaded.keys() & entry.versions.keys():  # a failed check itself causes a reload
            loaded[version].golden_checks = entry.versions[version].golden_checks
        entry.versions, entry.state, entry.reason = loaded, "READY", ""
        entry.loads, entry.retry_at = entry.loads + 1, 0.0
        self._close_later(replaced)
        for version, endpoint in loaded.items():
            self.report(
                f"{name} {version}: {endpoint.platform}, batches of up to {endpoint.pipeline.max_batch}, loaded in "
                f"{monotonic() - started:.1f} s"
            )

    async def reload_failed(self) -> None:
        """Reloads failed models until it is cancelled; retries a failed load after a minute."""
        while True:
            await asyncio.sleep(_RELOAD_CHECK)
            for name, entry in list(self.models.items()):
                if (fault := entry.fault) is None or monotonic() < entry.retry_at:
                    continue
                _log.error("model %r has failed, and is loaded again: %s", name, text_of(fault))
                entry.state, entry.reason = "UNAVAILABLE", f"it has failed: {text_of(fault)}"
                entry.retry_at = monotonic() + _RELOAD_PAUSE
                with contextlib.suppress(RequestError):  # `load()` has logged it
                    await self.load(name)

    async def verify_samples(self, interval: float) -> None:
        """Checks the golden samples of all models that have some, every `interval` seconds, until it is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(interval)
            for endpoint in list(self.endpoints()):
                if endpoint.check_samples is None or endpoint.fault is not None:
                    continue
                with endpoint.in_use():
                    await loop.run_in_executor(self._loader, endpoint.verify_samples)

    async def remove(self, name: str) -> None:
        """Removes a model. Its requests have `drain` seconds to finish."""
        await self.unload(name)
        del self.models[name]

    async def unload(self, name: str) -> None:
        """Unloads a model. Its requests have `drain` seconds to finish."""
        if (entry := self.models.get(name)) is None:
            raise RequestError(f"failed to unload {name!r}: the configuration has no such model", Status.NOT_FOUND)
        endpoints = list(entry.versions.values())
        entry.versions, entry.state, entry.reason = {}, "UNAVAILABLE", _UNLOADED
        self._close_later(endpoints)

    def _check_open(self, what: str, share: float = 0.0) -> None:
        """Aborts the warm-up of a model when the server stops."""
        if self._closed:
            raise ClosedError(f"the server stops; cancelled: {what}")

    def _load_versions(self, name: str, failed: Collection[str]) -> dict[str, Endpoint]:
        """Loads all versions. Those whose golden samples differed must pass them, also with verify="never"."""
        self._check_open(name)
        table = served_tables(self.config).get(name)
        if table is None:
            raise ConfigError(f"the configuration has no model {name!r} any more")
        made: dict[str, Endpoint] = {}
        try:
            for version, one in version_tables(name, table).items():
                made[version] = load_endpoint(name, version, one, self._settings, self._check_open)
                if version in failed and (check := made[version].check_samples) is not None:
                    check()
        except BaseException:
            for endpoint in made.values():
                endpoint.close(0)
            raise
        return made

    def _close_later(self, endpoints: Sequence[Endpoint]) -> None:
        """Closes endpoints in the threads for closing. The time for draining starts now."""
        loop, until = asyncio.get_running_loop(), monotonic() + self._settings.drain
        for endpoint in endpoints:
            try:
                future = loop.run_in_executor(self._closer, _close, endpoint, until)
            except RuntimeError:  # the interpreter ends, and its executors take nothing any more
                _close(endpoint, until)
                continue
            self._closing.add(future)
            future.add_done_callback(self._has_closed)

    def _has_closed(self, closing: asyncio.Future[None]) -> None:
        self._closing.discard(closing)
        if not self._closed:
            self.on_closed()

    async def close(self) -> None:
        """Drains and frees all models, including one that is being loaded."""
        self._closed = True
        if self._loading:
            await asyncio.wait(list(self._loading))
        endpoints = list(self.endpoints())
        for entry in self.models.values():
            entry.versions, entry.state, entry.reason = {}, "UNAVAILABLE", "the server ends"
        self._close_later(endpoints)
        if self._closing:
            await asyncio.wait(list(self._closing))
        self._loader.shutdown(wait=True)
        self._closer.shutdown(wait=True)


def _close(endpoint: Endpoint, until: float) -> None:
    """Closes an endpoint; its requests may run until the time `until`."""
    try:
        endpoint.close(max(0.0, until - monotonic()))
    except Exception:
        _log.exception("model %r could not be closed", endpoint.name)


def version_tables(name: str, table: Any) -> dict[str, dict[str, Any]]:
    """The table of each version: the model's table, updated by that of `versions`. The default version is 1."""
    if not isinstance(table, Mapping):
        raise ConfigError(f"models.{name} is a table, not {table!r}")
    base = dict(table)
    versions = base.pop("versions", {"1": {}})
    if not isinstance(versions, Mapping) or not versions:
        raise ConfigError(f"models.{name}.versions is a table with a table for each version, not {versions!r}")
    for version, own in versions.items():
        if not _VERSION.fullmatch(version) or not isinstance(own, Mapping):
            raise ConfigError(
                f"models.{name}.versions: a version is a number of up to 19 digits, without leading zeros, and has a "
                f"table, not {version!r}: {own!r}"
            )
    return {version: {**base, **own} for version, own in versions.items()}


def newest_table(name: str, table: Any) -> tuple[str, dict[str, Any]]:
    """The version for requests that name none, and its table."""
    tables = version_tables(name, table)
    version = max(tables, key=int)
    return version, tables[version]


def served_tables(config: str | os.PathLike[str] | Mapping[str, Any]) -> Mapping[str, Any]:
    """The table of each model of a configuration, by its name in requests.

    Raises:
        ConfigError: it cannot be read, has no models, or a name does not fit into a path.
    """
    tables = model_tables(read(config))
    for name in tables:
        if not name or "/" in name or len(name) > 256 or name in (".", "..", "stats"):
            raise ConfigError(
                f"models.{name}: a served model has a name of 1 to 256 characters without a slash, other than 'stats', "
                "which is the address of the statistics"
            )
    return tables


def load_endpoint(
    name: str, version: str, table: Mapping[str, Any], settings: ServerSettings, progress: Progress | None = None
) -> Endpoint:
    """Loads and warms up a version of a model. `progress` is called before each step of the warm-up; its exception
    aborts the warm-up.
    """
    with ExitStack() as opened:
        if table.get("type") == "network":
            pipeline = convert(table.get("pipeline", {}), PipelineSettings, f"models.{name}.pipeline")
            network = opened.enter_context(load_table(name, table, {}))
            endpoint: Endpoint = NetworkEndpoint(
                name, version, network, msgspec.structs.asdict(pipeline), settings.max_queue
            )
            opened.callback(endpoint.pipeline.close)
            endpoint.pipeline.warm_up(progress)
        else:
            own = dict(table)
            second = own.pop("shadow", None)
            model = opened.enter_context(create({"models": {name: own}})[name])
            model.warm_up(progress)
            endpoint = ImageEndpoint(name, version, model, settings)
            if second is not None:
                endpoint.shadow = _shadow(name, own, second)
        opened.pop_all()
    return endpoint


def _shadow(name: str, table: Mapping[str, Any], second: Any) -> Shadow:
    """The second model of a table: the same with other fields, and with `share`."""
    if not isinstance(second, Mapping):
        raise ConfigError(f"models.{name}.shadow is a table, not {second!r}")
    fields, key = {**table, **second}, f"{name}.shadow"
    share = fields.pop("share", 0.1)
    if not isinstance(share, Real) or isinstance(share, bool) or not 0 < float(share) <= 1:
        raise ConfigError(f"models.{key}: share is a number above 0 and up to 1, not {share!r}")
    return Shadow(name, create({"models": {key: fields}})[key], float(share))
