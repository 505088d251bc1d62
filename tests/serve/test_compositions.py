"""Compositions and readers of text, served as any model: the very results of the process."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from served_requests import ask, client_of, inputs_of, serving

from infersdk.data import CLASSIFIER, CLASSIFIER_SETTINGS, DETECTOR, IMAGE
from infersdk.image import read_image
from infersdk.models import create

pytest.importorskip("cv2")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    import ocr_models

    folder: Path = tmp_path_factory.mktemp("composed")
    digits = {"type": "yolov5", "path": str(DETECTOR), "conf": 0.5, "options": {"threads": 1}}
    reads = {"type": "classifier", "path": str(CLASSIFIER), "options": {"threads": 1}, **CLASSIFIER_SETTINGS}
    return {
        "tiles": {"type": "tiled", "tile": 200, "model": digits},
        "two": {"type": "two-stage", "detector": digits, "second": reads},
        "text": {
            "type": "ocr", "detection": str(ocr_models.finder(folder / "d.onnx")), "text_score": 0.2,
            "recognition": str(ocr_models.reads(folder / "r.onnx")), "options": {"threads": 1},
        },
    }  # fmt: skip


@pytest.fixture(scope="module")
def server(config: dict[str, Any]) -> Iterator[Any]:
    with serving(config) as running:
        yield running


def image_of(name: str) -> bytes:
    if name != "text":
        return Path(IMAGE).read_bytes()
    import ocr_models
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(ocr_models.page((100, 100, 300, 120), (100, 300, 500, 340))).save(stream, "PNG")
    return stream.getvalue()


def predicted(server: Any, query: str, body: bytes) -> Any:
    return ask(server.http_port, f"/predict?{query}", body).json()


@pytest.mark.parametrize("name", ["tiles", "two", "text"])
def test_predict(server: Any, config: dict[str, Any], name: str) -> None:
    image = image_of(name)
    with create({"models": {name: config[name]}})[name] as model:
        expected = json.loads(model(image).to_json())
        task = model.task
    got = predicted(server, f"model={name}", image)
    assert (got["task"], got["size"]) == (task, list(read_image(image).size))
    assert len(got["results"]) == len(expected) > 1
    for row, other in zip(got["results"], expected, strict=True):
        assert row.keys() == other.keys()
        assert row.get("xyxy") == pytest.approx(other.get("xyxy"))
        assert row.get("text") == other.get("text")
        assert [one["label"] for one in row.get("second", [])] == [one["label"] for one in other.get("second", [])]


def test_parameters_of_a_request(server: Any) -> None:
    whole = predicted(server, "model=tiles", image_of("tiles"))["results"]
    assert len(predicted(server, "model=tiles&conf=0.95", image_of("tiles"))["results"]) < len(whole)
    assert predicted(server, "model=text&text_score=1", image_of("text"))["results"] == []
    answer = predicted(server, "model=text&conf=0.5", image_of("text"))
    assert "no parameter 'conf'; its parameters are text_score" in answer["error"]


def test_tensors(server: Any, config: dict[str, Any]) -> None:
    with client_of(server, "http") as client:
        for name, model in create({"models": config}).items():
            with model:
                images = inputs_of("http", {"image": np.array([image_of(name)], dtype=object)}, "BYTES")
                got, expected = client.infer(name, images), model(image_of(name))
                if name == "text":
                    assert got.as_numpy("num_lines").tolist() == [2]
                    assert [text.decode() for text in got.as_numpy("line_texts")[0]] == expected.texts
                    np.testing.assert_array_equal(got.as_numpy("line_polygons")[0], expected.polygons)
                    np.testing.assert_array_equal(got.as_numpy("line_scores")[0], expected.scores)
                    continue
                np.testing.assert_array_equal(got.as_numpy("detection_boxes")[0], expected.xyxy)
                if name == "two":
                    second = [json.loads(text) for text in got.as_numpy("detection_second")[0]]
                    labels = [one[0].label for one in expected.columns["second"]]
                    assert [classes[0]["label"] for classes in second] == labels


def test_metrics_have_each_pipeline(server: Any) -> None:
    text = ask(server.http_port, "/metrics").body.decode()
    for pipeline in ("tiles/1", "two/1", "two/1/2", "text/1"):
        assert f'infersdk_slots{{pipeline="{pipeline}"}}' in text
