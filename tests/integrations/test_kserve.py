"""The adapter for KServe, in a server of KServe's own runtime."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import serve_models
from served_requests import ask, inputs_of, simple_body
from waiting import free_port, until

import infersdk
from infersdk.data import DETECTOR

kserve: Any = pytest.importorskip("kserve", reason='the tests of KServe need it: pip install "infersdk[kserve]"')
triton: Any = pytest.importorskip("tritonclient.http", exc_type=ImportError)
from infersdk.integrations.kserve import predictor  # noqa: E402 - behind the check

PROGRAM = """
import json, sys
from kserve import ModelServer
from infersdk.integrations.kserve import predictor
config, http, grpc = json.loads(sys.argv.pop(1)), int(sys.argv.pop(1)), int(sys.argv.pop(1))
ModelServer(http_port=http, grpc_port=grpc, workers=1).start([predictor(config, name) for name in config["models"]])
"""


class Ports(NamedTuple):
    """Where the server listens."""

    http: int
    grpc: int


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("kserve")
    options = {"type": "network", "options": {"threads": 1}}
    tables: dict[str, Any] = {
        "simple": {**options, "path": str(serve_models.simple(folder / "simple.onnx")), "max_batch": 8},
        "text": {**options, "path": str(serve_models.identity(folder / "text.onnx", "string", ["batch", "n"]))},
    }
    assets = Path(os.environ.get("INFERSDK_ASSETS", ""))
    if (assets / "models" / "yolov5n.onnx").is_file():
        tables["detector"] = {"type": "yolov5", "path": str(assets / "models" / "yolov5n.onnx")}
    return tables


@pytest.fixture(scope="module")
def ports(tables: dict[str, Any]) -> Iterator[Ports]:
    """A server of KServe with the models."""
    found = Ports(free_port(), free_port())
    command = [sys.executable, "-c", PROGRAM, json.dumps({"models": tables}), str(found.http), str(found.grpc)]
    process = subprocess.Popen(command)
    try:
        end = time.monotonic() + 120
        while True:
            try:
                if ask(found.http, "/v2/health/ready").json().get("ready"):
                    break
            except OSError:
                pass
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.2)
        yield found
    finally:
        process.terminate()
        process.wait(60)


def over_grpc(ports: Ports, request: Any) -> dict[str, Any]:
    """The outputs of a request; by KServe's own client, whose protobufs do not go with tritonclient's."""

    async def ask_for() -> Any:
        async with kserve.InferenceGRPCClient(f"127.0.0.1:{ports.grpc}") as client:
            return await client.infer(request)

    return {output.name: output.as_numpy() for output in asyncio.run(ask_for()).outputs}


@pytest.mark.parametrize("binary", [False, True])
def test_tensors_over_http(ports: Ports, binary: bool) -> None:
    a, b = np.arange(32, dtype=np.int32).reshape(2, 16), np.ones((2, 16), np.int32)
    inputs = inputs_of("http", {"INPUT0": a, "INPUT1": b}, "INT32", binary_data=binary)
    outputs = [triton.InferRequestedOutput(name, binary_data=binary) for name in ("OUTPUT1", "OUTPUT0")]
    with triton.InferenceServerClient(f"127.0.0.1:{ports.http}") as client:
        headers = None if binary else {"Content-Type": "application/json"}  # KServe takes JSON by no other sign
        result = client.infer("simple", inputs, outputs=outputs, request_id="one", headers=headers)
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), a + b)
        np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), a - b)
        assert result.get_response()["id"] == "one"


def test_plain_json(ports: Ports) -> None:
    answer = ask(ports.http, "/v2/models/simple/infer", simple_body(), headers={"Content-Type": "application/json"})
    found = {one["name"]: one["data"] for one in answer.json()["outputs"]}
    assert found == {"OUTPUT0": list(range(1, 17)), "OUTPUT1": list(range(-1, 15))}


def test_tensors_over_grpc(ports: Ports) -> None:
    a, b = np.arange(16, dtype=np.int32)[None], np.ones((1, 16), np.int32)
    inputs = [kserve.InferInput(name, [1, 16], "INT32") for name in ("INPUT0", "INPUT1")]
    for one, array in zip(inputs, (a, b), strict=True):
        one.set_data_from_numpy(array)
    found = over_grpc(ports, kserve.InferRequest("simple", inputs))
    np.testing.assert_array_equal(found["OUTPUT0"], a + b)
    np.testing.assert_array_equal(found["OUTPUT1"], a - b)
    with pytest.raises(Exception, match="'INPUT1' of model 'simple' was not given") as raised:
        over_grpc(ports, kserve.InferRequest("simple", inputs[:1]))
    assert "INVALID_ARGUMENT" in str(raised.value)


def test_metadata(ports: Ports) -> None:
    found = ask(ports.http, "/v2/models/simple").json()
    assert {one["name"]: (one["datatype"], one["shape"]) for one in found["inputs"]} == {
        "INPUT0": ("INT32", [-1, 16]), "INPUT1": ("INT32", [-1, 16]),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("change", "status", "message"),
    [
        ({"inputs": []}, 400, "'INPUT0' of model 'simple' was not given"),
        ({"parameters": {"conf": 0.5}}, 400, "no parameter 'conf'"),
        ({"parameters": {"deadline": 0.0}}, 504, "within its 0 s"),
    ],
)
def test_failures(ports: Ports, change: dict[str, Any], status: int, message: str) -> None:
    headers = {"Content-Type": "application/json"}
    answer = ask(ports.http, "/v2/models/simple/infer", simple_body() | change, headers=headers)
    assert (answer.status, message in answer.json()["error"]) == (status, True), answer.body


@pytest.mark.assets
def test_images(ports: Ports, assets: Path) -> None:
    """The very boxes of the process: in V1, as base64, and as bytes."""
    data = (assets / "images" / "bus.jpg").read_bytes()
    with infersdk.models.YOLOv5(assets / "models" / "yolov5n.onnx") as detector:
        expected = detector(data)
    text, headers = base64.b64encode(data).decode(), {"Content-Type": "application/json"}
    body: dict[str, Any] = {"instances": [{"b64": text}, {"b64": text}]}
    found = ask(ports.http, "/v1/models/detector:predict", body, headers=headers).json()["predictions"]
    assert [len(rows) for rows in found] == [len(expected)] * 2
    np.testing.assert_allclose([row["score"] for row in found[0]], expected.scores, atol=1e-5)
    one = {
        "name": "image", "shape": [1], "datatype": "BYTES", "data": [text], "parameters": {"encoding": "base64"},
    }  # fmt: skip
    answer = ask(ports.http, "/v2/models/detector/infer", {"inputs": [one]}, headers=headers).json()
    boxes = next(tensor for tensor in answer["outputs"] if tensor["name"] == "detection_boxes")
    np.testing.assert_allclose(np.reshape(boxes["data"], boxes["shape"])[0], expected.xyxy, atol=1e-2)
    raw = kserve.InferInput("image", [1], "BYTES")
    raw.set_data_from_numpy(np.array([data], object))
    result = over_grpc(ports, kserve.InferRequest("detector", [raw]))
    assert [label.decode() for label in result["detection_labels"][0]] == list(expected.labels)
    np.testing.assert_allclose(result["detection_boxes"][0], expected.xyxy, atol=1e-2)
    for wrong in ({"instances": []}, {"instances": ["x"]}, {"instances": [{"b64": "?"}]}, {"instances": [{"b64": ""}]}):
        assert ask(ports.http, "/v1/models/detector:predict", wrong, headers=headers).status == 400


@pytest.mark.parametrize(
    ("datatype", "data", "message"),
    [
        ("UINT8", [1, 300], "input 'INPUT0' is not UINT8 [2]"),
        ("UINT8", [1, -1], "input 'INPUT0' is not UINT8 [2]"),
        ("INT8", [1, 200], "input 'INPUT0' is not INT8 [2]"),
        ("UINT8", [1, 1.5], "1.5 is out of the range of UINT8"),
        ("FP32", [1.0, 1e40], "1e+40 is out of the range of FP32"),
        ("FP32", [1.0, None], "its data is not of numbers alone"),
        ("FP32", ["1", "2"], "its data is not of numbers alone"),
        ("BOOL", [1, 0], "its data is not of bools alone"),
        ("BYTES", ["", 5], "an image is not encoded in base64"),
        ("BYTES", ["", None], "an image is not encoded in base64"),
    ],
)
def test_values_that_are_not_of_the_datatype(ports: Ports, datatype: str, data: list[Any], message: str) -> None:
    one = {"name": "INPUT0", "shape": [2], "datatype": datatype, "data": data}
    if datatype == "BYTES":
        one["parameters"] = {"encoding": "base64"}
    headers = {"Content-Type": "application/json"}
    answer = ask(ports.http, "/v2/models/simple/infer", {"inputs": [one]}, headers=headers)
    assert (answer.status, message in answer.json()["error"]) == (400, True), answer.body


def test_an_input_that_is_given_twice(ports: Ports) -> None:
    body = simple_body()
    body["inputs"].append(body["inputs"][0])
    answer = ask(ports.http, "/v2/models/simple/infer", body, headers={"Content-Type": "application/json"})
    assert (answer.status, "input 'INPUT0' was given twice" in answer.json()["error"]) == (400, True), answer.body


@pytest.mark.parametrize("body", [[1], "x", {"instances": "x"}])
def test_a_body_that_is_no_request_of_v1(body: Any) -> None:
    model = predictor({"models": {"detector": {"type": "yolov5", "path": str(DETECTOR)}}}, "detector")
    with pytest.raises(kserve.errors.InvalidInput, match="a request of V1 is"):
        asyncio.run(model.predict(body))
    model.stop()


def test_what_there_is_not(tables: dict[str, Any]) -> None:
    with pytest.raises(infersdk.errors.ConfigError, match="no model 'x'; it has simple, text"):
        predictor({"models": tables}, "x")


def test_a_server_that_is_no_table(tables: dict[str, Any]) -> None:
    with pytest.raises(infersdk.errors.ConfigError, match="server is a table of settings, not 8000"):
        predictor({"models": tables, "server": 8000}, "simple")


def test_the_newest_version_serves(tables: dict[str, Any]) -> None:
    versions: dict[str, Any] = {"2": {}, "10": {"max_batch": 3}, "9": {}}
    model = predictor({"models": {"simple": {**tables["simple"], "versions": versions}}}, "simple")
    assert (model._endpoint.version, model._endpoint.pipeline.max_batch) == ("10", 3)
    model.stop()


def test_a_float_as_a_parameter_over_grpc(ports: Ports) -> None:
    """KServe's message has no field for the `double_param` of other clients: it arrives empty."""
    from kserve.protocol.grpc.grpc_predict_v2_pb2 import InferParameter

    with pytest.raises(Exception, match="'deadline' has no value; .*: send other numbers over HTTP") as raised:
        over_grpc(ports, kserve.InferRequest("simple", [], parameters={"deadline": InferParameter()}))
    assert "INVALID_ARGUMENT" in str(raised.value)


