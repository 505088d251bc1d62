"""What a model is worth on labelled images, and the gate."""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infersdk.accuracy import (
    ClassifyTask,
    CocoTruth,
    Contender,
    DetectTask,
    GateReport,
    Score,
    agreement,
    coco_figures,
    gate,
    iou_figures,
    read_coco,
    read_labels,
    top_figures,
)
from infersdk.data import CLASSIFIER, CLASSIFIER_SETTINGS, DETECTOR, IMAGE
from infersdk.errors import ConfigError, InputError, PrecisionUnavailableError, UnsupportedModelError
from infersdk.models import Classifier, Detections, YOLOv5

pytest.importorskip("onnxruntime")
pytest.importorskip("pycocotools")

from labelled import NAMES, coco_set, crops, damaged


def digits(**settings: Any) -> YOLOv5:
    return YOLOv5(DETECTOR, conf=0.001, iou=0.6, multi_label=True, **settings)


# ---- detection ----


def test_categories_are_found_by_name_and_by_order(tmp_path: Path) -> None:
    """The ids have gaps, and may come in any order: that changes nothing."""
    straight = read_coco(*coco_set(tmp_path / "a"))
    shuffled = read_coco(*coco_set(tmp_path / "b", order=[9, 1, 8, 2, 7, 3, 6, 4, 5, 0]))
    assert straight.categories[1] == (8, "one")
    with digits() as named:
        assert tuple(named.class_names) == tuple(NAMES)
        figures = coco_figures(named, straight)
        assert figures == coco_figures(named, shuffled)
    assert 0.6 < figures["mAP"] < figures["mAP50"] <= 1
    with digits(names=[]) as nameless:  # by order, which is right for one of them
        assert coco_figures(nameless, straight) == figures
        assert coco_figures(nameless, shuffled)["mAP"] < 0.5


@pytest.mark.parametrize("ids", [lambda number: number, lambda number: f"box {number}"], ids=["from 0", "strings"])
def test_ids_of_annotations_do_not_change_figures(tmp_path: Path, ids: Callable[[int], Any]) -> None:
    plain = coco_set(tmp_path)
    with digits() as model:
        figures = coco_figures(model, read_coco(*plain))
        data = json.loads(plain[0].read_text())
        for number, entry in enumerate(data["annotations"]):
            entry["id"] = ids(number)
        plain[0].write_text(json.dumps(data))
        assert coco_figures(model, read_coco(*plain)) == figures


def truth(*names: str) -> CocoTruth:
    return CocoTruth({}, tuple((10 * i, name) for i, name in enumerate(names)), {})


def test_categories_and_classes() -> None:
    assert truth("b", "a").category_ids(["a", "b"], 2) == {0: 10, 1: 0}
    assert truth("b").category_ids(["a", "b", "c"], 3) == {1: 0}, "classes that are not annotated are left out"
    assert truth("a", "motorbike").category_ids(["a", "motorcycle"], 2) == {0: 0, 1: 10}, "by order"
    assert truth("a", "b").category_ids([], 2) == {0: 0, 1: 10}
    with pytest.raises(ConfigError, match=r"has 3 classes, and the annotations have 2 categories; give"):
        truth("a", "b").category_ids([], 3)
    with pytest.raises(ConfigError, match=r"has 3 classes, .* 2 categories, nor .* \('d' is missing\)"):
        truth("a", "d").category_ids(["a", "b", "c"], 3)
    assert truth("a", "a").category_ids(["a", "a"], 2) == {0: 0, 1: 10}, "by order"
    with pytest.raises(ConfigError, match="categories 0 and 20 of the annotations are both called 'a'.* join them"):
        truth("a", "b", "a").category_ids(["a", "b", "c"], 3)
    with pytest.raises(ConfigError, match="class 1 of the model is 'a', which is number 0 among the categories"):
        truth("a", "b", "c").category_ids(["x", "a", "y"], 3)


def test_the_wrong_number_of_classes_is_seen_before_the_images(tmp_path: Path) -> None:
    annotations, images = coco_set(tmp_path)
    data = json.loads(annotations.read_text())
    data["categories"].append({"id": 90, "name": "ten"})
    annotations.write_text(json.dumps(data))
    found = read_coco(annotations, images)
    for image in images.iterdir():
        image.write_bytes(b"")
    with digits() as model, pytest.raises(ConfigError, match=r"10 classes, .* 11 categories.*'ten' is missing"):
        coco_figures(model, found)


