"""Many videos and cameras through one model."""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infersdk import models
from infersdk.data import DETECTOR, IMAGE
from infersdk.errors import ClosedError, ConfigError, VideoError
from infersdk.image import read_image
from infersdk.video import StreamResult, Streams, VideoWriter

pytest.importorskip("av")


def write(path: Path, count: int, size: tuple[int, int] = (64, 48), start: int = 0) -> Path:
    """A video whose frames tell their number by their brightness."""
    with VideoWriter(path, size, 10) as writer:
        for number in range(count):
            writer.write(np.full((size[1], size[0], 3), 20 + 11 * ((start + number) % 20), np.uint8))
    return path


class Brightness:
    """A model that says how bright a frame is, on several threads and after times of chance."""

    def __init__(self, fail: int | None = None, seconds: float = 0.0) -> None:
        self.fail, self.seconds = fail, seconds
        self.threads = ThreadPoolExecutor(4)
        self.random = np.random.default_rng(0)

    def submit(self, frame: Any, **parameters: Any) -> Future[int]:
        return self.threads.submit(self._run, frame.pixels, float(self.random.random()) * 0.005 + self.seconds)

    def _run(self, pixels: np.ndarray, seconds: float) -> int:
        time.sleep(seconds)
        number = round((float(pixels.mean()) - 20) / 11)
        if number == self.fail:
            raise ValueError(f"number {number}")
        return number


def by_stream(items: Iterator[StreamResult[Any]]) -> dict[str, list[StreamResult[Any]]]:
    sorted_items = defaultdict(list)
    for item in items:
        sorted_items[item.stream].append(item)
    return sorted_items


def test_each_file_gives_all_its_frames_in_order(tmp_path: Path) -> None:
    sources = {f"s{i}": write(tmp_path / f"{i}.mp4", 12 + i, start=i) for i in range(5)}
    with Streams(sources, in_flight=3) as streams:
        items = by_stream(streams.run(Brightness()))
        health = streams.health()
    assert set(items) == set(sources) == set(streams.names)
    for i in range(5):
        results = items[f"s{i}"]
        assert [item.result for item in results] == [(i + n) % 20 for n in range(12 + i)]
        assert [item.frame.number for item in results] == list(range(12 + i))
        assert all(item.seconds > 0 and item.error is None for item in results)
        state = health[f"s{i}"]
        assert (state.state, state.frames, state.results, state.errors, state.dropped) == (
            "ended",
            12 + i,
            12 + i,
            0,
            0,
        )
        assert 0 < state.p50 <= state.p99
        assert state.connects == 1