@pytest.mark.parametrize("where", ["inputs", "outputs"])
def test_shared_memory_is_refused(ports: Ports, where: str) -> None:
    body = simple_body()
    body["outputs"] = [{"name": "OUTPUT0"}]
    body[where][0]["parameters"] = {"shared_memory_region": "x", "shared_memory_byte_size": 64}
    headers = {"Content-Type": "application/json"}
    answer = ask(ports.http, "/v2/models/simple/infer", body, headers=headers)
    assert answer.status == 400
    assert "has no 'shared_memory" in answer.body.decode(), answer.body


def test_a_pickled_model_is_loaded_again(tables: dict[str, Any]) -> None:
    """KServe does so for each of its processes, with more than one worker."""
    model = predictor({"models": tables}, "simple", name="other", max_queue=5)
    again = pickle.loads(pickle.dumps(model))
    assert (again.name, again.ready, again._settings) == ("other", True, model._settings)
    assert again._endpoint is not model._endpoint
    model.stop()
    again.stop()


def test_stop_frees_the_model(tables: dict[str, Any]) -> None:
    model = predictor({"models": tables}, "simple", name="other")
    assert (model.name, model.ready, model.get_input_types()[0]["name"]) == ("other", True, "INPUT0")
    model.stop()
    model.stop()
    assert not model.ready
    until(lambda: model._endpoint._network._closed)


