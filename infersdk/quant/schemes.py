"""The quantisation schemes of the targets, which `--target` selects.

They follow from the properties of the runtimes and are valid for all models:

- x86 processors multiply unsigned activations by signed weights. With a zero point, asymmetric values, as after a SiLU,
  use all 256 codes. TensorRT supports only signed activations with zero point 0.
- OpenVINO and TensorRT fuse operators between layers into the layers, in floating point, so only the inputs of layers
  have to be quantised.
- ONNX Runtime computes a layer in 8 bits only if its result is quantised too, and operators between layers only if they
  are quantised.
- OpenVINO pools and concatenates in 8 bits if the quantiser comes before; TensorRT moves quantisers itself.
- Depthwise convolutions are limited by memory, hardly faster in 8 bits, and lose most accuracy.
- ONNX Runtime computes a SiLU in 8 bits in two steps, which take longer than one step in floating point. Only layers
  with many products per value outweigh this. The layers before the first such layer stay in floating point, since later
  exceptions would need two conversions. For a 3x3 convolution over 16 channels, gain and conversion cost are equal.
- The same applies at the end of a model: depthwise convolutions take twice as long in 8 bits, and the layers after them
  gain little. A ReLU is part of the codes and costs nothing, so layers with a ReLU or without a function do gain.
- TensorRT-RTX 1.6 has no INT8 convolutions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from ..errors import ConfigError

__all__ = ["SCHEMES", "WEIGHTED", "Scheme", "find_scheme", "scheme_of_backend"]

#: Operators with weights.
WEIGHTED = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})


@dataclass(frozen=True)
class Scheme:
    """How a model is quantised for a backend.

    Attributes:
        name: the name of the target.
        signed: activations are int8 with zero point 0; otherwise uint8 with a zero point.
        between: operators between layers are quantised too; otherwise only the inputs of layers.
        moves: quantisers are moved before operators that only move values, such as MaxPool and Concat.
        float_results: a layer may be INT8 with a floating-point result.
        depthwise: depthwise convolutions are quantised.
        least_products: a layer with fewer products per value stays in floating point if all layers before it do.
        least_last_products: a layer with fewer products per value stays in floating point if no later layer gains from
            8 bits; so do all layers after it. A layer gains with `least_products`, with a ReLU, and without a function.
        operators: the operators with weights that are quantised.
    """

    name: str
    signed: bool
    between: bool
    moves: bool = False
    float_results: bool = True
    depthwise: bool = True
    least_products: int = 1
    least_last_products: int = 1
    operators: frozenset[str] = WEIGHTED

    @property
    def dtype(self) -> type[np.int8 | np.uint8]:
        """The type of quantised activations."""
        return np.int8 if self.signed else np.uint8


#: The schemes by the name of their target: a backend, or `portable`, which runs on every backend.
SCHEMES: Mapping[str, Scheme] = MappingProxyType(
    {
        scheme.name: scheme
        for scheme in (
            Scheme(
                "onnxruntime", signed=False, between=True, float_results=False,
                least_products=192, least_last_products=64,
                operators=WEIGHTED - {"ConvTranspose"},
            ),
            Scheme("openvino", signed=False, between=False, moves=True, depthwise=False),
            Scheme("tensorrt", signed=True, between=False, depthwise=False),
            Scheme("tensorrt-rtx", signed=True, between=False, operators=frozenset({"Gemm", "MatMul"})),
            Scheme("portable", signed=True, between=True),
        )
    }
)  # fmt: skip


def find_scheme(target: str | Scheme) -> Scheme:
    """The scheme with a name; a `Scheme` is returned unchanged.

    Raises:
        ConfigError: there is no scheme with that name.
    """
    if isinstance(target, Scheme):
        return target
    if not isinstance(target, str) or target not in SCHEMES:
        raise ConfigError(f"unknown target {target!r}; use one of {', '.join(SCHEMES)}")
    return SCHEMES[target]


def scheme_of_backend(backend: str) -> Scheme:
    """The scheme of a backend; `portable` for unknown backends."""
    return SCHEMES.get(backend, SCHEMES["portable"])
