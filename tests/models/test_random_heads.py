"""Detectors with random weights: native and graph decoding follow the rules for exact scores and boxes."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from detection_rules import Rules
from raw_head_models import FORMS, yolov5_model, yolov8_model
from raw_head_reference import decoded_yolov5, decoded_yolov8, ended, run

from infersdk.errors import UnsupportedModelError
from infersdk.models import YOLOv5, YOLOv8

pytest.importorskip("onnxruntime")
pytest.importorskip("openvino")
F = np.float32
BACKENDS = ["onnxruntime", "openvino"]


class Network:
    """A network with random weights and its image, which is random or of one colour: then many scores are equal."""

    def __init__(self, folder: Path, seed: int) -> None:
        draw = random.Random(seed)
        self.size = width, height = draw.choice([(96, 64), (64, 64), (128, 96), (160, 96)])
        self.scale = draw.choice([1, 1, 1, 5, 20])
        self.half = False
        form: dict[str, Any] = {"classes": draw.choice([1, 2, 3, 9, 20]), "size": self.size, "scale": self.scale}
        if draw.random() < 0.6:
            self.half = draw.random() < 0.25
            form |= {"form": draw.choice(list(FORMS)), "pointwise": draw.random() < 0.5}
            form |= {"dtype": np.float16} if self.half else {}
            self.kind, self.path = YOLOv5, yolov5_model(folder / "m.onnx", seed=seed, **form)
        else:
            form |= {name: draw.random() < 0.5 for name in ("separate", "last_axis")}
            form["bins"] = draw.choice([1, 4, 5, 16])
            if (self.size, form["bins"]) == ((64, 64), 4):  # distances of this shape look like maps: the graph is kept
                form["bins"] = 5
            self.kind, self.path = YOLOv8, yolov8_model(folder / "m.onnx", seed=seed, **form)
        pixels = (height, width, 3) if draw.random() < 0.8 else (1, 1, 3)
        drawn = np.random.default_rng(seed).integers(0, 256, pixels, np.uint8)
        self.image = np.ascontiguousarray(np.broadcast_to(drawn, (height, width, 3)))
        self.settings = [
            {
                "conf": draw.choice([0.0, 0.0, 1e-3, 0.05, 0.25, 0.25, 0.5, 0.7]),
                "iou": draw.choice([0.0, 0.3, 0.45, 0.45, 0.7, 1.0]),
                "max_det": draw.choice([1, 5, 20, 300, 300]),
                "max_candidates": draw.choice([0, 30000, 30000, 10, 50]),
                "multi_label": draw.random() < 0.4,
                "class_agnostic": draw.random() < 0.3,
            }
            for _ in range(3)
        ]

    def decoded(self) -> np.ndarray:
        """(rows, 5 + classes): what the formulas make of the maps, in float64."""
        content, head = ended(self.path)
        images = np.ascontiguousarray(self.image[None, :, :, ::-1].transpose(0, 3, 1, 2), F) * F(1 / 255)
        maps = run(content, images.astype(np.float16) if self.half else images)
        if self.kind is YOLOv5:
            return np.asarray(decoded_yolov5(head, maps)[0])
        rows = decoded_yolov8(head, maps)[0].T
        return np.insert(rows, 4, 1.0, axis=1)

    def rules(self, settings: dict[str, Any], *, in_half: bool) -> Rules:
        """A runtime that computes in float16 is as far off as that is: a logit of 32 by 0.03, and its score by 3 %."""
        if in_half:
            return Rules(**settings, score=2e-3 * (2 + self.scale), box=1.0, share=0.02)
        return Rules(**settings, score=4e-5 * self.scale, box=2e-3 * self.scale, share=1e-4)


def check(folder: Path, backends: list[str], seed: int) -> bool:
    """Compares a network with the formulas; False where a first run refuses its random scores."""
    network = Network(folder, seed)
    decoded = network.decoded()
    for backend, decode_head in itertools.product(backends, ("native", "graph")):
        with network.kind(network.path, backend, decode_head=decode_head) as model:
            in_half = network.half and (decode_head == "graph" or backend != "onnxruntime")
            for settings in network.settings:
                try:
                    found = model(network.image, **settings)
                except UnsupportedModelError:
                    return False
                broken = network.rules(settings, in_half=in_half).violations(found, decoded, network.size)
                assert not broken, (seed, backend, decode_head, settings)
    return True


@pytest.mark.parametrize("first", [0, 10])
def test_random_networks(tmp_path: Path, first: int) -> None:
    assert sum(check(tmp_path, [BACKENDS[seed % 2]], seed) for seed in range(first, first + 10)) >= 9


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("backend", BACKENDS)
def test_many_random_networks(tmp_path: Path, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFERSDK_CACHE", str(tmp_path / "cache"))  # each write lists all entries
    assert sum(check(tmp_path, [backend], seed) for seed in range(100, 550)) >= 440


@pytest.mark.parametrize("make", [yolov5_model, yolov8_model])
def test_scores_that_runtimes_round_to_zero_count_for_no_box(tmp_path: Path, make: Any) -> None:
    """Logits below -18 are 0 for one runtime, and 1e-8 or less for another one."""
    path = make(tmp_path / "m.onnx", size=(96, 64), scale=20)
    image, counts = np.random.default_rng(1).integers(0, 256, (64, 96, 3), np.uint8), []
    for decode_head in ("native", "graph"):
        kind = YOLOv5 if make is yolov5_model else YOLOv8
        with kind(path, decode_head=decode_head, conf=0.0, multi_label=True, max_det=10000) as model:
            found = model(image)
            assert float(found.scores.min()) > 1e-6
            counts.append(found.stats.candidates)
    assert counts[0] == pytest.approx(counts[1], rel=0.01)


@pytest.mark.parametrize("limits", [{"max_det": 4}, {"max_candidates": 4}])
def test_equal_scores_are_in_the_order_of_rows(tmp_path: Path, limits: dict[str, int]) -> None:
    """An image of one colour has the same scores in every cell of a level; a limit takes the first ones."""
    path = yolov5_model(tmp_path / "m.onnx", size=(96, 64), classes=1, pointwise=True)
    image, rows = np.full((64, 96, 3), 90, np.uint8), []
    for decode_head in ("native", "graph"):
        with YOLOv5(path, decode_head=decode_head, conf=0.01, iou=1.0, **limits) as model:
            found = model(image)
            assert len(set(found.scores.tolist())) == 1
            rows.append(found.data["row"].tolist())
    assert rows[0] == rows[1] == list(range(rows[0][0], rows[0][0] + 4))
