"""Custom operators in the native core, which runs their nodes for all runtimes."""

from __future__ import annotations

import ctypes
import inspect
import itertools
import math
import os
import tempfile
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import MISSING
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core._lib import check, ffi, lib, out, returned, text
from ..core.stream import device_info
from ..core.tensor_spec import dtype_code
from ..errors import CustomKernelError, CustomOpError, NativeError, ShapeError
from .compiling import compile_c, compile_cuda
from .failures import kernel_failure, note, raised
from .kernels import CFunction, CSource, CudaSource, launch_rule
from .shapes import Rule, encode

if TYPE_CHECKING:
    from ..core.device import Device
    from .attributes import Attribute
    from .declaration import CustomOp, Signature

__all__ = ["NativeFunction", "NativeOp", "Node", "native_op"]


class NativeFunction(CFunction):
    """A kernel in the native core."""

    def __init__(self, function: str, destroy: str | None = None) -> None:
        super().__init__("", function, destroy)


class NativeOp:
    """An operator with a signature on a device. It is never freed."""

    def __init__(self, cls: type[CustomOp], signature: Signature, device: Device) -> None:
        self.cls, self.signature, self.device = cls, signature, device
        self.kernel = cls.kernel_for(device.kind)
        self.inputs = tuple(np.dtype(name) for name in signature.inputs)
        self.outputs = tuple(np.dtype(name) for name in signature.outputs)
        number = next(_numbers)
        spec = out("ifs_custom_op_spec")
        # The core copies what `spec` points to.
        domain, name = (ffi.new("char[]", text.encode()) for text in (cls.domain, cls.name))
        inputs, outputs = (
            ffi.new("int32_t[]", [dtype_code(dtype) for dtype in side]) for side in (self.inputs, self.outputs)
        )
        attributes, kept = native_attributes(cls.attributes, {})
        spec.id, spec.domain, spec.name, spec.version, spec.device = number, domain, name, cls.version, device.ordinal
        spec.num_inputs, spec.num_outputs, spec.num_attributes = len(inputs), len(outputs), len(attributes)
        spec.input_dtypes, spec.output_dtypes, spec.attributes = inputs, outputs, attributes
        self._set_kernel(spec)
        self.handle = returned("ifs_custom_op *", lib.ifs_custom_op_create, spec)
        del kept
        _ops[number] = self

    def _set_kernel(self, spec: Any) -> None:
        kernel, title = self.kernel, self.cls.title()
        if isinstance(kernel, CudaSource):
            spec.code = self._cuda_code(kernel)
        elif isinstance(kernel, NativeFunction):
            spec.kernel = ffi.addressof(lib, kernel.function)
            spec.destroy = ffi.addressof(lib, kernel.destroy) if kernel.destroy else ffi.NULL
        elif isinstance(kernel, CFunction | CSource):
            library, where = _library(kernel, title)
            spec.kernel = ffi.cast("ifs_op_kernel *", _symbol(library, kernel.function, title, where))
            if kernel.destroy:
                spec.destroy = ffi.cast("ifs_op_destroy *", _symbol(library, kernel.destroy, title, where))

    def _cuda_code(self, source: CudaSource) -> Any:
        major, minor = device_info(self.device)["compute_capability"]
        kinds = (*self.cls.inputs.values(), *self.cls.outputs.values())
        dtypes = (*self.signature.inputs, *self.signature.outputs)
        variables = {kind: dtype for kind, dtype in zip(kinds, dtypes, strict=True) if kind in self.cls.types}
        image = compile_cuda(source, variables, f"{major}.{minor}", self.cls.title())
        function, ordinal = source.function.encode(), self.device.ordinal
        return returned("ifs_cuda_code *", lib.ifs_cuda_code_load, ffi.from_buffer(image), function, ordinal)


def _library(kernel: CFunction | CSource, title: str) -> tuple[ctypes.CDLL, str]:
    """The loaded library of a kernel, and its name for messages."""
    if isinstance(kernel, CSource):
        with tempfile.TemporaryDirectory(prefix="infersdk-") as folder:
            file = Path(folder, "kernel.so")
            file.write_bytes(compile_c(kernel, title))
            return _loaded(str(file), "its source, compiled and linked with its options,", title), "its source"
    where = str(kernel.library)
    path = str(Path(where).resolve()) if os.sep in where else where
    return _loaded(path, f"its library {where!r}", title), where


def _loaded(path: str, what: str, title: str) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(path)
    except OSError as error:
        raise CustomOpError(f"operator {title}: {what} cannot be loaded: {error}") from None


def _symbol(library: ctypes.CDLL, name: str, title: str, where: str) -> int:
    try:
        return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
    except AttributeError:
        raise CustomOpError(
            f"operator {title}: {where} has no function {name!r}; declare it as int32_t {name}(const ifs_op_call *), "
            'in C++ with extern "C"'
        ) from None


_numbers = itertools.count(1)
_ops: dict[int, NativeOp] = {}
_made: dict[tuple[type[CustomOp], Signature, Device], NativeOp] = {}
_making = threading.Lock()