def test_a_model_that_finds_nothing_has_a_map_of_0(tmp_path: Path) -> None:
    with YOLOv5(DETECTOR, conf=1.0) as blind:
        assert coco_figures(blind, read_coco(*coco_set(tmp_path))) == {"mAP": 0.0, "mAP50": 0.0}


def test_the_evaluators_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("faster_coco_eval")
    found = read_coco(*coco_set(tmp_path))
    with digits() as model:
        figures = coco_figures(model, found)
        monkeypatch.setitem(sys.modules, "pycocotools.coco", None)
        assert coco_figures(model, found) == pytest.approx(figures, abs=1e-9)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: data.pop("images"), "not a COCO annotation file: it has no list 'images'"),
        (lambda data: data.update(annotations=[]), "has no annotations: there is nothing to measure by"),
        (lambda data: data.update(images=[]), "has no images"),
        (lambda data: data["annotations"][0].pop("bbox"), "not a COCO annotation file: 'bbox' is missing"),
        (lambda data: data["annotations"][0].update(bbox=[1, 2, 3]), "not a COCO annotation file"),
        (lambda data: data["annotations"][0].update(bbox=[1, 2, -3, 4]), r"annotation 1 has the bbox \[1, 2, -3, 4\]"),
        (lambda data: data["annotations"][1].update(bbox=[1, 2, float("nan"), 4]), "annotation 2 has the bbox .*nan"),
        (lambda data: data["annotations"][0].update(area=-1), "the area -1"),
        (lambda data: data["annotations"][0].update(keypoints="abc"), "annotation 1 has the keypoints 'abc', not x, y"),
        (lambda data: data["annotations"][0].update(keypoints=[1] * 50), r"annotation 1 has the keypoints \[1, 1"),
        (lambda data: data["images"].append({"id": "x", "file_name": "1.png"}), "ids of its images .*'x'.* or strings"),
        (lambda data: data["images"].append(data["images"][0]), "has 4 images with 3 ids; give each its own"),
        (lambda data: data["categories"].append(data["categories"][0]), "has 11 categories with 10 ids"),
        (lambda data: data["annotations"][0].update(image_id=7), "an annotation has the image_id 7"),
        (lambda data: data["annotations"][0].update(image_id=[1]), r"the image_id \[1\] is not a number or a string"),
        (
            lambda data: [entry.update(iscrowd=1) for entry in data["annotations"]],
            "all annotations of .* have iscrowd=1",
        ),
        (lambda data: data["annotations"][0].update(category_id=6), "an annotation has the category_id 6"),
        (lambda data: data["images"][0].update(file_name="x.jpg"), r"1 of the 3 images .* not in .*'x\.jpg'"),
        (
            lambda data: [image.update(file_name=f"x/{image['id']}") for image in data["images"]],
            "3 of the 3 images of instances.json are not in .*is it the right folder",
        ),
    ],
)
def test_annotations_that_are_wrong(tmp_path: Path, change: Callable[[Any], Any], words: str) -> None:
    annotations, images = coco_set(tmp_path)
    data = json.loads(annotations.read_text())
    change(data)
    annotations.write_text(json.dumps(data))
    with pytest.raises(ConfigError, match=words):
        read_coco(annotations, images)


def test_annotations_that_are_not_there(tmp_path: Path) -> None:
    annotations, images = coco_set(tmp_path)
    with pytest.raises(ConfigError, match=r"cannot read the annotations .*none\.json'"):
        read_coco(tmp_path / "none.json", images)
    with pytest.raises(ConfigError, match="no folder of images at .*none"):
        read_coco(annotations, tmp_path / "none")
    annotations.write_text("no json")
    with pytest.raises(ConfigError, match="is not JSON"):
        read_coco(annotations, images)
    annotations.write_text("[1]")
    with pytest.raises(ConfigError, match="not a COCO annotation file"):
        read_coco(annotations, images)


# ---- classification ----


