"""`infersdk fetch`: the model files that an application names by addresses, for machines without a network."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from ..config import addresses_of, lock_path, read
from ..core.cache import Cache
from ..core.files import atomic_write, file_digest
from ..core.model_source import Address, is_address
from ..errors import OutputError
from ..loading.remote import commit_of, download
from .common import print_text
from .progress import show_progress

DESCRIPTION = (
    "Downloads files to the caches, prints their pinned addresses, and writes CONFIGURATION.lock with "
    "their sizes and checksums. Loading refuses a file that differs from the lock file, and sends no request where "
    "the files are there."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", help="a configuration, or an address: hf://org/name@revision/file.onnx, s3://...")


def run(arguments: argparse.Namespace) -> int:
    if is_address(arguments.source):
        _fetch(arguments.source)
        return 0
    fetched = {address: _fetch(address) for address in addresses_of(read(arguments.source, locked=False))}
    entries = {address: entry for address, (_, entry) in fetched.items()}
    cached = {
        path: entry["size"] for address, (path, entry) in fetched.items() if Address.parse(address).protocol != "hf"
    }
    size, limit = sum(cached.values()), Cache().limit if cached else 0
    if 0 < limit < size or not all(path.exists() for path in cached):
        raise OutputError(
            f"the files of the configuration have {size:,} bytes, which the cache does not keep within its limit of "
            f"{limit:,}; set INFERSDK_CACHE_LIMIT to a larger size, or to 0 for no limit"
        )
    lock = lock_path(Path(arguments.source).resolve())
    atomic_write(lock, json.dumps(entries, indent=1) + "\n")
    print_text(f"{lock}: {len(entries)} files")
    return 0


def _fetch(text: str) -> tuple[Path, dict[str, Any]]:
    """The file of an address, and its entry in the lock file."""
    address = Address.parse(text)
    if address.protocol == "hf" and not address.is_pinned:
        address = Address.parse(f"hf://{address.repository}@{commit_of(address)}/{address.file}")
    with show_progress() as progress:
        title = f"downloading {address.name}"
        path = download(address, lambda done, size: progress.report(title, done / size if size else 0.0))
    sha256, size = file_digest(path), path.stat().st_size
    print_text(f"{address.shown}#sha256={sha256} ({size:,} bytes)")
    return path, {"address": address.location, "sha256": sha256, "size": size}
