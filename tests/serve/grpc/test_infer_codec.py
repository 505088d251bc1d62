"""Requests and responses of gRPC."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infersdk.serve.errors import RequestError, Status
from infersdk.serve.grpc.infer_codec import read_request, response_message
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

    def timing(self, parameters: dict[str, Any]) -> tuple[float | None, int]:
        return request_timing(parameters, None)


@pytest.fixture
def service() -> Iterator[Any]:
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


def test_wrong_requests_are_refused(service: Any) -> None:
    twice, bad, classes = request(), request(), request()
    for _ in range(2):
        twice.inputs.add(name="a", datatype="UINT8", shape=[1])
    bad.inputs.add(name="a", datatype="UINT8", shape=[1]).parameters["shared_memory_region"].int64_param = 1
    classes.outputs.add(name="b").parameters["classification"].int64_param = -1
    for message, text in (
        (twice, "input 'a' was given twice"), (bad, "shared memory has a region's name"),
        (classes, "classification is a number of classes, not -1"),
    ):  # fmt: skip
        with pytest.raises(RequestError, match=text) as caught:
            read_request(message.SerializeToString(), service, None)
        assert caught.value.status is Status.INVALID


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
    assert response_message(InferResponse(model, "1", identifier, outputs), placed, parameters) == expected
