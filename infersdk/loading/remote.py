"""Model files of other machines: from the Hugging Face hub, and by whatever protocol fsspec knows.

A file is downloaded once. An address is pinned by a commit of the hub or by the SHA-256 of the file, so a copy never
becomes outdated, and a second start sends no request. Files of the hub are in the hub's own cache, which other programs
share. Other files are in the cache of infersdk.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..core.cache import Cache, key_of
from ..core.files import file_digest
from ..core.model_source import Address
from ..core.text import logger
from ..errors import BackendUnavailableError, ConfigError, InferSDKError, ModelNotFoundError, OutputError

__all__ = ["download", "local_copy"]

_log = logger("infersdk.loading.remote")

#: Called with the bytes that are there and the size of the file; the size is 0 where it is not known.
Progress = Callable[[int, int], None]
_PIECE = 1 << 20
#: The answers of HTTP servers that refuse ranges. Those that ignore ranges are a ValueError of fsspec.
_NO_RANGES = frozenset({400, 405, 416, 501})
#: The error numbers of a disk that is full or read-only, or of a limit of the size of files.
_NO_SPACE = frozenset({errno.ENOSPC, errno.EFBIG, errno.EROFS, getattr(errno, "EDQUOT", errno.ENOSPC)})


def local_copy(text: str) -> Path:
    """The file of a pinned address, downloaded where it is not there yet.

    Raises:
        ConfigError: the address is not understood, or not pinned.
        ModelNotFoundError: there is no such file, the download failed, or HF_HUB_OFFLINE forbids it; or the file has
            another SHA-256.
        BackendUnavailableError: a package for the protocol is not installed.
        OutputError: the file cannot be written.
    """
    address = Address.parse(text)
    if not address.is_pinned:
        raise ConfigError(
            f"{address.shown!r} may be another file tomorrow; add #sha256=..., or name a commit of the hub: "
            f"`infersdk fetch {address.shown}` prints both"
        )
    return download(address)


def download(address: Address, progress: Progress | None = None) -> Path:
    """The file of an address, as `local_copy()`; an address that is not pinned is looked up each time."""
    return _from_hub(address) if address.protocol == "hf" else _by_fsspec(address, progress)


def _check_digest(address: Address, path: Path) -> None:
    """Raises ModelNotFoundError for a file with another SHA-256 than its address has."""
    if address.sha256 is not None and (digest := file_digest(path)) != address.sha256:
        raise ModelNotFoundError(
            f"{address.shown}: the SHA-256 of the file is {digest}, not {address.sha256}: the file was changed, or "
            "the address is of another release"
        )


def _offline() -> bool:
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def _require(package: str, address: Address) -> None:
    if importlib.util.find_spec(package) is None:
        raise BackendUnavailableError(
            f'{address.shown} needs {package}, which is not installed: pip install "infersdk[hub]"'
        )


# ---- the hub ----


def _from_hub(address: Address) -> Path:
    _require("huggingface_hub", address)
    import huggingface_hub

    file = {"repo_id": address.repository, "filename": address.file, "revision": address.revision}
    if address.is_pinned:  # a branch has other files here than on the hub after a new commit
        # hf_hub_download(local_files_only=True) of huggingface_hub 2.4 sends a request.
        found = huggingface_hub.try_to_load_from_cache(**file)
        if isinstance(found, str):
            with contextlib.suppress(ModelNotFoundError):
                _check_digest(address, Path(found))
                return Path(found)
    try:
        path = Path(huggingface_hub.hf_hub_download(**file))
    except Exception as error:  # those of the package, and of its client of HTTP
        raise _unavailable(address, error) from None
    try:
        _check_digest(address, path)
    except ModelNotFoundError as error:  # the hub's package does not load a damaged file of its cache again
        raise ModelNotFoundError(f"{error}; if {os.path.realpath(path)!r} is damaged, remove it") from None
    return path


def commit_of(address: Address) -> str:
    """The commit that a revision of the hub names now. Raises ModelNotFoundError where it cannot be asked for."""
    _require("huggingface_hub", address)
    import huggingface_hub

    try:
        return str(huggingface_hub.HfApi().model_info(address.repository, revision=address.revision).sha)
    except Exception as error:  # as above
        raise _unavailable(address, error) from None


def _unavailable(address: Address, error: BaseException) -> ModelNotFoundError:
    if type(error) is FileNotFoundError:  # fsspec names the address alone, with its password
        error = error.__cause__ or ModelNotFoundError("there is no such file")
    # A timeout of fsspec has no message of its own.
    reason = (str(error).strip() or str(error.__cause__ or "").strip() or type(error).__name__).splitlines()[0]
    offline = ", and HF_HUB_OFFLINE forbids a download" if _offline() else ""
    return ModelNotFoundError(f"{address.shown} cannot be read{offline}: {reason}")


# ---- fsspec ----


def _by_fsspec(address: Address, progress: Progress | None) -> Path:
    """A file by fsspec. One process downloads it, and others that want it wait."""
    cache = Cache(required=True)
    entry: dict[str, Any] = {"kind": "download", "backend": "", "label": address.shown}
    if address.sha256 is not None and (found := cache.find(address.sha256)) is not None:
        return found[0]
    if _offline():
        raise ModelNotFoundError(f"{address.shown} is not in the cache, and HF_HUB_OFFLINE forbids a download")
    _require("fsspec", address)
    if address.sha256 is not None:
        part = cache.part(address.sha256)
        cache.get_or_make(address.sha256, lambda: (_content(address, part, progress), {}), **entry)
        return cache.path(address.sha256)
    key = key_of({"address": address.location})
    with cache.held(key):
        content = _content(address, cache.part(key), progress)
    return cache.path(cache.put(hashlib.sha256(content).hexdigest(), content, **entry).key)


def _content(address: Address, part: Path, progress: Progress | None) -> bytes:
    """Downloads a file. A broken download is continued where a checksum shows that it is the same file."""
    try:
        _copy(address, part, progress)
    except InferSDKError:
        raise
    except Exception as error:  # each protocol has exceptions of its own
        if isinstance(error, OSError) and error.errno in _NO_SPACE:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            raise OutputError(f"{str(part.parent)!r} cannot hold {address.shown}: {error.strerror}") from None
        raise _unavailable(address, error) from None
    try:
        _check_digest(address, part)
        _log.info("%s was downloaded", address.shown)
        return part.read_bytes()
    finally:
        part.unlink(missing_ok=True)  # complete: another download begins at the start


def _copy(address: Address, part: Path, progress: Progress | None) -> None:
    import fsspec

    try:
        system, name = fsspec.core.url_to_fs(address.location, **_options(address.protocol))
    except ImportError as error:  # a protocol whose package is missing
        raise BackendUnavailableError(f"{address.shown}: {error}") from None
    done = part.stat().st_size if address.sha256 is not None and part.exists() else 0
    if not done or not _continued(system, name, part, done, progress):
        hooks = {} if progress is None else {"progress": lambda size, value, **_: progress(value, size or 0)}
        system.get_file(name, str(part), callback=fsspec.callbacks.Callback(hooks=hooks))


def _options(protocol: str) -> dict[str, Any]:
    """The options of fsspec for a protocol: HTTP limits the time without data, not the time of the whole download."""
    if protocol not in ("http", "https"):
        return {}
    import aiohttp
    import fsspec

    configured = fsspec.config.apply_config(fsspec.get_filesystem_class(protocol), {})
    given = configured.get("client_kwargs") or {}  # of the user; an argument replaces them
    return {"client_kwargs": {"timeout": aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=60), **given}}


def _continued(system: Any, name: str, part: Path, done: int, progress: Progress | None) -> bool:
    """Appends the rest of a file to its first `done` bytes. False where it has no more, or is read from the beginning
    alone, as by an HTTP server without ranges.
    """
    with system.open(name, "rb", cache_type="none") as source, open(part, "ab") as target:
        size = int(getattr(source, "size", None) or 0)
        if done >= size:
            return False
        source.seek(done)
        try:
            piece = source.read(_PIECE)
        except Exception as error:  # each protocol has exceptions of its own
            if isinstance(error, ValueError) or getattr(error, "status", None) in _NO_RANGES:
                return False
            raise
        while piece:
            target.write(piece)
            done += len(piece)
            if progress is not None:
                progress(done, size)
            piece = source.read(_PIECE)
    return True
