"""`infersdk compare --task`: is another file, precision or backend as good on labelled images?"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from .common import add_wrapper_arguments, console, given_settings, print_json, wrapper_arguments

if TYPE_CHECKING:
    from ..accuracy import Contender, GateReport, Task

__all__ = ["add_task_arguments", "check_task_arguments", "contenders", "run_gate"]

#: Which options belong to which task, by the name of their attribute.
_COCO = {"annotations", "type", "setting", "conf", "iou", "names", "max_drop"}
_OWN = {
    "detect": _COCO | {"max_score_shift"},
    "segment": _COCO,
    "pose": _COCO,
    "semantic": {"labels", "type", "setting", "names", "max_drop"},
    "classify": {"labels", "type", "setting", "preset", "resize", "names", "max_drop", "max_score_shift"},
}


def add_task_arguments(parser: argparse.ArgumentParser) -> None:
    """--task and all that goes with it."""
    group = parser.add_argument_group(
        "accuracy", "measures each on the labelled images of --data, in place of comparing outputs"
    )
    group.add_argument(
        "--task",
        choices=tuple(_OWN),
        help="COCO's mAP of boxes (detect), masks (segment) or keypoints (pose); semantic: mean IoU; classify: top-1",
    )
    group.add_argument(
        "--max-drop", type=float, metavar="X", help="how much less than the first is allowed, 0 to 1 (default: 0.01)"
    )
    group.add_argument(
        "--max-score-shift",
        type=float,
        metavar="X",
        help="detect, classify: by how much the scores of what the first finds may change on average, 0.02 say",
    )
    group.add_argument("--annotations", type=Path, metavar="JSON", help="boxes, masks or keypoints in COCO's format")
    group.add_argument(
        "--labels",
        type=Path,
        metavar="FILE",
        help="semantic: a folder with a label map NAME.png for each image; "
        "classify: an image and its label a line; without it by a folder for each class, or by the number that "
        "each file's name begins with",
    )
    add_wrapper_arguments(group)
    group.add_argument("--conf", type=float, help="score that a box must exceed (default: 0.001)")
    group.add_argument(
        "--iou", type=float, help="overlap above which NMS drops (default: 0.6; for masks and keypoints 0.7)"
    )
    group.add_argument(
        "--preset", choices=("imagenet", "caffe", "inception", "unit"), help="classify: how pixels are normalised"
    )
    group.add_argument("--resize", type=int, help="classify: the shorter side before the centre crop")


def check_task_arguments(arguments: argparse.Namespace) -> None:
    """Raises ConfigError for options that have nothing to do with what was asked for."""
    task = arguments.task
    for name in sorted(set().union(*_OWN.values()) - _OWN.get(task, set())):
        if getattr(arguments, name) not in (None, []):
            kinds = [kind for kind, own in _OWN.items() if name in own]
            listed = " or ".join(filter(None, [", ".join(kinds[:-1]), kinds[-1]]))
            raise ConfigError(f"--{name.replace('_', '-')} is for --task {listed}")
    if task is not None:
        for name in ("layers", "shape"):
            if getattr(arguments, name):
                raise ConfigError(f"--{name} is for comparing outputs, without --task")
        if arguments.data is None:
            raise ConfigError(f"--task {task} needs the labelled images: --data FOLDER")
        if "annotations" in _OWN[task] and arguments.annotations is None:
            raise ConfigError(f"--task {task} needs --annotations, a file in COCO's format")
        if task == "semantic" and arguments.labels is None:
            raise ConfigError("--task semantic needs --labels, the folder of the label maps")


def contenders(arguments: argparse.Namespace) -> list[Contender]:
    """The model on each backend, the reference first, then each candidate: on its own backend, or on each."""
    from ..accuracy import Contender
    from ..registry import backends

    given = [*arguments.candidates, *arguments.candidate]
    sides = [name for name in (arguments.backends or "").split(",") if name]
    if not sides:
        sides = ["onnxruntime"] if given else ["onnxruntime", "openvino"]
    result = [Contender(str(arguments.model), side) for side in sides]
    for entry in given:
        side, sign, path = entry.partition("=")
        # A path may have an = in it: what stands before must be a backend.
        if sign and side.split("@")[0].split("/")[0] in backends():
            result.append(Contender(path, side))
        else:
            result += [Contender(entry, side) for side in sides]
    return result


def run_gate(arguments: argparse.Namespace) -> int:
    """Measures; prints a table or JSON; 1 where one drops by too much."""
    from ..accuracy import ClassifyTask, DetectTask, PoseTask, SegmentTask, SemanticTask, gate

    sides = contenders(arguments)
    if len(sides) == 1:
        flag = "--annotations" if "annotations" in _OWN[arguments.task] else "--labels"
        raise ConfigError(
            f"there is nothing to compare {sides[0].label} with; give a CANDIDATE or another one of --backends. For "
            f"the accuracy of one model: infersdk bench {arguments.model} --data {arguments.data} {flag} FILE"
        )
    coco = {"detect": DetectTask, "segment": SegmentTask, "pose": PoseTask}.get(arguments.task)
    names = {"classify": ("preset", "resize"), "semantic": ()}.get(arguments.task, ("conf", "iou"))
    settings = given_settings(arguments, names)
    settings |= {"max_batch": arguments.batch, **wrapper_arguments(arguments)}
    task: Task
    if coco is not None:
        task = coco(arguments.annotations, arguments.data, **settings)
    elif arguments.task == "semantic":
        task = SemanticTask(arguments.data, arguments.labels, **settings)
    else:
        task = ClassifyTask(arguments.data, labels=arguments.labels, **settings)
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
    from rich.markup import escape
    from rich.table import Table

    title = f"{report.metric} on {report.images} images; a drop of {report.max_drop:g} is allowed"
    table = Table(title=title, title_justify="left")
    table.add_column("contender", overflow="fold")
    table.add_column("runs in", overflow="fold")
    for name in (*report.reference.figures, "drop", "scores shift", "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    for score in report.scores:
        first = score is report.reference
        verdict = "reference" if first else "[green]passes[/green]" if report.within(score) else "[red]drops[/red]"
        shift = report.score_shift(score)
        rest = {name: n for name, n in score.layers.items() if name != score.precision}
        runs = score.precision + "".join(f", {n} layers {name}" for name, n in rest.items())
        runs += ", native head" if score.decode_head == "native" else ""
        table.add_row(
            escape(f"{Path(score.model).name}\n{score.backend} on {score.device}"), runs,
            *(f"{figure:.4f}" for figure in score.figures.values()),
            "" if first else f"{report.drop(score):+.4f}", "" if shift is None else f"{shift:+.4f}",
            f"{score.seconds:.1f}", verdict,
        )  # fmt: skip
    console().print(table)
