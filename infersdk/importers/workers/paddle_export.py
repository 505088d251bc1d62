"""Converts PaddlePaddle models to ONNX with paddle2onnx, and runs them on random inputs.

The folder contains `model.pdmodel` or `model.json`, and `model.pdiparams` if the model has weights.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import warnings
from collections import Counter
from typing import TYPE_CHECKING, Any

from .exchange import FreeSizesError, RefusedError, full_sizes, onnx_inputs, reason_of, run_rounds

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OPSET = 17
MISSING = '{name} is not installed: pip install "infersdk[paddle]"'
#: Operators that access files, other processes, or Python functions.
REACHING = re.compile(
    r"py_func|py_layer|run_program|save(_combine)?(_func)?|load(_combine)?(_func)?|.*read(er)?_?file.*|print"
    r"|(c|partial)_(send|recv|allreduce|allgather|broadcast|comm).*|send.*|recv.*|listen_and_serv|distributed.*"
)
#: Operators that paddle2onnx supports but does not list.
STRUCTURE = frozenset({"data", "feed", "fetch", "if", "while", "yield", "parameter", "shadow_output", "constant"})

#: Operators whose 64-bit attributes paddle2onnx reads.
FILLING = ("full", "assign_value")


class Model:
    """A model, loaded by PaddlePaddle but not run."""

    def __init__(self, folder: Path) -> None:
        import paddle

        paddle.enable_static()
        self.old = (folder / "model.pdmodel").exists()
        self.executor = paddle.static.Executor(paddle.CPUPlace())
        try:
            with self.guard():
                self.program, self.inputs, self.outputs = paddle.static.load_inference_model(
                    str(folder / "model"), self.executor
                )
        except Exception as error:
            text = f"PaddlePaddle {paddle.__version__} cannot load the file: {reason_of(error)}"
            raise RefusedError(text, "format") from None
        self.refuse_reaching()
        try:
            self.current = paddle.pir.translate_to_pir(self.program.desc) if self.old else self.program
        except Exception as error:
            text = f"PaddlePaddle {paddle.__version__} cannot translate it: {reason_of(error)}"
            raise RefusedError(text, "unsupported") from None

    def refuse_reaching(self) -> None:
        """Raises RefusedError for a model with operators that access external resources."""
        if self.old:
            names = {operator.type for block in self.program.blocks for operator in block.ops}
        else:
            names = {name.rpartition(".")[2] for name in operator_names(self.program.global_block())}
        reaching = sorted(name for name in names if REACHING.fullmatch(name.rstrip("_")))
        if reaching:
            raise RefusedError(
                f"the model has operators that access external resources: {', '.join(reaching)}", "unsupported"
            )

    def guard(self) -> Any:
        """A context for programs of the old representation."""
        import paddle

        return paddle.pir_utils.OldIrGuard() if self.old else contextlib.nullcontext()

    def operators(self) -> Counter[str]:
        """The number of occurrences of each operator, including nested blocks."""
        return Counter(name.rpartition(".")[2] for name in operator_names(self.current.global_block()))

    def shapes(self) -> dict[str, list[int]]:
        """The shape of each input; a free size is -1."""
        block = self.program.global_block()
        with self.guard():
            if self.old:
                return {name: list(block.var(name).shape) for name in self.inputs}
            data = {one.attrs()["name"]: one for one in block.ops if one.name() in ("pd_op.data", "pd_op.feed")}
            return {name: list(data[name].results()[0].shape) for name in self.inputs}

    def run(self, arrays: dict[str, Any]) -> list[Any]:
        with self.guard():
            return list(self.executor.run(self.program, feed=arrays, fetch_list=self.outputs))


def operator_names(block: Any) -> Iterator[str]:
    for operator in block.ops:
        yield operator.name()
        for inner in operator.blocks():
            yield from operator_names(inner)


def unsupported(operators: Counter[str]) -> Counter[str]:
    """The operators that paddle2onnx does not list under any of their names."""
    from paddle2onnx.paddle2onnx_cpp2py_export import get_all_supported_operators_pir

    older: dict[str, set[str]] = {}
    with contextlib.suppress(ImportError):
        from paddle.incubate.autograd.phi_ops_map import op_map

        for name, entry in op_map.items():
            older.setdefault(entry.get("phi_name", name), set()).add(name)
    known = {name.rstrip("_") for name in get_all_supported_operators_pir()}
    plain = {name: name.rstrip("_") for name in operators}
    return Counter(
        {
            plain[name]: count
            for name, count in operators.items()
            if plain[name] not in STRUCTURE and not known & {plain[name], *older.get(plain[name], ())}
        }
    )


def run(folder: Path, request: dict[str, Any]) -> dict[str, Any]:
    warnings.simplefilter("ignore")
    os.environ["FLAGS_enable_pir_api"] = "1"  # noqa: SIM112 - PaddlePaddle's name
    import paddle
    import paddle2onnx

    paddle.disable_signal_handler()
    model = Model(folder)
    operators = model.operators()
    refusal = {"error": aborted(operators), "kind": "unsupported"}
    (folder / "answer.json").write_text(json.dumps(refusal))  # paddle2onnx may end the process
    path, weights = folder / "model.json", folder / "model.pdiparams"
    if model.old:
        paddle2onnx.load_parameter(model.current)
        paddle2onnx.save_program(model.current, str(folder / "translated"))
        path, weights = folder / "translated.json", folder / "translated.pdiparams"
    program = json.loads(path.read_bytes())
    shorten_numbers(program)
    path = folder / "shortened.json"
    path.write_text(json.dumps(program))
    (folder / "model.onnx").write_bytes(by_paddle2onnx(path, weights))
    check(folder / "model.onnx")
    return {"runtime": f"PaddlePaddle {paddle.__version__}", "unchecked": run_source(folder, model, request)}


def run_source(folder: Path, model: Model, request: dict[str, Any]) -> str:
    """Runs the model on random inputs; returns the reason if this is not possible."""
    import onnx

    shapes = model.shapes()
    inputs = list(shapes)
    dtypes = [
        onnx.helper.tensor_dtype_to_np_dtype(one.type.tensor_type.elem_type)
        for one in onnx_inputs(folder / "model.onnx")[0]
    ]
    try:
        known = [[size if size > 0 else None for size in shape] for shape in shapes.values()]
        sizes = full_sizes(inputs, known, dtypes, request["shapes"])
    except FreeSizesError as error:
        return error.message
    try:
        run_rounds(
            folder, request, inputs, sizes, dtypes, lambda arrays: model.run(dict(zip(inputs, arrays, strict=True)))
        )
    except RefusedError:
        raise
    except Exception as error:
        given = ", ".join(f"{name}={shape}" for name, shape in zip(inputs, sizes, strict=True))
        return f"PaddlePaddle cannot run the model with {given}: {reason_of(error)}"
    return ""


def aborted(operators: Counter[str]) -> str:
    missing = unsupported(operators)
    listed = ", ".join(f"{name} ({count})" for name, count in sorted((missing or operators).items()))
    if missing:
        return f"paddle2onnx: {len(missing)} kinds of operators are not supported: {listed}"
    return f"paddle2onnx ended the process, probably because of one of these operators: {listed}"


def shorten_numbers(value: Any, kind: str = "") -> None:
    """Converts floating-point attributes to 32 bits.

    PaddlePaddle 3.1 and later write 64-bit attributes for many operators. paddle2onnx 2.1 ignores these and uses the
    defaults instead, for example for the slope of LeakyReLU and the value of padding.
    """
    if isinstance(value, list):
        for inner in value:
            shorten_numbers(inner, kind)
    elif isinstance(value, dict):
        if value.get("#") == "0.a_f64" and not kind.startswith(FILLING):
            value["#"] = "0.a_f32"
        if "A" in value and "I" in value:  # an operator, with its attributes and inputs
            kind = str(value.get("#")).rpartition(".")[2]
        for inner in value.values():
            shorten_numbers(inner, kind)


def by_paddle2onnx(path: Path, weights: Path) -> bytes:
    import paddle2onnx
    import paddle2onnx.convert

    errors: list[str] = []
    paddle2onnx.convert.logging.error = lambda message: errors.append(str(message))
    try:
        content = paddle2onnx.export(str(path), str(weights), None, opset_version=OPSET, enable_onnx_checker=True)
    except (Exception, SystemExit) as error:
        raise RefusedError(f"paddle2onnx fails: {(errors or [reason_of(error)])[0][:400]}", "unsupported") from None
    if not isinstance(content, bytes) or not content:
        raise RefusedError("paddle2onnx returned no model", "unsupported")
    return content


def check(path: Path) -> None:
    """Validates the model, since paddle2onnx returns it even if its own check fails."""
    import onnx

    try:
        onnx.checker.check_model(str(path))
    except Exception as error:
        raise RefusedError(
            f"paddle2onnx returned a model that is not valid: {reason_of(error)}", "unsupported"
        ) from None
