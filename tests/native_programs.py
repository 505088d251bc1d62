"""Compiles C and C++ programs together with the core's own sources, for the tests and the fuzzing that run them."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).resolve().parent.parent
HERE = ROOT / "tests" / "native"
NATIVE = ROOT / "native"
VERSION = re.search(r'^version = "(.+?)"', (ROOT / "pyproject.toml").read_text("utf-8"), re.M)[1]  # type: ignore[index]

#: What memory, tensors, conversion and files are made of. A test of more names more.
CORE = (
    "status", "library", "convert", "budget", "memory", "tensor", "tensor_file", "platform", "cuda_missing",
    "calibrate", "calibrate_simd", "entropy",
)  # fmt: skip

#: The targets of ziglang whose programs are run: by what, and where that may lie beside PATH.
RUNNERS = {"x86_64-linux-musl": "", "aarch64-linux-musl": "qemu-aarch64-static", "x86_64-windows-gnu": "wine64"}
RUNNER_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/lib/wine"])


def shared_folder(factory: pytest.TempPathFactory) -> Path:
    """The folder of compiled programs of this test run; the workers of xdist share it and compile each file once."""
    base = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    folder = base / "native_programs"
    folder.mkdir(exist_ok=True)
    return folder


@contextmanager
def _locked(target: Path) -> Iterator[None]:
    """One process at a time makes a file."""
    with open(f"{target}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def build_program(
    folder: Path,
    program: str | Path,
    sanitize: str = "",
    sources: Sequence[str] = CORE,
    optimize: str = "-O1",
    target: str = "",
) -> list[str] | str:
    """The command that runs a program, compiled now into `folder`; or why there is none.

    Several processes may build into one folder at the same time. What is there and up to date is not made again.

    Args:
        program: a path, or the name of a program in tests/native.
        sources: of native/src, without suffix.
        target: one of `RUNNERS`; without it, the compiler of this machine.
    """
    program = HERE / program
    cxx = program.suffix == ".cpp"
    compiler = compiler_of(cxx, target)
    if isinstance(compiler, str):
        return compiler
    flags = [
        "-g0" if target else "-g", optimize, f"-I{HERE}", f"-I{NATIVE / 'include'}", f"-I{NATIVE / 'src'}",
        f'-DIFS_VERSION="{VERSION}"', "-Wall", "-Wextra", "-Werror", "-Wno-missing-field-initializers",
        "-ffp-contract=off",
    ]  # fmt: skip
    if sanitize:
        flags += [f"-fsanitize={sanitize}", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all"]
    runner: list[str] = []
    if target and RUNNERS[target]:
        command = shutil.which(RUNNERS[target], path=RUNNER_PATH)
        if command is None:
            return f"needs {RUNNERS[target]}"
        runner = ["env", "WINEDEBUG=-all", f"WINEPREFIX={folder}/wine", command]
    if sanitize:
        with _locked(folder / f"trivial-{sanitize.replace(',', '-')}"):
            runner_or_why = _runner(folder, compiler, sanitize)
        if isinstance(runner_or_why, str):
            return runner_or_why
        runner = runner_or_why
    inputs = [program, *(NATIVE / "src" / f"{name}.c" for name in sources)]
    kind = f"{target}{sanitize.replace(',', '-')}{optimize}"
    objects = [folder / f"{source.parent.name}-{source.name}-{kind}.o" for source in inputs]
    newest = max(path.stat().st_mtime for folder in (HERE, NATIVE, program.parent) for path in folder.rglob("*.[ch]*"))

    def compile_one(source: Path, target: Path) -> None:
        with _locked(target):
            if target.exists() and target.stat().st_mtime > newest:
                return
            standard = "-std=c++17" if source.suffix == ".cpp" else "-std=c11"
            extra = [] if cxx else ["-D_GNU_SOURCE"]
            _call([*compiler, standard, *extra, *flags, "-c", str(source), "-o", str(target)])

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(compile_one, inputs, objects))
    binary = folder / f"{program.stem}-{kind}-{zlib.crc32(' '.join(sources).encode()):08x}.exe"
    with _locked(binary):
        compiled = max(path.stat().st_mtime for path in objects)
        if not binary.exists() or binary.stat().st_mtime < compiled:
            _call([*compiler, *flags, *map(str, objects), "-o", str(binary), "-lm", "-lpthread"])
    return [*runner, str(binary)]


def compiler_of(cxx: bool, target: str) -> list[str] | str:
    """The command of a compiler, or why there is none."""
    if not target:
        command = shutil.which(os.environ.get("CXX" if cxx else "CC", "c++" if cxx else "cc"))
        return f"needs a {'C++' if cxx else 'C'} compiler" if command is None else [command]
    simde = find_spec("simde_py")
    if find_spec("ziglang") is None or simde is None or simde.origin is None:
        return "needs the packages ziglang and simde-py"
    return [
        sys.executable, "-m", "ziglang", "c++" if cxx else "cc", "-target", target, "-fno-sanitize=undefined",
        "-isystem", f"{Path(simde.origin).parent}/simde",
    ]  # fmt: skip


def _runner(folder: Path, compiler: list[str], sanitize: str) -> list[str] | str:
    """What to put before a sanitized program: the thread sanitizer does not bear every layout of addresses."""
    source = folder / "trivial.c"
    source.write_text("int main(void) { return 0; }\n")
    target = folder / f"trivial-{sanitize.replace(',', '-')}"
    command = [*compiler, "-x", "c", str(source), f"-fsanitize={sanitize}", "-o", str(target)]
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
