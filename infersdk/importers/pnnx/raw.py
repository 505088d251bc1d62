"""Operators that pnnx leaves as they are in TorchScript, `aten::NAME`, in the form of those that it raises.

All their arguments are inputs, in the order of the schema: tensors, and constants as `pnnx.Expression` without inputs.
Here constants become parameters, and inputs get their names.
"""

from __future__ import annotations

from typing import Any

from ...errors import UnsupportedModelError
from .expressions import Call, parse_expression
from .graph import Operand, Operator

__all__ = ["RAW", "raised"]

#: The arguments of each by its name, `@` in front of tensors; `|` between overloads, which differ in their number.
_ARGUMENTS = {
    "_unique2": "@input sorted return_inverse return_counts",
    "addcdiv": "@input @tensor1 @tensor2 value",
    "addcmul": "@input @tensor1 @tensor2 value",
    "all": "@input | @input dim keepdim",
    "aminmax": "@input dim keepdim",
    "any": "@input | @input dim keepdim",
    "argsort": "@input dim descending | @input stable dim descending",
    "bilinear": "@input1 @input2 @weight @bias",
    "broadcast_to": "@input sizes",
    "cdist": "@x1 @x2 p compute_mode",
    "chain_matmul": "@tensors",
    "channel_shuffle": "@input groups",
    "clamp_max": "@input @other",
    "clamp_min": "@input @other",
    "column_stack": "@tensors",
    "cosine_similarity": "@x1 @x2 dim eps",
    "count_nonzero": "@input dim",
    "deg2rad": "@input",
    "diagonal": "@input offset dim1 dim2",
    "diff": "@input n dim @prepend @append",
    "dot": "@input @tensor",
    "dstack": "@tensors",
    "erfc": "@input",
    "exp2": "@input",
    "fliplr": "@input",
    "flipud": "@input",
    "frac": "@input",
    "hstack": "@tensors",
    "hypot": "@input @other",
    "index_add": "@input dim @index @source alpha",
    "index_copy": "@input dim @index @source",
    "isfinite": "@input",
    "isinf": "@input",
    "isnan": "@input",
    "kthvalue": "@input k dim keepdim",
    "linalg_multi_dot": "@tensors",
    "linalg_vecdot": "@input @other dim",
    "log2": "@input",
    "logit": "@input eps",
    "mT": "@input",
    "median": "@input | @input dim keepdim",
    "meshgrid": "@tensors | @tensors indexing",
    "movedim": "@input source destination",
    "msort": "@input",
    "nan_to_num": "@input nan posinf neginf",
    "nonzero": "@input",
    "numel": "@input",
    "numpy_T": "@input",
    "one_hot": "@input num_classes",
    "outer": "@input @vec2",
    "rad2deg": "@input",
    "ravel": "@input",
    "rot90": "@input k dims",
    "scatter": "@input dim @index @src",
    "sgn": "@input",
    "sort": "@input dim descending | @input stable dim descending",
    "std_mean": "@input dim correction keepdim",
    "take_along_dim": "@input @indices dim",
    "trace": "@input",
    "tril": "@input diagonal",
    "triu": "@input diagonal",
    "unfold": "@input dimension size step",
    "var_mean": "@input dim correction keepdim",
    "vstack": "@tensors",
}
#: What is not `torch.NAME`.
_TYPES = {
    "broadcast_to": "Tensor.expand", "channel_shuffle": "nn.ChannelShuffle", "cosine_similarity": "F.cosine_similarity",
    "numpy_T": "Tensor.T", "mT": "Tensor.mT", "one_hot": "F.one_hot", "bilinear": "F.bilinear",
    "unfold": "Tensor.unfold",
}  # fmt: skip

#: The types of operators that are known, with those that they are raised to.
RAW = {f"aten::{name}": _TYPES.get(name, f"torch.{name}") for name in _ARGUMENTS}


def raised(one: Operator) -> Operator:
    """The operator with its constants as parameters.

    Raises:
        UnsupportedModelError: it has another number of arguments than is known of it, or a setting depends on data.
    """
    name = one.type.removeprefix("aten::")
    forms = [form.split() for form in _ARGUMENTS[name].split("|")]
    known = next((form for form in forms if len(form) == len(one.inputs)), None)
    if known is None:
        counts = " or ".join(str(len(form)) for form in forms)
        raise UnsupportedModelError(f"{one.type} of {len(one.inputs)} arguments, where {counts} are known")
    made = Operator(RAW[one.type], one.name, outputs=one.outputs, attributes=one.attributes)
    for argument, operand in zip(known, one.inputs, strict=True):
        key = argument.removeprefix("@")
        if _is_constant(operand):
            value = _constant(operand)
            if value is not None:
                made.params[key] = value
        elif argument == key:
            raise UnsupportedModelError(f"{one.type}: its argument {key!r} depends on data")
        else:
            made.input_names[len(made.inputs)] = key
            made.inputs.append(operand)
    return made


def _is_constant(operand: Operand) -> bool:
    maker = operand.producer
    return maker is not None and maker.type == "pnnx.Expression" and not maker.inputs


def _constant(operand: Operand) -> Any:
    """The Python value of an expression without inputs."""
    assert operand.producer is not None
    return _value(parse_expression(str(operand.producer.params.get("expr")), 0))


def _value(tree: Any) -> Any:
    if not isinstance(tree, Call):
        return tree
    if tree.function != "[]":
        raise UnsupportedModelError(f"a constant {tree.function}(...) is not a number or a list of these")
    return tuple(_value(item) for item in tree.arguments)
