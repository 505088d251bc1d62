"""The parts of a pipeline, put together: requests come in, are cancelled, and the whole is closed.

`infersdk.pipeline` shows the parts, and the rules of their lock.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import ClosedError, ForkError, Overloaded, PipelineError
from .batch_buffer import sizes_to_run
from .request import PipelineThread
from .stats import PipelineStats, bucket_name
from .workers import BatchRunners, PipelineState, PrepareWorkers, fail_expired

if TYPE_CHECKING:
    from ..core.backend import Progress
    from .batch_buffer import BatchBuffer
    from .request import BatchState, Request
    from .scheduler import InstanceGroup

__all__ = ["PipelineCore"]


class PipelineCore(PipelineState):
    """The implementation of a `Pipeline`.

    Args:
        lock: guards all that changes.
        groups: the instances of each model. All have the same lock and one capacity.
        warming: the buffers that `warm_up()` runs; the others share all that a first run makes.
        max_delay: maximum seconds that a request waits for others while the model is free.
        workers: threads that prepare.
        name: for threads and messages.
    """

    def __init__(
        self,
        lock: threading.Lock,
        groups: Sequence[InstanceGroup],
        warming: Sequence[BatchBuffer],
        *,
        max_delay: float,
        workers: int,
        name: str,
    ) -> None:
        super().__init__(lock, groups, max_delay, name)
        batches = [batch for group in self.groups for batch in group.batches]
        self._warming = [batch for batch in batches if batch.buffer in warming]
        self.capacity = batches[0].capacity
        self.slots = sum(batch.capacity for batch in batches)
        self._buffer = batches[0].buffer
        self._process = os.getpid()
        self._buffers_closed = False
        self.workers = PrepareWorkers(self, workers)
        self.threads = [*self.workers.threads]
        for group in self.groups:
            self.threads += BatchRunners(self, group, self.workers).threads
        try:
            for thread in self.threads:
                thread.start()
        except BaseException as error:
            self.thread_failed(error)
            if not isinstance(error, RuntimeError):
                raise
            raise PipelineError(
                f"{name} cannot start its {len(self.threads)} threads ({error}); make it with fewer workers, or let "
                "the process have more threads and memory"
            ) from error

    # ---- requests in ----

    def submit(
        self, requests: Sequence[Request], *, timeout: float | None = None, wait: bool = True, reject: bool = False
    ) -> None:
        """Takes requests in, in this order. Where one is refused, all whose batch has not left are cancelled, and
        no `on_done` is called from then on.

        Args:
            timeout: seconds to wait for slots; None is without limit.
            wait: return when all requests have slots. Without it they may still wait for one, as always in a thread of
                a pipeline, since those threads free the slots.
            reject: raise Overloaded where no slot is free.
        """
        self._check_process()
        for request in requests:
            request.quick = self._buffer.prepares_quickly(request.item)
            request.bucket = self._buffer.bucket_of(request.item)
        refusal = "; submit later, or make the pipeline with more slots" if reject else None
        if wait and timeout is not None and timeout <= 0:
            refusal = refusal or ", and timeout is 0"
        wait = wait and not isinstance(threading.current_thread(), PipelineThread)
        taken: list[Request] = []
        own: list[Request] = []  # those that this thread prepares
        expired: list[Request] = []
        changing, waiter = False, None
        try:
            with self.lock:
                changing = True
                for request in requests:
                    self._take_in(request, refusal)
                    taken.append(request)
                    if request.preparing:
                        own.append(request)
                    elif request.settled:
                        expired.append(request)
                last = requests[-1]
                if wait and last.batch is None and not last.settled:  # requests leave the queue in order
                    waiter = last.slot_waiter = threading.Lock()
                    waiter.acquire()
            changing = False
            if own:
                self.workers.prepare_all(own)
            fail_expired(expired)
            if waiter is not None and not waiter.acquire(timeout=-1 if timeout is None else timeout):
                self._locked(self._give_up, last, timeout)
        except BaseException as error:
            for request in requests:
                request.discard()
            if changing and not isinstance(error, (PipelineError, ClosedError)):
                self.thread_failed(error)
            for request in taken:
                request.cancel()
            if own:  # now that they are cancelled: a row that is not prepared must not run
                self.workers.finish([request for request in own if request.preparing], {})
            raise

    def _take_in(self, request: Request, refusal: str | None) -> None:
        """Gives a request a slot, puts it into the queue, or settles one whose deadline is past. Under the lock."""
        if self.closing:
            self._check_open()
        if request.time_limit is not None and request.time_limit <= 0:
            self.statistics.expired += 1
            return
        # Quick preparation takes less time here than waking up another thread.
        if not self.scheduler.admit(request, preparing=request.quick):
            if refusal is not None:
                self.statistics.rejected += 1
                raise Overloaded(f"all {self.slots} slots of {self.name} are taken{refusal}")
            self.scheduler.enqueue(request)
        if request.deadline is not None:
            self.workers.watch(request)

    def _give_up(self, request: Request, timeout: float | None) -> None:
        """A caller does not wait any longer for a slot. Under the lock."""
        if request.batch is not None or not self.scheduler.settle(request, "rejected"):
            return  # it has got its slot, or has ended
        self.scheduler.remove(request)
        raise Overloaded(f"all {self.slots} slots of {self.name} were taken for {timeout:g} s")

    # ---- requests that end early ----

    def withdraw(self, request: Request) -> bool:
        """Cancels a request, unless its batch has left or it has ended."""
        return os.getpid() == self._process and bool(self._locked(self._withdraw, request))

    def _withdraw(self, request: Request) -> bool:
        if request.dispatched or not self.scheduler.settle(request, "cancelled"):
            return False
        self.scheduler.remove(request)
        return True

    # ---- faults ----

    def _locked(self, change: Callable[..., Any], *arguments: Any) -> Any:
        """Changes the state of the pipeline in a caller's thread. A change that is interrupted half-way, by Ctrl-C for
        example, leaves a state that nothing can rely on: that is a fault.
        """
        changing = False
        try:
            with self.lock:
                changing = True
                return change(*arguments)
        except PipelineError:
            raise
        except BaseException as error:
            if changing:
                self.thread_failed(error)
            raise

    # ---- the end ----

    def _check_process(self) -> None:
        if (process := os.getpid()) != self._process:
            raise ForkError(
                f"{self.name} was made in process {self._process}, and this is process {process}, which has none "
                "of its threads; make the pipeline after the fork, or start processes with the method 'spawn'"
            )

    def _check_open(self, when: str = "") -> None:
        if self.fault is not None:
            raise self.fault_error()
        if self.closing:
            raise ClosedError(f"{self.name} was closed{when}; make a new one")

    def close(self, *, drain: bool) -> None:
        """Ends it: with `drain` all requests that were taken in are run first, otherwise those whose batch has not left
        end in ClosedError. Waits for its threads, so none of them may call this.
        """
        if os.getpid() != self._process:
            return  # the threads are the parent's, and so are the buffers
        with self.lock:
            self.closing = True
            self.scheduler.draining |= drain  # otherwise later: a request that is withdrawn must not leave
            left_over = [] if drain else [*self.scheduler.queue, *self.scheduler.requests()]
            self.scheduler.wake_all()
        errors = []
        for request in left_over:
            try:
                if self.withdraw(request):
                    request.end(ClosedError(f"{self.name} was closed before the batch of this request left"))
            except BaseException as error:  # of a callback
                errors.append(error)
        self._wait_until_ended()
        if errors:
            raise errors[0]

    def _wait_until_ended(self) -> None:
        with self.lock:
            self.scheduler.draining = True
            self.scheduler.wake_all()
            while self.fault is None and (not self.scheduler.idle or self.scheduler.queue):
                self.scheduler.drained.wait()
            self.stopped = True
            self.scheduler.wake_all()
        for thread in self.threads:
            thread.join()
        with self.lock:
            close_buffers, self._buffers_closed = not self._buffers_closed, True
        if close_buffers:
            for group in self.groups:
                for batch in group.batches:
                    batch.buffer.close()

    # ---- the rest ----

    def warm_up(self, progress: Progress | None, example: Any) -> None:
        """Takes batch buffers out of service one after another, and runs all batch sizes of each bucket. See
        `Pipeline.warm_up()`.
        """
        self._check_process()
        with self.lock:
            self._check_open()
        batches = self._warming
        for done, batch in enumerate(batches):
            self._take_out(batch)
            try:
                buckets, sizes = batch.buffer.buckets(), sizes_to_run(batch.buffer.batch_sizes(), batch.capacity)
                runs = [(bucket, size) for bucket in reversed(buckets) for size in sizes]
                for i, (bucket, size) in enumerate(runs):
                    self._check_open(" while it warmed up")
                    if progress is not None:
                        what = f"Warming up: instance {done + 1} of {len(batches)}, batch {size}"
                        if len(buckets) > 1:
                            what += f" of {bucket_name(bucket)}"
                        progress(what, (done + i / len(runs)) / len(batches))
                    batch.buffer.set_bucket(bucket)
                    batch.buffer.warm_up(size, example)
            finally:
                with self.lock:
                    self.scheduler.release(batch)
        if progress is not None:
            progress("Warmed up", 1.0)

    def _take_out(self, batch: BatchState) -> None:
        """Waits until this batch has no requests, and takes it out of service."""
        free = self.groups[batch.group].free
        with self.lock:
            while batch not in free:
                self._check_open(" while it warmed up")
                self.scheduler.drained.wait()
            self._check_open(" while it warmed up")
            free.remove(batch)

    def stats(self) -> PipelineStats:
        self._check_process()
        with self.lock:
            waiting = sum(not request.settled for request in self.scheduler.queue)
            return self.statistics.snapshot(waiting=waiting, slots=self.slots)

    def durations(self) -> dict[str, tuple[list[int], float, int]]:
        self._check_process()
        with self.lock:
            return self.statistics.durations()
