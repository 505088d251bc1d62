"""The attributes of a custom operator: typed, with defaults, and checked wherever a value comes in."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args, get_origin

from ..errors import CustomOpError

__all__ = ["MISSING", "Attribute", "attribute_of", "convert_all"]


class _Missing:
    """What stands for a default where there is none."""

    def __repr__(self) -> str:
        return "(required)"


MISSING = _Missing()

#: The text of each type that an attribute may have, ONNX's name of its kind, and the number in infersdk_custom_op.h.
_KINDS = {
    "int": ("INT", 0), "bool": ("INT", 0), "float": ("FLOAT", 1), "str": ("STRING", 2),
    "tuple[int, ...]": ("INTS", 3), "tuple[float, ...]": ("FLOATS", 4),
}  # fmt: skip


@dataclass(frozen=True)
class Attribute:
    """One attribute.

    Attributes:
        name: its name.
        type: the text of its type: `"int"`, `"bool"`, `"float"`, `"str"`, `"tuple[int, ...]"`, `"tuple[float, ...]"`.
        default: the value of a node that has none; `MISSING` where each node has to have one.
    """

    name: str
    type: str
    default: Any

    @property
    def onnx_kind(self) -> str:
        return _KINDS[self.type][0]

    @property
    def native_kind(self) -> int:
        return _KINDS[self.type][1]

    def convert(self, value: Any) -> Any:
        """The value as its type has it: a float is rounded to float32, as ONNX keeps it; a list becomes a tuple.

        Raises:
            CustomOpError: it is of another type.
        """
        try:
            return self._converted(value)
        except (TypeError, ValueError, OverflowError, struct.error, UnicodeDecodeError):
            raise CustomOpError(
                f"attribute {self.name!r} is {value!r}, of type {type(value).__name__}; it takes {self.type}"
            ) from None

    def _converted(self, value: Any) -> Any:
        if self.type == "str":
            return value.decode() if isinstance(value, bytes) else _exactly(value, str)
        if self.type == "bool":
            return bool((0, 1).index(int(_exactly(value, int))))
        if self.type == "int":
            return _int64(value)
        if self.type == "float":
            return _float32(value)
        one = _int64 if self.type == "tuple[int, ...]" else _float32
        return tuple(one(item) for item in _exactly(value, tuple, list))


def _exactly(value: Any, *types: type) -> Any:
    if not isinstance(value, types):
        raise TypeError
    return value


def _int64(value: Any) -> int:
    if isinstance(value, bool | float) or not hasattr(value, "__index__"):
        raise TypeError
    number = value.__index__()
    struct.pack("<q", number)
    return int(number)


def _float32(value: Any) -> float:
    if isinstance(value, bool | str) or not (hasattr(value, "__float__") or hasattr(value, "__index__")):
        raise TypeError
    return float(struct.unpack("<f", struct.pack("<f", float(value)))[0])


def attribute_of(name: str, annotation: Any, default: Any) -> Attribute:
    """An attribute out of a class's annotation and default.

    Raises:
        CustomOpError: attributes are of none such type, or the default is of another.
    """
    if get_origin(annotation) is tuple:
        inner = get_args(annotation)
        text = f"tuple[{inner[0].__name__}, ...]" if len(inner) == 2 and inner[1] is Ellipsis else str(annotation)
    else:
        text = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    if text not in _KINDS:
        raise CustomOpError(
            f"attribute {name!r} is annotated {text}; an attribute is {', '.join(_KINDS)} (annotate what is no "
            "attribute with ClassVar)"
        )
    attribute = Attribute(name, text, default)
    return attribute if default is MISSING else Attribute(name, text, attribute.convert(default))


def convert_all(attributes: tuple[Attribute, ...], values: Mapping[str, Any]) -> dict[str, Any]:
    """A value for each attribute, with defaults for those that are not given.

    Raises:
        CustomOpError: one is unknown, missing or of another type.
    """
    known = {attribute.name for attribute in attributes}
    if unknown := [name for name in values if name not in known]:
        raise CustomOpError(
            f"it has no attribute {unknown[0]!r}; it has {', '.join(sorted(known)) or 'none'}; declare it in the "
            "class, or take it off the node"
        )
    converted = {}
    for attribute in attributes:
        value = values.get(attribute.name, attribute.default)
        if value is MISSING:
            raise CustomOpError(
                f"attribute {attribute.name!r} has no value and no default; set it on the node ({attribute.type})"
            )
        converted[attribute.name] = attribute.convert(value)
    return converted
