"""The release of YOLOX that a model's weights are of, by its first convolution.

YOLOX's first release (0.1.0) was trained on pixels normalised by ImageNet's mean and standard deviation, later ones on
0 to 255. Both have a batch normalisation behind the first convolution, folded into it by the exporter, so that what
comes out of it has about unit scale. Its weights are therefore about 60 times smaller for pixels of 0 to 255 (whose
standard deviation is about 60) than for normalised ones.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import numpy as np

from ..graph.files import load_proto, tensor_array

if TYPE_CHECKING:
    from ..core.model_source import ModelSource

__all__ = ["wants_normalized_input"]

#: Limits of the median over the output channels of the norm of a channel's weights. It is 1.1 in YOLOX-nano of the
#: first release, so about 0.02 for pixels of 0 to 255.
NORMALIZED_FROM, RAW_BELOW = 0.25, 0.08


def wants_normalized_input(source: ModelSource) -> bool | None:
    """Whether the weights want normalised pixels; None where the file does not tell."""
    if not source.is_onnx:
        return None
    if importlib.util.find_spec("onnx") is None or importlib.util.find_spec("onnx_ir") is None:
        return None
    model = load_proto(source)
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Conv" and node.input[1] in weights:
            kernel = tensor_array(weights[node.input[1]], source).astype(np.float64)
            norm = float(np.median(np.sqrt(np.square(kernel).reshape(len(kernel), -1).sum(1))))
            if norm >= NORMALIZED_FROM:
                return True
            return False if norm < RAW_BELOW else None
        if node.op_type in ("BatchNormalization", "QuantizeLinear", "DequantizeLinear"):
            return None  # the normalisation is not folded, or the weights are quantised
    return None
