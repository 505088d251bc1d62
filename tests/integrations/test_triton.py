"""Model repositories for Triton: their configurations, and the boxes of a real Triton."""

from __future__ import annotations

import hashlib
import json
import shutil
import site
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import web
from triton_repository import COMMAND, REASON, running

import infersdk
from infersdk.bundles import pack
from infersdk.cli import main
from infersdk.data import CLASSIFIER, CLASSIFIER_SETTINGS, DETECTOR, IMAGE
from infersdk.errors import BackendUnavailableError, ConfigError, OutputError
from infersdk.integrations.triton import export
from infersdk.models import Classifier, YOLOv5, create
from infersdk.serve.server import require_packages

try:
    require_packages()
except BackendUnavailableError as error:
    pytest.skip(str(error), allow_module_level=True)
model_config_pb2: Any = pytest.importorskip("tritonclient.grpc.model_config_pb2")
pytest.importorskip("onnxruntime")
onnx_models = pytest.importorskip("onnx_models")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packaged models and a network, exported by the command."""
    folder = tmp_path_factory.mktemp("export")
    network = onnx_models.double(folder / "double.onnx")
    models = {
        "detector": {"type": "yolov5", "path": str(DETECTOR), "conf": 0.5, "class_agnostic": True},
        "classifier": {"type": "classifier", "path": str(CLASSIFIER), **CLASSIFIER_SETTINGS},
        "double": {"type": "network", "path": str(network), "max_batch": 4},
    }
    (folder / "app.json").write_text(json.dumps({"models": models}))
    assert main(["export-triton", str(folder / "app.json"), "-o", str(folder / "repository")]) == 0
    return folder / "repository"


def config(repository: Path, name: str) -> Any:
    from google.protobuf import text_format

    return text_format.Parse((repository / name / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())


def test_configurations(repository: Path) -> None:
    found = config(repository, "double")
    assert (found.backend, found.max_batch_size, found.default_model_filename) == ("onnxruntime", 4, "double.onnx")
    assert [(one.name, list(one.dims)) for one in found.input] == [("x", [4])]
    assert (repository / "double" / "1" / "double.onnx").is_file()
    found = config(repository, "detector")
    assert (found.backend, found.max_batch_size) == ("python", 64)
    assert [(one.name, one.optional) for one in found.input] == [("image", True), ("pixels", True)]
    boxes = {one.name: list(one.dims) for one in found.output}
    assert boxes["detection_boxes"] == [-1, 4]
    assert boxes["num_detections"] == [1]


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_only_rows_of_requests_are_batched(tmp_path: Path, backend: str) -> None:
    from infersdk.integrations.triton import export

    pytest.importorskip(backend)
    paths = {
        "double": onnx_models.double(tmp_path / "double.onnx"),
        "renamed": onnx_models.identity(tmp_path / "renamed.onnx", ["batch", 4], declared=["y_dim_0", 4]),
        "found": onnx_models.found(tmp_path / "found.onnx"),
        "free": onnx_models.found(tmp_path / "free.onnx", width="width"),
    }
    table = {"type": "network", "backend": backend, "max_batch": 4}
    export({"models": {name: {**table, "path": str(path)} for name, path in paths.items()}}, tmp_path / "r")
    sizes = {name: config(tmp_path / "r", name).max_batch_size for name in paths}
    assert sizes == {"double": 4, "renamed": 4, "found": 0, "free": 0}
    assert list(config(tmp_path / "r", "found").output[0].dims) == [-1, 2]


def test_what_triton_cannot_serve(tmp_path: Path) -> None:
    path = str(onnx_models.double(tmp_path / "m.onnx"))
    for table, said in (
        ({"type": "network", "path": path, "backend": "ncnn"}, "Triton has no backend for 'ncnn'"),
        ({"type": "network", "path": path, "backend": "tensorrt"}, "infersdk build MODEL -o MODEL.engine"),
        ({"type": "network", "path": path, "max_btch": 4}, "no field 'max_btch'"),
        ({"type": "network", "path": path, "backend": "openvino", "precision": "fp16"}, "no setting for precision"),
        ({"type": "yolov5"}, "path names the model file"),
        ({"type": "yolov5", "path": path, "shadow": {}}, "Triton has no shadow models"),
        (3, "models.m is a table, not 3"),
    ):
        with pytest.raises(ConfigError, match=said):
            export({"models": {"m": table}}, tmp_path / "r")
    with pytest.raises(ConfigError, match="has no model; give each a table"):
        export({}, tmp_path / "r")
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot make the folder .*file"):
        export({"models": {"m": {"type": "network", "path": path}}}, tmp_path / "file")


def test_a_failed_export_leaves_the_last_one_alone(tmp_path: Path) -> None:
    """Also one whose model lies in the repository itself."""
    table: dict[str, Any] = {"type": "network", "path": str(onnx_models.double(tmp_path / "m.onnx"))}
    export({"models": {"m": table}}, tmp_path / "r")
    exported = tmp_path / "r" / "m" / "1" / "m.onnx"
    with pytest.raises(ConfigError, match="Triton has no backend"):
        export({"models": {"m": {**table, "backend": "ncnn"}}}, tmp_path / "r")
    export({"models": {"m": {**table, "path": str(exported)}}}, tmp_path / "r")
    assert exported.read_bytes() == (tmp_path / "m.onnx").read_bytes()
    assert [path.name for path in (tmp_path / "r").iterdir()] == ["m"]
    with pytest.raises(ConfigError, match="without a slash"):
        export({"models": {"..": table}}, tmp_path / "r")
    assert exported.is_file()


def test_only_an_exported_model_is_replaced(tmp_path: Path) -> None:
    """A folder that has the name of a model may hold its source, or the source of another one."""
    for name in ("m", "other"):
        (tmp_path / name).mkdir()
    table: dict[str, Any] = {"type": "network", "path": str(onnx_models.double(tmp_path / "m" / "m.onnx"))}
    with pytest.raises(OutputError, match="exists already, and is no exported model"):
        export({"models": {"other": {**table, "path": "none.onnx"}, "m": table}}, tmp_path)
    assert list((tmp_path / "m").iterdir()) == [Path(table["path"])]
    assert (tmp_path / "other").is_dir()
    export({"models": {"m": table}}, tmp_path / "r")
    exported = {**table, "path": str(tmp_path / "r" / "m" / "1" / "m.onnx")}
    for models in (
        {"m": table, "n": exported},
        {"m": {"type": "network", "versions": {"1": exported, "2": table}}},
    ):
        with pytest.raises(OutputError, match="has an input in it"):
            export({"models": models}, tmp_path / "r")
    assert Path(exported["path"]).is_file()


@pytest.mark.parametrize("kind", ["network", "yolov5"])
def test_the_newest_version_is_exported(tmp_path: Path, kind: str) -> None:
    newest = onnx_models.double(tmp_path / "new.onnx") if kind == "network" else DETECTOR
    versions = {"9": {"path": "none.onnx"}, "10": {"path": str(newest)}}
    export({"models": {"m": {"type": kind, "path": "none.onnx", "versions": versions}}}, tmp_path / "r")
    assert [path.name for path in (tmp_path / "r" / "m").iterdir() if path.is_dir()] == ["10"]
    assert (tmp_path / "r" / "m" / "10" / Path(newest).name).read_bytes() == Path(newest).read_bytes()


def test_weights_in_a_folder_below_the_model(tmp_path: Path) -> None:
    import onnx

    model = onnx.load(CLASSIFIER)
    onnx.external_data_helper.convert_model_to_external_data(model, location="w/weights.bin", size_threshold=0)
    (tmp_path / "w").mkdir()
    onnx.save(model, tmp_path / "m.onnx")
    export({"models": {"m": {"type": "network", "path": str(tmp_path / "m.onnx")}}}, tmp_path / "r")
    weights = Path("w", "weights.bin")
    assert (tmp_path / "r" / "m" / "1" / weights).read_bytes() == (tmp_path / weights).read_bytes()


@pytest.mark.parametrize("kind", ["network", "yolov5"])
def test_a_model_at_an_address(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fsspec")
    monkeypatch.setenv("INFERSDK_CACHE", str(tmp_path / "cache"))
    data = onnx_models.double(tmp_path / "a.onnx").read_bytes() if kind == "network" else DETECTOR.read_bytes()
    with web.served({"/model.onnx": web.content(data, None)}) as address:
        path = f"{address}/model.onnx#sha256={hashlib.sha256(data).hexdigest()}"
        export({"models": {"m": {"type": kind, "path": path}}}, tmp_path / "r")
    assert (tmp_path / "r" / "m" / "1" / "model.onnx").read_bytes() == data
    if kind != "network":
        create(tmp_path / "r" / "m" / "1" / "app.json")["model"].close()


def test_the_public_key_of_a_bundle_is_copied(tmp_path: Path) -> None:
    ed25519 = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519")
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    key = ed25519.Ed25519PrivateKey.generate()
    private, public = tmp_path / "private.pem", tmp_path / "public.pem"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    pack(DETECTOR, tmp_path / "d.infer", images=[IMAGE], sign_with=private)
    (tmp_path / "app.json").write_text(json.dumps({"models": {"m": {"path": "d.infer", "trust": "public.pem"}}}))
    export(tmp_path / "app.json", tmp_path / "r")
    public.unlink()
    create(tmp_path / "r" / "m" / "1" / "app.json")["model"].close()


@pytest.mark.assets
def test_built_in_names_are_no_file(assets: Path, tmp_path: Path) -> None:
    table = {"type": "yolov5", "path": str(assets / "models" / "yolov5n.onnx"), "names": "coco"}
    export({"models": {"m": table}}, tmp_path / "r")
    exported = json.loads((tmp_path / "r" / "m" / "1" / "app.json").read_text())
    assert exported["models"]["model"]["names"] == "coco"


def test_a_wrapper_of_an_openvino_ir(tmp_path: Path) -> None:
    openvino = pytest.importorskip("openvino")
    openvino.save_model(openvino.convert_model(CLASSIFIER), tmp_path / "c.xml")
    table = {"type": "classifier", "path": str(tmp_path / "c.xml"), "backend": "openvino", **CLASSIFIER_SETTINGS}
    export({"models": {"m": table}}, tmp_path / "r")
    for file in ("c.xml", "c.bin"):
        (tmp_path / file).unlink()
    with create(tmp_path / "r" / "m" / "1" / "app.json")["model"] as model:
        assert model(IMAGE).labels


@pytest.fixture(scope="module")
def port(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A real Triton with the wrappers; it has no backend of its own for networks."""
    if not COMMAND:
        pytest.skip(REASON)
    served = tmp_path_factory.mktemp("served")
    # Its Python takes no PYTHONPATH: where infersdk is goes into model.py.
    paths = [str(Path(infersdk.__path__[0]).parent), *site.getsitepackages()]
    for name in ("detector", "classifier"):
        shutil.copytree(repository / name, served / name)
        code = served / name / "1" / "model.py"
        code.write_text(f"import sys\n\nsys.path += {paths!r}\n{code.read_text()}")
    with running(served, tmp_path_factory.mktemp("log") / "log") as ports:
        yield ports.grpc_port


