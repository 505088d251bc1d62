"""MixMemory: lazy blocks, reuse of capacity, the head, and what a machine without a device half answers."""

from __future__ import annotations

import ctypes
import gc
import threading

import numpy as np
import pytest

import infersdk
from infersdk import Head, MixMemory, Tensor, memory_stats
from infersdk._lib import check, ffi, lib, out
from infersdk.errors import (
    ClosedError,
    DeviceUnavailableError,
    InputError,
    OutOfMemoryError,
    ReadOnlyError,
    ShapeError,
)


def device_there() -> bool:
    try:
        MixMemory(4, "cuda:0").device_ptr()
    except DeviceUnavailableError:
        return False
    return True


no_device = pytest.mark.skipif(device_there(), reason="this machine has a GPU, and the build its CUDA half")


def test_nothing_is_allocated_before_the_first_access() -> None:
    memory = MixMemory(1 << 50)  # more than any machine has
    assert memory.head is Head.UNINITIALIZED
    assert (memory.nbytes, memory.host_capacity, memory.device_capacity) == (1 << 50, 0, 0)


def test_the_host_block_is_aligned_and_at_least_as_large_as_asked_for() -> None:
    for nbytes in (0, 1, 63, 64, 65, 1000):
        memory = MixMemory(nbytes)
        at = memory.host_ptr()
        assert at % 64 == 0
        assert at != 0
        assert max(nbytes, 1) <= memory.host_capacity < nbytes + 65


def test_less_or_as_much_allocates_nothing() -> None:
    memory = MixMemory(1000)
    at = memory.host_ptr(write=True)
    ctypes.memset(at, 7, 1000)
    before = memory_stats()["host_bytes"]
    for nbytes in (10, 0, 999, 1000, memory.host_capacity):
        memory.resize(nbytes)
        assert memory.nbytes == nbytes
        assert memory.host_ptr() == at
        assert memory.head is Head.HOST
    assert ctypes.string_at(at, 1000) == b"\7" * 1000
    assert memory_stats()["host_bytes"] == before


def test_more_than_the_capacity_gives_a_new_block_and_no_content() -> None:
    memory = MixMemory(100)
    memory.host_ptr(write=True)
    memory.resize(10_000)
    assert memory.head is Head.UNINITIALIZED
    assert memory.host_capacity == 0  # lazy again
    memory.host_ptr(write=True)
    assert memory.host_capacity >= 10_000


def test_the_head_of_a_host_memory() -> None:
    memory = MixMemory(8)
    memory.host_ptr(read=True)
    assert memory.head is Head.UNINITIALIZED  # reading makes nothing true
    memory.host_ptr(read=False, write=True)
    assert memory.head is Head.HOST
    memory.host_ptr(read=True)
    assert memory.head is Head.HOST


def test_an_access_for_nothing_is_an_error() -> None:
    with pytest.raises(InputError, match="unknown access 0; use IFS_READ"):
        MixMemory(8).host_ptr(read=False, write=False)


def test_a_host_memory_has_no_device_side() -> None:
    memory = MixMemory(8)
    with pytest.raises(DeviceUnavailableError, match="is on the host alone; create it for a device"):
        memory.device_ptr()
    memory.host_ptr(write=True)  # and is not the worse for it
    assert memory.head is Head.HOST


@no_device
def test_a_device_memory_without_a_device_says_so_and_stays_usable() -> None:
    memory = MixMemory(8, "cuda:0")  # lazy: nothing was asked of a device yet
    for access in (memory.device_ptr, memory.host_ptr):
        with pytest.raises(DeviceUnavailableError, match="no device cuda:0: "):
            access()
    assert memory.head is Head.UNINITIALIZED
    assert (memory.host_capacity, memory.device_capacity) == (0, 0)
    memory.close()


@no_device
def test_wrapping_device_memory_without_a_device() -> None:
    place = out("ifs_memory *")
    with pytest.raises(DeviceUnavailableError, match="no device cuda:3: "):
        check(lib.ifs_memory_wrap_device(ffi.cast("void *", 4096), 8, 3, 0, place))
    assert place[0] == ffi.NULL  # out parameters are untouched on failure


