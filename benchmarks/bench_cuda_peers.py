"""From page-locked frames to boxes on the GPU, against pipelines of NVIDIA's and Microsoft's parts.

32 frames of 1920 x 1080 become boxes in host memory, again and again, on yolov5s in FP16:

- `dali`: DALI's pipeline (copy in, resize, normalise, border; three batches prefetched) in front of the same engine;
- `cvcuda`: CV-CUDA's fused operator in front of the same engine;
- `onnxruntime`: ONNX Runtime's CUDA provider with bound tensors, a session a stream, and PyTorch on the same stream.

Each has three batches in flight on three streams. Behind the engine all of them use torchvision's NMS once for a whole
batch, and copy the boxes to the host once. Before anything is timed, each has to give our boxes on a photograph.

`pip install cvcuda-cu13 nvidia-dali-cuda130 onnxruntime-gpu`; a peer that is not installed is skipped.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from bench_cuda import HALF, SETTINGS, detector, endless, frames_of
from rounds import Turns, rate

from infersdk import load
from infersdk.graph.passes import ToFloat16, prepared_model
from infersdk.image import read_image
from infersdk.models import YOLOv5
from infersdk.models.results.agreement import overlaps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import numpy.typing as npt

    from infersdk import Infer

    Boxes = npt.NDArray[np.float32]  # (n, 6): corners in the frame's pixels, score, class

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch")
torchvision_ops = pytest.importorskip("torchvision.ops")

BATCH, HEIGHT, WIDTH, SIDE = 32, 1080, 1920, 640
INNER, TOP = 360, 140  # rows of the image in the square, and of the border above it
SCALE = WIDTH / SIDE
CONF, IOU, LIMIT = 0.25, 0.45, 300
IN_FLIGHT = 3


# ---- what all peers share ----


class Slot:
    """A batch under way: its stream, the engine's input on the device, and the engine's output once it has run.

    Attributes:
        stream: torch's view of the stream that all of this batch is queued on.
        input: (32, 3, 640, 640) of float16 on the device, with the border's gray wherever nothing else is written.
    """

    def __init__(self, stream: Any, network_input: Any, run: Callable[[], None], output: Callable[[], Any]) -> None:
        self.stream, self.input, self.run, self.output = stream, network_input, run, output
        with torch.cuda.stream(stream):
            network_input.fill_(114 / 255)
        stream.synchronize()


class Peer(ABC):
    """Batches on several streams, each queued without a wait: a batch is collected when its slot is needed again."""

    def __init__(self, slots: list[Slot]) -> None:
        self.slots = slots

    @abstractmethod
    def prepare(self, slot: Slot, frames: list[Any]) -> None:
        """Queues the copies and the preprocessing of 32 frames into the slot's input, on its stream."""

    def detect(self, frames: list[Any], batches: int) -> Iterator[list[Boxes]]:
        """The boxes of each frame, batch by batch."""
        in_flight: deque[Slot] = deque()
        for i in range(batches):
            if len(in_flight) == len(self.slots):
                yield self.collect(in_flight.popleft())
            slot = self.slots[i % len(self.slots)]
            self.prepare(slot, frames)
            with torch.cuda.stream(slot.stream):
                slot.run()
            in_flight.append(slot)
        while in_flight:
            yield self.collect(in_flight.popleft())

    def collect(self, slot: Slot) -> list[Boxes]:
        """Decodes, suppresses with one NMS over the whole batch, and copies the boxes to the host once."""
        with torch.cuda.stream(slot.stream):
            output = slot.output()
            image, row = (output[..., 4] > CONF).nonzero(as_tuple=True)
            rows = output[image, row].float()
            score, kind = (rows[:, 5:] * rows[:, 4:5]).max(1)
            keep = score > CONF
            rows, score, kind, image = rows[keep], score[keep], kind[keep], image[keep]
            half = rows[:, 2:4] / 2
            corners = torch.cat([rows[:, :2] - half, rows[:, :2] + half], 1)
            # Boxes of another image or class never suppress each other: each pair lies in a square of its own, as
            # batched_nms() does it for few boxes. For many it would loop over all pairs. In float64 nothing is rounded.
            apart = ((image * 80 + kind) * 4 * SIDE).double()
            kept = torchvision_ops.nms(corners.double() + apart[:, None], score.double(), IOU)
            result = torch.cat([corners * SCALE, score[:, None], kind[:, None].float(), image[:, None].float()], 1)
            on_host = result[kept].cpu().numpy()
        on_host[:, [1, 3]] -= TOP * SCALE
        on_host = on_host[np.argsort(on_host[:, 6], kind="stable")]  # image by image, and the best first as before
        ends = np.searchsorted(on_host[:, 6], np.arange(1, BATCH))
        return [part[:LIMIT, :6] for part in np.split(on_host, ends)]


