"""ifs_convert: all pairs of element types against NumPy and exact Python arithmetic, and the SIMD variants."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from simd_variants import VARIANTS, variant

from infersdk import Tensor
from infersdk.core._lib import check, ffi, lib, text
from infersdk.errors import DTypeError, InputError, NativeError

DTYPES = [
    np.dtype(name)
    for name in (
        "float16", "float32", "float64", "int8", "int16", "int32", "int64",
        "uint8", "uint16", "uint32", "uint64", "bool",
    )
]  # fmt: skip
INTEGERS = [d for d in DTYPES if d.kind in "iu"]


def native(values: npt.NDArray[np.generic], dtype: np.dtype[np.generic]) -> npt.NDArray[np.generic]:
    return Tensor.wrap(values).astype(dtype).numpy()


def samples(dtype: np.dtype[np.generic], rng: np.random.Generator) -> npt.NDArray[np.generic]:
    """What is awkward about a type, and then as much at random that several chunks and a rest are converted."""
    if dtype.kind == "b":
        return rng.integers(0, 2, 1300).astype(bool)
    if dtype.kind in "iu":
        own = np.iinfo(dtype)
        edges = {0, 1, -1, 2, 3}
        for other in INTEGERS:
            info = np.iinfo(other)
            edges |= {info.min - 1, info.min, info.min + 1, info.max - 1, info.max, info.max + 1}
        edges |= {sign * (2**power + step) for power in (11, 24, 53) for step in (-1, 0, 1) for sign in (-1, 1)}
        edges |= {65503, 65504, 65505, 65519, 65520, 65521}
        special = np.array([e for e in sorted(edges) if own.min <= e <= own.max], dtype)
        return np.concatenate([special, rng.integers(own.min, own.max, 1201, dtype, endpoint=True)])
    with np.errstate(over="ignore"):
        edges = [math.nan, -math.nan, math.inf, -math.inf, 0.0, -0.0, 0.5, 1.5, 2.5, 0.99999, 1e-40, 1e300]
        for other in INTEGERS:
            info = np.iinfo(other)
            for bound in (info.min, info.max):
                edges += [bound, bound - 1, bound + 1, bound - 0.5, bound + 0.5, np.nextafter(float(bound), 0)]
        edges += [-e for e in edges]
        special = np.array(edges, np.float64).astype(dtype)
        bits = rng.integers(0, 256, 600 * dtype.itemsize, np.uint8).view(dtype)
        near = (rng.standard_normal(600) * 10.0 ** rng.integers(-6, 20, 600)).astype(dtype)
    return np.concatenate([special, bits, near])


def expected(values: npt.NDArray[np.generic], dtype: np.dtype[np.generic]) -> npt.NDArray[np.generic]:
    """The contract of ifs_convert, written with Python's integers where C would saturate."""
    with np.errstate(all="ignore"):
        if dtype.kind == "b":
            return values != 0  # NaN too
        if dtype.kind == "f":
            return values.astype(dtype)
        info = np.iinfo(dtype)

        def one(value: float) -> int:
            if isinstance(value, float) and not math.isfinite(value):
                return 0 if math.isnan(value) else info.max if value > 0 else info.min
            return min(max(math.trunc(value), info.min), info.max)

        return np.array([one(v) for v in values.tolist()], dtype)


def same(got: npt.NDArray[np.generic], want: npt.NDArray[np.generic]) -> None:
    """Bit for bit, but a NaN is a NaN."""
    assert got.dtype == want.dtype
    if got.dtype.kind == "f":
        np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
        keep = ~np.isnan(want)
        got, want = got[keep], want[keep]
        np.testing.assert_array_equal(np.signbit(got), np.signbit(want))
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("target", DTYPES, ids=str)
@pytest.mark.parametrize("source", DTYPES, ids=str)
def test_every_pair_of_types(source: np.dtype[np.generic], target: np.dtype[np.generic], rng) -> None:
    values = samples(source, rng)
    same(native(values, target), expected(values, target))


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 511, 512, 513, 1025])
def test_sizes_around_the_chunks_write_what_they_should_and_no_more(count: int, rng) -> None:
    values = rng.integers(-300, 300, count).astype(np.int32)
    out = np.full(count + 16, 77, np.uint8)
    check(
        lib.ifs_convert(
            ffi.from_buffer(values) if count else ffi.NULL, lib.IFS_INT32, ffi.from_buffer(out), lib.IFS_UINT8, count
        )
    )
    np.testing.assert_array_equal(out[:count], np.clip(values, 0, 255))
    assert (out[count:] == 77).all()


