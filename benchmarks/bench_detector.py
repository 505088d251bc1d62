"""A whole `detector(array)`, less the engine's own time, against the code that YOLOv5's users write around the engine.

    pytest benchmarks/bench_detector.py -q -s

Both run the same ONNX Runtime session settings on the same decoded image; what is compared is everything else.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from infersdk.models import YOLOv5

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

cv2 = pytest.importorskip("cv2")
torch = pytest.importorskip("torch")


def letterbox(image: np.ndarray[Any, Any], size: int = 640) -> np.ndarray[Any, Any]:
    """What users of YOLOv5 call: resize, pad with 114, all rounded as that project rounds."""
    height, width = image.shape[:2]
    ratio = min(size / height, size / width)
    new_width, new_height = round(width * ratio), round(height * ratio)
    dw, dh = (size - new_width) / 2, (size - new_height) / 2
    if (width, height) != (new_width, new_height):
        image = cv2.resize(image, (new_width, new_height), interpolation=cv2.INTER_LINEAR)
    top, bottom, left, right = round(dh - 0.1), round(dh + 0.1), round(dw - 0.1), round(dw + 0.1)
    return cv2.copyMakeBorder(image, top, bottom, left, right, cv2.BORDER_CONSTANT, value=(114, 114, 114))


def usual_preprocess(image: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Letterbox, channel swap, contiguous copy, float, / 255."""
    boxed = np.ascontiguousarray(letterbox(image)[..., ::-1].transpose(2, 0, 1))
    return (torch.from_numpy(boxed).float() / 255)[None].numpy()


def usual_postprocess(output: np.ndarray[Any, Any], conf: float = 0.25, iou: float = 0.45) -> list[Any]:
    """Filter by objectness, best class, and OpenCV's NMS with YOLOv5's offset of 7680 pixels a class."""
    x = output[0]
    x = x[x[:, 4] > conf]
    scores = x[:, 5:] * x[:, 4:5]
    classes = scores.argmax(1)
    best = scores[np.arange(len(x)), classes]
    keep = best > conf
    x, classes, best = x[keep], classes[keep], best[keep]
    corner = x[:, :2] - x[:, 2:4] / 2 + classes[:, None] * 7680.0
    kept = cv2.dnn.NMSBoxes(np.hstack([corner, x[:, 2:4]]).tolist(), best.tolist(), conf, iou)
    return [(x[i, :4], best[i], classes[i]) for i in kept]


@pytest.mark.parametrize("image", ["images/bus.jpg", "images/zidane.jpg", "driving/frame_01.jpg"])
def test_around_the_engine(assets: Path, claim: Callable[..., None], image: str) -> None:
    """Everything but the engine: ours at most a quarter of theirs, in interleaved repetitions of one run."""
    pixels = cv2.imread(str(assets / image))
    cv2.setNumThreads(1)
    torch.set_num_threads(1)
    ours, theirs, engine = [], [], []
    # Both decode what the network gives, so that it is the same network.
    with YOLOv5(assets / "models" / "yolov5n.onnx", decode_head="graph") as model:
        result = model(pixels)
        for _ in range(60):
            start = perf_counter()
            model(pixels)
            ours.append(perf_counter() - start - model.timings.infer)
            engine.append(model.timings.infer)
            output = next(iter(model.network.outputs.values())).numpy()
            start = perf_counter()
            usual_preprocess(pixels)
            rows = usual_postprocess(output)
            theirs.append(perf_counter() - start)
    assert len(rows) == len(result)
    claim(image, float(np.median(theirs) / np.median(ours)))
    mine, usual, core = np.median(ours), np.median(theirs), np.median(engine)
    print(
        f"\n{image}: around the engine {mine * 1e3:.3f} ms, the usual code {usual * 1e3:.3f} ms: "
        f"a {usual / mine:.1f}th (engine {core * 1e3:.1f} ms)"
    )
