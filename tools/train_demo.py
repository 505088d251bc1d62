"""Trains the demo models of the package, measures them on held-back digits, and writes the files of the package.

    python tools/train_demo.py --out infersdk/data

It takes about half an hour on two processor cores and needs infersdk, torch, scikit-learn, opencv-python-headless,
onnx, onnxruntime and pycocotools. `--quick` goes through every step in a few minutes, to debug it; its models are no
good.

It writes to `--out`:

- `digits_detector.onnx`: `images` [batch, 3, 320, 320] -> `output0` [batch, 6300, 15], YOLOv5's interface
- `digits_classifier.onnx`: `images` [batch, 3, 32, 32] -> `logits` [batch, 10]
- `demo.jpg`, `demo.json`: a held-back image, and its digits

It prints the figures that `infersdk/data/README.md` states, measured on the exported files by ONNX Runtime. All random
numbers come from fixed seeds; another version of torch or another processor may still round otherwise, and so train
slightly different weights.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # spinning threads cost ten times the time on a busy machine

import cv2
import demo_data as data
import numpy as np
import onnx
import torch
from demo_models import STRIDES, Classifier, Decoded, DetectionDecoder
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, Dataset

from infersdk import load

if TYPE_CHECKING:
    from collections.abc import Callable

Model = TypeVar("Model", bound=nn.Module)


class Stage(NamedTuple):
    size: int  # of an image, pixels
    most: int  # digits on it
    batch: int  # images a step
    steps: int
    rate: float  # the peak of the learning rate


# The detector learns on small images, where a step is cheap, and then gets used to its true size.
STAGES = (Stage(160, 10, 32, 2400, 4e-3), Stage(data.SIZE, 20, 16, 800, 2e-3))
CLASSIFIER_STEPS = 2000
IMAGES = 500  # held-back images to measure on

TRAIN, HELD, CROPS = 1, 2, 4  # the first number of an image's seed: streams that never meet (3: demo, 5: tests)
EMA = 0.998


class Images(Dataset):
    """Batches for the detector, composed at each step: images uint8 [n, 3, h, w], truth for `DetectionDecoder.loss`."""

    def __init__(self, digits: data.Digits, stage: Stage) -> None:
        self.digits, self.stage = digits, stage

    def __len__(self) -> int:
        return self.stage.steps

    def __getitem__(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        size, most, batch = self.stage[:3]
        canvases = [
            data.detector_canvas(self.digits, (TRAIN, size, step * batch + i), size, most) for i in range(batch)
        ]
        rows = []
        for i, canvas in enumerate(canvases):
            low, high = canvas.boxes[:, :2], canvas.boxes[:, 2:]
            rows.append(np.column_stack([np.full(len(low), i), canvas.labels, (low + high) / 2, high - low]))
        return data.planes([c.image for c in canvases]), np.concatenate(rows).astype(np.float32)


class Crops(Dataset):
    """Batches for the classifier: digits cut loosely as after a detector, square or stretched, and their labels.

    Each crop is seen about four times.
    """

    def __init__(self, digits: data.Digits, steps: int, batch: int = 128) -> None:
        self.steps, self.batch = steps, batch
        images: list[np.ndarray] = []
        labels: list[int] = []
        for number in range(steps * batch // 4 // 12):
            canvas = data.compose(digits, (CROPS, number), count=(12, 16))
            rng = np.random.default_rng((CROPS, number, 1))
            for box, label in zip(canvas.boxes, canvas.labels, strict=True):
                loose = box + rng.uniform(-0.06, 0.06, 4) * np.tile(box[2:] - box[:2], 2)
                images.append(data.crop(canvas.image, loose, rng.uniform(0, 0.25), square=bool(rng.random() < 0.5)))
                labels.append(label)
        self.images, self.labels = data.planes(images), np.array(labels)

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        chosen = np.random.default_rng((CROPS, step, 2)).integers(len(self.labels), size=self.batch)
        return self.images[chosen], self.labels[chosen]


def fit(model: Model, batches: Dataset, rate: float, loss_of: Callable[[Tensor, Tensor], Tensor]) -> Model:
    """AdamW under a one-cycle schedule; gives back the running mean of the weights, which is steadier than the last."""
    model = model.to(memory_format=torch.channels_last).train()
    mean = copy.deepcopy(model).eval().requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, len(batches), pct_start=0.15)
    began, recent = time.time(), 0.0
    for step, (images, truth) in enumerate(DataLoader(batches, batch_size=None, num_workers=1, prefetch_factor=4)):
        loss = loss_of(model(images.to(memory_format=torch.channels_last) / 255), truth)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        schedule.step()
        decay = min(EMA, (1 + step) / (10 + step))
        for ours, theirs in zip(mean.state_dict().values(), model.state_dict().values(), strict=True):
            ours.lerp_(theirs, 1 - decay) if ours.is_floating_point() else ours.copy_(theirs)
        recent = loss.item() if step == 0 else 0.98 * recent + 0.02 * loss.item()
        if step % 100 == 99:
            print(f"  step {step + 1:5d}/{len(batches)}  loss {recent:7.4f}  {time.time() - began:6.0f} s", flush=True)
    return mean


def train_detector(digits: data.Digits, stages: tuple[Stage, ...]) -> DetectionDecoder:
    torch.manual_seed(0)
    weights = DetectionDecoder().state_dict()  # convolutions do not know the image's size, so the stages share them
    for stage in stages:
        print(f"detector, {stage.size} x {stage.size}")
        model = DetectionDecoder(size=stage.size)
        model.load_state_dict(weights)
        weights = fit(model, Images(digits, stage), stage.rate, model.loss).state_dict()
    model = DetectionDecoder()
    model.load_state_dict(weights)
    return model


def train_classifier(digits: data.Digits, steps: int) -> Classifier:
    torch.manual_seed(0)
    crops = Crops(digits, steps)
    print(f"classifier, {len(crops.labels)} crops")
    return fit(Classifier(), crops, 3e-3, partial(F.cross_entropy, label_smoothing=0.05))


def export(model: nn.Module, path: Path, size: int, output: str, metadata: dict[str, str]) -> None:
    """Writes opset 13 with a dynamic batch, and the metadata under the keys that Ultralytics' exports use."""
    images = torch.zeros(2, 3, size, size)
    torch.onnx.export(
        model.eval().to(memory_format=torch.contiguous_format),
        (images,),
        str(path),
        opset_version=13,
        dynamo=False,  # the other exporter needs onnxscript
        input_names=["images"],
        output_names=[output],
        dynamic_axes={"images": {0: "batch"}, output: {0: "batch"}},
    )
    graph = onnx.load(path)
    dims = graph.graph.output[0].type.tensor_type.shape.dim
    for dim, number in zip(dims[1:], model(images).shape[1:], strict=True):
        dim.dim_value = number  # the tracer knows them, but leaves them open
    common = {"author": "infersdk", "version": "1", "license": "Apache-2.0; digits CC BY 4.0, doi:10.24432/C50P49"}
    names = str(dict(enumerate(data.NAMES)))
    onnx.helper.set_model_props(graph, {**common, "imgsz": str([size, size]), "names": names, **metadata})
    onnx.checker.check_model(graph, full_check=True)
    onnx.save(graph, path)


