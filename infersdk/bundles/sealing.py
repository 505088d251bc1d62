"""Encryption and signatures of bundles, by the package `cryptography`.

Encryption is AES-256-GCM. Each part has its own key: HKDF-SHA-256 (RFC 5869) of the bundle's key with the bundle's
salt and the name of the part. A part is encrypted in chunks of 1 MiB. The nonce of a chunk is its number, and whether
it is the last one: the STREAM construction (Hoang, Reyhanitabar, Rogaway and Vizar, 2015). So chunks cannot be
exchanged, repeated or left out. Signatures are Ed25519 (RFC 8032).
"""

from __future__ import annotations

import io
import os
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..core.text import HEX_32
from ..errors import BackendUnavailableError, BundleKeyError, BundlePartError, BundleSignatureError, ConfigError

__all__ = ["KEY_VARIABLE", "CacheSealer", "KeySource", "Sealer", "check_signature", "private_key", "read_key"]

#: A key of 32 bytes; `"env:NAME"`, `"file:PATH"` or `"command:LINE"`; or a function that returns the key.
KeySource = bytes | str | Callable[[], bytes]
#: The environment variable with the key, where none is given.
KEY_VARIABLE = "INFERSDK_BUNDLE_KEY"
_SOURCES = "a key is 'env:NAME', 'file:PATH', 'command:LINE', 32 bytes, or a function"
_KEY, _TAG, _CHUNK = 32, 16, 1 << 20
_COMMAND_SECONDS = 60


def _cryptography() -> Any:
    try:
        import cryptography.hazmat.primitives.asymmetric.ed25519
        import cryptography.hazmat.primitives.ciphers.aead
        import cryptography.hazmat.primitives.hashes
        import cryptography.hazmat.primitives.kdf.hkdf
        import cryptography.hazmat.primitives.serialization
    except ImportError:
        raise BackendUnavailableError(
            'signed and encrypted bundles need cryptography, which is not installed: pip install "infersdk[bundle]"'
        ) from None
    return cryptography.hazmat.primitives


# ---- keys ----


def read_key(source: KeySource | None) -> bytes:
    """The key from where the caller keeps it; None reads the environment variable INFERSDK_BUNDLE_KEY.

    A key is 32 bytes, or 64 hexadecimal digits.

    Raises:
        BundleKeyError: there is no key, it cannot be read, or it has another length.
        ConfigError: the text names no kind of source.
    """
    if source is None:
        if KEY_VARIABLE not in os.environ:
            raise BundleKeyError(f"the bundle is encrypted, and there is no key; give key=, or set {KEY_VARIABLE}")
        source = f"env:{KEY_VARIABLE}"
    value = source if isinstance(source, bytes) else source() if callable(source) else _named_key(source)
    if isinstance(value, bytes) and len(value) == _KEY:
        return value
    try:
        text = value.decode("ascii") if isinstance(value, bytes) else value
        key = bytes.fromhex(text.strip())
    except (AttributeError, ValueError):
        key = b""
    if len(key) != _KEY:
        shown = source if isinstance(source, str) and source.startswith(("env:", "file:")) else "this one"
        raise BundleKeyError(f"a key is {_KEY} bytes, or {2 * _KEY} hexadecimal digits; {shown} is neither")
    return key


def _named_key(source: str) -> bytes:
    if not isinstance(source, str):
        raise ConfigError(f"{_SOURCES}, not a {type(source).__name__}")
    kind, _, rest = source.partition(":")
    if kind in ("env", "file", "command") and not rest.strip():
        raise BundleKeyError(f"the key cannot be read from {kind}: there is nothing behind {kind + ':'!r}")
    if kind == "env":
        if rest not in os.environ:
            raise BundleKeyError(f"the environment variable {rest} has no key: it is not set")
        return os.fsencode(os.environ[rest])  # Windows has no os.environb
    try:
        if kind == "file":
            return Path(rest).read_bytes()
        if kind == "command":
            return subprocess.run(shlex.split(rest), check=True, capture_output=True, timeout=_COMMAND_SECONDS).stdout
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise BundleKeyError(f"the key cannot be read from {kind}: {error}") from None
    # The text may be the key itself, which belongs in no message.
    raise ConfigError(f"{_SOURCES}, not this text of {len(source)} characters")


