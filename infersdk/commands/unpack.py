"""`infersdk unpack`: the parts of a bundle as files."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..bundles import Bundle, unpack
from .common import add_options, print_text

DESCRIPTION = "Checks a bundle, and writes its manifest and its parts to a folder, decrypted."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", help="the file, or its address")
    parser.add_argument("-o", "--output", type=Path, required=True, help="the folder")
    add_options(parser, "--key", "--trust")


def run(arguments: argparse.Namespace) -> int:
    bundle = Bundle(arguments.bundle, key=arguments.key, trust=arguments.trust)
    for file in unpack(bundle, arguments.output):
        print_text(str(file))
    return 0
