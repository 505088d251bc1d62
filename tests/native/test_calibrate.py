"""The calibration functions as a C program sees them, plain and under the sanitizers."""

from __future__ import annotations

import subprocess

import pytest

SOURCES = ("status", "library", "calibrate", "calibrate_simd", "entropy")


@pytest.mark.parametrize("sanitize", ["", "address,undefined"])
def test_calibration(build, sanitize: str) -> None:
    command = build("test_calibrate.c", sanitize=sanitize, sources=SOURCES)
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stdout, done.stderr) == (0, "good\n", "")
