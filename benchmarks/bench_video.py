"""`infersdk detect` on a video, against the loop that OpenCV's users write around the same detector.

    pytest benchmarks/bench_video.py -q -s

Both decode, detect, draw with the same code, and encode; the rounds alternate, so that both see the same machine.
"""

from __future__ import annotations

from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from infersdk.cli import main
from infersdk.models import YOLOv5
from infersdk.video import VideoReader, VideoWriter

if TYPE_CHECKING:
    from pathlib import Path

cv2 = pytest.importorskip("cv2")
FRAMES, ROUNDS = 100, 7


def plain(video: Path, target: Path, model: YOLOv5) -> None:
    capture = cv2.VideoCapture(str(video))
    size = int(capture.get(cv2.CAP_PROP_FRAME_WIDTH)), int(capture.get(cv2.CAP_PROP_FRAME_HEIGHT))
    writer = cv2.VideoWriter(str(target), cv2.VideoWriter_fourcc(*"mp4v"), capture.get(cv2.CAP_PROP_FPS), size)
    while True:
        there, frame = capture.read()
        if not there:
            break
        drawn = model(frame).draw(frame)
        writer.write(cv2.cvtColor(np.asarray(drawn), cv2.COLOR_RGB2BGR))
    writer.release()


def test_detect_on_a_video(assets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    video, weights = tmp_path / "in.mp4", assets / "models" / "yolov5n.onnx"
    with VideoReader(assets / "video" / "people.mp4") as reader, VideoWriter(video, reader.size, reader.fps) as writer:
        for frame in reader:
            writer.write(frame, frame.time)
            if frame.number == FRAMES - 1:
                break
    names = str(assets / "models" / "coco80.txt")
    command = ["detect", str(video), "-o", str(tmp_path / "ours.mp4"), "--model", str(weights), "--names", names]
    spent: dict[str, list[float]] = {"infersdk detect": [], "plain loop": [], "plain loop, allow_spinning=False": []}

    def timed(name: str, work: Any) -> None:
        start = perf_counter()
        work()
        spent[name].append(perf_counter() - start)

    with YOLOv5(weights, names=names) as model, YOLOv5(weights, names=names, allow_spinning=False) as calm:
        for _ in range(ROUNDS):
            timed("infersdk detect", lambda: main(command))  # loads the model each time, too
            timed("plain loop", lambda: plain(video, tmp_path / "plain.mp4", model))
            timed("plain loop, allow_spinning=False", lambda: plain(video, tmp_path / "plain.mp4", calm))
    capsys.readouterr()  # the command's own output
    for name, seconds in spent.items():
        ratio = median(theirs / ours for ours, theirs in zip(spent["infersdk detect"], seconds, strict=True))
        print(f"\n{name}: {FRAMES / median(seconds):.1f} fps; infersdk detect is {ratio:.2f} times as fast", end="")
    print()
