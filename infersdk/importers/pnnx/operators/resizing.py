"""Upsampling, interpolation, sampling on grids, and rearranging pixels."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..translation import Translation, operator
from .pooling import adaptive_average

#: The coordinate rule, the mode, and what else a Resize needs, by PyTorch's name of the mode.
_MODES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "nearest": ("asymmetric", "nearest", {"nearest_mode": "floor"}),
    "nearest-exact": ("half_pixel", "nearest", {"nearest_mode": "round_prefer_ceil"}),
    "linear": ("half_pixel", "linear", {}),
    "bilinear": ("half_pixel", "linear", {}),
    "trilinear": ("half_pixel", "linear", {}),
    "bicubic": ("half_pixel", "cubic", {"cubic_coeff_a": -0.75}),
}


@operator("nn.Upsample", "F.upsample", "F.interpolate")
def interpolate(t: Translation) -> Any:
    return resize(t, t.param("mode", "nearest"), align=bool(t.param("align_corners", False)))


@operator("nn.UpsamplingNearest2d", "F.upsample_nearest")
def upsample_nearest(t: Translation) -> Any:
    return resize(t, "nearest", align=False)


@operator("nn.UpsamplingBilinear2d", "F.upsample_bilinear")
def upsample_bilinear(t: Translation) -> Any:
    return resize(t, "bilinear", align=True)


def resize(t: Translation, mode: str, *, align: bool) -> Any:
    """PyTorch computes coordinates from a scale factor where one is given, unless it is to be computed again from
    sizes.
    """
    rank = t.rank()
    dims = rank - 2
    if mode == "area":
        t.one.params.setdefault("output_size", t.param("size", None) or t.output_shape()[2:])
        return adaptive_average(t)
    if mode not in _MODES:
        raise t.unsupported(f"interpolation mode {mode!r}")
    rule, onnx_mode, more = _MODES[mode]
    if align:
        rule = "align_corners"
    x = t.given("input", 0)
    size, scale = t.param("size", None), t.param("scale_factor", None)
    if scale is not None and size is None:
        factors = [float(item) for item in (scale if isinstance(scale, (tuple, list)) else [scale] * dims)]
        factors = factors * dims if len(factors) == 1 else factors
        if not t.param("recompute_scale_factor", False):
            scales = np.asarray([1, 1, *factors], np.float32)
            if not _same_sizes(t, factors, dims):
                raise t.unsupported(f"scale factors {factors} give other sizes in float32 than in float64")
            return t.build("Resize", x, None, scales, mode=onnx_mode, coordinate_transformation_mode=rule, **more)
        sizes = [int(n * factor) for n, factor in zip(t.shape()[2:], factors, strict=True)]
    elif size is not None:
        sizes = t.ints("size", dims)
    else:  # an operand says
        sizes = list(t.output_shape()[2:])
    image = [n or 0 for n in (t.one.inputs[0].shape or ())[2:]]
    if all(image) and all(new % old == 0 for old, new in zip(image, sizes, strict=True)):
        scales = np.asarray([1, 1, *(new // old for old, new in zip(image, sizes, strict=True))], np.float32)
        return t.build("Resize", x, None, scales, mode=onnx_mode, coordinate_transformation_mode=rule, **more)
    if onnx_mode == "nearest":
        return _pick(t, x, list(t.shape()[2:]), sizes, exact=mode == "nearest-exact")
    whole = np.asarray([*t.shape()[:2], *sizes], np.int64)
    return t.build("Resize", x, None, None, whole, mode=onnx_mode, coordinate_transformation_mode=rule, **more)


def _pick(t: Translation, x: Any, image: list[int], sizes: list[int], *, exact: bool) -> Any:
    """The nearest pixels by their numbers, in PyTorch's own arithmetic: runtimes round the quotients in other ways."""
    for axis, (old, new) in enumerate(zip(image, sizes, strict=True), 2):
        if old == new:
            continue
        t.limit(new)
        scale = np.float32(old) / np.float32(new)
        steps = np.arange(new, dtype=np.float32) + np.float32(0.5 if exact else 0)
        index = np.minimum(np.floor(steps * scale), old - 1).astype(np.int64)
        x = t.build("Gather", x, index, axis=axis)
    return x


def _same_sizes(t: Translation, factors: list[float], dims: int) -> bool:
    shape = t.one.inputs[0].shape
    if shape is None or None in shape[-dims:]:
        return True
    sizes = t.shape()[-dims:] if None not in shape else tuple(n for n in shape[-dims:] if n is not None)
    return all(
        int(np.floor(np.float32(n) * np.float32(factor))) == int(n * factor)
        for n, factor in zip(sizes, factors, strict=True)
    )


@operator("F.grid_sample")
def grid_sample(t: Translation) -> Any:
    """Of images (opset 16), and of volumes (opset 20)."""
    if t.rank() == 5:
        t.opset = 20
    mode = {"bilinear": "linear", "nearest": "nearest", "bicubic": "cubic"}.get(t.param("mode", "bilinear"))
    if mode is None:
        raise t.unsupported(f"mode {t.param('mode')!r}")
    t.opset = 20  # which names the modes like this
    return t.build(
        "GridSample", t.given("input", 0), t.given("grid", 1), mode=mode, padding_mode=t.param("padding_mode", "zeros"),
        align_corners=int(bool(t.param("align_corners", False))),
    )  # fmt: skip


@operator("F.affine_grid")
def affine_grid(t: Translation) -> Any:
    t.opset = 20
    size = np.asarray(t.ints("size"), np.int64)
    return t.build("AffineGrid", t.given("theta", 0), size, align_corners=int(bool(t.param("align_corners", False))))


def _lead(t: Translation) -> tuple[list[int], int, int, int]:
    *lead, channels, height, width = t.shape()
    return lead, channels, height, width


@operator("nn.PixelShuffle", "F.pixel_shuffle")
def pixel_shuffle(t: Translation) -> Any:
    factor = t.integer("upscale_factor")
    if t.rank() == 4:
        return t.build("DepthToSpace", t.x, blocksize=factor, mode="CRD")
    lead, channels, height, width = _lead(t)
    made = t.build("DepthToSpace", t.reshape(t.x, -1, channels, height, width), blocksize=factor, mode="CRD")
    return t.reshape(made, *lead, channels // factor**2, height * factor, width * factor)


@operator("nn.PixelUnshuffle", "F.pixel_unshuffle")
def pixel_unshuffle(t: Translation) -> Any:
    factor = t.integer("downscale_factor")
    lead, channels, height, width = _lead(t)
    if factor < 1 or height % factor or width % factor:
        raise t.damaged(f"an image of {height} x {width} in blocks of {factor}")
    parts = t.reshape(t.x, -1, channels, height // factor, factor, width // factor, factor)
    made = t.transpose(parts, 0, 1, 3, 5, 2, 4)
    first = [0] if len(lead) == 1 else lead
    return t.reshape(made, *first, channels * factor**2, height // factor, width // factor)


@operator("nn.ChannelShuffle")
def channel_shuffle(t: Translation) -> Any:
    groups = t.integer("groups")
    channels, *image = t.shape() if t.rank() == 3 else t.shape()[1:]
    if groups < 1 or channels % groups:
        raise t.damaged(f"{channels} channels in {groups} groups")
    parts = t.reshape(t.x, -1, groups, channels // groups, *image)
    order = [0, 2, 1, *range(3, 3 + len(image))]
    lead = [] if t.rank() == 3 else [0]
    return t.reshape(t.transpose(parts, *order), *lead, channels, *image)
