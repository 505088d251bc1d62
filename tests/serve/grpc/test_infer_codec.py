"""Requests and responses of gRPC."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("grpc")  # without it tritonclient.grpc raises an error that is no ImportError
pb: Any = pytest.importorskip("tritonclient.grpc.service_pb2")

from infersdk.serve.errors import RequestError, Status  # noqa: E402 - behind the check
from infersdk.serve.grpc.infer_codec import read_request  # noqa: E402 - behind the check
from infersdk.serve.settings import ServerSettings  # noqa: E402 - behind the check
from infersdk.serve.shared_memory import SharedMemoryRegions  # noqa: E402 - behind the check

KNOWN = "known"


class Service:
    """What reading a request needs of a server: its models and its shared memory."""

    def __init__(self) -> None:
        self.regions, self.settings = SharedMemoryRegions("/"), ServerSettings(max_elements=100_000)


@pytest.fixture
def service() -> Iterator[Any]:
    made = Service()
    yield made
    made.regions.close()


def request(**fields: Any) -> Any:
    return pb.ModelInferRequest(model_name=KNOWN, **fields)


@pytest.mark.parametrize(
    ("own", "remaining", "expected"),
    [(None, None, None), (None, 2, 2), (0.5, None, 0.5), (0.5, 2, 0.5), (0.5, 0.1, 0.1), (0, 3, 0), (0, None, 0)],
)
def test_the_sooner_of_two_deadlines_counts(service: Any, own: float | None, remaining: Any, expected: Any) -> None:
    """The parameter's, and that of the call."""
    message = request()
    if own is not None:
        message.parameters["deadline"].double_param = own
    assert read_request(message.SerializeToString(), service, remaining, {}).deadline == expected


def test_parameters_go_to_the_model_to_the_queue_and_to_the_stream(service: Any) -> None:
    message = request(id="7", raw_input_contents=[b"\1\2"])
    message.inputs.add(name="a", datatype="UINT8", shape=[2])
    message.parameters["conf"].double_param = 0.5
    message.parameters["priority"].int64_param = 3
    message.parameters["triton_nonesuch"].bool_param = True
    message.parameters["triton_enable_empty_final_response"].bool_param = True
    notes: dict[str, Any] = {}
    read = read_request(message.SerializeToString(), service, None, notes)
    assert read.parameters == {"conf": 0.5, "triton_nonesuch": True}  # the model refuses unknown ones
    assert (read.priority, read.inputs["a"].tobytes()) == (3, b"\1\2")
    assert notes == {"model": read.model, "id": "7"}


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
            read_request(message.SerializeToString(), service, None, {})
        assert caught.value.status is Status.INVALID


def field(number: int, content: bytes) -> bytes:
    """An encoded field of less than 128 bytes."""
    return bytes([number << 3 | 2, len(content)]) + content


@pytest.mark.parametrize(
    ("message", "status", "text"),
    [
        (field(5, b"") * 3_000_000, Status.TOO_LARGE, "besides raw_input_contents"),
        (field(5, field(5, field(8, b"") * 40)) * 60_000, Status.TOO_LARGE, "besides raw_input_contents"),
        (bytes([9 << 3, 0]) + field(5, b"") * 3_000_000, Status.INVALID, "not an encoded ModelInferRequest"),
        (field(7, b"") * 3_000_000, Status.TOO_LARGE, "besides raw_input_contents"),
        (field(5, b"") * 100_000, Status.INVALID, "at most 1,024 inputs, not 100,000"),
        (field(6, b"") * 100_000, Status.INVALID, "at most 1,024 outputs, not 100,000"),
        (field(7, bytes(9)) + field(5, b""), Status.INVALID, "unknown datatype ''"),
        (b"".join(field(4, field(1, b"%d" % i)) for i in range(2000)), Status.INVALID, "1024 parameters, not 2,000"),
    ],
)
def test_messages_of_many_parts_are_refused(service: Any, message: bytes, status: Status, text: str) -> None:
    with pytest.raises(RequestError, match=text) as caught:
        read_request(message, service, None, {})
    assert caught.value.status is status


def test_empty_parts_count(service: Any) -> None:
    message = request(raw_input_contents=[bytes(5 << 20)]).SerializeToString() + field(5, b"") * 100_000
    with pytest.raises(RequestError, match="each of its fields counts as 64 or more") as caught:
        read_request(message, service, None, {})
    assert caught.value.status is Status.TOO_LARGE


@pytest.mark.parametrize("as_raw", [True, False])
def test_many_elements_are_refused(service: Any, as_raw: bool) -> None:
    message = request(raw_input_contents=[bytes(4 * 200_000)] if as_raw else [])
    one = message.inputs.add(name="a", datatype="BYTES" if as_raw else "INT8", shape=[2, 100_000])
    if not as_raw:
        one.contents.int_contents.extend([1] * 200_000)
    with pytest.raises(RequestError, match="200,000 elements of BYTES and typed contents") as caught:
        read_request(message.SerializeToString(), service, None, {})
    assert caught.value.status is Status.TOO_LARGE


@pytest.mark.parametrize("value", [1e15, -1.0, float("inf"), float("nan"), 1 << 60, "1", True])
def test_deadlines_that_are_none(service: Any, value: Any) -> None:
    message = request()
    kinds = {float: "double_param", int: "int64_param", str: "string_param", bool: "bool_param"}
    setattr(message.parameters["deadline"], kinds[type(value)], value)
    with pytest.raises(RequestError, match="parameter deadline is a number of seconds from 0 to 1,000,000"):
        read_request(message.SerializeToString(), service, None, {})


def test_a_call_whose_own_deadline_is_far_away(service: Any) -> None:
    read = read_request(request().SerializeToString(), service, 1e12, {})
    assert read.deadline == 1_000_000


@settings(max_examples=200)
@given(st.binary(max_size=60))
def test_damaged_messages_are_refused(data: bytes) -> None:
    service: Any = Service()
    for message in (data, data + bytes(5 << 20), bytes(5 << 20) + data):
        with contextlib.suppress(RequestError):
            read_request(message, service, None, {})
