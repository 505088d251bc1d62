"""Tensors: the Python face of the native ones.

A `Tensor` lives on the host, on a device, or on both, and copies between them only when the side that is asked for is
the older one::

    t = Tensor((8, 3, 640, 640), "float32", device="cuda:0")
    t.numpy(writable=True)[:] = 0      # head: HOST
    t.device_ptr()                       # copied once; head: SYNCED
    t.device_ptr()                       # nothing to copy
"""

from __future__ import annotations

import math
import operator
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from . import dlpack
from ._lib import address, check, ffi, lib, out
from .device import Device
from .errors import DTypeError, InputError, OutputError, ReadOnlyError, ShapeError, TensorFileError
from .memory import Handle, Head, access_code, device_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    from typing_extensions import Buffer

    from .stream import Stream

__all__ = ["Tensor", "dtype_code", "pinned_empty"]

_CODES: dict[np.dtype[Any], int] = {
    np.dtype(name): getattr(lib, f"IFS_{name.upper()}")
    for name in (
        "float32", "float16", "int32", "uint8", "int8", "int64",
        "bool", "float64", "int16", "uint16", "uint32", "uint64",
    )
}  # fmt: skip
_DTYPES = {code: dtype for dtype, code in _CODES.items()}


def dtype_code(dtype: npt.DTypeLike) -> int:
    """The native number of a NumPy element type.

    Raises:
        DTypeError: tensors do not hold that type.
    """
    try:
        return _CODES[np.dtype(dtype)]
    except (KeyError, TypeError):
        names = ", ".join(str(d) for d in _CODES)
        raise DTypeError(f"a tensor cannot hold {dtype!r}; it holds {names}") from None


class _HostView:
    """What a NumPy view of a tensor keeps alive: the block that it looks at, and who lent it."""

    __slots__ = ("__array_interface__", "_block", "_lender", "at")

    def __init__(self, tensor: Tensor, writable: bool) -> None:
        place, block = out("void *"), out("ifs_block *")
        access = lib.IFS_READ_WRITE if writable else lib.IFS_READ
        check(lib.ifs_tensor_hold(tensor._open, lib.IFS_SIDE_HOST, access, place, block))
        self.at = address(place[0])
        self._block = ffi.gc(block[0], lib.ifs_block_release)
        self._lender = tensor._lender
        self.__array_interface__ = {
            "data": (self.at, not writable),
            "shape": tensor.shape,
            "typestr": tensor.dtype.str,
            "version": 3,
        }


class _Shared:
    """What the tensors that share a memory know together.

    Attributes:
        resizes: how often it was resized.
        stream: the stream that it was last used on: somebody else's must not go before the work on it is done.
    """

    __slots__ = ("resizes", "stream")

    def __init__(self) -> None:
        self.resizes = 0
        self.stream: Stream | None = None


