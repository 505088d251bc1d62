"""Detectors on annotated images: mAP as COCO measures it, by pycocotools or faster-coco-eval."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import os
import reprlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from ..errors import BackendUnavailableError, ConfigError, UnsupportedModelError

__all__ = ["CocoTruth", "check_annotated", "coco_evaluator", "coco_figures", "lacking", "read_coco"]

#: The points for which COCO's similarity of keypoints has its own tolerances.
COCO_KEYPOINTS = 17


@dataclass(frozen=True)
class CocoTruth:
    """The annotations of a detection data set, with the file of each image.

    Attributes:
        files: by the id of the image.
        categories: (id, name) by ascending id. COCO's ids have gaps; a model's classes count through.
        data: as the evaluators take it.
    """

    files: Mapping[Any, Path]
    categories: tuple[tuple[int, str], ...]
    data: Mapping[str, Any] = field(repr=False)

    def category_ids(self, names: Sequence[str], classes: int | None) -> dict[int, int]:
        """The category of each class of a model; classes that the annotations do not know are left out.

        By name where the model has names and every category is among them. Else by order, which takes as many classes
        as categories, and no name at different positions.

        Args:
            names: of the model's classes; may be empty.
            classes: how many it has; None where that is not known.

        Raises:
            ConfigError: the two do not fit.
        """
        own = Counter(names)
        if names and all(own[name] == 1 for _, name in self.categories):
            number_of: dict[str, int] = {}
            for number, name in self.categories:
                if number_of.setdefault(name, number) != number:
                    raise ConfigError(
                        f"the categories {number_of[name]} and {number} of the annotations are both called {name!r}, "
                        "which is one class of the model; join them, or give each its own name"
                    )
            position_of = {name: i for i, name in enumerate(names)}
            return {position_of[name]: number for number, name in self.categories}
        count = classes if classes is not None else len(names)
        if count != len(self.categories):
            missing = [name for _, name in self.categories if name not in own]
            also = f", nor has it classes of all their names ({missing[0]!r} is missing)" if names else ""
            raise ConfigError(
                f"the model has {count} classes, and the annotations have {len(self.categories)} categories{also}; "
                "give the annotations that it was trained for, or its class names (--names)"
            )
        for position, (_, name) in enumerate(self.categories):
            if own[name] == 1 and names.index(name) != position:
                raise ConfigError(
                    f"class {names.index(name)} of the model is {name!r}, which is number {position} among the "
                    "categories of the annotations; give the class names in the order of the model's outputs (--names)"
                )
        return {position: number for position, (number, _) in enumerate(self.categories)}


def read_coco(annotations: str | os.PathLike[str], folder: str | os.PathLike[str]) -> CocoTruth:
    """Reads a file of annotations in COCO's format (`instances_*.json`), and finds its images in `folder`.

    Raises:
        ConfigError: there is no such file or folder, it is no such file, nothing is annotated, two images or categories
            have one id, or images are missing.
    """
    path, root = Path(annotations), Path(folder)
    data = _read_json(path)
    parts = {}
    for key in ("images", "annotations", "categories"):
        if not isinstance(data, dict) or not isinstance(data.get(key), list):
            raise ConfigError(f"{str(path)!r} is not a COCO annotation file: it has no list {key!r}")
        if not data[key]:
            raise ConfigError(f"{str(path)!r} has no {key}: there is nothing to measure by")
        parts[key] = data[key]
    try:
        names = {image["id"]: str(image["file_name"]) for image in parts["images"]}
        categories = {int(category["id"]): str(category["name"]) for category in parts["categories"]}
        boxes = [_box(number, entry) for number, entry in enumerate(parts["annotations"], 1)]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else error
        raise ConfigError(f"{str(path)!r} is not a COCO annotation file: {reason}") from None
    for key, known in (("images", names), ("categories", categories)):
        if len(known) < len(parts[key]):
            raise ConfigError(f"{str(path)!r} has {len(parts[key])} {key} with {len(known)} ids; give each its own")
    if not ({type(number) for number in names} <= {int, float} or all(isinstance(number, str) for number in names)):
        raise ConfigError(f"{str(path)!r}: the ids of its images are {reprlib.repr([*names])}; use numbers, or strings")
    if all(box["iscrowd"] for box in boxes):
        raise ConfigError(
            f"all annotations of {str(path)!r} have iscrowd=1: there is nothing to measure by; annotate single objects"
        )
    for box in boxes:
        for key, known in (("image_id", names), ("category_id", categories)):
            if box[key] not in known:
                raise ConfigError(
                    f"{str(path)!r}: an annotation has the {key} {box[key]!r}, which the file does not contain"
                )
    if not root.is_dir():
        raise ConfigError(f"no folder of images at {str(root)!r}")
    files = {number: root / name for number, name in names.items()}
    missing = [file for file in files.values() if not os.path.isfile(file)]  # False for a name that is too long, too
    if missing:
        raise ConfigError(
            f"{len(missing)} of the {len(files)} images of {path.name} are not in {str(root)!r}, "
            f"{missing[0].name!r} for one; is it the right folder?"
        )
    images = [{**image, "file_name": names[image["id"]]} for image in parts["images"]]
    whole = {"images": images, "annotations": boxes, "categories": parts["categories"], "info": {}}
    return CocoTruth(files, tuple(sorted(categories.items())), whole)


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the annotations {str(path)!r}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{str(path)!r} is not JSON that can be read: {error}") from None


def _box(number: int, entry: Mapping[str, Any]) -> dict[str, Any]:
    """An annotation with all fields that the evaluators need.

    Its id is its number from 1: the evaluators take an id of 0 for no match.
    """
    left, top, width, height = (float(side) for side in entry["bbox"])
    if isinstance(image := entry["image_id"], list | dict):
        raise TypeError(f"the image_id {image!r} is not a number or a string")
    area = float(entry.get("area", width * height))
    if not (_are_numbers([left, top, width, height, area]) and min(width, height, area) >= 0):
        raise ValueError(
            f"annotation {number} has the bbox {entry['bbox']} and the area {area:g}; these are finite numbers, and "
            "sizes are not negative"
        )
    points = entry.get("keypoints", [])  # x, y and visibility of each
    if not _are_numbers(points) or len(points) % 3:
        raise ValueError(f"annotation {number} has the keypoints {points!r:.60}, not x, y and visibility of each")
    more = {"segmentation": entry["segmentation"]} if "segmentation" in entry else {}
    return {
        "id": number,
        "image_id": image,
        "category_id": int(entry["category_id"]),
        "bbox": [left, top, width, height],
        "area": area,
        "iscrowd": int(entry.get("iscrowd", 0)),
        "keypoints": points,
        "num_keypoints": int(entry.get("num_keypoints", sum(visible > 0 for visible in points[2::3]))),
        **more,
    }


#: For each kind of evaluation: the prefix of its figures, the required field of annotations, and the column of results.
_EVALUATED = {
    "bbox": ("", "bbox", None),
    "segm": ("mask_", "segmentation", "mask"),
    "keypoints": ("OKS_", "num_keypoints", "keypoints"),
}


def coco_figures(model: Any, truth: CocoTruth, kinds: Sequence[str] = ("bbox",)) -> dict[str, float]:
    """`{"mAP": over IoU 0.5:0.95, "mAP50": at 0.5}` of a detector (`infersdk.models`), each 0 to 1.

    Args:
        kinds: `"bbox"`, `"segm"` for masks (`mask_mAP`, `mask_mAP50`), or `"keypoints"` (`OKS_mAP`, `OKS_mAP50`).
            COCO's keypoint similarity has a tolerance for each of its 17 points. For n other points it is 1/n.

    Raises:
        ConfigError: its classes do not fit the annotations, or these lack the compared field.
        UnsupportedModelError: its results lack the compared column.
        BackendUnavailableError: neither pycocotools nor faster-coco-eval is installed.
    """
    coco, evaluator = coco_evaluator()
    check_annotated(truth, kinds)
    images = list(truth.files)
    if model.details.class_count is not None:  # else it is known after the first run
        truth.category_ids(model.class_names, model.details.class_count)  # raises before the images are run
    result = dict(zip(images, model.stream(truth.files.values()), strict=True))
    categories = truth.category_ids(model.class_names, model.details.class_count)
    sizes = {image: boxes.size for image, boxes in result.items()}
    rows: list[dict[str, Any]] = []
    columns = {column for kind in kinds if (column := _EVALUATED[kind][2]) is not None}
    for image, boxes in result.items():
        if missing := columns - boxes.columns.keys():  # the evaluators would use the boxes as masks
            raise UnsupportedModelError(
                f"{model.network.model.name} gives no {min(missing)} for its boxes; measure boxes (--task detect)"
            )
        known = [class_id in categories for class_id in boxes.class_ids.tolist()]
        rows += boxes[known].to_coco(image, categories)
    for entry in truth.data["annotations"]:
        if why := _unlike(entry, kinds, sizes[entry["image_id"]], rows):
            raise ConfigError(
                f"annotation {entry['id']} has {why}; give the annotations of these images that the model was trained "
                "for, or measure boxes (--task detect)"
            )
    images = [dict(image, width=sizes[image["id"]][0], height=sizes[image["id"]][1]) for image in truth.data["images"]]
    truth = replace(truth, data={**truth.data, "images": images})  # evaluators of masks need the sizes
    figures: dict[str, float] = {}
    for kind in kinds:
        prefix = _EVALUATED[kind][0]
        stats = _evaluate(coco, evaluator, truth, rows, kind) if rows else (0.0, 0.0)  # they refuse an empty list
        figures |= {f"{prefix}mAP": float(stats[0]), f"{prefix}mAP50": float(stats[1])}
    return figures


def _unlike(
    entry: Mapping[str, Any], kinds: Sequence[str], size: tuple[int, int], rows: Sequence[Mapping[str, Any]]
) -> str:
    """What sets an annotation apart from its image and the results, or "". Evaluators fail by it, or match nothing."""
    if "segm" in kinds and isinstance(mask := entry["segmentation"], dict) and mask["size"] != [*size[::-1]]:
        return f"a mask of [height, width] {mask['size']} in an image of {[*size[::-1]]}"
    if "keypoints" in kinds and rows and (entry["keypoints"] or entry["num_keypoints"]):
        own, found = len(entry["keypoints"]), len(rows[0]["keypoints"])
        return f"{own // 3} keypoints, and the model finds {found // 3}" if own != found else ""
    return ""


def _evaluate(
    coco: Callable[[], Any], evaluator: Callable[..., Any], truth: CocoTruth, rows: Sequence[dict[str, Any]], kind: str
) -> Sequence[float]:
    """The twelve (of keypoints ten) figures that COCO reports: first mAP over IoU 0.5:0.95, then at 0.5."""
    with contextlib.redirect_stdout(io.StringIO()):  # they print
        whole = coco()
        whole.dataset = copy.deepcopy(dict(truth.data))  # they change it
        whole.createIndex()
        evaluation = evaluator(whole, whole.loadRes([dict(row) for row in rows]), kind)
        if kind == "keypoints" and (points := len(rows[0]["keypoints"]) // 3) != COCO_KEYPOINTS:
            evaluation.params.kpt_oks_sigmas = np.full(points, 1 / points)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    stats: Sequence[float] = evaluation.stats
    return stats


def lacking(truth: CocoTruth, kind: str) -> int:
    """The number of annotations without the field for a kind. All need a mask. Some may have no keypoints, but those
    of crowds are not compared.
    """
    entries = [entry for entry in truth.data["annotations"] if kind != "keypoints" or not entry["iscrowd"]]
    count = sum(not entry.get(_EVALUATED[kind][1]) for entry in entries)
    return 0 if kind == "keypoints" and count < len(entries) else count


def check_annotated(truth: CocoTruth, kinds: Sequence[str]) -> None:
    """Raises ConfigError if the annotations lack a field for `kinds`."""
    for kind in kinds:
        if count := lacking(truth, kind):
            field = _EVALUATED[kind][1].removeprefix("num_")
            others = "; those of crowds (iscrowd=1) do not count" if kind == "keypoints" else ""
            raise ConfigError(
                f"{count} of the {len(truth.data['annotations'])} annotations have no {field}{others}; give a file "
                "that has them, or measure boxes (--task detect)"
            )
        for entry in truth.data["annotations"] if kind == "segm" else ():
            if not _is_mask(mask := entry["segmentation"]):
                raise ConfigError(
                    f"annotation {entry['id']} has the segmentation {mask!r:.60}, which is neither polygons nor run "
                    "lengths of COCO; correct it, or measure boxes (--task detect)"
                )


def _is_mask(mask: Any) -> bool:
    if isinstance(mask, list):
        return all(_are_numbers(polygon) and len(polygon) >= 6 and len(polygon) % 2 == 0 for polygon in mask)
    size, counts = (mask.get("size"), mask.get("counts")) if isinstance(mask, dict) else (None, None)
    if not _are_numbers(size) or len(size) != 2:
        return False
    return isinstance(counts, str) or (_are_numbers(counts) and sum(counts) == size[0] * size[1])


def _are_numbers(values: Any) -> TypeGuard[list[float]]:
    """Whether these are a list of numbers that fit an image."""
    return isinstance(values, list) and all(isinstance(one, (int, float)) and abs(one) < 2**31 for one in values)


def coco_evaluator() -> tuple[Callable[[], Any], Callable[..., Any]]:
    """The classes COCO and COCOeval of pycocotools or faster-coco-eval."""
    try:
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval

        return COCO, COCOeval
    except ImportError:
        pass
    try:
        import faster_coco_eval

        return faster_coco_eval.COCO, faster_coco_eval.COCOeval_faster
    except ImportError:
        raise BackendUnavailableError(
            'measuring mAP needs pycocotools or faster-coco-eval: pip install "infersdk[eval]"'
        ) from None
