"""Instance masks side by side with Ultralytics' steps in torch and in OpenCV, on one thread.

Run: `pytest benchmarks/bench_masks.py` (pytest-benchmark). 20 objects in a frame of 1920 x 1080, prototypes of 160 x
160 for a canvas of 640 x 640. Each implementation is checked to give the same masks, up to 1 % of their pixels, before
it is timed. The baselines give one array of bytes for each object; ours gives bits within the boxes.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
import pytest

from infersdk.image import Geometry
from infersdk.ops import assemble_masks

cv2 = pytest.importorskip("cv2")
torch = pytest.importorskip("torch")
pytest.importorskip("pytest_benchmark")

IMAGE, CANVAS, SIDE, OBJECTS, COEFFICIENTS = (1920, 1080), (640, 640), 160, 20, 32
GEOMETRY = Geometry.letterbox(IMAGE, CANVAS)


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Any:
    before = torch.get_num_threads(), cv2.getNumThreads()
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    yield
    torch.set_num_threads(before[0])
    cv2.setNumThreads(before[1])


@pytest.fixture(scope="module", name="case")
def _case() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    coarse = rng.normal(0, 1, (COEFFICIENTS, 12, 12)).astype(np.float32)
    prototypes = np.stack([cv2.resize(plane, (SIDE, SIDE), interpolation=cv2.INTER_CUBIC) for plane in coarse])
    coefficients = rng.normal(0, 1, (OBJECTS, COEFFICIENTS)).astype(np.float32)
    size = rng.uniform(0.1, 0.5, (OBJECTS, 2)) * IMAGE
    corner = rng.uniform(0, 1, (OBJECTS, 2)) * (IMAGE - size)
    return np.ascontiguousarray(prototypes), coefficients, np.hstack([corner, corner + size]).astype(np.float32)


def crop(masks: Any, boxes: Any) -> Any:
    """Ultralytics' crop_mask."""
    x1, y1, x2, y2 = torch.chunk(boxes[:, :, None], 4, 1)
    column = torch.arange(masks.shape[2], dtype=x1.dtype)[None, None, :]
    row = torch.arange(masks.shape[1], dtype=x1.dtype)[None, :, None]
    return masks * ((column >= x1) * (column < x2) * (row >= y1) * (row < y2))


def with_torch(case: tuple[np.ndarray, np.ndarray, np.ndarray]) -> np.ndarray:
    prototypes, coefficients, boxes = (torch.from_numpy(array) for array in case)
    masks = (coefficients @ prototypes.reshape(COEFFICIENTS, -1)).sigmoid().reshape(1, -1, SIDE, SIDE)
    masks = torch.nn.functional.interpolate(masks, CANVAS[::-1], mode="bilinear", align_corners=False)
    (width, height), (left, top) = GEOMETRY.resized, GEOMETRY.offset  # type: ignore[misc]
    masks = masks[..., top : top + height, left : left + width]
    masks = torch.nn.functional.interpolate(masks, IMAGE[::-1], mode="bilinear", align_corners=False)[0]
    return np.asarray(crop(masks, boxes).gt_(0.5).byte().numpy())


def with_opencv(case: tuple[np.ndarray, np.ndarray, np.ndarray]) -> np.ndarray:
    """As deployment scripts do it: an object at a time, cropped before the last step."""
    prototypes, coefficients, boxes = case
    values = 1 / (1 + np.exp(-(coefficients @ prototypes.reshape(COEFFICIENTS, -1))))
    (width, height), (left, top) = GEOMETRY.resized, GEOMETRY.offset  # type: ignore[misc]
    out = np.zeros((OBJECTS, IMAGE[1], IMAGE[0]), np.uint8)
    for i, value in enumerate(values.reshape(-1, SIDE, SIDE)):
        canvas = cv2.resize(value, CANVAS, interpolation=cv2.INTER_LINEAR)[top : top + height, left : left + width]
        whole = cv2.resize(canvas, IMAGE, interpolation=cv2.INTER_LINEAR)
        x1, y1, x2, y2 = np.ceil(boxes[i]).astype(int)
        out[i, y1:y2, x1:x2] = whole[y1:y2, x1:x2] > 0.5
    return out


def ours(case: tuple[np.ndarray, np.ndarray, np.ndarray]) -> Any:
    prototypes, coefficients, boxes = case
    return assemble_masks(prototypes, coefficients, boxes, GEOMETRY)


IMPLEMENTATIONS = {"ours": ours, "torch": with_torch, "opencv": with_opencv}


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_twenty_objects_at_1080p(benchmark: Any, case: tuple[np.ndarray, np.ndarray, np.ndarray], name: str) -> None:
    expected, got = with_torch(case).astype(bool), IMPLEMENTATIONS[name](case)
    masks = np.stack(list(got)) if name == "ours" else got.astype(bool)
    different = int((masks != expected).sum())
    assert expected.sum() > 500_000
    assert different <= 0.01 * expected.sum()
    benchmark.extra_info["different pixels"] = different
    benchmark.extra_info["pixels"] = int(expected.sum())
    benchmark.pedantic(IMPLEMENTATIONS[name], (case,), rounds=30 if name == "ours" else 5, warmup_rounds=1)


def test_ratios_in_turns(case: tuple[np.ndarray, np.ndarray, np.ndarray], claim: Callable[..., None]) -> None:
    """The three one after another, five times; what is kept are the ratios within a round."""
    expected = with_torch(case).astype(bool)
    different = {"opencv": int((with_opencv(case).astype(bool) != expected).sum())}
    different["ours"] = int((np.stack(list(ours(case))) != expected).sum())
    seconds: dict[str, list[float]] = {name: [] for name in IMPLEMENTATIONS}
    for _ in range(5):
        for name, implementation in IMPLEMENTATIONS.items():
            start = perf_counter()
            implementation(case)
            seconds[name].append(perf_counter() - start)
    print(f"of {expected.sum()} pixels of torch's masks differ: {different}")
    for name in ("torch", "opencv"):
        ratios = sorted(np.divide(seconds[name], seconds["ours"]).tolist())
        print(f"{name}: {ratios[2]:.0f} times our time ({ratios[0]:.0f} to {ratios[-1]:.0f})")
        claim(f"masks, {name}", ratios[2], low=ratios[0], high=ratios[-1])
