"""Links between the pages of the manual, and from the README, lead to files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
#: Pages that the build makes.
GENERATED = {ROOT / "docs" / "reference" / "command-line.md", ROOT / "docs" / "reference" / "settings.md"}
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


def there(path: Path) -> bool:
    return path.exists() or path.resolve() in GENERATED


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    local = [target.split("#")[0] for target in targets if not re.match(r"[a-z]+:|#", target)]
    assert [target for target in local if not there(page.parent / target)] == []