def test_all_float16_values_widen_exactly() -> None:
    halves = np.arange(65536, dtype=np.uint16).view(np.float16)
    same(native(halves, np.dtype("float32")), halves.astype(np.float32))
    same(native(halves, np.dtype("float64")), halves.astype(np.float64))


def test_all_float16_values_return_from_float32(simd: int) -> None:
    halves = np.arange(65536, dtype=np.uint16).view(np.float16)
    same(native(native(halves, np.dtype("float32")), np.dtype("float16")), halves)


def midpoints() -> npt.NDArray[np.float64]:
    """Every halfway case between two neighbouring float16 values, up to where infinity begins, with either sign."""
    finite = np.append(np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64), 65536.0)
    middle = (finite[:-1] + finite[1:]) / 2
    return np.concatenate([middle, -middle])


def test_float32_rounds_to_the_nearest_half_ties_to_even(simd: int) -> None:
    middle = midpoints().astype(np.float32)
    np.testing.assert_array_equal(middle, midpoints())  # each is a float32 exactly
    around = np.concatenate([middle, np.nextafter(middle, np.float32(0)), np.nextafter(middle, np.float32(np.inf))])
    with np.errstate(over="ignore"):
        same(native(around, np.dtype("float16")), around.astype(np.float16))


def test_float64_rounds_to_a_half_once() -> None:
    # A double a hair off a halfway case becomes the halfway case as a float32: two roundings would go astray.
    middle = midpoints()
    around = np.concatenate([middle, np.nextafter(middle, 0), np.nextafter(middle, np.inf)])
    assert (around.astype(np.float32) == np.tile(middle, 3)).all()
    with np.errstate(over="ignore"):
        same(native(around, np.dtype("float16")), around.astype(np.float16))


def test_simd_variants_are_equal_bit_for_bit(rng) -> None:
    # NaN and its payload included: this is the promise that is stronger than NumPy's.
    singles = rng.integers(0, 2**32, 300_007, np.uint32).view(np.float32)
    singles[:1000] = (rng.integers(0, 2**23, 1000, np.uint32) | 0x7F800000).view(np.float32)  # NaNs, quiet and not
    halves = np.arange(65536, dtype=np.uint16).view(np.float16)[: 65536 - 3]
    results = []
    for simd in VARIANTS:
        with variant(simd):
            narrow = native(singles, np.dtype("float16")).view(np.uint16)
            wide = native(halves, np.dtype("float32")).view(np.uint32)
            results.append((narrow.copy(), wide.copy()))
    for narrow, wide in results[1:]:
        np.testing.assert_array_equal(narrow, results[0][0])
        np.testing.assert_array_equal(wide, results[0][1])


def test_errors_of_the_plain_call() -> None:
    place = ffi.new("char[64]")
    with pytest.raises(DTypeError, match=r"element type 12 to 0; the known types are 0 to 11"):
        check(lib.ifs_convert(place, 12, place, 0, 1))
    with pytest.raises(DTypeError, match="element type 0 to -1"):
        check(lib.ifs_convert(place, 0, place, -1, 1))
    with pytest.raises(InputError, match="3 elements from or to NULL"):
        check(lib.ifs_convert(ffi.NULL, 0, place, 1, 3))
    check(lib.ifs_convert(ffi.NULL, 0, ffi.NULL, 1, 0))


def test_names_and_sizes_of_types() -> None:
    for code in range(lib.IFS_NUM_DTYPES):
        assert np.dtype(text(lib.ifs_dtype_name(code))).itemsize == lib.ifs_dtype_size(code)
    for code in (-1, lib.IFS_NUM_DTYPES):
        assert lib.ifs_dtype_size(code) == 0
        assert lib.ifs_dtype_name(code) == ffi.NULL


def test_simd_variants_have_names_and_refuse_what_is_not_there() -> None:
    assert [text(lib.ifs_simd_name(simd)) for simd in range(4)] == ["plain", "neon", "avx2", "avx512"]
    assert lib.ifs_simd_name(4) == ffi.NULL
    assert lib.ifs_simd_name(-1) == ffi.NULL
    best = lib.ifs_simd_best()
    assert set(VARIANTS) == {lib.IFS_SIMD_PLAIN, best} | ({lib.IFS_SIMD_AVX2} if best == lib.IFS_SIMD_AVX512 else set())
    before = lib.ifs_simd()
    for simd in range(4):
        if simd in VARIANTS:
            with variant(simd):
                assert lib.ifs_simd() == simd
        else:
            with pytest.raises(NativeError, match="cannot run on this processor; the best one is"):
                check(lib.ifs_set_simd(simd))
        assert lib.ifs_simd() == before
    with pytest.raises(InputError, match="unknown SIMD variant 9; use IFS_SIMD_PLAIN"):
        check(lib.ifs_set_simd(9))
