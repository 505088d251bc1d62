"""The cffi builder of `infersdk._native`.

The declarations come out of the headers: what stands between their `[cdef]` marks, and the status codes of
`IFS_STATUS_MAP`. Nothing is typed twice.
"""

from __future__ import annotations

import re
from pathlib import Path

from cffi import FFI

NATIVE = Path(__file__).resolve().parent
HEADERS = (NATIVE / "include" / "infersdk.h", NATIVE / "src" / "dlpack.h")


def declarations(header: str) -> str:
    """The C declarations of a header that cffi can read."""
    marked = re.findall(r"/\* \[cdef\].*?\*/(.*?)/\* \[/cdef\] \*/", header, re.DOTALL)
    if not marked:
        raise ValueError("no header has a block between [cdef] and [/cdef]")
    codes = re.findall(r"^\s*X\((\w+), (-?\d+), \".*?\"\)", header, re.MULTILINE)
    status = "typedef int32_t ifs_status;\n" + "\n".join(f"#define IFS_{name} {code}" for name, code in codes)
    # cffi wants a bare number behind #define: no brackets, no comment.
    body = re.sub(r"^(#define \w+) \(?(-?\w+)\)?.*$", r"\1 \2", "\n".join(marked), flags=re.MULTILINE)
    return status + "\n" + body


ffibuilder = FFI()
ffibuilder.cdef(declarations("".join(header.read_text(encoding="utf-8") for header in HEADERS)))
ffibuilder.cdef('extern "Python" void ifs_py_dlpack_release(DLManagedTensor *);')
ffibuilder.set_source(
    "infersdk._native", "".join(f'#include "{header.name}"\n' for header in HEADERS), py_limited_api=True
)
