"""Calibration and quantisation of small networks, and all that can be wrong with what they are given."""

from __future__ import annotations

import struct
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from int8_processors import needs_exact_int8
from onnx_models import node, numbered, run, save, save_text, value

import infersdk
from infersdk import errors, quant
from infersdk.accuracy import Agreement
from infersdk.data import CLASSIFIER, CLASSIFIER_SETTINGS
from infersdk.graph.quantization import QuantizationRecord
from infersdk.models import Classifier
from infersdk.quant.observe import batches_of

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.filterwarnings("ignore:.*it was quantised for")


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
        node("Conv", "x w1 b1", "c1", **conv), node("Sigmoid", "c1", "s1"), node("Mul", "c1 s1", "a1"),
        node("Conv", "a1 w2 b2", "c2", **conv), node("Relu", "c2", "r2"), node("Add", "a1 r2", "sum"),
        node("Conv", "sum w3", "c3", kernel_shape=[1, 1]), node("Sigmoid", "c3", "s3"),
        node("Split", "s3 split", "xy scores", axis=1), node("Mul", "xy hundred", "boxes"),
        node("Concat", "boxes scores", "y", axis=1),
    ]  # fmt: skip
    ends = [value("x", ["n", 3, 16, 16])], [value("y", ["n", 6, 16, 16])]
    return save(path, numbered(nodes), *ends, weights, opset=opset, ir_version=7)


def observed(model: Path, data: Any, target: str = "portable") -> quant.Observations:
    return quant.Observer(model, quant.plan(model, target)).observe(data)


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
    planned = quant.plan(model)
    operators = Counter(name.split("_")[0] for name in planned.nodes)
    assert planned.layers == ("Conv_0", "Conv_3", "Conv_6")
    assert operators == {"Conv": 3, "Sigmoid": 1, "Mul": 1, "Relu": 1, "Add": 1}
    assert set(planned.points) == {"x", "c1", "s1", "a1", "c2", "r2", "sum"}
    assert "s1" not in planned.activations  # a sigmoid has its range by itself


def test_each_target_has_its_points(model: Path) -> None:
    openvino, tensorrt, ort = (quant.plan(model, target) for target in ("openvino", "tensorrt", "onnxruntime"))
    assert set(openvino.points) == set(tensorrt.points) == {"x", "a1", "sum"}
    assert openvino.layers == tensorrt.layers == ("Conv_0", "Conv_3", "Conv_6")
    # ONNX Runtime: the layer whose result stays in floating point is computed so. The ReLU is part of the codes of the
    # layer before it. All sum up few products; where no layer would be left, that does not count.
    assert ort.layers == ("Conv_0", "Conv_3")
    assert list(ort.left) == ["Conv_6"]
    assert set(ort.points) >= {"a1", "r2"}
    assert "c2" not in ort.points
    with pytest.raises(errors.UnsupportedModelError, match="tensorrt-rtx computes Conv in floating point"):
        quant.plan(model, "tensorrt-rtx")
    with pytest.raises(errors.ConfigError, match="unknown target 'gpu'; use one of onnxruntime, openvino"):
        quant.plan(model, "gpu")


def arrays_of(path: Path) -> tuple[Any, dict[str, np.ndarray[Any, Any]]]:
    whole = onnx.load(str(path))
    onnx.checker.check_model(whole, full_check=True)
    return whole, {t.name: onnx.numpy_helper.to_array(t) for t in whole.graph.initializer}


