"""Progress of long commands: lines in a pipe with an estimate, nothing where quiet."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from typing import TYPE_CHECKING

from infersdk.commands.progress import _Lines, duration, show_progress

if TYPE_CHECKING:
    import pytest


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_durations() -> None:
    assert [duration(s) for s in (0.4, 59.4, 61, 200, 3600, 3900, 86400)] == [
        "0 s", "59 s", "1 min 01 s", "3 min 20 s", "1 h 00 min", "1 h 05 min", "24 h 00 min",
    ]  # fmt: skip


def test_a_line_for_each_stage_with_the_share_of_all_work() -> None:
    out, clock = io.StringIO(), Clock()
    lines = _Lines(out, clock=clock)
    lines.report("loading", 0.0, "net.onnx")
    clock.now += 10
    lines.report("loading", 0.02, "other.onnx")  # the same stage, soon after
    lines.report("round 1 of 5", 0.04)
    clock.now += 10
    lines.report("round 2 of 5", 0.25)
    clock.now += 31
    lines.report("round 2 of 5", 0.5, "late")
    assert out.getvalue().splitlines() == [
        "[0 s] loading (0%): net.onnx", "[10 s] round 1 of 5 (4%)", "[20 s] round 2 of 5 (25%)",
        "[51 s] round 2 of 5 (50%): late",
    ]  # fmt: skip


def test_a_stage_that_counts() -> None:
    out, clock = io.StringIO(), Clock()
    lines = _Lines(out, clock=clock)
    with lines.stage("film.mp4", 1394, "frames") as advance:
        clock.now += 40
        advance(1000)
    with lines.stage("camera", None, "frames") as advance:  # the number of frames is unknown
        clock.now += 30
        advance(1500)
        clock.now += 29
        advance(3000)  # too soon after the last line
        clock.now += 2
        advance(3050)
    assert out.getvalue().splitlines() == [
        "[0 s] film.mp4", "[40 s] film.mp4: 1,000 of 1,394 frames, 25.0 a second",
        "[40 s] film.mp4: done in 40 s", "[40 s] camera", "[1 min 10 s] camera: 1,500 frames, 50.0 a second",
        "[1 min 41 s] camera: 3,050 frames, 50.0 a second", "[1 min 41 s] camera: done in 1 min 01 s",
    ]  # fmt: skip


def test_a_stage_that_knows_its_own_share() -> None:
    out, clock = io.StringIO(), Clock()
    lines = _Lines(out, clock=clock)
    with lines.stage("calibrating", 200) as advance:
        clock.now += 1
        advance(10)  # too soon to say anything
        clock.now += 30
        advance(120)
        clock.now += 9
        advance(200)
    with lines.stage("writing") as advance:
        advance(1)
    assert out.getvalue().splitlines() == [
        "[0 s] calibrating", "[31 s] calibrating: 60%", "[40 s] calibrating: done in 40 s", "[40 s] writing",
    ]  # fmt: skip


def test_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    with show_progress(quiet=True) as progress:
        progress.report("loading", 0.5)
        with progress.stage("calibrating") as advance:
            advance(1)
    assert capsys.readouterr() == ("", "")


PROGRAM = """
from infersdk.commands.progress import show_progress
with show_progress() as progress:
    progress.report("loading", 0.0, "net[1].onnx")
    with progress.stage("calibrating", 4) as advance:
        for done in range(5):
            advance(done)
print("done")
"""


def test_a_bar_on_a_terminal_and_lines_in_a_pipe() -> None:
    command = [sys.executable, "-P", "-c", PROGRAM]
    piped = subprocess.run(command, check=True, capture_output=True, text=True)
    assert piped.stdout == "done\n"
    assert piped.stderr.splitlines() == ["[0 s] loading (0%): net[1].onnx", "[0 s] calibrating"]
    leader, follower = pty.openpty()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=follower, env={**os.environ, "TERM": "xterm"})
    os.close(follower)
    shown = b""
    while True:
        try:
            part = os.read(leader, 4096)
        except OSError:  # the other end is closed
            break
        shown += part
        if not part:
            break
    os.close(leader)
    assert process.communicate()[0] == b"done\n"
    assert process.returncode == 0
    assert b"loading: net[1].onnx" in shown
    assert b"[0 s]" not in shown
