"""Images, geometry and preprocessing, against OpenCV, NumPy in float64, and Python's own arithmetic."""

from __future__ import annotations

import copy
import ctypes
import gc
import itertools
import math
import mmap
import pickle
import platform
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from simd_variants import VARIANTS, variant

from infersdk import errors
from infersdk.core._lib import ffi, lib
from infersdk.image import Geometry, ImageView, PixelTransform, image_view
from infersdk.ops.preprocessing import letterbox, preprocess, preprocess_into

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

cv2 = pytest.importorskip("cv2", reason="the bit-identity tests compare with OpenCV")

FORMATS = ("bgr", "rgb", "bgra", "rgba", "gray", "nv12")
ORDERS = ("rgb", "bgr", "gray")
LAYOUTS = ("chw", "hwc")
DTYPES = ("float32", "float16", "uint8")


# ---- what OpenCV gives ---------------------------------------------------------------------------------------------


def image(rng: np.random.Generator, width: int, height: int, kind: str, *, region: bool = True) -> np.ndarray:
    """Noise, half of the time black and white only, as a region of a larger array (rows apart) where it can be."""
    channels = {"bgr": 3, "rgb": 3, "bgra": 4, "rgba": 4}.get(kind, 1)
    rows = height * 3 // 2 if kind == "nv12" else height
    margin = 3 if region else 0
    shape = (rows + margin, width + margin) + ((channels,) if channels > 1 else ())
    if rng.random() < 0.5:
        pixels = rng.integers(0, 256, shape, dtype=np.uint8)
    else:
        pixels = rng.integers(0, 2, shape, dtype=np.uint8) * np.uint8(255)
    return pixels[margin:, margin:]


def to_order(image: np.ndarray, pixels: str, order: str) -> np.ndarray:
    """cvtColor to the output's channels: (H, W) for gray, else (H, W, 3)."""
    image = np.ascontiguousarray(image)
    bgr = {
        "bgr": lambda: image,
        "rgb": lambda: image[..., ::-1],
        "bgra": lambda: image[..., :3],
        "rgba": lambda: image[..., 2::-1],
        "gray": lambda: cv2.cvtColor(image, cv2.COLOR_GRAY2BGR),
        "nv12": lambda: cv2.cvtColor(image, cv2.COLOR_YUV2BGR_NV12),
    }[pixels]()
    bgr = np.ascontiguousarray(bgr)
    if order == "gray":
        return image if pixels == "gray" else cv2.cvtColor(bgr, cv2.COLOR_BGR2GRAY)
    return bgr if order == "bgr" else np.ascontiguousarray(bgr[..., ::-1])


