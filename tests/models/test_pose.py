"""Boxes with keypoints."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from head_models import head_model

from infersdk.accuracy import Contender, PoseTask
from infersdk.errors import UnsupportedModelError
from infersdk.models import EndToEnd, EndToEndPose, YOLOv8, YOLOv8Pose, load

pytest.importorskip("onnxruntime")

IMAGE = np.zeros((100, 200, 3), np.uint8)
METADATA = {"task": "pose", "names": "{0: 'person'}", "kpt_shape": "[2, 3]"}


def two_people() -> np.ndarray:
    output = np.zeros((11, 84), np.float32)
    output[:, 70] = [32, 32, 32, 16, 0.9, 16, 24, 0.5, 48, 40, 1.0]
    output[:, 5] = [8, 24, 8, 8, 0.8, 4, 20, 0.1, 12, 28, 0.2]
    return output


@pytest.mark.parametrize("values", [2, 3])
def test_keypoints_follow_their_boxes(tmp_path: Path, values: int) -> None:
    output = two_people()
    if values == 2:
        output = np.delete(output, [7, 10], axis=0)
    path = head_model(tmp_path / "m.onnx", [output], METADATA | {"kpt_shape": f"[2, {values}]"})
    with load(path, max_batch=4) as model:
        assert type(model) is YOLOv8Pose
        for found in (model(IMAGE), model.submit(IMAGE).result(30), *model.map([IMAGE] * 3)):
            points = found.keypoints
            assert points.shape == (2, 2, values)
            np.testing.assert_allclose(points[0, :, :2], [[50, 25], [150, 75]], atol=1e-4)
            np.testing.assert_allclose(points[1, :, :2], [[12.5, 12.5], [37.5, 37.5]], atol=1e-4)
            if values == 3:
                np.testing.assert_allclose(points[..., 2], [[0.5, 1.0], [0.1, 0.2]])
        assert found[found.scores < 0.85].keypoints.shape == (1, 2, values)
        assert np.shape(found.to_dicts()[0]["keypoints"]) == (2, values)


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("shape", [(17, 3), (2, 3), (5, 2), (1, 3)])
def test_rows_that_are_chosen_already(tmp_path: Path, shape: tuple[int, int], backend: str) -> None:
    pytest.importorskip(backend)
    points, values = shape
    output = np.zeros((300, 6 + points * values), np.float32)
    output[5, :6] = [16, 24, 48, 40, 0.6, 0]
    output[9, :6] = [0, 16, 8, 24, 0.9, 0]
    places = np.full((points, values), 0.5)
    places[:, 0], places[:, 1] = 32 + np.arange(points), 32
    output[5, 6:] = places.reshape(-1)
    output[9, 6:] = (places + [1, 1, 0][:values]).reshape(-1)
    path = head_model(tmp_path / "m.onnx", [output], METADATA | {"kpt_shape": str([points, values])})
    with load(path, backend=backend, max_batch=2) as model:
        assert type(model) is EndToEndPose
        for found in (model(IMAGE), model.submit(IMAGE).result(30), *model.map([IMAGE] * 3)):
            assert found.keypoints.shape == (2, points, values)
            np.testing.assert_allclose(found.keypoints[1, :, 0], 100 + np.arange(points) / 0.32, atol=1e-3)
            np.testing.assert_allclose(found.keypoints[:, :, 1], [[50 + 1 / 0.32] * points, [50] * points], atol=1e-3)
            if values == 3:
                np.testing.assert_allclose(found.keypoints[1, :, 2], 0.5)
        assert model(IMAGE, conf=0.7).keypoints.shape == (1, points, values)
    plain = head_model(tmp_path / "p.onnx", [output], {})
    with EndToEndPose(plain, keypoints=shape) as model:
        assert model(IMAGE).keypoints.shape == (2, points, values)
    with pytest.raises(UnsupportedModelError, match="kpt_shape"):
        EndToEndPose(plain)
    wrong = f"{6 + points * values} values, not the 6 of a box, a score and a class and 12 more"
    with pytest.raises(UnsupportedModelError, match=wrong):
        EndToEndPose(plain, keypoints=(4, 3))
    with pytest.raises(UnsupportedModelError, match=f"{points} keypoints"):
        EndToEnd(head_model(tmp_path / "k.onnx", [output], {"kpt_shape": str([points, values])}))


def test_the_shape_is_named_where_the_file_does_not_say(tmp_path: Path) -> None:
    path = head_model(tmp_path / "m.onnx", [two_people()], {})
    with YOLOv8Pose(path, keypoints=(2, 3), names=["person"]) as model:
        assert model(IMAGE).keypoints.shape == (2, 2, 3)
    with pytest.raises(UnsupportedModelError, match="^m.onnx is not a model for YOLOv8Pose: its metadata"):
        YOLOv8Pose(path)
    with pytest.raises(UnsupportedModelError, match="classes"):
        YOLOv8Pose(path, keypoints=(17, 3))
    with pytest.raises(UnsupportedModelError, match=r"kpt_shape \(2, 3\), but keypoints is \(2, 2\); leave key"):
        YOLOv8Pose(head_model(tmp_path / "j.onnx", [two_people()], METADATA), keypoints=(2, 2))
    with pytest.raises(UnsupportedModelError, match="2 keypoints"):
        YOLOv8(head_model(tmp_path / "k.onnx", [two_people()], {"kpt_shape": "[2, 3]"}))


@pytest.mark.slow
@pytest.mark.assets
@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_box_and_keypoint_map(assets: Path, backend: str) -> None:
    pytest.importorskip(backend)
    pytest.importorskip("pycocotools")
    task = PoseTask(assets / "keypoints" / "person_keypoints.json", assets / "keypoints" / "val", multi_label=False)
    figures = task.measure(Contender(assets / "models" / "yolov8n-pose.onnx", backend)).figures
    expected = {"mAP": 0.560, "mAP50": 0.712, "OKS_mAP": 0.512, "OKS_mAP50": 0.774}
    assert figures == pytest.approx(expected, abs=0.003)
