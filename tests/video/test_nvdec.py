"""Videos decoded on a GPU: the very pixels of the processor's decoder, through every codec and through Streams."""

from __future__ import annotations

import itertools
import zlib
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from infersdk import ModelGroup, models
from infersdk.core.stream import device_count
from infersdk.data import DETECTOR
from infersdk.errors import BackendUnavailableError, ConfigError, DeviceUnavailableError, ImageError, VideoError
from infersdk.video import DeviceVideoReader, Streams, VideoReader, VideoWriter, nvdec

if TYPE_CHECKING:
    from rtsp import RtspServer

av = pytest.importorskip("av")


def moving(path: Path, count: int, size: tuple[int, int] = (320, 240), **settings: Any) -> Path:
    """Coarse noise that moves, so that frames refer to one another."""
    rng = np.random.default_rng(len(path.name))
    blocks = rng.integers(0, 255, (size[1] // 8 + 1, size[0] // 8 + 1, 3), np.uint8)
    image = np.kron(blocks, np.ones((8, 8, 1), np.uint8))[: size[1], : size[0]]
    with VideoWriter(path, size, 25, **settings) as writer:
        for number in range(count):
            writer.write(np.roll(image, (3 * number, 5 * number), axis=(0, 1)))
    return path


# ---- on every machine ----


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigError, match="device 'cpu' decodes no video; use a CUDA device"):
        DeviceVideoReader("a.mp4", device="cpu")
    with pytest.raises(ConfigError, match="unknown decode 'tpu'; use 'cpu' or 'gpu'"):
        Streams(["a.mp4"], decode="tpu")
    with pytest.raises(ConfigError, match="gives frames in NV12, not 'rgb'; leave format out"):
        Streams(["a.mp4"], decode="gpu", format="rgb")


@pytest.mark.skipif(device_count() > 0, reason="this machine has a GPU")
def test_without_a_gpu(tmp_path: Path) -> None:
    path = moving(tmp_path / "a.mp4", 3)
    with pytest.raises(DeviceUnavailableError, match="this machine has 0 CUDA devices; use decode='cpu'"):
        DeviceVideoReader(path)
    with Streams([path], decode="gpu") as streams:
        (item,) = streams.run(Brightness())
    assert isinstance(item.error, DeviceUnavailableError)


def test_an_old_pyav(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvdec, "device_count", lambda: 1)
    monkeypatch.setattr(av, "__version__", "16.1.0")
    with pytest.raises(BackendUnavailableError, match=r"needs PyAV 17, and 16.1.0 is installed: pip install --upgrade"):
        DeviceVideoReader("a.mp4")


@pytest.mark.parametrize(("name", "settings"), [("a.mp4", {}), ("a.mov", {"options": {"bf": "0"}})])
def test_the_first_frame_shows_a_rotation(name: str, settings: dict[str, Any], tmp_path: Path) -> None:
    """One packet is enough, also where frames refer to later ones."""
    path = moving(tmp_path / name, 12, **settings)
    for degrees in (0, 90):
        rotated = path.with_stem(f"rotated-{degrees}")
        with av.open(str(path)) as source, av.open(str(rotated), "w") as target:
            stream = target.add_stream_from_template(source.streams.video[0])
            stream.set_display_rotation(degrees)
            for packet in source.demux(video=0):
                if packet.size:
                    packet.stream = stream
                    target.mux(packet)
        with VideoReader(rotated) as reader:
            assert reader.size == ((240, 320) if degrees else (320, 240))
        if degrees:
            with pytest.raises(
                VideoError, match=r"is rotated or mirrored by its metadata, and NV12 frames are not turned"
            ):
                VideoReader(rotated, format="nv12")
        with av.open(str(rotated)) as container:
            stream = container.streams.video[0]
            packet = next(container.demux(stream))
            if degrees:
                with pytest.raises(VideoError, match=r"'a.mp4' is rotated or mirrored .*; use decode='cpu'"):
                    nvdec._refuse_rotated(av, stream, packet, "a.mp4")
            else:
                assert nvdec._refuse_rotated(av, stream, packet, "a.mp4")
            assert packet.size > 0, "the GPU still gets the packet"


# ---- on a GPU ----


class Brightness:
    """A model that copies each frame home."""

    def submit(self, frame: Any, **parameters: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(frame.to_host().pixels if hasattr(frame, "to_host") else frame.pixels)
        return done


def assert_same_frames(path: Path, count: int | None = None) -> None:
    """The frames, times and numbers of both decoders are equal."""
    compared = 0
    with VideoReader(path, format="nv12") as expected, DeviceVideoReader(path) as reader:
        assert (reader.size, reader.fps, reader.frames, reader.live) == (
            expected.size, expected.fps, expected.frames, expected.live,
        )  # fmt: skip
        for ours, theirs in itertools.zip_longest(reader, expected):
            assert ours is not None, f"the GPU gives {compared} frames"
            assert theirs is not None, f"the GPU gives more than {compared} frames"
            assert (ours.number, ours.size, ours.format) == (theirs.number, theirs.size, "nv12")
            assert ours.time == pytest.approx(theirs.time, abs=1e-6)
            np.testing.assert_array_equal(ours.to_host().pixels, theirs.pixels, err_msg=f"frame {compared}")
            compared += 1
    assert compared == (count or compared) > 0


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("h264.mp4", {}), ("h264.ts", {}), ("h264.mkv", {"options": {"bf": "0", "preset": "veryfast"}}),
        ("hevc.mp4", {"codec": "libx265"}), ("vp9.webm", {}), ("vp8.webm", {"codec": "libvpx"}),
    ],
)  # fmt: skip
def test_the_pixels_of_the_processor(name: str, settings: dict[str, Any], tmp_path: Path) -> None:
    """Decoding is exact in these codecs."""
    try:
        path = moving(tmp_path / name, 30, **settings)
    except ConfigError as error:
        pytest.skip(str(error))
    assert_same_frames(path, 30)