def cv2_resize(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """OpenCV's bilinear resize."""
    if platform.machine() == "aarch64":
        pytest.skip("OpenCV's wheel for aarch64 resizes with KleidiCV, whose bits are not those on x86")
    return cv2.resize(image, size, interpolation=cv2.INTER_LINEAR)


def cv2_canvas(image: np.ndarray, pixels: str, order: str, geometry: Geometry, fill: tuple[int, ...]) -> np.ndarray:
    """The uint8 canvas (H, W, C) by cvtColor, cv2.resize, and pasting."""
    colour = to_order(image, pixels, order)
    resized = cv2_resize(colour, geometry.resized).reshape(geometry.resized[1], geometry.resized[0], -1)
    return paste(resized, geometry, fill)


def paste(resized: np.ndarray, geometry: Geometry, fill: tuple[int, ...]) -> np.ndarray:
    (cw, ch), (x, y), (h, w) = geometry.canvas, geometry.offset, resized.shape[:2]
    canvas = np.empty((ch, cw, resized.shape[2]), np.uint8)
    canvas[:] = fill[: resized.shape[2]]
    x0, x1, y0, y1 = max(x, 0), min(x + w, cw), max(y, 0), min(y + h, ch)
    if x0 < x1 and y0 < y1:
        canvas[y0:y1, x0:x1] = resized[y0 - y : y1 - y, x0 - x : x1 - x]
    return canvas


def finish(canvas: np.ndarray, transform: PixelTransform) -> np.ndarray:
    """Scale, bias, type and layout: two float32 operations, each rounded."""
    y = canvas.astype(np.float32) * np.float32(transform.scale)
    y = y + np.float32(transform.bias)
    y = np.rint(np.clip(y, 0, 255)) if transform.dtype == np.uint8 else y
    with np.errstate(over="ignore"):
        y = y.astype(transform.dtype)
    return np.ascontiguousarray(y.transpose(2, 0, 1)) if transform.layout == "chw" else y


def identity(order: str = "bgr", layout: str = "hwc", fill: Any = (1, 2, 3)) -> PixelTransform:
    return PixelTransform(order, layout, "uint8", fill=fill[0] if order == "gray" else fill, scale=1)


def random_sizes(rng: np.random.Generator, count: int) -> Iterator[tuple[int, int, int, int]]:
    """Source and resized sizes: tiny, any, whole factors up and down (exactly 2 among them), one side unchanged."""
    for i in range(count):
        w, h = (int(v) for v in rng.integers(1, 90, 2))
        match i % 6:
            case 0:
                yield tuple(int(v) for v in rng.integers(1, 12, 4))
            case 1:
                yield tuple(int(v) for v in rng.integers(1, 230, 4))
            case 2:
                yield w, h, w * int(rng.integers(1, 6)), h * int(rng.integers(1, 6))
            case 3:
                yield w * int(rng.integers(1, 6)), h * int(rng.integers(1, 6)), w, h
            case 4:
                yield 2 * w, 2 * h, w, h
            case 5:
                yield w, h, w, int(rng.integers(1, 200))


# ---- geometry ------------------------------------------------------------------------------------------------------


def yolov5_letterbox(source: tuple[int, int], canvas: tuple[int, int], scale_up: bool) -> tuple[Any, Any]:
    (w, h), (cw, ch) = source, canvas
    r = min(ch / h, cw / w)
    if not scale_up:
        r = min(r, 1.0)
    new = max(1, round(w * r)), max(1, round(h * r))
    dw, dh = (cw - new[0]) / 2, (ch - new[1]) / 2
    return new, (round(dw - 0.1), round(dh - 0.1))


@pytest.mark.parametrize("scale_up", [False, True])
def test_letterbox_rounds_as_yolov5(rng: np.random.Generator, scale_up: bool) -> None:
    cases = [tuple(int(v) for v in rng.integers(1, 2000, 4)) for _ in range(200)]
    cases += [(1920, 1080, 640, 640), (810, 1080, 640, 640), (3, 1, 1, 1), (1, 3000, 640, 640), (640, 640, 640, 640)]
    cases += [(w, 2 * w, 5, 5) for w in range(1, 40)]  # halves
    for w, h, cw, ch in cases:
        geometry = Geometry.letterbox((w, h), (cw, ch), scale_up=scale_up)
        assert (geometry.resized, geometry.offset) == yolov5_letterbox((w, h), (cw, ch), scale_up), (w, h, cw, ch)
        assert geometry.kind == "resize"
        assert (geometry.source, geometry.canvas) == ((w, h), (cw, ch))


def test_resize_geometry_leads_back() -> None:
    geometry = Geometry.letterbox((810, 1080), (640, 640))
    assert geometry.resized == (480, 640)
    assert geometry.offset == (80, 0)
    corners = [[80, 0], [560, 640], [320, 320]]
    np.testing.assert_allclose(geometry.to_source(corners), [[0, 0], [810, 1080], [405, 540]], atol=1e-12)
    uneven = Geometry.letterbox((1000, 333), (640, 640))  # 213.12 rounds to 213: the axes differ in scale
    np.testing.assert_allclose(uneven.matrix[[0, 1], [0, 1]], [1000 / 640, 333 / 213], rtol=1e-15)


def test_resize_crop_is_torchvisions(rng: np.random.Generator) -> None:
    """The sizes of torchvision's _compute_resized_output_size and center_crop."""
    for _ in range(200):
        w, h, resize, cw, ch = (int(v) for v in rng.integers(1, 600, 5))
        short, long = min(w, h), max(w, h)
        longer = int(resize * long / short)
        size = (resize, longer) if w <= h else (longer, resize)
        offset = tuple(
            -round((side - crop) / 2.0) if side >= crop else (crop - side) // 2
            for side, crop in zip(size, (cw, ch), strict=True)
        )
        geometry = Geometry.resize_crop((w, h), resize, (cw, ch))
        assert (geometry.resized, geometry.offset) == (size, offset), (w, h, resize, cw, ch)


@pytest.mark.parametrize("scale_up", [False, True])
def test_letterbox_warp_is_centred_with_one_scale(rng: np.random.Generator, scale_up: bool) -> None:
    for _ in range(100):
        w, h, cw, ch = (int(v) for v in rng.integers(1, 2000, 4))
        geometry = Geometry.letterbox_warp((w, h), (cw, ch), scale_up=scale_up)
        (sx, zero1, _), (zero2, sy, _) = geometry.matrix
        assert geometry.kind == "warp"
        assert geometry.resized is None
        assert geometry.offset is None
        assert (zero1, zero2) == (0, 0)
        assert sx == sy == pytest.approx(max(w / cw, h / ch, 0 if scale_up else 1))
        np.testing.assert_allclose(geometry.to_source([[cw / 2, ch / 2]]), [[w / 2, h / 2]])


def test_geometry_is_a_value() -> None:
    a, b = (Geometry.letterbox((1920, 1080), (640, 640)) for _ in range(2))
    assert a == b
    assert hash(a) == hash(b)
    assert a != Geometry.letterbox((1920, 1081), (640, 640))
    assert a != "a geometry"
    assert repr(a) == "<Geometry 1920 x 1080 -> 640 x 640, resized to 640 x 360 at (0, 140)>"
    assert "warped by [[3.0, 0.0, 0.0]" in repr(Geometry.letterbox_warp((1920, 1080), (640, 640)))
    with pytest.raises(TypeError, match="letterbox"):
        Geometry()


@pytest.mark.parametrize(
    "one",
    [
        Geometry.letterbox((1000, 333), (640, 640)),
        Geometry.stretch((7, 9), (5, 3)),
        Geometry.resize_crop((810, 1080), 256, (224, 224)),
        Geometry.letterbox_warp((1000, 333), (640, 640)),
        Geometry.affine((9, 9), (5, 5), [[1.1, 0.3, -2], [0.1, 0.7, 1 / 3]]),
        PixelTransform("bgr", "hwc", "float16", fill=(1, 2, 3), scale=(0.1, 1 / 3, 2), bias=(0.2, -1, 0)),
        PixelTransform("gray", fill=7, scale=1 / 255, bias=-0.1),
    ],
    ids=repr,
)
def test_pickles_and_copies_are_equal(one: Geometry | PixelTransform) -> None:
    for twin in (pickle.loads(pickle.dumps(one)), copy.copy(one), copy.deepcopy(one)):
        assert twin == one
        assert repr(twin) == repr(one)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Geometry.letterbox((0, 5), (4, 4)), "source's width is 0"),
        (lambda: Geometry.letterbox((5, -1), (4, 4)), "source's height is -1"),
        (lambda: Geometry.stretch((5, 5), (4, 2**21)), "canvas's height is 2097152"),
        (lambda: Geometry.stretch((5, 5), (2**40, 4)), "a side can be at most"),
        (lambda: Geometry.stretch((5, 5, 5), (4, 4)), r"use \(width, height\)"),
        (lambda: Geometry.letterbox_warp((5, 5), (0, 4)), "canvas's width is 0"),
        (lambda: Geometry.resize_crop((5, 5), 0, (4, 4)), "shorter side"),
        (lambda: Geometry.resize_crop((1, 2**20), 2, (4, 4)), "longer side of 2097152"),
        (lambda: Geometry.affine((5, 5), (4, 4), [[1, 0, 0], [0, math.nan, 0]]), r"to_source\[4\] is -?nan"),
        (lambda: Geometry.affine((5, 5), (4, 4), [[1, 0, math.inf], [0, 1, 0]]), r"to_source\[2\] is inf"),
        (lambda: Geometry.affine((5, 5), (4, 4), [[1, 2, 0], [2, 4, 0]]), "determinant"),
        (lambda: Geometry.affine((5, 5), (4, 4), [[1, 0, 1e12], [0, 1, 0]]), "stay within"),
        (lambda: Geometry.affine((5, 5), (4, 4), [[1, 0], [0, 1]]), "shape"),
        (lambda: Geometry.affine((5, 5), (4, 4), np.eye(3)), "shape"),
    ],
)
def test_bad_geometry_says_why(make: Any, message: str) -> None:
    with pytest.raises(errors.InputError, match=message):
        make()


