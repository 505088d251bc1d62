"""Keras models in HDF5: layers against results that Keras 2 computed, and files that are damaged or hostile."""

from __future__ import annotations

import functools
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conversions import converted
from framework_files import write_keras

import infersdk
from infersdk.core.model_source import ModelSource
from infersdk.errors import (
    BackendUnavailableError,
    ConfigError,
    InferSDKError,
    ModelFormatError,
    UnsupportedModelError,
)
from infersdk.importers import convert
from infersdk.importers.keras.importing import write_copy
from infersdk.importers.workers import keras_export

h5py = pytest.importorskip("h5py")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnx_ir")
ARCHIVE = Path(__file__).resolve().parent / "keras_models.npz"


@functools.cache
def archive() -> dict[str, Any]:
    """By the name of a model: its arrays (see make_keras_models.py)."""
    found: dict[str, Any] = {}
    with np.load(ARCHIVE) as values:
        for key in values.files:
            name, _, rest = key.partition("|")
            found.setdefault(name, {})[rest] = values[key]
    return found


def model_file(name: str, folder: Path) -> tuple[Path, list[Any], list[Any]]:
    """The file, its inputs and its outputs."""
    arrays = archive()[name]
    about = json.loads(arrays["about"].tobytes())
    weights = {
        layer: {weight: arrays[f"weight|{layer}|{weight}"] for weight in names}
        for layer, names in about["weights"].items()
    }
    path = write_keras(folder / f"{name}.h5", about["config"], about["version"], weights)
    columns = [
        [arrays[f"{side}_{i}"] for i in range(sum(key.startswith(f"{side}_") for key in arrays))]
        for side in ("in", "out")
    ]
    return path, columns[0], columns[1]


#: Models that a framework does not convert, with the reason.
REFUSED = {
    "keras": {
        "init_GRU": "expects 1 input", "init_LSTM": "expects 1 input", "init_SimpleRNN": "expects 1 input",
        "layernorm": "Shape mismatch", "locally": "LocallyConnected2D", "locally1d": "LocallyConnected1D",
        "mha": "MultiHeadAttention", "nested_shared": "Invalid Functional model configuration",
        "upsample_bicubic": "bicubic interpolation of Keras 3 on PyTorch differs",
    },
    "tf_keras": {
        "conv2d_groups": "No Op registered for PartitionedCall",
        "deconv_same_1_2": "pads must not contain negative",
        "deconv_same_2_3": "pads must not contain negative",
        "deconv_valid_1_2": "pads must not contain negative",
        "deconv_valid_2_3": "pads must not contain negative",
        "deconv_valid_op": "pads must not contain negative",
        "normalization": "and the source has 1 inputs",
    },
}  # fmt: skip


def require(framework: str) -> None:
    absent = [name for name in keras_export.PACKAGES[framework] if importlib.util.find_spec(name) is None]
    if absent:
        pytest.skip(f"{', '.join(absent)} is not installed")


@pytest.mark.parametrize("name", sorted(archive()))
@pytest.mark.parametrize("framework", sorted(keras_export.PACKAGES))
def test_layers_give_the_results_of_keras_2(framework: str, name: str, tmp_path: Path) -> None:
    import onnxruntime

    require(framework)
    path, inputs, outputs = model_file(name, tmp_path)
    version = write_copy(ModelSource.of(path), tmp_path / "model.h5")
    shapes = [{"name": "", "sizes": [1, *array.shape[1:]], "dtype": ""} for array in inputs]
    request = {"model": "model.h5", "version": version, "shapes": shapes, "samples": {}, "check": True}
    target = tmp_path / "model.onnx"
    if name in REFUSED[framework]:
        with pytest.raises(Exception, match=REFUSED[framework][name]):
            keras_export.CONVERTERS[framework](tmp_path, request, target)
        return
    assert keras_export.CONVERTERS[framework](tmp_path, request, target)["notes"]
    session = onnxruntime.InferenceSession(str(target), providers=["CPUExecutionProvider"])
    names = [spec.name for spec in session.get_inputs()]
    rows = [
        session.run(None, {key: array[i : i + 1] for key, array in zip(names, inputs, strict=True)})
        for i in range(len(inputs[0]))
    ]
    assert all(spec.name.rpartition("_output")[1] for spec in session.get_outputs())
    for expected, found in zip(outputs, zip(*rows, strict=True), strict=True):
        np.testing.assert_allclose(np.concatenate(found), expected, rtol=1e-4, atol=1e-5)


