"""MixMemory: lazy blocks, reuse of capacity, the head, and what a machine without a device half answers."""

from __future__ import annotations

import ctypes
import gc

import numpy as np
import pytest
from waiting import together

from infersdk import Head, MixMemory, device_count, memory_stats
from infersdk.core._lib import check, lib, out
from infersdk.errors import ClosedError, DeviceUnavailableError, InputError, OutOfMemoryError


def test_the_host_block_is_aligned_and_at_least_as_large_as_asked_for() -> None:
    for nbytes in (0, 1, 63, 64, 65, 1000):
        memory = MixMemory(nbytes)
        at = memory.host_ptr()
        assert at % 64 == 0
        assert at != 0
        assert max(nbytes, 1) <= memory.host_capacity < nbytes + 65


def test_a_host_memory_has_no_device_side() -> None:
    memory = MixMemory(8)
    with pytest.raises(DeviceUnavailableError, match="is on the host alone; create it for a device"):
        memory.device_ptr()
    memory.host_ptr(write=True)  # and is not the worse for it
    assert memory.head is Head.HOST


@pytest.mark.skipif(device_count() > 0, reason="there is a GPU")
def test_a_device_memory_without_a_device_says_so_and_stays_usable() -> None:
    memory = MixMemory(8, "cuda:0")  # lazy: nothing was asked of a device yet
    for access in (memory.device_ptr, memory.host_ptr):
        with pytest.raises(DeviceUnavailableError, match="no device cuda:0: "):
            access()
    assert memory.head is Head.UNINITIALIZED
    assert (memory.host_capacity, memory.device_capacity) == (0, 0)
    memory.close()


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


def test_copies_are_refused_rather_than_made_to_share() -> None:
    import copy
    import pickle

    memory = MixMemory(8)
    for make in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="MixMemory"):
            make(memory)


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

    together(work, range(8))
    after = memory_stats()
    assert (after["host_bytes"], after["memories"]) == (before["host_bytes"], before["memories"])
