"""Addresses of model files: `hf://org/name@revision/file.onnx`, `s3://bucket/file.onnx#sha256=...`."""

from __future__ import annotations

import re
from typing import TypeGuard

import msgspec

from ..errors import ConfigError

__all__ = ["Address", "is_address", "with_digest"]

_ADDRESS = re.compile(r"([a-z][a-z0-9+.-]+)://(.+)", re.DOTALL)
_HUB = re.compile(r"([\w.-]+/[\w.-]+)(?:@([\w./-]+?))?/((?:[^/@\\]+/)*[^/@\\]+)", re.ASCII)
_COMMIT, _DIGEST = re.compile("[0-9a-f]{40}"), re.compile("[0-9a-f]{64}")
#: Protocols of fsspec that do not name another machine.
_LOCAL = frozenset({"file", "local", "memory", "data", "dir", "simplecache", "filecache", "blockcache"})


def is_address(model: object) -> TypeGuard[str]:
    """Whether a model is given by an address, and not by a path."""
    return isinstance(model, str) and _ADDRESS.fullmatch(model) is not None


def with_digest(address: str, sha256: str | None) -> str:
    """An address with the SHA-256 of its file, which the download must have; None leaves it as it is.

    Raises:
        ConfigError: the address has another one.
    """
    if sha256 is None:
        return address
    before = Address.parse(address).sha256
    if before is not None and before != sha256:
        raise ConfigError(f"{address} has another SHA-256 than {sha256}")
    return address if before is not None else f"{address}#sha256={sha256}"


class Address(msgspec.Struct, frozen=True):
    """The parts of an address.

    Attributes:
        protocol: `"hf"`, or one that fsspec knows.
        location: the address without the checksum.
        sha256: of the file, hexadecimal; None where the address has none.
        repository, revision, file: of an address of the hub.
    """

    protocol: str
    location: str
    sha256: str | None
    repository: str = ""
    revision: str | None = None
    file: str = ""

    @property
    def is_pinned(self) -> bool:
        """Whether it names one content for ever: by a checksum, or by a commit of the hub."""
        return self.sha256 is not None or (self.revision is not None and _COMMIT.fullmatch(self.revision) is not None)

    @property
    def name(self) -> str:
        """The name of the file."""
        return (self.file or self.location.partition("?")[0]).rstrip("/").rpartition("/")[2]

    @classmethod
    def parse(cls, text: str) -> Address:
        """Raises ConfigError for an address that is not understood."""
        location, _, fragment = text.partition("#")
        match = _ADDRESS.fullmatch(location)
        if match is None or match[1] in _LOCAL:
            raise ConfigError(f"{text!r} is no address of a file on another machine; give the path of a local file")
        digest = fragment.removeprefix("sha256=")
        if fragment and (fragment == digest or not _DIGEST.fullmatch(digest)):
            raise ConfigError(f"{text!r}: behind # is sha256= and 64 hexadecimal digits")
        if match[1] != "hf":
            return cls(match[1], location, digest or None)
        parts = _HUB.fullmatch(match[2])
        if parts is None or ".." in parts[3].split("/"):
            raise ConfigError(f"{text!r}: an address of the hub is hf://ORGANISATION/NAME@REVISION/FILE")
        return cls("hf", location, digest or None, *parts.groups())
