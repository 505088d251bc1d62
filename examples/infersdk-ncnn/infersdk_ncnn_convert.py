"""ONNX to ncnn, by pnnx: `convert("model.onnx", "model.param")`.

From the command line: `python -m infersdk_ncnn_convert model.onnx model.param`.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

from infersdk.errors import BackendUnavailableError, UnsupportedModelError
from infersdk.graph.info import onnx_info


def convert(model: Path | str, target: Path | str) -> Path:
    """Writes `target` (.param) and its .bin, with the ONNX names of inputs and outputs, and the shapes of inputs.

    The first dimension is the batch. It is left out, because ncnn has none.

    Raises:
        ModelFormatError: `model` is not an ONNX file.
        UnsupportedModelError: its inputs are not FP32 of fixed shape, a name has blanks, or pnnx cannot convert it.
        BackendUnavailableError: pnnx is not installed.
    """
    model, target = Path(model).resolve(), Path(target)
    info = onnx_info(model)
    for spec in (*info.inputs, *info.outputs):
        if spec.dtype != "float32":
            raise UnsupportedModelError(f"{spec.name!r} of {model.name} is {spec.dtype}; ncnn takes float32")
        if len(spec.name.split()) != 1:
            raise UnsupportedModelError(f"{spec.name!r} of {model.name} is a name with blanks; rename it for ncnn")
    for spec in info.inputs:
        if not 2 <= len(spec.shape) <= 5 or not all(isinstance(d, int) and d > 0 for d in spec.shape[1:]):
            raise UnsupportedModelError(
                f"input {spec.name!r} of {model.name} has shape {spec.text}: all but the batch fixed"
            )
    with tempfile.TemporaryDirectory() as folder:
        param = Path(folder) / "model.ncnn.param"
        shapes = ",".join(f"[{','.join(map(str, (1, *spec.shape[1:])))}]" for spec in info.inputs)
        source = Path(folder) / "model.onnx"
        source.symlink_to(model)
        ran = subprocess.run(
            [pnnx(), source.name, f"inputshape={shapes}", "fp16=0"], cwd=folder, capture_output=True, check=False
        )
        if ran.returncode != 0 or not param.is_file():
            messages = ran.stderr.decode("utf-8", "replace").strip().splitlines()
            raise UnsupportedModelError(
                f"pnnx cannot convert {model.name}: {messages[-1] if messages else ran.returncode}"
            )
        names = {f"in{i}": spec.name for i, spec in enumerate(info.inputs)}
        names |= {f"out{i}": spec.name for i, spec in enumerate(info.outputs)}
        rows = {spec.name: spec.shape[1:] for spec in info.inputs}
        lines = param.read_text("utf-8").splitlines()
        target.write_text("\n".join([*lines[:2], *(renamed(line, names, rows) for line in lines[2:])]) + "\n", "utf-8")
        target.with_suffix(".bin").write_bytes(param.with_suffix(".bin").read_bytes())
    return target


def renamed(line: str, names: dict[str, str], rows: dict[str, tuple[int | str | None, ...]]) -> str:
    """A layer's line with the ONNX names for pnnx's `in0` and `out0`, and in an Input layer the shape of a row."""
    kind, name, inputs, outputs, *rest = line.split()
    count = int(inputs) + int(outputs)
    blobs = [names.get(blob, f"pnnx_{blob}") for blob in rest[:count]]  # pnnx counts: an ONNX name may be a number too
    keys = {1: ("0",), 2: ("1", "0"), 3: ("2", "1", "0"), 4: ("2", "11", "1", "0")}
    pairs = rest[count:]
    if kind == "Input":
        row = rows[blobs[0]]
        pairs = [f"{key}={size}" for key, size in zip(keys[len(row)], row, strict=True)]
    return " ".join([kind, name, inputs, outputs, *blobs, *pairs])


def pnnx() -> str:
    """The path of the converter program. Its Python package would import PyTorch, which is not necessary here."""
    result = importlib.util.find_spec("pnnx")
    if result is None or result.origin is None:
        raise BackendUnavailableError('loading ONNX on ncnn needs pnnx: pip install "infersdk-ncnn[convert]"')
    return str(Path(result.origin).with_name("pnnx.exe" if sys.platform == "win32" else "pnnx"))


if __name__ == "__main__":
    convert(*sys.argv[1:])