@pytest.mark.gpu
def test_av1(tmp_path: Path) -> None:
    """Not every GPU decodes it."""
    try:
        path = moving(tmp_path / "a.mp4", 30, codec="libsvtav1")
    except ConfigError as error:
        pytest.skip(str(error))
    try:
        DeviceVideoReader(path).close()
    except VideoError:
        with pytest.raises(VideoError, match=r"cuda:0 does not decode '.*' \(av1\): .*; use decode='cpu'"):
            DeviceVideoReader(path)
    else:
        assert_same_frames(path, 30)


@pytest.mark.gpu
@pytest.mark.parametrize("size", [(64, 48), (1280, 718), (1920, 1080), (322, 242)])
def test_sizes(size: tuple[int, int], tmp_path: Path) -> None:
    """Also those that are no multiple of a codec's blocks."""
    assert_same_frames(moving(tmp_path / "a.mp4", 12, size), 12)


@pytest.mark.gpu
@pytest.mark.assets
@pytest.mark.parametrize("name", ["video/people.mp4", "driving/drive.mp4"])
def test_real_videos(name: str, assets: Path) -> None:
    assert_same_frames(assets / name)


@pytest.mark.gpu
def test_frames_stay_as_they_are_while_others_are_decoded(tmp_path: Path) -> None:
    """And their memory is used again afterwards: it does not grow with the video."""
    path = moving(tmp_path / "a.mp4", 60)
    with VideoReader(path, format="nv12") as reader:
        expected = [frame.pixels for frame in reader]
    with DeviceVideoReader(path) as reader:
        frames = list(reader)
    for frame, pixels in zip(frames, expected, strict=True):
        np.testing.assert_array_equal(frame.to_host().pixels, pixels)
    path = moving(tmp_path / "large.mp4", 100, (1280, 720))
    with DeviceVideoReader(path, prefetch=2) as reader:
        first = {next(reader)._decoded.address for _ in range(7)}
        later, in_use = set(), deque[Any](maxlen=3)
        for frame in reader:
            in_use.append(frame)
            later.add(frame._decoded.address)
    assert later <= first, "it takes all its memory for the first frames"


@pytest.mark.gpu
def test_pixels_of_ten_bits(tmp_path: Path) -> None:
    path = tmp_path / "a.mkv"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=10)
        stream.width, stream.height, stream.pix_fmt = 320, 240, "yuv420p10le"
        for _ in range(5):
            frame = av.VideoFrame.from_ndarray(np.zeros((240, 320, 3), np.uint8)).reformat(format="yuv420p10le")
            for packet in stream.encode(frame):
                container.mux(packet)
        for packet in stream.encode(None):
            container.mux(packet)
    with pytest.raises(VideoError, match=r"cuda:0 does not decode '.*' \(h264\): .*; use decode='cpu'"):
        DeviceVideoReader(path)


@pytest.mark.gpu
def test_a_damaged_file(tmp_path: Path) -> None:
    path = moving(tmp_path / "a.mkv", 200)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.warns(RuntimeWarning, match="is damaged: it ends after"), DeviceVideoReader(path) as reader:
        assert 20 < len(list(reader)) < 200
    (tmp_path / "text.mp4").write_text("no video")
    with pytest.raises(VideoError, match="cannot be opened as a video"):
        DeviceVideoReader(tmp_path / "text.mp4")


