"""The machinery: requests, slots, the rule for when a batch leaves, and the threads that keep it.

One lock guards it all, held for microseconds. Nothing of the user's (images, models, callbacks of futures) is touched
while it is held.

::

    submit --> a row of the filling buffer --> prepared by a worker --> the buffer leaves: run, postprocess
                 ^ none free: in line                                                           |
                 +------------------------------- the buffer is free again ---------------------+
"""

from __future__ import annotations

import heapq
import logging
import os
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import count
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import ClosedError, DeadlineExceeded, ForkError, Overloaded
from .slots import BatchState, InstanceGroup, Promise, Request, Waiter
from .staggered_wakeup import Gate, StaggeredWakeup
from .stats import Counters, PipelineStats

if TYPE_CHECKING:
    from .batch_buffer import BatchBuffer

__all__ = ["Batcher"]

_log = logging.getLogger("infersdk.pipeline")

Kind = TypeVar("Kind", bound=Request)

#: How often this process came out of a fork. Asking for its number each time would be a call of the system.
_forks = 0


def _count_fork() -> None:
    global _forks  # noqa: PLW0603
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_fork)


class Batcher:
    """See the module. `Pipeline` is its face.

    Args:
        groups: for each model its buffers, all of one capacity; how many of them may be under way at a time; and how
            many of those really run, while the others stand behind them.
        max_delay: seconds that a request waits for others at most.
        workers: threads that prepare.
        reject: refuse with Overloaded when there is no slot, instead of waiting for one.
    """

    def __init__(
        self,
        groups: Sequence[tuple[Sequence[BatchBuffer], int, int]],
        *,
        max_delay: float,
        workers: int,
        reject: bool,
        name: str,
    ) -> None:
        self._lock = threading.Lock()
        self.wakeup = StaggeredWakeup()  # those who submit wait here, for a slot or for a result
        self._work = threading.Condition(self._lock)  # the workers wait here
        self._drained = threading.Condition(self._lock)  # and close() here
        self._groups = [
            InstanceGroup(buffers, permits, executors, self._lock) for buffers, permits, executors in groups
        ]
        self.capacity = self._groups[0].batches[0].capacity
        self.slots = sum(batch.capacity for group in self._groups for batch in group.batches)
        self._max_delay, self._reject, self._name = max_delay, reject, name
        self._filling: BatchState | None = None
        self._todo: deque[BatchState] = deque()  # with rows to prepare
        self._line: deque[Waiter] = deque()
        self._deadlines: list[tuple[float, int, Request]] = []
        self._order = count()
        self._counters = Counters()
        self._started = monotonic()
        self._process, self._forks = os.getpid(), _forks
        self._closing = False  # takes no more requests
        self._stopped = False  # the threads are to end
        self._workers = workers
        self._idle = 0
        self._quick = self._groups[0].batches[0].buffer.quick
        self._threads = [
            threading.Thread(target=self._prepare, name=f"{name}-worker-{i}", daemon=True) for i in range(workers)
        ]
        for g, group in enumerate(self._groups):
            # One more than may run: it postprocesses while the next batch is on the model.
            self._threads += [
                threading.Thread(target=self._run, args=(group,), name=f"{name}-runner-{g}-{i}", daemon=True)
                for i in range(group.permits + 1)
            ]
        for thread in self._threads:
            thread.start()

    # ---- requests in ----

    def submit(
        self,
        item: Any,
        parameters: Mapping[str, Any] | None = None,
        *,
        timeout: float | None,
        deadline: float | None,
        wait: bool = True,
        reject: bool | None = None,
        kind: type[Kind] = Promise,  # type: ignore[assignment]
    ) -> Kind:
        """Takes a request in; see `Pipeline.submit()`. Without `wait` it may still be in line when this returns."""
        if self._forks != _forks:
            raise self._forked()
        request = kind(self, item, parameters, deadline)
        try:
            self._take_in(request, timeout, wait, self._reject if reject is None else reject)
        except BaseException:
            self._abandon(request)
            raise
        return request

    def _take_in(self, request: Request, timeout: float | None, wait: bool, reject: bool) -> None:
        late = request.within is not None and request.within <= 0
        # Handing a little work to another thread takes longer than the work: each wakes the other up.
        here = self._quick(request.item)
        gate: Gate | None = None
        with self._lock:
            self._check_open()
            if late:
                self._counters.submitted += 1
                self._take(request, "expired")
            elif self._line or not self._place(request, here=here):
                if reject:
                    self._counters.rejected += 1
                    raise Overloaded(self._busy("are taken; submit later, or make the pipeline with more slots"))
                if wait and timeout is not None and timeout <= 0:
                    self._counters.rejected += 1
                    raise Overloaded(self._busy("are taken, and there is no time to wait"))
                self._counters.submitted += 1
                here = False
                if wait:
                    gate = Gate()
                self._line.append(Waiter(request, gate))
            else:
                self._counters.submitted += 1
            if request.deadline is not None and not late:
                self._watch(request)
        if late:
            _fail(request, _too_late(request))
        elif here:
            self._prepare_own(request)
        elif gate is not None:
            self._await_slot(request, gate, timeout)

    def _abandon(self, request: Request) -> None:
        """Ctrl-C came while its own thread was at a request: its row must not keep a runner waiting."""
        with self._lock:
            batch = request.batch
            if not request.preparing or batch is None:
                return
            request.preparing = False
            batch.preparing -= 1
            if request.over:  # its deadline passed meanwhile
                self._vacate(batch, request.row)
            batch.group.wake.notify()
            batch.settled.notify()
        request.cancel()

    def _await_slot(self, request: Request, gate: Gate, timeout: float | None) -> None:
        try:
            if self.wakeup.wait(gate, timeout):
                return
        except BaseException:  # Ctrl-C: nobody will ask for it any more
            request.cancel()
            raise
        with self._lock:
            if request.batch is not None or request.over:
                return  # its turn came in the last moment
            request.over = True
            self._forget(request)
            self._counters.submitted -= 1
            self._counters.rejected += 1
        raise Overloaded(self._busy(f"were taken for {timeout:g} s"))

    def _busy(self, why: str) -> str:
        return f"all {self.slots} slots of {self._name} {why}"

    def _watch(self, request: Request) -> None:
        assert request.deadline is not None
        if len(self._deadlines) > 4 * (self.slots + len(self._line)) + 64:  # those long done are not kept till then
            self._deadlines = [entry for entry in self._deadlines if not (entry[2].over or entry[2].left)]
            heapq.heapify(self._deadlines)
        heapq.heappush(self._deadlines, (request.deadline, next(self._order), request))
        if self._deadlines[0][2] is request:
            self._work.notify()  # who waits for the deadline before it waits too long now

    def _place(self, request: Request, *, here: bool = False) -> bool:
        """Gives a request a slot, if one is free; `here`: this thread will prepare it. Under the lock."""
        batch = self._filling or next((b for g in self._groups for b in g.ready if b.holes), None)
        if batch is None:
            group = min((g for g in self._groups if g.free), key=lambda g: g.load, default=None)
            if group is None:
                return False
            batch = self._filling = group.free.popleft()
        if batch.holes:
            row = batch.holes.pop()
            batch.rows[row] = request
        else:
            row = len(batch.rows)
            batch.rows.append(request)
        request.batch, request.row = batch, row
        live = batch.live
        if live == 1:
            batch.first = request.submitted
            batch.group.wake.notify()  # to wait until it is due
        if here:
            request.preparing = True
            batch.preparing += 1
        else:
            if not batch.todo:
                self._todo.append(batch)
            batch.todo.append(request)
            if self._idle:
                self._work.notify()
        if live >= batch.capacity and not batch.sealed:
            batch.sealed = True
            batch.group.ready.append(batch)
            self._filling = None
            if batch.prepared:
                batch.group.wake.notify()
        return True

    def _grant(self) -> None:
        """Gives free slots to those in line. Under the lock."""
        line = self._line
        while line:
            waiter = line[0]
            if not waiter.request.over and not self._place(waiter.request):
                return
            line.popleft()
            if waiter.gate is not None:
                self.wakeup.let(waiter.gate)

    def _forget(self, request: Request) -> None:
        """Takes a request out of the line, or out of its slot. Under the lock."""
        batch = request.batch
        if batch is None:
            for waiter in self._line:
                if waiter.request is request:
                    self._line.remove(waiter)
                    if waiter.gate is not None:
                        self.wakeup.let(waiter.gate)
                    break
            return
        if request.preparing or batch.rows[request.row] is not request:
            return  # a worker is at its row, and leaves it afterwards; or it has left
        if request in batch.todo:
            batch.todo.remove(request)
            if not batch.todo:
                self._todo.remove(batch)
        self._vacate(batch, request.row)

    def _vacate(self, batch: BatchState, row: int) -> None:
        """A row is free again. Under the lock."""
        batch.rows[row] = None
        batch.holes.append(row)
        if batch.sealed:
            if batch not in batch.group.ready:
                batch.settled.notify()  # a runner has it, and this may be the row that it waits for
            elif batch.live or batch.preparing:
                self._grant()
            else:
                batch.group.ready.remove(batch)
                self._release(batch)
            return
        live = [request.submitted for request in batch.rows if request is not None]
        if live:
            batch.first = min(live)
        elif not batch.preparing:
            self._filling = None
            self._release(batch)
        self._grant()

    def _release(self, batch: BatchState) -> None:
        """A batch is empty. Under the lock."""
        batch.clear()
        batch.group.free.append(batch)
        self._grant()
        if self._closing:
            self._drained.notify_all()

    # ---- requests that end early ----

    def _take(self, request: Request, counter: str) -> bool:
        """The right to settle a request, once. Under the lock."""
        if request.over:
            return False
        request.over = True
        setattr(self._counters, counter, getattr(self._counters, counter) + 1)
        return True

    def drop(self, request: Request) -> bool:
        """Cancels a request, unless its batch has left or it is over."""
        if self._forks != _forks:
            return False
        with self._lock:
            mine = not request.left and self._take(request, "cancelled")
            if mine:
                self._forget(request)
        return mine

    def _expired(self, now: float) -> list[Request]:
        """Those whose deadline is past, and whose batch has not left. Under the lock."""
        found = []
        while self._deadlines and (self._deadlines[0][0] <= now or self._deadlines[0][2].over):
            request = heapq.heappop(self._deadlines)[2]
            if not request.left and self._take(request, "expired"):
                self._forget(request)
                found.append(request)
        return found

    # ---- the workers ----

    def _prepare(self) -> None:
        while True:
            with self._lock:
                self._idle += 1
                expired: list[Request] = []
                while not self._todo and not self._stopped:
                    if self._deadlines:
                        now = monotonic()
                        if expired := self._expired(now):
                            break
                        self._work.wait(max(0.0, self._deadlines[0][0] - now) if self._deadlines else None)
                    else:
                        self._work.wait()
                self._idle -= 1
                taken: list[Request] = []
                if self._todo:
                    batch, taken = self._take_some()
                elif self._stopped and not expired:
                    return
            for request in expired:
                _fail(request, _too_late(request))
            if taken:
                self._prepare_rows(batch, taken)

    def _take_some(self) -> tuple[BatchState, list[Request]]:
        """A fair part of what is to prepare in the oldest batch. Under the lock."""
        batch = self._todo[0]
        share = -(-len(batch.todo) // self._workers)
        requests = [batch.todo.popleft() for _ in range(share)]
        if not batch.todo:
            self._todo.popleft()
        for request in requests:
            request.preparing = True
        batch.preparing += len(requests)
        return batch, requests

    def _prepare_own(self, request: Request) -> None:
        """That of the thread that submits it."""
        batch = request.batch
        assert batch is not None
        error: BaseException | None = None
        try:
            batch.buffer.prepare(request.row, request.item, request.parameters)
        except BaseException as why:
            error = why
        with self._lock:
            failed = self._prepared(batch, request, error)
            self._tell_prepared(batch)
        if failed:
            assert error is not None
            _fail(request, error)
        if isinstance(error, KeyboardInterrupt):  # it is for the caller, and not for who has the future
            raise error

    def _prepare_rows(self, batch: BatchState, taken: list[Request]) -> None:
        """A worker's."""
        prepare, errors = batch.buffer.prepare, dict[Request, BaseException]()
        for request in taken:
            if request.over:
                continue
            try:
                prepare(request.row, request.item, request.parameters)
            except BaseException as why:
                errors[request] = why
        with self._lock:
            failed = [request for request in taken if self._prepared(batch, request, errors.get(request))]
            self._tell_prepared(batch)
        for request in failed:
            _fail(request, errors[request])

    def _prepared(self, batch: BatchState, request: Request, error: BaseException | None) -> bool:
        """A row is done; whether its request is to be failed. Under the lock."""
        failed = error is not None and self._take(request, "failed")
        request.preparing = False
        batch.preparing -= 1
        if request.over:
            self._vacate(batch, request.row)
        return failed

    @staticmethod
    def _tell_prepared(batch: BatchState) -> None:
        """Under the lock."""
        if batch.sealed and batch.prepared:
            if batch in batch.group.ready:
                batch.group.wake.notify()
            else:
                batch.settled.notify()

    # ---- the runners ----

    def _run(self, group: InstanceGroup) -> None:
        while True:
            with self._lock:
                batch = self._next(group)
                if batch is None:
                    return
                batch.sealed = True
                group.running += 1
                while not batch.prepared:
                    batch.settled.wait()
                expired = self._leave(batch)
            for request in expired:
                _fail(request, _too_late(request))
            self._run_batch(batch)

    def _next(self, group: InstanceGroup) -> BatchState | None:
        """Waits for a batch that may leave; None at the end. Under the lock."""
        while True:
            timeout = None
            if group.running < group.permits:
                if group.ready:
                    return group.ready.popleft()
                batch = self._filling
                # Behind a batch that runs, one that is not full would only wait: it had better go on filling.
                free = group.running < group.executors or self._closing
                if free and batch is not None and batch.group is group:
                    now = monotonic()
                    due = batch.first + self._max_delay
                    if due <= now or self._closing:
                        self._filling = None
                        return batch
                    timeout = due - now
            if self._stopped:
                return None
            group.wake.wait(timeout)

    def _leave(self, batch: BatchState) -> list[Request]:
        """Marks the requests of a batch as on their way; returns those that come too late. Under the lock."""
        now, expired = monotonic(), []
        for row, request in enumerate(batch.rows):
            if request is None:
                continue
            if not request.over and (request.deadline is None or request.deadline >= now):
                if request.begin():
                    request.left = True
                    self._counters.running += 1
                    continue
                self._take(request, "cancelled")  # in this very moment
            elif self._take(request, "expired"):
                expired.append(request)
            batch.rows[row] = None
        return expired

    def _run_batch(self, batch: BatchState) -> None:
        group, buffer, counters = batch.group, batch.buffer, self._counters
        requests = [request for request in batch.rows if request is not None]
        left = monotonic()
        results: Sequence[Any] = ()
        ran = done = left
        try:
            try:
                if requests:
                    requests = batch.close_ranks()
                    buffer.run(len(requests))
            finally:
                ran = monotonic()
                with self._lock:
                    group.running -= 1
                    group.wake.notify()
            if requests:
                results = buffer.results(len(requests))
                if len(results) != len(requests):
                    raise RuntimeError(f"{len(results)} results for {len(requests)} requests")
        except BaseException as error:
            results = [error] * len(requests)
        try:
            buffer.refresh()
        except Exception:  # these requests have their results; what is wrong with the buffer shows in its next run
            _log.exception("%s: a buffer could not be brought up to date", self._name)
        done = monotonic()
        failures = sum(isinstance(result, BaseException) for result in results)
        with self._lock:
            counters.running -= len(requests)
            counters.done += len(requests) - failures
            counters.failed += failures
            if requests:
                counters.batch_sizes[len(requests)] = counters.batch_sizes.get(len(requests), 0) + 1
                counters.run.add(ran - left)
                counters.postprocess.add(done - ran)
                counters.queue.add_all([left - request.submitted for request in requests])
                counters.total.add_all([done - request.submitted for request in requests])
            for request in requests:
                request.over, request.batch, request.item = True, None, None
            self._release(batch)
        for request, result in zip(requests, results, strict=True):
            if isinstance(result, BaseException):
                request.fail(result)
            else:
                request.succeed(result)

    # ---- the rest ----

    def _forked(self) -> ForkError:
        return ForkError(
            f"{self._name} was made in process {self._process}, and this is {os.getpid()}, without its threads; make "
            "it after the fork, or start processes with the method 'spawn'"
        )

    def _check_open(self) -> None:
        if self._closing:
            raise ClosedError(f"{self._name} was closed; make a new one")

    def stats(self) -> PipelineStats:
        with self._lock:
            c, waiting = self._counters, sum(not waiter.request.over for waiter in self._line)
            ended = c.done + c.failed + c.cancelled + c.expired
            return PipelineStats(
                submitted=c.submitted, done=c.done, failed=c.failed, cancelled=c.cancelled, expired=c.expired,
                rejected=c.rejected, waiting=waiting, queued=c.submitted - ended - c.running - waiting,
                running=c.running, slots=self.slots, seconds=monotonic() - self._started,
                batch_sizes=dict(sorted(c.batch_sizes.items())), queue=c.queue.percentiles(), run=c.run.percentiles(),
                postprocess=c.postprocess.percentiles(), total=c.total.percentiles(),
            )  # fmt: skip

    def durations(self) -> dict[str, tuple[list[int], float, int]]:
        """The histograms, by stage: the counts of the buckets of `BOUNDS` and of what lies above, sum, and count."""
        with self._lock:
            c = self._counters
            stages = {"queue": c.queue, "run": c.run, "postprocess": c.postprocess, "total": c.total}
            return {name: (list(d.counts), d.sum, d.count) for name, d in stages.items()}

    def close(self, *, drain: bool) -> None:
        """Ends it: with `drain` all that was taken in is run first, otherwise what has not left is cancelled."""
        if self._forks != _forks:
            return  # the threads are the parent's, and so are the buffers
        with self._lock:
            mine = not self._closing
            self._closing = True
            left_over = [] if drain else self._not_left()
            self._wake_all()
        for request in left_over:
            request.cancel()
        with self._lock:
            while any(len(group.free) < len(group.batches) for group in self._groups) or self._line:
                self._drained.wait()
            self._stopped = True
            self._wake_all()
        for thread in self._threads:
            if thread is not threading.current_thread():  # close() in a callback of a future
                thread.join()
        if mine:
            for group in self._groups:
                for batch in group.batches:
                    batch.buffer.close()

    def _not_left(self) -> list[Request]:
        waiting = [waiter.request for waiter in self._line]
        placed = [r for group in self._groups for batch in group.batches for r in batch.rows if r is not None]
        return waiting + [request for request in placed if not request.left]

    def _wake_all(self) -> None:
        self._work.notify_all()
        self._drained.notify_all()
        for group in self._groups:
            group.wake.notify_all()


def _fail(request: Request, error: BaseException) -> None:
    if request.begin():
        request.fail(error)


def _too_late(request: Request) -> DeadlineExceeded:
    return DeadlineExceeded(
        f"the request was not on its way within its {request.within:.3g} s; give it longer, submit less at a time, or "
        "make the model faster"
    )