class Tensor(Handle):
    """A dense C-order array whose bytes live on the host, on a device, or on both.

    Args:
        shape: its dimensions; `()` is a scalar, and a dimension may be 0.
        dtype: any of float16/32/64, int8/16/32/64, uint8/16/32/64, bool.
        device: `"cpu"`, or `"cuda:0"` and so on.

    Nothing is allocated before the first access. One thread uses a tensor at a time; views of it (`tensor[2:4]`) may be
    used by other threads.
    """

    def __init__(
        self, shape: Sequence[int], dtype: npt.DTypeLike = "float32", device: str | Device | None = None
    ) -> None:
        self._c = None
        place = out("ifs_tensor *")
        dims = _dims(shape)
        check(lib.ifs_tensor_create(dtype_code(dtype), len(dims), dims, Device.parse(device).ordinal, place))
        self._adopt(place[0])

    def _adopt(self, handle: Any, lender: object = None, shared: _Shared | None = None) -> Tensor:
        """Makes this tensor the owner of a native one, in place of what it had."""
        self.close()
        if shared is not None or not hasattr(self, "_shared"):
            self._shared = shared or _Shared()
        self._own(handle, lib.ifs_tensor_destroy)
        self._lender = lender
        self._place = out("void *")
        self._views: list[tuple[int, npt.NDArray[Any]] | None]  # one that is read-only, one that is writable
        self._dtype = _DTYPES[lib.ifs_tensor_dtype(handle)]
        self._reshaped()
        return self

    def _reshaped(self) -> None:
        self._views = [None, None]  # they would keep a block that the tensor has grown out of
        self._shape: tuple[int, ...] = tuple(lib.ifs_tensor_dims(self._c)[0 : lib.ifs_tensor_ndim(self._c)])

    @property
    def _generation(self) -> int:
        """Who has bound this tensor looks here whether to bind it anew: its owner's growth moves a view too."""
        return self._shared.resizes

    # ---- making one ----

    @classmethod
    def _of(cls, handle: Any, lender: object = None, shared: _Shared | None = None) -> Tensor:
        tensor = cls.__new__(cls)
        tensor._c = None
        return tensor._adopt(handle, lender, shared)

    @classmethod
    def wrap(cls, array: npt.ArrayLike, device: str | Device | None = None) -> Tensor:
        """Borrows a NumPy array, without a copy: both see the same bytes, and the tensor keeps the array alive.

        A read-only array gives a tensor that refuses to be written. Anything but a C-contiguous array is an error.
        What has a `__cuda_array_interface__` (CuPy, numba, PyCUDA, torch) is borrowed where it lies, on the device.
        """
        if (interface := getattr(array, "__cuda_array_interface__", None)) is not None:
            return cls._wrap_cuda(interface, array)
        array = np.asanyarray(array)
        if not array.flags.c_contiguous:
            raise ShapeError(
                f"an array with strides {array.strides} cannot be wrapped; pass np.ascontiguousarray(array)"
            )
        if not array.flags.aligned:
            raise InputError(f"an array of {array.dtype} that is not aligned cannot be wrapped; pass np.array(array)")
        code = dtype_code(array.dtype)
        at, read_only = array.__array_interface__["data"]
        ordinal = Device.parse(device).ordinal
        handle = cls._borrowed(at, array.shape, code, ordinal, read_only=read_only, on_device=False)
        return cls._of(handle, array)

    @classmethod
    def _borrowed(
        cls, at: int, shape: Sequence[int], code: int, ordinal: int, *, read_only: bool, on_device: bool
    ) -> Any:
        """A native tensor over memory that somebody else keeps alive."""
        memory, place, dims = out("ifs_memory *"), out("ifs_tensor *"), _dims(shape)
        element = lib.ifs_dtype_size(code)
        nbytes = math.prod(dims) * element
        if nbytes and at % element:
            raise InputError(f"{at:#x} is not aligned to the {element} bytes of an element; copy the array first")
        wrap = lib.ifs_memory_wrap_device if on_device else lib.ifs_memory_wrap_host
        check(wrap(ffi.cast("void *", at), nbytes, ordinal, read_only, memory))
        try:
            check(lib.ifs_tensor_on(memory[0], 0, code, len(dims), dims, place))
        finally:
            lib.ifs_memory_destroy(memory[0])  # the tensor holds its own reference
        return place[0]

    @classmethod
    def _wrap_cuda(cls, interface: dict[str, Any], lender: object) -> Tensor:
        shape, dtype = tuple(interface["shape"]), np.dtype(interface["typestr"])
        at, read_only = interface["data"]
        strides, dense = interface.get("strides"), dtype.itemsize
        for size, stride in zip(reversed(shape), reversed(strides or ()), strict=False):
            if size != 1 and stride != dense:
                raise ShapeError(f"a device array with strides {strides} cannot be wrapped; make it contiguous first")
            dense *= size
        ordinal = device_of(at)
        if (stream := interface.get("stream")) is not None:
            _wait_for(stream, ordinal)
        handle = cls._borrowed(at, shape, dtype_code(dtype), ordinal, read_only=read_only, on_device=True)
        return cls._of(handle, lender)

    @classmethod
    def _over(
        cls, at: int, shape: Sequence[int], dtype: npt.DTypeLike, device: str | Device | None = None, *, lender: object
    ) -> Tensor:
        """A tensor over memory at an address, on a CUDA device or else on the host, without a copy.

        Args:
            lender: kept as long as the tensor and its views, so that the memory stays valid.

        Raises:
            InputError: the address is not aligned to the elements.
        """
        ordinal = Device.parse(device).ordinal
        handle = cls._borrowed(at, shape, dtype_code(dtype), ordinal, read_only=False, on_device=ordinal >= 0)
        return cls._of(handle, lender)

    def _look_at(self, at: int, shape: Sequence[int], device: str | Device | None = None, *, lender: object) -> None:
        """Makes this tensor one over other memory, as `Tensor._over()` does. Its element type stays."""
        ordinal = Device.parse(device).ordinal
        handle = self._borrowed(at, shape, dtype_code(self._dtype), ordinal, read_only=False, on_device=ordinal >= 0)
        self._adopt(handle, lender)
        self._shared.resizes += 1

    @classmethod
    def from_dlpack(cls, source: Any, *, stream: Stream | None = None) -> Tensor:
        """Borrows whatever speaks DLPack (torch, CuPy, NumPy, ...), on the host or on a CUDA device, without a copy.

        For a device the producer's work is waited for: by `stream`, or without one by the host.
        """
        try:
            kind, ordinal = source.__dlpack_device__()
            if kind != dlpack.CUDA:
                return cls.wrap(np.from_dlpack(source))
            theirs = dlpack.Borrowed(source.__dlpack__(stream=stream.handle if stream is not None else 1))
        except (AttributeError, BufferError, RuntimeError, TypeError) as error:
            raise InputError(f"cannot borrow a {type(source).__name__} through DLPack: {error}") from None
        if stream is None:
            _wait_for(1, ordinal)
        return cls._over(theirs.address, theirs.shape, theirs.dtype, Device("cuda", ordinal), lender=theirs)

    @classmethod
    def load(cls, path: str | os.PathLike[str], device: str | Device | None = None) -> Tensor:
        """Reads a tensor file (the layout stands in `infersdk.h`).

        Raises:
            TensorFileError: no such file, or it is truncated, oversized, overflowing, or no tensor file at all.
        """
        place = out("ifs_tensor *")
        try:
            check(lib.ifs_tensor_load(_file_name(path), Device.parse(device).ordinal, place))
        except OutputError as error:  # the core has one code for input and output
            raise TensorFileError(str(error)) from None
        return cls._of(place[0])

    @classmethod
    def from_bytes(cls, data: Buffer, device: str | Device | None = None) -> Tensor:
        """The same from the content of a tensor file."""
        place, chars = out("ifs_tensor *"), ffi.from_buffer(data)
        check(lib.ifs_tensor_parse(chars, len(chars), Device.parse(device).ordinal, place))
        return cls._of(place[0])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a tensor file, replacing `path` in one step.

        Raises:
            OutputError: it cannot be written; what was at `path` is untouched.
        """
        check(lib.ifs_tensor_save(self._open, _file_name(path)))

    # ---- what it is ----

    @property
    def shape(self) -> tuple[int, ...]:
        if self._c is None:
            self._open  # noqa: B018 - it raises
        return self._shape

    @property
    def dtype(self) -> np.dtype[Any]:
        if self._c is None:
            self._open  # noqa: B018 - it raises
        return self._dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return int(lib.ifs_tensor_count(self._open))

    @property
    def nbytes(self) -> int:
        return int(lib.ifs_tensor_nbytes(self._open))

    @property
    def device(self) -> Device:
        """The device of its other side; `cpu` if it lives on the host alone."""
        ordinal = lib.ifs_tensor_device(self._open)
        return Device("cuda", ordinal) if ordinal >= 0 else Device("cpu")

    @property
    def head(self) -> Head:
        """Which side is newer."""
        return Head(lib.ifs_tensor_head(self._open))

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a scalar tensor has no length")
        return self._shape[0]

    def __repr__(self) -> str:
        if self._c is None:
            return "<Tensor closed>"
        return f"<Tensor {self._shape} {self._dtype} on {self.device}, {self.head.name}>"

    # ---- access ----

    def host_ptr(self, *, read: bool = True, write: bool = False) -> int:
        """The address of the first element on the host, brought up to date for `read`.

        `write` makes the host the newer side; `write` without `read` promises to overwrite all, and copies nothing.
        """
        check(lib.ifs_tensor_host_ptr(self._open, access_code(read, write), self._place))
        return address(self._place[0])

    def device_ptr(self, *, read: bool = True, write: bool = False, stream: Stream | None = None) -> int:
        """The address of the first element on the device, as `host_ptr` gives that on the host.

        With a `stream`, a copy that is due is queued on it and not waited for, and the stream waits for work of other
        streams on this tensor; what the caller queues on it next sees the tensor up to date. Without a stream, all is
        done on return, and the caller must finish its own work on the tensor before the tensor is used elsewhere.

        Raises:
            DeviceUnavailableError: The tensor has no device side.
        """
        access = access_code(read, write)
        if stream is None:
            check(lib.ifs_tensor_device_ptr(self._open, access, ffi.NULL, self._place))
        else:
            check(lib.held_ifs_tensor_device_ptr(self._open, access, stream._open, self._place))
        self._shared.stream = stream
        return address(self._place[0])

    def fetch(self, stream: Stream) -> None:
        """Queues the copy to the host on `stream`, if the device is newer; a later access on the host waits for it."""
        check(lib.held_ifs_memory_fetch(lib.held_ifs_tensor_memory(self._open), stream._open))
        self._shared.stream = stream

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The device side for CuPy, numba, PyCUDA and others (version 3); it becomes the newer side.

        Raises:
            AttributeError: it lives on the host alone.
        """
        if self._c is None or lib.ifs_tensor_device(self._c) < 0:
            raise AttributeError("__cuda_array_interface__: this tensor lives on the host alone")
        at = self.device_ptr(write=True)  # all is done on return: no stream for the consumer to wait for
        return {"shape": self._shape, "typestr": self._dtype.str, "data": (at, False), "version": 3, "strides": None}

    def numpy(self, *, writable: bool = False) -> npt.NDArray[Any]:
        """A view of the host side, without a copy; `writable=True` makes the host the newer side.

        The view stays valid when the tensor is closed or grows out of its memory (it then shows the old content).
        """
        at = self.host_ptr(write=writable)
        cached = self._views[writable]
        if cached is None or cached[0] != at:
            view = _HostView(self, writable)
            cached = self._views[writable] = (view.at, np.asarray(view))
        return cached[1][...]

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        array = self.numpy()
        if dtype is not None and np.dtype(dtype) != self._dtype:
            if copy is False:
                raise ValueError(f"a copy is needed to go from {self._dtype} to {np.dtype(dtype)}")
            return array.astype(dtype)
        return array.copy() if copy else array

    def __dlpack__(self, *, stream: int | None = None, **options: Any) -> Any:
        """A DLPack capsule: of the device side where there is one, else of the host side. That becomes the newer side.

        `stream` is the consumer's CUDA stream as the standard has it (1 and None: the legacy default stream, 2: the
        per-thread one, -1: do not wait); it waits for what is queued for the tensor, the host does not. What was lent
        read-only goes out read-only, or not at all to who does not know of that (BufferError). So is asking for a copy,
        or for another device, of what lies on a device: it is only ever lent where it lies.
        """
        if self.__dlpack_device__()[0] == dlpack.CPU:
            try:
                array = self.numpy(writable=True)
            except ReadOnlyError:
                array = self.numpy()
            return array.__dlpack__(stream=stream, **options)
        if options.get("copy") or options.get("dl_device") not in (None, self.__dlpack_device__()):
            raise BufferError(f"this tensor is lent where it lies, on {self.device}; copy what was lent")
        try:
            if stream == -1:
                at = self.device_ptr(write=True)
            else:
                theirs = out("ifs_stream *")
                native = ffi.cast("void *", 1 if stream is None else stream)
                check(lib.ifs_stream_wrap(self.device.ordinal, native, theirs))
                try:
                    check(lib.ifs_tensor_lend(self._open, theirs[0], self._place))
                finally:
                    lib.ifs_stream_destroy(theirs[0])
                at = address(self._place[0])
        except ReadOnlyError as error:
            raise BufferError(str(error)) from None
        block = out("ifs_block *")
        check(lib.ifs_memory_hold(lib.ifs_tensor_memory(self._open), lib.IFS_SIDE_DEVICE, block))
        holder = (ffi.gc(block[0], lib.ifs_block_release), self._lender)
        return dlpack.lend(at, self.shape, self.dtype, self.__dlpack_device__(), holder)

    def __dlpack_device__(self) -> tuple[int, int]:
        ordinal = int(lib.ifs_tensor_device(self._open))
        return (dlpack.CUDA, ordinal) if ordinal >= 0 else (dlpack.CPU, 0)

    # ---- shape and content ----

    def resize(self, shape: Sequence[int]) -> Tensor:
        """Gives it a new shape. What fits the capacity keeps address and content; returns the tensor itself.

        Raises:
            ShapeError: a view or a borrowed tensor would outgrow its memory.
        """
        dims = _dims(shape)
        if tuple(dims) != self.shape:
            check(lib.ifs_tensor_resize(self._open, len(dims), dims))
            self._reshaped()
            self._shared.resizes += 1
        return self

    def __getitem__(self, rows: slice) -> Tensor:
        """A view of some rows of the first axis: `batch[2:4]`. It shares the memory."""
        if not isinstance(rows, slice) or rows.step not in (None, 1):
            raise InputError(f"a tensor is sliced along its first axis, tensor[2:4]; for {rows!r} use tensor.numpy()")
        if not self.shape:
            raise ShapeError("a scalar has no axis to slice")
        start, stop, _ = rows.indices(self._shape[0])
        place = out("ifs_tensor *")
        check(lib.ifs_tensor_slice(self._open, start, max(start, stop), place))
        return Tensor._of(place[0], self._lender, self._shared)

    def offset(self, *index: int) -> int:
        """The element number of an index, missing last indices being 0: `t.offset(2)` is where the third row starts."""
        place = out("int64_t")
        try:
            indices = ffi.new("int64_t[]", index)
        except OverflowError:
            raise InputError(f"index {index} is out of range for shape {self.shape}") from None
        check(lib.ifs_tensor_offset(self._open, len(index), indices, place))
        return int(place[0])

    def copy_from(self, source: Tensor | npt.ArrayLike) -> Tensor:
        """Overwrites all elements with those of `source` (as many), converting the type; returns the tensor itself.

        Integers saturate, floating point is truncated towards zero, NaN becomes 0.
        """
        if not isinstance(source, Tensor):
            source = Tensor.wrap(np.require(source, requirements=["C", "A"]))
        check(lib.ifs_tensor_copy(self._open, source._open))
        return self

    def astype(self, dtype: npt.DTypeLike) -> Tensor:
        """A new tensor of another element type on the same device, converted as `copy_from` does."""
        return Tensor(self.shape, dtype, self.device).copy_from(self)

    def copy(self) -> Tensor:
        """A new tensor with the same content."""
        return self.astype(self.dtype)

    def __copy__(self) -> Tensor:
        return self.copy()

    def __deepcopy__(self, memo: object) -> Tensor:
        return self.copy()

    def __reduce__(self) -> Any:
        return _unpickled, (self.numpy(), str(self.device))

    def close(self) -> None:
        super().close()
        self._views, self._lender = [None, None], None


