"""What gRPC alone has: typed contents, streams, keys of metadata, deadlines of calls, the health service."""

from __future__ import annotations

import queue
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import serve_models
from served_requests import inputs_of

if TYPE_CHECKING:
    from collections.abc import Iterator

grpc: Any = pytest.importorskip("grpc")
pb: Any = pytest.importorskip("tritonclient.grpc.service_pb2")
stubs: Any = pytest.importorskip("tritonclient.grpc.service_pb2_grpc")


@pytest.fixture
def channel(server: Any) -> Iterator[Any]:
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as open_channel:
        yield open_channel


@pytest.fixture
def stub(channel: Any) -> Any:
    return stubs.GRPCInferenceServiceStub(channel)


def refused(call: Any, *arguments: Any, **named: Any) -> tuple[Any, str]:
    with pytest.raises(grpc.RpcError) as raised:
        call(*arguments, **named)
    return raised.value.code(), raised.value.details()


@pytest.mark.parametrize("version", ["x", "-1"])
def test_versions_that_are_no_numbers(stub: Any, version: str) -> None:
    """The statuses of Triton 2.51."""
    of_model = {"name": "simple", "version": version}
    for call, request in (
        (stub.ModelStatistics, pb.ModelStatisticsRequest(**of_model)),
        (stub.ModelMetadata, pb.ModelMetadataRequest(**of_model)),
        (stub.ModelConfig, pb.ModelConfigRequest(**of_model)),
        (stub.ModelReady, pb.ModelReadyRequest(**of_model)),
        (stub.ModelInfer, pb.ModelInferRequest(model_name="simple", model_version=version)),
    ):
        code, said = refused(call, request)
        assert (code.name, f"version {version!r} of model 'simple' is not a number" in said) == (
            "INVALID_ARGUMENT", True,
        )  # fmt: skip


def test_trace_settings_of_an_unknown_model(stub: Any) -> None:
    code, said = refused(stub.TraceSetting, pb.TraceSettingRequest(model_name="nonesuch"))
    assert (code.name, "'nonesuch' is not found" in said) == ("INVALID_ARGUMENT", True)


def test_a_repository_by_name_is_refused(stub: Any) -> None:
    for call, request in (
        (stub.RepositoryIndex, pb.RepositoryIndexRequest(repository_name="other")),
        (stub.RepositoryModelLoad, pb.RepositoryModelLoadRequest(repository_name="other", model_name="simple")),
        (stub.RepositoryModelUnload, pb.RepositoryModelUnloadRequest(repository_name="other", model_name="simple")),
    ):
        code, said = refused(call, request)
        assert (code.name, "repository_name 'other' is not supported" in said) == ("UNIMPLEMENTED", True)
    assert stub.ModelReady(pb.ModelReadyRequest(name="simple")).ready


FIELDS = {
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents",
    "INT64": "int64_contents", "UINT8": "uint_contents", "UINT16": "uint_contents", "UINT32": "uint_contents",
    "UINT64": "uint64_contents", "FP32": "fp32_contents", "FP64": "fp64_contents",
}  # fmt: skip


@pytest.mark.parametrize("datatype", FIELDS)
def test_typed_contents(stub: Any, datatype: str, rng: np.random.Generator) -> None:
    x = serve_models.values(datatype, (2, 4), rng)
    request = pb.ModelInferRequest(model_name=f"identity_{datatype}")
    one = request.inputs.add(name="INPUT0", datatype=datatype, shape=[2, 4])
    getattr(one.contents, FIELDS[datatype]).extend(x.reshape(-1).tolist())
    response = stub.ModelInfer(request)
    (raw,) = response.raw_output_contents
    np.testing.assert_array_equal(np.frombuffer(raw, x.dtype).reshape(2, 4), x)


def test_typed_strings(stub: Any) -> None:
    request = pb.ModelInferRequest(model_name="simple_identity")
    request.inputs.add(name="INPUT0", datatype="BYTES", shape=[1, 2]).contents.bytes_contents.extend(
        [b"a", b"\xc3\xa9"]
    )
    (raw,) = stub.ModelInfer(request).raw_output_contents
    assert raw == b"\x01\0\0\0a\x02\0\0\0\xc3\xa9"


