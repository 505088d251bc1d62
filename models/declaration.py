"""A wrapper's settings, declared once: annotated class attributes with defaults, in the class body of the wrapper.

::

    class FaceDetector(VisionModel[Faces]):
        conf: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.6

They define the constructor that a type checker sees, the struct `FaceDetector.Settings` that checks values (also those
of a configuration file), and the attributes of each instance. A subclass inherits the settings of its bases.
"""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import msgspec

from ..config import convert
from ..errors import ConfigError, nearest

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_: Any) -> Any:
        return lambda cls: cls


__all__ = ["UNCHECKED", "Declared", "Fraction", "annotation", "argument", "nearest_setting", "unknown_setting"]

#: The type of a setting from 0 to 1.
Fraction = Annotated[float, msgspec.Meta(ge=0, le=1)]

#: Marks a setting that the wrapper itself checks, since its type is not one that msgspec can check:
#: `Annotated[Infer | None, UNCHECKED]`.
UNCHECKED = object()
#: Stands for an argument of the constructor that is not in `Settings`.
_ARGUMENT = object()

#: Settings by the names that other programs have for them.
_FOREIGN_SETTINGS = {
    **dict.fromkeys(("threshold", "conf_thres", "conf_threshold", "score_threshold", "score", "min_score"), "conf"),
    **dict.fromkeys(("nms", "iou_thres", "iou_threshold", "nms_threshold"), "iou"),
    **dict.fromkeys(("imgsz", "img_size", "image_size", "input_size", "resolution"), "size"),
    "agnostic_nms": "class_agnostic", "topk": "top_k", "labels": "names",
}  # fmt: skip


def argument(*, default: Any = ..., kw_only: bool = True) -> Any:
    """An argument of the constructor that is not in `Settings`."""
    return _ARGUMENT


@dataclass_transform(kw_only_default=True, field_specifiers=(argument,))
class Declared:
    """Base of classes whose annotated attributes are their settings. See the module."""

    #: The settings as a frozen msgspec.Struct, made from the class body.
    Settings: ClassVar[type[Any]]
    #: The arguments of `msgspec.defstruct` for the settings of the class itself, by name.
    _own_settings: ClassVar[dict[str, tuple[str, Any, Any]]] = {}

    def __dir__(self) -> list[str]:
        """The members for users: settings are listed by `settings`."""
        return [name for name in super().__dir__() if name not in self.Settings.__struct_fields__]

    def _set(self, settings: Mapping[str, Any]) -> None:
        """Checks the settings, and makes them attributes."""
        try:
            self.settings: Any = convert(settings, self.Settings, f"{type(self).__name__} settings")
        except TypeError:
            _refuse_unsupported(type(self))
            raise
        self.__dict__.update({name: getattr(self.settings, name) for name in self.Settings.__struct_fields__})

    def __setattr__(self, name: str, value: Any) -> None:
        # Settings take effect in the constructor: a new value would change nothing.
        if name in self.Settings.__struct_fields__ and "settings" in self.__dict__:
            once = name in getattr(self, "per_call", ())
            one_call = f"give {name}={value!r} to a call or to submit(), or " if once else ""
            raise AttributeError(
                f"{name} is a setting of this {type(self).__name__}, and cannot be changed; {one_call}make another one "
                f"with {name}={value!r}"
            )
        super().__setattr__(name, value)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._own_settings = {}
        for name, annotation in inspect.get_annotations(cls).items():
            if name.startswith("_") or vars(cls).get(name) is _ARGUMENT:
                continue
            kind = _evaluated(cls, name, annotation)
            if kind is ClassVar or typing.get_origin(kind) is ClassVar:
                continue
            if name not in vars(cls):
                raise TypeError(f"{cls.__name__}.{name} has no default; give it one, or annotate it as a ClassVar")
            unchecked = UNCHECKED in getattr(kind, "__metadata__", ())
            cls._own_settings[name] = (name, Any if unchecked else kind, vars(cls)[name])
        fields: dict[str, tuple[str, Any, Any]] = {}
        for base in reversed(cls.__mro__):
            fields |= vars(base).get("_own_settings", {})
        cls.Settings = msgspec.defstruct(
            f"{cls.__name__}Settings", fields.values(), module=cls.__module__,
            frozen=True, kw_only=True, forbid_unknown_fields=True,
        )  # fmt: skip
        cls.Settings.__qualname__ = f"{cls.__qualname__}.Settings"  # where pickle looks for it


def _refuse_unsupported(kind: type[Declared]) -> None:
    """Raises ConfigError if msgspec does not support the annotation of a setting."""
    for field in msgspec.structs.fields(kind.Settings):
        try:
            msgspec.convert(None, field.type)
        except msgspec.ValidationError:
            pass
        except TypeError as error:
            raise ConfigError(
                f"{kind.__name__}.{field.name}: msgspec cannot check the type of this setting ({error}); annotate it "
                "as Annotated[..., UNCHECKED], and check the value in the wrapper"
            ) from None


def annotation(kind: type[Declared], name: str) -> Any:
    """The annotation of a setting, as the class or the base that declares it has it."""
    cls = next(base for base in kind.__mro__ if name in inspect.get_annotations(base))
    return _evaluated(cls, name, inspect.get_annotations(cls)[name])


def unknown_setting(kind: type[Declared], name: str, others: str = "", options: Iterable[str] = ()) -> ConfigError:
    """The error for a setting that a wrapper does not have.

    Args:
        others: the end of the message, where no known name is similar.
        options: further known names.
    """
    own = kind.Settings.__struct_fields__
    hint = nearest_setting(name, own, options) or f"; its settings are {', '.join(own)}" + (
        f"; {others}" if others else ""
    )
    return ConfigError(f"{kind.__name__} has no setting {name!r}{hint}")


def nearest_setting(name: str, own: Collection[str], options: Iterable[str] = ()) -> str:
    """The end of a message about an unknown setting: `"; did you mean 'conf'?"`, or `""`."""
    meant = _FOREIGN_SETTINGS.get(name.lower())
    return f"; did you mean {meant!r}?" if meant in own else nearest(name, [*own, *options])


def _evaluated(cls: type, name: str, annotation: Any) -> Any:
    """The annotation of a class attribute as an object: text under `from __future__ import annotations`."""
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, vars(sys.modules[cls.__module__]))
    except NameError as error:
        raise TypeError(
            f"{cls.__name__}.{name}: the type of this setting cannot be read ({error}); import it at run time, not "
            "under TYPE_CHECKING alone"
        ) from None
