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
            assert place is not None
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
    assert data is not None
    assert json.loads(data[1]) == {"text": "</script><b>"}
    assert (FOLDER / "report.css").read_text() in page
    assert (FOLDER / "report.js").read_text() in page


def test_the_button_of_each_page_is_one_sign(tmp_path: Path) -> None:
    """It is 36 pixels wide, and the titles beside it leave room for it."""
    template = tmp_path / "t.html.j2"
    template.write_text('{% extends "base.html.j2" %}')
    assert re.findall(r'<button id="theme"[^>]*>(.*?)</button>', render(template, {})) == ["◐"]
    others = [path for path in FOLDER.parent.rglob("*.html.j2") if path.parent != FOLDER]
    assert len(others) >= 4
    assert not [path for path in others if 'id="theme"' in path.read_text("utf-8")]
    assert re.search(r"header \{[^}]*padding-right: 48px;", (FOLDER / "report.css").read_text())


def test_points_on_logarithmic_axes() -> None:
    found = marks(draw("scatter", {"points": [point(10, 1, 1), point(100, 10, 2), point(1000, 100, 3)]}))
    (ax, ay), (bx, by), (cx, cy) = (found[f"point {i}"] for i in (1, 2, 3))
    assert bx - ax == pytest.approx(cx - bx, abs=1e-3)  # the same factor is the same distance
    assert ay - by == pytest.approx(by - cy, abs=1e-3)
    assert ax < cx
    assert ay > cy


def test_points_that_would_cover_each_other_are_pushed_apart() -> None:
    found = list(marks(draw("scatter", {"points": [point(10, 5, i, tip=f"{i}") for i in range(5)]})).values())
    assert len(found) == 5
    for i, (ax, ay) in enumerate(found):
        for bx, by in found[:i]:
            assert (ax - bx) ** 2 + (ay - by) ** 2 > 18**2  # two radii, but for a hair


@pytest.mark.parametrize(
    "points",
    [
        [point(5, 5)],
        [point(1e-3, 1e6, 1), point(1e5, 1e-2, 2)],
        [point(5, 5, x_low=1, x_high=50, y_low=4.9, y_high=5.1)],
    ],
)
def test_odd_points_stay_within_the_plot(points: list[dict[str, Any]]) -> None:
    svg = draw("scatter", {"points": points})
    assert "NaN" not in svg
    for x, y in marks(svg).values():
        assert 10 <= x <= 622
        assert 10 <= y <= 322


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


@pytest.mark.parametrize("scale", ["log", "linear"])
def test_columns(scale: str) -> None:
    least = 0.5 if scale == "log" else 0.0
    columns = [
        {"number": n, "place": place, "value": 10.0**n, "least": least, "series": place, "tip": f"{n} {place}"}
        for n in range(3)
        for place in range(2)
    ]
    svg = draw("columns", {"columns": columns}, scales={"y": scale}, groups=2, x_title="layer", y_title="ms")
    found = {}
    for element in ET.fromstring(svg).iter():
        if element.get("aria-roledescription") == "rect mark":
            box = re.match(r"M([\d.]+),([\d.]+)h([\d.]+)v([\d.]+)", element.get("d", ""))
            assert box is not None
            found[str(element.get("aria-label"))] = [float(side) for side in box.groups()]
    assert len(found) == 6
    for n in range(3):
        (left, *_, height), (beside, *_) = found[f"{n} 0"], found[f"{n} 1"]
        assert left < beside
        assert height > 0
        assert height == found[f"{n} 1"][3]
    assert found["0 0"][3] < found["1 0"][3] < found["2 0"][3]


def test_colours_come_from_the_page() -> None:
    svg = draw("scatter", {"points": [point(1, 1, 1, series=2), point(2, 2, 2, series=9)]})
    assert {"var(--c2)", "var(--c1)"} <= set(re.findall(r'fill="(var\(--c\d\))"', svg))


def test_what_is_missing_is_said() -> None:
    program = (
        "import sys; sys.modules['vl_convert'] = None\n"
        "from infersdk.pages import require_packages\n"
        "from infersdk.errors import BackendUnavailableError\n"
        "try: require_packages()\n"
        "except BackendUnavailableError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-P", "-c", program], check=True, capture_output=True, text=True)
    assert 'pip install "infersdk[bench]"' in done.stdout
    assert "vl_convert" in done.stdout
