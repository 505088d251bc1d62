"""The cache of data that takes long to make: engines, compiled models, and kernels that runtimes compile.

An entry is a blob under a key that covers everything it was made from (`key_of`), so no entry goes stale: whatever has
changed has another key. Next to each blob `<key>.bin` is its manifest `<key>.json`, for people to read, with the blob's
SHA-256. An entry that does not match its manifest counts as missing.

Several processes may share the folder. A blob and its manifest are each replaced in one step. Each key has a lock (of
`<key>.lock`, which ends with its process): one process makes an entry, and the others wait. Nothing waits for the disk:
files that a crash of the system damages do not match their manifests. `<key>.part` is the beginning of a download.

The entries of an encrypted bundle are encrypted: the blob, and the details in the manifest.

Engines can carry code, so a folder that other users could write to is not used. It belongs to the user of the process
or to root, and only these can write to it. A lock file that is a symbolic link is not followed.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import hashlib
import io
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec

from ..errors import BundleError, ConfigError, OutputError, relative_to
from .files import WRITE_FLAGS, atomic_write, cache_base, file_digest, lock, other_writers, remove_lock
from .text import logger, parse_size, printable

if TYPE_CHECKING:
    from .model_source import EntrySealer, ModelSource

__all__ = ["Cache", "Manifest", "default_folder", "key_of", "read_manifest", "write_blob"]

T = TypeVar("T", bytes, Path)

DEFAULT_LIMIT = 10_000_000_000
_FILE = re.compile(r"\.?([0-9a-f]{64})\.(?:bin|json|lock|part|.*tmp(?:\..*)?)")
_Moment = Annotated[datetime.datetime, msgspec.Meta(tz=True)]  # one without a zone cannot be compared with others
_log = logger("infersdk.core.cache")
#: The bytes that this process may still write below each folder and limit before it lists the folder again.
_rooms: dict[tuple[Path, int], float] = {}


class Manifest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The description of a blob.

    Attributes:
        kind: its kind, such as `"engine"`.
        backend: the backend that made it.
        label: a name for people, such as that of the model file.
        sha256, nbytes: of the blob.
        created, last_used: in UTC.
        details: those that the backend records. An encrypted entry has `encrypted`, its details in hexadecimal digits.
        key: its key in the cache; empty for a file that was built by name.
    """

    kind: str
    backend: str
    label: str
    sha256: str
    nbytes: int
    created: _Moment
    last_used: _Moment
    details: dict[str, Any] = {}
    key: str = ""
    schema: int = 1

    def matches(self, data: bytes) -> bool:
        """Whether `data` is exactly the blob that this was written for."""
        return len(data) == self.nbytes and hashlib.sha256(data).hexdigest() == self.sha256

    def text(self) -> bytes:
        """JSON for people."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"


def key_of(parts: Mapping[str, Any]) -> str:
    """The key of an entry made from `parts`: SHA-256 over them as JSON, sorted by name."""
    return hashlib.sha256(msgspec.json.encode(dict(parts), order="sorted")).hexdigest()


def default_folder() -> Path:
    """INFERSDK_CACHE, or `infersdk` in the user's folder of caches: `%LOCALAPPDATA%` on Windows, elsewhere
    `$XDG_CACHE_HOME`, or else `~/Library/Caches` on macOS and `~/.cache` on Linux.

    Raises:
        OutputError: the user has no home.
    """
    if named := os.environ.get("INFERSDK_CACHE"):
        return _absolute(named)
    try:
        return cache_base() / "infersdk"
    except RuntimeError:
        raise OutputError("there is no folder for the cache: the user has no home; set INFERSDK_CACHE") from None


def _absolute(folder: str | os.PathLike[str]) -> Path:
    if not os.fspath(folder):
        raise ConfigError("the folder of the cache is ''; name one, '.' for the current folder")
    try:
        path = Path(folder).expanduser()
    except RuntimeError as error:
        raise OutputError(f"there is no folder for the cache at {os.fspath(folder)!r}: {error}") from None
    with contextlib.suppress(FileNotFoundError):  # the working directory was deleted: writing raises the error
        path = path.absolute()
    return path


def write_blob(path: Path, data: bytes, manifest: Manifest, manifest_path: Path) -> None:
    """Writes a blob and then its manifest, each in one step: a reader sees the old one or the new one, never a part.

    Raises:
        OutputError: the folder cannot be written, or the disk is full; nothing is left behind.
    """
    atomic_write(path, data, follow=False)
    atomic_write(manifest_path, manifest.text(), follow=False)


def read_manifest(path: Path) -> Manifest | None:
    """The manifest at `path`; None if it is missing or cannot be understood."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Manifest)
    except (OSError, ValueError, RecursionError):
        return None