def native_op(cls: type[CustomOp], signature: Signature, device: Device) -> NativeOp:
    """The operator with a signature on a device, created once per process."""
    key = (cls, signature, device)
    with _making:
        if key not in _made:
            _made[key] = NativeOp(cls, signature, device)
        return _made[key]


def native_attributes(attributes: Sequence[Attribute], values: dict[str, Any]) -> tuple[Any, list[Any]]:
    """The attributes as native structs, and the memory that they point to."""
    kept: list[Any] = []  # a pointer in a struct does not keep its memory alive

    def keep(kind: str, value: Any) -> Any:
        kept.append(ffi.new(kind, value))
        return kept[-1]

    array = ffi.new("ifs_op_attribute[]", len(attributes))
    for native, attribute in zip(array, attributes, strict=True):
        kind, value = attribute.onnx_kind, values.get(attribute.name, attribute.default)
        native.name = keep("char[]", attribute.name.encode())
        native.kind = getattr(lib, f"IFS_OP_{kind}")
        if value is MISSING:
            continue
        if kind == "INT":
            native.i = int(value)
        elif kind == "FLOAT":
            native.f = value
        elif kind == "STRING":
            native.s = keep("char[]", value.encode())
        else:
            native.count = len(value)
            if kind == "INTS":
                native.ints = keep("int64_t[]", value)
            else:
                native.floats = keep("float[]", value)
    return array, kept


# ---- nodes ----