@pytest.mark.parametrize("target", ["portable", "tensorrt", "openvino"])
def test_the_file_is_what_the_runtime_takes(
    model: Path, table: quant.CalibrationTable, tmp_path: Path, target: str
) -> None:
    made = quant.quantize(model, tmp_path / "q.onnx", table, target=target)
    whole, arrays = arrays_of(made.path)
    assert {entry.domain for entry in whole.opset_import} == {""}
    kinds = Counter()
    for each in whole.graph.node:
        if each.op_type in ("QuantizeLinear", "DequantizeLinear"):
            zero = arrays[each.input[2]]
            kinds[each.op_type, zero.dtype.name, zero.ndim] += 1
        if each.op_type == "QuantizeLinear":
            scale, seen = float(arrays[each.input[1]]), table.tensors.get(each.input[0])
            if target == "openvino":
                assert zero.dtype == np.uint8
                assert scale == pytest.approx((seen.high - seen.low) / 255, rel=1e-6)
                assert int(zero) == pytest.approx(-seen.low / scale, abs=0.51)
            else:
                assert (zero.dtype, int(zero)) == (np.int8, 0)
                assert scale == pytest.approx(seen.scale if seen else 1 / 127, rel=1e-6)
    assert kinds["DequantizeLinear", "int8", 1] == 3  # weights, a scale for each channel
    codes, scales = arrays["Conv_0_weight"], arrays["Conv_0_weight_scale"]
    original = arrays_of(model)[1]["w1"]
    np.testing.assert_allclose(scales, np.abs(original).max((1, 2, 3)) / 127, rtol=1e-6)
    assert (np.abs(codes).max((1, 2, 3)) == 127).all()  # unsaturated
    assert np.abs(codes * scales[:, None, None, None] - original).max() <= scales.max() / 2 * 1.001


def test_the_record_in_the_file(model: Path, table: quant.CalibrationTable, tmp_path: Path) -> None:
    made = quant.quantize(model, tmp_path / "q.onnx", table, target="openvino", exclude=["Conv_3"])
    with infersdk.load(made.path, "onnxruntime", graph_optimization="disabled") as infer:
        found = QuantizationRecord.read(infer.metadata)
    assert found == made.record
    assert (found.target, found.method, found.samples) == ("openvino", "percentile", 16)
    assert (found.layers, found.floating, found.bias_correction) == (2, 1, True)
    assert found.warning("openvino") is None
    assert "--target onnxruntime" in (found.warning("onnxruntime") or "")
    assert "--target tensorrt-rtx" in (found.warning("tensorrt-rtx") or "")
    assert found.warning("ncnn") is None


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_a_file_for_another_backend_loads_with_a_warning(
    model: Path, table: quant.CalibrationTable, tmp_path: Path, backend: str
) -> None:
    pytest.importorskip(backend)
    other = "openvino" if backend == "onnxruntime" else "onnxruntime"
    made = {
        target: quant.quantize(model, tmp_path / f"{target}.onnx", table, target=target) for target in (backend, other)
    }
    with pytest.warns(RuntimeWarning, match=f"{other}.onnx: it was quantised for {other} .* --target {backend}"):
        infersdk.load(made[other].path, backend).close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        infersdk.load(made[backend].path, backend).close()


def test_biases_make_up_for_rounded_weights(
    model: Path, table: quant.CalibrationTable, tmp_path: Path, data: list[np.ndarray[Any, Any]]
) -> None:
    """The mean of what a layer computes with rounded weights is nearer to that with the weights as they are."""

    def mean_of_c2(path: Path) -> np.ndarray[Any, Any]:
        whole = onnx.load(str(path))
        for each in list(whole.graph.node):  # activations as they are: only the weights are rounded
            if each.op_type.endswith("tizeLinear") and not each.name.endswith("_weight_dequantized"):
                each.op_type = "Identity"
                del each.input[1:]
        del whole.graph.value_info[:]
        name = next(each.output[0] for each in whole.graph.node if each.name == "Conv_3")
        whole.graph.output.append(value(name, ["n", 8, 16, 16]))
        found = [run(whole.SerializeToString(), x)[-1] for x in data]
        return np.concatenate(found)[:, :, 1:-1, 1:-1].mean((0, 2, 3))

    truth = mean_of_c2(model)
    errors_of = [
        np.abs(mean_of_c2(quant.quantize(model, tmp_path / "q.onnx", table, bias_correction=on).path) - truth).mean()
        for on in (False, True)
    ]
    assert errors_of[1] < 0.5 * errors_of[0]


