"""Class maps: against bilinear interpolation in float64 and in torch, and the SIMD variants against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from simd_variants import VARIANTS, variant

from infersdk import Tensor, errors
from infersdk.core.stream import Stream
from infersdk.image import Geometry
from infersdk.ops import NO_CLASS, class_map, class_numbers
from infersdk.ops.device_masks import DeviceClassMaps

F = np.float32


def smooth(rng: np.random.Generator, classes: int, height: int, width: int, dtype: Any = F) -> np.ndarray:
    """Scores of a few coarse blobs, with some noise."""
    coarse = rng.normal(0, 3, (classes, 4, 5))
    y, x = np.arange(height) * 4 // height, np.arange(width) * 5 // width
    return np.ascontiguousarray(coarse[:, y][:, :, x] + rng.normal(0, 0.5, (classes, height, width))).astype(dtype)


def axis(points: int, canvas: int, source: int, resized: int, offset: int) -> np.ndarray:
    """[source, points]: the weights of each pixel of a resized image that lies on the canvas as a whole."""
    u = np.clip((np.arange(source) + 0.5) * resized / source + offset - 0.5, offset, offset + resized - 1)
    v = np.clip((u + 0.5) * points / canvas - 0.5, 0, points - 1)
    low = np.floor(v).astype(int)
    matrix = np.zeros((source, points))
    np.add.at(matrix, (np.arange(source), low), 1 - (v - low))
    np.add.at(matrix, (np.arange(source), np.minimum(low + 1, points - 1)), v - low)
    return matrix


def interpolated(scores: np.ndarray, geometry: Geometry) -> np.ndarray:
    """[classes, height, width] of the image, in float64."""
    down = axis(scores.shape[1], geometry.canvas[1], geometry.source[1], geometry.resized[1], geometry.offset[1])
    across = axis(scores.shape[2], geometry.canvas[0], geometry.source[0], geometry.resized[0], geometry.offset[0])
    return down @ scores.astype(np.float64) @ across.T


GEOMETRIES = {
    "stretch": Geometry.stretch((97, 33), (64, 48)),
    "shrunk": Geometry.stretch((30, 21), (64, 96)),
    "letterbox": Geometry.letterbox((123, 77), (64, 64)),
    "corner": Geometry.resize((50, 40), (64, 64), (40, 32), (0, 0)),
    "same size": Geometry.stretch((64, 64), (64, 64)),
    "wide": Geometry.letterbox((300, 20), (96, 32)),
}


def test_class_numbers_by_the_nearest_point(rng: np.random.Generator) -> None:
    numbers = rng.integers(0, 255, (6, 8))
    same = class_numbers(numbers, Geometry.stretch((8, 6), (8, 6)))
    assert same.dtype == np.uint8
    assert np.array_equal(same, numbers)
    larger = class_numbers(numbers.astype(np.int32), Geometry.stretch((24, 30), (64, 48)))
    assert np.array_equal(larger, numbers.repeat(5, 0).repeat(3, 1))
    # A letterbox of 80 x 40 on 64 x 48: the image has 64 x 32, with 8 rows of padding above and below.
    letterbox = class_numbers(numbers, Geometry.letterbox((80, 40), (64, 48)))
    assert np.array_equal(letterbox, numbers[1:5].repeat(10, 0).repeat(10, 1))
    cropped = class_numbers(numbers, Geometry.resize((16, 6), (8, 6), (16, 6), (-4, 0)))
    assert np.array_equal(cropped[:, 4:12], numbers)
    assert np.all(cropped[:, :4] == NO_CLASS)
    assert np.all(cropped[:, 12:] == NO_CLASS)
    for geometry in GEOMETRIES.values():  # where the two highest scores are far apart, interpolation has the same class
        height, width = geometry.canvas[1] // 2, geometry.canvas[0] // 2
        blocks = np.zeros((height, width), np.uint8)
        blocks[height // 2 :, : width // 3] = 1
        one_hot = np.stack([blocks == 0, blocks == 1]).astype(F)
        assert np.mean(class_numbers(blocks, geometry) != class_map(one_hot, geometry)) < 0.02


def test_class_numbers_are_checked() -> None:
    geometry = Geometry.stretch((8, 6), (8, 6))
    assert class_numbers([[1, 2], [3, 4]], geometry)[0, 0] == 1  # type: ignore[arg-type]
    with pytest.raises(errors.DTypeError, match="class numbers are float32; use integers"):
        class_numbers(np.zeros((6, 8), F), geometry)
    with pytest.raises(errors.ShapeError, match=r"use \(height, width\)"):
        class_numbers(np.zeros((1, 6, 8), np.int64), geometry)
    for number in (-1, 255):
        with pytest.raises(errors.InputError, match=f"{number}.*use 0 to 254"):
            class_numbers(np.full((6, 8), number), geometry)
    turned = Geometry.affine((8, 6), (8, 6), [[0, 1, 0], [1, 0, 0]])
    with pytest.raises(errors.InputError, match="rotates or shears"):
        class_numbers(np.zeros((6, 8), np.int64), turned)


@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=["float32", "float16"])
def test_equals_interpolation_and_argmax(rng: np.random.Generator, simd: int, name: str, dtype: Any) -> None:
    geometry = GEOMETRIES[name]
    for classes, divisor in ((1, 1), (2, 1), (5, 2), (19, 4), (255, 8)):
        scores = smooth(rng, classes, geometry.canvas[1] // divisor, geometry.canvas[0] // divisor, dtype)
        values = interpolated(scores, geometry)
        if classes == 1:
            expected, margin = values[0] > 0.3, np.abs(values[0] - 0.3)
        else:
            expected, top = values.argmax(axis=0), np.sort(values, axis=0)
            margin = top[-1] - top[-2]
        for layout in ("chw", "hwc"):
            given = scores if layout == "chw" else np.ascontiguousarray(scores.transpose(1, 2, 0))
            found = class_map(given, geometry, layout=layout, threshold=0.3)  # type: ignore[arg-type]
            assert found.shape == geometry.source[::-1]
            different = found != expected
            assert (margin[different] < 1e-4).all(), "further apart than rounding"
            assert different.mean() < 0.01


def test_equals_torch(rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    scores = smooth(rng, 7, 32, 64)
    larger = torch.nn.functional.interpolate(torch.from_numpy(scores)[None], (75, 190), mode="bilinear")[0]
    found = class_map(scores, Geometry.stretch((190, 75), (64, 32)))
    assert (found != larger.argmax(0).numpy()).mean() < 1e-3


@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=["float32", "float16"])
def test_all_variants_give_the_same_bits(rng: np.random.Generator, name: str, dtype: Any) -> None:
    geometry = GEOMETRIES[name]
    for classes, width, height in ((1, 1, 1), (3, 2, 5), (2, 17, 9), (4, 31, 32), (33, 16, 15)):
        for noisy in (False, True):
            scores = rng.normal(0, 1, (classes, height, width)) if noisy else smooth(rng, classes, height, width)
            scores = np.ascontiguousarray(scores.astype(dtype))
            scores.reshape(-1)[rng.integers(0, scores.size, 3)] = [np.nan, np.inf, -np.inf]
            scores = np.round(scores * 4) / 4  # equal scores, too
            for layout in ("chw", "hwc"):
                given = scores if layout == "chw" else np.ascontiguousarray(scores.transpose(1, 2, 0))
                results = set()
                for simd in VARIANTS:
                    with variant(simd):
                        results.add(class_map(given, geometry, layout=layout).tobytes())  # type: ignore[arg-type]
                assert len(results) == 1, (classes, width, height, noisy, layout)


def test_pixels_that_the_canvas_does_not_show(simd: int) -> None:
    geometry = Geometry.resize_crop((100, 50), 50, (40, 40))  # x from 30 to 70, y from 5 to 45
    found = class_map(np.stack([np.zeros((8, 8), F), np.ones((8, 8), F)]), geometry)
    assert (found[5:45, 30:70] == 1).all()
    found[5:45, 30:70] = NO_CLASS
    assert (found == NO_CLASS).all()


def test_equal_scores_give_the_first_class(simd: int) -> None:
    assert not class_map(np.zeros((4, 8, 8), F), GEOMETRIES["same size"]).any()
    assert not class_map(np.full((1, 8, 8), 0.5, F), GEOMETRIES["same size"]).any(), "not above the threshold"


def test_scores_that_are_not_finite(rng: np.random.Generator, simd: int) -> None:
    """A class of -inf or NaN is nowhere the best one, one of +inf is, and no point changes the class of another one."""
    scores = rng.normal(0, 1, (5, 40, 40)).astype(F)
    scores[0] = -np.inf
    assert class_map(scores, Geometry.stretch((95, 90), (40, 40))).all()
    scores[1, ::3, ::2] = -np.inf
    scores[3, 1::3, ::5] = np.inf
    scores[:2, ::7, 1::3] = np.nan
    expected = np.where(np.isnan(scores), -np.inf, scores).argmax(axis=0)
    assert np.array_equal(class_map(scores, Geometry.stretch((40, 40), (40, 40))), expected)


def test_wrong_arguments() -> None:
    geometry = GEOMETRIES["same size"]
    with pytest.raises(errors.ShapeError, match=r"\(8, 8\)"):
        class_map(np.zeros((8, 8), F), geometry)
    with pytest.raises(errors.DTypeError, match="int64"):
        class_map(np.zeros((2, 8, 8), np.int64), geometry)
    with pytest.raises(errors.InputError, match="a list is not an array"):
        class_map([[[0.0], [0.0, 1.0]]], geometry)  # type: ignore[arg-type]
    with pytest.raises(errors.InputError, match="layout is 'nhwc'; use one of 'chw', 'hwc'"):
        class_map(np.zeros((2, 8, 8), F), geometry, layout="nhwc")  # type: ignore[arg-type]
    with pytest.raises(errors.InputError, match="256.*1 to 255"):
        class_map(np.zeros((256, 8, 8), F), geometry)
    with pytest.raises(errors.ShapeError, match="the maps have a width of 65, but the canvas has 64"):
        class_map(np.zeros((2, 8, 65), F), geometry)
    with pytest.raises(errors.InputError, match="threshold is nan"):
        class_map(np.zeros((1, 8, 8), F), geometry, threshold=float("nan"))
    turned = Geometry.affine((64, 64), (64, 64), [[0, 1, 0], [-1, 0, 64]])
    with pytest.raises(errors.NativeError, match="rotates"):
        class_map(np.zeros((2, 8, 8), F), turned)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("layout", ["chw", "hwc"])
def test_on_a_device(rng: np.random.Generator, dtype: str, layout: Any) -> None:
    geometries = [Geometry.letterbox((int(w), int(h)), (64, 64)) for w, h in rng.integers(5, 300, (35, 2))]
    geometries += [Geometry.resize_crop((100, 50), 70, (64, 64))]
    with Stream("cuda:0") as stream:
        for classes, size in ((1, (64, 64)), (2, (16, 16)), (19, (7, 64))):
            scores = np.stack([smooth(rng, classes, *size, dtype) for _ in geometries])
            scores[3, 0, 0, 0] = np.nan
            if layout == "hwc":
                scores = np.ascontiguousarray(scores.transpose(0, 2, 3, 1))
            tensor = Tensor.wrap(scores, "cuda:0")
            maps = DeviceClassMaps(len(geometries), layout=layout, threshold=0.3)
            for n in (1, len(geometries)):
                maps.run(tensor, geometries[:n], stream=stream)
                maps.fetch(stream)
                for i in range(n):
                    expected = class_map(scores[i], geometries[i], layout=layout, threshold=0.3)
                    np.testing.assert_array_equal(maps.unpack(i), expected)
            maps.close()
