"""YOLOv5 with ONNX Runtime, OpenCV and NumPy, without infersdk: what a user of FastAPI or LitServe writes by hand.

The peers of `bench_serve.py` share it. It is written for speed where that is easy: the candidates below the threshold
are dropped before anything else is computed, and OpenCV makes the network's input and does the NMS.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, TypeAlias

import cv2
import numpy as np
import numpy.typing as npt
import onnxruntime

__all__ = ["Detector", "Letterbox", "decode", "letterbox", "results"]

#: Scale, and what is left of and above the image.
Letterbox: TypeAlias = tuple[float, int, int]

SIDE = 640
CONFIDENCE, IOU = 0.25, 0.45


def decode(data: bytes) -> npt.NDArray[np.uint8]:
    """A JPEG as pixels [height, width, 3] in the order BGR."""
    image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    if image is None:
        raise ValueError("the file is not an image")
    return image


def letterbox(image: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.uint8], Letterbox]:
    """The image scaled to fit into 640x640, in the middle of gray."""
    height, width = image.shape[:2]
    scale = min(SIDE / height, SIDE / width)
    inner = round(width * scale), round(height * scale)
    resized = cv2.resize(image, inner, interpolation=cv2.INTER_LINEAR)
    left, top = (SIDE - inner[0]) // 2, (SIDE - inner[1]) // 2
    right, bottom = SIDE - inner[0] - left, SIDE - inner[1] - top
    framed = cv2.copyMakeBorder(resized, top, bottom, left, right, cv2.BORDER_CONSTANT, value=(114, 114, 114))
    return framed, (scale, left, top)


def results(candidates: npt.NDArray[np.float32], box: Letterbox, size: tuple[int, int]) -> list[dict[str, Any]]:
    """The boxes of one image.

    Args:
        candidates: [25200, 85]: centre x and y, width, height, objectness, and 80 scores.
        size: height and width of the image.
    """
    candidates = candidates[candidates[:, 4] > CONFIDENCE]
    scores = candidates[:, 5:] * candidates[:, 4:5]
    classes = scores.argmax(1)
    best = scores.max(1)
    kept = best > CONFIDENCE
    centres, sizes, classes, best = candidates[kept, :2], candidates[kept, 2:4], classes[kept], best[kept]
    if not len(best):
        return []
    scale, left, top = box
    corner = (centres - sizes / 2 - (left, top)) / scale
    rectangles = np.concatenate([corner, sizes / scale], 1)
    indices = cv2.dnn.NMSBoxesBatched(rectangles.tolist(), best.tolist(), classes.tolist(), CONFIDENCE, IOU)
    found = []
    for index in indices:
        x, y, width, height = rectangles[index].tolist()
        corners = [max(x, 0.0), max(y, 0.0), min(x + width, float(size[1])), min(y + height, float(size[0]))]
        found.append({"xyxy": corners, "score": float(best[index]), "class_id": int(classes[index])})
    return found


class Detector:
    """The network of a file, in a session of ONNX Runtime.

    Args:
        threads: of one run; 0 is ONNX Runtime's default, one for each processor.
    """

    def __init__(self, path: str, threads: int = 0) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self._input = self._session.get_inputs()[0].name

    def __call__(self, images: Sequence[npt.NDArray[np.uint8]]) -> list[list[dict[str, Any]]]:
        """The boxes of each image, in one run. Several threads may call it at a time."""
        framed, boxes = zip(*map(letterbox, images), strict=True)
        batch = cv2.dnn.blobFromImages(framed, 1 / 255, swapRB=True)
        (output,) = self._session.run(None, {self._input: batch})
        return [results(*row) for row in zip(output, boxes, [image.shape[:2] for image in images], strict=True)]


if __name__ == "__main__":  # python detector.py MODEL IMAGE
    from pathlib import Path

    print(Detector(sys.argv[1])([decode(Path(sys.argv[2]).read_bytes())])[0])
