"""The cache of what takes long to make: built engines, and what their runtimes compile.

An entry is a blob under a key that says all it was made from (`key_of`), so nothing in it ever goes stale: what has
changed has another key. Beside each blob `<key>.bin` lies its manifest `<key>.json`, for people to read, with the
blob's SHA-256; an entry that does not match its manifest is as good as none.

Several processes may share the folder. A blob and its manifest are each replaced in one step, and a lock for each key
(`flock` on `<key>.lock`, gone with its process) lets one process make what the others wait for.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import hashlib
import logging
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

from ._files import atomic_write
from .errors import ConfigError, OutputError

__all__ = ["Cache", "Manifest", "default_folder", "key_of", "parse_size", "read_manifest", "write_blob"]

DEFAULT_LIMIT = 10_000_000_000
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_FILE = re.compile(r"\.?([0-9a-f]{64})\.(?:bin|json|lock|.*tmp(?:\..*)?)")
_Moment = Annotated[datetime.datetime, msgspec.Meta(tz=True)]  # one without a zone cannot be compared with others
_log = logging.getLogger("infersdk.cache")


class Manifest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What is known of a blob.

    Attributes:
        kind: what it is, as `"engine"`.
        backend: whose it is.
        label: what a person would call it, as the name of the model file.
        sha256, nbytes: of the blob.
        created, last_used: in UTC.
        details: what the backend has to say of it.
        key: where it lies in the cache; empty for a file that was built by name.
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
        """Whether `data` is the blob that this was written for, bit by bit."""
        return len(data) == self.nbytes and hashlib.sha256(data).hexdigest() == self.sha256

    def text(self) -> bytes:
        """JSON for people."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"


def key_of(parts: Mapping[str, Any]) -> str:
    """The key of what is made from `parts`: SHA-256 over them as JSON, in the order of their names."""
    return hashlib.sha256(msgspec.json.encode(dict(parts), order="sorted")).hexdigest()


def parse_size(text: str | int, what: str) -> int:
    """Bytes, out of a number or a text such as `"10GB"` (powers of 1000) or `"512MiB"` (powers of 1024).

    Raises:
        ConfigError: it is no size; `what` names it in the message.
    """
    if isinstance(text, int) and not isinstance(text, bool) and text >= 0:
        return text
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?\s*", str(text).lower())
    if match is None:
        raise ConfigError(f'{what} is a number of bytes, or a text such as "10GB" or "512MiB", not {text!r}')
    return int(float(match[1]) * _UNITS[match[2] or ""])


def default_folder() -> Path:
    """INFERSDK_CACHE, or `infersdk` in the user's cache folder (XDG_CACHE_HOME, or else ~/.cache).

    Raises:
        OutputError: the user has no home.
    """
    if named := os.environ.get("INFERSDK_CACHE"):
        return Path(named).expanduser().absolute()
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():  # the specification has relative ones ignored
        try:
            base = Path.home() / ".cache"
        except RuntimeError:
            raise OutputError("there is no folder for the cache: the user has no home; set INFERSDK_CACHE") from None
    return base / "infersdk"


def write_blob(path: Path, data: bytes, manifest: Manifest, manifest_path: Path) -> None:
    """Writes a blob and then its manifest, each in one step: a reader sees the old one or the new one, never a part.

    Raises:
        OutputError: the folder cannot be written, or the disk is full; nothing is left behind.
    """
    atomic_write(path, data, durable=True, follow=False)
    atomic_write(manifest_path, manifest.text(), durable=True, follow=False)