@pytest.mark.gpu
@pytest.mark.skipif(not device_there(), reason="needs an NVIDIA GPU and a build with CUDA")
def test_the_head_of_a_device_memory() -> None:
    memory = MixMemory(1000, "cuda:0")
    ctypes.memset(memory.host_ptr(read=False, write=True), 5, 1000)
    assert memory.head is Head.HOST
    at = memory.device_ptr()
    assert memory.head is Head.SYNCED
    assert memory.device_ptr() == at
    memory.device_ptr(read=False, write=True)
    assert memory.head is Head.DEVICE
    ctypes.memset(memory.host_ptr(read=False, write=True), 0, 1000)
    memory.device_ptr()  # carries the zeros over
    memory.device_ptr(read=True, write=True)
    assert memory.head is Head.DEVICE
    assert ctypes.string_at(memory.host_ptr(), 1000) == bytes(1000)
    assert memory.head is Head.SYNCED
    assert memory_stats()["pinned_bytes"] >= 1000
    assert memory_stats()["device_bytes"] >= 1000


def test_sizes_that_are_none() -> None:
    for nbytes in (-1, -(2**70), 2**64, 2**70):
        with pytest.raises(InputError, match=f"a memory cannot have {nbytes} bytes"):
            MixMemory(nbytes)
    with pytest.raises(TypeError):
        MixMemory(1.5)  # type: ignore[arg-type]


def test_more_than_the_machine_has_is_an_error_with_the_size() -> None:
    for nbytes in (1 << 62, 2**64 - 64, 2**64 - 1):
        memory = MixMemory(nbytes)
        with pytest.raises(OutOfMemoryError, match=r"cannot allocate \d{19,} bytes of host memory") as caught:
            memory.host_ptr()
        assert isinstance(caught.value, MemoryError)
        memory.resize(16)  # the failure left it whole
        assert memory.host_ptr() % 64 == 0


def test_devices_that_are_none() -> None:
    with pytest.raises(DeviceUnavailableError, match="unknown device 'cuda:one'"):
        MixMemory(8, "cuda:one")
    place = out("ifs_memory *")
    with pytest.raises(InputError, match="unknown device -2; use a CUDA ordinal from 0"):
        check(lib.ifs_memory_create(-2, place))


def test_closed() -> None:
    memory = MixMemory(8)
    memory.host_ptr()
    memory.close()
    memory.close()  # a second one does nothing
    for use in (
        memory.host_ptr,
        memory.device_ptr,
        lambda: memory.resize(4),
        lambda: memory.nbytes,
        lambda: memory.head,
        lambda: memory.host_capacity,
        lambda: memory.device_capacity,
        memory.__enter__,
    ):
        with pytest.raises(ClosedError, match="this MixMemory was closed; create a new one"):
            use()
    assert repr(memory) == "<MixMemory closed>"


def test_with_gives_the_memory_back() -> None:
    gc.collect()
    before = memory_stats()
    with MixMemory(1 << 20) as memory:
        memory.host_ptr()
        during = memory_stats()
        assert during["host_bytes"] - before["host_bytes"] == 1 << 20
        assert during["memories"] == before["memories"] + 1
        assert repr(memory) == "<MixMemory 1048576 bytes, UNINITIALIZED>"
    after = memory_stats()
    assert (after["host_bytes"], after["memories"]) == (before["host_bytes"], before["memories"])
    assert after["host_peak"] >= during["host_bytes"]


def test_a_forgotten_memory_is_given_back_too() -> None:
    gc.collect()
    before = memory_stats()["host_bytes"]
    MixMemory(1 << 20).host_ptr()
    gc.collect()
    assert memory_stats()["host_bytes"] == before


def test_a_half_made_object_can_be_collected() -> None:
    with pytest.raises(InputError):
        MixMemory(-1)
    with pytest.raises(infersdk.errors.DTypeError):
        Tensor((1,), "complex64")
    gc.collect()


def test_copies_are_refused_rather_than_made_to_share() -> None:
    import copy
    import pickle

    memory = MixMemory(8)
    for make in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="MixMemory"):
            make(memory)


# ---- through the C interface: what the Python face does not show ----


def wrapped(nbytes: int, *, read_only: bool = False) -> tuple[object, object]:
    lent = ffi.new(f"char[{nbytes}]")
    place = out("ifs_memory *")
    check(lib.ifs_memory_wrap_host(lent, nbytes, -1, read_only, place))
    return lent, ffi.gc(place[0], lib.ifs_memory_destroy)


