"""The device's kernels against the roof of its memory, and against PyTorch doing the same.

    pytest benchmarks/bench_cuda_kernels.py -q -s

Each call is captured into a graph several times over, with buffers that rotate so that the cache does not hold them,
and timed by events; what is shown is the median of many launches, per call. Bytes are counted like this:

    touched   the rows of the sources that the resize reads at all (at 1080p to 640 x 360, every third one), in full
              and once; the output, once
    whole     every byte of the sources, once; the output, once

The roof is what a large copy on the same device reaches in the same run, counting bytes read and written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from infersdk import Tensor
from infersdk._lib import lib
from infersdk.image import Geometry, PixelTransform, device_image_view
from infersdk.ops.detection import DetectionDecoder
from infersdk.ops.device import DeviceDetectionDecoder, preprocess_batch, topk_rows
from infersdk.stream import CudaGraph, Event, Stream, device_count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

torch = pytest.importorskip("torch")
DEVICE = "cuda:0"
BATCH = 32
ENGINE_MS = 3.69  # of YOLOv5s, fp16, batch 32, that the detection is measured against


@pytest.fixture(name="stream", scope="module")
def _stream() -> Iterator[Stream]:
    if not lib.ifs_has_cuda() or not device_count():
        pytest.skip("no CUDA device, or a CPU-only build")
    with Stream(DEVICE) as stream:
        yield stream


def microseconds(stream: Stream, calls: list[Callable[[], object]], launches: int = 40) -> float:
    """The median time of one of `calls`, which are queued one after the other in one graph."""
    with (
        CudaGraph(stream, lambda: [call() for call in calls]) as graph,
        Event(DEVICE, timing=True) as start,
        Event(DEVICE, timing=True) as stop,
    ):
        times = []
        for i in range(launches + 5):
            start.record(stream)
            graph.launch(stream)
            stop.record(stream)
            stop.synchronize()
            if i >= 5:
                times.append(stop.milliseconds_since(start))
    return float(np.median(times)) * 1e3 / len(calls)


@pytest.fixture(name="roof", scope="module")
def _roof(stream: Stream) -> float:
    """Bytes a second that a copy of a gigabyte reads and writes."""
    source = torch.randint(0, 255, (2**30,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    times = []
    for i in range(25):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        target.copy_(source)
        stop.record()
        stop.synchronize()
        if i >= 5:
            times.append(start.elapsed_time(stop))
    roof = 2 * 2**30 / (float(np.median(times)) * 1e-3)
    print(f"\n{torch.cuda.get_device_name()}: a copy of 1 GiB moves {roof / 1e12:.2f} TB/s")
    return roof


# ---- preprocessing ----


def rows_read(geometry: Geometry) -> int:
    """How many rows of the source the resize reads."""
    (_, height), resized = geometry.source, geometry.resized
    assert resized is not None
    if (2 * resized[0], 2 * resized[1]) == geometry.source:
        return height
    at = ((np.arange(resized[1]) + 0.5) * (1.0 / (resized[1] / height)) - 0.5).astype(np.float32)
    first = np.floor(at)
    both = np.rint((at - first) * 2048) > 0
    rows = np.concatenate([first, (first + 1)[both]]).clip(0, height - 1)
    return len(np.unique(rows))


SIZES: dict[str, list[tuple[int, int]]] = {
    "1080p": [(1920, 1080)],
    "720p": [(1280, 720)],
    "1200 x 800": [(1200, 800)],
    "mixed": [(1920, 1080), (1280, 720), (810, 1080), (500, 375), (640, 480), (2560, 1440), (1024, 768), (333, 1000)],
}


@pytest.mark.parametrize("dtype", ["float16", "float32", "uint8"])
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("pixels", ["bgr", "bgra", "nv12"])
def test_letterbox(stream: Stream, roof: float, sizes: str, pixels: Any, dtype: str) -> None:
    if (pixels != "bgr" or dtype != "float16") and sizes != "1080p":
        pytest.skip("the usual case only")
    each = (SIZES[sizes] * BATCH)[:BATCH]
    transform = PixelTransform(dtype=dtype)
    geometries = [Geometry.letterbox(size, (640, 640)) for size in each]
    per_pixel = {"bgr": 3.0, "bgra": 4.0, "nv12": 1.5}[pixels]
    nbytes = [int(w * h * per_pixel) for w, h in each]
    written = BATCH * lib.ifs_preprocess_nbytes(geometries[0]._c, transform._c)
    touched = written + sum(n * rows_read(g) / g.source[1] for n, g in zip(nbytes, geometries, strict=True))
    whole = written + sum(nbytes)

    sets = 4
    piles = [torch.randint(0, 256, (sum(nbytes),), dtype=torch.uint8, device="cuda") for _ in range(sets)]
    outs = [Tensor((BATCH, *transform.shape(geometries[0])), dtype, DEVICE) for _ in range(sets)]
    starts = np.cumsum([0, *nbytes])[:-1].tolist()
    batches = [
        [device_image_view(pile.data_ptr() + at, size, pixels) for at, size in zip(starts, each, strict=True)]
        for pile in piles
    ]
    torch.cuda.synchronize()
    for out in outs:
        assert out.device_ptr(read=False, write=True, stream=stream)
    time = microseconds(
        stream,
        [
            lambda images=images, out=out: preprocess_batch(images, geometries, transform, out, stream=stream)
            for images, out in zip(batches, outs, strict=True)
        ],
    )
    at_best = [count / roof * 1e6 for count in (touched, whole)]
    print(
        f"\nletterbox {BATCH} x {sizes} {pixels} -> 640 {dtype}: {time:.1f} us; "
        f"roof {at_best[0]:.1f} us by touched rows ({touched / 1e6:.0f} MB): {at_best[0] / time:.0%}; "
        f"{at_best[1]:.1f} us by whole images: {at_best[1] / time:.0%}"
    )
    if (sizes, pixels, dtype) == ("1080p", "bgr", "float16"):
        frames = [pile.view(BATCH, 1080, 1920, 3) for pile in piles]

        def usual() -> Any:
            x = frames[0].permute(0, 3, 1, 2).flip(1).half()
            x = torch.nn.functional.interpolate(x, (360, 640), mode="bilinear")
            return torch.nn.functional.pad(x, (0, 0, 140, 140), value=114) / 255

        print(f"    the same in PyTorch (other roundings): {torch_microseconds(usual):.0f} us")


def torch_microseconds(function: Callable[[], Any]) -> float:
    times = []
    for i in range(15):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        function()
        stop.record()
        stop.synchronize()
        if i >= 5:
            times.append(start.elapsed_time(stop) * 1e3)
    return float(np.median(times))


# ---- detection ----


def realistic_outputs(rng: np.random.Generator, n: int, num_classes: int = 80) -> np.ndarray:
    """What YOLOv5 gives at 640 x 640, in its statistics: about 100 anchors of a dozen objects above 0.25, lying in
    clusters on the grids, over a background whose objectness falls off log-normally."""
    cells = [(3 * (640 // s) ** 2, 640 // s, s) for s in (8, 16, 32)]
    total = sum(count for count, _, _ in cells)
    out = np.empty((n, total, 5 + num_classes), np.float32)
    for image in out:
        image[:, 4] = np.exp(rng.normal(-10.5, 2.0, total)).clip(0, 0.2)
        image[:, 5:] = np.exp(rng.normal(-5.5, 1.2, (total, num_classes))).clip(0, 0.9)
        start = 0
        for count, grid, stride in cells:
            cell = np.arange(count) % (grid * grid)
            image[start : start + count, 0] = (cell % grid + rng.uniform(-0.5, 1.5, count)) * stride
            image[start : start + count, 1] = (cell // grid + rng.uniform(-0.5, 1.5, count)) * stride
            image[start : start + count, 2:4] = np.exp(rng.normal(1.0, 0.6, (count, 2))) * stride
            start += count
        for _ in range(12):
            level = int(rng.integers(3))
            start = sum(count for count, _, _ in cells[:level])
            _, grid, stride = cells[level]
            x, y = rng.uniform(40, 600, 2)
            size = np.exp(rng.normal(1.2, 0.3, 2)) * stride
            kind, best = int(rng.choice([0, 0, 0, *range(num_classes)])), rng.uniform(0.5, 0.95)
            for dy in (-1, 0, 1):
                for dx in (-1, 0, 1):
                    for anchor in range(3):
                        row, column = int(y / stride) + dy, int(x / stride) + dx
                        if not (0 <= row < grid and 0 <= column < grid) or rng.random() < 0.6:
                            continue
                        at = image[start + (anchor * grid + row) * grid + column]
                        at[:2] = np.array([x, y]) + rng.normal(0, 0.06, 2) * size
                        at[2:4] = size * np.exp(rng.normal(0, 0.06, 2))
                        at[4] = best * rng.uniform(0.6, 1)
                        at[5 + kind] = rng.uniform(0.7, 0.98)
    return out


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("head", ["yolov5", "yolov8"])
@pytest.mark.parametrize(("conf", "multi_label"), [(0.25, False), (0.001, True)])
@pytest.mark.parametrize("batch", [1, BATCH])
def test_detect(stream: Stream, roof: float, head: str, conf: float, multi_label: bool, dtype: str, batch: int) -> None:
    few = realistic_outputs(np.random.default_rng(5), 8)
    anchors = 25200
    if head == "yolov8":  # the same boxes, and as many as that head has
        anchors = 8400
        few[..., 5:] *= few[..., 4:5]
        few = np.ascontiguousarray(np.delete(few[:, :anchors], 4, axis=2).transpose(0, 2, 1))
    few = few.astype(dtype)
    sets = 3
    outputs = [torch.from_numpy(few).cuda().repeat(-(-batch // 8), 1, 1)[:batch].contiguous() for _ in range(sets)]
    geometries = [Geometry.letterbox((1920, 1080), (640, 640))] * batch
    torch.cuda.synchronize()
    with (
        DetectionDecoder(head, 80, anchors, conf=conf, iou=0.45, multi_label=multi_label, dtype=dtype) as host,
        DeviceDetectionDecoder(host, batch, DEVICE) as device,
        device.block(batch) as block,
    ):
        device.run(outputs[0].data_ptr(), geometries, block, stream=stream)
        block.fetch(stream)
        stats = [device.unpack(block.numpy(), i)[1] for i in range(batch)]
        expected = [host(few[i], geometries[i])[1] for i in range(min(8, batch))]
        assert stats[:8] == expected
        result, kept = (np.mean([s[i] for s in stats]) for i in (0, 2))
        time = microseconds(
            stream, [lambda o=o: device.run(o.data_ptr(), geometries, block, stream=stream) for o in outputs]
        )
        read = outputs[0].nbytes if head == "yolov8" else batch * anchors * 32
        print(
            f"\ndetect {batch} x {head} {dtype} conf {conf}{' multi-label' if multi_label else ''}: {time:.1f} us "
            f"({result:.0f} candidates, {kept:.0f} kept an image; workspace {device.nbytes / 1e6:.0f} MB); "
            f"reading {read / 1e6:.0f} MB takes {read / roof * 1e6:.1f} us; "
            f"{time / ENGINE_MS / 10:.1f}% of {ENGINE_MS} ms"
        )


def test_topk(stream: Stream) -> None:
    scores = Tensor.wrap(np.random.default_rng(1).normal(0, 3, (256, 1000)).astype(np.float32), DEVICE)
    ids, best = Tensor((256, 5), "int32", DEVICE), Tensor((256, 5), "float32", DEVICE)
    for tensor in (ids, best):
        assert tensor.device_ptr(read=False, write=True, stream=stream)
    assert scores.device_ptr()
    time = microseconds(stream, [lambda: topk_rows(scores, 5, ids, best, stream=stream)] * 4)
    rows = torch.from_numpy(scores.numpy().copy()).cuda()
    usual = torch_microseconds(lambda: torch.topk(torch.softmax(rows, 1), 5))
    print(f"\nsoftmax and top-5 of 256 x 1000: {time:.1f} us; in PyTorch {usual:.1f} us")
