"""Custom operators in the native core: what runs a node, whichever runtime the model is on."""

from __future__ import annotations

import atexit
import ctypes
import inspect
import itertools
import math
import os
import tempfile
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .._lib import check, ffi, lib, out
from ..errors import CustomKernelError, CustomOpError, NativeError, ShapeError
from ..stream import device_info
from .attributes import MISSING, Attribute
from .compiling import compile_c, compile_cuda
from .failures import kernel_failure, note, raised
from .kernels import CFunction, CSource, CudaSource, launch_rule
from .shapes import Rule, encode

if TYPE_CHECKING:
    from ..device import Device
    from .declaration import CustomOp, Signature

__all__ = ["NativeFunction", "NativeOp", "Node", "native_op"]

_KIND = {name: getattr(lib, f"IFS_OP_{name}") for name in ("INT", "FLOAT", "STRING", "INTS", "FLOATS")}


class NativeFunction(CFunction):
    """A kernel of the native core itself."""

    def __init__(self, function: str, destroy: str | None = None) -> None:
        super().__init__("", function, destroy)


class NativeOp:
    """An operator with one combination of element types on one device. It lives as long as the process.

    Args:
        cls: the operator.
        signature: the element types.
        device: `cpu` or a CUDA device.

    Raises:
        CustomOpError: it has no kernel for the device, or the kernel cannot be compiled or found.
    """

    def __init__(self, cls: type[CustomOp], signature: Signature, device: Device) -> None:
        self.cls, self.signature, self.device = cls, signature, device
        self.kernel = cls.kernel_for(device.kind)
        self.id = next(_numbers)
        self._kept: list[Any] = []  # what the native side has pointers to, while it is made
        spec = out("ifs_custom_op_spec")
        spec.id, spec.version, spec.device = self.id, cls.version, device.ordinal
        spec.domain, spec.name = self._chars(cls.domain), self._chars(cls.name)
        spec.num_inputs, spec.num_outputs = len(cls.inputs), len(cls.outputs)
        spec.num_attributes = len(cls.attributes)
        self.inputs = tuple(np.dtype(name) for name in signature.inputs)
        self.outputs = tuple(np.dtype(name) for name in signature.outputs)
        spec.input_dtypes = self._keep(ffi.new("int32_t[]", [_code(name) for name in signature.inputs]))
        spec.output_dtypes = self._keep(ffi.new("int32_t[]", [_code(name) for name in signature.outputs]))
        attributes, kept = native_attributes(cls.attributes, {})
        self._kept.append(kept)
        spec.attributes = self._keep(attributes)
        required = [attribute.default is MISSING for attribute in cls.attributes]
        spec.required = self._keep(ffi.new("int32_t[]", required))
        self._set_kernel(spec)
        pointer = out("ifs_custom_op *")
        check(lib.ifs_custom_op_create(spec, pointer))
        self.handle = pointer[0]
        _ops[self.id] = self

    def _keep(self, data: Any) -> Any:
        self._kept.append(data)
        return data

    def _chars(self, text: str) -> Any:
        return self._keep(ffi.new("char[]", text.encode()))

    def _set_kernel(self, spec: Any) -> None:
        kernel, title = self.kernel, self.cls.title()
        if isinstance(kernel, CudaSource):
            spec.code = self._cuda_code(kernel)
        elif isinstance(kernel, NativeFunction):
            spec.kernel = ffi.addressof(lib, kernel.function)
            spec.destroy = ffi.addressof(lib, kernel.destroy) if kernel.destroy else ffi.NULL
        elif isinstance(kernel, CFunction | CSource):
            library, where = self._library(kernel, title)
            spec.kernel = ffi.cast("ifs_op_kernel *", _symbol(library, kernel.function, title, where))
            if kernel.destroy:
                spec.destroy = ffi.cast("ifs_op_destroy *", _symbol(library, kernel.destroy, title, where))

    def _cuda_code(self, source: CudaSource) -> Any:
        major, minor = device_info(self.device)["compute_capability"]
        variables = {
            kind: dtype
            for kind, dtype in zip(
                (*self.cls.inputs.values(), *self.cls.outputs.values()),
                (*self.signature.inputs, *self.signature.outputs),
                strict=True,
            )
            if kind in self.cls.types
        }
        image = compile_cuda(source, variables, f"{major}.{minor}", self.cls.title())
        pointer = out("ifs_cuda_code *")
        check(lib.ifs_cuda_code_load(ffi.from_buffer(image), source.function.encode(), self.device.ordinal, pointer))
        return pointer[0]

    def _library(self, kernel: CFunction | CSource, title: str) -> tuple[ctypes.CDLL, str]:
        if isinstance(kernel, CSource):
            library, where = _loaded(compile_c(kernel, title)), "its source"
        else:
            where = str(kernel.library)
            try:
                library = ctypes.CDLL(str(Path(where).resolve()) if os.sep in where else where)
            except OSError as error:
                raise CustomOpError(f"operator {title}: its library {where!r} cannot be loaded: {error}") from None
        self._library_handle = library
        return library, where