@pytest.mark.parametrize(("shape", "corrected"), [((8,), True), ((1, 8), True), ((8, 1), False), ((8, 8), False)])
def test_biases_of_matrix_products(shape: tuple[int, ...], corrected: bool, tmp_path: Path) -> None:
    rng, path = np.random.default_rng(6), tmp_path / "m.onnx"
    weights = {"w": rng.normal(size=(4, 8)).astype(np.float32), "b": rng.normal(size=shape).astype(np.float32)}
    save(path, [node("Gemm", "x w b", "y", name="a")], [value("x", [8, 4])], [value("y", [8, 8])], weights)
    data = [rng.random((8, 4), np.float32) for _ in range(2)]
    result = quant.quantize(path, tmp_path / "q.onnx", observed(path, data, "openvino").table(), target="openvino")
    assert result.record.bias_correction == corrected
    wanted = outputs(path, data)
    assert np.abs(outputs(result.path, data) - wanted).max() < 0.03 * np.abs(wanted).max()


@needs_exact_int8
@pytest.mark.parametrize("target", ["portable", "onnxruntime", "openvino", "tensorrt"])
@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_results_stay_close(
    model: Path,
    table: quant.CalibrationTable,
    data: list[np.ndarray[Any, Any]],
    target: str,
    backend: str,
    tmp_path: Path,
) -> None:
    pytest.importorskip(backend)
    made = quant.quantize(model, tmp_path / "q.onnx", table, target=target)
    truth, found = outputs(model, data), outputs(made.path, data, backend)
    assert 0 < np.abs(found - truth)[:, :2].mean() < 1.0  # of 100
    assert np.abs(found - truth)[:, 2:].mean() < 0.01  # of 1: the scores survive beside the coordinates
    # The plain graph, one node after another, is what the runtimes' own INT8 kernels have to match.
    with infersdk.load(made.path, graph_optimization="disabled") as infer:
        plain = np.concatenate([infer(x)["y"] for x in data])
    assert np.abs(found - plain)[:, 2:].mean() < 2e-3
    if (backend, target) in (("onnxruntime", "openvino"), ("onnxruntime", "tensorrt")):
        with pytest.raises(errors.PrecisionUnavailableError, match="fp32"):
            infersdk.load(made.path, backend, precision="int8")
    elif target in ("portable", backend) and len(made.layers) > 1:
        with infersdk.load(made.path, backend, precision="int8") as infer:
            assert infer.precision == "int8"


@needs_exact_int8
@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_a_channel_without_weights_keeps_its_bias(backend: str, tmp_path: Path) -> None:
    """ONNX Runtime stores biases in 32 bits. The names are those that the quantiser would take."""
    rng, path = np.random.default_rng(3), tmp_path / "m.onnx"
    weights = rng.normal(size=(2, 4, 4, 3, 3)).astype(np.float32)
    biases = rng.normal(size=4).astype(np.float32)
    weights[0, 1:3], biases[1:3] = weights[0, 1:3] * [[[[0]]], [[[1e-6]]]], 9
    save(
        path,
        [node("Conv", "x a_weight x_scale", "t", name="a"), node("Relu", "t", "r"), node("Conv", "r b", "y")],
        [value("x", ["n", 4, 8, 8])], [value("y", ["n", 4, 4, 4])],
        {"a_weight": weights[0], "x_scale": biases, "b": weights[1]},
    )  # fmt: skip
    data = [rng.normal(size=(1, 4, 8, 8)).astype(np.float32) for _ in range(8)]
    table = observed(path, data).table()
    result = quant.quantize(path, tmp_path / "q.onnx", table)
    wanted = outputs(path, data)
    assert np.abs(outputs(result.path, data, backend) - wanted).max() < 0.05 * np.abs(wanted).max()


