"""Compiles kernels from source on first use and caches the result by source, compiler and options."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from ..core.cache import Cache, key_of
from ..core.processors import processor_digest
from ..errors import CustomOpError
from .kernels import CSource, CudaSource, include_folder, source_text

__all__ = ["compile_c", "compile_cuda", "nvcc_path", "nvrtc_path"]

#: The C++ types of element types, for the macros of CUDA code.
CUDA_TYPES = {
    "float32": "float", "float16": "__half", "float64": "double", "bool": "bool", "int8": "signed char",
    "int16": "short", "int32": "int", "int64": "long long", "uint8": "unsigned char", "uint16": "unsigned short",
    "uint32": "unsigned int", "uint64": "unsigned long long",
}  # fmt: skip


def compile_c(source: CSource, label: str) -> bytes:
    """Compiles C code to a shared library."""
    wanted = os.environ.get("CC") or "cc"
    compiler = [wanted] if shutil.which(wanted) else shlex.split(wanted)
    result = shutil.which(compiler[0])
    if result is None:
        raise CustomOpError(
            f"{label}: the C compiler {compiler[0]!r} for its kernel is not installed; install gcc or use a CFunction"
        )
    compiler[0] = result
    command = [*compiler, "-shared", "-fPIC", "-std=c11", f"-I{include_folder()}"]
    options = [*_beside(source, "-iquote"), *source.options, "-lm"]
    text = source_text(source.source, label)
    parts = {
        "c": 1, "source": text, "command": command[1:], "options": options,
        "compiler": _version(*compiler), "machine": processor_digest(),
        "header": (include_folder() / "infersdk_custom_op.h").read_text("utf-8"),
    }  # fmt: skip
    # A linker drops libraries that come before the code.
    return _cached(parts, label, lambda: _run_compiler(command, ".c", text, options, label))


def compile_cuda(source: CudaSource, types: dict[str, str], capability: str, label: str) -> bytes:
    """Compiles CUDA code to machine code (a cubin) for a compute capability such as `"9.0"`.

    Args:
        types: the element type of each type variable, which becomes a C++ type of that name.
    """
    architecture = f"sm_{capability.replace('.', '')}"
    # No macros, since CUDA's headers use the name T too.
    names = "".join(f"typedef {CUDA_TYPES[dtype]} {name};\n" for name, dtype in types.items())
    half = "#include <cuda_fp16.h>\n" if "float16" in types.values() else ""
    text = f"{half}{names}#line 1\n{source_text(source.source, label)}"
    compiler = _cuda_compiler(source, label)
    if compiler == "nvcc":
        result = str(nvcc_path())
        command = [result, "-cubin", f"-arch={architecture}", *_beside(source, "-I"), *source.options]
        parts = {"cuda": 1, "source": text, "command": command[1:], "compiler": _version(result)}
        return _cached(parts, label, lambda: _run_compiler(command, ".cu", text, [], label))
    nvrtc = _nvrtc()
    options = [f"--gpu-architecture={architecture}", *_beside(source, "-I"), *source.options]
    options += [f"--include-path={folder}" for folder in _cuda_includes()]
    parts = {"cuda": 1, "source": text, "options": options, "compiler": f"nvrtc {nvrtc.version}"}
    return _cached(parts, label, lambda: nvrtc.compile(text, options, label))


def _beside(source: CSource | CudaSource, option: str) -> list[str]:
    """The option that finds headers in the folder of the source file."""
    return [f"{option}{source.source.resolve().parent}"] if isinstance(source.source, Path) else []


def _cuda_compiler(source: CudaSource, label: str) -> str:
    wanted = source.compiler
    for name, path in (("nvrtc", nvrtc_path), ("nvcc", nvcc_path)):
        if wanted in ("auto", name) and path() is not None:
            return name
    raise CustomOpError(
        f'{label}: its CUDA kernel needs a compiler: pip install "infersdk[nvrtc]" for NVRTC, or put nvcc on PATH'
        if wanted == "auto"
        else f"{label}: its CUDA kernel requires the compiler {wanted!r}, which is not installed"
    )


def _cached(parts: dict[str, object], label: str, make: Callable[[], bytes]) -> bytes:
    data, _, _ = Cache().get_or_make(
        key_of(parts), lambda: (make(), {}), kind="kernel", backend="custom_ops", label=label
    )
    return data


def _run_compiler(command: list[str], suffix: str, text: str, last: list[str], label: str) -> bytes:
    with tempfile.TemporaryDirectory(prefix="infersdk-") as folder:
        code, made = Path(folder, f"kernel{suffix}"), Path(folder, "made")
        code.write_text(text, "utf-8")
        done = subprocess.run(
            [*command, str(code), "-o", str(made), *last], check=False, capture_output=True, text=True
        )
        if done.returncode:
            said = (done.stderr or done.stdout).replace(str(code), f"{label}{suffix}").strip()
            raise CustomOpError(f"{label}: {Path(command[0]).name} does not compile its kernel:\n{said}")
        return made.read_bytes()


@functools.cache
def _version(*compiler: str) -> str:
    return subprocess.run([*compiler, "--version"], check=True, capture_output=True, text=True).stdout


# ---- the CUDA compilers ----


def nvcc_path() -> Path | None:
    """The path of nvcc, from CUDA_HOME or PATH."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    result = shutil.which("nvcc", path=f"{home}/bin" if home else None) or shutil.which("nvcc")
    return Path(result) if result else None


