"""What may be a kernel of a custom operator, apart from a method in Python.

A `CFunction` and a `CSource` are functions of the ABI in `infersdk_custom_op.h`; `include_folder()` says where that
lies. A `CudaSource` is device code, which is compiled for the GPU that is there and launched as its `launch` says.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..errors import CustomOpError
from .shapes import Dim, Rule, Shape, Size, ceil_div, symbols

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["CFunction", "CSource", "CudaSource", "Launch", "include_folder", "launch_rule"]


@dataclass(frozen=True)
class CFunction:
    """A function of a shared library: a kernel on the processor, or a launcher of CUDA kernels.

    Args:
        library: the file.
        function: its name; it is of type `ifs_op_kernel`.
        destroy: for a kernel that keeps state: the name of the function that frees it, of type `ifs_op_destroy`.
    """

    library: str | Path
    function: str
    destroy: str | None = None


@dataclass(frozen=True)
class CSource:
    """C code that the system's C compiler makes a library of when the operator is first used, cached by content.

    Args:
        source: the code, or the `Path` of its file.
        function, destroy: as for `CFunction`.
        options: further options of the compiler; `-O3 -march=native` if not said.
    """

    source: str | Path
    function: str
    destroy: str | None = None
    options: tuple[str, ...] = ("-O3", "-march=native")

    def text(self) -> str:
        """The code."""
        return source_text(self.source)


@dataclass(frozen=True)
class CudaSource:
    """CUDA code of one kernel, compiled when the operator is first used on a GPU, cached by content.

    Each type variable of the operator is the name of the C++ type, so that `const T *x` is right for all of them::

        CudaSource(
            '''extern "C" __global__ void scale(const T *x, T *y, long long count, float factor) {
                   long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
                   if (i < count) y[i] = (T)(factor * (float)x[i]);
               }''',
            function="scale",
            launch=lambda op, x, y: Launch(threads=y.size, arguments=(x, y, y.size, op.factor)),
        )

    Args:
        source: the code, or the `Path` of its file.
        function: the kernel's name; it is declared `extern "C" __global__ void`.
        launch: gets the operator with its attributes, and a `Shape` for each input and output; returns a `Launch`. It
            runs once for each combination of ranks, on symbols, as `shape()` does.
        options: further options of the compiler.
        compiler: `"nvrtc"` (the package nvidia-cuda-nvrtc, or the toolkit's), `"nvcc"`, or whichever is there.
    """

    source: str | Path
    function: str
    launch: Callable[..., Launch]
    options: tuple[str, ...] = ()
    compiler: Literal["auto", "nvrtc", "nvcc"] = "auto"

    def text(self) -> str:
        """The code."""
        return source_text(self.source)


@dataclass(frozen=True)
class Launch:
    """How a CUDA kernel is launched.

    Args:
        arguments: in the order of the kernel's parameters: an input or output is a pointer, a size or an int is a
            `long long`, a float is a `float`, a bool a `long long` of 0 or 1.
        threads: the number of threads that are needed; the grid is as large as that takes. Or `grid`, up to three
            sizes.
        block: threads a block, up to three sizes.
        shared: bytes of dynamic shared memory.
    """

    arguments: Sequence[Any] = ()
    threads: Size | None = None
    grid: Sequence[Size] = ()
    block: int | Sequence[int] = 256
    shared: Size = 0


class _Symbol(Shape):
    """An input or output in a `launch`: its shape, and as an argument its pointer."""

    kind: str
    number: int


def _symbol(kind: str, index: int, shape: Shape) -> _Symbol:
    symbol = _Symbol(shape)
    symbol.kind, symbol.number = kind, index
    return symbol


def launch_rule(source: CudaSource, op: Any, rule: Rule) -> Rule:
    """A rule with the launch of a CUDA kernel in it.

    Raises:
        CustomOpError: `launch` returns what is no launch.
    """
    inputs = [_symbol("input", index, shape) for index, shape in enumerate(symbols(rule.ranks))]
    outputs = [_symbol("output", index, shape) for index, shape in enumerate(rule.outputs)]
    launch = source.launch(op, *inputs, *outputs)
    if not isinstance(launch, Launch):
        raise CustomOpError(f"launch returns {launch!r}; it returns a Launch")
    block = _three((launch.block,) if isinstance(launch.block, int) else launch.block, "block")
    if not all(isinstance(size, int) and size > 0 for size in block) or math.prod(block) > 1024:
        raise CustomOpError(f"launch gives the block {launch.block!r}; it has 1 to 1024 threads")
    if (launch.threads is None) == (not launch.grid):
        raise CustomOpError("launch gives neither or both of threads= and grid=; give one of them")
    threads = launch.threads
    grid = _three(launch.grid, "grid") if threads is None else (ceil_div(threads, math.prod(block)), 1, 1)
    arguments = tuple(_argument(value) for value in launch.arguments)
    if len(arguments) > 64:
        raise CustomOpError(f"launch gives {len(arguments)} arguments; 64 at most")
    return Rule(rule.ranks, rule.outputs, rule.checks, ((*grid, *block, launch.shared), arguments))


def _three(sizes: Sequence[Size], what: str) -> tuple[Size, Size, Size]:
    if not isinstance(sizes, tuple | list) or not 1 <= len(sizes) <= 3:
        raise CustomOpError(f"launch gives the {what} {sizes!r}; it is one to three sizes")
    first, second, third = (*sizes, 1, 1)[:3]
    return first, second, third


def _argument(value: Any) -> tuple[str, Any]:
    if isinstance(value, _Symbol):
        return value.kind, value.number
    if isinstance(value, bool | int | Dim):
        return "int", int(value) if isinstance(value, bool) else value
    if isinstance(value, float):
        return "float", value
    raise CustomOpError(
        f"launch gives the argument {value!r}; an argument is an input, an output, a size, an int or a float"
    )


def source_text(source: str | Path) -> str:
    """The code itself, read if it is a file's.

    Raises:
        CustomOpError: the file cannot be read.
    """
    if isinstance(source, str):
        return source
    try:
        return source.read_text("utf-8")
    except OSError as error:
        raise CustomOpError(f"cannot read the source {str(source)!r}: {error.strerror}") from None


def include_folder() -> Path:
    """The folder of `infersdk_custom_op.h`, for `cc -I` and `nvcc -I`."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "include", package.parent / "native" / "include"):
        if (folder / "infersdk_custom_op.h").is_file():
            return folder
    raise CustomOpError(f"infersdk_custom_op.h is not at {str(package / 'include')!r}; install infersdk again")