def _unpickled(array: npt.NDArray[Any], device: str) -> Tensor:
    return Tensor(array.shape, array.dtype, device).copy_from(array)


def _file_name(path: str | os.PathLike[str]) -> bytes:
    """The name as the core takes it: a C string, which a null character would cut short."""
    name = os.fsencode(path)
    if b"\0" in name:
        raise OutputError(f"{os.fspath(path)!r}: a null character cannot be part of a file's name")
    return name


def _wait_for(stream: int, ordinal: int) -> None:
    """Waits on the host for somebody else's stream."""
    place = out("ifs_stream *")
    check(lib.ifs_stream_wrap(ordinal, ffi.cast("void *", stream), place))
    try:
        check(lib.ifs_stream_synchronize(place[0]))
    finally:
        lib.ifs_stream_destroy(place[0])


def pinned_empty(
    shape: Sequence[int], dtype: npt.DTypeLike = "uint8", device: str | Device = "cuda:0"
) -> npt.NDArray[Any]:
    """An uninitialised NumPy array in page-locked memory, from which copies to `device` run at the speed of the bus.

    The memory is given back when the last view of it goes.

    Raises:
        DeviceUnavailableError: there is no such device.
    """
    return Tensor(shape, dtype, device).numpy(writable=True)


def _dims(shape: Sequence[int]) -> list[int]:
    """The dimensions as plain ints that fit the core's int64."""
    try:
        dims = [operator.index(d) for d in shape]
    except TypeError:
        raise ShapeError(f"a shape is a sequence of whole numbers, not {shape!r}") from None
    if any(not -(2**63) <= d < 2**63 for d in dims):
        raise ShapeError(f"the size of shape {tuple(dims)} overflows")
    return dims