class Cache:
    """A folder of entries.

    Args:
        folder: where; None is `default_folder()`.
        limit: the most bytes of all entries together; the least recently used ones are removed beyond that. None is
            INFERSDK_CACHE_LIMIT, or else 10 GB; 0 is no limit.
        required: a folder that cannot be used is an error. Otherwise it is a warning, and nothing is kept.
        sealer: encrypts the entries that this object writes, and decrypts those that it reads; None leaves them plain.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        limit: int | None = None,
        *,
        required: bool = False,
        sealer: EntrySealer | None = None,
    ) -> None:
        self.folder = _absolute(folder) if folder is not None else default_folder()
        if limit is None:
            limit = parse_size(os.environ.get("INFERSDK_CACHE_LIMIT") or DEFAULT_LIMIT, "INFERSDK_CACHE_LIMIT")
        self.limit = limit
        self.required = required
        self.sealer = sealer

    @classmethod
    def of_model(cls, model: ModelSource, options: Any) -> Cache | None:
        """The cache for a model and the options `cache` and `cache_dir` of its backend; None where nothing is kept.

        Raises:
            ConfigError: the options contradict each other.
        """
        folder = options.cache_dir
        if not options.cache and folder is not None:
            raise ConfigError(f"cache_dir={folder!r} names a folder for the cache, and cache=False keeps nothing")
        if not options.cache or (folder is None and not model.is_kept):
            return None  # nothing of a model in memory is written to a disk
        try:
            return cls(folder, required=folder is not None, sealer=model.sealer)
        except OutputError as error:
            warnings.warn(f"{error}; nothing of {printable(model.name)} is kept", RuntimeWarning, stacklevel=2)
            return None

    def path(self, key: str) -> Path:
        """The file of a key's blob, whether it exists or not."""
        return self.folder / f"{key}.bin"

    def part(self, key: str) -> Path:
        """The file of the first bytes of a download, for a process that holds the key. `clear()` removes it, and
        `evict()` beyond the limit.
        """
        return self.folder / f"{key}.part"

    @contextlib.contextmanager
    def held(self, key: str) -> Iterator[None]:
        """Holds a key for the block, and then removes its files.

        Raises:
            OutputError: the folder cannot be used.
        """
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(self._locked(key))
            except OSError as error:
                raise self._unusable(error) from None
            stack.callback(self._delete, key)
            yield

    # ---- reading and writing ----

    def get(self, key: str) -> tuple[bytes, Manifest] | None:
        """The blob under `key` and its manifest; None if it is missing or damaged. Marks it as used now."""
        return self._found(key, self._blob)

    def find(self, key: str) -> tuple[Path, Manifest] | None:
        """As `get()`, with the file of a plain blob, which is not read into memory."""
        return self._found(key, self._file)

    def _found(self, key: str, load: Callable[[str, Manifest], T | None]) -> tuple[T, Manifest] | None:
        if not os.path.exists(self._manifest_path(key)) or self._distrust() is not None:
            return None
        # An entry that matches its manifest is complete: no lock is needed, and no reader has to wait for writers.
        result = self._look(key, load)
        if result is None:
            with contextlib.suppress(OSError), self._locked(key):  # a writer may have been in between
                result = self._look(key, load)
            if result is None and (manifest := read_manifest(self._manifest_path(key))) is not None:
                _log.warning("the cache entry %s (%s) is damaged, and is made again", key, manifest.label)
        if result is not None:
            self._mark_used(key, result[1])
            _log.debug("the %s of %s is in the cache: %s", result[1].kind, result[1].label, self.path(key))
        return result

    def put(
        self, key: str, data: bytes, *, kind: str, backend: str, label: str, details: dict[str, Any] | None = None
    ) -> Manifest:
        """Stores a blob in place of the entry under `key`, and removes old entries beyond the limit.

        Raises:
            OutputError: the folder cannot be used, or the disk is full; the old entry is untouched.
        """
        try:
            with self._locked(key):
                return self._write(key, data, kind, backend, label, details or {})
        except OSError as error:
            raise self._unusable(error) from None

    def get_or_make(
        self,
        key: str,
        make: Callable[[], tuple[bytes, dict[str, Any]]],
        *,
        kind: str,
        backend: str,
        label: str,
        waiting: Callable[[], None] | None = None,
    ) -> tuple[bytes, dict[str, Any], bool]:
        """The blob under `key`. If it is missing, one process makes it while others that want it wait.

        Args:
            make: makes the blob, and the details for its manifest.
            waiting: called once if another process is making it.

        Returns:
            The blob, its details, and whether it was stored already.

        Raises:
            OutputError: it cannot be kept, and the cache is `required`.
        """
        if result := self.get(key):
            return result[0], result[1].details, True
        with contextlib.ExitStack() as stack:
            kept: Exception | None = None
            try:
                stack.enter_context(self._locked(key, waiting=waiting))
            except OSError as error:
                kept = self._unusable(error)
                if self.required:
                    raise kept from None
            if kept is None and (result := self._look(key, self._blob)):  # another process has made it
                return result[0], result[1].details, True
            _log.debug("the %s of %s is not in the cache %s: made now", kind, label, self.folder)
            data, details = make()
            if kept is None:
                try:
                    self._write(key, data, kind, backend, label, details)
                except OutputError as error:
                    if self.required:
                        raise
                    kept = error
        if kept is not None:
            warnings.warn(
                f"{kept}. The {kind} of {printable(label)} is not kept, and is made again each time; set "
                "INFERSDK_CACHE to a folder of your own",
                RuntimeWarning,
                stacklevel=2,
            )
        return data, details, False

    def _look(self, key: str, load: Callable[[str, Manifest], T | None]) -> tuple[T, Manifest] | None:
        manifest = read_manifest(self._manifest_path(key))
        if manifest is None or manifest.key != key:
            return None
        try:
            blob = load(key, manifest)
        except (OSError, ValueError, BundleError):
            return None
        return None if blob is None else (blob, manifest)

    def _blob(self, key: str, manifest: Manifest) -> bytes | None:
        """The blob, decrypted with the details of its manifest; None if it is damaged."""
        if self.sealer is None:
            data = self.path(key).read_bytes()
            return data if manifest.matches(data) else None
        content = io.BytesIO(self.path(key).read_bytes())
        details = io.BytesIO(bytes.fromhex(str(manifest.details.get("encrypted", ""))))
        self.sealer.open(f"details of {key}", details)
        self.sealer.open(key, content)
        manifest.details = msgspec.json.decode(details.getvalue())
        return content.getvalue()

    def _file(self, key: str, manifest: Manifest) -> Path | None:
        """The file of the blob; None if it is damaged."""
        path = self.path(key)
        return path if file_digest(path) == manifest.sha256 else None

    def _mark_used(self, key: str, manifest: Manifest) -> None:
        """Only the order of eviction depends on it, so it does not wait for the lock."""
        manifest.last_used = _now()
        with contextlib.suppress(OSError), self._locked(key, block=False):
            stored = read_manifest(self._manifest_path(key))
            if stored is not None and stored.sha256 == manifest.sha256:
                stored.last_used = manifest.last_used
                atomic_write(self._manifest_path(key), stored.text(), follow=False)

    def _write(self, key: str, data: bytes, kind: str, backend: str, label: str, details: dict[str, Any]) -> Manifest:
        now = _now()
        if self.sealer is not None:
            sealed = self.sealer.seal(f"details of {key}", msgspec.json.encode(details))
            data, details = self.sealer.seal(key, data), {"encrypted": sealed.hex()}
        manifest = Manifest(
            kind=kind, backend=backend, label=label, sha256=hashlib.sha256(data).hexdigest(), nbytes=len(data),
            created=now, last_used=now, details=details, key=key,
        )  # fmt: skip
        write_blob(self.path(key), data, manifest, self._manifest_path(key))
        # Listing a folder of thousands of files takes longer than writing one.
        where = self.folder, self.limit
        _rooms[where] = _rooms.get(where, 0) - len(data) - len(manifest.text())
        if _rooms[where] <= 0:
            self.evict(keep=key)
        return manifest

    # ---- entries ----

    def entries(self) -> list[Manifest]:
        """All complete entries, the most recently used first."""
        result = [m for key in self._keys() if (m := read_manifest(self._manifest_path(key))) and m.key == key]
        return sorted(result, key=lambda manifest: manifest.last_used, reverse=True)

    def remove(self, key: str) -> bool:
        """Removes an entry; False if there is none, or a process holds it."""
        try:
            with self._locked(key, block=False):
                there = os.path.exists(self._manifest_path(key))
                self._delete(key)
                return there
        except OSError:
            return False

    def clear(self, backend: str | None = None) -> tuple[int, int]:
        """Removes all entries, or those of one backend; returns how many, and their bytes. Those in use stay."""
        count = nbytes = 0
        for key, (size, _) in self._keys().items():
            manifest = read_manifest(self._manifest_path(key))
            if backend is not None and (manifest is None or manifest.backend != backend):
                continue
            if self.remove(key):
                count, nbytes = count + 1, nbytes + size
        return count, nbytes

    def evict(self, keep: str = "") -> int:
        """Removes files of dead processes, and then damaged entries and the least recently used ones until the rest is
        within the limit; never `keep`, nor one that a process holds. Returns how many entries it removed."""
        oldest = datetime.datetime.min.replace(tzinfo=datetime.timezone.utc)
        keys, result = self._keys(), []
        total, gone = sum(size for size, _ in keys.values()), 0
        within = not self.limit or total <= self.limit
        for key, (size, described) in keys.items():
            if within and described:
                continue  # a cache may have thousands of manifests, and reading them takes long
            manifest = read_manifest(self._manifest_path(key))
            result.append((manifest.last_used if manifest else oldest, manifest is None, size, key))
        for _, broken, size, key in sorted(result):
            if key == keep or (not broken and (not self.limit or total <= self.limit)):
                continue
            try:
                with self._locked(key, block=False):
                    if broken and read_manifest(self._manifest_path(key)):
                        continue  # completed in the meantime
                    self._delete(key)
            except OSError:
                continue
            total, gone = total - size, gone + (not broken)
        # Other processes write too: an eighth of the rest for each of eight.
        _rooms[self.folder, self.limit] = (self.limit - total) / 8 if self.limit else float("inf")
        return gone

    # ---- files and locks ----

    def _manifest_path(self, key: str) -> Path:
        return self.folder / f"{key}.json"

    def _files(self) -> Iterator[tuple[str, os.DirEntry[str]]]:
        try:
            with os.scandir(self.folder) as result:
                for file in result:
                    if match := _FILE.fullmatch(file.name):
                        yield match[1], file
        except OSError:
            return

    def _keys(self) -> dict[str, tuple[int, bool]]:
        """Each key that has files, their bytes, and whether a manifest or the beginning of a download is among them."""
        result: dict[str, tuple[int, bool]] = {}
        for key, file in self._files():
            with contextlib.suppress(OSError):
                size, described = result.get(key, (0, False))
                result[key] = size + file.stat().st_size, described or file.name.endswith((".json", ".part"))
        return result

    def _delete(self, key: str) -> None:
        """Removes all files of a key, the lock file last. The caller holds the lock."""
        self._manifest_path(key).unlink(missing_ok=True)
        for other, file in list(self._files()):
            if other == key and not file.name.endswith(".lock"):
                Path(file.path).unlink(missing_ok=True)
        remove_lock(self.folder / f"{key}.lock")

    @contextlib.contextmanager
    def _locked(self, key: str, *, block: bool = True, waiting: Callable[[], None] | None = None) -> Iterator[None]:
        """Holds the lock of a key.

        Raises:
            OSError: the lock file cannot be made, or `block` is false and another process holds it.
            OutputError: the folder is not to be trusted.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except ValueError as error:  # a null character
            raise OutputError(f"the cache folder {str(self.folder)!r} cannot be made: {error}") from None
        if (reason := self._distrust()) is not None:
            raise OutputError(reason)
        path = self.folder / f"{key}.lock"
        while True:
            try:
                descriptor = os.open(path, WRITE_FLAGS, 0o600)
            except OSError as error:
                if error.errno == errno.ELOOP:
                    raise OutputError(f"the lock file {str(path)!r} is a symbolic link; remove it") from None
                raise
            try:
                try:
                    lock(descriptor, block=False)
                except BlockingIOError:
                    if not block:
                        raise
                    if waiting is not None:
                        waiting()
                    lock(descriptor, block=True)
                # The file may have been removed, with its entry, between opening and locking it: then no other process
                # sees this lock.
                with contextlib.suppress(FileNotFoundError):
                    if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                        break
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)
        try:
            yield
        finally:
            os.close(descriptor)

    def _distrust(self) -> str | None:
        """Why the folder is not used: another user could put files there. None for a folder to be trusted."""
        reason = other_writers(self.folder)
        return reason and f"the cache folder is not used: {reason}"

    def _unusable(self, error: OSError) -> OutputError:
        if isinstance(error, OutputError):
            return error
        reason = f"{error.strerror or error}{relative_to(self.folder)}"
        return OutputError(f"the cache folder {str(self.folder)!r} cannot be written: {reason}")


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.timezone.utc)
