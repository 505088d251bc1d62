"""Runs a PNNX graph with PyTorch, as a module that can be exported or that returns all intermediate values.

The types of operators are names of PyTorch: modules (`nn.Conv2d`), functions (`F.relu`, `torch.cat`) and methods
(`Tensor.view`). Only the names listed here are called, so that a file cannot call other functions.
"""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import BackendUnavailableError, InferenceError, InputError, ModelFormatError
from ..conversion import missing_operators
from ..workers.exchange import leaves
from .expressions import Call, Input, functions, parse_expression
from .graph import Operator, PnnxGraph

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    import torch


__all__ = ["as_module", "run"]


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_MODULES = _names("""
    AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d AdaptiveMaxPool1d AdaptiveMaxPool2d AdaptiveMaxPool3d
    AlphaDropout AvgPool1d AvgPool2d AvgPool3d BatchNorm1d BatchNorm2d BatchNorm3d CELU ChannelShuffle
    ConstantPad1d ConstantPad2d ConstantPad3d Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d
    Dropout Dropout2d Dropout3d ELU Embedding Flatten Fold GELU GLU GRU GroupNorm Hardshrink Hardsigmoid Hardswish
    Hardtanh Identity InstanceNorm1d InstanceNorm2d InstanceNorm3d LPPool1d LPPool2d LSTM LayerNorm LeakyReLU
    Linear LocalResponseNorm LogSigmoid LogSoftmax MaxPool1d MaxPool2d MaxPool3d Mish MultiheadAttention PReLU
    PixelShuffle PixelUnshuffle RMSNorm RNN RReLU ReLU ReLU6 ReflectionPad1d ReflectionPad2d ReflectionPad3d
    ReplicationPad1d ReplicationPad2d ReplicationPad3d SELU SiLU Sigmoid Softmax Softmax2d Softmin Softplus
    Softshrink Softsign Tanh Tanhshrink Threshold Unfold Upsample UpsamplingBilinear2d UpsamplingNearest2d
    ZeroPad1d ZeroPad2d ZeroPad3d
""")
_FUNCTIONAL = _names("""
    adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d
    adaptive_max_pool3d affine_grid alpha_dropout avg_pool1d avg_pool2d avg_pool3d batch_norm celu conv1d conv2d
    conv3d conv_transpose1d conv_transpose2d conv_transpose3d dropout dropout2d dropout3d elu embedding
    feature_alpha_dropout fold gelu glu grid_sample group_norm hardshrink hardsigmoid hardswish hardtanh
    instance_norm interpolate layer_norm leaky_relu linear local_response_norm log_softmax logsigmoid lp_pool1d
    lp_pool2d max_pool1d max_pool2d max_pool3d mish normalize pad pairwise_distance pixel_shuffle pixel_unshuffle
    prelu relu relu6 rms_norm rrelu scaled_dot_product_attention selu sigmoid silu softmax softmin softplus
    softshrink softsign tanh tanhshrink threshold unfold upsample upsample_bilinear upsample_nearest
""")
_TORCH = _names("""
    abs acos acosh add addmm amax amin arange argmax argmin asin asinh atan atan2 atanh baddbmm bitwise_and
    bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor bmm cat ceil chunk clamp clone cos
    cosh cross cumprod cumsum diag div einsum eq erf exp expm1 flatten flip floor fmod full full_like gather ge gt
    index_select le lerp lgamma log log10 log1p log2 logaddexp logical_and logical_not logical_or logical_xor
    logsumexp lt masked_select matmul max maximum mean min minimum mm movedim mul mv narrow ne neg norm ones
    ones_like outer positive pow prod reciprocal remainder repeat_interleave roll round rsqrt rsub scatter_add
    select sigmoid sign sin sinh slice_scatter softmax split sqrt square squeeze stack std sub sum swapaxes t tan
    tanh tensor_split tile topk transpose trunc unbind unsqueeze var where zeros zeros_like
""")
_RAW = _names("""
    _unique2 addcdiv addcmul all aminmax any argsort bilinear broadcast_to cdist chain_matmul channel_shuffle clamp_max
    clamp_min column_stack cosine_similarity count_nonzero deg2rad diagonal diff dot dstack erfc exp2 fliplr flipud frac
    hstack hypot index_add index_copy isfinite isinf isnan kthvalue linalg_multi_dot linalg_vecdot log2 logit mT median
    meshgrid movedim msort nan_to_num nonzero numel numpy_T one_hot outer rad2deg ravel rot90 scatter sgn sort std_mean
    take_along_dim trace tril triu unfold var_mean vstack
""")
_METHODS = _names("""
    expand expand_as fill index_put masked_fill permute repeat reshape reshape_as to type_as unflatten view
    view_as clone contiguous new_ones new_zeros new_full
""")
_DTYPES = _names("""
    float float32 half float16 double float64 int int32 long int64 short int16 char int8 uint8 bool
""")
_LISTS = frozenset({"torch.cat", "torch.stack"})
_ENDS = ("pnnx.Input", "pnnx.Output", "pnnx.Attribute")