class _PythonNode:
    """The Python side of a node: the operator with its attributes, and the name."""

    __slots__ = ("name", "native", "op")

    def __init__(self, native: NativeOp, op: CustomOp, name: str) -> None:
        self.native, self.op, self.name = native, op, name

    def rule(self, ranks: Sequence[int]) -> Rule:
        rule = self.op.rule(ranks)
        if isinstance(self.native.kernel, CudaSource):
            return launch_rule(self.native.kernel, self.op, rule)
        return rule

    def call(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Calls the kernel in Python."""
        sources = []
        for array in inputs:  # read-only views; the flags of the arrays do not change
            view = array.view()
            view.flags.writeable = False
            sources.append(view)
        try:
            returned = self.op.cpu(*sources, *outputs)
        except Exception as error:
            given = zip((*self.op.inputs, *self.op.outputs), (*inputs, *outputs), strict=True)
            shapes = ", ".join(f"{name} {array.dtype} {array.shape}" for name, array in given)
            raise CustomKernelError(
                f"{self.where}: its CPU kernel raises {type(error).__name__}: {error}; its arguments are {shapes}, "
                "with outputs of the shapes from shape()"
            ) from error
        if returned is not None:
            raise CustomKernelError(
                f"{self.where}: its CPU kernel returns a {type(returned).__name__}; a kernel must fill its outputs "
                f"in place, {', '.join(self.op.outputs)}[:] = ..., and return None"
            )

    @property
    def where(self) -> str:
        return f"operator {self.op.title()}, node {self.name}"


_python_nodes: dict[int, _PythonNode] = {}


class Node:
    """A node for direct calls, by PyTorch or by backends without custom operators. It is thread-safe."""

    def __init__(self, op: CustomOp, native: NativeOp, name: str) -> None:
        self.native = native
        number = next(_numbers)
        attributes, kept = native_attributes(op.attributes, op.values())
        create, title = lib.ifs_custom_node_create, name.encode()
        handle = returned("ifs_custom_node *", create, native.handle, number, title, attributes)
        del kept
        self._handle = ffi.gc(handle, lib.ifs_custom_node_destroy)
        self._python_node = _python_nodes[number] = _PythonNode(native, op, name)
        weakref.finalize(self, _python_nodes.pop, number, None).atexit = False  # runs under way need it until the end

    def shapes(self, inputs: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
        """The output shapes for these input shapes.

        Raises:
            CustomOpError, ShapeError: `shape()` fails, or the inputs do not meet its requirements.
        """
        tensors, kept = _tensors([(0, shape) for shape in inputs], self.native.inputs)
        dims = ffi.new("int64_t[]", 16 * len(self.native.outputs))
        ndims = ffi.new("int32_t[]", len(self.native.outputs))
        _checked(lib.ifs_custom_node_shapes(self._handle, tensors, dims, ndims))
        del kept
        return [tuple(dims[16 * i : 16 * i + ndims[i]]) for i in range(len(self.native.outputs))]

    def run(
        self,
        inputs: Sequence[tuple[int, Sequence[int]]],
        outputs: Sequence[tuple[int, Sequence[int]]],
        stream: int = 0,
    ) -> None:
        """Runs the kernel on inputs and outputs that are given as addresses and shapes.

        Args:
            stream: the cudaStream_t on which a GPU kernel is queued.

        Raises:
            CustomKernelError: the kernel fails.
        """
        sources, kept_in = _tensors(inputs, self.native.inputs)
        results, kept_out = _tensors(outputs, self.native.outputs)
        _checked(lib.ifs_custom_node_run(self._handle, sources, results, ffi.cast("void *", stream)))
        del kept_in, kept_out

    def run_arrays(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Runs a kernel on the processor with contiguous NumPy arrays of the operator's types."""
        if inspect.isfunction(self.native.kernel):
            self._python_node.call(inputs, outputs)
        else:
            self.run([_memory(array) for array in inputs], [_memory(array) for array in outputs])


def _memory(array: Any) -> tuple[int, tuple[int, ...]]:
    return array.__array_interface__["data"][0], array.shape


def _tensors(values: Sequence[tuple[int, Sequence[int]]], dtypes: Sequence[Any]) -> tuple[Any, list[Any]]:
    """Addresses and shapes as native structs, and the memory that they point to."""
    array = ffi.new("ifs_op_tensor[]", len(values))
    kept = [ffi.new("int64_t[]", list(shape)) for _, shape in values]
    for tensor, (at, shape), dims, dtype in zip(array, values, kept, dtypes, strict=True):
        tensor.data, tensor.dims = ffi.cast("void *", at), dims
        tensor.ndim, tensor.dtype = len(shape), dtype_code(dtype)
    return array, kept


def _checked(status: int) -> None:
    """`check()`, which raises the original exception for failures in Python."""
    try:
        check(status)
    except (NativeError, ShapeError) as error:
        failure = kernel_failure(error) if isinstance(error, NativeError) else raised(error)
        if failure is None:
            raise
        raise failure from failure.__cause__


# ---- callbacks of the core ----


def _answer(pointer: Any, nbytes: int, work: Callable[[], None]) -> int:
    """Runs `work`. On failure, writes the message with a mark and stores the exception."""
    try:
        work()
    except BaseException as error:
        said = str(error).encode("utf-8", "backslashreplace")[: nbytes - 64].decode("utf-8", "ignore")
        data = f"{said}{note(error)}\0".encode()
        ffi.memmove(pointer, data, len(data))
        return 1
    return 0


def _values(attributes: Any, cls: type[CustomOp]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for index, attribute in enumerate(cls.attributes):
        native = attributes[index]
        kind = attribute.onnx_kind
        if kind == "INT":
            values[attribute.name] = native.i
        elif kind == "FLOAT":
            values[attribute.name] = native.f
        elif kind == "STRING":
            if native.s:  # else it is missing, and has no default
                values[attribute.name] = text(native.s)
        else:
            data = native.ints if kind == "INTS" else native.floats
            values[attribute.name] = tuple(data[0 : native.count]) if native.count else ()
    return values


@ffi.def_extern(name="ifs_py_custom_create", error=1)  # type: ignore[untyped-decorator]
def _create(op: int, name: Any, attributes: Any, pointer: Any, error: Any, nbytes: int) -> int:
    def work() -> None:
        native = _ops[op]
        node_name = text(name)
        python_node = _PythonNode(native, native.cls.of(_values(attributes, native.cls), node_name), node_name)
        pointer[0] = number = next(_numbers)
        _python_nodes[number] = python_node

    return _answer(error, nbytes, work)


@ffi.def_extern(name="ifs_py_custom_trace", error=1)  # type: ignore[untyped-decorator]
def _trace(node: int, handle: Any, ranks: Any, count: int, error: Any, nbytes: int) -> int:
    def work() -> None:
        python_node = _python_nodes[node]
        try:
            words, launch, texts = encode(python_node.rule(tuple(ranks[0:count])))
        except CustomOpError as wrong:
            raise CustomOpError(
                f"{python_node.where}: {str(wrong).removeprefix(f'operator {python_node.op.title()}: ')}"
            ) from wrong
        chars = [ffi.new("char[]", text.encode()) for text in texts]
        rule, messages = ffi.new("int64_t[]", words), ffi.new("char *[]", chars)
        check(lib.ifs_custom_node_add_rule(handle, rule, len(words), launch, messages, len(chars)))

    return _answer(error, nbytes, work)


@ffi.def_extern(name="ifs_py_custom_run", error=1)  # type: ignore[untyped-decorator]
def _run(node: int, call: Any) -> int:
    python_node = _python_nodes[node]

    def work() -> None:
        native = python_node.native
        python_node.call(
            [_array(call.inputs[i], dtype) for i, dtype in enumerate(native.inputs)],
            [_array(call.outputs[i], dtype) for i, dtype in enumerate(native.outputs)],
        )

    return _answer(call.error, call.error_nbytes, work)


@ffi.def_extern(name="ifs_py_custom_destroy")  # type: ignore[untyped-decorator]
def _destroy(node: int) -> None:
    _python_nodes.pop(node, None)


def _array(tensor: Any, dtype: Any) -> Any:
    shape = tuple(tensor.dims[0 : tensor.ndim]) if tensor.ndim else ()
    nbytes = math.prod(shape) * dtype.itemsize
    if not nbytes:
        return np.empty(shape, dtype)
    return np.frombuffer(ffi.buffer(tensor.data, nbytes), dtype).reshape(shape)


_host = ffi.new(
    "ifs_custom_host *",
    {
        "create": lib.ifs_py_custom_create,
        "trace": lib.ifs_py_custom_trace,
        "run": lib.ifs_py_custom_run,
        "destroy": lib.ifs_py_custom_destroy,
    },
)
lib.ifs_custom_set_host(_host)
