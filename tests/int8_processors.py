"""Whether runtimes add products of 8 bits exactly on this processor."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

_ON_X86 = platform.machine().lower() in ("x86_64", "amd64")
_INFO = Path("/proc/cpuinfo")
#: x86 processors without VNNI add two products in 16 bits, which saturates: results depend on the runtime.
IS_EXACT = not _ON_X86 or not _INFO.exists() or "vnni" in _INFO.read_text()

needs_exact_int8 = pytest.mark.skipif(not IS_EXACT, reason="a processor without VNNI: sums of 8-bit products saturate")
