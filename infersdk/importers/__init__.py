"""Conversion of models of other frameworks to ONNX: PNNX, Keras, PyTorch, TensorFlow and PaddlePaddle.

from infersdk.importers import convert

conversion = convert("model.pnnx.param")
print(conversion.verdict)                       # checked against ...: largest difference ...
conversion.save("model.onnx")

`infersdk.load(FILE)` does the same and caches the result. No code in a file is executed.
"""

from .conversion import Check, Conversion, InputShape
from .converting import convert, importable

__all__ = ["Check", "Conversion", "InputShape", "convert", "importable"]
