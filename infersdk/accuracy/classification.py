"""Classifiers on labelled images: top-1 and top-5."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.files import image_files
from ..errors import ConfigError, InputError

if TYPE_CHECKING:
    import os

__all__ = ["LabelledImage", "read_labels", "top_figures"]


@dataclass(frozen=True)
class LabelledImage:
    """An image and its class, by number or name."""

    file: Path
    label: int | str


def read_labels(folder: str | os.PathLike[str], labels: str | os.PathLike[str] | None = None) -> list[LabelledImage]:
    """The labelled images of a folder, by name.

    - With `labels`: a text file with an image and its label a line, separated by a comma, a tab or spaces.
    - A folder for each class: its name is the label.
    - Else the number that each file's name begins with: `0281_cat.JPEG`.

    A label that is a number is the class of that number.

    Raises:
        ConfigError: there is no such folder or file, no image, one without a label, or a label without its image.
    """
    root = Path(folder)
    if not root.is_dir():
        raise ConfigError(f"no folder of images at {str(root)!r}")
    if labels is not None:
        return _from_file(root, Path(labels))
    classes = sorted(inner for inner in root.iterdir() if inner.is_dir())
    files = image_files(root)
    if classes and not files:
        result = [LabelledImage(file, _label(inner.name)) for inner in classes for file in image_files(inner)]
        if not result:
            raise ConfigError(f"no folder in {str(root)!r} has an image in it")
        return result
    if not files:
        raise ConfigError(f"no image in {str(root)!r}, nor a folder for each class")
    result = []
    for file in files:
        match = re.match(r"\d+", file.name)
        if match is None:
            raise ConfigError(
                f"{str(file)!r} has no label: its name does not begin with the number of its class; sort the images "
                "into a folder for each class, or give a file of labels (--labels)"
            )
        result.append(LabelledImage(file, int(match[0])))
    return result


def _label(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


def _is_number(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return False
    return True


def _from_file(folder: Path, labels: Path) -> list[LabelledImage]:
    try:
        lines = labels.read_text("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the labels {str(labels)!r}: {error}") from None
    result = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        name, label = _columns(line)
        if not name or not label:
            raise ConfigError(f"{str(labels)!r}, line {number}: {line!r} is not an image name and a label")
        if re.match(r"-\d+$|\d+\s*[,\t]", label):
            raise ConfigError(
                f"{str(labels)!r}, line {number}: the label {label!r} is not a number from 0 or a name; write an image "
                "and its label a line"
            )
        file = folder / name
        if not file.is_file():
            raise ConfigError(f"{str(labels)!r}, line {number}: there is no image {str(file)!r}")
        result.append(LabelledImage(file, _label(label)))
    if not result:
        raise ConfigError(f"{str(labels)!r} has no labels in it")
    return result


def _columns(line: str) -> tuple[str, str]:
    for sign in ("\t", ","):
        if sign in line:
            name, _, label = line.partition(sign)
            return name.strip(), label.strip()
    name, _, label = line.strip().rpartition(" ")
    return name.strip(), label


def top_figures(model: Any, images: Sequence[LabelledImage]) -> dict[str, float]:
    """`{"top1": ..., "top5": ...}` of a classifier (`infersdk.models`): the shares of images that it gets right.

    Labels that are names are those of the model's classes; where it has none of them, the names in their order,
    unless one is a number such as `3.0`.

    Raises:
        ConfigError: its classes do not fit the labels, or `top_k` is below 5.
        InputError: there are no images.
    """
    if not images:
        raise InputError("there are no images to measure by; give one or more")
    first = five = 0
    wanted: list[int] | None = None
    results = model.stream(image.file for image in images)
    for index, result in enumerate(results):
        if wanted is None:  # the number of classes may be unknown before the first run
            classes = model.details.class_count
            wanted = _class_ids(images, model.class_names, classes)
            if len(result) < min(5, classes or 5):
                raise ConfigError(f"results have {len(result)} classes, too few for top5; give top_k=5 or more")
        first += int(result.class_ids[0]) == wanted[index]
        five += wanted[index] in result.class_ids[:5].tolist()
    return {"top1": first / len(images), "top5": five / len(images)}


def _class_ids(images: Sequence[LabelledImage], names: Sequence[str], classes: int | None) -> list[int]:
    named = sorted({image.label for image in images if isinstance(image.label, str)})
    index_of: dict[str, int] = {}
    if named:
        counts = Counter(names)
        unknown = [label for label in named if counts[label] != 1]
        numbered = any(isinstance(image.label, int) or _is_number(image.label) for image in images)
        if not unknown:
            index_of = {label: names.index(label) for label in named}
        elif len(unknown) == len(named) == classes and not numbered:
            index_of = {label: i for i, label in enumerate(named)}
        else:
            have = f"classes of other names, as {names[0]!r}" if names else "no class names"
            raise ConfigError(
                f"the label {unknown[0]!r} is not a class of the model, which has {have}; by order the {len(named)} "
                f"labels do not fit its {classes} classes: this takes as many names, none of them a number; give "
                "its class names (--names), or write the labels as whole numbers from 0"
            )
    result = [index_of[p.label] if isinstance(p.label, str) else p.label for p in images]
    for image, number in zip(images, result, strict=True):
        if classes is not None and number >= classes:
            raise ConfigError(
                f"{str(image.file)!r} is labelled {number}, and the model has {classes} classes, 0 to {classes - 1}"
            )
    return result
