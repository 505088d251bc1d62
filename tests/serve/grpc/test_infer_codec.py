"""Requests and responses of gRPC: what is remembered of a message never shows in the next request."""

from __future__ import annotations

import contextlib
import os
import uuid
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infersdk.serve.errors import RequestError, Status
from infersdk.serve.grpc import infer_codec
from infersdk.serve.grpc.infer_codec import read_request, write_response
from infersdk.serve.messages import InferResponse
from infersdk.serve.service import request_timing
from infersdk.serve.shared_memory import SharedMemoryRegions

pytest.importorskip("grpc")  # without it tritonclient.grpc raises an error that is no ImportError
pb: Any = pytest.importorskip("tritonclient.grpc.service_pb2")
KNOWN = "known"
ARRAYS = [np.zeros((2, 0), np.float32), np.ones(3, np.uint8), np.ones((1, 2), np.int64)]


class Service:
    """What reading a request needs of a server: its models and its shared memory."""

    def __init__(self) -> None:
        self.regions = SharedMemoryRegions("/")
        self.repository = SimpleNamespace(find=self._find)

    def _find(self, name: str, version: str) -> None:
        if name != KNOWN:
            raise RequestError(Status.NOT_FOUND, f"Request for unknown model: {name!r}")

    def timing(self, parameters: dict[str, Any]) -> tuple[float | None, int]:
        return request_timing(parameters, None)


@pytest.fixture
def service() -> Iterator[Any]:
    infer_codec._remembered_head.cache_clear()
    made = Service()
    yield made
    made.regions.close()


def shared(service: Any, values: np.ndarray[Any, Any], name: str = "x") -> None:
    """Registers these values as a region."""
    key = f"/infersdk-test-{uuid.uuid4().hex}"
    Path(f"/dev/shm{key}").write_bytes(values.tobytes())
    try:
        service.regions.register(name, key, 0, values.nbytes)
    finally:
        os.unlink(f"/dev/shm{key}")


def request(**fields: Any) -> Any:
    return pb.ModelInferRequest(model_name=KNOWN, **fields)


def in_shared_memory(nbytes: int, region: str = "x", **fields: Any) -> Any:
    """A request with an input and an output in a region."""
    message = request(**fields)
    for side in (message.inputs.add(name="a", datatype="UINT8", shape=[nbytes]), message.outputs.add(name="b")):
        side.parameters["shared_memory_region"].string_param = region
        side.parameters["shared_memory_byte_size"].int64_param = nbytes
    return message


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="no POSIX shared memory here")
def test_the_same_message_again_reads_what_is_registered_now(service: Any) -> None:
    message = in_shared_memory(8).SerializeToString()
    for value in (1, 2):
        shared(service, np.full(8, value, np.uint8))
        reads = [read_request(message, service, None)[0] for _ in range(3)]
        assert reads[0] is reads[1] is reads[2]
        np.testing.assert_array_equal(np.asarray(reads[0].inputs["a"]), np.full(8, value, np.uint8))
        region = reads[0].inputs["a"].region
        assert reads[0].outputs[0].shared_memory.region is region
        is_mapped = weakref.ref(region)
        del reads, region
        assert is_mapped() is not None  # it is registered
        service.regions.unregister("x")
        assert is_mapped() is None
        with pytest.raises(RequestError, match="Unable to find system shared memory region: 'x'"):
            read_request(message, service, None)
    assert infer_codec._remembered_head.cache_info().hits == 3


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="no POSIX shared memory here")
def test_the_deadline_of_the_same_message_is_that_of_its_call(service: Any) -> None:
    shared(service, np.zeros(8, np.uint8))
    plain, timed = in_shared_memory(8), in_shared_memory(8)
    timed.parameters["deadline"].double_param = 0.5
    deadlines = [
        [
            read_request(message.SerializeToString(), service, remaining)[0].deadline
            for remaining in (None, 2, 0.1, None)
        ]
        for message in (plain, timed)
    ]
    assert deadlines == [[None, 2, 0.1, None], [0.5, 0.5, 0.1, 0.5]]
    timed.parameters["deadline"].double_param = 0
    assert [read_request(timed.SerializeToString(), service, remaining)[0].deadline for remaining in (3, None)] == [
        0,
        0,
    ]
    rows = [read_request(plain.SerializeToString(), service, remaining)[0].known_rows for remaining in (None, 1)]
    assert rows[0] is rows[1] is not None


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="no POSIX shared memory here")
def test_requests_that_differ_in_their_id(service: Any) -> None:
    shared(service, np.zeros(8, np.uint8))
    for request_id in ("", "a", "b", "", "a"):
        for remaining in (None, 2):
            read, _ = read_request(in_shared_memory(8, id=request_id).SerializeToString(), service, remaining)
            assert (read.id, read.deadline) == (request_id, remaining)
    assert len(service.regions.derived) == 1
    assert infer_codec._remembered_head.cache_info().misses == 1


