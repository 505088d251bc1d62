"""Collects declared custom operators and checks the custom nodes of a model."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ..core.model_source import KNOWN_DOMAINS
from ..errors import CustomOpError, ModelFormatError, UnsupportedModelError
from ..graph.parts import inline_functions
from .declaration import CustomOp
from .failures import raised
from .onnx_schema import registered

if TYPE_CHECKING:
    import onnx_ir as ir

    from ..core.model_source import ModelSource

__all__ = [
    "OperatorSet", "all_nodes", "custom_nodes", "declared", "explain", "foreign_nodes", "node_name", "operators_for",
    "undeclared",
]  # fmt: skip

ENTRY_POINTS = "infersdk.custom_ops"
#: The domain of the operators of infersdk.
OWN_DOMAIN = "infersdk"


class OperatorSet(dict[tuple[str, str], type[CustomOp]]):
    """Declared operators by domain and name.

    Attributes:
        in_functions: whether the model of the operators has functions, which were inlined to find them.
    """

    in_functions = False


def _path(op: type[CustomOp]) -> str:
    return f"{op.__module__}.{op.__qualname__}"


# ---- declared operators ----


def declared(custom_ops: Sequence[type[CustomOp]], domains: frozenset[str]) -> OperatorSet:
    """The given operators and, if `domains` require them, those of infersdk and of installed packages.

    Raises:
        CustomOpError: an item is not an operator class, two have the same domain and name, or an entry point of a
            package fails.
    """
    if not isinstance(custom_ops, Sequence) or isinstance(custom_ops, str):
        raise CustomOpError(f"custom_ops is {custom_ops!r}; use a list of classes: custom_ops=[MyOperator]")
    found: list[tuple[Any, str]] = [(op, "custom_ops") for op in custom_ops]
    if OWN_DOMAIN in domains:
        from .packaged import OPERATORS

        found += [(op, "infersdk") for op in OPERATORS]
    if domains - {OWN_DOMAIN}:
        found += _installed()
    result = OperatorSet()
    for op, where in found:
        if not (isinstance(op, type) and issubclass(op, CustomOp)):
            raise CustomOpError(f"{where} has {op!r}; use classes that derive from infersdk.custom_ops.CustomOp")
        other = result.setdefault((op.domain, op.name), op)
        if other is not op:
            raise CustomOpError(
                f"operator {op.title()} is declared twice: by {_path(other)} and by {_path(op)}; use one of them, or "
                "rename one"
            )
    if twice := [op for op in custom_ops if list(custom_ops).count(op) > 1]:
        raise CustomOpError(f"custom_ops has {_path(twice[0])} twice; give it once")
    return result


def _installed() -> Iterator[tuple[Any, str]]:
    """The operators of installed packages. Each entry point is a class or a list of classes."""
    from importlib.metadata import entry_points

    for point in entry_points(group=ENTRY_POINTS):
        package = point.dist.name if point.dist else point.value
        where = f"entry point {point.name!r} of package {package}"
        try:
            value = point.load()
        except Exception as error:
            raise CustomOpError(
                f"{where} cannot be loaded: {type(error).__name__}: {error}; fix or uninstall it"
            ) from error
        for op in value if isinstance(value, list | tuple) else [value]:
            yield op, where


# ---- the operators of a model ----


def operators_for(source: ModelSource, custom_ops: Sequence[type[CustomOp]] | None) -> OperatorSet | None:
    """The custom operators of an ONNX file, whose nodes are checked; None if there are none.

    Other formats are assumed to use all given operators.

    Raises:
        CustomOpError: an operator is not declared, is declared twice, or has another version than in the model, or an
            attribute is unknown or missing.
        UnsupportedModelError: as `inline_functions`.
    """
    domains = source.foreign_domains
    if not domains and not custom_ops:
        return None
    ops = declared(custom_ops or (), domains)
    if not source.is_onnx or not ops:
        return ops or None
    from ..graph.files import read_model

    model, result = read_model(source), OperatorSet()
    result.in_functions = bool(model.functions)
    for op in custom_nodes(model, ops, source.name).values():
        result[op.domain, op.name] = type(op)
    return result or None


def custom_nodes(model: ir.Model, ops: OperatorSet, what: str) -> dict[ir.Node, CustomOp]:
    """The custom nodes of a model in order, each with its operator, which has the attributes of the node.

    Functions of the model are inlined, since their nodes may have attributes of calls. A declared operator is used
    instead of a function of its name.
    """
    inline_functions(model, lambda function: (function.domain, function.name) not in ops)
    imported = model.graph.opset_imports
    ours = ({domain for domain, _ in ops} | {OWN_DOMAIN}) - KNOWN_DOMAINS
    result = {}
    for raw in all_nodes(model):
        op = ops.get((raw.domain, raw.op_type))
        name = node_name(raw)
        if op is None:
            if raw.domain in ours:
                raise CustomOpError(undeclared(raw, what))
            continue
        if op.version > imported.get(raw.domain, 0):
            raise CustomOpError(
                f"operator {op.title()}, node {name!r}: {what} has version {imported.get(raw.domain, 0)} of domain "
                f"{op.domain!r}, and the operator is declared with version {op.version}; export the model again, or "
                "use the operator of that version"
            )
        _check_counts(op, raw, name)
        values = {key: attribute.value for key, attribute in raw.attributes.items()}
        result[raw] = op.of(values, name)
    return result


def node_name(raw: ir.Node) -> str:
    """The name of a node, or its operator and first output if it has none."""
    return raw.name or f"{raw.op_type} of {raw.outputs[0].name if raw.outputs else 'nothing'}"


def _check_counts(op: type[CustomOp], raw: ir.Node, name: str) -> None:
    for side, names, given in (("input", op.inputs, raw.inputs), ("output", op.outputs, raw.outputs)):
        connected = [value for value in given if value is not None and value.name]
        if len(given) != len(names) or len(connected) != len(names):
            raise CustomOpError(
                f"operator {op.title()}, node {name!r}: it has {len(connected)} {side}s, and the operator declares "
                f"{len(names)} ({', '.join(names)}); connect each of them"
            )


def all_nodes(model: ir.Model) -> Iterator[ir.Node]:
    """All nodes, those of subgraphs and functions included."""
    yield from model.graph.all_nodes()
    for function in model.functions.values():
        yield from function.all_nodes()


def foreign_nodes(model: ir.Model) -> Iterator[ir.Node]:
    """The nodes whose operators belong neither to the standard nor to a runtime, and are no functions of the model."""
    for raw in all_nodes(model):
        if raw.domain not in KNOWN_DOMAINS and raw.op_identifier() not in model.functions:
            yield raw


def undeclared(raw: ir.Node, what: str) -> str:
    """The message for a node with an undeclared operator."""
    return (
        f"operator {raw.domain}::{raw.op_type}, node {node_name(raw)!r} of {what}: not declared. Derive a class "
        f"from infersdk.custom_ops.CustomOp with domain = {raw.domain!r} and name = {raw.op_type!r}, and load the "
        "model with custom_ops=[that class]; or install the package that declares it"
    )


def explain(source: ModelSource, ops: OperatorSet | None, error: Exception) -> Exception:
    """Returns a more specific error if a custom operator caused the error of a backend; otherwise the error."""
    if not isinstance(error, ModelFormatError | UnsupportedModelError) or not source.foreign_domains:
        return error
    from ..graph.files import read_model

    for raw in foreign_nodes(read_model(source)):
        if (raw.domain, raw.op_type) not in (ops or {}):
            return UnsupportedModelError(f"{undeclared(raw, source.name)}. The backend reports: {error}")
    return _wrong_inputs(source, ops) or error


def _wrong_inputs(source: ModelSource, ops: OperatorSet | None) -> Exception | None:
    """The error that ONNX's shape inference reports for the inputs of a custom operator, if any."""
    import onnx

    from ..graph.files import load_proto

    try:
        with registered(*(ops or {}).values()):
            onnx.shape_inference.infer_shapes(load_proto(source), strict_mode=True)
    except Exception as error:
        wrong = raised(error)
        if isinstance(wrong, CustomOpError):
            node = re.search(r"node name: (.*?)\)", str(error))
            return CustomOpError(f"{f'node {node[1]!r}: ' if node else ''}{wrong}")
    return None
