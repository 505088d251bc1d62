"""Images on the smallest canvas that fits them: the canvases, the batches, and the boxes of a plain rectangular run."""

from __future__ import annotations

import itertools
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_models import node, save, value

from accuracy import coco_map
from infersdk.core.model_source import ModelSource
from infersdk.core.tensor_spec import TensorSpec
from infersdk.data import DETECTOR, IMAGE
from infersdk.errors import ConfigError, UnsupportedModelError
from infersdk.graph import open as open_graph
from infersdk.graph.passes import FreeSize, ResizeInput, prepared_model
from infersdk.image import Geometry, image_size, read_image
from infersdk.models import Classifier, YOLOv5, YOLOv8, choose_canvases, load
from infersdk.models.canvases import Canvases, CanvasPlan, open_size, profiles, usual_canvases
from infersdk.models.execution.execution import MOST_WAITING, grouped
from infersdk.models.preprocessor import ImageInput, Preprocessor

pytest.importorskip("onnxruntime")
cv2 = pytest.importorskip("cv2")


def canvases(whole: tuple[int, int] = (640, 640), sizes: Any = None) -> Canvases:
    spec = TensorSpec("images", np.dtype("float32"), ("batch", 3, "height", "width"))
    chosen = usual_canvases(whole) if sizes is None else sizes
    return Canvases(ImageInput(spec, whole, "chw"), Preprocessor.letterbox, chosen)


# ---- which canvas ----


def test_usual_canvases() -> None:
    across, upright = [(640, 384), (640, 448), (640, 480)], [(384, 640), (448, 640), (480, 640)]
    assert set(usual_canvases((640, 640))) == {*across, *upright, (640, 640)}
    assert set(usual_canvases((320, 320))) == {
        (320, 192), (320, 224), (320, 256), (192, 320), (224, 320), (256, 320), (320, 320)
    }  # fmt: skip
    assert all(w <= 640 and h <= 384 and w % 64 == h % 64 == 0 for w, h in usual_canvases((640, 384), 64))


@pytest.mark.parametrize(
    ("size", "canvas"),
    [
        ((1920, 1080), (640, 384)), ((1280, 720), (640, 384)), ((1080, 1920), (384, 640)), ((640, 480), (640, 480)),
        ((480, 640), (480, 640)), ((640, 427), (640, 448)), ((500, 375), (640, 480)), ((810, 1080), (480, 640)),
        ((640, 640), (640, 640)), ((640, 481), (640, 640)), ((100, 10), (640, 384)), ((1, 1000), (384, 640)),
    ],
)  # fmt: skip
def test_canvas_of_an_image(size: tuple[int, int], canvas: tuple[int, int]) -> None:
    assert canvases().of(size).input.size == canvas


def test_an_image_has_the_same_size_on_its_canvas_and_no_smaller_one_would_do() -> None:
    rng = np.random.default_rng(0)
    every = canvases(sizes=[(640, 32 * i) for i in range(1, 21)] + [(32 * i, 640) for i in range(1, 21)])
    for width, height in rng.integers(1, 3000, (300, 2)).tolist():
        chosen = every.of((width, height))
        resized = every.whole.geometry_of((width, height)).resized
        assert resized is not None
        assert chosen.geometry_of((width, height)).resized == resized
        assert all(0 <= side - own < 32 for side, own in zip(chosen.input.size, resized, strict=True))


def test_stretched_images_take_the_whole_canvas() -> None:
    spec = TensorSpec("images", np.dtype("float32"), (1, 3, "height", "width"))
    several = Canvases(ImageInput(spec, (640, 640), "chw"), Preprocessor.stretch, usual_canvases((640, 640)))
    assert several.of((1920, 1080)).input.size == (640, 640)


def test_choosing_canvases() -> None:
    video, upright, square = (1920, 1080), (1080, 1920), (700, 700)
    assert choose_canvases([video] * 5) == [(640, 384), (640, 640)]
    assert choose_canvases([video] * 5 + [upright] * 2 + [square], count=2) == [(640, 384), (640, 640)]
    assert choose_canvases([video] * 2 + [upright] * 5 + [square], count=2) == [(384, 640), (640, 640)]
    assert choose_canvases([video, upright, square], count=3) == [(384, 640), (640, 384), (640, 640)]
    assert choose_canvases([square], (320, 320)) == [(320, 320)]
    # 448 serves both of these: with one canvas beside the whole, that leaves the least padding.
    assert choose_canvases([video, (1500, 1000), (1500, 1000)], count=2) == [(640, 448), (640, 640)]
    with pytest.raises(ConfigError, match="1 to 8, not 9"):
        choose_canvases([video], count=9)
    for wrong in ({"count": 2.5}, {"stride": 0}, {"stride": 16.5}):
        with pytest.raises(ConfigError, match=rf"{next(iter(wrong))} is a whole number from 1 to \d+, not "):
            choose_canvases([video], **wrong)


