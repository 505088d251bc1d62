"""Accuracy of a wrapper on the test data: COCO's mAP, ImageNet's top-1 and top-5."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from infersdk.accuracy import coco_figures, read_coco, read_labels, top_figures


def coco_map(model: Any, folder: Path) -> tuple[float, float]:
    """(mAP 0.5:0.95, mAP 0.5) of a detector over a folder with `instances_val.json` and `val/*.jpg`."""
    figures = coco_figures(model, read_coco(folder / "instances_val.json", folder / "val"))
    return figures["mAP"], figures["mAP50"]


def imagenet_top(model: Any, folder: Path) -> tuple[int, int]:
    """(top-1, top-5) hits of a classifier over files called NNNN_*.JPEG, NNNN being the class."""
    images = read_labels(folder)
    figures = top_figures(model, images)
    return round(figures["top1"] * len(images)), round(figures["top5"] * len(images))
