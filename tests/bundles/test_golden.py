"""Golden samples: faults are found and named, and runs that are right pass."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from bundle_files import parts_of, rewritten, with_other_results

from infersdk import load, models, quant
from infersdk.bundles import Bundle, GoldenReport, pack
from infersdk.bundles.golden import Limits, deviation, elements, same_results
from infersdk.bundles.rounding import RoundValues
from infersdk.core.model_source import ModelSource
from infersdk.data import CLASSIFIER, DETECTOR, IMAGE
from infersdk.errors import BundleFormatError, ConfigError, GoldenSampleError, PrecisionUnavailableError
from infersdk.models import Masks

onnx = pytest.importorskip("onnx")
onnx_models = pytest.importorskip("onnx_models")
pytest.importorskip("onnxruntime")

Change = Callable[[Any, np.random.Generator], str | None]


@pytest.fixture(scope="module", name="detector")
def _detector(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("golden") / "detector.infer"
    pack(DETECTOR, path, images=[IMAGE])
    return path


@pytest.fixture(scope="module", name="classifier")
def _classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("golden") / "classifier.infer"
    pixels = {"mean": [0.4, 0.5, 0.6], "std": [0.2, 0.3, 0.25]}
    pack(CLASSIFIER, path, images=[IMAGE], type="classifier", settings=pixels)
    return path


def altered(source: Path, target: Path, model: bytes | None = None, **fields: Any) -> Path:
    """A bundle whose golden samples are of another state than the rest of it."""
    parts = parts_of(source)
    return rewritten(source, target, parts if model is None else {**parts, "model.onnx": model}, **fields)


def report_of(path: Path, backend: str = "onnxruntime") -> GoldenReport:
    with pytest.raises(GoldenSampleError) as caught:
        models.load(path, backend, verify="always").close()
    assert caught.value.report is not None, str(caught.value)
    report: GoldenReport = caught.value.report
    assert not report.passed
    assert report.stage in str(caught.value)
    return report


# ---- faults ----


def changed_model(change: Change, rng: np.random.Generator, model: Path = DETECTOR) -> tuple[bytes, str | None]:
    """A model after a change, and the first value that differs."""
    proto = onnx.load(str(model))
    first = change(proto.graph, rng)
    return proto.SerializeToString(), first


def convolutions(graph: Any) -> list[tuple[Any, Any]]:
    """The convolutions and their weights. The last ones of the head may be outside of the network that runs."""
    weights = {weight.name: weight for weight in graph.initializer}
    return [(node, weights[node.input[1]]) for node in graph.node if node.op_type == "Conv"][:-3]


def with_weights(weight: Any, change: Callable[[np.ndarray], np.ndarray]) -> None:
    array = onnx.numpy_helper.to_array(weight)
    weight.CopyFrom(onnx.numpy_helper.from_array(change(array).astype(np.float32), weight.name))


def one_percent(graph: Any, rng: np.random.Generator) -> str:
    node, weight = convolutions(graph)[int(rng.integers(len(convolutions(graph))))]
    with_weights(weight, lambda array: array * np.float32(1.01))
    return str(node.output[0])


def eight_bits(graph: Any, rng: np.random.Generator) -> str:
    """A layer with rounded weights, as a runtime computes it that chose another kernel."""
    node, weight = convolutions(graph)[int(rng.integers(len(convolutions(graph))))]
    with_weights(weight, lambda array: np.round(array / np.abs(array).max() * 127) * np.abs(array).max() / 127)
    return str(node.output[0])


def half_precision(graph: Any, rng: np.random.Generator) -> None:
    for _, weight in convolutions(graph):
        with_weights(weight, lambda array: array.astype(np.float16))


def overflow(graph: Any, rng: np.random.Generator) -> str:
    """A value that leaves the range of float16."""
    node = convolutions(graph)[int(rng.integers(len(convolutions(graph))))][0]
    value = str(node.output[0])
    node.output[0] = f"{value}_before"
    limit = onnx.numpy_helper.from_array(np.array(0.05, np.float32), f"{value}_limit")
    graph.initializer.append(limit)
    clip = onnx.helper.make_node("Min", [f"{value}_before", limit.name], [value], f"{value}_clip")
    graph.node.insert(list(graph.node).index(node) + 1, clip)
    return value


def bfloat16(graph: Any, rng: np.random.Generator) -> None:
    for _, weight in convolutions(graph):
        with_weights(weight, lambda array: (array.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32))


def rounded_values(graph: Any, rng: np.random.Generator) -> str:
    """The values of a layer with few bits, as a driver computes it that prefers speed."""
    node = convolutions(graph)[int(rng.integers(len(convolutions(graph))))][0]
    value = str(node.output[0])
    node.output[0] = f"{value}_before"
    graph.initializer.append(onnx.numpy_helper.from_array(np.array(64, np.float32), f"{value}_steps"))
    operations = [
        ("Mul", [f"{value}_before", f"{value}_steps"], f"{value}_many"), ("Round", [f"{value}_many"], f"{value}_whole"),
        ("Div", [f"{value}_whole", f"{value}_steps"], value),
    ]  # fmt: skip
    for kind, inputs, output in reversed(operations):  # each is inserted in front of the one before
        one = onnx.helper.make_node(kind, inputs, [output], f"{output}_{kind}")
        graph.node.insert(list(graph.node).index(node) + 1, one)
    return value


def lost_bias(graph: Any, rng: np.random.Generator) -> str:
    """A convolution without its bias, as an optimisation leaves it that fuses wrongly."""
    node = convolutions(graph)[int(rng.integers(len(convolutions(graph))))][0]
    del node.input[2]
    return str(node.output[0])


CHANGES: dict[str, Change] = {
    "one_percent": one_percent, "eight_bits": eight_bits, "half": half_precision, "bfloat16": bfloat16,
    "rounded_values": rounded_values, "lost_bias": lost_bias, "overflow": overflow,
}  # fmt: skip


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_network(detector: Path, tmp_path: Path, rng: np.random.Generator, name: str, backend: str) -> None:
    pytest.importorskip(backend)
    network(detector, tmp_path, rng, name, backend)


def network(detector: Path, folder: Path, rng: np.random.Generator, name: str, backend: str) -> None:
    model, first = changed_model(CHANGES[name], rng)
    report = report_of(altered(detector, folder / "x.infer", model), backend)
    assert report.stage == "network"
    assert report.deviation > report.tolerance > 0
    if first is not None:
        assert report.layer == node_of(detector, first)


def node_of(bundle: Path, value: str) -> str:
    """The node that computes a value."""
    golden = msgspec.json.decode(Bundle(bundle).read("golden.json"))
    return str(next(graph["layers"][value][0] for graph in golden["graphs"] if value in graph["layers"]))


def cut(graph: Any, tail: str, name: str) -> None:
    """An output behind another operation."""
    graph.node.append(onnx.helper.make_node(tail, [graph.output[0].name], [f"{tail}_{name}"]))
    graph.output[0].name = f"{tail}_{name}"


def test_a_head_that_ends_elsewhere(classifier: Path, tmp_path: Path) -> None:
    model, _ = changed_model(lambda graph, _: cut(graph, "Neg", "x"), np.random.default_rng(0), CLASSIFIER)
    path = altered(classifier, tmp_path / "x.infer", model)
    with pytest.raises(GoldenSampleError, match="the outputs Neg_x .*, and the golden samples have none"):
        models.load(path, verify="always")


PIXELS: list[dict[str, Any]] = [
    {"mean": [0.6, 0.5, 0.4], "std": [0.2, 0.3, 0.25]},
    {"mean": [0.4, 0.5, 0.6], "std": [0.25, 0.3, 0.2]},
    {"mean": [0, 0, 0], "std": [1, 1, 1]},
    {"mean": [0.4, 0.5, 0.6], "std": [0.2, 0.3, 0.25], "input_order": "bgr"},
    {"mean": [0.404, 0.5, 0.6], "std": [0.2, 0.3, 0.25]},
]


@pytest.mark.parametrize("settings", PIXELS)
def test_wrong_pixels(classifier: Path, tmp_path: Path, settings: dict[str, Any]) -> None:
    assert report_of(altered(classifier, tmp_path / "x.infer", settings=settings)).stage == "preprocessing"


def test_other_classes(detector: Path) -> None:
    names = ["one", "zero", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    with pytest.raises(GoldenSampleError, match="differ in classes"):
        models.load(detector, names=names, verify="always")


def test_other_results(detector: Path, tmp_path: Path) -> None:
    """Postprocessing that finds other boxes in the same outputs."""
    assert report_of(with_other_results(detector, tmp_path / "x.infer")).stage == "postprocessing"


def test_values_that_are_not_there(detector: Path, tmp_path: Path) -> None:
    parts = parts_of(detector)
    golden = msgspec.json.decode(parts["golden.json"])
    next(iter(golden["samples"][0]["inputs"].values()))["offset"] = 1 << 40
    path = rewritten(detector, tmp_path / "x.infer", {**parts, "golden.json": msgspec.json.encode(golden)})
    with pytest.raises(BundleFormatError, match=r"x\.infer': its golden samples name values that it does not have"):
        models.load(path, verify="always")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda golden: golden.update(samples=[]),
            r"damaged: samples: 0, outputs of each graph: \[1, 1\]",
        ),
        (lambda golden: golden["graphs"][1].update(outputs=[]), r"samples: 1, outputs of each graph: \[1, 0\]"),
        (lambda golden: golden["samples"][0].update(image="none"), "name the part 'none', and it has none"),
        (lambda golden: golden.update(values="none"), "name the part 'none', and it has none"),
    ],
)
def test_samples_that_are_not_there(
    detector: Path, tmp_path: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    parts = parts_of(detector)
    golden = msgspec.json.decode(parts["golden.json"])
    change(golden)
    path = rewritten(detector, tmp_path / "x.infer", {**parts, "golden.json": msgspec.json.encode(golden)})
    with pytest.raises(BundleFormatError, match=message):
        models.load(path, verify="always")


NETWORKS = {
    "one_percent": 14, "eight_bits": 6, "half": 2, "bfloat16": 2, "rounded_values": 5, "lost_bias": 5, "overflow": 6,
}  # fmt: skip
MORE_PIXELS: list[dict[str, Any]] = [
    *PIXELS,
    {"mean": [0.4, 0.5, 0.6], "std": [0.202, 0.3, 0.25]},
    {"mean": [0.4, 0.5, 0.6], "std": [0.2, 0.3, 0.25], "scale": 1 / 256},
    {"mean": [0.4, 0.5, 0.6], "std": [0.2, 0.3, 0.25], "scale": 1},
    {"mean": [0.5, 0.4, 0.6], "std": [0.3, 0.2, 0.25]},
    {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]},
]
NAMES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
CLASSES = [
    NAMES[::-1], [*NAMES[:3], "tree", *NAMES[4:]], [*NAMES[1:], NAMES[0]], ["One", *NAMES[1:]], [*NAMES[:9], "ten"],
]  # fmt: skip
#: Operations behind the output, which has another name then, or the same.
HEADS = [("Neg", False), ("Softmax", False), ("Softmax", True), ("Sigmoid", True), ("Relu", True)]


def same_name(graph: Any, tail: str) -> None:
    before, output = graph.node[-1], graph.output[0].name
    before.output[0] = f"{output}_before"
    graph.node.append(onnx.helper.make_node(tail, [before.output[0]], [output]))


#: Changes of weights and values that are smaller than the rounding of a precision.
HIDDEN = {"bf16": {"one_percent", "eight_bits", "half", "bfloat16", "rounded_values"}}


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "precision"), [("onnxruntime", None), ("openvino", None), ("openvino", "bf16")])
def test_sixty_faults(
    detector: Path, classifier: Path, tmp_path: Path, rng: np.random.Generator, backend: str, precision: str | None
) -> None:
    """All that the precision does not hide are caught, and the stage or the layer is named."""
    pytest.importorskip(backend)
    path, outcomes, hidden = tmp_path / "x.infer", [], HIDDEN.get(precision or "", set())
    try:
        models.load(detector, backend, precision=precision, verify="always").close()
    except PrecisionUnavailableError as error:
        pytest.skip(str(error))

    def fault(what: str, stage: str, node: str | None = None, **settings: Any) -> None:
        try:
            models.load(path, backend, precision=precision, verify="always", **settings).close()
        except GoldenSampleError as error:
            found = error.report
            named = "the network has the outputs" in str(error) if found is None else found.stage == stage
            outcomes.append((what, True, named and (node is None or found.layer == node)))
        else:
            outcomes.append((what, False, False))

    for name in [name for name, count in NETWORKS.items() for _ in range(count)]:
        model, first = changed_model(CHANGES[name], rng)
        altered(detector, path, model)
        fault(name, "network", None if first is None else node_of(detector, first))
    for settings in MORE_PIXELS:
        altered(classifier, path, settings=settings)
        fault(f"pixels {settings}", "preprocessing")
    for tail, keeps_name in HEADS:
        change = partial(same_name, tail=tail) if keeps_name else partial(cut, tail=tail, name="x")
        altered(classifier, path, changed_model(lambda graph, _, change=change: change(graph), rng, CLASSIFIER)[0])
        fault(f"head {tail}", "network")
    altered(detector, path)
    for names in CLASSES:
        fault(f"classes {names}", "classes", names=names)
    assert len(outcomes) == 60
    assert [what for what, caught, _ in outcomes if not caught and what not in hidden] == []
    assert [what for what, caught, named in outcomes if caught and what not in hidden and not named] == []


# ---- no false alarm ----


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_batch": 4},
        {"conf": 0.7, "iou": 0.2},
        {"decode_head": "graph"},
        {"threads": 1},
        {"channel_order": "rgb"},
    ],
)
@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_settings_that_change_no_result(detector: Path, backend: str, settings: dict[str, Any]) -> None:
    pytest.importorskip(backend)
    models.load(detector, backend, verify="always", **settings).close()


def selecting(path: Path) -> Path:
    """A detector as torchvision's, of 64x64: each square of 16x16 that is brighter than 0.6 is a box."""
    node, value = onnx_models.node, onnx_models.value
    nodes = [
        node("MaxPool", "images", "pooled", kernel_shape=[16, 16], strides=[16, 16]),
        node("ReduceMax", "pooled", "highest", axes=[1], keepdims=0), node("Reshape", "highest flat", "all"),
        node("Greater", "all threshold", "bright"), node("NonZero", "bright", "numbers"),
        node("Reshape", "numbers flat", "labels"),
        node("Gather", "all labels", "scores"), node("Gather", "squares labels", "boxes"),
    ]  # fmt: skip
    left, top = 16 * np.arange(16) % 64, 16 * (np.arange(16) // 4)
    weights = {
        "flat": np.array([-1]), "threshold": np.float32(0.6),
        "squares": np.stack([left, top, left + 16, top + 16], axis=1).astype(np.float32),
    }  # fmt: skip
    outputs = [value("boxes", ("n", 4)), value("scores", ("n",)), value("labels", ("n",), "int64")]
    return onnx_models.save(path, nodes, [value("images", (1, 3, 64, 64))], outputs, weights)


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_outputs_whose_shape_depends_on_the_image(tmp_path: Path, backend: str) -> None:
    """Another backend may have other rows by rounding. Columns are the same on each."""
    pytest.importorskip(backend)
    path, images = tmp_path / "boxes.infer", [np.zeros((64, 64, 3), np.uint8) for _ in range(3)]
    images[0][16:48, :32] = 230
    images[2][:, :] = 153  # the threshold
    images[2][:16, :16] = 230
    pack(selecting(tmp_path / "boxes.onnx"), path, images=images[:2])
    golden = msgspec.json.decode(parts_of(path)["golden.json"])
    assert [one["boxes"]["shape"] for one in golden["graphs"][0]["outputs"]] == [[4, 4], [0, 4]]
    assert golden["graphs"][0]["tolerances"]["fp32"].keys() == {"boxes", "scores", "labels"}
    models.load(path, backend, verify="always").close()
    for shape, message in (([3, 4], None), ([4, 5], r"the outputs boxes \(4, 4\), .*none of these")):
        golden["graphs"][0]["outputs"][0]["boxes"]["shape"] = shape
        other = {**parts_of(path), "golden.json": msgspec.json.encode(golden)}
        rewritten(path, tmp_path / "other.infer", other)
        with pytest.raises(GoldenSampleError, match=message) if message else nullcontext():
            models.load(tmp_path / "other.infer", backend, verify="always").close()
    pack(tmp_path / "boxes.onnx", path, images=images)
    golden = msgspec.json.decode(parts_of(path)["golden.json"])
    assert golden["graphs"][0]["tolerances"]["fp32"] == {}, "noise changes the number of boxes"
    models.load(path, backend, verify="always").close()


def test_a_precision_without_tolerance(detector: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with models.load(detector, verify="never") as model:
        assert model.details.golden_samples.check(model).passed
        monkeypatch.setattr(type(model.network), "precision", "int8")
        with pytest.raises(ConfigError, match=r"tolerances .* for fp32, tf32, fp16, bf16, not for int8; .*forms="):
            model.details.golden_samples.check(model)


@pytest.mark.parametrize("changed", [False, True])
def test_a_hot_swap(detector: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: bool) -> None:
    """A network that differs from the samples does not take over from the stand-in."""
    pytest.importorskip("openvino")
    monkeypatch.setenv("INFERSDK_CACHE", str(tmp_path))
    from infersdk.backends.openvino import OpenVinoInfer

    if changed:
        other = onnx.load(DETECTOR)
        weights = next(one for one in other.graph.initializer if len(one.dims) == 4)
        weights.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(weights) * 1.01, weights.name))
        monkeypatch.setattr(OpenVinoInfer, "_read", lambda self: self._core.read_model(other.SerializeToString()))
    with models.load(detector, "openvino", while_building="onnxruntime") as model:
        if changed:
            with pytest.raises(GoldenSampleError, match="openvino: the golden samples differ in network"):
                model.network.wait_ready(60)
            with pytest.warns(RuntimeWarning, match="golden samples differ"):
                assert len(model(IMAGE))
        else:
            assert model.network.wait_ready(60)
            assert len(model(IMAGE))
        assert model.network.active_backend == ("onnxruntime" if changed else "openvino")


