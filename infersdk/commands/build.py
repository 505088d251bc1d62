"""`infersdk build`: an engine file out of an ONNX model."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..core.files import check_output
from ..errors import BackendUnavailableError, ConfigError
from ..graph import onnx_info
from ..graph.fp16_parity import ParityReport, find_fp16_loss
from ..loading.registry import backend_class, install_hint
from ..loading.samples import read_samples
from .common import named_values, new_file, print_json, print_table, print_text
from .progress import show_progress

_BACKENDS = ("tensorrt", "tensorrt-rtx")


DESCRIPTION = "Builds an engine file, and its manifest in the same folder. TensorRT-RTX needs no GPU for it."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="the ONNX file")
    parser.add_argument(
        "-o", "--output", type=new_file, help="the engine file; by default the model's name with .engine"
    )
    parser.add_argument(
        "--backend", choices=_BACKENDS, help="the runtime that builds and runs it (default: the installed one)"
    )
    parser.add_argument(
        "--compute-capability", metavar="8.6,8.9", default="",
        help="GPUs to build for (tensorrt-rtx); by default all that it supports from 8.0 on",
    )  # fmt: skip
    parser.add_argument("--device", help="the GPU that tensorrt builds on and for (default: cuda:0)")
    parser.add_argument("--precision", choices=("fp32", "fp16", "bf16", "int8"), help="by default the model's own")
    parser.add_argument("--max-batch", type=int, metavar="N", help="the largest batch (default: 1)")
    parser.add_argument(
        "--profile", action="append", default=[], metavar="NAME=MIN:OPT:MAX",
        help="the shapes of an input, as images=1x3x320x320:1x3x640x640:4x3x640x640; may be repeated",
    )  # fmt: skip
    parser.add_argument("--workspace", metavar="2GB", help="maximum scratch memory of a kernel")
    parser.add_argument("--optimization-level", type=int, choices=range(6), help="0 builds quickly, 5 runs quickly")
    parser.add_argument("--plugin", action="append", default=[], metavar="LIBRARY", help="plugins to load first")
    fp16 = parser.add_argument_group("with --precision fp16")
    fp16.add_argument(
        "--data", metavar="FOLDER",
        help="samples (.npy, .npz, images): nodes that overflow on them in fp16, or lose too much, stay fp32",
    )  # fmt: skip
    fp16.add_argument("--samples", type=int, metavar="N", help="maximum number of samples (default: 16)")
    fp16.add_argument(
        "--fp16-tolerance", type=float, metavar="X", help="the relative error a node may have (default: 0.01)"
    )
    fp16.add_argument(
        "--fp16-keep", action="append", default=[], metavar="NODE", help="a node that stays fp32; may be repeated"
    )
    parser.add_argument("--json", action="store_true", help="print the manifest as JSON, and no progress")


def run(arguments: argparse.Namespace) -> int:
    build = importlib.import_module("infersdk.backends.tensorrt").build  # backends are imported by name only
    if arguments.max_batch is not None and arguments.max_batch < 1:
        raise ConfigError(f"--max-batch is a whole number from 1, not {arguments.max_batch}")
    output = arguments.output or Path(arguments.model).with_suffix(".engine")
    check_output(arguments.model, output)
    profiles = _profiles(arguments.profile)
    parity = _parity(arguments, profiles)
    if parity is not None and not arguments.json:
        _show_parity(parity)
    title = f"building {output.name}"
    with show_progress(quiet=arguments.json) as progress:
        manifest = build(
            arguments.model,
            output,
            backend=arguments.backend or _installed(),
            compute_capabilities=arguments.compute_capability,
            device=arguments.device,
            precision=arguments.precision,
            max_batch=arguments.max_batch,
            progress=lambda phase, share: progress.report(title, share, phase),
            profiles=profiles,
            workspace=arguments.workspace,
            optimization_level=arguments.optimization_level,
            plugins=arguments.plugin,
            fp16_keep=list(dict.fromkeys([*arguments.fp16_keep, *(parity.keep if parity else ())])),
        )
    if arguments.json:
        report = {"path": str(output.absolute()), **json.loads(manifest.text())}
        if parity is not None:
            report["fp16_parity"] = dataclasses.asdict(parity)
        print_json(report)
        return 0
    details = manifest.details
    on = " and ".join(details["capabilities"]) or "8.0 and later"
    print_text(
        f"{output}: {manifest.nbytes:,} bytes, {details['precision']}, {manifest.backend} {details['version']}, "
        f"compute capability {on}, built in {details['build_seconds']:.1f} s"
    )
    return 0


def _installed() -> str:
    """The TensorRT of this machine; the full one where both are there."""
    for name in _BACKENDS:
        with contextlib.suppress(BackendUnavailableError):
            backend_class(name)
            return name
    hints = " or ".join(install_hint(name) for name in _BACKENDS)
    raise BackendUnavailableError(f"neither TensorRT nor TensorRT-RTX is installed: {hints}")


def _parity(arguments: argparse.Namespace, profiles: Mapping[str, Mapping[str, Sequence[int]]]) -> ParityReport | None:
    """The nodes that must stay FP32 according to the samples of --data; None without samples."""
    names = ("data", "samples", "fp16_tolerance", "fp16_keep")
    given = [name for name in names if getattr(arguments, name) not in (None, [])]
    if given and arguments.precision != "fp16":
        raise ConfigError(f"--{given[0].replace('_', '-')} is for --precision fp16")
    if arguments.data is None:
        if alone := [name for name in given if name in ("samples", "fp16_tolerance")]:
            raise ConfigError(f"--{alone[0].replace('_', '-')} needs --data, the folder of samples")
        return None
    count = 16 if arguments.samples is None else arguments.samples
    if count < 1:
        raise ConfigError(f"--samples is a whole number from 1, not {count}")
    specs = onnx_info(arguments.model).inputs
    shapes = {name: shape["opt"] for name, shape in profiles.items()}
    samples = itertools.islice(read_samples(arguments.data, specs, shapes=shapes), count)
    tolerance = 0.01 if arguments.fp16_tolerance is None else arguments.fp16_tolerance
    return find_fp16_loss(arguments.model, samples, tolerance=tolerance)


def _show_parity(parity: ParityReport) -> None:
    """Prints the nodes that stay FP32 with the reasons, and the error of the outputs."""
    samples = f"{parity.samples} sample{'s' if parity.samples > 1 else ''}"
    if parity.losses:
        rows = (
            (f"{loss.node} ({loss.operator})", loss.reason, f"{loss.largest:.3g}", f"{loss.error:.2g}")
            for loss in parity.losses
        )
        print_table(("node", "why", ">largest", ">error"), rows, f"Stay fp32, by {samples}")
    else:
        print_text(f"By {samples} all of {parity.nodes} nodes can be fp16")
    for output in parity.outputs:
        print_text(
            f"{output.name}: relative error {output.error_before:.2g} with all in fp16, "
            f"{output.error_after:.2g} with {len(parity.losses)} nodes in fp32"
        )


def _profiles(entries: Sequence[str]) -> dict[str, dict[str, list[int]]]:
    """The range of each input: `images=1x3x320x320:1x3x640x640:4x3x640x640`; one shape is used for all three."""

    def parse(text: str) -> dict[str, list[int]]:
        shapes = [[int(d) for d in shape.split("x")] for shape in text.split(":")]
        return dict(zip(("min", "opt", "max"), shapes * 3 if len(shapes) == 1 else shapes, strict=True))

    return named_values("--profile", entries, "NAME=MIN:OPT:MAX with shapes like 1x3x640x640", parse)
