"""Class maps and NMS of oriented boxes side by side with what users write instead, on one thread.

Run: `python benchmarks/bench_heads.py [--seconds 2]`. The contenders alternate, so that other work on the machine hits
all of them; what is printed is the ratio of medians. Each is checked to give the same result before it is timed.

  - class maps: torch's interpolate and argmax, and OpenCV's resize of each class and NumPy's argmax;
  - oriented boxes: Ultralytics' fast_nms with batch_probiou, where that package can be imported; it is AGPL, and no
    dependency.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from infersdk.image import Geometry
from infersdk.ops import class_map, nms_oriented

Contender = Callable[[], Any]


def ratios(contenders: dict[str, Contender], seconds: float) -> dict[str, float]:
    """The median of each contender, divided by that of the first one."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    end = perf_counter() + seconds
    while perf_counter() < end or len(times[next(iter(times))]) < 3:
        for name, run in contenders.items():
            start = perf_counter()
            run()
            times[name].append(perf_counter() - start)
    first = median(next(iter(times.values())))
    for name, values in times.items():
        print(f"  {name:12} {median(values) * 1e3:9.3f} ms  {median(values) / first:7.2f} x")
    return {name: median(values) / first for name, values in times.items()}


def class_maps(seconds: float) -> None:
    rng = np.random.default_rng(0)
    for classes, points, image in (
        (2, (640, 360), (1280, 720)),
        (19, (256, 128), (1920, 1080)),
        (150, (128, 128), (1920, 1080)),
    ):
        coarse = rng.normal(0, 3, (classes, 8, 8)).astype(np.float32)
        scores = np.stack([_smooth(plane, points) for plane in coarse])
        geometry = Geometry.stretch(image, points)
        contenders: dict[str, Contender] = {"class_map": lambda s=scores, g=geometry: class_map(s, g)}
        try:
            import cv2

            cv2.setNumThreads(1)
            contenders["OpenCV"] = lambda s=scores, size=image: np.stack(
                [cv2.resize(plane, size, interpolation=cv2.INTER_LINEAR) for plane in s]
            ).argmax(0)
        except ImportError:
            print("no OpenCV here")
        try:
            import torch

            torch.set_num_threads(1)
            tensor = torch.from_numpy(scores)[None]
            contenders["torch"] = lambda t=tensor, size=image: torch.nn.functional.interpolate(
                t, size[::-1], mode="bilinear"
            ).argmax(1)
        except ImportError:
            print("no torch here")
        ours = class_map(scores, geometry)
        for name, run in contenders.items():
            different = float((np.asarray(run()).reshape(ours.shape) != ours).mean())
            assert different < 1e-3, (name, different)
        print(f"{classes} classes, {points[0]} x {points[1]} points to {image[0]} x {image[1]} pixels")
        ratios(contenders, seconds)


def _smooth(plane: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """A plane of 8 x 8 resized bilinearly to (width, height)."""
    at = [np.linspace(0, 7, side) for side in size]
    rows = np.stack([np.interp(at[0], np.arange(8), row) for row in plane])
    return np.stack([np.interp(at[1], np.arange(8), column) for column in rows.T], axis=1).astype(np.float32)


def oriented_boxes(seconds: float) -> None:
    rng = np.random.default_rng(0)
    try:
        import torch
        from ultralytics.utils.metrics import batch_probiou
        from ultralytics.utils.nms import TorchNMS
    except ImportError as error:
        print(f"oriented boxes: nothing to compare with ({error})")
        return
    torch.set_num_threads(1)
    for n in (100, 1000, 5000):
        boxes = np.empty((n, 5), np.float32)
        boxes[:, :2], boxes[:, 2:4] = rng.uniform(0, 1024, (n, 2)), rng.uniform(8, 120, (n, 2))
        boxes[:, 4] = rng.uniform(-np.pi / 4, 3 * np.pi / 4, n)
        scores = rng.permutation(n).astype(np.float32) / n
        tensors = torch.from_numpy(boxes), torch.from_numpy(scores)
        contenders: dict[str, Contender] = {
            "nms_oriented": lambda b=boxes, s=scores: nms_oriented(b, s, iou=0.45),
            "Ultralytics": lambda t=tensors: TorchNMS.fast_nms(*t, 0.45, iou_func=batch_probiou),
        }
        ours, theirs = (np.asarray(run()) for run in contenders.values())
        assert len(set(ours.tolist()) ^ set(theirs.tolist())) <= n // 1000, "but for pairs at the very threshold"
        print(f"{n} oriented boxes")
        ratios(contenders, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each comparison (default: %(default)s)")
    seconds = parser.parse_args().seconds
    class_maps(seconds)
    oriented_boxes(seconds)


if __name__ == "__main__":
    main()