@pytest.mark.parametrize("side", [64, np.int64(64), np.array(64)])
def test_letterbox_takes_a_side(side: Any) -> None:
    assert letterbox(np.zeros((32, 48, 3), np.uint8), side)[1] == Geometry.letterbox((48, 32), (64, 64))
    with pytest.raises(errors.InputError, match=r"size is 64.5; use \(width, height\)"):
        letterbox(np.zeros((32, 48, 3), np.uint8), 64.5)  # type: ignore[arg-type]


def test_points_need_two_columns() -> None:
    with pytest.raises(errors.ShapeError, match=r"\(3,\)"):
        Geometry.stretch((5, 5), (4, 4)).to_source([1, 2, 3])


# ---- RESIZE is OpenCV's, bit for bit -------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(1920, 1080), (810, 1080), (3840, 2160), (333, 1000), (100, 80)])
def test_resize_of_usual_sizes_equals_opencv(rng: np.random.Generator, simd: int, size: tuple[int, int]) -> None:
    view = image(rng, *size, "bgr")
    geometry = Geometry.letterbox(size, (640, 640))
    expected = cv2_canvas(view, "bgr", "bgr", geometry, (114, 114, 114))
    np.testing.assert_array_equal(preprocess(view, geometry, identity(fill=(114,) * 3)), expected)


def test_resize_of_long_sides_equals_opencv(rng: np.random.Generator, simd: int) -> None:
    """Coefficients come out of float32 positions: the longer the side, the fewer bits are left for them."""
    for w, rw in [(30_000, 20_011), (20_011, 32_700), (32_767, 16_384), (32_766, 16_383)]:
        for pixels in ("gray", "bgr"):
            view = image(rng, w, 2, pixels)
            expected = cv2_resize(view, (rw, 3)).reshape(3, rw, -1)
            got = preprocess(view, Geometry.stretch((w, 2), (rw, 3)), identity("gray" if pixels == "gray" else "bgr"))
            np.testing.assert_array_equal(got, expected)
            tall = np.ascontiguousarray(view.swapaxes(0, 1))
            expected = cv2_resize(tall, (3, rw)).reshape(rw, 3, -1)
            got = preprocess(tall, Geometry.stretch((2, w), (3, rw)), identity("gray" if pixels == "gray" else "bgr"))
            np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("pixels", ["gray", "bgr", "bgra"])
def test_every_distance_between_columns(rng: np.random.Generator, simd: int, pixels: str) -> None:
    """Up to the scales where a register no longer holds a few columns' pixels, and well beyond; crops too."""
    order = "gray" if pixels == "gray" else "bgr"
    for scale in (0.1, 0.3, 0.6, 0.65, 0.7, 1, 1.2, 1.3, 1.4, 2, 2.5, 2.7, 3, 4, 5, 5.3, 5.9, 6.7, 7, 15, 16.1, 21, 40):
        rw = int(rng.integers(33, 140))
        w, offset = max(1, round(rw * scale)), -int(rng.integers(0, 30))
        view = image(rng, w, 7, pixels)
        geometry = Geometry.stretch((w, 7), (rw, 5))
        geometry._c.canvas_width, geometry._c.offset_x = rw - 3, offset
        expected = cv2_canvas(view, pixels, order, geometry, (1, 2, 3))
        got = preprocess(view, geometry, identity(order), format=pixels)
        np.testing.assert_array_equal(got, expected, err_msg=f"{w} to {rw} at {offset}")


