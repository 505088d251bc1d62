"""What the translators of Keras layers work with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import ModelFormatError, UnsupportedModelError
from ..translating import constant_size, registers
from .tensors import Shape, Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from ...graph.builder import GraphBuilder
    from .config import Layer

__all__ = ["LAYERS", "LayerCall", "layer"]

#: Translators by the classes of layers: each takes a `LayerCall` and returns a `Tensor`, or a list of them.
LAYERS: dict[str, Callable[[LayerCall], Any]] = {}


def layer(*kinds: str) -> Callable[[Callable[[LayerCall], Any]], Callable[[LayerCall], Any]]:
    """Registers a translator for classes of layers."""
    return registers(LAYERS, *kinds)


class LayerCall:
    """A call of a layer while it is translated.

    Attributes:
        build: appends ONNX nodes.
        inputs: the tensors that it is called with.
        named: the other arguments of the call.
    """

    def __init__(
        self,
        called: Layer,
        build: GraphBuilder,
        inputs: Sequence[Tensor],
        weights: Sequence[tuple[str, npt.NDArray[Any]]],
        named: dict[str, Any] | None = None,
    ) -> None:
        self.layer, self.build, self.inputs = called, build, list(inputs)
        self.weights = list(weights)
        self.named = named or {}
        self.config = called.config

    @property
    def kind(self) -> str:
        return self.layer.kind

    @property
    def x(self) -> Tensor:
        """The one input, or the first."""
        if not self.inputs:
            raise self.damaged("it has no input")
        return self.inputs[0]

    def damaged(self, why: str) -> ModelFormatError:
        return ModelFormatError(f"layer {self.layer.name!r} ({self.kind}) is damaged: {why}")

    def unsupported(self, why: str) -> UnsupportedModelError:
        return UnsupportedModelError(f"{self.kind}: {why}")

    # ---- weights and settings ----

    def weight(self, name: str, part: str = "") -> npt.NDArray[Any] | None:
        """The weight whose name ends in `name`, such as `"kernel"`; of the part of the layer that its path names."""
        for path, array in self.weights:
            *folders, last = path.split("/")
            if last.partition(":")[0] == name and (not part or any(folder.startswith(part) for folder in folders)):
                return array.astype(np.float32) if array.dtype == np.float16 else array
        return None

    def required(self, name: str, part: str = "") -> npt.NDArray[Any]:
        result = self.weight(name, part)
        if result is None:
            raise self.damaged(f"its weight {name!r} is missing; there are {[path for path, _ in self.weights]}")
        return result

    def ints(self, name: str, count: int, default: Any = None) -> list[int]:
        """Whole numbers; one number stands for `count`."""
        value = self.config.get(name, default)
        items = list(value) if isinstance(value, (list, tuple)) else [value] * count
        if len(items) != count or any(isinstance(item, bool) or not isinstance(item, int) for item in items):
            raise self.damaged(f"{name}={value!r}, and {count} whole numbers are expected")
        return items

    def number(self, name: str, default: Any = None) -> float:
        value = self.config.get(name, default)
        value = default if value is None else value
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        if isinstance(value, dict):  # Keras saves NumPy numbers as {"class_name": "__numpy__", "value": ...}
            value = value.get("value", dict(value.get("config", {})).get("value"))
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.damaged(f"{name}={value!r} is not a number")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        return bool(self.config.get(name, default))

    def choice(self, name: str, allowed: Sequence[str], default: str) -> str:
        value = self.config.get(name) or default
        if value not in allowed:
            raise self.unsupported(f"{name}={value!r}; known are {', '.join(allowed)}")
        return str(value)

    @property
    def channels_first(self) -> bool:
        return self.config.get("data_format") == "channels_first"

    def limit(self, *sizes: int) -> None:
        """Raises ModelFormatError for sizes of a constant that are negative or too large."""
        constant_size(sizes, self.damaged)

    # ---- values ----

    def spatial(self, value: Tensor) -> Any:
        """The ONNX value with channels first, whatever the layer's data format."""
        return value.last() if self.channels_first else value.first()

    def spatial_shape(self, value: Tensor) -> tuple[int | None, list[int | None]]:
        """Channels, and the sizes of the image."""
        if self.channels_first:
            return value.shape[1], list(value.shape[2:])
        return value.shape[-1], list(value.shape[1:-1])

    def from_spatial(self, value: Any, batch: int | None, channels: int | None, image: Sequence[int | None]) -> Tensor:
        """The result of an operator with channels first."""
        if self.channels_first:
            return self.tensor(value, (batch, channels, *image))
        return Tensor(self.build, (batch, *image, channels), first=value)

    def tensor(self, value: Any, shape: Shape, dtype: Any = None) -> Tensor:
        """A value in Keras's form."""
        return Tensor(
            self.build, shape, last=value, dtype=self.x.dtype if dtype is None and self.inputs else dtype or np.float32
        )

    def known(self, size: int | None, what: str) -> int:
        if size is None:
            raise self.unsupported(f"{what} is free; give the model a fixed one")
        return size

    def i64(self, *numbers: int) -> npt.NDArray[np.int64]:
        return np.asarray(numbers, np.int64)
