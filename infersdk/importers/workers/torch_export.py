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

from .exchange import RefusedError, drawn_arrays, first_line, leaves, reason_of, run_rounds, shapes_by_input

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

OPSET = 18
MISSING = "{name} is not installed, which PyTorch's exporter needs: pip install {name}"


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
    arguments = module.forward.schema.arguments[1:]  # the first one is the module
    needed = sum(not argument.has_default_value() for argument in arguments)
    names, wanted = positional_inputs([argument.name for argument in arguments], needed, shapes)
    for argument, _ in zip(arguments, names, strict=False):
        if str(argument.type) not in ("Tensor", "Optional[Tensor]"):
            raise RefusedError(
                f"input {argument.name!r} has type {argument.type}; only tensors are supported", "unsupported"
            )
    return names, wanted


def positional_inputs(names: list[str], needed: int, shapes: list[dict[str, Any]]) -> tuple[list[str], list[Any]]:
    """The inputs up to the last one that is needed or has a shape: names, shapes and types.

    Args:
        names: of all positional arguments.
        needed: the number of arguments without a default value, which are the first ones.
    """
    last = max(map(names.index, shapes_by_input(names, shapes)), default=-1)
    names = names[: max(needed, last + 1)]
    return names, match_shapes(names, shapes)


def match_shapes(names: list[str], shapes: list[dict[str, Any]]) -> list[Any]:
    """The given shape and type of each input."""
    result = shapes_by_input(names, shapes)
    if len(result) < len(names):
        example = " ".join(f"--shape {name}=1,3,224,224" for name in names)
        what = f"{len(shapes)} shapes are given" if shapes else "the file does not contain the shapes of its inputs"
        raise RefusedError(f"{what}; its inputs are {', '.join(names)}: give a shape for each: {example}", "config")
    return [(tuple(result[name]["sizes"]), result[name]["dtype"] or "float32") for name in names]


def run_module(
    folder: Path, request: dict[str, Any], module: Any, names: list[str], wanted: list[Any], below: int | None = None
) -> tuple[list[Any], list[Any]]:
    """Runs a module on the inputs of each round; returns the inputs of the first one as tensors, and its results.

    Args:
        wanted: the shape and element type of each input.
        below: see `drawn_arrays`.
    """
    import torch

    def run(given: list[Any]) -> list[Any]:
        try:
            with torch.no_grad():
                return arrays(module(*[torch.from_numpy(array).clone() for array in given]))
        except Exception as error:
            sizes = ", ".join(f"{name}={array.shape}" for name, array in zip(names, given, strict=True))
            raise RefusedError(
                f"PyTorch cannot run the model with {sizes}: {reason_of(error)}; if random values are not valid, give "
                f"samples: --input {names[-1]}=0,3,5, or samples={{{names[-1]!r}: [0, 3, 5]}}",
                "config",
            ) from None

    shapes, dtypes = zip(*wanted, strict=True) if wanted else ((), ())
    run_rounds(folder, request, names, shapes, dtypes, run, below)
    example = drawn_arrays(names, shapes, dtypes, request["samples"], 0, below)
    results = run(example)
    if not results:
        raise RefusedError("the model returns no tensors, and an ONNX model needs an output", "unsupported")
    return [torch.from_numpy(array) for array in example], results


def arrays(results: Any) -> list[Any]:
    """The tensors in the results of a module, in order, as arrays."""
    import torch

    return [leaf.detach().cpu().numpy() for leaf in leaves(results) if isinstance(leaf, torch.Tensor)]


# ---- exporting ----


def export_first(*exporters: tuple[str, Callable[[], str | None]]) -> list[str]:
    """Exports with the first exporter that does not fail; returns its note, and its name unless it is the first."""
    failures: list[str] = []
    for name, export in exporters:
        try:
            note = export()
        except Exception as error:
            failures.append(f"{name} fails: {first_line(error)}")
        else:
            return [*([f"by {name}, because {'; '.join(failures)}"] if failures else []), *([note] if note else [])]
    raise RefusedError("; ".join(failures), "unsupported")


