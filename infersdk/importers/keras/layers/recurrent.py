"""Recurrent layers, in one direction and in both, and layers that are applied to each step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ..config import Layer
from ..tensors import Tensor
from ..translation import LAYERS, LayerCall, layer
from .activations import activation_name

#: Where each gate of ONNX is in Keras's weights: i f c o -> i o f c; z r h as it is.
_GATES = {"LSTM": (0, 3, 1, 2), "GRU": (0, 1, 2), "RNN": (0,)}
_KINDS = {
    "LSTM": "LSTM", "GRU": "GRU", "SimpleRNN": "RNN", "CuDNNLSTM": "LSTM", "CuDNNGRU": "GRU", "LSTMCell": "LSTM",
    "GRUCell": "GRU", "SimpleRNNCell": "RNN",
}  # fmt: skip
#: ONNX's names of activations, with alpha and beta.
_ACTIVATIONS: dict[str, tuple[str, float, float]] = {
    "tanh": ("Tanh", 0, 0),
    "sigmoid": ("Sigmoid", 0, 0),
    "relu": ("Relu", 0, 0),
    "hard_sigmoid": ("HardSigmoid", 0.2, 0.5),
    "linear": ("Affine", 1, 0),
    "elu": ("Elu", 1, 0),
    "softsign": ("Softsign", 0, 0),
    "softplus": ("Softplus", 0, 0),
}


def _reordered(weight: Any, kind: str) -> Any:
    """Gates in ONNX's order along the last axis."""
    parts = np.split(weight, len(_GATES[kind]), -1)
    return np.concatenate([parts[gate] for gate in _GATES[kind]], -1)


def _direction(call: LayerCall, kind: str, part: str) -> tuple[Any, Any, Any]:
    """W, R and B of one direction."""
    kernel, recurrent = call.required("kernel", part), call.required("recurrent_kernel", part)
    gates = len(_GATES[kind])
    units = recurrent.shape[0]
    if kernel.ndim != 2 or recurrent.shape != (units, units * gates) or kernel.shape[1] != units * gates:
        raise call.damaged(f"weights of {kernel.shape} and {recurrent.shape} for {gates} gates")
    bias = call.weight("bias", part)
    if bias is None:
        both = np.zeros((2, units * gates), np.float32)
    elif bias.ndim == 2:
        both = bias
    elif bias.size == 2 * units * gates:  # CuDNN's layers
        both = bias.reshape(2, -1)
    else:
        both = np.stack([bias, np.zeros_like(bias)])
    return (
        _reordered(kernel, kind).T,
        _reordered(recurrent, kind).T,
        np.concatenate([_reordered(row, kind) for row in both]),
    )


def _attributes(call: LayerCall, kind: str, config: dict[str, Any]) -> dict[str, Any]:
    one = LayerCall(replace(call.layer, config=config), call.build, call.inputs, call.weights)
    cudnn = call.kind.startswith("CuDNN")
    inner = "tanh" if cudnn or "activation" not in config else activation_name(one)
    gate = (
        "sigmoid"
        if cudnn
        else activation_name(one, "recurrent_activation")
        if config.get("recurrent_activation")
        else "sigmoid"
    )
    if config.get("_keras_version", "2").startswith("3") and "hard_sigmoid" in (inner, gate):
        raise call.unsupported("hard_sigmoid of Keras 3 inside of a cell")
    for name in (inner, gate):
        if name not in _ACTIVATIONS:
            raise call.unsupported(f"activation {name!r} inside of a cell")
    names = {"LSTM": [gate, inner, inner], "GRU": [gate, inner], "RNN": [inner]}[kind]
    result: dict[str, Any] = {"activations": [_ACTIVATIONS[name][0] for name in names]}
    if any(_ACTIVATIONS[name][1] for name in names):
        result["activation_alpha"] = [float(_ACTIVATIONS[name][1]) for name in names]
        result["activation_beta"] = [float(_ACTIVATIONS[name][2]) for name in names]
    if kind == "GRU":
        result["linear_before_reset"] = int(cudnn or bool(config.get("reset_after", False)))
    return result


@layer("LSTM", "GRU", "SimpleRNN", "CuDNNLSTM", "CuDNNGRU", "RNN")
def recurrent(call: LayerCall) -> Any:
    config = dict(call.config)
    kind = call.kind
    if kind == "RNN":
        cell = config.get("cell")
        if not isinstance(cell, dict) or cell.get("class_name") not in _KINDS:
            raise call.unsupported(f"the cell {cell.get('class_name') if isinstance(cell, dict) else cell}")
        kind = str(cell["class_name"])
        config |= dict(cell.get("config", {}))
    results = _run(call, _KINDS[kind], config, [("", call.flag("go_backwards"))])
    output = results[0]
    if call.flag("return_state"):
        return results
    return output


