"""Mapped memory of a file that shrinks: zeros, and no signal."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from infersdk.errors import InputError
from infersdk.serve.shared_map import SharedMap

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGBUS"), reason="no POSIX signals here")
PAGE = os.sysconf("SC_PAGESIZE") if hasattr(os, "sysconf") else 4096
PAGES = 8


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    """The descriptor of a file of 8 pages, each full of its number from 1."""
    path = tmp_path / "file"
    path.write_bytes(b"".join(bytes([page + 1]) * PAGE for page in range(PAGES)))
    descriptor = os.open(path, os.O_RDWR)
    yield descriptor
    os.close(descriptor)


@pytest.mark.parametrize("offset", [0, 1, PAGE - 1, PAGE, 3 * PAGE + 64])
def test_bytes_of_a_part(file: int, offset: int) -> None:
    nbytes = PAGES * PAGE - offset
    array = SharedMap(file, offset, nbytes).array
    assert (array.shape, array.dtype) == ((nbytes,), np.uint8)
    np.testing.assert_array_equal(array, np.frombuffer(os.pread(file, nbytes, offset), np.uint8))
    array[-1] = 99
    assert os.pread(file, 1, offset + nbytes - 1) == b"\x63"


def test_a_file_that_shrinks_reads_as_zeros(file: int) -> None:
    shared, other = SharedMap(file, 100, PAGES * PAGE - 100), SharedMap(file, 0, PAGE)
    array = shared.array
    assert not shared.damaged
    os.ftruncate(file, PAGE)
    assert array[0] == 1  # what is still there
    assert not shared.damaged
    assert not array[PAGE:].any()
    assert shared.damaged
    array[:] = 7  # is lost
    os.ftruncate(file, PAGES * PAGE)
    assert os.pread(file, PAGES * PAGE, 0) == b"\1" * PAGE + bytes(PAGE) * (PAGES - 1)
    assert not other.damaged
    assert other.array.all()


def test_writes_behind_the_end_are_lost(file: int) -> None:
    shared = SharedMap(file, 0, PAGES * PAGE)
    os.ftruncate(file, 0)
    shared.array[:] = 5
    assert shared.damaged
    assert os.fstat(file).st_size == 0


def test_whether_the_bytes_are_the_files(file: int) -> None:
    shared = SharedMap(file, PAGE, 2 * PAGE)
    assert shared.is_whole(file, 3 * PAGE)
    assert not shared.is_whole(file, PAGES * PAGE + 1)
    os.ftruncate(file, 3 * PAGE - 1)  # in its last page: no access faults
    assert not shared.is_whole(file, 3 * PAGE)
    assert shared.is_whole(file, 3 * PAGE - 1)
    os.ftruncate(file, 2 * PAGE)
    assert not shared.array[PAGE:].any()
    os.ftruncate(file, PAGES * PAGE)
    assert not shared.is_whole(file, 3 * PAGE)  # it was shorter meanwhile


def test_many_threads_at_once(file: int) -> None:
    maps = [SharedMap(file, 0, PAGES * PAGE) for _ in range(8)]
    os.ftruncate(file, 0)
    sums = []
    threads = [
        threading.Thread(target=lambda one=one: sums.append(int(one.array.sum()))) for one in maps for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sums == [0] * 32
    assert all(one.damaged for one in maps)


def test_a_view_keeps_the_bytes_mapped_and_nothing_else_does(file: int) -> None:
    def mapped() -> int:
        return Path("/proc/self/maps").read_text().count("test_a_view_keeps")

    if not Path("/proc/self/maps").exists():
        pytest.skip("no /proc here")
    array = SharedMap(file, 0, PAGE).array[10:]
    gc.collect()
    assert mapped() == 1
    assert array[0] == 1
    del array
    gc.collect()
    assert mapped() == 0
    for _ in range(5000):  # more than there are slots
        SharedMap(file, 0, PAGE)
    assert mapped() == 0


def test_what_cannot_be_mapped(file: int) -> None:
    for offset, nbytes in ((0, 0), (-1, 10), (2**62, 10)):
        with pytest.raises(InputError, match="cannot be mapped"):
            SharedMap(file, offset, nbytes)
    with pytest.raises(InputError, match="Bad file descriptor"):
        SharedMap(10**6, 0, 10)


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-c", textwrap.dedent(program)], capture_output=True, text=True, check=False, timeout=60
    )


SETUP = """
    import mmap, os, tempfile
    from infersdk.serve.shared_map import SharedMap
    file = tempfile.TemporaryFile()
    file.truncate(1 << 16)
    shared = SharedMap(file.fileno(), 0, 1 << 16).array
