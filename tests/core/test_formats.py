"""Formats of model files, recognised by their content."""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path

import pytest

import infersdk
from infersdk.core.formats import FORMATS, format_of
from infersdk.core.model_source import ModelSource
from infersdk.data import DETECTOR, IMAGE
from infersdk.errors import ModelFormatError


def archive(*names: str) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as file:
        for name in names:
            file.writestr(name, b"x")
    return content.getvalue()


SAMPLES: dict[str, tuple[str, bytes]] = {
    "tensorrt-rtx": ("m.engine", b"vtrt" + bytes(100)),
    "tensorrt": ("m.engine", b"ftrt" + bytes(100)),
    "ort": ("m.ort", bytes(4) + b"ORTM" + bytes(50)),
    "tflite": ("m.tflite", b"\x1c\0\0\0TFL3" + bytes(50)),
    "openvino": ("m.xml", b'<?xml version="1.0"?>\n<net name="a" version="11">\n</net>'),
    "ncnn": ("m.param", b"7767517\n2 2\nInput data 0 1 data\n"),
    "pnnx": ("m.pnnx.param", b"7767517\n2 1\npnnx.Input in0 0 1 0\n"),
    "torchscript": ("m.pt", archive("m/data.pkl", "m/constants.pkl", "m/code/__torch__.py")),
    "torch-checkpoint": ("m.pt", archive("archive/data.pkl", "archive/data/0", "archive/version")),
    "torch-export": ("m.pt2", archive("m/archive_format", "m/models/model.json")),
    "keras": ("m.keras", archive("metadata.json", "config.json", "model.weights.h5")),
    "numpy": ("m.npz", archive("a.npy", "b.npy")),
    "archive": ("m.zip", archive("readme.txt")),
    "safetensors": ("m.safetensors", struct.pack("<Q", 10) + b'{"a": 1}  ' + bytes(9)),
    "tensorflow-graph": ("m.pb", b"\x0a\x05\x0a\x01x\x12\x00" + b"\x22\x02\x08\x01"),
    "tensorflow-saved-model": ("saved_model.pb", b"\x08\x01\x12\x04\x0a\x02\x0a\x00"),
    "gguf": ("m.gguf", b"GGUF\x03\0\0\0"),
    "git-lfs": ("m.onnx", b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"),
    "html": ("m.onnx", b"<!DOCTYPE html><html><body>Not found</body></html>"),
    "image": ("m.jpg", IMAGE.read_bytes()),
    "onnx": ("m.onnx", DETECTOR.read_bytes()),
}


@pytest.mark.parametrize("key", SAMPLES)
def test_formats_by_their_content(key: str, tmp_path: Path) -> None:
    name, content = SAMPLES[key]
    assert format_of(content, name) is FORMATS[key]
    (tmp_path / name).write_bytes(content)
    assert ModelSource.of(tmp_path / name).format is FORMATS[key]


@pytest.mark.parametrize(
    ("name", "key"),
    [("m.pt", "torchscript"), ("m.PTH", "torchscript"), ("m.pt2", "torch-export"), ("m.keras", "keras"),
     ("m.infer", "bundle"), ("m.zip", "archive")],
)  # fmt: skip
def test_a_zip_archive_that_is_cut_off(name: str, key: str) -> None:
    """The suffix decides, and the reader of the format reports the damage."""
    assert format_of(archive("m/data.pkl")[:60], name) is FORMATS[key]


@pytest.mark.parametrize("content", [b"a", b"not a model", bytes(100), b"\xff" * 100, b"PK\x03\x04" + bytes(50)])
def test_what_is_not_recognised(content: bytes) -> None:
    found = format_of(content, "m.bin")
    assert found is None or found.key == "archive"


@pytest.mark.parametrize(
    "key", [key for key in SAMPLES if key not in ("onnx", "ort", "archive") and not FORMATS[key].importer]
)
def test_loading_says_what_helps(key: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    name, content = SAMPLES[key]
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ModelFormatError) as caught:
        infersdk.load(path)
    text = str(caught.value)
    assert FORMATS[key].title in text
    assert "which backend 'onnxruntime' does not read" in text
    assert text.endswith(FORMATS[key].help_for(str(path)))
    assert "{file}" not in text


@pytest.mark.assets
def test_files_of_the_test_data(assets: Path) -> None:
    expected = {
        "models/yolov5n.onnx": "onnx", "models/yolov5n.pt": "torch-checkpoint", "ir/yolov8n-pose.xml": "openvino",
        "models/face_landmark.tflite": "tflite", "pnnx/test.pnnx.param": "pnnx",
    }  # fmt: skip
    folders = {"keras": "keras-h5", "tensorflow": "tensorflow-graph", "torchscript": "torchscript"}
    files = {assets / name: key for name, key in expected.items()}
    files |= {file: key for folder, key in folders.items() for file in (assets / "frameworks" / folder).iterdir()}
    for file, key in files.items():
        found = ModelSource.of(file).format
        assert found is not None, file
        assert found.key == key, file
