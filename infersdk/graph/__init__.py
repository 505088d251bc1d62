"""What can be learnt from, and done to, a model's graph. Needs the `onnx` package; imports it when it is used."""

from .info import ModelInfo, onnx_info

__all__ = ["ModelInfo", "onnx_info"]
