"""The calls of the gRPC service except inference."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from ..errors import RequestError, Status

if TYPE_CHECKING:
    from ..service import InferenceService

__all__ = ["Fields", "calls"]

#: The fields of a response in the form of protobuf's JSON; None is a response without fields.
Fields: TypeAlias = "dict[str, Any] | None"


def calls(service: InferenceService) -> dict[str, Callable[[Any], Fields | Awaitable[None]]]:
    """A function from the request to the fields of the response, for each call."""
    regions = service.regions
    return {
        "ServerLive": lambda request: {"live": True},
        "ServerReady": lambda request: {"ready": service.ready},
        "ServerMetadata": lambda request: service.server_metadata(),
        "ModelReady": lambda request: {"ready": service.model_ready(request.name, request.version)},
        "ModelMetadata": lambda request: service.model_metadata(request.name, request.version),
        "ModelConfig": lambda request: {"config": service.model_config(request.name, request.version)},
        "ModelStatistics": lambda request: {"model_stats": service.statistics(request.name, request.version)},
        "RepositoryIndex": lambda request: {"models": service.index(_of_server(request).ready)},
        "RepositoryModelLoad": lambda request: service.load(_of_server(request).model_name, dict(request.parameters)),
        "RepositoryModelUnload": lambda request: service.unload(_of_server(request).model_name),
        "SystemSharedMemoryStatus": lambda request: _by_name(regions.status(request.name)),
        "SystemSharedMemoryRegister": lambda request: regions.register(
            request.name, request.key, request.offset, request.byte_size
        ),
        "SystemSharedMemoryUnregister": lambda request: regions.unregister(request.name),
        "CudaSharedMemoryStatus": lambda request: _by_name(regions.status(request.name, cuda=True)),
        "CudaSharedMemoryRegister": lambda request: regions.register_cuda(
            request.name, request.raw_handle, request.device_id, request.byte_size
        ),
        "CudaSharedMemoryUnregister": lambda request: regions.unregister(request.name, cuda=True),
        "TraceSetting": lambda request: _traces(service.triton_settings("trace", request.settings, request.model_name)),
        "LogSettings": lambda request: _logs(service.triton_settings("log", request.settings)),
    }


def _of_server(request: Any) -> Any:
    """A request about the models, unless it names a repository."""
    if request.repository_name:
        raise RequestError(
            f"repository_name {request.repository_name!r} is not supported: a server has one repository; leave it out",
            Status.UNIMPLEMENTED,
        )
    return request


def _by_name(regions: list[dict[str, Any]]) -> Fields:
    return {"regions": {region["name"]: region for region in regions}}


def _traces(settings: dict[str, Any]) -> Fields:
    lists = {name: value if isinstance(value, list) else [value] for name, value in settings.items()}
    return {"settings": {name: {"value": value} for name, value in lists.items()}}


def _logs(settings: dict[str, Any]) -> Fields:
    kinds = {bool: "bool_param", int: "uint32_param", str: "string_param"}
    return {"settings": {name: {kinds[type(value)]: value} for name, value in settings.items()}}
