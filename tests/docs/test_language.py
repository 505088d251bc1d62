"""The language of pages, docstrings, comments and messages: see tools/language.py."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(name="language", scope="module")
def _language() -> ModuleType:
    spec = importlib.util.spec_from_file_location("infersdk_language", ROOT / "tools" / "language.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_no_page_or_module_has_findings(language: ModuleType) -> None:
    assert {path: found for path in language.files() if (found := list(language.findings(path)))} == {}


def test_findings_of_a_page(language: ModuleType, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# Title\n\nThis is what the network computes. "
        + "word " * 31
        + ".\n\n- A color.\n\n```python\n# what is code\n```\n"
        "    what is code\n\nShort, `what is code`. Settings are told by name.\n"
    )
    found = [(one.line, one.rule) for one in language.findings(page)]
    assert found == [(3, "long sentence"), (3, "noun clause"), (5, "spelling"), (12, "phrase")]


def test_findings_of_messages(language: ModuleType, tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        'raise ValueError(f"{name} is not what the model takes")\n'
        'text = "the least score of boxes"\n'
        'short = "what is"\n'
        'code = """\nwhat is in a program\n"""\n'
    )
    assert sorted((one.line, one.rule) for one in language.findings(module)) == [(1, "noun clause"), (2, "phrase")]


def test_findings_of_a_module(language: ModuleType, tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        '"""Reads what is there.\n\n::\n\n    what is code\n"""\n\n# Two lines of\n# what they say.\nname = "what is"\n'
    )
    assert [(one.line, one.rule) for one in language.findings(module)] == [(1, "noun clause"), (8, "noun clause")]
