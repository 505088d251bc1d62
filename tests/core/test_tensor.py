"""Tensor: state, views, wrapping, NumPy and DLPack, files, and its end."""

from __future__ import annotations

import contextlib
import copy
import gc
import os
import pickle
import re
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from waiting import meanwhile, until

from infersdk import Head, MixMemory, Tensor, memory_stats
from infersdk.core.exchange import DLPACK_CUDA, borrow, borrow_capsule
from infersdk.core.stream import Stream
from infersdk.errors import (
    ClosedError,
    DeviceUnavailableError,
    DTypeError,
    InputError,
    InUseError,
    OutOfMemoryError,
    OutputError,
    ReadOnlyError,
    ShapeError,
    TensorFileError,
)

DTYPES = [
    "float32", "float16", "int32", "uint8", "int8", "int64", "bool", "float64", "int16", "uint16", "uint32", "uint64",
]  # fmt: skip
SHAPES = st.lists(st.integers(0, 5), max_size=6).map(tuple)


def filled(shape: tuple[int, ...], dtype: str = "float32") -> tuple[Tensor, np.ndarray[Any, Any]]:
    """A tensor with 0, 1, 2, ... in it, and the same as an array."""
    array = (np.arange(np.prod(shape, dtype=int)) % 100).reshape(shape).astype(dtype)
    tensor = Tensor(shape, dtype)
    tensor.numpy(writable=True)[...] = array
    return tensor, array


# ---- what it is ----


@given(SHAPES, st.sampled_from(DTYPES))
@settings(max_examples=60)
def test_shape_type_and_sizes_are_those_of_numpy(shape: tuple[int, ...], dtype: str) -> None:
    tensor, array = filled(shape, dtype)
    assert tensor.shape == array.shape
    assert tensor.dtype == array.dtype
    assert (tensor.ndim, tensor.size, tensor.nbytes) == (array.ndim, array.size, array.nbytes)
    view = tensor.numpy()
    assert view.shape == shape
    assert view.dtype == array.dtype
    assert view.flags.c_contiguous
    np.testing.assert_array_equal(view, array)


def test_nothing_is_allocated_before_the_first_access() -> None:
    before = memory_stats()["host_bytes"]
    tensor = Tensor((1 << 20, 1 << 20), "float64")
    assert tensor.head is Head.UNINITIALIZED
    assert memory_stats()["host_bytes"] == before
    with pytest.raises(OutOfMemoryError, match="cannot allocate 8796093022208 bytes of host memory"):
        tensor.numpy()


@pytest.mark.gpu
def test_what_the_host_writes_comes_back_from_the_device() -> None:
    tensor = Tensor((3, 5), "int16", "cuda:0")
    array = np.arange(15, dtype=np.int16).reshape(3, 5)
    tensor.numpy(writable=True)[...] = array
    assert tensor.head is Head.HOST
    at = tensor.device_ptr()
    assert tensor.head is Head.SYNCED
    tensor.device_ptr(read=True, write=True)
    assert tensor.head is Head.DEVICE
    tensor[1:2].numpy(writable=True)[...] = -1  # the rest of the memory stays true
    array[1] = -1
    assert tensor.head is Head.HOST
    assert tensor[2:3].device_ptr() == at + 20
    tensor.device_ptr(read=True, write=True)
    np.testing.assert_array_equal(tensor.numpy(), array)
    assert tensor.head is Head.SYNCED
    twin = tensor.astype("float32")
    assert str(twin.device) == "cuda:0"
    np.testing.assert_array_equal(twin.numpy(), array)


