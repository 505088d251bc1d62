"""Native operations against the code that users write instead, on one thread; on a GPU against its memory.

Each contender has to give the same result before it is timed.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from infersdk.image import Geometry, PixelTransform
from infersdk.models import YOLOv5
from infersdk.ops import DetectionDecoder, assemble_masks, class_map, nms, preprocess, resample, topk

if TYPE_CHECKING:
    from pathlib import Path

    from rounds import Turns

cv2 = pytest.importorskip("cv2")
pytestmark = pytest.mark.usefixtures("one_thread")

Array = np.ndarray[Any, Any]
SIZES = {"1080p": (1920, 1080), "720p": (1280, 720), "810x1080": (810, 1080), "4k": (3840, 2160), "320x240": (320, 240)}
MEAN, STD = np.float32((0.485, 0.456, 0.406)), np.float32((0.229, 0.224, 0.225))
CONF, IOU = 0.25, 0.45


def noise(width: int, height: int, *planes: int) -> Array:
    return np.random.default_rng(1).integers(0, 256, (height, width, *planes), dtype=np.uint8)


# ---- preprocessing ----


def letterbox(image: Array, side: int = 640) -> Array:
    """YOLOv5's letterbox by OpenCV: BGR, uint8."""
    height, width = image.shape[:2]
    scale = min(side / height, side / width)
    new = round(width * scale), round(height * scale)
    dw, dh = (side - new[0]) / 2, (side - new[1]) / 2
    if (width, height) != new:
        image = cv2.resize(image, new, interpolation=cv2.INTER_LINEAR)
    top, bottom, left, right = round(dh - 0.1), round(dh + 0.1), round(dw - 0.1), round(dw + 0.1)
    return np.asarray(cv2.copyMakeBorder(image, top, bottom, left, right, cv2.BORDER_CONSTANT, value=(114, 114, 114)))


def letterbox_numpy(image: Array) -> Array:
    return np.ascontiguousarray(letterbox(image)[..., ::-1].transpose(2, 0, 1)).astype(np.float32) / 255


@pytest.mark.parametrize("size", SIZES)
def test_letterbox(size: str, turns: Turns) -> None:
    """To 3 x 640 x 640, float32, between 0 and 1."""
    image, transform = noise(*SIZES[size], 3), PixelTransform()
    geometry = Geometry.letterbox(SIZES[size], (640, 640))
    same = preprocess(image, geometry, PixelTransform("bgr", "hwc", "uint8", scale=1))
    np.testing.assert_array_equal(same, letterbox(image))
    contenders: dict[str, Callable[[], object]] = {
        "preprocess()": lambda: preprocess(image, geometry, transform),
        "OpenCV and NumPy": lambda: letterbox_numpy(image),
    }
    turns.times(contenders, calls=10)


def test_nv12(turns: Turns) -> None:
    image, geometry = noise(1920, 1620), Geometry.letterbox((1920, 1080), (640, 640))
    contenders: dict[str, Callable[[], Array]] = {
        "preprocess()": lambda: preprocess(image, geometry, PixelTransform(), format="nv12"),
        "OpenCV and NumPy": lambda: letterbox_numpy(cv2.cvtColor(image, cv2.COLOR_YUV2BGR_NV12)),
    }
    np.testing.assert_allclose(*(run() for run in contenders.values()), rtol=2e-7)
    turns.times(contenders, calls=10)


def test_resize_crop(turns: Turns) -> None:
    """A classifier's input: the shorter side to 256, the centre of 224 x 224, normalised."""
    image, geometry = noise(500, 375, 3), Geometry.resize_crop((500, 375), 256, (224, 224))
    transform = PixelTransform.normalize(tuple(MEAN.tolist()), tuple(STD.tolist()))

    def by_hand() -> Array:
        left, top = (-offset for offset in geometry.offset or (0, 0))
        resized = cv2.resize(image, geometry.resized)[top : top + 224, left : left + 224]
        return np.ascontiguousarray(((resized[..., ::-1].astype(np.float32) / 255 - MEAN) / STD).transpose(2, 0, 1))

    np.testing.assert_allclose(preprocess(image, geometry, transform), by_hand(), atol=2e-6)
    turns.times({"preprocess()": lambda: preprocess(image, geometry, transform), "OpenCV and NumPy": by_hand}, calls=20)


