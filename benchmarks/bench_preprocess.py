"""From an image to YOLOv5's or a classifier's input: what users write with OpenCV and NumPy or torch, and ours.

    pytest benchmarks/bench_preprocess.py --benchmark-group-by=group --benchmark-columns=min,median,rounds

One thread each. Before anything is timed, the pixels are asserted to be the same, byte for byte. Each contestant gives
a fresh array, as the usual code does; "into a batch" writes to an array that is kept, which the usual code cannot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from infersdk._lib import lib
from infersdk.image import Geometry, PixelTransform
from infersdk.ops import preprocess

if TYPE_CHECKING:
    from collections.abc import Callable

cv2 = pytest.importorskip("cv2", reason="the baseline is OpenCV's")

SIZES = {"1080p": (1920, 1080), "720p": (1280, 720), "bus": (810, 1080), "4k": (3840, 2160), "upscale": (320, 240)}
#: The core's variants by the names of the rows, which stay what they are so that versions can be compared.
VARIANTS = {
    "none": lib.IFS_SIMD_PLAIN,
    "avx2": lib.IFS_SIMD_AVX2,
    "avx512": lib.IFS_SIMD_AVX512,
    "neon": lib.IFS_SIMD_NEON,
}
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    threads = cv2.getNumThreads()
    cv2.setNumThreads(1)
    yield
    cv2.setNumThreads(threads)


@pytest.fixture(params=VARIANTS)
def simd(request: pytest.FixtureRequest) -> Any:
    before = lib.ifs_simd()
    if lib.ifs_set_simd(VARIANTS[request.param]) != 0:
        pytest.skip(f"no {request.param} here")
    yield request.param
    lib.ifs_set_simd(before)


def frame(size: tuple[int, int]) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)


def yolov5_letterbox(image: np.ndarray, side: int = 640) -> np.ndarray:
    """YOLOv5's letterbox (scale_up, not auto): BGR uint8 (side, side, 3)."""
    height, width = image.shape[:2]
    r = min(side / height, side / width)
    new = round(width * r), round(height * r)
    dw, dh = (side - new[0]) / 2, (side - new[1]) / 2
    if (width, height) != new:
        image = cv2.resize(image, new, interpolation=cv2.INTER_LINEAR)
    top, bottom, left, right = round(dh - 0.1), round(dh + 0.1), round(dw - 0.1), round(dw + 0.1)
    return cv2.copyMakeBorder(image, top, bottom, left, right, cv2.BORDER_CONSTANT, value=(114, 114, 114))


def yolov5_numpy(image: np.ndarray) -> np.ndarray:
    planes = yolov5_letterbox(image)[:, :, ::-1].transpose(2, 0, 1)
    return np.ascontiguousarray(planes).astype(np.float32) / 255


def yolov5_torch(image: np.ndarray) -> Any:
    import torch

    planes = yolov5_letterbox(image)[:, :, ::-1].transpose(2, 0, 1)
    return torch.from_numpy(np.ascontiguousarray(planes)).float() / 255


def assert_same_pixels(image: np.ndarray, geometry: Geometry, theirs: np.ndarray) -> None:
    ours = preprocess(image, geometry, PixelTransform("bgr", "hwc", "uint8", scale=1))
    np.testing.assert_array_equal(ours, theirs)


@pytest.fixture(params=SIZES)
def letterboxed(request: pytest.FixtureRequest, benchmark: Any) -> tuple[np.ndarray, Geometry]:
    image = frame(SIZES[request.param])
    geometry = Geometry.letterbox(SIZES[request.param], (640, 640))
    assert_same_pixels(image, geometry, yolov5_letterbox(image))
    benchmark.group = f"letterbox {request.param} -> 3x640x640 float32"
    return image, geometry


def run(benchmark: Any, call: Callable[[], Any]) -> Any:
    return benchmark.pedantic(call, rounds=100, warmup_rounds=5)


def test_letterbox_opencv_numpy(benchmark: Any, letterboxed: tuple[np.ndarray, Geometry]) -> None:
    run(benchmark, lambda: yolov5_numpy(letterboxed[0]))