def ask(port: int, model: str, *images: bytes, **parameters: Any) -> Any:
    import tritonclient.grpc as triton

    one = triton.InferInput("image", [len(images), 1], "BYTES")
    one.set_data_from_numpy(np.array(images, dtype=object)[:, None])
    with triton.InferenceServerClient(f"127.0.0.1:{port}") as client:
        return client.infer(model, [one], parameters=parameters)


@pytest.mark.slow
def test_a_real_triton_gives_the_boxes_of_the_process(port: int) -> None:
    with YOLOv5(DETECTOR, conf=0.5, class_agnostic=True) as detector:
        boxes = detector(IMAGE)
    image = Path(IMAGE).read_bytes()
    result = ask(port, "detector", image, image)
    assert result.as_numpy("num_detections").reshape(-1).tolist() == [len(boxes)] * 2
    for row in range(2):
        np.testing.assert_array_equal(result.as_numpy("detection_boxes")[row], boxes.xyxy)
        np.testing.assert_array_equal(result.as_numpy("detection_scores")[row], boxes.scores)
        np.testing.assert_array_equal(result.as_numpy("detection_classes")[row], boxes.class_ids)
    few = ask(port, "detector", image, max_det=1).as_numpy("num_detections")
    assert few.reshape(-1).tolist() == [1]
    with pytest.raises(Exception, match="nonesuch"):
        ask(port, "detector", image, nonesuch=1)


@pytest.mark.slow
def test_a_real_triton_gives_the_classes_of_the_process(port: int) -> None:
    with Classifier(CLASSIFIER, **CLASSIFIER_SETTINGS) as classifier:
        best = classifier(IMAGE)
    result = ask(port, "classifier", Path(IMAGE).read_bytes())
    np.testing.assert_array_equal(result.as_numpy("class_ids")[0], best.class_ids)
    np.testing.assert_array_equal(result.as_numpy("class_scores")[0], best.scores)
    with pytest.raises(Exception, match="bytes given: not an image"):
        ask(port, "classifier", b"no image")
