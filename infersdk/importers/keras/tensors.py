"""Values of a Keras model in ONNX: Keras has channels last, ONNX operators have them first.

A value is kept in the form in which it was computed, and is transposed when a layer needs the other one. So a chain of
convolutions, activations and additions is transposed at its ends alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...graph.builder import GraphBuilder

__all__ = ["Shape", "Tensor", "broadcast"]

#: The size of each axis; None for a free one.
Shape = tuple["int | None", ...]


class Tensor:
    """A value with Keras's shape, and one or both of its forms.

    Attributes:
        shape: of Keras's form, with the batch.
        dtype: of its elements.
        masked: whether Keras carries a mask along with it, of steps to leave out.
    """

    def __init__(
        self,
        build: GraphBuilder,
        shape: Sequence[int | None],
        *,
        last: Any = None,
        first: Any = None,
        dtype: Any = np.float32,
        masked: bool = False,
    ) -> None:
        self._build, self._last, self._first = build, last, first
        self.shape: Shape = tuple(shape)
        self.dtype = np.dtype(dtype)
        self.masked = masked

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def is_channels_first(self) -> bool:
        """Whether it was computed with channels first."""
        return self._first is not None

    def last(self) -> Any:
        """The ONNX value in Keras's form."""
        if self._last is None:
            axes = list(range(self.rank))
            self._last = self._build("Transpose", self._first, perm=[0, *axes[2:], 1])
        return self._last

    def first(self) -> Any:
        """The ONNX value with axis 1 for the channels."""
        if self.rank < 3:
            return self.last()
        if self._first is None:
            self._first = self._build("Transpose", self._last, perm=[0, self.rank - 1, *range(1, self.rank - 1)])
        return self._first

    def map(self, function: Callable[[Any], Any]) -> Tensor:
        """A function of each element, in the form that is there."""
        if self._first is not None:
            return self.like(first=function(self._first))
        return self.like(last=function(self._last))

    def like(self, *, last: Any = None, first: Any = None) -> Tensor:
        """Another value of the same shape."""
        return Tensor(self._build, self.shape, last=last, first=first, dtype=self.dtype, masked=self.masked)


def broadcast(shapes: Sequence[Shape]) -> Shape:
    """The shape of an operation on values of these shapes."""
    rank = max(len(shape) for shape in shapes)
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return tuple(next((size for size in column if size != 1), 1) for column in zip(*padded, strict=True))
