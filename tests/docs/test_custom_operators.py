"""The code of docs/custom-operators.md, as it stands there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from docs.page_code import DOCS, ROOT, blocks

import infersdk
from infersdk import custom_ops


def model(path: Path, op: Any, inputs: str) -> None:
    from onnx_models import node, save, value

    info = [value(name, ["n" + name, 8]) for name in [*inputs.split(), "y"]]
    save(path, [node(op.name, inputs, "y", domain=op.domain)], info[:-1], info[-1:], domains={op.domain: 1})


def test_the_pages_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": __name__}
    declaration, loading, shapes = (one.code for one in blocks("custom-operators.md") if one.language == "python")
    exec(declaration, names)
    model(tmp_path / "model.onnx", names["HardSwish"], "x")
    exec(loading, names)
    np.testing.assert_array_equal(names["y"], np.full((2, 8), 9))
    exec(shapes, names)
    model(tmp_path / "other.onnx", names["EveryOther"], "a b")
    for backend in ("onnxruntime", "openvino"):
        pytest.importorskip(backend)
        with infersdk.load("other.onnx", backend, custom_ops=[names["EveryOther"]]) as infer:
            a, b = np.zeros((3, 8), "float32"), np.ones((4, 8), "float32")
            np.testing.assert_array_equal(infer({"a": a, "b": b})["y"][:, 0], [0, 0, 1, 1])


def test_what_the_page_names_is_there() -> None:
    page = (DOCS / "custom-operators.md").read_text("utf-8")
    for name in ("torch_operator", "translation_table", "opset_versions", "register", "include_folder", "CFunction",
                 "CSource", "CudaSource"):  # fmt: skip
        assert name in page
        assert hasattr(custom_ops, name)
    assert (ROOT / "docs" / "custom-operators.svg").is_file()
    assert "hard_swish_native.py" in page
    assert (ROOT / "examples" / "custom_ops" / "hard_swish_native.py").is_file()