def run(graph: PnnxGraph, inputs: Sequence[npt.ArrayLike]) -> dict[str, Any]:
    """Runs the graph.

    Args:
        inputs: an array for each input of the graph, in order.

    Returns:
        The values of all operands by name, as arrays, or lists of arrays for operators with several results.

    Raises:
        BackendUnavailableError: PyTorch is not installed.
        UnsupportedModelError: operators are unknown; the message lists all of them.
        InputError: the number of inputs is wrong.
        InferenceError: an operator fails; the message names it.
        ModelFormatError: the graph or its weights are damaged.
    """
    module = as_module(graph)
    import torch

    if len(inputs) != len(graph.inputs):
        raise InputError(f"the graph has {len(graph.inputs)} inputs, not {len(inputs)}")
    with torch.inference_mode():
        values = module.values(*(torch.from_numpy(np.array(array)) for array in inputs))
    return {name: _numpy(value) for name, value in values.items()}


def as_module(graph: PnnxGraph) -> torch.nn.Module:
    """The graph as a PyTorch module, which returns a tuple of the outputs.

    Its method `values()` returns the values of all operands by name.

    Raises:
        BackendUnavailableError, UnsupportedModelError, ModelFormatError: as `run()`.
    """
    if importlib.util.find_spec("torch") is None:
        raise BackendUnavailableError("PNNX graphs need PyTorch, which is not installed: pip install torch onnxscript")
    import torch

    for one in graph.operators:
        if one.type == "pnnx.Expression" and "expr" not in one.params:
            raise ModelFormatError(f"operator {one.name!r} ({one.type}) is damaged: it has no parameter expr")
    unknown = Counter(one.type for one in graph.operators if not _known(one.type))
    trees = [parse_expression(one.params["expr"], len(one.inputs)) for one in graph.operators if "expr" in one.params]
    unknown += Counter(f"{name}()" for tree in trees for name in functions(tree) if name not in {*EXPRESSIONS, "[]"})
    if unknown:
        raise missing_operators("the PyTorch runner of PNNX graphs", unknown)
    steps = [one for one in graph.operators if one.type not in ("pnnx.Input", "pnnx.Output")]

    class Graph(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            for index, one in enumerate(steps):
                if one.type.startswith("nn."):
                    self.add_module(f"step{index}", _module(one, one.type.removeprefix("nn.")))
                elif one.type == "pnnx.Attribute":
                    self.register_buffer(f"step{index}", _attribute(one))

        def values(self, *inputs: Any) -> dict[str, Any]:
            values = {operand.name: value for operand, value in zip(graph.inputs, inputs, strict=True)}
            for index, one in enumerate(steps):
                given = [values[operand.name] for operand in one.inputs]
                results = _results(one, given, getattr(self, f"step{index}", None))
                values |= {operand.name: value for operand, value in zip(one.outputs, results, strict=False)}
            return values

        def forward(self, *inputs: Any) -> tuple[Any, ...]:
            values = self.values(*inputs)
            return tuple(leaf for operand in graph.outputs for leaf in leaves(values[operand.name]))

    return Graph().eval()


def _results(one: Operator, inputs: list[Any], own: Any) -> list[Any]:
    """Runs an operator; returns the values of its outputs.

    Args:
        own: its module or weight, if any.
    """
    try:
        result = _call(one, inputs, own)
    except (ModelFormatError, BackendUnavailableError):
        raise
    except Exception as error:  # PyTorch raises many types
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InferenceError(f"operator {one.name!r} ({one.type}) failed: {reason}") from error
    whole = len(one.outputs) == 1
    if whole and isinstance(result, tuple) and len(result) == 1 and one.outputs[0].shape is not None:
        whole = False  # `torch.unbind` for `x[0]` of one element: the file has shapes for tensors only
    results = [result] if whole else list(result)
    if len(results) < len(one.outputs):
        raise InferenceError(
            f"operator {one.name!r} ({one.type}) returned {len(results)} of {len(one.outputs)} results"
        )
    return results


def _known(kind: str) -> bool:
    family, _, name = kind.partition(".")
    families = {"nn": _MODULES, "F": _FUNCTIONAL, "torch": _TORCH, "Tensor": _METHODS}
    return kind in {*_ENDS, *_SPECIAL} or kind.removeprefix("aten::") in _RAW or name in families.get(family, ())


def _numpy(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_numpy(inner) for inner in value]
    return value.numpy() if hasattr(value, "numpy") else value


def _call(one: Operator, inputs: list[Any], own: Any) -> Any:
    import torch

    family, _, name = one.type.partition(".")
    if one.type == "pnnx.Attribute":
        return own
    if one.type in _SPECIAL:
        return _SPECIAL[one.type](one, inputs)
    if one.type.startswith("aten::"):
        return _raw(one.type.removeprefix("aten::"), inputs)
    if family == "nn":
        return _call_module(one, name, own, inputs)
    params = {key: _dtype(value) for key, value in one.params.items()}
    if name.startswith("adaptive_") and isinstance(params.get("output_size"), tuple):
        params["output_size"] = tuple(n or None for n in params["output_size"])
    if one.type in _LISTS:
        return getattr(torch, name)(inputs, **params)
    if one.type == "torch.einsum":
        return torch.einsum(params["equation"], *inputs)
    if family == "Tensor":
        return _method(one, name, inputs, params)
    owner: Any = torch.nn.functional if family == "F" else torch
    named = {one.input_names[index]: value for index, value in enumerate(inputs) if index in one.input_names}
    plain = [value for index, value in enumerate(inputs) if index not in one.input_names]
    if name in ("min", "max") and "dim" in params:
        return tuple(getattr(owner, name)(*plain, **named, **params))
    if name in ("var", "std") and params.get("unbiased") is None:
        params.pop("unbiased", None)
    return _WRITTEN.get(name, getattr(owner, name))(*plain, **named, **params)


def _raw(name: str, inputs: list[Any]) -> Any:
    """Calls a TorchScript operator with all arguments of its schema in order."""
    import torch

    if name in _WRITTEN:
        return _WRITTEN[name](*inputs)
    function = getattr(torch.ops.aten, name)
    schemas = [getattr(function, overload)._schema.arguments for overload in function.overloads()]
    named = {
        index: argument.name
        for arguments in schemas
        if len(arguments) == len(inputs)
        for index, argument in enumerate(arguments)
        if argument.kwarg_only and argument.name != "out"
    }
    plain = [value for index, value in enumerate(inputs) if index not in named]
    return function(*plain, **{key: inputs[index] for index, key in named.items()})


# ---- functions that PyTorch's exporter does not support, as compositions of supported ones ----


def _adaptive_max_pool2d(input: Any, output_size: Any, return_indices: bool = False) -> Any:
    """The maxima over rows [i H // n, ceil((i + 1) H / n)) and columns likewise."""
    import torch

    result = input
    sizes = output_size if isinstance(output_size, (tuple, list)) else (output_size,) * 2
    for axis, count in zip((-2, -1), sizes, strict=True):
        size = result.shape[axis]
        if count:  # otherwise the axis keeps its size
            parts = [(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]
            result = torch.cat([result.narrow(axis, a, b - a).amax(axis, keepdim=True) for a, b in parts], axis)
    if return_indices:  # always requested by pnnx; the exporter removes unused ones
        return result, torch.nn.functional.adaptive_max_pool2d(input, output_size, True)[1]
    return result


def _cdist(a: Any, b: Any, p: float = 2.0, compute_mode: Any = None) -> Any:
    import torch

    return torch.linalg.vector_norm(a.unsqueeze(-2) - b.unsqueeze(-3), p, dim=-1)


def _kthvalue(value: Any, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    parts = value.sort(dim)
    return tuple(one.narrow(dim, k - 1, 1) if keepdim else one.select(dim, k - 1) for one in parts)


def _median(value: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    if dim is None:
        return _kthvalue(value.flatten(), (value.numel() + 1) // 2)[0]
    return _kthvalue(value, (value.shape[dim] + 1) // 2, dim, keepdim)


def _scatter(value: Any, dim: int, index: Any, source: Any) -> Any:
    """The source may be larger than the index."""
    if hasattr(source, "shape"):
        source = source[tuple(slice(size) for size in index.shape)]
    return value.scatter(dim, index, source)


_WRITTEN: dict[str, Callable[..., Any]] = {
    "adaptive_max_pool2d": _adaptive_max_pool2d, "cdist": _cdist, "kthvalue": _kthvalue, "median": _median,
    "scatter": _scatter, "hypot": lambda a, b: (a * a + b * b).sqrt(),
}  # fmt: skip


def _dtype(value: Any) -> Any:
    """`torch.float` as that type."""
    if isinstance(value, str) and value.startswith("torch."):
        import torch

        name = value.removeprefix("torch.")
        if name not in _DTYPES | {"contiguous_format", "preserve_format", "channels_last"}:
            raise ModelFormatError(f"unknown element type {value!r} in a PNNX graph")
        return getattr(torch, name)
    return value


def _module(one: Operator, name: str) -> Any:
    """Creates the module of an operator, with the weights of the file."""
    import torch

    params = {key: value for key, value in one.params.items() if key != "attn_mask"}
    if name.startswith("Adaptive") and "output_size" in params:  # the file has 0 for None
        size = params["output_size"]
        params["output_size"] = tuple(n or None for n in (size if isinstance(size, tuple) else (size,)))
        if len(params["output_size"]) == 1:
            params["output_size"] = params["output_size"][0]
    if name == "GELU":
        params.setdefault("approximate", "none")
    state = {key: torch.from_numpy(np.array(weight.array)) for key, weight in one.attributes.items()}
    try:
        with torch.device("meta"):
            module = getattr(torch.nn, name)(**params)
        module.load_state_dict(state, strict=False, assign=True)
    except Exception as error:  # PyTorch raises many types
        raise ModelFormatError(
            f"operator {one.name!r} ({one.type}) is damaged: its parameters {one.params} do not fit: {error}"
        ) from error
    if name.startswith("BatchNorm") and module.num_batches_tracked is not None:
        module.num_batches_tracked = torch.tensor(0)
    absent = [key for key, value in module.state_dict().items() if value.is_meta]
    if absent:
        raise ModelFormatError(f"operator {one.name!r} ({one.type}) has no weights {', '.join(absent)}")
    return module


def _call_module(one: Operator, name: str, module: Any, inputs: list[Any]) -> Any:
    if name == "AdaptiveMaxPool2d":
        return _adaptive_max_pool2d(inputs[0], module.output_size)
    if name == "MultiheadAttention":
        masks = {key: inputs[index] for index, key in one.input_names.items() if key == "attn_mask"}
        tensors = [value for index, value in enumerate(inputs) if one.input_names.get(index) != "attn_mask"]
        # One input is query, key and value; of two inputs, the second is key and value.
        query, key, value = (tensors * 3)[:3] if len(tensors) != 2 else (tensors[0], tensors[1], tensors[1])
        result = module(query, key, value, need_weights=len(one.outputs) > 1, **masks)
        return result if len(one.outputs) > 1 else result[0]
    if name in ("LSTM", "GRU", "RNN"):
        states: Any = inputs[1:]
        initial = (tuple(states) if name == "LSTM" else states[0]) if states else None
        output, last = module(inputs[0], initial)
        if len(one.outputs) == 1:
            return output
        return (output, *last) if name == "LSTM" else (output, last)
    return module(*inputs)


def _method(one: Operator, name: str, inputs: list[Any], params: dict[str, Any]) -> Any:
    import torch

    first, *rest = inputs
    sizes: Any = params.get("shape", params.get("sizes", params.get("dims", params.get("size"))))
    if name in ("view", "reshape", "permute", "expand", "repeat", "new_ones", "new_zeros"):
        if sizes is None and rest:
            sizes = rest[0] if isinstance(rest[0], (list, tuple)) else rest
        return getattr(first, name)([int(size) for size in sizes] if isinstance(sizes, (list, tuple)) else [sizes])
    if name in ("reshape_as", "expand_as", "type_as", "view_as"):
        return getattr(first, name)(rest[0])
    if name == "to":
        return first.to(params["dtype"]) if "dtype" in params else first
    if name in ("contiguous", "clone"):
        return first.clone()
    if name == "fill":
        return first.clone().fill_(rest[0] if rest else params["value"])
    if name == "masked_fill":
        return first.masked_fill(rest[0], rest[1] if len(rest) > 1 else params["value"])
    if name == "unflatten":
        return first.unflatten(params["dim"], sizes if sizes is not None else rest[0])
    if name == "new_full":
        return first.new_full(sizes, params["fill_value"])
    indices = tuple(rest[0]) if isinstance(rest[0], list) else (rest[0],)
    values = rest[1] if len(rest) > 1 else torch.tensor(params["values"], dtype=first.dtype)
    return first.index_put(indices, values, accumulate=params.get("accumulate", False))


def _select(one: Operator, inputs: list[Any]) -> Any:
    index = one.params["index"] if "index" in one.params else int(inputs[1])
    return inputs[0].select(one.params["dim"], index)


def _slice(one: Operator, inputs: list[Any]) -> Any:
    """Returns a slice; `slice_copy` returns a copy whose slice is the second input."""
    if one.type == "Tensor.slice_copy":
        whole = inputs[0].clone()
        source = Operator("Tensor.slice", one.name, params=one.params)
        _slice(source, [whole]).copy_(inputs[1])
        return whole
    value, removed = inputs[0], []
    named = {one.input_names.get(index, ""): given for index, given in enumerate(inputs)}
    for axis, start, end, step, select in _ranges(one, value.ndim, named):
        if select is not None:
            index = int(select)
            value = value.narrow(axis, index + value.shape[axis] if index < 0 else index, 1)
            removed.append(axis)
        else:
            key = [slice(None)] * value.ndim
            key[axis] = slice(int(start), int(end), int(step))
            value = value[tuple(key)]
    for axis in sorted(removed, reverse=True):
        value = value.squeeze(axis)
    return value


def _tensor_index(one: Operator, inputs: list[Any]) -> Any:
    import torch

    given = _expression(one, inputs) if "expr" in one.params else inputs[1]
    # `@0` is the indexed tensor.
    return inputs[0][tuple(slice(None) if key is None else torch.as_tensor(key) for key in given)]


def _expression(one: Operator, inputs: list[Any]) -> Any:
    def value(node: Any) -> Any:
        if isinstance(node, Input):
            return inputs[node.index]
        if not isinstance(node, Call):
            return node
        given = [value(inner) for inner in node.arguments]
        return given if node.function == "[]" else EXPRESSIONS[node.function](*given)

    return value(parse_expression(one.params["expr"], len(inputs)))


def _torch_function(name: str) -> Callable[..., Any]:
    def call(*values: Any) -> Any:
        import torch

        first = next((value for value in values if isinstance(value, torch.Tensor)), None)
        if first is None:
            values = tuple(torch.tensor(value) for value in values)
            return getattr(torch, name)(*values).item()
        if not isinstance(values[0], torch.Tensor) or name in ("maximum", "minimum", "atan2", "logaddexp"):
            values = tuple(
                value
                if isinstance(value, torch.Tensor)
                else torch.tensor(value, dtype=first.dtype if isinstance(value, int) else None)
                for value in values
            )
        return getattr(torch, name)(*values)

    return call


def _size(value: Any, axis: Any = None) -> Any:
    return list(value.shape) if axis is None else value.shape[int(axis)]


_EXPRESSION_NAMES = _names("""
    abs acos acosh add asin asinh atan atan2 atanh ceil cos cosh div erf exp floor floor_divide fmod log log10
    log1p log2 logaddexp maximum minimum mul neg pow reciprocal remainder round rsqrt sigmoid sign sin sinh
    sqrt square sub tan tanh trunc eq ne ge gt le lt expm1
""")
EXPRESSIONS: dict[str, Callable[..., Any]] = {
    **{name: _torch_function(name) for name in _EXPRESSION_NAMES},
    "max": _torch_function("maximum"),
    "min": _torch_function("minimum"),
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "not": lambda a: ~a,
    "lshift": lambda a, b: a << b,
    "rshift": lambda a, b: a >> b,
    "size": _size,
    "int": int,
    "float": float,
}

_SPECIAL: dict[str, Callable[[Operator, list[Any]], Any]] = {
    "pnnx.Expression": _expression,
    "prim::TupleConstruct": lambda _, inputs: list(inputs), "prim::ListConstruct": lambda _, inputs: list(inputs),
    "prim::TupleUnpack": lambda _, inputs: inputs[0], "prim::ListUnpack": lambda _, inputs: inputs[0],
    "Tensor.slice": _slice, "Tensor.slice_copy": _slice, "Tensor.select": _select, "Tensor.index": _tensor_index,
}  # fmt: skip


def _attribute(one: Operator) -> Any:
    import torch

    if len(one.attributes) != 1:
        raise ModelFormatError(f"operator {one.name!r} ({one.type}) has {len(one.attributes)} weights instead of one")
    (weight,) = one.attributes.values()
    return torch.from_numpy(np.array(weight.array))


#: The code for "to the end" and for "no index".
_NONE = 2**31 - 1


def _ranges(one: Operator, rank: int, given: Mapping[str, Any]) -> Iterator[tuple[int, Any, Any, Any, Any]]:
    """Yields the axis, start, end, step and index of each range of a slice. An index, if not None, removes the axis.

    Args:
        given: inputs by name, such as `start` or `ends`, which replace parameters.
    """
    values = one.params | {name: value for name, value in given.items() if value is not None}
    if "dim" in one.params:
        lists: list[Sequence[Any]] = [[values.get(name)] for name in ("dim", "start", "end", "step", "select")]
    else:
        dims = one.params.get("dims", ())
        lists = [dims, *(_sequence(values.get(name), len(dims)) for name in ("starts", "ends", "steps", "selects"))]
    if len({len(column) for column in lists}) != 1:
        raise ModelFormatError(f"operator {one.name!r} (Tensor.slice) has lists of different lengths: {one.params}")
    for axis, start, end, step, select in zip(*lists, strict=True):
        if not isinstance(axis, int) or not -rank <= axis < rank:
            raise ModelFormatError(f"operator {one.name!r} (Tensor.slice): axis {axis!r} of {rank}")
        first, index = (None if isinstance(limit, int) and limit == _NONE else limit for limit in (start, select))
        first, last = 0 if first is None else first, _NONE if end is None else end
        yield axis % rank, first, last, 1 if step is None else step, index


def _sequence(value: Any, count: int) -> Sequence[Any]:
    if value is None:
        return [None] * count
    return value if isinstance(value, (list, tuple)) else [value]
