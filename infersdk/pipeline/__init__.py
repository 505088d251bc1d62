"""Single requests from many threads become full batches: `submit()` one, and get a future.

::

    with Pipeline(detector, max_delay=0.005) as pipeline:       # any model wrapper, or an Infer
        future = pipeline.submit("bus.jpg")                     # concurrent.futures.Future
        for boxes in pipeline.map(frames): ...                  # in order, any number of them
        boxes = await pipeline.infer(frame)                     # from asyncio

Every wrapper has a pipeline of its own: `detector.submit(frame)`, `.submit_many()`, `.map()`, `await .infer()`.

A request takes a *slot*: a row of a batch buffer, into which its image is preprocessed right away, on worker threads.
The slots are allocated once. When all are taken, `submit()` waits, or raises `Overloaded`. A batch leaves when the
model can take it, and it is full, or its oldest request has waited `max_delay`, or no other request is to be expected
(`dispatch.py`); while the model is busy, the batch goes on filling. On a processor the model can take it as soon as a
core has nothing left to do for the batch before (`SharingBuffer`). Every request ends in a result or in an exception,
and never in those of another request.

How the classes belong together; an arrow points to what a class knows of::

    Pipeline ------------> PipelineCore        takes requests in, cancels them, closes; has THE LOCK
    what users call          |   |   |
                             |   |   +-------> PrepareWorkers     threads: write requests into rows, end expired ones
                             |   +-----------> BatchRunners       threads of one group: run batches, hand out results
                             v                    |
                          Admission <-------------+               who has a slot, who waits for one
                             v                    |
                          Scheduler <-------------+               which batch fills, when a batch leaves
                             v
                          InstanceGroup  --> BatchState  --> BatchBuffer
                          one model          rows and        memory and an execution context:
                                             requests        the model's part, a Protocol

    Request: FutureRequest (submit), MapRequest (map), AsyncRequest (infer), CallbackRequest (submit_for),
        TaggedRequest (submit_each), GroupedRequest (submit_group); it ends outside of the lock
    Statistics, Deadlines: plain data;  StaggeredWakeup, SpinningWakeup: wake the threads that wait, a few at a time
    CancelsPending: cancels what is left of an iteration, in a thread of its own where that was given up
    BatchLoans: lends whole batches (BorrowedBatch) to threads that drive several models
    InlineRuns: whether a request of asyncio that is alone runs in the thread of its event loop, without the others

One lock guards Admission, Scheduler, InstanceGroup, BatchState, Statistics, Deadlines and InlineRuns. Their methods
are called with the lock held, for microseconds, and call nothing of the user's. What belongs to the user (images,
models, callbacks of futures) runs in `PrepareWorkers`, `BatchRunners` and the caller's threads, without the lock.

No thread of a pipeline ends by what a user's code raises. If one ends by a fault of the pipeline itself, all requests
fail at once with a `PipelineError` that has the reason, and so do later ones.
"""

from __future__ import annotations

from .batch_buffer import BatchBuffer, OneBucket, SharingBuffer, TensorBatchBuffer
from .batch_loans import BorrowedBatch, QueuingBuffer
from .pipeline import Pipeline, PipelineSettings
from .request import RequestStages, stage_listener
from .stats import Percentiles, PipelineStats

__all__ = [
    "BatchBuffer",
    "BorrowedBatch",
    "OneBucket",
    "Percentiles",
    "Pipeline",
    "PipelineSettings",
    "PipelineStats",
    "QueuingBuffer",
    "RequestStages",
    "SharingBuffer",
    "TensorBatchBuffer",
    "stage_listener",
]
