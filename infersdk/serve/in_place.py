"""Running a model on the shared memory of a client, without a copy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from .regions import SharedTensor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from ..infer import Infer
    from ..tensor import Tensor

__all__ = ["InPlace", "PlacedTensor"]

#: What the addresses of tensors are aligned to: a cache line, and the widest vector.
_ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class PlacedTensor:
    """An output, or a row of one, that lies in shared memory already."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class _Target(Protocol):
    """Where the row of an output goes."""

    def tensor(self, dtype: np.dtype[Any], shape: tuple[int, ...], output: str) -> SharedTensor:
        """The row in shared memory."""


class _Item(Protocol):
    """A row of a request."""

    outputs: Sequence[str]

    @property
    def destinations(self) -> Mapping[str, _Target]:
        """By the names of outputs."""

    def items(self) -> Any:
        """The inputs by name."""


class InPlace:
    """Binds parts of shared memory to a model in place of its own tensors, for one row at a time.

    The client can change its memory while the model runs. So numbers that a runtime may use as indices stay where no
    client reaches them: only floating point numbers and bytes are used in place.

    Args:
        network: whose tensors have the batch in front, and no other free axis in an input.
    """

    def __init__(self, network: Infer) -> None:
        self._network = network
        self._shapes = {
            spec.name: tuple(side for side in spec.shape[1:] if isinstance(side, int))
            for spec in network.output_specs
            if _is_plain(spec.dtype) and all(isinstance(side, int) for side in spec.shape[1:])
        }
        self._dtypes = {spec.name: spec.dtype for spec in network.output_specs}
        self._inputs = all(_is_plain(spec.dtype) for spec in network.input_specs)
        self._own: dict[str, Tensor] = {}  # the model's own tensors, of the names that others are bound to
        self._addresses: dict[str, int] = {}
        self._leaving: dict[str, Tensor] = {}  # what is bound to names that do not stay bound
        self.bound: set[str] = set()  # outputs that the last run wrote in place
        self.refresh()

    def refresh(self) -> None:
        """Another backend serves from now on."""
        self._device = self._network.device

    def suits(self, item: Mapping[str, Any]) -> bool:
        """Whether all inputs of a row lie where the model can read them."""
        return self._inputs and all(self._fits(value) for value in item.values())

    def _fits(self, value: Any) -> bool:
        return (
            isinstance(value, SharedTensor) and value.region.device == self._device and value.address % _ALIGNMENT == 0
        )

    def bind(self, item: _Item) -> None:
        """Makes the model read the inputs of a row, and write its outputs, where they lie. A model of one instance
        that gets the same parts again has them bound already.

        Raises:
            RequestError: an output is too large for its part.
        """
        for name, value in item.items():
            self._bind(name, value)
        self.bound = set()
        for name, shape in self._shapes.items():
            target = item.destinations.get(name) if name in item.outputs else None
            tensor = None if target is None else target.tensor(self._dtypes[name], shape, name)
            if tensor is not None and self._fits(tensor):
                self._bind(name, tensor)
                self.bound.add(name)
            else:
                self._unbind(name)

    def _bind(self, name: str, value: SharedTensor) -> None:
        if self._addresses.get(name) == value.address:
            return
        tensor = value.tensor((1, *value.shape))
        if name not in self._own:
            self._own[name] = self._tensor(name)
        self._network.bind(name, tensor)
        self._addresses[name] = value.address
        if not value.region.stays_bound:
            self._leaving[name] = tensor

    def _tensor(self, name: str) -> Tensor:
        inputs = self._network.inputs
        return inputs[name] if name in inputs else self._network.outputs[name]

    def finish(self) -> None:
        """The results of the run are complete: lets go of memory that does not stay bound."""
        for name in list(self._leaving):
            self._unbind(name)

    def unbind(self) -> None:
        """Gives the model its own tensors back."""
        self.bound = set()
        for name in list(self._own):
            self._unbind(name)

    def _unbind(self, name: str) -> None:
        own = self._own.pop(name, None)
        if own is not None:
            self._network.bind(name, own)
            del self._addresses[name]
            if (left := self._leaving.pop(name, None)) is not None:
                left.close()  # a backend may keep the tensor until the next run, but then without its memory

    def placed(self, name: str) -> PlacedTensor:
        """The row of an output in `bound`."""
        return PlacedTensor(self._shapes[name], self._dtypes[name])


def _is_plain(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "f" or dtype.itemsize == 1
