"""Infer: one model on one backend, behind the one interface that all backends share.

A backend derives from `Infer`, fills in `_load()`, `_bind()`, `_enqueue()`, `_clone()` and `_close()`, and inherits the
checks, the tensors and the convenient call. `infersdk.testing.InferContract` is the test suite that it must pass.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from threading import Lock, RLock
from time import monotonic
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from .core import process_end
from .core.backend import BackendInfo, Declaration, Scheduling
from .core.device import Device
from .core.memory_limit import MemoryBudget, charging, tensor_nbytes
from .core.model_source import ModelLike, ModelSource
from .core.tensor import Tensor, check_apart, is_view, new_tensor
from .core.tensor_spec import TensorSpec, as_array, by_name, known_shapes
from .core.text import logger
from .errors import (
    BackendUnavailableError,
    ClosedError,
    ConfigError,
    InputError,
    InputNameError,
    InUseError,
    MemoryLimitError,
    UnsupportedModelError,
)

if TYPE_CHECKING:
    import numpy.typing as npt
    from typing_extensions import Self

    from .core.stream import Stream

__all__ = ["BackendInfo", "Declaration", "Infer", "Scheduling"]

_log = logger("infersdk.load")


class Infer(ABC):
    """A model that is ready to run. Made by `infersdk.load()`.

    The direct call::

        y = infer(x)                       # one input: an array in, a dict of arrays out
        y = infer({"images": x})["output0"]

    Without copies: fill the bound tensors, run, read::

        infer.inputs["images"].resize((4, 3, 640, 640)).numpy(writable=True)[:] = batch
        infer.forward()
        infer.outputs["output0"].numpy()   # a view, overwritten by the next forward()

    A model with inputs or outputs other than tensors of numbers or bools (strings, sequences: see `spec.kind`) supports
    only the direct call; binding tensors raises `UnsupportedModelError`. One `Infer` serves one thread at a time; a
    concurrent call raises `InUseError`. No other thread resizes its tensors during a call, which is not noticed.
    `clone()` returns another `Infer` that shares the weights or the engine.

    Attributes:
        backend: the name it was loaded under.
        device: where it runs, as a name (`"cpu"`, `"cuda:0"`).
        max_batch: the largest batch it takes; None where neither the backend nor the user sets a limit.
        model: the `ModelSource` that it was loaded from.
        input_specs, output_specs: the declared inputs and outputs, in order.
        inputs, outputs: the tensors bound to them, by name.
        metadata: the metadata of the model file, text by key.
        memory_budget: with `memory_limit`, the device memory of the model and its clones; else None.
    """

    # ---- set by a backend ----

    #: The name of the backend.
    backend: ClassVar[str] = ""
    model: ModelSource
    declaration: ClassVar[Declaration]
    #: The stream that the model runs on; None for a backend that runs on the host, or waits for the device by itself.
    stream: Stream | None = None
    #: How its runs are best scheduled.
    scheduling: Scheduling = Scheduling()
    #: For the log: `"built"` from the model's file, `"cached"`, `"prebuilt"` (an engine file), or `""` for no line.
    _origin: str = "built"
    #: With `backend="auto"`, the measured candidates: an `infersdk.loading.auto.Selection`; else None.
    selection: Any = None
    _released = False

    # ---- abstract methods of a backend, named after the public methods that call them ----

    @abstractmethod
    def _load(self) -> None:
        """Reads the model; sets `input_specs`, `output_specs`, `metadata`. Strict about device and precision."""

    @abstractmethod
    def _bind(self) -> None:
        """Sizes the outputs and gives the runtime all tensors. Called before a run if shapes or addresses changed."""

    @abstractmethod
    def _enqueue(self) -> None:
        """Runs on the bound tensors: brings the inputs up to date, runs or queues the run, marks the outputs new."""

    @abstractmethod
    def _clone(self, twin: Self) -> None:
        """Gives `twin`, which has all attributes of this model, what two of them cannot share."""

    @abstractmethod
    def _close(self) -> None:
        """Frees the resources of the runtime. Called once."""

    @property
    @abstractmethod
    def precision(self) -> str:
        """What most layers really compute in: `"fp32"`, `"fp16"`, `"bf16"`, `"int8"`; `"unknown"` if it is hidden."""

    # ---- optional methods of a backend ----

    def _wait(self) -> None:
        """Waits for what `_enqueue()` queued, and raises InferenceError if it failed."""
        if self.stream is not None:
            self.stream.synchronize()

    def _call(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Runs a model that cannot be bound: a value for each input in, the outputs by name out, the caller's to keep.

        Only a backend whose specs have a `kind` of their own needs it.
        """
        raise NotImplementedError(f"{type(self).__name__} has specs that no tensor can hold, but no _call()")

    @property
    def layer_precisions(self) -> Mapping[str, int]:
        """How many of the layers that carry the work (convolutions, matrix products, ...) run in each precision.

        A runtime may have fused, split or dropped layers of the file. Empty where the backend cannot tell.
        """
        return MappingProxyType({})

    @property
    def _has_free_rows(self) -> bool:
        """Whether every input and output is a tensor with a free batch in front."""
        specs = (*self.input_specs, *self.output_specs)
        return bool(self.input_specs) and all(spec.kind == "tensor" and spec.has_free_batch for spec in specs)

    def _instance_needs(self) -> dict[str, int]:
        """Bytes on the device that an instance takes, by purpose, as far as they are known before a run."""
        specs = (*self.input_specs, *self.output_specs)
        return {"inputs and outputs": sum(tensor_nbytes(spec, self.max_batch) for spec in specs)}

    def _clone_for_one_core(self, twin: Self) -> None:
        """As `_clone()`, for a twin that runs on one core. Only a backend whose `scheduling` has `one_core_clones`
        needs it."""
        raise NotImplementedError(f"{type(self).__name__} has no clones for one core")

    def _release(self) -> None:
        """Frees the resources of the runtime, and keeps the source of the model to load it again."""
        raise UnsupportedModelError(
            f"a {type(self).__name__} cannot be released; close() it, and load the model again when it is needed"
        )

    def _restore(self) -> None:
        """Takes the runtime up again after `_release()`. The tensors are created again afterwards."""
        raise NotImplementedError(f"{type(self).__name__} has _release(), but no _restore()")

    def _forget(self) -> None:
        """Frees what clones and `_restore()` would need. Called once by `close()`, also if the model is released."""
        self.model = self.model.forget()

    # ---- loading ----

    def __init__(
        self,
        model: ModelLike,
        *,
        device: Device | str | None = None,
        precision: str | None = None,
        max_batch: int | None = None,
        options: Any = None,
        custom_ops: Any = None,
    ) -> None:
        self._closed = True  # until loading is complete
        self._in_use = process_end.new_run_lock()  # The running call holds it.
        self._closing, self._restoring = RLock(), RLock()  # A thread takes them before and after `_in_use`.
        self._side_by_side: list[None] = []  # an entry for each call of `SideBySide`
        self._held: list[Any] = []  # the blocks of the bound tensors
        self.custom_ops = custom_ops  # the `OperatorSet` of the model, or None
        self._inputs: dict[str, Tensor] = {}
        self._outputs: dict[str, Tensor] = {}
        self._lent: set[str] = set()  # names whose tensors belong to the user
        self._bound: list[int] | None = None  # the generations of the tensors when they were bound
        self._unbindable: TensorSpec | None = None  # the first input or output that no tensor can hold
        self.model = ModelSource.of(model)
        self._device = device if isinstance(device, Device) else Device.parse(device)
        self._requested_precision = precision
        self.max_batch = max_batch
        self.options: Any = options if options is not None else self.declaration.options()
        self.input_specs: tuple[TensorSpec, ...] = ()
        self.output_specs: tuple[TensorSpec, ...] = ()
        self.metadata: Mapping[str, str] = MappingProxyType({})
        self.model.check_format(self.declaration.formats, self.backend)
        self.memory_budget = MemoryBudget.of(self.options, self._device, self.model.name)
        started = monotonic()
        with self._using(), charging(self.memory_budget):
            self._load()
            try:
                _check_max_batch(self)
                self._create_tensors()
            except BaseException:
                self._close()
                self._forget()
                raise
        self._closed = False
        _log_load(self, monotonic() - started)

    # ---- the interface ----

    @property
    def device(self) -> str:
        return str(self._device)

    @property
    def active_backend(self) -> str:
        """The name of the backend that serves now; another one than `backend` only with `while_building`."""
        return self.backend

    def current(self) -> Infer:
        """The Infer that serves from now on: this one, unless it was loaded with `while_building`.

        Code that prepares something for an Infer (streams, addresses, clones) calls this between runs, and prepares it
        again when the result is another object.

        Raises:
            ClosedError: it is closed.
        """
        self._check_open()
        return self

    @property
    def inputs(self) -> Mapping[str, Tensor]:
        if self._unbindable is not None or self._released:
            self._check_bindable()
            self._check_open()
        return self._inputs_view

    @property
    def outputs(self) -> Mapping[str, Tensor]:
        if self._unbindable is not None or self._released:
            self._check_bindable()
            self._check_open()
        return self._outputs_view

    def bind(self, name: str, tensor: Tensor) -> None:
        """Makes `tensor` the input or output `name` in place of the model's own, without a copy.

        It stays the caller's: `close()` leaves it alone.

        Raises:
            InputNameError, ShapeError, DTypeError, InputError: it does not fit, or is no Tensor.
            UnsupportedModelError: the model has an input or output that no tensor can hold.
            InUseError: another thread runs it.
        """
        with self._using():
            self._check_open()
            self._set_tensor(name, tensor)

    def _set_tensor(self, name: str, tensor: Tensor) -> None:
        self._check_bindable()
        if not isinstance(tensor, Tensor):
            raise InputError(f"a {type(tensor).__name__} cannot be bound to {name!r}; wrap it: Tensor.wrap(array)")
        for side, specs, tensors in (
            ("input", self.input_specs, self._inputs),
            ("output", self.output_specs, self._outputs),
        ):
            for spec in specs:
                if spec.name == name:
                    spec.check(tensor.shape, tensor.dtype, side)
                    self._bound = None
                    self._lent.add(name)
                    tensors[name] = tensor
                    return
        raise InputNameError(f"no input or output {name!r}; there are {[*self._inputs, *self._outputs]}")

    def forward(self) -> Mapping[str, Tensor]:
        """Runs the model on the input tensors; returns `outputs`.

        Raises:
            ShapeError: an input was given a shape that the model does not take.
            InferenceError: the runtime failed; the Infer stays usable.
            InputError: the tensor of an output is bound to another name, too, or shares memory with another tensor.
            InUseError: another thread runs it.
        """
        with self._using():
            self._begin_run()
            self._wait()
        return self._outputs_view

    def enqueue(self) -> Mapping[str, Tensor]:
        """As `forward()`, but where the backend has a `stream` the run is queued there, and not waited for.

        Reading an output waits for the run. So does `wait()`, which also raises the error of a run that failed.
        """
        with self._using():
            self._begin_run()
        return self._outputs_view

    def _begin_run(self) -> None:
        """Checks and binds what changed since the last run, and runs or queues the run."""
        if self._closed:
            self._check_open()
        if self._bound != self._generations():  # so it is after a release, too
            self._rebind()
        self._enqueue()

    def wait(self) -> None:
        """Waits for the runs that were queued.

        Raises:
            InferenceError: a run failed; the Infer stays usable.
            InUseError: another thread runs it.
        """
        with self._using():
            self._check_open()
            self._wait()

    def __call__(self, x: npt.ArrayLike | Mapping[str, npt.ArrayLike]) -> dict[str, npt.NDArray[Any]]:
        """Copies `x` in, runs, and copies the outputs out: arrays that are the caller's to keep.

        Args:
            x: an array for a model of one input, or one per input name. Shape and type must be the model's own.
                Strings and sequences are passed to the runtime, and returned by it, unchanged: arrays of str, lists of
                arrays.

        Raises:
            InputError: a value is no array, or the tensors of two inputs share memory.
            InUseError: another thread runs it.
        """
        with self._using():
            return self._run_arrays(x)

    def _run_arrays(self, x: npt.ArrayLike | Mapping[str, npt.ArrayLike]) -> dict[str, npt.NDArray[Any]]:
        self._check_open()
        given = by_name(x, self.input_specs)
        if self._unbindable is not None:
            return self._call_unbound(given)
        arrays = []
        for spec in self.input_specs:
            array = as_array(given[spec.name], spec.name)
            spec.check(array.shape, array.dtype)
            # It may be in the memory of another input, which is written before it.
            arrays.append(array.copy() if len(given) > 1 and (self._lent or is_view(array)) else array)
        if self._lent and len(arrays) > 1:
            for spec, array in zip(self.input_specs, arrays, strict=True):
                self._inputs[spec.name].resize(array.shape)
            check_apart(self._inputs, {}, self._lent, written=True)
        for spec, array in zip(self.input_specs, arrays, strict=True):
            np.copyto(self._inputs[spec.name].resize(array.shape).numpy(writable=True), array)
        self._begin_run()
        self._wait()
        with self.scheduling.stream_guard:
            return {name: tensor.numpy().copy() for name, tensor in self._outputs.items()}

    def clone(self, *, one_core: bool = False) -> Self:
        """A second Infer for another thread, with tensors of its own, over the same weights or engine.

        Args:
            one_core: it runs on one core of the processor, for several runs side by side. Such clones share a session
                or compiled model with each other, which the first one loads. Only where `scheduling` has
                `one_core_clones`.
        """
        with self._closing:  # no other thread closes, releases or takes it up
            self._check_open()
            twin = type(self).__new__(type(self))
            twin.__dict__.update(self.__dict__)
            twin._closed = True
            twin._in_use, twin._held = process_end.new_run_lock(), []
            twin._closing, twin._restoring = RLock(), RLock()
            if self.memory_budget is not None:
                self.memory_budget.require(self._instance_needs(), "close another clone, use a smaller max_batch")
            with twin._using(), charging(self.memory_budget):
                (self._clone_for_one_core if one_core else self._clone)(twin)
                twin._create_tensors()
            twin._closed = False
        return twin

    @property
    def is_released(self) -> bool:
        """Whether the memory was given back; the next use takes it again."""
        return self._released

    def release(self) -> None:
        """Gives back the memory of the runtime and of the tensors; the next use takes it again, in milliseconds.

        The source of the model stays in host memory, or is its file. The bound tensors are closed, apart from those
        that are the caller's (`bind()`), and their contents are lost. What clones share is freed when all of them are
        released or closed. Called while no run is under way; a second call does nothing.

        Raises:
            UnsupportedModelError: the backend cannot do this.
            ModelError: the file has changed since it was loaded, or cannot be read.
            ClosedError: it is closed.
            InUseError: another thread runs it.
        """
        with self._closing, self._using(), self._restoring:
            if self._released and not self._closed:
                return
            self._check_open()
            self._wait()
            self._release()
            self._released, self._bound = True, None
            self._close_tensors()

    def close(self) -> None:
        """Frees the model, its tensors and the runtime. A second call does nothing. Any number of threads may call it.

        Raises:
            InUseError: another thread runs it.
        """
        with self._closing:
            if not self._closed:
                with self._using(), self._restoring:
                    self._closed = True
                    if not self._released:
                        self._close()
                    self._forget()
                    self._close_tensors()

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __reduce__(self) -> Any:  # else copy.copy() would give two that close one session
        raise TypeError(
            f"a {type(self).__name__} can be neither copied nor pickled: clone() it, or load the model again"
        )

    def __repr__(self) -> str:
        state = "closed" if self._closed else "released" if self._released else f"on {self.device}"
        return f"<{type(self).__name__} {self.model.name}, {state}>"

    # ---- shared machinery ----

    def _using(self) -> Lock:
        """The lock that holds the Infer for the calling thread in a `with` block. Raises InUseError if another one has
        it.

        The handler of a signal may raise an exception after `acquire()` returns, but not between `with` and its block.
        A thread that comes between the check and the `with` runs first.
        """
        if process_end.begun:
            process_end.stop_daemon()
        if self._in_use.locked():
            raise InUseError(
                f"two threads use the {self.backend} model {self.model.name} at the same time; give each thread a "
                "clone() of its own, or submit requests to an infersdk.Pipeline"
            )
        return self._in_use

    def _check_open(self) -> None:
        """Raises ClosedError for a closed one; takes up again one that was released."""
        if self._closed:
            raise ClosedError(f"the {self.backend} model {self.model.name} was closed; load it again")
        if self._released:
            self._take_up()

    def _take_up(self) -> None:
        """The runtime and the tensors again; those of the caller are bound as they were. The next run checks these."""
        with self._restoring:
            if not self._released:  # another thread has taken it up
                return
            before = self._inputs, self._outputs, self._lent
            with charging(self.memory_budget):
                self._restore()
                try:
                    self._create_tensors()
                except MemoryLimitError:  # it stays as it was
                    self._release()
                    self._inputs, self._outputs, self._lent = before
                    raise
            self._lent = before[2]
            for tensors, old in ((self._inputs, before[0]), (self._outputs, before[1])):
                tensors.update((name, old[name]) for name in self._lent & old.keys())
            self._released = False

    def _close_tensors(self) -> None:
        self._held = []
        for name, tensor in (*self._inputs.items(), *self._outputs.items()):
            if name not in self._lent:
                tensor.close()

    def _check_bindable(self) -> None:
        if (spec := self._unbindable) is not None:
            side = "input" if spec in self.input_specs else "output"
            raise UnsupportedModelError(
                f"{side} {spec.name!r} of {self.model.name} is of type {spec.kind}, which no tensor holds; "
                "such a model is only called: infer({name: value})"
            )

    def _call_unbound(self, given: Mapping[str, Any]) -> dict[str, Any]:
        feeds = dict(given)
        for spec in self.input_specs:
            if spec.kind == "tensor":
                feeds[spec.name] = array = as_array(given[spec.name], spec.name)
                spec.check(array.shape, array.dtype)
                spec.check_batch(array.shape, self.max_batch)
            elif self.max_batch and spec.has_free_batch and given[spec.name] is not None:  # an optional one may be None
                shape = as_array(given[spec.name], spec.name).shape
                spec.check(shape)
                spec.check_batch(shape, self.max_batch)
        return self._call(feeds)

    def _create_tensors(self) -> None:
        """One tensor for each input and output, with memory reserved for a batch of `max_batch`."""
        specs = (*self.input_specs, *self.output_specs)
        self._unbindable = next((spec for spec in specs if spec.kind != "tensor"), None)
        bindable = self._unbindable is None
        self._bound = None
        self._lent = set()
        self._inputs, self._outputs = (
            {spec.name: new_tensor(spec, self._device, self.max_batch) for spec in side if bindable}
            for side in (self.input_specs, self.output_specs)
        )
        self._inputs_view = MappingProxyType(self._inputs)
        self._outputs_view = MappingProxyType(self._outputs)

    def _rebind(self) -> None:
        self._check_open()
        self._check_bindable()  # a model without tensors is never bound, so each of its runs comes here
        for spec in self.input_specs:
            shape = self._inputs[spec.name].shape
            spec.check(shape)
            spec.check_batch(shape, self.max_batch)
        check_apart(self._inputs, self._outputs, self._lent)
        with charging(self.memory_budget):
            self._bind()
        check_apart(self._inputs, self._outputs, self._lent)  # outputs may have grown
        self._bound = self._generations()
        # The runtime has the addresses of these blocks: a tensor that grows in another thread must not free them.
        self._held = [tensor._blocks() for tensors in (self._inputs, self._outputs) for tensor in tensors.values()]

    def _generations(self) -> list[int]:
        """Numbers that change with the shapes and addresses of the tensors, also of outputs that a user resized."""
        return [tensor._shared.resizes for tensors in (self._inputs, self._outputs) for tensor in tensors.values()]

    def _adopt(self, name: str, at: int, shape: tuple[int, ...], *, lender: object) -> None:
        """The runtime allocated this output at `at`, and `lender` keeps that memory alive. A user's tensor gets a copy.

        Raises:
            ShapeError: the user's tensor cannot hold it.
        """
        tensor = self._outputs[name]
        if name in self._lent:
            tensor.resize(shape).copy_from(Tensor._over(at, shape, tensor.dtype, self._device, lender=lender))
        else:
            tensor._look_at(at, shape, self._device, lender=lender)
        self._bound = self._generations()

    def _known_output_shapes(self) -> dict[str, tuple[int, ...] | None]:
        """The shape of each output where the inputs determine it, else None."""
        return known_shapes(
            self.output_specs, self.input_specs, {name: tensor.shape for name, tensor in self._inputs.items()}
        )


def _check_max_batch(infer: Infer) -> None:
    if any(spec.has_free_batch for spec in infer.input_specs):
        return
    fixed = next((spec.fixed_batch for spec in infer.input_specs if spec.fixed_batch is not None), None)
    if infer.max_batch and fixed is not None and infer.max_batch > fixed:
        raise ConfigError(
            f"max_batch={infer.max_batch}, but {infer.model.name} was made for a batch of {fixed}; export it with a "
            "free batch dimension, or leave max_batch out"
        )


def _log_load(infer: Infer, seconds: float) -> None:
    if not infer._origin or not _log.isEnabledFor(logging.INFO):
        return
    try:
        precision, layers = infer.precision, infer.layer_precisions
    except BackendUnavailableError:  # reading the precision needs a package that is not installed
        precision, layers = "unknown precision", {}
    _log.info(
        "loaded %s on %s %s, %s, %s, max_batch %s, in %.2f s, %s", infer.model.name, infer.backend,
        infer.declaration.probe().version, infer.device, precision, infer.max_batch, seconds, infer._origin,
    )  # fmt: skip
    if layers:
        counts = ", ".join(f"{count} {name}" for name, count in layers.items() if count)
        _log.debug("%s: the layers with the most work run in: %s", infer.model.name, counts)
