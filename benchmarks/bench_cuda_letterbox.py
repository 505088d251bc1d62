"""The letterbox of a batch on the device, against CV-CUDA's and DALI's operators for the same work.

    pytest benchmarks/bench_cuda_letterbox.py -q -s         # pip install cvcuda-cu13 nvidia-dali-cuda130

32 frames of 1920 x 1080 on the device, BGR bytes, become 640 x 640 of RGB planes between 0 and 1. All rows are measured
in one run, with frames that rotate so that the cache does not hold them. `kernels` is the time of the kernels alone, as
torch's profiler counts it; `call` is the time that a caller sees, of many calls one after another. The
image that comes out is compared with ours, so that all are timed at the same work.
"""

from __future__ import annotations

import itertools
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from infersdk import Stream, Tensor, device_count
from infersdk.image import Geometry, PixelTransform, device_image_view
from infersdk.ops.device import preprocess_batch

if TYPE_CHECKING:
    from collections.abc import Callable

    #: By name: a call on the i-th frames, and the image that it makes of the first.
    Peers = dict[str, tuple[Callable[[int], Any], Callable[[], Any]]]

pytestmark = pytest.mark.skipif(device_count() == 0, reason="needs an NVIDIA GPU")
torch = pytest.importorskip("torch")

BATCH, HEIGHT, WIDTH, SIDE = 32, 1080, 1920, 640
INNER, TOP = 360, 140  # rows of the image in the square, and of the border above it
SETS = 4


@pytest.fixture(name="frames", scope="module")
def _frames() -> list[Any]:
    """Smooth images, so that different roundings of a sample's position show little."""
    coarse = torch.randint(0, 256, (BATCH, 3, 28, 48), dtype=torch.uint8, device="cuda").float()
    fine = torch.nn.functional.interpolate(coarse, (HEIGHT, WIDTH), mode="bilinear").permute(0, 2, 3, 1)
    return [(fine * (1 - i / 16)).to(torch.uint8).contiguous() for i in range(SETS)]