def test_a_hot_swap_keeps_no_inputs(detector: Path) -> None:
    with models.load(detector, verify="never") as model:
        samples = model.details.golden_samples
        feeds = samples.feeds(model)
        assert feeds
        samples.approve(model.network, feeds, None)
        assert not feeds


@pytest.mark.parametrize("kind", ["detector", "classifier"])
def test_bfloat16(kind: str, request: pytest.FixtureRequest) -> None:
    """The tolerance of a lower precision is measured without hardware that has it."""
    pytest.importorskip("openvino")
    try:
        models.load(request.getfixturevalue(kind), "openvino", precision="bf16", verify="always").close()
    except PrecisionUnavailableError as error:
        pytest.skip(str(error))


def test_an_int8_form(tmp_path: Path) -> None:
    with models.load(DETECTOR, "onnxruntime", decode_head="graph") as model:
        table = quant.calibrate(DETECTOR, quant.ImageInputs(model, [IMAGE] * 8), target="onnxruntime")
    quant.quantize(DETECTOR, tmp_path / "int8.onnx", table, target="onnxruntime")
    path = tmp_path / "both.infer"
    pack(DETECTOR, path, images=[IMAGE], forms={"int8": tmp_path / "int8.onnx"})
    with models.load(path, "onnxruntime", precision="int8", verify="always") as model:
        assert model.network.precision == "int8"


