"""Progress of long commands: lines in a pipe with an estimate, nothing where quiet."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from typing import TYPE_CHECKING

from infersdk.commands.progress import _Lines, show_progress

if TYPE_CHECKING:
    import pytest


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


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
        "[0:00:00] loading (0%): net.onnx", "[0:00:10] round 1 of 5 (4%)", "[0:00:20] round 2 of 5 (25%)",
        "[0:00:51] round 2 of 5 (50%): late",
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
        "[0:00:00] film.mp4", "[0:00:40] film.mp4: 1,000 of 1,394 frames, 25.0 a second",
        "[0:00:40] film.mp4: done in 0:00:40", "[0:00:40] camera", "[0:01:10] camera: 1,500 frames, 50.0 a second",
        "[0:01:41] camera: 3,050 frames, 50.0 a second", "[0:01:41] camera: done in 0:01:01",
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
        "[0:00:00] calibrating", "[0:00:31] calibrating: 60%", "[0:00:40] calibrating: done in 0:00:40",
        "[0:00:40] writing",
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
    command = [sys.executable, "-c", PROGRAM]
    piped = subprocess.run(command, check=True, capture_output=True, text=True)
    assert piped.stdout == "done\n"
    assert piped.stderr.splitlines() == ["[0:00:00] loading (0%): net[1].onnx", "[0:00:00] calibrating"]
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
    assert b"[0:00:00]" not in shown
