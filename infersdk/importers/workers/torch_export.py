"""Converts PyTorch files and modules to ONNX, and runs them on random inputs.

TorchScript files use the TorchScript exporter or, if it fails, TS2EPConverter and the dynamo exporter. Exported
programs and modules use the dynamo exporter or, if it fails, tracing. The notes name the exporter.

PyTorch's interpreter runs TorchScript files without Python, and the importer has rejected operators that access files.
PyTorch would execute pickles and expressions in exported programs; both are blocked here.
"""

from __future__ import annotations

import contextlib
import re
import warnings
from typing import TYPE_CHECKING, Any

from .exchange import (
    ROUNDS,
    RefusedError,
    answer_request,
    check_names,
    drawn_arrays,
    leaves,
    save_sample,
    shapes_by_input,
)  # fmt: skip

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

OPSET = 18


# ---- loading ----


def load(path: str, kind: str) -> Any:
    """Loads a `torch.jit.ScriptModule` or a `torch.export.ExportedProgram`."""
    import torch

    try:
        if kind == "torchscript":
            return torch.jit.load(path, map_location="cpu").eval()
        bar_code_execution()
        return torch.export.load(path)
    except RefusedError:
        raise
    except Exception as error:
        if "Legacy model format" in str(error):
            raise RefusedError(
                f"the file is from PyTorch before 1.4, which PyTorch {torch.__version__} cannot load; load it with an "
                "older version and save it again",
                "unsupported",
            ) from None
        raise RefusedError(f"PyTorch {torch.__version__} cannot load the file: {first_line(error)}", "format") from None


#: The allowed characters and names in size expressions of exported programs.
_EXPRESSION = re.compile(r"[\w\s+\-*/%(),<>=!&|~.]*")
_SIZE_WORDS = """
    Max Min Mod FloorDiv CleanDiv CeilDiv ModularIndexing Where PythonMod TruncToInt RoundToInt CeilToInt
    FloorToInt ToFloat IntTrueDiv FloatTrueDiv PowByNatural FloatPow Identity oo int_oo Eq Ne Lt Le Gt Ge And
    Or Not True False Integer Rational Symbol Add Mul Pow Abs floor ceiling positive nonnegative negative
    integer real finite nonzero even odd zero Zero One NegativeOne Half Infinity NegativeInfinity
    GreaterThan LessThan StrictGreaterThan StrictLessThan Equality Unequality BooleanTrue BooleanFalse
"""
_NAMES = frozenset(_SIZE_WORDS.split())


def bar_code_execution() -> None:
    """Restricts PyTorch to loading tensors and size expressions."""
    import sympy
    import torch
    import torch.export.pt2_archive._package as package

    real_load, real_sympify = torch.load, sympy.sympify

    def load_tensors(*arguments: Any, **named: Any) -> Any:
        named["weights_only"] = True
        return real_load(*arguments, **named)

    def sympify_sizes(expression: Any, *arguments: Any, **named: Any) -> Any:
        if isinstance(expression, str):
            check_expression(expression)
        return real_sympify(expression, *arguments, **named)

    class NoPickle:
        def __getattr__(self, name: str) -> Any:
            raise RefusedError("the file contains pickled objects, which can execute code", "unsupported")

    torch.load = load_tensors
    sympy.sympify = sympify_sizes
    package.pickle = NoPickle()


def check_expression(expression: str) -> None:
    """Raises RefusedError if the text is not a size expression."""
    expression = re.sub(r"'((?:zuf|zf|[suzf])\d+)'", r"\1", expression)  # the name of a size
    names = re.findall(r"[^\W\d]\w*", expression)
    plain = all(name in _NAMES or re.fullmatch(r"(?:[suzf]|zuf|zf)\d+", name) for name in names)
    if not plain or not _EXPRESSION.fullmatch(expression) or re.search(r"[\w)]\s*\.\s*[^\W\d]", expression):
        raise RefusedError(
            f"the file has an expression that is not a size expression: {expression[:100]!r}", "unsupported"
        )


# ---- inputs ----


def script_inputs(module: Any, shapes: list[dict[str, Any]]) -> tuple[list[str], list[Any]]:
    """The names, shapes and types of the inputs of a script."""
    arguments = [argument for argument in module.forward.schema.arguments if argument.name != "self"]
    needed = [argument for argument in arguments if not argument.has_default_value()]
    for argument in needed:
        if str(argument.type) not in ("Tensor", "Optional[Tensor]"):
            raise RefusedError(
                f"input {argument.name!r} has type {argument.type}; only tensors are supported", "unsupported"
            )
    names = [argument.name for argument in needed]
    return names, match_shapes(names, shapes)


