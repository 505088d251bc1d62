"""Text for terminals and logs, and JSON for readers."""

from __future__ import annotations

import io
import json
import logging
import re
from pathlib import Path

import pytest

import infersdk
from infersdk.core.text import json_text, logger, printable

EVIL = "\x1b]0;title\x07\x1b[31m\x9b2J\u202e\r\nforged"


@pytest.mark.parametrize("text", ["", "cat", "Fußgänger 猫 👩‍👩‍👧", r"C:\names\n.txt"])
def test_ordinary_text_stays(text: str) -> None:
    assert printable(text) == text


def test_control_characters_are_escaped() -> None:
    assert printable(EVIL) == r"\u001b]0;title\u0007\u001b[31m\u009b2J\u202e\r\nforged"
    assert printable("a\tb\nc\rd", lines=True) == "a\tb\nc\\rd"
    for code in [*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2066, 0xDCFF]:
        assert printable(f"a{chr(code)}").isprintable()


def test_escapes_are_those_of_json() -> None:
    assert json.loads(printable(json.dumps(EVIL + "\udcff\x7f", ensure_ascii=False))) == EVIL + "\udcff\x7f"


def test_messages_and_tracebacks_in_logs() -> None:
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    log = logger("infersdk.test_text")
    assert logger("infersdk.test_text") is log
    log.addHandler(handler)
    try:
        log.warning("%s is %d%% done", EVIL, 5)
        try:
            raise ValueError(EVIL)
        except ValueError:
            log.exception("failed: 100%")
    finally:
        log.removeHandler(handler)
    first, second, *traceback = out.getvalue().splitlines()
    assert first == rf"{printable(EVIL)} is 5% done"
    assert second == "failed: 100%"
    assert traceback[0] == "Traceback (most recent call last):"
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", out.getvalue())


def test_all_loggers_of_the_package_do_so() -> None:
    package = Path(infersdk.__file__).parent
    found = [
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if re.search(r"getLogger\([\"']infersdk", path.read_text("utf-8"))
    ]
    assert found == []


def test_json_keeps_boxes_on_one_line() -> None:
    data = {"image": 'a"b', "boxes": [{"box": [1.5, 2.0], "points": [[1, 2], [3, 4]]}], "none": [], 7: {}}
    text = json_text(data, indent=2)
    assert json.loads(text) == json.loads(json.dumps(data))
    assert '      "box": [1.5, 2.0],\n' in text
    assert '      "points": [\n        [1, 2],\n        [3, 4]\n      ]\n' in text
    assert json_text(data) == json.dumps(data)
    with pytest.raises(ValueError, match="not JSON compliant"):
        json_text([float("nan")], indent=2, allow_nan=False)