def test_the_model_stays(model: Path, table: quant.CalibrationTable) -> None:
    before = model.read_bytes()
    with pytest.raises(errors.ConfigError, match="is the model itself; write to another file"):
        quant.quantize(model, model, table)
    assert model.read_bytes() == before


def test_excluded_nodes_stay(model: Path, table: quant.CalibrationTable, tmp_path: Path) -> None:
    made = quant.quantize(model, tmp_path / "q.onnx", table, exclude=["Conv_3"])
    assert made.layers == ("Conv_0", "Conv_6")
    readers = {n.name: list(n.input) for n in onnx.load(str(made.path)).graph.node}
    assert readers["Conv_3"] == ["a1_dequantized_output", "w2", "b2"]  # the sum takes a1 in 8 bits
    assert readers["Relu_4"] == ["c2"]  # the activation function goes with its layer
    assert readers["Conv_6"][:2] == ["sum_dequantized_output", "Conv_6_weight_dequantized_output"]
    made = quant.quantize(quant.plan(model), tmp_path / "p.onnx", table, exclude=["Conv_0"])
    readers = {n.name: list(n.input) for n in onnx.load(str(made.path)).graph.node}
    assert (readers["Sigmoid_1"], readers["Mul_2"]) == (["c1"], ["c1", "s1"])
    with pytest.raises(errors.ConfigError, match="no node 'Conv_99'"):
        quant.quantize(model, tmp_path / "q.onnx", table, exclude=["Conv_99"])


def test_older_opsets_are_raised(tmp_path: Path, data: list[np.ndarray[Any, Any]]) -> None:
    graph = "(float[n,3,16,16] x) => (float[n,4,16,16] y) { c = Conv<kernel_shape=[1,1]>(x, w) y = Relu(c) }"
    weights = {"w": np.random.default_rng(0).normal(size=(4, 3, 1, 1)).astype(np.float32)}
    old = save_text(tmp_path / "old.onnx", graph, weights, opset=10, ir_version=6)
    made = quant.quantize(old, tmp_path / "q.onnx", quant.calibrate(old, data, method="minmax"))
    assert onnx.load(str(made.path)).opset_import[0].version >= 13
    np.testing.assert_allclose(outputs(made.path, data), outputs(old, data), atol=0.1)


# ---- calibration ----


@pytest.mark.parametrize("method", ["mse", "entropy", "minmax", "percentile"])
def test_methods(model: Path, data: list[np.ndarray[Any, Any]], method: Any) -> None:
    reported: list[int] = []
    found = quant.calibrate(model, data, method=method, progress=reported.append)
    assert found.samples == 16
    assert found.method == method
    assert reported == [4, 8, 12, 16]  # one pass
    whole = np.concatenate(data)
    seen = found.tensors["x"]
    assert (seen.min, seen.max) == (float(whole.min()), float(whole.max()))
    np.testing.assert_allclose(seen.mean, whole.mean((0, 2, 3)), rtol=1e-4)
    for name, tensor in found.tensors.items():
        peak = max(-tensor.min, tensor.max)
        assert tensor.threshold == peak if method == "minmax" else 0 < tensor.threshold <= peak * (1 + 1e-6)
        assert tensor.low <= 0 <= tensor.high
        if method == "minmax":
            assert (tensor.low, tensor.high) == pytest.approx((min(tensor.min, 0), max(tensor.max, 0)), rel=1e-3), name


