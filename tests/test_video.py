"""Videos in and out, with real files that are made here: what goes in comes out, also when something is broken."""

from __future__ import annotations

import io
import itertools
import os
import socket
import struct
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from fractions import Fraction
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from waiting import free_port, together, until
from web import served

from infersdk.core.prefetch import NoItemError
from infersdk.errors import (
    BackendUnavailableError,
    ClosedError,
    ConfigError,
    InputError,
    OutOfMemoryError,
    OutputError,
    ShapeError,
    VideoError,
)
from infersdk.image import HostImage, read_image
from infersdk.video import Frame, Prefetch, VideoReader, VideoWriter, nvdec, paired

av = pytest.importorskip("av")


def image(number: int, size: tuple[int, int] = (64, 48)) -> np.ndarray[Any, Any]:
    """An RGB image whose brightness tells its number, from 0 to 19, after any encoding."""
    return np.full((size[1], size[0], 3), 20 + 11 * number, np.uint8)


def number_of(frame: HostImage) -> int:
    return round((float(frame.pixels.mean()) - 20) / 11)


def write(path: Path, count: int = 20, size: tuple[int, int] = (64, 48), **options: Any) -> Path:
    with VideoWriter(path, size, 10, **options) as writer:
        for number in range(count):
            writer.write(image(number % 20, size), channel_order="rgb")
    return path


def noisy(path: Path, count: int = 60) -> Path:
    """Frames of noise, each of some kilobytes: damage hits where it is meant to."""
    random = np.random.default_rng(0)
    with VideoWriter(path, (64, 48), 10) as writer:
        for _ in range(count):
            writer.write(random.integers(0, 255, (48, 64, 3), np.uint8))
    return path


# ---- round trips ----


@pytest.mark.parametrize("suffix", [".mp4", ".mov", ".m4v", ".mkv", ".ts", ".avi", ".webm"])
def test_what_is_written_is_read(suffix: str, tmp_path: Path) -> None:
    path = write(tmp_path / "sub" / f"a{suffix}")
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    with VideoReader(path) as reader:
        assert reader.size == (64, 48)
        assert reader.fps == pytest.approx(10)
        assert reader.frames == 20
        assert reader.duration == pytest.approx(2, abs=0.11)
        assert not reader.live
        assert "64 x 48, 10 fps" in repr(reader)
        frames = list(reader)
        assert reader.dropped == 0
    assert [frame.number for frame in frames] == list(range(20))
    assert [number_of(frame) for frame in frames] == list(range(20))
    np.testing.assert_allclose([frame.time for frame in frames], np.arange(20) / 10, atol=2e-3)
    assert all(isinstance(frame, HostImage) and frame.format == "rgb" for frame in frames)


@pytest.mark.parametrize("height", [48, 720])
@pytest.mark.parametrize("codec", [None, "mpeg4", "mjpeg"])
def test_colours_come_back(height: int, codec: str | None, tmp_path: Path) -> None:
    # Also those of HD, which has another matrix; saturated ones lose most on the way.
    colours = [(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 0), (128, 128, 128), (0, 0, 0), (255, 255, 255)]
    with VideoWriter(tmp_path / "a.mp4", (64, height), codec=codec) as writer:
        for colour in colours:
            writer.write(Image.new("RGB", (64, height), colour))
    for order in ("rgb", "bgr"):
        with VideoReader(tmp_path / "a.mp4", format=order) as reader:
            for frame, colour in zip(reader, colours, strict=True):
                got = frame.pixels if order == "rgb" else frame.pixels[:, :, ::-1]
                np.testing.assert_allclose(got.reshape(-1, 3).mean(0), colour, atol=6)


def test_both_channel_orders_are_written_alike(tmp_path: Path) -> None:
    colours = [(255, 255, 255), (64, 64, 64), (255, 0, 0), (0, 0, 255), (200, 60, 30)]
    for order, step in (("rgb", 1), ("bgr", -1)):
        with VideoWriter(tmp_path / f"{order}.avi", (64, 48), codec="ffv1") as writer:  # without loss
            for colour in colours:
                writer.write(np.full((48, 64, 3), colour[::step], np.uint8), channel_order=order)
    with VideoReader(tmp_path / "rgb.avi") as one, VideoReader(tmp_path / "bgr.avi") as other:
        for frame, same, colour in zip(one, other, colours, strict=True):
            np.testing.assert_array_equal(same.pixels, frame.pixels)
            np.testing.assert_allclose(frame.pixels.reshape(-1, 3).mean(0), colour, atol=2)


def test_all_that_is_a_image_can_be_written(tmp_path: Path) -> None:
    rgb = np.zeros((48, 64, 3), np.uint8)
    rgb[:, :, 0] = 200
    nv12 = np.full((72, 64), 128, np.uint8)
    with VideoWriter(tmp_path / "a.mp4") as writer:
        writer.write(rgb, channel_order="rgb")
        writer.write(np.ascontiguousarray(rgb[:, :, ::-1]))
        writer.write(rgb[:, :, ::-1])  # a view with negative strides
        writer.write(Image.fromarray(rgb))
        writer.write(HostImage(np.dstack([rgb, rgb[:, :, 1]]), "rgba"))
        writer.write(HostImage(nv12, "nv12"))
        writer.write(np.full((48, 64), 130, np.uint8))
        assert writer.size == (64, 48)
        assert writer.frames == 7
        rgb[:] = 0  # it was copied
    with VideoReader(tmp_path / "a.mp4") as reader:
        means = [frame.pixels.reshape(-1, 3).mean(0) for frame in reader]
    for mean in means[:5]:
        np.testing.assert_allclose(mean, (200, 0, 0), atol=6)
    np.testing.assert_allclose(means[5:], 130, atol=4)


