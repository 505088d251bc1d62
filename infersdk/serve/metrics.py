"""Metrics of a server for Prometheus.

The metrics of the pipelines (`infersdk.pipeline.prometheus`) are labelled `model/version`; the second pipeline of a
composition is `model/version/2`. The metrics of the server are
`infersdk_server_requests_total{model, version, outcome}`, `infersdk_server_request_seconds_total{...}`,
`infersdk_server_waiting{model, version}`, `infersdk_server_ready`, `infersdk_model_loads_total{model}`,
`infersdk_golden_checks_total{model, version, outcome}`, `infersdk_shadow_images_total{model, version, outcome}`,
`infersdk_shadow_agreement_total{model, version}`.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ..pipeline.prometheus import PipelineCollector

if TYPE_CHECKING:
    from .service import InferenceService

__all__ = ["metrics_text"]


def metrics_text(service: InferenceService) -> bytes:
    """All metrics in Prometheus' text format."""
    from prometheus_client import generate_latest

    pipelines = {
        f"{one.name}/{one.version}" + (f"/{number}" if number > 1 else ""): pipeline
        for one in service.repository.endpoints()
        for number, pipeline in enumerate(one.pipelines, 1)
    }
    metrics = [*PipelineCollector(pipelines).collect(), *_server_metrics(service)]
    text: bytes = generate_latest(SimpleNamespace(collect=lambda: metrics))  # all that it uses of a registry
    return text


def _server_metrics(service: InferenceService) -> tuple[Any, ...]:
    """The metrics of the server itself."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    def counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
        return CounterMetricFamily(f"infersdk_{name}", text, labels=labels)

    version, outcomes = ("model", "version"), ("model", "version", "outcome")
    requests = counter("server_requests", "Finished requests", *outcomes)
    seconds = counter("server_request_seconds", "Total duration of finished requests", *outcomes)
    checks = counter("golden_checks", "Checks of golden samples", *outcomes)
    shadows = counter("shadow_images", "Images offered to a shadow", *outcomes)
    agreement = counter("shadow_agreement", "Sum of the agreement of a shadow, 0 to 1 an image", *version)
    loads = counter("model_loads", "Number of times the model was loaded", "model")
    waiting = GaugeMetricFamily(
        "infersdk_server_waiting", "Requests waiting for a slot of the pipeline", labels=version
    )
    for one in service.repository.endpoints():
        key = one.name, one.version
        for outcome in ("success", "fail"):
            total = one.counters.stats[outcome]
            requests.add_metric((*key, outcome), total["count"])
            seconds.add_metric((*key, outcome), total["ns"] / 1e9)
        waiting.add_metric(key, one.admission.waiting)
        for outcome, count in one.golden_checks.items() if one.check_samples is not None else ():
            checks.add_metric((*key, outcome), count)
        if one.shadow is not None:
            for outcome, count in one.shadow.outcomes.items():
                shadows.add_metric((*key, outcome), count)
            agreement.add_metric(key, one.shadow.agreement)
    for name, entry in service.repository.models.items():
        loads.add_metric((name,), entry.loads)
    ready = GaugeMetricFamily("infersdk_server_ready", "1 while all models are loaded and warm", value=service.ready)
    return requests, seconds, waiting, checks, shadows, agreement, loads, ready
