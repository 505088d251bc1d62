"""The calls of the protocol, with tritonclient over HTTP and gRPC."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import serve_models
from served_requests import ask, binary_body, inputs_of, serving, simple_body, triton

import infersdk


def failure(call: Any, *arguments: Any, **named: Any) -> tuple[str, str]:
    """The status and the message of a call that fails."""
    from tritonclient.utils import InferenceServerException

    with pytest.raises(InferenceServerException) as raised:
        call(*arguments, **named)
    return str(raised.value.status()), raised.value.message()


def of(answer: Any, protocol: str) -> dict[str, Any]:
    """An answer of either client as a dict with the protocol's names."""
    if protocol == "http":
        return answer
    from google.protobuf.json_format import MessageToDict

    return MessageToDict(answer, preserving_proto_field_name=True)


def simple(rows: int = 1) -> tuple[Any, Any]:
    return np.arange(rows * 16, dtype=np.int32).reshape(rows, 16), np.full((rows, 16), 3, np.int32)


# ---- health and metadata ----


def test_health(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("simple")
    assert client.is_model_ready("simple", "1")
    assert not client.is_model_ready("simple", "7")
    assert not client.is_model_ready("nonesuch")


def test_server_metadata(client: Any, protocol: str) -> None:
    found = of(client.get_server_metadata(), protocol)
    assert found["name"] == "infersdk"
    assert found["version"] == infersdk.__version__
    assert "binary_tensor_data" in found["extensions"]


def test_model_metadata(client: Any, protocol: str) -> None:
    found = of(client.get_model_metadata("simple"), protocol)
    shapes = [[int(side) for side in tensor["shape"]] for tensor in found["inputs"] + found["outputs"]]
    assert found["name"] == "simple"
    assert found["versions"] == ["1"]
    assert [tensor["name"] for tensor in found["inputs"]] == ["INPUT0", "INPUT1"]
    assert {tensor["datatype"] for tensor in found["inputs"] + found["outputs"]} == {"INT32"}
    assert shapes == [[-1, 16]] * 4


def test_model_config(client: Any, protocol: str) -> None:
    found = of(client.get_model_config("simple"), protocol)
    found = found.get("config", found)
    assert found["max_batch_size"] == 8
    assert [(tensor["name"], tensor["data_type"]) for tensor in found["input"]] == [
        ("INPUT0", "TYPE_INT32"), ("INPUT1", "TYPE_INT32"),
    ]  # fmt: skip
    assert [int(tensor["dims"][0]) for tensor in found["output"]] == [16, 16]


def test_statistics_count(client: Any, protocol: str) -> None:
    def counts() -> tuple[int, int, int]:
        (row,) = of(client.get_inference_statistics("simple"), protocol)["model_stats"]
        success = row["inference_stats"]["success"]
        assert int(success.get("ns", 0)) > 0 or not success.get("count", 0)
        failed = row["inference_stats"]["fail"].get("count", 0)
        return int(success.get("count", 0)), int(row.get("inference_count", 0)), int(failed)

    a, b = simple(3)
    client.infer("simple", inputs_of(protocol, {"INPUT0": a, "INPUT1": b}, "INT32"))
    before = counts()
    client.infer("simple", inputs_of(protocol, {"INPUT0": a, "INPUT1": b}, "INT32"))
    failure(client.infer, "simple", inputs_of(protocol, {"INPUT0": a}, "INT32"))
    after = counts()
    assert [now - then for now, then in zip(after, before, strict=True)] == [1, 3, 1]


def test_a_request_whose_response_fails_counts_as_failed(client: Any, protocol: str, server: Any) -> None:
    def counts() -> tuple[list[int], int]:
        (row,) = of(client.get_inference_statistics("simple_identity"), protocol)["model_stats"]
        stats = row["inference_stats"]
        seen = [int(stats[name].get("count", 0)) for name in ("success", "fail", "queue")]
        return seen, int(row.get("inference_count", 0))

    x = np.array([[b"a", b"b"]], np.object_)
    inputs = inputs_of(protocol, {"INPUT0": x}, "BYTES")
    client.infer("simple_identity", inputs)
    before, rows = counts()
    wanted = [triton(protocol).InferRequestedOutput("OUTPUT0", class_count=1)]
    assert "classification needs an output of numbers" in str(
        failure(client.infer, "simple_identity", inputs, outputs=wanted)
    )
    after, rows_after = counts()
    assert [now - then for now, then in zip(after, before, strict=True)] == [0, 1, 0]
    assert rows_after == rows


def test_a_response_that_json_lacks_counts_as_failed(server: Any) -> None:
    body, headers = binary_body("FP32", [1, 4], np.full(4, np.nan, np.float32).tobytes())

    def outcomes() -> list[int]:
        (row,) = ask(server.http_port, "/v2/models/identity_FP32/stats").json()["model_stats"]
        return [row["inference_stats"][name]["count"] for name in ("success", "fail")]

    before = outcomes()
    answer = ask(server.http_port, "/v2/models/identity_FP32/infer", body, headers=headers)
    assert answer.status == 400
    assert "NaN" in answer.json()["error"]
    assert "ask for it with binary_data" in answer.json()["error"]
    assert [now - then for now, then in zip(outcomes(), before, strict=True)] == [0, 1]


# ---- inference ----


@pytest.mark.parametrize("rows", [1, 2, 8])
def test_the_sum_and_the_difference(client: Any, protocol: str, rows: int) -> None:
    a, b = simple(rows)
    result = client.infer("simple", inputs_of(protocol, {"INPUT0": a, "INPUT1": b}, "INT32"), request_id="one")
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), a + b)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), a - b)
    response = of(result.get_response(), protocol)
    assert (response["model_name"], response["model_version"], response["id"]) == ("simple", "1", "one")


