"""PNNX graphs (`model.pnnx.param` with `model.pnnx.bin`): reading, running with PyTorch, and conversion to ONNX.

graph = PnnxGraph.read("model.pnnx.param")      # operators, operands, parameters, weights
values = run(graph, [images])                   # the values of all operands, by PyTorch
module = as_module(graph)                       # a torch.nn.Module
"""

from .graph import Attribute, Operand, Operator, PnnxGraph
from .importing import import_pnnx
from .running import as_module, run

__all__ = ["Attribute", "Operand", "Operator", "PnnxGraph", "as_module", "import_pnnx", "run"]
