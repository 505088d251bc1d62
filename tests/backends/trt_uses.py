"""Which names of TensorRT's Python interface the backend uses: from the annotations of its sources and the stubs.

`python tests/backends/trt_uses.py FOLDER` repairs the stubs that were installed into a folder, for mypy.
"""

from __future__ import annotations

import ast
import re
import sys
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Use", "module_names", "object_uses", "overridden", "repaired"]


def repaired(stub: str) -> str:
    """A stub file as Python can read it: those of tensorrt-stubs 10.13 name parameters `in`, and have parameters
    without a default behind some that have one.
    """

    def line(match: re.Match[str]) -> str:
        head, _, rest = match[0].partition("(")
        body, arrow, tail = rest.rpartition(") ->")
        parameters = re.split(r",(?![^\[(]*[\])])", re.sub(r"(^|[(, ])in: ", r"\1in_: ", body))
        optional = False
        for i, parameter in enumerate(parameters):
            if parameter.strip().startswith("*"):
                break
            optional = optional or "=" in parameter
            if optional and "=" not in parameter:
                parameters[i] = f"{parameter} = ..."
        return f"{head}({','.join(parameters)}{arrow}{tail}"

    return re.sub(r"^ *def .* -> .*:$", line, stub, flags=re.MULTILINE)


def module_names(folder: Path) -> set[str]:
    """`Builder`, `BuilderFlag.TF32`, ...: all that the sources take from the module, by whatever name it goes there."""
    found = set()
    for file in sorted(folder.glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            names: list[str] = []
            inner: ast.AST = node
            while isinstance(inner, ast.Attribute):
                names.insert(0, inner.attr)
                inner = inner.value
            if isinstance(inner, ast.Name):
                names.insert(0, inner.id)
            if "trt" in names[:-1] and names[0] in ("trt", "flavour", "self"):
                found.add(".".join(names[names.index("trt") + 1 :]))
    return {name.partition(".__members__")[0] for name in found if not name.endswith("__init__")}


@dataclass(frozen=True)
class Use:
    """A member of an object of TensorRT, and of a call its arguments.

    Attributes:
        owner: the class.
        positional: how many positional arguments; None where it is not called, or with `*arguments`.
        keywords: the names of the others.
    """

    owner: str
    member: str
    positional: int | None = None
    keywords: tuple[str, ...] = ()


class _Stubs:
    """What members of the classes are or return, by the stubs."""

    def __init__(self, text: str) -> None:
        self.members: dict[str, dict[str, str]] = {}
        for node in ast.parse(text).body:
            if isinstance(node, ast.ClassDef):
                members = self.members.setdefault(node.name, {})
                for base in node.bases:
                    members |= self.members.get(ast.unparse(base), {})
                for one in node.body:
                    if isinstance(one, ast.FunctionDef):
                        members[one.name] = ast.unparse(one.returns) if one.returns else ""
                    elif isinstance(one, ast.AnnAssign):
                        members[ast.unparse(one.target)] = ast.unparse(one.annotation)

    def member(self, owner: str, name: str) -> str:
        return self._known(self.members.get(owner, {}).get(name, ""))

    def _known(self, annotation: str) -> str:
        plain = annotation.replace(" | None", "").rpartition(".")[2]
        return plain if plain in self.members or plain.startswith("list[") else ""


class _Uses(ast.NodeVisitor):
    """Goes through a module: what is annotated with a class of TensorRT has it, and what comes out of its members."""

    def __init__(self, stubs: _Stubs, attributes: dict[str, str], returns: dict[str, str]) -> None:
        self.stubs, self.attributes, self.returns, self.found = stubs, attributes, returns, set[Use]()
        self.names: dict[str, str] = {}

    @staticmethod
    def annotated(annotation: ast.AST | None) -> str:
        match = re.search(r"\btensorrt\.(\w+)", ast.unparse(annotation)) if annotation is not None else None
        return match[1] if match else ""

    def kind(self, node: ast.AST | None) -> str:
        """The class of an expression, `list[class]`, or "" where it is nothing of TensorRT's."""
        if isinstance(node, ast.Name):
            return self.names.get(node.id, "")
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            return self.kind(node.func) or self.returns.get(name, "")
        if isinstance(node, ast.Attribute):
            owner = self.kind(node.value)
            return self.stubs.member(owner, node.attr) if owner else self.attributes.get(node.attr, "")
        if isinstance(node, (ast.GeneratorExp, ast.ListComp)):
            return f"list[{inner}]" if (inner := self.kind(node.elt)) else ""
        if isinstance(node, ast.Subscript):
            return self._element(self.kind(node.value))
        return ""

    @staticmethod
    def _element(kind: str) -> str:
        return kind[5:-1] if kind.startswith("list[") else ""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        before = dict(self.names)
        for argument in (*node.args.args, *node.args.kwonlyargs):
            self.names[argument.arg] = self.annotated(argument.annotation)
        self.generic_visit(node)
        self.names = before

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if isinstance(node.target, ast.Name):
            self.names[node.target.id] = self.annotated(node.annotation)
        elif isinstance(node.target, ast.Attribute) and (kind := self.annotated(node.annotation)):
            self.attributes[node.target.attr] = kind
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        self.generic_visit(node)
        for target in node.targets:
            pairs = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(target.elts, node.value.elts, strict=True))
            for name, value in pairs:
                if isinstance(name, ast.Name):
                    self.names[name.id] = self.kind(value) or self.names.get(name.id, "")
                elif isinstance(name, ast.Attribute) and (kind := self.kind(value)):
                    self.attributes.setdefault(name.attr, kind)

    def visit_For(self, node: ast.For) -> None:
        self._bind(node.target, node.iter)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        self._bind(node.target, node.iter)
        self.generic_visit(node)

    def visit_ListComp(self, node: ast.ListComp) -> None:
        for one in node.generators:
            self._bind(one.target, one.iter)
        self.generic_visit(node)

    visit_GeneratorExp = visit_ListComp  # type: ignore[assignment]  # noqa: N815

    def _bind(self, target: ast.AST, source: ast.AST) -> None:
        if isinstance(target, ast.Name):
            self.names[target.id] = self._element(self.kind(source))

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and (owner := self.kind(node.func.value)):
            starred = any(isinstance(argument, ast.Starred) for argument in node.args)
            keywords = tuple(sorted(word.arg for word in node.keywords if word.arg))
            self.found.add(Use(owner, node.func.attr, None if starred else len(node.args), keywords))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.generic_visit(node)
        if owner := self.kind(node.value):
            self.found.add(Use(owner, node.attr))


