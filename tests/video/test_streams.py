"""Many videos and cameras through one model."""

from __future__ import annotations

import gc
import io
import os
import socket
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rtsp import RtspServer
from waiting import until

from infersdk import models
from infersdk.data import DETECTOR, IMAGE
from infersdk.errors import ClosedError, ConfigError, Overloaded, VideoError
from infersdk.image import read_image
from infersdk.video import StreamResult, Streams, VideoReader, VideoWriter

av = pytest.importorskip("av")


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
            "ended", 12 + i, 12 + i, 0, 0,
        )  # fmt: skip
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


def test_closing_waits_for_the_threads_that_read(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    paths = [write(tmp_path / f"{i}.mp4", 400) for i in range(3)]
    model = Brightness()
    with Streams(paths) as streams:
        results = streams.run(model)
        next(results)
        assert {thread.name for thread in set(threading.enumerate()) - before} >= {
            f"infersdk-stream-{path}" for path in paths
        }
    left = set(threading.enumerate()) - before
    assert not [thread.name for thread in left if thread.name.startswith("infersdk-")]


def test_closing_ends_a_source_that_is_being_opened(tmp_path: Path) -> None:
    data = write(tmp_path / "a.ts", 40).read_bytes()
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(2) as threads:
        streams = Streams({"camera": f"tcp://127.0.0.1:{server.getsockname()[1]}"})
        results = threads.submit(lambda: list(streams.run(Brightness())))
        connection, _ = server.accept()
        closing = threads.submit(streams.close)
        time.sleep(0.05)  # the stream is stopped before its source sends
        with connection:
            connection.settimeout(10)
            with suppress(ConnectionError):  # the reader closes it
                until(lambda: connection.sendall(data), 5)
                pytest.fail("the reader goes on")
        assert results.result() == []
        closing.result()


def test_leaving_the_results_ends_the_threads_that_read(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    for item in Streams([write(tmp_path / "a.mp4", 100)]).run(Brightness()):
        assert item.result == 0
        break
    left = set(threading.enumerate()) - before
    assert not [thread.name for thread in left if thread.name.startswith("infersdk-")]


def test_errors_have_no_latency(tmp_path: Path) -> None:
    """A frame that is refused at once does not make the model look faster."""

    class Full(Brightness):
        def submit(self, frame: Any, **parameters: Any) -> Future[int]:
            if frame.number % 3:
                raise Overloaded("all slots are taken")
            return super().submit(frame)

    with Streams({"a": write(tmp_path / "a.mp4", 12)}) as streams:
        items = list(streams.run(Full(seconds=0.03)))
        health = streams.health()["a"]
    assert (health.results, health.errors) == (4, 8)
    assert health.p50 == sorted(item.seconds for item in items if item.error is None)[2] > 0.03


def test_settings_are_checked(tmp_path: Path) -> None:
    for sources, words in (
        ([], "there is no stream"),
        ("a.mp4", "not one: \\['a.mp4'\\]"),
        (None, "not one: \\[None\\]"),
        (b"a.mp4", "not one: \\['a.mp4'\\]"),
        (["a.mp4", "b.mp4", "a.mp4"], "two streams are called 'a.mp4'"),
        (["a.mp4", "file:///b.mp4"], "'file:///b.mp4' is the address of a file; give its path"),
        ({"a": "a.mp4", "b": None}, "a video is a path, an address or the number of a camera, not None"),
    ):
        with pytest.raises(ConfigError, match=words):
            Streams(sources)
    for setting, words in (
        ({"in_flight": 0}, "in_flight is a number of frames from 1, not 0"),
        ({"files_at_once": True}, "files_at_once is a number of files from 1, not True"),
        ({"give_up_after": -1}, "give_up_after is a number of seconds from 0, not -1"),
        ({"give_up_after": "5"}, "give_up_after is a number of seconds from 0, not '5'"),
        ({"timeout": -1}, "timeout is a number of seconds above 0, not -1"),
        ({"format": "yuv"}, "unknown format 'yuv'; use one of rgb, bgr, nv12"),
    ):
        with pytest.raises(ConfigError, match=words):
            Streams(["a.mp4"], **setting)


def test_files_wait_for_others(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{i}.mp4", 20, start=i) for i in range(4)]
    ended: list[str] = []
    begun: list[str] = []
    with Streams(paths, files_at_once=2, on_end=ended.append) as streams:
        assert streams.info() == {}
        for item in streams.run(Brightness()):
            assert item.error is None
            if item.stream not in begun:
                begun.append(item.stream)
            assert len(set(streams.info()) - set(ended)) <= 2
            assert item.stream not in ended
        info = streams.info()
    assert sorted(ended) == sorted(begun) == sorted(map(str, paths))
    assert set(begun[:2]) == set(map(str, paths[:2]))
    for path in paths:
        about = info[str(path)]
        assert (about.size, about.fps, about.frames, about.live) == ((64, 48), 10, 20, False)


# ---- live sources ----


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
    with Streams([rtsp.url], timeout=3, options=TCP) as streams:
        results = streams.run(Brightness())
        first = next(results).frame
        for _ in range(5):
            item = next(results)
            assert item.error is None
        rtsp.stop()
        threading.Timer(1.0, lambda: setattr(rtsp, "process", RtspServer(rtsp.port).process)).start()
        begin = time.monotonic()
        last = item.frame
        for item in results:
            assert item.error is None
            assert item.frame.number > last.number
            assert item.frame.time > last.time, "the times go on"
            last = item.frame
            (health,) = streams.health().values()
            if health.connects >= 2:
                break
        assert time.monotonic() - begin < 60
        assert last.time == pytest.approx(last.decoded - first.decoded, abs=1.0)
        assert health.error
        assert health.state == "running"


@contextmanager
def sent_at_once(data: bytes) -> Iterator[str]:
    """The address of a camera that sends this at once, and breaks off."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):  # the test is over
                while True:
                    connection, _ = server.accept()
                    with connection, suppress(OSError):
                        connection.sendall(data)

        threading.Thread(target=serve, daemon=True).start()
        yield f"tcp://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def breaking_off(tmp_path: Path) -> Iterator[str]:
    """The address of a camera that sends four seconds of video at once, and breaks off."""
    with sent_at_once(write(tmp_path / "a.ts", 40).read_bytes()) as address:
        yield address


def transport_stream(videos: int, frames: int) -> bytes:
    file = io.BytesIO()
    with av.open(file, "w", format="mpegts") as container:
        streams = [container.add_stream("mpeg2video", rate=25, width=64, height=64) for _ in range(videos)]
        for number in range(frames):
            frame = av.VideoFrame.from_ndarray(np.full((64, 64, 3), number, np.uint8), format="rgb24")
            frame.pts = number
            container.mux([packet for stream in streams for packet in stream.encode(frame)])
        container.mux([packet for stream in streams for packet in stream.encode()])
    return file.getvalue()


def test_further_videos_appear_in_the_stream_of_a_camera() -> None:
    data = transport_stream(1, 100) + transport_stream(3, 10)
    options = {"probesize": "4000", "fpsprobesize": "0"}  # a camera is read without looking ahead
    with sent_at_once(data) as address, Streams({"camera": address}, timeout=5, options=options) as streams:
        for item in streams.run(Brightness()):
            assert item.error is None
            if streams.health()["camera"].connects == 3:
                break


def test_times_go_on_where_a_source_sends_ahead_of_time(breaking_off: str) -> None:
    times: list[float] = []
    numbers: list[int] = []
    with Streams({"camera": breaking_off}, timeout=5) as streams:
        for item in streams.run(Brightness()):
            assert item.error is None
            times.append(item.frame.time)
            numbers.append(item.frame.number)
            if streams.health()["camera"].connects == 3:
                break
    assert numbers == sorted(set(numbers))
    assert times == sorted(set(times)), "never earlier than a frame before"
    assert times[-1] > 2


@pytest.mark.usefixtures("no_garbage_collector")
def test_a_connection_that_has_ended_keeps_no_memory(breaking_off: str) -> None:
    """Its reader is freed without the garbage collector, which may come late: frames are large, and objects few."""

    def readers() -> int:
        return sum(isinstance(one, VideoReader) for one in gc.get_objects())

    before = readers()
    with Streams({"camera": breaking_off}, timeout=5) as streams:
        for _ in streams.run(Brightness()):
            if streams.health()["camera"].connects == 4:
                break
        assert readers() - before <= 1


def test_without_reconnecting_it_ends_with_an_error(rtsp: RtspServer) -> None:
    with Streams([rtsp.url], timeout=3, give_up_after=0, options=TCP) as streams:
        results = streams.run(Brightness())
        next(results)
        rtsp.stop()
        last = list(results)[-1]
    assert last.frame is None
    assert isinstance(last.error, VideoError)


def test_a_source_that_was_never_there(tmp_path: Path) -> None:
    url = RtspServer.free_url()
    begin = time.monotonic()
    with Streams([url], retry_first=False, options=TCP) as streams:
        (item,) = streams.run(Brightness())
    assert isinstance(item.error, VideoError)
    with Streams({"camera": url}, give_up_after=1, options=TCP) as streams:
        (item,) = streams.run(Brightness())
        health = streams.health()["camera"]
    assert url in str(item.error)
    assert (health.state, health.connects) == ("failed", 0)
    assert 0.5 < time.monotonic() - begin < 10


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="this system has no /dev/shm")
def test_a_file_below_dev_is_opened_once() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        video, text = write(Path(folder, "a.mp4"), 12), Path(folder, "b.mp4")
        text.write_text("no video")
        begin = time.monotonic()
        with Streams({"video": video, "text": text}, give_up_after=20) as streams:
            results = streams.run(Brightness())
            items = by_stream(islice(results, 13))
            assert next(results, None) is None
    assert [item.frame.number for item in items["video"]] == list(range(12))
    (failed,) = items["text"]
    assert isinstance(failed.error, VideoError)
    assert time.monotonic() - begin < 10, "it was not opened again"


def test_passwords_are_not_shown() -> None:
    url = RtspServer.free_url().replace("//", "//someone:secret@")
    with Streams([url], give_up_after=0, options=TCP) as streams:
        (item,) = streams.run(Brightness())
        shown = f"{streams!r} {streams.health()} {item.stream} {item.error}"
    assert "***@127.0.0.1" in shown
    assert "secret" not in shown


def test_a_wrong_setting_is_raised(tmp_path: Path) -> None:
    class Strict(Brightness):
        def submit(self, frame: Any, **parameters: Any) -> Future[int]:
            future: Future[int] = Future()
            future.set_exception(ConfigError(f"conf is {parameters['conf']}"))
            return future

    with Streams([write(tmp_path / "a.mp4", 5)]) as streams, pytest.raises(ConfigError, match="conf is 5"):
        next(streams.run(Strict(), conf=5))


def test_a_model_that_cannot_be_called_ends_the_stream(tmp_path: Path) -> None:
    class Closed(Brightness):
        def submit(self, frame: Any, **parameters: Any) -> Future[int]:
            raise ClosedError("it was closed")

    with Streams([write(tmp_path / "a.mp4", 5)]) as streams:
        (item,) = streams.run(Closed())
    assert item.frame is None
    assert isinstance(item.error, ClosedError)


def test_a_model_that_fails_in_the_thread_of_results_ends_the_stream(breaking_off: str) -> None:
    """That thread gives the frames that have waited."""

    class ClosedHere(Brightness):
        def submit(self, frame: Any, **parameters: Any) -> Future[int]:
            if threading.current_thread() is threading.main_thread():
                raise ClosedError("it was closed")
            return super().submit(frame)

    with Streams({"camera": breaking_off}, in_flight=1, give_up_after=0, timeout=5) as streams:
        items = list(streams.run(ClosedHere(seconds=0.05)))
    assert all(item.error is None for item in items[:-1])
    assert isinstance(items[-1].error, ClosedError)
    assert streams.health()["camera"].state == "failed"
