"""`infersdk cache`: the built engines that are stored."""

from __future__ import annotations

import argparse
import json

from rich.filesize import decimal
from rich.markup import escape
from rich.table import Table

from ..core.cache import Cache, default_folder
from .common import console, print_json

DESCRIPTION = "The cache of built engines. INFERSDK_CACHE names its folder, INFERSDK_CACHE_LIMIT its size."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="list|clear|path")
    action = actions.add_parser("list", help="what is stored, the most recently used first")
    action.add_argument("--json", action="store_true", help="the manifests, as JSON")
    action.set_defaults(run=_list)
    action = actions.add_parser("clear", help="remove what is stored; what a process is using stays")
    action.add_argument("--backend", help="of this backend alone")
    action.add_argument("--json", action="store_true", help="what was removed, as JSON")
    action.set_defaults(run=_clear)
    action = actions.add_parser("path", help="print the folder")
    action.set_defaults(run=_path)


def run(arguments: argparse.Namespace) -> int:
    """Runs the command after `cache`."""
    return int(arguments.run(arguments))


def _list(arguments: argparse.Namespace) -> int:
    cache = Cache()
    entries = cache.entries()
    if arguments.json:
        result = [{"path": str(cache.path(entry.key)), **json.loads(entry.text())} for entry in entries]
        print_json(result)
        return 0
    if not entries:
        _say(f"the cache in {cache.folder} is empty")
        return 0
    table = Table(box=None, pad_edge=False)
    for title in ("key", "backend", "kind", "of", "for", "precision"):
        table.add_column(title, overflow="fold")
    table.add_column("size", justify="right")
    table.add_column("last used")
    for entry in entries:
        details = entry.details
        table.add_row(
            entry.key[:12],
            f"{entry.backend} {details.get('version', '')}".strip(),
            entry.kind,
            escape(entry.label),
            escape(str(details.get("gpu") or ", ".join(details.get("capabilities", [])))),
            str(details.get("precision", "")),
            decimal(entry.nbytes),
            entry.last_used.astimezone().strftime("%Y-%m-%d %H:%M"),
        )
    console().print(table)
    total = sum(entry.nbytes for entry in entries)
    limit = f"of at most {decimal(cache.limit)}" if cache.limit else "without a limit"
    _say(f"{len(entries)} in {cache.folder}, {decimal(total)} {limit}")
    return 0


def _clear(arguments: argparse.Namespace) -> int:
    cache = Cache()
    count, nbytes = cache.clear(arguments.backend)
    left = sum(arguments.backend in (None, entry.backend) for entry in cache.entries())
    if arguments.json:
        print_json({"folder": str(cache.folder), "removed": count, "bytes": nbytes, "left": left})
    else:
        _say(f"removed {count} ({nbytes:,} bytes) from {cache.folder}")
        if left:
            _say(f"{left} left: in use, or the folder cannot be written")
    return 1 if left else 0


def _path(arguments: argparse.Namespace) -> int:
    print(default_folder())
    return 0


def _say(text: str) -> None:
    console().print(text, markup=False, soft_wrap=True)
