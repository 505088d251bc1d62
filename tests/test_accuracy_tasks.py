"""Masks, keypoints and class maps on labelled images: heads that always give the same, against known annotations."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from infersdk import cli
from infersdk.accuracy import Contender, DetectTask, PoseTask, SegmentTask, SemanticTask, gate, labelled_task
from infersdk.bench import BenchSettings, combine
from infersdk.bench.worker import Worker
from infersdk.data import DETECTOR
from infersdk.errors import ConfigError, UnsupportedModelError
from infersdk.models import YOLOv5

pytest.importorskip("onnxruntime")
pytest.importorskip("pycocotools")

from head_models import head_model
from labelled import coco_set
from raw_head_models import yolov5_model

#: Arguments of `infersdk bench` where no time counts.
QUICK = ("--time", "0.2", "--rounds", "1", "--warmup", "0.1", "--starts", "0")
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


@pytest.mark.parametrize("type_name", [None, "yolov5"])
def test_boxes_are_decoded_as_load_does(
    tmp_path: Path, type_name: str | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = yolov5_model(tmp_path / "m.onnx", size=(96, 96))
    truth, images = annotations(tmp_path, {})
    names = ["cat", "dog", "cow"]
    scores = [
        DetectTask(truth, images, type=type_name, names=names, **own).measure(Contender(model))
        for own in ({}, {"decode_head": "graph"}, {"decode_head": "native"})
    ]
    assert [score.decode_head for score in scores] == ["native", "graph", "native"]
    for score in scores:
        assert len(score.results[0]) == len(scores[1].results[0]) > 50
        assert score.figures == pytest.approx(scores[1].figures, abs=1e-6)
    file = tmp_path / "names.txt"
    file.write_text("\n".join(names))
    monkeypatch.setenv("COLUMNS", "200")
    command = ["compare", model, "--task", "detect", "--annotations", truth, "--data", images, "--names", file]
    command += ["--candidate", "onnxruntime/fp32=" + str(model), *(["--type", type_name] if type_name else [])]
    assert cli.main([str(one) for one in command]) == 0
    assert "native head" in capsys.readouterr().out
    assert cli.main([*map(str, command), "--json", "--decode-head", "graph"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [score["decode_head"] for score in report["scores"]] == ["graph", "graph"]


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
    uncounted = {"keypoints": posed(*POINTS)["keypoints"]}
    figures = PoseTask(*annotations(tmp_path / "uncounted", uncounted)).measure(model).figures
    assert figures["OKS_mAP"] == pytest.approx(1)
    # exp(-d^2 / (2 s^2 k^2)) with k = 2 / n = 1 and s^2 the area: 0.62 for a distance of 69 pixels, thrice in ten.
    apart = PoseTask(*annotations(tmp_path / "apart", posed(*((x, y + 69) for x, y in POINTS))))
    assert apart.measure(model).figures["OKS_mAP"] == pytest.approx(0.3)


def test_the_task_that_fits(tmp_path: Path) -> None:
    plain = annotations(tmp_path / "plain", {})
    whole = annotations(tmp_path / "whole", outlined(*BOX))
    points = annotations(tmp_path / "posed", posed(*POINTS))

    def kind(task: str, data: tuple[Path, Path]) -> type:
        return type(labelled_task(data[1], annotations=data[0], task=task))

    assert kind("segment", whole) is SegmentTask
    assert kind("segment", plain) is kind("pose", whole) is DetectTask
    assert kind("pose", points) is PoseTask
    for kind, key in ((SegmentTask, "segmentation"), (PoseTask, "keypoints")):
        with pytest.raises(ConfigError, match=f"annotations have no {key}"):
            kind(*plain)


def test_annotations_of_which_one_lacks_the_field(tmp_path: Path) -> None:
    """One without keypoints is ignored among them, as one with keypoints that are not visible."""
    for name, entry in (("points", posed(*POINTS)), ("masks", outlined(*BOX))):
        file, _ = annotations(tmp_path / name, entry)
        data = json.loads(file.read_text())
        data["annotations"].append({"image_id": 5, "category_id": 3, "bbox": [0, 0, 20, 20]})
        file.write_text(json.dumps(data))
    figures = PoseTask(tmp_path / "points" / "annotations.json", tmp_path / "points" / "images").measure(
        Contender(posing(tmp_path / "m.onnx"))
    )
    assert figures.figures["OKS_mAP"] == pytest.approx(1)
    with pytest.raises(ConfigError, match="1 of the 2 annotations have no segmentation"):
        SegmentTask(tmp_path / "masks" / "annotations.json", tmp_path / "masks" / "images")
    with pytest.raises(ConfigError, match="1 of the 1 annotations have no keypoints"):
        PoseTask(*annotations(tmp_path / "hidden", {"keypoints": [50, 25, 0, 60, 30, 0]}))


def test_keypoints_of_crowds_are_none(tmp_path: Path) -> None:
    file, images = annotations(tmp_path, posed(*POINTS))
    data = json.loads(file.read_text())
    data["annotations"].append(data["annotations"][0] | {"iscrowd": 1})
    data["annotations"][0] |= {"keypoints": [0] * 6, "num_keypoints": 0}
    file.write_text(json.dumps(data))
    with pytest.raises(ConfigError, match=r"1 of the 2 annotations have no keypoints; those of crowds .* do not count"):
        PoseTask(file, images)
    assert type(labelled_task(images, annotations=file, task="pose")) is DetectTask


def without_sizes(folder: Path, entry: dict[str, Any]) -> tuple[Path, Path]:
    """The annotations of a file that does not have the sizes of its images."""
    file, images = annotations(folder, entry)
    data = json.loads(file.read_text())
    for side in ("width", "height"):
        del data["images"][0][side]
    file.write_text(json.dumps(data))
    return file, images


def test_sizes_of_images_come_from_the_images(tmp_path: Path) -> None:
    model = Contender(segmenting(tmp_path / "m.onnx"))
    figures = SegmentTask(*without_sizes(tmp_path, outlined(*BOX))).measure(model).figures
    assert figures == pytest.approx({"mask_mAP": 1, "mask_mAP50": 1, "mAP": 1, "mAP50": 1})


@pytest.mark.parametrize(
    "mask",
    ["abc", [[1, 2]], [["a"] * 6], [[0, 0, 9, 9, 0, float("nan")]], {"counts": [5, 95]}, {"size": [10, 10]},
     {"size": [10, 10], "counts": [5, 9]}],
)  # fmt: skip
def test_masks_of_annotations_that_are_wrong(tmp_path: Path, mask: Any) -> None:
    data = annotations(tmp_path, {"segmentation": mask})
    DetectTask(*data)
    with pytest.raises(ConfigError, match="annotation 1 has the segmentation .*, which is neither polygons nor run"):
        SegmentTask(*data)


def test_annotations_that_do_not_fit_the_results(tmp_path: Path) -> None:
    other_size = annotations(tmp_path / "size", {"segmentation": {"size": [10, 10], "counts": [5, 95]}})
    segments = Contender(segmenting(tmp_path / "m.onnx"))
    assert DetectTask(*other_size).measure(segments).figures["mAP"] == pytest.approx(1)
    with pytest.raises(ConfigError, match=r"annotation 1 has a mask of .*\[10, 10\] in an image of \[100, 200\]; give"):
        SegmentTask(*other_size).measure(segments)
    three = annotations(tmp_path / "three", posed(*POINTS, (1.0, 1.0)))
    with pytest.raises(ConfigError, match="annotation 1 has 3 keypoints, and the model finds 2; give"):
        PoseTask(*three).measure(Contender(posing(tmp_path / "p.onnx")))


def test_the_annotations_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (file, images), read_text, read = annotations(tmp_path, outlined(*BOX)), Path.read_text, []

    def reading(self: Path, *arguments: str) -> str:
        read.append(self)
        return read_text(self, *arguments)

    monkeypatch.setattr(Path, "read_text", reading)
    assert labelled_task(images, annotations=file, task="segment").images == 1
    assert read == [Path(file)]


class Fixed(YOLOv5):
    """A wrapper whose calls cannot change its threshold."""

    per_call = YOLOv5.per_call - {"conf"}


def test_settings_of_the_wrapper(tmp_path: Path) -> None:
    data, model = coco_set(tmp_path), Contender(DETECTOR)
    figures = DetectTask(*data).measure(model).figures
    assert DetectTask(*data, options={"threads": 1}).measure(model).figures == figures
    assert DetectTask(*data, canvas="fit").measure(model).figures == pytest.approx(figures, abs=0.01)
    assert DetectTask(*data, conf=0.9).measure(model).figures["mAP"] < figures["mAP"]
    own = f"{__name__}:Fixed"
    assert DetectTask(*data, type=own, conf=0.001).measure(model).figures == figures
    with pytest.raises(ConfigError, match=r"mAP is measured with conf=0\.001, which is not in per_call of Fixed"):
        DetectTask(*data, type=own).measure(model)


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


def test_in_a_benchmark(tmp_path: Path) -> None:
    for model, metric, entry in (
        (segmenting(tmp_path / "m.onnx"), "mask_mAP", outlined(*BOX)),
        (posing(tmp_path / "p.onnx"), "OKS_mAP", posed(*POINTS)),
    ):
        truth, images = annotations(tmp_path / metric, entry)
        settings = BenchSettings(
            time=0.01, rounds=1, warmup=0.01, scenarios=["engine"], data=str(images), annotations=str(truth)
        )
        worker = Worker()
        worker.load(combine([model])[0], settings)
        worker.prepare()
        accuracy = worker.accuracy()
        assert accuracy.metric == metric
        assert accuracy.value == pytest.approx(1)


# ---- semantic segmentation ----

#: The class maps that the model gives: its left half is class 0, its right half class 1.
CLASSES = {"names": "{0: 'grass', 1: 'road'}", "task": "semantic"}


def mapping(path: Path) -> Path:
    scores = np.zeros((2, 64, 64), np.float32)
    scores[0, :, :32] = scores[1, :, 32:] = 5
    return head_model(path, [scores], CLASSES)


def label_maps(folder: Path, *maps: np.ndarray[Any, Any]) -> tuple[Path, Path]:
    """Images of 200 x 100, and a label map of each."""
    images, labels = folder / "images", folder / "labels"
    images.mkdir(parents=True)
    labels.mkdir()
    for number, pixels in enumerate(maps):
        Image.new("RGB", (200, 100)).save(images / f"{number}.jpg")
        Image.fromarray(pixels).save(labels / f"{number}.png")
    return images, labels


def halves(middle: int = 100, *, ignored: int = 0) -> np.ndarray[Any, Any]:
    pixels = np.zeros((100, 200), np.uint8)
    pixels[:, middle:] = 1
    pixels[:ignored] = 255
    return pixels


def test_class_maps(tmp_path: Path) -> None:
    model = Contender(mapping(tmp_path / "m.onnx"))
    exact = SemanticTask(*label_maps(tmp_path / "exact", halves(), halves(ignored=90)))
    assert exact.images == 2
    assert exact.measure(model).figures == {"mIoU": 1, "pixels": 1}
    # 10,000 pixels of each class are found; of 15,000 and 5,000: IoU 2/3 and 1/2.
    apart = SemanticTask(*label_maps(tmp_path / "apart", halves(150)))
    assert apart.measure(model).figures == pytest.approx({"mIoU": (2 / 3 + 1 / 2) / 2, "pixels": 0.75})
    # A class that is labelled nowhere and found in half of the image counts, with an IoU of 0.
    alone = SemanticTask(*label_maps(tmp_path / "alone", halves(200)))
    assert alone.measure(model).figures == pytest.approx({"mIoU": 0.25, "pixels": 0.5})


def test_label_maps_that_do_not_fit(tmp_path: Path) -> None:
    model = Contender(mapping(tmp_path / "m.onnx"))
    for number, (pixels, words) in enumerate((
        (np.full((100, 200), 7, np.uint8), r"0\.png' has class 7, and the model has 2 classes, 0 to 1"),
        (np.zeros((100, 100), np.uint8), r"100 x 100 pixels, and its image 200 x 100"),
        (np.zeros((100, 200, 3), np.uint8), "pixels of kind RGB"),
    )):  # fmt: skip
        task = SemanticTask(*label_maps(tmp_path / str(number), pixels))
        with pytest.raises(ConfigError, match=words):
            task.measure(model)
    if hasattr(os, "mkfifo"):
        images, labels = label_maps(tmp_path / "pipe", halves())
        task = SemanticTask(images, labels)
        (labels / "0.png").unlink()
        os.mkfifo(labels / "0.png")
        with pytest.raises(ConfigError, match=r"cannot read the label map .*0\.png': .*it is not a regular file"):
            task.measure(model)
    images, labels = label_maps(tmp_path / "missing", halves())
    (labels / "0.png").rename(labels / "1.png")
    with pytest.raises(ConfigError, match=r"the image '0\.jpg' has no label map"):
        SemanticTask(images, labels)
    (labels / "1.png").unlink()
    (labels / "area").mkdir()
    Image.fromarray(halves()).save(labels / "area" / "0.png")
    with pytest.raises(ConfigError, match="the model gives one map, and the label maps are the maps area"):
        SemanticTask(images, labels).measure(model)
    for wrong in ((tmp_path / "none", labels), (images, tmp_path / "none")):
        with pytest.raises(ConfigError, match="no folder of"):
            SemanticTask(*wrong)
    task = SemanticTask(*label_maps(tmp_path / "boxes", halves()))
    with pytest.raises(UnsupportedModelError, match="gives no class maps"):
        task.measure(Contender(segmenting(tmp_path / "d.onnx")))


def test_models_of_several_maps(tmp_path: Path) -> None:
    area, lanes = np.zeros((2, 64, 64), np.float32), np.zeros((2, 64, 64), np.float32)
    area[0, :, :32] = area[1, :, 32:] = lanes[0] = 5
    model = head_model(tmp_path / "m.onnx", [area, lanes], {})
    images, labels = label_maps(tmp_path, halves(150))
    for name, pixels in (("area", halves()), ("lanes", halves(150))):
        (labels / name).mkdir()
        Image.fromarray(pixels).save(labels / name / "0.png")
    (labels / "0.png").unlink()
    figures = SemanticTask(images, labels, type="twinlitenet").measure(Contender(model)).figures
    assert figures["area_mIoU"] == 1
    assert figures["lanes_mIoU"] == pytest.approx(0.75 / 2)
    assert figures["mIoU"] == pytest.approx((1 + 0.75 / 2) / 2)


def test_class_maps_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, (images, labels) = mapping(tmp_path / "m.onnx"), label_maps(tmp_path, halves(150))
    options = ["--data", str(images), "--labels", str(labels), "--json"]
    assert cli.main(["compare", str(model), "--task", "semantic", "--backends", "onnxruntime,openvino", *options]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["metric"] == "mIoU"
    assert [score["figures"]["mIoU"] for score in report["scores"]] == pytest.approx([7 / 12, 7 / 12])
    assert cli.main(["compare", str(model), "--task", "semantic", "--data", str(images)]) == 2
    assert "--task semantic needs --labels" in capsys.readouterr().err
    command = ["bench", str(model), "--backends", "onnxruntime", *QUICK]
    assert cli.main([*command, *options]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["kind"], data["schema"]) == ("infersdk-bench", 1)
    (row,) = data["rows"]
    assert row["accuracy"]["metric"] == "mIoU"
    assert row["accuracy"]["value"] == pytest.approx(7 / 12)
