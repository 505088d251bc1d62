"""The manifest of a bundle."""

from __future__ import annotations

import hashlib
import re
import zlib
from typing import Annotated, Any

import msgspec

from ..errors import BundleFormatError, ConfigError

__all__ = ["FIRST", "FORMAT", "SIGNATURE", "Encryption", "Form", "Manifest", "Part"]

#: The version of the format. Readers refuse newer ones.
FORMAT = 1
#: The first entry, which is the manifest, and the second one of a signed bundle.
FIRST, SIGNATURE = "bundle.json", "bundle.sig"

_Hex32 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
_Size = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*", re.ASCII)
_LONGEST_NAME = 200


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An entry of the file as it is there, encrypted or not; its size is in bytes."""

    size: _Size
    crc32: _Size
    sha256: _Hex32

    @classmethod
    def of(cls, data: bytes) -> Part:
        return cls(len(data), zlib.crc32(data), hashlib.sha256(data).hexdigest())


class Form(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A form of the model: the part with its ONNX file, and the precision of its weights and activations: `"fp32"`,
    `"fp16"`, `"bf16"` or `"int8"`.
    """

    part: str
    precision: str


class Encryption(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """AES-256-GCM in chunks; see `infersdk.bundles.sealing`.

    Attributes:
        salt: random, of this bundle, hexadecimal.
        check: derived from the key, so that a wrong key is recognised, hexadecimal.
    """

    salt: _Hex32
    check: _Hex32


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The contents of a bundle.

    Attributes:
        format: version of the format.
        name, version: of the model, for people.
        licence, origin: of the model: an SPDX expression, and where it comes from.
        type: the wrapper, a name of `infersdk.models.TYPES`.
        settings: of the wrapper.
        classes: the class names by number.
        forms: the models; the first is the reference.
        golden: the part that describes the golden samples.
        parts: by name, in the order of the file.
        encryption: of all parts; None for plain parts.
        signer: the Ed25519 public key that signed the manifest, hexadecimal; None without a signature.
        created_by: the release of infersdk that wrote the file.
    """

    format: int
    name: str
    version: str
    licence: str
    origin: str
    type: str
    settings: dict[str, Any]
    classes: list[str]
    forms: Annotated[list[Form], msgspec.Meta(min_length=1)]
    golden: str
    parts: dict[str, Part]
    encryption: Encryption | None
    signer: _Hex32 | None
    created_by: str

    def encoded(self) -> bytes:
        """Raises ConfigError for a value that is not of the type of its field."""
        try:
            data = msgspec.json.encode(self)
            msgspec.convert(msgspec.structs.asdict(self), Manifest)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"the manifest of a bundle: {error}; use text, and plain numbers in settings") from None
        return msgspec.json.format(data, indent=1)

    @classmethod
    def decoded(cls, data: bytes) -> Manifest:
        """Raises BundleFormatError for a manifest that is damaged, or of a newer format."""
        try:
            version = msgspec.json.decode(data, type=_Version).format
            if version != FORMAT:
                raise BundleFormatError(f"it has format {version}, and this release reads format {FORMAT}")
            manifest = msgspec.json.decode(data, type=cls)
        except (ValueError, RecursionError) as error:
            raise BundleFormatError(f"its manifest is damaged: {error}") from None
        for name in manifest.parts:
            if name in (FIRST, SIGNATURE) or len(name) > _LONGEST_NAME or not _NAME.fullmatch(name):
                raise BundleFormatError(f"{name[:_LONGEST_NAME]!r} is not a valid name of a part")
        for name in (manifest.golden, *(form.part for form in manifest.forms)):
            if name not in manifest.parts:
                raise BundleFormatError(f"its manifest names the part {name[:_LONGEST_NAME]!r}, and does not have it")
        return manifest


class _Version(msgspec.Struct):
    format: int
