"""The page of layers, as a browser shows it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("onnxruntime")
pytest.importorskip("openvino")
pytest.importorskip("jinja2")
pytest.importorskip("vl_convert")
from layers.models import small_network

import infersdk.layers
from infersdk.layers import LayerReport, ProfileSettings
from infersdk.layers.drawing import draw_graph, label_of


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> LayerReport:
    file = small_network(tmp_path_factory.mktemp("m") / "small.onnx")
    return infersdk.layers.profile(file, ["onnxruntime", "openvino"], ProfileSettings(runs=3, warm_up=1))


@pytest.fixture(scope="module")
def page(report: LayerReport, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return infersdk.layers.write_page(report, tmp_path_factory.mktemp("p") / "layers.html")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with playwright.sync_playwright() as engine:
        try:
            started = engine.chromium.launch(executable_path=found, args=["--no-sandbox"])
        except playwright.Error as error:
            pytest.skip(f"no browser starts here: {str(error).splitlines()[0]}")
        yield started
        started.close()


@pytest.fixture
def tab(browser: Any, page: Path) -> Iterator[Any]:
    opened = browser.new_page(viewport={"width": 1200, "height": 900}, color_scheme="light")
    opened.faults, opened.addresses = [], []
    opened.on("pageerror", lambda error: opened.faults.append(str(error)))
    opened.on("console", lambda message: opened.faults.append(message.text) if message.type == "error" else None)
    opened.on("request", lambda request: opened.addresses.append(request.url))
    opened.goto(page.as_uri())
    yield opened
    opened.close()


def test_one_file_without_a_network(tab: Any, page: Path) -> None:
    assert tab.faults == []
    assert tab.addresses == [page.as_uri()]


def test_the_graph_has_a_cell_for_each_row_and_side_within_its_card(tab: Any, report: LayerReport) -> None:
    cells = tab.locator('#graph svg [aria-roledescription$="mark"][aria-label]')
    assert cells.count() == 2 * sum(1 for row in report.rows if row.nodes)
    frame = tab.locator("#graph").bounding_box()
    boxes = [cells.nth(i).bounding_box() for i in range(cells.count())]
    assert all(frame["x"] <= box["x"] and box["x"] + box["width"] <= frame["x"] + frame["width"] for box in boxes)
    assert all(box["width"] > 10 and box["height"] > 10 for box in boxes)


def test_colour_is_time(tab: Any, report: LayerReport) -> None:
    """The cell of the longest row is the hottest one of its side, in both colour schemes."""
    cells = tab.locator('#graph svg [aria-roledescription$="mark"][aria-label]')
    rows = [row for row in report.rows if row.nodes and row.seconds[0]]
    times = [row.seconds[0] for row in rows]
    at = {box.row: i for i, box in enumerate(draw_graph(report).boxes)}
    longest = at[report.rows.index(rows[times.index(max(times))])]
    shortest = at[report.rows.index(rows[times.index(min(times))])]
    for scheme in ("light", "dark"):
        tab.emulate_media(color_scheme=scheme)
        redness = []
        for i in (longest, shortest):
            fill = cells.nth(2 * i).evaluate("e => getComputedStyle(e).fill")
            _, a, b = map(float, re.findall(r"-?[\d.]+", fill)[:3])
            assert fill.startswith("oklab"), fill
            redness.append((a * a + b * b) ** 0.5)
        assert redness[0] > redness[1] + 0.02, scheme


def test_the_pointer_shows_the_nodes_of_a_cell(tab: Any, report: LayerReport) -> None:
    cell = tab.locator('#graph svg [aria-label*="/branch/Relu (Relu)"]').first
    cell.scroll_into_view_if_needed()
    cell.hover()
    shown = tab.locator("#tip")
    assert shown.is_visible()
    assert "/branch/Conv (Conv)" in shown.inner_text()
    assert "fp32" in shown.inner_text()


def test_the_flame_of_each_side_is_as_wide_as_its_time(tab: Any, report: LayerReport) -> None:
    flames = tab.locator(".flame svg")
    assert flames.count() == 2
    for number, side in enumerate(report.sides):
        marks = flames.nth(number).locator('[aria-roledescription$="mark"][aria-label]')
        widths = {}
        for i in range(marks.count()):
            label = marks.nth(i).get_attribute("aria-label").splitlines()[0]
            widths[label] = marks.nth(i).bounding_box()["width"]
        branch = sum(
            row.seconds[number] or 0.0
            for row in report.rows
            if row.nodes and report.nodes[row.nodes[0]].name.startswith("/branch/")
        )
        if branch:
            assert widths["branch"] / widths[side.name] == pytest.approx(branch / side.layer_seconds, abs=0.03)


def test_the_table_and_the_data(tab: Any, report: LayerReport) -> None:
    assert tab.locator("table.rows tbody tr").count() == len(report.rows)
    assert "/stem/Conv" in tab.locator("table.rows").inner_text()
    data = tab.evaluate("JSON.parse(document.getElementById('data').textContent)")
    assert data["model"] == "small.onnx"
    assert [side["name"] for side in data["sides"]] == ["onnxruntime", "openvino"]
    assert data["sides"][0]["explanation"] in tab.locator("main").inner_text()


def test_dark_and_narrow(tab: Any) -> None:
    before = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    tab.locator("#theme").click()
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") != before
    tab.set_viewport_size({"width": 420, "height": 800})
    assert tab.evaluate("document.documentElement.scrollWidth") <= 420  # the table scrolls by itself


def test_drawing_keeps_the_order_of_the_graph(report: LayerReport) -> None:
    drawing = draw_graph(report)
    top = {report.nodes[node].name: box.y for box in drawing.boxes for node in report.rows[box.row].nodes}
    assert top["/stem/Conv"] < top["/branch/Conv"] < top["/Concat"] < top["/MaxPool"] < top["/Reshape"]
    for one in drawing.boxes:
        for other in drawing.boxes:
            apart = (
                one is other or one.x + one.width <= other.x or other.x + other.width <= one.x
                or one.y + one.height <= other.y or other.y + other.height <= one.y
            )  # fmt: skip
            assert apart, (one, other)


@pytest.mark.parametrize(
    ("nodes", "label"),
    [
        (
            "x_DequantizeLinear:DequantizeLinear /model.2/cv1/conv/Conv:Conv /model.2/cv1/act/Mul:Mul y:QuantizeLinear",
            ("model.2/cv1/conv", "Conv + Mul"),
        ),
        ("/model.24/Transpose_1:Transpose", ("model.24/Transpose_1", "Transpose")),
        ("/model.4/m/Add_output_0_QuantizeLinear:QuantizeLinear", ("model.4/m", "QuantizeLinear")),
        ("first:Conv", ("first", "Conv")),
    ],
)  # fmt: skip
def test_a_box_of_an_int8_file_has_the_name_of_its_layer(nodes: str, label: tuple[str, str]) -> None:
    pairs = [node.rsplit(":", 1) for node in nodes.split()]
    report: Any = SimpleNamespace(nodes=[SimpleNamespace(name=name, operator=kind) for name, kind in pairs])
    row: Any = SimpleNamespace(nodes=tuple(range(len(pairs))))
    assert label_of(report, row) == label


@pytest.mark.parametrize("width", [400, 1280])
def test_no_text_is_cut_off(tab: Any, width: int) -> None:
    tab.set_viewport_size({"width": width, "height": 900})
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    hidden = "[...document.querySelectorAll('.scroll')].some(one => one.scrollWidth > one.clientWidth)"
    assert tab.evaluate(hidden) is False
