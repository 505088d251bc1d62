"""`infersdk diff`: what differs between two bundles."""

from __future__ import annotations

import argparse
import hashlib
from typing import Any

from ..bundles import Bundle
from ..errors import ConfigError
from .common import add_options, print_json, print_text

DESCRIPTION = (
    "Compares the manifests of two bundles and the contents of their parts. The exit code is 1 where they differ."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("first", help="the file, or its address")
    parser.add_argument("second", help="another one")
    add_options(parser, "--key", "--trust", "--json")


def run(arguments: argparse.Namespace) -> int:
    sides = [_opened(path, arguments.key, arguments.trust) for path in (arguments.first, arguments.second)]
    if arguments.key is not None and not any(one.manifest.encryption for one in sides):
        raise ConfigError("--key is for an encrypted bundle, and both are not encrypted; leave it out")
    found = _differences(*sides)
    if arguments.json:
        print_json(found)
    for name, (old, new) in found.items() if not arguments.json else ():
        print_text(f"{name}: {old} -> {new}")
    return 1 if found else 0


def _opened(path: str, key: str | None, trust: str | None) -> Bundle:
    """A bundle, with the key where it is encrypted: the other one may be plain."""
    bundle = Bundle(path, trust=trust)
    return bundle if bundle.manifest.encryption is None else Bundle(path, key=key, trust=trust)


def _differences(first: Bundle, second: Bundle) -> dict[str, list[Any]]:
    """What differs, by name: the values of both; None where one has none."""
    sides = [_facts(bundle) for bundle in (first, second)]
    names = dict.fromkeys([*sides[0], *sides[1]])
    pairs = {name: [side.get(name) for side in sides] for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _facts(bundle: Bundle) -> dict[str, Any]:
    """The manifest of a bundle, and the SHA-256 of the content of each part."""
    manifest = bundle.manifest
    facts: dict[str, Any] = {
        name: getattr(manifest, name)
        for name in ("name", "version", "licence", "origin", "type", "classes", "signer", "created_by")
    }
    facts["encrypted"] = manifest.encryption is not None
    facts |= {f"settings.{name}": value for name, value in manifest.settings.items()}
    facts |= {f"form.{form.precision}": form.part for form in manifest.forms}
    return facts | {f"part {name}": hashlib.sha256(bundle.read(name)).hexdigest() for name in manifest.parts}
