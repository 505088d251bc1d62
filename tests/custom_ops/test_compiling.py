"""Kernels in source: compiled without a GPU, cached by content, and errors with the output of the compiler."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from infersdk.core.cache import Cache
from infersdk.custom_ops import CSource, CudaSource, CustomOp, Launch
from infersdk.custom_ops.compiling import compile_c, compile_cuda, nvcc_path, nvrtc_path
from infersdk.custom_ops.kernels import launch_rule
from infersdk.custom_ops.shapes import symbols
from infersdk.errors import CustomOpError

CODE = r"""
extern "C" __global__ void scale(const T *x, T *y, long long count, float factor) {
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < count)
        y[i] = (T)(factor * (float)x[i]);
}
"""


def source(code: str = CODE, **changes: Any) -> CudaSource:
    launch = changes.pop("launch", lambda op, x, y: Launch(threads=y.size, arguments=(x, y, y.size, op.factor)))
    return CudaSource(code, function="scale", launch=launch, **changes)


@pytest.fixture(params=["nvrtc", "nvcc"])
def compiler(request: pytest.FixtureRequest) -> str:
    if (nvrtc_path() if request.param == "nvrtc" else nvcc_path()) is None:
        pytest.skip(f"no {request.param} here")
    return str(request.param)


def test_it_is_kept_by_content(compiler: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("INFERSDK_CACHE", str(tmp_path))
    first = compile_cuda(source(compiler=compiler), {"T": "float32"}, "9.0", "tests::scale")
    assert first[:4] == b"\x7fELF"
    assert b"scale" in first
    assert compile_cuda(source(compiler=compiler), {"T": "float32"}, "9.0", "tests::scale") == first
    assert len(Cache().entries()) == 1
    for changed, types, capability in (
        (source(CODE + "\n// more", compiler=compiler), {"T": "float32"}, "9.0"),
        (source(compiler=compiler), {"T": "float16"}, "9.0"),
        (source(compiler=compiler), {"T": "float32"}, "8.0"),
    ):
        compile_cuda(changed, types, capability, "tests::scale")
    assert len(Cache().entries()) == 4


def test_an_error_has_the_compilers_words_and_the_line(compiler: str) -> None:
    with pytest.raises(CustomOpError, match=r"(?s)tests::scale: .* does not compile its kernel:.*undefined_name"):
        compile_cuda(
            source("__global__ void f() { undefined_name = 1; }", compiler=compiler), {}, "9.0", "tests::scale"
        )


def test_no_compiler_at_all() -> None:
    code = """
import infersdk.custom_ops.compiling as c
from infersdk.custom_ops import CudaSource
c.nvrtc_path = c.nvcc_path = lambda: None
for compiler in ("auto", "nvrtc"):
    try:
        c.compile_cuda(CudaSource("", "f", lambda: 0, compiler=compiler), {}, "9.0", "tests::f")
    except Exception as error:
        print(error)
"""
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=os.environ)
    first, second = said.stdout.splitlines()
    assert 'pip install "infersdk[nvrtc]" for NVRTC, or put nvcc on PATH' in first
    assert "requires the compiler 'nvrtc', which is not installed" in second


# ---- C ----

C_CODE = """
#include "factor.h"
#ifndef GIVEN
#error "not given"
#endif
int f(void) { return FACTOR; }
"""


def test_headers_beside_the_file_and_a_compiler_with_arguments(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("INFERSDK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CC", "cc -DGIVEN")
    (tmp_path / "factor.h").write_text("#define FACTOR 2\n")
    (file := tmp_path / "f.c").write_text(C_CODE)
    assert compile_c(CSource(file, "f"), "tests::f")[:4] == b"\x7fELF"


def test_options_name_libraries(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("INFERSDK_CACHE", str(tmp_path / "cache"))
    (tmp_path / "libg.so").write_bytes(compile_c(CSource("int g(void) { return 3; }", "g"), "tests::g"))
    options = ("-Wl,--as-needed", f"-L{tmp_path}", "-lg", f"-Wl,-rpath,{tmp_path}")
    (file := tmp_path / "f.so").write_bytes(
        compile_c(CSource("int g(void); int f(void) { return g(); }", "f", options=options), "tests::f")
    )
    assert ctypes.CDLL(str(file)).f() == 3


def test_a_compiler_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "nonesuch -m64")
    with pytest.raises(CustomOpError, match="tests::f: the C compiler 'nonesuch' for its kernel is not installed"):
        compile_c(CSource(C_CODE, "f"), "tests::f")


# ---- launches ----


OTHER = symbols([2])[0]


class Scale(CustomOp):
    domain = "tests.launch"
    inputs = {"x": "T"}
    outputs = {"y": "T"}
    types = {"T": ("float32", "float16")}
    factor: float = 2.0
    cuda = source()

    def shape(self, x: Any) -> Any:
        return x

    def cpu(self, x: Any, y: Any) -> None:
        y[...] = self.factor * x


@pytest.mark.parametrize(
    ("launch", "message"),
    [
        (lambda op, x, y: 3, "launch returns 3; it returns a Launch"),
        (lambda op, x, y: Launch(arguments=(x,)), "must return either threads or grid"),
        (lambda op, x, y: Launch(threads=1, grid=(1,)), "either threads or grid"),
        (lambda op, x, y: Launch(threads=1, block=2048), "a block has 1 to 1024 threads"),
        (lambda op, x, y: Launch(grid=(1, 2, 3, 4)), "it must have one to three sizes"),
        (lambda op, x, y: Launch(threads=1, arguments=("x",)), "an argument is an input, an output, a size, an int or"),
        (lambda op, x, y: Launch(threads=1, arguments=(1e300,)), "1e[+]300; .* a float within the range of float32"),
        (lambda op, x, y: Launch(threads=x.size / 2), "launch raises TypeError: unsupported operand"),
        (lambda op, x, y: Launch(threads=2.5), "launch returns the size 2.5; a size is an int or"),
        (lambda op, x, y: Launch(grid=(1.5,)), "launch returns the size 1.5; a size is an int or"),
        (lambda op, x, y: Launch(threads=1, shared=2.5), "launch returns the size 2.5; a size is an int or"),
        (lambda op, x, y: Launch(thread=1), "launch raises TypeError: .*'thread'"),
        (lambda op, x, y: Launch(threads=1, arguments=(x,) * 65), "65 arguments; the maximum is 64"),
        (lambda op, x, y: Launch(threads=1, arguments=(x, y, OTHER)), "takes .* of another call; use the arguments'"),
    ],
)  # fmt: skip
def test_a_wrong_launch(launch: Any, message: str) -> None:
    op = Scale()
    with pytest.raises(CustomOpError, match=message):
        launch_rule(source(launch=launch), op, op.rule([2]))
