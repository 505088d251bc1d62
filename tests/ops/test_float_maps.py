"""Maps of numbers at the size of the image: against interpolation in float64, and against torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from infersdk import errors
from infersdk.image import Geometry
from infersdk.ops import resize_map

GEOMETRIES = {
    "stretch": Geometry.stretch((97, 33), (64, 48)),
    "shrunk": Geometry.stretch((30, 21), (64, 96)),
    "same size": Geometry.stretch((64, 64), (64, 64)),
    "letterbox": Geometry.letterbox((128, 64), (64, 64)),
    "corner": Geometry.resize((80, 64), (64, 64), (40, 32), (0, 0)),
}


def weights(filter: str, points: np.ndarray[Any, Any], at: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """[pixels, points]: the weight of each point; those outside count for the outermost ones."""
    matrix = np.zeros((len(at), len(points)))
    base = np.floor(at).astype(int)
    for step in range(-1, 3):
        x = np.abs(at - base - step)
        near = 1.25 * x**3 - 2.25 * x**2 + 1
        far = -0.75 * x**3 + 3.75 * x**2 - 6 * x + 3
        weight = np.maximum(1 - x, 0) if filter == "bilinear" else np.where(x <= 1, near, np.where(x < 2, far, 0))
        np.add.at(matrix, (np.arange(len(at)), np.clip(base + step, 0, len(points) - 1)), weight)
    return matrix


def expected(values: np.ndarray[Any, Any], geometry: Geometry, filter: str) -> np.ndarray[Any, Any]:
    """The part of the map that shows the image, resized to the image in float64."""
    for axis in (0, 1):
        side = 1 - axis
        ratio = values.shape[axis] / geometry.canvas[side]
        first, count = round(geometry.offset[side] * ratio), round(geometry.resized[side] * ratio)
        part = np.take(values, range(first, first + count), axis).astype(np.float64)
        source = geometry.source[side]
        at = (np.arange(source) + 0.5) * count / source - 0.5
        values = np.moveaxis(np.tensordot(weights(filter, np.arange(count), at), part, (1, axis)), 0, axis)
    return values


@pytest.mark.parametrize("filter", ["bilinear", "bicubic"])
@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=["float32", "float16"])
def test_equals_interpolation(rng: np.random.Generator, name: str, filter: Any, dtype: Any) -> None:
    geometry = GEOMETRIES[name]
    for divisor in (1, 4):
        values = rng.normal(0, 3, (geometry.canvas[1] // divisor, geometry.canvas[0] // divisor)).astype(dtype)
        found = resize_map(values, geometry, filter=filter)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected(values, geometry, filter), atol=1e-5)


@pytest.mark.parametrize(("points", "canvas"), [(7, 25), (232, 448), (331, 518), (248, 480), (108, 416)])
def test_no_point_beyond_the_map_counts(points: int, canvas: int) -> None:
    """These ratios are rounded up in float64."""
    memory = np.full((points + 1, points), 1e9, np.float32)
    memory[:points] = 1
    stretch = Geometry.stretch((canvas, canvas), (canvas, canvas))
    np.testing.assert_allclose(resize_map(memory[:points], stretch), 1, rtol=1e-6)
    memory[:points] = np.arange(points)
    found = resize_map(memory[:points], stretch)
    np.testing.assert_allclose(found, expected(memory[:points], stretch, "bilinear"), atol=1e-3)


def test_padding_does_not_count() -> None:
    geometry = Geometry.letterbox((364, 416), (416, 416))
    values = np.full((240, 240), 1000, np.float32)
    values[:, 15:225] = 0
    assert resize_map(values, geometry).max() == 0


@pytest.mark.parametrize("name", ["letterbox_warp", "mirrored", "thin"])
def test_padding_of_a_warp_does_not_count(name: str) -> None:
    values = np.full((40, 40), 1000, np.float32)
    if name == "thin":  # the image lies between the centres of two rows
        geometry, rows = Geometry.affine((80, 40), (40, 40), [[2, 0, 0], [0, 200, -4620]]), slice(23, 24)
    elif name == "mirrored":
        geometry, rows = Geometry.affine((80, 40), (40, 40), [[-2, 0, 80], [0, -2, 60]]), slice(10, 30)
    else:
        geometry, rows = Geometry.letterbox_warp((80, 40), (40, 40)), slice(10, 30)
    values[rows] = 1
    assert np.all(resize_map(values, geometry) == 1)


def test_equals_torch(rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    values = rng.normal(0, 3, (36, 52)).astype(np.float32)
    for kind in ("bilinear", "bicubic"):
        for size in ((97, 131), (20, 10)):
            mine = resize_map(values, Geometry.stretch(size[::-1], (52, 36)), filter=kind)  # type: ignore[arg-type]
            its = torch.nn.functional.interpolate(torch.from_numpy(values)[None, None], size, mode=kind)
            np.testing.assert_allclose(mine, its[0, 0].numpy(), atol=1e-4)  # torch has coordinates of float32


@pytest.mark.parametrize("filter", ["bilinear", "bicubic"])
def test_points_without_weight_take_no_part(filter: Any) -> None:
    values = np.ones((8, 8), np.float32)
    values[2, 3], values[5, 5], values[7, 0] = np.inf, -np.inf, np.nan
    assert np.array_equal(resize_map(values, Geometry.stretch((8, 8), (8, 8)), filter=filter), values, equal_nan=True)
    values[5:] = 1
    larger = resize_map(values, Geometry.stretch((16, 16), (8, 8)), filter=filter)
    points = 2 if filter == "bilinear" else 4
    assert (~np.isfinite(larger)).sum() == (2 * points) ** 2


def test_pixels_that_the_canvas_does_not_show_are_nan() -> None:
    found = resize_map(np.ones((8, 8), np.float32), Geometry.resize_crop((32, 16), 8, (8, 8)))
    assert np.isnan(found[:, :8]).all()
    assert (found[:, 8:24] == 1).all()


def test_wrong_arguments_are_named() -> None:
    geometry = Geometry.stretch((8, 8), (8, 8))
    with pytest.raises(errors.InputError, match="filter is 'cubic'; use one of 'bilinear', 'bicubic'"):
        resize_map(np.ones((8, 8), np.float32), geometry, filter="cubic")  # type: ignore[arg-type]
    with pytest.raises(errors.ShapeError, match=r"shape \(1, 8, 8\); use \(height, width\)"):
        resize_map(np.ones((1, 8, 8), np.float32), geometry)
    with pytest.raises(errors.DTypeError, match="float64; use float32 or float16"):
        resize_map(np.ones((8, 8)), geometry)
    with pytest.raises(errors.DTypeError, match="float64; use float32 or float16"):
        resize_map(np.ones((8, 8)).tolist(), geometry)  # type: ignore[arg-type]
    with pytest.raises(errors.ShapeError, match="the canvas has 8"):
        resize_map(np.ones((16, 8), np.float32), geometry)