def test_requests_that_wait_are_answered_before_the_model_is_freed(tables: dict[str, Any]) -> None:
    """`stop()` comes in the thread of the event loop, which they need."""
    model = predictor({"models": tables}, "simple", drain=20)
    inputs = [kserve.InferInput(name, [1, 16], "INT32") for name in ("INPUT0", "INPUT1")]
    for one in inputs:
        one.set_data_from_numpy(np.ones((1, 16), np.int32), binary_data=False)

    async def check() -> None:
        admission = model._endpoint.admission
        admission.running, slots = admission.slots, admission.running  # as if others had all slots
        waiting = asyncio.ensure_future(model.predict(kserve.InferRequest("simple", inputs)))
        while not admission.waiting:
            await asyncio.sleep(0)
        started = time.monotonic()
        model.stop()
        assert time.monotonic() - started < 5
        await asyncio.sleep(0.1)
        admission.running = slots + 1
        admission.leave()
        answer = await waiting
        assert {tuple(output.as_numpy().ravel()[:1]) for output in answer.outputs} == {(2,), (0,)}
        with pytest.raises(kserve.errors.ModelNotReady):
            await model.predict(kserve.InferRequest("simple", inputs))

    asyncio.run(asyncio.wait_for(check(), 60))
    until(lambda: model._endpoint._network._closed)