def engine_slots(path: Path, stack: ExitStack) -> list[Slot]:
    """Slots over the engine that ours runs too: a context and a stream for each batch under way."""
    first = stack.enter_context(load(path, **SETTINGS, **HALF, max_batch=BATCH))
    contexts = [first, *(stack.enter_context(first.clone()) for _ in range(IN_FLIGHT - 1))]
    return [engine_slot(infer) for infer in contexts]


def engine_slot(infer: Infer) -> Slot:
    (bound,) = infer.inputs.values()
    bound.resize((BATCH, 3, SIDE, SIDE))
    assert infer.stream is not None
    assert bound.dtype == np.float16, "half_io gives the engine float16 inputs"
    stream = torch.cuda.ExternalStream(infer.stream.handle)
    view = torch.as_tensor(bound, device="cuda")

    outputs: list[Any] = []

    def run() -> None:
        bound.device_ptr(read=False, write=True, stream=infer.stream)  # the device's side is the newer one
        infer.enqueue()
        if not outputs:  # its memory stays where it is
            (tensor,) = infer.outputs.values()
            outputs.append(torch.as_tensor(tensor, device="cuda"))

    return Slot(stream, view, run, lambda: outputs[0])


# ---- the peers ----


class Dali(Peer):
    """DALI's pipeline, which prefetches on threads and a stream of its own."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self._dali = pytest.importorskip("nvidia.dali", reason="pip install nvidia-dali-cuda130")
        super().__init__(engine_slots(path, stack))
        self._frames: list[Any] = []
        self._pipe = self._build()
        self._copied: Any = None

    def _build(self) -> Any:
        from nvidia.dali import fn, pipeline_def, types

        @pipeline_def(batch_size=BATCH, num_threads=8, device_id=0, prefetch_queue_depth=3)
        def letterbox() -> Any:
            images = fn.external_source(
                source=lambda: self._frames, device="cpu", batch=True, no_copy=True, layout="HWC"
            ).gpu()
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
        return pipe

    def prepare(self, slot: Slot, frames: list[Any]) -> None:
        import ctypes

        if self._frames is not frames:  # the prefetched frames are different
            self._frames = frames
            self._pipe = self._build()
            self._copied = None
        if self._copied is not None:
            self._copied.synchronize()  # the next run may write where this copy reads
        (out,) = self._pipe.run()
        out.as_tensor().copy_to_external(
            ctypes.c_void_p(slot.input.data_ptr()), ctypes.c_void_p(slot.stream.cuda_stream), non_blocking=True
        )
        self._copied = torch.cuda.Event()
        self._copied.record(slot.stream)


class OnDevice(Peer):
    """Frames are copied to the device, each batch on its own stream, and prepared there."""

    def __init__(self, slots: list[Slot]) -> None:
        super().__init__(slots)
        shape = (BATCH, HEIGHT, WIDTH, 3)
        self._device = {id(slot): torch.empty(shape, dtype=torch.uint8, device="cuda") for slot in slots}

    def copied(self, slot: Slot, frames: list[Any]) -> Any:
        """The frames on the device, queued; the memory is page-locked, so the host does not wait."""
        target = self._device[id(slot)]
        with torch.cuda.stream(slot.stream):
            for row, frame in zip(target, frames, strict=True):
                row.copy_(torch.from_numpy(frame), non_blocking=True)
        return target


class CvCuda(OnDevice):
    """CV-CUDA's fused operator: resize, colour, type and layout in one kernel."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self._cv = pytest.importorskip("cvcuda", reason="pip install cvcuda-cu13")
        super().__init__(engine_slots(path, stack))
        self._small = {
            id(slot): torch.empty((BATCH, 3, INNER, SIDE), dtype=torch.float16, device="cuda") for slot in self.slots
        }
        self._streams = {id(slot): self._cv.as_stream(slot.stream.cuda_stream) for slot in self.slots}

    def prepare(self, slot: Slot, frames: list[Any]) -> None:
        cv, source, small = self._cv, self.copied(slot, frames), self._small[id(slot)]
        with torch.cuda.stream(slot.stream):
            cv.resize_crop_convert_reformat_into(
                cv.as_tensor(small, "NCHW"), cv.as_tensor(source, "NHWC"), (SIDE, INNER), cv.Interp.LINEAR, (0, 0),
                manip=cv.ChannelManip.REVERSE, scale=1 / 255, stream=self._streams[id(slot)],
            )  # fmt: skip
            slot.input[:, :, TOP : TOP + INNER] = small


