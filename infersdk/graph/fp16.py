"""FP32 graphs as FP16 ones, for runtimes that run a graph in the types it is written in.

The work is ONNX Runtime's converter: weights and operators become float16, casts go where the two meet, and operators
that float16 does not suit (`DEFAULT_OP_BLOCK_LIST` there) stay as they were. What flows from one node that stays
float32 to another stays float32 on the way, too: the converter alone would round it in between.
"""

from __future__ import annotations

import difflib
import warnings
from typing import TYPE_CHECKING, Any

from ..errors import BackendUnavailableError, ConfigError, UnsupportedModelError
from .info import load_onnx, precision_of
from .precision import in_order, is_quantised, node_names

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

__all__ = ["always_fp32", "to_fp16"]


def to_fp16(
    model: str | os.PathLike[str], *, keep_io: bool = True, keep_ops: Sequence[str] = (), keep_nodes: Sequence[str] = ()
) -> Any:
    """The model with weights and arithmetic in float16, as an `onnx.ModelProto`.

    Args:
        model: an ONNX file in FP32.
        keep_io: inputs and outputs keep their types.
        keep_ops: operator types that stay float32, besides those that always do.
        keep_nodes: names of nodes that stay float32; one without a name is called by its operator and place, `Exp_12`.
            `fp16_parity.find_fp16_loss` finds which need it.

    Raises:
        ModelNotFoundError, ModelFormatError: there is no such file, or it is no ONNX model.
        ConfigError: there is no node of that name.
        UnsupportedModelError: it is not FP32, or cannot be converted.
        BackendUnavailableError: the `onnx` or `onnxruntime` package is not installed.
    """
    whole = load_onnx(model)
    precision = precision_of(whole)
    if precision != "fp32":
        raise UnsupportedModelError(f"{str(model)!r} is {precision} already; only an fp32 model is made fp16")
    if is_quantised(whole):
        raise UnsupportedModelError(f"{str(model)!r} is quantised; make the model fp16 that it was quantised from")
    for node, name in zip(whole.graph.node, node_names(whole.graph), strict=True):
        node.name = name
    _check_names(keep_nodes, [node.name for node in whole.graph.node], str(model))
    converter = _converter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # weights too small for float16 are rounded, as is the way of it
            converted = converter.convert_float_to_float16(
                whole,
                keep_io_types=keep_io,
                op_block_list=[*converter.DEFAULT_OP_BLOCK_LIST, *keep_ops],
                node_block_list=list(keep_nodes),
            )
    except Exception as error:  # it has no exceptions of its own
        raise UnsupportedModelError(f"{str(model)!r} cannot be converted to fp16: {error}") from error
    _join(converted.graph)
    if precision_of(converted) != "fp16":
        raise UnsupportedModelError(f"{str(model)!r} stays {precision_of(converted)}: hardly any of it can be fp16")
    return converted


def always_fp32() -> frozenset[str]:
    """The operators that `to_fp16` leaves as they are, whatever it is told."""
    return frozenset(_converter().DEFAULT_OP_BLOCK_LIST)


def _converter() -> Any:
    try:
        from onnxruntime.transformers import float16
    except ImportError as error:
        raise BackendUnavailableError(
            f'converting a model to fp16 needs {error.name}: pip install "infersdk[onnxruntime]" onnx'
        ) from None
    return float16


def _check_names(wanted: Sequence[str], names: Sequence[str], model: str) -> None:
    for name in wanted:
        if name not in names:
            close = difflib.get_close_matches(name, names, 1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise ConfigError(f"{model!r} has no node {name!r} to keep in fp32{hint}")


def _join(graph: Any) -> None:
    """Takes out the casts to float16 and back that the converter leaves between nodes that stay float32.

    It also makes such a cast once for each node that takes a value, under one name, which is no valid graph.
    """
    narrowing: dict[str, str] = {}  # what a cast to float16 gives, and what it takes: that is float32
    renamed: dict[str, str] = {}
    outputs = {value.name for value in graph.output}
    nodes, seen = [], set()
    for node in graph.node:
        if node.op_type == "Cast" and node.name.endswith(("_cast_to_fp16_node", "_cast_to_fp32_node")):
            if node.output[0] in seen:
                continue
            seen.add(node.output[0])
        nodes.append(node)
        if node.op_type == "Cast" and (
            node.name.endswith("_cast_to_fp16_node") or node.name.startswith("graph_input_cast")
        ):
            narrowing[node.output[0]] = node.input[0]
    kept = []
    for node in nodes:
        back = node.name.endswith("_cast_to_fp32_node") or node.name.startswith("graph_output_cast")
        if node.op_type == "Cast" and back and node.input[0] in narrowing:
            source, target = narrowing[node.input[0]], node.output[0]
            if target not in outputs:
                renamed[target] = source
                continue
            maker = next((other for other in nodes if source in other.output), None)
            if maker is not None and source not in outputs:
                # The value is an output of the model: it gets that name where it is made.
                maker.output[list(maker.output).index(source)] = target
                renamed[source] = target
                continue
        kept.append(node)
    for node in kept:
        for i, name in enumerate(node.input):
            found = name
            while found in renamed:
                found = renamed[found]
            node.input[i] = found
    taken = {name for node in kept for name in _all_inputs(node)} | outputs
    kept = [node for node in kept if node.op_type != "Cast" or node.output[0] in taken]
    known = [value.name for value in (*graph.input, *graph.initializer)]
    ordered = in_order(kept, known)
    del graph.node[:]
    graph.node.extend(ordered)


def _all_inputs(node: Any) -> list[str]:
    found = list(node.input)
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                found += _all_inputs(inner)
            found += [value.name for value in graph.output]
    return found