def _nvidia_folders() -> list[Path]:
    """The folders of NVIDIA's packages: nvidia/cu13, nvidia/cuda_nvrtc, ..."""
    spec = importlib.util.find_spec("nvidia")
    roots = [Path(root) for root in (spec.submodule_search_locations or [])] if spec else []
    return [folder for root in roots for folder in sorted(root.glob("*"), reverse=True) if folder.is_dir()]


def _toolkit_folders() -> list[Path]:
    """The folders of CUDA toolkits."""
    homes = [Path(home) for name in ("CUDA_HOME", "CUDA_PATH") if (home := os.environ.get(name))]
    if (nvcc := nvcc_path()) is not None:
        homes += _nvcc_root(nvcc)
    return [*homes, Path("/usr/local/cuda")]


@functools.cache
def _nvcc_root(nvcc: Path) -> list[Path]:
    """The folder of the toolkit, as reported by nvcc, which may be a wrapper in another folder."""
    dry = subprocess.run([str(nvcc), "--dryrun", "-c", "x.cu"], check=False, capture_output=True, text=True).stderr
    top = re.search(r"^#\$ TOP=(.+)$", dry, re.MULTILINE)
    return [Path(top[1].strip())] if top else []


def nvrtc_path() -> Path | None:
    """The path of the NVRTC library, from NVIDIA's packages or a toolkit."""
    folders = [folder / "lib" for folder in _nvidia_folders()]
    folders += [home / name for home in _toolkit_folders() for name in ("lib64", "lib")]
    for folder in folders:
        for file in sorted(folder.glob("libnvrtc.so.*[0-9]"), key=lambda path: len(path.name)):
            return file
    return None


def _cuda_includes() -> list[Path]:
    """Folders with CUDA's headers."""
    folders = [folder / "include" for folder in (*_nvidia_folders(), *_toolkit_folders())]
    return [folder for folder in folders if (folder / "cuda_fp16.h").is_file()][:1]


class _Nvrtc:
    """NVRTC through ctypes; it needs no GPU."""

    def __init__(self, path: Path) -> None:
        for builtins in path.parent.glob("libnvrtc-builtins.so.*"):  # NVRTC would search only system folders
            if ".alt." not in builtins.name:
                ctypes.CDLL(str(builtins), ctypes.RTLD_GLOBAL)
        self._library = ctypes.CDLL(str(path))
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._check(self._library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
        self.version = f"{major.value}.{minor.value}"

    def _check(self, result: int) -> None:
        if result:
            self._library.nvrtcGetErrorString.restype = ctypes.c_char_p
            raise CustomOpError(f"NVRTC fails: {self._library.nvrtcGetErrorString(result).decode()}")

    def _bytes(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._check(getattr(self._library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
        buffer = ctypes.create_string_buffer(size.value)
        self._check(getattr(self._library, f"nvrtcGet{what}")(program, buffer))
        return buffer.raw

    def compile(self, text: str, options: Sequence[str], label: str) -> bytes:
        """Compiles to a cubin."""
        program = ctypes.c_void_p()
        name = f"{label}.cu".encode()
        self._check(self._library.nvrtcCreateProgram(ctypes.byref(program), text.encode(), name, 0, None, None))
        try:
            raw = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
            if self._library.nvrtcCompileProgram(program, len(options), raw):
                log = self._bytes(program, "ProgramLog").rstrip(b"\0").decode(errors="replace").strip()
                raise CustomOpError(f"{label}: NVRTC {self.version} does not compile its kernel:\n{log}")
            return self._bytes(program, "CUBIN")
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(program))


@functools.cache
def _nvrtc() -> _Nvrtc:
    path = nvrtc_path()
    assert path is not None
    return _Nvrtc(path)
