"""Models from a configuration: compositions with a table for each of their models, and readers of text."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infersdk import models
from infersdk.config import model_files, read
from infersdk.data import CLASSIFIER, CLASSIFIER_SETTINGS, DETECTOR, IMAGE
from infersdk.errors import ConfigError, InferSDKError, UnsupportedModelError
from infersdk.models import OCR, Classifications, Tiled, TwoStage

DIGITS = {"type": "yolov5", "path": str(DETECTOR), "options": {"threads": 1}}
READS = {"type": "classifier", "path": CLASSIFIER, "options": {"threads": 1}, **CLASSIFIER_SETTINGS}


@pytest.fixture
def opened() -> Iterator[Any]:
    """`create()`, whose models are closed at the end."""
    with ExitStack() as stack:

        def create(tables: Any) -> Any:
            made = models.create(tables if not isinstance(tables, dict) else {"models": tables})
            for model in made.values():
                stack.callback(model.close)
            return made

        yield create


def test_compositions_are_those_of_python(opened: Any) -> None:
    made = opened(
        {
            "tiles": {"type": "tiled", "tile": [120, 100], "overlap": 0.4, "merge": "union", "model": DIGITS},
            "classes": {"type": "two-stage", "column": "digit", "margin": 0.1, "detector": DIGITS, "second": READS},
            "both": {
                "type": "two-stage", "second": READS, "detector": {"type": "tiled", "tile": 200, "model": DIGITS},
            },
        }
    )  # fmt: skip
    detector, second = models.YOLOv5(DETECTOR, threads=1), models.Classifier(CLASSIFIER, **CLASSIFIER_SETTINGS)
    with detector, second:
        tiled = Tiled(detector, tile=(120, 100), overlap=0.4, merge="union")
        np.testing.assert_array_equal(made["tiles"](IMAGE).xyxy, tiled(IMAGE).xyxy)
        two = TwoStage(detector, second, column="digit", margin=0.1)
        assert made["classes"](IMAGE).to_dicts() == two(IMAGE).to_dicts()
        expected = TwoStage(Tiled(detector, tile=200), second)(IMAGE)
        result = made["both"].submit(IMAGE).result(60)
        np.testing.assert_array_equal(result.xyxy, expected.xyxy)
        assert all(isinstance(one, Classifications) for one in result.columns["second"])
    assert {name: model.task for name, model in made.items()} == dict.fromkeys(made, "detect")
    assert [len(model.details.pipelines) for model in made.values()] == [1, 2, 2]


def test_files_of_parts_are_relative_to_the_configuration(opened: Any, tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    shutil.copy(DETECTOR, tmp_path / "weights" / "d.onnx")
    config = tmp_path / "app.toml"
    config.write_text(
        '[models.large]\ntype = "tiled"\ntile = 200\n[models.large.model]\ntype = "yolov5"\npath = "weights/d.onnx"\n'
        'pipeline = { max_batch = 2 }\n[models.reader]\ntype = "ocr"\ndetection = "det.onnx"\nrecognition = "r.onnx"\n'
    )
    tables = read(config)["models"]
    assert model_files(tables["large"]) == {str(tmp_path / "weights" / "d.onnx")}
    assert model_files(tables["reader"]) == {str(tmp_path / "det.onnx"), str(tmp_path / "r.onnx")}
    large = opened({"large": tables["large"]})["large"]
    assert len(large(IMAGE)) > 5
    assert large.details.pipelines[0].max_batch == 2


def test_a_reader_of_text(opened: Any, tmp_path: Path) -> None:
    pytest.importorskip("cv2")
    ocr_models = pytest.importorskip("ocr_models")
    files = {"detection": str(ocr_models.finder(tmp_path / "d.onnx")), "recognition": str(
        ocr_models.reads(tmp_path / "r.onnx"))}  # fmt: skip
    reader = opened(
        {"reader": {"type": "ocr", **files, "text_score": 0.2, "pipeline": {"instances": 2}, "options": {"threads": 1}}}
    )["reader"]
    image = ocr_models.page((100, 100, 300, 120))
    with OCR(*files.values(), text_score=0.2, threads=1) as expected:
        assert reader(image).to_dicts() == reader.submit(image).result(60).to_dicts() == expected(image).to_dicts()
    assert reader.details.pipelines[0].settings.instances == 2


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"type": "heads"}, r"models.m: unknown type 'heads'; use one of yolov5, .*tiled, two-stage, ocr, "),
        ({"type": "network"}, r"models.m: type 'network' is a network without a wrapper, which infersdk.load\(\) and "),
        ({"path": "m.onnx"}, r"models.m: type is missing; use one of yolov5, "),
        ({"type": "tiles"}, r"models.m: unknown type 'tiles'; did you mean 'tiled'\?$"),
        ({"type": "yolo8", "path": "m.onnx"}, r"models.m: unknown type 'yolo8'; did you mean 'yolov8'\?$"),
        (
            {"type": "yolov8", "path": "m.onnx", "confidence": 0.4},
            r"^models.m: YOLOv8 has no setting 'confidence'; did you mean 'conf'\?$",
        ),
        (
            {"type": "yolov8", "model": "m.onnx"},
            "models.m: YOLOv8 has no setting 'model'; its settings are .*conf.*; files go under path, .* under options",
        ),
        (3, "models.m"),
        ({"type": "yolov5"}, "models.m.*path"),
        ({"type": "yolov5", "path": "x", "options": 1}, "options"),
        ({"type": "tiled"}, r"models.m: Tiled has a table for its model, \[models.m.model\], with a type and a path"),
        ({"type": "two-stage", "detector": DIGITS}, r"TwoStage has a table for its second, \[models.m.second\]"),
        ({"type": "tiled", "model": {**DIGITS, "conf": 7}}, r"models.m.model: YOLOv5 settings: .*conf"),
        ({"type": "tiled", "model": DIGITS, "overlap": 1.0}, r"models.m: overlap is a share .* to below 1, not 1.0"),
        ({"type": "tiled", "model": DIGITS, "overlaps": 0.1}, r"models.m: Tiled settings: .*unknown field `overlaps`"),
        (
            {"type": "tiled", "model": DIGITS, "overlap": "0.1"},
            r"models.m: Tiled settings: overlap is '0.1', not a float",
        ),
        ({"type": "ocr", "recognition": "r.onnx"}, r"models.m: OCR: detection names a model file, and is None"),
        ({"type": "ocr", "detection": "d", "recognition": "r", "lines": 3}, r"models.m: OCR has no setting 'lines'"),
        ({"type": "ocr", "detection": "d", "recognition": "r", "unclip": -1}, r"unclip is -1, not a float >= 0.0"),
    ],
)
def test_what_is_wrong_names_its_table(table: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        models.create({"models": {"m": table}})


def test_parts_that_do_not_fit_together() -> None:
    with pytest.raises(UnsupportedModelError, match="Classifier gives Classifications, and no boxes"):
        models.create({"models": {"m": {"type": "two-stage", "detector": READS, "second": READS}}})
    with pytest.raises(UnsupportedModelError, match="Classifier gives Classifications, and no boxes"):
        models.create({"models": {"m": {"type": "tiled", "model": READS}}})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"backend": ["onnxruntime"]}, r"backend is a name, not \['onnxruntime'\]"),
        ({"options": {"threads": 1 << 40}}, "threads is 1099511627776, not an int <= 1024"),
        ({"names": "/dev/zero"}, "cannot read the class names in '/dev/zero': it is not a regular file"),
        ({"conf": "a\udcff"}, "is not UTF-8"),
    ],
)
def test_values_that_no_model_takes(opened: Any, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        opened({"digits": {**DIGITS, **changes}})


@pytest.mark.parametrize("tile", ["1", [1, 2, 3], 0.5, [1, "2"], 0])
def test_a_size_that_is_none(opened: Any, tile: Any) -> None:
    with pytest.raises(InferSDKError, match="tile is a number of pixels or"):
        opened({"tiles": {"type": "tiled", "tile": tile, "model": DIGITS}})
