"""Ids and raw contents cut out of messages and put into them: protobuf is the reference."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infersdk.serve.errors import RequestError
from infersdk.serve.grpc.wire import encode_length_delimited, join_message, split_message

pytest.importorskip("grpc")  # without it tritonclient.grpc raises an error that is no ImportError
pb_errors: Any = pytest.importorskip("google.protobuf.message")
pb: Any = pytest.importorskip("tritonclient.grpc.service_pb2")
ids = st.text(max_size=200)
contents = st.lists(st.binary(max_size=300), max_size=5)


@settings(max_examples=200, deadline=None)
@given(ids, st.text(max_size=200), contents, st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4))
def test_split(request_id: str, name: str, raw: list[bytes], shape: list[int]) -> None:
    message = pb.ModelInferRequest(model_name=name, id=request_id, raw_input_contents=raw)
    message.inputs.add(name=name, datatype="FP32", shape=shape)
    message.parameters["x"].double_param = 0.5
    head, found, parts = split_message(message.SerializeToString())
    assert [bytes(part) for part in parts] == raw
    assert found == request_id
    message.ClearField("raw_input_contents")
    message.ClearField("id")
    assert pb.ModelInferRequest.FromString(head) == message


@settings(max_examples=100, deadline=None)
@given(ids, contents)
def test_join(request_id: str, raw: list[bytes]) -> None:
    message = pb.ModelInferResponse(model_name="m")
    encoded = join_message(message.SerializeToString(), request_id, raw)
    message.id = request_id
    message.raw_output_contents.extend(raw)
    assert pb.ModelInferResponse.FromString(encoded) == message
    stream = pb.ModelStreamInferResponse.FromString(encode_length_delimited(2, encoded))
    assert stream.infer_response == message


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60))
def test_damaged_messages_are_refused_as_protobuf_refuses_them(data: bytes) -> None:
    try:
        head, request_id, parts = split_message(data)
    except RequestError:
        return
    kept = len(head) + len(request_id.encode()) + sum(len(part) for part in parts)
    assert kept <= len(data)


def test_lengths_that_point_behind_the_end() -> None:
    for data in (b"\x3a\x05ab", b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\x3a", b"\x0b", b"\x09ab"):
        with pytest.raises(RequestError, match="not an encoded ModelInferRequest"):
            split_message(data)


def test_an_id_that_is_no_text() -> None:
    for data, expected in ((b"\x1a\x01a\x1a\x01b", "b"), (b"\x1a\x01a\x1a\x00", ""), (b"\x1a\x01\xff", None)):
        if expected is None:
            with pytest.raises(pb_errors.DecodeError):
                pb.ModelInferRequest.FromString(data)
            with pytest.raises(RequestError, match="not an encoded ModelInferRequest"):
                split_message(data)
        else:
            assert pb.ModelInferRequest.FromString(data).id == expected  # the last one counts
            assert split_message(data) == (b"", expected, [])
