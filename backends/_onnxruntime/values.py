"""Element types of inputs and outputs, and values that no tensor holds."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnxruntime as ort

from ...core.tensor_spec import TensorSpec
from ...errors import DTypeError, UnsupportedModelError

__all__ = ["feed", "spec_of"]

_DTYPES = {
    "float": "float32", "float16": "float16", "double": "float64", "bool": "bool",
    "int8": "int8", "int16": "int16", "int32": "int32", "int64": "int64",
    "uint8": "uint8", "uint16": "uint16", "uint32": "uint32", "uint64": "uint64",
}  # fmt: skip
#: Element types that NumPy does not have: the type of the same size, and the number in ONNX.
_BITS = {
    "bfloat16": ("uint16", 16), "float8e4m3fn": ("uint8", 17), "float8e4m3fnuz": ("uint8", 18),
    "float8e5m2": ("uint8", 19), "float8e5m2fnuz": ("uint8", 20), "float8e8m0": ("uint8", 24),
}  # fmt: skip


def spec_of(node: Any, side: str, model: str) -> TensorSpec:
    """The spec of an input or output of a session.

    Raises:
        UnsupportedModelError: the runtime does not take or return the type in Python.
    """
    element = _element(node.type)
    if element in _DTYPES:
        return TensorSpec(node.name, np.dtype(_DTYPES[element]), tuple(node.shape))
    # The runtime misreads inputs with two elements per byte, and does not return bfloat16 and sparse tensors.
    inward = side == "input"
    refused = element not in ("", "string", *_BITS) or (element == "bfloat16" and not inward)
    if refused or node.type.startswith("sparse"):
        verb, where = ("take", "after") if inward else ("return", "before")
        raise UnsupportedModelError(
            f"{side} {node.name!r} of {model} is a {node.type}, which ONNX Runtime does not {verb} in Python; convert "
            f"it in the model, by a Cast {where} it"
        )
    return TensorSpec(node.name, np.dtype(object), tuple(node.shape), node.type)


def feed(spec: TensorSpec, value: Any) -> Any:
    """The value for a session: strings as objects, types that NumPy does not have as OrtValues.

    Raises:
        DTypeError: the value is not of the input's type.
    """
    element = _element(spec.kind)
    if element == "string":
        texts = np.asarray(value)
        if not all(isinstance(text, str) for text in texts.flat):  # the runtime would read past the end of bytes
            raise DTypeError(f"input {spec.name!r} takes strings, not {texts.dtype}; decode bytes, and leave no None")
        return texts.astype(object)
    if element in _BITS:
        array, (bits, number) = np.asarray(value, order="C"), _BITS[element]
        name = array.dtype.name.replace("_", "")
        if array.dtype != bits and name.removesuffix("fnu") != element:  # ml_dtypes calls float8e8m0 float8_e8m0fnu
            raise DTypeError(
                f"input {spec.name!r} takes {element}, not {array.dtype}; "
                f"give an array of ml_dtypes, or the bits as {bits}"
            )
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, number)
    return np.asarray(value) if isinstance(value, np.generic) else value


def _element(kind: str) -> str:
    """The type of the elements of a `tensor(...)`; empty for any other type."""
    match = re.fullmatch(r"tensor\((\w+)\)", kind)
    return match[1] if match else ""