#: The test data's files.
FILES = (
    "activation", "average_pooling", "bidirectional_rnn", "conv1d", "conv2d_activation", "deconv2d", "depthwise_conv2d",
    "embedding", "gru", "lstm", "permute", "reduce", "rnn_relu", "separable_conv2d", "split", "upsampling_nearest_2d",
)  # fmt: skip
#: Those with more than a hundred copies of a cell, for which PyTorch's exporters take minutes.
LONG, MINUTES = ("bidirectional_rnn", "gru", "lstm"), [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.assets
def test_all_files_are_named(assets: Path) -> None:
    assert {path.stem for path in (assets / "frameworks" / "keras").glob("*.h5")} == set(FILES)


@pytest.mark.assets
@pytest.mark.parametrize("name", [pytest.param(n, marks=MINUTES if n in LONG else []) for n in FILES])
def test_files_of_the_test_data(assets: Path, name: str) -> None:
    require("keras")
    path = assets / "frameworks" / "keras" / f"{name}.h5"
    tensorflow = all(importlib.util.find_spec(package) for package in keras_export.PACKAGES["tf_keras"])
    if name == "split":
        with pytest.raises(InferSDKError, match="bytecode"):
            convert(path)
    elif name == "reduce" and not tensorflow:
        # Without TensorFlow, Keras 3 does not know its functions.
        with pytest.raises(InferSDKError, match="TensorFlowOpLayer"):
            convert(path)
    else:
        conversion = convert(path)
        assert conversion.check.passed, conversion.verdict
        assert "by " in conversion.notes[0]


def test_free_sizes_are_given(tmp_path: Path) -> None:
    require("keras")
    path, _, _ = model_file("hw_free", tmp_path)
    with pytest.raises(ConfigError, match=r"give its free sizes: --shape input_1=1,64,64,3"):
        convert(path)
    with pytest.raises(ConfigError, match="no input 'x'"):
        convert(path, shapes={"x": (1, 8, 8, 3)})
    with pytest.raises(ConfigError, match=r"is \[None, None, None, 3\], not \[1, 8, 8, 4\]"):
        convert(path, shapes=[(1, 8, 8, 4)])
    with pytest.raises(ConfigError, match=r"input 'input_1' is float32, not float16"):
        convert(path, shapes=["1,16,12,3:float16"])
    converted(path, shapes=[(1, 16, 12, 3)])


def test_samples_are_given(tmp_path: Path) -> None:
    require("keras")
    path = write_keras(tmp_path / "m.h5", dense(), "2.4.0", weights())
    np.save(tmp_path / "x.npy", np.array([[1, 2, 3, 4]], np.float32))
    converted(path, samples=[f"x={tmp_path / 'x.npy'}"])
    with pytest.raises(ConfigError, match="no input 'y'; the inputs are x"):
        convert(path, samples={"y": [1]})


def test_files_of_keras_3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require("keras")
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    import keras

    x = keras.Input((12, 10, 3), name="pixels")
    y = keras.layers.Conv2D(4, 3, strides=2, padding="same", activation="hard_sigmoid")(x)
    steps = keras.layers.LSTM(5)(keras.layers.Reshape((30, 4))(y))
    outputs = [keras.layers.Dense(3, activation="softmax", name="classes")(steps), keras.layers.Add(name="sum")([y, y])]
    path = tmp_path / "m.h5"
    keras.Model(x, outputs).save(path)
    conversion = converted(path)
    assert [one.name for one in conversion.check.outputs] == ["classes_output", "sum_output"]
    assert conversion.notes[0].startswith("by Keras 3")
    assert conversion.notes[1] == "LSTM: each step is a copy of the cell"


def test_inputs_in_a_dict_keep_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require("keras")
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    import keras

    inputs = {name: keras.Input((4,), name=name) for name in ("b-1", "b_1", "1")}
    path = tmp_path / "m.keras"
    keras.Model(inputs, keras.layers.Concatenate()(list(inputs.values()))).save(path)
    with infersdk.load(converted(path).content) as infer:
        assert {spec.name for spec in infer.input_specs} == inputs.keys()


def test_an_embedding_within_a_nested_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its number of rows limits the random inputs."""
    require("keras")
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    import keras

    inner = keras.Sequential([keras.Input((4,), dtype="int32"), keras.layers.Embedding(3, 2)])
    x = keras.Input((4,), dtype="int32")
    assert keras_export.least_rows(keras.Model(x, inner(x))) == 3


def test_the_framework_and_its_reason_are_named(tmp_path: Path) -> None:
    require("keras")
    path, _, _ = model_file("shared_dense", tmp_path)
    notes = convert(path).notes
    assert any(note.startswith("by Keras 3") or note.startswith("by tf_keras") for note in notes)
    path = write_keras(tmp_path / "m.h5", dense(activation="no_such"), "2.4.0", weights())
    with pytest.raises(UnsupportedModelError, match=r"keras fails: .*no_such"):
        convert(path)


def test_a_python_without_frameworks_is_refused(tmp_path: Path) -> None:
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    wrapper.chmod(0o755)
    path = write_keras(tmp_path / "m.h5", dense(), "2.4.0", weights())
    with pytest.raises(BackendUnavailableError, match=r"needs tf_keras and tensorflow and tf2onnx, or keras and torch"):
        convert(path, python=str(wrapper))


# ---- damage ----


def dense(**changes: Any) -> dict[str, Any]:
    layers = [
        {"class_name": "InputLayer", "config": {"batch_input_shape": [None, 4], "dtype": "float32", "name": "x"}},
        {
            "class_name": "Dense",
            "config": {"name": "d", "units": 2, "activation": "linear", "use_bias": True} | changes,
        },
    ]
    return {"class_name": "Sequential", "config": {"name": "s", "layers": layers}}


def operation(kind: str, **config: Any) -> dict[str, Any]:
    """A model with a function of TensorFlow."""
    layer = {"class_name": kind, "config": {"name": "f"} | config}
    return {"class_name": "Sequential", "config": {"name": "s", "layers": [layer]}}


def weights() -> dict[str, dict[str, Any]]:
    return {"d": {"d/kernel:0": np.ones((4, 2), np.float32), "d/bias:0": np.zeros(2, np.float32)}}


def test_a_plain_file_is_accepted(tmp_path: Path) -> None:
    path = write_keras(tmp_path / "m.h5", dense(), "2.4.0", weights())
    assert write_copy(ModelSource.of(path), tmp_path / "copy.h5") == "2.4.0"
    with h5py.File(tmp_path / "copy.h5") as file:
        assert json.loads(file.attrs["model_config"]) == dense()
        assert set(file) == {"model_weights"}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{", "not JSON"),
        ("[1]", "names no class"),
        ({"class_name": "MyModel", "config": {}}, "class 'MyModel', whose code is not in the file"),
        (dense(activation={"class_name": "__lambda__", "config": {"value": "4wEA"}}), "Lambda contains Python"),
        (dense(activation={"class_name": "function", "config": "eval"}), "function 'eval'"),
        (dense(more={"class_name": "Dense", "module": "keras_evil", "config": {}}), r"keras_evil\.Dense"),
        (operation("TFOpLambda", function="io.read_file"), r"TFOpLambda of the function 'io\.read_file'"),
        (operation("SlicingOpLambda", function="__operators__.open"), "SlicingOpLambda of the function"),
        (operation("TensorFlowOpLayer", node_def={"op": "WriteFile"}), "TensorFlowOpLayer of the function 'WriteFile'"),
        (operation("TensorFlowOpLayer", node_def="4wEA"), "TensorFlowOpLayer of the function"),
        ("[" * 100_000, "not JSON"),
        (dense(more=functools.reduce(lambda inner, _: [inner], range(300), 0)), "nested more than 200 deep"),
    ],
)
def test_damaged_configurations(config: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises((ModelFormatError, UnsupportedModelError), match=message):
        convert(write_keras(tmp_path / "m.h5", config, "2.4.0", weights()))


def test_missing_layers_are_listed_at_once(tmp_path: Path) -> None:
    config = dense()
    config["config"]["layers"] += [
        {"class_name": kind, "config": {"name": kind.lower()}} for kind in ("My", "Your", "Lambda")
    ]
    config["config"]["layers"].append({"class_name": "My", "config": {"name": "again"}})
    with pytest.raises(UnsupportedModelError, match=r"Lambda contains Python bytecode.*My \(2\), Your \(1\)"):
        convert(write_keras(tmp_path / "m.h5", config, "2.4.0", weights()))


def test_weights_of_other_files_are_not_read(tmp_path: Path) -> None:
    secret = write_keras(tmp_path / "secret.h5", dense(), "2.4.0", weights())
    path = write_keras(tmp_path / "m.h5", dense(), "2.4.0", {"d": {}})
    with h5py.File(path, "r+") as file:
        group = file["model_weights/d"]
        group["kernel"] = h5py.ExternalLink(str(secret), "/model_weights/d/d/kernel:0")
        group.attrs["weight_names"] = np.asarray([b"kernel"])
    with pytest.raises(ModelFormatError, match="is a link"):
        convert(path, check=False)
    path = write_keras(tmp_path / "e.h5", dense(), "2.4.0", {"d": {}})
    with h5py.File(path, "r+") as file:
        group = file["model_weights/d"]
        group.create_dataset("kernel", (4, 2), np.float32, external=[(str(secret), 0, 32)])
        group.attrs["weight_names"] = np.asarray([b"kernel"])
    with pytest.raises(ModelFormatError, match="in another file"):
        convert(path, check=False)


def test_nothing_is_allocated_for_what_is_not_there(tmp_path: Path) -> None:
    path = write_keras(tmp_path / "m.h5", dense(), "2.4.0", {"d": {}})
    with h5py.File(path, "r+") as file:
        group = file["model_weights/d"]
        group.create_dataset("kernel", (1 << 20, 1 << 20), np.float32, chunks=(64, 64))  # 4 TiB, none of them written
        group.attrs["weight_names"] = np.asarray([b"kernel"])
    with pytest.raises(ModelFormatError, match="needs 4398046511104"):
        convert(path, check=False)


def test_weights_without_an_architecture(tmp_path: Path) -> None:
    path = write_keras(tmp_path / "m.h5", dense(), "2.4.0", weights())
    with h5py.File(path, "r+") as file:
        del file.attrs["model_config"]
    with pytest.raises(UnsupportedModelError, match="no architecture; save the whole model"):
        convert(path)


# ---- Keras 3's archives ----


@pytest.mark.parametrize(
    "entry",
    [
        {"module": "keras.layers", "class_name": "Lambda", "config": {}, "registered_name": None},
        {"module": "os", "class_name": "system", "config": "id", "registered_name": None},
        {"module": "builtins", "class_name": "function", "config": "eval", "registered_name": "function"},
        {"module": "keras_evil", "class_name": "Dense", "config": {}, "registered_name": None},
        {"module": "keras.layers", "class_name": "Dense", "config": {}, "registered_name": "mine>Dense"},
        {"module": "keras.layers", "class_name": "TFSMLayer", "config": {"filepath": "/"}, "registered_name": None},
        {"class_name": "__lambda__", "config": {"value": "4wEA"}},
    ],
)
def test_configurations_that_name_code(entry: dict[str, Any]) -> None:
    from infersdk.importers.keras.importing import check_configuration

    with pytest.raises(UnsupportedModelError, match="code in files is never executed"):
        check_configuration({"module": "keras", "class_name": "Sequential", "config": {"layers": [entry]}})


def test_a_configuration_of_plain_layers() -> None:
    from infersdk.importers.keras.importing import check_configuration

    plain = {"module": "keras.layers", "class_name": "Dense", "config": {"activation": "relu"}, "registered_name": None}
    check_configuration({"module": "keras", "class_name": "Sequential", "config": {"layers": [plain]}})
    nested: Any = plain
    for _ in range(300):
        nested = [nested]
    with pytest.raises(ModelFormatError, match="nested"):
        check_configuration(nested)


def test_damaged_archives(tmp_path: Path) -> None:
    import zipfile

    path = tmp_path / "m.keras"
    for content, message in ((b"{", "damaged"), (b"[" * 100_000, "damaged")):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("config.json", content)
            archive.writestr("model.weights.h5", b"")
        with pytest.raises(ModelFormatError, match=message):
            convert(path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("config.json", b"{}")
        archive.writestr("model.weights.h5", bytes(1 << 28))
    with pytest.raises(ModelFormatError, match="expands to more than"):
        convert(path)
