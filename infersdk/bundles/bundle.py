"""Reading bundles."""

from __future__ import annotations

import hashlib
import os
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

from ..core.files import open_regular
from ..core.model_source import ModelSource, is_address
from ..errors import (
    BundleError,
    BundleFormatError,
    BundleIntegrityError,
    BundleKeyError,
    BundleSignatureError,
    ConfigError,
    ModelNotFoundError,
    exhausted,
    relative_to,
)
from .archive import first_entry, pieces, read_entries
from .manifest import FIRST, SIGNATURE, Manifest, Part
from .sealing import CacheSealer, KeySource, Sealer, check_signature, read_key

__all__ = ["Bundle"]

_SIGNATURE_NBYTES = 64


class Bundle:
    """A bundle in memory. Each byte of the file is checked: headers, signature and the SHA-256 of all parts. One thread
    reads parts at a time.

    Args:
        path: of the file, or its address.
        key: of an encrypted bundle: 32 bytes, `"env:NAME"`, `"file:PATH"`, `"command:LINE"`, or a function that returns
            the key. None reads the environment variable INFERSDK_BUNDLE_KEY when a part is read.
        trust: the public key that must have signed the bundle: a PEM file, or 64 hexadecimal digits. None accepts
            bundles of any signer, and without a signature.

    Attributes:
        manifest: its contents.
        digest: SHA-256 of the manifest, and so of the whole bundle, hexadecimal.

    Raises:
        ModelNotFoundError: there is no such file.
        BundleFormatError: it is no bundle, or was cut.
        BundleSignatureError: it is not signed by `trust`, or was changed after it was signed.
        BundleIntegrityError: a part was changed.
        BundleKeyError: `trust` is no public key.
        ConfigError: `key` is given for a bundle that is not encrypted, or `trust` is neither text nor a path.
        BackendUnavailableError: the bundle is signed or encrypted, and `cryptography` is not installed.
    """

    manifest: Manifest

    def __init__(
        self, path: str | os.PathLike[str], *, key: KeySource | None = None, trust: str | os.PathLike[str] | None = None
    ) -> None:
        if is_address(path):
            path = ModelSource.of(path)
        self.path, self._key = os.fspath(path), key
        self._name = path.name if isinstance(path, ModelSource) else os.path.basename(self.path)
        try:
            with open_regular(self.path) as file:
                self._open(file, trust)
        except FileNotFoundError:
            raise ModelNotFoundError(f"no bundle at {self.path!r}{relative_to(self.path)}") from None
        except OSError as error:
            raise exhausted(error, repr(self.path)) or BundleFormatError(
                f"{self.path!r} cannot be read: {error.strerror or error}"
            ) from None
        except BundleError as error:
            raise type(error)(f"{self.path!r}: {error}") from None

    def _open(self, file: BinaryIO, trust: str | os.PathLike[str] | None) -> None:
        head = first_entry(file)
        self.manifest = manifest = Manifest.decoded(head)
        entries = {FIRST: Part.of(head)}
        self.digest = entries[FIRST].sha256
        if manifest.signer is not None:
            signature = _signature(file, entries)
            check_signature(manifest.signer, signature, head, trust)
            entries[SIGNATURE] = Part.of(signature)
        elif trust is not None:
            raise BundleSignatureError("it has no signature, and trust= names a key that must have signed it")
        # Each part is an object of its own, which runtimes take without a copy. The file is not mapped: the process
        # would end if it were cut later.
        stored = read_entries(file, {**entries, **manifest.parts})
        self._stored = {name: stored[name] for name in manifest.parts}
        self._sealed = set(manifest.parts) if manifest.encryption is not None else set()
        for name, part in manifest.parts.items():
            if hashlib.sha256(self._stored[name].getbuffer()).hexdigest() != part.sha256:
                raise BundleIntegrityError(f"the part {name!r} was changed: its SHA-256 is not that of the manifest")
        if self._key is not None and manifest.encryption is None:
            raise ConfigError(f"{self.path!r} is not encrypted, and a key is given; leave it out")

    def read(self, name: str) -> bytes:
        """The content of a part, decrypted.

        Raises:
            ConfigError: there is no such part.
            BundleKeyError: there is no key, or it is wrong.
            BundlePartError: the part belongs to another bundle.
        """
        if name not in self.manifest.parts:
            raise ConfigError(f"{self.path!r} has no part {name!r}; its parts are {', '.join(self.manifest.parts)}")
        if name in self._sealed:
            self._sealer.open(name, self._stored[name])
            self._sealed.remove(name)
        return self._stored[name].getvalue()

    @cached_property
    def _sealer(self) -> Sealer:
        encryption = self.manifest.encryption
        assert encryption is not None
        try:
            key = read_key(self._key)
        except BundleKeyError as error:
            raise BundleKeyError(f"{self.path!r}: {error}") from None
        sealer = Sealer(key, bytes.fromhex(encryption.salt))
        if sealer.check != encryption.check:
            raise BundleKeyError(f"{self.path!r} is encrypted with another key")
        return sealer

    def source(self, precision: str | None = None) -> ModelSource:
        """The model for a precision: the form of that precision, or the reference.

        Backends keep engines and prepared models of a bundle in the cache. Those of an encrypted bundle are encrypted
        with its key.
        """
        form = next((one for one in self.manifest.forms if one.precision == precision), self.manifest.forms[0])
        content, name = self.read(form.part), self._name
        digest = self.manifest.parts[form.part].sha256
        if self.manifest.encryption is None:
            return ModelSource(None, content, name=name, origin=Path(self.path), digest=digest)
        source = ModelSource(None, content, name=name, digest=digest)
        source.sealer = CacheSealer(self._sealer)
        return source

    def __repr__(self) -> str:
        return f"<Bundle {self.path}: {self.manifest.name} {self.manifest.version}>"


def _signature(file: BinaryIO, manifest: dict[str, Part]) -> bytes:
    """The signature, which is behind the manifest. `read_entries()` checks the headers of both."""
    *_, (at, header), _ = pieces({**manifest, SIGNATURE: Part(_SIGNATURE_NBYTES, 0, "")})
    file.seek(at + len(header))
    signature = file.read(_SIGNATURE_NBYTES)
    if len(signature) < _SIGNATURE_NBYTES:
        raise BundleFormatError("it was cut within its signature")
    return signature
