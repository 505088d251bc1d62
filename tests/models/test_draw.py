"""Drawing boxes, and fonts for labels of any script."""

from __future__ import annotations

import subprocess
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from infersdk.errors import ConfigError
from infersdk.models import Detection, Detections, TextLine, TextLines, _fonts
from infersdk.models.colours import colour
from infersdk.models.draw import draw_boxes

CYRILLIC, HAN = "человек", "\u4eba\u884c\u8eca"


@pytest.fixture(autouse=True)
def fresh() -> None:
    """Nothing is known of fonts, and nothing was warned of."""
    _fonts._font_for.cache_clear()
    _fonts._warned.clear()


def labelled(label: str, **arguments: object) -> bytes:
    box = Detection((10.0, 60.0, 150.0, 180.0), 0.5, 0, label)
    return draw_boxes(Image.new("RGB", (320, 240), "gray"), [box], **arguments).tobytes()  # type: ignore[arg-type]


def system_font(text: str) -> str:
    found = _fonts._system_font(frozenset(text), 20)
    if found is None or _fonts._lacking(found, frozenset(text)):
        pytest.skip("no font of this system has the characters")
    return str(found.path)


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
    with pytest.raises(ConfigError, match="font is 3; give a font file, or a font that"):
        labelled("abc", font=3)


def test_a_font_that_is_given_for_lines_of_text() -> None:
    polygon = np.array([(10, 60), (150, 60), (150, 90), (10, 90)], np.float32)
    lines, path = TextLines([TextLine("abc", 1.0, polygon)], (320, 240)), system_font(CYRILLIC)
    image = np.zeros((240, 320, 3), np.uint8)
    drawn = [lines.draw(image, font=font).tobytes() for font in (path, _fonts.load_font(path, 10), None)]
    assert drawn[0] == drawn[1] != drawn[2]
    with pytest.raises(ConfigError, match="font is 3; give a font file, or a font that"):
        lines.draw(image, font=3)  # type: ignore[arg-type]


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
    path = system_font(CYRILLIC)
    matcher = tmp_path / "fc-match"
    monkeypatch.setenv("PATH", str(tmp_path))
    for answer, code in (
        (f"{path}\\n0", 0), ("none.ttf\\n0", 0), (f"{path}\\n99", 0), (f"{path}\\nfirst", 0), ("", 0), (path, 0),
        (f"{path}\\n0", 1),
    ):  # fmt: skip
        matcher.write_text(f"#!/bin/sh\nprintf '{answer}'\nexit {code}\n")
        matcher.chmod(0o755)
        _fonts._font_for.cache_clear()
        _fonts._warned.clear()
        with pytest.warns(RuntimeWarning, match=f"no font has the characters '{HAN}'"):
            labelled(HAN)


def test_boxes_at_and_beyond_the_edges() -> None:
    boxes = [Detection(xyxy, 0.5, i, "x" * 80) for i, xyxy in enumerate([
        (-20.0, -20.0, 5.0, 5.0), (300.0, 230.0, 400.0, 300.0), (50.0, 40.0, 40.0, 30.0), (7.0, 7.0, 7.0, 7.0),
    ])]  # fmt: skip
    before = Image.new("RGB", (320, 240), "gray")
    after = draw_boxes(before.copy(), boxes)
    assert after.size == before.size
    assert not np.array_equal(np.asarray(before), np.asarray(after))


def test_a_label_of_several_lines_is_drawn_as_one() -> None:
    assert labelled("a\nb") == labelled("a b")


# ---- masks, keypoints, oriented boxes, tracks ----


def drawn_of(*, background: int = 0, **columns: object) -> np.ndarray:
    """An image of 200 x 100 with two boxes and these columns."""
    found = Detections.of([(20, 20, 90, 80), (110, 20, 190, 80)], [0.9, 0.8], names=("a",), size=(200, 100), **columns)
    return np.asarray(found.draw(np.full((100, 200, 3), background, np.uint8)))