"""


#: The system's own calls.
LIBC = """
    import ctypes
    libc, size, number = ctypes.CDLL(None), ctypes.c_size_t, ctypes.c_int
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, size, number, number, number, ctypes.c_long]
"""


def test_other_faults_end_the_process_as_before() -> None:
    done = run(
        SETUP
        + """
    other = mmap.mmap(file.fileno(), 1 << 16)
    file.truncate(0)
    print(shared[5], flush=True)
    print(other[5])
    """
    )
    assert (done.returncode, done.stdout) == (-signal.SIGBUS, "0\n")


def test_the_signal_of_another_process_ends_it_as_before() -> None:
    program = textwrap.dedent(SETUP + '\n    print("ready", flush=True)\n    import time; time.sleep(60)')
    process = subprocess.Popen([sys.executable, "-P", "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGBUS)
    assert process.wait(30) == -signal.SIGBUS


@pytest.mark.parametrize("when", ["before", "after"])
def test_beside_the_fault_handler_of_python(when: str) -> None:
    enable = "\n    import faulthandler; faulthandler.enable()\n"
    before, after = (enable, "") if when == "before" else ("", enable)
    done = run(before + SETUP + after + "\n    file.truncate(0)\n    print(shared[5])")
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr


def test_a_handler_that_was_taken_away_is_installed_again() -> None:
    """`faulthandler.disable()` puts back what was there before it was enabled."""
    done = run(
        "\n    import faulthandler; faulthandler.enable()\n"
        + SETUP
        + """
    faulthandler.disable()
    second = SharedMap(file.fileno(), 0, 1 << 16).array
    file.truncate(0)
    print(shared[5] + second[5])
    """
    )
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr


def test_other_faults_end_the_process_beside_the_fault_handler() -> None:
    done = run(
        SETUP
        + """
    import faulthandler; faulthandler.enable()
    second = SharedMap(file.fileno(), 0, 1 << 16).array
    other = mmap.mmap(file.fileno(), 1 << 16)
    file.truncate(0)
    print(second[5], flush=True)
    print(other[5])
    """
    )
    assert (done.returncode, done.stdout) == (-signal.SIGBUS, "0\n"), done.stderr
    assert "Bus error" in done.stderr


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the structure is that of Linux")
def test_beside_a_small_alternate_stack() -> None:
    """A library set up a stack for signals on which this processor's registers do not fit."""
    done = run(
        SETUP
        + """
    import ctypes
    class Stack(ctypes.Structure):
        _fields_ = [("start", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]
    memory = ctypes.create_string_buffer(2048)  # the least that the system takes
    stack = Stack(ctypes.addressof(memory), 0, len(memory))
    assert ctypes.CDLL(None).sigaltstack(ctypes.byref(stack), None) == 0
    file.truncate(0)
    print(shared[5])
    """
    )
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the structure is that of Linux")
def test_beside_an_alternate_stack_that_is_gone() -> None:
    """OpenVINO leaves the thread that loaded it with one when it is freed in another thread."""
    done = run(
        SETUP
        + LIBC
        + """
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    class Stack(ctypes.Structure):
        _fields_ = [("start", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]
    memory = libc.mmap(None, 1 << 17, 3, 0x22, -1, 0)
    assert libc.sigaltstack(ctypes.byref(Stack(memory, 0, 1 << 17)), None) == 0
    assert libc.munmap(ctypes.c_void_p(memory), size(1 << 17)) == 0
    file.truncate(0)
    print(shared[5])
    """
    )
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr


def test_a_thread_that_blocks_the_signal() -> None:
    """The system ends a process at a fault in such a thread, whatever handler there is."""
    done = run(
        "    import signal; signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())"
        + SETUP
        + """
    import threading
    def read():
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        SharedMap.guard()
        print(other[5])
    other = SharedMap(file.fileno(), 0, 1 << 16).array
    file.truncate(0)
    print(shared[5], flush=True)
    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    """
    )
    assert (done.returncode, done.stdout) == (0, "0\n0\n"), done.stderr


def test_a_handler_that_is_replaced_while_there_are_mappings() -> None:
    done = run(
        SETUP
        + """
    import signal
    for action in (signal.SIG_DFL, signal.SIG_IGN):
        file.truncate(1 << 16)
        other = SharedMap(file.fileno(), 0, 1 << 16)
        signal.signal(signal.SIGBUS, action)
        other.guard()
        file.truncate(0)
        print(other.array[5])
    """
    )
    assert (done.returncode, done.stdout) == (0, "0\n0\n"), done.stderr


LIMIT = Path("/proc/sys/vm/max_map_count")


@pytest.mark.skipif(not LIMIT.exists() or int(LIMIT.read_text()) > 200_000, reason="too many mappings to make here")
def test_a_process_with_as_many_mappings_as_there_may_be() -> None:
    """Then the system gives none, not even in place of another."""
    done = run(
        SETUP
        + LIBC
        + """
    maps = [SharedMap(file.fileno(), 0, 1 << 16) for _ in range(40)]
    made = 0
    while libc.mmap(None, 4096, 1 + made % 2 * 2, 0x22, -1, 0) != 2**64 - 1:  # of two kinds, which are not merged
        made += 1
    file.truncate(0)
    print(sum(int(one.array[5]) for one in maps), all(one.damaged for one in maps), made > 1000)
    """
    )
    assert (done.returncode, done.stdout) == (0, "0 True True\n"), done.stderr


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the structure is that of Linux")
def test_a_handler_before_it_may_mend_the_same_address_again() -> None:
    """Another library that does the same with mappings of its own."""
    done = run(
        LIBC
        + """
    import signal
    @ctypes.CFUNCTYPE(None, ctypes.c_int)
    def mend(_):
        libc.mmap(at, 4096, 3, 0x32, -1, 0)  # zeros at a fixed address
    libc.signal(signal.SIGBUS, mend)
    """
        + SETUP
        + """
    at = libc.mmap(None, 4096, 3, 1, file.fileno(), 0)
    for _ in range(5):
        file.truncate(4096)
        libc.mmap(at, 4096, 3, 0x11, file.fileno(), 0)
        file.truncate(0)
        print(ctypes.c_uint8.from_address(at + 7).value, end="")
    """
    )
    assert (done.returncode, done.stdout) == (0, "00000"), done.stderr