class Sealer:
    """Encrypts and decrypts the parts of one bundle, by its key and its random salt of 32 bytes each."""

    def __init__(self, key: bytes, salt: bytes) -> None:
        self._primitives, self._key, self._salt = _cryptography(), key, salt

    def with_salt(self, salt: bytes) -> Sealer:
        """The same key with another salt."""
        return Sealer(self._key, salt)

    @property
    def check(self) -> str:
        """Shows whether two keys are equal; it does not show the key."""
        return self._derived("check").hex()

    def _derived(self, purpose: str) -> bytes:
        hashes, hkdf = self._primitives.hashes, self._primitives.kdf.hkdf
        info = b"infersdk bundle " + purpose.encode()
        result: bytes = hkdf.HKDF(hashes.SHA256(), _KEY, self._salt, info).derive(self._key)
        return result

    def _cipher(self, name: str) -> Any:
        return self._primitives.ciphers.aead.AESGCM(self._derived(f"part {name}"))

    def seal(self, name: str, data: bytes) -> bytes:
        """A part, encrypted: 16 bytes longer for each chunk."""
        cipher, last = self._cipher(name), max(0, len(data) - 1) // _CHUNK
        return b"".join(
            [
                cipher.encrypt(_nonce(number, number == last), data[number * _CHUNK : (number + 1) * _CHUNK], None)
                for number in range(last + 1)
            ]
        )

    def open(self, name: str, content: io.BytesIO) -> None:
        """Decrypts a part in place. Memory for a second copy of a large model takes as long as its SHA-256.

        Raises:
            BundlePartError: it is not the part of this name of this bundle.
        """
        from cryptography.exceptions import InvalidTag

        cipher, step = self._cipher(name), _CHUNK + _TAG
        try:
            with content.getbuffer() as data:
                last = max(0, len(data) - 1) // step
                for number in range(last + 1):
                    nonce, at = _nonce(number, number == last), number * _CHUNK
                    plain = cipher.decrypt(nonce, data[number * step : (number + 1) * step], None)
                    data[at : at + len(plain)] = plain
        except InvalidTag:
            raise BundlePartError(
                f"the part {name!r} cannot be decrypted, although the key is right: it belongs to another bundle"
            ) from None
        content.truncate(at + len(plain))


class CacheSealer:
    """Encrypts the cache entries of an encrypted bundle, each with a random salt, which is appended."""

    def __init__(self, bundle: Sealer) -> None:
        self._bundle = bundle

    def seal(self, name: str, data: bytes) -> bytes:
        """A content, encrypted."""
        salt = os.urandom(_KEY)
        return self._bundle.with_salt(salt).seal(name, data) + salt

    def open(self, name: str, content: io.BytesIO) -> None:
        """Decrypts a content in place. Raises BundlePartError if `seal()` has not returned it for this name and key."""
        end = max(0, content.seek(0, os.SEEK_END) - _KEY)
        content.seek(end)
        salt = content.read()
        content.truncate(end)
        self._bundle.with_salt(salt).open(name, content)


def _nonce(number: int, last: bool) -> bytes:
    return number.to_bytes(11, "big") + bytes([last])


# ---- signatures ----


def private_key(path: str | os.PathLike[str]) -> Any:
    """The key in a PEM file, as `openssl genpkey -algorithm ed25519` writes it.

    Raises:
        BundleKeyError: the file has no Ed25519 private key.
    """
    primitives = _cryptography()
    try:
        key = primitives.serialization.load_pem_private_key(Path(path).read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:  # TypeError: it has a password
        raise BundleKeyError(f"{os.fspath(path)!r} has no private key: {error}") from None
    if not isinstance(key, primitives.asymmetric.ed25519.Ed25519PrivateKey):
        raise BundleKeyError(f"{os.fspath(path)!r} has no Ed25519 key; openssl genpkey -algorithm ed25519 makes one")
    return key


def _trusted_key(trust: str | os.PathLike[str]) -> str:
    """The digits of a public key: these digits, or those in a PEM file, as `openssl pkey -pubout` writes it."""
    if not isinstance(trust, (str, os.PathLike)):
        kind = type(trust).__name__
        raise ConfigError(f"trust is 64 hexadecimal digits or the path of a PEM file, not of type {kind}")
    text = os.fspath(trust)
    if HEX_32.fullmatch(text.lower()):
        return text.lower()
    primitives = _cryptography()
    try:
        key = primitives.serialization.load_pem_public_key(Path(text).read_bytes())
    except (OSError, ValueError) as error:
        raise BundleKeyError(f"{text!r} has no public key: {error}") from None
    if not isinstance(key, primitives.asymmetric.ed25519.Ed25519PublicKey):
        raise BundleKeyError(f"{text!r} has no Ed25519 public key")
    raw: bytes = key.public_bytes_raw()
    return raw.hex()


def check_signature(signer: str, signature: bytes, data: bytes, trust: str | os.PathLike[str] | None) -> None:
    """Checks who signed a manifest, and that it was not changed since.

    Args:
        signer: the public key that the manifest names.
        trust: the public key that must have signed; see `Bundle`. None accepts any signer.
    """
    if trust is not None and (wanted := _trusted_key(trust)) != signer:
        raise BundleSignatureError(f"it is signed by {_short(signer)}, and the trusted key is {_short(wanted)}")
    key = _cryptography().asymmetric.ed25519.Ed25519PublicKey
    from cryptography.exceptions import InvalidSignature

    try:
        key.from_public_bytes(bytes.fromhex(signer)).verify(signature, data)
    except (InvalidSignature, ValueError):
        raise BundleSignatureError(
            f"its signature by {_short(signer)} is of another manifest: it was changed"
        ) from None


def _short(key: str) -> str:
    """A key in messages: its first digits."""
    return f"{key[:16]}..."
