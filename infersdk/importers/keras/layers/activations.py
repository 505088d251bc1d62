"""Activations, as layers and as settings of layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..translation import LayerCall, layer

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..tensors import Tensor

_F = np.float32


def _silu(build: Any, x: Any) -> Any:
    return build("Mul", x, build("Sigmoid", x))


def _gelu(build: Any, x: Any) -> Any:
    error = build("Erf", build("Mul", x, _F(1 / np.sqrt(2))))
    return build("Mul", build("Mul", x, _F(0.5)), build("Add", error, _F(1)))


def _gelu_tanh(build: Any, x: Any) -> Any:
    cube = build("Mul", build("Mul", x, x), x)
    inner = build("Mul", build("Add", x, build("Mul", cube, _F(0.044715))), _F(np.sqrt(2 / np.pi)))
    return build("Mul", build("Mul", x, _F(0.5)), build("Add", build("Tanh", inner), _F(1)))


#: Functions of each element, by Keras's names.
FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "linear": lambda build, x: x,
    "relu": lambda build, x: build("Relu", x),
    "relu6": lambda build, x: build("Clip", x, _F(0), _F(6)),
    "sigmoid": lambda build, x: build("Sigmoid", x),
    "tanh": lambda build, x: build("Tanh", x),
    "elu": lambda build, x: build("Elu", x, alpha=1.0),
    "selu": lambda build, x: build("Selu", x),
    "softplus": lambda build, x: build("Softplus", x),
    "softsign": lambda build, x: build("Softsign", x),
    "exponential": lambda build, x: build("Exp", x),
    "hard_sigmoid": lambda build, x: build("HardSigmoid", x, alpha=0.2, beta=0.5),
    "hard_silu": lambda build, x: build("HardSwish", x),
    "swish": _silu,
    "silu": _silu,
    "gelu": _gelu,
    "leaky_relu": lambda build, x: build("LeakyRelu", x, alpha=0.2),
    "mish": lambda build, x: build("Mul", x, build("Tanh", build("Softplus", x))),
    "hard_swish": lambda build, x: build("HardSwish", x),
    "log_sigmoid": lambda build, x: build("Neg", build("Softplus", build("Neg", x))),
}


def activation_name(call: LayerCall, name: str = "activation") -> str:
    """The name of a setting's function; that of an activation which is saved as an object, too."""
    given = call.config.get(name)
    if isinstance(given, dict):
        inner = given.get("config")
        if given.get("class_name") == "function" or isinstance(inner, str):
            return str(inner)
        known = {"ReLU": "relu", "LeakyReLU": "leaky_relu", "Softmax": "softmax", "ELU": "elu"}
        kind = str(given.get("class_name"))
        if kind in known and not _differs(inner):
            return known[kind]
        raise call.unsupported(f"activation {kind} with settings of its own")
    return "linear" if given is None else str(given)


def _differs(config: Any) -> bool:
    """Whether settings of an activation layer are not the defaults of its function."""
    plain = {
        "max_value": (None,),
        "negative_slope": (0, 0.0),
        "threshold": (0, 0.0),
        "axis": (-1,),
        "alpha": (0.2, 1.0),
    }
    return any(key in plain and value not in plain[key] for key, value in dict(config or {}).items())


def activate(call: LayerCall, value: Tensor, name: str = "activation") -> Tensor:
    """Applies the activation that a setting names.

    Raises:
        UnsupportedModelError: it is not known.
    """
    function = activation_name(call, name)
    if function in ("softmax", "log_softmax"):
        return softmax_of(call, value, -1, "Softmax" if function == "softmax" else "LogSoftmax")
    if function not in FUNCTIONS:
        raise call.unsupported(f"activation {function!r}")
    if function == "linear":
        return value
    version = str(call.config.get("_keras_version", "2"))
    if function == "hard_sigmoid" and version.startswith("3"):
        return value.map(lambda x: call.build("HardSigmoid", x, alpha=1 / 6, beta=0.5))
    return value.map(lambda x: FUNCTIONS[function](call.build, x))


def softmax_of(call: LayerCall, value: Tensor, axis: Any, operator: str = "Softmax") -> Tensor:
    axes = [a % value.rank for a in (axis if isinstance(axis, (list, tuple)) else [axis])]
    if len(axes) > 1:  # exp(x - logsumexp(x))
        total = call.build("ReduceLogSumExp", value.last(), call.i64(*axes), keepdims=1)
        return value.like(last=call.build("Exp", call.build("Sub", value.last(), total)))
    if value.is_channels_first and axes[0] == value.rank - 1:
        return value.like(first=call.build(operator, value.first(), axis=1))
    return value.like(last=call.build(operator, value.last(), axis=axes[0]))


@layer("Activation")
def activation(call: LayerCall) -> Tensor:
    return activate(call, call.x)


@layer("ReLU")
def relu(call: LayerCall) -> Tensor:
    """x from the threshold on, and slope * (x - threshold) below it, at most max_value."""
    slope, threshold = call.number("negative_slope", 0.0), call.number("threshold", 0.0)
    largest = None if call.config.get("max_value") is None else call.number("max_value")

    def apply(x: Any) -> Any:
        build = call.build
        if threshold == 0:
            y = build("LeakyRelu", x, alpha=slope) if slope else build("Relu", x)
        else:
            below = build("Mul", build("Sub", x, _F(threshold)), _F(slope))
            y = build("Where", build("GreaterOrEqual", x, _F(threshold)), x, below)
        return y if largest is None else build("Min", y, _F(largest))

    return call.x.map(apply)


@layer("LeakyReLU")
def leaky_relu(call: LayerCall) -> Tensor:
    slope = call.number("negative_slope", 0.3) if "negative_slope" in call.config else call.number("alpha", 0.3)
    return call.x.map(lambda x: call.build("LeakyRelu", x, alpha=slope))


@layer("ELU")
def elu(call: LayerCall) -> Tensor:
    return call.x.map(lambda x: call.build("Elu", x, alpha=call.number("alpha", 1.0)))


@layer("ThresholdedReLU")
def thresholded_relu(call: LayerCall) -> Tensor:
    return call.x.map(lambda x: call.build("ThresholdedRelu", x, alpha=call.number("theta", 1.0)))


@layer("PReLU")
def prelu(call: LayerCall) -> Tensor:
    return call.x.like(last=call.build("PRelu", call.x.last(), call.required("alpha")))


@layer("Softmax")
def softmax(call: LayerCall) -> Tensor:
    return softmax_of(call, call.x, call.config.get("axis", -1))
