"""Infer: one model on one backend, behind the one interface that all backends share.

A backend derives from `Infer`, fills `_describe()`, `_bind()`, `_run()`, `_clone()` and `_close()`, and inherits the
checks, the tensors and the convenient call. `infersdk.testing.InferContract` is the test suite that it must pass.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from .device import Device
from .errors import (
    ClosedError,
    ConfigError,
    InputError,
    InputNameError,
    ModelFormatError,
    ModelNotFoundError,
    ShapeError,
    UnsupportedModelError,
    relative_to,
)
from .tensor import Tensor, dtype_code

if TYPE_CHECKING:
    import numpy.typing as npt
    from typing_extensions import Self

    from .stream import Stream
    from .tensor_spec import TensorSpec

__all__ = ["BackendInfo", "Infer", "model_file"]


@dataclass(frozen=True)
class BackendInfo:
    """What `infersdk doctor` tells of a backend that is there."""

    version: str
    devices: tuple[str, ...]


class Infer(ABC):
    """A model that is ready to run. Made by `infersdk.load()`.

    The quick way::

        y = infer(x)                       # one input: an array in, a dict of arrays out
        y = infer({"images": x})["output0"]

    The way without copies: fill the bound tensors, run, read::

        infer.inputs["images"].resize((4, 3, 640, 640)).numpy(writable=True)[:] = batch
        infer.forward()
        infer.outputs["output0"].numpy()   # a view, overwritten by the next forward()

    A model with an input or output that is no tensor of numbers or bools (strings, sequences: `spec.kind` tells) has
    the quick way alone; whatever would bind tensors raises `UnsupportedModelError`.

    One `Infer` serves one thread at a time; `clone()` gives a second one that shares the weights or the engine.

    Attributes:
        backend: the name it was loaded under.
        active_backend: the one that serves now: another one only with `load(..., while_building=...)`.
        device: where it runs, as a name (`"cpu"`, `"cuda:0"`).
        max_batch: the largest batch it takes; None where the backend sets no limit and none was asked for.
        input_specs, output_specs: what the model says of its inputs and outputs, in order.
        inputs, outputs: the tensors bound to them, by name.
        metadata: what the model file says of itself, text by key.
    """

    #: The first input or output that no tensor can hold: then the model is called, and never bound.
    _unbindable: TensorSpec | None = None
    #: The stream that the model runs on; None for a backend that runs on the host, or waits for the device by itself.
    stream: Stream | None = None
    #: The name of the backend; a subclass sets it.
    backend: ClassVar[str] = ""
    #: The device when none is asked for; a subclass may set another.
    default_device: ClassVar[str] = "cpu"
    #: The largest batch when none is asked for; None is no limit.
    default_max_batch: ClassVar[int | None] = None
    #: The operators of one's own that the model uses (`infersdk.custom_ops.operator_set.OperatorSet`), or None.
    custom_ops: Any = None
    #: Goes up with each change of what serves (`while_building`): whoever has prepared something for it does so anew.
    generation: int = 0
    #: A msgspec.Struct of what `load(..., **options)` takes for this backend; a subclass sets it.
    Options: ClassVar[type[Any]]

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        device: Device | None = None,
        precision: str | None = None,
        max_batch: int | None = None,
        options: Any = None,
        custom_ops: Any = None,
    ) -> None:
        self._closed = True  # until all is there
        self.custom_ops = custom_ops
        self._inputs: dict[str, Tensor] = {}
        self._outputs: dict[str, Tensor] = {}
        self._bound: list[int] | None = None  # the generations of the tensors when they were bound
        self.model = model_file(model)
        self._device = device or Device.parse(None)
        self._requested_precision = precision
        self.max_batch = max_batch
        self.options = options if options is not None else self.Options()
        self.input_specs: tuple[TensorSpec, ...] = ()
        self.output_specs: tuple[TensorSpec, ...] = ()
        self.metadata: Mapping[str, str] = MappingProxyType({})
        self._load()
        self._check_max_batch()
        self._create_tensors()
        self._closed = False

    # ---- what a backend fills in ----

    @classmethod
    @abstractmethod
    def probe(cls) -> BackendInfo:
        """The runtime's version and devices. An ImportError means that it is not installed."""

    @classmethod
    def runs_custom_ops(cls, device: Device) -> bool:
        """Whether the runtime takes the nodes of `custom_ops` itself there. Otherwise the model is cut at them."""
        return False

    @abstractmethod
    def _load(self) -> None:
        """Reads the model; sets `input_specs`, `output_specs`, `metadata`. Strict in device and precision."""

    @abstractmethod
    def _bind(self) -> None:
        """The input tensors have other shapes or addresses than before: size the outputs, and bind them all anew."""

    @abstractmethod
    def _run(self) -> None:
        """Runs the model over the bound tensors, bringing inputs up to date and moving the heads of the outputs."""

    def _call(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Runs a model that cannot be bound: a value for each input, checked where it is a tensor; the outputs by name.

        Needed only of a backend whose specs have a `kind` of their own. What is returned is the caller's to keep.
        """
        raise NotImplementedError(f"{type(self).__name__} has specs that no tensor can hold, and no _call()")

    def _wait(self) -> None:
        """Waits for what `_run()` queued, and raises InferenceError if it failed."""
        if self.stream is not None:
            self.stream.synchronize()

    @abstractmethod
    def _share(self, source: Self) -> None:
        """`clone()`: takes over from `source` what can be shared, and makes the rest of its own."""

    @abstractmethod
    def _close(self) -> None:
        """Frees what the runtime holds. Called once."""

    @property
    @abstractmethod
    def precision(self) -> str:
        """The arithmetic that really runs in most layers: `"fp32"`, `"fp16"`, `"bf16"` or `"int8"`; or
        `"unknown"`, where the runtime does not tell.
        """

    @property
    def layer_precisions(self) -> Mapping[str, int]:
        """How many of the layers that carry the work (convolutions, matrix products, ...) run in each precision.

        A runtime may have fused, split or dropped layers of the file. Empty where the backend cannot tell.
        """
        return MappingProxyType({})

    @property
    def concurrency(self) -> int:
        """Runs that are best made side by side, each on a clone; more than one where a stream queues them."""
        return 1 if self.stream is None else 3

    @property
    def serializes_runs(self) -> bool:
        """Whether runs that are made side by side stand one behind the other on the device: their copies overlap,
        their kernels do not.
        """
        return self.stream is not None

    def bucket_batch(self, n: int) -> int:
        """The batch in which the next run's `n` rows are best run, the rest being padding: `n`, or more, up to
        `max_batch`, where the backend prepares itself for each size anew, and so is spared most of them.
        """
        return n

    # ---- the interface ----

    @property
    def device(self) -> str:
        return str(self._device)

    @property
    def active(self) -> Infer:
        """What serves now: this one, unless it was loaded with `while_building`."""
        return self

    @property
    def active_backend(self) -> str:
        """The name of the backend that serves now."""
        return self.active.backend

    @property
    def change_due(self) -> bool:
        """Whether `change()` has something to do (`while_building`): another backend is ready, or will never be."""
        return False

    def change(self) -> None:  # noqa: B027 - ordinarily there is nothing to change
        """Goes over to the backend that is ready now, if one is; left alone, the next run does so."""

    @property
    def inputs(self) -> Mapping[str, Tensor]:
        if self._unbindable is not None:
            self._check_bindable()
        return self._inputs_view

    @property
    def outputs(self) -> Mapping[str, Tensor]:
        if self._unbindable is not None:
            self._check_bindable()
        return self._outputs_view

    def bind(self, name: str, tensor: Tensor) -> None:
        """Makes `tensor` the input or output `name` in place of the model's own, without a copy.

        It stays the caller's: `close()` leaves it alone.

        Raises:
            InputNameError, ShapeError, DTypeError, InputError: it does not fit, or is no Tensor.
            UnsupportedModelError: the model has an input or output that no tensor can hold.
        """
        self._check_open()
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
                    tensors[name] = tensor
                    self._lent.add(name)
                    self._bound = None
                    return
        raise InputNameError(f"no input or output {name!r}; there are {[*self._inputs, *self._outputs]}")

    def forward(self) -> Mapping[str, Tensor]:
        """Runs the model on what the input tensors hold; returns `outputs`.

        Raises:
            ShapeError: an input was given a shape that the model does not take.
            InferenceError: the runtime failed; the Infer stays usable.
        """
        self.enqueue()
        self._wait()
        return self._outputs_view

    def enqueue(self) -> Mapping[str, Tensor]:
        """As `forward()`, but where the backend has a `stream` the work is queued there, not waited for.

        The tensors know: whoever reads an output waits for it then. A failure on the device shows there, too.
        """
        if self._closed:
            self._check_open()
        if self._bound != self._generations():
            self._rebind()
        self._run()
        return self._outputs_view

    def __call__(self, x: npt.ArrayLike | Mapping[str, npt.ArrayLike]) -> dict[str, npt.NDArray[Any]]:
        """Copies `x` in, runs, and copies the outputs out: arrays that are the caller's to keep.

        Args:
            x: an array for a model of one input, or one per input name. Shape and type must be the model's own. What is
                no tensor of numbers goes to the runtime, and comes from it, as its Python interface has it: arrays of
                str, lists of arrays.
        """
        self._check_open()
        given = self._named(x)
        if self._unbindable is not None:
            return self._call_unbound(given)
        for spec in self.input_specs:
            array = np.asarray(given[spec.name])
            spec.check(array.shape, array.dtype)
            tensor = self._inputs[spec.name]
            tensor.resize(array.shape)
            np.copyto(tensor.numpy(writable=True), array)
        self.forward()
        return {name: tensor.numpy().copy() for name, tensor in self._outputs.items()}

    def clone(self) -> Self:
        """A second Infer for another thread, with tensors of its own, over the same weights or engine."""
        self._check_open()
        twin = type(self).__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin._closed = True
        twin._share(self)
        twin._create_tensors()
        twin._closed = False
        return twin

    def close(self) -> None:
        """Frees the model, its tensors and what the runtime holds. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self._close()
        for name, tensor in (*self._inputs.items(), *self._outputs.items()):
            if name not in self._lent:
                tensor.close()

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
        state = "closed" if self._closed else f"{self.precision} on {self.device}"
        return f"<{type(self).__name__} {self.model.name}, {state}>"

    # ---- shared machinery ----

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"the {self.backend} model {self.model.name} was closed; load it again")

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
                feeds[spec.name] = array = np.asarray(given[spec.name])
                spec.check(array.shape, array.dtype)
                self._check_max(spec, array.shape)
        return self._call(feeds)

    def _check_max_batch(self) -> None:
        if any(spec.has_free_batch for spec in self.input_specs):
            return
        fixed = next((spec.fixed_batch for spec in self.input_specs if spec.fixed_batch is not None), None)
        if self.max_batch and fixed is not None and self.max_batch > fixed:
            self._close()
            raise ConfigError(
                f"max_batch={self.max_batch}, but {self.model.name} was made for a batch of {fixed}; export it with a "
                "free batch dimension, or leave max_batch out"
            )

    def _create_tensors(self) -> None:
        """One tensor for each input and output; a batch of `max_batch` will find its room reserved."""
        specs = (*self.input_specs, *self.output_specs)
        self._unbindable = next((spec for spec in specs if spec.kind != "tensor"), None)
        bindable = self._unbindable is None
        self._bound = None
        self._lent: set[str] = set()  # names whose tensors are the user's own
        self._inputs = {spec.name: self._new_tensor(spec) for spec in self.input_specs if bindable}
        self._outputs = {spec.name: self._new_tensor(spec) for spec in self.output_specs if bindable}
        self._inputs_view = MappingProxyType(self._inputs)
        self._outputs_view = MappingProxyType(self._outputs)

    def _new_tensor(self, spec: TensorSpec) -> Tensor:
        """Shaped as the model says, with 1 for each free dimension: what to fill in to get going."""
        shape = tuple(d if isinstance(d, int) else 1 for d in spec.shape)
        tensor = Tensor(shape, spec.dtype, self._device)
        if self.max_batch and spec.has_free_batch:
            # Grown once and shrunk again, it keeps its capacity: addresses stay for every batch up to the largest.
            tensor.resize((self.max_batch, *shape[1:]))
            reserve = tensor.device_address if self._device.ordinal >= 0 else tensor.host_ptr
            reserve(write=True, read=False)
            tensor.resize(shape)
        return tensor

    def _take_tensors(self, other: Infer) -> None:
        """From now on the tensors of `other` are bound here, and `other` keeps them."""
        self._inputs, self._outputs, self._lent = other._inputs, other._outputs, other._lent
        self._inputs_view, self._outputs_view = other._inputs_view, other._outputs_view
        self._bound = None

    def _lose_tensors(self) -> None:
        """Its tensors belong to another, and are not closed with it."""
        self._inputs, self._outputs, self._lent = {}, {}, set()

    def _rebind(self) -> None:
        self._check_bindable()  # without tensors nothing is ever bound, so that each run comes by here
        for spec in self.input_specs:
            shape = self._inputs[spec.name].shape
            spec.check(shape)
            self._check_max(spec, shape)
        self._bind()
        self._bound = self._generations()

    def _check_max(self, spec: TensorSpec, shape: tuple[int, ...]) -> None:
        if self.max_batch and spec.has_free_batch and shape[0] > self.max_batch:
            raise ShapeError(
                f"a batch of {shape[0]} for input {spec.name!r} is more than max_batch={self.max_batch}; "
                f"split it, or load the model with max_batch={shape[0]}"
            )

    def _generations(self) -> list[int]:
        """These change with the shapes and addresses of the tensors: of outputs too, which a user may have resized."""
        return [tensor._generation for tensors in (self._inputs, self._outputs) for tensor in tensors.values()]

    def _adopt(self, name: str, at: int, shape: tuple[int, ...], *, lender: object) -> None:
        """An output that the runtime allocated: its tensor looks at that, which `lender` keeps alive."""
        tensor = self._outputs[name]
        tensor._borrow(at, shape, dtype_code(tensor.dtype), self._device.ordinal, lender=lender)
        self._bound = self._generations()

    def _named(self, x: npt.ArrayLike | Mapping[str, npt.ArrayLike]) -> Mapping[str, npt.ArrayLike]:
        names = [spec.name for spec in self.input_specs]
        if not isinstance(x, Mapping):
            if len(names) != 1:
                raise InputNameError(f"the model has {len(names)} inputs, {names}: pass a dict with an array for each")
            return {names[0]: x}
        if unknown := [name for name in x if name not in names]:
            raise InputNameError(f"no input {unknown[0]!r}; the model's inputs are {names}")
        if missing := [name for name in names if name not in x]:
            raise InputNameError(f"input {missing[0]!r} was not given; the model's inputs are {names}")
        return x

    def _known_output_shapes(self) -> dict[str, tuple[int, ...] | None]:
        """The shape of each output as far as it follows from the inputs by the names of free dimensions, else None."""
        sizes: dict[str, int] = {}
        for spec in self.input_specs:
            for want, got in zip(spec.shape, self._inputs[spec.name].shape, strict=True):
                if isinstance(want, str):
                    sizes.setdefault(want, got)
        shapes: dict[str, tuple[int, ...] | None] = {}
        for spec in self.output_specs:
            dims = [d if isinstance(d, int) else sizes.get(d) if d is not None else None for d in spec.shape]
            shapes[spec.name] = None if None in dims else tuple(d for d in dims if d is not None)
        return shapes


def model_file(path: str | os.PathLike[str]) -> Path:
    """The path of a model, checked as far as can be without reading it.

    Raises:
        ModelNotFoundError: there is nothing at that path.
        ModelFormatError: it is a folder, or empty.
    """
    file = Path(path)
    try:
        size = file.stat().st_size
    except (OSError, ValueError) as error:  # ValueError: a null character
        why = getattr(error, "strerror", error)
        raise ModelNotFoundError(f"no model at {str(file)!r} ({why}){relative_to(file)}") from None
    if file.is_dir():
        raise ModelFormatError(f"{str(file)!r} is a folder; give the model file in it")
    if size == 0:
        raise ModelFormatError(f"{str(file)!r} is empty; was the download cut off?")
    return file
