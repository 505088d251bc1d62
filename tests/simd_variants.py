"""The SIMD variants of the native core that this processor runs, for tests that hold them against one another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from infersdk._lib import check, lib

__all__ = ["VARIANTS", "variant"]


def _variants() -> list[int]:
    current = lib.ifs_simd()
    found = [simd for simd in range(4) if lib.ifs_set_simd(simd) == 0]
    check(lib.ifs_set_simd(current))
    return found


@contextmanager
def variant(simd: int) -> Iterator[None]:
    """Runs what it encloses with one variant."""
    current = lib.ifs_simd()
    check(lib.ifs_set_simd(simd))
    try:
        yield
    finally:
        check(lib.ifs_set_simd(current))


VARIANTS = _variants()
