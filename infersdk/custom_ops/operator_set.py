"""The custom operators of a model: which are declared, which it uses, and whether they fit together."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import CustomOpError, ModelFormatError, UnsupportedModelError
from ..graph.domains import KNOWN_DOMAINS, foreign_domains
from .declaration import CustomOp
from .failures import raised

__all__ = ["ModelNode", "OperatorSet", "custom_nodes", "declared", "explain", "operators_for"]

ENTRY_POINTS = "infersdk.custom_ops"
#: The domain of the operators that come with infersdk.
OWN_DOMAIN = "infersdk"


@dataclass(frozen=True)
class ModelNode:
    """A node of a model that is a custom operator.

    Attributes:
        name: the node's name, or what stands for it: the operator and its first output.
        op: the operator with the node's attributes.
        raw: the NodeProto.
        nested: whether it lies in a graph within the graph, as a branch of an If.
    """

    name: str
    op: CustomOp
    raw: Any
    nested: bool = False


class OperatorSet:
    """Declared operators, by domain and name.

    Args:
        ops: the classes.

    Raises:
        CustomOpError: one is no operator, or two are of the same domain and name.
    """

    def __init__(self, ops: Sequence[type[CustomOp]]) -> None:
        self.ops: dict[tuple[str, str], type[CustomOp]] = {}
        for op in ops:
            self._add(op, "custom_ops")

    def _add(self, op: Any, where: str) -> None:
        if not (isinstance(op, type) and issubclass(op, CustomOp)):
            raise CustomOpError(f"{where} has {op!r}; it takes classes that derive from infersdk.custom_ops.CustomOp")
        other = self.ops.setdefault((op.domain, op.name), op)
        if other is not op:
            raise CustomOpError(
                f"operator {op.title()} is declared twice: by {_path(other)} and by {_path(op)}; give one of them, or "
                "another domain or name to one"
            )

    def __iter__(self) -> Iterator[type[CustomOp]]:
        return iter(self.ops.values())

    def __len__(self) -> int:
        return len(self.ops)

    def get(self, domain: str, name: str) -> type[CustomOp] | None:
        return self.ops.get((domain, name))

    def versions(self) -> list[str]:
        """`domain::name@version` of each, sorted: what engines and keys of caches carry."""
        return sorted(f"{op.title()}@{op.version}" for op in self)


def _path(op: type[CustomOp]) -> str:
    return f"{op.__module__}.{op.__qualname__}"


# ---- what is declared ----


def declared(custom_ops: Sequence[type[CustomOp]], domains: set[str]) -> OperatorSet:
    """The operators that are given, and for what else the model's domains need: those of installed packages, and ours.

    Raises:
        CustomOpError: see `OperatorSet`; or a package's entry point fails.
    """
    if isinstance(custom_ops, type) or not isinstance(custom_ops, Sequence) or isinstance(custom_ops, str):
        raise CustomOpError(f"custom_ops is {custom_ops!r}; it is a list of classes: custom_ops=[MyOperator]")
    found = OperatorSet(())
    twice = [op for op in custom_ops if list(custom_ops).count(op) > 1]
    if twice:
        raise CustomOpError(f"custom_ops has {_path(twice[0])} twice; give it once")
    for op in custom_ops:
        found._add(op, "custom_ops")
    if OWN_DOMAIN in domains:
        from .packaged import OPERATORS

        for op in OPERATORS:
            found._add(op, "infersdk")
    if domains - {OWN_DOMAIN}:
        for op, where in _installed():
            found._add(op, where)
    return found


def _installed() -> Iterator[tuple[Any, str]]:
    """The operators of installed packages, by their entry points: each is a class, or a list of them."""
    from importlib.metadata import entry_points

    for point in entry_points(group=ENTRY_POINTS):
        package = point.dist.name if point.dist else point.value
        where = f"entry point {point.name!r} of package {package}"
        try:
            value = point.load()
        except Exception as error:
            raise CustomOpError(
                f"{where} cannot be loaded: {type(error).__name__}: {error}; mend or uninstall it"
            ) from error
        for op in value if isinstance(value, list | tuple) else [value]:
            yield op, where


# ---- what a model uses ----


def operators_for(path: Path, custom_ops: Sequence[type[CustomOp]] | None) -> OperatorSet | None:
    """The custom operators that an ONNX file uses; None if it uses none. Their nodes are checked.

    A file of another format is taken at its word: it uses all that are given.

    Raises:
        CustomOpError: an operator that nobody declared, is declared twice, or is of another version than the model's;
            an attribute that a node may not have, or lacks.
    """
    domains = foreign_domains(path)
    if not domains and not custom_ops:
        return None
    ops = declared(custom_ops or (), domains)
    if path.suffix.lower() != ".onnx":
        return ops if len(ops) else None
    from ..graph.info import load_onnx

    model = load_onnx(path, external_data=False)
    used = {node.op.title(): type(node.op) for node in custom_nodes(model, ops, path.name)}
    return OperatorSet(list(used.values())) if used else None


def custom_nodes(model: Any, ops: OperatorSet, what: str) -> list[ModelNode]:
    """The nodes of a ModelProto that are custom operators, in the order of the graph.

    Raises:
        CustomOpError: see `operators_for`.
    """
    imported = {entry.domain: entry.version for entry in model.opset_import}
    domains = {op.domain for op in ops} | {OWN_DOMAIN}
    local = {(function.domain, function.name) for function in model.functions}
    found = []
    for raw, nested in _all_nodes(model):
        op = ops.get(raw.domain, raw.op_type)
        name = node_name(raw)
        if op is None:
            if raw.domain in domains - KNOWN_DOMAINS and (raw.domain, raw.op_type) not in local:
                raise CustomOpError(undeclared(raw, what))
            continue
        if op.version > imported.get(raw.domain, 0):
            raise CustomOpError(
                f"operator {op.title()}, node {name!r}: {what} has version {imported.get(raw.domain, 0)} of domain "
                f"{op.domain!r}, and the operator is declared in version {op.version}; export the model anew, or give "
                "the operator of that version"
            )
        _check_counts(op, raw, name)
        found.append(ModelNode(name, op.of(attribute_values(raw), name), raw, nested))
    return found


def node_name(raw: Any) -> str:
    """A node's name; for one without, its operator and first output."""
    return str(raw.name) or f"{raw.op_type} of {raw.output[0] if raw.output else 'nothing'}"


