"""The configuration of a model in the fields of Triton's `ModelConfig`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .endpoint import Endpoint
    from .messages import TensorInfo

__all__ = ["as_json", "model_config", "tensor_fields"]


def model_config(endpoint: Endpoint) -> dict[str, Any]:
    """The fields of the protobuf message `ModelConfig`."""
    batched = endpoint.batched
    fields: dict[str, Any] = {
        "name": endpoint.name,
        "backend": endpoint.platform,
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": endpoint.pipeline.max_batch if batched else 0,
        "input": [tensor_fields(info, batched) for info in endpoint.inputs],
        "output": [tensor_fields(info, batched) for info in endpoint.outputs],
    }
    if batched:
        fields["dynamic_batching"] = {}
    return fields


def tensor_fields(info: TensorInfo, batched: bool) -> dict[str, Any]:
    """The fields of a message `ModelInput` or `ModelOutput`."""
    return {
        "name": info.name,
        "data_type": f"TYPE_{'STRING' if info.datatype == 'BYTES' else info.datatype}",
        "dims": list((info.shape[1:] if batched else info.shape) or (1,)),
        **({"optional": True} if info.optional else {}),
    }


def as_json(fields: dict[str, Any]) -> dict[str, Any]:
    """The message as Triton writes it over HTTP: with all fields, and with numbers as numbers."""
    from google.protobuf.json_format import MessageToDict, ParseDict
    from tritonclient.grpc import model_config_pb2

    config = ParseDict(fields, model_config_pb2.ModelConfig())
    plain = MessageToDict(config, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    converted = _numbers(config.DESCRIPTOR, plain)
    assert isinstance(converted, dict)
    return converted


def _numbers(descriptor: Any, value: dict[str, Any]) -> dict[str, Any]:
    """Protobuf writes numbers of 64 bits as text; here they become numbers again."""
    for name, inner in value.items():
        field = descriptor.fields_by_name[name]
        if field.message_type is not None:
            if field.message_type.GetOptions().map_entry:
                continue
            for one in inner if isinstance(inner, list) else [inner]:
                _numbers(field.message_type, one)
        elif field.cpp_type in (field.CPPTYPE_INT64, field.CPPTYPE_UINT64):
            value[name] = [int(one) for one in inner] if isinstance(inner, list) else int(inner)
    return value
