"""Instance masks: against Ultralytics' steps in float64, and the SIMD variants against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from simd_variants import VARIANTS, variant

from infersdk import errors
from infersdk.image import Geometry
from infersdk.image.batch import Workers
from infersdk.ops import DETECTION, assemble_masks
from infersdk.ops.masks import MASK, PackedMasks

F = np.float32

# ---- the reference: both interpolations, one after the other, in float64 ----


def bilinear(size: int, resized: int) -> np.ndarray:
    """The matrix [resized, size] of F.interpolate(mode="bilinear", align_corners=False) along one axis."""
    at = np.maximum((np.arange(resized) + 0.5) * size / resized - 0.5, 0)
    low = np.minimum(at.astype(int), size - 1)
    high = np.minimum(low + 1, size - 1)
    matrix = np.zeros((resized, size))
    np.add.at(matrix, (np.arange(resized), low), 1 - (at - low))
    np.add.at(matrix, (np.arange(resized), high), at - low)
    return matrix


def reference_values(prototypes: np.ndarray, coefficients: np.ndarray, geometry: Geometry) -> np.ndarray:
    """The masks of a resized image that lies on the canvas as a whole, before the threshold: [n, height, width]."""
    assert geometry.resized is not None
    assert geometry.offset is not None
    with np.errstate(over="ignore"):
        logits = np.einsum("nk,khw->nhw", coefficients.astype(np.float64), prototypes.astype(np.float64))
        values = 1 / (1 + np.exp(-logits))
    (width, height), (left, top) = geometry.resized, geometry.offset
    (canvas_w, canvas_h), (image_w, image_h) = geometry.canvas, geometry.source
    down = bilinear(height, image_h) @ bilinear(prototypes.shape[1], canvas_h)[top : top + height]
    across = bilinear(width, image_w) @ bilinear(prototypes.shape[2], canvas_w)[left : left + width]
    return down @ values @ across.T


def cropped(values: np.ndarray, boxes: np.ndarray, threshold: float) -> np.ndarray:
    """Ultralytics' crop_mask, then the threshold."""
    x, y = np.arange(values.shape[2])[None, None, :], np.arange(values.shape[1])[None, :, None]
    x1, y1, x2, y2 = (boxes[:, i, None, None] for i in range(4))
    return (values > threshold) & (x >= x1) & (x < x2) & (y >= y1) & (y < y2)


