"""The calls of the Open Inference Protocol v2 and of Triton's extensions, independent of HTTP and gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import __version__
from ..core.stream import device_count
from .authentication import Authentication
from .datatypes import array_of
from .errors import RequestError, Status
from .messages import InferRequest, InferResponse, PlacedOutput
from .regions import SharedTensor
from .shared_memory import SharedMemoryRegions
from .tracing import Tracing
from .workers import in_worker

if TYPE_CHECKING:
    import numpy.typing as npt

    from .endpoint import Endpoint
    from .repository import Repository
    from .settings import ServerSettings

__all__ = ["MOST_SECONDS", "InferenceService", "request_timing"]

EXTENSIONS = (
    "classification", "model_repository", "model_repository(unload_dependents)", "schedule_policy",
    "model_configuration", "system_shared_memory", "binary_tensor_data", "parameters", "statistics",
)  # fmt: skip
#: The answers about Triton's settings: the server logs through Python's `logging`, and traces through OpenTelemetry.
_SETTINGS: dict[str, dict[str, Any]] = {
    "log": {
        "log_file": "", "log_info": True, "log_warning": True, "log_error": True, "log_verbose_level": 0,
        "log_format": "default",
    },
    "trace": {
        "trace_file": "", "trace_level": ["OFF"], "trace_rate": "0", "trace_count": "-1", "log_frequency": "0",
        "trace_mode": "opentelemetry",
    },
}  # fmt: skip
#: Outputs up to this size are written to shared memory in the thread of the event loop.
_QUICK_NBYTES = 2 << 20
#: The longest deadline of a request.
MOST_SECONDS = 1_000_000
#: Request parameters of the protocol; all others belong to the model.
_TIMING = ("deadline", "timeout", "priority")
_SEQUENCE = ("sequence_id", "sequence_start", "sequence_end")


class InferenceService:
    """The calls of the protocol. They run in the thread of the event loop."""

    def __init__(self, repository: Repository, settings: ServerSettings) -> None:
        self.repository, self.settings = repository, settings
        self.regions = SharedMemoryRegions(settings.shared_memory_prefix)
        self.authentication = Authentication(settings.api_keys)
        self.tracing = Tracing() if settings.traces else None
        self.stopping = False

    # ---- health and metadata ----

    @property
    def ready(self) -> bool:
        """Whether all models are loaded and warm, and the server is not stopping."""
        return not self.stopping and self.repository.ready

    def model_ready(self, name: str, version: str = "") -> bool:
        """Whether a model answers requests. Raises RequestError for a version that is not a number."""
        try:
            self.repository.find(name, version)
        except RequestError as error:
            if error.status is Status.INVALID:
                raise
            return False
        return not self.stopping

    def server_metadata(self) -> dict[str, Any]:
        extensions = [*EXTENSIONS, *(["cuda_shared_memory"] if device_count() else [])]
        return {"name": self.settings.name, "version": __version__, "extensions": extensions}

    def model_metadata(self, name: str, version: str = "") -> dict[str, Any]:
        endpoint = self.repository.find(name, version)
        return {
            "name": name,
            "versions": [endpoint.version] if version else list(self.repository.models[name].versions),
            "platform": endpoint.platform,
            "inputs": [info.fields for info in endpoint.inputs],
            "outputs": [info.fields for info in endpoint.outputs],
        }

    def model_config(self, name: str, version: str = "") -> dict[str, Any]:
        """The configuration as the fields of Triton's message `ModelConfig`."""
        endpoint = self.repository.find(name, version)
        batched = endpoint.batched
        return {
            "name": name,
            "backend": endpoint.platform,
            "version_policy": {"latest": {"num_versions": len(self.repository.models[name].versions)}},
            "max_batch_size": endpoint.pipeline.max_batch if batched else 0,
            "input": [info.config(batched) for info in endpoint.inputs],
            "output": [info.config(batched) for info in endpoint.outputs],
            **({"dynamic_batching": {}} if batched else {}),
        }

    # ---- inference ----

    @asynccontextmanager
    async def infer(self, request: InferRequest) -> AsyncIterator[InferResponse]:
        """Runs a request. The response is encoded within the block: an exception there is a failure of the request."""
        endpoint = self.repository.find(request.model, request.version)
        with endpoint.request() as tally:
            self._check_copied(endpoint, request)
            outputs: dict[str, Any] = await endpoint.infer(request, tally)
            for wanted in request.outputs or ():
                if wanted.classification:
                    outputs[wanted.name] = _best_classes(
                        outputs[wanted.name], wanted.classification, batched=endpoint.batched
                    )
                if wanted.shared_memory is not None:
                    output = outputs[wanted.name]
                    quick = output.nbytes <= _QUICK_NBYTES and output.dtype.kind != "O"
                    await in_worker(wanted.shared_memory.write, output, wanted.name, when=not quick)
                    outputs[wanted.name] = PlacedOutput(output.dtype, output.shape)
            yield InferResponse(request.model, endpoint.version, request.id, outputs)

    def _check_copied(self, endpoint: Endpoint, request: InferRequest) -> None:
        """Raises RequestError if the inputs that must be copied from shared memory are too large."""
        shared = [tensor for tensor in request.inputs.values() if isinstance(tensor, SharedTensor)]
        size = sum([one.nbytes for one in shared if not endpoint.takes_shared(one)])
        if size > (most := self.settings.max_decompressed):
            raise RequestError(
                f"the inputs in shared memory have {size:,} bytes, and max_decompressed under [server] is {most:,}",
                Status.TOO_LARGE,
            )

    # ---- the repository ----

    def index(self, only_ready: bool = False) -> list[dict[str, str]]:
        """All models with their versions and states."""
        rows = []
        for name, entry in self.repository.models.items():
            if entry.state == "READY" or not only_ready:
                for version in entry.versions or ("",):
                    row = {"name": name, "version": version, "state": entry.state, "reason": entry.reason}
                    rows.append({key: value for key, value in row.items() if value})
        return rows

    async def load(self, name: str, parameters: Mapping[str, Any]) -> None:
        """Reloads a model from its table in the configuration."""
        self._check_control(f"failed to load {name!r}")
        if parameters:
            raise RequestError(
                f"failed to load {name!r}: a load takes no {min(parameters)!r}; this server loads the models of "
                "its configuration"
            )
        await self.repository.load(name)

    async def unload(self, name: str) -> None:
        """Takes a model out of service."""
        self._check_control(f"failed to unload {name!r}")
        await self.repository.unload(name)

    def _check_control(self, what: str) -> None:
        if not self.settings.model_control:
            raise RequestError(
                f"{what}: clients of this server may not; model_control = true under [server] lets them",
                Status.UNAVAILABLE,
            )

    # ---- statistics ----

    def statistics(self, name: str = "", version: str = "") -> list[dict[str, Any]]:
        """The statistics of each version in the form of the protocol; times in nanoseconds."""
        if name:
            endpoints = [self._existing(name, version)]
            if not version:
                endpoints = list(self.repository.models[name].versions.values())
        else:
            endpoints = list(self.repository.endpoints())
        return [_statistics(endpoint) for endpoint in endpoints]

    def _existing(self, name: str, version: str = "") -> Endpoint:
        """The endpoint for a request about a model. As in Triton, one about an unknown model is invalid."""
        try:
            return self.repository.find(name, version)
        except RequestError as error:
            if error.status is not Status.NOT_FOUND:
                raise
            raise RequestError(error.message) from None

    def triton_settings(self, kind: str, changes: Any, model: str = "") -> dict[str, Any]:
        """Triton's `"log"` or `"trace"` settings, which are read-only."""
        if model:
            self._existing(model)
        if changes:
            raise RequestError(
                f"{kind} settings of this server are set in its process, not by its clients", Status.UNIMPLEMENTED
            )
        return _SETTINGS[kind]


