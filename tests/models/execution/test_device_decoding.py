"""Image files that are decoded on the device of the model: settings, order, counts, and the whole on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infersdk.errors import ConfigError
from infersdk.image import read_image
from infersdk.image.nvimgcodec import NAME, is_installed
from infersdk.models import YOLOv5

pytest.importorskip("onnxruntime")


# ---- without a GPU ----


@pytest.mark.assets
def test_a_model_on_the_processor(assets: Path) -> None:
    model, image = assets / "models" / "yolov5n.onnx", assets / "images" / "bus.jpg"
    with pytest.raises(ConfigError, match="decode='gpu' needs a model on a CUDA device, and yolov5n.onnx is on cpu"):
        YOLOv5(model, decode="gpu")
    with pytest.raises(ConfigError, match="decode"):
        YOLOv5(model, decode="tpu")  # type: ignore[arg-type]
    with YOLOv5(model, decode="auto", threads=1) as detector:
        assert detector.details.decoded == {}
        by_file, by_array = detector(image), detector(np.asarray(read_image(image).pixels)[..., ::-1])
        assert by_file.decoder in ("simplejpeg", "pillow")
        assert by_array.decoder is None
        assert next(iter(detector.map([image]))).decoder == by_file.decoder
        assert detector.clone().details.decoded == detector.details.decoded == {by_file.decoder: 2}
        np.testing.assert_array_equal(by_file.data, by_array.data)
        assert by_file[by_file.scores > 0.5].decoder == by_file.decoder


# ---- on a GPU ----


@pytest.fixture(scope="module")
def detector(request: pytest.FixtureRequest) -> Iterator[YOLOv5]:
    if not is_installed():
        pytest.skip("nvImageCodec is not installed")
    pytest.importorskip("tensorrt_rtx_bindings")
    assets: Path = request.getfixturevalue("assets")
    path = assets / "models" / "yolov5n.onnx"
    settings: dict[str, Any] = {"conf": 0.001, "iou": 0.6, "multi_label": True}
    with YOLOv5(path, backend="tensorrt-rtx", max_batch=4, decode="gpu", **settings) as model:
        yield model


@pytest.mark.gpu
@pytest.mark.assets
def test_files_on_a_gpu(detector: YOLOv5, assets: Path) -> None:
    files = sorted((assets / "coco" / "val").glob("*.jpg"))[:13]
    before = detector.details.decoded.get(NAME, 0)
    streamed = list(detector.stream(files, conf=0.4))
    assert detector.details.decoded[NAME] == before + 13
    for others in (detector(list(map(str, files)), conf=0.4), list(detector.map(files, conf=0.4))):
        for found, expected in zip(others, streamed, strict=True):
            assert found.decoder == expected.decoder == NAME
            assert found.size == expected.size
            assert len(found) == len(expected)
            np.testing.assert_allclose(found.xyxy, expected.xyxy, atol=1.0)
    mixed = list(detector.stream([files[0], read_image(files[1]), files[2].read_bytes()], conf=0.4))
    assert [found.decoder for found in mixed][::2] == [NAME, NAME]


@pytest.mark.gpu
@pytest.mark.assets
def test_map_with_the_devices_pixels(detector: YOLOv5, assets: Path) -> None:
    from accuracy import coco_map

    figure = coco_map(detector, assets / "coco")[0]
    print(f"\nmAP with {NAME}: {figure:.4f}")
    assert figure == pytest.approx(0.307, abs=0.003)