@pytest.mark.parametrize("pixels", FORMATS)
@pytest.mark.parametrize("order", ORDERS)
def test_colour_is_converted_before_the_resize(rng: np.random.Generator, simd: int, pixels: str, order: str) -> None:
    even = 2 if pixels == "nv12" else 1
    for half_w, half_h, rw, rh in random_sizes(rng, 48):
        w, h = even * half_w, even * half_h
        view = image(rng, w, h, pixels)
        geometry = Geometry.stretch((w, h), (rw, rh))
        expected = cv2_canvas(view, pixels, order, geometry, (0, 0, 0))
        got = preprocess(view, geometry, identity(order), format=pixels)
        np.testing.assert_array_equal(got, expected, err_msg=f"{w} x {h} to {rw} x {rh}")


def test_every_nv12_colour_equals_opencv(simd: int) -> None:
    """All 2^24 of Y, U, V."""
    u, v, y = (
        a.reshape(2048, 2048)
        for a in np.meshgrid(*[np.arange(n, dtype=np.uint8) for n in (256, 256, 64)], indexing="ij")
    )
    frame = np.empty((6144, 4096), np.uint8)
    for i, (dy, dx) in enumerate(itertools.product((0, 1), (0, 1))):
        frame[dy:4096:2, dx::2] = 4 * y + np.uint8(i)
    frame[4096:, 0::2], frame[4096:, 1::2] = u, v
    got = preprocess(frame, Geometry.stretch((4096, 4096), (4096, 4096)), identity(), format="nv12")
    assert np.array_equal(got, cv2.cvtColor(frame, cv2.COLOR_YUV2BGR_NV12))


def test_every_gray_equals_opencv(simd: int) -> None:
    """All 2^24 colours."""
    b, g, r = np.meshgrid(*[np.arange(256, dtype=np.uint8)] * 3, indexing="ij")
    image = np.stack([b, g, r], -1).reshape(4096, 4096, 3)
    got = preprocess(image, Geometry.stretch((4096, 4096), (4096, 4096)), identity("gray"))
    assert np.array_equal(got[..., 0], cv2.cvtColor(image, cv2.COLOR_BGR2GRAY))


def test_separate_planes_of_nv12(rng: np.random.Generator) -> None:
    frame = image(rng, 32, 20, "nv12", region=False)
    geometry = Geometry.letterbox((32, 20), (24, 24))
    expected = preprocess(frame, geometry, identity(), format="nv12")
    y, uv = frame[:20], frame[20:]
    wide = np.zeros((10, 50), np.uint8)
    wide[:, 7:39] = uv
    for plane in (uv, uv.reshape(10, 16, 2), wide[:, 7:39]):
        np.testing.assert_array_equal(preprocess(image_view(y, "nv12", plane), geometry, identity()), expected)


@pytest.mark.parametrize(
    "offset", [(0, 0), (5, 3), (-7, 2), (3, -9), (-40, -30), (70, 0), (0, 70), (-300, 0), (61, 45)]
)
def test_any_offset_crops_and_fills(rng: np.random.Generator, simd: int, offset: tuple[int, int]) -> None:
    view = image(rng, 57, 41, "bgr")
    geometry = Geometry.stretch((57, 41), (90, 80))
    geometry._c.canvas_width, geometry._c.canvas_height = 64, 48
    geometry._c.offset_x, geometry._c.offset_y = offset
    expected = cv2_canvas(view, "bgr", "rgb", geometry, (9, 8, 7))
    np.testing.assert_array_equal(preprocess(view, geometry, identity("rgb", fill=(9, 8, 7))), expected)


# ---- every combination, every variant ------------------------------------------------------------------------------


@pytest.mark.parametrize("pixels", FORMATS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_all_combinations(rng: np.random.Generator, simd: int, pixels: str, dtype: str) -> None:
    for order, layout in itertools.product(ORDERS, LAYOUTS):
        channels = 1 if order == "gray" else 3
        for _ in range(6):
            w, h, cw, ch = (int(v) for v in rng.integers(1, 120, 4))
            if pixels == "nv12":
                w, h = 2 * w, 2 * h
            transform = PixelTransform(
                order,
                layout,
                dtype,
                fill=rng.integers(0, 256, channels).tolist(),
                scale=rng.normal(0, 1, channels).tolist(),
                bias=rng.normal(0, 50, channels).tolist(),
            )
            view = image(rng, w, h, pixels)
            geometry = Geometry.letterbox((w, h), (cw, ch))
            expected = finish(cv2_canvas(view, pixels, order, geometry, transform.fill), transform)
            got = preprocess(view, geometry, transform, format=pixels)
            assert got.dtype == np.dtype(dtype)
            np.testing.assert_array_equal(
                got.view(np.uint8), expected.view(np.uint8), err_msg=f"{w} x {h} to {cw} x {ch}"
            )


def bits(image: Any, geometry: Geometry, transform: PixelTransform, pixels: str, simd: int) -> bytes:
    with variant(simd):
        return preprocess(image, geometry, transform, format=pixels).tobytes()


def random_affine(rng: np.random.Generator, source: tuple[int, int], canvas: tuple[int, int]) -> Geometry:
    """A turn, a scale and a shift that keep part of the image on the canvas; now and then without a turn."""
    angle = rng.choice([0, math.pi / 2, math.pi, rng.uniform(0, 2 * math.pi)])
    scale = np.exp(rng.uniform(-1.5, 1.5, 2)) * max(source) / max(canvas)
    turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]) * scale
    shift = np.array(source) * rng.uniform(-0.2, 1.2, 2) - turn @ (np.array(canvas) / 2)
    return Geometry.affine(source, canvas, np.column_stack([turn, shift]))


