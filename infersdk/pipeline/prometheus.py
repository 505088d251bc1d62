"""What pipelines do, for Prometheus.

::

    from prometheus_client import start_http_server
    from infersdk.pipeline.prometheus import export

    export({"detector": detector.pipeline})
    start_http_server(9100)

`infersdk_requests_total{pipeline, outcome}`, `infersdk_requests{pipeline, state}`, `infersdk_slots{pipeline}`,
`infersdk_batches_total{pipeline, size}` and the histograms `infersdk_stage_seconds{pipeline, stage}`. The numbers are
read when they are asked for, so that they cost nothing in between. Needs prometheus-client:
`pip install "infersdk[prometheus]"`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from .stats import BOUNDS

if TYPE_CHECKING:
    from .pipeline import Pipeline

__all__ = ["PipelineCollector", "export"]

#: Of the buckets that are counted, two an octave are told.
_TOLD = range(3, len(BOUNDS), 4)


class PipelineCollector:
    """A collector in the sense of prometheus-client.

    Args:
        pipelines: by the name that they have in the label `pipeline`.
    """

    def __init__(self, pipelines: Mapping[str, Pipeline[Any]]) -> None:
        self._pipelines = dict(pipelines)

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        ended = CounterMetricFamily("infersdk_requests", "Requests that have ended", labels=("pipeline", "outcome"))
        now = GaugeMetricFamily("infersdk_requests_now", "Requests in the pipeline", labels=("pipeline", "state"))
        slots = GaugeMetricFamily("infersdk_slots", "Requests that the pipeline holds at most", labels=("pipeline",))
        batches = CounterMetricFamily("infersdk_batches", "Batches that were run", labels=("pipeline", "size"))
        stages = HistogramMetricFamily(
            "infersdk_stage_seconds", "How long requests (queue, total) and batches (run, postprocess) took",
            labels=("pipeline", "stage"),
        )  # fmt: skip
        for name, pipeline in self._pipelines.items():
            stats = pipeline.stats()
            for outcome in ("done", "failed", "cancelled", "expired", "rejected"):
                ended.add_metric((name, outcome), getattr(stats, outcome))
            for state in ("waiting", "queued", "running"):
                now.add_metric((name, state), getattr(stats, state))
            slots.add_metric((name,), stats.slots)
            for size, count in stats.batch_sizes.items():
                batches.add_metric((name, str(size)), count)
            for stage, (counts, total, _) in pipeline.durations().items():
                stages.add_metric((name, stage), list(_buckets(counts)), total)
        return iter((ended, now, slots, batches, stages))


def _buckets(counts: list[int]) -> Iterable[tuple[str, float]]:
    """Cumulative, as Prometheus has them."""
    seen, at = 0, 0
    for index in _TOLD:
        seen += sum(counts[at : index + 1])
        at = index + 1
        yield f"{BOUNDS[index]:.6g}", seen
    yield "+Inf", seen + sum(counts[at:])


def export(pipelines: Mapping[str, Pipeline[Any]], registry: Any = None) -> PipelineCollector:
    """Registers pipelines, by the names that they are to have; `registry` is prometheus-client's default one.

    Returns:
        The collector, for `registry.unregister()`.

    Raises:
        ConfigError: prometheus-client is not installed.
    """
    try:
        from prometheus_client import REGISTRY
    except ImportError:
        raise ConfigError(
            'exporting to Prometheus needs prometheus-client: pip install "infersdk[prometheus]"'
        ) from None
    collector = PipelineCollector(pipelines)
    (registry or REGISTRY).register(collector)
    return collector
