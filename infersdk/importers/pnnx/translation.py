"""What the translators of PNNX operators work with: one operator, its operands as ONNX values, and a builder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import ModelFormatError, UnsupportedModelError
from ..translating import constant_size, registers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from ...graph.builder import GraphBuilder
    from .graph import Operand, Operator

__all__ = ["OPERATORS", "REQUIRED", "Translation", "operator"]

#: Translators by the types of operators: each takes a `Translation` and returns a value, or several.
OPERATORS: dict[str, Callable[[Translation], Any]] = {}
#: The default of a parameter that a file must have.
REQUIRED: Any = object()


def operator(*types: str) -> Callable[[Callable[[Translation], Any]], Callable[[Translation], Any]]:
    """Registers a translator for types of operators."""
    return registers(OPERATORS, *types)


class Translation:
    """One operator of a PNNX graph while it is translated.

    Attributes:
        one: the operator.
        build: appends ONNX nodes: `build("Add", a, b)`.
        values: its inputs as ONNX values; lists where the input is a list.
        opset: the ONNX version that the nodes need; a translator may raise it.
    """

    def __init__(
        self, one: Operator, build: GraphBuilder, values: Sequence[Any], dtypes: dict[int, np.dtype[Any]]
    ) -> None:
        self.one, self.build, self.values = one, build, list(values)
        self.opset = 18
        self._dtypes = dtypes

    @property
    def kind(self) -> str:
        """The operator's type without its family: `"conv2d"` of `F.conv2d`."""
        return self.one.type.rpartition(".")[2]

    def unsupported(self, why: str) -> UnsupportedModelError:
        return UnsupportedModelError(f"{self.one.type}: {why}")

    def damaged(self, why: str) -> ModelFormatError:
        return ModelFormatError(f"operator {self.one.name!r} ({self.one.type}) is damaged: {why}")

    # ---- inputs and weights ----

    @property
    def x(self) -> Any:
        """The first input."""
        if not self.values:
            raise self.damaged("it has no inputs")
        return self.values[0]

    def given(self, name: str, position: int | None = None) -> Any:
        """The input of a name, or else the one at a position that has no name; None if it is not given."""
        for index, called in self.one.input_names.items():
            if called == name:
                return self.values[index]
        if position is not None and position < len(self.values) and position not in self.one.input_names:
            return self.values[position]
        return None

    def tensor(self, name: str, position: int | None = None) -> Any:
        """A weight of the file, or the input of that name; None if there is neither."""
        if name in self.one.attributes:
            return self.one.attributes[name].array
        return self.given(name, position)

    def weight(self, name: str) -> npt.NDArray[Any] | None:
        return self.one.attributes[name].array if name in self.one.attributes else None

    def required_weight(self, name: str) -> npt.NDArray[Any]:
        result = self.weight(name)
        if result is None:
            raise self.damaged(f"its weight {name!r} is missing")
        return result

    # ---- parameters ----

    def param(self, name: str, default: Any = REQUIRED) -> Any:
        if name in self.one.params:
            return self.one.params[name]
        if default is REQUIRED:
            raise self.damaged(f"its parameter {name!r} is missing")
        return default

    def number(self, name: str, default: Any = REQUIRED) -> float:
        value = self.param(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.damaged(f"{name} is a number, not {value!r}")
        return float(value)

    def integer(self, name: str, default: Any = REQUIRED) -> int:
        value = self.param(name, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.damaged(f"{name} is a whole number, not {value!r}")
        return value

    def flag(self, name: str, default: Any = REQUIRED) -> bool:
        value = self.param(name, default)
        if not isinstance(value, bool):
            raise self.damaged(f"{name} is True or False, not {value!r}")
        return value

    def ints(self, name: str, count: int | None = None, default: Any = REQUIRED) -> list[int]:
        """Whole numbers; one number stands for `count` of them."""
        value = self.param(name, default)
        items = list(value) if isinstance(value, (tuple, list)) else [value]
        if any(isinstance(item, bool) or not isinstance(item, int) for item in items):
            raise self.damaged(f"{name} is of whole numbers, not {value!r}")
        if count is not None and len(items) == 1:
            items = items * count
        if count is not None and len(items) != count:
            raise self.damaged(f"{name} has {len(items)} numbers, and {count} are expected")
        return items

    # ---- shapes and types ----

    def operand(self, value: Any = None) -> Operand:
        """The operand behind an input; the first one by default."""
        index = 0 if value is None else next((i for i, one in enumerate(self.values) if one is value), 0)
        return self.one.inputs[index]

    def shape(self, index: int = 0) -> tuple[int, ...]:
        """The shape of an input, which must be known."""
        return self._known(self.one.inputs[index])

    def output_shape(self, index: int = 0) -> tuple[int, ...]:
        return self._known(self.one.outputs[index])

    def _known(self, operand: Operand) -> tuple[int, ...]:
        if operand.shape is None or None in operand.shape:
            raise self.unsupported(
                f"the shape of operand {operand.name!r} is not in the file; export it with inputshape="
            )
        return tuple(size for size in operand.shape if size is not None)

    def rank(self, index: int = 0) -> int:
        shape = self.one.inputs[index].shape
        if shape is None:
            raise self.unsupported(f"the number of axes of operand {self.one.inputs[index].name!r} is not in the file")
        return len(shape)

    def axis(self, name: str = "dim", default: Any = REQUIRED, rank: int | None = None) -> int:
        """An axis, counted from the front."""
        count = self.rank() if rank is None else rank
        value = self.integer(name, default)
        if not -max(count, 1) <= value < max(count, 1):
            raise self.damaged(f"{name}={value} of {count} axes")
        return value % max(count, 1)

    def axes(self, name: str = "dim") -> list[int] | None:
        """Axes, counted from the front; None for all."""
        if self.param(name, None) is None:
            return None
        count = max(self.rank(), 1)
        result = self.ints(name)
        if any(not -count <= axis < count for axis in result):
            raise self.damaged(f"{name}={tuple(result)} of {count} axes")
        return [axis % count for axis in result]

    def dtype(self, value: Any) -> np.dtype[Any]:
        """The type of elements of a value: float32 where nothing says."""
        if isinstance(value, np.ndarray):
            dtype: np.dtype[Any] = value.dtype
            return dtype
        return self._dtypes.get(id(value), np.dtype(np.float32))

    def typed(self, value: Any, dtype: Any) -> Any:
        """Notes the type of a value."""
        self._dtypes[id(value)] = np.dtype(dtype)
        return value

    def limit(self, *sizes: int) -> int:
        """The product of sizes that a constant is made for.

        Raises:
            ModelFormatError: it is negative, or larger than any constant of a network that is not in its weights.
        """
        return constant_size(sizes, self.damaged)

    # ---- common nodes ----

    def cast(self, value: Any, dtype: Any) -> Any:
        wanted = np.dtype(dtype)
        if self.dtype(value) == wanted:
            return value
        import onnx_ir as ir

        return self.typed(self.build("Cast", value, to=int(ir.DataType.from_numpy(wanted))), wanted)

    def scalar(self, number: float, like: Any = None) -> npt.NDArray[Any]:
        """A number of the type of a value."""
        return np.asarray(number, self.dtype(self.x if like is None else like))

    def transpose(self, value: Any, *order: int) -> Any:
        return self.build("Transpose", value, perm=list(order))

    def reshape(self, value: Any, *sizes: int) -> Any:
        return self.build("Reshape", value, np.asarray(sizes, np.int64))

    def slice(self, value: Any, axis: int, start: int, end: int, step: int = 1) -> Any:
        columns = ([start], [end], [axis], [step])
        return self.build("Slice", value, *(np.asarray(column, np.int64) for column in columns))

    def squeeze(self, value: Any, *axes: int) -> Any:
        return self.build("Squeeze", value, np.asarray(axes, np.int64))

    def unsqueeze(self, value: Any, *axes: int) -> Any:
        return self.build("Unsqueeze", value, np.asarray(axes, np.int64))