def match_shapes(names: list[str], shapes: list[dict[str, Any]]) -> list[Any]:
    """The given shape and type of each input."""
    result = shapes_by_input(names, shapes)
    if len(result) < len(names):
        example = " ".join(f"--shape {name}=1,3,224,224" for name in names)
        what = f"{len(shapes)} shapes are given" if shapes else "the file does not contain the shapes of its inputs"
        raise RefusedError(f"{what}; its inputs are {', '.join(names)}: give a shape for each: {example}", "config")
    return [(tuple(result[name]["sizes"]), result[name]["dtype"] or "float32") for name in names]


def tensors_of(names: list[str], wanted: list[Any], samples: Mapping[str, Any], number: int) -> list[Any]:
    """The inputs of a round: the given samples and otherwise random tensors."""
    import torch

    shapes, dtypes = zip(*wanted, strict=True) if wanted else ((), ())
    return [torch.from_numpy(array) for array in drawn_arrays(names, shapes, dtypes, samples, number)]


def results_of(module: Any, names: list[str], tensors: list[Any]) -> list[Any]:
    """Runs a module; returns its outputs as arrays.

    Raises:
        RefusedError: it fails; the message contains PyTorch's reason.
    """
    import torch

    try:
        with torch.no_grad():
            return arrays(module(*[tensor.clone() for tensor in tensors]))
    except Exception as error:
        shapes = ", ".join(f"{name}={tuple(tensor.shape)}" for name, tensor in zip(names, tensors, strict=True))
        raise RefusedError(
            f"PyTorch cannot run the model with {shapes}: {reason_of(error)}; if random values are not valid, give "
            f"samples: --input {names[-1]}=0,3,5, or samples={{{names[-1]!r}: [0, 3, 5]}}",
            "config",
        ) from None


def arrays(results: Any) -> list[Any]:
    """The tensors in the results of a module, in order, as arrays."""
    import torch

    return [leaf.detach().cpu().numpy() for leaf in leaves(results) if isinstance(leaf, torch.Tensor)]


# ---- exporting ----


def export_script(module: Any, example: list[Any], names: list[str], path: str) -> list[str]:
    """Exports with the TorchScript exporter or, if it fails, TS2EPConverter and dynamo. Returns notes."""
    return export_either(
        lambda: export_traced(module, example, names, path), "the TorchScript exporter",
        lambda: export_converted(module, example, path), "TS2EPConverter with the dynamo exporter",
        "TS2EPConverter and the dynamo exporter",
    )  # fmt: skip


def export_either(
    export: Callable[[], None], name: str, export_otherwise: Callable[[], None], other: str, by: str
) -> list[str]:
    """Exports or, if this fails, exports otherwise. Returns notes, which name the other exporter by `by`."""
    try:
        export()
        return []
    except Exception as error:
        first = first_line(error)
    try:
        export_otherwise()
    except Exception as error:
        text = f"{name} fails ({first}), and so does {other}: {first_line(error)}"
        raise RefusedError(text, "unsupported") from None
    return [f"by {by}, because {name} fails: {first}"]


def export_traced(
    module: Any, example: list[Any], names: list[str], path: str, outputs: list[str] | None = None
) -> None:
    import torch

    mode = torch.onnx.TrainingMode.PRESERVE  # the mode of an exported program cannot be set
    torch.onnx.export(
        module, tuple(example), path, dynamo=False, opset_version=17, input_names=names, output_names=outputs,
        training=mode,
    )  # fmt: skip


def export_converted(module: Any, example: list[Any], path: str) -> None:
    """Exports a script with TS2EPConverter and the dynamo exporter."""
    from torch._export.converter import TS2EPConverter

    export_program(TS2EPConverter(module, tuple(example)).convert(), path)


def export_program(program: Any, path: str) -> None:
    import torch

    torch.onnx.export(program, (), path, dynamo=True, opset_version=OPSET, external_data=False, verbose=False)


