"""What HTTP alone has: JSON, bytes behind it, compression, limits of bodies, statuses."""

from __future__ import annotations

import base64
import gzip
import json
import struct
import zlib
from typing import Any

import numpy as np
import pytest
import serve_models
from served_requests import ask, binary_body, simple_body

INFER = "/v2/models/simple/infer"


def test_json_in_and_out(server: Any) -> None:
    answer = ask(server.http_port, INFER, simple_body(2, id="7"))
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    found = answer.json()
    assert (found["model_name"], found["model_version"], found["id"]) == ("simple", "1", "7")
    first, second = found["outputs"]
    assert (first["name"], first["datatype"], first["shape"]) == ("OUTPUT0", "INT32", [2, 16])
    assert first["data"] == [value + 1 for value in range(32)]
    assert second["data"] == [value - 1 for value in range(32)]


@pytest.mark.parametrize("datatype", serve_models.KINDS)
def test_each_datatype_as_json(server: Any, datatype: str, rng: np.random.Generator) -> None:
    model = "simple_identity" if datatype == "BYTES" else f"identity_{datatype}"
    x = serve_models.values(datatype, (2, 4), rng)
    data = [v.decode() for v in x.reshape(-1)] if datatype == "BYTES" else x.tolist()  # flat, and nested
    entry = {"name": "INPUT0", "shape": [2, 4], "datatype": datatype, "data": data}
    answer = ask(server.http_port, f"/v2/models/{model}/infer", {"inputs": [entry]})
    assert answer.status == 200, answer.body
    (output,) = answer.json()["outputs"]
    if datatype == "BYTES":
        assert output["data"] == data
    else:
        np.testing.assert_array_equal(np.array(output["data"], x.dtype).reshape(2, 4), x)


def test_base64(server: Any) -> None:
    entry = {
        "name": "INPUT0", "shape": [1, 1], "datatype": "BYTES", "parameters": {"encoding": "base64"},
        "data": [base64.b64encode("é".encode()).decode()],
    }  # fmt: skip
    answer = ask(server.http_port, "/v2/models/simple_identity/infer", {"inputs": [entry]})
    assert answer.json()["outputs"][0]["data"] == ["é"]
    entry["data"] = ["*"]
    answer = ask(server.http_port, "/v2/models/simple_identity/infer", {"inputs": [entry]})
    assert answer.status == 400
    assert "Invalid base64" in answer.json()["error"]


def test_bytes_behind_the_json(server: Any) -> None:
    a, b = np.arange(16, dtype=np.int32), np.full(16, 2, np.int32)
    inputs = [
        {"name": name, "shape": [1, 16], "datatype": "INT32", "parameters": {"binary_data_size": 64}}
        for name in ("INPUT0", "INPUT1")
    ]
    outputs = [{"name": "OUTPUT1"}, {"name": "OUTPUT0", "parameters": {"binary_data": False}}]
    head = json.dumps({"inputs": inputs, "outputs": outputs, "parameters": {"binary_data_output": True}}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}
    answer = ask(server.http_port, INFER, head + a.tobytes() + b.tobytes(), headers=headers)
    assert answer.headers["content-type"] == "application/octet-stream"
    length = int(answer.headers["inference-header-content-length"])
    found = json.loads(answer.body[:length])
    assert [output["name"] for output in found["outputs"]] == ["OUTPUT1", "OUTPUT0"]
    np.testing.assert_array_equal(np.frombuffer(answer.body[length:], np.int32), a - b)
    assert found["outputs"][1]["data"] == (a + b).tolist()
    for body, said in (
        (head + a.tobytes(), "64"), (head + a.tobytes() + b.tobytes() + b"x", "unexpected additional input data"),
    ):  # fmt: skip
        refused = ask(server.http_port, INFER, body, headers=headers)
        assert refused.status == 400
        assert said in refused.json()["error"]


def test_a_body_that_is_the_input_itself(server: Any) -> None:
    headers = {"Inference-Header-Content-Length": "0"}

    def outputs(model: str, body: bytes) -> tuple[Any, bytes]:
        answer = ask(server.http_port, f"/v2/models/{model}/infer", body, headers=headers)
        assert answer.status == 200, answer.body
        length = int(answer.headers["inference-header-content-length"])
        return json.loads(answer.body[:length])["outputs"][0]["shape"], answer.body[length:]

    x = np.arange(4, dtype=np.float32).tobytes()
    assert outputs("identity_FP32", x) == ([1, 4], x)
    assert outputs("free", x) == ([1, 4], x)
    assert outputs("simple_identity", b"text") == ([1, 1], b"\4\0\0\0text")
    answer = ask(server.http_port, "/v2/models/identity_FP32/infer", b"12345", headers=headers)
    assert answer.status == 400
    assert "has 16 bytes, and 5 were given" in answer.json()["error"]


def test_parameters_that_are_null(server: Any) -> None:
    body = simple_body()
    body["inputs"][0]["parameters"] = None
    assert ask(server.http_port, INFER, body | {"outputs": [{"name": "OUTPUT0", "parameters": None}]}).status == 200


