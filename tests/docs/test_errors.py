"""The page of errors has a section for each class of `infersdk.errors`."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from infersdk import errors

PAGE = Path(__file__).resolve().parents[2] / "docs" / "errors.md"
CLASSES = {
    name: kind
    for name, kind in vars(errors).items()
    if inspect.isclass(kind) and issubclass(kind, errors.InferSDKError)
}


def test_each_class_has_a_code_and_a_section() -> None:
    sections = re.findall(r"^### (IFS\d{3}) (\w+) \{#(\w+)\}$", PAGE.read_text("utf-8"), re.MULTILINE)
    assert {name: kind.code for name, kind in CLASSES.items()} == {name: code for code, name, _ in sections}
    assert len({kind.code for kind in CLASSES.values()}) == len(CLASSES)
    assert all(anchor == code.lower() for code, _, anchor in sections)


def test_the_address_of_an_error_leads_to_its_section() -> None:
    assert errors.ShapeError("3").url == "errors/#ifs402"
