"""KServe: a model of a configuration as a `kserve.Model`, for a server of KServe's own runtime.

::

    from kserve import ModelServer
    from infersdk.integrations.kserve import predictor

    ModelServer().start([predictor("app.toml", "detector")])

It has the inputs and outputs of `infersdk serve`, and uses the same queue and pipeline. This module needs KServe:
`pip install "infersdk[kserve]"`. Without KServe's runtime, `infersdk serve` is a predictor by itself.
"""

from __future__ import annotations

import base64
import functools
import os
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..config import model_table, read, server_table
from ..errors import BackendUnavailableError
from ..models.results.plain import plain_rows
from ..serve.datatypes import datatype_of
from ..serve.errors import RequestError, Status, as_request_error
from ..serve.images import ImageEndpoint
from ..serve.messages import InferRequest, RequestedOutput
from ..serve.repository import load_endpoint, newest_table
from ..serve.service import request_timing
from ..serve.settings import ServerSettings
from ..serve.workers import all_results

try:
    import grpc
    import kserve
    from fastapi.responses import JSONResponse
    from grpc_interceptor.exceptions import GrpcException
    from kserve.errors import InferenceError, InvalidInput, ModelNotReady
    from kserve.model_server import app
except ImportError as error:
    raise BackendUnavailableError(f'KServe is missing ({error}): pip install "infersdk[kserve]"') from None

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..serve.endpoint import Endpoint, RequestTally

__all__ = ["predictor"]

_Config = str | os.PathLike[str] | Mapping[str, Any]


def predictor(config: _Config, model: str, name: str | None = None, **settings: Any) -> Any:
    """A `kserve.Model` that runs one model of a configuration. It is loaded and warmed up now.

    Requests of the Open Inference Protocol v2 have the inputs of `infersdk serve`. Images are BYTES over gRPC; over
    HTTP KServe takes text alone, and they are base64 with the parameter `encoding = "base64"` of the input. Requests of
    V1 are for models of images: `{"instances": [{"b64": TEXT}, ...]}` gives `{"predictions": [ROWS, ...]}`. Of a model
    with versions the newest is served. `stop()` returns at once; the model is freed on a thread of its own when its
    requests have ended, after the setting `drain` at the latest. With `ModelServer(workers=2)` each process loads the
    model from the configuration.

    Args:
        config: a file or a mapping, as `infersdk serve` takes it.
        model: the name of its table.
        name: under which KServe serves it; None is that of the table.
        settings: those of the table `server` that are about requests, such as `max_queue` and `default_deadline`.

    Raises:
        ConfigError: there is no such model, or a setting is wrong.
        BackendError, ModelError: what loading raises.
    """
    whole = read(config)
    table = model_table(whole, model)
    own = ServerSettings.of(server_table(whole), **settings)
    again = functools.partial(predictor, config, model, name, **settings)
    app.add_exception_handler(RequestError, _answer_refused)
    return _Predictor(load_endpoint(name or model, *newest_table(model, table), own), own, again)


class _Predictor(kserve.Model):  # type: ignore[misc]
    """KServe calls the methods."""

    def __init__(self, endpoint: Endpoint, settings: ServerSettings, again: Callable[[], Any]) -> None:
        super().__init__(endpoint.name)
        self._endpoint, self._settings, self._again = endpoint, settings, again
        self.ready = True

    def __reduce__(self) -> Any:
        return self._again, ()

    def load(self) -> bool:
        return bool(self.ready)

    def stop(self) -> None:
        if self.ready:  # KServe calls it in the thread that the requests need
            self.ready = False
            drain = self._settings.drain
            threading.Thread(target=self._endpoint.close, args=[drain], name="infersdk-kserve-stop").start()

    def get_input_types(self) -> list[dict[str, Any]]:
        return [info.fields for info in self._endpoint.inputs]

    def get_output_types(self) -> list[dict[str, Any]]:
        return [info.fields for info in self._endpoint.outputs]

    async def predict(self, payload: Any, headers: Any = None, response_headers: Any = None) -> Any:
        answer = _answer if isinstance(payload, kserve.InferRequest) else _answer_v1
        try:
            with self._endpoint.request() as tally:
                if not self.ready:
                    raise RequestError(f"model {self.name!r} was stopped", Status.UNAVAILABLE)
                return await answer(self._endpoint, self._settings, payload, tally)
        except Exception as error:
            raise _as_kserve(error, self.name, over_grpc=getattr(payload, "from_grpc", False)) from None


async def _answer(endpoint: Endpoint, settings: ServerSettings, payload: Any, tally: RequestTally) -> Any:
    """A request of v2: KServe's `InferRequest`, answered by its `InferResponse`."""
    parameters = _values(payload.parameters)
    binary = bool(parameters.pop("binary_data_output", False))
    deadline, priority = request_timing(parameters, settings.default_deadline)
    wanted = [_requested(output) for output in payload.request_outputs or ()]
    inputs: dict[str, npt.NDArray[Any]] = {}
    for one in payload.inputs:
        if one.name in inputs:
            raise RequestError(f"input {one.name!r} was given twice")
        inputs[one.name] = _array(one)
    request = InferRequest(endpoint.name, "", payload.id or "", inputs, wanted or None, parameters, deadline, priority)
    results = await endpoint.infer(request, tally)
    outputs = [
        kserve.InferOutput(name, list(array.shape), datatype_of(array.dtype), array) for name, array in results.items()
    ]
    return kserve.InferResponse(
        payload.id or str(uuid.uuid4()), endpoint.name, outputs, endpoint.version,
        from_grpc=payload.from_grpc, use_binary_outputs=binary, requested_outputs=payload.request_outputs,
    )  # fmt: skip