def _loaded(data: bytes) -> ctypes.CDLL:
    """A shared library out of its bytes. The file is not needed once it is loaded."""
    with tempfile.TemporaryDirectory(prefix="infersdk-") as folder:
        file = Path(folder, "kernel.so")
        file.write_bytes(data)
        return ctypes.CDLL(str(file))


def _symbol(library: ctypes.CDLL, name: str, title: str, where: str) -> int:
    try:
        return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
    except AttributeError:
        raise CustomOpError(
            f"operator {title}: {where} has no function {name!r}; declare it int32_t {name}(const ifs_op_call *call), "
            'in C++ as extern "C"'
        ) from None


def _code(dtype: str) -> int:
    return int(getattr(lib, f"IFS_{dtype.upper()}"))


_numbers = itertools.count(1)
_ops: dict[int, NativeOp] = {}
_made: dict[tuple[type[CustomOp], Signature, Device], NativeOp] = {}
_making = threading.Lock()


def native_op(cls: type[CustomOp], signature: Signature, device: Device) -> NativeOp:
    """The operator with these types on this device, made once in a process."""
    key = (cls, signature, device)
    with _making:
        if key not in _made:
            _made[key] = NativeOp(cls, signature, device)
        return _made[key]


def native_attributes(attributes: Sequence[Attribute], values: dict[str, Any]) -> tuple[Any, list[Any]]:
    """The attributes as the core has them, and what has to be kept while it reads them."""
    kept: list[Any] = []
    array = ffi.new("ifs_op_attribute[]", len(attributes))
    for index, attribute in enumerate(attributes):
        native, value = array[index], values.get(attribute.name, attribute.default)
        kept.append(ffi.new("char[]", attribute.name.encode()))  # a struct's pointer keeps nothing alive
        native.name = kept[-1]
        native.kind = _KIND[attribute.onnx_kind]
        if value is MISSING:
            value = {"INT": 0, "FLOAT": 0.0, "STRING": "", "INTS": (), "FLOATS": ()}[attribute.onnx_kind]
        if attribute.onnx_kind == "INT":
            native.i = int(value)
        elif attribute.onnx_kind == "FLOAT":
            native.f = value
        elif attribute.onnx_kind == "STRING":
            kept.append(ffi.new("char[]", value.encode()))
            native.s = kept[-1]
        else:
            member, kind = ("ints", "int64_t[]") if attribute.onnx_kind == "INTS" else ("floats", "float[]")
            data = ffi.new(kind, list(value))
            setattr(native, member, data)
            native.count = len(value)
            kept.append(data)
    return array, kept


# ---- nodes ----


class _Half:
    """What Python knows of a node: the operator with its attributes, and its name."""

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
        for array in inputs:  # a view of our own: the runtime's array stays as it is
            view = array.view()
            view.flags.writeable = False
            sources.append(view)
        try:
            returned = self.op.cpu(*sources, *outputs)
        except Exception as error:
            given = zip((*self.op.inputs, *self.op.outputs), (*inputs, *outputs), strict=True)
            shapes = ", ".join(f"{name} {array.dtype} {array.shape}" for name, array in given)
            raise CustomKernelError(
                f"{self.where}: its CPU kernel raises {type(error).__name__}: {error}; it was given {shapes}, the "
                "outputs as shape() has them"
            ) from error
        if returned is not None:
            raise CustomKernelError(
                f"{self.where}: its CPU kernel returns a {type(returned).__name__}; a kernel fills its outputs in "
                f"place, {', '.join(self.op.outputs)}[:] = ..., and returns nothing"
            )

    @property
    def where(self) -> str:
        return f"operator {self.op.title()}, node {self.name}"


_halves: dict[int, _Half] = {}