def test_bicubic(turns: Turns) -> None:
    """1920 x 1080 to the centre of 224 x 224 of 455 x 256."""
    from PIL import Image

    image, size, crop = noise(1920, 1080, 3), (455, 256), (115, 16, 339, 240)
    contenders: dict[str, Callable[[], Array]] = {
        "resample()": lambda: resample(image, size, crop=crop),
        "Pillow": lambda: np.asarray(Image.fromarray(image).resize(size, Image.Resampling.BICUBIC).crop(crop)),
    }
    np.testing.assert_array_equal(*(run() for run in contenders.values()))
    turns.times(contenders, calls=5)


# ---- boxes ----


def boxes_by_opencv(output: Array, conf: float, iou: float, multi_label: bool) -> Array:
    """NumPy and OpenCV's NMS, as deployment scripts have them: x1, y1, x2, y2, score, class."""
    if output.shape[0] == 84:
        x = output[:, output[4:].max(axis=0) > conf].T
        scores = x[:, 4:]
    else:
        x = output[output[:, 4] > conf]
        scores = x[:, 5:] * x[:, 4:5]
    boxes = x[:, :4].copy()
    boxes[:, :2] -= boxes[:, 2:] / 2
    if multi_label:
        rows, classes = np.nonzero(scores > conf)
        boxes, best = boxes[rows], scores[rows, classes]
    else:
        classes = scores.argmax(axis=1)
        best = scores[np.arange(len(x)), classes]
    kept = np.asarray(cv2.dnn.NMSBoxesBatched(boxes, best, classes.astype(np.int32), conf, iou), np.int64).ravel()[:300]
    boxes = boxes[kept]
    boxes[:, 2:] += boxes[:, :2]
    return np.concatenate([boxes, best[kept, None], classes[kept, None]], axis=1)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("conf", [0.25, 0.001])
@pytest.mark.parametrize("name", ["yolov5n", "yolov8n"])
def test_decode_and_nms(assets: Path, photograph: Array, name: str, conf: float, dtype: str, turns: Turns) -> None:
    """The outputs of a network for a photograph; a threshold of 0.001 is that of evaluations, with several labels."""
    ort = pytest.importorskip("onnxruntime")
    session = ort.InferenceSession(str(assets / "models" / f"{name}.onnx"), providers=["CPUExecutionProvider"])
    (output,) = session.run(None, {"images": letterbox_numpy(photograph)[None]})[0].astype(dtype)
    head, several, iou = name[:6], conf < 0.01, 0.45 if conf > 0.01 else 0.6
    canvas = Geometry.stretch((640, 640), (640, 640))
    with DetectionDecoder(head, 80, max(output.shape), conf=conf, iou=iou, multi_label=several, dtype=dtype) as decoder:
        contenders: dict[str, Callable[[], Any]] = {"DetectionDecoder": lambda: decoder(output, canvas)[0]}
        if dtype == "float32":
            contenders["NumPy and OpenCV"] = lambda: boxes_by_opencv(output, conf, iou, several)
            ours, theirs = (run() for run in contenders.values())
            assert len(ours) == len(theirs)
            np.testing.assert_allclose(theirs[:5, 4], ours["score"][:5], rtol=1e-5)
        turns.times(contenders, calls=20 if conf > 0.01 else 3)


def test_nms(turns: Turns) -> None:
    """10,000 boxes of one class."""
    rng = np.random.default_rng(0)
    center, half = rng.random((10000, 2)) * 640, rng.random((10000, 2)) * 50 + 2
    boxes = np.concatenate([center - half, center + half], axis=1).astype(np.float32)
    scores = rng.permutation(10000).astype(np.float32) / 10000 + np.float32(0.01)
    sides = np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], axis=1)
    contenders: dict[str, Callable[[], Any]] = {
        "nms()": lambda: nms(boxes, scores, iou=IOU),
        "OpenCV": lambda: cv2.dnn.NMSBoxes(sides, scores, 0.0, IOU),
    }
    assert abs(np.subtract(*(len(run()) for run in contenders.values()))) <= 5
    turns.times(contenders)


