"""`infersdk cache`: the stored engines and models."""

from __future__ import annotations

import argparse
import json

from rich.filesize import decimal

from ..core.cache import Cache, default_folder
from ..errors import ConfigError
from ..loading.registry import AUTO, check_backend
from .common import print_json, print_table, print_text

DESCRIPTION = "The cache of engines and models. INFERSDK_CACHE names its folder, INFERSDK_CACHE_LIMIT its size."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="list|clear|path")
    action = actions.add_parser("list", help="the stored entries, the most recently used first")
    action.add_argument("--json", action="store_true", help="the manifests, as JSON")
    action.set_defaults(run=_list)
    action = actions.add_parser("clear", help="remove the stored entries that no process uses")
    action.add_argument("--backend", help="of this backend alone")
    action.add_argument("--json", action="store_true", help="the removed entries, as JSON")
    action.set_defaults(run=_clear)
    action = actions.add_parser("path", help="print the folder")
    action.set_defaults(run=_path)


def run(arguments: argparse.Namespace) -> int:
    """Runs the command after `cache`."""
    return int(arguments.run(arguments))


def _cache() -> Cache:
    """The cache. Loading goes on without one that is not a folder, and these commands do not."""
    cache = Cache()
    if cache.folder.exists() and not cache.folder.is_dir():
        raise ConfigError(f"the cache {str(cache.folder)!r} is not a folder; set INFERSDK_CACHE to one")
    return cache


def _list(arguments: argparse.Namespace) -> int:
    cache = _cache()
    entries = cache.entries()
    if arguments.json:
        print_json([{"path": str(cache.path(entry.key)), **json.loads(entry.text())} for entry in entries])
        return 0
    if not entries:
        print_text(f"the cache in {cache.folder} is empty")
        return 0
    rows = []
    for entry in entries:
        details = entry.details
        rows.append((
            entry.key[:12],
            f"{entry.backend} {details.get('version', '')}".strip(),
            entry.kind,
            entry.label,
            str(details.get("gpu") or ", ".join(details.get("capabilities", []))),
            str(details.get("precision", "")),
            decimal(entry.nbytes),
            entry.last_used.astimezone().strftime("%Y-%m-%d %H:%M"),
        ))  # fmt: skip
    print_table(("key", "backend", "kind", "of", "for", "precision", ">size", "last used"), rows)
    total = sum(entry.nbytes for entry in entries)
    limit = f"of at most {decimal(cache.limit)}" if cache.limit else "without a limit"
    print_text(f"{len(entries)} in {cache.folder}, {decimal(total)} {limit}")
    return 0


def _clear(arguments: argparse.Namespace) -> int:
    cache = _cache()
    if arguments.backend not in (None, AUTO, *(entry.backend for entry in cache.entries())):
        check_backend(arguments.backend)
    count, nbytes = cache.clear(arguments.backend)
    left = sum(arguments.backend in (None, entry.backend) for entry in cache.entries())
    if arguments.json:
        print_json({"folder": str(cache.folder), "removed": count, "bytes": nbytes, "left": left})
    else:
        print_text(f"removed {count} ({nbytes:,} bytes) from {cache.folder}")
        if left:
            print_text(f"{left} left: in use, or the folder cannot be written")
    return 1 if left else 0


def _path(arguments: argparse.Namespace) -> int:
    print(default_folder())
    return 0
