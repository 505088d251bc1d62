"""examples/custom_ops: both run, are short, and give what PyTorch gives."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import infersdk
from infersdk.custom_ops.compiling import compile_cuda, nvcc_path, nvrtc_path

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples" / "custom_ops"


def example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_first_is_short() -> None:
    lines = (EXAMPLES / "hard_swish.py").read_text("utf-8").splitlines()
    assert len([line for line in lines if line.strip()]) <= 40


@pytest.mark.slow
def test_from_pytorch_to_every_backend(tmp_path: Path) -> None:
    for package in ("torch", "onnxscript", "onnxruntime", "openvino"):
        pytest.importorskip(package)
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "hard_swish.py")],
        check=True, capture_output=True, text=True, cwd=tmp_path,
    )  # fmt: skip
    found = dict(line.split(" differs from PyTorch by ") for line in done.stdout.splitlines() if " differs " in line)
    assert found.keys() == {"onnxruntime", "openvino"}
    assert all(float(difference) <= 1e-6 for difference in found.values())
    # The same model with the kernel in C.
    x = np.random.default_rng(0).standard_normal((5, 8), dtype="float32")
    want = np.maximum(x, 0) * np.clip(0.2 * np.maximum(x, 0) + 0.5, 0, 1)
    for backend in found:
        with infersdk.load(
            tmp_path / "hard_swish.onnx", backend, custom_ops=[example("hard_swish_native").HardSwish]
        ) as infer:
            (y,) = infer(x).values()
            np.testing.assert_allclose(y, want, atol=1e-6)

    ran = subprocess.run(
        [sys.executable, str(EXAMPLES / "hard_swish_native.py")],
        check=True, capture_output=True, text=True, cwd=tmp_path,
    )  # fmt: skip
    lines = dict(line.split(" ", 1) for line in ran.stdout.splitlines())
    assert lines.keys() >= {"onnxruntime", "openvino", "tensorrt", "tensorrt-rtx"}
    for line in lines.values():
        assert "is not available" in line or float(line.rpartition(" ")[2]) <= 1e-6, line


def test_the_cuda_kernel_compiles() -> None:
    if nvrtc_path() is None and nvcc_path() is None:
        pytest.skip("no CUDA compiler here")
    op = example("hard_swish_native").HardSwish
    assert compile_cuda(op.cuda, {"T": "float32"}, "9.0", op.title())[:4] == b"\x7fELF"