def _run(call: LayerCall, kind: str, config: dict[str, Any], directions: list[tuple[str, bool]]) -> list[Tensor]:
    """The output, and the last states, of one direction.

    Args:
        directions: the part of the weights' names, and whether it goes backwards.
    """
    ((part, backwards),) = directions
    if call.x.masked:
        raise call.unsupported("steps that a mask leaves out")
    x = call.x
    if x.rank != 3:
        raise call.damaged(f"its input has {x.rank} axes, not 3")
    w, r, b = _direction(call, kind, part)
    units = r.shape[1]
    time_major = bool(config.get("time_major", False))
    steps, batch = (x.shape[0], x.shape[1]) if time_major else (x.shape[1], x.shape[0])
    value = x.last() if time_major else call.build("Transpose", x.last(), perm=[1, 0, 2])
    initial = [call.build("Unsqueeze", state.last(), call.i64(0)) for state in call.inputs[1:]]
    if len(initial) > (2 if kind == "LSTM" else 1):
        raise call.unsupported(f"{len(call.inputs)} inputs")
    results = call.build.node(
        kind, value, w[None], r[None], b[None], None, *initial, outputs=3 if kind == "LSTM" else 2, hidden_size=units,
        direction="reverse" if backwards else "forward", **_attributes(call, kind, config),
    )  # fmt: skip
    states = [call.tensor(call.build("Squeeze", state, call.i64(0)), (batch, units)) for state in results[1:]]
    if not call.flag("return_sequences"):
        return [states[0], *states]
    whole = call.build("Squeeze", results[0], call.i64(1))  # [steps, batch, units]
    if backwards:  # Keras gives the steps in the order in which it took them
        whole = call.build("Slice", whole, call.i64(-1), call.i64(-(2**62)), call.i64(0), call.i64(-1))
    shape = (steps, batch, units) if time_major else (batch, steps, units)
    return [call.tensor(whole if time_major else call.build("Transpose", whole, perm=[1, 0, 2]), shape), *states]


@layer("Bidirectional")
def bidirectional(call: LayerCall) -> Any:
    """A layer forward and one backward; what the second gives is turned round before both are put together."""
    inner = call.config.get("layer")
    if not isinstance(inner, dict) or inner.get("class_name") not in (
        "LSTM",
        "GRU",
        "SimpleRNN",
        "CuDNNLSTM",
        "CuDNNGRU",
    ):
        raise call.unsupported(f"a layer {inner.get('class_name') if isinstance(inner, dict) else inner}")
    version = {"_keras_version": call.config.get("_keras_version", "2")}
    forward = {**dict(inner.get("config", {})), **version}
    other = call.config.get("backward_layer")
    backward = {**(dict(other["config"]) if isinstance(other, dict) else forward), **version}
    kind = str(inner["class_name"])
    states = call.inputs[1:]
    half = len(states) // 2
    runs = []
    second = str(other.get("class_name")) if isinstance(other, dict) else kind
    if second not in _KINDS:
        raise call.unsupported(f"a backward layer {second}")
    for name, config, part, back, own in (
        (kind, forward, "forward", False, states[:half]), (second, backward, "backward", True, states[half:]),
    ):  # fmt: skip
        flip = bool(forward.get("go_backwards", False))
        one = LayerCall(Layer(name, call.layer.name, config), call.build, [call.x, *own], call.weights)
        runs.append(_run(one, _KINDS[name], config, [(part, back != flip)]))
    (left, *left_states), (right, *right_states) = runs
    if forward.get("return_sequences", False):
        steps = call.build(
            "Slice",
            right.last(),
            call.i64(-1),
            call.i64(-(2**62)),
            call.i64(0 if forward.get("time_major") else 1),
            call.i64(-1),
        )
        right = call.tensor(steps, right.shape)
    mode = call.config.get("merge_mode", "concat")
    output: Any
    if mode == "concat":
        width = call.known(left.shape[-1], "the number of units") * 2
        output = call.tensor(call.build("Concat", left.last(), right.last(), axis=-1), (*left.shape[:-1], width))
    elif mode in ("sum", "mul", "ave"):
        output = call.tensor(call.build("Mul" if mode == "mul" else "Add", left.last(), right.last()), left.shape)
        output = output.map(lambda v: call.build("Mul", v, np.float32(0.5))) if mode == "ave" else output
    elif mode is None:
        output = [left, right]
    else:
        raise call.unsupported(f"merge_mode={mode!r}")
    if forward.get("return_state", False):
        return [*(output if isinstance(output, list) else [output]), *left_states, *right_states]
    return output


@layer("TimeDistributed")
def time_distributed(call: LayerCall) -> Any:
    """A layer on each step: steps and batch become one axis, and two again."""
    inner = call.config.get("layer")
    if not isinstance(inner, dict) or inner.get("class_name") not in LAYERS:
        raise call.unsupported(f"a layer {inner.get('class_name') if isinstance(inner, dict) else inner}")
    x = call.x
    config = {**dict(inner.get("config", {})), "_keras_version": call.config.get("_keras_version", "2")}
    steps, rest = x.shape[1], list(x.shape[2:])
    if None in rest:
        raise call.unsupported("free axes behind the steps")
    flat = call.build("Reshape", x.last(), call.i64(-1, *(size for size in rest if size is not None)))
    one = LayerCall(
        Layer(str(inner["class_name"]), str(config.get("name", call.layer.name)), config), call.build,
        [Tensor(call.build, (None, *rest), last=flat, dtype=x.dtype)], call.weights,
    )  # fmt: skip
    made = LAYERS[one.kind](one)
    if not isinstance(made, Tensor) or None in made.shape[1:]:
        raise call.unsupported("a layer of several results, or of free sizes")
    count = call.known(steps, "the number of steps")
    sizes = [size for size in made.shape[1:] if size is not None]
    value = call.build("Reshape", made.last(), call.i64(-1, count, *sizes))
    return call.tensor(value, (x.shape[0], count, *sizes), made.dtype)