def test_a_real_model_gives_what_it_gives_for_each_frame(tmp_path: Path) -> None:
    image = read_image(IMAGE).pixels[..., :3]
    height, width = (side // 2 * 2 for side in image.shape[:2])
    paths = []
    for i in range(3):
        with VideoWriter(tmp_path / f"{i}.mp4", (width, height), 10) as writer:
            for n in range(4):
                writer.write(np.roll(image[:height, :width], 9 * (n + i), axis=1))
        paths.append(tmp_path / f"{i}.mp4")
    with models.YOLOv5(DETECTOR, max_batch=4, threads=1) as model, Streams(paths) as streams:
        count = 0
        for item in streams.run(model, conf=0.3):
            expected = model(item.frame, conf=0.3)
            assert len(item.result) == len(expected) > 0
            np.testing.assert_allclose(item.result.xyxy, expected.xyxy, atol=1e-3)
            count += 1
    assert count == 12


def test_what_fails_in_one_stream_disturbs_no_other(tmp_path: Path) -> None:
    good = write(tmp_path / "good.mp4", 10)
    cut = write(tmp_path / "cut.mkv", 200)
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size // 2])
    (tmp_path / "text.mp4").write_text("no video")
    sources = {"good": good, "cut": cut, "text": tmp_path / "text.mp4", "missing": tmp_path / "none.mp4"}
    with Streams(sources) as streams:
        items = by_stream(streams.run(Brightness(fail=7)))
        health = streams.health()
    assert [item.result for item in items["good"]] == [0, 1, 2, 3, 4, 5, 6, None, 8, 9]
    assert str(items["good"][7].error) == "number 7"
    assert items["good"][7].frame.number == 7
    assert health["good"].errors == 1
    assert 20 < len(items["cut"]) < 200
    assert "ends after" in health["cut"].error
    for name, words in (("text", "cannot be opened as a video"), ("missing", "no video at")):
        (only,) = items[name]
        assert only.frame is None
        assert isinstance(only.error, VideoError)
        assert words in str(only.error)
        assert words in health[name].error
        assert health[name].state == "failed"


def test_a_slow_reader_bounds_what_is_under_way(tmp_path: Path) -> None:
    with Streams([write(tmp_path / "a.mp4", 40)], in_flight=2) as streams:
        results = streams.run(Brightness())
        next(results)
        time.sleep(0.3)
        (health,) = streams.health().values()
        assert health.frames <= 4
        assert len(list(results)) == 39


def test_closing_ends_the_iteration(tmp_path: Path) -> None:
    streams = Streams([write(tmp_path / "a.mp4", 400)])
    seen = []
    for item in streams.run(Brightness()):
        seen.append(item)
        if len(seen) == 5:
            streams.close()
    assert len(seen) < 30
    with pytest.raises(ClosedError, match="make new ones"):
        next(streams.run(Brightness()))


def test_settings_are_checked(tmp_path: Path) -> None:
    for sources, words in (
        ([], "there is no stream"),
        ("a.mp4", "not one: \\['a.mp4'\\]"),
        (["a.mp4", "b.mp4", "a.mp4"], "two streams are called 'a.mp4'"),
    ):
        with pytest.raises(ConfigError, match=words):
            Streams(sources)
    with pytest.raises(ConfigError, match="in_flight is a number of frames from 1, not 0"):
        Streams(["a.mp4"], in_flight=0)


# ---- live sources ----


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class RtspServer:
    """GStreamer's RTSP server, in a process of the system's Python."""

    def __init__(self, port: int) -> None:
        self.url = f"rtsp://127.0.0.1:{port}/test"
        python = shutil.which("python3", path="/usr/bin")
        script = Path(__file__).with_name("rtsp_server.py")
        self.process = subprocess.Popen(
            [python or "python3", str(script), str(port)], stdout=subprocess.PIPE, text=True
        )
        if self.process.stdout is None or self.process.stdout.readline() != "ready\n":
            self.stop()
            pytest.skip("GStreamer's RTSP server is not installed (gir1.2-gst-rtsp-server-1.0, python3-gi)")

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


@pytest.fixture
def rtsp() -> Iterator[RtspServer]:
    server = RtspServer(free_port())
    yield server
    server.stop()


TCP = {"rtsp_transport": "tcp"}


def test_a_live_source_gives_its_newest_frames(rtsp: RtspServer, tmp_path: Path) -> None:
    """Beside a file, through a model that takes four times as long as a frame lasts."""
    sources = {"camera": rtsp.url, "file": write(tmp_path / "a.mp4", 10)}
    items = defaultdict(list)
    with Streams(sources, in_flight=1, options=TCP) as streams:
        for item in streams.run(Brightness(seconds=0.2)):
            items[item.stream].append(item)
            if len(items["camera"]) == 12:
                break
        health = streams.health()
    assert [item.result for item in items["file"]] == list(range(10))
    numbers = [item.frame.number for item in items["camera"]]
    assert numbers == sorted(set(numbers))
    assert numbers[-1] > 1.5 * len(numbers)
    assert health["camera"].dropped > 5
    assert health["camera"].state == "running"
    assert all(item.seconds < 3 for item in items["camera"])


def test_a_camera_that_breaks_off_is_opened_anew(rtsp: RtspServer) -> None:
    port = int(rtsp.url.split(":")[2].split("/")[0])
    with Streams([rtsp.url], timeout=3, options=TCP) as streams:
        results = streams.run(Brightness())
        for _ in range(5):
            assert next(results).error is None
        rtsp.stop()
        threading.Timer(1.0, lambda: setattr(rtsp, "process", RtspServer(port).process)).start()
        begin = time.monotonic()
        for item in results:
            assert item.error is None
            (health,) = streams.health().values()
            if health.connects >= 2 and item.frame.number > 3:
                break
        assert time.monotonic() - begin < 60
        assert health.error
        assert health.state == "running"


def test_without_reconnecting_it_ends_with_an_error(rtsp: RtspServer) -> None:
    with Streams([rtsp.url], timeout=3, reconnect=False, options=TCP) as streams:
        results = streams.run(Brightness())
        next(results)
        rtsp.stop()
        last = list(results)[-1]
    assert last.frame is None
    assert isinstance(last.error, VideoError)
