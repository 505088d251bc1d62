"""Large requests and results: limits, and threads other than that of the event loop."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from served_requests import SHARED_MEMORY, ask, binary_body, serving, simple_body

from infersdk.data import DETECTOR, IMAGE
from infersdk.serve.http import app, exchange, infer_codec, predict
from infersdk.serve.http.messages import accepted_encoding

INFER = "/v2/models/free/infer"
LIMITS = {"max_json": 5000, "max_elements": 600, "max_decompressed": 20_000}


@pytest.fixture(scope="module")
def small(tables: dict[str, Any]) -> Iterator[Any]:
    """A server with low limits."""
    models = {name: tables[name] for name in ("free", "simple_identity", "simple")}
    with serving(models, shared_memory_prefix=SHARED_MEMORY, **LIMITS) as running:
        yield running


@pytest.fixture(scope="module")
def detector() -> Iterator[Any]:
    with serving({"detector": {"type": "yolov5", "path": str(DETECTOR), "conf": 0.5}}, max_results=1000) as running:
        yield running


def numbers(count: int) -> dict[str, Any]:
    return {"inputs": [{"name": "INPUT0", "shape": [1, count], "datatype": "FP32", "data": [1] * count}]}


def refused(answer: Any, said: str, status: int = 413) -> None:
    assert answer.status == status, answer.body[:200]
    assert said in answer.json()["error"]


@pytest.mark.parametrize("packed", [False, True])
def test_json_has_a_limit_of_bytes(small: Any, packed: bool) -> None:
    text = b" " * 5000 + json.dumps(simple_body()).encode()
    headers = {"Content-Encoding": "gzip"} if packed else {}
    refused(ask(small.http_port, INFER, gzip.compress(text) if packed else text, headers=headers), "max_json")
    refused(
        ask(small.http_port, "/v2/systemsharedmemory/region/x/register",
            gzip.compress(text) if packed else text, headers=headers), "max_json",
    )  # fmt: skip
    refused(ask(small.http_port, INFER, text, headers={"Inference-Header-Content-Length": str(len(text))}), "max_json")


def test_bytes_behind_the_json_do_not_count_for_it(small: Any) -> None:
    body, headers = binary_body("FP32", [1, 4500], bytes(18_000), parameters={"binary_data_output": True})
    for given, own in ((body, {}), (gzip.compress(body), {"Content-Encoding": "gzip"})):
        assert ask(small.http_port, INFER, given, headers=headers | own).status == 200
    larger, headers = binary_body("FP32", [1, 6000], bytes(24_000))
    refused(
        ask(small.http_port, INFER, gzip.compress(larger), headers=headers | {"Content-Encoding": "gzip"}),
        "20,000 bytes after decompression, the limit (max_decompressed)",
    )


def test_elements_of_json_have_a_limit(small: Any) -> None:
    assert ask(small.http_port, INFER, numbers(500)).status == 200
    refused(ask(small.http_port, INFER, numbers(700)), "and the limit (max_elements) is 600")
    refused(ask(small.http_port, INFER, b'{"parameters": {"x": [' + b"1," * 700 + b"1]}}"), "max_elements")


INPUT = {"name": "INPUT0", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"inputs": [INPUT] * 2000}, "at most 1,024 inputs and outputs each, not 2,000 and 0"),
        ({"outputs": [{"name": "OUTPUT0"}] * 5000}, "not 1 and 5,000"),
        ({"parameters": {str(i): i for i in range(10_000)}}, "at most 65,536 bytes of JSON"),
        ({"inputs": [INPUT | {"parameters": {"x": [1] * 50_000}}]}, "at most 65,536 bytes of JSON"),
        ({"inputs": [INPUT | {"shape": [1] * 50_000}]}, "at most 65,536 bytes of JSON"),
        ({"inputs": [INPUT | {"data": [[]] * 600_000}]}, "600,001 lists, and the limit is 500,000"),
    ],
)
def test_json_that_is_long_for_another_reason_than_data(server: Any, change: dict[str, Any], said: str) -> None:
    """An object of Python for each of its parts takes seconds, in which nothing else runs."""
    refused(ask(server.http_port, INFER, {"inputs": [INPUT]} | change), said)


def test_nested_data_may_be_long(server: Any) -> None:
    data = [[value % 100 for value in range(start, start + 3)] for start in range(0, 60_000, 3)]
    entry = INPUT | {"shape": [20_000, 3], "data": data}
    answer = ask(server.http_port, INFER, {"inputs": [entry]})
    assert answer.json()["outputs"][0]["data"] == [value for row in data for value in row]


def test_json_of_other_paths_is_short(server: Any) -> None:
    body = {"key": "/x", "byte_size": 4, "more": "x" * 70_000}
    refused(ask(server.http_port, "/v2/systemsharedmemory/region/x/register", body), "the limit of this path is 65,536")


def test_elements_of_bytes_have_a_limit(small: Any) -> None:
    for count, status in ((500, 200), (601, 413)):
        body, headers = binary_body("BYTES", [1, count], bytes(4 * count), parameters={"binary_data_output": True})
        assert ask(small.http_port, "/v2/models/simple_identity/infer", body, headers=headers).status == status


def test_elements_of_an_answer_as_json_have_a_limit(small: Any) -> None:
    body, headers = binary_body("FP32", [1, 700], bytes(2800))
    refused(ask(small.http_port, INFER, body, headers=headers), "ask for them with binary_data")
    body, headers = binary_body("FP32", [1, 700], bytes(2800), parameters={"binary_data_output": True})
    assert ask(small.http_port, INFER, body, headers=headers).status == 200


@pytest.mark.parametrize("value", [{}, [[]], {"a": 1}])
def test_parameters_are_numbers_and_text(small: Any, value: Any) -> None:
    answer = ask(small.http_port, INFER, numbers(4) | {"parameters": {"x": value}})
    refused(answer, "failed to parse the request JSON" if value != [[]] else "", 400)


def threads_of(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> list[str]:
    """The names of the threads that call a function of a module."""
    called: list[str] = []
    function = getattr(module, name)

    def noting(*arguments: Any, **named: Any) -> Any:
        called.append(threading.current_thread().name)
        return function(*arguments, **named)

    monkeypatch.setattr(module, name, noting)
    return called


@pytest.mark.parametrize("count", [10, 50_000])
def test_long_json_leaves_the_event_loop_alone(server: Any, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    calls = [threads_of(monkeypatch, infer_codec, name) for name in ("_parse", "_read_inputs", "_write")]
    answer = ask(server.http_port, INFER, numbers(count))
    assert answer.json()["outputs"][0]["data"] == [1] * count
    assert [name.startswith("infersdk-serve-worker") for (name,) in calls] == [count > 10] * 3


def test_compression_has_threads_of_its_own(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not those that close models, which takes as long as their slowest request."""
    calls = [threads_of(monkeypatch, exchange, "decompress"), threads_of(monkeypatch, app, "compress")]
    packed = gzip.compress(json.dumps(numbers(50_000)).encode())
    answer = ask(server.http_port, INFER, packed, headers={"Content-Encoding": "gzip", "Accept-Encoding": "gzip"})
    assert answer.headers["content-encoding"] == "gzip"
    assert [name.startswith("infersdk-serve-worker") for (name,) in calls] == [True, True]