def export_module(
    module: Any,
    example: list[Any],
    names: list[str],
    path: str,
    outputs: list[str] | None = None,
    free: list[dict[int, None]] | None = None,
) -> list[str]:
    """Exports with the dynamo exporter or, if it fails, tracing and the TorchScript exporter. Returns notes.

    Args:
        outputs: the names of the outputs.
        free: the free axes of each input. The signature of the module must then be `*inputs`.
    """
    import torch

    def export() -> None:
        torch.onnx.export(
            module, tuple(example), path, dynamo=True, opset_version=OPSET, external_data=False, verbose=False,
            input_names=names, output_names=outputs,
            dynamic_shapes=free and (tuple(dict.fromkeys(axes, torch.export.Dim.DYNAMIC) for axes in free),),
        )  # fmt: skip

    if free is None:
        return traced_otherwise(export, module, example, names, path, outputs)
    try:
        export()
    except Exception as error:
        raise RefusedError(f"the dynamo exporter fails: {first_line(error)}", "unsupported") from None
    return []


def traced_otherwise(
    export: Callable[[], None], module: Any, example: list[Any], names: list[str], path: str,
    outputs: list[str] | None = None,
) -> list[str]:  # fmt: skip
    """Exports with the dynamo exporter or, if it fails, tracing. Returns notes."""
    return export_either(
        export, "the dynamo exporter", lambda: export_traced(module, example, names, path, outputs),
        "the TorchScript exporter", "tracing and the TorchScript exporter",
    )  # fmt: skip


def first_line(error: BaseException) -> str:
    """The first line of a message and the reason from a later line or from the cause."""
    lines = _lines(error)
    text = lines[0] if lines else type(error).__name__
    cause = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    reason = reason_of(cause)
    return text[:300] if reason in text else f"{text[:300]} ({reason})"


def reason_of(error: BaseException) -> str:
    """The line of a message with the reason: the last line that names an error, otherwise the first line."""
    lines = _lines(error)
    named = [line for line in lines if re.match(r"(\w+\.)*\w*(Error|Exception): ", line)]
    return ((named or lines or [type(error).__name__])[-1 if named else 0])[:300]


def _lines(error: BaseException) -> list[str]:
    """The non-empty lines of a message without colour codes."""
    plain = re.sub(r"\x1b\[[\d;]*m", "", str(error))
    return [line.strip() for line in plain.splitlines() if line.strip()]


# ---- the process ----


def run(folder: Path, request: dict[str, Any]) -> dict[str, Any]:
    import torch

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    loaded = load(request["model"], request["kind"])
    target = str(folder / "model.onnx")
    if request["kind"] == "torchscript":
        names, wanted = script_inputs(loaded, request["shapes"])
        module = loaded
    else:
        module = loaded.module()
        names, wanted = program_inputs(loaded)
    samples = request["samples"]
    check_names(samples, names)
    example = tensors_of(names, wanted, samples, 0)
    for number in range(ROUNDS if request["check"] else 1):
        tensors = tensors_of(names, wanted, samples, number)
        save_sample(folder, number, arrays(tensors), results_of(module, names, tensors))
    if request["converted"]:
        export_converted(module, example, target)
        notes = ["by TS2EPConverter and the dynamo exporter"]
    elif request["kind"] == "torchscript":
        notes = export_script(module, example, names, target)
    else:
        notes = traced_otherwise(lambda: export_program(loaded, target), module, example, names, target)
    return {"notes": notes, "runtime": f"PyTorch {torch.__version__}"}


def program_inputs(program: Any) -> tuple[list[str], list[Any]]:
    """The inputs of an exported program, with the lower limit or 2 for free sizes."""
    import torch

    user = set(program.graph_signature.user_inputs)
    names, wanted = [], []
    for node in program.graph.nodes:
        if node.op != "placeholder" or node.name not in user:
            continue
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            raise RefusedError(f"input {node.name!r} is not a tensor", "unsupported")
        names.append(node.name)
        wanted.append((tuple(size_of(size, program) for size in value.shape), str(value.dtype).removeprefix("torch.")))
    return names, wanted


def size_of(size: Any, program: Any) -> int:
    if isinstance(size, int):
        return size
    with contextlib.suppress(Exception):
        limits = program.range_constraints[size.node.expr]
        return max(int(limits.lower), 2) if int(limits.lower) < 1 << 20 else 2
    return 2


if __name__ == "__main__":
    needed = "{name} is not installed, which PyTorch's exporter needs: pip install {name}"
    answer_request(run, needed, summary=first_line)
