"""Large images: tiles against SAHI with the same detector, runtime and threads, and the merging of crowded boxes.

    pip install sahi==0.12.8                  # in an environment of its own, if you like
    pytest benchmarks/bench_tiles.py -q -s    # the test data of INFERSDK_ASSETS

The image is 3840 x 2160, made of photographs; tiles of 640 with an overlap of 0.2, and the whole image. SAHI's
`get_sliced_prediction` runs our wrapper as its detection model, eight tiles a call in one run of the runtime on all
cores, and merges by its NMS: the boxes are the very same. So the ratio is that of cutting, scheduling and merging: ours
once as the default is, which may split batches over the cores, and once with an instance of one thread on each. The
rounds alternate; INFERSDK_BENCH_ROUNDS is how many there are (default 5).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rounds import Spread, seconds, times

from infersdk.image import read_image
from infersdk.models import Detections, Tiled, YOLOv8
from infersdk.models.composed.merging import Merge, merge_views
from infersdk.ops.batch import available_processors

ROUNDS = int(os.environ.get("INFERSDK_BENCH_ROUNDS", "5"))
TILE, OVERLAP, BATCH, SIZE = 640, 0.2, 8, (3840, 2160)
TARGET, MERGING_MS = 1.3, 2.5
BACKENDS = ("onnxruntime", "openvino")


@pytest.fixture(scope="module")
def large(assets: Path) -> np.ndarray:
    """Photographs side by side, BGR."""
    canvas = np.full((SIZE[1], SIZE[0], 3), 114, np.uint8)
    files = iter(sorted((assets / "coco" / "val").glob("*.jpg")))
    for top in range(0, SIZE[1], 480):
        for left in range(0, SIZE[0], 640):
            pixels = np.atleast_3d(read_image(next(files)).pixels)[: min(480, SIZE[1] - top), :640, ::-1]
            canvas[top : top + pixels.shape[0], left : left + pixels.shape[1]] = pixels
    return canvas


def in_sahi(model: YOLOv8) -> Any:
    """The wrapper as a detection model of SAHI."""
    base = pytest.importorskip("sahi.models.base", reason="pip install sahi==0.12.8").DetectionModel
    from sahi.prediction import ObjectPrediction

    class Ours(base):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            self.model, self.confidence_threshold = model, model.conf
            self.category_remapping = self._batch_images = None
            self._results: list[Detections] = []

        def perform_inference(self, image: np.ndarray) -> None:
            self._results = [model(image)]

        def perform_batch_inference(self, images: list[np.ndarray]) -> None:
            self._results = model(images)

        def _create_object_prediction_list_from_original_predictions(
            self, shift_amount_list: Any = None, full_shape_list: Any = None
        ) -> None:
            shifts = shift_amount_list if isinstance(shift_amount_list[0], (list, tuple)) else [shift_amount_list]
            shapes = full_shape_list if isinstance(full_shape_list[0], (list, tuple)) else [full_shape_list]
            self._object_prediction_list_per_image = [
                [
                    ObjectPrediction(
                        bbox=box.xyxy, category_id=box.class_id, category_name=box.label, score=box.score,
                        shift_amount=shift, full_shape=shape,
                    )
                    for box in result
                ]
                for result, shift, shape in zip(self._results, shifts, shapes, strict=True)
            ]  # fmt: skip

    return Ours()


def sliced(detector: Any, image: np.ndarray) -> list[tuple[float, ...]]:
    from sahi.predict import get_sliced_prediction

    result = get_sliced_prediction(
        image, detector, slice_height=TILE, slice_width=TILE, overlap_height_ratio=OVERLAP, overlap_width_ratio=OVERLAP,
        postprocess_type="NMS", postprocess_match_metric="IOS", postprocess_match_threshold=0.5, verbose=0,
        batch_size=BATCH,
    )  # fmt: skip
    return [(*one.bbox.to_xyxy(), one.score.value) for one in result.object_prediction_list]


@pytest.fixture(params=BACKENDS)
def detectors(request: pytest.FixtureRequest, assets: Path) -> Iterator[tuple[str, YOLOv8, YOLOv8, YOLOv8]]:
    """One whose batches run as a whole, one as it comes, and one of a thread on each core."""
    backend, cores = request.param, available_processors()
    pytest.importorskip(backend)
    path = assets / "models" / "yolov8n.onnx"
    each: dict[str, Any] = {"threads": 1, "allow_spinning": False} if backend == "onnxruntime" else {"streams": cores}
    with (
        YOLOv8(path, backend, max_batch=BATCH, split_batches=False) as whole,
        YOLOv8(path, backend, max_batch=BATCH) as usual,
        YOLOv8(path, backend, max_batch=1, **each) as single,
    ):
        single.configure_pipeline(instances=cores)
        yield backend, whole, usual, single


@pytest.mark.timeout(1800)
def test_against_sahi(
    detectors: tuple[str, YOLOv8, YOLOv8, YOLOv8], large: np.ndarray, claim: Callable[..., None]
) -> None:
    backend, whole, usual, single = detectors
    detector, tiled, side_by_side = in_sahi(whole), Tiled(usual, tile=TILE, overlap=OVERLAP), Tiled(
        single, tile=TILE, overlap=OVERLAP)  # fmt: skip
    runs: dict[str, Callable[[], Any]] = {
        "SAHI": lambda: sliced(detector, large),
        "as it comes": lambda: tiled(large),
        "an instance on each core": lambda: list(side_by_side.map([large])),
    }
    theirs, ours = np.array(sorted(runs["SAHI"]())), tiled(large)
    own = np.array(sorted(zip(*ours.xyxy.T.tolist(), ours.scores.tolist(), strict=True)))
    assert own.shape == theirs.shape, "other boxes than SAHI's"
    print(f"{backend}: {len(own)} boxes, SAHI's within {np.abs(own - theirs).max():.3g} pixels")
    runs["an instance on each core"]()
    for _ in range(3):  # 15 batches: which way they run is decided
        tiled(large)
    taken = times(runs, ROUNDS)
    base = taken.pop("SAHI")
    print(f"{backend}, SAHI: {1 / np.median(base):.3f} images/s")
    for name, measured in taken.items():
        ratio = Spread.of(base / measured)
        print(
            f"{backend}, {name}: {1 / np.median(measured):.3f} images/s, {ratio:.2f} times SAHI's; "
            f"the target is {TARGET}"
        )
        claim(f"tiles, {backend}, {name}, over SAHI", ratio.median, low=ratio.low, high=ratio.high)


@pytest.mark.parametrize("kind", ["nms", "union", "weighted"])
def test_merging_crowded_boxes(kind: str) -> None:
    """10,000 boxes around 1,250 objects in one image."""
    rng = np.random.default_rng(3)
    centres = rng.uniform(50, 3000, (1250, 2))[rng.integers(0, 1250, 10_000)] + rng.normal(size=(10_000, 2)) * 4
    sides = rng.uniform(20, 40, (10_000, 2))
    boxes = Detections.of(
        np.concatenate([centres - sides / 2, centres + sides / 2], axis=1), rng.uniform(0.1, 0.9, 10_000),
        names=("a",), size=(3100, 3100),
    )  # fmt: skip
    merge = Merge(kind, "smaller", 0.5, False)
    taken = [seconds(lambda: merge_views([boxes], [(0, 0)], (3100, 3100), merge)) * 1e3 for _ in range(15)]
    count = len(merge_views([boxes], [(0, 0)], (3100, 3100), merge))
    print(f"merging 10,000 boxes into {count}, {kind}: median {np.median(taken):.2f} ms, best {min(taken):.2f} ms; "
          f"the target of nms is {MERGING_MS} ms")  # fmt: skip