def test_a_borrowed_block_is_used_where_it_lies_and_never_grown() -> None:
    lent, memory = wrapped(100)
    place = out("void *")
    check(lib.ifs_memory_host_ptr(memory, lib.IFS_READ_WRITE, place))
    assert place[0] == lent
    assert lib.ifs_memory_head(memory) == Head.HOST
    check(lib.ifs_memory_resize(memory, 40))
    check(lib.ifs_memory_resize(memory, 100))
    with pytest.raises(ShapeError, match="101 bytes do not fit the borrowed block of 100; wrap a larger one"):
        check(lib.ifs_memory_resize(memory, 101))
    assert lib.ifs_memory_nbytes(memory) == 100


def test_a_read_only_block_refuses_to_be_written() -> None:
    _lent, memory = wrapped(8, read_only=True)
    place = out("void *")
    check(lib.ifs_memory_host_ptr(memory, lib.IFS_READ, place))
    for access in (lib.IFS_WRITE, lib.IFS_READ_WRITE):
        with pytest.raises(ReadOnlyError, match="wrapped as read-only; copy it to write"):
            check(lib.ifs_memory_host_ptr(memory, access, place))


def test_wrapping_null() -> None:
    place = out("ifs_memory *")
    with pytest.raises(InputError, match="cannot wrap 8 bytes at NULL"):
        check(lib.ifs_memory_wrap_host(ffi.NULL, 8, -1, 0, place))
    check(lib.ifs_memory_wrap_host(ffi.NULL, 0, -1, 0, place))
    lib.ifs_memory_destroy(place[0])


def test_borrowed_blocks_do_not_count() -> None:
    before = memory_stats()["host_bytes"]
    _lent, _memory = wrapped(1 << 20)
    assert memory_stats()["host_bytes"] == before


def test_a_hold_outlives_growth_and_the_memory() -> None:
    gc.collect()
    before = memory_stats()["host_bytes"]
    memory = MixMemory(1 << 16)
    block = out("ifs_block *")
    with pytest.raises(InputError, match="the host side has no block yet; access it first"):
        check(lib.ifs_memory_hold(memory._open, lib.IFS_SIDE_HOST, block))
    with pytest.raises(InputError, match="side 2 is neither"):
        check(lib.ifs_memory_hold(memory._open, 2, block))
    at = memory.host_ptr(write=True)
    ctypes.memset(at, 3, 1 << 16)
    check(lib.ifs_memory_hold(memory._open, lib.IFS_SIDE_HOST, block))
    memory.resize(1 << 18)
    ctypes.memset(memory.host_ptr(write=True), 4, 1 << 18)
    assert memory_stats()["host_bytes"] - before == (1 << 16) + (1 << 18)
    memory.close()
    assert memory_stats()["host_bytes"] - before == 1 << 16
    assert ctypes.string_at(at, 1 << 16) == b"\3" * (1 << 16)
    lib.ifs_block_release(block[0])
    assert memory_stats()["host_bytes"] == before


def test_destroy_and_release_take_null() -> None:
    lib.ifs_memory_destroy(ffi.NULL)
    lib.ifs_block_release(ffi.NULL)
    lib.ifs_tensor_destroy(ffi.NULL)


def test_memories_in_many_threads_balance() -> None:
    gc.collect()
    before = memory_stats()

    def work(seed: int) -> None:
        sizes = np.random.default_rng(seed).integers(0, 100_000, 200)
        with MixMemory() as memory:
            for size in sizes.tolist():
                memory.resize(size)
                ctypes.memset(memory.host_ptr(write=True), seed, size)
                assert ctypes.string_at(memory.host_ptr(), size) == bytes([seed]) * size

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    after = memory_stats()
    assert (after["host_bytes"], after["memories"]) == (before["host_bytes"], before["memories"])


def test_stats_are_a_dict_of_whole_numbers() -> None:
    stats = memory_stats()
    assert set(stats) == {
        "host_bytes", "host_peak", "pinned_bytes", "pinned_peak", "device_bytes", "device_peak", "memories",
    }  # fmt: skip
    assert all(type(value) is int for value in stats.values())
    assert stats["host_peak"] >= stats["host_bytes"]
