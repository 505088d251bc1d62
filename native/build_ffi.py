"""The cffi builder of `infersdk._native`.

The declarations come out of the headers: what stands between their `[cdef]` marks, and the status codes of
`IFS_STATUS_MAP`. Nothing is typed twice.
"""

from __future__ import annotations

import re
from pathlib import Path

from cffi import FFI

NATIVE = Path(__file__).resolve().parent
HEADERS = (
    NATIVE / "include" / "infersdk.h",
    NATIVE / "include" / "infersdk_custom_op.h",
    NATIVE / "src" / "custom_ops.h",
    NATIVE / "src" / "dlpack.h",
)

#: What the core calls in Python.
CALLBACKS = """
extern "Python" void ifs_py_dlpack_release(DLManagedTensor *);
extern "Python" int32_t ifs_py_custom_create(int64_t, ifs_custom_node *, const char *, const ifs_op_attribute *,
                                             int32_t, int64_t *, char *, size_t);
extern "Python" int32_t ifs_py_custom_trace(int64_t, ifs_custom_node *, const int32_t *, int32_t, char *, size_t);
extern "Python" int32_t ifs_py_custom_run(int64_t, const ifs_op_call *);
extern "Python" void ifs_py_custom_destroy(int64_t);
"""


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


#: Functions that only queue something on a stream, and never wait. cffi lets go of the interpreter's lock around each
#: call, and to get it back a thread has to stand in line behind all that run Python: for these few microseconds of work
#: that can be milliseconds. So there is a second one of each, `held_ifs_...`, that keeps the lock.
HELD = ("ifs_tensor_device_on", "ifs_tensor_memory", "ifs_memory_fetch", "ifs_cuda_detector_run")

HOLDING = """
#include <string.h>
#undef Py_BEGIN_ALLOW_THREADS
#undef Py_END_ALLOW_THREADS
#define Py_BEGIN_ALLOW_THREADS \\
    { PyThreadState *_save = strncmp(__func__, "_cffi_f_held_", 13) ? PyEval_SaveThread() : NULL;
#define Py_END_ALLOW_THREADS if (_save) PyEval_RestoreThread(_save); }
"""


def held(declared: str) -> str:
    """The declarations of the functions that keep the lock, out of those of all functions."""
    found = []
    for name in HELD:
        match = re.search(rf"^[\w ]+[ *]{name}\([^;]*\);", declared, re.MULTILINE)
        if match is None:
            raise ValueError(f"no header declares {name}")
        found.append(match[0].replace(name, f"held_{name}"))
    return "\n".join(found)


ffibuilder = FFI()
_declared = declarations("".join(header.read_text(encoding="utf-8") for header in HEADERS))
ffibuilder.cdef(_declared)
ffibuilder.cdef(held(_declared))
ffibuilder.cdef(CALLBACKS)
ffibuilder.set_source(
    "infersdk._native",
    "".join(f'#include "{header.name}"\n' for header in HEADERS)
    + HOLDING
    + "".join(f"#define held_{name} {name}\n" for name in HELD),
    py_limited_api=True,
)