def random_case(
    rng: np.random.Generator, geometry: Geometry, n: int, num: int, size: tuple[int, int], dtype: Any = F
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Prototypes that vary slowly, coefficients, and boxes."""
    coarse = rng.normal(0, 1, (num, 5, 5))
    prototypes = (bilinear(5, size[1]) @ coarse @ bilinear(5, size[0]).T).astype(dtype)
    coefficients = rng.normal(0, 2, (n, num)).astype(F)
    width, height = geometry.source
    corners = np.sort(rng.uniform(-0.1, 1.1, (n, 2, 2)), axis=1) * [width, height]
    return np.ascontiguousarray(prototypes), coefficients, corners.reshape(n, 4).astype(F)


GEOMETRIES = {
    "letterbox": Geometry.letterbox((123, 77), (64, 64)),
    "scaled up": Geometry.letterbox((30, 21), (64, 96)),
    "stretch": Geometry.stretch((97, 33), (64, 48)),
    "corner": Geometry.resize((50, 40), (64, 64), (40, 32), (0, 0)),
    "same size": Geometry.stretch((64, 64), (64, 64)),
    "narrow": Geometry.letterbox((7, 200), (32, 32)),
}


@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=["float32", "float16"])
def test_equals_the_two_interpolations(rng: np.random.Generator, simd: int, name: str, dtype: Any) -> None:
    geometry = GEOMETRIES[name]
    for num, divisor in ((1, 4), (32, 4), (7, 1), (3, 8)):
        size = (geometry.canvas[0] // divisor, geometry.canvas[1] // divisor)
        prototypes, coefficients, boxes = random_case(rng, geometry, 9, num, size, dtype)
        values = reference_values(prototypes, coefficients, geometry)
        for threshold in (0.5, 0.2):
            masks = assemble_masks(prototypes, coefficients, boxes, geometry, threshold=threshold)
            expected, got = cropped(values, boxes, threshold), np.stack(list(masks))
            assert got.shape == expected.shape
            different = got != expected
            assert (np.abs(values - threshold)[different] < 1e-5).all(), "further from the threshold than rounding"


@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=["float32", "float16"])
def test_all_variants_give_the_same_bits(rng: np.random.Generator, name: str, dtype: Any) -> None:
    geometry = GEOMETRIES[name]
    for width, height, num in ((1, 1, 5), (3, 2, 32), (16, 16, 33), (17, 9, 1), (31, 31, 2)):
        prototypes, coefficients, boxes = random_case(rng, geometry, 25, num, (width, height), dtype)
        prototypes += rng.normal(0, 1, prototypes.shape).astype(dtype)
        coefficients[0] = np.nan
        coefficients[1, 0] = np.inf
        coefficients[2] *= F(1e30)
        boxes[3] = np.nan
        boxes[4] = -np.inf, -1e30, np.inf, 1e30
        results = set()
        for simd in VARIANTS:
            with variant(simd):
                masks = assemble_masks(prototypes, coefficients, boxes, geometry, threshold=0.4)
                results.add((masks.layout.tobytes(), masks.bits.tobytes()))
        assert len(results) == 1


def test_threads_give_the_same_bits(rng: np.random.Generator) -> None:
    geometry = Geometry.letterbox((321, 200), (128, 128))
    prototypes, coefficients, boxes = random_case(rng, geometry, 40, 32, (32, 32))
    workers = Workers(3)
    alone = assemble_masks(prototypes, coefficients, boxes, geometry)
    shared = assemble_masks(prototypes, coefficients, boxes, geometry, workers=workers)
    workers.close()
    assert shared.bits.tobytes() == alone.bits.tobytes()


def test_a_warp_without_rotation(rng: np.random.Generator, simd: int) -> None:
    """The same letterbox as a warp, where it falls on whole pixels, and the image mirrored."""
    resize = Geometry.letterbox((128, 64), (64, 64))
    warp = Geometry.letterbox_warp((128, 64), (64, 64))
    prototypes, coefficients, boxes = random_case(rng, resize, 6, 8, (16, 16))
    plain = assemble_masks(prototypes, coefficients, boxes, resize)
    warped = assemble_masks(prototypes, coefficients, boxes, warp)
    for a, b in zip(plain, warped, strict=True):
        np.testing.assert_array_equal(a, b)
    mirror = Geometry.affine((128, 64), (64, 64), [[-2, 0, 128], [0, 2, -32]])
    boxes = np.round(boxes)
    mirrored_boxes = boxes[:, [2, 1, 0, 3]] * [-1, 1, -1, 1] + [128, 0, 128, 0]
    straight = assemble_masks(prototypes, coefficients, boxes, warp)
    turned = assemble_masks(prototypes, coefficients, mirrored_boxes, mirror)
    for a, b in zip(straight, turned, strict=True):
        np.testing.assert_array_equal(a, b[:, ::-1])


def test_pixels_that_the_canvas_does_not_show_are_no_mask() -> None:
    geometry = Geometry.resize_crop((100, 50), 32, (32, 32))  # the middle half of the image
    masks = assemble_masks(np.full((1, 8, 8), 9, F), [[1]], [[0, 0, 100, 50]], geometry)
    (whole,) = masks
    assert whole[:, 25:75].all()
    assert not whole[:, :25].any()
    assert not whole[:, 75:].any()


def test_crops_are_those_of_ultralytics() -> None:
    geometry = Geometry.stretch((20, 10), (32, 32))
    boxes = np.array(
        [[2, 3, 5, 6], [2.5, 3.5, 5.5, 6.5], [-4, -4, 90, 90], [5, 5, 5, 5], [9, 9, 2, 2], [19.5, 0, 20, 1]]
    )
    masks = assemble_masks(np.full((1, 4, 4), 9, F), np.ones((6, 1)), boxes, geometry)
    expected = cropped(np.ones((6, 10, 20)), boxes, 0.5)
    np.testing.assert_array_equal(np.stack(list(masks)), expected)
    assert [masks.area(i) for i in range(6)] == expected.sum(axis=(1, 2)).tolist()
    assert masks.crop(0).shape == (3, 3)
    assert masks.crop(3).size == 0


def reference_runs(mask: np.ndarray) -> list[int]:
    flat = np.concatenate([[0], mask.T.reshape(-1).astype(int)])
    edges = np.flatnonzero(np.diff(flat))
    return np.diff(np.concatenate([[0], edges, [mask.size]])).tolist()


def test_run_lengths(rng: np.random.Generator) -> None:
    geometry = Geometry.stretch((37, 23), (32, 32))
    prototypes, coefficients, boxes = random_case(rng, geometry, 30, 4, (32, 32))
    prototypes += rng.normal(0, 2, prototypes.shape).astype(F)
    boxes[:4] = [[0, 0, 37, 23], [0, 0, 37, 5], [5, 0, 9, 23], [30, 18, 37, 23]]
    coefficients[0] = 0  # 0.5 is not above 0.5: nothing
    masks = assemble_masks(prototypes, coefficients, boxes, geometry)
    everything = assemble_masks(prototypes, coefficients, boxes, geometry, threshold=0)  # whole boxes, to the edges
    for packed in (masks, everything):
        for i, mask in enumerate(packed):
            assert packed.runs(i).tolist() == reference_runs(mask)
    mask_utils = pytest.importorskip("pycocotools.mask")
    for i, mask in enumerate(masks):
        counts = {"size": [23, 37], "counts": masks.runs(i).tolist()}
        np.testing.assert_array_equal(mask_utils.decode(mask_utils.frPyObjects(counts, 23, 37)), mask)


def test_the_reference_interpolates_as_torch(rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    plane = rng.normal(size=(40, 23))
    its = torch.nn.functional.interpolate(torch.from_numpy(plane)[None, None], (97, 15), mode="bilinear")[0, 0]
    np.testing.assert_allclose(bilinear(40, 97) @ plane @ bilinear(23, 15).T, its.numpy(), atol=1e-12)


def test_arguments_are_checked() -> None:
    geometry = Geometry.stretch((20, 10), (32, 32))
    prototypes, boxes = np.zeros((2, 8, 8), F), np.array([[0, 0, 5, 5]], F)
    good = (prototypes, [[1, 2]], boxes, geometry)
    assert len(assemble_masks(*good)) == 1
    assert len(assemble_masks(prototypes, np.zeros((0, 2)), np.zeros((0, 4)), geometry)) == 0
    assert len(assemble_masks(prototypes, [[1, 2]], np.zeros(1, DETECTION), geometry)) == 1
    with pytest.raises(errors.DTypeError, match="float64"):
        assemble_masks(prototypes.astype(float), *good[1:])
    with pytest.raises(errors.ShapeError, match=r"\(8, 8\)"):
        assemble_masks(prototypes[0], *good[1:])
    with pytest.raises(errors.InputError, match="C order"):
        assemble_masks(prototypes.transpose(0, 2, 1), *good[1:])
    with pytest.raises(errors.InputError, match="or not aligned; pass np.array"):
        assemble_masks(np.frombuffer(bytes(1 + 4 * 128), F, offset=1).reshape(2, 8, 8), *good[1:])
    with pytest.raises(errors.InputError, match="coefficients are of <U1, 'x' for example; give numbers"):
        assemble_masks(prototypes, "x", boxes, geometry)
    with pytest.raises(errors.ShapeError, match=r"\(1, 3\); 1 masks of 2 prototypes need \(1, 2\)"):
        assemble_masks(prototypes, [[1, 2, 3]], boxes, geometry)
    with pytest.raises(errors.ShapeError, match=r"\(1, 5\)"):
        assemble_masks(prototypes, [[1, 2]], np.zeros((1, 5)), geometry)
    for threshold in (-0.1, 1.0, float("nan")):
        with pytest.raises(errors.InputError, match="threshold is"):
            assemble_masks(*good, threshold=threshold)
    with pytest.raises(errors.ShapeError, match="height of 33, but the canvas has 32"):
        assemble_masks(np.zeros((2, 33, 8), F), *good[1:])
    with pytest.raises(errors.InputError, match="num_coefficients is 257"):
        assemble_masks(np.zeros((257, 8, 8), F), np.zeros((1, 257)), boxes, geometry)
    turned = Geometry.affine((20, 10), (32, 32), [[1, 0.5, 0], [-0.5, 1, 0]])
    with pytest.raises(errors.NativeError, match="rotates or shears"):
        assemble_masks(*good[:3], turned)


def test_a_packed_mask_by_hand() -> None:
    layout = np.array([(1, 2, 3, 2, 4, 0, 0)], MASK)
    bits = np.zeros(8, np.uint8)
    bits[0], bits[4] = 0b101, 0b010
    masks = PackedMasks((6, 5), layout, bits)
    expected = np.zeros((5, 6), bool)
    expected[2, 1] = expected[2, 3] = expected[3, 2] = True
    np.testing.assert_array_equal(masks[0], expected)
    np.testing.assert_array_equal(masks[-1], expected)
    assert masks.runs(0).tolist() == reference_runs(expected)
    with pytest.raises(IndexError):
        masks[1]


@pytest.mark.parametrize(("width", "stride", "needed"), [(2**26, 0, 2**23), (40, 4, 8)])
def test_rows_that_are_too_short_for_a_packed_mask(width: int, stride: int, needed: int) -> None:
    layout = np.array([(0, 0, width, 1, stride, 0, 0)], MASK)
    with pytest.raises(errors.InputError, match=f"rows of {stride} bytes, but they take {needed}"):
        PackedMasks((width, 1), layout, np.zeros(stride, np.uint8)).runs(0)
