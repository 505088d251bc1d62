"""`infersdk convert`: a model of another framework as ONNX, checked against that framework."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

from ..core.files import check_output
from ..core.formats import FORMATS
from ..core.model_source import ModelSource
from ..graph import Graph
from ..importers import Conversion, convert
from ..importers.converting import DEFAULT_TOLERANCE
from ..importers.loading import source_files
from .common import add_options, names, new_file, print_json, print_text

DESCRIPTION = (
    "Converts a model of another framework to ONNX, and checks it: the source on its own runtime "
    "against ONNX Runtime on random inputs. The exit code is 1 if they differ by more than the tolerance."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, help="the file, or the folder of a SavedModel")
    parser.add_argument("-o", "--output", type=new_file, required=True, metavar="FILE", help="the ONNX file to write")
    parser.add_argument("--no-check", dest="check", action="store_false", help="do not run the source")
    parser.add_argument(
        "--tolerance", type=float, default=DEFAULT_TOLERANCE, metavar="X",
        help="the largest difference, as a share of an output's largest value (default: %(default)g)",
    )  # fmt: skip
    add_options(parser, "--json")
    group = parser.add_argument_group("source")
    group.add_argument(
        "--shape", action="append", default=[], metavar="[NAME=]N,N,...[:TYPE]",
        help="of an input, where the file does not say it: 1,3,224,224 or tokens=1,128:int64; repeatable",
    )  # fmt: skip
    group.add_argument(
        "--input", action="append", default=[], metavar="NAME=V,V,...[:TYPE]", dest="samples",
        help="values of an input where random ones do not fit: offsets=0,3,5, or a file x=x.npy; repeatable",
    )  # fmt: skip
    group.add_argument(
        "--inputs", type=names, default=[], metavar="NAME,NAME", help="values of a TensorFlow graph that become inputs"
    )
    group.add_argument(
        "--outputs", type=names, default=[], metavar="NAME,NAME",
        help="values of a TensorFlow graph that become outputs",
    )  # fmt: skip
    group.add_argument("--fixed-batch", action="store_true", help="keep the batch of the source")
    group.add_argument("--python", metavar="PATH", help="the Python interpreter that has the source's framework")


def run(arguments: argparse.Namespace) -> int:
    source = ModelSource.of(arguments.model)
    samples = (text.partition("=")[2] for text in arguments.samples)
    check_output(arguments.model, arguments.output, *source_files(source), *samples)
    conversion = convert(
        source,
        shapes=arguments.shape,
        inputs=arguments.inputs,
        outputs=arguments.outputs,
        samples=arguments.samples,
        free_batch=not arguments.fixed_batch,
        python=arguments.python,
        check=arguments.check,
        tolerance=arguments.tolerance,
    )
    written = conversion.save(arguments.output)
    if arguments.json:
        print_json(_as_dict(conversion, written))
    else:
        _show(conversion, written)
    return 1 if conversion.check is not None and not conversion.check.passed else 0


def _show(conversion: Conversion, written: Path) -> None:
    graph = Graph.parse(conversion.content)
    print_text(f"{conversion.source}: {FORMATS[conversion.format].title}")
    print_text(f"{written}: {graph!r}, opset {graph.opset}")
    for note in conversion.notes:
        print_text(f"note: {note}")
    print_text(conversion.verdict)


def _as_dict(conversion: Conversion, written: Path) -> dict[str, Any]:
    check = conversion.check
    result = None if check is None else dataclasses.asdict(check) | {"largest": check.largest}
    return {
        "source": conversion.source,
        "format": conversion.format,
        "output": str(written),
        "notes": list(conversion.notes),
        "check": result,
        "unchecked": conversion.unchecked,
    }