def kernels(run: Callable[[int], Any], calls: int = 20) -> float:
    """Microseconds of a call's kernels and copies on the device, by the profiler."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as seen:
        for i in range(calls):
            run(i % SETS)
        torch.cuda.synchronize()
    return sum(float(e.self_device_time_total) for e in seen.key_averages()) / calls


def called(run: Callable[[int], Any], calls: int = 200) -> float:
    """Microseconds a call, one after another, waited for at the end."""
    best = np.inf
    for _ in range(5):
        torch.cuda.synchronize()
        start = perf_counter()
        for i in range(calls):
            run(i % SETS)
        torch.cuda.synchronize()
        best = min(best, perf_counter() - start)
    return float(best) / calls * 1e6


def report(name: str, run: Callable[[int], Any], ours: tuple[float, float] | None = None) -> tuple[float, float]:
    for i in range(8):
        run(i % SETS)
    alone, whole = kernels(run), called(run)
    ratio = "" if ours is None else f"; ours takes {ours[0] / alone:.2f} and {ours[1] / whole:.2f} of that"
    print(f"    {name}: kernels {alone:.1f} us, call {whole:.1f} us{ratio}")
    return alone, whole


def ours_on(frames: list[Any]) -> tuple[Callable[[int], Any], Callable[[], Any]]:
    stream = Stream("cuda:0")
    transform = PixelTransform(dtype="float16")
    geometries = [Geometry.letterbox((WIDTH, HEIGHT), (SIDE, SIDE))] * BATCH
    images = [
        [device_image_view(f.data_ptr() + i * HEIGHT * WIDTH * 3, (WIDTH, HEIGHT), "bgr") for i in range(BATCH)]
        for f in frames
    ]
    outs = [Tensor((BATCH, 3, SIDE, SIDE), "float16", "cuda:0") for _ in range(SETS)]
    torch.cuda.synchronize()
    for out in outs:
        assert out.device_ptr(read=False, write=True, stream=stream)

    def run(i: int) -> None:
        preprocess_batch(images[i], geometries, transform, outs[i], stream=stream)

    def result() -> Any:
        run(0)
        stream.synchronize()
        return torch.from_numpy(outs[0].numpy().copy()).cuda().float()

    return run, result


def same_work(theirs: Any, ours: Any) -> None:
    """Their image is ours up to the rounding of positions and values; without the border, its inner part."""
    if theirs.dtype == torch.uint8:
        theirs = theirs / 255
    if theirs.shape[2] == INNER:
        ours = ours[:, :, TOP : TOP + INNER]
    apart = (theirs.float() - ours).abs()
    assert float(apart.mean()) < 0.5 / 255, float(apart.mean()) * 255
    assert float(apart.max()) < 8 / 255, float(apart.max()) * 255


def cvcuda_peers(frames: list[Any]) -> Peers:
    try:
        import cvcuda as cv
    except ImportError:
        return {}
    stream = cv.Stream()
    sources = [cv.as_tensor(f, "NHWC") for f in frames]
    interp, reverse = cv.Interp.LINEAR, cv.ChannelManip.REVERSE

    def fused(kind: Any) -> Callable[[int], Any]:
        return lambda i: cv.resize_crop_convert_reformat(
            sources[i], (SIDE, INNER), interp, cv.RectI(0, 0, SIDE, INNER), layout="NCHW", data_type=kind,
            manip=reverse, scale=1 if kind == cv.Type.U8 else 1 / 255, stream=stream,
        )  # fmt: skip

    def composed(i: int) -> Any:
        small = cv.resize(sources[i], (BATCH, INNER, SIDE, 3), interp, stream=stream)
        square = cv.copymakeborder(
            small, cv.Border.CONSTANT, [114.0, 114.0, 114.0], top=TOP, bottom=TOP, left=0, right=0, stream=stream
        )
        rgb = cv.cvtcolor(square, cv.ColorConversion.BGR2RGB, stream=stream)
        real = cv.convertto(rgb, np.float32, scale=1 / 255, offset=0.0, stream=stream)
        return cv.reformat(real, "NCHW", stream=stream)

    def image(run: Callable[[int], Any]) -> Callable[[], Any]:
        def result() -> Any:
            out = run(0)
            stream.sync()
            return torch.as_tensor(out.cuda(), device="cuda").clone()

        return result

    return {
        **{
            f"CV-CUDA, one operator ({name}, without the border)": (fused(kind), image(fused(kind)))
            for name, kind in (("float16", cv.Type.F16), ("float32", cv.Type.F32), ("uint8", cv.Type.U8))
        },
        "CV-CUDA, operator by operator (float32)": (composed, image(composed)),
    }


def dali_peers(frames: list[Any]) -> Peers:
    try:
        from nvidia.dali import fn, pipeline_def, types
    except ImportError:
        return {}

    next_frames = itertools.cycle(frames)

    @pipeline_def(batch_size=BATCH, num_threads=4, device_id=0, prefetch_queue_depth=2)
    def letterbox() -> Any:
        images = fn.external_source(
            source=lambda: next(next_frames), device="gpu", batch=True, no_copy=True, layout="HWC"
        )
        small = fn.resize(
            images, resize_x=SIDE, resize_y=INNER, interp_type=types.INTERP_LINEAR, antialias=False, device="gpu"
        )
        small = fn.color_space_conversion(small, image_type=types.BGR, output_type=types.RGB)
        return fn.crop_mirror_normalize(
            small, device="gpu", dtype=types.FLOAT16, output_layout="CHW", crop=(SIDE, SIDE),
            out_of_bounds_policy="pad", fill_values=114.0 / 255.0, mean=[0.0] * 3, std=[255.0] * 3,
        )  # fmt: skip

    pipe = letterbox()
    pipe.build()

    def run(_: int) -> Any:
        return pipe.run()

    def result() -> Any:
        """Of the first frames: nothing ran before."""
        (out,) = pipe.run()
        return torch.from_numpy(out.as_cpu().as_array()).cuda().float()

    return {"DALI, resize and crop_mirror_normalize (float16)": (run, result)}


def test_letterbox(frames: list[Any]) -> None:
    ours, our_image = ours_on(frames)
    print(f"\n{torch.cuda.get_device_name()}: {BATCH} x {WIDTH} x {HEIGHT} BGR -> {SIDE} x {SIDE}")
    mine = report("infersdk (float16)", ours)
    expected = our_image()
    peers = {**cvcuda_peers(frames), **dali_peers(frames)}
    if not peers:
        pytest.skip("neither CV-CUDA nor DALI is installed")
    for name, (run, image) in peers.items():
        same_work(image(), expected)
        report(name, run, mine)
