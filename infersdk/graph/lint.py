"""Rules that find portability and performance problems in a graph, and the passes that fix them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..core.model_source import KNOWN_DOMAINS
from ..custom_ops.operator_set import OperatorSet, declared
from ..errors import ConfigError, InferSDKError, UnsupportedModelError
from .batch_rows import UnknownBatchError
from .passes import (
    CleanUp,
    FreeBatch,
    NameAxes,
    NameNodes,
    NarrowIndices,
    Pass,
    SetOpset,
    ShrinkConstants,
    StaticReshapes,
    WeightsOffInputs,
)
from .passes._sizes import lift_constants
from .passes.free_batch import free_batch
from .passes.name_axes import unclear_axes
from .passes.name_nodes import node_names
from .passes.static_reshapes import computed_targets, trace_example
from .passes.weight_forms import repeated_constants, wide_indices
from .shapes import node_label
from .trial import refuses_version
from .types import element_types

if TYPE_CHECKING:
    from ..custom_ops import CustomOp
    from .editor import Graph

__all__ = ["RULES", "Finding", "Fixed", "Rule", "fix", "lint", "rules_for"]

#: Operators whose output shapes depend on the data.
_DATA_DEPENDENT = frozenset({"Compress", "Loop", "NonMaxSuppression", "NonZero", "Unique"})
_COORDINATES = frozenset({"half_pixel", "pytorch_half_pixel", "tf_half_pixel_for_nn", "asymmetric", "align_corners"})
_MIN_SAVING = 1 << 16  # bytes
_MIN_INDICES = 16  # fewer are usually positions in a shape
_OLD_OPSET = 13
_GOOD_OPSET = 17
_GOOD_IR = 8  # from the same ONNX release


@dataclass(frozen=True)
class Finding:
    """A problem at one place.

    Attributes:
        rule: the name of the rule.
        where: the node or value, such as `node 'conv1' (Conv)`, or `"the model"`.
        what: the problem.
        why: its consequence.
        backends: the affected backends; empty means all.
        fix: the pass that fixes it; None if there is none.
    """

    rule: str
    where: str
    what: str
    why: str
    backends: tuple[str, ...]
    fix: Pass | None


@dataclass(frozen=True)
class Rule:
    """A rule: its name, its consequence, the affected backends, a function that yields (where, what), and a fix."""

    name: str
    why: str
    backends: tuple[str, ...]
    find: Callable[[Graph], Iterator[tuple[str, str]]]
    fix: Pass | None = None


@dataclass(frozen=True)
class Fixed:
    """A pass that `fix` applied, or the `error` why it failed."""

    name: str
    error: str = ""


def lint(graph: Graph, rules: Iterable[Rule] | None = None) -> list[Finding]:
    """Checks a graph against the rules. The graph is not changed."""
    graph = type(graph)(graph.model.clone())
    lift_constants(graph.model)
    result = []
    for rule in RULES if rules is None else rules:
        for where, what in rule.find(graph):
            mend = None if what.startswith(_CANNOT) else rule.fix
            result.append(Finding(rule.name, where, what, rule.why, rule.backends, mend))
    return result


def fix(graph: Graph) -> list[Fixed]:
    """Applies the passes that fix the findings of `lint`. A pass that fails leaves the graph unchanged.

    A pass may cause findings of other rules, such as new nodes without names, so all rules are repeated until nothing
    changes. The result contains each pass once.
    """
    done: dict[str, Fixed] = {}
    while sum(_mend(graph, rule, done) for rule in RULES):
        pass
    return list(done.values())


def _mend(graph: Graph, rule: Rule, done: dict[str, Fixed]) -> bool:
    """Applies the pass of a rule if it has findings; returns whether this fixed any."""
    if rule.fix is None or (rule.fix.name in done and done[rule.fix.name].error):
        return False
    before = [finding for finding in lint(graph, [rule]) if finding.fix]
    if not before:
        return False
    kept = graph.model.clone()
    try:
        changed = graph.apply(rule.fix)
    except InferSDKError as error:
        graph.model.graph = kept.graph
        graph.model.functions.update(kept.functions)
        done[rule.fix.name] = Fixed(rule.fix.name, str(error))
        return False
    left = len([finding for finding in lint(graph, [rule]) if finding.fix])
    if changed and rule.fix.name not in done:
        done[rule.fix.name] = Fixed(rule.fix.name)
    return changed and left < len(before)


# ---- the rules ----

_CANNOT = "it cannot be freed"


def _fixed_batch(graph: Graph) -> Iterator[tuple[str, str]]:
    try:
        change = free_batch(graph.model.clone())
    except (ConfigError, UnsupportedModelError) as error:
        yield "the model", f"{_CANNOT}: {error}"
        return
    if change is None:
        return
    sizes = sorted({str(value.shape[0]) for value in graph.inputs if value.shape})
    yield "the model", f"the batch is fixed to {', '.join(sizes)}"
    for node in change.changed:
        yield node_label(node), "it contains the batch size as a number"


def _free_batch_that_is_not(graph: Graph) -> Iterator[tuple[str, str]]:
    """A batch that is declared free, and nodes that work for one image only."""
    if not any(value.shape and not isinstance(value.shape[0], int) for value in graph.inputs):
        return
    if trace_example(graph.model, 1, 640) is None:
        return  # the model does not accept this example of its free axes
    copy = graph.model.clone()
    for value in copy.graph.inputs:
        if value.shape and not isinstance(value.shape[0], int):
            value.shape[0] = 1
    try:
        change = free_batch(copy)
    except UnknownBatchError:
        return
    except UnsupportedModelError as error:
        yield "the model", f"the batch is declared free, but is not: {error}"
        return
    for node in change.changed if change else ():
        yield node_label(node), "the batch is declared free, but this node contains it as a number"


def _shape_arithmetic(graph: Graph) -> Iterator[tuple[str, str]]:
    for node, target in computed_targets(graph.model):
        yield node_label(node), f"its target is computed at run time, but is always {target}"


def _wide_indices(graph: Graph) -> Iterator[tuple[str, str]]:
    for value in wide_indices(graph.model):
        if value.const_value is not None and value.const_value.size >= _MIN_INDICES:
            yield f"weight {value.name!r}", f"{value.const_value.size} indices of int64 that fit int32"


def _resize_modes(graph: Graph) -> Iterator[tuple[str, str]]:
    for node in graph.nodes({"Resize", "Upsample"}):
        get = node.attributes.get_string
        coordinates = get("coordinate_transformation_mode", "half_pixel")
        for wrong, what in (
            (node.op_type == "Upsample", "Upsample, which opset 10 deprecated"),
            (coordinates not in _COORDINATES, f"coordinate_transformation_mode {coordinates}"),
            (get("keep_aspect_ratio_policy", "stretch") != "stretch", "keep_aspect_ratio_policy other than stretch"),
            (node.attributes.get_int("antialias", 0), "antialias"),
            (node.attributes.get_int("exclude_outside", 0), "exclude_outside"),
        ):
            if wrong:
                yield node_label(node), what


def _old_opset(graph: Graph) -> Iterator[tuple[str, str]]:
    if graph.opset < _OLD_OPSET:
        yield "the model", f"opset {graph.opset}"


def _new_opset(graph: Graph) -> Iterator[tuple[str, str]]:
    import onnx

    known, version = onnx.defs.onnx_opset_version(), onnx.__version__
    ir_version = graph.model.ir_version or 0
    if graph.opset > known:
        yield "the model", f"opset {graph.opset}; the installed onnx {version} knows {known}"
    if ir_version > onnx.IR_VERSION:
        yield "the model", f"IR version {ir_version}; the installed onnx {version} knows {onnx.IR_VERSION}"
    if graph.opset > _GOOD_OPSET or ir_version > _GOOD_IR:
        for backend in ("onnxruntime", "openvino"):
            if why := refuses_version(backend, graph.opset, ir_version):
                yield "the model", f"opset {graph.opset}, IR version {ir_version}; the installed {backend}: {why}"


def _data_dependent(graph: Graph) -> Iterator[tuple[str, str]]:
    for node in graph.model.graph.all_nodes():
        if node.op_type in _DATA_DEPENDENT:
            yield node_label(node), "the size of its output depends on the data"


def _unnamed(graph: Graph) -> Iterator[tuple[str, str]]:
    wrong = sum(node.name != name for node, name in zip(graph.nodes(), node_names(graph.model.graph), strict=True))
    if wrong:
        yield "the model", f"{wrong} nodes have no name or share one"


def _unnamed_axes(graph: Graph) -> Iterator[tuple[str, str]]:
    for value, axis, written in unclear_axes(graph.model):
        why = "which is not a size" if written.startswith("-") else "like another axis"
        yield f"input {value.name!r}", f"axis {axis} is written as {written!r}, {why}"


def _repeated(graph: Graph) -> Iterator[tuple[str, str]]:
    for value, small in repeated_constants(graph.model):
        if value.const_value is not None and (saved := value.const_value.nbytes - small.nbytes) >= _MIN_SAVING:
            yield (
                f"weight {value.name!r}",
                f"shape {value.shape} repeats values, {list(small.shape)} is enough and saves {saved:,} bytes",
            )


def _weights_as_inputs(graph: Graph) -> Iterator[tuple[str, str]]:
    weights = [value.name for value in graph.model.graph.inputs if value.name in graph.model.graph.initializers]
    if weights:
        yield "the model", f"{len(weights)} weights are also inputs, such as {weights[0]!r}"


def _double(graph: Graph) -> Iterator[tuple[str, str]]:
    types = element_types(graph.model)
    for node in graph.nodes():
        if any((kind := types.get(output)) is not None and kind.name == "DOUBLE" for output in node.outputs):
            yield node_label(node), "it computes in float64"


def _other_operators(graph: Graph, operators: OperatorSet) -> Iterator[tuple[str, str]]:
    for node in graph.model.graph.all_nodes():
        standard = node.domain in ("", "ai.onnx", "ai.onnx.ml")
        own = node.op_identifier() in graph.model.functions or (node.domain, node.op_type) in operators
        if not standard and not own:
            yield (
                node_label(node),
                f"operator of domain {node.domain!r}, which is neither standard nor a declared custom operator",
            )


def _missing_kernels(graph: Graph, operators: OperatorSet) -> Iterator[tuple[str, str]]:
    for node in graph.model.graph.all_nodes():
        if (op := operators.get((node.domain, node.op_type))) is not None:
            for device in ("cpu", "cuda"):
                if getattr(op, device) is None:
                    yield node_label(node), f"{op.title()} has no kernel for {device!r}"


def _idle(graph: Graph) -> Iterator[tuple[str, str]]:
    for node in graph.nodes({"Identity", "Dropout"}):
        if not node.outputs[0].is_graph_output():
            yield node_label(node), "it does nothing"
    unused = [v.name for v in graph.model.graph.initializers.values() if not v.uses() and not v.is_graph_output()]
    if unused:
        yield "the model", f"{len(unused)} unused weights, such as {unused[0]!r}"


_TENSORRT = ("tensorrt", "tensorrt-rtx")

#: The rules for standard operators, in the order in which their passes are applied.
_STANDARD_RULES = (
    Rule(
        "weights-as-inputs", "constants cannot be folded, and TensorRT asks for them as inputs", (),
        _weights_as_inputs, WeightsOffInputs(),
    ),
    Rule("unnamed-nodes", "messages, profiles and `fp16_keep` cannot name them", (), _unnamed, NameNodes()),
    Rule(
        "unnamed-axes", "axes with one name must be equal: builds reject other shapes", _TENSORRT, _unnamed_axes,
        NameAxes(),
    ),
    Rule(
        "fixed-batch", "requests cannot be batched, and each batch size needs a separate export", (),
        _fixed_batch, FreeBatch(),
    ),
    Rule("broken-batch", "other batch sizes fail at run time or mix images", (), _free_batch_that_is_not),
    Rule(
        "shape-arithmetic", "sizes are computed in each run, and the engine builder does not know the shapes",
        ("openvino", *_TENSORRT), _shape_arithmetic, StaticReshapes(),
    ),
    Rule("idle-nodes", "they prevent fusions", (), _idle, CleanUp()),
    Rule(
        "wide-indices", "GPUs and NPUs index by 32 bits and convert these", ("openvino", *_TENSORRT), _wide_indices,
        NarrowIndices(),
    ),
    Rule(
        "large-constants", "they take memory and bandwidth, and fix the input size", (), _repeated,
        ShrinkConstants(),
    ),
    Rule(
        "resize-modes", "TensorRT does not support them, or runtimes disagree on the results", ("openvino", *_TENSORRT),
        _resize_modes,
    ),
    Rule(
        "old-opset", "quantisation of weights per channel needs opset 13, and converters expect newer forms", (),
        _old_opset, SetOpset(_GOOD_OPSET),
    ),
    Rule("new-opset", "older runtimes do not read it", (), _new_opset),
    Rule(
        "data-dependent-shapes", "CUDA graphs and NPUs do not support them, and each run allocates memory; "
        "`infersdk graph split` separates them", ("openvino", *_TENSORRT), _data_dependent,
    ),
    Rule("float64", "it is slow on GPUs, and TensorRT converts it to float32", _TENSORRT, _double),
)  # fmt: skip


def rules_for(custom_ops: Sequence[type[CustomOp]] = ()) -> tuple[Rule, ...]:
    """All rules. Known custom operators are `custom_ops`, those of installed packages, and those of infersdk.

    Raises:
        CustomOpError: two operators have the same domain and name.
    """

    def operators(graph: Graph) -> OperatorSet:
        return declared(custom_ops, frozenset(graph.model.graph.opset_imports) - KNOWN_DOMAINS)

    return (
        *_STANDARD_RULES,
        Rule(
            "other-operators", "runtimes do not have it; declare it (`infersdk.custom_ops`) or replace it",
            ("openvino", *_TENSORRT), lambda graph: _other_operators(graph, operators(graph)),
        ),
        Rule(
            "missing-kernels", "the model does not load on that device", (),
            lambda graph: _missing_kernels(graph, operators(graph)),
        ),
    )  # fmt: skip


#: All rules, with the custom operators of installed packages and of infersdk.
RULES = rules_for()
