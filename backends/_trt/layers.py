"""The precisions of a network's layers as parsed; a strongly typed network runs in these."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tensorrt

__all__ = ["int8_convolutions", "network_layers"]

#: Layers with most of the computation.
_HEAVY = ("CONVOLUTION", "DECONVOLUTION", "MATRIX_MULTIPLY", "EINSUM", "RECURRENCE", "ATTENTION_INPUT", "RNN_V2")
#: Layers between a DEQUANTIZE layer and the layer that uses its result.
_MOVES = ("SHUFFLE", "IDENTITY", "SQUEEZE", "UNSQUEEZE")
_NAMES = {"FLOAT": "fp32", "HALF": "fp16", "BF16": "bf16"}


def network_layers(trt: Any, network: tensorrt.INetworkDefinition) -> Counter[str]:
    """The number of layers with most of the computation by precision; without these, all floating-point layers.

    A layer is `"int8"` if both of its factors are results of DEQUANTIZE layers.
    """
    heavy: Counter[str] = Counter()
    light: Counter[str] = Counter()
    for _, kind, precision in _layers(trt, network):
        if kind in _HEAVY:
            heavy[precision or "fp32"] += 1
        elif precision and kind not in (*_MOVES, "CAST", "QUANTIZE", "SHAPE"):
            light[precision] += 1
    return heavy or light


def int8_convolutions(trt: Any, network: tensorrt.INetworkDefinition) -> list[str]:
    """The names of the convolutions in INT8."""
    wanted = ("CONVOLUTION", "DECONVOLUTION")
    return [name for name, kind, precision in _layers(trt, network) if kind in wanted and precision == "int8"]


def _layers(trt: Any, network: tensorrt.INetworkDefinition) -> Iterator[tuple[str, str, str]]:
    """The name, the kind and the precision of each layer; an unknown precision is empty."""
    kinds = {int(value): name for name, value in trt.LayerType.__members__.items()}
    types = {int(value): _NAMES.get(name, "") for name, value in trt.DataType.__members__.items()}
    makers: dict[str, Any] = {}
    for layer in (network.get_layer(i) for i in range(network.num_layers)):
        kind = kinds.get(int(layer.type), "")
        inputs = [layer.get_input(i) for i in range(layer.num_inputs)]
        for i in range(layer.num_outputs):
            makers[layer.get_output(i).name] = (kind, inputs)
        precision = types.get(int(inputs[0].dtype), "") if inputs and inputs[0] is not None else ""
        if kind in _HEAVY:
            factors = [tensor for tensor in inputs[:2] if tensor is not None]
            if len(factors) == 2 and all(_dequantised(tensor.name, makers) for tensor in factors):
                precision = "int8"
        yield layer.name, kind, precision


def _dequantised(name: str, makers: dict[str, Any]) -> bool:
    while (made := makers.get(name)) is not None and made[0] in _MOVES:
        name = made[1][0].name
    return made is not None and made[0] == "DEQUANTIZE"
