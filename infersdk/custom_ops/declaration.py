"""CustomOp: the base class of custom operators."""

from __future__ import annotations

import builtins
import inspect
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, get_origin, get_type_hints

from ..errors import CustomOpError
from .attributes import Attribute, attribute_of, convert_all
from .kernels import CFunction, CSource, CudaSource
from .shapes import Rule, trace

if TYPE_CHECKING:
    from typing_extensions import Self, dataclass_transform
else:

    def dataclass_transform(**_):
        return lambda cls: cls


__all__ = ["CustomOp", "Signature"]

#: The element types of tensors.
DTYPES = (
    "float32", "float16", "float64", "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
)  # fmt: skip

#: The domains of the ONNX standard, which custom operators must not use.
_STANDARD = ("", "ai.onnx", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview", "ai.onnx.preview.training")

_NAME = re.compile(r"[A-Za-z_]\w*")
_DOMAIN = re.compile(r"[A-Za-z_][\w.]*")


@dataclass(frozen=True)
class Signature:
    """A combination of input and output element types of an operator."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass_transform(kw_only_default=True, frozen_default=True)
class CustomOp:
    """The base class of custom operators::

        class HardSwish(CustomOp):
            domain = "my.company"
            inputs = {"x": "T"}
            outputs = {"y": "T"}
            types = {"T": ("float32", "float16")}
            alpha: float = 1 / 6              # an attribute with its default
            beta: float = 0.5

            def shape(self, x):
                return x                      # the output has the shape of the input

            def cpu(self, x, y):              # NumPy arrays; the kernel fills y
                y[:] = x * np.clip(self.alpha * x + self.beta, 0, 1)

    An instance is the operator with attribute values, like a node of a model: `HardSwish(alpha=0.2)`.

    Attributes:
        domain: the domain, which must not be one of the ONNX standard.
        name: the operator type of its nodes; by default the name of the class.
        version: the version of the schema, which is part of engines and cache keys. Increase it when the results of the
            operator change.
        inputs, outputs: the element type of each input and output by name: a type such as `"float32"`, or the name of a
            type variable.
        types: the allowed element types of each type variable.
        cpu: the kernel on the processor: a method that receives the inputs and then the outputs as arrays, or a
            `CFunction` or `CSource`; None if there is no kernel.
        cuda: the kernel on NVIDIA GPUs: a `CudaSource` or a `CFunction`; None if there is no kernel.

    An annotated name (`alpha: float = 0.2`) is an attribute; its type is int, bool, float, str, `tuple[int, ...]` or
    `tuple[float, ...]`.
    """

    domain: ClassVar[str] = ""
    name: ClassVar[str] = ""
    version: ClassVar[int] = 1
    inputs: ClassVar[Mapping[str, str]] = {}
    outputs: ClassVar[Mapping[str, str]] = {}
    types: ClassVar[Mapping[str, Sequence[str]]] = {}
    cpu: ClassVar[Any] = None
    cuda: ClassVar[Any] = None
    #: The attributes in the order of their annotations.
    attributes: ClassVar[tuple[Attribute, ...]] = ()

    def shape(self, *inputs: Any) -> Any:
        """Computes the output shapes from the input shapes, whose sizes may be symbols.

        Args:
            inputs: a `Shape` for each input.

        Returns:
            The shape of the only output, as a tuple of sizes, or a tuple of shapes. Sizes are ints, or expressions of
            input sizes with `+ - * //`, `ceil_div`, `maximum` and `minimum`.
        """
        raise NotImplementedError

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" not in cls.__dict__:
            cls.name = cls.__name__
        try:
            _check_names(cls)
            _check_types(cls)
            cls.attributes = _declared_attributes(cls)
            _check_kernels(cls)
        except CustomOpError as error:
            raise CustomOpError(f"{cls.__module__}.{cls.__qualname__}: {error}") from None
        for attribute in cls.attributes:
            if attribute.name in cls.__dict__:  # dataclass() refuses a list
                setattr(cls, attribute.name, attribute.default)
        dataclass(frozen=True, kw_only=True, eq=False)(cls)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CustomOp) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[type[CustomOp], str]:
        """The class, and the values as text, in which -0.0 differs from 0.0."""
        return type(self), repr(self.values())

    def __post_init__(self) -> None:
        given = {attribute.name: getattr(self, attribute.name) for attribute in self.attributes}
        try:
            converted = convert_all(self.attributes, given)
        except CustomOpError as error:
            raise CustomOpError(f"operator {self.title()}: {error}") from None
        self.__dict__.update(converted)

    # ---- signatures and kernels ----

    @classmethod
    def title(cls) -> str:
        """`domain::name`, for messages."""
        return f"{cls.domain}::{cls.name}"

    @classmethod
    def signatures(cls) -> list[Signature]:
        """All combinations of element types, in the order of the declaration."""
        used = list(dict.fromkeys(kind for kind in (*cls.inputs.values(), *cls.outputs.values()) if kind in cls.types))
        result = []
        for choice in itertools.product(*(cls.types[name] for name in used)):
            types = dict(zip(used, choice, strict=True))
            sides = (tuple(types.get(kind, kind) for kind in side.values()) for side in (cls.inputs, cls.outputs))
            result.append(Signature(*sides))
        return result

    @classmethod
    def signature_for(cls, inputs: Sequence[str]) -> Signature:
        """The signature with these input types.

        Raises:
            CustomOpError: the operator does not support these types.
        """
        for signature in cls.signatures():
            if signature.inputs == tuple(inputs):
                return signature
        takes = " or ".join(f"({', '.join(signature.inputs)})" for signature in cls.signatures())
        raise CustomOpError(
            f"operator {cls.title()} takes inputs of types {takes}, not ({', '.join(inputs)}); add the type to "
            "`types`, or cast the input"
        )

    @classmethod
    def kernel_for(cls, device: str) -> Any:
        """The kernel for a kind of device, `"cpu"` or `"cuda"`.

        Raises:
            CustomOpError: there is no such kernel.
        """
        kernel = getattr(cls, device, None) if device in ("cpu", "cuda") else None
        if kernel is None:
            has = [kind for kind in ("cpu", "cuda") if getattr(cls, kind) is not None]
            write = {"cuda": "cuda = CudaSource(...) or CFunction(...)", "cpu": "def cpu(self, ...)"}.get(device)
            hint = f"write {write} in {cls.__qualname__}, or load" if write else "load"
            raise CustomOpError(
                f"operator {cls.title()} has no kernel for device {device!r}; it has {' and '.join(has)}: {hint} the "
                f"model on {' or '.join(has)}"
            )
        return kernel

    # ---- instances ----

    @classmethod
    def of(cls, values: Mapping[str, Any], node: str = "") -> Self:
        """Creates an instance with the attributes of a node.

        Raises:
            CustomOpError: an attribute is not valid; the message names the operator, the node and the attribute.
        """
        try:
            return cls(**convert_all(cls.attributes, values))
        except CustomOpError as error:
            where = f", node {node!r}" if node else ""
            raise CustomOpError(f"operator {cls.title()}{where}: {error}") from None

    def values(self) -> dict[str, Any]:
        """The values of the attributes, by name."""
        return {attribute.name: getattr(self, attribute.name) for attribute in self.attributes}

    def rule(self, ranks: Sequence[int]) -> Rule:
        """Traces `shape()` for inputs of these ranks.

        Raises:
            CustomOpError: `shape()` fails or does not return shapes.
        """
        try:
            return trace(self.shape, ranks, len(self.outputs))
        except Exception as error:
            said = str(error) if isinstance(error, CustomOpError) else f"shape() raises {type(error).__name__}: {error}"
            raise CustomOpError(
                f"operator {self.title()}: for inputs of {', '.join(map(str, ranks))} dimensions: {said}"
            ) from error


# ---- checks of a declaration ----


def _check_names(cls: type[CustomOp]) -> None:
    if cls.domain in _STANDARD or not isinstance(cls.domain, str) or not _DOMAIN.fullmatch(cls.domain):
        raise CustomOpError(
            f'domain is {cls.domain!r}; write domain = "my.company", with letters, digits, _ and dots; domains of the '
            "ONNX standard are reserved"
        )
    if not isinstance(cls.name, str) or not _NAME.fullmatch(cls.name):
        raise CustomOpError(f"name is {cls.name!r}; a name is letters, digits and _")
    if isinstance(cls.version, bool) or not isinstance(cls.version, int) or cls.version < 1:
        raise CustomOpError(f"version is {cls.version!r}; it is a whole number from 1")


def _check_types(cls: type[CustomOp]) -> None:
    for side in ("types", "inputs", "outputs"):
        if not isinstance(given := getattr(cls, side), Mapping):
            raise CustomOpError(f'{side} is {given!r}; it is a dict by name, such as inputs = {{"x": "float32"}}')
    for variable, kinds in cls.types.items():
        if not isinstance(kinds, tuple | list) or not kinds:
            raise CustomOpError(f"types[{variable!r}] is {kinds!r}; it is a tuple of element types")
        for kind in kinds:
            _check_dtype(kind, f"types[{variable!r}]", ())
    if not cls.outputs:
        raise CustomOpError('outputs is empty; write outputs = {"y": "float32"}')
    for side, tensors in (("inputs", cls.inputs), ("outputs", cls.outputs)):
        for name, kind in tensors.items():
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                raise CustomOpError(f"{side} has the name {name!r}; a name is letters, digits and _")
            _check_dtype(kind, f"{side}[{name!r}]", tuple(cls.types))
    if twice := set(cls.inputs) & set(cls.outputs):
        raise CustomOpError(f"{sorted(twice)[0]!r} is the name of an input and of an output; use different names")
    inputs = {kind for kind in cls.inputs.values() if kind in cls.types}
    for name, kind in cls.outputs.items():
        if kind in cls.types and kind not in inputs:
            raise CustomOpError(
                f"outputs[{name!r}] has the type variable {kind!r}, which no input has; use an element type"
            )
    if len(cls.inputs) + len(cls.outputs) > 32:
        raise CustomOpError(
            f"it has {len(cls.inputs)} inputs and {len(cls.outputs)} outputs; the maximum is 32 together"
        )


def _check_dtype(kind: Any, where: str, variables: tuple[str, ...]) -> None:
    if kind not in DTYPES and kind not in variables:
        also = f", or a type variable ({', '.join(variables)})" if variables else ""
        raise CustomOpError(f"{where} is {kind!r}; an element type is {', '.join(DTYPES)}{also}")


def _declared_attributes(cls: type[CustomOp]) -> tuple[Attribute, ...]:
    inherited = list(getattr(cls, "__dataclass_fields__", {}))
    names = [*inherited, *(name for name in inspect.get_annotations(cls) if name not in inherited)]
    if not names:
        return ()
    try:
        hints = get_type_hints(cls, localns={"ClassVar": ClassVar, **vars(builtins)})
    except (NameError, TypeError) as error:
        raise CustomOpError(f"an annotation cannot be read: {error}") from None
    declared = {name: hints[name] for name in names if ClassVar not in (hints[name], get_origin(hints[name]))}
    if clash := [name for name in declared if name in cls.inputs or name in cls.outputs]:
        raise CustomOpError(f"{clash[0]!r} is the name of an attribute and of an input or output; use different names")
    if hidden := [name for name in declared if hasattr(CustomOp, name)]:
        raise CustomOpError(f"attribute {hidden[0]!r} would hide CustomOp.{hidden[0]}; give it another name")
    return tuple(attribute_of(name, hint, getattr(cls, name, MISSING)) for name, hint in declared.items())


def _check_kernels(cls: type[CustomOp]) -> None:
    if cls.shape is CustomOp.shape:
        raise CustomOpError(f"it has no shape(); write def shape({', '.join(('self', *cls.inputs))}): return ...")
    _check_arguments(cls, "shape", tuple(cls.inputs))
    if cls.cpu is None and cls.cuda is None:
        raise CustomOpError(f"it has no kernel; write def cpu(self, {', '.join((*cls.inputs, *cls.outputs))})")
    if inspect.isfunction(cls.cpu):
        _check_arguments(cls, "cpu", (*cls.inputs, *cls.outputs))
    elif cls.cpu is not None and not isinstance(cls.cpu, CFunction | CSource):
        raise CustomOpError(f"cpu is {cls.cpu!r}; it is a method, a CFunction or a CSource")
    if cls.cuda is not None and not isinstance(cls.cuda, CFunction | CudaSource):
        raise CustomOpError(f"cuda is {cls.cuda!r}; it is a CudaSource or a CFunction")
    for device in ("cpu", "cuda"):
        if isinstance(options := getattr(getattr(cls, device), "options", ()), str):
            raise CustomOpError(f"the options of {device} are {options!r}; write a tuple, {tuple(options.split())!r}")


def _check_arguments(cls: type[CustomOp], method: str, names: tuple[str, ...]) -> None:
    try:
        inspect.signature(getattr(cls, method)).bind(None, *names)
    except TypeError:
        raise CustomOpError(
            f"{method}() cannot be called with {', '.join(names) or 'no inputs'}; write def "
            f"{method}({', '.join(('self', *names))})"
        ) from None
