"""Serving on one backend while another still loads, and changing to it when it is ready.

::

    infer = load("yolov5s.onnx", backend="tensorrt", max_batch=8, while_building="onnxruntime")
    infer(x)                        # answered at once, by ONNX Runtime
    infer.active_backend            # "onnxruntime" now, "tensorrt" once the engine is there

The change is made between two runs, by the thread that runs: a run ends on the backend that it began on. The tensors
belong to the `HotSwap`, which binds them to the new backend: bound tensors stay bound and keep their content. Each
clone changes by itself.
"""

from __future__ import annotations

import contextlib
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any

import msgspec

from ..core.memory_limit import charging
from ..core.process_end import at_end
from ..core.stream import device_info
from ..core.text import logger, printable
from ..errors import DeviceUnavailableError, InferenceError, InputError, UnsupportedModelError
from ..infer import Infer

if TYPE_CHECKING:
    from ..core.backend import BackendOptions
    from ..core.device import Device
    from ..core.model_source import ModelLike
    from ..core.tensor import Tensor

__all__ = ["HotSwap", "check_device"]

_log = logger("infersdk.loading.hot_swap")

#: Seconds that the end of the process waits for cancelled builds: one step of a build may take a while.
_PATIENCE = 10.0


class _BackgroundLoad:
    """A model that loads on a thread of its own, for a HotSwap and its clones.

    It refers to them weakly, so that a HotSwap without other references is freed, and the load stopped with the last.
    """

    def __init__(self, load: Callable[[Callable[[], None]], Infer], what: str) -> None:
        """`load` makes the model. It may call its argument now and then, which raises when the load has to stop."""
        self.done = threading.Event()
        self.error: Exception | None = None
        self.what = what
        self.stop = threading.Event()
        self._warned = False
        self._lock = threading.RLock()  # the garbage collector may close a HotSwap in the thread that holds it
        self._waiting = weakref.WeakSet[HotSwap]()
        self.thread = threading.Thread(target=self._work, args=(load,), name="infersdk-hot_swap", daemon=True)

    def start(self) -> None:
        _running.add(self)
        self.thread.start()

    def join(self, swap: HotSwap, source: HotSwap | None = None) -> None:
        """Lets one more HotSwap wait, which may be a clone of `source`."""
        with self._lock:
            if source is not None and source._ready is not None:  # ready, and not taken yet
                swap._ready = source._ready.clone()
            self._waiting.add(swap)

    def leave(self, swap: HotSwap) -> None:
        """Lets a HotSwap wait no longer, and closes the model that it has not taken."""
        with self._lock:
            self._waiting.discard(swap)
            model, swap._ready = swap._ready, None
        if model is not None:
            model.close()

    def warn(self) -> None:
        """Warns of a failure, once, in a thread of the user's."""
        with self._lock:
            warned, self._warned = self._warned, True
        if not warned:
            text = printable(f"{self.what} failed, and the model stays where it is: {self.error}")
            warnings.warn(text, RuntimeWarning, 4)

    def fail(self, error: Exception) -> None:
        self.error = error
        _log.error("%s failed: %s: %s", self.what, type(error).__name__, error)

    def _is_needed(self) -> bool:
        return bool(self._waiting) and not self.stop.is_set()

    def _check(self) -> None:
        if not self._is_needed():
            raise CancelledError

    def _work(self, load: Callable[[Callable[[], None]], Infer]) -> None:
        try:
            self._deliver(load(self._check))
        except BaseException as error:
            if self._is_needed():
                ended = InferenceError(f"{self.what} was ended by {error!r}; load the model again")
                self.fail(error if isinstance(error, Exception) else ended)
        finally:
            self.done.set()
            _running.discard(self)

    def _deliver(self, model: Infer) -> None:
        """One model for each HotSwap. Clones are made here, so that no request waits for them."""
        with self._lock:
            models, swaps = [model], list(self._waiting)
            try:
                models += [model.clone() for _ in swaps[1:]]
            except BaseException:
                for one in models:
                    one.close()
                raise
            for swap, one in zip(swaps, models, strict=False):
                swap._ready = one
            if not swaps:
                model.close()