def test_nv12_is_the_same_image(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mp4")
    with VideoReader(path, format="nv12") as reader:
        frames = list(reader)
    assert frames[3].pixels.shape == (72, 64)
    assert frames[3].size == (64, 48)
    luma = [frame.pixels[:48].mean() for frame in frames]
    np.testing.assert_allclose(luma, [16 + (20 + 11 * n) * 219 / 255 for n in range(20)], atol=2)


def test_frames_share_no_memory_with_the_decoder(tmp_path: Path) -> None:
    """Each frame of QuickTime Animation changes a part of the one before."""
    with av.open(str(tmp_path / "a.mov"), "w") as container:
        stream = container.add_stream("qtrle", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "rgb24"
        for number in range(6):
            pixels = image(3)
            pixels[40:44, number : number + 4] = 255
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode(None))
    with VideoReader(tmp_path / "a.mov", prefetch=1) as reader:
        for frame in reader:
            assert (frame.pixels[:40] == image(3)[:40]).all(), f"frame {frame.number}"
            frame.pixels[:40] = 0


@pytest.mark.parametrize("size", [(63, 47), (64, 47), (1, 1)])
def test_odd_sides_are_made_even(size: tuple[int, int], tmp_path: Path) -> None:
    path = write(tmp_path / "a.mp4", 3, size)
    with VideoReader(path) as reader:
        assert reader.size == (size[0] + size[0] % 2, size[1] + size[1] % 2)
        assert [number_of(frame) for frame in reader] == [0, 1, 2]


def test_odd_sides_are_read(tmp_path: Path) -> None:
    path = tmp_path / "odd.mkv"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("ffv1", rate=10)
        stream.width, stream.height, stream.pix_fmt = 33, 17, "yuv420p"
        for number in range(3):
            frame = av.VideoFrame.from_ndarray(image(number, (33, 17)), format="rgb24")
            container.mux(stream.encode(frame.reformat(format="yuv420p")))
        container.mux(stream.encode(None))
    with VideoReader(path) as reader:
        assert [(frame.size, number_of(frame)) for frame in reader] == [((33, 17), n) for n in range(3)]
    with pytest.raises(VideoError, match="33 x 17; NV12 needs even sides"):
        VideoReader(path, format="nv12")


def test_a_stream_that_changes_to_odd_sides(tmp_path: Path) -> None:
    path = tmp_path / "a.h264"
    for size in ((64, 48), (65, 47)):
        context = av.CodecContext.create("libx264", "w")
        context.width, context.height, context.pix_fmt, context.time_base = *size, "yuv444p", Fraction(1, 25)
        frames = [av.VideoFrame.from_ndarray(image(3, size)).reformat(format="yuv444p"), None]
        with open(path, "ab") as file:
            file.writelines(bytes(packet) for frame in frames for packet in context.encode(frame))
    with VideoReader(path) as reader:
        assert [frame.size for frame in reader] == [(64, 48), (65, 47)]
    with VideoReader(path, format="nv12") as reader, pytest.raises(VideoError, match="65 x 47; NV12 needs even sides"):
        list(reader)


def test_times_are_kept_where_the_rate_varies(tmp_path: Path) -> None:
    times = [0.0, 0.04, 0.5, 0.51, 2.0, 2.001, 7.25]
    for suffix in (".mp4", ".mkv"):
        with VideoWriter(tmp_path / f"a{suffix}", (64, 48), 25) as writer:
            for number, at in enumerate(times):
                writer.write(image(number), at, channel_order="rgb")
        with VideoReader(tmp_path / f"a{suffix}") as reader:
            read = [(frame.time, number_of(frame)) for frame in reader]
        np.testing.assert_allclose([at for at, _ in read], times, atol=6e-4)
        assert [number for _, number in read] == list(range(7))


def test_a_video_that_begins_late(tmp_path: Path) -> None:
    """As a part of a recording, which keeps the times of the whole."""
    for suffix in (".mp4", ".mkv", ".ts"):
        with VideoWriter(tmp_path / f"a{suffix}", (64, 48), 10) as writer:
            for number in range(20):
                writer.write(image(number), 3600 + number / 10)
        with warnings.catch_warnings(), VideoReader(tmp_path / f"a{suffix}") as reader:
            warnings.simplefilter("error")
            assert (reader.frames, reader.duration) == (20, pytest.approx(2, abs=0.01))
            times = [frame.time for frame in reader]
        np.testing.assert_allclose(times, np.arange(20) / 10, atol=1e-3)


def test_a_few_frames_that_begin_late_in_a_file_without_a_start(tmp_path: Path) -> None:
    with VideoWriter(tmp_path / "a.mkv", (64, 48)) as writer:
        for at in (10.0, 10.5, 11.0):
            writer.write(image(3), at)
    with warnings.catch_warnings(), VideoReader(tmp_path / "a.mkv") as reader:
        warnings.simplefilter("error")
        assert (reader.frames, reader.duration) == (None, None)
        assert [frame.time for frame in reader] == pytest.approx([0.0, 0.5, 1.0])


def test_a_gap_is_no_damage(tmp_path: Path) -> None:
    """AVI counts the frames of the gap."""
    with VideoWriter(tmp_path / "a.avi", (64, 48), 10) as writer:
        for at in (0.0, 0.1, 5.0, 5.1):
            writer.write(image(3), at)
    with warnings.catch_warnings(), VideoReader(tmp_path / "a.avi") as reader:
        warnings.simplefilter("error")
        assert [frame.time for frame in reader] == pytest.approx([0.0, 0.1, 5.0, 5.1])
    assert reader.damage == ""


@pytest.mark.parametrize("suffix", [".mp4", ".avi"])
@pytest.mark.parametrize("count", [3, 4, 12])
def test_no_frame_of_the_highest_rate_is_lost(suffix: str, count: int, tmp_path: Path) -> None:
    with VideoWriter(tmp_path / f"a{suffix}", (64, 48), 1000) as writer:
        for number in range(count):
            writer.write(image(number))
    with VideoReader(tmp_path / f"a{suffix}") as reader:
        assert len(list(reader)) == count


def test_the_unit_of_times_is_no_rate(tmp_path: Path) -> None:
    """FFmpeg takes it for the rate of a single frame."""
    with VideoReader(write(tmp_path / "a.ts", 1)) as reader:
        assert (reader.fps, reader.frames) == (None, None)
        with VideoWriter(tmp_path / "b.mp4", reader.size, reader.fps) as writer:
            for frame in reader:
                writer.write(frame, frame.time)
    with VideoReader(tmp_path / "b.mp4") as reader:
        assert (reader.fps, len(list(reader))) == (30.0, 1)


def test_the_rate_of_irregular_times_in_a_file_that_states_none(tmp_path: Path) -> None:
    """Browsers record such WebM files. FFmpeg takes the 1000 ticks a second for the rate."""
    path = tmp_path / "a.webm"
    with VideoWriter(path, (64, 48)) as writer:
        for at in np.cumsum(np.random.default_rng(0).integers(17, 75, 30)) / 1000:
            writer.write(image(3), at)
    data = path.read_bytes()
    assert data.count(b"\x23\xe3\x83\x84") == 1  # DefaultDuration of 4 bytes: the element Void takes its place
    path.write_bytes(data.replace(b"\x23\xe3\x83\x84", b"\xec\x86\0\0"))
    with VideoReader(path) as reader:
        assert (reader.fps, reader.frames, len(list(reader))) == (None, None, 30)


@pytest.mark.parametrize(("suffix", "fps"), [(".mp4", 144), (".mp4", 29.97), (".mkv", 700), (".avi", 29.97)])
def test_times_that_follow_the_rate_do_not_drift(suffix: str, fps: float, tmp_path: Path) -> None:
    with VideoWriter(tmp_path / f"a{suffix}", (2, 2), fps) as writer:
        for number in range(400):
            writer.write(image(3, (2, 2)), 1.0 if number == 100 else None)
    with VideoReader(tmp_path / f"a{suffix}") as reader:
        times = [frame.time for frame in reader]
    begin = times[100]
    expected = [(number if number < 100 else number - 100) / fps + begin * (number >= 100) for number in range(400)]
    np.testing.assert_allclose(times, expected, atol=1.1e-3 if suffix == ".mkv" else 5e-5)


def test_a_length_of_less_than_a_frame_states_no_frames(tmp_path: Path) -> None:
    """MPEG-PS has few times."""
    with av.open(str(tmp_path / "a.mpg"), "w", format="mpeg") as container:
        stream = container.add_stream("mpeg1video", rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for number in range(20):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image(number))))
        container.mux(stream.encode(None))
    with VideoReader(tmp_path / "a.mpg") as reader:
        assert (reader.frames, len(list(reader))) == (None, 20)


