"""The numbers of pipelines, for Prometheus.

::

    from prometheus_client import start_http_server
    from infersdk.pipeline.prometheus import export

    export({"detector": detector.pipeline})
    start_http_server(9100)

`infersdk_requests_total{pipeline, outcome}`, `infersdk_requests_now{pipeline, state}`, `infersdk_slots{pipeline}`,
`infersdk_batches_total{pipeline, size}` and the histograms `infersdk_stage_seconds{pipeline, stage}`. The numbers are
read when Prometheus asks for them, and cost nothing in between. A forked child leaves out the pipelines of its parent.
Those of a pipeline that has ended stay as they are: after `release()` a wrapper has another pipeline, so unregister the
collector, and export that one. This module needs prometheus-client: `pip install "infersdk[prometheus]"`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, ForkError
from .stats import BOUNDS

if TYPE_CHECKING:
    from .pipeline import Pipeline

__all__ = ["PipelineCollector", "export"]

#: Two buckets in each octave are exported, of the eight that are counted.
_EXPORTED = range(3, len(BOUNDS), 4)


class PipelineCollector:
    """A collector of prometheus-client.

    Args:
        pipelines: by their names in the label `pipeline`.
    """

    def __init__(self, pipelines: Mapping[str, Pipeline[Any]]) -> None:
        self._pipelines = dict(pipelines)

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        ended = CounterMetricFamily("infersdk_requests", "Requests that have ended", labels=("pipeline", "outcome"))
        now = GaugeMetricFamily("infersdk_requests_now", "Requests in the pipeline", labels=("pipeline", "state"))
        slots = GaugeMetricFamily("infersdk_slots", "The most requests that the pipeline holds", labels=("pipeline",))
        batches = CounterMetricFamily("infersdk_batches", "Batches that were run", labels=("pipeline", "size"))
        stages = HistogramMetricFamily(
            "infersdk_stage_seconds", "How long requests (queue, total) and batches (run, postprocess) took",
            labels=("pipeline", "stage"),
        )  # fmt: skip
        for name, pipeline in self._pipelines.items():
            try:
                stats, durations = pipeline.stats(), pipeline.durations()
            except ForkError:  # its process has its metrics
                continue
            for outcome in ("done", "failed", "cancelled", "expired", "rejected"):
                ended.add_metric((name, outcome), getattr(stats, outcome))
            for state in ("waiting", "queued", "running"):
                now.add_metric((name, state), getattr(stats, state))
            slots.add_metric((name,), stats.slots)
            for size, count in stats.batch_sizes.items():
                batches.add_metric((name, str(size)), count)
            for stage, (counts, total, _) in durations.items():
                stages.add_metric((name, stage), list(_buckets(counts)), total)
        return iter((ended, now, slots, batches, stages))


def _buckets(counts: list[int]) -> Iterable[tuple[str, float]]:
    """Cumulative counts, as Prometheus defines them."""
    seen, at = 0, 0
    for index in _EXPORTED:
        seen += sum(counts[at : index + 1])
        at = index + 1
        yield f"{BOUNDS[index]:.6g}", seen
    yield "+Inf", seen + sum(counts[at:])


def export(pipelines: Mapping[str, Pipeline[Any]], registry: Any = None) -> PipelineCollector:
    """Registers pipelines by name; without `registry` in the default one of prometheus-client.

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
