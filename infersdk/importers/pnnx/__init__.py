"""PNNX graphs (`model.pnnx.param` with `model.pnnx.bin`): as Python objects, run operator by operator, and as ONNX.

graph = PnnxGraph.read("model.pnnx.param")      # operators, operands, parameters, weights
values = run(graph, [images])                   # the value of every operand, by PyTorch
model, notes = translate(graph)                 # an ONNX model
"""

from .graph import Attribute, Operand, Operator, PnnxGraph
from .importing import import_pnnx, translate
from .running import run

__all__ = ["Attribute", "Operand", "Operator", "PnnxGraph", "import_pnnx", "run", "translate"]