def test_masks_tint_what_they_cover() -> None:
    masks = np.zeros((2, 100, 200), bool)
    masks[0, 40:70, 40:60] = True
    plain, tinted = drawn_of(), drawn_of(mask=masks)
    assert set(np.argwhere((plain != tinted).any(2)).ravel().tolist()) <= set(range(40, 70))
    assert ((plain != tinted).any(2) == masks[0]).all()
    red = np.array(colour(0))
    np.testing.assert_allclose(tinted[55, 50], red * 115 / 255, atol=1)
    np.testing.assert_array_equal(tinted[40, 40:60], [red] * 20, "the border is a line")


def test_skeletons_join_what_is_seen() -> None:
    points = np.zeros((2, 17, 3), np.float32)
    points[0, :, 0], points[0, :, 1] = np.linspace(25, 85, 17), 50
    points[0, [5, 7], 2] = 0.9  # joined by COCO's skeleton
    points[0, 11, 2] = 0.4
    plain, posed = drawn_of(), drawn_of(keypoints=points)
    columns = np.flatnonzero((plain != posed).any((0, 2)))
    assert points[0, 5, 0] - 5 < columns.min()
    assert columns.max() < points[0, 7, 0] + 5
    assert (np.diff(columns) == 1).all(), "one line from point to point"
    landmarks = np.stack([np.linspace(25, 85, 6), np.full(6, 50)], 1)[None]
    found = Detections.of([(20, 20, 90, 80)], [0.9], names=(), size=(200, 100), keypoints=landmarks)
    image = np.zeros((100, 200, 3), np.uint8)
    without, joined = (np.asarray(found.draw(image, skeleton=pairs)) for pairs in ((), ((0, 5),)))
    assert (without[50] == 0).all(1).sum() > (joined[50] == 0).all(1).sum()
    assert (np.asarray(found.draw(image)) == without).all(), "points alone: landmarks"
    with pytest.raises(ConfigError, match="joins 0 and 6, and there are 6"):
        found.draw(image, skeleton=[(0, 6)])
    with pytest.raises(ConfigError, match="skeleton is a list of pairs of keypoints, by number from 0, not"):
        found.draw(image, skeleton=[(0, 1, 2)])  # type: ignore[list-item]


def test_oriented_boxes_are_drawn_as_they_are_turned() -> None:
    turned = [[55, 50, 40, 20, np.pi / 4], [150, 50, 40, 20, 0]]
    image = drawn_of(oriented=turned)
    own = np.array(colour(0))
    for x, y in Detections.of([(0, 0, 1, 1)], [1], names=(), size=(9, 9), oriented=turned[:1]).corners[0].tolist():
        assert (image[round(y) - 1 : round(y) + 2, round(x) - 1 : round(x) + 2] == own).all(2).any()
    assert (image[20:80, 90] == 0).all(), "no upright edge"


def test_tracks_have_their_numbers_and_colours() -> None:
    pixels = drawn_of(track_id=np.array([3, 7]))
    assert (pixels[60, 20] == colour(3)).all()
    assert (pixels[60, 110] == colour(7)).all()
    found = Detections.of([(20, 20, 90, 80)] * 2, [0.9, 0.8], names=(), size=(200, 100), track_id=np.array([3, 7]))
    image = np.zeros((100, 200, 3), np.uint8)
    for by, expected in (("class", 0), ("box", 0), ("track_id", 3)):
        assert (np.asarray(found.draw(image, colour_by=by))[60, 20] == colour(expected)).all()
    with pytest.raises(ConfigError, match=r"colour_by is 'speed'.*the columns are track_id"):
        found.draw(image, colour_by="speed")


def oklab(rgb: np.ndarray) -> np.ndarray:
    """Björn Ottosson's OKLab (https://bottosson.github.io/posts/oklab), in which distances are as the eye sees them."""
    c = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    cones = np.cbrt(c @ [[0.41222, 0.21190, 0.08830], [0.53633, 0.68070, 0.28172], [0.05145, 0.10740, 0.62998]])
    return cones @ [[0.21045, 1.97800, 0.02590], [0.79362, -2.42859, 0.78277], [-0.00407, 0.45059, -0.80868]]


def test_colours_stay_apart() -> None:
    for count, distance in ((20, 0.115), (96, 0.055)):
        colours = oklab(np.array([colour(i) for i in range(count)]) / 255)
        apart = np.linalg.norm(colours[:, None] - colours, axis=2) + np.eye(count)
        assert apart.min() > distance
    assert colour(96) == colour(0)
