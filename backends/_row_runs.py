"""Batches whose rows run one by one, side by side on the cores of the processor.

The threads of a runtime wait for each other after every layer, and a batch of images leaves the caches of a core. So
several one-thread runs of one row each often take less time than one run of all rows on all threads: a fifth less for
small detectors, and a half where other threads want the cores too. Models with large weights and little other work are
the other way round, because a batch reads the weights once. Hence both are measured, in the first batches themselves.

It holds for batches of independent rows alone (`Infer.forward_rows()`): those of pipelines and model wrappers. A single
row runs on all cores, so that it takes as little time as before.
"""

from __future__ import annotations

import math
import os
import weakref
from _thread import start_new_thread
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from queue import SimpleQueue
from threading import Lock
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

from .._text import logger
from ..infer import Infer

if TYPE_CHECKING:
    from ..tensor import Tensor

__all__ = ["Choice", "RowRunner", "RowRuns", "RowShapesError", "RunsRows"]

_log = logger("infersdk.row_runs")

#: Runs of each of the two that are compared. Before the first time a run of each prepares it, and does not count.
MEASURED = 3
#: Runs after which both are measured again: other threads may have come or gone.
REVIEW = 256
#: The one that is not in use has to take so much less time: measurements differ by chance.
CLEARLY = 0.95


class RowShapesError(Exception):
    """The outputs of a row do not have the shapes that the outputs of a batch promise: they depend on the data."""


class Choice:
    """Whether batches of one shape run as a whole or split, measured in the runs themselves.

    Any number of threads may use it.

    Args:
        name: of the model, for the log.

    Attributes:
        outputs: the shape of each output for one row, by name; None before the first run.
        splits: whether they run split, unless they are being measured.
    """

    #: Runs until it is decided for the first time, behind the one that shows the shapes of the outputs.
    TRIAL = 2 * (MEASURED + 1)

    def __init__(self, name: str) -> None:
        self._name = name
        self.outputs: Mapping[str, tuple[int, ...]] | None = None
        self.splits = True
        self._lock = Lock()
        self._runs = 0
        self._refused = False
        self._begin()

    def _begin(self) -> None:
        """Begins to measure."""
        self._counted = 0
        self._least = {False: math.inf, True: math.inf}  # seconds a row

    @property
    def settled(self) -> bool:
        """Whether it is decided."""
        return self._refused or self._runs >= self.TRIAL

    def next_splits(self) -> tuple[bool, bool]:
        """Whether the next run is split, and whether its duration counts."""
        if self._refused:
            return False, False
        with self._lock:
            if self.outputs is None:
                return False, False
            self._runs += 1
            run = self._runs
            if run <= self.TRIAL:
                return run % 2 == 0, run > 2
            since = run % REVIEW
            if since < 2 * MEASURED:
                return since % 2 == 0, True
            return self.splits, False

    def learn(self, outputs: Mapping[str, tuple[int, ...]], batch: int) -> None:
        """A batch has run as a whole, with outputs of these shapes."""
        with self._lock:
            if self.outputs is None and not self._refused:
                self._refused = any(not shape or shape[0] != batch for shape in outputs.values())
                self.outputs = {name: shape[1:] for name, shape in outputs.items()}

    def add(self, split: bool, seconds: float) -> None:
        """A run that counts has taken so many seconds a row."""
        with self._lock:
            self._least[split] = min(self._least[split], seconds)
            self._counted += 1
            if self._counted < 2 * MEASURED:
                return
            whole, rows = self._least[False], self._least[True]
            self._begin()
            self.splits = whole >= CLEARLY * rows if self.splits else rows < CLEARLY * whole
        _log.debug(
            "%s: a row takes %.2f ms in a batch, %.2f ms on one of all cores: batches run %s", self._name,
            whole * 1e3, rows * 1e3, "split" if self.splits else "whole",
        )  # fmt: skip

    def refuse(self) -> None:
        """Batches cannot be split."""
        self._refused = True


class RowRunner(Protocol):
    """What runs the rows of the tensors of one Infer."""

    def place(
        self, inputs: Sequence[tuple[str, Tensor]], outputs: Sequence[tuple[str, Tensor]], split: int, whole: Any
    ) -> None:
        """Binds the tensors of a batch: the rows below `split` one by one, the others together.

        Args:
            whole: what runs on all cores.
        """

    def run_row(self, row: int, worker: int) -> None:
        """Runs a row on one core. Each worker is one thread at a time. What it raises is the runtime's own, or a
        RowShapesError.
        """

    def run_rest(self) -> None:
        """Runs the other rows on all cores."""


class _Runtime:
    """What the rows of all clones run on, such as a session of one thread."""

    def __init__(self, value: Any) -> None:
        self.value = value


