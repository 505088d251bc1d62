"""The cffi builder of `infersdk._native`.

It reads the declarations from the headers: everything between their `[cdef]` marks, and the status codes of
`IFS_STATUS_MAP`.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

from cffi import FFI

NATIVE = Path(__file__).resolve().parent
HEADERS = (
    NATIVE / "include" / "infersdk.h",
    NATIVE / "include" / "infersdk_custom_op.h",
    NATIVE / "src" / "custom_ops.h",
    NATIVE / "src" / "custom_ops_detection.h",
    NATIVE / "src" / "custom_ops_grid_sample.h",
    NATIVE / "src" / "dlpack.h",
)

#: What the core calls in Python.
CALLBACKS = """
extern "Python" void ifs_py_dlpack_release(DLManagedTensor *);
extern "Python" int32_t ifs_py_custom_create(int64_t, const char *, const ifs_op_attribute *, int64_t *, char *,
                                             size_t);
extern "Python" int32_t ifs_py_custom_trace(int64_t, ifs_custom_node *, const int32_t *, int32_t, char *, size_t);
extern "Python" int32_t ifs_py_custom_run(int64_t, const ifs_op_call *);
extern "Python" void ifs_py_custom_destroy(int64_t);
"""


def declarations(header: str) -> str:
    """The C declarations of a header that cffi can read."""
    marked = re.findall(r"/\* \[cdef\].*?\*/(.*?)/\* \[/cdef\] \*/", header, re.DOTALL)
    if not marked:
        raise ValueError("the headers have no block between [cdef] and [/cdef]")
    codes = re.findall(r"^\s*X\((\w+), (-?\d+), \".*?\"\)", header, re.MULTILINE)
    status = "typedef int32_t ifs_status;\n" + "\n".join(f"#define IFS_{name} {code}" for name, code in codes)
    # cffi takes only a bare number after #define: no parentheses, no comment.
    body = re.sub(r"^(#define \w+) \(?(-?\w+)\)?.*$", r"\1 \2", "\n".join(marked), flags=re.MULTILINE)
    return status + "\n" + body


#: Functions that look something up, compute little, or only queue work on a stream, and never wait. cffi releases the
#: GIL around each call, and a thread gets it back only after the threads that run Python at that moment. For these few
#: microseconds of work that can take milliseconds, so each of these functions has a second version, `held_ifs_...`,
#: that keeps the GIL.
KEEP_GIL = (
    "ifs_dtype_size",
    "ifs_geometry_letterbox",
    "ifs_geometry_letterbox_warp",
    "ifs_geometry_stretch",
    "ifs_geometry_resize",
    "ifs_geometry_resize_crop",
    "ifs_geometry_affine",
    "ifs_tensor_create",
    "ifs_tensor_on",
    "ifs_tensor_lend",
    "ifs_tensor_dtype",
    "ifs_tensor_ndim",
    "ifs_tensor_dims",
    "ifs_tensor_count",
    "ifs_tensor_nbytes",
    "ifs_tensor_device",
    "ifs_tensor_head",
    "ifs_tensor_device_ptr",
    "ifs_tensor_memory",
    "ifs_memory_wrap_host",
    "ifs_memory_wrap_device",
    "ifs_memory_hold",
    "ifs_memory_nbytes",
    "ifs_memory_head",
    "ifs_memory_fetch",
    "ifs_device_select",
    "ifs_is_page_locked",
    "ifs_upload_nbytes",
    "ifs_cuda_preprocess",
    "ifs_cuda_graph_launch",
    "ifs_event_record",
    "ifs_stream_wrap",
    "ifs_stream_native",
    "ifs_stream_device",
    "ifs_stream_wait",
    "ifs_cuda_detection_decoder_run",
)

KEEP_GIL_MACROS = """
#include <string.h>
#undef Py_BEGIN_ALLOW_THREADS
#undef Py_END_ALLOW_THREADS
#define Py_BEGIN_ALLOW_THREADS \\
    { PyThreadState *_save = strncmp(__func__, "_cffi_f_held_", 13) ? PyEval_SaveThread() : NULL;
#define Py_END_ALLOW_THREADS if (_save) PyEval_RestoreThread(_save); }
"""


def held(declared: str) -> str:
    """The declarations of the `held_` functions, from the declarations of all functions."""
    lines = []
    for name in KEEP_GIL:
        match = re.search(rf"^[\w ]+[ *]{name}\([^;]*\);", declared, re.MULTILINE)
        if match is None:
            raise ValueError(f"the headers do not declare {name}")
        lines.append(match[0].replace(name, f"held_{name}"))
    return "\n".join(lines)


def simde() -> list[str]:
    """The folder of the headers of SIMDe (PyPI `simde-py`), through which aarch64 runs the AVX2 sources."""
    found = find_spec("simde_py")
    return [f"{Path(found.origin).parent}/simde"] if found and found.origin else []


ffibuilder = FFI()
_declared = declarations("".join(header.read_text(encoding="utf-8") for header in HEADERS))
ffibuilder.cdef(_declared)
ffibuilder.cdef(held(_declared))
ffibuilder.cdef(CALLBACKS)
ffibuilder.set_source(
    "infersdk._native",
    "".join(f'#include "{header.name}"\n' for header in HEADERS)
    + KEEP_GIL_MACROS
    + "".join(f"#define held_{name} {name}\n" for name in KEEP_GIL),
    include_dirs=simde(),
    py_limited_api=True,
)
