"""Profiles the segments and kernels of a divided model."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ..core.executed_layers import ExecutedLayer, LayerProfile, LayerTensor, ReportsLayers, seconds_of
from ..errors import ConfigError
from .native import Node

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..core.tensor import Tensor
    from ..infer import Infer
    from .cutting import KernelCall

__all__ = ["profile_parts"]

_PRECISIONS = {"float32": "fp32", "float16": "fp16", "float64": "fp64", "int8": "int8", "uint8": "int8"}

_TIMING = (
    "The segments and the kernels of custom operators ran one by one; the time of a kernel is measured on the host, "
    "which waits for it."
)


def profile_parts(
    infer: Infer,
    runs: int,
    steps: Sequence[tuple[Any, Infer | Node]],
    values: Mapping[str, Tensor],
    run_kernel: Callable[[KernelCall, Node], None],
) -> LayerProfile:
    """Times whole runs, and then each part on the present contents of its inputs.

    Args:
        steps: each `Segment` with its Infer and each `KernelCall` with its node, in order.
        values: the tensors between the parts.
        run_kernel: runs a kernel and waits for it.
    """
    walls = seconds_of(infer.forward, runs)
    parts, timings, memory = [], [], Counter[str]()
    for step, part in steps:
        if isinstance(part, Node):
            seconds = sum(seconds_of(partial(run_kernel, step, part), runs)) / runs
            parts.append([_kernel_layer(step, values, infer.device, seconds)])
            continue
        if not isinstance(part, ReportsLayers):
            raise ConfigError(f"backend {infer.backend!r} does not report the layers that it executes")
        result = part.profile_layers(runs)
        parts.append(list(result.layers))
        timings.append(result.timing)
        memory.update(result.memory)
    timing = " ".join([*dict.fromkeys(timings), _TIMING])
    return LayerProfile(tuple(_named_apart(parts)), walls, timing, memory=dict(memory))


def _kernel_layer(call: KernelCall, values: Mapping[str, Tensor], device: str, seconds: float) -> ExecutedLayer:
    tensors = [
        tuple(LayerTensor(name, values[name].shape, str(values[name].dtype)) for name in side)
        for side in (call.inputs, call.outputs)
    ]
    dtype = call.signature.inputs[0] if call.signature.inputs else call.signature.outputs[0]
    return ExecutedLayer(
        name=call.name, kind=call.op.title(), inputs=tensors[0], outputs=tensors[1], sources=(call.name, *call.outputs),
        kernel="custom operator", precision=_PRECISIONS.get(dtype, dtype), device=device, seconds=seconds,
        output_bytes=sum(values[name].nbytes for name in call.outputs),
    )  # fmt: skip


def _named_apart(parts: Sequence[Sequence[ExecutedLayer]]) -> list[ExecutedLayer]:
    """All layers. Names that several parts have get the number of the part as a prefix."""
    count = Counter(layer.name for part in parts for layer in part)
    return [
        layer if count[layer.name] == 1 else dataclasses.replace(layer, name=f"part{number}/{layer.name}")
        for number, part in enumerate(parts)
        for layer in part
    ]
