"""Serving on one backend while another still builds, and going over to it when it is ready.

::

    infer = load("yolov5s.onnx", backend="tensorrt", max_batch=8, while_building="onnxruntime")
    infer(x)                        # answered at once, by ONNX Runtime
    infer.active_backend            # "onnxruntime" now, "tensorrt" once the engine is there

The change is made between two runs, by the thread that runs: a run that has begun ends where it began. The tensors go
along: what is bound stays bound, and keeps what it holds. Each clone goes over by itself.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from .errors import DeviceUnavailableError, InferenceError, UnsupportedModelError
from .infer import BackendInfo, Infer
from .stream import device_info

if TYPE_CHECKING:
    import os

    import msgspec

    from .device import Device

__all__ = ["HotSwap", "check_device"]

_log = logging.getLogger("infersdk.hot_swap")

#: Seconds that the end of the process waits for builds that were told to stop: a step of a build may take a while.
_PATIENCE = 10.0


class _Stopped(Exception):  # noqa: N818 - it is none
    """Nobody waits for the build any more."""


class _Seat:
    """Where one HotSwap finds the Infer that was made for it."""

    model: Infer | None = None


class _Building:
    """A model that is loaded on a thread of its own, for all who wait for it: the HotSwap and its clones.

    It knows their seats and not them, so that one that nobody holds any more can go, and the build with it.
    """

    def __init__(self, make: Callable[[Callable[[], None]], Infer], what: str) -> None:
        """`make` loads the model; it may call what it is given now and then, which raises when it shall stop."""
        self.done = threading.Event()
        self.error: Exception | None = None
        self.what = what
        self._make = make
        self._warned = False
        self._stop = threading.Event()
        self._lock = threading.RLock()  # a finalizer may come by in the thread that holds it
        self._seats: list[_Seat] = []

    def start(self) -> None:
        self.thread = threading.Thread(target=self._work, name="infersdk-hot_swap", daemon=True)
        _running.add(self)
        self.thread.start()

    def join(self, other: _Seat | None = None) -> _Seat:
        """A seat for one more; `other` is the seat of the one that it is cloned from."""
        seat = _Seat()
        with self._lock:
            if other is not None and other.model is not None:  # ready, and never run yet
                seat.model = other.model.clone()
            self._seats.append(seat)
        return seat

    def leave(self, seat: _Seat) -> None:
        """Gives the seat up, and what lies there; the last one to leave stops the build."""
        with self._lock:
            if seat in self._seats:
                self._seats.remove(seat)
            model, seat.model = seat.model, None
            if not self._seats:
                self._stop.set()
        if model is not None:
            model.close()

    def take(self, seat: _Seat) -> Infer:
        with self._lock:
            model, seat.model = seat.model, None
            self._seats.remove(seat)
        assert model is not None
        return model

    def stop(self) -> None:
        self._stop.set()

    def warn(self) -> None:
        """Tells of a failure, once, in a thread of the user's."""
        with self._lock:
            told, self._warned = self._warned, True
        if not told:
            warnings.warn(f"{self.what} failed, and the model stays where it is: {self.error}", RuntimeWarning, 4)

    def fail(self, error: Exception) -> None:
        self.error = error
        _log.error("%s failed: %s: %s", self.what, type(error).__name__, error)

    def _check(self) -> None:
        if self._stop.is_set():
            raise _Stopped

    def _work(self) -> None:
        try:
            self._deal(self._make(self._check))
        except Exception as error:
            if not self._stop.is_set():
                self.fail(error)
        finally:
            self._make = _nothing  # it holds the options, and with them whatever the user put there
            self.done.set()
            _running.discard(self)

    def _deal(self, model: Infer) -> None:
        """One for each: clones are made here, where nobody waits for them and nothing runs yet."""
        with self._lock:
            made: list[Infer] = [model]
            try:
                made += [model.clone() for _ in self._seats[1:]]
            except BaseException:
                for one in made:
                    one.close()
                raise
            for seat, one in zip(self._seats, made, strict=False):
                seat.model = one
            if not self._seats:
                model.close()