class OrtCuda(OnDevice):
    """ONNX Runtime's CUDA provider, bound; a session a stream, and torch's bilinear resize on the same stream."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self._ort = ort = pytest.importorskip("onnxruntime", reason="pip install onnxruntime-gpu")
        if "CUDAExecutionProvider" not in ort.get_available_providers():
            pytest.skip("this ONNX Runtime has no CUDA provider: pip install onnxruntime-gpu")
        if hasattr(ort, "preload_dlls"):
            ort.preload_dlls()
        model = prepared_model(path, [ToFloat16(keep_io=False)])
        assert model is not None
        super().__init__([self._slot(model) for _ in range(IN_FLIGHT)])

    def _slot(self, model: bytes) -> Slot:
        ort, stream = self._ort, torch.cuda.Stream()
        provider = {"device_id": 0, "user_compute_stream": str(stream.cuda_stream)}
        session = ort.InferenceSession(model, providers=[("CUDAExecutionProvider", provider)])
        assert session.get_providers()[0] == "CUDAExecutionProvider"
        (node,), (out, *_) = session.get_inputs(), session.get_outputs()
        view = torch.empty((BATCH, 3, SIDE, SIDE), dtype=torch.float16, device="cuda")
        result = torch.empty((BATCH, 25200, 85), dtype=torch.float16, device="cuda")
        binding = session.io_binding()
        binding.bind_input(node.name, "cuda", 0, np.float16, tuple(view.shape), view.data_ptr())
        binding.bind_output(out.name, "cuda", 0, np.float16, tuple(result.shape), result.data_ptr())
        options = ort.RunOptions()
        options.add_run_config_entry("disable_synchronize_execution_providers", "1")
        return Slot(stream, view, lambda: session.run_with_iobinding(binding, options), lambda: result)

    def prepare(self, slot: Slot, frames: list[Any]) -> None:
        source = self.copied(slot, frames)
        with torch.cuda.stream(slot.stream):
            planes = source.permute(0, 3, 1, 2).half()
            small = torch.nn.functional.interpolate(planes, (INNER, SIDE), mode="bilinear", align_corners=False)
            slot.input[:, :, TOP : TOP + INNER] = small.flip(1) / 255


PEERS: dict[str, Callable[[Path, ExitStack], Peer]] = {"dali": Dali, "cvcuda": CvCuda, "onnxruntime": OrtCuda}


# ---- the comparison ----


def photographs(assets: Path) -> list[Any]:
    """A photograph in frames of 1080p, at another place in each."""
    photograph = np.ascontiguousarray(read_image(assets / "images" / "bus.jpg").pixels[..., ::-1])
    frames = frames_of("page-locked")
    for i, frame in enumerate(frames):
        frame[:] = 114
        left = i * (WIDTH - photograph.shape[1]) // BATCH
        frame[: photograph.shape[0], left : left + photograph.shape[1]] = photograph[:HEIGHT]
    return frames


def assert_same_boxes(ours: Boxes, theirs: Boxes) -> None:
    """Each clear box of either has one of the same class in the other, with an IoU above 0.85."""
    for some, others in ((ours, theirs), (theirs, ours)):
        for box in some[some[:, 4] > CONF + 0.1]:
            same = others[others[:, 5] == box[5]]
            ious = overlaps(box[None, :4], same[:, :4])
            assert ious.max(initial=0) > 0.85, f"no box of class {box[5]:.0f} at {box[:4]}"


@pytest.mark.parametrize("name", PEERS)
def test_the_same_boxes(assets: Path, name: str) -> None:
    path, frames = assets / "models" / "yolov5n.onnx", photographs(assets)
    with ExitStack() as stack:
        peer = PEERS[name](path, stack)
        model = stack.enter_context(YOLOv5(path, **SETTINGS, **HALF, max_batch=BATCH))
        ours = [np.column_stack([result.xyxy, result.scores, result.class_ids]) for result in model(frames)]
        for theirs in peer.detect(frames, IN_FLIGHT + 2):  # each slot, and some of them again
            assert sum(map(len, theirs)) >= 3 * BATCH
            for mine, other in zip(ours, theirs, strict=True):
                assert_same_boxes(mine, other)


@pytest.mark.parametrize("name", PEERS)
def test_frames_to_boxes(assets: Path, name: str, turns: Turns) -> None:
    frames = frames_of("page-locked")
    with ExitStack() as stack:
        peer = PEERS[name](assets / "models" / "yolov5s-random.onnx", stack)
        model = stack.enter_context(detector(assets))
        model.warm_up(example=frames[0])

        def theirs() -> float:
            return rate(lambda: list(peer.detect(frames, 20)), 20 * BATCH)

        turns.rates({"stream()": lambda: endless(model.stream, frames), name: theirs})
