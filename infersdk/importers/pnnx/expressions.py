"""The expressions of PNNX: `add(mul(@0,2.0),@1)`, `[1,size(@0,1),-1]`, and the index lists of Tensor.index."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...errors import ModelFormatError
from .graph import parse_scalar

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Call", "Input", "functions", "parse_expression"]

_TOKEN = re.compile(r"[()\[\],]|[^()\[\],]+")
#: Unary functions that pnnx writes like values, with their arguments after them in the text, regardless of brackets:
#: `add(@0,log1p),abs(@1)` for `add(@0,log1p(abs(@1)))`.
_WRITTEN_AS_VALUES = frozenset({"log1p", "expm1"})
#: The maximum depth, since the parser is recursive.
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
    tokens = _TOKEN.findall(text)
    parser = _Parser(text, tokens, inputs)
    trees = [parser.expression(0)]
    while parser.at < len(tokens) and tokens[parser.at] == ",":
        parser.at += 1
        trees.append(parser.expression(0))
    if parser.at != len(tokens):
        raise parser.error(f"{tokens[parser.at]!r} is unexpected")
    items = [item for tree in trees for item in _in_order(tree)]
    if len(trees) == 1 and not any(item == (name, 1) for item in items for name in _WRITTEN_AS_VALUES):
        return trees[0]
    tree = parser.rebuilt(iter(items), 0)
    if len(list(_in_order(tree))) != len(items):
        raise parser.error("it has too many values")
    return tree


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


class _Parser:
    def __init__(self, text: str, tokens: list[str], inputs: int) -> None:
        self.text, self.tokens, self.inputs = text, tokens, inputs
        self.at = 0

    def error(self, why: str) -> ModelFormatError:
        return ModelFormatError(f"the expression {self.text[:200]!r} is malformed: {why}")

    def expression(self, depth: int) -> Any:
        if depth > _DEEPEST:
            raise self.error(f"it is nested more than {_DEEPEST} deep")
        token = self._next()
        if token == "[":
            return Call("[]", self._arguments("]", depth))
        if token in "()],":
            raise self.error(f"{token!r} instead of a value")
        if self.at < len(self.tokens) and self.tokens[self.at] == "(":
            self.at += 1
            return Call(token, self._arguments(")", depth))
        if token.startswith("@"):
            if not token[1:].isdigit() or len(token) > 8 or int(token[1:]) >= self.inputs:
                raise self.error(f"{token} is not one of its {self.inputs} inputs")
            return Input(int(token[1:]))
        return parse_scalar(token.strip())

    def rebuilt(self, items: Iterator[tuple[Any, int]], depth: int) -> Any:
        """The tree for functions and values in the order of the text."""
        if depth > _DEEPEST:
            raise self.error(f"it is nested more than {_DEEPEST} deep")
        item = next(items, None)
        if item is None:
            raise self.error("it ends too early")
        value, count = item
        if not isinstance(value, str) or (count == 0 and value != "[]"):
            return value
        return Call(value, tuple(self.rebuilt(items, depth + 1) for _ in range(count)))

    def _next(self) -> str:
        if self.at >= len(self.tokens):
            raise self.error("it ends too early")
        self.at += 1
        return self.tokens[self.at - 1]

    def _arguments(self, end: str, depth: int) -> tuple[Any, ...]:
        result: list[Any] = []
        if self.at < len(self.tokens) and self.tokens[self.at] == end:
            self.at += 1
            return ()
        while True:
            result.append(self.expression(depth + 1))
            token = self._next()
            if token == end:
                return tuple(result)
            if token != ",":
                raise self.error(f"{token!r} instead of ',' or {end!r}")
