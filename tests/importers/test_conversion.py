"""Shapes and samples as `convert()` takes them."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import infersdk
from infersdk.errors import ConfigError, InferSDKError
from infersdk.importers import InputShape, convert
from infersdk.importers.conversion import Imported, Reference, Sample, argument, samples_by_name, shapes_of


@pytest.mark.parametrize(
    "given",
    [
        [(1, 3)], (1, 3), "1,3", ["1,3"], [[1, 3]], np.array([1, 3]), [np.array([1, 3])], [InputShape((1, 3))],
        InputShape((1, 3)),
    ],
)  # fmt: skip
def test_forms_of_shapes(given: Any) -> None:
    assert shapes_of(given) == (InputShape((1, 3)),)


def test_shapes_by_name() -> None:
    assert shapes_of({"x": (1, 3), "y": "2:int64"}) == (InputShape((1, 3), "x"), InputShape((2,), "y", "int64"))
    assert shapes_of(["x:0=1,3:int64"]) == (InputShape((1, 3), "x:0", "int64"),)
    assert shapes_of({"scale": ()}) == (InputShape((), "scale"),)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, r"shapes are \[\(1, 3, 224, 224\)\].*not None"),
        ([1.5], r"shapes are .*not \[1.5\]"),
        ([(1, 2.5)], "whole numbers from 1, not"),
        ([(1, True)], "whole numbers from 1, not"),
        ("", "shape '' is not of the form"),
        ("1,,3", "shape '1,,3' is not of the form"),
        ("1,3:object", "'object' is not an element type"),
        (["x=1,4", "x=3,4"], "input 'x' has more than one shape"),
    ],
)
def test_wrong_shapes(given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        shapes_of(given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, r"samples are \{'offsets': \[0, 3, 5\]\}.*not None"),
        ({"x": [[1, 2], [3]]}, r"input 'x' must be an array of one or more numbers, not \[\[1, 2\], \[3\]\]"),
        pytest.param(
            {"x": np.ones(2, np.longdouble)}, "give numbers of up to 64 bits",
            marks=pytest.mark.skipif(np.dtype(np.longdouble).itemsize == 8, reason="a long double has 64 bits"),
        ),
        ({1: [1]}, "the name of an input must be text, not 1"),
        (["x=1", "x=2"], "input 'x' has more than one sample"),
        (["x=300:uint8"], r"uint8 does not hold \[300\]"),
        (["x=-1:uint16"], r"uint16 does not hold \[-1\]"),
        (["x=2:bool"], r"bool does not hold \[2\]"),
        (["x=70000:float16"], r"float16 does not hold \[70000.0\]"),
        (["x=99999999999999999999"], r"int64 does not hold \[99999999999999999999\]"),
    ],
)  # fmt: skip
def test_wrong_samples(given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        samples_by_name(given)


def test_one_sample_as_a_text() -> None:
    (array,) = samples_by_name("x=0,255:uint8").values()
    assert (array.tolist(), array.dtype) == ([0, 255], np.uint8)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        *(
            ("tolerance", value, "a number from 0")
            for value in ("1e-4", None, -1, float("nan"), np.float32("inf"), True)
        ),
        pytest.param("tolerance", 10**400, "a number from 0", id="tolerance-huge"),
        *(("python", value, "the path of a Python interpreter, or None") for value in (3, "", b"python", np.ones(2))),
        *(("inputs", value, r"names such as \['x:0'\]") for value in (None, [1])),
        ("check", "no", "True or False"),
        ("check", np.ones(2), "True or False"),
        ("free_batch", None, "True or False"),
    ],
)
def test_wrong_arguments(name: str, value: Any, message: str, tmp_path: Path) -> None:
    (tmp_path / "net.tflite").write_bytes(b"\x1c\0\0\0TFL3")
    for use in (convert, lambda model, **options: infersdk.load(model, "onnxruntime", convert=options)):
        with pytest.raises(ConfigError, match=f"{name} must be {message}, not"):
            use(tmp_path / "net.tflite", **{name: value})


def test_arguments_become_plain_values() -> None:
    assert argument("tolerance", np.float32(0.5)) == 0.5
    assert argument("python", Path("/usr/bin/python3")) == str(Path("/usr/bin/python3"))
    assert argument("check", np.True_) is True
    assert argument("inputs", "x:0") == ("x:0",)


@pytest.mark.parametrize("free_batch", [True, False])
def test_an_error_in_an_exported_model_names_the_source(
    free_batch: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    wrong = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (float[n] y) { y = Abs(z) }'
    )
    reference = Reference("PyTorch", (Sample([np.ones(1)], [np.ones(1)]),))
    monkeypatch.setattr(
        "infersdk.importers.torch.import_checkpoint", lambda _: Imported(wrong.SerializeToString(), reference)
    )
    with zipfile.ZipFile(tmp_path / "net.pt", "w") as archive:
        archive.writestr("net/data.pkl", b"")
    with pytest.raises(InferSDKError, match=r"net\.pt in ONNX'"):
        convert(tmp_path / "net.pt", free_batch=free_batch)
