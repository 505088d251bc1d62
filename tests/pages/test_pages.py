"""Pages out of templates, and the plots in them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

import infersdk
from infersdk.pages import draw, render

pytest.importorskip("jinja2")
pytest.importorskip("vl_convert")

FOLDER = Path(infersdk.__file__).resolve().parent / "pages"


def point(x: float, y: float, number: int = 1, **more: Any) -> dict[str, Any]:
    none = dict.fromkeys(("x_low", "x_high", "y_low", "y_high"))
    return {"x": x, "y": y, **none, "number": number, "series": 0, "hollow": False, "tip": f"point {number}", **more}


def marks(svg: str) -> dict[str, tuple[float, float]]:
    """By label: where each mark is."""
    found = {}
    for element in ET.fromstring(svg).iter():
        if element.get("aria-roledescription") == "symbol mark":
            place = re.search(r"translate\(([-\d.e]+),([-\d.e]+)\)", element.get("transform", ""))
            found[str(element.get("aria-label"))] = (float(place[1]), float(place[2]))
    return found


def test_a_page_escapes_what_it_is_given(tmp_path: Path) -> None:
    template = tmp_path / "t.html.j2"
    template.write_text(
        '{% extends "base.html.j2" %}{% block title %}{{ name }}{% endblock %}{% block main %}{{ name }}{% endblock %}'
    )
    page = render(template, {"text": "</script><b>"}, name="<b>&")
    assert page.count("&lt;b&gt;&amp;") == 2
    assert "<b>" not in page.partition("<body>")[2].partition('id="data"')[0]
    data = re.search(r'id="data">(.*?)</script>', page)
    assert json.loads(data[1]) == {"text": "</script><b>"}
    assert (FOLDER / "report.css").read_text() in page
    assert (FOLDER / "report.js").read_text() in page


def test_points_that_would_cover_each_other_are_pushed_apart() -> None:
    found = list(marks(draw("scatter", {"points": [point(10, 5, i, tip=f"{i}") for i in range(5)]})).values())
    assert len(found) == 5
    for i, (ax, ay) in enumerate(found):
        for bx, by in found[:i]:
            assert (ax - bx) ** 2 + (ay - by) ** 2 > 18**2  # two radii, but for a hair


def test_bars_add_up() -> None:
    parts = [
        {"bar": bar, "series": i, "value": value, "tip": f"{bar} {i}"}
        for bar, values in (("a", (1.0, 2.0, 3.0)), ("b", (2.0, 0.0, 1.5)))
        for i, value in enumerate(values)
    ]
    svg = draw("stacked_bars", {"parts": parts}, height=120, x_title="ms")
    texts = [element.text for element in ET.fromstring(svg).iter() if element.tag.endswith("text")]
    assert {"a", "b", "6", "3.5", "ms"} <= set(texts)
    assert svg.count("rect mark") >= 5


def test_what_is_missing_is_said() -> None:
    program = (
        "import sys; sys.modules['vl_convert'] = None\n"
        "from infersdk.pages import require_packages\n"
        "from infersdk.errors import BackendUnavailableError\n"
        "try: require_packages()\n"
        "except BackendUnavailableError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert 'pip install "infersdk[bench]"' in done.stdout
    assert "vl_convert" in done.stdout