def object_uses(folder: Path, stubs: str) -> set[Use]:
    """What the sources use of TensorRT's objects.

    Args:
        stubs: `repaired()`.
    """
    known, found = _Stubs(stubs), set[Use]()
    modules = [ast.parse(file.read_text("utf-8")) for file in sorted(folder.glob("*.py"))]
    returns: dict[str, str] = {}
    for module in modules:
        for node in ast.walk(module):
            if isinstance(node, ast.FunctionDef) and (kind := _Uses.annotated(node.returns)):
                returns[node.name] = kind
    for module in modules:
        attributes: dict[str, str] = {}
        for _ in range(3):  # until what comes out of members of attributes is known too
            visitor = _Uses(known, attributes, returns)
            visitor.visit(module)
            found |= visitor.found
    return {use for use in found if not use.owner.startswith("list[")}


def overridden(folder: Path) -> dict[str, dict[str, int]]:
    """The methods of the classes that derive from TensorRT's, by base, with their numbers of arguments."""
    found: dict[str, dict[str, int]] = {}
    for file in sorted(folder.glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if not isinstance(node, ast.ClassDef):
                continue
            for base in node.bases:
                if (text := ast.unparse(base)).startswith("trt."):
                    found.setdefault(text[4:], {}).update(
                        {one.name: len(one.args.args) - 1 for one in node.body if isinstance(one, ast.FunctionDef)}
                    )
    return found


if __name__ == "__main__":
    installed = Path(sys.argv[1]) / "tensorrt_bindings" / "tensorrt.pyi"
    text = repaired(installed.read_text("utf-8"))
    ast.parse(text)
    installed.write_text(text, "utf-8")