# ---- results of models ----


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("max_det=2147483647", "max_det is a whole number from 1 to 1,000, not 2147483647"),
        ("max_det=1001", "from 1 to 1,000"),
        ("max_det=0", "from 1 to 1,000, not 0"),
        ("max_candidates=0", "max_candidates is a whole number from 1 to 30,000, not 0"),
        ("max_candidates=30001", "from 1 to 30,000"),
        ("max_det=1e3", "from 1 to 1,000, not 1000.0"),
        ("max_det=true", "not True"),
    ],
)
def test_parameters_that_limit_rows_are_bounded(detector: Any, query: str, said: str) -> None:
    refused(ask(detector.http_port, f"/predict?{query}", Path(IMAGE).read_bytes()), said, 400)


def test_all_that_a_client_may_ask_for(detector: Any) -> None:
    query = "conf=0.001&multi_label=true&max_candidates=30000&max_det=1000"
    answer = ask(detector.http_port, f"/predict?{query}", Path(IMAGE).read_bytes())
    assert answer.status == 200
    assert 0 < len(answer.json()["results"]) <= 1000


def test_results_of_too_many_rows_are_refused(detector: Any) -> None:
    endpoint = detector.repository.find("detector")
    endpoint.check_result([0] * 1000)
    with pytest.raises(Exception, match=r"has 1,001 rows, and the limit \(max_results\) is 1,000"):
        endpoint.check_result([0] * 1001)


