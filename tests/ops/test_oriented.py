"""NMS of oriented boxes: against the formulas in float64, and the SIMD variants against the reference."""

from __future__ import annotations

import numpy as np
import pytest
from simd_variants import VARIANTS, variant

from infersdk import Tensor, errors
from infersdk.core.stream import Stream
from infersdk.image import Geometry
from infersdk.ops import DetectionDecoder, nms_oriented
from infersdk.ops.device import DeviceDetectionDecoder, DeviceOrientedBoxes

F = np.float32


def gaussians(boxes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means (n, 2) and covariances (n, 2, 2), in float64."""
    _, _, w, h, angle = boxes.astype(np.float64).T
    turn = np.stack([np.cos(angle), -np.sin(angle), np.sin(angle), np.cos(angle)], -1).reshape(-1, 2, 2)
    own = np.zeros((len(boxes), 2, 2))
    own[:, 0, 0], own[:, 1, 1] = w**2 / 12, h**2 / 12
    return boxes[:, :2].astype(np.float64), turn @ own @ turn.transpose(0, 2, 1)


def coefficients(boxes: np.ndarray) -> np.ndarray:
    """(n, n): Bhattacharyya's coefficient of the Gaussians; their overlap is 1 - sqrt(1 - coefficient)."""
    mean, cov = gaussians(boxes)
    both = (cov[:, None] + cov[None]) / 2
    step = mean[:, None] - mean[None]
    mahalanobis = np.einsum("ijk,ijkl,ijl->ij", step, np.linalg.inv(both), step)
    det = np.linalg.det(cov)
    coefficient = np.exp(-mahalanobis / 8) * np.sqrt(np.sqrt(det[:, None] * det[None]) / np.linalg.det(both))
    assert isinstance(coefficient, np.ndarray)
    return coefficient


def random_boxes(rng: np.random.Generator, n: int, side: float = 200) -> np.ndarray:
    boxes = np.empty((n, 5), F)
    boxes[:, :2] = rng.uniform(0, side, (n, 2))
    boxes[:, 2:4] = rng.uniform(4, 60, (n, 2))
    boxes[:, 4] = rng.uniform(-np.pi / 4, 3 * np.pi / 4, n)
    return boxes


def fast_nms(suppresses: np.ndarray, scores: np.ndarray, classes: np.ndarray) -> list[int]:
    """A box goes if a better one of its class suppresses it, also one that goes itself."""
    order = np.argsort(-scores, kind="stable")
    kept = []
    for rank, i in enumerate(order):
        better = order[:rank][classes[order[:rank]] == classes[i]]
        if not suppresses[better, i].any():
            kept.append(int(i))
    return kept


@pytest.mark.parametrize("iou", [0.0, 0.1, 0.45, 0.7, 0.95])
def test_equals_the_formulas(rng: np.random.Generator, simd: int, iou: float) -> None:
    limit = 1 + 1e-7 - (1 - iou) ** 2
    for n in (1, 2, 17, 100):
        for _ in range(100):  # until no pair is so close to the threshold that rounding decides
            boxes = random_boxes(rng, n)
            overlaps = coefficients(boxes)
            if not (np.abs(overlaps / limit - 1) < 1e-4).any():
                break
        else:
            pytest.fail("each draw had such a pair")
        scores, classes = rng.random(n).astype(F), rng.integers(0, 3, n)
        if n > 2:
            scores[1] = scores[0]
        suppresses = overlaps > limit
        assert nms_oriented(boxes, scores, classes, iou=iou).tolist() == fast_nms(suppresses, scores, classes)
        assert nms_oriented(boxes, scores, iou=iou).tolist() == fast_nms(suppresses, scores, np.zeros(n))


def test_all_variants_give_the_same_bits(rng: np.random.Generator) -> None:
    for n in (0, 1, 15, 16, 17, 33, 700):
        boxes, scores, classes = random_boxes(rng, n), rng.random(n).astype(F), rng.integers(0, 2, n)
        if n > 16:
            boxes[3:6, 2] = 0
            boxes[7, 2:4] = [1e20, 1e-20]
            boxes[8, :2] = 3e38
            boxes[9, 4] = 1e30
            boxes[10:14] = boxes[14]
            boxes[15, 2] = -5
        for iou in (0.0, 0.3, 0.7, 1.0):
            results = set()
            for simd in VARIANTS:
                with variant(simd):
                    results.add(nms_oriented(boxes, scores, classes, iou=iou).tobytes())
            assert len(results) == 1


def test_angles_and_sides_that_mean_the_same(simd: int) -> None:
    """A turn by half a circle, or by a quarter with the sides exchanged, is the same box."""
    box = np.array([50, 40, 30, 10, 0.3], F)
    same = np.stack(
        [box, box + F([0, 0, 0, 0, np.pi]), [50, 40, 10, 30, 0.3 + np.pi / 2], box - [0, 0, 0, 0, 4 * np.pi]]
    )
    assert nms_oriented(same, [0.9, 0.8, 0.7, 0.6], iou=0.99).tolist() == [0]
    crossed = np.stack([box, box + F([0, 0, 0, 0, np.pi / 2])])
    assert nms_oriented(crossed, [0.9, 0.8], iou=0.6).tolist() == [0, 1]
    assert nms_oriented(same, [0.6, 0.7, 0.8, 0.9], iou=0.5, max_det=1).tolist() == [3]


def test_a_box_that_is_dropped_drops_others(simd: int) -> None:
    """Which greedy NMS does not do: the third box overlaps the second one alone."""
    row = np.array([[x, 0, 40, 10, 0.1] for x in (0, 16, 32)], F)
    assert nms_oriented(row, [0.9, 0.8, 0.7], iou=0.3).tolist() == [0]


def test_wrong_arguments() -> None:
    boxes = np.ones((3, 5), F)
    with pytest.raises(errors.ShapeError, match=r"\(3, 5\) and scores \(2,\)"):
        nms_oriented(boxes, [1, 2])
    with pytest.raises(errors.ShapeError, match=r"\(3, 4\)"):
        nms_oriented(boxes[:, :4], [1, 2, 3])
    with pytest.raises(errors.DTypeError, match="float64"):
        nms_oriented(boxes, [1, 2, 3], [0.0, 1.0, 2.0])
    boxes[1, 4] = np.nan
    with pytest.raises(errors.InputError, match=r"box 1 .*nan"):
        nms_oriented(boxes, [1, 2, 3])
    with pytest.raises(errors.InputError, match="^iou is 1.5"):
        nms_oriented(boxes[:1], [1], iou=1.5)
    with pytest.raises(errors.InputError, match="max_det is -1"):
        nms_oriented(boxes[:1], [1], max_det=-1)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("agnostic", [False, True])
def test_on_a_device(rng: np.random.Generator, dtype: str, agnostic: bool) -> None:
    anchors, images = 1500, 5
    output = np.empty((images, 4 + 3 + 1, anchors), F)
    for image in output:
        image[[0, 1, 2, 3, 7]] = random_boxes(rng, anchors, 600).T
    output[:, 4:7] = rng.random((images, 3, anchors)) ** 3
    output[1, 7, 5] = np.nan
    output[2, 7, 6] = np.inf
    output = output.astype(dtype)
    geometries = [Geometry.stretch((640, 640), (640, 640))] * images
    for conf, iou, max_det in ((0.3, 0.5, 300), (0.0, 0.2, 100), (0.95, 0.7, 7)):
        settings = {"conf": conf, "iou": 1.0, "max_det": anchors, "class_agnostic": agnostic, "dtype": dtype}
        host = DetectionDecoder("yolov8", 3, anchors, 1, **settings)  # type: ignore[arg-type]
        with Stream("cuda:0") as stream, host, DeviceDetectionDecoder(host, images) as decoder:
            tensor, block = Tensor.wrap(output, "cuda:0"), decoder.block(images)
            decoder.run(tensor, geometries, block, stream=stream)
            oriented = DeviceOrientedBoxes(decoder, images, iou=iou, max_det=max_det)
            with pytest.raises(errors.ShapeError, match=r"the block is uint8 of \(4, .* 5 images need uint8 of \(5, "):
                oriented.run(tensor, decoder.block(images - 1), images, stream=stream)
            oriented.run(tensor, block, images, stream=stream)
            oriented.fetch(stream)
            for i in range(images):
                found, stats = oriented.unpack(i)
                candidates, _ = host(output[i], geometries[i])
                boxes = output[i][[0, 1, 2, 3, 7]][:, candidates["row"]].T.astype(F)
                finite = np.isfinite(boxes[:, 4])
                candidates, boxes = candidates[finite], boxes[finite]
                kept = nms_oriented(boxes, candidates["score"], None if agnostic else candidates["class_id"], iou=iou)
                chosen = kept[:max_det]
                np.testing.assert_array_equal(found["xywhr"], boxes[chosen])
                for name in ("score", "class_id", "row"):
                    np.testing.assert_array_equal(found[name], candidates[name][chosen])
                assert (stats.kept, stats.dropped_detections) == (len(kept), len(kept) - len(chosen))
            oriented.close()
