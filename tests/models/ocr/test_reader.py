"""Reading text, with the networks of PaddleOCR where the test data has them, and with small ones of our own."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ocr_models import finder, page, reads
from onnx_models import node, save, value
from PIL import Image

from infersdk import load
from infersdk.errors import ClosedError, ConfigError, DeadlineExceeded, ImageError, InputError, UnsupportedModelError
from infersdk.image import HostImage, read_image
from infersdk.models import OCR, TextLine, TextLines
from infersdk.models.ocr.regions import along_the_text, sides

pytest.importorskip("cv2")

ASSETS = Path(os.environ.get("INFERSDK_ASSETS", Path(__file__).resolve().parents[4] / "shared" / "assets")) / "ocr"
REAL = [ASSETS / f"ch_{name}_infer.onnx" for name in ("PP-OCRv4_det", "PP-OCRv4_rec", "ppocr_mobile_v2.0_cls")]
real = [pytest.mark.assets, pytest.mark.skipif(not REAL[0].exists(), reason=f"no test data in {ASSETS}")]
BACKENDS = ["onnxruntime", "openvino"]


@pytest.fixture
def small(tmp_path: Path) -> Iterator[OCR]:
    with OCR(finder(tmp_path / "det.onnx"), reads(tmp_path / "rec.onnx"), threads=1, text_score=0.2) as reader:
        yield reader


def test_lines_are_found_in_the_order_of_reading(small: OCR) -> None:
    image = page((400, 102, 600, 122), (100, 100, 300, 120), (100, 300, 500, 340))
    result = small(image)
    left = [line.polygon[0][0] for line in result]
    assert len(result) == 3
    assert left[0] < left[1]
    assert left[2] < left[1]
    for line, edges in zip(result, [(100, 100, 300, 120), (400, 102, 600, 122), (100, 300, 500, 340)], strict=True):
        box = (*line.polygon.min(axis=0), *line.polygon.max(axis=0))
        grown = (edges[2] - edges[0]) * (edges[3] - edges[1]) * 1.6 / (2 * (edges[2] - edges[0] + edges[3] - edges[1]))
        np.testing.assert_allclose(box, np.array(edges) + np.array([-1, -1, 1, 1]) * grown, atol=4)
        assert line.text.strip()
        assert len(line.character_scores) == len(line.text)


def test_a_line_reads_by_its_columns(small: OCR) -> None:
    """Equal neighbours count once, the blank not at all; from where the line begins."""
    shades = np.repeat([0, 0, 64, 128, 64, 191, 255], 24).astype(np.uint8)  # a a b blank b c space
    image = np.broadcast_to(shades[None, :, None], (48, len(shades), 3)).copy()
    whole = np.array([[0, 0], [len(shades), 0], [len(shades), 48], [0, 48]], np.float32)
    upright, turned = small.read_lines(HostImage(image, "bgr"), np.stack([whole, whole[[2, 3, 0, 1]]]))
    assert upright.text == "abbc "
    assert turned.text == " cbba"
    np.testing.assert_array_equal(turned.polygon, whole[[2, 3, 0, 1]])


@pytest.mark.parametrize("size", [(900, 40), (160, 30)])  # very wide, and of few rows
def test_frames_of_nv12_with_a_margin_read_as_bgr(small: OCR, size: tuple[int, int]) -> None:
    image = page((40, 8, 120, 24), size=size)
    planes = np.full((size[1] * 3 // 2, size[0]), 128, np.uint8)
    planes[: size[1]] = np.where(image[..., 0] > 0, 235, 16)
    expected, result = small(image), small(HostImage(planes, "nv12"))
    assert result.texts == expected.texts
    np.testing.assert_array_equal([line.polygon for line in result], [line.polygon for line in expected])


@pytest.mark.parametrize("size", [(900, 400), (1800, 80)])
def test_images_of_a_reduced_size_have_lines_of_the_whole(small: OCR, size: tuple[int, int], tmp_path: Path) -> None:
    image = page((80, 16, 400, 48), size=size)
    Image.fromarray(image).save(tmp_path / "a.jpg", quality=100)
    reduced = read_image(tmp_path / "a.jpg", at_least=lambda size: (size[0] // 2, size[1] // 2))
    assert reduced.pixel_size == (size[0] // 2, size[1] // 2)
    expected, result = small(image), small(reduced)
    assert result.size == expected.size == size
    assert len(result) == len(expected) > 0
    np.testing.assert_allclose(result.polygons, expected.polygons, atol=6)
    assert small.submit(reduced).result(60).to_dicts() == result.to_dicts()


def test_a_line_of_an_image_of_a_reduced_size_reads_by_its_columns(small: OCR, tmp_path: Path) -> None:
    shades = np.repeat([0, 0, 64, 128, 64, 191, 255], 48).astype(np.uint8)
    Image.fromarray(np.tile(shades, (96, 1))).save(tmp_path / "a.jpg", quality=100)
    reduced = read_image(tmp_path / "a.jpg", at_least=lambda size: (size[0] // 2, size[1] // 2))
    whole = np.array([[0, 0], [len(shades), 0], [len(shades), 96], [0, 96]], np.float32)
    (line,) = small.read_lines(reduced, whole[None])
    assert (reduced.pixel_size, line.text) == ((168, 48), "abbc ")
    np.testing.assert_array_equal(line.polygon, whole)


def test_a_region_that_lies_in_the_margin_alone_is_no_line(tmp_path: Path) -> None:
    with OCR(finder(tmp_path / "det.onnx"), reads(tmp_path / "rec.onnx"), unclip=0, text_score=0.2) as reader:
        lines = reader(page((40, 8, 120, 28), size=(900, 40)))  # the small network takes the black margin for text
    (box,) = [(*line.polygon.min(axis=0), *line.polygon.max(axis=0)) for line in lines]
    np.testing.assert_allclose(box, (40, 8, 120, 28), atol=2)


def test_an_empty_page_has_no_lines(small: OCR) -> None:
    for size in ((800, 760), (64, 64), (31, 200)):
        result = small(page(size=size))
        assert len(result) == 0
        assert result.text == ""
        assert result.size == size


def test_a_page_of_two_hundred_lines(small: OCR) -> None:
    lines = [
        (60 + 640 * column, 20 + 20 * row, 500 + 640 * column, 28 + 20 * row) for row in range(100) for column in (0, 1)
    ]
    result = small(page(*lines, size=(1300, 2040)))
    assert len(result) == 200
    tops = result.polygons[:, 0, 1]
    assert (np.diff(tops[::2]) > 0).all()
    assert (result.polygons[::2, 0, 0] < result.polygons[1::2, 0, 0]).all()


def test_text_from_top_to_bottom_begins_at_the_right(small: OCR) -> None:
    quad = np.array([[0, 0], [10, 0], [10, 40], [0, 40]], np.float32)
    assert sides(quad) == (10, 40)
    np.testing.assert_array_equal(along_the_text(quad), quad[[1, 2, 3, 0]])
    np.testing.assert_array_equal(along_the_text(quad[[1, 2, 3, 0]]), quad[[1, 2, 3, 0]])


def test_results_go_anywhere(small: OCR, tmp_path: Path) -> None:
    image = page((100, 100, 300, 120), (100, 300, 500, 340))
    result = small(image)
    assert [row["text"] for row in json.loads(result.to_json())] == result.texts
    assert len(result[result.scores > 2]) == 0
    assert result.draw(image).size == (800, 760)
    result.save(tmp_path / "lines.json")
    assert json.loads((tmp_path / "lines.json").read_text())[1]["polygon"] == result[1].polygon.tolist()
    with pytest.raises(InputError, match="800 x 100 pixels, and the TextLines 800 x 760"):
        result.draw(image[:100])
    with small.clone() as twin:
        assert twin(image).texts == result.texts == small([image])[0].texts
    with pytest.raises(ImageError, match="no image at"):
        small("missing.png")


@pytest.mark.parametrize("corner", [(100, 0), (780, 0), (780, 100), (0, 740)])
def test_the_text_of_a_line_is_drawn_within_the_image(corner: tuple[int, int]) -> None:
    inked = []
    for left, top in (corner, (400, 400)):
        polygon = np.array([(left, top), (left + 20, top), (left + 20, top + 20), (left, top + 20)], np.float32)
        drawn = TextLines([TextLine("abcdefghij", 1.0, polygon)], (800, 760)).draw(page())
        pixels = np.asarray(drawn).astype(int)
        inked.append((pixels[..., 2] - pixels[..., 0] > 100).sum())  # the text is blue, and the outline red
    assert inked[0] == pytest.approx(inked[1], rel=0.1)
    assert inked[1] > 100


def test_steps_of_reading_take_any_image(small: OCR, tmp_path: Path) -> None:
    pixels = page((100, 100, 300, 120))
    Image.fromarray(pixels[..., ::-1]).save(tmp_path / "a.png")
    quads = small.regions(HostImage(pixels, "bgr"))
    expected = small.read_lines(HostImage(pixels, "bgr"), quads)
    for image in (pixels, tmp_path / "a.png"):
        np.testing.assert_array_equal(small.regions(image), quads)
        assert small.read_lines(image, quads.tolist()) == expected
    assert small.read_lines(pixels, []) == []
    for wrong in (np.zeros((4, 2)), np.full((1, 4, 2), np.nan), [[1, 2], [3]], "abc"):
        with pytest.raises(InputError, match="^quads"):
            small.read_lines(pixels, wrong)
    for flat in ([[5, 5]] * 4, [[0, 0], [100, 0], [200, 0], [50, 0]]):
        with pytest.raises(InputError, match=r"^quads\[1\] is .* the corners of a rectangle around the line"):
            small.read_lines(pixels, [quads[0], flat])


def test_what_is_less_certain_is_counted(tmp_path: Path) -> None:
    with OCR(finder(tmp_path / "det.onnx"), reads(tmp_path / "rec.onnx"), text_score=0.99) as reader:
        result = reader(page((100, 100, 300, 120)))
    assert (len(result), result.dropped) == (0, 1)


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    det, rec = finder(tmp_path / "det.onnx"), reads(tmp_path / "rec.onnx")
    with pytest.raises(UnsupportedModelError, match="has 5 classes, but its metadata lists 2 characters"):
        OCR(det, reads(tmp_path / "few.onnx", "a\nb"))
    with pytest.raises(UnsupportedModelError, match="were detection, recognition and orientation exchanged"):
        OCR(rec, det)
    with pytest.raises(ConfigError, match="text_score is 2, not a float <= 1.0"):
        OCR(det, rec, text_score=2)
    with pytest.raises(ConfigError, match="unclip is -1, not a float >= 0.0"):
        OCR(det, rec, unclip=-1)
    with pytest.raises(ConfigError, match="'device' is not an option of the backend; move it out of options"):
        OCR(det, rec, options={"device": "cpu"})
    with pytest.raises(ConfigError, match="max_side=100 is below side=736"):
        OCR(det, rec, max_side=100)
    with pytest.raises(ConfigError, match="'xyz' - at `\\$.channel_order`; use one of 'bgr', 'nv12', 'rgb'"):
        OCR(det, rec, channel_order="xyz")


# ---- PaddleOCR's networks ----


@pytest.fixture(scope="module", params=[pytest.param(name, marks=real) for name in BACKENDS])
def reader(request: pytest.FixtureRequest) -> Iterator[OCR]:
    pytest.importorskip(request.param)
    with OCR(*REAL, request.param, threads=2) as reader:
        yield reader


@pytest.mark.parametrize("name", ["latin.jpg", "en_rec.jpg", "test_without_det.jpg"])
def test_no_character_is_wrong(reader: OCR, name: str) -> None:
    truth = json.loads((ASSETS / "truth.json").read_text("utf-8"))[name]
    assert "".join(reader(ASSETS / name).texts).replace(" ", "") == "".join(truth).replace(" ", "")


@pytest.mark.parametrize("size", [(400, 300), (33, 20), (1, 1), (900, 40)])
def test_a_white_page_has_no_text(reader: OCR, size: tuple[int, int]) -> None:
    assert reader(page(size=size)).texts == []


def test_a_page_that_is_upside_down(reader: OCR) -> None:
    image = np.asarray(Image.open(ASSETS / "ch_en_num.jpg").convert("RGB"))[..., ::-1]
    upright, turned = reader(image), reader(np.ascontiguousarray(image[::-1, ::-1]))
    assert len(set(upright.texts) & set(turned.texts)) > 10


# ---- requests ----


def test_every_way_reads_the_same(small: OCR) -> None:
    images = [page((100, 100, 300, 120)), page(), page((100, 100, 300, 120), (100, 300, 500, 340)), "missing.png"]
    expected = [small(image).to_dicts() for image in images[:3]]
    small.configure_pipeline(instances=2, max_batch=2)

    async def coroutines() -> list[Any]:
        return await asyncio.gather(*(small.infer(image) for image in images[:3]))

    for results in (
        list(small.stream(images[:3])), list(small.map(images[:3])), asyncio.run(coroutines()),
        [future.result(60) for future in small.submit_many(images[:3])],
    ):  # fmt: skip
        assert [result.to_dicts() for result in results] == expected
    *_, error = small.map(images, return_exceptions=True)
    assert isinstance(error, ImageError)
    assert small.timings.infer > 0


def test_the_score_of_a_call(small: OCR) -> None:
    image = page((100, 100, 300, 120))
    assert (len(small(image)), small(image).dropped) == (1, 0)
    assert (len(small(image, text_score=1.0)), small(image, text_score=1).dropped) == (0, 1)
    assert len(small.submit(image, text_score=1.0).result(60)) == 0
    for call in (small, lambda *a, **k: small.submit(*a, **k).result(60)):
        with pytest.raises(ConfigError, match="'conf' cannot be given with a call of OCR; use text_score"):
            call(image, conf=0.5)
        with pytest.raises(ConfigError, match="text_score is 'high', not a float"):
            call(image, text_score="high")


def test_deadlines_and_cancelling_reach_the_pages(small: OCR) -> None:
    small.configure_pipeline(instances=1, slots=16)
    with pytest.raises(DeadlineExceeded):
        small.submit(page(), deadline=0.0).result(60)
    futures = [small.submit(page((100, 100, 300, 120))) for _ in range(12)]
    assert futures[-1].cancel()
    assert all(len(future.result(60)) == 1 for future in futures[:-1])
    stats = small.pipeline.stats()
    assert (stats.done, stats.cancelled, stats.expired) == (11, 1, 1)


def test_warming_up_and_releasing(small: OCR) -> None:
    image = page((100, 100, 300, 120))
    small.warm_up()
    small.warm_up(example=image)
    expected = small.submit(image).result(60).texts
    small.release()
    assert small(image).texts == small.submit(image).result(60).texts == expected


def test_a_closed_reader(small: OCR) -> None:
    small.close()
    for call in (small, lambda image: list(small.map([image]))):
        with pytest.raises(ClosedError, match=r"(det|rec)\.onnx.* was closed"):
            call(page())


def test_networks_that_are_loaded_already(tmp_path: Path) -> None:
    det, rec = load(finder(tmp_path / "det.onnx")), load(reads(tmp_path / "rec.onnx"))
    with pytest.raises(ConfigError, match="threads: these belong to load"):
        OCR(det, rec, threads=1)
    with OCR(det, rec, text_score=0.2) as reader:
        assert len(reader(page((100, 100, 300, 120)))) == 1
        assert reader.details.networks == (det, rec)


@pytest.mark.parametrize("channels", [1, 2, 4])
def test_networks_of_other_channels_are_refused(tmp_path: Path, channels: int) -> None:
    shape = ("n", channels, "h", "w")
    path = save(tmp_path / "det.onnx", [node("Relu", "x", "y")], [value("x", shape)], [value("y", shape)], {})
    with pytest.raises(UnsupportedModelError, match=r"det.onnx is no network for .*not \(batch, 3, height, width\)"):
        OCR(path, reads(tmp_path / "rec.onnx"))
