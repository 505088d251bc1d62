"""`infersdk pack`, `unpack`, `diff` and `info` of bundles; bundles in `predict` and in a configuration."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from infersdk import cli
from infersdk.core.cache import Cache
from infersdk.data import DETECTOR, IMAGE

pytest.importorskip("onnxruntime")
pytest.importorskip("cryptography")
needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl writes the keys")


@pytest.fixture(scope="module", name="folder")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two bundles of different settings; the second is encrypted."""
    folder = tmp_path_factory.mktemp("bundles")
    (folder / "key").write_text("0f" * 32)
    common = ["pack", str(DETECTOR), "--images", str(IMAGE), "--samples", "1"]
    assert cli.main([*common, "-o", str(folder / "a.infer"), "--conf", "0.3", "--release", "1"]) == 0
    sealed = ["--conf", "0.5", "--release", "2", "--encrypt", f"file:{folder / 'key'}"]
    assert cli.main([*common, "-o", str(folder / "b.infer"), *sealed]) == 0
    return folder


def test_diff(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files, key = [str(folder / "a.infer"), str(folder / "b.infer")], ["--key", f"file:{folder / 'key'}"]
    assert cli.main(["diff", *files, *key, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["version"] == ["1", "2"]
    assert found["settings.conf"] == [0.3, 0.5]
    assert found["encrypted"] == [False, True]
    assert "part model.onnx" not in found
    assert cli.main(["diff", files[0], files[0]]) == 0
    assert capsys.readouterr().out == ""
    assert cli.main(["diff", *files]) == 2, "there is no key"
    assert "IFS314" in capsys.readouterr().err
    assert cli.main(["diff", files[0], files[0], *key]) == 2
    assert "--key is for an encrypted bundle" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--form", "int8=a.onnx", "--form", "int8=b.onnx"], "--form int8 is given twice: 'a.onnx' and 'b.onnx'"),
        (["--form", "int8"], "--form 'int8' is not of the form PRECISION=FILE, such as int8=m.onnx"),
        (["--form", "int8="], "--form 'int8=' is not of the form PRECISION=FILE, such as int8=m.onnx"),
        (["--form", "int8=5"], "no model at '5'"),
    ],
)
def test_wrong_forms(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["pack", str(DETECTOR), "--images", str(IMAGE), "-o", "no.infer", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_unpack(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["unpack", str(folder / "b.infer"), "-o", str(tmp_path), "--key", f"file:{folder / 'key'}"]) == 0
    assert str(tmp_path / "model.onnx") in capsys.readouterr().out
    assert (tmp_path / "model.onnx").read_bytes() == DETECTOR.read_bytes()


def test_unpack_and_diff_take_addresses(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFERSDK_CACHE", str(tmp_path / "cache"))
    content = (folder / "a.infer").read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    Cache().put(digest, content, kind="download", backend="", label="a.infer")
    address = f"https://models.example/a.infer#sha256={digest}"
    assert cli.main(["diff", str(folder / "a.infer"), address]) == 0
    assert cli.main(["unpack", address, "-o", str(tmp_path / "parts")]) == 0
    assert (tmp_path / "parts" / "model.onnx").read_bytes() == DETECTOR.read_bytes()


def test_info(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli.main(["info", str(folder / "a.infer"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert cli.main(["info", str(folder / "a.infer"), "--key", "env:NOT_THERE"]) == 2
    assert "is not encrypted, and a key is given" in capsys.readouterr().err
    assert (report["wrapper"], report["settings"], report["encrypted"]) == ("yolov5", {"conf": 0.3}, "no")
    assert report["inputs"][0]["name"] == "images"
    assert cli.main(["info", str(folder / "b.infer"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["encrypted"] == "yes"
    assert "inputs" not in report, "the model is encrypted"
    monkeypatch.setenv("INFERSDK_BUNDLE_KEY", "0f" * 32)
    assert cli.main(["info", str(folder / "b.infer"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["inputs"][0]["name"] == "images"


def test_predict(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFERSDK_BUNDLE_KEY", "0f" * 32)
    counts = []
    for more in (["a.infer"], ["b.infer"], ["a.infer", "--conf", "0.99"]):
        assert cli.main(["predict", str(IMAGE), "--model", str(folder / more[0]), *more[1:], "--json"]) == 0
        (row,) = json.loads(capsys.readouterr().out)
        counts.append(len(row["results"]))
    assert counts[0] >= counts[1] > counts[2]
    assert cli.main(["predict", "--model", str(folder / "a.infer"), "--help"]) == 0
    assert "--iou" in capsys.readouterr().out


def test_a_configuration(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "app.toml"
    config.write_text(
        f'[models.digits]\npath = "{folder / "b.infer"}"\nkey = "file:{folder / "key"}"\nverify = "always"\n'
    )
    assert cli.main(["predict", str(IMAGE), "--model", f"{config}:digits", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["results"]
    assert cli.main(["info", str(config), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["wrapper"] == "yolov5"


@needs_openssl
def test_keys_are_relative_to_the_configuration(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("genpkey -algorithm ed25519 -out private.pem", "pkey -in private.pem -pubout -out public.pem"):
        subprocess.run(["openssl", *command.split()], cwd=folder, check=True, capture_output=True)
    pack = ["pack", str(DETECTOR), "--images", str(IMAGE), "--samples", "1", "-o", str(folder / "signed.infer")]
    assert cli.main([*pack, "--sign", str(folder / "private.pem"), "--encrypt", f"file:{folder / 'key'}"]) == 0
    config = folder / "app.toml"
    config.write_text('[models.digits]\npath = "signed.infer"\nkey = "file:key"\ntrust = "public.pem"\n')
    assert cli.main(["predict", str(IMAGE), "--model", str(config)]) == 0
    config.write_text(config.read_text().replace("public.pem", "0" * 64))
    capsys.readouterr()
    assert cli.main(["predict", str(IMAGE), "--model", str(config)]) == 2
    assert "the trusted key is 0000" in capsys.readouterr().err


def test_info_has_the_metadata_of_the_model(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    for file in (DETECTOR, folder / "a.infer", folder / "b.infer"):
        assert cli.main(["info", str(file), "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out)["metadata"])
    assert found == [found[0], found[0], {}]  # the last one is encrypted
    assert found[0]


def test_info_does_not_ignore_trust(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["info", str(DETECTOR), "--trust", "0" * 64]) == 2
    assert "--key and --trust are for a bundle" in capsys.readouterr().err
