"""`infersdk graph`: shows, lints and edits ONNX models; each edit is checked before it is written."""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.text import Text

from ..custom_ops.detection_nms import AddDetectionNms
from ..errors import ConfigError
from ..graph import Graph
from ..graph import open as open_graph
from ..graph.lint import fix, lint, rules_for
from ..graph.parts import tail_inputs
from ..graph.passes import AddNms, CleanUp, FreeBatch, FreeSize, ImageIn, Pass, ResizeInput, SetOpset, ToFloat16
from ..graph.trial import try_model
from .common import (
    add_options,
    check_report_files,
    custom_ops_of,
    given_settings,
    named_values,
    names,
    new_file,
    numbers,
    print_json,
    print_table,
    print_text,
    shapes_of,
    size,
)

DESCRIPTION = (
    "Shows the nodes of an ONNX model, finds obstacles to running it on all backends, and changes it: "
    "batch, input size, preprocessing, postprocessing, parts."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="edit", metavar="COMMAND", required=True)
    for add in (_add_show, _add_lint, _add_trial, _add_passes, _add_parts):
        add(commands)


def run(arguments: argparse.Namespace) -> int:
    """Runs the command after `graph`."""
    return int(arguments.run(arguments))


def _command(commands: Any, name: str, text: str, run: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
    parser.add_argument("model", type=Path)
    parser.set_defaults(run=run)
    return parser


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--output", type=new_file, required=True, metavar="FILE", help="the ONNX file to write")
    parser.add_argument(
        "--external-data", metavar="NAME", help="a file in the same folder for the weights; needed beyond 2 GiB"
    )


# ---- show ----


def _add_show(commands: Any) -> None:
    parser = _command(commands, "show", "list the nodes of a model, or its weights", _show)
    parser.add_argument("--operator", action="append", metavar="TYPE", help="only nodes of this type; repeatable")
    parser.add_argument("--name", metavar="PATTERN", help="only names that match, such as '/model.24/*'")
    parser.add_argument("--weights", action="store_true", help="weights and constants instead of nodes")
    parser.add_argument("--limit", type=int, metavar="N", help="rows at most (default: 200, with --json all)")
    add_options(parser, "--json")


def _show(arguments: argparse.Namespace) -> int:
    limit = 200 if arguments.limit is None else arguments.limit
    if limit < 0:
        raise ConfigError(f"--limit is a whole number from 0, not {limit}")
    if arguments.weights and arguments.operator:
        raise ConfigError("--operator is about nodes; leave it or --weights out")
    graph = open_graph(arguments.model)
    rows = _weight_rows(graph, arguments) if arguments.weights else _node_rows(graph, arguments)
    if arguments.json:
        print_json(rows[: arguments.limit])
        return 0
    _print_rows(str(arguments.model), rows[:limit])
    if len(rows) > limit:
        print_text(f"{len(rows) - limit} more: --limit {len(rows)} shows them")
    return 0


def _node_rows(graph: Graph, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    graph.infer_shapes()
    return [
        {
            "node": node.name or "",
            "operator": node.op_type,
            "inputs": ", ".join(value.name or "" for value in node.inputs if value is not None),
            "outputs": ", ".join(
                f"{value.name} {value.shape if value.shape is not None else '?'}" for value in node.outputs
            ),
        }
        for node in graph.nodes(arguments.operator, arguments.name)
    ]


def _weight_rows(graph: Graph, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    for name, array in graph.weights.items():
        if arguments.name is None or fnmatch.fnmatchcase(name, arguments.name):
            numbers = array.dtype.kind in "fiu" and array.size
            rows.append(
                {
                    "weight": name,
                    "type": str(array.dtype),
                    "shape": list(array.shape),
                    "from": float(array.min()) if numbers else None,
                    "to": float(array.max()) if numbers else None,
                }
            )
    return rows


def _print_rows(title: str, rows: Sequence[dict[str, Any]]) -> None:
    def text(cell: Any) -> str:
        return "" if cell is None else f"{cell:.6g}" if isinstance(cell, float) else str(cell)

    print_table(rows[0] if rows else ("nothing",), (map(text, row.values()) for row in rows), title)


# ---- lint and trial ----


def _add_lint(commands: Any) -> None:
    parser = _command(commands, "lint", "find obstacles to running a model on all backends, and fix them", _lint)
    parser.add_argument("--fix", action="store_true", help="apply the fixes, and write --output")
    parser.add_argument("-o", "--output", type=new_file, metavar="FILE", help="with --fix: the ONNX file to write")
    parser.add_argument("--trial", action="store_true", help="load it on the installed runtimes as well")
    add_options(parser, "--custom-ops", "--json")


def _lint(arguments: argparse.Namespace) -> int:
    if arguments.fix != (arguments.output is not None):
        raise ConfigError("--fix and --output go together: the file to write")
    custom_ops = custom_ops_of(arguments)
    graph, rules = open_graph(arguments.model), rules_for(custom_ops)
    result, fixed = lint(graph, rules), []
    if arguments.fix:
        fixed = fix(graph)
        graph.check()
        graph.save(arguments.output)
        result = lint(graph, rules)
    tried = try_model(arguments.output or arguments.model, custom_ops=custom_ops) if arguments.trial else []
    trials = [dataclasses.asdict(one) for one in tried]
    findings = [
        dataclasses.asdict(one) | {"backends": ", ".join(one.backends) or "all", "fix": one.fix.name if one.fix else ""}
        for one in result
    ]
    if arguments.json:
        print_json({"findings": findings, "fixed": [dataclasses.asdict(one) for one in fixed], "trials": trials})
    else:
        for one in fixed:
            print_text(f"{one.name}: {one.error or 'applied'}")
        _print_findings(str(arguments.output or arguments.model), findings)
        if trials:
            _print_rows("trial", trials)
    return 1 if result or any(one.status == "failed" for one in tried) else 0


def _print_findings(title: str, findings: Sequence[dict[str, str]]) -> None:
    """Prints each rule with its reason and its findings."""
    print_text(f"{title}: {len(findings)} findings" if findings else f"{title}: nothing found")
    rules = dict.fromkeys(one["rule"] for one in findings)
    for rule in rules:
        matches = [one for one in findings if one["rule"] == rule]
        first = matches[0]
        mend = f"; --fix: {first['fix']}" if first["fix"] else ""
        print_text(Text.assemble((rule, "bold"), f" ({first['backends']}): {first['why']}{mend}"))
        for one in matches[:10]:
            print_text(f"    {one['where']}: {one['what']}")
        if len(matches) > 10:
            print_text(f"    and {len(matches) - 10} more")


def _add_trial(commands: Any) -> None:
    parser = _command(commands, "trial", "load a model on the runtimes of this machine", _trial)
    parser.add_argument(
        "--backends", type=names, metavar="NAME,NAME", help="(default: onnxruntime,openvino,tensorrt-rtx)"
    )
    add_options(parser, "--shape")
    parser.add_argument(
        "--compute-capability", default="8.9", metavar="X.Y", help="that TensorRT-RTX builds for (default: %(default)s)"
    )
    add_options(parser, "--custom-ops", "--json")


def _trial(arguments: argparse.Namespace) -> int:
    results = try_model(
        arguments.model,
        arguments.backends,
        shapes=shapes_of(arguments),
        compute_capability=arguments.compute_capability,
        custom_ops=custom_ops_of(arguments),
    )
    rows = [dataclasses.asdict(one) for one in results]
    if arguments.json:
        print_json(rows)
    else:
        _print_rows(str(arguments.model), rows)
    return 1 if any(one.status == "failed" for one in results) else 0


# ---- edits that are passes ----


def _add_passes(commands: Any) -> None:
    _add_pass(commands, "free-batch", "let a model take batches of any size", lambda given: FreeBatch())
    parser = _add_pass(
        commands, "resize-input", "give a model images of another size", lambda given: ResizeInput(*given.size)
    )
    parser.add_argument("size", type=size, metavar="N|WIDTHxHEIGHT", help="640 or 640x384")
    parser = _add_pass(
        commands, "free-size", "let a model take images of any size up to its own", lambda given: FreeSize(given.stride)
    )
    parser.add_argument("--stride", type=int, default=32, help="sizes are multiples of it (default: %(default)s)")
    parser = _add_pass(
        commands, "image-in", "put preprocessing into a model: uint8 [n, h, w, c] goes in",
        lambda given: ImageIn(**given_settings(given, ("resize", "bgr", "divide", "mean", "std", "pad"))),
    )  # fmt: skip
    floats = functools.partial(numbers, kind=float)
    parser.add_argument("--resize", choices=("none", "stretch", "letterbox"), default="none")
    parser.add_argument("--bgr", action="store_true", help="images come in the other order of channels")
    parser.add_argument("--divide", type=float, default=255.0, help="(default: %(default)s)")
    parser.add_argument("--mean", type=floats, default=(0.0,), metavar="X,X,X", help="taken off after dividing")
    parser.add_argument("--std", type=floats, default=(1.0,), metavar="X,X,X", help="divided by after that")
    parser.add_argument("--pad", type=float, default=114.0, help="the border's value (default: %(default)s)")
    parser = _add_pass(commands, "add-nms", "put decoding and NMS into a detector: boxes come out", _add_nms)
    parser.add_argument("--head", required=True, choices=("yolov5", "yolov8", "yolox"))
    parser.add_argument("--conf", type=float, default=0.25, help="the minimum score (default: %(default)s)")
    parser.add_argument("--iou", type=float, default=0.45, help="overlap of boxes that are one (default: %(default)s)")
    parser.add_argument(
        "--nms", choices=("onnx", "infersdk"), default="onnx",
        help="ONNX's NonMaxSuppression, or infersdk's exact NMS as a custom operator, which infersdk runs on every "
        "backend, TensorRT among them (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--limit", type=int, default=300,
        help="boxes of a class in an image, with --nms infersdk of all classes (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--multi-label", action="store_true", help="a box for each of its classes")
    parser.add_argument(
        "--num-classes", type=int, metavar="N", help="with --nms infersdk, where the model's file leaves it open"
    )
    parser = _add_pass(
        commands, "to-float16", "convert a model to FP16",
        lambda given: ToFloat16(keep_nodes=tuple(given.keep), keep_io=not given.half_io),
    )  # fmt: skip
    parser.add_argument("--keep", action="append", default=[], metavar="NODE", help="a node that stays; repeatable")
    parser.add_argument("--half-io", action="store_true", help="inputs and outputs in float16 too")
    parser = _add_pass(
        commands, "opset", "write a model in another version of the standard", lambda given: SetOpset(given.version)
    )
    parser.add_argument("version", type=int)
    _add_pass(commands, "clean-up", "fold constants and remove unused nodes", lambda given: CleanUp())


def _add_pass(commands: Any, name: str, text: str, make: Callable[[argparse.Namespace], Pass]) -> Any:
    parser = _command(commands, name, text, _apply)
    _add_output(parser)
    parser.set_defaults(make=make)
    return parser


def _apply(arguments: argparse.Namespace) -> int:
    graph = open_graph(arguments.model)
    nodes = len(graph.nodes())
    changed = graph.apply(arguments.make(arguments))
    code = _write(graph, arguments, f"{nodes} nodes")
    if not changed:
        print_text("nothing to change: the file is written unchanged")
    return code


def _write(graph: Graph, arguments: argparse.Namespace, before: str) -> int:
    graph.check()
    written = graph.save(arguments.output, external_data=arguments.external_data)
    print_text(f"{written}: {before} -> {len(graph.nodes())}")
    print_text(repr(graph))
    return 0


def _add_nms(arguments: argparse.Namespace) -> Pass:
    if arguments.nms == "infersdk":
        settings = {
            "conf": arguments.conf, "iou": arguments.iou, "max_detections": arguments.limit,
            "multi_label": arguments.multi_label, "num_classes": arguments.num_classes,
        }  # fmt: skip
        return AddDetectionNms(arguments.head, {key: one for key, one in settings.items() if one is not None})
    if arguments.num_classes is not None:
        raise ConfigError("--num-classes is for --nms infersdk")
    return AddNms(arguments.head, arguments.conf, arguments.iou, arguments.limit, arguments.multi_label)


# ---- parts ----


def _add_parts(commands: Any) -> None:
    parser = _command(commands, "extract", "write a part of a model", _extract)
    parser.add_argument("--inputs", type=names, required=True, metavar="NAME,NAME", help="the values that it takes")
    parser.add_argument("--outputs", type=names, required=True, metavar="NAME,NAME", help="the values that it gives")
    _add_output(parser)
    parser = _command(commands, "split", "cut a model in two: its layers, and the postprocessing behind them", _split)
    parser.add_argument("head", type=new_file, help="the ONNX file for the first part")
    parser.add_argument("tail", type=new_file, help="the ONNX file for the second part")
    parser.add_argument(
        "--at", type=names, metavar="NAME,NAME", help="cut at these values (default: behind the last weights)"
    )
    parser = _command(commands, "join", "put one model behind another", _join)
    parser.add_argument("other", type=Path)
    parser.add_argument(
        "--connect", action="append", metavar="OUTPUT=INPUT", help="connected values (default: in order); repeatable"
    )
    _add_output(parser)
    parser = _command(commands, "rename", "give nodes and values other names", _rename)
    parser.add_argument("names", nargs="+", metavar="OLD=NEW")
    _add_output(parser)


def _extract(arguments: argparse.Namespace) -> int:
    graph = open_graph(arguments.model)
    part = graph.extract(arguments.inputs, arguments.outputs)
    return _write(part, arguments, f"{len(graph.nodes())} nodes")


def _split(arguments: argparse.Namespace) -> int:
    check_report_files(arguments.head, arguments.tail, inputs=[arguments.model])
    graph = open_graph(arguments.model)
    at = arguments.at or tail_inputs(graph.model)
    inputs, outputs = ([value.name or "" for value in side] for side in (graph.inputs, graph.outputs))
    if not at:
        raise ConfigError(f"{arguments.model} has no layers with weights to cut behind; give --at NAME,NAME")
    if set(at) == set(outputs):
        raise ConfigError(f"nothing comes behind {', '.join(at)}; give --at NAME,NAME")
    for part, path in ((graph.extract(inputs, at), arguments.head), (graph.extract(at, outputs), arguments.tail)):
        part.check()
        part.save(path)
        print_text(f"{path}: {part!r}")
    return 0


def _join(arguments: argparse.Namespace) -> int:
    graph, other = open_graph(arguments.model), open_graph(arguments.other)
    before = f"{len(graph.nodes())} and {len(other.nodes())} nodes"
    graph.join(other, named_values("--connect", arguments.connect, "OUTPUT=INPUT") if arguments.connect else None)
    return _write(graph, arguments, before)


def _rename(arguments: argparse.Namespace) -> int:
    graph = open_graph(arguments.model)
    for old, new in named_values("names", arguments.names, "OLD=NEW").items():
        graph.rename(old, new)
    return _write(graph, arguments, f"{len(graph.nodes())} nodes")