@pytest.mark.parametrize("pixels", FORMATS)
def test_variants_agree_on_warps(rng: np.random.Generator, pixels: str) -> None:
    for i in range(60):
        w, h, cw, ch = (int(v) for v in rng.integers(1, 130, 4))
        if pixels == "nv12":
            w, h = 2 * w, 2 * h
        view = image(rng, w, h, pixels)
        make = Geometry.letterbox_warp if i % 2 else lambda s, c: random_affine(rng, s, c)
        geometry = make((w, h), (cw, ch))
        for order in ORDERS:
            transform = PixelTransform(order, "hwc", "uint8", fill=(9, 99, 199)[: 1 if order == "gray" else 3], scale=1)
            results = {simd: bits(view, geometry, transform, pixels, simd) for simd in VARIANTS}
            assert len(set(results.values())) == 1, (i, geometry, order)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("canvas", [(640, 640), (1024, 513), (637, 701), (1000, 1000)])
def test_large_outputs_are_the_same_at_any_address(
    simd: int, rng: np.random.Generator, dtype: Any, canvas: tuple[int, int]
) -> None:
    """They go past the caches by stores that want aligned addresses; what lies around stays as it was."""
    view = image(rng, 300, 200, "bgr")
    for layout in LAYOUTS:
        transform = PixelTransform("rgb", layout, dtype)
        geometry = Geometry.letterbox((300, 200), canvas)
        nbytes = math.prod(transform.shape(geometry)) * np.dtype(dtype).itemsize
        with variant(lib.IFS_SIMD_PLAIN):
            expected = preprocess(view, geometry, transform).tobytes()
        for offset in (0, 4, 16, 32, 64 + 8):
            block = np.full(nbytes + 256, 0xA5, np.uint8)
            at = -block.ctypes.data % 64 + offset
            preprocess_into(view, geometry, transform, block.ctypes.data + at, nbytes)
            assert block[at : at + nbytes].tobytes() == expected, (layout, offset)
            assert (block[:at] == 0xA5).all()
            assert (block[at + nbytes :] == 0xA5).all()


# ---- WARP ----------------------------------------------------------------------------------------------------------


def warp_float64(image: np.ndarray, geometry: Geometry, fill: tuple[int, ...]) -> np.ndarray:
    """The same sampling in float64: (H, W, C)."""
    cw, ch = geometry.canvas
    h, w = image.shape[:2]
    centres = np.stack(np.meshgrid(np.arange(cw) + 0.5, np.arange(ch) + 0.5), -1).reshape(-1, 2)
    x, y = geometry.to_source(centres).T - 0.5
    ix, iy = np.floor(x).astype(int), np.floor(y).astype(int)
    total = np.zeros((len(x), image.shape[2]))
    for dy, dx in itertools.product((0, 1), (0, 1)):
        tx, ty = ix + dx, iy + dy
        inside = (tx >= 0) & (tx < w) & (ty >= 0) & (ty < h)
        value = np.where(inside[:, None], image[ty.clip(0, h - 1), tx.clip(0, w - 1)], fill)
        weight = np.where(dx, x - ix, 1 - (x - ix)) * np.where(dy, y - iy, 1 - (y - iy))
        total += value * weight[:, None]
    return total.reshape(ch, cw, -1)


def test_warp_is_within_a_level_of_float64(rng: np.random.Generator, simd: int) -> None:
    for i in range(60):
        w, h, cw, ch = (int(v) for v in rng.integers(1, 150, 4))
        view = image(rng, w, h, "bgr")
        geometry = Geometry.letterbox_warp((w, h), (cw, ch)) if i % 3 == 0 else random_affine(rng, (w, h), (cw, ch))
        got = preprocess(view, geometry, identity(fill=(0, 100, 255)))
        error = np.abs(got - warp_float64(view, geometry, (0, 100, 255)))
        assert error.max() <= 1, (geometry, error.max())


def test_warp_by_whole_pixels_is_exact(rng: np.random.Generator, simd: int) -> None:
    view = image(rng, 50, 40, "rgb")
    geometry = Geometry.affine((50, 40), (50, 40), [[1, 0, 3], [0, 1, -2]])
    expected = np.empty_like(view)
    expected[:] = (1, 2, 3)
    expected[2:, :-3] = view[:-2, 3:]
    np.testing.assert_array_equal(preprocess(view, geometry, identity("rgb"), format="rgb"), expected)


# ---- the Python face -----------------------------------------------------------------------------------------------


def test_letterbox_is_yolov5s_own_path(assets: Path, simd: int) -> None:
    bgr = cv2.imread(str(assets / "images" / "bus.jpg"))
    resized = cv2_resize(bgr, (480, 640))
    padded = cv2.copyMakeBorder(resized, 0, 0, 80, 80, cv2.BORDER_CONSTANT, value=(114, 114, 114))
    theirs = np.ascontiguousarray(padded[:, :, ::-1].transpose(2, 0, 1)).astype(np.float32)
    ours, geometry = letterbox(bgr, 640)
    assert geometry == Geometry.letterbox((810, 1080), (640, 640))
    np.testing.assert_array_equal(ours, theirs * np.float32(1 / 255))
    np.testing.assert_allclose(ours, theirs / 255, rtol=2e-7)