def test_the_rate_of_a_file_whose_ticks_are_its_frames(tmp_path: Path) -> None:
    with av.open(tmp_path / "a.ivf", "w") as container:
        stream = container.add_stream("libvpx", 10)
        stream.width, stream.height = 64, 48
        for number in range(5):
            frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), 3, np.uint8))
            frame.pts = number
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    with VideoReader(tmp_path / "a.ivf") as reader:
        assert (reader.fps, len(list(reader))) == (10, 5)


@pytest.mark.parametrize(
    ("suffix", "times", "refused"),
    [
        (".mp4", [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 35000.5, 35000.6], 71000.0),
        (".mov", [3600.0 * hours for hours in range(12)], 80000.0),
        (".mp4", [0.0, 1.0], 18000.0),  # the third image also sets when the first ones are decoded
        (".m4v", [0.0, 7200.0, 14400.0, 21600.0], 28800.0),  # several gaps in a row
        (".mp4", [1.7e9, 1.7e9 + 0.1, 1.7e9 + 0.2], 1.8e9),
        (".ts", [0.0, 0.1, 0.2, 0.3, 90000.3], 190000.0),
        (".avi", [0.0, 0.1, 5999.0], 12001.0),
        (".avi", [], 1.7e9),
        (".mkv", [0.0, 1.0, 1e6, 1e6 + 1], None),
    ],
)
def test_a_gap_that_the_format_does_not_hold(
    suffix: str, times: list[float], refused: float | None, tmp_path: Path
) -> None:
    path = tmp_path / f"a{suffix}"
    with VideoWriter(path, (64, 48), 10) as writer:
        for at in times:
            writer.write(image(3), at)
        if refused is not None:
            with pytest.raises(InputError, match=rf"too long after [\d,]+ s for {suffix} files"):
                writer.write(image(3), refused)
        writer.write(image(3))
    with VideoReader(path) as reader:
        begin = times[0] if times else 0.0
        assert [frame.time for frame in reader][:-1] == pytest.approx([at - begin for at in times], abs=1e-3)


def test_several_gaps_in_a_row_without_b_frames(tmp_path: Path) -> None:
    times = [20000.0 * number for number in range(4)]
    with VideoWriter(tmp_path / "a.mp4", (64, 48), 10, codec="mpeg4") as writer:
        for at in times:
            writer.write(image(3), at)
    with VideoReader(tmp_path / "a.mp4") as reader:
        assert [frame.time for frame in reader] == pytest.approx(times, abs=1e-3)