STEPS = st.lists(
    st.tuples(st.sampled_from(["register", "read", "read", "unregister", "unregister all"]), st.sampled_from("xxxy"),
              st.integers(1, 2), st.sampled_from(["", "7"]), st.sampled_from([None, 2.0])),
    min_size=12, max_size=30,
)  # fmt: skip


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="no POSIX shared memory here")
@settings(max_examples=100, deadline=None)
@given(STEPS)
def test_what_is_remembered_is_what_would_be_read(steps: list[tuple[str, str, int, str, float | None]]) -> None:
    """In any order of registrations, requests and their ends, in regions that a request fits or not."""
    service: Any = Service()

    def outcome(message: bytes, remaining: float | None) -> Any:
        try:
            read, own = read_request(message, service, remaining)
        except RequestError as error:
            return error.status, error.message
        inputs = {name: (one.region, one.offset, one.dtype, one.shape) for name, one in read.inputs.items()}
        return read.model, read.id, read.deadline, read.outputs, read.parameters, inputs, own

    try:
        for step, name, size, request_id, remaining in steps:
            if step == "register":
                with contextlib.suppress(RequestError):  # it is registered already
                    shared(service, np.zeros(4 * size, np.uint8), name)
            elif step == "read":
                message = in_shared_memory(4 * size, name, id=request_id).SerializeToString()
                found = outcome(message, remaining)
                remembered, service.regions.derived = service.regions.derived, {}
                assert found == outcome(message, remaining)
                service.regions.derived = remembered
            else:
                service.regions.unregister(name if step == "unregister" else "")
    finally:
        service.regions.close()


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="no POSIX shared memory here")
def test_only_so_many_messages_are_remembered(service: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(infer_codec, "_MOST_REQUESTS", 8)
    shared(service, np.zeros(8, np.uint8))
    sizes = set()
    for number in range(30):
        message = in_shared_memory(8)
        message.inputs[0].name = str(number)
        read, _ = read_request(message.SerializeToString(), service, None)
        assert list(read.inputs) == [str(number)]
        sizes.add(len(service.regions.derived))
    assert sizes == set(range(1, 9))


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="no POSIX shared memory here")
def test_a_message_with_contents_of_its_own_is_read_each_time(service: Any) -> None:
    shared(service, np.zeros(8, np.uint8))
    message = in_shared_memory(8)
    message.inputs.add(name="b", datatype="UINT8", shape=[1]).contents.uint_contents.append(1)
    flags = request()  # BOOL: its values are checked, and the client can change them
    flags.inputs.add(name="a", datatype="BOOL", shape=[8])
    flags.inputs[0].parameters["shared_memory_region"].string_param = "x"
    flags.inputs[0].parameters["shared_memory_byte_size"].int64_param = 8
    for one in (message, flags):
        first, second = (read_request(one.SerializeToString(), service, None)[0] for _ in range(2))
        assert first is not second
        assert first.known_rows is None


