"""Labelled images out of the packaged one: a data set in COCO's format, and one of folders by class."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from infersdk.data import DETECTOR, IMAGE

onnx = pytest.importorskip("onnx")

NAMES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
TRUTH = json.loads(IMAGE.with_suffix(".json").read_text("utf-8"))
#: What moves the image: left, top, right and bottom borders.
BORDERS = [(0, 0, 0, 0), (40, 0, 0, 20), (0, 64, 32, 0)]


def coco_set(folder: Path, *, order: list[int] | None = None) -> tuple[Path, Path]:
    """The annotations and the folder of three images. The categories have ids with gaps, in the order given."""
    images = folder / "images"
    images.mkdir(parents=True)
    image = Image.open(IMAGE).convert("RGB")
    ids = {class_id: 3 * place + 5 for place, class_id in enumerate(order or range(10))}
    data: dict[str, Any] = {
        "images": [],
        "annotations": [],
        "categories": [{"id": number, "name": NAMES[class_id]} for class_id, number in ids.items()],
    }
    for number, (left, top, right, bottom) in enumerate(BORDERS):
        size = (image.width + left + right, image.height + top + bottom)
        canvas = Image.new("RGB", size, (120, 120, 120))
        canvas.paste(image, (left, top))
        canvas.save(images / f"{number}.png")
        data["images"].append(
            {"id": 100 + number, "file_name": f"{number}.png", "width": canvas.width, "height": canvas.height}
        )
        for entry in TRUTH["objects"]:
            x1, y1, x2, y2 = entry["box"]
            data["annotations"].append(
                {
                    "image_id": 100 + number,
                    "category_id": ids[entry["class_id"]],
                    "bbox": [x1 + left, y1 + top, x2 - x1, y2 - y1],
                }
            )
    annotations = folder / "instances.json"
    annotations.write_text(json.dumps(data))
    return annotations, images


def crops(folder: Path, layout: str = "folders") -> Path:
    """A crop of each digit: `"folders"` by name, `"numbers"` at the front of the file's name, or `"plain"`."""
    image = Image.open(IMAGE).convert("RGB")
    for number, entry in enumerate(TRUTH["objects"]):
        x1, y1, x2, y2 = entry["box"]
        half = 0.6 * max(x2 - x1, y2 - y1)
        x, y = (x1 + x2) / 2, (y1 + y2) / 2
        crop = image.crop((round(x - half), round(y - half), round(x + half), round(y + half)))
        name = {
            "folders": f"{NAMES[entry['class_id']]}/{number}.png",
            "numbers": f"{entry['class_id']:04}_{number}.png",
            "plain": f"digit {number}.png",
        }[layout]
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        crop.save(folder / name)
    return folder


def damaged(path: Path, model: Path = DETECTOR, noise: float = 0.5) -> Path:
    """The model with noise on its weights, in parts of their spread."""
    rng = np.random.default_rng(0)
    whole = onnx.load(str(model))
    for tensor in whole.graph.initializer:
        array = onnx.numpy_helper.to_array(tensor)
        if array.dtype == np.float32 and array.ndim > 1:
            worse = array + noise * array.std() * rng.standard_normal(array.shape)
            tensor.CopyFrom(onnx.numpy_helper.from_array(worse.astype(np.float32), tensor.name))
    onnx.save(whole, str(path))
    return path