def test_times_only_go_up(tmp_path: Path) -> None:
    with VideoWriter(tmp_path / "a.mp4", (64, 48), 10) as writer:
        for at in (1.0, 1.0, 0.5, None, 2.0):
            writer.write(image(3), at)
        for at in (-1.0, float("nan"), float("inf"), 1e300, "1"):
            with pytest.raises(InputError, match="seconds from 0"):
                writer.write(image(3), at)  # type: ignore[arg-type]
    with VideoReader(tmp_path / "a.mp4") as reader:
        times = [frame.time for frame in reader]
    assert len(times) == 5
    assert times == sorted(set(times))
    assert times[-1] - times[0] == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize(
    ("matrix", "expected"),
    [  # the matrix in the track's header, and the quarters of the image by rows
        ((0, 1, -1, 0), "31 42"), ((-1, 0, 0, -1), "43 21"), ((0, -1, 1, 0), "24 13"),  # turned clockwise
        ((-1, 0, 0, 1), "21 43"), ((1, 0, 0, -1), "34 12"), ((0, 1, 1, 0), "13 24"), ((0, -1, -1, 0), "42 31"),
    ],
)  # fmt: skip
def test_a_turned_or_mirrored_video_is_shown_as_in_players(
    matrix: tuple[int, ...], expected: str, tmp_path: Path
) -> None:
    quarters = np.kron(np.array([[1, 2], [3, 4]], np.uint8) * 50, np.ones((24, 32), np.uint8))
    with VideoWriter(tmp_path / "a.mp4") as writer:
        for _ in range(3):
            writer.write(quarters)
    data = bytearray((tmp_path / "a.mp4").read_bytes())
    at = data.find(b"tkhd") + 4 + 4 + 20 + 16
    assert struct.unpack(">9i", data[at : at + 36]) == (0x10000, 0, 0, 0, 0x10000, 0, 0, 0, 0x40000000)
    a, b, c, d = (0x10000 * value for value in matrix)
    data[at : at + 36] = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 0x40000000)
    (tmp_path / "b.mp4").write_bytes(data)
    with VideoReader(tmp_path / "b.mp4") as reader:
        assert reader.size == ((48, 64) if b else (64, 48))
        frames = list(reader)
    assert len(frames) == 3
    for frame in frames:
        width, height = frame.size
        rows = frame.pixels[height // 4 :: height // 2, width // 4 :: width // 2, 0]
        assert " ".join("".join(str(round(value / 50)) for value in row) for row in rows) == expected
    with pytest.raises(VideoError, match="is rotated or mirrored by its metadata, and NV12 frames are not turned"):
        VideoReader(tmp_path / "b.mp4", format="nv12")
    with av.open(str(tmp_path / "b.mp4")) as container:
        stream = container.streams.video[0]
        with pytest.raises(VideoError, match="is rotated or mirrored by its metadata, which the GPU does not undo"):
            nvdec._refuse_rotated(av, stream, next(container.demux(stream)), "b.mp4")


# ---- input that is broken ----


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("names.txt", b"person\nbicycle\n" * 90, "cannot be opened as a video: .* no format of a video that is read"),
        ("none.mp4", None, "no video at '[^;]*none.mp4'$"),
        ("empty.mp4", b"", "cannot be opened as a video"),
        ("text.mp4", b"this is no video\n" * 100, "cannot be opened as a video"),
        ("random.mkv", np.random.default_rng(0).bytes(5000), "cannot be opened as a video"),
        ("folder", "", "cannot be opened as a video"),
    ],
)
def test_what_is_no_video(name: str, content: Any, message: str, tmp_path: Path) -> None:
    if content == "":
        (tmp_path / name).mkdir()
    elif content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(VideoError, match=message):
        VideoReader(tmp_path / name)


def test_the_options_may_be_the_reason(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mp4")
    with pytest.raises(VideoError, match=r"or a value in options \(probesize\) is none that FFmpeg takes"):
        VideoReader(path, options={"probesize": "much"})


def test_an_image_and_a_sound_are_no_videos(tmp_path: Path) -> None:
    Image.new("RGB", (64, 48)).save(tmp_path / "a.png")
    with pytest.raises(VideoError, match="no format of a video that is read"):
        VideoReader(tmp_path / "a.png")
    with av.open(str(tmp_path / "a.mkv"), "w") as container:
        stream = container.add_stream("pcm_s16le", rate=8000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), layout="mono")
        frame.rate = 8000
        container.mux(stream.encode(frame))
    with pytest.raises(VideoError, match="is not a video: it contains audio"):
        VideoReader(tmp_path / "a.mkv")


def test_a_cover_image_is_not_the_video(tmp_path: Path) -> None:
    path = tmp_path / "a.mkv"
    with av.open(str(path), "w") as container:
        streams = [container.add_stream(codec, rate=10) for codec in ("mjpeg", "libx264")]
        streams[0].disposition = av.stream.Disposition.attached_pic
        for stream, size, pixels in zip(streams, ((320, 240), (64, 48)), ("yuvj420p", "yuv420p"), strict=True):
            stream.width, stream.height, stream.pix_fmt = *size, pixels
        for stream, count in zip(streams, (1, 10), strict=True):
            for number in range(count):
                frame = av.VideoFrame.from_ndarray(image(number, (stream.width, stream.height)), format="rgb24")
                container.mux(stream.encode(frame.reformat(format=stream.pix_fmt)))
            container.mux(stream.encode(None))
    with VideoReader(path) as reader:
        assert (reader.size, len(list(reader))) == ((64, 48), 10)


@pytest.mark.parametrize("suffix", [".mkv", ".avi", ".ts"])
def test_a_video_that_is_cut_off_gives_the_frames_so_far_and_says_so(suffix: str, tmp_path: Path) -> None:
    path = noisy(tmp_path / f"a{suffix}")
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with VideoReader(path) as reader, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        frames = list(reader)
    assert 20 <= len(frames) <= 50
    if suffix == ".ts":  # which says nowhere how long it is to be
        return
    assert [w.category for w in caught] == [RuntimeWarning]
    assert "is damaged: it ends after" in str(caught[0].message)
    assert reader.damage in str(caught[0].message)