@pytest.mark.parametrize("datatype", [kind for kind in serve_models.KINDS if kind != "BYTES"])
def test_each_datatype(client: Any, protocol: str, datatype: str, rng: np.random.Generator) -> None:
    x = serve_models.values(datatype, (3, 4), rng)
    result = client.infer(f"identity_{datatype}", inputs_of(protocol, {"INPUT0": x}, datatype))
    found = result.as_numpy("OUTPUT0")
    assert found.dtype == x.dtype
    np.testing.assert_array_equal(found, x)


def test_strings(client: Any, protocol: str) -> None:
    a, b = simple()
    texts = [np.array([[str(v).encode() for v in row] for row in array.tolist()], object) for array in (a, b)]
    result = client.infer(
        "simple_string", inputs_of(protocol, dict(zip(("INPUT0", "INPUT1"), texts, strict=True)), "BYTES")
    )
    assert [int(v) for v in result.as_numpy("OUTPUT0").reshape(-1)] == (a + b).reshape(-1).tolist()
    assert [int(v) for v in result.as_numpy("OUTPUT1").reshape(-1)] == (a - b).reshape(-1).tolist()


def test_open_shapes(client: Any, protocol: str, rng: np.random.Generator) -> None:
    for shape in ((1, 1), (3, 7), (5, 2)):
        x = rng.normal(size=shape).astype(np.float32)
        result = client.infer("free", inputs_of(protocol, {"INPUT0": x}, "FP32"))
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), x)


def test_one_output_of_two(client: Any, protocol: str) -> None:
    a, b = simple()
    outputs = [triton(protocol).InferRequestedOutput("OUTPUT1")]
    result = client.infer("simple", inputs_of(protocol, {"INPUT0": a, "INPUT1": b}, "INT32"), outputs=outputs)
    assert result.as_numpy("OUTPUT0") is None
    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), a - b)


def test_classification(client: Any, protocol: str) -> None:
    x = np.array([[0.1, 0.7, 0.2, 0.0], [4, 3, 2, 1]], np.float32)
    outputs = [triton(protocol).InferRequestedOutput("OUTPUT0", class_count=2)]
    result = client.infer("identity_FP32", inputs_of(protocol, {"INPUT0": x}, "FP32"), outputs=outputs)
    rows = [[value.decode() for value in row] for row in result.as_numpy("OUTPUT0").tolist()]
    assert rows == [["0.700000:1", "0.200000:2"], ["4.000000:0", "3.000000:1"]]


