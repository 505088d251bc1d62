"""One declaration on every backend that runs here: the same results, however it is loaded and called."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from custom_operators import (
    DOMAIN,
    Everything,
    HardSwishInC,
    HSwish,
    choice_of,
    node,
    save_model,
    swish,
    swish_model,
)
from waiting import together

import infersdk
from infersdk.core.cache import Cache
from infersdk.custom_ops import CustomOp
from infersdk.errors import CustomKernelError

onnx = pytest.importorskip("onnx")

OPERATORS = [HSwish, HardSwishInC]


class Least(CustomOp):
    """y = max(x, least)."""

    domain = DOMAIN
    inputs, outputs = {"x": "float32"}, {"y": "float32"}
    least: float = 0.0

    def shape(self, x: Any) -> Any:
        return x

    def cpu(self, x: Any, y: Any) -> None:
        np.maximum(x, self.least, out=y)


def batch(rows: int, dtype: str = "float32", seed: int = 0) -> Any:
    return (4 * np.random.default_rng(seed).standard_normal((rows, 8))).astype(dtype)


@pytest.mark.parametrize("op", OPERATORS)
def test_any_batch(tmp_path: Path, backend: str, op: Any) -> None:
    path = swish_model(tmp_path / "m.onnx", op, alpha=0.25)
    with infersdk.load(path, backend, custom_ops=[op]) as infer:
        for rows in (1, 7, 3, 0):
            np.testing.assert_allclose(infer(batch(rows))["y"], swish(batch(rows), 0.25), atol=1e-6)


def test_float16(tmp_path: Path, backend: str) -> None:
    path = swish_model(tmp_path / "m.onnx", dtype="float16")
    with infersdk.load(path, backend, custom_ops=[HSwish]) as infer:
        got = infer(batch(3, "float16"))["y"]
        assert got.dtype == np.float16
        np.testing.assert_allclose(got, swish(batch(3, "float16").astype("float32")), rtol=2e-3, atol=2e-3)


def test_attributes_of_every_type_and_several_outputs(tmp_path: Path, backend: str) -> None:
    path = save_model(
        tmp_path / "m.onnx",
        [
            node(Everything, ["x", "i"], ["a", "n"], "given", whole=2, flag=0, factor=0.3, text="ü", wholes=[7],
                 factors=[]),
            node(Everything, ["a", "i"], ["y", "m"], "defaults", whole=1),
        ],
        {"x": ("float32", ["b", 3]), "i": ("int64", ["n"])},
        {"y": ("float32", ["b", 6]), "n": ("int32", ["n"]), "m": ("int32", ["n"])},
    )  # fmt: skip
    x, i = np.random.default_rng(0).standard_normal((2, 3), dtype="float32"), np.arange(4)
    with infersdk.load(path, backend, custom_ops=[Everything]) as infer:
        got = infer({"x": x, "i": i})
    a = np.tile(x * np.float32(0.3), 2) + 7 + 1
    np.testing.assert_allclose(got["y"], a * np.float32(0.1) + 0.6 - 1 + 3, atol=1e-5)
    np.testing.assert_array_equal(got["n"], i)
    np.testing.assert_array_equal(got["m"], i + 1)


def test_attributes_that_are_not_finite(tmp_path: Path, backend: str) -> None:
    """Two nodes of one input, which a runtime may take for one."""
    path = save_model(
        tmp_path / "m.onnx",
        [
            onnx.helper.make_node("Relu", ["x"], ["r"]),
            node(Least, ["r"], ["p"], "low", least=-np.inf), node(Least, ["r"], ["q"], "high", least=np.inf),
            onnx.helper.make_node("Abs", ["p"], ["y"]), onnx.helper.make_node("Abs", ["q"], ["z"]),
        ],
        {"x": ("float32", ["n"])}, {"y": ("float32", ["n"]), "z": ("float32", ["n"])},
    )  # fmt: skip
    with infersdk.load(path, backend, custom_ops=[Least]) as infer:
        found = infer(np.array([1, -2], np.float32))
    np.testing.assert_array_equal(found["y"], [1, 0])
    np.testing.assert_array_equal(found["z"], [np.inf, np.inf])


def test_whole_numbers_for_attributes_of_floats(tmp_path: Path, backend: str) -> None:
    path = save_model(
        tmp_path / "m.onnx",
        [node(Everything, ["x", "i"], ["y", "n"], "given", whole=1, factor=3, factors=[20, 1], wholes=[7])],
        {"x": ("float32", ["b", 3]), "i": ("int64", ["n"])},
        {"y": ("float32", ["b", 3]), "n": ("int32", ["n"])},
    )
    x = np.random.default_rng(0).standard_normal((2, 3), dtype="float32")
    with infersdk.load(path, backend, custom_ops=[Everything]) as infer:
        np.testing.assert_allclose(infer({"x": x, "i": np.arange(4)})["y"], x * 3 + 21 + 7 + 3, atol=1e-5)


def test_two_models_clones_and_threads(tmp_path: Path, backend: str) -> None:
    """Two sessions of one operator with other attributes, a clone for each thread, all at the same time."""
    quarter = infersdk.load(swish_model(tmp_path / "a.onnx", alpha=0.25), backend, custom_ops=[HSwish])
    half = infersdk.load(swish_model(tmp_path / "b.onnx", HardSwishInC, alpha=0.5), backend, custom_ops=[HardSwishInC])

    def work(infer: Any, alpha: float, seed: int) -> None:
        x = batch(2 + seed, seed=seed)
        for _ in range(50):
            np.testing.assert_allclose(infer(x)["y"], swish(x, alpha), atol=1e-6)

    clones = [(model.clone(), alpha, seed) for seed, (model, alpha) in enumerate([(quarter, 0.25), (half, 0.5)] * 2)]
    together(work, clones)
    for infer in (quarter, half, *(clone for clone, _, _ in clones)):
        infer.close()


def test_in_a_pipeline(tmp_path: Path, backend: str) -> None:
    """Bound tensors: no copies, and a batch that changes from run to run."""
    path = swish_model(tmp_path / "m.onnx", HardSwishInC)
    with infersdk.load(path, backend, max_batch=4, custom_ops=[HardSwishInC]) as infer:
        for rows in (4, 1, 3):
            infer.inputs["x"].resize((rows, 8)).numpy(writable=True)[:] = batch(rows)
            infer.forward()
            np.testing.assert_allclose(infer.outputs["y"].numpy(), swish(batch(rows)), atol=1e-6)


def test_openvino_keeps_attributes_in_its_cache(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    path = save_model(
        tmp_path / "m.onnx",
        [node(Everything, ["x", "i"], ["y", "n"], "given", whole=2, flag=0, factor=0.1, text="ab c", wholes=[7, -1])],
        {"x": ("float32", ["b", 3]), "i": ("int64", ["n"])},
        {"y": ("float32", ["b", 6]), "n": ("int32", ["n"])},
    )
    x, i = np.random.default_rng(0).standard_normal((2, 3), dtype="float32"), np.arange(4)
    results = []
    for _ in range(2):
        with infersdk.load(path, "openvino", custom_ops=[Everything], cache_dir=str(tmp_path / "cache")) as infer:
            results.append(infer({"x": x, "i": i}))
        assert len(Cache(tmp_path / "cache").entries()) == 1
    np.testing.assert_array_equal(results[0]["y"], results[1]["y"])
    np.testing.assert_array_equal(results[0]["n"], results[1]["n"])
    np.testing.assert_allclose(results[0]["y"], np.tile(x * np.float32(0.1), 2) + 6 + 4 + 0.6, atol=1e-5)


class HardSwishNext(HSwish):
    name = "HSwish"
    version = 2

    def cpu(self, x: Any, y: Any) -> None:
        y[...] = -1


def test_openvino_compiles_anew_for_another_version(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    path = save_model(
        tmp_path / "m.onnx",
        [node(HSwish, ["x"], ["y"], "swish")],
        {"x": ("float32", ["b", 8])},
        {"y": ("float32", ["b", 8])},
        version=2,
    )
    options = {"cache_dir": str(tmp_path / "cache")}
    for count, op in enumerate((HSwish, HardSwishNext), 1):
        with infersdk.load(path, "openvino", custom_ops=[op], **options) as infer:
            assert (infer(batch(1))["y"] == -1).all() == (op is HardSwishNext)
        assert len(Cache(tmp_path / "cache").entries()) == count


SECOND_PROCESS = """
import sys, infersdk
sys.path.insert(0, sys.argv[2])
from custom_operators import HardSwishInC, swish
import numpy as np
x = np.linspace(-4, 4, 16, dtype="float32").reshape(2, 8)
with infersdk.load(sys.argv[1], "onnxruntime", custom_ops=[HardSwishInC]) as infer:
    assert np.allclose(infer(x)["y"], swish(x), atol=1e-6)
