"""The numbers of a server, as Prometheus reads them.

Those of the pipelines (`infersdk.pipeline.prometheus`), by `model/version`, and by `model/version/2` for the second one
of a composition; and of the server itself:
`infersdk_server_requests_total{model, version, outcome}`, `infersdk_server_request_seconds_total{...}`,
`infersdk_server_waiting{model, version}`, `infersdk_server_ready`, `infersdk_model_loads_total{model}`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..pipeline.prometheus import PipelineCollector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .service import InferenceService

__all__ = ["metrics_text"]


def metrics_text(service: InferenceService) -> bytes:
    """All numbers in Prometheus' text format."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry()
    pipelines = {
        f"{one.name}/{one.version}" + (f"/{number}" if number > 1 else ""): pipeline
        for one in service.repository.endpoints()
        for number, pipeline in enumerate(one.pipelines, 1)
    }
    registry.register(PipelineCollector(pipelines))
    registry.register(_ServerCollector(service))
    text: bytes = generate_latest(registry)
    return text


class _ServerCollector:
    """What the server counts beside its pipelines."""

    def __init__(self, service: InferenceService) -> None:
        self._service = service

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        labels = ("model", "version", "outcome")
        requests = CounterMetricFamily("infersdk_server_requests", "Requests that have ended", labels=labels)
        seconds = CounterMetricFamily("infersdk_server_request_seconds", "How long they took in all", labels=labels)
        waiting = GaugeMetricFamily(
            "infersdk_server_waiting", "Requests that wait for a slot of the pipeline", labels=("model", "version")
        )
        loads = CounterMetricFamily("infersdk_model_loads", "How often a model was loaded", labels=("model",))
        for one in self._service.repository.endpoints():
            counters, key = one.counters, (one.name, one.version)
            for outcome, count, ns in (
                ("success", counters.success, counters.success_ns), ("fail", counters.failed, counters.failed_ns),
            ):  # fmt: skip
                requests.add_metric((*key, outcome), count)
                seconds.add_metric((*key, outcome), ns / 1e9)
            waiting.add_metric(key, one.admission.waiting)
        for name, entry in self._service.repository.models.items():
            loads.add_metric((name,), entry.loads)
        ready = GaugeMetricFamily(
            "infersdk_server_ready", "1 while all models are loaded and warm", value=self._service.ready
        )
        return iter((requests, seconds, waiting, loads, ready))