def test_a_border() -> None:
    spec = TensorSpec("images", np.dtype("float32"), ("batch", 3, "height", "width"))
    sizes = usual_canvases((640, 640), border=16)
    assert set(sizes) == {(640, 384), (640, 448), (640, 512), (384, 640), (448, 640), (512, 640), (640, 640)}
    several = Canvases(ImageInput(spec, (640, 640), "chw"), Preprocessor.letterbox, [*sizes, (640, 480)], 16)
    for size, canvas in (((640, 480), (640, 512)), ((1920, 1080), (640, 384)), ((1000, 740), (640, 512))):
        assert several.of(size).input.size == canvas
    assert several.of((640, 464)).input.size == (640, 480)  # 16 pixels are left


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_sizes_of_a_freed_model(tmp_path: Path, backend: str) -> None:
    pytest.importorskip(backend)
    ends = [value("images", [1, 3, 32, 48]), value("classes", [1, 3, 32, 48])]
    fixed = save(tmp_path / "fixed.onnx", [node("Relu", "images", "classes")], ends[:1], ends[1:])
    graph = open_graph(fixed)
    graph.apply(FreeSize(8))
    graph.save(path := tmp_path / "free.onnx")
    for size in ((48, 32), (16, 24), 8):
        with load(path, backend, type="segmentation", preset="unit", size=size) as model:
            assert model(np.zeros((9, 9, 3), np.uint8)).class_ids.shape == (9, 9)
    said = r"^free.onnx takes images up to 48 x 32, in multiples of 8, not {}; give size=\(48, 32\) or a smaller one$"
    for size, text in (((44, 32), "44 x 32"), ((48, 40), "48 x 40"), (None, "640 x 640")):
        with pytest.raises(ConfigError, match=said.format(text)):
            load(path, backend, type="segmentation", preset="unit", size=size)


# ---- batches ----


def test_grouped_items_keep_their_numbers_and_their_kind() -> None:
    rng = np.random.default_rng(0)
    numbers = rng.integers(0, 5, 200).tolist()
    read = 0

    def items() -> Any:
        nonlocal read
        for kind in numbers:
            read += 1
            yield kind

    found, sizes = dict[int, int](), list[int]()
    for kind, batch in grouped(items(), lambda item: item, 4):
        assert {item for _, item in batch} == {kind}
        sizes.append(len(batch))
        assert read - sum(sizes) <= MOST_WAITING * 4
        found |= dict(batch)
    assert found == dict(enumerate(numbers))
    assert max(sizes) == 4
    assert np.mean(sizes) > 3


def test_items_of_one_kind_wait_for_no_other_batch() -> None:
    assert [len(batch) for _, batch in grouped(iter("abcdefghi"), lambda item: None, 4)] == [4, 4, 1]


# ---- sizes without decoding ----


def test_image_size_is_that_of_the_image_that_is_read(tmp_path: Path) -> None:
    import io

    from PIL import Image

    for orientation, suffix in itertools.product((1, 6), ("jpg", "png", "tiff")):
        pil = Image.new("RGB", (60, 40))
        exif = pil.getexif()
        exif[0x0112] = orientation
        path = tmp_path / f"{orientation}.{suffix}"
        pil.save(path, exif=exif)
        data = path.read_bytes()
        encoded = (data, bytearray(data), memoryview(data), io.BytesIO(data))
        for source in (path, str(path), *encoded, Image.open(path), read_image(path)):
            assert image_size(source) == read_image(source).size == ((40, 60) if orientation == 6 else (60, 40))
    assert image_size(np.zeros((30, 20, 3), np.uint8)) == (20, 30)
    assert image_size(np.zeros((30, 20), np.uint8), "nv12") == (20, 20)
    for nothing in ("https://host/a.jpg", tmp_path / "none.jpg", b"no image", 5, None):
        assert image_size(nothing) is None


# ---- what is refused ----


