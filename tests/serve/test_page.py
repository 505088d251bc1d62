"""The page in a real browser: an image is chosen, sent, and drawn with its boxes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from served_requests import serving

from infersdk.data import DETECTOR, IMAGE
from infersdk.models import YOLOv5

sync_api: Any = pytest.importorskip("playwright.sync_api", reason="the test of the page needs playwright")
CHROMIUM = next((found for name in ("chromium-headless-shell", "chromium") if (found := shutil.which(name))), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: apt install chromium-headless-shell"),
]
KEY = "a-key-of-this-test"


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    table = {"type": "yolov5", "path": str(DETECTOR), "conf": 0.5, "class_agnostic": True}
    with serving({"detector": table}, api_keys=[KEY]) as running:
        assert running.http_port is not None
        yield running.http_port


def test_an_image_is_drawn_with_its_boxes(port: int) -> None:
    with YOLOv5(DETECTOR, conf=0.5, class_agnostic=True) as detector:
        found = detector(IMAGE)
    expect = sync_api.expect
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            page = browser.new_page()
            errors: list[str] = []
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.goto(f"http://127.0.0.1:{port}/")
            page.set_input_files("#file", str(IMAGE))
            expect(page.locator("#message")).to_contain_text("API key")
            assert not page.is_visible("#canvas")
            page.fill("#key", KEY)
            page.set_input_files("#file", str(IMAGE))
            page.wait_for_selector("#canvas", state="visible")
            assert f"{len(found)} found" in page.text_content("#message")
            rows = page.locator("#results tbody tr")
            assert rows.count() == len(found)
            assert rows.nth(0).locator("td").nth(0).text_content() == found[0].label
            size = page.evaluate("[document.getElementById('canvas').width, document.getElementById('canvas').height]")
            assert size == list(found.size)
            # The edge of the first box has the colour of its class, which the gray image has nowhere.
            x1, _, x2, y2 = found[0].xyxy
            script = "([x, y]) => [...document.getElementById('canvas').getContext('2d').getImageData(x, y, 1, 1).data]"
            red, green, blue, _ = page.evaluate(script, [round((x1 + x2) / 2), round(y2)])
            assert max(red, green, blue) - min(red, green, blue) > 60, (red, green, blue)
            page.fill("#parameters", "conf=0.999")
            page.set_input_files("#file", str(IMAGE))
            expect(page.locator("#message")).to_contain_text("0 found")
            expect(page.locator("#statistics tbody td").nth(1)).to_have_text("2")
            assert errors == []
        finally:
            browser.close()
