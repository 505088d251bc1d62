"""What keeps an export from running everywhere, or from running well: rules over a graph, and the edits that mend
it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import InferSDKError, UnsupportedModelError
from .passes import (
    CleanUp,
    FreeBatch,
    NameNodes,
    NarrowIndices,
    Pass,
    SetOpset,
    ShrinkConstants,
    WeightsOffInputs,
)
from .passes._sizes import lift_constants
from .passes.free_batch import free_batch
from .passes.name_nodes import node_names
from .passes.weight_forms import repeated_constants, wide_indices
from .tracing import ShapeTrace, node_label

if TYPE_CHECKING:
    from .editor import Graph
    from .tracing import Shape

__all__ = ["RULES", "Finding", "Fixed", "Rule", "fix", "lint"]

#: Operators whose results are as large as the data makes them.
_DATA_DEPENDENT = frozenset({"Compress", "Loop", "NonMaxSuppression", "NonZero", "Unique"})
_COORDINATES = frozenset({"half_pixel", "pytorch_half_pixel", "tf_half_pixel_for_nn", "asymmetric", "align_corners"})
_LEAST_SAVING = 1 << 16  # bytes
_LEAST_INDICES = 16  # fewer are positions in a shape
_OLD_OPSET = 13
_GOOD_OPSET = 17


@dataclass(frozen=True)
class Finding:
    """One fault, at one place.

    Attributes:
        rule: the name of the rule.
        where: the node or value: `node 'conv1' (Conv)`; or `"the model"`.
        what: what is there.
        why: what it does, and where.
        backends: those that it concerns; empty is all.
        fix: the pass that mends it; None if there is none.
    """

    rule: str
    where: str
    what: str
    why: str
    backends: tuple[str, ...]
    fix: Pass | None


@dataclass(frozen=True)
class Rule:
    """A name, why it matters and on which backends, what finds it (pairs of where and what), and what mends it."""

    name: str
    why: str
    backends: tuple[str, ...]
    find: Callable[[Graph], Iterator[tuple[str, str]]]
    fix: Pass | None = None


@dataclass(frozen=True)
class Fixed:
    """A pass that `fix` applied, or `error`: why it could not be."""

    name: str
    error: str = ""


def lint(graph: Graph, rules: Iterable[Rule] | None = None) -> list[Finding]:
    """Holds the rules against a graph, which stays as it is."""
    graph = type(graph)(graph.model.clone())
    lift_constants(graph.model)
    found = []
    for rule in RULES if rules is None else rules:
        for where, what in rule.find(graph):
            mend = None if what.startswith(_CANNOT) else rule.fix
            found.append(Finding(rule.name, where, what, rule.why, rule.backends, mend))
    return found


def fix(graph: Graph) -> list[Fixed]:
    """Applies the passes that mend what `lint` finds, each once. A pass that fails leaves the graph as it was."""
    done: list[Fixed] = []
    for rule in RULES:
        if rule.fix is None or not any(finding.fix for finding in lint(graph, [rule])):
            continue
        before = graph.model.clone()
        try:
            if graph.apply(rule.fix):
                done.append(Fixed(rule.fix.name))
        except InferSDKError as error:
            graph.model.graph = before.graph
            done.append(Fixed(rule.fix.name, str(error)))
    return done


# ---- the rules ----

_CANNOT = "it cannot be freed"


def _fixed_batch(graph: Graph) -> Iterator[tuple[str, str]]:
    try:
        change = free_batch(graph.model.clone())
    except UnsupportedModelError as error:
        yield "the model", f"{_CANNOT}: {error}"
        return
    if change is None:
        return
    sizes = sorted({str(value.shape[0]) for value in graph.inputs if value.shape})
    yield "the model", f"the batch is fixed to {', '.join(sizes)}"
    for node in change.changed:
        yield node_label(node), "a size of it is the batch, written as a number"


def _free_batch_that_is_not(graph: Graph) -> Iterator[tuple[str, str]]:
    """A batch that is declared free, and a Reshape that is written for one image."""
    if not any(value.shape and not isinstance(value.shape[0], int) for value in graph.inputs):
        return
    if _trace(graph, batch=1, size=640) is None:
        return  # the free axes beside the batch are of sizes that nobody has said
    copy = graph.model.clone()
    for value in copy.graph.inputs:
        if value.shape and not isinstance(value.shape[0], int):
            value.shape[0] = 1
    try:
        change = free_batch(copy)
    except UnsupportedModelError as error:
        yield "the model", f"the batch is declared free, and is not: {error}"
        return
    for node in change.changed if change else ():
        yield node_label(node), "the batch is declared free, and this node has it as a number"


def _shape_arithmetic(graph: Graph) -> Iterator[tuple[str, str]]:
    """Targets of Reshape that are computed, and are always the same but for sizes that 0 and one -1 stand for."""
    first, second = _trace(graph, batch=1, size=640), _trace(graph, batch=3, size=960)
    if first is None or second is None:
        return
    for node in graph.nodes("Reshape"):
        target = node.inputs[1] if len(node.inputs) > 1 else None
        source = node.inputs[0]
        if target is None or source is None or target.is_initializer():
            continue
        if (maker := target.producer()) is None or maker.op_type == "Constant":
            continue
        sizes = [trace.data.get(target) for trace in (first, second)]
        shapes: list[Shape] = [trace.shapes.get(source, ()) for trace in (first, second)]
        if sizes[0] is None or sizes[1] is None:
            continue
        free = [index for index, pair in enumerate(zip(*sizes, strict=True)) if pair[0] != pair[1]]
        own = [index for index in free if all(_is_axis(s, v, index) for s, v in zip(shapes, sizes, strict=True))]
        if len(free) - len(own) <= 1:
            yield node_label(node), f"its target is computed, and is always {_as_ints(sizes[0], free, own)}"


def _is_axis(shape: Shape, sizes: Any, index: int) -> bool:
    return index < len(shape) and shape[index] == sizes[index]


def _as_ints(sizes: Iterable[int], free: list[int], own: list[int]) -> list[int]:
    """A target with 0 for sizes that stay, and -1 for one that follows."""
    return [0 if index in own else -1 if index in free else int(size) for index, size in enumerate(sizes)]


def _trace(graph: Graph, *, batch: int, size: int) -> ShapeTrace | None:
    """The shapes for an example of the free axes; None if the model does not take it."""
    copy = graph.model
    shapes = {
        value.name or "": [
            dim if isinstance(dim, int) and dim >= 0 else batch if axis == 0 else size
            for axis, dim in enumerate(value.shape or ())
        ]
        for value in graph.inputs
    }
    trace = ShapeTrace(copy, shapes)
    try:
        for node in copy.graph:
            trace.step(node)
    except UnsupportedModelError:
        return None
    return trace


def _wide_indices(graph: Graph) -> Iterator[tuple[str, str]]:
    for value in wide_indices(graph.model):
        if value.const_value is not None and value.const_value.size >= _LEAST_INDICES:
            yield f"weight {value.name!r}", f"{value.const_value.size} indices of int64 that fit int32"


def _resize_modes(graph: Graph) -> Iterator[tuple[str, str]]:
    for node in graph.nodes({"Resize", "Upsample"}):
        get = node.attributes.get_string
        coordinates = get("coordinate_transformation_mode", "half_pixel")
        odd = [
            what
            for wrong, what in (
                (node.op_type == "Upsample", "Upsample, which left the standard with opset 10"),
                (coordinates not in _COORDINATES, f"coordinate_transformation_mode {coordinates}"),
                (
                    get("keep_aspect_ratio_policy", "stretch") != "stretch",
                    "keep_aspect_ratio_policy other than stretch",
                ),
                (node.attributes.get_int("antialias", 0), "antialias"),
                (node.attributes.get_int("exclude_outside", 0), "exclude_outside"),
            )
            if wrong
        ]
        for what in odd:
            yield node_label(node), what


def _old_opset(graph: Graph) -> Iterator[tuple[str, str]]:
    if graph.opset < _OLD_OPSET:
        yield "the model", f"opset {graph.opset}"


def _new_opset(graph: Graph) -> Iterator[tuple[str, str]]:
    import onnx

    known, version = onnx.defs.onnx_opset_version(), onnx.__version__
    if graph.opset > known:
        yield "the model", f"opset {graph.opset}; the installed onnx {version} knows {known}"
    if (graph.model.ir_version or 0) > onnx.IR_VERSION:
        yield "the model", f"IR version {graph.model.ir_version}; the installed onnx {version} knows {onnx.IR_VERSION}"


def _data_dependent(graph: Graph) -> Iterator[tuple[str, str]]:
    for node in graph.model.graph.all_nodes():
        if node.op_type in _DATA_DEPENDENT:
            yield node_label(node), "how much it gives depends on the data"


def _unnamed(graph: Graph) -> Iterator[tuple[str, str]]:
    wrong = sum(node.name != name for node, name in zip(graph.nodes(), node_names(graph.model.graph), strict=True))
    if wrong:
        yield "the model", f"{wrong} nodes have no name, or one that others have"


def _repeated(graph: Graph) -> Iterator[tuple[str, str]]:
    for value, small in repeated_constants(graph.model):
        if value.const_value is not None and (saved := value.const_value.nbytes - small.nbytes) >= _LEAST_SAVING:
            yield (
                f"weight {value.name!r}",
                f"{value.shape} repeats itself, and {list(small.shape)} says the same: {saved:,} bytes",
            )


def _weights_as_inputs(graph: Graph) -> Iterator[tuple[str, str]]:
    weights = [value.name for value in graph.model.graph.inputs if value.name in graph.model.graph.initializers]
    if weights:
        yield "the model", f"{len(weights)} weights are inputs as well, {weights[0]!r} for one"


def _double(graph: Graph) -> Iterator[tuple[str, str]]:
    from .types import element_types

    types = element_types(graph.model)
    for node in graph.nodes():
        if any((kind := types.get(output)) is not None and kind.name == "DOUBLE" for output in node.outputs):
            yield node_label(node), "it computes in float64"


def _other_operators(graph: Graph) -> Iterator[tuple[str, str]]:
    for node in graph.model.graph.all_nodes():
        if node.domain not in ("", "ai.onnx", "ai.onnx.ml"):
            yield node_label(node), f"an operator of {node.domain!r}, not of the standard"


def _idle(graph: Graph) -> Iterator[tuple[str, str]]:
    for node in graph.nodes({"Identity", "Dropout"}):
        if not node.outputs[0].is_graph_output():
            yield node_label(node), "it does nothing"
    unused = [v.name for v in graph.model.graph.initializers.values() if not v.uses() and not v.is_graph_output()]
    if unused:
        yield "the model", f"{len(unused)} weights that nothing takes, {unused[0]!r} for one"


_TENSORRT = ("tensorrt", "tensorrt-rtx")

#: All rules, in the order in which their passes are applied.
RULES = (
    Rule(
        "weights-as-inputs", "constants cannot be folded, and TensorRT asks for them as inputs", (),
        _weights_as_inputs, WeightsOffInputs(),
    ),
    Rule("unnamed-nodes", "messages, profiles and `fp16_keep` cannot name them", (), _unnamed, NameNodes()),
    Rule(
        "fixed-batch", "requests cannot be put together, and each batch size needs an export of its own", (),
        _fixed_batch, FreeBatch(),
    ),
    Rule("broken-batch", "any other batch fails while it runs, or mixes images", (), _free_batch_that_is_not),
    Rule(
        "shape-arithmetic", "sizes are computed in each run, and the builder knows less of the shapes",
        ("openvino", *_TENSORRT), _shape_arithmetic, CleanUp(),
    ),
    Rule("idle-nodes", "they keep the nodes around them from being fused", (), _idle, CleanUp()),
    Rule(
        "wide-indices", "GPUs and NPUs index by 32 bits and convert these", ("openvino", *_TENSORRT), _wide_indices,
        NarrowIndices(),
    ),
    Rule(
        "large-constants", "they take memory and bandwidth, and belong to one size of the input", (), _repeated,
        ShrinkConstants(),
    ),
    Rule(
        "resize-modes", "TensorRT does not have them, or runtimes compute them differently", ("openvino", *_TENSORRT),
        _resize_modes,
    ),
    Rule(
        "old-opset", "quantisation of weights by channel needs 13, and converters look for newer forms", (),
        _old_opset, SetOpset(_GOOD_OPSET),
    ),
    Rule("new-opset", "runtimes of the same age do not read it", (), _new_opset),
    Rule(
        "data-dependent-shapes", "no CUDA graph holds it, NPUs do not compile it, and each run allocates memory; "
        "`infersdk graph split` cuts it off", ("openvino", *_TENSORRT), _data_dependent,
    ),
    Rule("float64", "GPUs are slow at it, and TensorRT converts it to float32", _TENSORRT, _double),
    Rule("other-operators", "other runtimes do not have it", ("openvino", *_TENSORRT), _other_operators),
)  # fmt: skip
