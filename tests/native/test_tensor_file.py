"""Tensor files that a C++ program wrote, and ours that it reads; and the error for each malformed one."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from infersdk import Tensor
from infersdk.errors import TensorFileError

MAGIC = 0xFCCFE2E2
CODES = {
    "float32": 0, "float16": 1, "int32": 2, "uint8": 3, "int8": 4, "int64": 5,
    "bool": 6, "float64": 7, "int16": 8, "uint16": 9, "uint32": 10, "uint64": 11,
}  # fmt: skip


@pytest.fixture(scope="module")
def program(build) -> list[str]:
    """The C++ program, which shares nothing with the core."""
    return build("tensor_file.cpp", sources=())


def test_what_cpp_writes_we_read(program: list[str], tmp_path: Path) -> None:
    subprocess.run([*program, "write", str(tmp_path)], check=True)
    expected = {
        "float32": (np.arange(24, dtype=np.float32) * 0.25 - 3).reshape(2, 3, 4),
        "float16": (1 + np.arange(5) / 1024).astype(np.float16),
        "int32": np.zeros((3, 0, 2), np.int32),
        "uint8": np.arange(256, dtype=np.uint8).reshape(16, 16),
        "scalar": np.array(-123456789, np.int32),
    }
    assert {path.stem for path in tmp_path.iterdir()} == set(expected)
    for name, array in expected.items():
        tensor = Tensor.load(tmp_path / f"{name}.bin")
        assert (tensor.shape, tensor.dtype) == (array.shape, array.dtype)
        np.testing.assert_array_equal(tensor.numpy(), array)
        tensor.save(tmp_path / "again.bin")
        assert (tmp_path / "again.bin").read_bytes() == (tmp_path / f"{name}.bin").read_bytes()


@pytest.mark.parametrize("shape", [(), (0, 4), (2, 3, 5), (1,) * 16], ids=str)
@pytest.mark.parametrize("dtype", CODES)
def test_what_we_write_cpp_reads(program: list[str], dtype: str, shape: tuple[int, ...], tmp_path: Path, rng) -> None:
    array = rng.integers(0, 2, shape).astype(dtype) if dtype == "bool" else rng.integers(0, 99, shape).astype(dtype)
    Tensor.wrap(array).save(tmp_path / "t.bin")
    out = subprocess.run([*program, "read", str(tmp_path / "t.bin")], check=True, capture_output=True, text=True).stdout
    code, dims, nbytes, data = (part.strip() for part in out.split("|"))
    assert int(code) == CODES[dtype]
    assert tuple(map(int, dims.split())) == shape
    assert int(nbytes) == array.nbytes
    assert bytes.fromhex(data) == array.tobytes()


def header(*dims: int, magic: int = MAGIC, ndims: int | None = None, dtype: int = 0) -> bytes:
    return struct.pack(f"<3I{len(dims)}i", magic, len(dims) if ndims is None else ndims, dtype, *dims)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "0 bytes are too few for a tensor's header of at least 12"),
        (header()[:11], "11 bytes are too few"),
        (header(magic=MAGIC + 1), "not a tensor file: it starts with 0xFCCFE2E3, not 0xFCCFE2E2"),
        (struct.pack(">3I", MAGIC, 0, 0), "not a tensor file: it starts with 0xE2E2CFFC"),  # the other byte order
        (header(ndims=17), "says that it has 17 dimensions; the limit is 16"),
        (header(ndims=0xFFFFFFFF), "says that it has 4294967295 dimensions"),
        (header(dtype=12), "unknown element type 12; the known ones are 0 to 11"),
        (header(dtype=0xFFFFFFFF), "unknown element type 4294967295"),
        (header(1, 2, ndims=3), "truncated after 20 bytes of its header of 24"),
        (header(2, -1), "dimension 1 is -1; a dimension cannot be negative"),
        (header(-(2**31)), "dimension 0 is -2147483648"),
        (header(*(2**31 - 1,) * 3), r"the size of its shape \(2147483647, 2147483647, 2147483647\) overflows"),
        (header(*(2**16,) * 4), "overflows"),  # 2^64 elements: nothing, in 64 bits
        (header(0, *(2**16,) * 4), "overflows"),
        (header(2**31 - 1, 2**31 - 1, dtype=7), "overflows"),
        (
            header(2**31 - 1) + b"1234",
            r"truncated: \(2147483647,\) of float32 takes 8589934588 bytes of data, but the file has 4",
        ),
        (header(2) + bytes(7), r"truncated: \(2,\) of float32 takes 8 bytes of data, but the file has 7"),
        (
            header(2) + bytes(9),
            r"longer than its header says: \(2,\) of float32 takes 8 bytes of data, but the file has 9",
        ),
        (header(0) + b"x", "longer than its header says"),
        (header() + bytes(3), r"truncated: \(\) of float32"),
        (header(3, dtype=6) + b"\0\1\2", "element 2 is 2, but a bool is 0 or 1"),
    ],
)
def test_what_each_malformed_file_is_told(data: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(TensorFileError, match=message):
        Tensor.from_bytes(data)
    (tmp_path / "bad.bin").write_bytes(data)
    with pytest.raises(TensorFileError, match=message) as caught:
        Tensor.load(tmp_path / "bad.bin")
    assert "bad.bin: " in str(caught.value)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.bin")
    code = "import sys; from infersdk import Tensor; Tensor.load(sys.argv[1])"
    command = [sys.executable, "-c", code, str(tmp_path / "pipe.bin")]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert "TensorFileError" in done.stderr
    assert "pipe.bin: not a regular file" in done.stderr


def test_a_huge_file_that_is_hollow_is_no_reason_to_crash(tmp_path: Path) -> None:
    # 2^46 bytes that take no room on the disk: the header is true, and yet no machine can hold it.
    path = tmp_path / "huge.bin"
    try:
        with path.open("wb") as file:
            file.write(header(2**23, 2**21))
            file.truncate(20 + 2**46)
    except OSError:
        pytest.skip("this file system has no files of 64 TiB")
    with pytest.raises(MemoryError, match="cannot allocate 70368744177664 bytes of host memory"):
        Tensor.load(path)
