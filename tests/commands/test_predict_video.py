"""`infersdk predict` on videos."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from command_line import run
from head_models import head_model
from PIL import Image

from infersdk.commands import predict_video
from infersdk.commands.sources import Source
from infersdk.errors import Overloaded
from infersdk.models import YOLOv5

pytest.importorskip("onnxruntime")
pytest.importorskip("av")
from infersdk.data import DETECTOR, IMAGE
from infersdk.video import VideoReader, VideoWriter

if TYPE_CHECKING:
    from rtsp import RtspServer

PREDICT = ("predict", "--model", str(DETECTOR))
#: What the packaged detector finds in the packaged image, frame by frame.
BLANK_FROM = 6


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's image six times, then nothing to be found four times, at a rate that varies."""
    path = tmp_path_factory.mktemp("video") / "in.mp4"
    digits = Image.open(IMAGE).convert("RGB")
    with VideoWriter(path, fps=20) as writer:
        for number in range(10):
            image = digits if number < BLANK_FROM else Image.new("RGB", digits.size, (90, 90, 90))
            writer.write(image, number * 0.05 + (0.5 if number > 4 else 0))
    return path


def test_a_video_is_drawn_and_told_of(video: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / ("a folder with a name that is longer than a line of the terminal " * 2) / "out.mp4"
    target.parent.mkdir()
    assert run(*PREDICT, video, "-o", target) == 0
    shown = capsys.readouterr().out
    assert "10 frames in" in shown
    assert f"→ {target}\n" in shown
    with VideoReader(video) as source, VideoReader(target) as drawn:
        assert drawn.size == source.size
        for number, (before, after) in enumerate(zip(source, drawn, strict=True)):
            assert after.time == pytest.approx(before.time, abs=1e-3)
            changed = abs(after.pixels.astype(int) - before.pixels).mean()
            assert changed > 3 if number < BLANK_FROM else changed < 2


def test_a_line_of_json_for_each_frame(video: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*PREDICT, IMAGE, "--json") == 0
    labels = [box["label"] for box in json.loads(capsys.readouterr().out)[0]["results"]]
    assert run(*PREDICT, video, IMAGE, "--json") == 0
    image, *rows, summary = map(json.loads, capsys.readouterr().out.splitlines())
    assert [row["frame"] for row in rows] == list(range(10))
    assert rows[7]["time"] == pytest.approx(0.85, abs=1e-3)
    for row in rows:
        found = sorted(box["label"] for box in row["results"])
        assert found == (sorted(labels) if row["frame"] < BLANK_FROM else [])
    assert summary["summary"]["frames"] == 10
    assert summary["summary"]["dropped"] == 0
    assert summary["summary"]["fps"] > 0
    assert sum(summary["summary"]["labels"].values()) == BLANK_FROM * len(labels)
    assert image["image"] == str(IMAGE)


def test_videos_are_known_by_what_is_in_them(video: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("video", "video.data"):
        (tmp_path / name).write_bytes(video.read_bytes())
        assert run(*PREDICT, tmp_path / name, "--json") == 0
        assert len(capsys.readouterr().out.splitlines()) == 11
    (tmp_path / "image").write_bytes(IMAGE.read_bytes())
    assert run(*PREDICT, tmp_path / "image", "--json") == 0
    assert len(json.loads(capsys.readouterr().out)) == 1
    assert run(*PREDICT, tmp_path / "video", tmp_path / "image", "-o", tmp_path / "drawn", "--json") == 2
    assert "image' has no suffix, which decides the format" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["none.mp4"], "no video at 'none.mp4'"),
        (["text.mp4"], "cannot be opened as a video"),
        (["text"], "not an image"),
        (["/dev/video97"], "/dev/video97"),
        (["VIDEO", "-o", "out.gif"], "the suffix of a video is one of .mp4"),
        (["VIDEO", "-o", "text/out.mp4"], "cannot write 'text/out.mp4': "),
    ],
)
def test_errors_are_one_line(
    arguments: list[str], words: str, video: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    for name in ("text.mp4", "text"):
        Path(name).write_text("nothing to be seen")
    assert run(*PREDICT, *[video if a == "VIDEO" else a for a in arguments]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.strip().splitlines()[-1].startswith("infersdk: ")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["text", "text.mp4"]


def test_a_damaged_video_is_done_as_far_as_it_goes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    random = np.random.default_rng(0)
    with VideoWriter(tmp_path / "in.mkv", (320, 240), 10) as writer:
        for _ in range(40):
            writer.write(random.integers(0, 255, (240, 320, 3), np.uint8))
    data = (tmp_path / "in.mkv").read_bytes()
    (tmp_path / "in.mkv").write_bytes(data[: len(data) // 2])
    assert run(*PREDICT, tmp_path / "in.mkv", "-o", tmp_path / "out.mp4") == 0
    captured = capsys.readouterr()
    assert "is damaged: it ends after" in " ".join(captured.out.split())
    with VideoReader(tmp_path / "out.mp4") as reader:
        assert 10 < len(list(reader)) < 30


@pytest.fixture(scope="module")
def long_video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("video") / "in.mp4"
    digits = Image.open(IMAGE).convert("RGB")
    with VideoWriter(path, fps=20) as writer:
        for _ in range(400):
            writer.write(digits)
    return path


@pytest.mark.parametrize(
    ("number", "code", "word"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_a_signal_leaves_a_video_of_what_was_done(
    number: int, code: int, word: str, long_video: Path, tmp_path: Path
) -> None:
    """The command writes more lines than the pipe holds, and so it waits for this process."""
    target = tmp_path / "out" / "out.mp4"
    command = [sys.executable, "-m", "infersdk", *PREDICT, str(long_video), "-o", str(target), "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1)
    process.stdout.readline()
    time.sleep(0.5)
    os.kill(process.pid, number)
    out, errors = process.communicate(timeout=30)
    assert process.returncode == code
    assert errors.strip() == f"infersdk: {word}"
    summary = json.loads(out.splitlines()[-1])["summary"]
    assert 0 < summary["frames"] < 400
    with VideoReader(target) as reader:
        assert abs(len(list(reader)) - summary["frames"]) <= 1
    assert [p.name for p in target.parent.iterdir()] == ["out.mp4"]


# ---- several videos ----


def moving(path: Path, shifts: list[int], source: Path = IMAGE) -> Path:
    """The packaged image, shifted by so many pixels from frame to frame."""
    digits = np.asarray(Image.open(source).convert("RGB"))
    height, width = (side // 2 * 2 for side in digits.shape[:2])
    with VideoWriter(path, (width, height), 10) as writer:
        for shift in shifts:
            writer.write(np.roll(digits[:height, :width], shift, axis=1), channel_order="rgb")
    return path


def lines_of(text: str) -> tuple[dict[str, list[dict[str, Any]]], dict[str, dict[str, Any]]]:
    """The rows of each stream, and the summaries."""
    rows: dict[str, list[dict[str, Any]]] = {}
    summaries = {}
    for row in map(json.loads, text.splitlines()):
        if "summary" in row:
            summaries[row["summary"]["stream"]] = row["summary"]
        else:
            rows.setdefault(row["stream"], []).append(row)
    return rows, summaries


def test_several_videos_give_what_each_gives_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In their order, with their track numbers, and drawn."""
    videos = [moving(tmp_path / f"{n}.mp4", [3 * (n + 1) * i for i in range(6 + n)]) for n in range(3)]
    alone = {}
    for video in videos:
        assert run(*PREDICT, video, "--track", "--json") == 0
        alone.update(lines_of(capsys.readouterr().out)[0])
    assert max(box["track_id"] for row in alone[str(videos[2])] for box in row["results"]) >= 0
    target, file = tmp_path / "drawn", tmp_path / "out" / "rows.jsonl"
    assert run(*PREDICT, *videos, "--track", "--json", "--json-lines", file, "-o", target) == 0
    printed = capsys.readouterr().out
    rows, summaries = lines_of(printed)
    assert rows == alone
    assert [len(rows[str(video)]) for video in videos] == [6, 7, 8]
    assert lines_of(file.read_text("utf-8")) == (rows, summaries)
    for video in videos:
        summary = summaries[str(video)]
        assert summary["frames"] == len(rows[str(video)])
        assert summary["output"] == str(target / video.name)
        assert "error" not in summary
        with VideoReader(target / video.name) as drawn, VideoReader(video) as source:
            pairs = list(zip(source, drawn, strict=True))
        assert all(abs(after.pixels.astype(int) - before.pixels).mean() > 3 for before, after in pairs)


def test_more_files_than_are_read_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predict_video, "FILES_AT_ONCE", 2)
    for n in range(5):
        moving(tmp_path / f"{n}.mp4", [0] * (n + 1))
    assert run(*PREDICT, tmp_path) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for n in range(5):
        assert f"{tmp_path / f'{n}.mp4'}: {n + 1} frames in" in shown


def test_a_broken_video_disturbs_no_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = moving(tmp_path / "good.mp4", [0, 3, 6])
    sound = tmp_path / "sound.mp4"
    av = pytest.importorskip("av")
    with av.open(str(sound), "w") as container:
        stream = container.add_stream("aac", rate=16000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        frame.sample_rate = 16000
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            container.mux(packet)
    (tmp_path / "text.mp4").write_text("no video")
    broken = {str(tmp_path / "text.mp4"): "cannot be opened as a video", str(sound): "it contains audio",
              str(tmp_path / "none.mp4"): "no video at"}  # fmt: skip
    assert run(*PREDICT, *broken, good, "--json", "-o", tmp_path / "drawn") == 1
    captured = capsys.readouterr()
    rows, summaries = lines_of(captured.out)
    assert [row["frame"] for row in rows[str(good)]] == [0, 1, 2]
    for name, words in broken.items():
        (row,) = rows[name]
        assert words in row["error"]
        assert words in summaries[name]["error"]
        assert summaries[name]["frames"] == 0
    assert captured.err.startswith("infersdk: ")
    assert all(words in captured.err for words in broken.values())
    assert captured.err.splitlines()[-1] == "infersdk: 3 of 4 sources could not be read, and were skipped"
    assert [path.name for path in (tmp_path / "drawn").iterdir()] == ["good.mp4"]


def test_a_drawing_that_fails_takes_no_results_along(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    videos = [moving(tmp_path / f"{n}.mp4", [0, 3, 6]) for n in range(2)]
    (tmp_path / "drawn" / "0.mp4").mkdir(parents=True)
    assert run(*PREDICT, *videos, "--json", "-o", tmp_path / "drawn") == 2
    rows, summaries = lines_of(capsys.readouterr().out)
    for video in videos:
        assert [row["frame"] for row in rows[str(video)] if "results" in row] == [0, 1, 2]
    assert "0.mp4': it is a folder" in summaries[str(videos[0])]["error"]
    with VideoReader(tmp_path / "drawn" / "1.mp4") as drawn:
        assert len(list(drawn)) == 3


def test_a_drawing_keeps_the_size_of_its_first_frame(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The frames of the source change theirs."""
    digits, source, target = Image.open(IMAGE).convert("RGB"), tmp_path / "in.ts", tmp_path / "out.mp4"
    for size in ((200, 120), (320, 160)):
        with VideoWriter(tmp_path / "part.ts", fps=10) as writer:
            for _ in range(3):
                writer.write(digits.resize(size))
        with source.open("ab") as file:
            file.write((tmp_path / "part.ts").read_bytes())
    assert run(*PREDICT, source, "-o", target, "--json") == 0
    rows, summaries = lines_of(capsys.readouterr().out)
    assert [row["size"] for row in rows[str(source)]] == [[200, 120]] * 3 + [[320, 160]] * 3
    assert summaries[str(source)]["output"] == str(target)
    with VideoReader(target) as drawn:
        assert [frame.size for frame in drawn] == [(200, 120)] * 6


def test_results_that_are_not_drawn(video: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One error for each source, and the results of all frames."""
    (tmp_path / "other.mp4").write_bytes(video.read_bytes())
    model = head_model(tmp_path / "v.onnx", [np.ones(64, np.float32)], {"task": "embedding"})
    assert run("predict", video, tmp_path / "other.mp4", "--model", model, "--json", "-o", tmp_path / "drawn") == 2
    rows, _ = lines_of(capsys.readouterr().out)
    assert [len(row["results"]) for row in rows[str(video)] if "results" in row] == [1] * 10
    (error,) = [row["error"] for row in rows[str(video)] if "error" in row]
    assert "Embedding results are not drawn" in error


def test_frames_without_a_result_are_counted(video: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two frames that the model refuses: an error each, and their number in the summary."""
    other = tmp_path / "other.mp4"
    other.write_bytes(video.read_bytes())
    rows: list[dict[str, Any]] = []
    with YOLOv5(DETECTOR, threads=1) as model:

        class Refuses:
            def submit(self, frame: Any, **parameters: Any) -> Any:
                try:
                    refused.remove(frame.number)
                except KeyError:
                    return model.submit(frame, **parameters)
                raise Overloaded(f"no slot for {frame.number}")

        refused = {3, 5}
        sources = [(Source(str(path), True, PurePosixPath(path.name)), None) for path in (video, other)]
        errors = predict_video.predict_videos(Refuses(), sources, rows.append, None, quiet=False, track=False)
    assert {type(error) for error in errors} == {Overloaded}
    assert sorted(row["frame"] for row in rows if "error" in row) == [3, 5]
    summaries = [row["summary"] for row in rows if "summary" in row]
    assert sum(summary["frames"] for summary in summaries) == 18
    assert sum(summary.get("errors", 0) for summary in summaries) == 2
    assert "without a result" in " ".join(capsys.readouterr().out.split())


def test_one_video_twice(video: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*PREDICT, video, video) == 2
    assert f"two streams are called '{video}'; give each video and camera once" in capsys.readouterr().err
    assert run(*PREDICT, "rtsp://u:secret@h/a", "rtsp://u:other@h/a") == 2
    shown = capsys.readouterr().err
    assert "'rtsp://***@h/a'; give each" in shown
    assert "secret" not in shown


def test_lines_that_cannot_be_written(video: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*PREDICT, video, "--json-lines", tmp_path) == 2
    assert f"{str(tmp_path)!r} is a folder; give the name of a file" in capsys.readouterr().err


def test_decoding_on_a_gpu_needs_a_model_there(video: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*PREDICT, video, "--decode", "gpu") == 2
    assert "--decode gpu: the model is on cpu; give it a GPU by --backend and --device" in capsys.readouterr().err


def test_lines_for_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*PREDICT, IMAGE, "--json", "--json-lines", tmp_path / "rows.jsonl") == 0
    (printed,) = json.loads(capsys.readouterr().out)
    assert json.loads((tmp_path / "rows.jsonl").read_text("utf-8")) == printed


def test_a_camera_beside_a_file(rtsp: RtspServer, tmp_path: Path) -> None:
    """Until Ctrl-C: each with its lines, the camera's with the time of the clock."""
    file = moving(tmp_path / "a.mp4", [0, 3, 6])
    output = ("--json", "-o", str(tmp_path / "drawn"))
    command = [sys.executable, "-m", "infersdk", *PREDICT, str(file), rtsp.url, *output]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1)
    assert process.stdout is not None
    lines: list[str] = []
    while sum("clock" in line for line in lines) < 8 or not any(str(file) in line for line in lines):
        lines.append(process.stdout.readline())
        assert lines[-1], process.stderr.read() if process.stderr else ""
    os.kill(process.pid, signal.SIGINT)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    rows, summaries = lines_of("".join(lines) + out)
    assert [row["frame"] for row in rows[str(file)]] == [0, 1, 2]
    live = rows[rtsp.url]
    times = [row["time"] for row in live]
    assert times == sorted(set(times))
    assert all(abs(row["clock"] - time.time()) < 60 for row in live)
    assert abs(summaries[rtsp.url]["frames"] - len(live)) <= 1
    with VideoReader(summaries[rtsp.url]["output"]) as drawn:
        assert abs(len(list(drawn)) - len(live)) <= 1


def test_a_camera_that_goes_ends_with_an_error(
    rtsp: RtspServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = moving(tmp_path / "a.mp4", [0, 3, 6])
    threading.Timer(3.0, rtsp.stop).start()
    assert run(*PREDICT, file, rtsp.url, "--json", "--give-up", 1) == 1
    captured = capsys.readouterr()
    rows, summaries = lines_of(captured.out)
    assert len(rows[str(file)]) == 3
    assert "error" not in summaries[str(file)]
    assert len(rows[rtsp.url]) > 3
    assert rtsp.url in summaries[rtsp.url]["error"]
    assert captured.err.splitlines()[-1].startswith("infersdk: ")
