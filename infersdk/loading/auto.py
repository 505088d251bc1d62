"""`load(backend="auto")`: measures the backends and devices of this machine on a model, and chooses the fastest."""

from __future__ import annotations

import functools
import platform
import statistics
from collections.abc import Callable, Iterator
from importlib.metadata import distributions
from time import perf_counter
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from .. import __version__
from ..core.cache import Cache, key_of
from ..core.device import Device
from ..core.processors import available_processors
from ..core.stream import device_count, device_info, nvidia_driver
from ..core.target import Target
from ..core.text import logger, printable
from ..errors import BackendUnavailableError, InferSDKError, OutputError
from .registry import backend_class, list_backends
from .samples import random_inputs

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..core.model_source import ModelSource
    from ..core.tensor_spec import TensorSpec
    from ..infer import Infer

__all__ = ["Candidate", "Selection", "select"]

_log = logger("infersdk.load")

#: Seconds of runs for each candidate. Loading it, and building its engine, come on top.
BUDGET = 2.0
#: The length of a free axis: of an image's sides, and of any other.
_SIDE, _LENGTH = 640, 64
#: The difference of an element that is allowed, as a part of 1 + |reference|, by the requested precision.
_TOLERANCE = {None: 1e-2, "fp32": 1e-2, "fp16": 3e-2, "bf16": 1e-1, "int8": 3e-1}
#: The part of an output's elements that may differ by more, for rows that change places.
_OUTLIERS = 1e-3
_RUNTIMES = ("onnxruntime", "openvino", "tensorrt", "nvidia-")


class Candidate(msgspec.Struct, frozen=True):
    """A backend on a device.

    Attributes:
        target: its name, as `"openvino@cpu"`.
        seconds: the median of its runs; None where it does not run.
        difference: the largest difference of an element from the reference, as a part of 1 + |reference|.
        reason: why it cannot be chosen; empty where it can.
    """

    target: str
    seconds: float | None = None
    difference: float | None = None
    reason: str = ""


class Selection(msgspec.Struct, frozen=True):
    """The choice of `load(backend="auto")`.

    Attributes:
        target: the name of the fastest candidate with the right results.
        candidates: all that were tried, in the order of their times; those that cannot be chosen come last.
        cached: whether the measurement was in the cache.
    """

    target: str
    candidates: tuple[Candidate, ...]
    cached: bool = False

    @property
    def reason(self) -> str:
        """The choice and the other candidates in words."""
        return f"{self.target} is the fastest: {_listed(self.candidates)}"


def _listed(candidates: tuple[Candidate, ...]) -> str:
    return ", ".join(f"{one.target} ({one.reason or f'{(one.seconds or 0) * 1e3:.2f} ms'})" for one in candidates)


def select(source: ModelSource, load: Callable[..., Infer], given: dict[str, Any]) -> Selection:
    """Measures each backend on each device, or reads the result from the cache. A model in memory is always measured.

    Args:
        load: loads the model on a backend: `infersdk.load()`.
        given: the arguments of `load()` that the user gave, `device` and `precision` among them. A backend that does
            not take them is no candidate.

    Raises:
        BackendUnavailableError: no candidate runs with the right results; the message has all reasons.
        InferSDKError: ONNX Runtime cannot run the model on the processor, so there is no reference.
    """
    key, cache = _key(source, given), Cache()
    if key is not None and (found := cache.get(key)) is not None:
        return _logged(source, msgspec.structs.replace(msgspec.json.decode(found[0], type=Selection), cached=True))
    own = {name: given[name] for name in ("custom_ops", "max_batch") if given.get(name) is not None}
    with load(source, "onnxruntime", device="cpu", **own) as reference:
        specs, batch = reference.input_specs, given.get("max_batch")
        feeds = random_inputs(specs, batch=batch, shapes=_shapes(specs, batch or 1))
        wanted = reference(feeds)
    tolerance = _TOLERANCE[given.get("precision")]
    rest = {name: value for name, value in given.items() if name != "device"}
    measured = []
    for target, reason in _targets(given.get("device")):
        start = functools.partial(load, source, target.backend, **rest, device=target.device)
        measured.append(
            Candidate(str(target), reason=reason) if reason else _measure(target, start, feeds, wanted, tolerance)
        )
    ranked = tuple(sorted(measured, key=lambda one: (bool(one.reason), one.seconds or 0)))
    if not ranked or ranked[0].reason:
        raise BackendUnavailableError(f"backend 'auto': nothing runs {source.name} here: {_listed(ranked)}")
    result = Selection(ranked[0].target, ranked)
    if key is not None:
        try:
            cache.put(key, msgspec.json.encode(result), kind="selection", backend="auto", label=source.name)
        except OutputError as error:
            _log.warning("the choice for %s is not kept: %s", printable(source.name), error)
    return _logged(source, result)


