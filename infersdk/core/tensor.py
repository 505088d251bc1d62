"""Tensors: the Python class over the native ones.

A `Tensor` is on the host, on a device, or on both. An access copies between the two sides only if the side that is
requested is the older one::

    t = Tensor((8, 3, 640, 640), "float32", device="cuda:0")
    t.numpy(writable=True)[:] = 0      # head: HOST
    t.device_ptr()                       # copied once; head: SYNCED
    t.device_ptr()                       # nothing to copy
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InputError, OutputError, ReadOnlyError, ShapeError, TensorFileError
from ._lib import Handle, access_code, address, check, ffi, lib, out, returned
from .device import Device, memory_ordinal
from .exchange import (
    DLPACK_CPU,
    DLPACK_CUDA,
    borrow,
    borrow_array,
    borrow_cuda_array,
    borrow_dlpack,
    lend_dlpack,
)
from .files import atomic_path
from .memory import Head
from .tensor_spec import DTYPES, as_array, as_dims, dtype_code

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import numpy.typing as npt
    from typing_extensions import Buffer

    from .stream import Stream
    from .tensor_spec import TensorSpec

__all__ = ["Tensor", "check_apart", "is_view", "new_tensor", "pinned_empty"]


class _HostView:
    """The memory that a NumPy view of a tensor keeps alive: a block, and the lender of a borrowed one."""

    __slots__ = ("__array_interface__", "_block", "_lender", "at")

    def __init__(self, tensor: Tensor, writable: bool) -> None:
        at, block, shape = out("void *"), out("ifs_block *"), tensor.shape  # before the block, which only grows
        check(lib.ifs_tensor_hold(tensor._open, lib.IFS_SIDE_HOST, access_code(True, writable), at, block))
        self.at = address(at[0])
        self._block = ffi.gc(block[0], lib.ifs_block_release)
        self._lender = tensor._lender
        self.__array_interface__ = {
            "data": (self.at or 64, not writable),  # NumPy 1 takes no null pointer, even of no elements
            "shape": shape,
            "typestr": tensor.dtype.str,
            "version": 3,
        }


class _Shared:
    """The state of the tensors that share a memory.

    Attributes:
        resizes: How often one of them was resized.
        stream: The stream that the memory was last used on. A wrapped stream has to live until its work is done.
    """

    __slots__ = ("resizes", "stream")

    def __init__(self) -> None:
        self.resizes = 0
        self.stream: Stream | None = None


class Tensor(Handle):
    """A dense C-order array whose bytes are on the host, on a device, or on both.

    Args:
        shape: Its dimensions; `()` is a scalar, and a dimension may be 0.
        dtype: float16/32/64, int8/16/32/64, uint8/16/32/64 or bool.
        device: `"cpu"`, or `"cuda:0"` and so on.

    Nothing is allocated before the first access. One thread uses a tensor at a time; a second one that is noticed gets
    an `InUseError`. Other threads may use views of it (`tensor[2:4]`).
    """

    def __init__(
        self, shape: Sequence[int], dtype: npt.DTypeLike = "float32", device: str | Device | None = None
    ) -> None:
        code, dims, ordinal = dtype_code(dtype), as_dims(shape), memory_ordinal(device)
        self._adopt(returned("ifs_tensor *", lib.held_ifs_tensor_create, code, len(dims), dims, ordinal))

    def _adopt(self, handle: Any, lender: object = None, shared: _Shared | None = None) -> Tensor:
        """Makes this tensor the owner of a native one, in place of the one that it had."""
        self.close()
        if shared is not None or not hasattr(self, "_shared"):
            self._shared = shared or _Shared()
        self._own(handle, lib.ifs_tensor_destroy)
        self._lender = lender
        self._address = out("void *")
        self._views: list[tuple[int, npt.NDArray[Any]] | None]  # by whether they are writable, with their addresses
        self._addresses: list[tuple[int, int] | None]  # by whether it is for writing; see `host_ptr()`
        self._dtype = DTYPES[lib.held_ifs_tensor_dtype(handle)]
        self._reshaped()
        return self

    def _reshaped(self) -> None:
        self._views = [None, None]  # they would keep a block that the tensor has outgrown
        self._addresses = [None, None]
        handle = self._open
        self._nbytes = int(lib.held_ifs_tensor_nbytes(handle))
        self._shape: tuple[int, ...] = tuple(lib.held_ifs_tensor_dims(handle)[0 : lib.held_ifs_tensor_ndim(handle)])

    # ---- creating ----

    @classmethod
    def _of(cls, handle: Any, lender: object = None, shared: _Shared | None = None) -> Tensor:
        return cls.__new__(cls)._adopt(handle, lender, shared)

    @classmethod
    def wrap(cls, array: npt.ArrayLike, device: str | Device | None = None) -> Tensor:
        """Borrows a NumPy array, without a copy: both share the same bytes, and the tensor keeps the array alive.

        A read-only array gives a tensor that refuses write access. An array with a `__cuda_array_interface__` (CuPy,
        numba, PyCUDA, torch) is borrowed on its device.

        Raises:
            ShapeError: The array is not C-contiguous.
            InputError, DTypeError.
        """
        if (interface := getattr(array, "__cuda_array_interface__", None)) is not None:
            return cls._of(borrow_cuda_array(interface), array)
        array = as_array(array)
        return cls._of(borrow_array(array, memory_ordinal(device)), array)

    @classmethod
    def _over(
        cls, at: int, shape: Sequence[int], dtype: npt.DTypeLike, device: str | Device | None = None, *, lender: object
    ) -> Tensor:
        """A tensor over memory at an address, on a CUDA device or else on the host, without a copy.

        Args:
            lender: Kept as long as the tensor and its views, so that the memory stays valid.

        Raises:
            InputError: The address is not aligned to the elements.
        """
        ordinal = Device.parse(device).ordinal
        return cls._of(borrow(at, shape, dtype, ordinal, on_device=ordinal >= 0), lender)

    def _look_at(self, at: int, shape: Sequence[int], device: str | Device | None = None, *, lender: object) -> None:
        """Makes this tensor one over other memory, as `Tensor._over()` does. Its element type stays."""
        ordinal = Device.parse(device).ordinal
        self._adopt(borrow(at, shape, self._dtype, ordinal, on_device=ordinal >= 0), lender)
        self._shared.resizes += 1

    @classmethod
    def from_dlpack(cls, source: Any, *, stream: Stream | None = None) -> Tensor:
        """Borrows any DLPack producer (torch, CuPy, NumPy, ...), on the host or on a CUDA device, without a copy.

        On a device, `stream` waits for the producer's work, and later uses of the tensor wait for `stream`; without a
        stream, the host waits for the producer's work.

        Raises:
            InputError: `source` does not export its memory, or not as a dense array.
        """
        handle, lender = borrow_dlpack(source, stream)
        tensor = cls._of(handle, lender)
        if stream is not None and tensor.device.kind == "cuda":
            tensor.device_ptr(stream=stream)  # later work, on the host too, is ordered after this stream
        return tensor

    @classmethod
    def load(cls, path: str | os.PathLike[str], device: str | Device | None = None) -> Tensor:
        """Reads a tensor file (`infersdk.h` describes the layout).

        Raises:
            TensorFileError: The file does not exist, or it is truncated, too long, or not a tensor file.
        """
        ordinal = memory_ordinal(device)
        try:
            return cls._of(returned("ifs_tensor *", lib.ifs_tensor_load, _file_name(path), ordinal))
        except OutputError as error:  # the core has one code for input and output
            raise TensorFileError(str(error)) from None

    @classmethod
    def from_bytes(cls, data: Buffer, device: str | Device | None = None) -> Tensor:
        """Reads the content of a tensor file from memory, as `load()` does.

        Raises:
            TensorFileError: The content is truncated, too long, or not a tensor file.
            InputError: `data` is not bytes, or not in one piece.
        """
        ordinal = memory_ordinal(device)
        try:
            chars = ffi.from_buffer(data)
        except (TypeError, ValueError, BufferError) as error:
            raise InputError(f"a {type(data).__name__} is not the bytes of a file: {error}; give bytes") from None
        return cls._of(returned("ifs_tensor *", lib.ifs_tensor_parse, chars, len(chars), ordinal))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a tensor file, replacing `path` in one step. A pipe or a device is written to, and not replaced.

        Raises:
            OutputError: The file cannot be written; the file at `path` is unchanged.
            TensorFileError: A bool is neither 0 nor 1, as memory that was wrapped may have it.
        """
        handle = self._open
        with atomic_path(path) as sibling:
            try:
                check(lib.ifs_tensor_save(handle, os.fsencode(sibling)))
            except OutputError as error:
                # as in messages of the core, where a name may be any bytes
                written, named = (os.fsencode(name).decode("utf-8", "replace") for name in (sibling, path))
                raise OutputError(str(error).replace(written, named)) from None

    # ---- properties ----

    @property
    def shape(self) -> tuple[int, ...]:
        self._open  # noqa: B018 - raises if closed
        return self._shape

    @property
    def dtype(self) -> np.dtype[Any]:
        self._open  # noqa: B018 - raises if closed
        return self._dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return int(lib.held_ifs_tensor_count(self._open))

    @property
    def nbytes(self) -> int:
        self._open  # noqa: B018 - raises if closed
        return self._nbytes

    @property
    def device(self) -> Device:
        """The device of its device side; `cpu` if it is on the host alone."""
        ordinal = lib.held_ifs_tensor_device(self._open)
        return Device("cuda", ordinal) if ordinal >= 0 else Device("cpu")

    @property
    def head(self) -> Head:
        """Which side is newer."""
        return Head(lib.held_ifs_tensor_head(self._open))

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

        `write` makes the host the newer side. `write` without `read` promises to overwrite all elements, and copies
        nothing.
        """
        known = self._addresses[write]
        if known is not None and known[0] == self._shared.resizes and (read or write):
            return known[1]
        check(lib.ifs_tensor_host_ptr(self._open, access_code(read, write), self._address))
        at = address(self._address[0])
        # Memory of the host alone has no other side to bring up to date: the address holds until a resize.
        if lib.held_ifs_tensor_device(self._c) < 0:
            self._addresses[write] = self._shared.resizes, at
        return at

    def device_ptr(self, *, read: bool = True, write: bool = False, stream: Stream | None = None) -> int:
        """The address of the first element on the device, as `host_ptr` gives that on the host.

        With a `stream`, a copy that is due is queued on it and not waited for. The stream waits for work of other
        streams on this tensor. Later work on the stream sees the tensor up to date. Without a stream, all is done on
        return, and the caller must finish its own work on the tensor before the tensor is used elsewhere.

        Raises:
            DeviceUnavailableError: The tensor has no device side.
        """
        access = access_code(read, write)
        if stream is None:
            check(lib.ifs_tensor_device_ptr(self._open, access, ffi.NULL, self._address))
        else:
            check(lib.held_ifs_tensor_device_ptr(self._open, access, stream._open, self._address))
        self._shared.stream = stream
        return address(self._address[0])

    def fetch(self, stream: Stream) -> None:
        """Queues the copy to the host on `stream` if the device is newer. A later access on the host waits for it."""
        handle, queue = self._open, stream._open  # kept until the memory, which the handle owns, is used no more
        if lib.held_ifs_tensor_head(handle) == lib.IFS_HEAD_DEVICE:  # else its memory stays with the stream it has
            borrowed = self._lender is not None  # a copy to memory that is not page-locked waits
            fetch = lib.ifs_memory_fetch if borrowed else lib.held_ifs_memory_fetch
            check(fetch(lib.held_ifs_tensor_memory(handle), queue))
            self._shared.stream = stream

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The device side for CuPy, numba, PyCUDA and others (version 3); it becomes the newer side.

        Raises:
            AttributeError: The tensor is on the host alone.
        """
        if self._c is None or lib.held_ifs_tensor_device(self._c) < 0:
            raise AttributeError("__cuda_array_interface__: this tensor is on the host alone")
        at = self.device_ptr(write=True)  # waits, so the consumer needs no stream to wait for
        return {"shape": self._shape, "typestr": self._dtype.str, "data": (at, False), "version": 3, "strides": None}

    def numpy(self, *, writable: bool = False) -> npt.NDArray[Any]:
        """A view of the host side, without a copy; `writable=True` makes the host the newer side.

        The view stays valid when the tensor is closed or outgrows its memory; it then shows the old content.
        """
        at, cached = self.host_ptr(write=writable), self._views[writable]
        if cached is None or cached[0] != at:
            view = _HostView(self, writable)
            cached = self._views[writable] = view.at, np.asarray(view)
        return cached[1][...]

    def _blocks(self) -> list[Any]:
        """References to its blocks, which keep their memory when the tensor grows or is closed."""
        handle = self._open  # kept until the memory, which it owns, is used no more
        memory, blocks = lib.held_ifs_tensor_memory(handle), []
        for side in (lib.IFS_SIDE_HOST, lib.IFS_SIDE_DEVICE):
            block = out("ifs_block *")
            if lib.held_ifs_memory_hold(memory, side, block) == 0:  # a side that was not accessed has none
                blocks.append(ffi.gc(block[0], lib.ifs_block_release))
        return [*blocks, self._lender]

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        array = self.numpy()
        if dtype is not None and np.dtype(dtype) != self._dtype:
            if copy is False:
                raise ValueError(f"a copy is needed to go from {self._dtype} to {np.dtype(dtype)}")
            return array.astype(dtype)
        return array.copy() if copy else array

    def __dlpack__(self, *, stream: int | None = None, **options: Any) -> Any:
        """A DLPack capsule of the device side if there is one, else of the host side. That side becomes the newer one.

        `stream` is the consumer's CUDA stream as the standard numbers it: 1 and None are the legacy default stream, 2
        is the per-thread one. The stream waits for the work that is queued for the tensor; the host does not. -1 asks
        for no waiting.

        Raises:
            BufferError: The memory is read-only and the consumer does not support that. Or the consumer requests a copy
                or another device, which a tensor with a device side does not give.
        """
        device = self.__dlpack_device__()
        if device[0] == DLPACK_CPU:
            try:
                array = self.numpy(writable=True)
            except ReadOnlyError:
                array = self.numpy()
            return array.__dlpack__(stream=stream, **options)
        if options.get("copy") or options.get("dl_device") not in (None, device):
            raise BufferError(f"this tensor is exported without a copy, on {self.device}; copy it afterwards")
        try:
            return lend_dlpack(self._open, self.shape, self.dtype, device[1], stream, self._lender)
        except ReadOnlyError as error:
            raise BufferError(str(error)) from None

    def __dlpack_device__(self) -> tuple[int, int]:
        ordinal = int(lib.held_ifs_tensor_device(self._open))
        return (DLPACK_CUDA, ordinal) if ordinal >= 0 else (DLPACK_CPU, 0)

    # ---- shape and content ----

    def resize(self, shape: Sequence[int]) -> Tensor:
        """Gives the tensor a new shape, and returns it. If it fits the capacity, addresses and content are kept.

        Raises:
            ShapeError: A view or a borrowed tensor would outgrow its memory.
        """
        # As in most runs of a model: 3 us less. The result of comparing another type may be an array.
        if type(shape) is tuple and shape == self._shape and self._c is not None:
            return self
        dims = as_dims(shape)
        if tuple(dims) != self.shape:
            try:
                check(lib.ifs_tensor_resize(self._open, len(dims), dims))
            finally:  # also after Ctrl-C: addresses of blocks that are freed must not stay
                self._shared.resizes += 1
                self._reshaped()
        return self

    def __getitem__(self, rows: slice) -> Tensor:
        """A view of rows of the first axis: `batch[2:4]`. It shares the memory."""
        if not isinstance(rows, slice) or rows.step not in (None, 1):
            raise InputError(f"a tensor is sliced along its first axis, tensor[2:4]; for {rows!r} use tensor.numpy()")
        if not self.shape:
            raise ShapeError("a scalar has no axis to slice")
        start, stop, _ = rows.indices(self._shape[0])
        handle = returned("ifs_tensor *", lib.ifs_tensor_slice, self._open, start, max(start, stop))
        return Tensor._of(handle, self._lender, self._shared)

    def offset(self, *index: int) -> int:
        """The element number of an index. Missing last indices are 0: the third row starts at `t.offset(2)`."""
        try:
            indices = ffi.new("int64_t[]", index)
        except OverflowError:
            raise InputError(f"index {index} is out of range for shape {self.shape}") from None
        except TypeError:
            raise InputError(f"index {index} has other values than whole numbers") from None
        return int(returned("int64_t", lib.ifs_tensor_offset, self._open, len(index), indices))

    def copy_from(self, source: Tensor | npt.ArrayLike, *, stream: Stream | None = None) -> Tensor:
        """Overwrites all elements with those of `source`, and returns the tensor.

        `source` has as many elements. The type is converted. To integers: they saturate, floating point is truncated
        towards zero, and NaN becomes 0. To bool: 0 is False, and everything else is True, NaN too.

        Args:
            stream: queues the copy there and does not wait for it, between two tensors of one type on its device.
                `source` stays as it is until the copy is done.

        Raises:
            InputError: a copy on a stream is between other types or devices, or between overlapping views. A tensor of
                another type has the same bytes. Two wrapped arrays overlap on a device.
        """
        if stream is not None:
            if not isinstance(source, Tensor):
                raise InputError(
                    f"a copy on a stream is between tensors on its device, not from {type(source).__name__}"
                )
            check(lib.ifs_tensor_copy_on(self._open, source._open, stream._open))
            self._shared.stream = source._shared.stream = stream
            return self
        if not isinstance(source, Tensor):
            try:
                array = np.require(source, requirements=["C", "A"])
            except (ValueError, TypeError, RuntimeError) as error:
                raise InputError(f"the source cannot be an array: {error}") from None
            source = Tensor.wrap(array)
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
        self._views, self._addresses, self._lender = [None, None], [None, None], None