@pytest.mark.parametrize(
    ("shape", "error", "message"),
    [
        ((-1,), ShapeError, "dimension 0 is -1; a dimension cannot be negative"),
        ((2, -(2**62)), ShapeError, "dimension 1 is -4611686018427387904"),
        ((2**62, 4), ShapeError, r"the size of shape \(4611686018427387904, 4\) overflows"),
        ((2**61,), ShapeError, "overflows"),  # its bytes do, not its elements
        ((0, 2**62, 4), ShapeError, "overflows"),  # though it is empty now
        ((2**63,), ShapeError, r"the size of shape \(9223372036854775808,\) overflows"),
        ((1,) * 17, ShapeError, "a tensor has 0 to 16 dimensions, not 17"),
        (5, ShapeError, "a shape is a sequence of whole numbers, not 5"),
        ((2.5,), ShapeError, r"a shape is a sequence of whole numbers, not \(2.5,\)"),
        ("12", ShapeError, "a shape is a sequence of whole numbers, not '12'"),
        ((None,), ShapeError, "a shape is a sequence of whole numbers"),
    ],
)
def test_shapes_that_are_none(shape: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Tensor(shape)
    tensor, array = filled((2, 2))
    with pytest.raises(error, match=message):
        tensor.resize(shape)
    np.testing.assert_array_equal(tensor.numpy(), array)  # unharmed


@pytest.mark.parametrize("dtype", ["complex64", "object", "U4", "datetime64[s]", ">f4", "no such type", "float128"])
def test_types_that_no_tensor_holds(dtype: str) -> None:
    with pytest.raises(DTypeError, match=r"a tensor cannot hold .*; use one of float32, float16, int32"):
        Tensor((2,), dtype)


def test_numpy_integers_make_a_shape() -> None:
    assert Tensor(np.array([2, 3])).shape == (2, 3)
    assert all(type(d) is int for d in Tensor((np.int32(2), np.uint8(3))).shape)


def test_repr_says_what_it_is() -> None:
    tensor, _ = filled((2, 3), "uint8")
    assert repr(tensor) == "<Tensor (2, 3) uint8 on cpu, HOST>"
    tensor.close()
    assert repr(tensor) == "<Tensor closed>"


def test_len_is_the_first_axis() -> None:
    assert len(Tensor((7, 2))) == 7
    assert len(Tensor((0, 2))) == 0
    with pytest.raises(TypeError, match="a scalar tensor has no length"):
        len(Tensor(()))


# ---- resize ----


def test_within_the_capacity_address_and_content_stay() -> None:
    tensor, array = filled((8, 6))
    at = tensor.host_ptr()
    for shape in ((2, 6), (0,), (), (4, 3, 2), (48,), (6, 8)):
        assert tensor.resize(shape) is tensor
        assert tensor.shape == shape
        assert tensor.host_ptr() == at
        np.testing.assert_array_equal(tensor.numpy().ravel(), array.ravel()[: tensor.size])
    assert tensor.head is Head.HOST


def test_growing_does_not_keep_what_it_grew_out_of() -> None:
    gc.collect()
    before = memory_stats()["host_bytes"]
    tensor, _ = filled((1 << 18,), "uint8")
    assert memory_stats()["host_bytes"] - before == 1 << 18
    tensor.resize((1 << 20,))
    assert tensor.head is Head.UNINITIALIZED
    assert memory_stats()["host_bytes"] - before == 0
    tensor.host_ptr()
    assert memory_stats()["host_bytes"] - before == 1 << 20


def test_the_address_follows_resizes_and_closing() -> None:
    tensor = Tensor((4, 4))
    first = tensor.host_ptr(read=False, write=True)
    assert tensor.host_ptr() == tensor.host_ptr(read=False, write=True) == first
    held = tensor.numpy()  # keeps the first block, so that the next one lies elsewhere
    tensor.resize((64, 64))
    assert tensor.nbytes == 64 * 64 * 4
    second = tensor.host_ptr(read=False, write=True)
    assert second == tensor.numpy().ctypes.data != held.ctypes.data
    part, held_too = tensor[1:2], tensor.numpy()
    at = part.host_ptr()
    tensor.resize((128, 128))
    assert tensor.host_ptr() == tensor.numpy().ctypes.data
    assert part.host_ptr() == part.numpy().ctypes.data != at
    assert held_too.ctypes.data == second
    with pytest.raises(InputError, match="unknown access 0"):
        tensor.host_ptr(read=False)
    tensor.close()
    for use in (tensor.host_ptr, lambda: tensor.nbytes):
        with pytest.raises(ClosedError):
            use()


def test_the_address_of_a_read_only_array_is_for_reading_alone() -> None:
    array = np.arange(6, dtype=np.float32)
    array.flags.writeable = False
    tensor = Tensor.wrap(array)
    for _ in range(2):
        assert tensor.host_ptr() == array.ctypes.data
        with pytest.raises(ReadOnlyError, match="read-only"):
            tensor.host_ptr(read=False, write=True)


# ---- views ----


def test_a_slice_shares_bytes_and_head() -> None:
    tensor = Tensor((6, 2))
    part = tensor[2:4]
    assert part.head is Head.UNINITIALIZED
    tensor.numpy(writable=True)[...] = 0
    assert part.head is Head.HOST
    assert part.shape == (2, 2)
    assert part.host_ptr() == tensor.host_ptr() + 16
    part.numpy(writable=True)[...] = 5
    np.testing.assert_array_equal(tensor.numpy()[:, 0], [0, 0, 5, 5, 0, 0])


@given(
    st.integers(0, 7),
    st.one_of(st.none(), st.integers(-9, 9)),
    st.one_of(st.none(), st.integers(-9, 9)),
    st.integers(0, 3),
)
@settings(max_examples=40)
def test_slices_are_those_of_numpy(rows: int, start: int | None, stop: int | None, columns: int) -> None:
    tensor, array = filled((rows, columns), "int32")
    np.testing.assert_array_equal(tensor[start:stop].numpy(), array[start:stop])
    np.testing.assert_array_equal(tensor[start:stop][1:].numpy(), array[start:stop][1:])


@pytest.mark.parametrize("index", [0, -1, slice(0, 4, 2), slice(None, None, -1), (slice(1), slice(1)), None, ...])
def test_other_indices_are_an_error(index: Any) -> None:
    with pytest.raises(InputError, match=r"sliced along its first axis, tensor\[2:4\]; for .* use tensor.numpy\(\)"):
        Tensor((4, 4))[index]


def test_a_scalar_has_no_rows() -> None:
    with pytest.raises((ShapeError, TypeError), match="scalar"):
        Tensor(())[0:1]


def test_a_view_keeps_its_owner_alive_and_survives_its_close() -> None:
    gc.collect()
    before = memory_stats()["host_bytes"]
    tensor, array = filled((1 << 10, 1 << 8))
    part = tensor[1:3]
    tensor.close()
    np.testing.assert_array_equal(part.numpy(), array[1:3])
    del tensor
    gc.collect()
    np.testing.assert_array_equal(part.numpy(), array[1:3])
    assert memory_stats()["host_bytes"] - before == 1 << 20
    part.close()
    assert memory_stats()["host_bytes"] == before


def test_a_view_refuses_use_after_its_owner_shrank() -> None:
    tensor, array = filled((8, 2))
    head, tail = tensor[:2], tensor[6:]
    tensor.resize((4, 2))
    np.testing.assert_array_equal(head.numpy(), array[:2])
    message = r"this view needs bytes 48 to 64, but its tensor has shrunk to 32; slice the tensor again"
    for use in (tail.numpy, tail.host_ptr, tail.copy, lambda: head.copy_from(tail)):
        with pytest.raises(ShapeError, match=message):
            use()
    tensor.resize((8, 2))
    np.testing.assert_array_equal(tail.numpy(), array[6:])  # what it needs is there again


def test_a_view_shrinks_but_does_not_outgrow_what_it_was_made_over() -> None:
    tensor, array = filled((8, 2))
    part = tensor[2:5]
    part.resize((2, 2))
    np.testing.assert_array_equal(part.numpy(), array[2:4])
    part.resize((6,))
    np.testing.assert_array_equal(part.numpy(), array[2:5].ravel())
    with pytest.raises(ShapeError, match="24 bytes cannot grow to 32; resize the tensor that it is a view of"):
        part.resize((4, 2))
    assert part.shape == (6,)


def test_threads_that_share_a_tensor_are_noticed() -> None:
    """Whatever happens at the same time, each call succeeds or raises a typed error, and no memory is harmed."""
    shared = Tensor((64, 1024))
    stop, noticed = threading.Event(), []

    def work(n: int) -> None:
        other, sizes = Tensor((64, 1024), "float64"), np.random.default_rng(n)
        while not stop.is_set():
            try:
                match n % 4:
                    case 0:
                        shared.resize((int(sizes.integers(1, 256)), 1024))
                    case 1:
                        other.copy_from(shared)
                    case 2:
                        shared.copy_from(other)
                    case 3:
                        shared[: int(sizes.integers(1, 64))].numpy().sum()
            except InUseError:
                noticed.append(n)
            except (InputError, ShapeError):
                pass  # another thread had resized it

    with meanwhile(work, range(8)) as running:
        until(lambda: noticed or any(one.done() for one in running))
        stop.set()
    assert noticed
    shared.resize((2, 3)).numpy(writable=True)[:] = 5
    assert (shared.numpy() == 5).all()


def test_a_tensor_that_is_closed_beside_a_copy() -> None:
    outcomes = []

    def copy_from(tensor: Tensor) -> None:
        try:
            outcomes.append(bool((Tensor((1024, 1024), "float64").copy_from(tensor).numpy() == 3).all()))
        except ClosedError:
            outcomes.append(True)

    for _ in range(30):
        tensor = Tensor((1024, 1024))
        tensor.numpy(writable=True)[:] = 3
        copying = threading.Thread(target=copy_from, args=(tensor,))
        copying.start()
        tensor.close()
        copying.join()
    assert outcomes == [True] * 30


def test_views_in_other_threads_survive_an_owner_that_grows_and_shrinks() -> None:
    # The owner is one handle and each view is another: all may be used at once, though they share a memory.
    tensor, _ = filled((64, 64))
    stop = threading.Event()

    def look(part: Tensor) -> None:
        while not stop.is_set():
            with contextlib.suppress(ShapeError):  # shrunk just now
                float(part.numpy().sum() + part.copy().numpy().sum())
                part.head

    with meanwhile(look, [tensor[n : n + 8] for n in (0, 24, 56)]):
        for turn in range(300):
            tensor.resize((64 + turn * 16, 64)).host_ptr(write=True)
            tensor.resize((32, 64))
        stop.set()


# ---- wrap ----


def test_wrap_borrows() -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    before = memory_stats()["host_bytes"]
    tensor = Tensor.wrap(array)
    assert tensor.host_ptr() == array.ctypes.data
    assert tensor.head is Head.HOST
    array[0, 0] = 50
    assert tensor.numpy()[0, 0] == 50
    tensor.numpy(writable=True)[1, 1] = 60
    assert array[1, 1] == 60
    assert memory_stats()["host_bytes"] == before


def test_wrap_keeps_the_array_alive_as_long_as_anything_looks_at_it() -> None:
    array = np.arange(6, dtype=np.float32)
    gone = weakref.ref(array)
    tensor = Tensor.wrap(array)
    del array
    gc.collect()
    assert gone() is not None
    part = tensor[2:4]
    tensor.close()
    del tensor
    gc.collect()
    view = part.numpy()
    part.close()
    del part
    gc.collect()
    assert gone() is not None
    np.testing.assert_array_equal(view, [2, 3])
    del view
    gc.collect()
    assert gone() is None


def test_a_read_only_array_gives_a_read_only_tensor() -> None:
    array = np.arange(6, dtype=np.float32)
    array.flags.writeable = False
    tensor = Tensor.wrap(array)
    np.testing.assert_array_equal(tensor.numpy(), array)
    for write in (
        lambda: tensor.numpy(writable=True),
        lambda: tensor[:2].copy_from([1, 2]),
        lambda: tensor.copy_from(0 * array),
    ):
        with pytest.raises(ReadOnlyError, match="wrapped as read-only; copy it to write"):
            write()
    tensor.copy().numpy(writable=True)[...] = 1
    np.testing.assert_array_equal(array, np.arange(6))


def test_wrapped_memory_is_never_grown() -> None:
    array = np.arange(6, dtype=np.float32)
    tensor = Tensor.wrap(array)
    tensor.resize((2,)).resize((3, 2))
    with pytest.raises(ShapeError, match="24 bytes cannot grow to 28"):
        tensor.resize((7,))
    assert tensor.shape == (3, 2)
    assert tensor.host_ptr() == array.ctypes.data


def test_what_cannot_be_wrapped() -> None:
    with pytest.raises(ShapeError, match=r"strides \(4, 12\) cannot be wrapped; pass np.ascontiguousarray"):
        Tensor.wrap(np.zeros((2, 3), np.float32).T)
    with pytest.raises(DTypeError, match="a tensor cannot hold dtype"):
        Tensor.wrap(np.array([object()]))
    with pytest.raises(DTypeError, match="a tensor cannot hold dtype"):
        Tensor.wrap(np.zeros(3, ">f4"))
    unaligned = np.frombuffer(bytes(17), np.uint8)[1:].view(np.float32)
    assert not unaligned.flags.aligned
    with pytest.raises(InputError, match=r"not aligned.*pass np.array\(array\)"):
        Tensor.wrap(unaligned)


# ---- NumPy ----


def test_a_numpy_view_is_no_copy_and_read_only() -> None:
    tensor, _ = filled((3, 3))
    view = tensor.numpy()
    assert view.ctypes.data == tensor.host_ptr()
    assert not view.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        view.flags.writeable = True
    tensor.numpy(writable=True)[...] = 8
    assert (view == 8).all()


def test_each_view_is_an_array_of_its_own() -> None:
    tensor, array = filled((4, 3))
    first = tensor.numpy(writable=True)
    first.shape = (12,)  # whatever is done to one array object leaves the next as the tensor says
    assert tensor.numpy(writable=True).shape == (4, 3)
    first = tensor.numpy()
    first.flags.writeable = False
    np.testing.assert_array_equal(tensor.numpy(), array)


@pytest.mark.parametrize("end", ["close", "grow", "collect"])
def test_a_numpy_view_stays_valid_when_its_tensor_goes(end: str) -> None:
    gc.collect()
    before = memory_stats()["host_bytes"]
    tensor, array = filled((256, 256))
    view = tensor.numpy(writable=True)
    read = tensor.numpy()
    if end == "close":
        tensor.close()
    elif end == "grow":
        tensor.resize((1024, 1024)).numpy(writable=True)[...] = -1
    del tensor
    gc.collect()
    np.testing.assert_array_equal(view, array)
    np.testing.assert_array_equal(read, array)
    view += 1  # still its own to write
    np.testing.assert_array_equal(read, array + 1)
    assert memory_stats()["host_bytes"] - before == 256 * 256 * 4
    del view, read
    gc.collect()
    assert memory_stats()["host_bytes"] == before


def test_array_protocol() -> None:
    tensor, array = filled((2, 3))
    np.testing.assert_array_equal(np.asarray(tensor), array)
    assert np.shares_memory(np.asarray(tensor), tensor.numpy())
    assert not np.shares_memory(np.array(tensor), tensor.numpy())
    assert np.array(tensor).flags.writeable
    assert np.asarray(tensor, dtype="float64").dtype == np.float64
    assert np.concatenate([tensor, tensor]).shape == (4, 3)
    if int(np.__version__.split(".")[0]) >= 2:
        assert np.shares_memory(np.array(tensor, copy=False), tensor.numpy())
        with pytest.raises(ValueError, match="a copy is needed to go from float32 to int8"):
            np.array(tensor, dtype="int8", copy=False)


# ---- offset ----


@given(st.lists(st.integers(1, 5), min_size=1, max_size=5), st.data())
@settings(max_examples=20)
def test_offset_is_the_number_of_the_element(shape: list[int], data: st.DataObject) -> None:
    tensor = Tensor(shape)
    index = tuple(data.draw(st.integers(0, d - 1)) for d in shape)
    assert tensor.offset(*index) == np.ravel_multi_index(index, shape)
    some = index[: data.draw(st.integers(0, len(shape)))]
    assert tensor.offset(*some) == np.ravel_multi_index(some + (0,) * (len(shape) - len(some)), shape)


def test_offsets_out_of_range() -> None:
    tensor = Tensor((2, 3))
    with pytest.raises(InputError, match="index 3 is out of range for dimension 1 of 3"):
        tensor.offset(1, 3)
    with pytest.raises(InputError, match="index -1 is out of range for dimension 0 of 2"):
        tensor.offset(-1)
    with pytest.raises(InputError, match="3 indices for a tensor of 2 dimensions"):
        tensor.offset(0, 0, 0)
    with pytest.raises(InputError, match="index"):
        tensor.offset(2**63)
    with pytest.raises(InputError, match=r"index \(1.5,\) has other values than whole numbers"):
        tensor.offset(1.5)  # type: ignore[arg-type]
    assert Tensor(()).offset() == 0


# ---- copies ----


@pytest.mark.gpu
def test_a_copy_on_a_stream() -> None:
    rng = np.random.default_rng(0)
    with Stream() as stream, Stream() as other:
        array = rng.random((1000, 1000), np.float32)
        source, target = Tensor.wrap(array, "cuda:0"), Tensor((1000, 1000), "float32", "cuda:0")
        for _ in range(20):
            assert target.copy_from(source, stream=stream) is target
            again = Tensor((1000, 1000), "float32", "cuda:0").copy_from(target, stream=other)
            np.testing.assert_array_equal(again.numpy(), array)
            np.testing.assert_array_equal(target.numpy(), array)
            array = rng.random((1000, 1000), np.float32)
            source.copy_from(array)
        with pytest.raises(InputError, match="elements of type"):
            target.copy_from(Tensor((1000, 1000), "uint8", "cuda:0"), stream=stream)
        with pytest.raises(InputError, match="cannot copy from device -1 to device 0"):
            target.copy_from(Tensor((1000, 1000), "float32"), stream=stream)


def test_copy_from_anything_like_an_array() -> None:
    tensor = Tensor((2, 2), "uint8")
    assert tensor.copy_from([[1, 300], [-5, 2.9]]) is tensor
    np.testing.assert_array_equal(tensor.numpy(), [[1, 255], [0, 2]])
    tensor.copy_from(np.asfortranarray([[1, 2], [3, 4]]))
    np.testing.assert_array_equal(tensor.numpy(), [[1, 2], [3, 4]])
    tensor.copy_from(np.frombuffer(bytes(17), np.uint8)[1:].view(np.float32))  # unaligned
    np.testing.assert_array_equal(tensor.numpy(), 0)
    tensor.copy_from(filled((4,))[0])  # as many elements, another shape
    np.testing.assert_array_equal(tensor.numpy(), [[0, 1], [2, 3]])
    assert Tensor((4,), "bool").copy_from([np.nan, 1e-40, 0.0, -0.0]).numpy().tolist() == [True, True, False, False]
    tensor.copy_from(tensor)
    np.testing.assert_array_equal(tensor.numpy(), [[0, 1], [2, 3]])


def test_copy_from_between_overlapping_views() -> None:
    tensor, array = filled((10,), "int32")
    tensor[1:].copy_from(tensor[:-1])
    np.testing.assert_array_equal(tensor.numpy(), np.concatenate([array[:1], array[:-1]]))


def test_copy_from_the_same_bytes_as_another_type() -> None:
    bytes_ = np.arange(4096, dtype=np.uint8)
    target = Tensor.wrap(bytes_.view(np.float32))
    with pytest.raises(InputError, match="cannot convert uint8 to float32 in the same memory.*; copy the source first"):
        target.copy_from(bytes_[:1024])
    np.testing.assert_array_equal(bytes_, np.arange(4096, dtype=np.uint8))
    Tensor.wrap(bytes_[:1024].view(np.float32)).copy_from(bytes_[1024:1280])  # beside them
    np.testing.assert_array_equal(bytes_[:1024].view(np.float32), np.arange(256))


def test_copy_from_what_is_no_array() -> None:
    with pytest.raises(InputError, match="cannot be an array: .*inhomogeneous"):
        Tensor((2,)).copy_from([[1], [1, 2]])


def test_copy_from_of_another_number_of_elements() -> None:
    with pytest.raises(ShapeError, match=r"cannot copy \(3,\) \(3 elements\) into \(2, 2\) \(4 elements\)"):
        Tensor((2, 2)).copy_from([1, 2, 3])


@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy, lambda t: pickle.loads(pickle.dumps(t))])
@pytest.mark.parametrize("shape", [(), (0, 2), (2, 3)])
def test_copy_module_and_pickle_give_an_independent_tensor(make: Any, shape: tuple[int, ...]) -> None:
    tensor, array = filled(shape, "float16")
    twin = make(tensor)
    assert isinstance(twin, Tensor)
    tensor.numpy(writable=True)[...] = 99
    tensor.close()
    assert (twin.shape, twin.dtype, str(twin.device)) == (shape, np.float16, "cpu")
    np.testing.assert_array_equal(twin.numpy(), array)
    twin.numpy(writable=True)[...] = 1  # and is its own to write


