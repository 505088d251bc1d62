"""Results of each kind as tensors: padded to the largest of a request."""

from __future__ import annotations

from typing import Any

import numpy as np

from infersdk.models import Classifications, ClassMap, ClassMaps, Detections, Embedding
from infersdk.models.results.plain import plain_rows
from infersdk.serve.result_tensors import ResultTensors


def tensors(*results: Any) -> dict[str, Any]:
    made = ResultTensors(results[0])
    found = made.tensors(results, [info.name for info in made.outputs])
    for info in made.outputs:
        array = found[info.name]
        assert len(info.shape) == array.ndim
        assert all(side in (-1, given) for side, given in zip(info.shape, array.shape, strict=True))
    return found


def boxes(count: int) -> Detections:
    rng = np.random.default_rng(count)
    corners = np.sort(rng.uniform(0, 100, (count, 2, 2)), axis=1).reshape(count, 4)
    scores = np.sort(rng.uniform(size=count))[::-1]
    points = rng.normal(size=(count, 17, 3)).astype(np.float32)
    return Detections.of(corners, scores, np.arange(count) % 2, names=["a", "b"], size=(100, 100), keypoints=points)


def test_boxes() -> None:
    few, many, none = boxes(2), boxes(5), boxes(0)
    found = tensors(few, many, none)
    assert found["num_detections"].tolist() == [2, 5, 0]
    assert found["detection_boxes"].shape == (3, 5, 4)
    for row, one in enumerate((few, many, none)):
        count = len(one)
        np.testing.assert_array_equal(found["detection_boxes"][row, :count], one.xyxy)
        np.testing.assert_array_equal(found["detection_keypoints"][row, :count], one.columns["keypoints"])
        assert found["detection_labels"][row].tolist() == [label.encode() for label in one.labels] + [b""] * (5 - count)
        assert (found["detection_classes"][row, count:] == -1).all()
        assert not found["detection_scores"][row, count:].any()


def test_classes() -> None:
    best = Classifications(np.array([3, 1], np.int32), np.array([0.75, 0.25], np.float32), ["a", "b", "c", "d"])
    found = tensors(best, best[:1])
    assert found["class_ids"].tolist() == [[3, 1], [3, -1]]
    assert found["class_scores"].tolist() == [[0.75, 0.25], [0.75, 0]]
    assert found["class_labels"].tolist() == [[b"d", b"b"], [b"d", b""]]


def test_embeddings() -> None:
    found = tensors(Embedding.of([3, 4]), Embedding.of([0, 2]))["embedding"]
    np.testing.assert_allclose(found, [[0.6, 0.8], [0, 1]], rtol=1e-6)


def test_class_maps() -> None:
    small, large = (
        ClassMap(np.full(shape, value, np.uint8), ["a", "b"]) for shape, value in (((2, 3), 1), ((3, 2), 0))
    )
    found = tensors(small, large)["class_map"]
    assert found.tolist() == [
        [[1, 1, 1], [1, 1, 1], [255, 255, 255]],
        [[0, 0, 255], [0, 0, 255], [0, 0, 255]],
    ]
    both = ClassMaps({"area": small, "lanes": small})
    assert {name: array.shape for name, array in tensors(both).items()} == {
        "class_map_area": (1, 2, 3), "class_map_lanes": (1, 2, 3),
    }  # fmt: skip


def test_any_other_result_is_json() -> None:
    assert tensors({"a": np.float32(1.5), "b": np.arange(2)})["result"].tolist() == [b'{"a":1.5,"b":[0,1]}']
    assert plain_rows([{"mask": np.zeros((1, 2), bool)}]) == [{"mask": [[False, False]]}]