def test_ranges_are_those_of_the_activations(model: Path, data: list[np.ndarray[Any, Any]], tmp_path: Path) -> None:
    """Against the same values exposed by hand."""
    whole = onnx.load(str(model))
    whole.graph.output.append(value("a1", ["n", 8, 16, 16]))
    a1 = np.concatenate([run(whole.SerializeToString(), x)[-1] for x in data])
    found = quant.calibrate(model, data, method="minmax").tensors["a1"]
    assert found.max == pytest.approx(float(a1.max()), rel=1e-5)
    assert found.min == pytest.approx(float(a1.min()), rel=1e-5)
    np.testing.assert_allclose(found.mean, a1.mean((0, 2, 3)), rtol=1e-4, atol=1e-6)


def test_means_are_those_of_channels_where_a_product_of_matrices_reads_the_value_too(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    graph = """(float[n,4,10] x) => (float[n,8,10] yy, float[n,4,6] zz)
        { r = Relu(x) y = Conv(r, k) z = MatMul(r, w) yy = Relu(y) zz = Relu(z) }"""
    weights = {"k": rng.normal(size=(8, 4, 1)).astype(np.float32), "w": rng.normal(size=(10, 6)).astype(np.float32)}
    path = save_text(tmp_path / "mixer.onnx", graph, weights)
    data = [rng.normal(size=(4, 4, 10)).astype(np.float32) for _ in range(4)]
    means = quant.calibrate(path, data).tensors["r"].mean
    np.testing.assert_allclose(means, np.maximum(np.concatenate(data), 0).mean((0, 2)), rtol=1e-4)


def test_data_in_all_forms(model: Path, data: list[np.ndarray[Any, Any]]) -> None:
    expected = quant.calibrate(model, data).tensors
    assert quant.calibrate(model, [{"x": x, "other": x} for x in data]).tensors == expected
    assert quant.calibrate(model, lambda: iter(data)).tensors == expected
    assert quant.calibrate(model, iter(data)).tensors == expected  # one pass is enough
    assert next(iter(batches_of(data[:1], ["x"])))["x"] is data[0]
    assert quant.calibrate(model, [x.astype(">f4") for x in data]).tensors == expected


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda d: d[:1], "at least 8 samples, not 4"),
        (lambda d: [], "at least 8 samples, not 0"),
        (lambda d: [x * 0 for x in d], "all values of activation 'x' are 0 in 16 samples"),
        (lambda d: [*d, np.full_like(d[0], np.nan)], r"'x' has 3072 values of 15360 that are NaN .* samples 17 to 20"),
        (lambda d: [x * np.float32(np.inf) for x in d], "NaN or infinite"),
        (lambda d: [x[:, :2] for x in d], "does not match the model"),
        (lambda d: [x.astype(np.float64) for x in d], "does not match the model"),
        (lambda d: [{"z": x} for x in d], "but not the input 'x'"),
        (lambda d: {"x": d[0]}, "the data is one dict; give a list of arrays"),
        (lambda d: Path("images"), "the data is one .*Path; give a list of arrays"),
    ],
)
def test_bad_data(model: Path, data: list[np.ndarray[Any, Any]], wrong: Any, words: str) -> None:
    with pytest.raises(errors.CalibrationError, match=words):
        quant.calibrate(model, wrong(data))


def test_copies_that_fill_a_fixed_batch_are_no_samples(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (9, 32, 32, 3), np.uint8)
    fixed, free = tmp_path / "fixed.onnx", CLASSIFIER
    whole = onnx.load(str(free))
    for each in (*whole.graph.input, *whole.graph.output):
        each.type.tensor_type.shape.dim[0].dim_value = 8
    del whole.graph.value_info[:]
    onnx.save(whole, str(fixed))
    with Classifier(fixed, **CLASSIFIER_SETTINGS) as model, Classifier(free, **CLASSIFIER_SETTINGS) as other:
        with pytest.raises(errors.CalibrationError, match="at least 8 samples, not 1"):
            quant.calibrate(fixed, quant.ImageInputs(model, list(images[:1])))
        found = observed(fixed, quant.ImageInputs(model, list(images)))
        wanted = observed(free, quant.ImageInputs(other, list(images)))
    assert found.samples == wanted.samples == 9
    for name, histogram in found.histograms.items():
        assert histogram.counts.sum() == wanted.histograms[name].counts.sum()