class RowRuns:
    """What an Infer and its clones share, in order to run rows one by one.

    Args:
        name: of the model, for the log.
        cores: how many rows run at a time.
        start: starts what they run on, when the first batch is split.
    """

    def __init__(self, name: str, cores: int, start: Callable[[], Any]) -> None:
        self.cores = cores
        self._name, self._start = name, start
        self._lock = Lock()
        self._alive: Callable[[], _Runtime | None] = lambda: None
        self._choices: dict[Hashable, Choice] = {}
        self._threads = _Threads(cores - 1)
        self.failed = False  # what rows run on could not be started

    def choice(self, shapes: Hashable) -> Choice:
        """The one for rows of these shapes."""
        choice = self._choices.get(shapes)
        return choice if choice is not None else self._choices.setdefault(shapes, Choice(self._name))

    @property
    def settled(self) -> bool:
        """Whether all choices are made, and there is at least one."""
        return self.failed or (bool(self._choices) and all(choice.settled for choice in list(self._choices.values())))

    def runtime(self) -> _Runtime | None:
        """What rows run on, as long as a clone holds it; None where it cannot be started."""
        with self._lock:
            runtime = self._alive()
            if runtime is None and not self.failed:
                try:
                    runtime = _Runtime(self._start())
                except Exception as error:
                    self.failed = True
                    _log.warning("%s: batches are not split, because a second load failed: %s", self._name, error)
                    return None
                self._alive = weakref.ref(runtime)
            return runtime

    def drop(self, runtime: _Runtime) -> None:
        """This one is not used any more: a run on it has failed."""
        with self._lock:
            if self._alive() is runtime:
                self._alive = lambda: None

    def side_by_side(self, count: int, run_row: Callable[[int, int], None]) -> None:
        """Runs so many rows, each once; the calling thread is one of those that do. The first error is raised."""
        rows = deque(range(count))

        def work(worker: int) -> None:
            while True:
                try:
                    row = rows.popleft()
                except IndexError:
                    return
                try:
                    run_row(row, worker)
                except BaseException:
                    rows.clear()
                    raise

        helpers = [_Helper(work, worker) for worker in range(1, min(self.cores, count))]
        try:
            for helper in helpers:
                self._threads.call(helper.run)
            work(0)
        finally:
            _wait_for(helpers, rows)
        for helper in helpers:
            helper.check()