@pytest.mark.gpu
@pytest.mark.parametrize("precision", [None, "fp16"])
@pytest.mark.parametrize("kind", ["detector", "classifier"])
def test_on_a_gpu(kind: str, precision: str | None, request: pytest.FixtureRequest) -> None:
    """Without a precision, factors of products are rounded to TF32."""
    pytest.importorskip("tensorrt_rtx")
    path = request.getfixturevalue(kind)
    models.load(path, "tensorrt-rtx", precision=precision, verify="always").close()


def rounded_to_tf32(values: Any) -> Any:
    bits = values.view(np.uint32).astype(np.uint64)
    return ((bits + 0xFFF + (bits >> 13 & 1)) >> 13 << 13).astype(np.uint32).view(np.float32)


@pytest.mark.parametrize("precision", ["tf32", "fp16", "bf16"])
def test_rounded_values(rng: np.random.Generator, precision: str, tmp_path: Path) -> None:
    """The product of a run with rounded values is that of rounded factors."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    rounding = {
        "tf32": rounded_to_tf32,
        "fp16": lambda values: values.astype(np.float16),
        "bf16": lambda values: values.astype(ml_dtypes.bfloat16),
    }[precision]
    x, weights = (rng.normal(size=(17, 17)).astype(np.float32) for _ in range(2))
    x_spec, y_spec = ([onnx_models.value(name, [17, 17])] for name in ("x", "y"))
    multiply = onnx_models.node("MatMul", "x w", "y", name="product")
    path = onnx_models.save(tmp_path / "m.onnx", [multiply], x_spec, y_spec, {"w": weights})
    source = ModelSource.of(path.read_bytes()).with_passes(RoundValues(precision))
    with load(source, "onnxruntime", graph_optimization="disabled") as network:
        (product,) = network({"x": x}).values()
    expected = rounding(x).astype(np.float64) @ rounding(weights).astype(np.float64)
    np.testing.assert_allclose(product, expected, rtol=0, atol=1e-5)
    assert np.abs(expected - x.astype(np.float64) @ weights).max() > 1e-4


# ---- the measures ----


def test_elements_are_those_of_the_array(rng: np.random.Generator) -> None:
    array = rng.normal(size=(3, 40, 50)).astype(np.float32)
    np.testing.assert_array_equal(elements(array, 6000), array.reshape(-1))
    kept = elements(array, 500)
    assert kept.size == 500
    assert np.isin(kept, array).all()
    assert len(np.unique(kept)) == 500, "no element is kept twice"


def test_deviation(rng: np.random.Generator) -> None:
    """Each channel against its own scale."""
    array = rng.normal(size=(1, 4, 1000)).astype(np.float32) * np.array([[[500], [300], [1], [0.1]]], np.float32)
    shape, most = array.shape, array.size
    assert deviation(elements(array, most), elements(array, most), shape, most) == 0
    other = array.copy()
    other[0, 3] *= 1.01
    assert deviation(elements(array, most), elements(other, most), shape, most) == pytest.approx(0.01, rel=1e-3)
    other[0, 0, 0] = np.nan
    assert deviation(elements(array, most), elements(other, most), shape, most) == np.inf


def test_same_results() -> None:
    exact = Limits()
    row = {"xyxy": [1.0, 2.0, 30.0, 40.0], "score": 0.9, "label": "a"}
    unsure = {"xyxy": [5.0, 5.0, 6.0, 6.0], "score": 0.26, "label": "b"}
    assert same_results([row, unsure], [row], Limits(0.25))
    assert not same_results([row, unsure], [row], Limits(0.2))
    assert same_results([row], [{**row, "score": 0.905}], exact)
    assert not same_results([row, unsure], [unsure], exact)
    assert not same_results([row], [{**row, "label": "b"}], exact)
    assert not same_results([row], [], exact)
    assert same_results({"value": 1.0, "other": [1, 2]}, {"value": 1.001, "other": [1, 2]}, exact)
    assert not same_results({"value": 1.0}, {"value": 1.1}, exact)
    assert not same_results({"value": 1.0}, {"values": 1.0}, exact)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_same_masks(precision: str) -> None:
    """A pixel whose score is the threshold may be on either side."""

    def row(pixels: np.ndarray[Any, Any]) -> list[dict[str, Any]]:
        return [{"label": "a", "score": 0.9, "mask": Masks.of(pixels[None])[0].to_coco()}]

    limits = Limits.of(precision, 0.25)
    pixels = np.zeros((60, 80), bool)
    pixels[10:40, 20:50] = True
    allowed = int(limits.number * pixels.sum())
    for size, other, same in (((60, 80), allowed, True), ((60, 80), allowed + 1, False), ((61, 80), 0, False)):
        changed = np.zeros(size, bool)
        changed[:60] = pixels
        changed[10 : 10 + other // 30, 20:50] = False
        changed[39, 20 : 20 + other % 30] = False
        assert same_results(row(pixels), row(changed), limits) is same
    one, none = np.eye(60, 80, dtype=bool), np.zeros((60, 80), bool)
    one[1:] = False
    assert same_results(row(one), row(none), limits)
    for counts in ("", "~", "é", "0" * 40, 5):
        damaged = [{**row(pixels)[0], "mask": {"size": [60, 80], "counts": counts}}]
        assert not same_results(damaged, row(pixels), limits)


def test_same_class_maps() -> None:
    def rows(*areas: float) -> list[dict[str, Any]]:
        found = [{"class_id": i, "label": str(i), "pixels": int(a * 1e6), "area": a} for i, a in enumerate(areas) if a]
        return sorted(found, key=lambda one: -one["area"])

    reference = rows(0.6, 0.399, 0.001)
    for areas, same in (
        ((0.6, 0.399, 0.001), True), ((0.605, 0.394, 0.001), True), ((0.6, 0.3992, 0.0008), True),
        ((0.6, 0.4, 0.0), False), ((0.62, 0.379, 0.001), False), ((0.399, 0.6, 0.001), False),
    ):  # fmt: skip
        assert same_results(reference, rows(*areas), Limits()) is same
    assert same_results(rows(0.5, 0.499999, 0.000001), rows(0.499999, 0.500001), Limits())
    assert not same_results(reference, [], Limits())
    matte = [{"area": 0.5}]  # rows of other results have no class
    assert same_results(matte, [{"area": 0.505}], Limits())
    assert not same_results(matte, [{"area": 0.55}], Limits())
    assert not same_results(matte, reference, Limits())
    assert not same_results([{"map": "lane", **row} for row in reference], reference, Limits())


def test_same_results_in_a_lower_precision() -> None:
    row = {"xyxy": [1.0, 2.0, 30.0, 40.0], "score": 0.9, "label": "a"}
    assert same_results([row], [{**row, "xyxy": [1.5, 2.5, 30.5, 40.5]}], Limits()), "2 % of the largest edge"
    assert not same_results([row], [{**row, "xyxy": [1.0, 2.0, 31.0, 40.0]}], Limits())
    others = [{**row, "label": label} for label in "bcd"]
    assert same_results([row, *others], others, Limits.of("fp16", 0.25))
    assert not same_results([row, *others], others[1:], Limits.of("fp16", 0.25))
    lower = {**row, "score": 0.8}
    assert same_results([lower, *others], [row, *others], Limits.of("int8", 0.25))
    assert not same_results([lower], [row], Limits.of("fp16", 0.25))