@pytest.mark.parametrize(
    ("datatype", "values", "expected"),
    [
        ("INT64", [-(2**63), 2**53 + 1, 2**53, 2**53 + 2], ["9007199254740994:3", "9007199254740993:1"]),
        ("UINT64", [0, 2**64 - 1, 2**64 - 2, 7], ["18446744073709551615:1", "18446744073709551614:2"]),
    ],
)
def test_classification_of_integers(
    client: Any, protocol: str, datatype: str, values: list[int], expected: list[str]
) -> None:
    x = np.array([values], datatype.lower())
    outputs = [triton(protocol).InferRequestedOutput("OUTPUT0", class_count=2)]
    result = client.infer(f"identity_{datatype}", inputs_of(protocol, {"INPUT0": x}, datatype), outputs=outputs)
    assert [value.decode() for value in result.as_numpy("OUTPUT0")[0]] == expected


@pytest.mark.parametrize(
    ("shape", "batch", "values", "expected"),
    [
        (["batch"], 8, [5, 7, 6], [["5:0"], ["7:0"], ["6:0"]]),
        (["batch", "n"], None, np.zeros((2, 0)), []),
        ([2, 3], None, [[1, 2, 3], [9, 8, 7]], ["9:3"]),
    ],
    ids=["numbers", "empty", "no batch"],
)
def test_classification_is_of_each_row_of_a_batch_or_of_the_whole_output(
    shape: list[int | str], batch: int | None, values: Any, expected: Any, tmp_path: Path
) -> None:
    path = serve_models.identity(tmp_path / "m.onnx", "int32", shape)
    x = np.array(values, np.int32)
    with serving({"m": {"type": "network", "path": str(path), "max_batch": batch}}) as server:
        output = {"name": "OUTPUT0", "parameters": {"classification": 1}}
        entry = {"name": "INPUT0", "shape": x.shape, "datatype": "INT32", "data": x.tolist()}
        answer = ask(server.http_port, "/v2/models/m/infer", {"inputs": [entry], "outputs": [output]})
    assert answer.status == 200, answer.json()
    (found,) = answer.json()["outputs"]
    assert (found["shape"], found["data"]) == (list(np.shape(expected)), np.ravel(expected).tolist())


# ---- refusals ----


def test_unknown_models_and_versions(client: Any, protocol: str) -> None:
    a, b = simple()
    inputs = inputs_of(protocol, {"INPUT0": a, "INPUT1": b}, "INT32")
    missing = {"http": "404", "grpc": "StatusCode.NOT_FOUND"}[protocol]
    status, message = failure(client.infer, "nonesuch", inputs)
    assert (status, message) == (missing, "Request for unknown model: 'nonesuch' is not found")
    status, message = failure(client.infer, "simple", inputs, model_version="9")
    assert status == missing
    assert "version '9' is not found; its versions are 1" in message
    invalid = {"http": "400", "grpc": "StatusCode.INVALID_ARGUMENT"}[protocol]
    for unknown in (["nonesuch"], ["simple", "9"]):
        for call in (client.get_model_metadata, client.get_model_config):
            assert failure(call, *unknown)[0] == missing
        assert failure(client.get_inference_statistics, *unknown)[0] == invalid  # as in Triton


@pytest.mark.parametrize(
    ("arrays", "datatype", "said"),
    [
        ({"INPUT0": np.zeros((1, 16), np.int32)}, "INT32", "input 'INPUT1' of model 'simple' was not given"),
        ({"INPUT0": np.zeros((1, 16), np.int32), "INPUT1": np.zeros((1, 15), np.int32)}, "INT32",
         "unexpected shape for input 'INPUT1' of model 'simple': expected [-1, 16], got [1, 15]"),
        ({"INPUT0": np.zeros((1, 16), np.int32), "INPUT1": np.zeros((2, 16), np.int32)}, "INT32", "the same batch"),
        ({"INPUT0": np.zeros((1, 16), np.float32), "INPUT1": np.zeros((1, 16), np.float32)}, "FP32",
         "data-type is 'FP32', but model 'simple' expects 'INT32'"),
        ({name: np.zeros((9, 16), np.int32) for name in ("INPUT0", "INPUT1")}, "INT32", "must be between 1 and 8"),
        ({name: np.zeros((1, 16), np.int32) for name in ("INPUT0", "INPUT1", "INPUT2")}, "INT32",
         "unexpected inference input 'INPUT2' for model 'simple'; its inputs are INPUT0, INPUT1"),
    ],
)  # fmt: skip
def test_wrong_inputs(client: Any, protocol: str, arrays: dict[str, Any], datatype: str, said: str) -> None:
    status, message = failure(client.infer, "simple", inputs_of(protocol, arrays, datatype))
    assert status == {"http": "400", "grpc": "StatusCode.INVALID_ARGUMENT"}[protocol]
    assert said in message