def test_results_are_written_beside_the_event_loop(detector: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    called = threads_of(monkeypatch, predict, "_write")
    assert ask(detector.http_port, "/predict", Path(IMAGE).read_bytes()).status == 200
    assert [name.startswith("infersdk-serve-worker") for name in called] == [True]


def test_a_deadline_counts_while_a_result_is_written(detector: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()
    monkeypatch.setattr(predict, "_write", lambda endpoint, result: go.wait(20))
    answer = ask(detector.http_port, "/predict?deadline=1", Path(IMAGE).read_bytes())
    go.set()
    refused(answer, "could not be written within the 1 s", 504)


# ---- what is odd ----


@pytest.mark.parametrize(
    ("header", "encoding"),
    [
        ("", ""), ("gzip", "gzip"), ("deflate", "deflate"), ("br", ""), ("gzip;q=0", ""),
        ("gzip;q=0.0, deflate", "deflate"), ("gzip;q=0.1, deflate;q=0.5", "deflate"),
        ("deflate, gzip", "gzip"), ("*", "gzip"), ("*;q=0", ""),
        ("*, gzip;q=0", "deflate"), ("identity;q=1, gzip; q=0.000", ""), ("GZIP ; Q=1.000", "gzip"), ("gzip;q=2", ""),
        ("gzip;q=", ""), ("gzip;x=1", "gzip"),
    ],
)  # fmt: skip
def test_the_encoding_that_a_client_accepts(header: str, encoding: str) -> None:
    assert accepted_encoding(header.encode()) == encoding


def test_a_body_for_a_network_without_inputs(tmp_path: Path) -> None:
    import onnx_models
    from onnx_models import node, value

    constant = node("Constant", "", "OUTPUT0", value_floats=[1.0, 2.0])
    path = onnx_models.save(tmp_path / "constant.onnx", [constant], [], [value("OUTPUT0", [2])])
    with serving({"constant": {"type": "network", "path": str(path)}}) as server:
        headers = {"Inference-Header-Content-Length": "0"}
        answer = ask(server.http_port, "/v2/models/constant/infer", b"abcd", headers=headers)
        refused(answer, "model 'constant' has no inputs", 400)
        assert ask(server.http_port, "/v2/models/constant/infer", {"inputs": []}).status == 200


def test_predict_without_a_model_says_what_there_is(tables: dict[str, Any]) -> None:
    models = {"free": tables["free"], "detector": {"type": "yolov5", "path": str(DETECTOR)}}
    image = Path(IMAGE).read_bytes()
    with serving(models, model_control=True) as server:
        port = server.http_port
        assert ask(port, "/predict", image).json()["model"] == "detector"
        assert ask(port, "/v2/repository/models/detector/unload", {}).status == 200
        refused(ask(port, "/predict", image), "the models of this server take tensors, not images: free", 400)
        entry = server.repository.models["detector"]
        entry.state, entry.reason = "LOADING", ""
        refused(ask(port, "/predict", image), "not ready: detector", 503)
    with serving({"free": tables["free"]}) as server:
        refused(ask(server.http_port, "/predict", image), "model 'free' takes tensors", 400)
