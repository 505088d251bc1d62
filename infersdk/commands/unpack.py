"""`infersdk unpack`: the parts of a bundle as files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from .common import console

if TYPE_CHECKING:
    import argparse

__all__ = ["add_secrets", "register"]


def register(subparsers: Any) -> None:
    """Adds `unpack` to the subcommands of `infersdk`."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "unpack",
        help="write the parts of a bundle to a folder",
        description="Checks a bundle, and writes its manifest and its parts to a folder, decrypted.",
    )
    parser.add_argument("bundle", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True, help="the folder")
    add_secrets(parser)
    parser.set_defaults(func=run)


def add_secrets(parser: argparse.ArgumentParser) -> None:
    """`--key` and `--trust`."""
    parser.add_argument("--key", help="of an encrypted bundle: env:NAME, file:PATH or command:LINE")
    parser.add_argument("--trust", metavar="PEM", help="the public key that must have signed the bundle")


def run(arguments: argparse.Namespace) -> int:
    """Writes the parts."""
    from ..bundles import Bundle, unpack

    bundle = Bundle(arguments.bundle, key=arguments.key, trust=arguments.trust)
    for file in unpack(bundle, arguments.output):
        console().print(str(file), markup=False, soft_wrap=True)
    return 0
