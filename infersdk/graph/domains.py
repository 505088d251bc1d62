"""The domains of operators that an ONNX file names, without reading its graph."""

from __future__ import annotations

import os
from typing import BinaryIO

from ..errors import ModelError
from ..model_source import ModelLike, ModelSource

__all__ = ["KNOWN_DOMAINS", "foreign_domains", "model_domains"]

#: The domains of the ONNX standard, and those that runtimes have operators of their own in.
KNOWN_DOMAINS = {
    "", "ai.onnx", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview", "ai.onnx.preview.training", "com.microsoft",
    "com.microsoft.nchwc", "com.microsoft.experimental", "com.microsoft.extensions", "com.ms.internal.nhwc",
    "ai.onnx.contrib", "org.openvinotoolkit", "org.pytorch.aten", "pkg.onnxscript.torch_lib", "trt",
}  # fmt: skip

# Protobuf: a field is its number and wire type in a varint, then a varint, 8 bytes, a length and bytes, or 4 bytes.
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_OPSET_IMPORT = 8  # of ModelProto; the domain is field 1 of what it holds


def model_domains(model: ModelLike) -> set[str]:
    """The domains that an ONNX file imports operators of; empty for any other file. The graph is not read."""
    domains = set()
    try:
        with ModelSource.of(model).open() as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            while (field := _varint(file)) is not None:
                number, kind = field >> 3, field & 7
                if kind == _BYTES:
                    length = _varint(file)
                    if length is None or file.tell() + length > size:
                        return set()
                    if number == _OPSET_IMPORT:
                        domains.add(_domain(file.read(length)))
                    else:
                        file.seek(length, os.SEEK_CUR)
                elif kind == _VARINT:
                    if _varint(file) is None:
                        return set()
                elif kind in (_FIXED64, _FIXED32):
                    file.seek(8 if kind == _FIXED64 else 4, os.SEEK_CUR)
                else:
                    return set()
    except (OSError, ModelError, UnicodeDecodeError, IndexError):
        return set()
    return domains


def foreign_domains(model: ModelLike) -> set[str]:
    """Those that neither the standard nor a runtime has."""
    return model_domains(model) - KNOWN_DOMAINS


def _varint(file: BinaryIO) -> int | None:
    value = 0
    for shift in range(0, 70, 7):
        byte = file.read(1)
        if not byte:
            return None
        value |= (byte[0] & 127) << shift
        if byte[0] < 128:
            return value
    return None


def _domain(data: bytes) -> str:
    """The domain in an OperatorSetIdProto: its field 1, a text."""
    at = 0
    while at < len(data):
        number, kind = data[at] >> 3, data[at] & 7
        at += 1
        if kind == _BYTES:
            length, at = data[at], at + 1
            if number == 1:
                return data[at : at + length].decode()
            at += length
        else:
            while data[at] > 127:
                at += 1
            at += 1
    return ""
