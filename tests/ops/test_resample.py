"""Resizing with a filter: byte for byte as Pillow, by every SIMD variant."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from PIL import Image
from pillow_order import order_differs
from simd_variants import VARIANTS, variant

from infersdk import errors
from infersdk.image import image_view
from infersdk.ops import resample

FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


def by_all_variants(image: Any, size: tuple[int, int], **settings: Any) -> np.ndarray[Any, Any]:
    """The result, which all variants give."""
    results = []
    for simd in VARIANTS:
        with variant(simd):
            results.append(resample(image, size, **settings))
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])
    return results[0]


@pytest.mark.parametrize("kind", ["bilinear", "bicubic"])
@pytest.mark.parametrize("channels", [1, 3])
def test_equals_pillow(rng: np.random.Generator, kind: str, channels: int) -> None:
    for _ in range(60):
        width, height, w, h = (int(side) for side in rng.integers(1, 90, 4))
        pixels = rng.integers(0, 256, (height, width, channels), np.uint8)
        if rng.random() < 0.3:
            pixels = (pixels > 127).astype(np.uint8) * 255  # overshoots at every edge
        pixels = pixels[..., 0] if channels == 1 else pixels
        if order_differs((width, height), (w, h)):
            continue
        expected = np.asarray(Image.fromarray(pixels).resize((w, h), FILTERS[kind]))
        found = by_all_variants(pixels, (w, h), filter=kind)
        np.testing.assert_array_equal(found, expected)
        left, top = int(rng.integers(w)), int(rng.integers(h))
        crop = left, top, int(rng.integers(left, w)) + 1, int(rng.integers(top, h)) + 1
        part = by_all_variants(pixels, (w, h), filter=kind, crop=crop)
        np.testing.assert_array_equal(part, expected[crop[1] : crop[3], crop[0] : crop[2]])


@pytest.mark.parametrize("size", [(256, 171), (1400, 900), (640, 427), (3, 2000)])
def test_usual_sizes(rng: np.random.Generator, size: tuple[int, int]) -> None:
    pixels = rng.integers(0, 256, (427, 640, 3), np.uint8)
    expected = np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC))
    np.testing.assert_array_equal(by_all_variants(pixels, size), expected)


def test_formats_and_strides(rng: np.random.Generator) -> None:
    """Four bytes a pixel, rows that are apart; the last bytes of the memory belong to the last pixel."""
    large = rng.integers(0, 256, (40, 50, 4), np.uint8)
    region = large[3:37, 5:44]
    expected = np.asarray(Image.fromarray(np.ascontiguousarray(region[..., :3])).resize((20, 17), 3))
    for order in ("rgba", "bgra"):
        np.testing.assert_array_equal(by_all_variants(image_view(region, order), (20, 17)), expected)
    tight = np.ascontiguousarray(region[..., :3])
    np.testing.assert_array_equal(by_all_variants(tight, (20, 17)), expected)
    assert resample(tight, (tight.shape[1], tight.shape[0])).tobytes() == tight.tobytes()


def test_arguments_are_checked() -> None:
    pixels = np.zeros((8, 10, 3), np.uint8)
    for size, settings, words in (
        ((0, 5), {"crop": (0, 0, 1, 1)}, "0 pixels"),
        ((5, 5), {"crop": (2, 0, 6, 5)}, "outside the resized image of 5 x 5"),
        ((5, 5), {"crop": (-1, 0, 3, 5)}, "outside"),
        ((5, 5), {"crop": (3, 0, 3, 5)}, "empty"),
        ((5, 5), {"filter": "lanczos"}, "'bilinear', 'bicubic'"),
        ((1 << 21, 5), {"crop": (0, 0, 1, 1)}, "2097152 pixels"),
        ((1 << 31, 1), {}, "2147483648 pixels"),
        ((5, 5), {"crop": (0, 0, 10**7, 10**7)}, "outside"),
        ((5, 5), {"crop": (-(1 << 40), 0, 2 - (1 << 40), 2)}, "outside"),
        (4, {}, "size is 4 and"),
        ((4.5, 4), {}, r"size is \(4.5, 4\) and"),
        ((4, 4), {"crop": (0, 0, 2)}, r"crop \(0, 0, 2\); use whole numbers"),
    ):
        with pytest.raises(errors.InputError, match=words):
            resample(pixels, size, **settings)
    with pytest.raises(errors.InferSDKError, match="pixel format 5"):
        resample(image_view(np.zeros((12, 8), np.uint8), "nv12"), (4, 4))