def test_letterbox_opencv_torch(benchmark: Any, letterboxed: tuple[np.ndarray, Geometry]) -> None:
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    run(benchmark, lambda: yolov5_torch(letterboxed[0]))
    torch.set_num_threads(threads)


def test_letterbox_ours(benchmark: Any, letterboxed: tuple[np.ndarray, Geometry], simd: str) -> None:
    image, geometry = letterboxed
    transform = PixelTransform()
    result = run(benchmark, lambda: preprocess(image, geometry, transform))
    np.testing.assert_allclose(result, yolov5_numpy(image), rtol=2e-7)


def test_letterbox_ours_into_a_batch(benchmark: Any, letterboxed: tuple[np.ndarray, Geometry]) -> None:
    image, geometry = letterboxed
    transform, batch = PixelTransform(), np.zeros((2, 3, 640, 640), np.float32)
    run(benchmark, lambda: preprocess(image, geometry, transform, out=batch[1]))


def test_letterbox_warp_ours(benchmark: Any, letterboxed: tuple[np.ndarray, Geometry], simd: str) -> None:
    """The letterbox without rounding, for comparison; its pixels are not OpenCV's."""
    image, geometry = letterboxed
    warp, transform = Geometry.letterbox_warp(geometry.source, geometry.canvas), PixelTransform()
    run(benchmark, lambda: preprocess(image, warp, transform))


# ---- a classifier: the shorter side to 256, the centre 224 x 224, ImageNet's mean and standard deviation ----


def resize_crop_uint8(image: np.ndarray, geometry: Geometry) -> np.ndarray:
    resized = cv2.resize(image, geometry.resized, interpolation=cv2.INTER_LINEAR)
    left, top = (-offset for offset in geometry.offset or (0, 0))
    return resized[top : top + 224, left : left + 224]


def resize_crop_numpy(image: np.ndarray, geometry: Geometry) -> np.ndarray:
    rgb = resize_crop_uint8(image, geometry)[:, :, ::-1].astype(np.float32) / 255
    normal = (rgb - np.float32(MEAN)) / np.float32(STD)
    return np.ascontiguousarray(normal.transpose(2, 0, 1))


@pytest.fixture
def classified(benchmark: Any) -> tuple[np.ndarray, Geometry]:
    image, geometry = frame((500, 375)), Geometry.resize_crop((500, 375), 256, (224, 224))
    assert_same_pixels(image, geometry, resize_crop_uint8(image, geometry))
    benchmark.group = "resize and crop 500x375 -> 3x224x224 float32"
    return image, geometry


def test_resize_crop_opencv_numpy(benchmark: Any, classified: tuple[np.ndarray, Geometry]) -> None:
    run(benchmark, lambda: resize_crop_numpy(*classified))


def test_resize_crop_ours(benchmark: Any, classified: tuple[np.ndarray, Geometry], simd: str) -> None:
    transform = PixelTransform.normalize(MEAN, STD)
    result = run(benchmark, lambda: preprocess(*classified, transform))
    np.testing.assert_allclose(result, resize_crop_numpy(*classified), atol=2e-6)


# ---- a video frame as decoders give it ----


def test_nv12_opencv_numpy(benchmark: Any) -> None:
    image = np.random.default_rng(1).integers(0, 256, (1620, 1920), dtype=np.uint8)
    benchmark.group = "letterbox 1080p NV12 -> 3x640x640 float32"
    run(benchmark, lambda: yolov5_numpy(cv2.cvtColor(image, cv2.COLOR_YUV2BGR_NV12)))


def test_nv12_ours(benchmark: Any, simd: str) -> None:
    image = np.random.default_rng(1).integers(0, 256, (1620, 1920), dtype=np.uint8)
    geometry, transform = Geometry.letterbox((1920, 1080), (640, 640)), PixelTransform()
    benchmark.group = "letterbox 1080p NV12 -> 3x640x640 float32"
    result = run(benchmark, lambda: preprocess(image, geometry, transform, format="nv12"))
    np.testing.assert_allclose(result, yolov5_numpy(cv2.cvtColor(image, cv2.COLOR_YUV2BGR_NV12)), rtol=2e-7)