def attribute_values(raw: Any) -> dict[str, Any]:
    """The attributes of a NodeProto; what no custom operator can have comes as its AttributeProto."""
    from onnx import AttributeProto, helper

    plain = {
        AttributeProto.INT, AttributeProto.FLOAT, AttributeProto.STRING, AttributeProto.INTS, AttributeProto.FLOATS,
    }  # fmt: skip
    return {a.name: helper.get_attribute_value(a) if a.type in plain else a for a in raw.attribute}


def _check_counts(op: type[CustomOp], raw: Any, name: str) -> None:
    for side, names, given in (("input", op.inputs, raw.input), ("output", op.outputs, raw.output)):
        if len(given) != len(names) or not all(given):
            raise CustomOpError(
                f"operator {op.title()}, node {name!r}: it has {len([g for g in given if g])} {side}s, and the "
                f"operator declares {len(names)} ({', '.join(names)}); connect each of them"
            )


def _all_nodes(model: Any) -> Iterator[tuple[Any, bool]]:
    """All nodes, with whether they lie in a graph within the graph or in a function."""
    for node in model.graph.node:
        yield node, False
        yield from ((inner, True) for inner in _inner_nodes(node))
    for function in model.functions:
        for node in function.node:
            yield node, True
            yield from ((inner, True) for inner in _inner_nodes(node))


def _inner_nodes(node: Any) -> Iterator[Any]:
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                yield inner
                yield from _inner_nodes(inner)


def undeclared(raw: Any, what: str) -> str:
    """The message for a node whose operator nobody declared."""
    return (
        f"operator {raw.domain}::{raw.op_type}, node {node_name(raw)!r} of {what}: nobody declares it. Derive a class "
        f"from infersdk.custom_ops.CustomOp with domain = {raw.domain!r} and name = {raw.op_type!r}, and load the "
        "model with custom_ops=[that class]; or install the package that declares it"
    )


def explain(path: Path, ops: OperatorSet | None, error: Exception) -> Exception:
    """What to raise where a backend refused a model: what is wrong with one of its custom operators, or the error."""
    if not isinstance(error, ModelFormatError | UnsupportedModelError) or not foreign_domains(path):
        return error
    from ..graph.info import load_onnx

    model = load_onnx(path, external_data=False)
    local = {(function.domain, function.name) for function in model.functions}
    for raw, _ in _all_nodes(model):
        foreign = raw.domain not in KNOWN_DOMAINS and (raw.domain, raw.op_type) not in local
        if foreign and (ops is None or ops.get(raw.domain, raw.op_type) is None):
            return UnsupportedModelError(f"{undeclared(raw, path.name)}. The backend says: {error}")
    return _wrong_inputs(model) or error


def _wrong_inputs(model: Any) -> Exception | None:
    """What ONNX's shape inference finds wrong with the inputs of a custom operator, as their types."""
    import onnx

    try:
        onnx.shape_inference.infer_shapes(model, strict_mode=True)
    except Exception as error:
        wrong = raised(error)
        if isinstance(wrong, CustomOpError):
            node = re.search(r"node name: (.*?)\)", str(error))
            return CustomOpError(f"{f'node {node[1]!r}: ' if node else ''}{wrong}")
    return None