def test_data_without_a_batch_axis(tmp_path: Path) -> None:
    graph, weights = "(float[n,4] x) => (float[n,2] y) { y = Gemm(x, w) }", {"w": np.ones((4, 2), np.float32)}
    path = save_text(tmp_path / "product.onnx", graph, weights)
    with pytest.raises(errors.CalibrationError, match=r"\(4,\)\) does not match .* with a batch axis: .* Expected: 2"):
        quant.calibrate(path, np.ones((16, 4), np.float32))


def test_wrong_settings(model: Path, data: list[np.ndarray[Any, Any]]) -> None:
    words = "unknown method 'guess'; use one of mse, entropy, minmax, percentile"
    with pytest.raises(errors.ConfigError, match=words):
        quant.calibrate(model, data, method="guess")  # type: ignore[arg-type]
    for percentile in (0, 50, 100.5, float("nan"), "99"):
        with pytest.raises(errors.ConfigError, match="percentile must be a number above 50 and at most 100, not"):
            quant.calibrate(model, data, method="percentile", percentile=percentile)  # type: ignore[arg-type]


def test_arguments_of_other_types(
    model: Path, table: quant.CalibrationTable, data: list[np.ndarray[Any, Any]], tmp_path: Path
) -> None:
    with pytest.raises(errors.ConfigError, match=r"unknown target \['openvino'\]; use one of"):
        quant.calibrate(model, data, target=["openvino"])  # type: ignore[arg-type]
    for wrong in ("3", 0):
        with pytest.raises(errors.ConfigError, match=f"min_samples is a whole number from 1, not {wrong!r}"):
            quant.calibrate(model, [], min_samples=wrong)  # type: ignore[arg-type]
    with pytest.raises(errors.ConfigError, match="bias_correction is True or False, .*, not 'no'"):
        quant.quantize(model, tmp_path / "q.onnx", table, bias_correction="no")  # type: ignore[arg-type]
    with pytest.raises(errors.CalibrationError, match=r"the table is a NoneType; give that of calibrate\(\)"):
        quant.quantize(model, tmp_path / "q.onnx", None)  # type: ignore[arg-type]
    of_bytes = quant.calibrate(model.read_bytes(), data, method="percentile")  # type: ignore[arg-type]
    assert (of_bytes.model, of_bytes.tensors) == (table.model, table.tensors)


def test_means_of_another_number_of_channels(model: Path, table: quant.CalibrationTable, tmp_path: Path) -> None:
    short = msgspec.structs.replace(table.tensors["x"], mean=[0.5])
    wrong = msgspec.structs.replace(table, tensors=table.tensors | {"x": short})
    with pytest.raises(errors.CalibrationError, match="means of 1 channels for the input of node 'Conv_0'"):
        quant.quantize(model, tmp_path / "q.onnx", wrong)
    quant.quantize(model, tmp_path / "q.onnx", wrong, bias_correction=False)


