"""Compiles the C and C++ programs of this folder, together with the core's own sources, for the tests that run them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
NATIVE = HERE.parent.parent / "native"
VERSION = re.search(r'^version = "(.+?)"', (HERE.parent.parent / "pyproject.toml").read_text("utf-8"), re.M)[1]  # type: ignore[index]

#: What memory, tensors, conversion and files are made of. A test of more names more.
CORE = ("status", "library", "convert", "memory", "tensor", "tensor_file", "cuda_missing")

Build = Callable[..., list[str]]


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """`build("test_core.c", sanitize="address", sources=CORE)`: the command that runs the program, compiled once.

    The test skips where there is no compiler, or no such sanitizer that works.
    """
    folder = tmp_path_factory.mktemp("native")
    built: dict[tuple[object, ...], list[str] | str] = {}

    def once(program: str, *, sanitize: str = "", sources: Sequence[str] = CORE) -> list[str]:
        key = (program, sanitize, *sources)
        if key not in built:
            built[key] = _build(folder, program, sanitize, sources)
        found = built[key]
        if isinstance(found, str):
            pytest.skip(found)
        return found

    return once


def _build(folder: Path, program: str, sanitize: str, sources: Sequence[str]) -> list[str] | str:
    """The command, or why there is none."""
    cxx = program.endswith(".cpp")
    compiler = shutil.which(os.environ.get("CXX" if cxx else "CC", "c++" if cxx else "cc"))
    if compiler is None:
        return f"needs a {'C++' if cxx else 'C'} compiler"
    flags = ["-g", "-O1", f"-I{NATIVE / 'include'}", f"-I{NATIVE / 'src'}", f'-DIFS_VERSION="{VERSION}"']
    flags += ["-Wall", "-Wextra", "-Werror", "-Wno-missing-field-initializers", "-ffp-contract=off"]
    if sanitize:
        flags += [f"-fsanitize={sanitize}", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all"]
    runner: list[str] = []
    if sanitize:
        runner_or_why = _runner(folder, compiler, sanitize)
        if isinstance(runner_or_why, str):
            return runner_or_why
        runner = runner_or_why
    inputs = [HERE / program, *(NATIVE / "src" / f"{name}.c" for name in sources)]
    stem = f"{Path(program).stem}-{sanitize.replace(',', '-')}"
    objects = [folder / f"{stem}-{source.stem}.o" for source in inputs]

    def compile_one(source: Path, target: Path) -> None:
        standard = "-std=c++17" if source.suffix == ".cpp" else "-std=c11"
        extra = [] if cxx else ["-D_GNU_SOURCE"]
        _call([compiler, standard, *extra, *flags, "-c", str(source), "-o", str(target)])

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(compile_one, inputs, objects))
    target = folder / stem
    _call([compiler, *flags, *map(str, objects), "-o", str(target), "-lm", "-lpthread"])
    return [*runner, str(target)]


def _runner(folder: Path, compiler: str, sanitize: str) -> list[str] | str:
    """What to put before a sanitized program: the thread sanitizer does not bear every layout of addresses."""
    source = folder / "trivial.c"
    source.write_text("int main(void) { return 0; }\n")
    target = folder / f"trivial-{sanitize.replace(',', '-')}"
    command = [compiler, "-x", "c", str(source), f"-fsanitize={sanitize}", "-o", str(target)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        return f"the compiler has no -fsanitize={sanitize}"
    setarch = shutil.which("setarch")
    for prefix in ([], [setarch, "-R"] if setarch else []):
        if subprocess.run([*prefix, str(target)], check=False, capture_output=True).returncode == 0:
            return prefix
    return f"programs of -fsanitize={sanitize} do not run here"


def _call(command: list[str]) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