def _logged(source: ModelSource, result: Selection) -> Selection:
    _log.info("%s, %s: %s", printable(source.name), "from the cache" if result.cached else "measured", result.reason)
    return result


def _targets(device: str | Device | None) -> Iterator[tuple[Target, str]]:
    """Each backend on `device`, or on the first device of each kind that it reports, except `auto`. With a reason for a
    backend without devices.
    """
    for name in list_backends():
        try:
            info = backend_class(name).declaration.probe()
            devices = [Device.parse(one) for one in info.devices] if device is None else []
        except Exception as error:  # a vendor's runtime may fail in any way
            yield Target(name), str(error) or type(error).__name__
            continue
        if not info.devices:
            yield Target(name), f"version {info.version} finds no device here"
        elif device is not None:
            yield Target(name, str(device)), ""
            continue
        for one in devices:
            if one.index == 0 and one.kind.rpartition(":")[2] != "auto":
                yield Target(name, str(one)), ""


def _measure(
    target: Target,
    load: Callable[[], Infer],
    feeds: dict[str, npt.NDArray[Any]],
    wanted: dict[str, npt.NDArray[Any]],
    tolerance: float,
) -> Candidate:
    try:
        with load() as infer:
            end = perf_counter() + BUDGET
            difference, reason = _compare(infer(feeds), wanted, tolerance)
            times: list[float] = []
            while not times or perf_counter() < end:
                start = perf_counter()
                infer(feeds)
                times.append(perf_counter() - start)
    except InferSDKError as error:
        return Candidate(str(target), reason=str(error))
    except Exception as error:  # a vendor's runtime may fail in any way
        return Candidate(str(target), reason=f"{type(error).__name__}: {error}")
    return Candidate(str(target), statistics.median(times), difference, reason)


def _compare(
    got: dict[str, npt.NDArray[Any]], wanted: dict[str, npt.NDArray[Any]], tolerance: float
) -> tuple[float, str]:
    """The largest difference, and why the results are not the reference's; empty where they are."""
    largest = 0.0
    for name, want in wanted.items():
        have = got[name]
        if have.shape != want.shape:
            return float("inf"), f"output {name!r} has shape {have.shape}, and {want.shape} in the reference"
        if want.dtype.kind not in "fiub" or not want.size:
            continue
        a, b = have.astype(np.float64), want.astype(np.float64)
        with np.errstate(invalid="ignore"):
            apart = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0, np.abs(a - b) / (1 + np.abs(b)))
        apart = np.nan_to_num(apart, nan=np.inf)
        largest = max(largest, float(apart.max()))
        if (outside := np.count_nonzero(apart > tolerance)) > _OUTLIERS * want.size:
            return largest, f"{outside} of {want.size} elements of output {name!r} differ by up to {apart.max():.3g}"
    return largest, ""


def _shapes(specs: tuple[TensorSpec, ...], batch: int) -> dict[str, tuple[int, ...]]:
    """Shapes for the inputs that leave more than the batch free."""
    result = {}
    for spec in specs:
        free = [axis for axis, length in enumerate(spec.shape) if not isinstance(length, int)]
        if any(axis > 0 for axis in free):
            length = _SIDE if len(spec.shape) == 4 else _LENGTH
            result[spec.name] = tuple(
                side if isinstance(side, int) else length if axis else batch for axis, side in enumerate(spec.shape)
            )
    return result


def _key(source: ModelSource, given: dict[str, Any]) -> str | None:
    """The key of a measurement: the model, the arguments, the machine and the versions. None for a model in
    memory or with weights in other files.
    """
    from ..graph.files import EXTERNAL_KEY
    from ..graph.passes import pass_keys

    if source.path is None or source.mentions(EXTERNAL_KEY):
        return None
    versions = {str(one.metadata["Name"]): one.version for one in distributions()}
    return key_of({
        "kind": "selection", "model": source.digest(), "passes": pass_keys(source.passes),
        "given": {name: repr(value) for name, value in given.items() if value is not None}, "infersdk": __version__,
        "machine": [platform.node(), platform.release(), platform.machine(), available_processors()],
        "gpus": [device_info(f"cuda:{index}")["name"] for index in range(device_count())],
        "driver": nvidia_driver(),
        "runtimes": {name: version for name, version in versions.items() if name.lower().startswith(_RUNTIMES)},
        "backends": list_backends(),
    })  # fmt: skip