def _unpickled(array: npt.NDArray[Any], device: str) -> Tensor:
    return Tensor(array.shape, array.dtype, device).copy_from(array)


def _file_name(path: str | os.PathLike[str]) -> bytes:
    """The name as the core takes it: a C string, which ends at a null character."""
    name = os.fsencode(path)
    if b"\0" in name:
        raise OutputError(f"{os.fspath(path)!r}: a file name cannot contain a null character")
    return name


def pinned_empty(
    shape: Sequence[int], dtype: npt.DTypeLike = "uint8", device: str | Device = "cuda:0"
) -> npt.NDArray[Any]:
    """An uninitialised NumPy array in page-locked memory, from which copies to `device` run at the speed of the bus.

    The memory is freed with the last view of it.

    Raises:
        DeviceUnavailableError: The device does not exist.
    """
    return Tensor(shape, dtype, device).numpy(writable=True)


def new_tensor(spec: TensorSpec, device: Device, max_batch: int | None) -> Tensor:
    """A tensor of the shape that a model declares, with 1 for each free dimension, and memory for `max_batch` rows."""
    shape = tuple(d if isinstance(d, int) else 1 for d in spec.shape)
    tensor = Tensor(shape, spec.dtype, device)
    if max_batch and spec.has_free_batch:
        # Grown once and shrunk again, it keeps its capacity: its address stays for every batch up to the largest.
        tensor.resize((max_batch, *shape[1:]))
        reserve = tensor.device_ptr if device.ordinal >= 0 else tensor.host_ptr
        reserve(write=True, read=False)
        tensor.resize(shape)
    return tensor


def check_apart(
    inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor], lent: Collection[str], *, written: bool = False
) -> None:
    """Checks that no output shares memory with another tensor. Of views on a device this is unknown.

    Args:
        lent: the names of those that the user bound; without any, nothing is shared.
        written: the inputs are written too, so no two of them share memory either.

    Raises:
        InputError: one does.
    """
    bound = [*inputs.items(), *outputs.items()] if lent else []
    for index in range(0 if written else len(inputs), len(bound)):
        name, tensor = bound[index]
        for other, one in bound[:index]:
            on_host = one.device.kind == tensor.device.kind == "cpu"
            if one is tensor or (on_host and np.may_share_memory(one.numpy(), tensor.numpy())):
                how = "is bound twice" if one is tensor else f"shares memory with that of {other!r}"
                side, more = ("output", "") if index >= len(inputs) else ("input", ", or fill it and call forward()")
                raise InputError(f"the tensor of {side} {name!r} {how}; bind another Tensor to it{more}")


def is_view(array: npt.NDArray[Any]) -> bool:
    """Whether the elements of an array may be those of a tensor: they are memory of neither NumPy nor bytes."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    return base is not None and not isinstance(base, bytes)