def test_parameters(client: Any, protocol: str) -> None:
    a, b = simple()
    inputs = inputs_of(protocol, {"INPUT0": a, "INPUT1": b}, "INT32")
    client.infer("simple", inputs, priority=3, timeout=10_000_000)
    client.infer("simple", inputs, parameters={"deadline": 10})
    for named, said in (
        ({"parameters": {"conf": 3}}, "model 'simple' has no parameter 'conf'"),
        ({"sequence_id": 4, "sequence_start": True}, "sequences are not supported"),
        ({"parameters": {"deadline": 10}, "timeout": 10}, "either deadline (seconds) or timeout"),
        ({"parameters": {"deadline": "soon"}}, "deadline is a number of seconds from 0 to 1,000,000, not 'soon'"),
    ):
        assert said in failure(client.infer, "simple", inputs, **named)[1]


def test_a_deadline_that_is_past(client: Any, protocol: str) -> None:
    a, b = simple()
    inputs = inputs_of(protocol, {"INPUT0": a, "INPUT1": b}, "INT32")
    status, message = failure(client.infer, "simple", inputs, parameters={"deadline": 0})
    assert status == {"http": "504", "grpc": "StatusCode.DEADLINE_EXCEEDED"}[protocol]
    assert "had not left for the model within its 0 s" in message


# ---- the repository ----


def test_index(client: Any, protocol: str) -> None:
    found = client.get_model_repository_index()
    rows = of(found, protocol)["models"] if protocol == "grpc" else found
    assert {"name": "simple", "version": "1", "state": "READY"} in rows


def test_unload_and_load(client: Any, protocol: str) -> None:
    x = np.ones((1, 4), np.int8)
    inputs = inputs_of(protocol, {"INPUT0": x}, "INT8")
    client.unload_model("identity_INT8")
    assert not client.is_model_ready("identity_INT8")
    assert client.is_server_ready()
    status, message = failure(client.infer, "identity_INT8", inputs)
    assert status == {"http": "404", "grpc": "StatusCode.NOT_FOUND"}[protocol]
    assert "is not ready, its state is UNAVAILABLE: unloaded" in message
    client.load_model("identity_INT8")
    np.testing.assert_array_equal(client.infer("identity_INT8", inputs).as_numpy("OUTPUT0"), x)
    assert "no such model" in failure(client.load_model, "nonesuch")[1]
    assert "takes no 'config'" in failure(client.load_model, "simple", config="{}")[1]


# ---- trace and log ----


def test_trace_and_log_settings_are_read_only(client: Any, protocol: str) -> None:
    assert "OFF" in str(client.get_trace_settings())
    assert "log_info" in str(client.get_log_settings())
    refused = {"http": "501", "grpc": "StatusCode.UNIMPLEMENTED"}[protocol]
    assert failure(client.update_trace_settings, settings={"trace_level": ["TIMESTAMPS"]})[0] == refused
    assert failure(client.update_log_settings, {"log_verbose_level": 1})[0] == refused


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("deadline", "soon", "a number of seconds from 0 to 1,000,000, not 'soon'"),
        ("deadline", 1e15, "a number of seconds from 0 to 1,000,000, not 1000000000000000.0"),
        ("timeout", 1.5, "a whole number from 0 to 1,000,000,000,000, not 1.5"),
        ("priority", -1, "a whole number from 0 to 9,007,199,254,740,992, not -1"),
        ("priority", True, "a whole number from 0 to 9,007,199,254,740,992, not True"),
    ],
)
def test_deadlines_and_priorities_that_are_none(server: Any, name: str, value: Any, said: str) -> None:
    answer = ask(server.http_port, "/v2/models/simple/infer", simple_body(parameters={name: value}))
    assert (answer.status, answer.json()["error"]) == (400, f"parameter {name} is {said}")


@pytest.mark.parametrize("name", ["1e2", "true", "1.50"])
def test_names_of_models_in_a_query_are_text(server: Any, name: str) -> None:
    answer = ask(server.http_port, f"/predict?model={name}", b"image")
    assert (answer.status, f"unknown model: {name!r}" in answer.json()["error"]) == (404, True), answer.body