_running: set[_BackgroundLoad] = set()


@at_end.callback
def _stop_all() -> None:
    """A daemon thread inside a runtime may crash the process while the interpreter shuts down."""
    loads = list(_running)
    for load in loads:
        load.stop.set()
    deadline = time.monotonic() + _PATIENCE
    for load in loads:
        load.thread.join(max(0.0, deadline - time.monotonic()))


def check_device(kind: type[Infer], name: str, device: Device) -> None:
    """Raises DeviceUnavailableError if the device is missing, as far as that shows without loading anything."""
    devices = kind.declaration.probe().devices
    if str(device) not in devices and not (device.ordinal >= 0 and device.kind in devices):
        raise DeviceUnavailableError(
            f"device {str(device)!r} is not supported; {name} runs here on: {', '.join(devices) or 'no device'}"
        )
    if device.ordinal >= 0:
        device_info(device)


class HotSwap(Infer):
    """A model that runs on a stand-in until the requested backend is ready. Made by
    `load(..., while_building=...)`.

    It owns the tensors and has them bound to the Infer that serves, `current()`. `device`, `precision`, `max_batch`,
    the specs and `stream` are those of that Infer; `backend` is the requested one, `active_backend` the one
    that serves. The tensors are made for the requested device.

    Args:
        model: as `load()` takes it.
        target: the class of the requested backend.
        start: loads its Infer with the `options` that it is given.
        stand_in: loads the Infer that serves at first.
        device, options: for the target.
    """

    _ready: Infer | None = None  # the Infer of the requested backend, from the end of the build to the next run
    _origin = ""  # both models log a line of their own

    def __init__(
        self,
        model: ModelLike,
        target: type[Infer],
        start: Callable[..., Infer],
        stand_in: Callable[[], Infer],
        *,
        device: Device,
        options: BackendOptions,
    ) -> None:
        self.backend, self.declaration = target.backend, target.declaration  # type: ignore[misc]
        self._start, self._stand_in = start, stand_in
        self._pending = False
        self._guard = threading.Lock()  # another thread may clone it while it changes
        super().__init__(model, device=device, options=options)

    # ---- which Infer serves ----

    def current(self) -> Infer:
        """The Infer that serves from now on. Changes to the requested backend, if that is ready.

        The one that served before is freed as soon as nothing refers to it any more.

        Raises:
            ClosedError: it is closed.
        """
        self._check_open()
        if self._pending:
            with self._guard:
                if self._building.error is not None:
                    self._settle()
                elif self._ready is not None:
                    self._swap(self._ready)
            if self._building.error is not None:
                self._building.warn()
        return self._active

    @property
    def active_backend(self) -> str:
        return self._active.backend

    @property
    def building_error(self) -> Exception | None:
        """Why the requested backend cannot serve; None while it builds, and when it serves."""
        return self._building.error

    def wait_ready(self, timeout: float | None = None) -> bool:
        """Waits for the end of the build, `timeout` seconds at most. True when it is ready: the next run changes to it.

        Raises:
            InferSDKError: the cause of the failed build, as `building_error`.
            ClosedError: it is closed.
        """
        self._check_open()
        if not self._building.done.wait(timeout):
            return False
        if self._building.error is not None:
            raise self._building.error
        return True

    def _swap(self, new: Infer) -> None:
        old = self._active
        with contextlib.suppress(InferenceError):  # reading the outputs raises it
            old._wait()
        try:
            _check_same(old, new)
            self._bind_all(new)
        except (UnsupportedModelError, InputError) as error:
            self._building.fail(error)
        else:
            self._ready = None
            self._serve(new)
            _log.info("%s runs on %s now", self.model.name, self.backend)
        self._settle()

    def _settle(self) -> None:
        """There is nothing to wait for any more."""
        self._pending = False
        self._building.leave(self)

    def _serve(self, infer: Infer) -> None:
        self._active = infer
        self.input_specs, self.output_specs = infer.input_specs, infer.output_specs
        self.metadata, self.max_batch = infer.metadata, infer.max_batch
        self.stream = infer.stream
        on_device = self._device.ordinal >= 0  # where it will run: then as many runs as keep a device busy
        self.scheduling = msgspec.structs.replace(
            infer.scheduling,
            concurrency=max(infer.scheduling.concurrency, 3 if on_device else 1),
            serializes_runs=infer.scheduling.serializes_runs or on_device,
            one_core_clones=0,
        )

    def _bind_all(self, infer: Infer) -> None:
        for name, tensor in (*self._inputs.items(), *self._outputs.items()):
            if not self._has_run and name in self._outputs and name not in self._lent:
                tensor.resize(infer.outputs[name].shape)  # the shape is that of the stand-in's declaration
            infer.bind(name, tensor)

    # ---- the hooks: the tensors are its own, all else is the active Infer's ----

    def _load(self) -> None:
        self._serve(self._stand_in())
        self._building = _BackgroundLoad(self._loader(), f"loading {self.model.name} on {self.backend}")
        self._building.join(self)
        self._pending = True
        self._building.start()

    def _loader(self) -> Callable[[Callable[[], None]], Infer]:
        start, approve, options = self._start, self.model.approve, self.options
        budget = self.memory_budget  # of both: they hold memory at the same time

        def load(check: Callable[[], None]) -> Infer:
            check()
            with charging(budget):
                infer = start(options=_stoppable(options, check))
            try:
                if approve is not None:
                    approve(infer)
            except BaseException:
                infer.close()
                raise
            return infer

        return load

    def _create_tensors(self) -> None:
        super()._create_tensors()
        self._has_run = False  # on these tensors
        self._bind_all(self._active)

    def _set_tensor(self, name: str, tensor: Tensor) -> None:
        super()._set_tensor(name, tensor)
        self._active.bind(name, tensor)

    def _bind(self) -> None:
        pass  # the active Infer sees by itself which shapes and addresses have changed

    def _begin_run(self) -> None:
        self.current()
        self._enqueue()

    def _enqueue(self) -> None:
        self._active.enqueue()
        self._has_run = True

    def _wait(self) -> None:
        self._active.wait()

    def _call(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        return self.current()(feeds)

    def _clone(self, twin: HotSwap) -> None:
        twin._pending, twin._guard, twin._ready = False, threading.Lock(), None
        with self._guard:
            twin._serve(self._active.clone())
            if self._pending:
                self._building.join(twin, self)
                twin._pending = True

    def _close(self) -> None:
        if self._pending:
            self._settle()
        self._active.close()

    # ---- properties of the active Infer ----

    @property
    def device(self) -> str:
        return self._active.device

    @property
    def precision(self) -> str:
        return self._active.precision

    @property
    def layer_precisions(self) -> Mapping[str, int]:
        return self._active.layer_precisions


def _check_same(old: Infer, new: Infer) -> None:
    """The tensors that are bound have to fit the new one, too."""
    for side in ("input_specs", "output_specs"):
        before = {spec.name: (spec.dtype, len(spec.shape), spec.kind) for spec in getattr(old, side)}
        after = {spec.name: (spec.dtype, len(spec.shape), spec.kind) for spec in getattr(new, side)}
        if before != after:
            specs = "; ".join(", ".join(map(str, getattr(one, side))) for one in (old, new))
            raise UnsupportedModelError(
                f"the {side.replace('_specs', 's')} of {old.model.name} on {old.backend} and on {new.backend} are not "
                f"the same ({specs}): load it without while_building, or with options that leave them as they are in "
                "the model"
            )


def _stoppable(options: BackendOptions, check: Callable[[], None]) -> BackendOptions:
    """The same options; a backend that reports its progress can be stopped by that."""
    if not options.has("progress"):
        return options
    report = options.progress  # type: ignore[attr-defined]

    def progress(phase: str, fraction: float) -> None:
        check()
        if report is not None:
            report(phase, fraction)

    return msgspec.structs.replace(options, progress=progress)