def test_labels_by_folder_number_and_file(tmp_path: Path) -> None:
    by_folder = read_labels(crops(tmp_path / "a"))
    by_number = read_labels(crops(tmp_path / "b", "numbers"))
    plain = crops(tmp_path / "c", "plain")
    names = sorted((file.name for file in plain.iterdir()), key=lambda name: int(name.split()[1][:-4]))
    labels = sorted(by_folder, key=lambda p: int(p.file.stem))
    assert {p.label for p in by_folder} <= set(NAMES)
    assert {p.label for p in by_number} <= set(range(10))
    with Classifier(CLASSIFIER, **CLASSIFIER_SETTINGS) as model:
        figures = top_figures(model, by_folder)
        assert top_figures(model, by_number) == figures
        narrow = Classifier(CLASSIFIER, **{**CLASSIFIER_SETTINGS, "top_k": 1})
        with narrow, pytest.raises(ConfigError, match="1 classes, too few for top5; give top_k=5 or more"):
            top_figures(narrow, by_number)
        for sign in (",", "\t", " "):
            lines = [f"{name}{sign}{p.label}" for name, p in zip(names, labels, strict=True)]
            (tmp_path / "labels.txt").write_text("\n".join([*lines, ""]), "utf-8-sig")
            assert top_figures(model, read_labels(plain, tmp_path / "labels.txt")) == figures
    assert 0.6 < figures["top1"] <= figures["top5"] <= 1