class _Threads:
    """Threads that call what they are given, in order.

    They end with this object, and are not waited for at the end of the process: no caller waits for rows then. Ctrl-C
    at any moment breaks nothing, since no lock of Python's `threading` is held, as executors hold them.

    Args:
        count: how many; they start with the first call.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._lock = Lock()  # for their start alone
        self._process = 0  # that they are in; a fork does not have them
        self._alive = 0
        self._calls: SimpleQueue[Callable[[], object] | None] = SimpleQueue()

    def call(self, what: Callable[[], object]) -> None:
        """Calls it in one of the threads. Where none can be started, because the interpreter is ending or the system
        has no more, it is never called.
        """
        if self._process != os.getpid():
            with self._lock:
                self._start()
        if self._alive:
            self._calls.put(what)

    def _start(self) -> None:
        process = os.getpid()
        if self._process == process:
            return  # another caller was faster
        calls, alive = SimpleQueue[Any](), 0
        try:
            while alive < self._count:
                start_new_thread(_work_off, (calls,))
                alive += 1
        except RuntimeError:
            _log.warning("%d of %d threads for the rows of batches could be started", alive, self._count)
        finally:
            weakref.finalize(self, _end_threads, calls, alive)
            self._calls, self._alive, self._process = calls, alive, process


def _work_off(calls: SimpleQueue[Callable[[], object] | None]) -> None:
    """In each thread. What is called raises nothing."""
    while (what := calls.get()) is not None:
        what()
        del what  # nothing is kept until the next call


def _end_threads(calls: SimpleQueue[Callable[[], object] | None], count: int) -> None:
    for _ in range(count):
        calls.put(None)


class _Helper:
    """The part of one more thread in the rows of a batch."""

    def __init__(self, work: Callable[[int], None], worker: int) -> None:
        self._work, self._worker = work, worker
        self._claims = deque[str]()  # whose comes first decides whether the thread begins
        self._told = SimpleQueue[None]()
        self._over = False
        self._error: BaseException | None = None

    def run(self) -> None:
        """In the thread."""
        self._claims.append("thread")
        if self._claims[0] != "thread":
            return
        try:
            self._work(self._worker)
        except BaseException as error:
            self._error = error
        finally:
            self._over = True
            self._told.put(None)

    def wait(self) -> None:
        """Returns when the thread has ended its part. One that has not begun never will: it would wait for the rows of
        another clone, and find none of these. After an interrupt it can be called again.
        """
        self._claims.append("caller")
        if self._claims[0] == "thread":
            while not self._over:
                self._told.get()

    def check(self) -> None:
        """Raises what the rows of the thread have raised."""
        error, self._error = self._error, None  # else it and this object would hold each other
        if error is not None:
            try:
                raise error
            finally:
                del error


def _wait_for(helpers: Sequence[_Helper], rows: deque[int]) -> None:
    """Takes the rows that have not begun out, and waits for the others, even if Ctrl-C comes: they write into memory
    that the caller may free.
    """
    interrupt: KeyboardInterrupt | None = None
    while True:
        try:
            rows.clear()
            for helper in helpers:
                helper.wait()
            break
        except KeyboardInterrupt as error:
            interrupt = error
    if interrupt is not None:
        raise interrupt


class RunsRows(Infer):
    """An Infer that may run the rows of a batch one by one.

    A backend sets `_rows` when it loads, fills in the three hooks, and resets `_row_runner` where it clones, releases
    and closes.
    """

    _rows: RowRuns | None = None  # shared by clones; None where batches are never split
    _row_runner: tuple[_Runtime, RowRunner] | None = None
    _rows_placed: list[int] | None = None  # the generations of the tensors when their rows were bound

    @abstractmethod
    def _row_runner_on(self, runtime: Any) -> RowRunner:
        """What runs the rows of the tensors of this Infer on what `start` of the `RowRuns` has made."""

    @abstractmethod
    def _whole_runner(self) -> Any:
        """What `RowRunner.place()` is given for runs on all cores."""

    @abstractmethod
    def _row_error(self, error: Exception) -> Exception:
        """What is raised for an error of a `RowRunner`."""

    def _own_row_output(self, name: str, shape: tuple[int, ...]) -> None:
        """Sizes an output, for the rows to be written into it."""
        self._outputs[name].resize(shape)

    def _rows_on(self, cores: int, start: Callable[[], Any]) -> RowRuns | None:
        """What runs the rows of batches one by one on so many cores; None for a model that cannot, or has no need."""
        if cores < 2 or (self.max_batch or cores) < cores or not self._splittable:
            return None
        return RowRuns(self.model.name, cores, start)

    @property
    def _splittable(self) -> bool:
        """Whether inputs and outputs are such that rows can be bound."""
        specs = (*self.input_specs, *self.output_specs)
        names = {spec.name for spec in self.input_specs}
        return (
            bool(self.input_specs)
            and all(spec.kind == "tensor" and spec.has_free_batch for spec in specs)
            and not any(spec.name in names for spec in self.output_specs)
        )

    def runs_to_warm_up(self, count: int) -> int:
        rows = self._rows
        if rows is None or count < rows.cores or rows.settled:
            return self.warm_up_runs
        return Choice.TRIAL + 1  # the first one shows the shapes of the outputs

    def forward_rows(self) -> Mapping[str, Tensor]:
        rows = self._rows
        if rows is None or rows.failed:
            return self.forward()
        self.current()
        shapes = [self._inputs[spec.name].shape for spec in self.input_specs]
        batch = shapes[0][0]
        if batch < rows.cores or any(shape[0] != batch for shape in shapes):
            return self.forward()
        choice = rows.choice(tuple(shape[1:] for shape in shapes))
        splits, counts = choice.next_splits()
        started = perf_counter()
        if not splits or not self._run_split(rows, choice, batch):
            splits = False
            self.forward()
            choice.learn({name: tensor.shape for name, tensor in self._outputs.items()}, batch)
        if counts:
            choice.add(splits, (perf_counter() - started) / batch)
        return self._outputs_view

    def _run_split(self, rows: RowRuns, choice: Choice, batch: int) -> bool:
        """Runs the rows one by one, and what is left over after whole rounds together; whether that was possible."""
        if self._row_runner is None:
            if (runtime := rows.runtime()) is None:
                return False
            self._row_runner, self._rows_placed = (runtime, self._row_runner_on(runtime.value)), None
        runtime, runner = self._row_runner
        split = batch - batch % rows.cores
        if self._rows_placed != self._generations():
            self._place_rows(runner, choice, batch, split)
        try:
            for tensor in self._inputs.values():
                tensor.host_ptr()
            for tensor in self._outputs.values():
                tensor.host_ptr(read=False, write=True)
            rows.side_by_side(split, runner.run_row)
            if split < batch:
                self._bound = None  # the request of a backend may be bound to these rows now
                runner.run_rest()
        except RowShapesError:
            _log.debug("%s: batches are not split, because shapes depend on the data", self.model.name)
            choice.refuse()
            self._row_runner = None
            return False
        except BaseException as error:
            self._row_runner = self._bound = None
            rows.drop(runtime)
            if isinstance(error, Exception):
                raise self._row_error(error) from None
            raise
        return True

    def _place_rows(self, runner: RowRunner, choice: Choice, batch: int, split: int) -> None:
        for spec in self.input_specs:
            shape = self._inputs[spec.name].shape
            spec.check(shape)
            spec.check_batch(shape, self.max_batch)
        assert choice.outputs is not None
        for name, shape in choice.outputs.items():
            self._own_row_output(name, (batch, *shape))
        runner.place(
            [(spec.name, self._inputs[spec.name]) for spec in self.input_specs],
            [(spec.name, self._outputs[spec.name]) for spec in self.output_specs],
            split,
            self._whole_runner(),
        )
        self._rows_placed = self._generations()