def test_a_cut_off_mp4(tmp_path: Path) -> None:
    path = noisy(tmp_path / "a.mp4")
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(VideoError, match="cannot be opened"):  # its index is at the end
        VideoReader(path)
    path.write_bytes(data)
    front = tmp_path / "front.mp4"
    with av.open(str(path)) as source, av.open(str(front), "w", options={"movflags": "faststart"}) as container:
        stream = container.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.dts is not None:
                packet.stream = stream
                container.mux(packet)
    path, data = front, front.read_bytes()
    assert data.find(b"moov") < data.find(b"mdat")
    path.write_bytes(data[: data.find(b"mdat") + (len(data) - data.find(b"mdat")) // 2])
    with VideoReader(path) as reader, pytest.warns(RuntimeWarning, match="it ends after [0-9]+ of 60 frames"):
        frames = list(reader)
    assert 20 <= len(frames) <= 40


def test_frames_that_an_mp4_file_leaves_out_are_no_damage(tmp_path: Path) -> None:
    """Tools that trim a file without encoding write such ones: the first frames are there, and are not shown."""
    path = noisy(tmp_path / "a.mp4")
    with av.open(str(path)) as source, av.open(str(tmp_path / "b.mp4"), "w") as container:
        stream = container.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.dts is not None:
                packet.stream = stream
                packet.pts, packet.dts = (at - round(4 / packet.time_base) for at in (packet.pts, packet.dts))
                container.mux(packet)
    with warnings.catch_warnings(), VideoReader(tmp_path / "b.mp4") as reader:
        warnings.simplefilter("error")
        assert reader.duration == pytest.approx(2)
        assert len(list(reader)) == 20
    assert reader.damage == ""


def test_a_connection_that_breaks_off_loses_no_frame_before_it(tmp_path: Path) -> None:
    path = noisy(tmp_path / "a.mkv")
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])

    def send_half(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Length", str(len(data)))
        request.end_headers()
        request.wfile.write(data[: len(data) // 2])

    with pytest.warns(RuntimeWarning, match="it ends after"), VideoReader(path) as reader:
        expected = [frame.time for frame in reader]
    with (
        served({"/a.mkv": send_half}) as address,
        pytest.warns(RuntimeWarning, match="it ends after .* seconds; reading failed: Input/output error"),
        VideoReader(f"{address}/a.mkv") as reader,
    ):
        assert [frame.time for frame in reader] == expected
    assert len(expected) >= 20


@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".avi"])
def test_the_end_of_an_answer_without_a_length_is_no_damage(suffix: str, tmp_path: Path) -> None:
    data = write(tmp_path / f"a{suffix}").read_bytes()

    def send(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()
        request.wfile.write(data)

    with served({f"/a{suffix}": send}) as address, VideoReader(f"{address}/a{suffix}") as reader:
        assert not reader.live
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert len(list(reader)) == 20
    assert reader.damage == ""


def test_a_hole_in_the_middle_is_passed_over(tmp_path: Path) -> None:
    path = noisy(tmp_path / "a.mp4")
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 20_000] = bytes(20_000)
    path.write_bytes(data)
    with VideoReader(path) as reader, pytest.warns(RuntimeWarning, match="is damaged"):
        frames = list(reader)
    assert 30 <= len(frames) < 60
    assert frames[-1].time > 5


def test_a_packet_that_ffmpeg_calls_corrupt_is_damage(tmp_path: Path) -> None:
    path = noisy(tmp_path / "a.ts")
    data = path.read_bytes()
    middle = len(data) // 2 // 188 * 188
    path.write_bytes(data[:middle] + data[middle + 188 :])
    with (
        VideoReader(path) as reader,
        pytest.warns(RuntimeWarning, match="is damaged: FFmpeg reports 1 packets as damaged"),
    ):
        assert len(list(reader)) >= 59


def test_a_video_without_a_frame(tmp_path: Path) -> None:
    data = noisy(tmp_path / "a.mp4").read_bytes()
    start = data.find(b"mdat") + 4
    (tmp_path / "a.mp4").write_bytes(
        data[:start] + bytes(data.find(b"moov") - 4 - start) + data[data.find(b"moov") - 4 :]
    )
    with pytest.raises(VideoError, match="has no frame that can be decoded"):
        VideoReader(tmp_path / "a.mp4")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"format": "yuv"}, "unknown format 'yuv'; use one of rgb, bgr, nv12"),
        ({"drop": "newest"}, "unknown drop 'newest'; use 'never' or 'oldest'"),
        ({"drop": "oldest"}, "drop='oldest' is for live sources, and .* is a file"),
        ({"prefetch": 0}, "prefetch is a number of frames from 1, not 0"),
        ({"drop_after": 1}, "drop_after=1 is for live sources, and .* is a file; leave it out"),
        ({"drop_after": -1}, "drop_after is a number of seconds from 0, not -1"),
        ({"options": "x"}, "options is a mapping of names to values, such as a dict, not 'x'"),
        ({"drop_after": "1"}, "drop_after is a number of seconds from 0, not '1'"),
        ({"format": ["rgb"]}, r"unknown format \['rgb'\]; use one of"),
        ({"options": {1: 2}}, "options is a mapping of names to values, such as a dict, not {1: 2}"),
        ({"timeout": 0}, "timeout is a number of seconds above 0, not 0"),
        ({"timeout": "5"}, "timeout is a number of seconds above 0, not '5'"),
        ({"timeout": float("nan")}, "timeout is .*, not nan"),
        ({"drop_after": 0.1, "drop": "never"}, "drop='never' drops no frame after 0.1 s; leave one of drop and"),
    ],
)
def test_arguments_that_a_reader_refuses(arguments: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.mp4", 2)
    with pytest.raises(ConfigError, match=message):
        VideoReader(path, **arguments)


@pytest.mark.parametrize("source", [None, True, 1.5])
def test_what_is_no_source(source: Any) -> None:
    with pytest.raises(ConfigError, match="a video is a path, an address or the number of a camera, not"):
        VideoReader(source)


def test_a_path_with_a_null_character(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mp4", 2)
    for source in (f"{path}\0.txt", os.fsencode(path) + b"\0"):
        with pytest.raises(VideoError, match="a.mp4.* cannot be opened as a video: the path has a null character"):
            VideoReader(source)


def test_the_address_of_a_file(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mp4", 2)
    for source in (path.as_uri(), "FILE:///missing.mp4"):
        with pytest.raises(ConfigError, match="is the address of a file; give its path, without '(file|FILE)://'"):
            VideoReader(source)


def test_a_path_of_bytes(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mp4", 2)
    with VideoReader(os.fsencode(path)) as reader:
        assert len(list(reader)) == 2


def test_cameras_that_are_not_there() -> None:
    for source in (97, "/dev/video97", "rtsp://127.0.0.1:9/none", "nonesuch://x"):
        with pytest.raises(VideoError, match=r"no video at|cannot be opened"):
            VideoReader(source, timeout=2)


def test_without_pyav(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.mp4", 2)
    monkeypatch.setitem(sys.modules, "av", None)
    for call in (lambda: VideoReader(path), lambda: VideoWriter(tmp_path / "b.mp4")):
        with pytest.raises(BackendUnavailableError, match=r'videos need PyAV .*: pip install "infersdk\[video\]"'):
            call()
    assert not (tmp_path / "b.mp4").exists()


# ---- files that cannot be written ----


def test_what_a_writer_refuses(tmp_path: Path) -> None:
    for name, arguments, message in (
        ("a.gif", {}, "the suffix of a video is one of .mp4, .m4v, .*, not '.gif'"),
        ("a", {}, "not ''"),
        ("a.mp4", {"codec": "nonesuch"}, "this FFmpeg has no video encoder 'nonesuch'; it has .*mpeg4"),
        ("a.mp4", {"codec": "aac"}, "no video encoder 'aac'"),
        ("a.mp4", {"codec": ""}, "no video encoder ''"),
        ("a.mov", {"codec": "qtrle"}, "the encoder 'qtrle' takes rgb24, .* in yuv420p; use one that takes it"),
        ("a.mp4", {"codec": 5}, "codec is the name of an encoder, such as 'libx264', not 5"),
        ("a.mp4", {"fps": 0}, "fps is a number of frames per second .*, not 0"),
        ("a.mp4", {"fps": -1}, "fps is a number of frames per second .*, not -1"),
        ("a.mp4", {"fps": float("nan")}, "fps is"),
        ("a.mp4", {"fps": 1001}, "fps is a number of frames per second from 0.001 to 1000, not 1001"),
        ("a.mp4", {"fps": "30"}, "fps is a number of frames per second .*, not '30'"),
        ("a.avi", {"fps": 1e-4}, "fps is a number of frames per second from 0.001 .*, not 0.0001"),
        ("a.mp4", {"size": (0, 4)}, "size is .width, height. in pixels"),
        ("a.mp4", {"size": (1, 2, 3)}, "size is"),
        ("a.mp4", {"size": 5}, "size is .*, not 5"),
        ("a.mp4", {"options": "x"}, "options is a mapping of names to values, such as a dict, not 'x'"),
        ("a.mp4", {"queue_size": 0}, "queue_size is a number of images from 1, not 0"),
    ):
        with pytest.raises(ConfigError, match=message):
            VideoWriter(tmp_path / name, **arguments)
    for path in (None, b"a.mp4"):
        with pytest.raises(ConfigError, match=f"path is a str or a Path, not {path!r}"):
            VideoWriter(path)  # type: ignore[arg-type]
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "a.mp4", tmp_path):
        with pytest.raises((OutputError, ConfigError)):
            VideoWriter(path)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_options_of_an_encoder(tmp_path: Path) -> None:
    with VideoReader(write(tmp_path / "a.mp4", options={"crf": 0}), options={"probesize": 10_000}) as reader:
        assert [number_of(frame) for frame in reader] == list(range(20))
    for name, option in (("b.mp4", "crff"), ("b.avi", "crf")):
        with pytest.raises(OutputError, match=f"it has no option {option};"):
            write(tmp_path / name, options={option: "18"})
    with pytest.raises(OutputError, match=r"it does not take this size, or a value of the options .*'crf': 'low'"):
        write(tmp_path / "b.mp4", options={"crf": "low"})
    assert [p.name for p in tmp_path.iterdir()] == ["a.mp4"]


def test_the_quality_of_avi_does_not_depend_on_the_content(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (12, 60, 80, 1), np.uint8)
    noise = noise.repeat(8, 1).repeat(8, 2).repeat(3, 3)
    with VideoWriter(tmp_path / "a.avi") as writer:
        for pixels in noise:
            writer.write(pixels)
    with VideoReader(tmp_path / "a.avi") as reader:
        errors = [np.abs(frame.pixels.astype(int) - pixels).mean() for frame, pixels in zip(reader, noise, strict=True)]
    assert max(errors) < 4


def test_another_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    with VideoWriter("a.mp4") as writer:
        writer.write(image(0))
        monkeypatch.chdir(tmp_path / "other")
    assert sorted(p.relative_to(tmp_path) for p in tmp_path.rglob("*")) == [Path("a.mp4"), Path("other")]


def test_another_size_and_a_closed_writer(tmp_path: Path) -> None:
    with VideoWriter(tmp_path / "a.mp4", (64, 48)) as writer:
        writer.write(image(0))
        with pytest.raises(ShapeError, match=r"of \(32, 48\) does not fit a video of \(64, 48\)"):
            writer.write(image(0, (32, 48)))
    writer.close()
    with pytest.raises(ClosedError):
        writer.write(image(0))
    with VideoReader(tmp_path / "a.mp4") as reader:
        assert len(list(reader)) == 1
    with pytest.raises(ClosedError):
        next(reader)
    reader.close()


def test_images_that_were_decoded_at_a_reduced_size(tmp_path: Path) -> None:
    file = io.BytesIO()
    Image.fromarray(image(0, (96, 64))).save(file, "JPEG")
    reduced = read_image(file.getvalue(), at_least=lambda size: (24, 16))
    with VideoWriter(tmp_path / "a.mp4") as writer:
        writer.write(reduced)
        assert writer.size == (24, 16)
        with pytest.raises(ShapeError, match=r"of \(96, 64\) does not fit a video of \(24, 16\)"):
            writer.write(image(0, (96, 64)))
    with VideoReader(tmp_path / "a.mp4") as reader:
        assert [frame.size for frame in reader] == [reader.size] == [(24, 16)]


def test_an_encoder_that_fails_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_text("what was there")
    writer = VideoWriter(tmp_path / "a.mp4", codec="libx264", options={"preset": "nonesuch"})
    for _ in range(100):  # it does not wait for the encoder that is gone
        try:
            writer.write(image(0))
        except OutputError:
            break
    with pytest.raises(OutputError, match="with libx264"):
        writer.close()
    assert [p.name for p in tmp_path.iterdir()] == ["a.mp4"]
    assert (tmp_path / "a.mp4").read_text() == "what was there"


def test_a_link_is_followed_and_a_read_only_file_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link.mp4").symlink_to(tmp_path / "real" / "a.mp4")
    write(tmp_path / "link.mp4")
    assert (tmp_path / "link.mp4").is_symlink()
    (tmp_path / "real" / "a.mp4").chmod(0o400)
    with pytest.raises(OutputError, match="it is read-only; make it writable, or give another name"):
        VideoWriter(tmp_path / "link.mp4")
    assert [p.name for p in (tmp_path / "real").iterdir()] == ["a.mp4"]
    with VideoReader(tmp_path / "link.mp4") as reader:
        assert len(list(reader)) == 20


def test_two_writers_of_one_path(tmp_path: Path) -> None:
    with VideoWriter(tmp_path / "a.mp4") as first, VideoWriter(tmp_path / "a.mp4") as second:
        for _ in range(5):
            first.write(image(3), channel_order="rgb")
            second.write(image(5, (32, 48)), channel_order="rgb")
    with VideoReader(tmp_path / "a.mp4") as reader:  # of the one that was closed last
        assert [number_of(frame) for frame in reader] == [3] * 5
    assert [p.name for p in tmp_path.iterdir()] == ["a.mp4"]


def test_several_threads_write(tmp_path: Path) -> None:
    with VideoWriter(tmp_path / "a.mp4", (64, 48)) as writer:
        together(lambda number: [writer.write(image(number)) for _ in range(50)], [(number,) for number in range(4)])
    assert writer.frames == 200
    with VideoReader(tmp_path / "a.mp4") as reader:
        assert len(list(reader)) == 200


def test_nothing_written_is_nothing_left(tmp_path: Path) -> None:
    with VideoWriter(tmp_path / "a.mp4", (64, 48)):
        pass
    writer = VideoWriter(tmp_path / "b.mp4", (64, 48))
    writer.write(image(0))
    del writer  # forgotten, without close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_what_was_done_before_an_exception_can_be_played(error: type[BaseException], tmp_path: Path) -> None:
    with pytest.raises(error), VideoWriter(tmp_path / "a.mp4", (64, 48), 10) as writer:  # noqa: PT012
        for number in range(7):
            writer.write(image(number), channel_order="rgb")
        assert not (tmp_path / "a.mp4").exists()  # it comes whole
        raise error
    with VideoReader(tmp_path / "a.mp4") as reader:
        assert [number_of(frame) for frame in reader] == list(range(7))
    assert [p.name for p in tmp_path.iterdir()] == ["a.mp4"]


# ---- running ahead ----


def test_prefetch_keeps_the_order_and_a_bound() -> None:
    made: list[int] = []

    def numbers() -> Iterator[int]:
        for number in range(200):
            made.append(number)
            yield number

    taken = 0
    for number in Prefetch(numbers(), 4):
        assert number == taken
        taken += 1
        assert len(made) <= taken + 5  # four wait, one is in hand
    assert taken == 200


def test_prefetch_raises_after_what_came_before_and_stops_when_forgotten() -> None:
    closed = threading.Event()

    def numbers(fail: bool) -> Iterator[int]:
        try:
            for number in itertools.count():
                if fail and number == 3:
                    raise ValueError("the fourth")
                yield number
        finally:
            closed.set()

    got = []
    with pytest.raises(ValueError, match="the fourth"):  # noqa: PT012
        for number in Prefetch(numbers(True), 10):
            got.append(number)
    assert got == [0, 1, 2]
    closed.clear()
    forgotten = Prefetch(numbers(False), 2)
    assert next(forgotten) == 0
    del forgotten
    assert closed.wait(5)
    closed.clear()
    with Prefetch(numbers(False), 2) as numbers_ahead:
        next(numbers_ahead)
    assert closed.is_set()
    assert list(numbers_ahead) == []


def test_prefetch_without_a_further_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)
    with pytest.raises(OutOfMemoryError, match="can't start new thread"):
        Prefetch([1])


def test_prefetch_that_drops_keeps_the_newest_and_counts() -> None:
    done = threading.Event()

    def numbers() -> Iterator[int]:
        yield from range(100)
        done.set()

    prefetch = Prefetch(numbers(), 5, drop_oldest=True)
    assert done.wait(5)
    assert list(prefetch) == [95, 96, 97, 98, 99]
    assert prefetch.dropped == 95


def test_prefetch_keeps_an_item() -> None:
    prefetch = Prefetch(range(3), 5)
    assert prefetch.next_within(5, keep=True) == 0
    assert prefetch.next_within(5, keep=True) == 0
    assert list(prefetch) == [0, 1, 2]


def test_prefetch_passes_items_on_in_its_own_thread() -> None:
    """In their order, those that wait already first."""
    threads: set[str] = set()
    got: list[int] = []

    def receive(number: int) -> None:
        threads.add(threading.current_thread().name)
        got.append(number)

    prefetch = Prefetch(range(1000), 4)
    assert next(prefetch) == 0
    prefetch.pass_to(receive)
    assert got == list(range(1, 1000))
    assert "infersdk-prefetch" in threads
    assert list(prefetch) == []


def test_prefetch_raises_the_errors_of_both_sides() -> None:
    def numbers() -> Iterator[int]:
        yield from range(10)
        raise ValueError("the eleventh")

    def refuse(number: int) -> None:
        if number == 7:
            raise KeyError(number)

    got: list[int] = []
    with pytest.raises(ValueError, match="the eleventh"):
        Prefetch(numbers(), 2).pass_to(got.append)
    assert got == list(range(10))
    with pytest.raises(KeyError, match="7"):
        Prefetch(range(100), 2).pass_to(refuse)


def test_prefetch_waits_for_the_next_item_and_not_for_all() -> None:
    silent = threading.Event()

    def numbers() -> Iterator[int]:
        for number in range(5):
            time.sleep(0.15)
            yield number
        silent.wait(10)

    got: list[int] = []
    prefetch = Prefetch(numbers(), 2)
    with pytest.raises(NoItemError):
        prefetch.pass_to(got.append, timeout=0.5)
    assert got == list(range(5))
    silent.set()
    endless = Prefetch(itertools.count(), 2)
    threading.Timer(0.2, endless.close).start()
    endless.pass_to(lambda _: time.sleep(0.001))  # close() ends it


def test_prefetch_drops_what_has_expired_as_long_as_something_newer_waits() -> None:
    done = threading.Event()

    def numbers() -> Iterator[int]:
        yield from range(10)
        done.set()

    expired = {5, 6, 8, 9}
    prefetch = Prefetch(numbers(), 5, drop_oldest=True, expired=expired.__contains__)
    assert done.wait(5)
    assert list(prefetch) == [7, 9]
    assert prefetch.dropped == 8


def test_pairs_of_another_number() -> None:
    """No item and no result is dropped without a word."""

    def fewer(items: Any) -> Iterator[int]:
        return itertools.islice(iter(items), 2)

    def more(items: Any) -> Iterator[int]:
        yield from items
        yield 7

    def early(items: Any) -> Iterator[int]:
        yield 7

    def reads_all(items: Any) -> Iterator[int]:
        yield from list(items)[:3]

    got: list[tuple[int, int]] = []
    with pytest.raises(InputError, match="returned 3 results for 8 items"):
        got.extend(paired(reads_all, range(8)))
    for run, message in ((more, "returned result 9 after 8 items"), (early, "returned result 1 after 0 items")):
        with pytest.raises(InputError, match=message):
            list(paired(run, range(8)))
    assert list(paired(fewer, range(8))) == [(0, 0), (1, 1)]  # it read no more of them


def test_pairs_that_are_left_early_end_what_runs() -> None:
    ended = threading.Event()

    def run(items: Any) -> Iterator[int]:
        try:
            yield from items
        finally:
            ended.set()

    pairs = paired(run, range(8))
    assert next(pairs) == (0, 0)
    pairs.close()  # type: ignore[attr-defined]
    assert ended.is_set()


def test_prefetch_whose_source_fails_at_its_ends() -> None:
    class Bad:
        def __init__(self, items: Iterator[int]) -> None:
            self.items = items

        def __iter__(self) -> Iterator[int]:
            return self  # type: ignore[return-value]

        def __next__(self) -> int:
            return next(self.items)

        def close(self) -> None:
            raise OSError("it cannot be closed")

    prefetch = Prefetch(Bad(iter(range(3))))
    assert [next(prefetch) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(OSError, match="cannot be closed"):
        next(prefetch)
    with pytest.raises(TypeError, match="not iterable"):
        next(Prefetch(7))  # type: ignore[arg-type]
    for size in (0, "a", 1.5):
        with pytest.raises(ConfigError, match=f"size is a number of items from 1, not {size!r}"):
            Prefetch([1], size)  # type: ignore[arg-type]


def test_a_reader_that_is_left_early_leaves_no_thread(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mp4", 60)
    before = {*threading.enumerate()}
    with VideoReader(path, prefetch=2) as reader:
        next(reader)
    assert not {*threading.enumerate()} - before
    reader = VideoReader(path, prefetch=2)
    assert isinstance(next(reader), Frame)
    del reader
    until(lambda: not {*threading.enumerate()} - before)


# ---- sources that do not wait ----


def send(port: int, count: int, stop: threading.Event, pause: float) -> None:
    """A camera on the net: MPEG-TS over TCP, in real time."""
    with av.open(f"tcp://127.0.0.1:{port}", "w", format="mpegts", options={"tcp_nodelay": "1"}) as container:
        stream = container.add_stream("mpeg1video", rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        stream.gop_size = 1
        for number in range(count):
            frame = av.VideoFrame.from_ndarray(image(number % 20), format="rgb24").reformat(format="yuv420p")
            frame.pts, frame.time_base = number, Fraction(1, 25)
            container.mux(stream.encode(frame))
            if stop.wait(pause):
                return


@pytest.mark.parametrize(("drop", "drop_after"), [(None, None), (None, 60.0), (None, 0.1), ("never", None)])
def test_a_live_source_that_is_read_too_slowly(drop: str | None, drop_after: float | None) -> None:
    port, stop, count = free_port(), threading.Event(), 150

    def later() -> None:
        deadline = time.monotonic() + 10
        while True:
            try:
                return send(port, count, stop, 0.004)
            except (OSError, av.error.FFmpegError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    sender, before = threading.Thread(target=later), {*threading.enumerate()}
    sender.start()
    try:
        options = {"listen": "1", "probesize": "10000", "analyzeduration": "100000"}
        settings = {"drop": drop, "drop_after": drop_after, "prefetch": 3, "options": options}
        with VideoReader(f"tcp://127.0.0.1:{port}", **settings) as reader:
            assert reader.live
            assert reader.frames is reader.duration is None
            frames = [next(reader)]
            sender.join(20)
            if drop is None:
                until(lambda: not {*threading.enumerate()} - before)  # the rest has arrived, and was not taken
                time.sleep(0.3)  # and has become old
            frames += reader
            numbers = [frame.number for frame in frames]
            assert numbers == sorted(set(numbers))
            total = numbers[-1] + 1
            assert total >= count - 10  # probing may cost the first ones
            if drop_after == 0.1:
                assert numbers[1:] == [total - 1]
                assert reader.dropped == total - 2
            elif drop is None:
                assert numbers[1:] == [total - 3, total - 2, total - 1]
                assert reader.dropped == total - 4
            else:
                assert numbers == list(range(total))
                assert reader.dropped == 0
    finally:
        stop.set()
        sender.join(20)


def test_a_live_source_that_falls_silent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        start = time.monotonic()
        with pytest.raises(VideoError):
            VideoReader(url, timeout=0.5)
        assert time.monotonic() - start < 5
