"""The record of a quantisation in the metadata of a model."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping

import msgspec

__all__ = ["QuantizationRecord"]

_KEY = "infersdk.quantization"
#: Backends with a separate target.
_BACKENDS = ("onnxruntime", "openvino", "tensorrt", "tensorrt-rtx")
#: The disadvantage of running a file for the first target on the second.
_COSTS = {
    ("onnxruntime", "openvino"): "values between the layers are quantised too, which makes it slower and less accurate",
    ("openvino", "onnxruntime"): "it computes in floating point wherever a result is not quantised: it is slower than "
    "FP32 there",
    ("tensorrt", "onnxruntime"): "it computes in floating point wherever a result is not quantised: it is slower than "
    "FP32 there",
    ("tensorrt", "openvino"): "its symmetric ranges leave half of the codes unused, which costs accuracy",
    ("onnxruntime", "tensorrt"): "it has unsigned activations, which TensorRT does not take",
    ("openvino", "tensorrt"): "it has unsigned activations, which TensorRT does not take",
    ("portable", "onnxruntime"): "its symmetric ranges leave half of the codes unused, which costs accuracy",
    ("portable", "openvino"): "its symmetric ranges leave half of the codes unused, and values between the layers are "
    "quantised too, which costs accuracy and speed",
    ("tensorrt-rtx", "tensorrt"): "its convolutions are in floating point, which makes it slower",
    ("portable", "tensorrt"): "values between the layers are quantised too, which makes it slower and less accurate",
}


class QuantizationRecord(msgspec.Struct, frozen=True, kw_only=True):
    """How a file was quantised.

    Attributes:
        target: the target.
        method, percentile: the calibration method.
        samples: the number of calibration samples.
        bias_correction: whether biases compensate for the rounding of the weights.
        layers, floating: the number of layers in INT8 and in floating point.
    """

    target: str
    method: str
    percentile: float | None = None
    samples: int = 0
    bias_correction: bool = False
    layers: int = 0
    floating: int = 0

    def write(self, metadata: MutableMapping[str, str]) -> None:
        """Writes the record into the metadata of a model."""
        metadata[_KEY] = msgspec.json.encode(self).decode()

    @classmethod
    def read(cls, metadata: Mapping[str, str]) -> QuantizationRecord | None:
        """Reads the record from the metadata of a model; None if there is no valid record."""
        try:
            return msgspec.json.decode(metadata[_KEY], type=cls)
        except (KeyError, ValueError, RecursionError):
            return None

    def warning(self, backend: str) -> str | None:
        """The warning for running the file on another backend than its target; None if there is nothing to warn of."""
        if backend not in _BACKENDS or backend == self.target:
            return None
        cost = _COSTS.get((self.target, backend), "it may be slower or less accurate")
        return (
            f"it was quantised for {self.target} and runs on {backend}: {cost}; quantise it for {backend} "
            f"(infersdk quantize --target {backend})"
        )
