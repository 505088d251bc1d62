"""`infersdk pack`: a bundle out of a model."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..bundles import pack
from .common import named_values, new_file, print_text
from .wrapper_options import add_wrapper_options, wrapper_settings

DESCRIPTION = (
    "Writes a bundle, which models.load() checks and loads. The golden samples are run on ONNX Runtime "
    "on the processor; each machine that loads the bundle compares its own results with them."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, help="the ONNX file")
    parser.add_argument("--images", type=Path, required=True, help="a folder or a file with images for golden samples")
    parser.add_argument("--samples", type=int, default=4, metavar="N", help="use at most N images (default: 4)")
    parser.add_argument("-o", "--output", type=new_file, help="the bundle; by default the model's name with .infer")
    parser.add_argument(
        "--form", action="append", default=[], metavar="PRECISION=FILE",
        help="a further ONNX file of the model: int8=model.int8.onnx; may be repeated",
    )  # fmt: skip
    parser.add_argument("--name", help="of the model; by default that of the file")
    parser.add_argument("--release", default="", metavar="VERSION", help="version of the model")
    parser.add_argument("--licence", default="", help="of the model, an SPDX expression")
    parser.add_argument("--origin", default="", help="where the model comes from")
    parser.add_argument("--sign", type=Path, metavar="PEM", help="sign with this Ed25519 private key")
    parser.add_argument(
        "--encrypt", metavar="KEY", help="encrypt with the key at env:NAME, file:PATH or command:LINE (32 bytes)"
    )
    add_wrapper_options(parser)


def run(arguments: argparse.Namespace) -> int:
    output = arguments.output or arguments.model.with_suffix(".infer")
    forms = named_values("--form", arguments.form, "PRECISION=FILE, such as int8=m.onnx")
    manifest = pack(
        arguments.model, output, images=arguments.images, samples=arguments.samples, type=arguments.type,
        settings=wrapper_settings(arguments), forms=forms,
        name=arguments.name, version=arguments.release, licence=arguments.licence, origin=arguments.origin,
        sign_with=arguments.sign, encrypt=arguments.encrypt,
    )  # fmt: skip
    print_text(f"{output}: {manifest.name} for the wrapper {manifest.type}, {output.stat().st_size:,} bytes")
    return 0
