"""Single requests from many threads become full batches: `submit()` one, and get a future.

::

    with Pipeline(detector, max_delay=0.005) as pipeline:       # any model wrapper, or an Infer
        future = pipeline.submit("bus.jpg")                     # concurrent.futures.Future
        for boxes in pipeline.map(frames): ...                  # in order, any number of them
        boxes = await pipeline.infer(frame)                     # from asyncio

Every wrapper has one of its own: `detector.submit(frame)`, `.submit_many()`, `.map()`, `await .infer()`.

A request takes a *slot*: a place in a batch batch, into which its image is preprocessed right away, on worker
threads. The slots are allocated once, and when all are taken `submit()` blocks, or raises `Overloaded`. **A batch
leaves** when the model is free to take it, and it is full or its oldest request has waited `max_delay`; as long as the
model is busy it goes on filling. Every request ends in a result or in an exception, and only in its own.
"""

from __future__ import annotations

from .batch_buffer import BatchBuffer, TensorBatchBuffer
from .pipeline import Pipeline, PipelineSettings
from .stats import Percentiles, PipelineStats

__all__ = ["BatchBuffer", "Percentiles", "Pipeline", "PipelineSettings", "PipelineStats", "TensorBatchBuffer"]