def test_values_that_json_lacks(server: Any) -> None:
    x = np.array([1, np.inf, 2, np.nan], np.float32)
    headers = {"Inference-Header-Content-Length": "0"}
    answer = ask(server.http_port, "/v2/models/identity_FP32/infer", x.tobytes(), headers=headers)
    assert answer.body.endswith(x.tobytes())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"inputs": 3}, "failed to parse the request JSON"),
        ({"inputs": [{"name": "INPUT0"}]}, "missing required field `shape`"),
        ({"outputs": [{"name": "OUTPUT7"}]}, "unexpected inference output 'OUTPUT7' for model 'simple'"),
        ({"outputs": [{"name": "OUTPUT0"}, {"name": "OUTPUT0"}]}, "requested twice"),
        ({"parameters": {"binary_data_output": 1}}, "binary_data_output is true or false, not 1"),
        ({"parameters": {"nonesuch": 1}}, "has no parameter 'nonesuch'"),
    ],
)
def test_wrong_requests(server: Any, change: dict[str, Any], said: str) -> None:
    answer = ask(server.http_port, INFER, simple_body() | change)
    assert answer.status == 400
    assert said in answer.json()["error"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"data": [1.5] * 16}, "not INT32 [1, 16]: Expected `int`, got `float`"),
        ({"data": [2**31] * 16}, "Expected `int` <= 2147483647"),
        ({"data": [1] * 15}, "has 16 elements, and data has 15"),
        ({"data": [[1, 2], [3]]}, "not INT32 [1, 16]"),
        ({"datatype": "BYTES", "data": [["a", "b"], ["c"]]}, "not BYTES [1, 16]: its lists have unequal lengths"),
        ({"datatype": "BYTES", "data": [[["a"]], [["b"], ["c"]]]}, "its lists have unequal lengths"),
        ({"data": "text"}, "is a list"),
        ({"data": [[[[[[]]]]]]}, "has 16 elements, and data has 0"),
        ({"shape": [1, -16]}, "sides of at least 0"),
        ({"shape": [2**40, 2**40]}, "have a product above"),
        ({"datatype": "INT33"}, "unknown datatype 'INT33'; the datatypes are BOOL"),
        ({"parameters": {"binary_data_size": 64}}, "has 2 of data, binary_data_size and shared_memory_region"),
        ({"parameters": {"shared_memory_region": "x"}}, "has 2 of data, binary_data_size and shared_memory_region"),
        ({"parameters": {"encoding": "base64"}}, "the encoding is base64, for BYTES alone"),
        ({"datatype": "FP32", "data": [1e39] * 16}, "not FP32 [1, 16]: 1e+39 is out of the range of FP32"),
        ({"datatype": "FP16", "data": [1] * 15 + [-65520]}, "-65520 is out of the range of FP16"),
        ({"datatype": "BF16", "data": [[1] * 15, [1e39]][::-1]}, "not BF16 [1, 16]"),
        ({"datatype": "BF16", "data": [1] * 15 + [3.4e38]}, "3.4e+38 is out of the range of BF16"),
    ],
)
def test_wrong_inputs(server: Any, change: dict[str, Any], said: str) -> None:
    body = simple_body()
    body["inputs"][0] |= change
    answer = ask(server.http_port, INFER, body)
    assert answer.status == 400
    assert said in answer.json()["error"]


def test_json_that_is_none(server: Any) -> None:
    for body in (
        b"{",
        b"[" * 100_000,
        b"\xff\xfe",
        b'{"inputs": [], "parameters": ' + b'{"a":' * 5000 + b"1" + b"}" * 5001,
    ):
        answer = ask(server.http_port, INFER, body)
        assert answer.status == 400
        assert "failed to parse the request JSON" in answer.json()["error"]


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_compression_of_both_ways(server: Any, encoding: str) -> None:
    text = json.dumps(simple_body(8)).encode()
    packed = gzip.compress(text) if encoding == "gzip" else zlib.compress(text)
    headers = {"Content-Encoding": encoding, "Accept-Encoding": encoding}
    answer = ask(server.http_port, INFER, packed, headers=headers)
    assert answer.headers["content-encoding"] == encoding
    body = gzip.decompress(answer.body) if encoding == "gzip" else zlib.decompress(answer.body)
    assert json.loads(body)["outputs"][0]["data"] == [value + 1 for value in range(128)]
    for damaged in (packed[:-5], packed[:10], b"no " + packed, packed + b"more"):
        refused = ask(server.http_port, INFER, damaged, headers={"Content-Encoding": encoding})
        assert refused.status == 400
        assert "compress" in refused.json()["error"]
    refused = ask(server.http_port, INFER, packed, headers={"Content-Encoding": "br"})
    assert refused.status == 415


def test_a_small_body_that_becomes_a_large_one(server: Any) -> None:
    bomb = gzip.compress(bytes(64 << 20), 9)
    assert len(bomb) < 1 << 20
    answer = ask(server.http_port, INFER, bomb, headers={"Content-Encoding": "gzip"})
    assert answer.status == 413
    assert "more than 16,777,216 bytes after decompression" in answer.json()["error"]


def test_a_body_beyond_the_limit(server: Any) -> None:
    answer = ask(server.http_port, INFER, bytes((8 << 20) + 1))
    assert answer.status == 413
    assert "more than 8,388,608 bytes" in answer.json()["error"]


def test_paths_and_methods(server: Any) -> None:
    answer = ask(server.http_port, "/nonesuch")
    assert (answer.status, answer.json()) == (404, {"error": "there is nothing at '/nonesuch'"})
    answer = ask(server.http_port, INFER)
    assert (answer.status, answer.headers["allow"]) == (405, "POST")
    assert answer.json() == {"error": f"{INFER} takes POST, not GET"}
    assert ask(server.http_port, "/v2/models/simple/versions/1/infer", simple_body()).status == 200
    assert ask(server.http_port, "/v2/models/sim%70le/infer", simple_body()).status == 200


def test_bytes_that_are_not_text_in_json(server: Any) -> None:
    raw = struct.pack("<I", 2) + b"\xff\xfe"
    body, headers = binary_body("BYTES", [1, 1], raw)
    answer = ask(server.http_port, "/v2/models/simple_identity/infer", body, headers=headers)
    assert answer.status == 400
    assert "is not UTF-8, and the model takes text" in answer.json()["error"]
