"""Keras models in HDF5: layers against results that Keras 2 computed, and files that are damaged or hostile."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infersdk.errors import InferSDKError, ModelFormatError, UnsupportedModelError
from infersdk.importers import convert

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


def write(path: Path, config: Any, version: str, weights: dict[str, dict[str, Any]]) -> Path:
    """A file as Keras 2 writes it."""
    with h5py.File(path, "w") as file:
        file.attrs["model_config"] = config if isinstance(config, str) else json.dumps(config)
        file.attrs["keras_version"] = version
        root = file.create_group("model_weights")
        root.attrs["layer_names"] = np.asarray([name.encode() for name in weights], dtype="S")
        for layer, arrays in weights.items():
            group = root.create_group(layer)
            group.attrs["weight_names"] = np.asarray([name.encode() for name in arrays], dtype="S") if arrays else []
            for name, array in arrays.items():
                group.create_dataset(name, data=array)
    return path


def model_file(name: str, folder: Path) -> tuple[Path, list[Any], list[Any]]:
    """The file, its inputs and its outputs."""
    arrays = archive()[name]
    about = json.loads(arrays["about"].tobytes())
    weights = {
        layer: {weight: arrays[f"weight|{layer}|{weight}"] for weight in names}
        for layer, names in about["weights"].items()
    }
    path = write(folder / f"{name}.h5", about["config"], about["version"], weights)
    columns = [
        [arrays[f"{side}_{i}"] for i in range(sum(key.startswith(f"{side}_") for key in arrays))]
        for side in ("in", "out")
    ]
    return path, columns[0], columns[1]


#: Layers that depend on a mask.
REFUSED = {"embed_mask_lstm": "LSTM: steps that a mask leaves out"}


@pytest.mark.parametrize("name", sorted(archive()))
def test_layers(name: str, tmp_path: Path) -> None:
    import onnxruntime

    path, inputs, outputs = model_file(name, tmp_path)
    if name in REFUSED:
        with pytest.raises(UnsupportedModelError, match=REFUSED[name]):
            convert(path, check=False)
        return
    session = onnxruntime.InferenceSession(convert(path, check=False).content, providers=["CPUExecutionProvider"])
    found = session.run(None, {spec.name: array for spec, array in zip(session.get_inputs(), inputs, strict=True)})
    assert len(found) == len(outputs)
    for spec, expected, given in zip(session.get_outputs(), outputs, found, strict=True):
        np.testing.assert_allclose(given, expected, rtol=1e-4, atol=1e-5)
        assert all(not isinstance(size, int) or size == n for size, n in zip(spec.shape, given.shape, strict=True))


@pytest.mark.assets
def test_files_of_the_test_data(assets: Path) -> None:
    """All but the one with bytecode; against Keras where it is installed."""
    refused = {}
    for path in sorted((assets / "frameworks" / "keras").glob("*.h5")):
        try:
            conversion = convert(path)
        except InferSDKError as error:
            refused[path.name] = str(error)
            continue
        assert conversion.check is None or conversion.check.passed, conversion.verdict
        assert conversion.check is not None or "not installed" in conversion.verdict or "Keras" in conversion.verdict
    assert list(refused) == ["split.h5"]
    assert "bytecode" in refused["split.h5"]


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


def weights() -> dict[str, dict[str, Any]]:
    return {"d": {"d/kernel:0": np.ones((4, 2), np.float32), "d/bias:0": np.zeros(2, np.float32)}}


def test_a_plain_file_is_accepted(tmp_path: Path) -> None:
    assert convert(write(tmp_path / "m.h5", dense(), "2.4.0", weights()), check=False).content


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{", "not JSON"),
        ("[1]", "names no class"),
        ({"class_name": "MyModel", "config": {}}, "class 'MyModel', whose code is not in the file"),
        ({"class_name": "Sequential", "config": {"layers": 3}}, "no list of layers"),
        ({"class_name": "Functional", "config": {"layers": []}}, "does not say its inputs"),
        (dense(activation="no_such"), "activation 'no_such'"),
        (dense(activation={"class_name": "__lambda__", "config": {"value": "4wEA"}}), "activation __lambda__"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_damaged_configurations(config: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises((ModelFormatError, UnsupportedModelError), match=message):
        convert(write(tmp_path / "m.h5", config, "2.4.0", weights()))


def test_missing_layers_are_listed_at_once(tmp_path: Path) -> None:
    config = dense()
    config["config"]["layers"] += [
        {"class_name": kind, "config": {"name": kind.lower()}} for kind in ("My", "Your", "Lambda")
    ]
    config["config"]["layers"].append({"class_name": "My", "config": {"name": "again"}})
    with pytest.raises(UnsupportedModelError, match=r"Lambda holds Python bytecode.*My \(2\), Your \(1\)"):
        convert(write(tmp_path / "m.h5", config, "2.4.0", weights()))


def test_weights_of_other_files_are_not_read(tmp_path: Path) -> None:
    secret = write(tmp_path / "secret.h5", dense(), "2.4.0", weights())
    path = write(tmp_path / "m.h5", dense(), "2.4.0", {"d": {}})
    with h5py.File(path, "r+") as file:
        group = file["model_weights/d"]
        group["kernel"] = h5py.ExternalLink(str(secret), "/model_weights/d/d/kernel:0")
        group.attrs["weight_names"] = np.asarray([b"kernel"])
    with pytest.raises(ModelFormatError, match="is a link"):
        convert(path, check=False)
    path = write(tmp_path / "e.h5", dense(), "2.4.0", {"d": {}})
    with h5py.File(path, "r+") as file:
        group = file["model_weights/d"]
        group.create_dataset("kernel", (4, 2), np.float32, external=[(str(secret), 0, 32)])
        group.attrs["weight_names"] = np.asarray([b"kernel"])
    with pytest.raises(ModelFormatError, match="in another file"):
        convert(path, check=False)


def test_nothing_is_allocated_for_what_is_not_there(tmp_path: Path) -> None:
    path = write(tmp_path / "m.h5", dense(), "2.4.0", {"d": {}})
    with h5py.File(path, "r+") as file:
        group = file["model_weights/d"]
        group.create_dataset("kernel", (1 << 20, 1 << 20), np.float32, chunks=(64, 64))  # 4 TiB, none of them written
        group.attrs["weight_names"] = np.asarray([b"kernel"])
    with pytest.raises(ModelFormatError, match="needs 4398046511104"):
        convert(path, check=False)


def test_weights_without_an_architecture(tmp_path: Path) -> None:
    path = write(tmp_path / "m.h5", dense(), "2.4.0", weights())
    with h5py.File(path, "r+") as file:
        del file.attrs["model_config"]
    with pytest.raises(UnsupportedModelError, match="there is no architecture in it"):
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
    from infersdk.importers.keras.archives import check_configuration

    with pytest.raises(UnsupportedModelError, match="no code of a file is executed"):
        check_configuration({"module": "keras", "class_name": "Sequential", "config": {"layers": [entry]}})


def test_a_configuration_of_plain_layers() -> None:
    from infersdk.importers.keras.archives import check_configuration

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
