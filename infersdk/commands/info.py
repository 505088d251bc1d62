"""`infersdk info`: what a model file says of itself."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from .common import add_json_argument, console, print_json


def register(subparsers: Any) -> None:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "info",
        help="inputs, outputs, opset and metadata of a model",
        description="Shows what an ONNX file says of itself, without running it.",
    )
    parser.add_argument("model", type=Path)
    add_json_argument(parser)
    parser.set_defaults(func=run)


def run(arguments: argparse.Namespace) -> int:
    from rich.markup import escape
    from rich.table import Table

    from ..graph import onnx_info

    info = onnx_info(arguments.model)
    if arguments.json:
        print_json(
            {
                "model": str(arguments.model),
                "inputs": [_as_dict(spec) for spec in info.inputs],
                "outputs": [_as_dict(spec) for spec in info.outputs],
                "opset": info.opset,
                "ir_version": info.ir_version,
                "producer": info.producer,
                "precision": info.precision,
                "parameters": info.parameters,
                "operators": dict(info.operators),
                "metadata": dict(info.metadata),
            }
        )
        return 0
    table = Table(show_header=False, title=str(arguments.model), title_justify="left")
    for spec in info.inputs:
        table.add_row("input", escape(str(spec)))
    for spec in info.outputs:
        table.add_row("output", escape(str(spec)))
    table.add_row("opset", f"{info.opset} (IR {info.ir_version})")
    table.add_row("producer", escape(info.producer or "unknown"))
    table.add_row("precision", info.precision)
    table.add_row("parameters", f"{info.parameters:,}")
    table.add_row("operators", ", ".join(f"{name} {count}" for name, count in sorted(info.operators.items())))
    for key, value in info.metadata.items():
        table.add_row(escape(key), escape(value if len(value) <= 400 else f"{value[:400]} …"))
    console(width=100).print(table)
    return 0


def _as_dict(spec: Any) -> dict[str, Any]:
    return {"name": spec.name, "dtype": str(spec.dtype), "shape": list(spec.shape)}
