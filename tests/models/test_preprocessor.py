"""Images resized by Pillow's filters, on canvases with padding: against Pillow itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pillow_order import order_differs

from infersdk.core.tensor_spec import TensorSpec
from infersdk.errors import ConfigError
from infersdk.image import Geometry
from infersdk.models.canvases import Canvases
from infersdk.models.preprocessor import ImageInput, Preprocessor

FILTERS: dict[Any, Image.Resampling] = {
    "bilinear-antialias": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
}
SIZES = [(517, 300), (300, 517), (64, 48), (640, 3), (1, 90), (31, 31)]
SPEC = TensorSpec("images", np.dtype("float32"), ("batch", 3, "height", "width"))


def on_canvas(image: Any, geometry: Geometry, filter: Image.Resampling) -> Any:
    """The image on a canvas of grey 114, channels first, from 0 to 255: resized by Pillow as a whole, then placed."""
    assert geometry.resized is not None
    assert geometry.offset is not None
    canvas = Image.new("RGB", geometry.canvas, (114, 114, 114))
    canvas.paste(Image.fromarray(image).resize(geometry.resized, filter), geometry.offset)
    return np.asarray(canvas).transpose(2, 0, 1)


@pytest.mark.parametrize("interpolation", FILTERS)
@pytest.mark.parametrize("size", SIZES)
def test_padding_and_crops(interpolation: Any, size: tuple[int, int], rng: np.random.Generator) -> None:
    image = rng.integers(0, 256, (size[1], size[0], 3), np.uint8)
    target = ImageInput(SPEC, (96, 64), "chw")
    pixels = {"order": "rgb", "scale": 1.0, "fill": 114}
    for made in (
        Preprocessor.letterbox(target, **pixels),
        Preprocessor.letterbox(target, centred=False, **pixels),
        Preprocessor.stretch(target, **pixels),
        Preprocessor.crop(target, **pixels),
    ):
        preprocessor = replace(made, interpolation=interpolation, channel_order="rgb")
        read = preprocessor.read(image)
        geometry = preprocessor.geometry_of(size)
        assert read.size == size
        assert geometry.resized is not None
        if not order_differs(size, geometry.resized):
            expected = on_canvas(image, geometry, FILTERS[interpolation])
            np.testing.assert_array_equal(preprocessor.array([read])[0], expected)


@pytest.mark.parametrize("size", SIZES)
def test_canvases(size: tuple[int, int], rng: np.random.Generator) -> None:
    """Images are read before their canvas is known, also by those who then put them on another one."""
    image = rng.integers(0, 256, (size[1], size[0], 3), np.uint8)

    def make(input: ImageInput) -> Preprocessor:
        made = Preprocessor.letterbox(input, order="rgb", scale=1.0, fill=114)
        return replace(made, interpolation="bicubic", channel_order="rgb")

    canvases = Canvases(ImageInput(SPEC, (128, 128), "chw"), make, [(128, 80), (80, 128)])
    read, canvas = canvases.whole.read(image), canvases.of(size)
    expected = on_canvas(image, canvas.geometry_of(size), Image.Resampling.BICUBIC)
    np.testing.assert_array_equal(canvas.array([read])[0], expected)
    for other in map(canvases.on, canvases.sizes):
        assert other.array([read]).shape == (1, 3, *reversed(other.input.size))


def test_warps_are_refused() -> None:
    target = ImageInput(SPEC, (64, 64), "chw")
    warped = Preprocessor(target, target.transform(), lambda size: Geometry.letterbox_warp(size, target.size))
    with pytest.raises(ConfigError, match="this geometry warps them; use interpolation='bilinear'"):
        replace(warped, interpolation="bicubic").read(np.zeros((48, 70, 3), np.uint8))
