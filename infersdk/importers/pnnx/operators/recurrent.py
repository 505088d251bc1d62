"""LSTM, GRU and RNN: layers one after another, each an ONNX node."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..translation import Translation, operator

#: Where each gate of ONNX is in PyTorch's weights: i f g o -> i o f c; r z n -> z r h.
_GATES = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2), "RNN": (0,)}


def _gates(t: Translation, weight: Any) -> Any:
    order = _GATES[t.kind]
    if weight.shape[0] % len(order):
        raise t.damaged(f"a weight of {weight.shape[0]} rows for {len(order)} gates")
    parts = np.split(weight, len(order), 0)
    return np.concatenate([parts[gate] for gate in order], 0)


@operator("nn.LSTM", "nn.GRU", "nn.RNN")
def recurrent(t: Translation) -> Any:
    kind = t.kind
    layers, hidden = t.integer("num_layers", 1), t.integer("hidden_size")
    both = t.flag("bidirectional", False)
    directions = 2 if both else 1
    if t.integer("proj_size", 0):
        raise t.unsupported("a projection of the state (proj_size) has no form in ONNX")
    if layers < 1 or layers * directions * 2 > len(t.one.attributes):
        raise t.damaged(f"num_layers={layers}, and there are {len(t.one.attributes)} weights")
    x = t.x
    batch_first, unbatched = t.flag("batch_first", False), t.rank() == 2
    if unbatched:
        x = t.unsqueeze(x, 1)
    elif batch_first:
        x = t.transpose(x, 1, 0, 2)
    states = t.values[1:]
    last: list[list[Any]] = [[], []]
    for layer in range(layers):
        names = [f"l{layer}", f"l{layer}_reverse"][:directions]
        w, r = (
            np.stack([_gates(t, t.required_weight(f"weight_{side}_{name}")) for name in names]) for side in ("ih", "hh")
        )
        bias = None
        if t.flag("bias", True):
            bias = np.stack(
                [
                    np.concatenate([_gates(t, t.required_weight(f"bias_{side}_{name}")) for side in ("ih", "hh")])
                    for name in names
                ]
            )
        initial = [
            t.slice(t.unsqueeze(state, 1) if unbatched else state, 0, layer * directions, (layer + 1) * directions)
            for state in states
        ]
        more: dict[str, Any] = {"linear_before_reset": 1} if kind == "GRU" else {}
        if kind == "RNN":
            more["activations"] = [{"tanh": "Tanh", "relu": "Relu"}[t.param("nonlinearity", "tanh")]] * directions
        results = t.build.node(
            kind, x, w, r, bias, None, *initial, outputs=3 if kind == "LSTM" else 2, hidden_size=hidden,
            direction="bidirectional" if both else "forward", **more,
        )  # fmt: skip
        # [steps, directions, batch, hidden] -> [steps, batch, directions * hidden]
        x = t.reshape(t.transpose(results[0], 0, 2, 1, 3), 0, 0, directions * hidden)
        for index, state in enumerate(results[1:]):
            last[index].append(state)
    output = t.squeeze(x, 1) if unbatched else t.transpose(x, 1, 0, 2) if batch_first else x
    if len(t.one.outputs) == 1:
        return output
    ends = [states_[0] if layers == 1 else t.build("Concat", *states_, axis=0) for states_ in last if states_]
    return [output, *(t.squeeze(end, 1) if unbatched else end for end in ends)]
