"""Accuracy of a wrapper on the test data: COCO's mAP, ImageNet's top-1 and top-5."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any


def coco_map(model: Any, folder: Path) -> tuple[float, float]:
    """(mAP 0.5:0.95, mAP 0.5) of a detector over a folder with `instances_val.json` and `val/*.jpg`."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(str(folder / "instances_val.json"))
        categories = sorted(truth.getCatIds())
        images = truth.loadImgs(truth.getImgIds())
        rows = []
        for image, found in zip(images, model.stream(folder / "val" / i["file_name"] for i in images), strict=True):
            for box in found:
                x1, y1, x2, y2 = box.xyxy
                rows.append(
                    {
                        "image_id": image["id"],
                        "category_id": categories[box.class_id],
                        "bbox": [x1, y1, x2 - x1, y2 - y1],
                        "score": box.score,
                    }
                )
        evaluation = COCOeval(truth, truth.loadRes(rows), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return float(evaluation.stats[0]), float(evaluation.stats[1])


def imagenet_top(model: Any, folder: Path) -> tuple[int, int]:
    """(top-1, top-5) hits of a classifier over files called NNNN_*.JPEG, NNNN being the class."""
    files = sorted(folder.glob("*.JPEG"))
    first = five = 0
    for file, found in zip(files, model.stream(files), strict=True):
        truth = int(file.name[:4])
        first += found.class_ids[0] == truth
        five += truth in found.class_ids[:5]
    return first, five
