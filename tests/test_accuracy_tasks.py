"""Masks and keypoints on annotated images: heads that always give the same, against annotations that are known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from infersdk import cli
from infersdk.accuracy import Contender, DetectTask, PoseTask, SegmentTask, coco_task, gate
from infersdk.errors import ConfigError, UnsupportedModelError

pytest.importorskip("onnxruntime")
pytest.importorskip("pycocotools")

from head_models import head_model

#: What the models find in an image of 200 x 100, which lies at a scale of 0.32 on 64 x 64, below 16 rows of padding.
BOX = (50, 25, 100, 50)
POINTS = ((75.0, 50.0), (125.0, 62.5))


def annotations(folder: Path, entry: dict[str, Any]) -> tuple[Path, Path]:
    images = folder / "images"
    images.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (200, 100)).save(images / "a.png")
    data = {
        "images": [{"id": 5, "file_name": "a.png", "width": 200, "height": 100}],
        "categories": [{"id": 3, "name": "cat"}],
        "annotations": [{"image_id": 5, "category_id": 3, "bbox": list(BOX), **entry}],
    }
    (folder / "annotations.json").write_text(json.dumps(data))
    return folder / "annotations.json", images


def outlined(left: float, top: float, width: float, height: float) -> dict[str, Any]:
    return {"segmentation": [[left, top, left + width, top, left + width, top + height, left, top + height]]}


def posed(*points: tuple[float, float]) -> dict[str, Any]:
    return {"keypoints": [value for x, y in points for value in (x, y, 2)], "num_keypoints": len(points)}


def head(*extra: float) -> np.ndarray[Any, Any]:
    output = np.zeros((5 + len(extra), 84), np.float32)
    output[:, 20] = [32, 32, 32, 16, 0.9, *extra]
    return output


def segmenting(path: Path, inside: float = 9.0) -> Path:
    """A mask that fills its box; with `inside` below 0 an empty one."""
    prototypes = np.full((1, 16, 16), inside, np.float32)
    return head_model(path, [head(1.0), prototypes], {"names": "{0: 'cat'}", "task": "segment"})


def posing(path: Path) -> Path:
    points = [value for x, y in POINTS for value in (x * 0.32, y * 0.32 + 16, 0.9)]
    return head_model(path, [head(*points)], {"names": "{0: 'cat'}", "task": "pose", "kpt_shape": "[2, 3]"})


def test_masks(tmp_path: Path) -> None:
    model = Contender(segmenting(tmp_path / "m.onnx"))
    whole = SegmentTask(*annotations(tmp_path / "whole", outlined(*BOX)))
    assert whole.measure(model).figures == pytest.approx({"mask_mAP": 1, "mask_mAP50": 1, "mAP": 1, "mAP50": 1})
    part = SegmentTask(*annotations(tmp_path / "part", outlined(50, 25, 100, 36)))  # an IoU of 0.72: five of ten
    assert part.measure(model).figures == pytest.approx({"mask_mAP": 0.5, "mask_mAP50": 1, "mAP": 1, "mAP50": 1})
    empty = Contender(segmenting(tmp_path / "empty.onnx", -9))
    report = gate([model, empty], whole)
    assert not report.passes
    assert report.drop(report.scores[1]) == pytest.approx(1)
    assert report.scores[1].figures["mAP"] == pytest.approx(1)


def test_keypoints(tmp_path: Path) -> None:
    model = Contender(posing(tmp_path / "m.onnx"))
    exact = PoseTask(*annotations(tmp_path / "exact", posed(*POINTS)))
    assert exact.measure(model).figures == pytest.approx({"OKS_mAP": 1, "OKS_mAP50": 1, "mAP": 1, "mAP50": 1})
    # exp(-d^2 / (2 s^2 k^2)) with k = 2 / n = 1 and s^2 the area: 0.62 for a distance of 69 pixels, thrice in ten.
    apart = PoseTask(*annotations(tmp_path / "apart", posed(*((x, y + 69) for x, y in POINTS))))
    assert apart.measure(model).figures["OKS_mAP"] == pytest.approx(0.3)


def test_the_task_that_fits(tmp_path: Path) -> None:
    plain = annotations(tmp_path / "plain", {})
    whole = annotations(tmp_path / "whole", outlined(*BOX))
    assert type(coco_task("segment", *whole)) is SegmentTask
    assert type(coco_task("segment", *plain)) is type(coco_task("pose", *whole)) is DetectTask
    assert type(coco_task("pose", *annotations(tmp_path / "posed", posed(*POINTS)))) is PoseTask
    for kind, key in ((SegmentTask, "segmentation"), (PoseTask, "keypoints")):
        with pytest.raises(ConfigError, match=f"annotations have no {key}"):
            kind(*plain)


def test_a_model_without_nms_gets_no_overlap(tmp_path: Path) -> None:
    rows = np.zeros((300, 6), np.float32)
    rows[0] = 16, 24, 48, 40, 0.9, 0
    path = head_model(tmp_path / "m.onnx", [rows], {"names": "{0: 'cat'}"})
    assert DetectTask(*annotations(tmp_path, {})).measure(Contender(path)).figures["mAP"] == pytest.approx(1)


def test_a_model_that_gives_no_masks(tmp_path: Path) -> None:
    path = head_model(tmp_path / "m.onnx", [head()], {"names": "{0: 'cat'}"})
    with pytest.raises(UnsupportedModelError, match=r"m\.onnx gives no mask for its boxes"):
        SegmentTask(*annotations(tmp_path, outlined(*BOX))).measure(Contender(path))


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, (truth, images) = segmenting(tmp_path / "m.onnx"), annotations(tmp_path, outlined(*BOX))
    worse = segmenting(tmp_path / "worse.onnx", -9)
    options = ["--task", "segment", "--annotations", str(truth), "--data", str(images), "--json"]
    assert cli.main(["compare", str(model), str(worse), *options]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["metric"] == "mask_mAP"
    assert [score["figures"]["mask_mAP"] for score in report["scores"]] == pytest.approx([1, 0])
    assert cli.main(["compare", str(model), "--task", "pose", "--data", str(images)]) == 2
    assert "--task pose needs --annotations" in capsys.readouterr().err


def test_in_a_benchmark(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for model, metric, entry in (
        (segmenting(tmp_path / "m.onnx"), "mask_mAP", outlined(*BOX)),
        (posing(tmp_path / "p.onnx"), "OKS_mAP", posed(*POINTS)),
    ):
        truth, images = annotations(tmp_path / metric, entry)
        command = ["bench", str(model), "--backends", "onnxruntime", "--time", "0.2", "--rounds", "1", "--starts", "0"]
        assert cli.main([*command, "--annotations", str(truth), "--data", str(images), "--json"]) == 0
        (row,) = json.loads(capsys.readouterr().out)["rows"]
        assert row["accuracy"]["metric"] == metric
        assert row["accuracy"]["value"] == pytest.approx(1)
