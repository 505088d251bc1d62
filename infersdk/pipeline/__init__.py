"""Single requests from many threads become full batches: `submit()` one, and get a future.

::

    with Pipeline(detector, max_delay=0.005) as pipeline:       # any model wrapper, or an Infer
        future = pipeline.submit("bus.jpg")                     # concurrent.futures.Future
        for boxes in pipeline.map(frames): ...                  # in order, any number of them
        boxes = await pipeline.infer(frame)                     # from asyncio

Every wrapper has a pipeline of its own: `detector.submit(frame)`, `.submit_many()`, `.map()`, `await .infer()`.

A request takes a *slot*: a row of a batch buffer, into which its image is preprocessed right away, on worker threads.
The slots are allocated once. When all are taken, `submit()` waits, or raises `Overloaded`. While the model is busy, a
batch goes on filling; `Scheduler` states when it leaves. Every request ends in its own result or exception.

An arrow points from a class to the classes that it uses::

    Pipeline ------------> PipelineCore        a PipelineState, with THE LOCK: takes requests in, cancels, closes
    what users call          |   |   |
                             |   |   +-------> PrepareWorkers     threads: write requests into rows, end expired ones
                             |   +-----------> BatchRunners       threads of one group: run batches, end requests
                             v                    |
                          Scheduler <-------------+               who has a slot, which batch fills, when it leaves
                             v
                          InstanceGroup  --> BatchState  --> BatchBuffer
                          one model          rows and        memory and an execution context:
                                             requests        the model's part, a Protocol

    Request: one item; it ends by `on_done(result or exception)`, outside of the lock
    RequestFuture, AsyncResults: the ends of requests as futures of `concurrent.futures` and of asyncio
    Statistics, Deadlines: plain data

One lock guards Scheduler, InstanceGroup, BatchState, Statistics and Deadlines. Their methods are called with
the lock held, for microseconds, and call no user code. User code (images, models, callbacks of futures) runs in
`PrepareWorkers`, `BatchRunners` and the caller's threads, without the lock.

Exceptions of user code end no thread of a pipeline. If a thread ends by a fault of the pipeline itself, all requests
fail with a `PipelineError` that states the reason, and so do later ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.lazy import lazy

if TYPE_CHECKING:
    from .batch_buffer import BatchBuffer, OneBucket, TensorBatchBuffer
    from .pipeline import Pipeline, PipelineSettings
    from .request import RequestStages, stage_listener
    from .stats import Percentiles, PipelineStats

__all__ = [
    "BatchBuffer", "OneBucket", "Percentiles", "Pipeline", "PipelineSettings", "PipelineStats", "RequestStages",
    "TensorBatchBuffer", "stage_listener",
]  # fmt: skip

__getattr__, __dir__ = lazy(
    __name__,
    {
        "batch_buffer": "BatchBuffer OneBucket TensorBatchBuffer",
        "pipeline": "Pipeline PipelineSettings",
        "request": "RequestStages stage_listener",
        "stats": "Percentiles PipelineStats",
    },
)
