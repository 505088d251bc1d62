"""Images in, boxes and classes out: as tensors and as JSON, and the very results of the process."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from served_requests import ask, client_of, inputs_of, serving, triton

from infersdk.data import CLASSIFIER, CLASSIFIER_SETTINGS, DETECTOR, IMAGE
from infersdk.image import read_image
from infersdk.models import Classifier, YOLOv5


@pytest.fixture(scope="module")
def digits() -> Iterator[Any]:
    """A server of the packaged models."""
    models = {
        "detector": {"type": "yolov5", "path": str(DETECTOR), "conf": 0.5, "class_agnostic": True},
        "classifier": {"type": "classifier", "path": str(CLASSIFIER), **CLASSIFIER_SETTINGS},
    }
    with serving(models, max_images=3) as running:
        yield running


@pytest.fixture(scope="module")
def boxes() -> Any:
    """What the detector finds in process."""
    with YOLOv5(DETECTOR, conf=0.5, class_agnostic=True) as detector:
        return detector(IMAGE)


def encoded(protocol: str, *images: bytes) -> list[Any]:
    return inputs_of(protocol, {"image": np.array(images, dtype=object)}, "BYTES")


def test_boxes_as_tensors(digits: Any, boxes: Any, protocol: str) -> None:
    image = Path(IMAGE).read_bytes()
    with client_of(digits, protocol) as client:
        result = client.infer("detector", encoded(protocol, image))
        assert result.as_numpy("num_detections").tolist() == [len(boxes)]
        np.testing.assert_array_equal(result.as_numpy("detection_boxes")[0], boxes.xyxy)
        np.testing.assert_array_equal(result.as_numpy("detection_scores")[0], boxes.scores)
        np.testing.assert_array_equal(result.as_numpy("detection_classes")[0], boxes.class_ids)
        assert [label.decode() for label in result.as_numpy("detection_labels")[0]] == boxes.labels


def test_several_images_of_one_request(digits: Any, boxes: Any, protocol: str) -> None:
    from PIL import Image

    blank = io.BytesIO()
    Image.new("RGB", (50, 40), "white").save(blank, "PNG")
    with client_of(digits, protocol) as client:
        result = client.infer("detector", encoded(protocol, Path(IMAGE).read_bytes(), blank.getvalue()))
        assert result.as_numpy("num_detections").tolist() == [len(boxes), 0]
        found = result.as_numpy("detection_boxes")
        assert found.shape == (2, len(boxes), 4)
        np.testing.assert_array_equal(found[0], boxes.xyxy)
        assert not found[1].any()
        assert (result.as_numpy("detection_classes")[1] == -1).all()
        for count in (0, 4):
            with pytest.raises(Exception, match=f"a request has 1 to 3 images, not {count}"):
                client.infer("detector", encoded(protocol, *[blank.getvalue()] * count))


def test_decoded_images(digits: Any, boxes: Any, protocol: str) -> None:
    pixels = read_image(IMAGE).pixels[..., ::-1][None].copy()  # the model takes arrays as OpenCV has them
    with client_of(digits, protocol) as client:
        result = client.infer("detector", inputs_of(protocol, {"pixels": pixels}, "UINT8"))
        np.testing.assert_array_equal(result.as_numpy("detection_boxes")[0], boxes.xyxy)


def test_a_threshold_of_one_request(digits: Any, boxes: Any, protocol: str) -> None:
    with client_of(digits, protocol) as client:
        limit = float(np.median(boxes.scores))
        result = client.infer("detector", encoded(protocol, Path(IMAGE).read_bytes()), parameters={"conf": limit})
        assert result.as_numpy("num_detections")[0] == (boxes.scores > limit).sum()
        with pytest.raises(Exception, match="no parameter 'conv'; its parameters are .*conf"):
            client.infer("detector", encoded(protocol, Path(IMAGE).read_bytes()), parameters={"conv": 1})
        with pytest.raises(Exception, match="conf"):
            client.infer("detector", encoded(protocol, Path(IMAGE).read_bytes()), parameters={"conf": 7})


def test_the_images_of_a_request_are_admitted_together() -> None:
    """A request with more images than slots runs, however short the queue is."""
    detector = {"type": "yolov5", "path": str(DETECTOR), "pipeline": {"max_batch": 1, "instances": 1, "slots": 1}}
    image = Path(IMAGE).read_bytes()
    with serving({"detector": detector}, max_queue=0) as server, client_of(server, "grpc") as client:
        found = client.infer("detector", encoded("grpc", *[image] * 4)).as_numpy("num_detections")
    assert len(set(found.tolist())) == 1


def test_what_is_no_image(digits: Any, protocol: str) -> None:
    with client_of(digits, protocol) as client:
        for data in (b"", b"no image", Path(IMAGE).read_bytes()[:200]):
            with pytest.raises(Exception, match="bytes given") as raised:
                client.infer("detector", encoded(protocol, data))
            assert raised.value.status() in ("400", "StatusCode.INVALID_ARGUMENT")


def test_paths_and_addresses_are_never_opened(digits: Any, protocol: str) -> None:
    with client_of(digits, protocol) as client:
        for text in (str(IMAGE), f"http://127.0.0.1:{digits.http_port}/", "file:///etc/passwd"):
            with pytest.raises(Exception, match=rf"the {len(text)} bytes given: not an image"):
                client.infer("detector", encoded(protocol, text.encode()))
    entry = {"name": "image", "shape": [1], "datatype": "BYTES", "data": [str(IMAGE)]}
    answer = ask(digits.http_port, "/v2/models/detector/infer", {"inputs": [entry]})
    assert answer.status == 400
    assert "bytes given: not an image" in answer.json()["error"]


def test_classes_as_tensors(digits: Any) -> None:
    with Classifier(CLASSIFIER, **CLASSIFIER_SETTINGS) as classifier:
        best = classifier(IMAGE)
    with client_of(digits, "grpc") as client:
        result = client.infer("classifier", encoded("grpc", Path(IMAGE).read_bytes()))
        np.testing.assert_array_equal(result.as_numpy("class_ids")[0], best.class_ids)
        np.testing.assert_array_equal(result.as_numpy("class_scores")[0], best.scores)
        assert [label.decode() for label in result.as_numpy("class_labels")[0]] == best.labels


@pytest.mark.parametrize(
    ("model", "output", "said"),
    [
        ("classifier", "class_scores", "class_ids, class_labels"),
        ("detector", "detection_scores", "detection_classes"),
    ],
)
def test_positions_of_sorted_scores_are_no_classes(
    digits: Any, protocol: str, model: str, output: str, said: str
) -> None:
    wanted = [triton(protocol).InferRequestedOutput(output, class_count=1)]
    with client_of(digits, protocol) as client, pytest.raises(Exception, match=f"the classes are in {said}"):
        client.infer(model, encoded(protocol, Path(IMAGE).read_bytes()), outputs=wanted)


def test_metadata(digits: Any) -> None:
    found = ask(digits.http_port, "/v2/models/detector").json()
    assert [(one["name"], one["datatype"], one["shape"]) for one in found["inputs"]] == [
        ("image", "BYTES", [-1]), ("pixels", "UINT8", [-1, -1, -1, -1]),
    ]  # fmt: skip
    assert {one["name"]: (one["datatype"], one["shape"]) for one in found["outputs"]} == {
        "num_detections": ("INT32", [-1]),
        "detection_boxes": ("FP32", [-1, -1, 4]),
        "detection_scores": ("FP32", [-1, -1]),
        "detection_classes": ("INT32", [-1, -1]),
        "detection_labels": ("BYTES", [-1, -1]),
    }
    config = ask(digits.http_port, "/v2/models/detector/config").json()
    assert [one["optional"] for one in config["input"]] == [True, True]


# ---- JSON for curl and browsers ----


def test_json_with_base64(digits: Any, boxes: Any) -> None:
    text = base64.b64encode(Path(IMAGE).read_bytes()).decode()
    entry = {
        "name": "image", "shape": [1], "datatype": "BYTES", "data": [text], "parameters": {"encoding": "base64"},
    }  # fmt: skip
    answer = ask(
        digits.http_port, "/v2/models/detector/infer", {"inputs": [entry], "outputs": [{"name": "detection_boxes"}]}
    )
    (output,) = answer.json()["outputs"]
    assert output["shape"] == [1, len(boxes), 4]
    np.testing.assert_array_equal(np.array(output["data"], np.float32).reshape(-1, 4), boxes.xyxy)


def multipart(*files: bytes, name: str = "file", **fields: str) -> tuple[bytes, dict[str, str]]:
    parts = [
        f'--x\r\nContent-Disposition: form-data; name="{field}"\r\n\r\n{text}\r\n'.encode()
        for field, text in fields.items()
    ]
    for file in files:
        head = f'--x\r\nContent-Disposition: form-data; name="{name}"; filename="a.jpg"\r\n\r\n'
        parts.append(head.encode() + file + b"\r\n")
    return b"".join([*parts, b"--x--\r\n"]), {"Content-Type": "multipart/form-data; boundary=x"}


def test_predict(digits: Any, boxes: Any) -> None:
    image = Path(IMAGE).read_bytes()
    body, headers = multipart(image)
    for answer in (
        ask(digits.http_port, "/predict?model=detector", image, headers={"Content-Type": "image/jpeg"}),
        ask(digits.http_port, "/predict?model=detector&version=1", body, headers=headers),
    ):
        assert answer.status == 200, answer.body
        found = answer.json()
        assert (found["model"], found["version"], found["task"]) == ("detector", "1", "detect")
        assert found["size"] == list(boxes.size)
        assert found["results"] == json.loads(boxes.to_json())
    body, headers = body.replace(b"--x", b"--a, b"), {"Content-Type": 'Multipart/Form-Data; Boundary="a, b"'}
    assert ask(digits.http_port, "/predict?model=detector", body, headers=headers).json() == found
    limit = float(np.median(boxes.scores))
    answer = ask(digits.http_port, f"/predict?model=detector&conf={limit}", image)
    assert len(answer.json()["results"]) == (boxes.scores > limit).sum()


@pytest.mark.parametrize(
    ("query", "status", "said"),
    [
        ("", 400, "name the model, ?model=NAME: detector, classifier"),
        ("?model=nonesuch", 404, "unknown model: 'nonesuch'"),
        ("?model=detector&conv=1", 400, "no parameter 'conv'"),
        ("?model=detector&conf=high", 400, "conf"),
        ("?model=detector&deadline=0", 504, "had not left for the model"),
        ("?model=detector&deadline=-1", 400, "deadline is a number"),
        ("?model", 400, "the query is not name=value"),
        ("?model=detector&classes=1&classes=2", 400, "the query has a name twice"),
    ],
)
def test_predict_refuses(digits: Any, query: str, status: int, said: str) -> None:
    answer = ask(digits.http_port, f"/predict{query}", Path(IMAGE).read_bytes())
    assert answer.status == status
    assert said in answer.json()["error"]


def test_predict_refuses_forms_without_one_file(digits: Any) -> None:
    image = Path(IMAGE).read_bytes()
    for body, headers, said in (
        (*multipart(), "a form has one complete file and no fields, and this one has 0"),
        (*multipart(image, image), "this one has 2"),
        (multipart(image)[0], {"Content-Type": "multipart/form-data"}, "no boundary"),
        (multipart(image)[0][:-300], multipart()[1], "this one has 0"),
        (b"--y nothing", multipart()[1], "the form is damaged"),
        (multipart(image)[0], {"Content-Type": f"multipart/form-data; boundary={'x' * 300}"}, "the form is damaged"),
        (*multipart(image, conf="0.9"), "this one has 1 and the fields ['conf']; set parameters in the query"),
    ):
        answer = ask(digits.http_port, "/predict?model=detector", body, headers=headers)
        assert answer.status == 400
        assert said in answer.json()["error"]
    answer = ask(digits.http_port, "/predict?model=detector", b"", method="POST")
    assert "there is no image" in answer.json()["error"]


# ---- what people and monitoring look at ----


def test_metrics(digits: Any) -> None:
    ask(digits.http_port, "/predict?model=detector", Path(IMAGE).read_bytes())
    ask(digits.http_port, "/predict?model=detector", b"no image")
    text = ask(digits.http_port, "/metrics").body.decode()
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(lines['infersdk_server_requests_total{model="detector",outcome="success",version="1"}']) >= 1
    assert float(lines['infersdk_server_requests_total{model="detector",outcome="fail",version="1"}']) >= 1
    assert float(lines['infersdk_requests_total{outcome="done",pipeline="detector/1"}']) >= 1
    assert lines["infersdk_server_ready"] == "1.0"
    assert lines['infersdk_model_loads_total{model="classifier"}'] == "1.0"


def test_openapi(digits: Any) -> None:
    found = ask(digits.http_port, "/openapi.json").json()
    assert found["openapi"] == "3.1.0"
    references = set(json.dumps(found).split('"#/components/schemas/')[1:])
    assert {reference.split('"')[0] for reference in references} <= set(found["components"]["schemas"])
    names = {one["name"] for one in found["paths"]["/predict"]["post"]["parameters"]}
    assert {"model", "deadline", "conf", "top_k"} <= names


@pytest.mark.posix  # the clock of Windows has steps of 16 ms before Python 3.13
def test_statistics_count_the_requests_of_clients_alone() -> None:
    """Not the image that the model runs before it serves; and decoding is no waiting."""
    with serving({"detector": {"type": "yolov5", "path": str(DETECTOR)}}) as server:
        (none,) = server.service.statistics("detector")
        assert (none["execution_count"], none["inference_count"], none["batch_stats"]) == (0, 0, [])
        image = Path(IMAGE).read_bytes()
        with client_of(server, "grpc") as client:
            client.infer("detector", encoded("grpc", image))
        assert ask(server.http_port, "/predict", image).status == 200
        (found,) = server.service.statistics("detector")
    assert (found["execution_count"], found["inference_count"]) == (2, 2)
    stages = {name: value["ns"] for name, value in found["inference_stats"].items()}
    assert min(stages[name] for name in ("compute_input", "compute_infer", "compute_output")) > 0
    parts = sum(stages[name] for name in ("queue", "compute_input", "compute_infer", "compute_output"))
    assert 0.2 * stages["success"] < parts <= stages["success"]
    (batch,) = found["batch_stats"]
    assert (batch["batch_size"], batch["compute_infer"]["count"]) == (1, 2)
    assert 0 < batch["compute_input"]["ns"] <= stages["compute_input"]
