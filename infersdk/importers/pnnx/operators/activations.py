"""Activations: functions of each element, and softmax over an axis."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..translation import Translation, operator

#: Operators that ONNX has under another name, with the same defaults.
_SAME = {
    "ReLU": "Relu",
    "Sigmoid": "Sigmoid",
    "Tanh": "Tanh",
    "Softsign": "Softsign",
    "Mish": "Mish",
    "Hardswish": "HardSwish",
}


@operator(*(f"nn.{name}" for name in _SAME), *(f"F.{name.lower()}" for name in _SAME))
def plain(t: Translation) -> Any:
    names = {name.lower(): onnx for name, onnx in _SAME.items()}
    return t.build(names[t.kind.lower()], t.x)


@operator(
    "nn.Identity",
    "nn.Dropout",
    "nn.Dropout2d",
    "nn.Dropout3d",
    "nn.AlphaDropout",
    "F.dropout",
    "F.dropout2d",
    "F.dropout3d",
    "F.alpha_dropout",
    "F.feature_alpha_dropout",
    "Tensor.clone",
    "torch.clone",
    "Tensor.contiguous",
    "torch.positive",
)
def identity(t: Translation) -> Any:
    """Training alone makes a difference."""
    return t.build("Identity", t.x)


@operator("nn.SiLU", "F.silu")
def silu(t: Translation) -> Any:
    return t.build("Mul", t.x, t.build("Sigmoid", t.x))


@operator("nn.GELU", "F.gelu")
def gelu(t: Translation) -> Any:
    """x Phi(x) with the error function, or its approximation by tanh (Hendrycks and Gimpel, 2016)."""
    x, one = t.x, t.scalar
    if t.param("approximate", "none") == "tanh":
        cube = t.build("Mul", t.build("Mul", x, x), x)
        inner = t.build("Mul", t.build("Add", x, t.build("Mul", cube, one(0.044715))), one(math.sqrt(2 / math.pi)))
        return t.build("Mul", t.build("Mul", x, one(0.5)), t.build("Add", t.build("Tanh", inner), one(1)))
    error = t.build("Erf", t.build("Div", x, one(math.sqrt(2))))
    return t.build("Mul", t.build("Mul", x, t.build("Add", error, one(1))), one(0.5))


@operator("nn.ReLU6", "F.relu6")
def relu6(t: Translation) -> Any:
    return t.build("Clip", t.x, t.scalar(0), t.scalar(6))


@operator("nn.Hardtanh", "F.hardtanh")
def hardtanh(t: Translation) -> Any:
    return t.build("Clip", t.x, t.scalar(t.number("min_val", -1.0)), t.scalar(t.number("max_val", 1.0)))


@operator("nn.Hardsigmoid", "F.hardsigmoid")
def hardsigmoid(t: Translation) -> Any:
    return t.build("HardSigmoid", t.x, alpha=1 / 6, beta=0.5)


@operator("nn.LeakyReLU", "F.leaky_relu")
def leaky_relu(t: Translation) -> Any:
    return t.build("LeakyRelu", t.x, alpha=t.number("negative_slope", 0.01))


@operator("nn.RReLU", "F.rrelu")
def rrelu(t: Translation) -> Any:
    """Outside of training its slope is the middle of its range."""
    return t.build("LeakyRelu", t.x, alpha=(t.number("lower", 1 / 8) + t.number("upper", 1 / 3)) / 2)


@operator("nn.ELU", "F.elu")
def elu(t: Translation) -> Any:
    return t.build("Elu", t.x, alpha=t.number("alpha", 1.0))


@operator("nn.CELU", "F.celu")
def celu(t: Translation) -> Any:
    return t.build("Celu", t.x, alpha=t.number("alpha", 1.0))


@operator("nn.SELU", "F.selu")
def selu(t: Translation) -> Any:
    return t.build("Selu", t.x)


@operator("nn.Softplus", "F.softplus")
def softplus(t: Translation) -> Any:
    """log(1 + exp(beta x)) / beta, and x itself beyond the threshold."""
    beta, threshold = t.number("beta", 1.0), t.number("threshold", 20.0)
    scaled = t.x if beta == 1 else t.build("Mul", t.x, t.scalar(beta))
    curve = t.build("Softplus", scaled)
    curve = curve if beta == 1 else t.build("Div", curve, t.scalar(beta))
    return t.build("Where", t.build("Greater", scaled, t.scalar(threshold)), t.x, curve)


@operator("nn.Softshrink", "F.softshrink")
def softshrink(t: Translation) -> Any:
    limit = t.number("lambd", 0.5)
    return t.build("Shrink", t.x, bias=limit, lambd=limit)


@operator("nn.Hardshrink", "F.hardshrink")
def hardshrink(t: Translation) -> Any:
    return t.build("Shrink", t.x, bias=0.0, lambd=t.number("lambd", 0.5))


@operator("nn.Tanhshrink", "F.tanhshrink")
def tanhshrink(t: Translation) -> Any:
    return t.build("Sub", t.x, t.build("Tanh", t.x))


@operator("nn.LogSigmoid", "F.logsigmoid")
def logsigmoid(t: Translation) -> Any:
    """-softplus(-x), which does not overflow."""
    return t.build("Neg", t.build("Softplus", t.build("Neg", t.x)))


@operator("nn.Threshold", "F.threshold")
def threshold(t: Translation) -> Any:
    return t.build("Where", t.build("Greater", t.x, t.scalar(t.number("threshold"))), t.x, t.scalar(t.number("value")))


@operator("nn.GLU", "F.glu")
def glu(t: Translation) -> Any:
    axis = t.axis("dim", -1)
    half = t.shape()[axis] // 2
    first, second = t.build.node("Split", t.x, np.asarray([half, half], np.int64), outputs=2, axis=axis)
    return t.build("Mul", first, t.build("Sigmoid", second))


@operator("nn.PReLU", "F.prelu")
def prelu(t: Translation) -> Any:
    """A slope for each channel, which is axis 1."""
    slope = t.tensor("weight", 1)
    if slope is None:
        raise t.damaged("its slopes are missing")
    rank = t.rank()
    if isinstance(slope, np.ndarray):
        slope = slope.reshape(-1, *(1,) * max(rank - 2, 0)) if slope.size > 1 else slope.reshape(1)
    elif rank > 2:
        slope = t.reshape(slope, -1, *(1,) * (rank - 2))
    return t.build("PRelu", t.x, slope)


@operator("nn.Softmax", "F.softmax", "torch.softmax", "nn.Softmax2d")
def softmax(t: Translation) -> Any:
    return t.build("Softmax", t.x, axis=t.rank() - 3 if t.kind == "Softmax2d" else _softmax_axis(t))


@operator("nn.LogSoftmax", "F.log_softmax")
def log_softmax(t: Translation) -> Any:
    return t.build("LogSoftmax", t.x, axis=_softmax_axis(t))


@operator("nn.Softmin", "F.softmin")
def softmin(t: Translation) -> Any:
    return t.build("Softmax", t.build("Neg", t.x), axis=_softmax_axis(t))


def _softmax_axis(t: Translation) -> int:
    if t.param("dim", None) is None:  # what PyTorch does without an axis
        return 0 if t.rank() in (0, 1, 3) else 1
    return t.axis("dim")