def test_normalize_is_close_to_three_operations(rng: np.random.Generator) -> None:
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    transform = PixelTransform.normalize(mean, std)
    assert transform.scale == tuple(float(np.float32(1 / (255 * s))) for s in std)
    assert transform.bias == tuple(float(np.float32(-m / s)) for m, s in zip(mean, std, strict=True))
    view = image(rng, 20, 10, "rgb")
    got = preprocess(view, Geometry.stretch((20, 10), (20, 10)), transform, format="rgb")
    expected = ((view / 255 - mean) / std).transpose(2, 0, 1)
    np.testing.assert_allclose(got, expected, atol=1e-6)


def test_transform_is_a_value() -> None:
    a = PixelTransform("bgr", "hwc", np.float16, fill=(1, 2, 3), scale=(1, 2, 3), bias=1)
    assert (a.order, a.layout, a.dtype, a.channels) == ("bgr", "hwc", np.float16, 3)
    assert (a.fill, a.scale, a.bias) == ((1, 2, 3), (1, 2, 3), (1, 1, 1))
    assert a == PixelTransform("bgr", "hwc", "float16", fill=(1, 2, 3), scale=(1, 2, 3), bias=1)
    assert a != PixelTransform("bgr", "hwc", "float16", fill=(1, 2, 4), scale=(1, 2, 3), bias=1)
    assert len({a, PixelTransform(), PixelTransform()}) == 2
    assert "'bgr', 'hwc', 'float16'" in repr(a)
    assert PixelTransform("gray", fill=7).fill == (7,)
    assert PixelTransform().shape(Geometry.stretch((9, 9), (4, 5))) == (3, 5, 4)
    assert PixelTransform("gray", "hwc").shape(Geometry.stretch((9, 9), (4, 5))) == (5, 4, 1)


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda: Geometry.stretch((math.inf, 8), (8, 8)), errors.InputError, r"source is \(inf, 8\)"),
        (lambda: Geometry.stretch("64", (8, 8)), errors.InputError, "source is '64'; use .*, two whole numbers"),
        (lambda: Geometry.resize((9, 9), (9, 9), (9, 9), (0.9, 1)), errors.InputError, r"offset is \(0.9, 1\)"),
        (lambda: Geometry.resize_crop((9, 9), 7.9, (5, 5)), errors.InputError, r"resize is \(7.9, 1\)"),
        (lambda: PixelTransform("hsv"), errors.InputError, "'hsv'.*'rgb', 'bgr', 'gray'"),
        (lambda: PixelTransform(layout="nchw"), errors.InputError, "'nchw'"),
        (lambda: PixelTransform(dtype="float64"), errors.DTypeError, "float64"),
        (lambda: PixelTransform(dtype="float99"), errors.DTypeError, "dtype is 'float99'; use float32"),
        (lambda: PixelTransform(scale=10**400), errors.InputError, "scale is 1000"),
        (lambda: PixelTransform.normalize(0.5, 1, max_value=10**400), errors.InputError, "max_value is 1000"),
        (lambda: Geometry.affine((4, 4), (4, 4), "abc"), errors.InputError, "to_source is 'abc'; use an array"),
        (lambda: Geometry.stretch((5, 5), (4, 4)).to_source([["a", "b"]]), errors.InputError, "points are of <U1"),
        (
            lambda: Geometry.affine((4, 4), (4, 4), [[1, 0, 0], [0, 1]]),
            errors.InputError,
            r"is \[\[1, 0, 0\], \[0, 1\]\]",
        ),
        (lambda: PixelTransform(fill=256), errors.InputError, "256"),
        (lambda: PixelTransform(fill=(1, 2)), errors.InputError, "2 numbers"),
        (lambda: PixelTransform("gray", scale=(1, 2, 3)), errors.InputError, "1 channels"),
        (lambda: PixelTransform(scale=math.nan), errors.InputError, "finite"),
        (lambda: PixelTransform(bias=1e39), errors.InputError, "finite"),
        (lambda: PixelTransform(bias="x"), errors.InputError, "'x'"),
        (lambda: PixelTransform.normalize(0.5, 0), errors.InputError, "std"),
        (lambda: PixelTransform.normalize(0.5, 1, max_value=0), errors.InputError, "max_value"),
    ],
)
def test_bad_transform_says_why(make: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda: image_view([[1]]), errors.InputError, "list"),
        (lambda: image_view(np.zeros((4, 4, 3), np.float32)), errors.DTypeError, "float32"),
        (lambda: image_view(np.zeros((4, 4, 2), np.uint8)), errors.ShapeError, r"\(4, 4, 2\)"),
        (lambda: image_view(np.zeros((1, 4, 4, 3), np.uint8)), errors.ShapeError, r"\(1, 4, 4, 3\)"),
        (lambda: image_view(np.zeros(4, np.uint8)), errors.ShapeError, r"\(4,\)"),
        (lambda: image_view(np.zeros((0, 4, 3), np.uint8)), errors.ShapeError, r"\(0, 4, 3\)"),
        (lambda: image_view(np.zeros((1, 2**20 + 1, 3), np.uint8)), errors.ShapeError, r"at most 2\*\*20"),
        (lambda: image_view(np.zeros((4, 4, 3), np.uint8), "bgra"), errors.ShapeError, "4 channels"),
        (lambda: image_view(np.zeros((4, 4, 3), np.uint8), "yuv"), errors.InputError, "'yuv'"),
        (lambda: image_view(np.zeros((4, 4), np.uint8), "nv12", [1]), errors.InputError, "uv is a uint8 .*, not list"),
        (lambda: image_view(np.zeros((4, 4), np.uint8), "nv12"), errors.ShapeError, r"\(H \* 3 / 2, W\)"),
        (lambda: image_view(np.zeros((6, 3), np.uint8), "nv12"), errors.ShapeError, r"\(6, 3\)"),
        (lambda: image_view(np.zeros((3, 2), np.uint8), "nv12", np.zeros((1, 2), np.uint8)), errors.ShapeError, "uv"),
        (lambda: image_view(np.zeros((4, 2), np.uint8), "nv12", np.zeros((1, 2), np.uint8)), errors.ShapeError, "uv"),
        (lambda: image_view(np.zeros((4, 4), np.uint8), uv=np.zeros((2, 4), np.uint8)), errors.InputError, "nv12"),
    ],
)
def test_bad_image_says_why(make: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        make()


def test_any_strides(rng: np.random.Generator, simd: int) -> None:
    """What lies in place is not copied; what does not is, and reads the same."""
    base = rng.integers(0, 256, (60, 80, 4), dtype=np.uint8)
    views = {
        "region": base[5:50, 9:70],
        "every second row": base[::2],
        "mirrored up-down": base[::-1],
        "mirrored left-right": base[:, ::-1],
        "every third column": base[:, ::3],
        "first three channels": base[..., :3],
        "first three channels, rows apart": base[5:50:2, 9:70, :3],
        "last three channels": base[..., 1:],  # of the last pixel a fourth byte is beyond the end
        "last three channels, not of the last row": base[:-1, :, 1:],
        "channels reversed": base[..., 2::-1],
        "one channel": base[..., 1],
        "one row": base[::-1][:1],
        "one column": base[:, ::-1][:, :1, :3],
        "transposed": base.transpose(1, 0, 2),
        "one row, many times": np.broadcast_to(base[:1], base.shape),
    }
    for name, view in views.items():
        size = view.shape[1], view.shape[0]
        geometry = Geometry.letterbox(size, (50, 45))
        order = "gray" if view.ndim == 2 else "bgr"
        expected = preprocess(view.copy(), geometry, identity(order))
        image = image_view(view)
        np.testing.assert_array_equal(preprocess(image, geometry, identity(order)), expected, err_msg=name)
        in_place = int(ffi.cast("uintptr_t", image._c.data)) == view.__array_interface__["data"][0]
        if name in ("region", "every second row") or name.startswith("first three channels"):
            assert in_place, name
        if name == "last three channels":
            assert not in_place


def test_a_view_keeps_its_array() -> None:
    image = image_view(np.full((40, 30, 3), 7, np.uint8))
    gc.collect()
    assert isinstance(image, ImageView)
    assert (image.size, image.width, image.height, image.format) == ((30, 40), 30, 40, "bgr")
    assert repr(image) == "<ImageView 30 x 40 bgr>"
    assert (preprocess(image, Geometry.stretch((30, 40), (8, 8)), identity()) == 7).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_nothing_is_written_beside_the_output(rng: np.random.Generator, simd: int, dtype: str, layout: str) -> None:
    for order, _ in itertools.product(ORDERS, range(8)):
        w, h, cw, ch = (int(v) for v in rng.integers(1, 80, 4))
        transform = PixelTransform(order, layout, dtype, scale=1)
        geometry = Geometry.letterbox((w, h), (cw, ch))
        count = int(np.prod(transform.shape(geometry)))
        start = int(rng.integers(1, 70))  # any alignment
        guarded = np.full(count + start + 70, 55, dtype)
        out = guarded[start : start + count].reshape(transform.shape(geometry))
        view = image(rng, w, h, "bgr")
        assert preprocess(view, geometry, transform, out=out) is out
        np.testing.assert_array_equal(out, preprocess(view, geometry, transform))
        assert (guarded[:start] == 55).all()
        assert (guarded[start + count :] == 55).all()


def test_bad_out_says_why(rng: np.random.Generator) -> None:
    view = image(rng, 30, 20, "bgr")
    geometry, transform = Geometry.letterbox((30, 20), (16, 16)), PixelTransform()
    with pytest.raises(errors.DTypeError, match=r"float64.*float32"):
        preprocess(view, geometry, transform, out=np.empty((3, 16, 16)))
    with pytest.raises(errors.InputError, match="out is list; use an array"):
        preprocess(view, geometry, transform, out=[0])  # type: ignore[arg-type]
    with pytest.raises(errors.ShapeError, match=r"\(3, 16, 15\)"):
        preprocess(view, geometry, transform, out=np.empty((3, 16, 15), np.float32))
    with pytest.raises(errors.InputError, match="contiguous"):
        preprocess(view, geometry, transform, out=np.empty((3, 16, 32), np.float32)[..., ::2])
    frozen = np.empty((3, 16, 16), np.float32)
    frozen.flags.writeable = False
    with pytest.raises(errors.ReadOnlyError, match="read-only"):
        preprocess(view, geometry, transform, out=frozen)
    pixels = np.zeros((16, 16, 3), np.uint8)
    turn, same = Geometry.affine((16, 16), (16, 16), [[0, -1, 16], [1, 0, 0]]), PixelTransform("bgr", "hwc", "uint8")
    with pytest.raises(errors.InputError, match="out shares memory with the image"):
        preprocess(pixels, turn, same, out=pixels)
    with pytest.raises(errors.ShapeError, match="needs 3072 bytes, but the destination has 3071"):
        preprocess_into(view, geometry, transform, np.empty((3, 16, 16), np.float32).ctypes.data, 3071)
    with pytest.raises(errors.ShapeError, match=r"30 x 20.* made for 20 x 30"):
        preprocess(view, Geometry.letterbox((20, 30), (16, 16)), transform)


# ---- nothing is read beside the image --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded() -> Iterator[np.ndarray]:
    """Bytes between two pages that must not be touched: reading before or behind them ends the process."""
    libc = ctypes.CDLL(None, use_errno=True)
    page, pages = mmap.PAGESIZE, 24
    memory = mmap.mmap(-1, (pages + 2) * page)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for start in (base, base + (pages + 1) * page):
        assert libc.mprotect(ctypes.c_void_p(start), ctypes.c_size_t(page), 0) == 0
    yield np.frombuffer(memory, np.uint8)[page:-page]
    for start in (base, base + (pages + 1) * page):
        libc.mprotect(ctypes.c_void_p(start), ctypes.c_size_t(page), 3)


@pytest.mark.skipif(sys.platform != "linux", reason="mprotect through ctypes is written for Linux")
@pytest.mark.parametrize("pixels", FORMATS)
def test_nothing_is_read_outside_the_image(
    rng: np.random.Generator, simd: int, guarded: np.ndarray, pixels: str
) -> None:
    channels = {"bgr": 3, "rgb": 3, "bgra": 4, "rgba": 4}.get(pixels, 1)
    for i in range(60):
        w, h, cw, ch = (int(v) for v in rng.integers(1, 12 if i % 2 else 80, 4))
        shape: tuple[int, ...] = (h, w, channels) if channels > 1 else (h, w)
        if pixels == "nv12":
            w, h = 2 * w, 2 * h
            shape = (h * 3 // 2, w)
        count = int(np.prod(shape))
        place = guarded[-count:] if i % 3 else guarded[:count]
        place[:] = rng.integers(0, 256, count, dtype=np.uint8)
        image = place.reshape(shape)
        for geometry in (Geometry.letterbox((w, h), (cw, ch)), random_affine(rng, (w, h), (cw, ch))):
            for order in ORDERS:
                got = preprocess(image, geometry, identity(order), format=pixels)
                np.testing.assert_array_equal(got, preprocess(image.copy(), geometry, identity(order), format=pixels))


# ---- the rows that a resize reads ----


def rows_of(geometry: Geometry) -> tuple[tuple[int, int, int], Any]:
    """The pattern (first, take, step), and the geometry for those rows alone."""
    rows, out = ffi.new("ifs_rows *"), ffi.new("ifs_geometry *")
    assert lib.ifs_geometry_rows(geometry._c, rows, out) == 0
    return (rows.first, rows.take, rows.step), out


def test_the_rows_that_are_read_give_the_same_bytes(rng: np.random.Generator) -> None:
    patterns = set()
    for i in range(200):
        factor, width, height = (int(v) for v in rng.integers(1, [12, 70, 40]))
        factor = i % 6 + 1 if i < 12 else factor  # the patterns below occur whatever the numbers are
        resized = int(rng.integers(1, 60)) if i % 3 else -(-width // 2), height
        width = 2 * resized[0] if i % 3 == 0 else width  # half the width, which with half the height is another way
        canvas, offset = (int(v) for v in rng.integers(1, 90, 2)), (int(v) for v in rng.integers(-20, 20, 2))
        source = width, factor * height
        geometry = Geometry.resize(source, tuple(canvas), resized, tuple(offset))
        (first, take, step), out = rows_of(geometry)
        patterns.add((factor, first, take, step))
        form = FORMATS[i % 5]
        channels = {"gray": 1, "bgr": 3, "rgb": 3}.get(form, 4)
        pixels = rng.integers(0, 256, (source[1], width, channels), np.uint8)
        kept = pixels.reshape(-1, step, width, channels)[:, first : first + take].reshape(-1, width, channels)
        sparse = Geometry.resize((width, len(kept)), geometry.canvas, resized, geometry.offset)
        assert ffi.buffer(out)[:] == ffi.buffer(sparse._c)[:]
        transform = PixelTransform(ORDERS[i % 3], "chw", "float32")
        expected = preprocess(image_view(pixels, form), geometry, transform)
        np.testing.assert_array_equal(preprocess(image_view(kept, form), sparse, transform), expected)
    assert {(1, 0, 1, 1), (2, 0, 1, 1), (3, 1, 1, 3), (4, 1, 2, 4), (5, 2, 1, 5), (6, 2, 2, 6)} <= patterns
    assert (4, 0, 1, 1) in patterns  # half the width as well: all rows


def test_all_rows_are_read_where_there_is_no_pattern() -> None:
    for geometry in (
        Geometry.letterbox((1920, 1080), (416, 416)),
        Geometry.letterbox((1280, 720), (640, 640)),
        Geometry.stretch((30, 20), (60, 40)),
        Geometry.letterbox_warp((1920, 1080), (640, 640)),
    ):
        pattern, out = rows_of(geometry)
        assert pattern == (0, 1, 1)
        assert ffi.buffer(out)[:] == ffi.buffer(geometry._c)[:]
    assert rows_of(Geometry.letterbox((1920, 1080), (640, 640)))[0] == (1, 1, 3)
    assert rows_of(Geometry.letterbox((3840, 2160), (640, 640)))[0] == (2, 2, 6)