def test_contents_that_do_not_fit(stub: Any) -> None:
    request = pb.ModelInferRequest(model_name="identity_INT8")
    one = request.inputs.add(name="INPUT0", datatype="INT8", shape=[1, 4])
    one.contents.int_contents.extend([1, 2, 3, 200])
    assert "values that INT8 does not hold" in refused(stub.ModelInfer, request)[1]
    one.contents.fp32_contents.append(1)
    assert "INT8 travels as int_contents, and fp32_contents was given" in refused(stub.ModelInfer, request)[1]
    one.contents.ClearField("fp32_contents")
    one.contents.int_contents[:] = [1, 2, 3]
    assert "has 4 elements, and int_contents has 3" in refused(stub.ModelInfer, request)[1]
    request.raw_input_contents.append(bytes(4))
    assert "contents field must not be specified" in refused(stub.ModelInfer, request)[1]
    one.ClearField("contents")
    request.raw_input_contents.append(bytes(4))
    assert "expected 1 raw input contents" in refused(stub.ModelInfer, request)[1]
    del request.raw_input_contents[1]
    one.shape[:] = [1, -4]
    code, said = refused(stub.ModelInfer, request)
    assert (code, "sides of at least 0" in said) == (grpc.StatusCode.INVALID_ARGUMENT, True)
    one.datatype = "FP17"
    one.shape[:] = [1, 4]
    assert "unknown datatype 'FP17'" in refused(stub.ModelInfer, request)[1]


def test_a_stream_answers_in_order_and_survives_errors(grpc: Any) -> None:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    grpc.start_stream(callback=lambda result, error: answers.put((result, error)))
    try:
        for index in range(8):
            x = np.full((1, 4), index, np.float32)
            name = "nonesuch" if index == 3 else "identity_FP32"
            grpc.async_stream_infer(name, inputs_of("grpc", {"INPUT0": x}, "FP32"), request_id=str(index))
        for index in range(8):
            result, error = answers.get(timeout=30)
            if index == 3:
                assert "Request for unknown model: 'nonesuch'" in str(error)
                continue
            assert error is None
            assert result.get_response().id == str(index)
            assert result.as_numpy("OUTPUT0")[0, 0] == index
    finally:
        grpc.stop_stream()


def test_errors_of_a_stream_have_the_id_of_their_request(stub: Any) -> None:
    request = pb.ModelInferRequest(model_name="identity_FP32", id="7", raw_input_contents=[b"123"])
    request.inputs.add(name="INPUT0", datatype="FP32", shape=[1, 4])
    (answer,) = stub.ModelStreamInfer(iter([request]))
    assert "has 16 bytes, and 3 were given" in answer.error_message
    assert answer.infer_response.id == "7"


@pytest.mark.parametrize("asked", [False, True])
def test_the_final_response_of_a_stream_says_that_it_is_it(grpc: Any, asked: bool) -> None:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    grpc.start_stream(callback=lambda result, error: answers.put((result, error)))
    x = np.zeros((1, 4), np.float32)
    grpc.async_stream_infer(
        "identity_FP32", inputs_of("grpc", {"INPUT0": x}, "FP32"), enable_empty_final_response=asked
    )
    result, error = answers.get(timeout=30)
    grpc.stop_stream()
    assert error is None
    assert result.get_response().parameters["triton_final_response"].bool_param


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compression(grpc: Any, algorithm: str) -> None:
    x = np.ones((4, 4), np.float32)
    result = grpc.infer("identity_FP32", inputs_of("grpc", {"INPUT0": x}, "FP32"), compression_algorithm=algorithm)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), x)


def test_a_message_beyond_the_limit(channel: Any) -> None:
    call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
    assert refused(call, bytes(9 << 20))[0] == grpc.StatusCode.RESOURCE_EXHAUSTED


def test_bytes_that_are_no_message(channel: Any) -> None:
    call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
    code, said = refused(call, b"\xff\xff\xff")
    assert (code, said) == (grpc.StatusCode.INVALID_ARGUMENT, "the message is not an encoded ModelInferRequest")
    assert refused(channel.unary_unary("/inference.GRPCInferenceService/Nonesuch"), b"")[0] == (
        grpc.StatusCode.UNIMPLEMENTED
    )


def test_the_health_service_of_grpc(channel: Any) -> None:
    assert channel.unary_unary("/grpc.health.v1.Health/Check")(b"") == b"\x08\x01"


@pytest.mark.posix
def test_a_small_message_that_becomes_a_large_one(server: Any) -> None:
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    options = [("grpc.max_send_message_length", -1)]
    address, gzip = f"127.0.0.1:{server.grpc_port}", grpc.Compression.Gzip
    with grpc.insecure_channel(address, options=options, compression=gzip) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        code, said = refused(call, bytes(100 << 20))
    assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "larger than max" in said
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert after - before < 350 * 1024, "the client's own 100 MB, and its copies"
