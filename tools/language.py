"""Checks the language of pages, docstrings, comments and messages: `python tools/language.py [FILE ...]`.

It finds sentences of more than 30 words, noun clauses (`what is`, `what the`), phrases with a plainer form, and
American spelling in prose. Names in code keep their spelling. In messages, such as those of errors and options, it
looks for noun clauses and phrases only. The exit code is 1 if there is a finding.
"""

from __future__ import annotations

import argparse
import ast
import io
import itertools
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORDS = 30
#: Folders of Python sources.
SOURCES = ("infersdk", "models", "backends", "tools", "benchmarks", "examples")

NOUN_CLAUSE = re.compile(r"\bwhat (?:is|it|its|the|they|was|were|are|a|an|this|that)\b", re.IGNORECASE)
#: Phrases, each with the plainer form.
PHRASES = {
    r"when it is first looked at": "on first access",
    r"in whose end": "name the object",
    r"\bin silence\b": "without an error",
    r"\bthat (?:was|were|is) asked for\b": "requested",
    r"\btold by name\b|\b(?:is|are|was|were|be) told\b|\bto tell\b|\bdo(?:es)? not tell\b": "is passed, to report",
    r"\bthe least (?:score|number|size)\b": "the minimum",
    r"\bat most, |\bat the most\b|\bimages that go through together\b": "maximum",
    r"\banew\b": "again",
    r"\bin sum\b": "total",
    r"\bof which there\b": "name the number",
    r"\bnobody\b": "name the thread, the caller or the user",
    r"\bbeside it\b": "in the same folder, with it",
    r"\bcomes? again\b": "repeats, returns",
    r"\bwhat (?:stands|limits leave|was made)\b|\bwhat is left out\b": "name the object",
    r"\bwaits for alone\b|\balone waits for\b": "a single waiter",
    r"\bhouses?\b|\brooms?\b": "code, module, memory, space",
    r"\bthat nothing reads\b": "unused",
    r"\bof one's own\b": "custom",
    r"\bsays? so\b": "state the fact",
    r"\bnot looked at\b": "ignored",
    r"\bin vain\b": "without effect",
    r"\bof late\b": "recently",
    r"\bstands? (?:here|there|in(?! for))\b": "is in",
    r"\bgo(?:es)? its (?:own )?way\b": "state the action",
}
#: American spellings of words that the prose has in British spelling.
AMERICAN = re.compile(
    r"\b(?:colors?|colored|centers?|centered|behaviors?|neighbors?|neighboring|canceled|canceling|labeled|labeling|"
    r"(?:quant|optim|normal|recogn|organ|initial|synchron|minim|maxim|serial)(?:ize|izes|ized|izing|ization))\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Finding:
    line: int
    rule: str
    text: str


def main() -> int:
    parser = argparse.ArgumentParser(description="Checks the language of pages, docstrings, comments and messages.")
    parser.add_argument("files", nargs="*", type=Path, help="(default: all of the project)")
    found = [
        f"{path}:{one.line}: {one.rule}: {one.text}"
        for path in parser.parse_args().files or files()
        for one in findings(path)
    ]
    print("\n".join(found) or "nothing is found")
    return bool(found)


def files() -> Iterator[Path]:
    yield from sorted((ROOT / "docs").rglob("*.md"))
    yield from (ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"))
    for folder in SOURCES:
        yield from (path for path in sorted((ROOT / folder).rglob("*.py")) if "build" not in path.parts)


def findings(path: Path) -> Iterator[Finding]:
    source = path.read_text("utf-8")
    nodes = list(ast.walk(ast.parse(source))) if path.suffix == ".py" else []
    texts = prose_of_module(source, nodes) if path.suffix == ".py" else prose_of_page(source)
    for line, text in texts:
        plain = re.sub(r"``[^`]*``|`[^`]*`|\]\([^)]*\)|https?://\S+", " x ", text)
        for sentence in re.split(r"(?<=[.!?])\s+", plain):
            count = len(re.findall(r"[A-Za-z0-9][\w'’-]*", sentence))
            if count > WORDS:
                yield Finding(line, "long sentence", f"{count} words: {sentence.strip()[:90]}")
        yield from _phrases(line, plain)
        for match in AMERICAN.finditer(plain):
            yield Finding(line, "spelling", match[0])
    if path.suffix == ".py" and path.resolve() != Path(__file__).resolve():
        for line, text in messages_of_module(nodes):
            yield from _phrases(line, text)


def _phrases(line: int, plain: str) -> Iterator[Finding]:
    for match in NOUN_CLAUSE.finditer(plain):
        yield Finding(line, "noun clause", plain[max(match.start() - 20, 0) : match.end() + 30].strip())
    for pattern, better in PHRASES.items():
        for match in re.finditer(pattern, plain, re.IGNORECASE):
            yield Finding(line, "phrase", f"{match[0]!r}: write {better!r}")


def prose_of_page(text: str) -> Iterator[tuple[int, str]]:
    """Paragraphs, list items and table cells, each with its line."""
    fenced, start, block = False, 0, ""
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        code = fenced or line.lstrip().startswith("```") or (line.startswith("    ") and not block)
        opens = re.match(r"\s*(?:[-*+] |\d+\. |#|\||!\[)", line)
        if block and (code or opens or not line.strip()):
            yield start, block
            block = ""
        if code or not line.strip():
            continue
        if line.lstrip().startswith("|"):
            for cell in re.split(r"(?<!\\)\|", line):
                yield number, cell
        else:
            start, block = (start, f"{block} {line.strip()}") if block else (number, line.strip())


def prose_of_module(source: str, nodes: list[ast.AST]) -> Iterator[tuple[int, str]]:
    """Paragraphs of docstrings, and comments."""
    for node in nodes:
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            docstring = ast.get_docstring(node)
            if docstring:
                yield from ((node.body[0].lineno, text) for text in _paragraphs(docstring))
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = [(token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT]
    # Comments on lines that follow one another are one text: the differences of their lines and positions are the same.
    for _, block in itertools.groupby(enumerate(comments), lambda entry: entry[1][0] - entry[0]):
        lines, texts = zip(*(comment for _, comment in block), strict=True)
        yield lines[0], " ".join(text.lstrip("#: ") for text in texts)


def messages_of_module(nodes: list[ast.AST]) -> Iterator[tuple[int, str]]:
    """Strings of one line and at least four words, apart from docstrings, with `x` in place of values."""
    parts: set[int] = set()
    for node in nodes:
        if isinstance(node, ast.Expr):
            parts.add(id(node.value))  # a docstring
        if isinstance(node, ast.JoinedStr):
            parts.update(map(id, node.values))
            text = "".join(str(one.value) if isinstance(one, ast.Constant) else "x" for one in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        else:
            continue
        if id(node) not in parts and len(text.split()) >= 4 and "\n" not in text:
            yield node.lineno, text


def _paragraphs(docstring: str) -> Iterator[str]:
    """Paragraphs and items without code: what follows `::` with an indent is code."""
    literal = False
    for part in re.split(r"\n\s*\n", docstring):
        if literal and part.startswith("    "):
            continue
        literal = part.rstrip().endswith("::")
        block = ""
        for line in part.splitlines():
            if block and re.match(r"\s*(?:[-*] |\w[\w, *]*: |[A-Z]\w+:$|>>>|\|)", line):
                yield block
                block = ""
            block = f"{block} {line.strip()}"
        yield block


if __name__ == "__main__":
    raise SystemExit(main())