@pytest.mark.gpu
def test_a_codec_that_the_gpu_does_not_have(tmp_path: Path) -> None:
    with av.open(str(tmp_path / "a.mkv"), "w") as container:
        stream = container.add_stream("ffv1", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        frame = av.VideoFrame.from_ndarray(np.zeros((48, 64, 3), np.uint8))
        for packet in [*stream.encode(frame.reformat(format="yuv420p")), *stream.encode(None)]:
            container.mux(packet)
    with pytest.raises(VideoError, match="is in ffv1, which the GPU does not decode; use decode='cpu'"):
        DeviceVideoReader(tmp_path / "a.mkv")


@pytest.mark.gpu
@pytest.mark.assets
def test_eight_readers_of_large_frames_at_once(assets: Path, tmp_path: Path) -> None:
    """The copies of one reader hold back no other, and none of them is overtaken by the decoder."""
    with VideoReader(assets / "video" / "people.mp4") as reader, VideoWriter(tmp_path / "a.mp4", (1920, 1080), 30) as w:
        for frame in itertools.islice(reader, 90):
            w.write(Image.fromarray(frame.pixels).resize((1920, 1080)))
    with VideoReader(tmp_path / "a.mp4", format="nv12") as reader:
        expected = [zlib.crc32(frame.pixels) for frame in reader]

    def read(_: int) -> list[int]:
        with DeviceVideoReader(tmp_path / "a.mp4") as reader:
            return [zlib.crc32(frame.to_host().pixels) for frame in reader]

    with ThreadPoolExecutor(8) as threads:
        for sums in threads.map(read, range(8)):
            assert sums == expected


@pytest.mark.gpu
def test_a_camera(rtsp: RtspServer) -> None:
    numbers, times = [], []
    with Streams([rtsp.url], decode="gpu", options={"rtsp_transport": "tcp"}) as streams:
        for item in streams.run(Brightness()):
            assert item.error is None
            assert item.result.shape == (180, 160)
            numbers.append(item.frame.number)
            times.append(item.frame.time)
            if len(numbers) == 20:
                break
    assert numbers == sorted(set(numbers))
    assert times == sorted(set(times))


@pytest.mark.gpu
@pytest.mark.assets
def test_a_model_gives_what_it_gives_for_frames_of_the_host(assets: Path) -> None:
    """A frame that stays on the GPU has the same boxes; also in a group, where two models borrow it."""
    pytest.importorskip("tensorrt_rtx_bindings")
    path = assets / "video" / "people.mp4"
    steady: dict[str, Any] = {"kernel_specialization": "eager", "tf32": False, "exact_batches": []}
    settings = {"backend": "tensorrt-rtx", "max_batch": 8, **steady}  # each batch size runs the same kernels
    detector = models.load(assets / "models" / "yolov8n.onnx", **settings)
    pose = models.load(assets / "models" / "yolov8n-pose.onnx", **settings)
    with (
        ModelGroup(detector=detector, pose=pose) as group,
        VideoReader(path, format="nv12") as reader,
        DeviceVideoReader(path) as on_device,
    ):
        pairs = list(itertools.islice(zip(reader, on_device, strict=True), 64, 96))
        expected = list(detector.map([frame for frame, _ in pairs]))
        together = list(group.map([frame for _, frame in pairs]))
    assert sum(map(len, expected)) > 20
    for boxes, result in zip(expected, together, strict=True):
        np.testing.assert_array_equal(result["detector"].xyxy, boxes.xyxy)
        np.testing.assert_array_equal(result["detector"].scores, boxes.scores)
        assert len(result["pose"]) >= 0


@pytest.mark.gpu
def test_a_model_on_the_processor_refuses_it(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    with DeviceVideoReader(moving(tmp_path / "a.mp4", 3)) as reader, models.YOLOv5(DETECTOR) as model:
        frame = next(reader)
        with pytest.raises(ImageError, match=r"is on a GPU; load the model with device='cuda:0', or .* by to_host\(\)"):
            model(frame)
        assert model(frame.to_host()).size == (320, 240)


@pytest.mark.gpu
def test_a_decoder_is_used_again(tmp_path: Path) -> None:
    """Also in the middle of a video, and not for another one."""
    path, other = moving(tmp_path / "a.mp4", 30), moving(tmp_path / "other.mp4", 5, (640, 480))
    with VideoReader(path, format="nv12") as reader:
        expected = [frame.pixels for frame in reader]
    kept: list[Any] = []
    used = []
    for count in (30, 7, 30):
        with DeviceVideoReader(path, decoders=kept) as reader:
            frames = list(itertools.islice(reader, count))
        used += kept
        for frame, pixels in zip(frames, expected, strict=False):
            np.testing.assert_array_equal(frame.to_host().pixels, pixels)
    assert used == [used[0]] * 3
    with DeviceVideoReader(other, decoders=kept) as reader:
        assert next(reader).size == (640, 480)
    assert len(kept) == 1  # the one that does not fit is freed
    assert kept[0] is not used[0]
    with DeviceVideoReader(other, decoders=kept) as early, DeviceVideoReader(other, decoders=kept) as late:
        assert next(early).size == next(late).size == (640, 480)
    assert len(kept) == 1
