"""The operator domains that an ONNX file imports, read without parsing its graph."""

from __future__ import annotations

import mmap

from ..core.formats import byte_fields
from ..core.model_source import ModelLike, ModelSource
from ..errors import ModelError

__all__ = ["KNOWN_DOMAINS", "foreign_domains"]

#: The domains of the ONNX standard and of the runtimes.
KNOWN_DOMAINS = {
    "", "ai.onnx", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview", "ai.onnx.preview.training", "com.microsoft",
    "com.microsoft.nchwc", "com.microsoft.experimental", "com.microsoft.extensions", "com.ms.internal.nhwc",
    "ai.onnx.contrib", "org.openvinotoolkit", "org.pytorch.aten", "pkg.onnxscript.torch_lib", "trt",
}  # fmt: skip

_OPSET_IMPORT, _DOMAIN = 8, 1  # field numbers in ModelProto and OperatorSetIdProto


def foreign_domains(model: ModelLike) -> set[str]:
    """The imported domains that belong neither to the standard nor to a runtime; empty for other files than ONNX."""
    try:
        with ModelSource.of(model).mapped() as data:
            imports = [field for field in byte_fields(data, 0, len(data)) if field[0] == _OPSET_IMPORT]
            return {_domain(data, start, end) for _, start, end in imports} - KNOWN_DOMAINS
    except (ModelError, ValueError):
        return set()


def _domain(data: bytes | mmap.mmap, start: int, end: int) -> str:
    return next((data[at:stop].decode() for number, at, stop in byte_fields(data, start, end) if number == _DOMAIN), "")
