"""The calls of the gRPC service except inference."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .infer_codec import parameter_values

if TYPE_CHECKING:
    from ..service import InferenceService

__all__ = ["ProtocolCalls"]


class ProtocolCalls:
    """One method for each call, with protobuf messages."""

    def __init__(self, service: InferenceService) -> None:
        from tritonclient.grpc import service_pb2

        self._service, self._pb = service, service_pb2

    # ---- health and metadata ----

    async def server_live(self, request: Any) -> Any:
        return self._pb.ServerLiveResponse(live=True)

    async def server_ready(self, request: Any) -> Any:
        return self._pb.ServerReadyResponse(ready=self._service.ready)

    async def model_ready(self, request: Any) -> Any:
        return self._pb.ModelReadyResponse(ready=self._service.model_ready(request.name, request.version))

    async def server_metadata(self, request: Any) -> Any:
        return self._pb.ServerMetadataResponse(**self._service.server_metadata())

    async def model_metadata(self, request: Any) -> Any:
        return self._pb.ModelMetadataResponse(**self._service.model_metadata(request.name, request.version))

    async def model_config(self, request: Any) -> Any:
        return self._pb.ModelConfigResponse(config=self._service.model_config(request.name, request.version))

    async def model_statistics(self, request: Any) -> Any:
        rows = self._service.statistics(request.name, request.version)
        return self._pb.ModelStatisticsResponse(model_stats=rows)

    # ---- the repository ----

    async def repository_index(self, request: Any) -> Any:
        return self._pb.RepositoryIndexResponse(models=self._service.index(request.ready))

    async def repository_model_load(self, request: Any) -> Any:
        await self._service.load(request.model_name, dict(request.parameters))
        return self._pb.RepositoryModelLoadResponse()

    async def repository_model_unload(self, request: Any) -> Any:
        await self._service.unload(request.model_name)
        return self._pb.RepositoryModelUnloadResponse()

    # ---- shared memory ----

    async def system_shared_memory_status(self, request: Any) -> Any:
        response = self._pb.SystemSharedMemoryStatusResponse()
        for region in self._service.regions.status(request.name):
            one = response.regions[region.name]
            one.name, one.key, one.offset, one.byte_size = region.name, region.key, region.offset, region.byte_size
        return response

    async def system_shared_memory_register(self, request: Any) -> Any:
        self._service.regions.register(request.name, request.key, request.offset, request.byte_size)
        return self._pb.SystemSharedMemoryRegisterResponse()

    async def system_shared_memory_unregister(self, request: Any) -> Any:
        self._service.regions.unregister(request.name)
        return self._pb.SystemSharedMemoryUnregisterResponse()

    async def cuda_shared_memory_status(self, request: Any) -> Any:
        response = self._pb.CudaSharedMemoryStatusResponse()
        for region in self._service.regions.cuda_status(request.name):
            one = response.regions[region.name]
            one.name, one.device_id, one.byte_size = region.name, region.device_id, region.byte_size
        return response

    async def cuda_shared_memory_register(self, request: Any) -> Any:
        self._service.regions.register_cuda(request.name, request.raw_handle, request.device_id, request.byte_size)
        return self._pb.CudaSharedMemoryRegisterResponse()

    async def cuda_shared_memory_unregister(self, request: Any) -> Any:
        self._service.regions.unregister(request.name, cuda=True)
        return self._pb.CudaSharedMemoryUnregisterResponse()

    # ---- trace and log ----

    async def trace_setting(self, request: Any) -> Any:
        changes = {name: list(setting.value) for name, setting in request.settings.items()}
        response = self._pb.TraceSettingResponse()
        for name, value in self._service.trace_settings(request.model_name, changes).items():
            response.settings[name].value.extend(value if isinstance(value, list) else [value])
        return response

    async def log_settings(self, request: Any) -> Any:
        changes = parameter_values(request.settings)
        response = self._pb.LogSettingsResponse()
        for name, value in self._service.log_settings(changes).items():
            kind = {bool: "bool_param", int: "uint32_param", str: "string_param"}[type(value)]
            setattr(response.settings[name], kind, value)
        return response
