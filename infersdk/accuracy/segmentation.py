"""Semantic segmentation on images with label maps: the mean of the intersection over union of the classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.files import image_files, open_regular
from ..errors import ConfigError, InputError
from ..image.sources import open_image

if TYPE_CHECKING:
    import os

    import numpy.typing as npt

__all__ = ["IGNORED", "MappedImage", "iou_figures", "read_label_maps"]

#: The value of pixels of a label map that do not count.
IGNORED = 255


@dataclass(frozen=True)
class MappedImage:
    """An image and its label maps: by the name of the map, `""` where there is one."""

    file: Path
    maps: Mapping[str, Path]

    def label_map(self, name: str) -> npt.NDArray[np.uint8]:
        """(height, width) uint8: the class of each pixel, 255 for those that do not count.

        Raises:
            ConfigError: the file cannot be read, or its pixels are not class numbers.
        """
        path = self.maps[name]
        try:
            with open_regular(path) as file, open_image(file) as image:
                kind, pixels = image.mode, np.array(image)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(f"cannot read the label map {str(path)!r}: {reason}") from None
        if kind not in ("L", "P"):
            raise ConfigError(
                f"{str(path)!r} has pixels of kind {kind}; a label map has one byte for each pixel, the number of its "
                "class, as a grey or a palette image"
            )
        return pixels


def read_label_maps(folder: str | os.PathLike[str], labels: str | os.PathLike[str]) -> list[MappedImage]:
    """The images of a folder, with their label maps.

    Args:
        folder: of the images.
        labels: a folder with `NAME.png` for each image `NAME.*`; or, for models of several maps, with a folder of such
            files for each map.

    Raises:
        ConfigError: there is no such folder, no image, or an image without its label map.
    """
    root, maps = Path(folder), Path(labels)
    for place, what in ((root, "images"), (maps, "label maps")):
        if not place.is_dir():
            raise ConfigError(f"no folder of {what} at {str(place)!r}")
    files = image_files(root)
    if not files:
        raise ConfigError(f"no image in {str(root)!r}")
    inner = sorted(entry for entry in maps.iterdir() if entry.is_dir())
    folders = {"": maps} if any(maps.glob("*.png")) or not inner else {entry.name: entry for entry in inner}
    result = []
    for file in files:
        own = {name: place / f"{file.stem}.png" for name, place in folders.items()}
        for path in own.values():
            if not path.is_file():
                raise ConfigError(f"the image {file.name!r} has no label map: there is no {str(path)!r}")
        result.append(MappedImage(file, own))
    return result


def iou_figures(model: Any, images: Sequence[MappedImage]) -> dict[str, float]:
    """`{"mIoU": ..., "pixels": ...}` of a model of class maps (`infersdk.models`), each 0 to 1.

    `mIoU` is the mean intersection over union of the classes in the label maps or the results, over all images.
    `pixels` is the share of correct pixels. Pixels labelled 255 do not count. For a model of several maps, `mIoU` is
    the mean of the maps, and each map has its own figure, such as `area_mIoU`.

    Raises:
        ConfigError: the label maps do not fit the results: other names, another size, or a class that the model does
            not have.
        InputError: there are no images.
    """
    if not images:
        raise InputError("there are no images to measure by; give one or more")
    counts: dict[str, npt.NDArray[np.int64]] = {}
    for image, result in zip(images, model.stream(image.file for image in images), strict=True):
        maps = result.maps
        if set(maps) != set(image.maps):
            raise ConfigError(
                f"the model gives {_named(maps)}, and the label maps are {_named(image.maps)}; use a folder of label "
                "maps for each map of the model, with its name"
            )
        for name, found in maps.items():
            truth = image.label_map(name)
            if truth.shape != found.class_ids.shape:
                raise ConfigError(
                    f"the label map {str(image.maps[name])!r} has {truth.shape[1]} x {truth.shape[0]} pixels, and its "
                    f"image {found.size[0]} x {found.size[1]}"
                )
            _check_classes(truth, found.names or range(model.details.class_count or IGNORED), image.maps[name])
            counted = truth != IGNORED
            pairs = truth[counted].astype(np.int64) * 256 + found.class_ids[counted]
            counts.setdefault(name, np.zeros(256 * 256, np.int64))
            counts[name] += np.bincount(pairs, minlength=256 * 256)
    figures = {name: _figures(matrix.reshape(256, 256)) for name, matrix in counts.items()}
    mean = {key: float(np.mean([own[key] for own in figures.values()])) for key in ("mIoU", "pixels")}
    return mean | {f"{name}_mIoU": own["mIoU"] for name, own in figures.items() if name}


def _named(maps: Mapping[str, Any]) -> str:
    return "one map" if set(maps) == {""} else f"the maps {', '.join(maps)}"


def _check_classes(truth: npt.NDArray[np.uint8], classes: Sequence[Any], path: Path) -> None:
    labelled = truth[truth != IGNORED]
    if labelled.size and int(labelled.max()) >= len(classes):
        raise ConfigError(
            f"the label map {str(path)!r} has class {int(labelled.max())}, and the model has {len(classes)} classes, "
            f"0 to {len(classes) - 1}; pixels that do not count have {IGNORED}"
        )


def _figures(matrix: npt.NDArray[np.int64]) -> dict[str, float]:
    """From the pixels of each class (rows) that have each result (columns)."""
    right, labelled, result = np.diag(matrix), matrix.sum(1), matrix.sum(0)
    union = labelled + result - right
    union[IGNORED] = 0  # unclassified pixels are wrong for their true class
    total = int(matrix.sum())
    return {
        "mIoU": float(np.mean(right[union > 0] / union[union > 0])) if total else 0.0,
        "pixels": float(right.sum() / total) if total else 0.0,
    }
