"""The C programs of this folder: the plain interface, and mutated files, under the sanitizers."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

import pytest


def run(command: list[str], *arguments: str) -> str:
    """Its standard output; a failure or a sanitizer's report fails the test."""
    # An allocation that is too large shall be answered by the core, as it would be without the sanitizer.
    options = {"ASAN_OPTIONS": "allocator_may_return_null=1", "TSAN_OPTIONS": "halt_on_error=1"}
    done = subprocess.run(
        [*command, *arguments], check=False, capture_output=True, text=True, timeout=200, env=os.environ | options
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-8000:]
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("sanitize", ["address,undefined", "thread"])
def test_the_plain_interface(build, sanitize: str, tmp_path: Path) -> None:
    assert run(build("test_core.c", sanitize=sanitize), str(tmp_path)) == "good\n"


def test_mutated_tensor_files(build, tmp_path: Path) -> None:
    program = build("../fuzz/native/fuzz_tensor_file.c", sanitize="address,undefined")
    words = run(program, "1", "0", "20000", "0", str(tmp_path)).split()
    assert (words[0], words[1]) == ("20000", "cases,")
    assert int(words[2]) > 1000  # both answers are really asked for
    assert int(words[4]) > 10_000


def test_a_memory_with_a_device_whose_work_runs_late(build) -> None:
    sources = ("status", "library", "convert", "budget", "memory", "tensor", "platform")
    assert run(build("test_late_device.c", sanitize="address,undefined", sources=sources), "20000") == "good\n"


@pytest.mark.parametrize("sanitize", ["", "undefined"])
def test_the_arithmetic_of_preprocessing(build, sanitize: str) -> None:
    assert run(build("test_pixel_math.c", sanitize=sanitize, sources=("status",))) == "good\n"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="x86-64 has variants to choose from")
@pytest.mark.parametrize("target", ["", "x86_64-linux-musl"])
def test_the_best_variant_is_the_one_that_linux_tells(build, target: str) -> None:
    """Each compiler's way to ask the processor is another one."""
    flags = set(Path("/proc/cpuinfo").read_text().partition("flags")[2].partition("\n")[0].split())
    best = "plain"
    if flags >= {"avx2", "fma", "f16c", "bmi2", "popcnt"}:
        best = "avx512" if flags >= {f"avx512{part}" for part in ("f", "dq", "bw", "vl", "vbmi")} else "avx2"
    assert run(build("test_simd.c", sources=("status", "library"), target=target)) == f"{best}\n"