def test_wrong_settings(tmp_path: Path, assets: Path) -> None:
    model = assets / "models" / "yolov8n.onnx"
    for name, setting in (("canvas_sizes", [(640, 384)]), ("canvas_border", 0)):
        with pytest.raises(ConfigError, match=f"{name} is for canvas='fit'; add that, or leave {name} out"):
            YOLOv8(model, **{name: setting})
    for size, words in (((640, 360), "640 x 360 has to be multiples of 32"), ((672, 640), "within 640 x 640")):
        with pytest.raises(ConfigError, match=words):
            YOLOv8(model, canvas="fit", canvas_sizes=[size])
    with pytest.raises(ConfigError, match=r"input is 640 x 640; it cannot be set to \(320, 320\)"):
        YOLOv8(model, canvas="fit", size=320)
    with pytest.raises(ConfigError, match="canvas='fit' is not for Classifier"):
        Classifier(assets / "models" / "squeezenet1.1.onnx", canvas="fit")
    with YOLOv8(model) as fixed, pytest.raises(UnsupportedModelError, match="free height and width.*640"):
        YOLOv8(fixed.network, canvas="fit")


def test_profiles_for_tensorrt(assets: Path) -> None:
    pytest.importorskip("tensorrt_rtx_bindings")
    plan = CanvasPlan.of(ModelSource.of(assets / "models" / "yolov8n.onnx"), None, 320, [(640, 384)])
    low, high = [1, 3, 384, 640], [4, 3, 384, 640]
    whole = {"min": [1, 3, 640, 640], "opt": [4, 3, 640, 640], "max": [4, 3, 640, 640]}
    expected = {"profiles": {"images": [{"min": low, "opt": high, "max": high}, whole]}}
    assert profiles(plan.source, "tensorrt-rtx", lambda _: plan.sizes, 4) == expected
    assert profiles(plan.source, "onnxruntime", lambda _: plan.sizes, 4) == {}


def test_a_profile_for_a_model_of_open_size(assets: Path) -> None:
    pytest.importorskip("tensorrt_rtx_bindings")
    faces = ModelSource.of(assets / "face" / "yunet_n_dynamic.onnx")
    wide = {"min": [1, 3, 96, 160], "opt": [4, 3, 96, 160], "max": [4, 3, 96, 160]}
    square = {"min": [1, 3, 64, 64], "opt": [1, 3, 64, 64], "max": [1, 3, 64, 64]}
    for asked, batch, expected in (((160, 96), 4, wide), (None, None, square)):
        found = profiles(faces, "tensorrt-rtx", lambda info, asked=asked: open_size(info, asked, 64), batch)
        assert found == {"profiles": {"input": [expected]}}
    assert profiles(faces, "onnxruntime", lambda info: open_size(info, None, 64), None) == {}
    detector = ModelSource.of(assets / "models" / "yolov8n.onnx")
    assert profiles(detector, "tensorrt-rtx", lambda info: open_size(info, None, 64), None) == {}


# ---- boxes ----


