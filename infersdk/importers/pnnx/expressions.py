"""The expressions of PNNX: `add(mul(@0,2.0),@1)`, `[1,size(@0,1),-1]`, and the index lists of Tensor.index."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...errors import ModelFormatError
from .graph import parse_scalar

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Call", "Input", "functions", "parse_expression"]

#: Unary functions that pnnx writes like values, with their arguments after them in the text, regardless of brackets:
#: `add(@0,log1p),abs(@1)` for `add(@0,log1p(abs(@1)))`.
_WRITTEN_AS_VALUES = frozenset({"log1p", "expm1"})
#: The maximum depth of functions that are written as values.
_DEEPEST = 200


@dataclass(frozen=True)
class Input:
    """`@N`: input N of the operator."""

    index: int


@dataclass(frozen=True)
class Call:
    """A function of expressions; `"[]"` creates a list."""

    function: str
    arguments: tuple[Any, ...]


def parse_expression(text: str, inputs: int) -> Any:
    """Parses an expression to a tree of `Call`, `Input` and Python values.

    Args:
        inputs: the number of inputs of the operator.

    Raises:
        ModelFormatError: the text is not a valid expression, or an input does not exist.
    """
    called = re.sub(r"([^\W\d]\w*)(?=\()", r"call_\1", text)  # some functions have the names of Python's keywords
    try:
        made = ast.parse(f"({re.sub('@(?=[0-9])', 'input_', called)},)", mode="eval").body
        assert isinstance(made, ast.Tuple)
        trees = [_tree(node, inputs) for node in made.elts]
        items = [item for tree in trees for item in _in_order(tree)]
        if len(trees) == 1 and not any(item == (name, 1) for item in items for name in _WRITTEN_AS_VALUES):
            return trees[0]
        rest = iter(items)
        tree = _rebuilt(rest, 0)
        if next(rest, None) is not None:
            raise ValueError("it has too many values")
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise ModelFormatError(f"the expression {text[:200]!r} is malformed: {error}") from None
    return tree


def _tree(node: ast.expr, inputs: int) -> Any:
    if isinstance(node, ast.List):
        return Call("[]", tuple(_tree(one, inputs) for one in node.elts))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        return Call(node.func.id.removeprefix("call_"), tuple(_tree(one, inputs) for one in node.args))
    if isinstance(node, ast.Name) and (index := node.id.removeprefix("input_")) != node.id:
        if not index.isdecimal() or len(index) > 7 or int(index) >= inputs:
            raise ValueError(f"@{index} is not one of its {inputs} inputs")
        return Input(int(index))
    if not isinstance(node, ast.Name | ast.Attribute | ast.Constant | ast.UnaryOp):
        raise ValueError(f"{ast.unparse(node)!r} instead of a value")
    return parse_scalar(ast.unparse(node))


def _rebuilt(items: Iterator[tuple[Any, int]], depth: int) -> Any:
    """The tree for functions and values in the order of the text."""
    if depth > _DEEPEST:
        raise ValueError(f"it is nested more than {_DEEPEST} deep")
    item = next(items, None)
    if item is None:
        raise ValueError("it ends too early")
    value, count = item
    if not isinstance(value, str) or (count == 0 and value != "[]"):
        return value
    return Call(value, tuple(_rebuilt(items, depth + 1) for _ in range(count)))


def _in_order(tree: Any) -> Iterator[tuple[Any, int]]:
    """The functions and values in the order of the text, each with its number of arguments."""
    if isinstance(tree, Call):
        yield tree.function, len(tree.arguments)
        for inner in tree.arguments:
            yield from _in_order(inner)
    else:
        yield tree, int(isinstance(tree, str) and tree in _WRITTEN_AS_VALUES)


def functions(tree: Any) -> list[str]:
    """The names of all functions in a tree."""
    if not isinstance(tree, Call):
        return []
    return [tree.function, *(name for inner in tree.arguments for name in functions(inner))]
