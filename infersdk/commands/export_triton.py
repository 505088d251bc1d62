"""`infersdk export-triton`: the models of a configuration as a model repository of Triton."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from .common import console

if TYPE_CHECKING:
    import argparse

__all__ = ["register"]


def register(subparsers: Any) -> None:
    """Adds `export-triton` to the subcommands of `infersdk`."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "export-triton",
        help="write a model repository for Triton Inference Server",
        description="Writes the models of a configuration as a model repository: networks for Triton's onnxruntime, "
        "openvino and tensorrt backends, wrappers for its python backend with their preprocessing and postprocessing "
        "inside. Those need infersdk in the Python of that backend.",
    )
    parser.add_argument("config", type=Path, help="a TOML, YAML or JSON file with a table for each model")
    parser.add_argument("-o", "--output", type=Path, required=True, help="the folder of the repository")
    parser.set_defaults(func=run)


def run(arguments: argparse.Namespace) -> int:
    """Writes the repository."""
    from ..integrations.triton import export
    from ..serve.server import require_packages

    require_packages()
    for name in export(arguments.config, arguments.output):
        console().print(f"{arguments.output / name}", markup=False, soft_wrap=True)
    return 0