def read_manifest(path: Path) -> Manifest | None:
    """The manifest at `path`; None if there is none, or it cannot be understood."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Manifest)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


class Cache:
    """A folder of entries.

    Args:
        folder: where; None is `default_folder()`.
        limit: bytes that all entries together may have; the least recently used ones go when there are more. None is
            INFERSDK_CACHE_LIMIT, or else 10 GB; 0 is no limit.
        required: a folder that cannot be written is an error. Otherwise it is a warning, and nothing is kept.
    """

    def __init__(
        self, folder: str | os.PathLike[str] | None = None, limit: int | None = None, *, required: bool = False
    ) -> None:
        self.folder = Path(folder).expanduser().absolute() if folder is not None else default_folder()
        if limit is None:
            limit = parse_size(os.environ.get("INFERSDK_CACHE_LIMIT") or DEFAULT_LIMIT, "INFERSDK_CACHE_LIMIT")
        self.limit = limit
        self.required = required

    def path(self, key: str) -> Path:
        """Where the blob of a key lies, or would lie."""
        return self.folder / f"{key}.bin"

    # ---- reading and writing ----

    def get(self, key: str) -> tuple[bytes, Manifest] | None:
        """The blob under `key` and its manifest; None if there is none, or it is damaged. Marks it as used now."""
        if not self._manifest_path(key).exists():
            return None
        try:
            with self._locked(key, shared=True):
                return self._read(key)
        except OSError:  # a folder that can only be read: no lock there, but no writer either
            return self._read(key)

    def put(
        self, key: str, data: bytes, *, kind: str, backend: str, label: str, details: dict[str, Any] | None = None
    ) -> Manifest:
        """Stores a blob, in place of what was under `key`, and makes room if all are too large together.

        Raises:
            OutputError: the folder cannot be written, or the disk is full; what was there is untouched.
        """
        try:
            with self._locked(key):
                return self._write(key, data, kind, backend, label, details or {})
        except OutputError:
            raise
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
        """The blob under `key`; made now if there is none, by one process while others that want it wait.

        Args:
            make: makes the blob, and the details for its manifest.
            waiting: called once if another process is at it.

        Returns:
            The blob, its details, and whether it was there already.

        Raises:
            OutputError: it cannot be kept, and the cache is `required`.
        """
        if found := self.get(key):
            return found[0], found[1].details, True
        with contextlib.ExitStack() as stack:
            kept: Exception | None = None
            try:
                stack.enter_context(self._locked(key, waiting=waiting))
            except OSError as error:
                kept = self._unusable(error)
                if self.required:
                    raise kept from None
            if kept is None and (found := self._read(key)):  # made by another process while this one waited
                return found[0], found[1].details, True
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
                f"{kept}. The {kind} of {label} is not kept, and is made anew each time; set INFERSDK_CACHE to a "
                "folder that can be written",
                RuntimeWarning,
                stacklevel=2,
            )
        return data, details, False

    def _read(self, key: str) -> tuple[bytes, Manifest] | None:
        manifest = read_manifest(self._manifest_path(key))
        if manifest is None or manifest.key != key:
            return None
        try:
            data = self.path(key).read_bytes()
        except OSError:
            return None
        if not manifest.matches(data):
            _log.warning("the cache entry %s (%s) is damaged, and is made anew", key, manifest.label)
            return None
        manifest.last_used = _now()
        with contextlib.suppress(OSError):  # only the order of eviction hangs on it
            atomic_write(self._manifest_path(key), manifest.text(), follow=False)
        return data, manifest

    def _write(self, key: str, data: bytes, kind: str, backend: str, label: str, details: dict[str, Any]) -> Manifest:
        now = _now()
        manifest = Manifest(
            kind=kind, backend=backend, label=label, sha256=hashlib.sha256(data).hexdigest(), nbytes=len(data),
            created=now, last_used=now, details=details, key=key,
        )  # fmt: skip
        write_blob(self.path(key), data, manifest, self._manifest_path(key))
        self.evict(keep=key)
        return manifest

    # ---- what there is, and away with it ----

    def entries(self) -> list[Manifest]:
        """All whole entries, the most recently used first."""
        found = [m for key, _ in self._keys() if (m := read_manifest(self._manifest_path(key))) and m.key == key]
        return sorted(found, key=lambda manifest: manifest.last_used, reverse=True)

    def remove(self, key: str) -> bool:
        """Takes an entry out; False if there is none, or a process is at it just now."""
        try:
            with self._locked(key, block=False):
                there = self._manifest_path(key).exists()
                self._delete(key)
                return there
        except OSError:
            return False

    def clear(self, backend: str | None = None) -> tuple[int, int]:
        """Removes all entries, or those of one backend; returns how many, and their bytes. Those in use stay."""
        count = nbytes = 0
        for key, size in self._keys():
            manifest = read_manifest(self._manifest_path(key))
            if backend is not None and (manifest is None or manifest.backend != backend):
                continue
            if self.remove(key):
                count, nbytes = count + 1, nbytes + size
        return count, nbytes

    def evict(self, keep: str = "") -> int:
        """Removes what processes that died left half-made, and then the least recently used entries until the rest
        is within the limit; never `keep`, nor one that is in use. Returns how many entries went."""
        oldest = datetime.datetime.min.replace(tzinfo=datetime.timezone.utc)
        found = []
        for key, size in self._keys():
            manifest = read_manifest(self._manifest_path(key))
            found.append((manifest.last_used if manifest else oldest, manifest is None, size, key))
        total, gone = sum(size for _, _, size, _ in found), 0
        for _, broken, size, key in sorted(found):
            if key == keep or (not broken and (not self.limit or total <= self.limit)):
                continue
            try:
                with self._locked(key, block=False):
                    if broken and self._manifest_path(key).exists() and read_manifest(self._manifest_path(key)):
                        continue  # finished in the meantime
                    self._delete(key)
            except OSError:
                continue
            total, gone = total - size, gone + (not broken)
        return gone

    # ---- within ----

    def _manifest_path(self, key: str) -> Path:
        return self.folder / f"{key}.json"

    def _files(self) -> Iterator[tuple[str, os.DirEntry[str]]]:
        try:
            with os.scandir(self.folder) as found:
                for file in found:
                    if match := _FILE.fullmatch(file.name):
                        yield match[1], file
        except OSError:
            return

    def _keys(self) -> list[tuple[str, int]]:
        """Each key that has files, and the bytes of these."""
        sizes: dict[str, int] = {}
        for key, file in self._files():
            with contextlib.suppress(OSError):
                sizes[key] = sizes.get(key, 0) + file.stat().st_size
        return list(sizes.items())

    def _delete(self, key: str) -> None:
        """All files of a key; under its lock, whose file goes last."""
        self._manifest_path(key).unlink(missing_ok=True)
        for other, file in list(self._files()):
            if other == key and not file.name.endswith(".lock"):
                Path(file.path).unlink(missing_ok=True)
        (self.folder / f"{key}.lock").unlink(missing_ok=True)

    @contextlib.contextmanager
    def _locked(
        self, key: str, *, shared: bool = False, block: bool = True, waiting: Callable[[], None] | None = None
    ) -> Iterator[None]:
        """Holds the lock of a key. An OSError if there can be no lock file, or `block` is false and it is held."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = self.folder / f"{key}.lock"
        how = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        while True:
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                try:
                    fcntl.flock(lock, how | fcntl.LOCK_NB)
                except BlockingIOError:
                    if not block:
                        raise
                    if waiting is not None:
                        waiting()
                    fcntl.flock(lock, how)
                # The file may have been removed, with its entry, between opening and locking it: then this lock is
                # one that nobody else sees.
                with contextlib.suppress(FileNotFoundError):
                    if os.path.samestat(os.fstat(lock), os.stat(path)):
                        break
            except BaseException:
                os.close(lock)
                raise
            os.close(lock)
        try:
            yield
        finally:
            os.close(lock)

    def _unusable(self, error: OSError) -> OutputError:
        return OutputError(f"the cache folder {str(self.folder)!r} cannot be written: {error.strerror or error}")


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.timezone.utc)
