"""Models to load: files, bytes and open files, and what stays in memory."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import infersdk
from infersdk.core.model_source import ModelSource, is_configuration
from infersdk.errors import (
    ConfigError,
    InputError,
    ModelFormatError,
    ModelNotFoundError,
    OutOfMemoryError,
    UnsupportedModelError,
)

pytest.importorskip("onnxruntime")
pytest.importorskip("openvino")
models = pytest.importorskip("onnx_models")

BACKENDS = ["onnxruntime", "openvino"]
X = np.arange(8, dtype=np.float32).reshape(2, 4)


@pytest.fixture
def untouched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is written to the folders of temporary files and of the cache, nor to the current one."""
    for name in ("temporary", "cache", "here"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setenv("INFERSDK_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path / "here")
    before = {(name, (tmp_path / name).stat().st_mtime_ns) for name in ("temporary", "cache", "here")}
    yield
    assert {(name, (tmp_path / name).stat().st_mtime_ns) for name in ("temporary", "cache", "here")} == before


@pytest.mark.posix
def test_paths_that_lead_to_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelNotFoundError) as missing:
        ModelSource.of("yolo.onnx")
    assert str(missing.value) == (
        f"no model at 'yolo.onnx' (No such file or directory); the path is relative to {tmp_path}"
    )
    assert isinstance(missing.value, FileNotFoundError)
    with pytest.raises(ModelNotFoundError) as missing:
        ModelSource.of(tmp_path / "yolo.onnx")
    assert "relative" not in str(missing.value)
    with pytest.raises(ModelNotFoundError, match="the path of the model is empty"):
        ModelSource.of("")
    with pytest.raises(ModelNotFoundError, match="null"):
        ModelSource.of("yolo\0.onnx")
    with pytest.raises(ModelFormatError, match="is a folder; give the model file in it"):
        ModelSource.of(tmp_path)
    (tmp_path / "empty.onnx").touch()
    with pytest.raises(ModelFormatError, match=r"'empty.onnx' is empty; was the download cut off\?"):
        ModelSource.of("empty.onnx")
    for name in ("app.toml", "app.YAML", "app.json"):
        Path(name).write_text("{}")
        with pytest.raises(ConfigError, match=f"'{name}' is a configuration, not a model file; give the file that"):
            ModelSource.of(name)


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("form", ["bytes", "bytearray", "BytesIO", "file"])
def test_a_model_in_memory(backend: str, form: str, tmp_path: Path) -> None:
    path = models.double(tmp_path / "m.onnx")
    content = path.read_bytes()
    with open(path, "rb") as file:
        forms: dict[str, Any] = {
            "bytes": content, "bytearray": bytearray(content), "BytesIO": io.BytesIO(content), "file": file,
        }  # fmt: skip
        infer = infersdk.load(forms[form], backend)
    path.unlink()
    with infer, infer.clone() as twin:
        assert (infer(X)["y"] == 2 * X).all()
        assert (twin(X)["y"] == 2 * X).all()
        assert infer.precision == "fp32"
        assert infer.model.name == ("m.onnx" if form == "file" else "model in memory")
        with pytest.raises(UnsupportedModelError, match="has no path"):
            Path(infer.model)
    assert infer.model.content is None  # what may have been decrypted is not kept
    assert "closed" in repr(infer)


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("backend", BACKENDS)
def test_weights_in_files_need_a_folder(backend: str, tmp_path: Path) -> None:
    onnx = models.onnx
    weights = np.random.default_rng(0).random((4, 300)).astype(np.float32)
    x, y = models.value("x", ("n", 4)), models.value("y", ("n", 300))
    path = models.save(tmp_path / "m.onnx", [models.node("MatMul", "x w", "y")], [x], [y], {"w": weights})
    (tmp_path / "weights").mkdir()
    apart = tmp_path / "weights" / "apart.onnx"
    onnx.save(onnx.load(str(path)), str(apart), save_as_external_data=True, location="w.bin", size_threshold=0)
    content = apart.read_bytes()
    with pytest.raises(ModelFormatError, match=r"keeps weights in 'w.bin': give their folder with external_data="):
        infersdk.load(content, backend)
    with infersdk.load(content, backend, external_data=tmp_path / "weights") as infer:
        np.testing.assert_allclose(infer(X)["y"], X @ weights, rtol=1e-4)
    with pytest.raises(ConfigError, match="external_data: there is nothing at"):
        infersdk.load(content, backend, external_data=tmp_path / "none")
    with pytest.raises(ConfigError, match="external_data is for a model in memory"):
        infersdk.load(apart, backend, external_data=tmp_path)


@pytest.mark.usefixtures("untouched")
def test_an_ir_in_memory_needs_its_weights(tmp_path: Path) -> None:
    import openvino as ov

    path = models.double(tmp_path / "m.onnx")
    ov.save_model(ov.Core().read_model(str(path)), str(tmp_path / "m.xml"))
    content = (tmp_path / "m.xml").read_bytes()
    with pytest.raises(ModelFormatError, match=r"is an OpenVINO IR; name the file of its weights: external_data="):
        infersdk.load(content, "openvino")
    with infersdk.load(content, "openvino", external_data=tmp_path / "m.bin") as infer:
        assert (infer(X)["y"] == 2 * X).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_bytes_that_are_no_model(backend: str, tmp_path: Path) -> None:
    whole = models.double(tmp_path / "m.onnx").read_bytes()
    for content in (b"not a model", bytes(1000), whole[: len(whole) // 2]):
        with pytest.raises(ModelFormatError, match="model in memory"):
            infersdk.load(content, backend)
    with pytest.raises(ModelFormatError, match="is empty; was it read to its end already"):
        infersdk.load(io.BytesIO(b""), backend)
    for wrong in (3, None, io.StringIO("x")):
        with pytest.raises(InputError, match=r"a model is a path, bytes, or a binary file"):
            infersdk.load(wrong, backend)  # type: ignore[arg-type]
    closed = io.BytesIO(whole)
    closed.close()
    with pytest.raises(ModelFormatError, match="cannot be read"):
        infersdk.load(closed, backend)


@pytest.mark.posix
def test_a_process_without_free_descriptors(tmp_path: Path) -> None:
    code = """
        import os, resource, sys
        from infersdk.core.model_source import ModelSource
        from infersdk.errors import OutOfMemoryError

        source, taken = ModelSource.of(sys.argv[1]), []
        resource.setrlimit(resource.RLIMIT_NOFILE, (30, 30))
        try:
            while True:
                taken.append(os.dup(0))
        except OSError:
            pass
        try:
            source.read()
        except OutOfMemoryError as error:
            print(error)
    """
    (tmp_path / "m.onnx").write_bytes(b"x")
    command = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "m.onnx")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "m.onnx': the process lacks memory, threads or file descriptors: Too many open files" in done.stdout


def test_a_process_without_memory_to_map_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m.onnx").write_bytes(b"x")
    source = ModelSource.of(tmp_path / "m.onnx")

    def full(*given: Any, **more: Any) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr("mmap.mmap", full)
    with pytest.raises(OutOfMemoryError, match=r"m\.onnx': .*Cannot allocate memory"), source.mapped():
        pass


@pytest.mark.posix
def test_a_path_that_is_not_in_the_encoding_of_the_locale(tmp_path: Path) -> None:
    path = tmp_path / "m\N{LATIN SMALL LETTER O WITH DIAERESIS}.onnx"
    path.write_bytes(b"x")
    code = """
        import sys
        from infersdk.core.model_source import ModelSource

        print(sys.getfilesystemencoding(), flush=True)
        print(ModelSource.of(sys.argv[1]).path.name)
    """
    environment = {**os.environ, "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "utf-8"}
    for utf8 in "01":
        command = [sys.executable, "-c", textwrap.dedent(code), str(path)]
        environment["PYTHONUTF8"] = utf8
        done = subprocess.run(command, capture_output=True, check=False, timeout=60, env=environment)
        encoding, *names = done.stdout.decode().splitlines()
        if utf8 == "1" or encoding == "utf-8":  # as on macOS
            assert names == [path.name]
        else:
            assert b".onnx' is not ascii, the encoding of the locale of this process; set PYTHONUTF8=1" in done.stderr


def test_an_address_is_no_configuration() -> None:
    assert is_configuration("inference.json")
    assert not is_configuration("hf://org/name@main/inference.json")
