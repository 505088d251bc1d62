"""The custom operators of a model: which are declared, which it uses, and whether they fit together."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import CustomOpError, ModelFormatError, UnsupportedModelError
from ..graph.domains import KNOWN_DOMAINS, foreign_domains
from .declaration import CustomOp
from .failures import raised
from .onnx_schema import registered

if TYPE_CHECKING:
    import onnx_ir as ir

    from ..model_source import ModelSource

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
        raw: the node itself.
        nested: whether it lies in a graph within the graph, as a branch of an If.
    """

    name: str
    op: CustomOp
    raw: ir.Node
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
    result = OperatorSet(())
    twice = [op for op in custom_ops if list(custom_ops).count(op) > 1]
    if twice:
        raise CustomOpError(f"custom_ops has {_path(twice[0])} twice; give it once")
    for op in custom_ops:
        result._add(op, "custom_ops")
    if OWN_DOMAIN in domains:
        from .packaged import OPERATORS

        for op in OPERATORS:
            result._add(op, "infersdk")
    if domains - {OWN_DOMAIN}:
        for op, where in _installed():
            result._add(op, where)
    return result


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


def operators_for(source: ModelSource, custom_ops: Sequence[type[CustomOp]] | None) -> OperatorSet | None:
    """The custom operators that an ONNX file uses; None if it uses none. Their nodes are checked.

    A file of another format is taken at its word: it uses all that are given.

    Raises:
        CustomOpError: an operator is not declared, is declared twice, or is of another version than the model's;
            an attribute that a node may not have, or lacks.
    """
    domains = foreign_domains(source)
    if not domains and not custom_ops:
        return None
    ops = declared(custom_ops or (), domains)
    if not source.is_onnx:
        return ops if len(ops) else None
    from ..graph.files import read_model

    used = {node.op.title(): type(node.op) for node in custom_nodes(read_model(source), ops, source.name)}
    return OperatorSet(list(used.values())) if used else None


def custom_nodes(model: ir.Model, ops: OperatorSet, what: str) -> list[ModelNode]:
    """The nodes of a model that are custom operators, in the order of the graph.

    Raises:
        CustomOpError: see `operators_for`.
    """
    imported = model.graph.opset_imports
    ours = ({op.domain for op in ops} | {OWN_DOMAIN}) - KNOWN_DOMAINS
    result = []
    for raw, nested in all_nodes(model):
        op = ops.get(raw.domain, raw.op_type)
        name = node_name(raw)
        if op is None:
            if raw.domain in ours and raw.op_identifier() not in model.functions:
                raise CustomOpError(undeclared(raw, what))
            continue
        if op.version > imported.get(raw.domain, 0):
            raise CustomOpError(
                f"operator {op.title()}, node {name!r}: {what} has version {imported.get(raw.domain, 0)} of domain "
                f"{op.domain!r}, and the operator is declared in version {op.version}; export the model anew, or give "
                "the operator of that version"
            )
        _check_counts(op, raw, name)
        result.append(ModelNode(name, op.of(attribute_values(raw), name), raw, nested))
    return result


def node_name(raw: ir.Node) -> str:
    """A node's name; for one without, its operator and first output."""
    return raw.name or f"{raw.op_type} of {raw.outputs[0].name if raw.outputs else 'nothing'}"


def attribute_values(raw: ir.Node) -> dict[str, Any]:
    """The attributes of a node; what no custom operator can have comes as its `ir.Attr`."""
    return {name: attribute.value if attribute.type.name in _PLAIN else attribute
            for name, attribute in raw.attributes.items()}  # fmt: skip


#: The kinds of attributes that a custom operator may have.
_PLAIN = ("INT", "FLOAT", "STRING", "INTS", "FLOATS")


def _check_counts(op: type[CustomOp], raw: ir.Node, name: str) -> None:
    for side, names, given in (("input", op.inputs, raw.inputs), ("output", op.outputs, raw.outputs)):
        connected = [value for value in given if value is not None and value.name]
        if len(given) != len(names) or len(connected) != len(names):
            raise CustomOpError(
                f"operator {op.title()}, node {name!r}: it has {len(connected)} {side}s, and the operator declares "
                f"{len(names)} ({', '.join(names)}); connect each of them"
            )


def all_nodes(model: ir.Model) -> Iterator[tuple[ir.Node, bool]]:
    """All nodes, with whether they lie in a graph within the graph or in a function."""
    for node in model.graph.all_nodes():
        yield node, node.graph is not model.graph
    for function in model.functions.values():
        for node in function.all_nodes():
            yield node, True


def undeclared(raw: ir.Node, what: str) -> str:
    """The message for a node whose operator is not declared."""
    return (
        f"operator {raw.domain}::{raw.op_type}, node {node_name(raw)!r} of {what}: not declared. Derive a class "
        f"from infersdk.custom_ops.CustomOp with domain = {raw.domain!r} and name = {raw.op_type!r}, and load the "
        "model with custom_ops=[that class]; or install the package that declares it"
    )


def explain(source: ModelSource, ops: OperatorSet | None, error: Exception) -> Exception:
    """What to raise where a backend refused a model: what is wrong with one of its custom operators, or the error."""
    if not isinstance(error, ModelFormatError | UnsupportedModelError) or not foreign_domains(source):
        return error
    from ..graph.files import read_model

    model = read_model(source)
    for raw, _ in all_nodes(model):
        foreign = raw.domain not in KNOWN_DOMAINS and raw.op_identifier() not in model.functions
        if foreign and (ops is None or ops.get(raw.domain, raw.op_type) is None):
            return UnsupportedModelError(f"{undeclared(raw, source.name)}. The backend says: {error}")
    return _wrong_inputs(source, ops) or error


def _wrong_inputs(source: ModelSource, ops: OperatorSet | None) -> Exception | None:
    """What ONNX's shape inference finds wrong with the inputs of a custom operator, as their types."""
    import onnx

    from ..graph.files import load_proto

    try:
        with registered(*(ops or ())):
            onnx.shape_inference.infer_shapes(load_proto(source), strict_mode=True)
    except Exception as error:
        wrong = raised(error)
        if isinstance(wrong, CustomOpError):
            node = re.search(r"node name: (.*?)\)", str(error))
            return CustomOpError(f"{f'node {node[1]!r}: ' if node else ''}{wrong}")
    return None