def _nothing(check: Callable[[], None]) -> Infer:
    raise _Stopped


_running: set[_Building] = set()


@atexit.register
def _stop_all() -> None:
    """A daemon thread that is inside a runtime when the interpreter goes down may take the process with it."""
    builds = list(_running)
    for build in builds:
        build.stop()
    deadline = time.monotonic() + _PATIENCE
    for build in builds:
        build.thread.join(max(0.0, deadline - time.monotonic()))


def check_device(kind: type[Infer], name: str, device: Device) -> None:
    """Raises DeviceUnavailableError if it can be known without loading anything that the device is not there."""
    there = kind.probe().devices
    if str(device) not in there and not (device.ordinal >= 0 and device.kind in there):
        raise DeviceUnavailableError(f"device {str(device)!r}: backend {name!r} has {', '.join(there) or 'none'} here")
    if device.ordinal >= 0:
        device_info(device)


class HotSwap(Infer):
    """A model that runs on a stand-in until the backend that was asked for is ready. Made by
    `load(..., while_building=...)`.

    `device`, `precision`, `max_batch`, the specs and `stream` are those of whoever serves now; `backend` is the one
    that was asked for, `active_backend` the one that serves. The tensors are made for the device that was asked for.

    Args:
        model: the model file.
        target: the class of the backend that was asked for.
        stand_in: makes the Infer that serves at first.
        device, precision, max_batch, options: for the target.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        target: type[Infer],
        stand_in: Callable[[], Infer],
        *,
        device: Device,
        precision: str | None,
        max_batch: int | None,
        options: msgspec.Struct,
    ) -> None:
        self.backend = target.backend  # type: ignore[misc]
        self._target, self._stand_in = target, stand_in
        self._asked: dict[str, Any] = {"device": device, "precision": precision, "max_batch": max_batch}
        self._pending = False
        self._guard = threading.Lock()  # another thread may clone it while it changes
        super().__init__(model, device=device, precision=precision, max_batch=max_batch, options=options)

    @classmethod
    def probe(cls) -> BackendInfo:
        """It is no backend by itself."""
        return BackendInfo("", ())

    # ---- who serves ----

    @property
    def active(self) -> Infer:
        return self._active

    @property
    def change_due(self) -> bool:
        return self._pending and (self._seat.model is not None or self._building.error is not None)

    @property
    def building_error(self) -> Exception | None:
        """Why the backend that was asked for cannot serve; None while it builds, and when it does."""
        return self._building.error

    def wait_ready(self, timeout: float | None = None) -> bool:
        """Waits for the end of the build, `timeout` seconds at most; whether it is there. The next run is on it.

        Raises:
            InferSDKError: whatever made the build fail, as `building_error`.
            ClosedError: it is closed.
        """
        self._check_open()
        if not self._building.done.wait(timeout):
            return False
        if self._building.error is not None:
            raise self._building.error
        return True

    def change(self) -> None:
        if not self._pending:
            return
        with self._guard:
            if self._building.error is not None:
                self._settle()
            elif self._seat.model is not None:
                self._go_over()
        if self._building.error is not None:
            self._building.warn()

    def _go_over(self) -> None:
        old, new = self._active, self._building.take(self._seat)
        try:
            _check_same(old, new)
        except UnsupportedModelError as error:
            new.close()
            self._building.fail(error)
            self._settle()
            return
        with contextlib.suppress(InferenceError):  # whoever reads the outputs is told
            old._wait()
        for name, tensor in self._outputs.items():
            if name not in self._lent:
                tensor._take_home(self._device)
        new._take_tensors(self)
        old._lose_tensors()
        self._serve(new)
        self.generation += 1
        self._settle()
        old.close()
        _log.info("%s runs on %s now", self.model.name, self.backend)

    def _settle(self) -> None:
        """There is nothing to wait for any more."""
        self._pending = False
        self._building.leave(self._seat)

    def _serve(self, infer: Infer) -> None:
        self._active = infer
        self.input_specs, self.output_specs = infer.input_specs, infer.output_specs
        self.metadata, self.max_batch, self.stream = infer.metadata, infer.max_batch, infer.stream
        self._bound = None

    def _wait_for(self, building: _Building, other: _Seat | None = None) -> None:
        self._building, self._seat, self._pending = building, building.join(other), True
        weakref.finalize(self, building.leave, self._seat).atexit = False

    # ---- the hooks ----

    def _load(self) -> None:
        self._serve(self._stand_in())
        self._wait_for(_Building(self._maker(), f"loading {self.model.name} on {self.backend}"))
        self._building.start()

    def _maker(self) -> Callable[[Callable[[], None]], Infer]:
        target, model, asked, options = self._target, self.model, self._asked, self.options

        def make(check: Callable[[], None]) -> Infer:
            check()
            return target(model, **asked, options=_stoppable(options, check))

        return make

    def _create_tensors(self) -> None:
        super()._create_tensors()
        self._active._take_tensors(self)

    def _bind(self) -> None:
        self._active._bound = None

    def _run(self) -> None:
        self._active.enqueue()
        self._bound = self._generations()  # it may have let outputs look elsewhere

    def _wait(self) -> None:
        self._active._wait()

    def _call(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        return self._active._call(feeds)

    def _share(self, source: HotSwap) -> None:
        self._pending, self._guard = False, threading.Lock()
        with source._guard:
            self._serve(source._active.clone())
            if source._pending:
                self._wait_for(source._building, source._seat)

    def _close(self) -> None:
        if self._pending:
            self._settle()
        self._active._lose_tensors()
        self._active.close()

    # ---- the interface: each way to a run comes by here first ----

    def enqueue(self) -> Mapping[str, Any]:
        if self._pending:
            self._check_open()
            self.change()
        return super().enqueue()

    def __call__(self, x: Any) -> dict[str, Any]:
        if self._pending:
            self._check_open()
            self.change()
        return super().__call__(x)

    @property
    def device(self) -> str:
        return self._active.device

    @property
    def concurrency(self) -> int:
        """That of who serves now; on a device, where runs overlap, what will serve there decides."""
        return max(self._active.concurrency, 3 if self._asked["device"].ordinal >= 0 else 1)

    @property
    def serializes_runs(self) -> bool:
        return self._active.serializes_runs or self._asked["device"].ordinal >= 0

    def bucket_batch(self, n: int) -> int:
        return self._active.bucket_batch(n)

    @property
    def precision(self) -> str:
        return self._active.precision


def _check_same(old: Infer, new: Infer) -> None:
    """The tensors that are bound have to fit the other, too."""
    for side in ("input_specs", "output_specs"):
        ours = {spec.name: (spec.dtype, len(spec.shape), spec.kind) for spec in getattr(old, side)}
        theirs = {spec.name: (spec.dtype, len(spec.shape), spec.kind) for spec in getattr(new, side)}
        if ours != theirs:
            told = "; ".join(", ".join(map(str, getattr(one, side))) for one in (old, new))
            what = side.replace("_specs", "s")
            raise UnsupportedModelError(
                f"the {what} of {old.model.name} on {old.backend} and on {new.backend} are not the same ({told}): "
                "load it without while_building, or with options that leave them as they are in the model"
            )


def _stoppable(options: Any, check: Callable[[], None]) -> Any:
    """The same options; where the backend tells of its progress, that can end it."""
    if "progress" not in getattr(options, "__struct_fields__", ()):
        return options
    import msgspec

    told = options.progress

    def progress(phase: str, fraction: float) -> None:
        check()
        if told is not None:
            told(phase, fraction)

    return msgspec.structs.replace(options, progress=progress)
