"""`infersdk fetch`: the model files that an application names by addresses, for machines without a network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .common import console
from .progress import show_progress

if TYPE_CHECKING:
    import argparse

__all__ = ["register"]


def register(subparsers: Any) -> None:
    """Adds `fetch` to the subcommands of `infersdk`."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "fetch",
        help="download the model files that a configuration names by addresses",
        description="Downloads files to the caches, prints their pinned addresses, and writes CONFIGURATION.lock with "
        "their sizes and checksums. Loading refuses a file that differs from the lock file, and sends no request where "
        "the files are there.",
    )
    parser.add_argument("source", help="a configuration, or an address: hf://org/name@revision/file.onnx, s3://...")
    parser.set_defaults(func=run)


def run(arguments: argparse.Namespace) -> int:
    """Downloads the files."""
    from ..config import addresses_of, lock_path, read
    from ..core.files import atomic_write
    from ..core.model_source import is_address

    if is_address(arguments.source):
        _fetch(arguments.source)
        return 0
    config = Path(arguments.source)
    entries = {address: _fetch(address) for address in addresses_of(read(config, locked=False))}
    atomic_write(lock_path(config), json.dumps(entries, indent=1) + "\n")
    console().print(f"{lock_path(config)}: {len(entries)} files", markup=False, soft_wrap=True)
    return 0


def _fetch(text: str) -> dict[str, Any]:
    from ..core.model_source import Address
    from ..loading.remote import commit_of, download, lock_entry

    address = Address.parse(text)
    if address.protocol == "hf" and not address.is_pinned:
        address = Address.parse(f"hf://{address.repository}@{commit_of(address)}/{address.file}")
    with show_progress() as progress:
        title = f"downloading {address.name}"
        path = download(address, lambda done, size: progress.report(title, done / size if size else 0.0))
    entry = lock_entry(path)
    pinned = f"{address.location}#sha256={entry['sha256']}"
    console().print(f"{pinned} ({entry['size']:,} bytes)", markup=False, soft_wrap=True)
    return {"address": address.location, **entry}
