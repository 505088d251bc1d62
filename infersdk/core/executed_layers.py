"""The layers that a runtime makes of a model, as a backend reports them.

A backend that can report them is a `ReportsLayers`. `infersdk.layers` puts the layers of several backends side by side,
over the nodes of the original model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Integral
from time import perf_counter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from ..errors import ConfigError

if TYPE_CHECKING:
    from .model_source import ModelSource

__all__ = [
    "ExecutedLayer", "LayerProfile", "LayerTensor", "ListsBuiltLayers", "ReportsLayers", "Role", "Span", "check_runs",
    "seconds_of",
]  # fmt: skip

#: The purpose of a layer: it computes; it brings a tensor into another format, type or memory; it waits for another
#: stream.
Role = Literal["compute", "reformat", "synchronise"]


@dataclass(frozen=True)
class LayerTensor:
    """A tensor that a layer reads or writes.

    Attributes:
        name: the runtime's own; where the runtime kept it, the name of a value of the original model.
        shape: None where the runtime does not report it.
        dtype: the element type in the runtime's words; empty where it is not reported.
        layout: how the elements lie in memory, in the runtime's words (`"acdb"`, `"NCHWc"`); empty where it is not
            reported.
    """

    name: str
    shape: tuple[int, ...] | None = None
    dtype: str = ""
    layout: str = ""


@dataclass(frozen=True)
class ExecutedLayer:
    """A layer that the runtime executes.

    Attributes:
        name: the runtime's own; each layer has another one.
        kind: the operator or type of layer, in the runtime's words.
        role: see `Role`.
        inputs, outputs: the tensors that it reads and writes, without weights.
        sources: names that the runtime reports for the nodes, or the values, of the model that it came from. Names that
            the runtime made up may be among them.
        kernel: the implementation that was chosen; empty where it is hidden.
        precision: of the computation: `"fp32"`, `"fp16"`, `"bf16"`, `"int8"`, or an integer type; empty where it is
            hidden.
        device: where it runs (`"cpu"`, `"cuda:0"`); empty where it has not run.
        seconds: the mean time of a run; None where it was not timed.
        weight_bytes: the size of its constants; None where it is not reported.
        output_bytes: the size of its outputs; None where it is not reported.
    """

    name: str
    kind: str
    role: Role = "compute"
    inputs: tuple[LayerTensor, ...] = ()
    outputs: tuple[LayerTensor, ...] = ()
    sources: tuple[str, ...] = ()
    kernel: str = ""
    precision: str = ""
    device: str = ""
    seconds: float | None = None
    weight_bytes: int | None = None
    output_bytes: int | None = None


@dataclass(frozen=True)
class Span:
    """When a layer ran, in one of the runs: seconds since the run began, seconds that it took, and the thread."""

    layer: str
    start: float
    seconds: float
    thread: int = 0


@dataclass(frozen=True)
class LayerProfile:
    """The layers of a model in the order in which they run, and how they were timed.

    Attributes:
        layers: see `ExecutedLayer`.
        run_seconds: the wall time of each run that was timed; empty where nothing ran.
        timing: how the times of the layers were taken, in a sentence.
        spans: the last run, where the runtime reports when each layer ran.
        memory: bytes by purpose, as far as the runtime reports them.
    """

    layers: tuple[ExecutedLayer, ...]
    run_seconds: tuple[float, ...] = ()
    timing: str = ""
    spans: tuple[Span, ...] = ()
    memory: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))


def check_runs(runs: int) -> None:
    """Raises ConfigError unless `runs` is a number of runs to time."""
    if not isinstance(runs, Integral) or runs < 1:
        raise ConfigError(f"runs is a whole number from 1, not {runs!r}")


def seconds_of(work: Callable[[], Any], runs: int) -> tuple[float, ...]:
    """The wall time of each of some calls. Raises ConfigError as `check_runs()`."""
    check_runs(runs)
    result = []
    for _ in range(runs):
        start = perf_counter()
        work()
        result.append(perf_counter() - start)
    return tuple(result)


@runtime_checkable
class ReportsLayers(Protocol):
    """A backend that reports its layers, for a model that was loaded with the option `profiling=True`."""

    def profile_layers(self, runs: int) -> LayerProfile:
        """Runs the model on the content of its inputs, `runs` times, and reports its layers.

        Raises:
            ConfigError: it was loaded without `profiling=True`; `runs` is not a whole number from 1; or the runtime
                profiles a session once, and did, or its profile is full.
            ClosedError: it is closed.
            InferenceError: a run failed.
        """


@runtime_checkable
class ListsBuiltLayers(Protocol):
    """A backend class that lists the layers of a build, without a device to run them."""

    @classmethod
    def built_layers(
        cls, model: ModelSource, *, compute_capability: str, precision: str | None, max_batch: int | None, options: Any
    ) -> LayerProfile:
        """Builds for a GPU of that compute capability, and lists the layers, without times."""