def rectangular_run(model: Path, frame: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """YOLOv8's boxes, scores and classes as Ultralytics finds them with `rect=True`: OpenCV, ONNX Runtime and NumPy.

    The model has the size of the letterboxed image, rounded up to multiples of 32.
    """
    import onnxruntime as ort

    height, width = frame.shape[:2]
    ratio = min(640 / height, 640 / width)
    unpadded = round(width * ratio), round(height * ratio)
    pad_x, pad_y = (640 - unpadded[0]) % 32 / 2, (640 - unpadded[1]) % 32 / 2
    image = frame if (width, height) == unpadded else cv2.resize(frame, unpadded, interpolation=cv2.INTER_LINEAR)
    top, bottom, left, right = (
        round(pad_y - 0.1), round(pad_y + 0.1), round(pad_x - 0.1), round(pad_x + 0.1)
    )  # fmt: skip
    image = cv2.copyMakeBorder(image, top, bottom, left, right, cv2.BORDER_CONSTANT, value=(114, 114, 114))
    blob = np.ascontiguousarray(image[:, :, ::-1].transpose(2, 0, 1)[None], np.float32) / 255
    resized = prepared_model(model, [ResizeInput(image.shape[1], image.shape[0])])
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(resized or str(model), options)
    output = session.run(None, {"images": blob})[0][0].T
    scores, classes = output[:, 4:].max(1), output[:, 4:].argmax(1)
    kept = scores > 0.25
    centre, size = output[kept, :2], output[kept, 2:4]
    boxes = np.hstack([centre - size / 2, centre + size / 2])
    scores, classes = scores[kept], classes[kept]
    chosen = np.asarray(
        cv2.dnn.NMSBoxes(
            np.hstack([boxes[:, :2] + 7680 * classes[:, None], size]).tolist(), scores.tolist(), 0.25, 0.45
        ),
        np.intp,
    ).reshape(-1)
    # By the scales of the resize, each axis its own; one ratio for both is up to half a pixel of rounding off.
    scales = np.tile([width / unpadded[0], height / unpadded[1]], 2)
    boxes = (boxes[chosen] - [left, top, left, top]) * scales
    return np.column_stack([np.clip(boxes, 0, [width, height, width, height]), scores[chosen], classes[chosen]])


@pytest.mark.assets
def test_boxes_are_those_of_a_rectangular_run(assets: Path) -> None:
    files = [*sorted((assets / "coco" / "val").glob("*.jpg"))[:3], *sorted((assets / "images").glob("*.jpg"))]
    model = assets / "models" / "yolov8n.onnx"
    frames = [np.ascontiguousarray(read_image(file).pixels[..., ::-1]) for file in files]
    exact = [frame for frame in frames if _is_exact(frame)]
    assert len(exact) >= 5
    expected = [rectangular_run(model, frame) for frame in exact]
    for backend in ("onnxruntime", *(["openvino"] if find_spec("openvino") else [])):
        with load(model, backend, canvas="fit", max_batch=2) as detector:
            assert isinstance(detector, YOLOv8)
            for found, boxes in zip(detector.stream(exact), expected, strict=True):
                assert len(found) == len(boxes)
                np.testing.assert_array_equal(found.class_ids, boxes[:, 5])
                np.testing.assert_allclose(found.scores, boxes[:, 4], atol=1e-3)
                np.testing.assert_allclose(found.xyxy, boxes[:, :4], atol=0.1)


def _is_exact(frame: np.ndarray[Any, Any]) -> bool:
    """Whether an image's canvas is the smallest of all multiples of 32."""
    size = frame.shape[1], frame.shape[0]
    resized = Geometry.letterbox(size, (640, 640)).resized
    assert resized is not None
    return all(side - own < 32 for side, own in zip(canvases().of(size).input.size, resized, strict=True))


def test_calls_streams_and_requests_find_the_same() -> None:
    image = read_image(IMAGE).pixels
    images = [np.ascontiguousarray(one) for one in (image, image[:, :400], image[:400], np.rot90(image), image)]
    sizes = [(320, 256), (256, 320)]
    with YOLOv5(DETECTOR, canvas="fit", canvas_sizes=sizes, max_batch=3, threads=1) as detector:
        assert detector.canvas_sizes_used == ((256, 320), (320, 256), (320, 320))
        detector.configure_pipeline(slots=6)  # a warm-up takes its time for each buffer
        single = [detector(one) for one in images]
        assert all(len(found) for found in single)
        for several in (list(detector.stream(images)), detector(images), list(detector.map(images))):
            for found, expected in zip(several, single, strict=True):
                np.testing.assert_array_equal(found.class_ids, expected.class_ids)
                np.testing.assert_allclose(found.xyxy, expected.xyxy, atol=0.05)
        stats = detector.pipeline.stats()
        assert stats.buckets == {"320x256": 3, "256x320": 1, "320x320": 1}
        detector.pipeline.warm_up()
        assert detector.pipeline.stats().buckets == stats.buckets  # a warm-up is not counted


@pytest.mark.slow
@pytest.mark.assets
@pytest.mark.parametrize(
    ("kind", "file", "iou", "reference"), [(YOLOv5, "yolov5n", 0.6, 0.307), (YOLOv8, "yolov8n", 0.7, 0.377)]
)
def test_map_on_coco(assets: Path, kind: type[YOLOv8], file: str, iou: float, reference: float) -> None:
    """On the whole canvas it is that of the original code, which stands in the README of the test data."""
    pytest.importorskip("pycocotools")
    settings: dict[str, Any] = {"conf": 0.001, "iou": iou, "multi_label": True, "max_det": 300, "max_batch": 4}
    path = assets / "models" / f"{file}.onnx"
    figures = {}
    for canvas in ("fixed", "fit"):
        with kind(path, canvas=canvas, **settings) as detector:
            figures[canvas] = coco_map(detector, assets / "coco")[0]
    print(f"\n{file}: mAP {figures}")
    assert figures["fixed"] == pytest.approx(reference, abs=0.002)
    assert figures["fit"] >= figures["fixed"] - 0.003