class Node:
    """A node that runs on its own: what a backend without nodes of its own, or torch, calls.

    Args:
        op: the operator with its attributes.
        native: with the element types and the device.
        name: for messages.

    It may be used by several threads at a time.
    """

    def __init__(self, op: CustomOp, native: NativeOp, name: str) -> None:
        self.op, self.native, self.name = op, native, name
        number = next(_numbers)
        attributes, kept = native_attributes(op.attributes, op.values())
        pointer = out("ifs_custom_node *")
        check(lib.ifs_custom_node_create(native.handle, number, name.encode(), attributes, pointer))
        del kept
        self._handle = ffi.gc(pointer[0], lib.ifs_custom_node_destroy)
        self._half = _halves[number] = _Half(native, op, name)
        weakref.finalize(self, _halves.pop, number, None)

    def shapes(self, inputs: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
        """The shapes of the outputs for these of the inputs.

        Raises:
            CustomOpError, ShapeError: `shape()` fails, or the inputs are not what it requires.
        """
        tensors, kept = _tensors([0] * len(inputs), inputs, self.native.inputs)
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
        workers: Any = None,
    ) -> None:
        """Runs the kernel on memory: an address and a shape for each input and output.

        Args:
            stream: a cudaStream_t, for a kernel on a GPU, which is queued there.
            workers: the native pool of threads that a C kernel may use.

        Raises:
            CustomKernelError: the kernel failed.
        """
        sources, kept_in = _tensors([at for at, _ in inputs], [shape for _, shape in inputs], self.native.inputs)
        results, kept_out = _tensors([at for at, _ in outputs], [shape for _, shape in outputs], self.native.outputs)
        raw = ffi.cast("void *", stream)
        _checked(lib.ifs_custom_node_run(self._handle, sources, results, raw, workers or ffi.NULL))
        del kept_in, kept_out

    def run_arrays(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Runs the kernel of the processor on dense NumPy arrays of the operator's types.

        Raises:
            CustomKernelError: the kernel failed.
        """
        if inspect.isfunction(self.native.kernel):
            self._half.call(inputs, outputs)
        else:
            self.run([_memory(array) for array in inputs], [_memory(array) for array in outputs])

    def __call__(self, *arrays: Any) -> list[Any]:
        """Runs the kernel of the processor on NumPy arrays; returns the outputs."""
        given = [np.ascontiguousarray(array, dtype) for array, dtype in zip(arrays, self.native.inputs, strict=True)]
        shapes = self.shapes([array.shape for array in given])
        made = [np.empty(shape, dtype) for shape, dtype in zip(shapes, self.native.outputs, strict=True)]
        self.run_arrays(given, made)
        return made


def _memory(array: Any) -> tuple[int, tuple[int, ...]]:
    return array.__array_interface__["data"][0], array.shape


def _tensors(addresses: Sequence[int], shapes: Sequence[Sequence[int]], dtypes: Sequence[Any]) -> tuple[Any, list[Any]]:
    array = ffi.new("ifs_op_tensor[]", max(1, len(shapes)))
    kept = []
    for index, (at, shape, dtype) in enumerate(zip(addresses, shapes, dtypes, strict=True)):
        dims = ffi.new("int64_t[]", list(shape))
        kept.append(dims)
        tensor = array[index]
        tensor.data, tensor.dims, tensor.ndim, tensor.dtype = (
            ffi.cast("void *", at),
            dims,
            len(shape),
            _code(dtype.name),
        )
    return array, kept


def _checked(status: int) -> None:
    """As `check`, with what Python raised for a failure that comes from there."""
    try:
        check(status)
    except (NativeError, ShapeError) as error:
        failure = raised(error) or (kernel_failure(error) if isinstance(error, NativeError) else None)
        if failure is None:
            raise
        raise failure from failure.__cause__


# ---- what the core asks ----


def _answer(pointer: Any, nbytes: int, work: Callable[[], None]) -> int:
    """Does the work. A failure is returned as a text, and the exception is kept until it is claimed."""
    try:
        work()
    except BaseException as error:
        data = str(error).encode()[: nbytes - 64] + note(error).encode() + b"\0"
        ffi.memmove(pointer, data, len(data))
        return 1
    return 0


def _text(chars: Any) -> str:
    return str(ffi.string(chars).decode("utf-8", "replace"))


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
            values[attribute.name] = _text(native.s) if native.s else ""
        else:
            data = native.ints if kind == "INTS" else native.floats
            values[attribute.name] = tuple(data[0 : native.count]) if native.count else ()
    return values


@ffi.def_extern(name="ifs_py_custom_create")  # type: ignore[untyped-decorator]
def _create(op: int, node: Any, name: Any, attributes: Any, count: int, pointer: Any, error: Any, nbytes: int) -> int:
    def work() -> None:
        native = _ops[op]
        called = _text(name)
        half = _Half(native, native.cls.of(_values(attributes, native.cls), called), called)
        pointer[0] = number = next(_numbers)
        _halves[number] = half

    return _answer(error, nbytes, work)


@ffi.def_extern(name="ifs_py_custom_trace")  # type: ignore[untyped-decorator]
def _trace(node: int, handle: Any, ranks: Any, count: int, error: Any, nbytes: int) -> int:
    def work() -> None:
        half = _halves[node]
        try:
            words, texts = encode(half.rule(tuple(ranks[0:count])))
        except CustomOpError as wrong:
            raise CustomOpError(f"{half.where}: {str(wrong).removeprefix(f'operator {half.op.title()}: ')}") from wrong
        chars = [ffi.new("char[]", text.encode()) for text in texts]
        check(
            lib.ifs_custom_node_add_rule(
                handle, ffi.new("int64_t[]", words), len(words), ffi.new("char *[]", chars), len(chars)
            )
        )

    return _answer(error, nbytes, work)


@ffi.def_extern(name="ifs_py_custom_run")  # type: ignore[untyped-decorator]
def _run(node: int, call: Any) -> int:
    half = _halves[node]

    def work() -> None:
        native = half.native
        half.call(
            [_array(call.inputs[i], dtype) for i, dtype in enumerate(native.inputs)],
            [_array(call.outputs[i], dtype) for i, dtype in enumerate(native.outputs)],
        )

    return _answer(call.error, call.error_nbytes, work)


@ffi.def_extern(name="ifs_py_custom_destroy")  # type: ignore[untyped-decorator]
def _destroy(node: int) -> None:
    _halves.pop(node, None)


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
atexit.register(lib.ifs_custom_set_host, ffi.NULL)