def test_labels_that_are_wrong(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no folder of images"):
        read_labels(tmp_path / "none")
    with pytest.raises(ConfigError, match="no image in .*, nor a folder for each class"):
        read_labels(tmp_path)
    (tmp_path / "one").mkdir()
    with pytest.raises(ConfigError, match="no folder in .* has an image in it"):
        read_labels(tmp_path)
    plain = crops(tmp_path / "plain", "plain")
    with pytest.raises(ConfigError, match=r"digit 0\.png' has no label: its name does not begin"):
        read_labels(plain)
    file = tmp_path / "labels.csv"
    for text, words in [
        ("", "has no labels in it"),
        ("digit 0.png,3\nalone", r"line 2: 'alone' is not an image name and a label"),
        ("digit 0.png,3,cat", r"line 1: the label '3,cat' is not a number from 0 or a name; write an image and"),
        ("digit 0.png\t3\tcat", "line 1: the label .* is not a number from 0 or a name"),
        ("digit 0.png,-1", "line 1: the label '-1' is not a number from 0 or a name"),
        ("digit 0.png,3\nnone.png,4", r"line 2: there is no image .*none\.png"),
    ]:
        file.write_text(text)
        with pytest.raises(ConfigError, match=words):
            read_labels(plain, file)
    with pytest.raises(ConfigError, match="cannot read the labels"):
        read_labels(plain, tmp_path / "none.csv")


def test_labels_that_the_model_does_not_know(tmp_path: Path) -> None:
    folder = crops(tmp_path)
    first = min(folder.iterdir())
    unknown = r"label 'nought' is not a class of the model, .* as 'zero'; .*labels do not fit"
    with Classifier(CLASSIFIER, **CLASSIFIER_SETTINGS) as model:
        first.rename(folder / "nought")
        with pytest.raises(ConfigError, match=unknown):
            top_figures(model, read_labels(folder))
        (folder / "nought").rename(folder / "10")
        with pytest.raises(ConfigError, match=r"is labelled 10, and the model has 10 classes, 0 to 9"):
            top_figures(model, read_labels(folder))


@pytest.mark.parametrize("form", ["{}.0", "{}e0", "+{}"])
def test_numbers_in_another_form_have_no_order(tmp_path: Path, form: str) -> None:
    for number in range(10):
        folder = tmp_path / form.format(number)
        folder.mkdir()
        shutil.copy(IMAGE, folder)
    message = r"do not fit .*, none of them a number; .* whole numbers from 0"
    with Classifier(CLASSIFIER, **CLASSIFIER_SETTINGS) as model, pytest.raises(ConfigError, match=message):
        top_figures(model, read_labels(tmp_path))


# ---- the gate ----


def test_the_gate_tells_a_damaged_model(tmp_path: Path) -> None:
    task = DetectTask(*coco_set(tmp_path / "data"))
    worse = damaged(tmp_path / "worse.onnx")
    report = gate([Contender(DETECTOR), Contender(worse), Contender(DETECTOR, "onnxruntime/fp32")], task)
    reference, bad, same = report.scores
    assert (report.metric, report.images, report.reference) == ("mAP", 3, reference)
    assert not report.passes
    assert report.drop(bad) > 0.05
    assert [report.within(score) for score in report.scores] == [True, False, True]
    assert same.figures == reference.figures
    assert (bad.model, bad.backend, bad.device, bad.precision) == (str(worse), "onnxruntime", "cpu", "fp32")
    assert set(bad.layers) == {"fp32"}
    # The other way round it is a gain, and a drop that is allowed is none.
    assert gate([Contender(worse), Contender(DETECTOR)], task, max_drop=0).passes
    assert replace(report, max_drop=report.drop(bad)).passes
    assert not replace(report, max_drop=report.drop(bad) - 1e-6).passes


def test_the_gate_over_backends_and_precisions(tmp_path: Path) -> None:
    ov = pytest.importorskip("openvino")
    task = ClassifyTask(crops(tmp_path), **CLASSIFIER_SETTINGS)
    sides = ["onnxruntime", "openvino"]
    if "BF16" in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        sides.append("openvino/bf16")
    seen: list[str] = []
    report = gate([Contender(CLASSIFIER, s) for s in sides], task, progress=lambda c: seen.append(c.side))
    assert seen == sides
    assert [score.precision for score in report.scores] == ["fp32", "fp32", "bf16"][: len(sides)]
    assert report.passes
    assert report.metric == "top1"
    # What cannot be given is an error, and no figure.
    with pytest.raises(PrecisionUnavailableError, match="int8"):
        gate([Contender(CLASSIFIER), Contender(CLASSIFIER, "openvino/int8")], task)


def test_wrong_use_of_the_gate(tmp_path: Path) -> None:
    task = ClassifyTask(crops(tmp_path), **CLASSIFIER_SETTINGS)
    with pytest.raises(ConfigError, match="two or more different contenders"):
        gate([Contender(CLASSIFIER)], task)
    with pytest.raises(ConfigError, match="two or more different contenders"):
        gate([Contender(CLASSIFIER), Contender(CLASSIFIER)], task)
    with pytest.raises(ConfigError, match=r"a contender is Contender\(model, side\), not 'a\.onnx'"):
        gate(["a.onnx", "b.onnx"], task)
    two = [Contender(CLASSIFIER), Contender(CLASSIFIER, "openvino")]
    for wrong in (1.5, "a", None):
        with pytest.raises(ConfigError, match=f"max_drop is a number from 0 to 1, 0.01 say, not {wrong!r}"):
            gate(two, task, max_drop=wrong)
    with pytest.raises(ConfigError, match="max_score_shift is a number from 0, not 'a'"):
        gate(two, task, max_score_shift="a")
    for wrong in ("5", None):
        with pytest.raises(ConfigError, match="top_k"):
            ClassifyTask(crops(tmp_path / f"{wrong}"), top_k=wrong).measure(Contender(CLASSIFIER))
    with pytest.raises(ConfigError, match="does not name a backend"):
        gate([Contender(CLASSIFIER), Contender(CLASSIFIER, "@cpu")], task)
    with pytest.raises(
        UnsupportedModelError, match=r"digits_classifier\.onnx on onnxruntime: .*looks like a classifier"
    ):
        gate([Contender(CLASSIFIER), Contender(CLASSIFIER, "openvino")], DetectTask(*coco_set(tmp_path / "coco")))
    with pytest.raises(UnsupportedModelError, match="; YOLOv5 gives no classes to compare with the labels"):
        ClassifyTask(crops(tmp_path), type="yolov5").measure(Contender(DETECTOR))


def test_figures_need_images() -> None:
    for figures in (top_figures, iou_figures):
        with pytest.raises(InputError, match="no images to measure by"):
            figures(None, [])


# ---- real ones ----


@pytest.mark.assets
def test_the_figures_of_a_classifier(assets: Path) -> None:
    pytest.importorskip("openvino")
    task = ClassifyTask(assets / "imagenet", preset="caffe", resize=256)
    path = assets / "models" / "squeezenet1.1.onnx"
    report = gate([Contender(path, "onnxruntime"), Contender(path, "openvino")], task, max_drop=0)
    assert report.passes
    assert [score.figures["top1"] for score in report.scores] == [0.64, 0.64]


# ---- agreement, and shifts of scores ----


def boxes(*rows: tuple[int, float, float]) -> Detections:
    """Boxes of 10 x 10 by class, score, and how far to the right they are."""
    xyxy = np.asarray([(x, 0, x + 10, 10) for _, _, x in rows], np.float32).reshape(-1, 4)
    return Detections.of(
        xyxy, [score for _, score, _ in rows], [kind for kind, _, _ in rows], names=(), size=(100, 100)
    )


def test_agreement_of_boxes() -> None:
    reference = [boxes((0, 0.9, 0), (1, 0.6, 50)), boxes()]
    assert agreement(reference, reference).percent == pytest.approx(100)
    lower = agreement(reference, [boxes((0, 0.5, 0), (1, 0.6, 50)), boxes()])
    assert lower.percent == pytest.approx(100 * 2 * (0.5 + 0.6) / (1.5 + 1.1), rel=1e-5)
    assert lower.score_shift == pytest.approx(-0.2)
    moved = agreement(reference, [boxes((0, 0.9, 2), (1, 0.6, 50)), boxes()])
    assert moved.percent == pytest.approx(100 * (0.9 * 8 / 12 + 0.6) / 1.5, rel=1e-4)
    other = agreement(reference, [boxes((2, 0.9, 0), (1, 0.6, 50)), boxes()])  # another class
    assert other.percent == pytest.approx(100 * 0.6 / 1.5, rel=1e-5)
    twice = agreement([boxes((0, 0.9, 0))], [boxes((0, 0.9, 0), (0, 0.8, 0))])  # the second has nothing to match
    assert twice.percent == pytest.approx(100 * 2 * 0.9 / (0.9 + 1.7), rel=1e-5)
    with pytest.raises(InputError, match="2 results against 1"):
        agreement(reference, [boxes()])


def test_shifts_are_of_what_a_user_sees() -> None:
    reference = [boxes((0, 0.85, 0), (1, 0.02, 50))]
    found = [boxes((0, 0.45, 0), (1, 0.01, 50))]
    assert agreement(reference, found, min_score=0.25).score_shift == pytest.approx(-0.4)
    assert agreement(reference, found, min_score=0.01).score_shift == pytest.approx(-0.205)
    assert math.isnan(agreement([boxes((1, 0.02, 50))], found, min_score=0.25).score_shift), "none of those matches"
    assert agreement([boxes()], [boxes((1, 0.02, 50))], min_score=0.25).score_shift == 0, "neither has one"


def test_the_gate_limits_shifts_of_scores() -> None:
    """The same mAP with half the scores: no ranking changes, and a user sees the difference."""

    class Halving:
        metric, images = "mAP", 1

        def measure(self, contender: Contender) -> Score:
            factor = 0.5 if str(contender.model).startswith("half") else 1.0
            rows = [(0, 0.9 * factor, 0.0), (1, 0.8 * factor, 50.0), (1, 0.2 * factor, 80.0)]  # the last is invisible
            side = (contender.label, str(contender.model), "onnxruntime", "cpu", "fp32")
            return Score(*side, {}, {"mAP": 0.5}, 0.1, (boxes(*rows),))

    sides = [Contender("a.onnx"), Contender("half.onnx")]
    assert gate(sides, Halving()).passes
    report = gate(sides, Halving(), max_score_shift=0.1)
    assert report.score_shift(report.scores[1]) == pytest.approx(-0.425)
    assert not report.passes
    assert gate(sides, Halving(), max_score_shift=0.43).passes
    lost = GateReport("mAP", 1, 0.01, (report.scores[0], replace(report.scores[1], results=(boxes(),))))
    assert math.isnan(lost.score_shift(lost.scores[1]))
    assert lost.passes
    assert not replace(lost, max_score_shift=0.43).passes, "no box is found again"
    with pytest.raises(ConfigError, match="max_score_shift is a number from 0"):
        gate(sides, Halving(), max_score_shift=-1)