@pytest.mark.parametrize("image", ["images/bus.jpg", "images/zidane.jpg", "driving/frame_01.jpg"])
def test_around_the_engine(assets: Path, image: str, turns: Turns) -> None:
    """A call of YOLOv5n less the engine's own time, against letterbox, PyTorch and OpenCV's NMS."""
    torch, pixels = pytest.importorskip("torch"), cv2.imread(str(assets / image))
    # The network decodes its head for both.
    with YOLOv5(assets / "models" / "yolov5n.onnx", decode_head="graph") as model:
        result = model(pixels)
        output = next(iter(model.network.outputs.values())).numpy().copy()

        def by_hand() -> Array:
            planes = np.ascontiguousarray(letterbox(pixels)[..., ::-1].transpose(2, 0, 1))
            (torch.from_numpy(planes).float() / 255)[None].numpy()
            return boxes_by_opencv(output[0], CONF, IOU, False)

        def ours() -> float:
            """Calls a second, if the engine took no time."""
            model(pixels)
            return 1 / (model.timings.total - model.timings.infer)

        def theirs() -> float:
            start = perf_counter()
            by_hand()
            return 1 / (perf_counter() - start)

        assert len(by_hand()) == len(result)
        turns.rates({"model(array) less engine": ours, "OpenCV and PyTorch": theirs}, rounds=40, warm_up=3)


# ---- classes and masks ----


def test_topk(turns: Turns) -> None:
    """Softmax and the five best of 1,000."""
    x = np.random.default_rng(0).normal(0, 3, 1000).astype(np.float32)

    def by_numpy() -> Array:
        e = np.exp(x - x.max())
        best = np.argpartition(-(e / e.sum()), 5)[:5]
        return best[np.argsort(-e[best])]

    np.testing.assert_array_equal(topk(x, 5)[0], by_numpy())
    turns.times({"topk()": lambda: topk(x, 5), "NumPy": by_numpy}, calls=200)


@pytest.mark.parametrize(("classes", "points"), [(2, (640, 360)), (19, (256, 128)), (150, (128, 128))])
def test_class_map(classes: int, points: tuple[int, int], turns: Turns) -> None:
    """Scores of classes to the class of each pixel of 1920 x 1080."""
    coarse = np.random.default_rng(0).normal(0, 3, (classes, 8, 8)).astype(np.float32)
    scores, size = np.stack([cv2.resize(plane, points) for plane in coarse]), (1920, 1080)
    contenders: dict[str, Callable[[], Array]] = {
        "class_map()": lambda: class_map(scores, Geometry.stretch(size, points)),
        "OpenCV and NumPy": lambda: np.stack([cv2.resize(plane, size) for plane in scores]).argmax(0),
    }
    ours, theirs = (np.asarray(run()) for run in contenders.values())
    assert (ours != theirs).mean() < 1e-3
    turns.times(contenders)


def test_masks(turns: Turns) -> None:
    """The masks of 20 objects in a frame of 1920 x 1080, against OpenCV and NumPy."""
    rng, (width, height) = np.random.default_rng(0), (1920, 1080)
    coarse = rng.normal(0, 1, (32, 12, 12)).astype(np.float32)
    prototypes = np.stack([cv2.resize(plane, (160, 160), interpolation=cv2.INTER_CUBIC) for plane in coarse])
    coefficients, size = rng.normal(0, 1, (20, 32)).astype(np.float32), rng.uniform(0.1, 0.5, (20, 2)) * (width, height)
    corner = rng.uniform(0, 1, (20, 2)) * ((width, height) - size)
    boxes = np.hstack([corner, corner + size]).astype(np.float32)
    geometry = Geometry.letterbox((1920, 1080), (640, 640))
    (w, h), (left, top) = geometry.resized or (0, 0), geometry.offset or (0, 0)

    def by_opencv() -> Array:
        values = 1 / (1 + np.exp(-(coefficients @ prototypes.reshape(32, -1))))
        out = np.zeros((20, height, width), bool)
        for i, value in enumerate(values.reshape(-1, 160, 160)):
            canvas = cv2.resize(value, (640, 640), interpolation=cv2.INTER_LINEAR)[top : top + h, left : left + w]
            x1, y1, x2, y2 = np.ceil(boxes[i]).astype(int)
            out[i, y1:y2, x1:x2] = cv2.resize(canvas, (width, height))[y1:y2, x1:x2] > 0.5
        return out

    contenders = {
        "assemble_masks()": lambda: assemble_masks(prototypes, coefficients, boxes, geometry),
        "OpenCV": by_opencv,
    }
    expected = by_opencv()
    assert (np.stack(list(contenders["assemble_masks()"]())) != expected).sum() <= 0.01 * expected.sum()
    turns.times(contenders)