def test_models_that_cannot_be_quantised(
    model: Path, table: quant.CalibrationTable, data: list[np.ndarray[Any, Any]], tmp_path: Path
) -> None:
    made = quant.quantize(model, tmp_path / "q.onnx", table)
    with pytest.raises(errors.UnsupportedModelError, match="is quantised already"):
        quant.calibrate(made.path, data)
    graph = "(float16[n,4] x) => (float16[n,4] y) { y = MatMul(x, w) }"
    half = save_text(tmp_path / "half.onnx", graph, {"w": np.eye(4, dtype=np.float16)})
    with pytest.raises(errors.UnsupportedModelError, match="is fp16"):
        quant.plan(half)
    bare = save_text(tmp_path / "bare.onnx", "(float[n,4] x) => (float[n,4] y) { y = Relu(x) }")
    with pytest.raises(errors.UnsupportedModelError, match="no convolution or matrix product"):
        quant.plan(bare)
    graph = "(float[n,4] x, float[4,4] w) => (float[n,4] y) { y = MatMul(x, w) }"
    old = save_text(tmp_path / "old.onnx", graph, {"w": np.eye(4, dtype=np.float32)})
    with pytest.raises(errors.UnsupportedModelError, match="its weights are inputs as well: `infersdk graph lint"):
        quant.plan(old)
    (tmp_path / "junk.onnx").write_bytes(b"junk")
    with pytest.raises(errors.ModelFormatError):
        quant.plan(tmp_path / "junk.onnx")
    with pytest.raises(errors.ModelNotFoundError):
        quant.plan(tmp_path / "missing.onnx")


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
    foreign = quant.CalibrationTable(tensors={"z": quant.TensorRange.symmetric(1.0)})
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
        pytest.param("[" * 100_000, id="nested"),
    ],
)
def test_damaged_tables(text: str, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(errors.CalibrationError, match="is not a calibration table"):
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


# ---- candidates and layers ----


@pytest.fixture(scope="module")
def measure(model: Path, data: list[np.ndarray[Any, Any]]) -> Any:
    """How far scores agree, sample by sample."""
    truth = outputs(model, data)[:, 2:]

    def measured(path: Path) -> Agreement:
        found = outputs(path, data)[:, 2:]
        common = np.minimum(truth, found).sum((1, 2, 3), dtype=np.float64)
        shifts = tuple((found - truth).mean((1, 2, 3), dtype=np.float64)[:, None])
        return Agreement(2 * common, (truth + found).sum((1, 2, 3), dtype=np.float64), shifts)

    return measured


def test_a_candidate_that_is_clearly_better_is_chosen(model: Path, data: list[Any], measure: Any) -> None:
    planned, seen = quant.plan(model), observed(model, data)
    coarse, fine = quant.Candidate("percentile", percentile=60), quant.Candidate("minmax")
    choice = quant.choose(planned, seen, measure, candidates=[coarse, fine])
    assert choice.candidate == fine
    assert choice.agreements["minmax"].percent > choice.agreements["percentile 60"].percent
    same = quant.Candidate("percentile", percentile=100)  # next to nothing apart: the first stays
    assert quant.choose(planned, seen, measure, candidates=[same, same]).candidate is same
    with pytest.raises(errors.ConfigError, match="no candidates"):
        quant.choose(planned, seen, measure, candidates=[])


def test_the_search_finds_the_layer_that_costs(model: Path, table: quant.CalibrationTable, measure: Any) -> None:
    # What Conv_3 takes has a range that is thousands of times too small: it alone has to be left out.
    planned = quant.plan(model, "openvino")
    broken = quant.CalibrationTable(tensors=table.tensors | {"a1": quant.TensorRange.symmetric(1e-3)})
    report = quant.search(planned, broken, measure, max_drop=2)
    assert report.reached
    assert report.exclude == ("Conv_3",)
    assert report.agreement.percent >= 98
    assert report.steps[0].floating == ()
    assert report.front[0].floating == ()
    assert report.front[-1].percent == max(step.percent for step in report.steps)
    fine = quant.search(planned, table, measure, max_drop=50)
    assert (fine.exclude, fine.reached, len(fine.steps)) == ((), True, 1)
    lost = quant.search(planned, table, lambda path: Agreement.of(0, 1, []), max_drop=100, max_score_shift=0.5)
    assert not lost.reached, "no score is compared"
    with pytest.raises(errors.ConfigError, match="max_drop"):
        quant.search(planned, table, measure, max_drop=-1)


def test_the_search_prefers_what_costs_little_time(model: Path, table: quant.CalibrationTable, measure: Any) -> None:
    planned = quant.plan(model, "openvino")
    tensors = table.tensors | {
        name: quant.TensorRange.symmetric(table.tensors[name].threshold / 3) for name in ("a1", "sum")
    }
    times = {"Conv_0": 1.0, "Conv_3": 100.0, "Conv_6": 1.0}
    fast = {name: spent / 2 for name, spent in times.items()}
    broken = quant.CalibrationTable(tensors=tensors)
    report = quant.search(planned, broken, measure, max_drop=0, times=lambda: (times, fast))
    assert report.exclude == ("Conv_6",)
    assert [step.cost for step in report.steps if step.floating == ("Conv_6",)] == [0.5]


def test_errors_of_layers(model: Path, table: quant.CalibrationTable, data: list[np.ndarray[Any, Any]]) -> None:
    planned = quant.plan(model, "openvino")
    found = quant.layer_errors(planned, table, data)
    assert set(found) == {"Conv_0", "Conv_3", "Conv_6"}
    assert all(0 < error < 1e-2 for error in found.values())
    broken = quant.CalibrationTable(tensors=table.tensors | {"a1": quant.TensorRange.symmetric(1e-3)})
    worse = quant.layer_errors(planned, broken, data)
    assert worse["Conv_3"] > 0.1
    assert worse["Conv_0"] == pytest.approx(found["Conv_0"])  # each has what it gets in FP32


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_times_of_layers(
    model: Path, table: quant.CalibrationTable, data: list[np.ndarray[Any, Any]], backend: str, tmp_path: Path
) -> None:
    pytest.importorskip(backend)
    planned = quant.plan(model, backend)
    made = quant.quantize(planned, tmp_path / "q.onnx", table)
    for path in (model, made.path):
        found = quant.layer_times(planned, path, {"x": data[0]}, backend)
        assert set(found) == {"Conv_0", "Conv_3", "Conv_6"}
        assert all(spent > 0 for spent in found.values()), (path.name, found)
    assert quant.layer_times(planned, model, {"x": data[0]}, "tensorrt") is None


def test_speed_of_both(model: Path, table: quant.CalibrationTable, tmp_path: Path, data: Any) -> None:
    made = quant.quantize(model, tmp_path / "q.onnx", table)
    with infersdk.load(model, "onnxruntime") as plain, infersdk.load(made.path, "onnxruntime") as quantized:
        speed = quant.compare_speed(plain, quantized, {"x": data[0]}, rounds=3)
    assert speed.fp32 > 0
    assert speed.ratio == pytest.approx(speed.fp32 / speed.int8)


def test_the_weights_of_the_model_are_not_overwritten(model: Path, table: quant.CalibrationTable) -> None:
    weights = model.with_name("apart.bin")
    path = model.with_name("apart.onnx")
    onnx.save(onnx.load(str(model)), str(path), save_as_external_data=True, location=weights.name, size_threshold=0)
    before = weights.read_bytes()
    for write in (
        lambda: quant.quantize(path, weights, table),
        lambda: quant.Workflow(path, [np.zeros((16, 16, 3), np.uint8)] * 8, Classifier).run(weights),
    ):
        with pytest.raises(errors.ConfigError, match=r"apart.bin' is an input, too; write to another file"):
            write()
    assert weights.read_bytes() == before


@pytest.mark.parametrize("change", [lambda x: x[:, :2], lambda x: x.astype(np.float64)], ids=["channels", "type"])
def test_data_for_a_model_of_one_layer(change: Any, tmp_path: Path, data: list[np.ndarray[Any, Any]]) -> None:
    weights = {"w": np.ones((8, 3, 3, 3), np.float32)}
    graph = "(float[?,3,16,16] x) => (float[?,8,14,14] y) { y = Conv(x, w) }"
    path = save_text(tmp_path / "m.onnx", graph, weights, opset=13)
    with pytest.raises(errors.CalibrationError, match="does not match the model"):
        quant.calibrate(path, [change(x) for x in data], target="openvino")
