"""The engine that benchmarks of a GPU run, and its own speed: INFERSDK_BENCH_BACKEND (default tensorrt-rtx)."""

from __future__ import annotations

import os
from time import perf_counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from infersdk import Infer
    from infersdk.models import VisionModel

BACKEND = os.environ.get("INFERSDK_BENCH_BACKEND", "tensorrt-rtx")


def engine_options(precision: str = "fp16") -> dict[str, Any]:
    """The settings with which a TensorRT engine is fastest; other backends keep theirs."""
    if not BACKEND.startswith("tensorrt"):
        return {}
    eager = {"kernel_specialization": "eager"} if BACKEND == "tensorrt-rtx" else {}
    return {"cuda_graph": True, "half_io": precision == "fp16", **eager}


def batch_seconds(infer: Infer, duration: float) -> float:
    """Seconds a batch of the engine alone: its inputs are set, and calls are queued one behind the other on one stream.

    Args:
        duration: seconds for which it runs, at least.
    """
    assert infer.stream is not None, f"{BACKEND} has no stream"
    calls, start = 0, perf_counter()
    while perf_counter() - start < duration:
        for _ in range(10):
            infer.enqueue()
        infer.stream.synchronize()
        calls += 10
    return (perf_counter() - start) / calls


def engines_rate(shares: Mapping[VisionModel[Any], float], batch: int, at_least: float = 0.4) -> float:
    """Images a second that the engines of some models run side by side, without images and without pipelines.

    Args:
        shares: for each model its rows for an image: 1 for a model that sees each image once. Each model has as many
            contexts as a pipeline gives it.
        batch: rows in each run.
        at_least: seconds for which they run.
    """
    contexts = {model: [model.network.clone() for _ in range(model.concurrency)] for model in shares}
    for infer in (infer for several in contexts.values() for infer in several):
        for spec in infer.input_specs:
            infer.inputs[spec.name].resize((batch, *spec.shape[1:]))
        for _ in range(3):
            infer.forward()

    def run(images: int) -> float:
        start = perf_counter()
        queued = dict.fromkeys(shares, 0)
        for done in range(batch, images + batch, batch):
            for model, share in shares.items():
                while queued[model] * batch < done * share:
                    contexts[model][queued[model] % len(contexts[model])].enqueue()
                    queued[model] += 1
        for infer in (infer for several in contexts.values() for infer in several):
            infer.wait()
        return perf_counter() - start

    few = 12 * batch
    count = max(few, int(at_least / run(few) * few) // batch * batch)
    rate = count / run(count)
    for infer in (infer for several in contexts.values() for infer in several):
        infer.close()
    return rate