def test_a_pickled_view_carries_its_own_rows_alone() -> None:
    tensor, array = filled((1000, 100))
    data = pickle.dumps(tensor[3:5])
    assert len(data) < 2000
    np.testing.assert_array_equal(pickle.loads(data).numpy(), array[3:5])


# ---- DLPack ----


def test_dlpack_to_and_from_numpy() -> None:
    tensor, array = filled((2, 3))
    shared = np.from_dlpack(tensor)
    assert shared.ctypes.data == tensor.host_ptr()
    np.testing.assert_array_equal(shared, array)
    back = Tensor.from_dlpack(array)
    assert back.host_ptr() == array.ctypes.data
    tensor.close()
    np.testing.assert_array_equal(shared, array)


@pytest.mark.skipif(np.lib.NumpyVersion(np.__version__) < "2.1.0", reason="NumPy exports no read-only array")
def test_dlpack_of_a_read_only_tensor_stays_read_only() -> None:
    array = np.arange(6, dtype=np.float32)
    array.flags.writeable = False
    shared = np.from_dlpack(Tensor.wrap(array))
    assert not shared.flags.writeable
    np.testing.assert_array_equal(shared, array)
    with pytest.raises(ReadOnlyError):
        Tensor.from_dlpack(array).numpy(writable=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_dlpack_to_and_from_torch(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    if not hasattr(torch, dtype):
        pytest.skip(f"this torch has no {dtype}")
    tensor, array = filled((2, 3), dtype)
    shared = torch.from_dlpack(tensor)
    assert shared.data_ptr() == tensor.host_ptr()
    shared[0, 0] = 1
    array[0, 0] = 1
    np.testing.assert_array_equal(tensor.numpy(), array)
    tensor.close()
    np.testing.assert_array_equal(shared.numpy(), array)
    back = Tensor.from_dlpack(shared)
    assert back.host_ptr() == shared.data_ptr()
    back.numpy(writable=True)[1, 1] = 0
    assert shared[1, 1] == 0
    del shared
    gc.collect()
    array[1, 1] = 0
    np.testing.assert_array_equal(back.numpy(), array)


def test_dlpack_of_what_is_not_dense() -> None:
    with pytest.raises(ShapeError, match="cannot be wrapped"):
        Tensor.from_dlpack(np.zeros((4, 4), np.float32)[:, ::2])


def test_dlpack_of_what_has_no_memory() -> None:
    class Producer:
        def __dlpack_device__(self) -> tuple[int, int]:
            raise ValueError("Unknown device type meta")  # as PyTorch does

    with pytest.raises(InputError, match="cannot borrow a Producer through DLPack: Unknown device type meta"):
        Tensor.from_dlpack(Producer())


def test_dlpack_of_a_device_is_lent_where_it_lies_or_not_at_all() -> None:
    tensor = Tensor((4,), "float32", "cuda:0")
    with pytest.raises(BufferError, match="exported without a copy, on cuda:0"):
        tensor.__dlpack__(copy=True)
    with pytest.raises(BufferError, match="exported without a copy"):
        tensor.__dlpack__(dl_device=(1, 0))


class DeviceProducer:
    """Exports a capsule as if it were of a CUDA device."""

    def __init__(self, capsule: Any) -> None:
        self.capsule = capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return DLPACK_CUDA, 0

    def __dlpack__(self, **options: Any) -> Any:
        return self.capsule


@pytest.mark.parametrize(
    ("array", "error", "text"),
    [
        (np.zeros((3, 4), np.float32).T, ShapeError, "not dense; pass a contiguous array"),
        (np.zeros(3, np.complex64), DTypeError, "type code 5 with 64 bits"),
    ],
)
def test_what_is_wrong_with_a_tensor_of_a_device(array: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        Tensor.from_dlpack(DeviceProducer(array.__dlpack__()))


def test_a_capsule_is_taken_once(monkeypatch: pytest.MonkeyPatch) -> None:
    capsule = np.zeros(3, np.float32).__dlpack__()
    assert borrow_capsule(capsule)[1:3] == ((3,), np.float32)
    unraisable: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    for wrong in (capsule, 5):
        with pytest.raises(InputError, match="does not hold a tensor, or it was taken before"):
            Tensor.from_dlpack(DeviceProducer(wrong))
    gc.collect()
    assert unraisable == []  # of a destructor


def test_an_address_that_is_not_aligned_is_not_borrowed() -> None:
    for on_device in (False, True):
        with pytest.raises(InputError, match="0x1002 is not aligned to the 4 bytes of an element"):
            borrow(0x1002, (3,), "float32", 0, on_device=on_device)


# ---- files ----


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (2, 3), (1,) * 16])
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_saved_is_loaded(dtype: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    tensor, array = filled(shape, dtype)
    path = tmp_path / "t.bin"
    tensor.save(path)
    for back in (Tensor.load(path), Tensor.load(str(path)), Tensor.from_bytes(path.read_bytes())):
        assert (back.shape, back.dtype, back.head) == (shape, np.dtype(dtype), Head.HOST)
        np.testing.assert_array_equal(back.numpy(), array)
        back.numpy(writable=True)
    assert path.stat().st_size == 12 + 4 * len(shape) + array.nbytes
    assert [p.name for p in tmp_path.iterdir()] == ["t.bin"]


def test_from_bytes_takes_any_buffer(tmp_path: Path) -> None:
    tensor, array = filled((3,), "float64")
    tensor.save(tmp_path / "t")
    data = (tmp_path / "t").read_bytes()
    for buffer in (bytearray(data), memoryview(data), np.frombuffer(data, np.uint32)):
        np.testing.assert_array_equal(Tensor.from_bytes(buffer).numpy(), array)
    for wrong in (np.zeros(40, np.uint8)[::2], memoryview(data)[::2], "abc", None):
        with pytest.raises(InputError, match=f"a {type(wrong).__name__} is not the bytes of a file: .*; give bytes"):
            Tensor.from_bytes(wrong)  # type: ignore[arg-type]


@pytest.mark.posix
def test_save_replaces_in_one_step(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_bytes(b"old")
    with path.open("rb") as reader:
        filled((2,))[0].save(path)
        assert reader.read() == b"old"  # who had it open sees the old file whole
    assert Tensor.load(path).shape == (2,)


def test_a_slice_saves_its_own_rows(tmp_path: Path) -> None:
    tensor, array = filled((10, 3))
    tensor[4:6].save(tmp_path / "t")
    np.testing.assert_array_equal(Tensor.load(tmp_path / "t").numpy(), array[4:6])


@pytest.mark.parametrize(
    "name", ["tänsör 張量.bin", "with space", pytest.param("\udcff-not-utf8", marks=pytest.mark.posix)]
)
def test_names_of_files_that_are_not_ascii(name: str, tmp_path: Path) -> None:
    tensor, array = filled((2,))
    tensor.save(tmp_path / name)
    np.testing.assert_array_equal(Tensor.load(tmp_path / name).numpy(), array)


@pytest.mark.posix
def test_what_cannot_be_saved(tmp_path: Path) -> None:
    tensor, _ = filled((2,))
    (tmp_path / "folder").mkdir()
    with pytest.raises(OutputError, match=r"cannot write .*folder': it is a folder") as caught:
        tensor.save(tmp_path / "folder")
    assert isinstance(caught.value, OSError)
    with pytest.raises(OutputError, match="null"):
        tensor.save(f"{tmp_path}/a\0b")
    with pytest.raises(ShapeError, match="dimension 1 is 2147483648; the file layout holds at most 2147483647"):
        Tensor((0, 2**31)).save(tmp_path / "t")
    with pytest.raises(TensorFileError, match="element 1 is 3, but a bool is 0 or 1"):
        Tensor.wrap(np.array([1, 3], np.uint8).view(bool)).save(tmp_path / "t")
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize("name", ["gpu", "webgpu", "openvino:gpu"])
def test_devices_of_other_runtimes_have_no_tensors(name: str) -> None:
    for create in (
        lambda: Tensor((2,), device=name),
        lambda: Tensor.wrap(np.zeros(2), name),
        lambda: MixMemory(8, name),
    ):
        with pytest.raises(DeviceUnavailableError, match=f"no tensor is on device '{name}'; use 'cpu' or a CUDA"):
            create()


@pytest.mark.posix
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize(("name", "shown"), [(b"t", "t"), (b"t\xe9", "t\ufffd")], ids=["text", "not UTF-8"])
def test_a_full_disk_leaves_what_was_there(tmp_path: Path, name: bytes, shown: str) -> None:
    import resource
    import signal

    path = tmp_path / os.fsdecode(name)
    filled((4,))[0].save(path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
        with pytest.raises(OutputError, match=re.escape(f"cannot write {tmp_path / shown}: File too large")):
            filled((10_000,))[0].save(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert Tensor.load(path).shape == (4,)
    assert os.listdir(bytes(tmp_path)) == [name]


@pytest.mark.posix
def test_what_cannot_be_loaded(tmp_path: Path) -> None:
    for none in (tmp_path / "none", tmp_path.joinpath(*["d" * 200] * 15, "none")):
        with pytest.raises(TensorFileError, match=r"cannot open .*none: No such file or directory"):
            Tensor.load(none)
    with pytest.raises(TensorFileError, match="not a regular file"):
        Tensor.load(tmp_path)
    with pytest.raises(TensorFileError, match="null"):
        Tensor.load("a\0b")
    (tmp_path / "text").write_text("hello, I am a text file")
    with pytest.raises(TensorFileError, match="text: not a tensor file: it starts with 0x6C6C6568, not 0xFCCFE2E2"):
        Tensor.load(tmp_path / "text")
    with pytest.raises(TensorFileError, match="tensor data: 0 bytes are too few"):
        Tensor.from_bytes(b"")


# ---- the end ----


def test_closed() -> None:
    tensor, _ = filled((2, 3))
    tensor.close()
    tensor.close()
    uses: list[Any] = [
        tensor.numpy, tensor.host_ptr, tensor.device_ptr, tensor.copy, tensor.__dlpack__, tensor.__enter__,
        lambda: tensor.head, lambda: tensor.device, lambda: tensor.size,
        lambda: tensor.nbytes, lambda: tensor.shape, lambda: tensor.dtype, lambda: tensor.ndim, lambda: len(tensor),
        lambda: tensor.resize((2, 3)), lambda: tensor.resize((1,)), lambda: tensor[0:1], lambda: tensor.offset(0),
        lambda: tensor.save("t"), lambda: tensor.copy_from([1]), lambda: Tensor((2, 3)).copy_from(tensor),
        lambda: tensor.astype("int8"), lambda: np.asarray(tensor), lambda: copy.copy(tensor),
        lambda: pickle.dumps(tensor),
    ]  # fmt: skip
    for use in uses:
        with pytest.raises(ClosedError, match="this Tensor was closed; create a new one"):
            use()


def test_nothing_leaks_over_many_of_all_that_there_is() -> None:
    gc.collect()
    before = memory_stats()
    for turn in range(200):
        tensor, array = filled((turn % 7, 5))
        part, wrapped, twin = tensor[:2], Tensor.wrap(array), tensor.astype("int8")
        views = [part.numpy(), wrapped.numpy(writable=True), twin.numpy(), np.from_dlpack(tensor)]
        tensor.resize((50 + turn, 5)).numpy()
        assert len(views) == 4
    del tensor, array, part, wrapped, twin, views
    gc.collect()
    after = memory_stats()
    assert (after["host_bytes"], after["memories"]) == (before["host_bytes"], before["memories"])