async def _answer_v1(endpoint: Endpoint, settings: ServerSettings, payload: Any, tally: RequestTally) -> dict[str, Any]:
    """A request of V1: the value of a body of JSON, or the bytes of another one."""
    if not isinstance(endpoint, ImageEndpoint):
        raise RequestError(f"model {endpoint.name!r} takes tensors; send it requests of v2")
    instances = payload.get("instances") if isinstance(payload, Mapping) else None
    if not isinstance(instances, Sequence) or isinstance(instances, str) or set(payload) != {"instances"}:
        raise RequestError('a request of V1 is {"instances": [{"b64": TEXT}, ...]}')
    if not 1 <= len(instances) <= settings.max_images:
        raise RequestError(f"a request has 1 to {settings.max_images} images, not {len(instances)}")
    images = [_image(instance) for instance in instances]
    deadline, tally.rows = settings.default_deadline, len(images)
    results = await all_results(endpoint.predict(image, {}, deadline, 0) for image in images)
    return {"predictions": [plain_rows(result) for result in results]}


def _image(instance: Any) -> bytes:
    if not isinstance(instance, Mapping) or set(instance) != {"b64"} or not isinstance(instance["b64"], str):
        raise RequestError('an instance is an image in base64: {"b64": TEXT}')
    return _decoded(instance["b64"])


def _decoded(text: str | bytes) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (TypeError, ValueError):
        raise RequestError("an image is not encoded in base64") from None


def _requested(output: Any) -> RequestedOutput:
    """A `kserve.RequestedOutput`."""
    if unknown := sorted(set(_values(output.parameters)) - {"binary_data"}):
        raise _without(f"output {output.name!r}", unknown[0])
    return RequestedOutput(output.name)


def _without(what: str, parameter: str) -> RequestError:
    return RequestError(f"{what}: a server of KServe's runtime has no {parameter!r}; infersdk serve may take it")


def _array(given: Any) -> npt.NDArray[Any]:
    """The tensor of a `kserve.InferInput`."""
    parameters = _values(given.parameters)
    if "shared_memory_region" in parameters:
        raise _without(f"input {given.name!r}", "shared_memory_region")
    try:
        array: npt.NDArray[Any] = given.as_numpy()
        if isinstance(given.data, list) and given.data and given.datatype != "BYTES":  # it is empty beside bytes
            _check_values(array.reshape(-1), np.asarray(given.data).reshape(-1), given.datatype)
    except (ValueError, TypeError, OverflowError, InvalidInput) as error:
        raise RequestError(f"input {given.name!r} is not {given.datatype} {list(given.shape)}: {error}") from None
    encoded = parameters.get("encoding")
    if encoded is None:
        return array
    if encoded != "base64" or given.datatype != "BYTES":
        raise RequestError(f"input {given.name!r}: the encoding is base64, for BYTES alone")
    decoded = np.empty(array.shape, np.object_)
    decoded.reshape(-1)[:] = [_decoded(value) for value in array.reshape(-1).tolist()]
    return decoded


def _check_values(array: npt.NDArray[Any], values: npt.NDArray[Any], datatype: str) -> None:
    """Raises ValueError for a value that the datatype cannot represent: KServe turns it into another one."""
    if values.dtype.kind not in ("b" if datatype == "BOOL" else "iuf"):
        raise ValueError(f"its data is not of {'bools' if datatype == 'BOOL' else 'numbers'} alone")
    same = np.isfinite(array) | ~np.isfinite(values) if array.dtype.kind == "f" else array == values
    if not same.all():
        raise ValueError(f"{values[same.argmin()]} is out of the range of {datatype}")


def _values(parameters: Any) -> dict[str, Any]:
    """Parameters by name: plain values over HTTP, messages over gRPC."""
    values = dict(parameters or {})
    for name, value in values.items():
        if hasattr(value, "WhichOneof"):
            kind = value.WhichOneof("parameter_choice")
            if kind is None:
                raise RequestError(
                    f"parameter {name!r} has no value; KServe takes bools, int64 and text by gRPC: send other numbers "
                    "over HTTP"
                )
            values[name] = getattr(value, kind)
    return values


def _as_kserve(error: Exception, name: str, *, over_grpc: bool) -> Any:
    """What KServe turns into the status of a request that failed."""
    refused = as_request_error(error)
    if over_grpc:
        return GrpcException(details=refused.message, status_code=getattr(grpc.StatusCode, refused.status.grpc))
    if refused.status is Status.INVALID:
        return InvalidInput(refused.message)
    if refused.status is Status.UNAVAILABLE:
        return ModelNotReady(name, refused.message)
    if refused.status is Status.INTERNAL:
        return InferenceError(refused.message)
    return refused


async def _answer_refused(request: Any, refused: RequestError) -> Any:
    """The answer over HTTP to a request that failed with a status for which KServe has no exception."""
    return JSONResponse({"error": refused.message}, refused.status.http, dict(refused.headers))
