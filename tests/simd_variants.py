"""The SIMD variants of the native core that this processor runs, for tests that compare them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from infersdk.core._lib import check, lib, text

__all__ = ["VARIANTS", "variant", "variant_name"]


def _variants() -> list[int]:
    current = lib.ifs_simd()
    available = [simd for simd in range(4) if lib.ifs_set_simd(simd) == 0]
    check(lib.ifs_set_simd(current))
    return available


@contextmanager
def variant(simd: int) -> Iterator[None]:
    """Runs the body of the `with` statement with one variant."""
    current = lib.ifs_simd()
    check(lib.ifs_set_simd(simd))
    try:
        yield
    finally:
        check(lib.ifs_set_simd(current))


def variant_name(simd: int) -> str:
    """`"avx2"`, for the names of tests."""
    return text(lib.ifs_simd_name(simd))


VARIANTS = _variants()