def request_timing(parameters: dict[str, Any], default_deadline: float | None) -> tuple[float | None, int]:
    """Takes the deadline in seconds and the priority out of the parameters of a request, and refuses sequences."""
    if not parameters:
        return default_deadline, 0
    if any(parameters.pop(name, None) for name in _SEQUENCE):
        raise RequestError("models of this server keep no state: sequences are not supported")
    deadline, timeout, priority = (parameters.pop(name, None) for name in _TIMING)
    if deadline is not None and timeout is not None:
        raise RequestError("give either deadline (seconds) or timeout (microseconds)")
    for name, value, kinds, most in (
        ("deadline", deadline, (int, float), MOST_SECONDS), ("timeout", timeout, (int,), MOST_SECONDS * 1_000_000),
        ("priority", priority, (int,), 1 << 53),
    ):  # fmt: skip
        if value is not None and (not isinstance(value, kinds) or isinstance(value, bool) or not 0 <= value <= most):
            what = "a number of seconds" if float in kinds else "a whole number"
            raise RequestError(f"parameter {name} is {what} from 0 to {most:,}, not {value!r}")
    if timeout:
        deadline = timeout / 1e6
    return float(deadline) if deadline is not None else default_deadline, priority or 0


def _best_classes(scores: npt.NDArray[Any], count: int, *, batched: bool) -> npt.NDArray[Any]:
    """The largest `count` numbers of each row of a batch, or of the whole output, as `number:index`, largest first."""
    if scores.dtype.kind not in "fiu":
        raise RequestError("classification needs an output of numbers")
    images = len(scores) if batched else 1
    rows = scores.reshape(images, scores.size // images)
    count, is_float = min(count, rows.shape[1]), scores.dtype.kind == "f"
    best = np.argsort(-rows if is_float else ~rows, axis=1, kind="stable")[:, :count]  # `~` cannot overflow
    form = "{:f}:{}" if is_float else "{}:{}"
    texts = [form.format(row[i], i).encode() for row, order in zip(rows, best.tolist(), strict=True) for i in order]
    return array_of(texts, (images, count) if batched else (count,))


def _statistics(endpoint: Endpoint) -> dict[str, Any]:
    counters, sizes = endpoint.counters, endpoint.batch_sizes
    return {
        "name": endpoint.name,
        "version": endpoint.version,
        "last_inference": counters.last_ms,
        "inference_count": counters.rows,
        "execution_count": sum(sizes.values()),
        "inference_stats": counters.stats,
        "batch_stats": [
            {
                "batch_size": size,
                **{name: {"count": count, "ns": int(ns)} for name, ns in counters.batches[size].items()},
            }
            for size, count in sizes.items()
        ],
        "memory_usage": [],
    }
