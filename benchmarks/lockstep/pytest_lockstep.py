"""A pytest plugin: the benchmarks of one state of the project, measured only while this process is let on.

`benchmarks/compare_states.py` starts two such processes, one a state, and lets them measure in alternation. The plugin
runs inside either state, so it imports nothing of the project. It replaces pytest-benchmark's `benchmark` fixture, and
wraps the functions of a benchmark file that return a rate or take a while (`WRAPPED`).

The protocol is one JSON object a line, over two inherited pipes (`LOCKSTEP_IN`, `LOCKSTEP_OUT`):
`{"tests": [...]}` out and `{"run": [...]}` in, once; then `{"wait": true}` out and an empty object in for each turn,
and `{"figure": ...}` and `{"outcome": ...}` out in between. A process works only from the answer to a `wait` until
it waits again.
"""

from __future__ import annotations

import inspect
import json
import os
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Calls of which one is shorter than this are timed several at a time, in seconds.
SHORTEST = 100e-6


class Wrapped(NamedTuple):
    """A function of a benchmark file that is a measurement of its own.

    Attributes:
        rate: whether it returns a rate; otherwise its seconds are the figure.
        count: calls with another `count` are warm-ups, and are not kept.
        reduced: the `count` that it is called with instead.
    """

    rate: bool
    count: int | None = None
    reduced: int | None = None


WRAPPED: dict[str, dict[str, Wrapped]] = {
    "bench_pipeline.py": {
        "plain_loop": Wrapped(rate=True, count=256, reduced=128),
        "submitted": Wrapped(rate=True, count=256, reduced=128),
        "in_threads": Wrapped(rate=False),
    },
    "bench_video.py": {"plain": Wrapped(rate=False), "main": Wrapped(rate=False)},
    "bench_against_others.py": {"ours": Wrapped(rate=True)},
}
#: Constants of a benchmark file that are smaller here: rounds come from the turns.
CONSTANTS: dict[str, dict[str, Any]] = {"bench_video.py": {"ROUNDS": 3}}


class Link:
    """The pipes to `compare_states.py`."""

    def __init__(self) -> None:
        self._in = os.fdopen(int(os.environ["LOCKSTEP_IN"]), encoding="utf-8")
        self._out = os.fdopen(int(os.environ["LOCKSTEP_OUT"]), "w", encoding="utf-8")
        self.slices = int(os.environ["LOCKSTEP_SLICES"])
        self.seconds = float(os.environ["LOCKSTEP_SECONDS"])
        self.test = ""
        self._measuring = False

    def send(self, message: dict[str, Any]) -> None:
        print(json.dumps(message), file=self._out, flush=True)

    def receive(self) -> dict[str, Any]:
        line = self._in.readline()
        if not line:
            pytest.exit("compare_states.py has ended", 3)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def wait_for_turn(self) -> None:
        self.send({"wait": True})
        self.receive()

    def figure(self, name: str, value: float, *, rate: bool) -> None:
        self.send({"test": self.test, "figure": name, "value": value, "rate": rate})

    # ---- the two kinds of measurement ----

    def time(self, call: Callable[[], Any]) -> Any:
        """Times `call` in each turn: the median of what fits into a slice. Returns what it returned first."""
        result = call()
        start = perf_counter()
        call()
        inner = max(1, round(SHORTEST / max(perf_counter() - start, 1e-9)))
        for _ in range(self.slices):
            self.wait_for_turn()
            until = perf_counter() + 0.2 * self.seconds
            call()  # the caches are the other process's
            while perf_counter() < until:
                call()
            times: list[float] = []
            until = perf_counter() + self.seconds
            while perf_counter() < until or len(times) < 3:
                start = perf_counter()
                for _ in range(inner):
                    call()
                times.append((perf_counter() - start) / inner)
            self.figure("time", median(times), rate=False)
        return result

    def wrap(self, name: str, function: Callable[..., Any], how: Wrapped) -> Callable[..., Any]:
        """`function`, whose every call is one turn. A call within another's is a part of that."""
        signature = inspect.signature(function)

        def call(*args: Any, **kwargs: Any) -> Any:
            if self._measuring:
                return function(*args, **kwargs)
            bound = signature.bind(*args, **kwargs)
            kept = how.count is None or bound.arguments.get("count") == how.count
            if kept and how.reduced is not None:
                bound.arguments["count"] = how.reduced
            self.wait_for_turn()
            self._measuring, start = True, perf_counter()
            try:
                result = function(*bound.args, **bound.kwargs)
            finally:
                self._measuring = False
            if kept:
                self.figure(name, result if how.rate else perf_counter() - start, rate=how.rate)
            return result

        return call


class Benchmark:
    """What benchmark files use of pytest-benchmark's fixture."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self.group: str | None = None
        self.extra_info: dict[str, Any] = {}

    def __call__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return self._link.time(lambda: function(*args, **kwargs))

    def pedantic(
        self, function: Callable[..., Any], args: Any = (), kwargs: dict[str, Any] | None = None, **_: int
    ) -> Any:
        """How often it is called the turns say, not `rounds`."""
        return self(function, *args, **(kwargs or {}))


class Plugin:
    def __init__(self) -> None:
        self.link = Link()

    @pytest.fixture
    def benchmark(self) -> Benchmark:
        return Benchmark(self.link)

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        names = [_name(item) for item in items]
        self.link.send({"tests": names})
        order = {name: place for place, name in enumerate(self.link.receive()["run"])}
        chosen = sorted((item for item in items if _name(item) in order), key=lambda item: order[_name(item)])
        config.hook.pytest_deselected(items=[item for item in items if _name(item) not in order])
        items[:] = chosen
        for module in {item.module for item in items if isinstance(item, pytest.Function)}:
            file = os.path.basename(module.__file__)
            for name, value in CONSTANTS.get(file, {}).items():
                setattr(module, name, value)
            for name, how in WRAPPED.get(file, {}).items():
                setattr(module, name, self.link.wrap(name, getattr(module, name), how))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.link.test = _name(item)
        self.link.wait_for_turn()
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr or "")
            claims = [json.loads(str(value)) for name, value in report.user_properties if name == "claim"]
            self.link.send({
                "test": self.link.test, "outcome": report.outcome, "reason": text[-2000:],
                "printed": report.capstdout, "claims": claims,
            })  # fmt: skip


def _name(item: pytest.Item) -> str:
    return f"{item.path.name}::{item.name}"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "benchmark(group): as of pytest-benchmark")
    config.pluginmanager.register(Plugin(), "lockstep-turns")
