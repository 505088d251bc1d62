"""The extras of the package: messages and pages name ones that exist, and none installs two packages of OpenCV."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
FILES = [
    path for folder in ("infersdk", "models", "backends", "docs", "examples") for path in (ROOT / folder).rglob("*")
]
NAMED = [
    (path.relative_to(ROOT).as_posix(), extra)
    for path in [*FILES, *ROOT.glob("*.md")]
    if path.suffix in (".py", ".md", ".j2") and path.name != "CHANGELOG.md"
    for names in re.findall(r"(?:infersdk|\"\.)\[([a-z][a-z0-9,-]+)\]", path.read_text("utf-8"))
    for extra in names.split(",")
]


def resolved(extra: str) -> set[str]:
    """The packages of an extra, and those of the extras that it names."""
    found = set()
    for requirement in EXTRAS[extra]:
        own = re.match(r"infersdk\[(.*)\]", requirement)
        if own:
            found |= {name for one in own[1].split(",") for name in resolved(one)}
        else:
            found.add(re.split(r"[\[>=<;]", requirement)[0])
    return found


def test_recommended_extras_exist() -> None:
    assert len(NAMED) > 40
    assert [(path, extra) for path, extra in NAMED if extra not in EXTRAS] == []


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_has_one_opencv(extra: str) -> None:
    assert len({name for name in resolved(extra) if name.startswith("opencv")} | {"trackers"} & resolved(extra)) <= 1


def test_messages_about_pytorch_name_the_cpu_build() -> None:
    from infersdk.core.formats import FORMATS

    installs = [kind.install for kind in FORMATS.values() if kind.install and re.search("torch|keras", kind.install)]
    assert len(installs) >= 4
    assert all("download.pytorch.org/whl/cpu" in install for install in installs)


def test_convert_has_the_importers_of_pytorch() -> None:
    assert resolved("convert") == resolved("torch") | resolved("keras")


def test_the_page_of_installation_names_extras_that_exist() -> None:
    table = (ROOT / "docs" / "index.md").read_text("utf-8").partition("| extra |")[2].partition("\n\n")[0]
    named = [
        extra for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for extra in re.findall(r"`([^`]+)`", row)
    ]
    assert len(named) >= 12
    assert [extra for extra in named if extra not in EXTRAS] == []
