"""`infersdk export-triton`: the models of a configuration as a model repository of Triton."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..integrations.triton import export
from .common import print_text

DESCRIPTION = (
    "Writes the models of a configuration as a model repository: networks for Triton's onnxruntime, "
    "openvino and tensorrt backends, wrappers for its python backend with their preprocessing and postprocessing "
    "inside. Those need infersdk in the Python of that backend."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", type=Path, help="a TOML, YAML or JSON file with a table for each model")
    parser.add_argument("-o", "--output", type=Path, required=True, help="the folder of the repository")


def run(arguments: argparse.Namespace) -> int:
    for name in export(arguments.config, arguments.output):
        print_text(str(arguments.output / name))
    return 0
