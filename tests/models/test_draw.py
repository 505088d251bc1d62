"""Drawing boxes, and fonts for labels of any script."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from infersdk.errors import ConfigError
from infersdk.models import Detection, _fonts
from infersdk.models.draw import blank_image, draw_boxes

CYRILLIC, HAN = "человек", "\u4eba\u884c\u8eca"


@pytest.fixture(autouse=True)
def fresh() -> None:
    """Nothing is known of fonts, and nothing was warned of."""
    for function in (_fonts._font_for, _fonts._system_font, _fonts._own_font):
        function.cache_clear()
    _fonts._warned.clear()


def labelled(label: str, **arguments: object) -> bytes:
    box = Detection((10.0, 60.0, 150.0, 180.0), 0.5, 0, label)
    return draw_boxes(blank_image((320, 240)), [box], **arguments).tobytes()  # type: ignore[arg-type]


def system_font(text: str) -> str:
    found = _fonts._system_font(frozenset(text))
    if found is None or found.lacking:
        pytest.skip("no font of this system has the characters")
    return found.path


def test_ascii_needs_no_font_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert labelled("traffic light") != labelled("traffic lamp")


def test_other_letters_come_from_a_font_of_the_system() -> None:
    system_font(CYRILLIC)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shown = labelled(CYRILLIC)
    assert shown != labelled(CYRILLIC[::-1]), "empty boxes would be alike"
    assert _fonts._lacking(_fonts.font_for(CYRILLIC, 20), frozenset(CYRILLIC)) == ""


def test_a_font_that_is_given(tmp_path: Path) -> None:
    path = system_font(CYRILLIC)
    given = labelled(CYRILLIC, font=path)
    assert given == labelled(CYRILLIC, font=Path(path)) != labelled("abc", font=path)
    assert labelled("abc", font=_fonts.load_font(path, 11)) == labelled("abc", font=path)
    (tmp_path / "broken.ttf").write_bytes(b"no font")
    for wrong in (tmp_path / "broken.ttf", tmp_path / "none.ttf"):
        with pytest.raises(ConfigError, match=rf"cannot load the font .*{wrong.name}"):
            labelled("abc", font=wrong)


def test_what_no_font_has_is_told_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no fc-match
    with pytest.warns(RuntimeWarning, match=rf"no font has the characters '{HAN}'.*install fontconfig.*font="):
        labelled(HAN)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        labelled(HAN)
        labelled(HAN[:2])
    with pytest.warns(RuntimeWarning, match=f"characters '{CYRILLIC[0]}'"):
        labelled(HAN + CYRILLIC[0])


def test_what_fontconfig_says_is_checked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It always names a font, whether that has the characters or not."""
    matcher = tmp_path / "fc-match"
    monkeypatch.setenv("PATH", str(tmp_path))
    for answer, code, lacking in (
        ("font.ttf\\n0\\n20-7e\\n", 0, HAN), ("font.ttf\\n0\\n\\n", 0, HAN),
        ("font.ttf\\n1\\n4eba 8e00-8fff\\n", 0, HAN[1]), ("", 0, None),
        ("font.ttf\\n", 0, None), ("font.ttf\\n0\\n20-7e\\n", 1, None),
    ):  # fmt: skip
        matcher.write_text(f"#!/bin/sh\nprintf '{answer}'\nexit {code}\n")
        matcher.chmod(0o755)
        found = _fonts._system_font(frozenset(HAN))
        assert (None if found is None else sorted(found.lacking)) == (None if lacking is None else sorted(lacking))
        _fonts._system_font.cache_clear()
    matcher.write_text("#!/bin/sh\nprintf 'none.ttf\\n0\\n4e00-9fff\\n'\n")
    with pytest.warns(RuntimeWarning, match="no font has"):
        labelled(HAN)


def test_ranges_of_characters() -> None:
    assert _fonts._outside("20-7e a0 4e00-9fff", [0x20, 0x7E, 0xA0, 0x4E00]) == ""
    assert _fonts._outside("20-7e a0", [0x20, 0x7F, 0x61, 0xA1]) == "\x7f\xa1"
    assert _fonts._outside("", []) == ""


def test_boxes_at_and_beyond_the_edges() -> None:
    boxes = [Detection(xyxy, 0.5, i, "x" * 80) for i, xyxy in enumerate([
        (-20.0, -20.0, 5.0, 5.0), (300.0, 230.0, 400.0, 300.0), (50.0, 40.0, 40.0, 30.0), (7.0, 7.0, 7.0, 7.0),
    ])]  # fmt: skip
    before = blank_image((320, 240))
    after = draw_boxes(before.copy(), boxes)
    assert after.size == before.size
    assert not np.array_equal(np.asarray(before), np.asarray(after))


def test_a_label_of_several_lines_is_drawn_as_one() -> None:
    assert labelled("a\nb") == labelled("a b")


def test_a_class_keeps_its_colour() -> None:
    def colour(class_id: int) -> object:
        drawn = draw_boxes(Image.new("RGB", (100, 100)), [Detection((10.0, 40.0, 90.0, 90.0), 1.0, class_id, "a")])
        return drawn.getpixel((10, 70))

    assert colour(0) == colour(0)
    assert len({colour(i) for i in range(8)}) == 8


def test_a_process_that_draws_without_fontconfig() -> None:
    code = (
        "from infersdk.models import Detection; from infersdk.models.draw import blank_image, draw_boxes; "
        f"draw_boxes(blank_image((99, 99)), [Detection((9., 9., 50., 50.), 1., 0, {HAN!r})])"
    )
    environment = {"PATH": "/nonexistent", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], check=True, capture_output=True, text=True, env=environment
    )
    assert done.stderr.count("RuntimeWarning") == 1