def export_traced(
    module: Any, example: list[Any], names: list[str], path: str, outputs: list[str] | None = None
) -> str | None:
    """Exports by tracing. Returns a note if PyTorch reports that the trace depends on the example."""
    import torch

    mode = torch.onnx.TrainingMode.PRESERVE  # the mode of an exported program cannot be set
    with warnings.catch_warnings(record=True) as recorded:
        warnings.simplefilter("always", torch.jit.TracerWarning)
        warnings.filterwarnings("ignore", category=torch.jit.TracerWarning, module=r"torch(\.|$)")  # as PyTorch does
        torch.onnx.export(
            module, tuple(example), path, dynamo=False, opset_version=17, input_names=names, output_names=outputs,
            training=mode,
        )  # fmt: skip
    for one in recorded:
        if issubclass(one.category, torch.jit.TracerWarning):
            return (
                f"a branch or a number may depend on the inputs ({one.filename}:{one.lineno}), and the model has that "
                "of the example: compare it with the source on other inputs"
            )
    return None


def export_converted(module: Any, example: list[Any], names: list[str], path: str) -> None:
    """Exports a script with TS2EPConverter and the dynamo exporter. All sizes are those of the example."""
    from torch._export.converter import TS2EPConverter

    program = TS2EPConverter(module, tuple(example)).convert()  # its sizes are free
    export_dynamo(program.module(), example, names, path)


def export_dynamo(
    module: Any,
    example: list[Any],
    names: list[str] | None,
    path: str,
    outputs: list[str] | None = None,
    free: list[dict[int, None]] | None = None,
) -> None:
    import onnx
    import torch

    torch.onnx.export(
        module, tuple(example), path, dynamo=True, opset_version=OPSET, external_data=False, verbose=False,
        input_names=names, output_names=outputs,
        dynamic_shapes=free and (tuple(dict.fromkeys(axes, torch.export.Dim.DYNAMIC) for axes in free),),
    )  # fmt: skip
    onnx.checker.check_model(path)  # PyTorch 2.13 writes invalid files for modules that return an input


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
        module = positional_module(loaded)
        names, wanted, free = program_inputs(loaded)
    example, _ = run_module(folder, request, module, names, wanted)
    traced = ("the TorchScript exporter", lambda: export_traced(module, example, names, target))
    converted = ("TS2EPConverter with the dynamo exporter", lambda: export_converted(module, example, names, target))
    if request["converted"]:
        notes = [f"by {converted[0]}", *export_first(converted)]
    elif request["kind"] == "torchscript":
        notes = export_first(traced, converted)
    else:
        notes = export_first(("the dynamo exporter", lambda: export_dynamo(loaded, [], None, target)), traced)
        if notes:  # traced
            sizes = dict(zip(names, wanted, strict=True))
            notes += [f"the sizes of input {name} are fixed to {list(sizes[name][0])}" for name in free]
    return {"notes": notes, "runtime": f"PyTorch {torch.__version__}"}


def positional_module(program: Any) -> Any:
    """The module of an exported program, called with the tensors of its inputs in order."""
    import torch
    from torch.export.graph_signature import ConstantArgument, InputKind

    inputs = [one.arg for one in program.graph_signature.input_specs if one.kind is InputKind.USER_INPUT]

    class Module(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.program = program.module()

        def forward(self, *tensors: Any) -> Any:
            left = iter(tensors)
            values = [one.value if isinstance(one, ConstantArgument) else next(left) for one in inputs]
            arguments, named = torch.utils._pytree.tree_unflatten(values, program.call_spec.in_spec)
            return self.program(*arguments, **named)

    return Module()


def program_inputs(program: Any) -> tuple[list[str], list[Any], list[str]]:
    """The inputs of an exported program, with the lower limit or 2 for free sizes.

    Returns:
        Their names, their shapes and types, and the names of those with free sizes behind the first axis.
    """
    import torch

    user = set(program.graph_signature.user_inputs)
    names, wanted, free = [], [], []
    for node in program.graph.nodes:
        if node.op != "placeholder" or node.name not in user:
            continue
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            raise RefusedError(f"input {node.name!r} is not a tensor", "unsupported")
        names.append(node.name)
        wanted.append((tuple(size_of(size, program) for size in value.shape), str(value.dtype).removeprefix("torch.")))
        if not all(isinstance(size, int) for size in value.shape[1:]):
            free.append(node.name)
    return names, wanted, free


def size_of(size: Any, program: Any) -> int:
    if isinstance(size, int):
        return size
    with contextlib.suppress(Exception):
        limits = program.range_constraints[size.node.expr]
        return max(int(limits.lower), 2) if int(limits.lower) < 1 << 20 else 2
    return 2
