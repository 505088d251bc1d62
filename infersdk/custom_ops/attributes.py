"""Typed attributes of custom operators, with defaults and checks."""

from __future__ import annotations

import operator
import struct
from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from typing import Any, get_args, get_origin

from ..errors import CustomOpError

__all__ = ["Attribute", "attribute_of", "convert_all"]

#: The allowed annotations of attributes, with the ONNX kinds.
_KINDS = {
    "int": "INT", "bool": "INT", "float": "FLOAT", "str": "STRING", "tuple[int, ...]": "INTS",
    "tuple[float, ...]": "FLOATS",
}  # fmt: skip


@dataclass(frozen=True)
class Attribute:
    """One attribute."""

    name: str
    type: str  # a key of `_KINDS`
    default: Any  # `dataclasses.MISSING` for a required attribute

    @property
    def onnx_kind(self) -> str:
        """The ONNX kind of the attribute, such as `"INT"`."""
        return _KINDS[self.type]

    def convert(self, value: Any) -> Any:
        """Converts a value to the type of the attribute. Floats are rounded to float32, and lists become tuples.

        Raises:
            CustomOpError: the value has another type.
        """
        try:
            return self._converted(value)
        except (TypeError, ValueError, OverflowError, struct.error):
            text = " in UTF-8 without a null character" if self.type == "str" else ""
            raise CustomOpError(
                f"attribute {self.name!r} is {value!r}, of type {type(value).__name__}; it takes {self.type}{text}"
            ) from None

    def _converted(self, value: Any) -> Any:
        if self.type == "str":
            text = value.decode() if isinstance(value, bytes) else _exactly(value, str)
            if b"\0" in text.encode():  # a C string ends there
                raise ValueError
            return text
        if self.type == "bool":
            return bool((0, 1).index(int(_exactly(value, int))))
        convert = _int64 if "int" in self.type else _float32
        return tuple(map(convert, _exactly(value, tuple, list))) if "tuple" in self.type else convert(value)


def _exactly(value: Any, *types: type) -> Any:
    if not isinstance(value, types):
        raise TypeError
    return value


def _int64(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError
    struct.pack("<q", number := operator.index(value))
    return number


def _float32(value: Any) -> float:
    if isinstance(value, bool | str) or not (hasattr(value, "__float__") or hasattr(value, "__index__")):
        raise TypeError
    return float(struct.unpack("<f", struct.pack("<f", float(value)))[0])


def attribute_of(name: str, annotation: Any, default: Any) -> Attribute:
    """Creates an attribute from an annotation and a default."""
    if get_origin(annotation) is tuple:
        inner = get_args(annotation)
        name_of = getattr(inner[0], "__name__", inner[0]) if inner else ""
        text = f"tuple[{name_of}, ...]" if len(inner) == 2 and inner[1] is Ellipsis else str(annotation)
    else:
        text = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    if text not in _KINDS:
        raise CustomOpError(
            f"attribute {name!r} is annotated {text}; an attribute is {', '.join(_KINDS)} (annotate other "
            "names with ClassVar)"
        )
    attribute = Attribute(name, text, default)
    return attribute if default is MISSING else Attribute(name, text, attribute.convert(default))


def convert_all(attributes: tuple[Attribute, ...], values: Mapping[str, Any]) -> dict[str, Any]:
    """Converts the values of all attributes and adds defaults."""
    known = {attribute.name for attribute in attributes}
    if unknown := [name for name in values if name not in known]:
        raise CustomOpError(
            f"it has no attribute {unknown[0]!r}; it has {', '.join(sorted(known)) or 'none'}; declare it in the "
            "class or remove it from the node"
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