# ---- on a GPU ----


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "float32", "uint8"])
@pytest.mark.parametrize("pixels", ["bgr", "nv12"])
def test_letterbox_on_a_gpu(pixels: Any, dtype: str, turns: Turns) -> None:
    """32 frames of 1080p to 640 x 640 in one launch, against a copy of the bytes that it has to touch."""
    from infersdk import Stream, Tensor
    from infersdk.image import device_image_view
    from infersdk.ops.device import preprocess_batch

    torch, batch, stream = pytest.importorskip("torch"), 32, Stream("cuda:0")
    nbytes, geometry = int(1920 * 1080 * (3 if pixels == "bgr" else 1.5)), Geometry.letterbox((1920, 1080), (640, 640))
    transform = PixelTransform(dtype=dtype)
    source = torch.randint(0, 256, (batch * nbytes,), dtype=torch.uint8, device="cuda")
    images = [device_image_view(source.data_ptr() + i * nbytes, (1920, 1080), pixels) for i in range(batch)]
    out = Tensor((batch, *transform.shape(geometry)), dtype, "cuda:0")
    out.device_ptr(read=False, write=True, stream=stream)
    # A resize to 640 x 360 reads two rows of three.
    touched = torch.empty((batch * nbytes // 3 + out.nbytes) // 2, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(touched)

    def kernels() -> None:
        for _ in range(50):
            preprocess_batch(images, [geometry] * batch, transform, out, stream=stream)
        stream.synchronize()

    def copies() -> None:
        for _ in range(50):
            target.copy_(touched)
        torch.cuda.synchronize()

    turns.times({"50 launches": kernels, "50 copies": copies})


@pytest.mark.gpu
@pytest.mark.parametrize("conf", [0.25, 0.001])
@pytest.mark.parametrize("head", ["yolov5", "yolov8"])
def test_decode_and_nms_on_a_gpu(head: str, conf: float, turns: Turns) -> None:
    """32 images of which 100 anchors each are above 0.25, and 8,000 above 0.001."""
    from infersdk import Stream
    from infersdk.ops.device import DeviceDetectionDecoder

    torch, batch, stream, rng = pytest.importorskip("torch"), 32, Stream("cuda:0"), np.random.default_rng(5)
    anchors = 25200 if head == "yolov5" else 8400
    rows = np.exp(rng.normal(-8, 1, (8, anchors, 85))).clip(0, 0.2).astype(np.float32)
    rows[..., :4] = rng.uniform(10, 630, (8, anchors, 4))
    rows[:, :100, 4:6] = rng.uniform(0.6, 0.95, (8, 100, 2))
    if head == "yolov8":
        rows = np.ascontiguousarray(np.delete(rows, 4, axis=2).transpose(0, 2, 1))
    output = torch.from_numpy(rows).cuda().repeat(batch // 8, 1, 1)
    geometries = [Geometry.letterbox((1920, 1080), (640, 640))] * batch
    with (
        DetectionDecoder(head, 80, anchors, conf=conf, iou=IOU, multi_label=conf < 0.01) as host,
        DeviceDetectionDecoder(host, batch, "cuda:0") as device,
        device.block(batch) as block,
    ):

        def decode() -> None:
            device.run(output.data_ptr(), geometries, block, stream=stream)
            block.fetch(stream)
            stream.synchronize()

        decode()
        assert device.unpack(block.numpy(), 0)[1] == host(rows[0], geometries[0])[1]
        turns.times({"32 images": decode}, calls=50)
