"""The same questions to this server and to a real Triton: the same fields, and the same classes of status.

`docs/serving.md` lists where the two differ, and why.
"""

from __future__ import annotations

import importlib
import json
import struct
import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import serve_models
from served_requests import Answer, ask, binary_body, client_of, inputs_of, simple_body
from triton_repository import COMMAND, REASON, Ports, running, write

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not COMMAND, reason=REASON)]


@pytest.fixture(scope="module")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ports]:
    """A Triton with the models of `serve_models`."""
    repository = write(tmp_path_factory.mktemp("triton"))
    with running(repository, tmp_path_factory.mktemp("log") / "triton.log") as ports:
        yield ports


def both(server: Any, triton: Ports, path: str, body: Any = None, **named: Any) -> tuple[Answer, Answer]:
    return ask(server.http_port, path, body, **named), ask(triton.http_port, path, body, **named)


def keys(value: Any) -> Any:
    """The fields of JSON, without their values."""
    if isinstance(value, dict):
        return {key: keys(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [keys(value[0])] if value else []
    return type(value).__name__


# ---- what is the same ----


@pytest.mark.parametrize(
    "path", ["/v2/models/simple", "/v2/models/simple/versions/1", "/v2/models/free", "/v2/models/echo"]
)
def test_metadata(server: Any, triton: Ports, path: str) -> None:
    ours, theirs = (answer.json() for answer in both(server, triton, path))
    assert (ours.pop("platform"), theirs.pop("platform")) == ("onnxruntime", "python")
    assert ours == theirs


def test_server_metadata(server: Any, triton: Ports) -> None:
    ours, theirs = (answer.json() for answer in both(server, triton, "/v2"))
    assert keys(ours) == keys(theirs)
    assert set(theirs["extensions"]) - set(ours["extensions"]) == {"sequence", "cuda_shared_memory", "trace", "logging"}
    assert set(ours["extensions"]) <= set(theirs["extensions"])


@pytest.mark.parametrize("model", ["simple", "free"])
def test_config(server: Any, triton: Ports, model: str) -> None:
    ours, theirs = (answer.json() for answer in both(server, triton, f"/v2/models/{model}/config"))
    assert set(theirs) - set(ours) <= {"dynamic_batching", "optimization", "instance_group"}
    for name in ("name", "max_batch_size"):
        assert ours[name] == theirs[name]
    for side in ("input", "output"):
        for one, other in zip(ours[side], theirs[side], strict=True):
            assert set(one) >= {"name", "data_type", "dims"}
            for name in ("name", "data_type", "dims"):
                assert one[name] == other[name]


def test_statistics(server: Any, triton: Ports) -> None:
    both(server, triton, "/v2/models/simple/infer", simple_body())
    ours, theirs = (answer.json() for answer in both(server, triton, "/v2/models/simple/stats"))
    (ours,), (theirs,) = ours["model_stats"], theirs["model_stats"]
    assert set(theirs) - set(ours) <= {"response_stats"}
    assert keys(ours["inference_stats"]) == keys(theirs["inference_stats"])
    assert keys(ours["batch_stats"]) == keys(theirs["batch_stats"])


def test_index(server: Any, triton: Ports) -> None:
    ours, theirs = (answer.json() for answer in both(server, triton, "/v2/repository/index", b"{}"))
    by_name = {row["name"]: row for row in ours}
    assert theirs == [by_name[row["name"]] for row in theirs]


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_json(server: Any, triton: Ports, rows: int) -> None:
    for change in ({}, {"id": "seven"}, {"outputs": [{"name": "OUTPUT1"}]}):
        ours, theirs = both(server, triton, "/v2/models/simple/infer", simple_body(rows) | change)
        assert ours.json() == theirs.json()
        assert ours.headers["content-type"] == theirs.headers["content-type"]


@pytest.mark.parametrize("datatype", [kind for kind in serve_models.KINDS if kind != "BYTES"])
def test_bytes(server: Any, triton: Ports, datatype: str, rng: np.random.Generator) -> None:
    x = serve_models.values(datatype, (2, 4), rng)
    if x.dtype.kind == "f":
        x = np.abs(x)
    for parameters in ({"binary_data_output": True}, {}):
        body, headers = binary_body(datatype, [2, 4], x.tobytes(), parameters=parameters)
        path = f"/v2/models/identity_{datatype}/infer"
        if datatype == "FP16" and not parameters:
            continue  # see test_differences
        ours, theirs = both(server, triton, path, body, headers=headers)
        assert (ours.status, theirs.status) == (200, 200)
        if parameters:
            split = [int(answer.headers["inference-header-content-length"]) for answer in (ours, theirs)]
            assert json.loads(ours.body[: split[0]]) == json.loads(theirs.body[: split[1]])
            assert ours.body[split[0] :] == theirs.body[split[1] :] == x.tobytes()
        else:
            values = [np.array(answer.json()["outputs"][0].pop("data"), x.dtype) for answer in (ours, theirs)]
            np.testing.assert_array_equal(*values)


def test_a_body_that_is_the_input(server: Any, triton: Ports) -> None:
    headers = {"Inference-Header-Content-Length": "0"}
    ours, theirs = both(server, triton, "/v2/models/identity_FP32/infer", bytes(16), headers=headers)
    length = int(theirs.headers["inference-header-content-length"])
    assert ours.headers["inference-header-content-length"] == str(length)
    assert json.loads(ours.body[:length]) == json.loads(theirs.body[:length])
    assert ours.body[length:] == theirs.body[length:]


def test_answers_of_a_stream(server: Any, triton: Ports) -> None:
    import grpc
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    requests = []
    for name, content in (("good", bytes(16)), ("short", b"123"), ("", bytes(16))):
        requests.append(
            service_pb2.ModelInferRequest(model_name="identity_FP32", id=name, raw_input_contents=[content])
        )
        requests[-1].inputs.add(name="INPUT0", datatype="FP32", shape=[1, 4])
    found = []
    for port in (server.grpc_port, triton.grpc_port):
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            answers = list(service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(iter(requests)))
        found.append([
            (one.infer_response.id, bool(one.error_message), str(dict(one.infer_response.parameters)))
            for one in answers
        ])  # fmt: skip
    assert sorted(found[0]) == sorted(found[1])


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_shared_memory(server: Any, triton: Ports, protocol: str) -> None:
    import tritonclient.utils.shared_memory as shm

    module = importlib.import_module(f"tritonclient.{protocol}")
    name = f"infersdk-both-{uuid.uuid4().hex}"
    handle = shm.create_shared_memory_region(name, f"/{name}", 256)
    a, b = np.arange(16, dtype=np.int32), np.full(16, 3, np.int32)
    seen = []
    try:
        for one in (server, triton):
            with client_of(one, protocol) as client:
                shm.set_shared_memory_region(handle, [a, b])
                shm.set_shared_memory_region(handle, [np.zeros(32, np.int32)], offset=128)
                client.register_system_shared_memory(name, f"/{name}", 256)
                inputs = [module.InferInput(one, [1, 16], "INT32") for one in ("INPUT0", "INPUT1")]
                outputs = [module.InferRequestedOutput(one) for one in ("OUTPUT0", "OUTPUT1")]
                for index in (0, 1):
                    inputs[index].set_shared_memory(name, 64, offset=64 * index)
                    outputs[index].set_shared_memory(name, 64, offset=128 + 64 * index)
                result = client.infer("simple", inputs, outputs=outputs)
                found = shm.get_contents_as_numpy(handle, np.int32, [2, 16], offset=128).copy()
                np.testing.assert_array_equal(found, [a + b, a - b])
                response = result.get_response()
                seen.append(response if protocol == "http" else str(response))
                status = client.get_system_shared_memory_status()
                seen[-1] = (seen[-1], status if protocol == "http" else str(status))
                client.unregister_system_shared_memory(name)
    finally:
        shm.destroy_shared_memory_region(handle)
    assert seen[0] == seen[1], seen[1]


# ---- refusals: the same class of status ----


def changed(**change: Any) -> dict[str, Any]:
    body = simple_body()
    body["inputs"][0] |= change
    return body


ZEROS, HEADERS = binary_body("FP32", [1, 4], bytes(16))


@pytest.mark.parametrize(
    ("path", "body", "headers"),
    [
        *((f"/v2/models/{name}{end}", None, {})
          for name in ("nonesuch", "nonesuch/versions/1", *(f"simple/versions/{one}" for one in ("9", "x", "-1")))
          for end in ("", "/config", "/ready", "/stats")),
        ("/v2/models/nonesuch/trace/setting", None, {}),
        ("/v2/models/simple/versions/9/infer", simple_body(), {}),
        ("/v2/models/nonesuch/infer", simple_body(), {}),
        ("/v2/models/nonesuch/infer", b"no JSON", {}),
        ("/v2/models/simple/infer", None, {}),
        ("/nonesuch", None, {}),
        ("/v2/models/simple/infer", changed(shape=[1, 15], data=[1] * 15), {}),
        ("/v2/models/simple/infer", changed(shape=[16]), {}),
        ("/v2/models/simple/infer", changed(datatype="FP32"), {}),
        ("/v2/models/simple/infer", changed(datatype="INT33"), {}),
        ("/v2/models/simple/infer", changed(name="INPUT7"), {}),
        ("/v2/models/simple/infer", changed(shape=[2, 16], data=[1] * 32), {}),
        ("/v2/models/simple/infer", simple_body(9), {}),
        ("/v2/models/simple/infer", simple_body() | {"inputs": simple_body()["inputs"][:1]}, {}),
        ("/v2/models/simple/infer", simple_body() | {"inputs": []}, {}),
        ("/v2/models/simple/infer", simple_body() | {"outputs": [{"name": "OUTPUT7"}]}, {}),
        ("/v2/models/identity_FP32/infer", ZEROS[:-1], HEADERS),
        ("/v2/models/identity_FP32/infer", ZEROS + b"\0", HEADERS),
        ("/v2/models/identity_FP32/infer", ZEROS, {"Inference-Header-Content-Length": "9999"}),
        ("/v2/repository/models/nonesuch/unload", b"{}", {}),
        ("/v2/systemsharedmemory/region/nonesuch/status", None, {}),
    ],
)  # fmt: skip
def test_refusals(server: Any, triton: Ports, path: str, body: Any, headers: dict[str, str]) -> None:
    ours, theirs = both(server, triton, path, body, headers=headers)
    if path.endswith("unload"):
        assert theirs.status == 503  # it polls its repository; an unknown model is not looked at
        assert ours.status == 404
        return
    assert ours.status == theirs.status, (ours.body, theirs.body)
    assert set(ours.json()) == set(theirs.json()) == {"error"}


@pytest.mark.parametrize(
    ("model", "names", "shape", "datatype", "version"),
    [
        ("nonesuch", ["INPUT0"], (1, 16), "INT32", ""),
        ("simple", ["INPUT0", "INPUT1"], (1, 16), "INT32", "9"),
        ("simple", ["INPUT0"], (1, 16), "INT32", ""),
        ("simple", ["INPUT0", "INPUT1"], (1, 15), "INT32", ""),
        ("simple", ["INPUT0", "INPUT1"], (16,), "INT32", ""),
        ("simple", ["INPUT0", "INPUT1"], (9, 16), "INT32", ""),
        ("simple", ["INPUT0", "INPUT1", "INPUT2"], (1, 16), "INT32", ""),
        ("simple", ["INPUT0", "INPUT1"], (1, 16), "FP32", ""),
    ],
)
def test_refusals_over_grpc(
    server: Any, triton: Ports, model: str, names: list[str], shape: tuple[int, ...], datatype: str, version: str
) -> None:
    x = np.zeros(shape, serve_models.KINDS[datatype])
    seen = []
    for one in (server, triton):
        with client_of(one, "grpc") as client:
            with pytest.raises(Exception) as raised:  # noqa: PT011 - the status is what is compared
                client.infer(model, inputs_of("grpc", dict.fromkeys(names, x), datatype), model_version=version)
            seen.append(raised.value.status())
    assert seen[0] == seen[1], seen[1]


@pytest.mark.parametrize("call", ["ModelReady", "ModelMetadata", "ModelConfig", "ModelStatistics", "ModelInfer"])
@pytest.mark.parametrize(
    ("name", "version"), [("nonesuch", ""), ("nonesuch", "1"), ("simple", "9"), ("simple", "x"), ("simple", "-1")]
)
def test_unknown_models_over_grpc(server: Any, triton: Ports, call: str, name: str, version: str) -> None:
    ours, theirs = (_status(port, call, name, version) for port in (server.grpc_port, triton.grpc_port))
    assert ours == theirs


def _status(port: int, call: str, name: str, version: str) -> str:
    """The status of a call about a model, or its response."""
    import grpc
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    side = "model_" if call == "ModelInfer" else ""
    request = getattr(service_pb2, f"{call}Request")(**{f"{side}name": name, f"{side}version": version})
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        try:
            return str(getattr(service_pb2_grpc.GRPCInferenceServiceStub(channel), call)(request))
        except grpc.RpcError as error:
            return str(error.code().name)


# ---- what differs on purpose ----


def test_differences(server: Any, triton: Ports) -> None:
    """Each of them is in `docs/serving.md`."""

    def statuses(path: str, body: Any, **named: Any) -> tuple[int, int]:
        ours, theirs = both(server, triton, path, body, **named)
        return ours.status, theirs.status

    simple = "/v2/models/simple/infer"
    assert statuses(simple, b"{") == (400, 500)
    assert statuses(simple, changed(data=[1.5] * 16)) == (400, 500)
    assert statuses(simple, changed(data=[1] * 15)) == (400, 500)
    assert statuses(simple, changed(data=[2**31] * 16)) == (400, 200), "Triton takes it modulo 2^32"
    assert statuses(simple, simple_body() | {"parameters": {"unknown": 1}}) == (400, 200)
    assert statuses(simple, changed(data=[[1] * 15, [1]])) == (400, 200)
    assert statuses(simple, simple_body() | {"outputs": [{"name": "OUTPUT0"}] * 2}) == (400, 200)
    assert statuses(simple, changed(parameters=None)) == (200, 200)
    assert statuses(simple, b"", headers={"Content-Encoding": "br"}) == (415, 501)
    half = {"name": "INPUT0", "shape": [1, 4], "datatype": "FP16", "data": [1, 2, 3, 4]}
    assert statuses("/v2/models/identity_FP16/infer", {"inputs": [half]}) == (200, 400)
    body, headers = binary_body("FP32", [1, 4], struct.pack("<4f", float("nan"), 1, 2, 3))
    assert statuses("/v2/models/identity_FP32/infer", body, headers=headers) == (400, 200), "NaN is no JSON"
    register = "/v2/systemsharedmemory/region/x/register"
    assert statuses(register, {"key": "/infersdk-nonesuch", "byte_size": 4}) == (400, 500)
