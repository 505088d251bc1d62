"""Bundles that are made from another one, for tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from infersdk.bundles import Bundle
from infersdk.bundles.manifest import Part
from infersdk.bundles.packing import write_bundle
from infersdk.bundles.sealing import public_key


def parts_of(path: Path) -> dict[str, bytes]:
    """The parts of a plain bundle."""
    bundle = Bundle(path)
    return {name: bundle.read(name) for name in bundle.manifest.parts}


def rewritten(
    source: Path, target: Path, parts: Mapping[str, bytes], private_key: Path | None = None, **fields: Any
) -> Path:
    """A bundle of these parts. Its manifest is that of the source, with other `fields`."""
    listed = {name: Part.of(data) for name, data in parts.items()}
    signer = None if private_key is None else public_key(private_key)
    manifest = msgspec.structs.replace(Bundle(source).manifest, parts=listed, signer=signer, **fields)
    write_bundle(target, manifest, parts, private_key)
    return target


def with_other_results(source: Path, target: Path) -> Path:
    """A bundle whose golden samples have another box."""
    parts = parts_of(source)
    golden = msgspec.json.decode(parts["golden.json"])
    golden["samples"][0]["results"][0]["xyxy"][0] += 50
    return rewritten(source, target, {**parts, "golden.json": msgspec.json.encode(golden)})
