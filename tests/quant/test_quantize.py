"""Calibration and quantisation of small networks, and all that can be wrong with what they are given."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_models import node, save, value

import infersdk
from infersdk import errors, quant
from infersdk.quant.graph import plan
from infersdk.quant.inputs import batches_of

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


def network(path: Path, *, seed: int = 0, opset: int = 13) -> Path:
    """Two convolutions with a SiLU and a residual, then a decode tail with coordinates and scores in one tensor."""
    rng = np.random.default_rng(seed)
    weights = {
        "w1": rng.normal(size=(8, 3, 3, 3)).astype(np.float32) / 5,
        "b1": rng.normal(size=8).astype(np.float32) / 5,
        "w2": rng.normal(size=(8, 8, 3, 3)).astype(np.float32) / 8,
        "b2": np.zeros(8, np.float32),
        "w3": rng.normal(size=(6, 8, 1, 1)).astype(np.float32) / 3,
        "hundred": np.float32(100).reshape(()),
        "split": np.array([2, 4], np.int64),
    }
    weights["w1"][3] *= 20  # one scale for all channels would not do
    conv = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    nodes = [
        node("Conv", "x w1 b1", "c1", **conv),
        node("Sigmoid", "c1", "s1"),
        node("Mul", "c1 s1", "a1"),
        node("Conv", "a1 w2 b2", "c2", **conv),
        node("Relu", "c2", "r2"),
        node("Add", "a1 r2", "sum"),
        node("Conv", "sum w3", "c3", kernel_shape=[1, 1]),
        node("Sigmoid", "c3", "s3"),
        node("Split", "s3 split", "xy scores", axis=1),
        node("Mul", "xy hundred", "boxes"),
        node("Concat", "boxes scores", "y", axis=1),
    ]
    for index, each in enumerate(nodes):
        each.name = f"{each.op_type}_{index}"
    return save(
        path, nodes, [value("x", ["n", 3, 16, 16])], [value("y", ["n", 6, 16, 16])], weights, opset=opset, ir_version=7
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return network(tmp_path_factory.mktemp("quant") / "net.onnx")


@pytest.fixture(scope="module")
def data() -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(5)
    return [rng.random((4, 3, 16, 16), np.float32) for _ in range(4)]


@pytest.fixture(scope="module")
def table(model: Path, data: list[np.ndarray[Any, Any]]) -> quant.CalibrationTable:
    return quant.calibrate(model, data, method="percentile")


def outputs(path: Path, data: list[np.ndarray[Any, Any]], backend: str = "onnxruntime") -> np.ndarray[Any, Any]:
    with infersdk.load(path, backend) as infer:
        return np.concatenate([infer(x)["y"] for x in data])


# ---- what is quantised ----


def test_the_tail_stays_in_floating_point(model: Path) -> None:
    planned = plan(model)
    operators = Counter(name.split("_")[0] for name in planned.nodes)
    assert planned.layers == ("Conv_0", "Conv_3", "Conv_6")
    assert operators == {"Conv": 3, "Sigmoid": 1, "Mul": 1, "Relu": 1, "Add": 1}
    assert set(planned.activations) == {"x", "c1", "s1", "a1", "c2", "r2", "sum"}
    assert set(plan(model, placement="inputs").activations) == {"x", "a1", "sum"}


def test_the_file_is_what_all_runtimes_take(
    model: Path, table: quant.CalibrationTable, tmp_path: Path, data: list[np.ndarray[Any, Any]]
) -> None:
    made = quant.quantize(model, tmp_path / "q.onnx", table)
    whole = onnx.load(str(made.path))
    onnx.checker.check_model(whole, full_check=True)
    assert {entry.domain for entry in whole.opset_import} == {""}
    arrays = {t.name: onnx.numpy_helper.to_array(t) for t in whole.graph.initializer}
    kinds = Counter()
    for each in whole.graph.node:
        if each.op_type in ("QuantizeLinear", "DequantizeLinear"):
            zero = arrays[each.input[2]]
            assert not zero.any()
            kinds[each.op_type, zero.dtype.name, zero.ndim] += 1
            if each.op_type == "QuantizeLinear":
                assert zero.dtype == np.int8
                scale = float(arrays[each.input[1]])
                assert scale == pytest.approx(table.tensors[each.input[0]].scale, rel=1e-6)
    assert kinds["DequantizeLinear", "int8", 1] == 3  # weights, a scale for each channel
    w1 = next(t for t in arrays if t.startswith("w1") and arrays[t].dtype == np.int8 and arrays[t].ndim == 4)
    scales = next(a for n, a in arrays.items() if n.startswith("w1") and a.dtype == np.float32 and a.ndim == 1)
    original = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(str(model)).graph.initializer}["w1"]
    np.testing.assert_allclose(scales, np.abs(original).max((1, 2, 3)) / 127, rtol=1e-6)
    assert (np.abs(arrays[w1]).max((1, 2, 3)) == 127).all()  # unsaturated
    assert np.abs(arrays[w1] * scales[:, None, None, None] - original).max() <= scales.max() / 2 * 1.001


@pytest.mark.parametrize("placement", ["all", "inputs"])
@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_results_stay_close(
    model: Path,
    table: quant.CalibrationTable,
    data: list[np.ndarray[Any, Any]],
    placement: Any,
    backend: str,
    tmp_path: Path,
) -> None:
    pytest.importorskip(backend)
    made = quant.quantize(model, tmp_path / "q.onnx", table, placement=placement)
    truth, found = outputs(model, data), outputs(made.path, data, backend)
    assert 0 < np.abs(found - truth)[:, :2].mean() < 1.0  # of 100
    assert np.abs(found - truth)[:, 2:].mean() < 0.01  # of 1: the scores survive beside the coordinates
    # The plain graph, one node after another, is what the runtimes' own INT8 kernels have to match.
    with infersdk.load(made.path, graph_optimization="disabled") as infer:
        plain = np.concatenate([infer(x)["y"] for x in data])
    assert np.abs(found - plain)[:, 2:].mean() < 2e-3
    if (backend, placement) == ("onnxruntime", "inputs"):  # it wants 8 bits on both sides of a layer
        with pytest.raises(errors.PrecisionUnavailableError, match="fp32"):
            infersdk.load(made.path, backend, precision="int8")
    else:
        with infersdk.load(made.path, backend, precision="int8") as infer:
            assert infer.precision == "int8"


def test_excluded_nodes_stay(model: Path, table: quant.CalibrationTable, tmp_path: Path) -> None:
    made = quant.quantize(model, tmp_path / "q.onnx", table, exclude=["Conv_3"])
    assert made.layers == ("Conv_0", "Conv_6")
    readers = {n.name: list(n.input) for n in onnx.load(str(made.path)).graph.node}
    assert readers["Conv_3"] == ["a1", "w2", "b2"]
    assert readers["Relu_4"] == ["c2"]  # the activation function goes with its layer
    assert "DequantizeLinear" in readers["Conv_6"][0]
    made = quant.quantize(plan(model), tmp_path / "p.onnx", table, exclude=["Conv_0"])
    readers = {n.name: list(n.input) for n in onnx.load(str(made.path)).graph.node}
    assert (readers["Sigmoid_1"], readers["Mul_2"]) == (["c1"], ["c1", "s1"])
    with pytest.raises(errors.ConfigError, match="no node 'Conv_99'"):
        quant.quantize(model, tmp_path / "q.onnx", table, exclude=["Conv_99"])


def test_older_opsets_are_raised(tmp_path: Path, data: list[np.ndarray[Any, Any]]) -> None:
    old = save(
        tmp_path / "old.onnx",
        [node("Conv", "x w", "c", kernel_shape=[1, 1]), node("Relu", "c", "y")],
        [value("x", ["n", 3, 16, 16])],
        [value("y", ["n", 4, 16, 16])],
        {"w": np.random.default_rng(0).normal(size=(4, 3, 1, 1)).astype(np.float32)},
        opset=10,
        ir_version=6,
    )
    made = quant.quantize(old, tmp_path / "q.onnx", quant.calibrate(old, data, method="minmax"))
    assert onnx.load(str(made.path)).opset_import[0].version >= 13
    np.testing.assert_allclose(outputs(made.path, data), outputs(old, data), atol=0.1)


# ---- calibration ----


@pytest.mark.parametrize("method", ["entropy", "minmax", "percentile"])
def test_methods(model: Path, data: list[np.ndarray[Any, Any]], method: Any) -> None:
    told: list[tuple[str, int]] = []
    found = quant.calibrate(model, data, method=method, progress=lambda *step: told.append(step))
    assert found.samples == 16
    assert found.method == method
    assert [done for step, done in told if step == "ranges"] == [4, 8, 12, 16]
    assert bool([step for step, _ in told if step == "histograms"]) == (method != "minmax")
    whole = np.concatenate(data)
    seen = found.tensors["x"]
    assert (seen.min, seen.max) == (float(whole.min()), float(whole.max()))
    for tensor in found.tensors.values():
        peak = max(-tensor.min, tensor.max)
        assert tensor.threshold == peak if method == "minmax" else 0 < tensor.threshold <= peak * (1 + 1e-6)


def test_ranges_are_those_of_the_activations(model: Path, data: list[np.ndarray[Any, Any]], tmp_path: Path) -> None:
    """Against the same values exposed by hand."""
    import onnxruntime

    whole = onnx.load(str(model))
    whole.graph.output.append(value("a1", ["n", 8, 16, 16]))
    onnx.save(whole, str(tmp_path / "a1.onnx"))
    session = onnxruntime.InferenceSession(str(tmp_path / "a1.onnx"), providers=["CPUExecutionProvider"])
    a1 = np.concatenate([session.run(["a1"], {"x": x})[0] for x in data])
    found = quant.calibrate(model, data, method="minmax").tensors["a1"]
    assert (found.min, found.max) == pytest.approx((float(a1.min()), float(a1.max())), rel=1e-5)


def test_data_in_all_forms(model: Path, data: list[np.ndarray[Any, Any]]) -> None:
    expected = quant.calibrate(model, data).tensors
    assert quant.calibrate(model, [{"x": x, "other": x} for x in data]).tensors == expected
    assert quant.calibrate(model, lambda: iter(data)).tensors == expected
    seen = quant.observe(model, data)
    assert seen.table("entropy").tensors == expected
    assert next(iter(batches_of(data[:1], ["x"])))["x"] is data[0]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda d: d[:1], "4 samples are too few"),
        (lambda d: [], "0 samples are too few"),
        (lambda d: [x * 0 for x in d], "'x' is 0 throughout 16 samples"),
        (lambda d: [*d, np.full_like(d[0], np.nan)], r"'x' has 3072 values of 15360 that are NaN .* samples 17 to 20"),
        (lambda d: [x * np.float32(np.inf) for x in d], "NaN or infinite"),
        (iter, "gone through twice"),
        (lambda d: [x[:, :2] for x in d], "does not fit the model"),
        (lambda d: [x.astype(np.float64) for x in d], "does not fit the model"),
        (lambda d: [{"z": x} for x in d], "nothing for input 'x'"),
    ],
)
def test_bad_data(model: Path, data: list[np.ndarray[Any, Any]], wrong: Any, words: str) -> None:
    with pytest.raises(errors.CalibrationError, match=words):
        quant.calibrate(model, wrong(data))


def test_data_that_differs_the_second_time(model: Path, data: list[np.ndarray[Any, Any]]) -> None:
    turns: Iterator[list[Any]] = iter([data, data[:3]])
    with pytest.raises(errors.CalibrationError, match="16 samples, and 12 when gone through again"):
        quant.calibrate(model, lambda: next(turns))


def test_wrong_settings(model: Path, data: list[np.ndarray[Any, Any]]) -> None:
    with pytest.raises(errors.ConfigError, match="unknown method 'guess'; the methods are entropy, minmax, percentile"):
        quant.calibrate(model, data, method="guess")  # type: ignore[arg-type]
    with pytest.raises(errors.ConfigError, match="percentile"):
        quant.calibrate(model, data, method="percentile", percentile=0)
    with pytest.raises(errors.ConfigError, match="needs histograms"):
        quant.observe(model, data, histograms=False).table("entropy")
    with pytest.raises(errors.ConfigError, match="placement 'none'"):
        plan(model, placement="none")  # type: ignore[arg-type]


def test_models_that_cannot_be_quantised(
    model: Path, table: quant.CalibrationTable, data: list[np.ndarray[Any, Any]], tmp_path: Path
) -> None:
    made = quant.quantize(model, tmp_path / "q.onnx", table)
    with pytest.raises(errors.UnsupportedModelError, match="is quantised already"):
        quant.calibrate(made.path, data)
    half = save(
        tmp_path / "half.onnx",
        [node("MatMul", "x w", "y")],
        [value("x", ["n", 4], "float16")],
        [value("y", ["n", 4], "float16")],
        {"w": np.eye(4, dtype=np.float16)},
    )
    with pytest.raises(errors.UnsupportedModelError, match="is fp16"):
        plan(half)
    bare = save(tmp_path / "bare.onnx", [node("Relu", "x", "y")], [value("x", ["n", 4])], [value("y", ["n", 4])])
    with pytest.raises(errors.UnsupportedModelError, match="no convolution or matrix product"):
        plan(bare)
    (tmp_path / "junk.onnx").write_bytes(b"junk")
    with pytest.raises(errors.ModelFormatError):
        plan(tmp_path / "junk.onnx")
    with pytest.raises(errors.ModelNotFoundError):
        plan(tmp_path / "missing.onnx")


# ---- tables ----


def test_tables_come_back(table: quant.CalibrationTable, model: Path, tmp_path: Path) -> None:
    table.save(tmp_path / "t.json")
    again = quant.CalibrationTable.load(tmp_path / "t.json")
    assert again == table
    first = quant.quantize(model, tmp_path / "a.onnx", table).path.read_bytes()
    assert quant.quantize(model, tmp_path / "b.onnx", again).path.read_bytes() == first
    assert '"percentile"' in (tmp_path / "t.json").read_text()


def test_tables_of_other_models(table: quant.CalibrationTable, tmp_path: Path) -> None:
    other = network(tmp_path / "other.onnx", seed=1)
    with pytest.raises(errors.CalibrationError, match=r"made for net.onnx .* calibrate this model"):
        quant.quantize(other, tmp_path / "q.onnx", table)
    foreign = quant.CalibrationTable(tensors={"z": quant.TensorRange(-1, 1, 1)})
    with pytest.raises(errors.CalibrationError, match="no range for 'x'"):
        quant.quantize(other, tmp_path / "q.onnx", foreign)
    assert not (tmp_path / "q.onnx").exists()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[1]",
        '{"format": "infersdk calibration 2", "tensors": {}}',
        '{"format": "infersdk calibration 1", "tensors": {"x": {"min": 0, "max": 1, "threshold": 0}}}',
        '{"format": "infersdk calibration 1", "tensors": {"x": {"min": 0, "max": 1}}}',
    ],
)
def test_damaged_tables(text: str, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(errors.CalibrationError, match="is no calibration table"):
        quant.CalibrationTable.load(tmp_path / "t.json")
    with pytest.raises(errors.CalibrationError, match="cannot be read"):
        quant.CalibrationTable.load(tmp_path / "none.json")


def test_tensorrt_caches(table: quant.CalibrationTable, model: Path, tmp_path: Path) -> None:
    cache = tmp_path / "net.cache"
    table.save_tensorrt_cache(cache, "101300")
    lines = cache.read_text().splitlines()
    assert lines[0] == "TRT-101300-EntropyCalibration2"
    scale = np.float32(table.tensors["a1"].threshold / 127)
    assert f"a1: {struct.pack('>f', scale).hex()}" in lines
    again = quant.CalibrationTable.load(cache)
    assert again.model == ""
    assert {n: t.threshold for n, t in again.tensors.items()} == pytest.approx(
        {n: t.threshold for n, t in table.tensors.items()}, rel=1e-6
    )
    assert quant.quantize(model, tmp_path / "q.onnx", again).layers == ("Conv_0", "Conv_3", "Conv_6")


def test_a_cache_by_hand(tmp_path: Path) -> None:
    """3c010a14 is the float32 next to 1/127; names may hold colons; leading zeros may be left out."""
    cache = tmp_path / "c"
    cache.write_text("TRT-8601-EntropyCalibration2\nimages: 3c010204\n/a: b/c: 42fe0000\nsmall: 800000\n")
    found = quant.read_tensorrt_cache(cache).tensors
    assert found["images"].threshold == pytest.approx(1, rel=1e-6)
    assert found["/a: b/c"].threshold == 127 * 127
    assert found["small"].scale == pytest.approx(2**-126)
    for text in (
        "images: 3c010a14\n",
        "TRT-8601-EntropyCalibration2\nimages 3c\n",
        "TRT-1-EntropyCalibration2\nx: zz\n",
    ):
        cache.write_text(text)
        with pytest.raises(errors.CalibrationError):
            quant.read_tensorrt_cache(cache)
    for bits in ("00000000", "7fc00000", "bf800000", "7f800000"):
        cache.write_text(f"TRT-8601-EntropyCalibration2\nx: {bits}\n")
        with pytest.raises(errors.CalibrationError, match="line 2: the threshold"):
            quant.read_tensorrt_cache(cache)


# ---- the search ----


def test_the_search_finds_the_layer_that_costs(
    model: Path, table: quant.CalibrationTable, data: list[np.ndarray[Any, Any]]
) -> None:
    # What Conv_0 gives its SiLU has a range that is thousands of times too small: it alone has to be left out.
    tensors = table.tensors | {"c1": quant.TensorRange(-1, 1, 1e-3)}
    broken = quant.CalibrationTable(tensors=tensors)
    assert table.tensors["c1"].threshold > 1
    truth = outputs(model, data)[:, 2:]

    def metric(path: Path) -> float:
        return 100 - 100 * float(np.abs(outputs(path, data)[:, 2:] - truth).mean())

    report = quant.search(model, broken, data, metric, max_drop=1)
    fine = quant.search(model, table, data, metric, max_drop=5)
    assert (fine.exclude, fine.reached, fine.steps[0][0]) == ((), True, 0)
    assert report.baseline == 100
    assert {cost.name for cost in report.layers} == {"Conv_0", "Conv_3", "Conv_6"}
    assert [c.error for c in report.layers] == sorted((c.error for c in report.layers), reverse=True)
    assert report.layers[0].name == "Conv_0"
    assert report.layers[0].error > 10 * report.layers[1].error
    assert report.reached
    assert report.exclude == ("Conv_0",)
    assert [count for count, _ in report.steps] == [0, 1]
    assert report.baseline - report.metric <= 1 < report.baseline - report.steps[0][1]
    with pytest.raises(errors.ConfigError, match="max_drop"):
        quant.search(model, table, data, metric, max_drop=-1)


def test_speed_tells_both(model: Path, table: quant.CalibrationTable, tmp_path: Path, data: Any) -> None:
    made = quant.quantize(model, tmp_path / "q.onnx", table)
    speed = quant.compare_speed(model, made.path, [{"x": data[0]}], runs=3)
    assert speed.fp32 > 0
    assert speed.ratio == pytest.approx(speed.fp32 / speed.int8)
    with pytest.raises(errors.InputError, match="no data"):
        quant.compare_speed(model, made.path, [])
