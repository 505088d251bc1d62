"""How a wrapper runs its images: calls, streams and the buffers of its pipeline.

A call takes a batch buffer, prepares a row for each image, runs the batch and makes the results. A stream does that
batch after batch:

- on a processor whose backend has clones for one core, an image at a time on each core;
- on a processor otherwise, one batch after another on all cores;
- on a GPU several batches at a time: one is copied in while another one is on the model.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import lru_cache, partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from ...core.device import Device
from ...core.processors import available_processors
from ...errors import ClosedError
from ...image import HostImage, SharedImage
from ...pipeline.batch_buffer import sizes_to_run
from ...pipeline.request import UntilError
from .buffer import HostBuffer, Timings

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

    from ...core.backend import Progress
    from ...infer import Infer
    from .buffer import ModelStages, Parameters
    from .cuda import CudaInstances
    from .cuda_buffer import CudaBuffer

__all__ = ["Execution", "ModelBuffer", "grouped"]

Result = TypeVar("Result")
Item = TypeVar("Item")

#: Maximum number of threads that decode, however many processors there are.
MOST_DECODE_THREADS = 64
#: Maximum number of batches whose images wait for others of their canvas; beyond it the oldest batch leaves.
MOST_WAITING = 3
#: Maximum seconds that a thread waits for a buffer without a look: the handler of a signal may end a thread's wake-up.
LONGEST_WAIT = 0.1


class ModelBuffer(Generic[Result]):
    """A `BatchBuffer` of a wrapper. It follows a hot swap (`while_building`) between batches.

    Args:
        network: `network.current()` serves; None for a buffer on the instances of a device.
        owned: whether the network is closed with the buffer.
        instances: returns those of the wrapper on a CUDA device.
        capacity: maximum number of images in a batch; None is the largest batch of the network.
        of_pipeline: whether it belongs to a pipeline: `run()` then waits for the device.

    Attributes:
        serving: the network that serves.
    """

    def __init__(
        self,
        network: Infer | None,
        owned: bool,
        stages: ModelStages[Result],
        instances: Callable[[], CudaInstances],
        *,
        capacity: int | None = None,
        of_pipeline: bool = False,
    ) -> None:
        self._network, self._owned = network, owned
        self._stages, self._instances, self.bucket_of = stages, instances, stages.bucket_of
        self._asked, self._of_pipeline = capacity, of_pipeline
        self._canvas = stages.preprocessor
        self._follow(self._current())

    def _current(self) -> Infer:
        """The network that serves now."""
        serving = self._instances().serving if self._network is None else self._network.current()
        assert serving is not None
        return serving

    def _follow(self, infer: Infer) -> None:
        """Makes the rows for this network."""
        self.capacity = self._stages.preprocessor.input.batch_limit(infer, self._asked)
        if infer.stream is None:
            self.rows: HostBuffer[Result] | CudaBuffer[Result] = HostBuffer(infer, self._stages, self.capacity)
        else:
            from .cuda_buffer import CudaBuffer

            instances = self._instances()
            self.rows = CudaBuffer(infer, instances, self._stages, self.capacity, shares_cpu=self._of_pipeline)
            if self._network is not None:  # all buffers share a few instances there
                instances.add(self._network, infer)
                self._network = None
        if self._of_pipeline:
            self._asked = self.capacity  # a pipeline counts on it
            self.rows.begin(self._canvas, self.capacity)
        self.serving = infer  # last: after an exception the next `refresh()` does it again

    def refresh(self) -> bool:
        infer = self._current()
        if infer is self.serving:
            return False
        self.rows.close()
        self._follow(infer)
        return True

    # ---- rows ----

    def set_bucket(self, bucket: Any) -> None:
        if bucket is not None:
            self._canvas = self._stages.canvases.on(bucket)
            self.rows.begin(self._canvas, self.capacity)

    def buckets(self) -> Sequence[tuple[int, int] | None]:
        canvases = self._stages.canvases
        return canvases.sizes if canvases.several else (None,)

    def prepares_quickly(self, item: Any) -> bool:
        return self.rows.prepares_quickly(item)

    def prepare(self, row: int, item: Any, parameters: Parameters) -> None:
        if parameters:
            self._stages.postprocess(parameters)  # raises ConfigError for parameters that a request cannot have
        self.rows.write(row, self.rows.read(item), parameters)

    def move(self, source: int, target: int) -> None:
        self.rows.move(source, target)

    def run(self, count: int) -> None:
        self.rows.run(count)
        if self._of_pipeline:
            self.rows.wait()

    def results(self, count: int) -> list[Result]:
        return self.rows.results(count)

    # ---- the rest ----

    def batch_sizes(self) -> Sequence[int]:
        return self.serving.scheduling.batch_sizes(self.capacity)

    def warm_up(self, count: int, example: Any = None) -> None:
        self.rows.warm_up(count, np.full((64, 64, 3), 114, np.uint8) if example is None else example)

    def close(self) -> None:
        self.rows.close()
        if self._network is not None and self._owned:
            self._network.close()


class Execution(Generic[Result]):
    """Runs the images of a wrapper, whose network is not closed here. Any number of threads may use it."""

    def __init__(self, network: Infer, stages: ModelStages[Result]) -> None:
        self._network, self._stages = network, stages
        self._instances: CudaInstances | None = None  # where the network is or was on a CUDA device
        # `_lock` guards `_instances`, `_buffers`, `_closed` and additions to `_lent`; no buffer runs under
        # it. A thread that waits for a buffer also holds `_turn`, so that one that has just given a buffer back waits
        # behind it.
        self._turn = threading.RLock()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._first = self._buffer(network, False)
        self._buffers = [self._first]
        # The buffers that are lent, by call; None is one that is being made. The handler of a signal may raise an
        # exception after any call. So one operation gives a buffer back, the first of a `finally`, without the lock.
        self._lent: dict[object, ModelBuffer[Result] | None] = {}
        runs_in_parallel = Device.parse(network.device).kind == "cpu" or network.stream is not None
        # Buffers that are lent at a time: one thread is woken while the others run.
        self._limit = available_processors() + 1 if runs_in_parallel else 1
        self._closed = False
        self.timings = Timings()  # of the last call

    # ---- buffers ----

    def _buffer(self, network: Infer | None, owned: bool, **settings: Any) -> ModelBuffer[Result]:
        return ModelBuffer(network, owned, self._stages, self._on_cuda, **settings)

    def _on_cuda(self) -> CudaInstances:
        """The instances of the wrapper on a CUDA device, made on first use."""
        from .cuda import CudaInstances

        with self._lock:
            if self._instances is None:
                self._instances = CudaInstances(self._network, self._stages)
            return self._instances

    @property
    def _is_on_cuda(self) -> bool:
        return self._instances is not None and self._instances.serving is not None

    def new_buffer(self, **settings: Any) -> ModelBuffer[Result]:
        """A further buffer: on a clone of the network, or on the instances of the device.

        Args:
            settings: `capacity` and `of_pipeline` of `ModelBuffer`.
        """
        if self._is_on_cuda:
            return self._buffer(None, False, **settings)
        with self._lock:
            self._take_up()
        network = self._network.clone()
        try:
            return self._buffer(network, True, **settings)
        except BaseException:
            network.close()
            raise

    @property
    def _idle(self) -> list[ModelBuffer[Result]]:
        """The buffers that are not lent; the one on the network itself is the first. Under the lock."""
        lent = self._lent.copy().values()
        return [buffer for buffer in self._buffers if buffer not in lent]

    def _lend(self, use: Callable[[ModelBuffer[Result]], Item]) -> Item:
        """Calls a function with a buffer, which other threads do not have meanwhile. Returns its result.

        Raises:
            ClosedError: the model was closed.
        """
        call = object()
        try:
            return use(self._take(call))
        finally:
            self._lent.pop(call, None)
            with self._lock:
                self._changed.notify_all()

    def _take(self, call: object) -> ModelBuffer[Result]:
        """A buffer on the network that serves now, which is in `_lent` under `call`. Waits while all are lent."""
        with self._turn, self._lock:
            self._check_open()
            self._take_up()
            while len(self._lent) >= self._limit:
                self._changed.wait(LONGEST_WAIT)
                self._check_open()
            buffer = next(iter(self._idle), None)
            self._lent[call] = buffer
        if buffer is not None:
            buffer.refresh()
            return buffer
        buffer = self.new_buffer()
        with self._lock:
            self._lent[call] = buffer
            self._buffers.append(buffer)
        return buffer

    def _take_up(self) -> None:
        """Takes up a network that was released, before several threads use it. Under the lock."""
        if self._network.is_released:
            self._network.current()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"the {self._network.backend} model {self._network.model.name} was closed; load it again")

    # ---- calls ----

    def call(self, source: Any, parameters: Parameters, *, image: Any = None, timed: bool = False) -> Result:
        """The result of one image.

        Args:
            image: the source, where it was read already.
            timed: whether `timings` are those of this call.

        Raises:
            ClosedError: the model was closed.
        """

        def run(buffer: ModelBuffer[Result]) -> Result:
            rows, started = buffer.rows, perf_counter()
            pixels = rows.read(source) if image is None else image
            read = perf_counter()
            canvases = self._stages.canvases
            rows.begin(canvases.of(pixels.size) if canvases.several else canvases.whole, 1)
            rows.write(0, pixels, parameters)
            written = perf_counter()
            rows.run(1)
            ran = perf_counter()
            result: Result = rows.results(1)[0]
            if timed:
                self.timings = Timings(read - started, written - read, ran - written, perf_counter() - ran)
            return result

        return self._lend(run)

    def stream(self, sources: Iterable[Any], parameters: Parameters) -> Iterator[Result]:
        """The results of any number of images, in order. An exception of the iterable is raised after the results of
        the images before it.

        Raises:
            ClosedError: the model was closed.
        """
        images, exhausted = UntilError(sources), False

        def until_swapped(mode: Any) -> Iterator[Any]:
            nonlocal exhausted
            for image in images:
                yield image
                if self._mode != mode:
                    return
            exhausted = True

        while not exhausted:
            self._lend(lambda buffer: None)  # the first buffer follows a hot swap
            mode = self._mode
            yield from mode(until_swapped(mode), parameters)
        images.check()

    @property
    def _mode(self) -> Callable[[Iterator[Any], Parameters], Iterator[Result]]:
        """How streams run on the network that serves now."""
        if self._is_on_cuda:
            return self._on_device
        return self._on_cores if self._first.serving.scheduling.one_core_clones else self._on_host

    def _on_cores(self, images: Iterator[Any], parameters: Parameters) -> Iterator[Result]:
        """Each core runs one image after another: threads of a runtime would wait for each other after each layer."""
        most, pending = self._first.serving.scheduling.one_core_clones, deque[Future[Result]]()
        try:
            for source in images:
                image = None if _is_read_by_any_thread(source) else self._stages.preprocessor.read(source)
                pending.append(_submitted(self.call, source, parameters, image=image))
                if len(pending) > most:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()

    def _on_host(self, images: Iterator[Any], parameters: Parameters) -> Iterator[Result]:
        """One batch after another. No buffer is lent while the stream waits for its caller or for images."""
        ordered = _InOrder[Result]()

        def run(canvas: tuple[int, int], items: list[Any], buffer: ModelBuffer[Result]) -> list[Result]:
            results: list[Result] = []
            while len(results) < len(items):  # after a hot swap the network may take fewer
                part = items[len(results) : len(results) + buffer.capacity]
                _wait(self._prepare(buffer, canvas, part, parameters))
                buffer.rows.run(len(part))
                results += buffer.rows.results(len(part))
            return results

        for canvas, items in self._batches(images, self._first.capacity):
            yield from ordered.add(items, self._lend(partial(run, canvas, items)))

    def _on_device(self, images: Iterator[Any], parameters: Parameters) -> Iterator[Result]:
        """The rows of a batch are prepared while earlier batches are on the device."""
        from .cuda import INSTANCES

        ordered, free = _InOrder[Result](), [self.new_buffer()]
        capacity = free[0].capacity
        preparing = deque[tuple[ModelBuffer[Result], list[Any], list[Future[None]]]]()
        running = deque[tuple[ModelBuffer[Result], list[Any]]]()

        def started() -> None:
            buffer, items, futures = preparing.popleft()
            _wait(futures)
            buffer.rows.run(len(items))
            running.append((buffer, items))

        def ended() -> Iterator[Result]:
            buffer, items = running.popleft()
            results = buffer.rows.results(len(items))
            free.append(buffer)
            return ordered.add(items, results)

        try:
            for canvas, items in self._batches(images, capacity):
                buffer = free.pop() if free else self.new_buffer(capacity=capacity)
                preparing.append((buffer, items, self._prepare(buffer, canvas, items, parameters)))
                while preparing and (len(preparing) > 1 or not preparing[0][2]):
                    if len(running) == INSTANCES:
                        yield from ended()
                    started()
            while preparing:
                started()
            while running:
                yield from ended()
        finally:
            for _, _, futures in preparing:
                for future in futures:
                    future.cancel()

    def _batches(self, images: Iterator[Any], capacity: int) -> Iterator[tuple[tuple[int, int], list[tuple[int, Any]]]]:
        """The images in batches of one canvas each, with their numbers."""
        stages = self._stages
        whole = stages.canvases.sizes[-1]
        return grouped(images, lambda image: stages.bucket_of(image) or whole, capacity)

    def _prepare(
        self,
        buffer: ModelBuffer[Result],
        canvas: tuple[int, int],
        items: Sequence[tuple[int, Any]],
        parameters: Parameters,
    ) -> list[Future[None]]:
        """Prepares a row for each image: files and encoded bytes on a thread for each processor."""
        rows = buffer.rows
        rows.begin(self._stages.canvases.on(canvas), len(items))

        def prepare(row: int, source: Any) -> None:
            rows.write(row, rows.read(source), parameters)

        def decode() -> None:
            for row, (_, source) in enumerate(items):
                prepare(row, source)
            rows.decode(len(items))

        sources = [source for _, source in items]
        if rows.decodes and all(map(_is_read_by_any_thread, sources)):
            return [_submitted(decode)]
        futures: list[Future[None]] = []
        try:
            for row, source in enumerate(sources):
                if rows.prepares_quickly(source) or len(items) == 1 or not _is_read_by_any_thread(source):
                    prepare(row, source)
                else:
                    futures.append(_submitted(prepare, row, source))
        except BaseException:
            _abandon(futures)
            raise
        return futures

    # ---- the rest ----

    def warm_up(self, progress: Progress | None, example: Any) -> None:
        """Runs batches of all sizes on all canvases, as calls do."""

        def run(buffer: ModelBuffer[Result]) -> None:
            sizes = sizes_to_run(buffer.batch_sizes(), buffer.capacity)
            for canvas in reversed(self._stages.canvases.sizes):
                for size in sizes:
                    if progress is not None:
                        progress(f"Warming up calls: batch {size}, {canvas[0]} x {canvas[1]}", 0.0)
                    buffer.rows.begin(self._stages.canvases.on(canvas), size)
                    buffer.warm_up(size, example)

        self._lend(run)

    def release(self) -> None:
        """Frees the memory of the buffers; called while none is lent. The next call allocates it again."""
        with self._lock:
            idle = self._idle
            self._buffers = [buffer for buffer in self._buffers if buffer is self._first or buffer not in idle]
        for buffer in idle:
            if buffer is not self._first:
                buffer.close()
        self._first.rows.close()
        if self._instances is not None:
            self._instances.release()

    def close(self) -> None:
        """Waits for running batches. Streams that wait for their callers raise ClosedError when they continue."""
        with self._lock:
            self._closed = True
            self._changed.notify_all()
            while self._lent:
                self._changed.wait(LONGEST_WAIT)
            buffers, self._buffers = self._buffers, []
        for buffer in buffers:
            buffer.close()
        if self._instances is not None:
            self._instances.close()


_POOL_THREAD = "infersdk-decode"


@lru_cache(maxsize=2)
def _pool_of(process: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(available_processors(), MOST_DECODE_THREADS), _POOL_THREAD)


def _submitted(function: Callable[..., Item], *arguments: Any, **keywords: Any) -> Future[Item]:
    """Calls the function on one of the threads of this process that decode and run images, one for each processor.

    In such a thread (a `postprocess()` that calls another model) it is called at once: if all threads waited for tasks
    that need a thread, none would end. So it is where no thread can be started, as after the end of the main thread.
    """
    future = Future[Item]()
    task = partial(_run_once, [future], function, *arguments, **keywords)
    try:
        with contextlib.suppress(RuntimeError):  # the pool may have the task nevertheless
            if not threading.current_thread().name.startswith(_POOL_THREAD):
                _pool_of(os.getpid()).submit(task)
                return future
        task()
        return future
    finally:
        del future  # see `_run_once()`


def _run_once(pending: list[Future[Item]], function: Callable[..., Item], *arguments: Any, **keywords: Any) -> None:
    """Runs a task, unless another thread has taken its future out of the list, or it was cancelled."""
    try:
        future = pending.pop()
    except IndexError:
        return
    try:
        if future.set_running_or_notify_cancel():
            future.set_result(function(*arguments, **keywords))
    except BaseException as error:
        future.set_exception(error)
        if not isinstance(error, Exception):  # Ctrl-C is for the thread that is here
            raise
    finally:
        del future  # the traceback of an exception refers to this frame and those that called it


def _is_read_by_any_thread(source: Any) -> bool:
    """Whether any thread may read this source. Streams and PIL images may belong to the thread that gives them."""
    return isinstance(source, (np.ndarray, str, bytes, bytearray, memoryview, os.PathLike, HostImage, SharedImage))


def _wait(futures: list[Future[None]]) -> None:
    """Waits for all of them, and raises the first exception."""
    try:
        wait(futures)
    except BaseException:  # of the handler of a signal
        _abandon(futures)
        raise
    while futures:  # the traceback of an exception refers to frames that have the list: its future leaves it
        futures.pop(0).result()


def _abandon(futures: Sequence[Future[None]]) -> None:
    """Cancels those that have not begun, and waits for the others: they write into rows that a later call uses."""
    wait([future for future in futures if not future.cancel()])


def grouped(
    items: Iterator[Item], kind_of: Callable[[Item], Hashable], capacity: int
) -> Iterator[tuple[Any, list[tuple[int, Item]]]]:
    """Items in batches of one kind each, with their numbers. A batch leaves when it is full; where many items wait, the
    oldest batch leaves.

    Args:
        kind_of: the kind of an item; the items of one batch are of one kind.
        capacity: maximum number of items in a batch.
    """
    filling: dict[Hashable, list[tuple[int, Item]]] = {}  # the one that began first is the first
    waiting = 0
    for number, item in enumerate(items):
        kind = kind_of(item)
        filling.setdefault(kind, []).append((number, item))
        waiting += 1
        if len(filling[kind]) < capacity:
            if waiting < MOST_WAITING * capacity:
                continue
            kind = next(iter(filling))
        waiting -= len(filling[kind])
        yield kind, filling.pop(kind)
    yield from filling.items()


class _InOrder(Generic[Result]):
    """Results of batches in the order of their items."""

    def __init__(self) -> None:
        self._done: dict[int, Result] = {}  # results whose turn has not come
        self._next = 0

    def add(self, items: Sequence[tuple[int, Any]], results: Sequence[Result]) -> Iterator[Result]:
        """The results whose turn has come, now that those of these items are there."""
        self._done.update((number, result) for (number, _), result in zip(items, results, strict=True))
        while self._next in self._done:
            yield self._done.pop(self._next)
            self._next += 1
