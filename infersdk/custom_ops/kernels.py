"""Kernels of custom operators in C and CUDA.

A `CFunction` or a `CSource` is a function with the ABI of `infersdk_custom_op.h`, which is in `include_folder()`. A
`CudaSource` is device code, which is compiled for the present GPU and launched according to its `launch`.
"""

from __future__ import annotations

import contextlib
import math
import struct
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
        function: the name of a function of type `ifs_op_kernel`.
        destroy: the name of a function of type `ifs_op_destroy` that frees the state of the kernel, if it has any.
    """

    library: str | Path
    function: str
    destroy: str | None = None


@dataclass(frozen=True)
class CSource:
    """C code, compiled with the system's C compiler (`CC`, or `cc`) on first use and cached.

    The key of the cache has the code, the options and the compiler, but not the headers that the code includes.

    Args:
        source: the code, or the `Path` of its file.
        function, destroy: as for `CFunction`.
        options: compiler options, by default `-O3 -march=native`.
    """

    source: str | Path
    function: str
    destroy: str | None = None
    options: tuple[str, ...] = ("-O3", "-march=native")


@dataclass(frozen=True)
class CudaSource:
    """CUDA code of one kernel, compiled on first use on a GPU and cached.

    The key of the cache has the code, the options and the compiler, but not the headers that the code includes.

    Each type variable of the operator is defined as a C++ type, so that `const T *x` is valid for all types::

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
        function: the name of the kernel, which is declared `extern "C" __global__ void`.
        launch: a function of the operator instance and a `Shape` for each input and output that returns a `Launch`.
            Like `shape()`, it runs once per combination of ranks, on symbols.
        options: additional compiler options.
        compiler: `"nvrtc"` (from nvidia-cuda-nvrtc or a toolkit), `"nvcc"`, or `"auto"` for an installed one.
    """

    source: str | Path
    function: str
    launch: Callable[..., Launch]
    options: tuple[str, ...] = ()
    compiler: Literal["auto", "nvrtc", "nvcc"] = "auto"


@dataclass(frozen=True)
class Launch:
    """The launch parameters of a CUDA kernel.

    Args:
        arguments: the arguments of the kernel. Inputs and outputs are pointers. Sizes, ints and bools are `long long`,
            and floats are `float`.
        threads: the number of threads, from which the grid size follows.
        grid: the grid, up to three sizes, instead of `threads`.
        block: the block, up to three sizes.
        shared: the size of dynamic shared memory in bytes.
    """

    arguments: Sequence[Any] = ()
    threads: Size | None = None
    grid: Sequence[Size] = ()
    block: int | Sequence[int] = 256
    shared: Size = 0


def launch_rule(source: CudaSource, op: Any, rule: Rule) -> Rule:
    """Adds the launch of a CUDA kernel to a rule."""
    inputs = symbols(rule.ranks)
    try:
        launch = source.launch(op, *inputs, *rule.outputs)
    except CustomOpError:
        raise
    except Exception as error:
        raise CustomOpError(f"launch raises {type(error).__name__}: {error}") from error
    if not isinstance(launch, Launch):
        raise CustomOpError(f"launch returns {launch!r}; it returns a Launch")
    block = _three((launch.block,) if isinstance(launch.block, int) else launch.block, "block")
    if not all(isinstance(size, int) and size > 0 for size in block) or math.prod(block) > 1024:
        raise CustomOpError(f"launch returns the block {launch.block!r}; a block has 1 to 1024 threads")
    if (launch.threads is None) == (not launch.grid):
        raise CustomOpError("launch must return either threads or grid")
    threads = launch.threads
    grid = _three(launch.grid, "grid") if threads is None else (threads, 1, 1)
    for size in (*grid, launch.shared):
        if isinstance(size, bool) or not isinstance(size, int | Dim):
            raise CustomOpError(f"launch returns the size {size!r}; a size is an int or an expression of dimensions")
    if threads is not None:
        grid = (ceil_div(threads, math.prod(block)), 1, 1)
    arguments = tuple(_argument(value, input=inputs, output=rule.outputs) for value in launch.arguments)
    if len(arguments) > 64:
        raise CustomOpError(f"launch returns {len(arguments)} arguments; the maximum is 64")
    return Rule(rule.ranks, rule.outputs, rule.checks, ((*grid, *block, launch.shared), arguments))


def _three(sizes: Sequence[Size], what: str) -> tuple[Size, Size, Size]:
    if not isinstance(sizes, tuple | list) or not 1 <= len(sizes) <= 3:
        raise CustomOpError(f"launch returns the {what} {sizes!r}; it must have one to three sizes")
    first, second, third = (*sizes, 1, 1)[:3]
    return first, second, third


def _argument(value: Any, **tensors: Sequence[Shape]) -> tuple[str, Any]:
    """The kind and the value of an argument. An input or output, which is its shape here, stands for the pointer."""
    for kind, shapes in tensors.items():
        for number, shape in enumerate(shapes):
            if value is shape:
                return kind, number
    if isinstance(value, Shape):
        raise CustomOpError(f"launch takes {value} of another call; use the arguments' tensors")
    if isinstance(value, bool | int | Dim):
        return "int", int(value) if isinstance(value, bool) else value
    if isinstance(value, float):
        with contextlib.suppress(OverflowError):
            struct.pack("<f", value)
            return "float", value
    raise CustomOpError(
        f"launch returns the argument {value!r}; an argument is an input, an output, a size, an int or a float within "
        "the range of float32"
    )


def source_text(source: str | Path, label: str) -> str:
    """Returns the code, which is read if `source` is a path."""
    if isinstance(source, str):
        return source
    try:
        return source.read_text("utf-8")
    except OSError as error:
        raise CustomOpError(f"{label}: cannot read the source {str(source)!r}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise CustomOpError(f"{label}: the source {str(source)!r} is not in UTF-8: {error}; save it in UTF-8") from None


def include_folder() -> Path:
    """The folder of `infersdk_custom_op.h`, for `cc -I` and `nvcc -I`."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "include", package.parent / "native" / "include"):
        if (folder / "infersdk_custom_op.h").is_file():
            return folder
    raise CustomOpError(f"infersdk_custom_op.h is not at {str(package / 'include')!r}; reinstall infersdk")
