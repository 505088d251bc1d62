"""`infersdk compare --task`: is another file, precision or backend as good on labelled images?"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

from rich.text import Text

from ..accuracy import TASKS, Contender, GateReport, gate
from ..errors import ConfigError, nearest
from ..loading.registry import list_backends
from .common import console, given_settings, print_json, print_table
from .wrapper_options import add_wrapper_options, wrapper_settings

__all__ = ["add_task_arguments", "check_task_arguments", "contenders", "run_gate"]


def add_task_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --task and its options."""
    group = parser.add_argument_group(
        "accuracy", "measures each on the labelled images of --data, in place of comparing outputs"
    )
    group.add_argument(
        "--task", metavar="NAME",
        help="COCO's mAP of boxes (detect), masks (segment) or keypoints (pose); semantic: mean IoU; classify: top-1",
    )  # fmt: skip
    group.add_argument(
        "--max-drop", type=float, metavar="X", help="how much less than the first is allowed, 0 to 1 (default: 0.01)"
    )
    group.add_argument(
        "--max-score-shift", type=float, metavar="X",
        help="detect, classify: maximum mean change of the scores of the first contender's results, such as 0.02",
    )  # fmt: skip
    group.add_argument("--annotations", type=Path, metavar="JSON", help="boxes, masks or keypoints in COCO's format")
    group.add_argument(
        "--labels", type=Path, metavar="FILE",
        help="semantic: a folder with a label map NAME.png for each image; "
        "classify: an image and its label a line; without it by a folder for each class, or by the number that "
        "each file's name begins with",
    )  # fmt: skip
    group = parser.add_argument_group(
        "the wrapper, with --task", "Of detectors conf is 0.001 here, and iou 0.6, with masks and keypoints 0.7."
    )
    add_wrapper_options(parser, group)


def check_task_arguments(arguments: argparse.Namespace) -> None:
    """Raises ConfigError for options that do not apply to the task, and for missing ones."""
    task = arguments.task
    if task not in {None, *TASKS}:
        raise ConfigError(f"--task {task} is unknown; use one of {', '.join(TASKS)}{nearest(task, TASKS)}")
    options = {name: kind.options | {"type", "max_drop"} for name, kind in TASKS.items()}
    for name in sorted(frozenset().union(*options.values()) - options.get(task, frozenset())):
        if getattr(arguments, name) not in (None, []):
            kinds = [kind for kind, own in options.items() if name in own]
            listed = " or ".join(filter(None, [", ".join(kinds[:-1]), kinds[-1]]))
            raise ConfigError(f"--{name.replace('_', '-')} is for --task {listed}")
    if task is None and (settings := wrapper_settings(arguments)):
        raise ConfigError(f"--{min(settings).replace('_', '-')} is a setting of a wrapper, for --task")
    if task is not None:
        flags = [name for name in ("layers", "shape") if getattr(arguments, name)]
        for name in (*flags, *given_settings(arguments, ("atol", "rtol", "cosine", "seed"))):
            raise ConfigError(f"--{name} is for comparing outputs, without --task")
        if arguments.data is None:
            raise ConfigError(f"--task {task} needs the labelled images: --data FOLDER")
        for name, text in TASKS[task].needs.items():
            if getattr(arguments, name) is None:
                raise ConfigError(f"--task {task} needs --{name}, {text}")


def contenders(arguments: argparse.Namespace) -> list[Contender]:
    """The model on each backend, the reference first, then each candidate: on its own backend, or on each."""
    given = [*arguments.candidates, *arguments.candidate]
    sides = arguments.backends or (["onnxruntime"] if given else ["onnxruntime", "openvino"])
    result = [Contender(str(arguments.model), side) for side in sides]
    for entry in given:
        side, sign, path = entry.partition("=")
        # A path may contain =, so the text before it must be a backend.
        if sign and side.split("@")[0].split("/")[0] in list_backends():
            result.append(Contender(path, side))
        else:
            result += [Contender(entry, side) for side in sides]
    return result


def run_gate(arguments: argparse.Namespace) -> int:
    """Measures and prints a table or JSON; returns 1 if a contender exceeds a limit."""
    sides, kind = contenders(arguments), TASKS[arguments.task]
    if len(sides) == 1:
        flag = next(iter(kind.needs), "labels")
        raise ConfigError(
            f"there is nothing to compare {sides[0].label} with; give a CANDIDATE or another one of --backends. For "
            f"the accuracy of one model: infersdk bench {arguments.model} --data {arguments.data} --{flag} FILE"
        )
    settings = given_settings(arguments, (kind.options | {"type"}) - {"max_score_shift"})
    settings |= {"max_batch": arguments.batch, **wrapper_settings(arguments)}
    task = kind(folder=arguments.data, **settings)
    with console(stderr=True).status("") as status:
        report = gate(
            sides,
            task,
            max_drop=0.01 if arguments.max_drop is None else arguments.max_drop,
            max_score_shift=arguments.max_score_shift,
            progress=lambda contender: status.update(f"{contender.label}: {task.images} images"),
        )
    if arguments.json:
        print_json(_plain(report))
    else:
        _show(report)
    return 0 if report.passes else 1


def _plain(report: GateReport) -> dict[str, Any]:
    bare = tuple(dataclasses.replace(score, results=()) for score in report.scores)
    data = dataclasses.asdict(dataclasses.replace(report, scores=bare))
    for entry, score in zip(data["scores"], report.scores, strict=True):
        del entry["results"]
        shift = report.score_shift(score)
        entry |= {"drop": report.drop(score), "score_shift": shift, "within": report.within(score)}
    return {**data, "reference": report.reference.label, "passes": report.passes}


def _show(report: GateReport) -> None:
    title = f"{report.metric} on {report.images} images; a drop of {report.max_drop:g} is allowed"
    if report.max_score_shift is not None:
        title += f", and a shift of scores of {report.max_score_shift:g}"
    without_shift = dataclasses.replace(report, max_score_shift=None)
    figures = (f">{name}" for name in report.reference.figures)
    columns = ("contender", "runs in", *figures, ">drop", ">scores shift", ">seconds", "")
    rows = []
    for score in report.scores:
        first = score is report.reference
        fault = "scores shift" if without_shift.within(score) else "drops"
        verdict = Text("passes", "green") if report.within(score) else Text(fault, "red")
        shift = report.score_shift(score)
        rest = {name: n for name, n in score.layers.items() if name != score.precision}
        runs = score.precision + "".join(f", {n} layers {name}" for name, n in rest.items())
        runs += ", native head" if score.decode_head == "native" else ""
        rows.append((
            f"{Path(score.model).name}\n{score.backend} on {score.device}", runs,
            *(f"{figure:.4f}" for figure in score.figures.values()),
            "" if first else f"{report.drop(score):+.4f}", "" if shift is None else f"{shift:+.4f}",
            f"{score.seconds:.1f}", "reference" if first else verdict,
        ))  # fmt: skip
    print_table(columns, rows, title)