def measure_classifier(path: Path, canvases: list[data.Canvas]) -> dict[str, float]:
    """Accuracy on the digits of held-back images, cut square and cut stretched, with a margin of a tenth."""
    labels = np.concatenate([c.labels for c in canvases])
    result = {"crops": len(labels)}
    with load(path) as model:
        for name, square in (("square", True), ("stretched", False)):
            crops = [data.crop(c.image, box, square=square) for c in canvases for box in c.boxes]
            parts = [data.tensor(crops[i : i + 256]) for i in range(0, len(crops), 256)]
            result[name] = float((np.concatenate([model(part)["logits"] for part in parts]).argmax(1) == labels).mean())
    return result


def write_image(digits: data.Digits, out: Path) -> None:
    """The packaged image and its truth."""
    canvas = data.demo_canvas(digits)
    cv2.imwrite(str(out / "demo.jpg"), canvas.image[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 92])
    objects = [
        {"class_id": int(label), "label": data.NAMES[label], "box": [int(v) for v in box]}
        for box, label in zip(canvas.boxes, canvas.labels, strict=True)
    ]
    lines = ",\n    ".join(json.dumps(entry) for entry in objects)
    size = f'"width": {canvas.image.shape[1]}, "height": {canvas.image.shape[0]}'
    (out / "demo.json").write_text(
        f'{{\n  "image": "demo.jpg", {size},\n  "objects": [\n    {lines}\n  ]\n}}\n', "utf-8"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--out", type=Path, required=True, help="the folder to write to")
    parser.add_argument("--quick", action="store_true", help="a hundred steps each, to see that all works")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(2)
    cv2.setNumThreads(1)
    few = 100 if args.quick else None
    train, held = data.load_digits()
    write_image(held, args.out)
    canvases = [data.detector_canvas(held, (HELD, i)) for i in range(IMAGES)]

    path = args.out / "digits_classifier.onnx"
    classifier = train_classifier(train, few or CLASSIFIER_STEPS)
    about = {"description": "infersdk demo: a handwritten digit", "task": "classify", "stride": "1"}
    export(classifier, path, data.CROP, "logits", about)
    print(path.name, {**measure_classifier(path, canvases), **size_of(classifier, path)})

    path = args.out / "digits_detector.onnx"
    detector = train_detector(train, tuple(stage._replace(steps=few or stage.steps) for stage in STAGES))
    about = {"description": "infersdk demo: handwritten digits", "task": "detect", "stride": str(max(STRIDES))}
    export(Decoded(detector), path, data.SIZE, "output0", about)
    map50, map_all = data.mean_ap(path, canvases)
    digits = sum(len(canvas.labels) for canvas in canvases)
    figures = {"images": len(canvases), "digits": digits, "mAP50": map50, "mAP": map_all}
    print(path.name, {**figures, **size_of(detector, path)})


def size_of(model: nn.Module, path: Path) -> dict[str, int]:
    return {"parameters": sum(p.numel() for p in model.parameters()), "bytes": path.stat().st_size}


if __name__ == "__main__":
    main()