"""


def test_a_second_process_finds_the_compiled_kernel(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    path = swish_model(tmp_path / "m.onnx", HardSwishInC)
    environment = os.environ | {"INFERSDK_CACHE": str(tmp_path / "kernels")}
    command = [sys.executable, "-c", SECOND_PROCESS, str(path), str(Path(__file__).parent.parent)]
    subprocess.run(command, check=True, env=environment)
    assert [entry.kind for entry in Cache(tmp_path / "kernels").entries()].count("kernel") == 1
    # From here on the compiler fails: the second process uses the cache.
    blind = tmp_path / "bin"
    blind.mkdir()
    (blind / "cc").write_text('#!/bin/sh\nif [ "$1" = --version ]; then exec /usr/bin/cc --version; fi\nexit 9\n')
    (blind / "cc").chmod(0o755)
    environment["PATH"] = f"{blind}:{environment['PATH']}"
    subprocess.run(command, check=True, env=environment)


def test_nested_graphs(tmp_path: Path) -> None:
    """A custom operator in the branch of an If."""
    pytest.importorskip("onnxruntime")
    choice = choice_of([node(HSwish, ["x"], ["b"], "inner")])
    path = save_model(
        tmp_path / "m.onnx", [choice], {"x": ("float32", ["n", 8]), "c": ("bool", [])}, {"y": ("float32", ["n", 8])}
    )
    with infersdk.load(path, "onnxruntime", custom_ops=[HSwish]) as infer:
        x = batch(2)
        got = infer({"x": x, "c": np.array(True)})["y"]
        np.testing.assert_allclose(got, x * np.clip(x / 6 + 0.5, 0, 1), atol=1e-6)
        np.testing.assert_array_equal(infer({"x": x, "c": np.array(False)})["y"], -x)


@pytest.mark.parametrize("name", ["Mul", "Identity", "HardSwish"])
def test_the_name_of_a_standard_operator(tmp_path: Path, backend: str, name: str) -> None:
    """ONNX Runtime aborts the process with its own Mul of one input, and removes an Identity."""
    op = type(name, (HSwish,), {})
    with infersdk.load(swish_model(tmp_path / "m.onnx", op), backend, custom_ops=[op]) as infer:
        np.testing.assert_allclose(infer(batch(3))["y"], swish(batch(3)), atol=1e-6)


@pytest.mark.parametrize("is_output", [False, True])
def test_a_failure_names_the_node(tmp_path: Path, backend: str, is_output: bool) -> None:
    """OpenVINO calls a node whose result is an output of the model by the name of that output."""

    class Failing(HSwish):
        name = "HSwish"

        def cpu(self, x: Any, y: Any) -> None:
            raise ValueError("boom \udce9")  # as in a file name that is not UTF-8

    nodes = [node(Failing, ["x"], ["y" if is_output else "a"], "the culprit")]
    if not is_output:
        nodes.append(node(Failing, ["a"], ["y"], "another"))
    path = save_model(tmp_path / "m.onnx", nodes, {"x": ("float32", ["b", 8])}, {"y": ("float32", ["b", 8])})
    named = pytest.raises(CustomKernelError, match="HSwish, node the culprit: its CPU kernel raises .*boom")
    with infersdk.load(path, backend, custom_ops=[Failing]) as infer, named:
        infer(batch(2))
