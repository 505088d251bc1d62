"""Models of other frameworks as ONNX: PNNX, Keras, PyTorch, TensorFlow, PaddlePaddle.

conversion = infersdk.importers.convert("model.pnnx.param")
print(conversion.verdict)                       # checked against ...: largest difference ...
conversion.save("model.onnx")

`infersdk.load(FILE)` does the same, and keeps what it makes in the cache. No code that a file holds is executed.
"""

from .conversion import Check, Conversion, InputShape
from .converting import convert, importable

__all__ = ["Check", "Conversion", "InputShape", "convert", "importable"]
