"""The models of `serve_models` as a repository of Triton's python backend: the same names, shapes and arithmetic."""

from __future__ import annotations

from pathlib import Path

import serve_models

_ARITHMETIC = """
import numpy as np
import triton_python_backend_utils as pb
class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            a, b = (pb.get_input_tensor_by_name(request, name).as_numpy() for name in ("INPUT0", "INPUT1"))
            text = a.dtype == object
            if text:
                a, b = a.astype(np.bytes_).astype(np.int32), b.astype(np.bytes_).astype(np.int32)
            outputs = [a + b, a - b]
            if text:
                outputs = [np.array([str(v).encode() for v in x.reshape(-1)], object).reshape(x.shape) for x in outputs]
            tensors = [pb.Tensor(f"OUTPUT{i}", x) for i, x in enumerate(outputs)]
            answers.append(pb.InferenceResponse(tensors))
        return answers
"""
_IDENTITY = """
import triton_python_backend_utils as pb
class TritonPythonModel:
    def execute(self, requests):
        return [pb.InferenceResponse([pb.Tensor("OUTPUT0", pb.get_input_tensor_by_name(r, "INPUT0").as_numpy())])
                for r in requests]
"""


def write(folder: Path) -> Path:
    """Writes the repository; returns its folder."""
    for name, kind in (("simple", "INT32"), ("simple_int8", "INT8"), ("simple_string", "STRING")):
        _model(folder, name, _ARITHMETIC, kind, [16], 8, ["INPUT0", "INPUT1"], ["OUTPUT0", "OUTPUT1"])
    _model(folder, "simple_identity", _IDENTITY, "STRING", [-1], 8)
    for datatype in serve_models.KINDS:
        if datatype != "BYTES":
            _model(folder, f"identity_{datatype}", _IDENTITY, datatype, [4], 8)
    _model(folder, "free", _IDENTITY, "FP32", [-1, -1], 0)
    _model(folder, "echo", _IDENTITY, "UINT8", [640, 640, 3], 4)
    return folder


def _model(
    folder: Path, name: str, code: str, kind: str, dims: list[int], batch: int,
    inputs: list[str] | None = None, outputs: list[str] | None = None,
) -> None:  # fmt: skip
    def tensors(side: str, names: list[str]) -> str:
        each = ", ".join(f'{{ name: "{one}" data_type: TYPE_{kind} dims: {dims} }}' for one in names)
        return f"{side} [ {each} ]\n"

    path = folder / name
    (path / "1").mkdir(parents=True)
    (path / "1" / "model.py").write_text(code)
    (path / "config.pbtxt").write_text(
        f'backend: "python"\nmax_batch_size: {batch}\n'
        + tensors("input", inputs or ["INPUT0"])
        + tensors("output", outputs or ["OUTPUT0"])
    )
