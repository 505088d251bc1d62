"""PNNX graphs (`model.pnnx.param` with `model.pnnx.bin`): reading, running with PyTorch, and conversion to ONNX."""

from .graph import Attribute, Operand, Operator, PnnxGraph
from .importing import import_pnnx
from .running import as_module, run

__all__ = ["Attribute", "Operand", "Operator", "PnnxGraph", "as_module", "import_pnnx", "run"]
