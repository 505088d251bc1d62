"""Files and cameras, and the times of frames, for sources that do not give each frame one."""

from __future__ import annotations

import io
import os
import tempfile
import time
from fractions import Fraction
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from waiting import until
from web import content, served

from infersdk.errors import ConfigError
from infersdk.video import VideoReader, VideoWriter
from infersdk.video.source_reader import Decoded


@pytest.mark.parametrize(
    ("start", "fps", "given", "expected"),
    [
        (0, 10.0, [0.0, 0.1, 0.25], [0.0, 0.1, 0.25]),
        (2000, 10.0, [2.0, 2.1], [0.0, 0.1]),
        (2000, 10.0, [2.3, 2.4], [0.3, 0.4]),  # the first frames were left out
        (None, 10.0, [5.0, 5.1], [0.0, 0.1]),
        (9000, 10.0, [5.0, 5.1], [0.0, 0.1]),  # a start that is behind the first frame is none
        (50, 20.0, [None, None, 0.05, 0.1], [0.0, 0.05, 0.1, 0.15]),  # a stream that is joined
        (None, None, [None, None], [0.0, 1 / 30]),
        (0, 10.0, [0.0, None, 0.2], [0.0, 0.1, 0.2]),
        (0, 10.0, [50.0, 50.1, 0.0, 0.1], [50.0, 50.1, 50.2, 50.3]),  # the clock of the source began again
        (0, 10.0, [0.0, 0.1, 0.1, 0.2], [0.0, 0.1, 0.1, 0.2]),  # a damaged stream
    ],
)
def test_times(start: int | None, fps: float | None, given: list[float | None], expected: list[float]) -> None:
    decoded = Decoded(SimpleNamespace(start_time=start, time_base=Fraction(1, 1000)), fps)
    assert [decoded.time_of(time) for time in given] == pytest.approx(expected)


def test_what_is_counted() -> None:
    decoded = Decoded(SimpleNamespace(start_time=None), 10.0)
    assert [decoded.add(at) for at in (0.0, 0.2, 0.1)] == [0, 1, 2]
    assert (decoded.frames, decoded.end) == (3, pytest.approx(0.3))


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="this system has no /dev/shm")
def test_a_file_below_dev_is_no_camera() -> None:
    pytest.importorskip("av")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        path = Path(folder, "a.mp4")
        with VideoWriter(path) as writer:
            for _ in range(30):
                writer.write(np.zeros((48, 64, 3), np.uint8))
        with VideoReader(path, prefetch=2) as reader:
            assert (reader.live, reader.frames) == (False, 30)
            time.sleep(0.3)  # in which a live source would drop frames
            assert [frame.number for frame in reader] == list(range(30))
        with pytest.raises(ConfigError, match="is a file; leave it out"):
            VideoReader(path, drop="oldest")


def test_the_first_frame_of_a_live_source_is_dropped_as_others_are() -> None:
    av = pytest.importorskip("av")
    file = io.BytesIO()
    with av.open(file, "w", format="h264") as container:  # it has no length, and so is live at an address
        stream = container.add_stream("libx264", rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for _ in range(30):
            container.mux(stream.encode(av.VideoFrame(64, 48, "yuv420p")))
        container.mux(stream.encode(None))
    with served({"/a.h264": content(file.getvalue(), "video/h264")}) as address:
        with VideoReader(f"{address}/a.h264", prefetch=3) as reader:
            assert reader.live
            until(lambda: reader.dropped == 27, 10)
            assert [frame.number for frame in reader] == [27, 28, 29]
        with VideoReader(f"{address}/a.h264", prefetch=30, drop_after=0.2) as reader:
            time.sleep(1)
            assert [frame.number for frame in reader] == [29]
            assert reader.dropped == 29


def test_images_of_a_camera_by_http_have_the_times_of_their_arrival() -> None:
    pytest.importorskip("av")
    file = io.BytesIO()
    Image.new("RGB", (64, 48)).save(file, "JPEG")
    part = b"--x\r\nContent-Type: image/jpeg\r\nContent-Length: %d\r\n\r\n%b\r\n" % (file.tell(), file.getvalue())

    def send(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Type", "multipart/x-mixed-replace; boundary=x")
        request.end_headers()
        for _ in range(15):
            request.wfile.write(part)
            time.sleep(0.1)

    with served({"/live": send}) as address, VideoReader(f"{address}/live", timeout=5) as reader:
        assert (reader.live, reader.fps) == (True, None)
        frames = list(reader)
    assert frames[-1].time - frames[0].time == pytest.approx(frames[-1].decoded - frames[0].decoded, abs=0.05)
    assert frames[-1].time > 0.8