def test_requests_of_one_message_share_nothing_that_changes(service: Any) -> None:
    message = request(id="7", raw_input_contents=[b"\1\2"])
    message.inputs.add(name="a", datatype="UINT8", shape=[2])
    message.parameters["conf"].double_param = 0.5
    message.parameters["priority"].int64_param = 3
    message.parameters["triton_enable_empty_final_response"].bool_param = True
    for remaining in (None, 2.0):
        read, own = read_request(message.SerializeToString(), service, remaining)
        assert (read.parameters, read.priority, read.deadline) == ({"conf": 0.5}, 3, remaining)
        assert own == {"triton_enable_empty_final_response": True}
        read.parameters.clear()
        read.inputs.clear()


def test_contents_differ_where_heads_are_equal(service: Any) -> None:
    for content in (b"\1\2", b"\3\4"):
        message = request(raw_input_contents=[content])
        message.inputs.add(name="a", datatype="UINT8", shape=[2])
        read, _ = read_request(message.SerializeToString(), service, None)
        assert read.inputs["a"].tobytes() == content


def test_contents_in_the_head_are_not_mixed_up(service: Any) -> None:
    for values in ([1, 2], [3, 4], [1, 2], list(range(5000))):  # the last one is too long to be remembered
        message = request()
        message.inputs.add(name="a", datatype="INT32", shape=[len(values)]).contents.int_contents.extend(values)
        read, _ = read_request(message.SerializeToString(), service, None)
        assert read.inputs["a"].tolist() == values
    assert infer_codec._remembered_head.cache_info().misses == 2


def test_what_is_wrong_is_said_each_time(service: Any) -> None:
    twice, bad, classes = request(), request(), request()
    for _ in range(2):
        twice.inputs.add(name="a", datatype="UINT8", shape=[1])
    bad.inputs.add(name="a", datatype="UINT8", shape=[1]).parameters["shared_memory_region"].int64_param = 1
    classes.outputs.add(name="b").parameters["classification"].int64_param = -1
    for message, text in (
        (twice, "input 'a' was given twice"), (bad, "shared memory has a region's name"),
        (classes, "classification is a number of classes, not -1"),
    ):  # fmt: skip
        for _ in range(3):
            with pytest.raises(RequestError, match=text) as caught:
                read_request(message.SerializeToString(), service, None)
            assert caught.value.status is Status.INVALID
        message.model_name = "other"  # that a model is unknown comes first
        with pytest.raises(RequestError, match="unknown model"):
            read_request(message.SerializeToString(), service, None)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60))
def test_damaged_messages_stay_damaged(data: bytes) -> None:
    service: Any = Service()
    outcomes = []
    for _ in range(2):
        try:
            outcomes.append(str(read_request(data, service, None)))
        except RequestError as error:
            outcomes.append(error.message)
    assert outcomes[0] == outcomes[1]


@settings(max_examples=100, deadline=None)
@given(
    st.text(max_size=20), st.text(max_size=20),
    st.lists(st.sampled_from(ARRAYS), max_size=3),
    st.sets(st.integers(0, 2)), st.dictionaries(st.text(max_size=5), st.booleans(), max_size=2),
)  # fmt: skip
def test_responses_are_those_of_protobuf(
    model: str, identifier: str, arrays: list[Any], in_memory: set[int], parameters: dict[str, bool]
) -> None:
    outputs = {f"out{i}": array for i, array in enumerate(arrays)}
    placed = {name: 0 for i, name in enumerate(outputs) if i in in_memory}
    expected = pb.ModelInferResponse(model_name=model, model_version="1", id=identifier)
    names = {"float32": "FP32", "uint8": "UINT8", "int64": "INT64"}
    for name, array in outputs.items():
        expected.outputs.add(name=name, datatype=names[array.dtype.name], shape=array.shape)
        expected.raw_output_contents.append(b"" if name in placed else array.tobytes())
    for name, value in parameters.items():
        expected.parameters[name].bool_param = value
    encoded = write_response(InferResponse(model, "1", identifier, outputs), placed, parameters)
    assert pb.ModelInferResponse.FromString(encoded) == expected
