"""What each backend wants of an INT8 file: signs, where values are quantised, and which layers gain nothing by it.

`--target` names one of these. They come from how the runtimes compute, and hold for every model:

- x86 processors multiply unsigned activations by signed weights, and a range with a zero point of its own uses all 256
  codes where values lie mostly on one side of 0, as behind a SiLU. TensorRT takes only signed ones with zero point 0.
- OpenVINO and TensorRT fuse what stands between layers into the layers themselves, in floating point. So quantising
  what enters a layer is enough. ONNX Runtime computes a layer in 8 bits only if its result is quantised, too, and
  whatever stands between two layers goes back to floating point unless it is quantised as well. A matrix product in 8
  bits may give floating point, and so may a convolution that is written as one.
- OpenVINO pools and concatenates in 8 bits if the quantiser stands in front; TensorRT moves quantisers by itself.
- A depthwise convolution reads more than it computes. In 8 bits it is hardly faster, and one scale for channels that
  share nothing loses most.
- ONNX Runtime computes a SiLU in 8 bits in two steps over all values, which take longer than its one in floating point.
  A layer gains more than that only if it sums up many products for each value. So from the image on layers stay in
  floating point up to the first that does; a layer behind that would cost two conversions. A convolution of 3x3 over 16
  channels gains a fifth, which is what the conversion of its input costs if that has twice the width and height.
- At the end it is the same: depthwise convolutions take twice as long in 8 bits, and what follows them up to the tail
  gains little.
- TensorRT-RTX 1.6 has no INT8 convolutions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from ..errors import ConfigError

__all__ = ["SCHEMES", "WEIGHTED", "Scheme", "find_scheme", "scheme_of_backend"]

#: Operators with weights: what INT8 is for.
WEIGHTED = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})


@dataclass(frozen=True)
class Scheme:
    """How a model is quantised for a backend.

    Attributes:
        name: what `--target` calls it.
        signed: activations are int8 with zero point 0; else uint8 with a zero point.
        between: what stands between layers is quantised, too; else only what enters them.
        moves: quantisers stand in front of what only moves values, such as a pooling of maxima or a concatenation.
        float_results: a layer may be INT8 while its result stays in floating point.
        products: convolutions of one position that give floating point are written as matrix products, which may be
            INT8 without `float_results`.
        joins: codes of several scales are concatenated for convolutions.
        repeats: a Resize that repeats codes is written as an Expand, with the channels last.
        levels: levels of a detector that are transposed are joined with the channels last.
        depthwise: depthwise convolutions are quantised.
        least_products: a layer that sums up fewer products for each value of its result stays in floating point if all
            layers before it do.
        least_last_products: likewise if all layers behind it sum up fewer than `least_products`; these then do, too.
        operators: those with weights that are quantised.
    """

    name: str
    signed: bool
    between: bool
    moves: bool = False
    float_results: bool = True
    products: bool = False
    joins: bool = False
    repeats: bool = False
    levels: bool = False
    depthwise: bool = True
    least_products: int = 1
    least_last_products: int = 1
    operators: frozenset[str] = WEIGHTED

    @property
    def dtype(self) -> type[np.int8 | np.uint8]:
        """Of quantised activations."""
        return np.int8 if self.signed else np.uint8


#: By name, which is that of a backend. `portable` runs on every backend, with unsigned activations on x86.
SCHEMES: Mapping[str, Scheme] = MappingProxyType(
    {
        scheme.name: scheme
        for scheme in (
            Scheme(
                "onnxruntime", signed=False, between=True, float_results=False, products=True, joins=True,
                repeats=True, levels=True, least_products=192, least_last_products=64,
                operators=WEIGHTED - {"ConvTranspose"},
            ),
            Scheme("openvino", signed=False, between=False, moves=True, depthwise=False),
            Scheme("tensorrt", signed=True, between=False, depthwise=False),
            Scheme("tensorrt-rtx", signed=True, between=False, operators=frozenset({"Gemm", "MatMul"})),
            Scheme("portable", signed=True, between=True),
        )
    }
)  # fmt: skip
_BACKENDS = {
    "onnxruntime": "onnxruntime",
    "openvino": "openvino",
    "tensorrt": "tensorrt",
    "tensorrt-rtx": "tensorrt-rtx",
}


def find_scheme(target: str | Scheme) -> Scheme:
    """The scheme of a name; a `Scheme` is returned as it is.

    Raises:
        ConfigError: there is no scheme of that name.
    """
    if isinstance(target, Scheme):
        return target
    if target not in SCHEMES:
        raise ConfigError(f"unknown target {target!r}; use one of {', '.join(SCHEMES)}")
    return SCHEMES[target]


def scheme_of_backend(backend: str) -> Scheme:
    """The scheme that suits a backend best; `portable` for one that is not known here."""
    return SCHEMES.get(backend, SCHEMES["portable"])
