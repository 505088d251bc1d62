"""Padding, cropping, upsampling and resizing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..translation import LayerCall, layer

if TYPE_CHECKING:
    from ..tensors import Tensor


def _pairs(call: LayerCall, name: str, dims: int) -> list[tuple[int, int]]:
    """(begin, end) for each axis: from one number, a number for each, or pairs."""
    given = call.config.get(name, 1)
    items = list(given) if isinstance(given, (list, tuple)) else [given] * dims
    if dims == 1 and len(items) == 2:
        items = [items]
    pairs = [tuple(item) if isinstance(item, (list, tuple)) else (item, item) for item in items]
    if len(pairs) != dims or any(
        len(pair) != 2 or not all(isinstance(n, int) and n >= 0 for n in pair) for pair in pairs
    ):
        raise call.damaged(f"{name}={given!r}")
    return [(pair[0], pair[1]) for pair in pairs]


@layer("ZeroPadding1D", "ZeroPadding2D", "ZeroPadding3D")
def zero_padding(call: LayerCall) -> Tensor:
    pairs = _pairs(call, "padding", int(call.kind[-2]))
    channels, image = call.spatial_shape(call.x)
    pads = [0, 0, *(pair[0] for pair in pairs), 0, 0, *(pair[1] for pair in pairs)]
    value = call.build("Pad", call.spatial(call.x), call.i64(*pads))
    sizes = [None if size is None else size + sum(pair) for size, pair in zip(image, pairs, strict=True)]
    return call.from_spatial(value, call.x.shape[0], channels, sizes)


@layer("Cropping1D", "Cropping2D", "Cropping3D")
def cropping(call: LayerCall) -> Tensor:
    pairs = _pairs(call, "cropping", int(call.kind[-2]))
    channels, image = call.spatial_shape(call.x)
    begin = call.i64(*(pair[0] for pair in pairs))
    end = call.i64(*(-pair[1] if pair[1] else 2**62 for pair in pairs))
    value = call.build("Slice", call.spatial(call.x), begin, end, np.arange(2, 2 + len(pairs)))
    sizes = [None if size is None else max(size - sum(pair), 0) for size, pair in zip(image, pairs, strict=True)]
    return call.from_spatial(value, call.x.shape[0], channels, sizes)


@layer("UpSampling1D", "UpSampling2D", "UpSampling3D")
def upsampling(call: LayerCall) -> Tensor:
    dims = int(call.kind[-2])
    factors = call.ints("size", dims, 2)
    mode = call.choice("interpolation", ("nearest", "bilinear", "bicubic"), "nearest")
    channels, image = call.spatial_shape(call.x)
    more: dict[str, Any] = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    if mode == "bilinear":
        more = {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}
    elif mode == "bicubic":
        more = {
            "mode": "cubic",
            "coordinate_transformation_mode": "half_pixel",
            "cubic_coeff_a": -0.5,
            "exclude_outside": 1,
        }
    value = call.build("Resize", call.spatial(call.x), None, np.asarray([1, 1, *factors], np.float32), **more)
    sizes = [None if size is None else size * factor for size, factor in zip(image, factors, strict=True)]
    return call.from_spatial(value, call.x.shape[0], channels, sizes)


@layer("Resizing")
def resizing(call: LayerCall) -> Tensor:
    """tf.image.resize: half-pixel centres, without antialiasing."""
    height, width = call.ints("height", 1)[0], call.ints("width", 1)[0]
    mode = call.choice("interpolation", ("bilinear", "nearest"), "bilinear")
    if call.flag("crop_to_aspect_ratio") or call.flag("pad_to_aspect_ratio") or call.flag("antialias"):
        raise call.unsupported("cropping, padding and antialiasing")
    channels, image = call.spatial_shape(call.x)
    x = call.spatial(call.x)
    x = x if call.x.dtype.kind == "f" else call.build("Cast", x, to=1)
    if mode == "nearest":  # the centre of each new pixel, rounded down
        for axis, (old, new) in enumerate(zip(image, (height, width), strict=True), 2):
            size = call.known(old, "the size of the image")
            call.limit(new)
            scale = np.float32(size) / np.float32(new)
            index = np.minimum(np.floor((np.arange(new, dtype=np.float32) + np.float32(0.5)) * scale), size - 1)
            x = call.build("Gather", x, index.astype(np.int64), axis=axis)
    else:
        lead = call.build("Shape", x, start=0, end=2)
        whole = call.build("Concat", lead, call.i64(height, width), axis=0)
        x = call.build("Resize", x, None, None, whole, mode="linear", coordinate_transformation_mode="half_pixel")
    return call.from_spatial(x, call.x.shape[0], channels, [height, width])


@layer("CenterCrop")
def center_crop(call: LayerCall) -> Tensor:
    channels, image = call.spatial_shape(call.x)
    sizes = [call.ints(name, 1)[0] for name in ("height", "width")]
    begin = []
    for old, new in zip(image, sizes, strict=True):
        room = call.known(old, "the size of the image") - new
        if room < 0:
            raise call.unsupported("an image that is smaller than the crop")
        begin.append(room // 2)
    end = [b + size for b, size in zip(begin, sizes, strict=True)]
    value = call.build("Slice", call.spatial(call.x), call.i64(*begin), call.i64(*end), call.i64(2, 3))
    return call.from_spatial(value, call.x.shape[0], channels, sizes)
