"""The core on other platforms: compiled and linked for each by ziglang, and run where qemu or wine runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from native_programs import CORE, NATIVE, RUNNERS, compiler_of, shared_folder

sys.path.append(str(Path(__file__).parent.parent / "fuzz"))

import same_bits

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

TARGETS = (
    "x86_64-linux-gnu", "x86_64-linux-musl", "aarch64-linux-gnu", "aarch64-linux-musl", "x86_64-macos", "aarch64-macos",
    "x86_64-windows-gnu", "aarch64-windows-gnu",
)  # fmt: skip
PROGRAMS = {"test_core.c": CORE, "test_pixel_math.c": ("status",)}


@pytest.mark.parametrize("target", TARGETS)
def test_the_core_is_a_shared_library(target: str, tmp_path: Path) -> None:
    compiler = compiler_of(False, target)
    if isinstance(compiler, str):
        pytest.skip(compiler)
    command = [
        *compiler, "-shared", "-fPIC", "-std=c11", "-D_GNU_SOURCE", "-O2", "-ffp-contract=off", "-fvisibility=hidden",
        '-DIFS_VERSION="0"', "-Wall", "-Wextra", "-Werror", "-Wno-missing-field-initializers",
        f"-I{NATIVE / 'include'}", f"-I{NATIVE / 'src'}", *map(str, sorted((NATIVE / "src").glob("*.c"))),
        "-o", str(tmp_path / "library"),
    ]  # fmt: skip
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-8000:]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("target", RUNNERS)
def test_a_program_runs(target: str, program: str, build, tmp_path: Path) -> None:
    arguments = [str(tmp_path)] if program == "test_core.c" else []
    command = build(program, sources=PROGRAMS[program], target=target)
    done = subprocess.run([*command, *arguments], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, "good"), done.stderr


@pytest.mark.parametrize("name", same_bits.HARNESSES)
def test_all_platforms_give_the_same_bits(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = shared_folder(tmp_path_factory)
    found = {target: same_bits.sums(name, target, 300, folder) for target in RUNNERS}
    found = {target: text for target, text in found.items() if not text.startswith("needs ")}
    if len(found) < 2:
        pytest.skip("needs ziglang, simde-py, and qemu or wine")
    assert len(set(found.values())) == 1, found
