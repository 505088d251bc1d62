"""Bundles that are made from another one, for tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from infersdk.bundles import Bundle
from infersdk.bundles.manifest import Part
from infersdk.bundles.packing import write_bundle
from infersdk.bundles.sealing import private_key


def parts_of(path: Path) -> dict[str, bytes]:
    """The parts of a plain bundle."""
    bundle = Bundle(path)
    return {name: bundle.read(name) for name in bundle.manifest.parts}


def rewritten(
    source: Path, target: Path, parts: Mapping[str, bytes], sign_with: Path | None = None, **fields: Any
) -> Path:
    """A bundle of these parts. Its manifest is that of the source, with other `fields`."""
    listed = {name: Part.of(data) for name, data in parts.items()}
    key = None if sign_with is None else private_key(sign_with)
    signer = None if key is None else key.public_key().public_bytes_raw().hex()
    manifest = msgspec.structs.replace(Bundle(source).manifest, parts=listed, signer=signer, **fields)
    write_bundle(target, manifest, parts, key)
    return target


def with_other_results(source: Path, target: Path) -> Path:
    """A bundle whose golden samples have another box."""
    parts = parts_of(source)
    golden = msgspec.json.decode(parts["golden.json"])
    golden["samples"][0]["results"][0]["xyxy"][0] += 50
    return rewritten(source, target, {**parts, "golden.json": msgspec.json.encode(golden)})
