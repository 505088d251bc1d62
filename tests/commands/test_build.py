"""`infersdk build` and `infersdk cache`, through their parsers."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx_models import node, save, value

from infersdk.cli import parser
from infersdk.commands.build import _profiles
from infersdk.core.cache import Cache, key_of
from infersdk.errors import BackendNotFoundError, BackendUnavailableError, ConfigError, ModelNotFoundError

needs_rtx = pytest.importorskip


def run(*arguments: str) -> int:
    given = [str(a) for a in arguments]
    found = parser(given[0]).parse_args(given)
    code: int = found.func(found)
    return code


@pytest.fixture
def net(tmp_path: Path) -> Path:
    weights = {"w": np.eye(8, dtype=np.float32)}
    return save(tmp_path / "net.onnx", [node("MatMul", "x w", "y")], "float[n,8] x", "float[n,8] y", weights)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("INFERSDK_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("INFERSDK_CACHE_LIMIT", raising=False)
    return tmp_path / "cache"


# ---- build ----


def test_builds_an_engine(net: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    needs_rtx("tensorrt_rtx_bindings")
    output = tmp_path / "out.engine"
    command = ("build", str(net), "--backend", "tensorrt-rtx", "--compute-capability", "8.6, 8.9", "-o", str(output))
    assert run(*command, "--max-batch", "4") == 0
    said = capsys.readouterr()
    assert "8.6 and 8.9" in said.out
    assert f"{output.stat().st_size:,} bytes, fp32, tensorrt-rtx" in said.out
    assert "building out.engine" in said.err
    assert json.loads((tmp_path / "out.engine.json").read_text())["details"]["options"]["max_batch"] == 4


def test_builds_with_json_and_a_profile(net: Path, capsys: pytest.CaptureFixture[str]) -> None:
    needs_rtx("tensorrt_rtx_bindings")
    assert run("build", str(net), "--backend", "tensorrt-rtx", "--profile", "x=1x8:2x8:16x8", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["path"] == str(net.with_suffix(".engine"))
    assert Path(told["path"]).stat().st_size == told["nbytes"]
    assert told["details"]["profiles"] == [{"x": [[1, 8], [2, 8], [16, 8]]}]


def test_without_a_backend_the_installed_tensorrt_builds(net: Path, capsys: pytest.CaptureFixture[str]) -> None:
    needs_rtx("tensorrt_rtx_bindings")
    assert run("build", str(net), "--json") == 0
    installed = "tensorrt" if importlib.util.find_spec("tensorrt") else "tensorrt-rtx"
    captured = capsys.readouterr()
    assert json.loads(captured.out)["backend"] == installed
    assert captured.err == "", "no progress with --json"


def test_without_any_tensorrt_both_are_named(net: Path) -> None:
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['tensorrt', 'tensorrt_rtx', 'tensorrt_rtx_bindings'])); "
        "from infersdk.cli import main; sys.exit(main(['build', sys.argv[1]]))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(net)], check=False, capture_output=True, text=True)
    assert done.returncode == 3
    assert 'pip install "infersdk[tensorrt]" or pip install "infersdk[tensorrt-rtx]"' in done.stderr


def test_build_raises_what_is_wrong(net: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--max-batch is a whole number from 1, not 0"):
        run("build", str(net), "--max-batch", "0")
    with pytest.raises(SystemExit):
        run("build", str(net), "--backend", "onnxruntime")
    needs_rtx("tensorrt_rtx_bindings")
    with pytest.raises(ModelNotFoundError):
        run("build", str(tmp_path / "none.onnx"), "--backend", "tensorrt-rtx")
    with pytest.raises((ConfigError, BackendUnavailableError)):
        run("build", str(net), "--backend", "tensorrt", "--compute-capability", "8.6")


def test_profiles() -> None:
    assert _profiles(["a=b=1x3:2x3:4x3"]) == {"a=b": {"min": [1, 3], "opt": [2, 3], "max": [4, 3]}}
    assert _profiles(["x=8"]) == {"x": {"min": [8], "opt": [8], "max": [8]}}
    for text in ("1x3:2x3:4x3", "x=", "x=1x3:2x3", "x=1xa:1:1", "=1:1:1"):
        with pytest.raises(ConfigError, match=f"--profile '{text}' is not of the form NAME=MIN:OPT:MAX"):
            _profiles([text])


# ---- cache ----


@pytest.fixture
def filled(folder: Path) -> Cache:
    found = Cache(folder)
    details = {"version": "1.6", "capabilities": ["8.6"], "precision": "fp16"}
    found.put(key_of({"n": 1}), bytes(5000), kind="engine", backend="tensorrt-rtx", label="a.onnx", details=details)
    found.put(key_of({"n": 2}), bytes(100), kind="timings", backend="tensorrt", label="NVIDIA A40")
    return found


def test_path(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("cache", "path") == 0
    assert capsys.readouterr().out == f"{folder}\n"


def test_list(filled: Cache, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert run("cache", "list") == 0
    said = capsys.readouterr().out
    for words in ("a.onnx", "5.0 kB", "fp16", "tensorrt-rtx 1.6", "NVIDIA A40", "of at most 10.0 GB"):
        assert words in said
    assert run("cache", "list", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert [entry["label"] for entry in told] == ["NVIDIA A40", "a.onnx"]
    assert Path(told[1]["path"]).read_bytes() == bytes(5000)


def test_list_of_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("cache", "list") == 0
    assert "is empty" in capsys.readouterr().out
    assert run("cache", "list", "--json") == 0
    assert json.loads(capsys.readouterr().out) == []


@pytest.mark.parametrize("action", ["list", "clear"])
def test_a_cache_that_is_a_file(action: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("INFERSDK_CACHE", str(file))
    with pytest.raises(ConfigError, match=f"the cache '{file}' is not a folder; set INFERSDK_CACHE"):
        run("cache", action)


def test_clearing_an_unknown_backend(filled: Cache) -> None:
    with pytest.raises(BackendNotFoundError, match="no backend 'tensorrtx'; there are"):
        run("cache", "clear", "--backend", "tensorrtx")
    for backend in ("openvino", "auto"):  # the cache has choices of load(backend="auto")
        assert run("cache", "clear", "--backend", backend) == 0
    assert len(filled.entries()) == 2


def test_clear(filled: Cache, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("cache", "clear", "--backend", "tensorrt", "--json") == 0
    assert json.loads(capsys.readouterr().out)["removed"] == 1
    with filled._locked(key_of({"n": 1})):  # a process is at it
        assert run("cache", "clear") == 1
        assert "1 left" in capsys.readouterr().out
    assert run("cache", "clear") == 0
    assert "removed 1" in capsys.readouterr().out
    assert filled.entries() == []


# ---- fp16 by samples ----


@pytest.fixture
def growing(tmp_path: Path) -> Path:
    """y = log(exp(40 x w)), which overflows in between."""
    weights = {"w": np.eye(8, dtype=np.float32), "v": np.eye(8, dtype=np.float32), "big": np.float32(40)}
    nodes = [
        node("MatMul", "x w", "a", name="first"), node("Mul", "a big", "b", name="scale"),
        node("Exp", "b", "c", name="grow"), node("Log", "c", "d", name="shrink"), node("MatMul", "d v", "y"),
    ]  # fmt: skip
    path = save(tmp_path / "grow.onnx", nodes, [value("x", ("n", 8))], [value("y", ("n", 8))], weights)
    (tmp_path / "data").mkdir()
    np.save(tmp_path / "data" / "x.npy", np.linspace(0.1, 1, 16, dtype=np.float32).reshape(2, 8))
    return path


def test_what_overflows_stays_fp32(growing: Path, capsys: pytest.CaptureFixture[str]) -> None:
    needs_rtx("tensorrt_rtx_bindings")
    command = ("build", growing, "--backend", "tensorrt-rtx", "--compute-capability", "8.6", "--precision", "fp16")
    data = ("--data", growing.parent / "data")
    assert run(*command, *data) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for words in ("Stay fp32, by 1 sample", "grow (Exp)", "shrink (Log)", "input overflow", "2 nodes in fp32", "fp16"):
        assert words in shown
    assert run(*command, *data, "--json", "--fp16-keep", "scale") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["details"]["options"]["fp16_keep"] == ["scale", "grow", "shrink"]
    assert [loss["node"] for loss in told["fp16_parity"]["losses"]] == ["grow", "shrink"]
    assert told["fp16_parity"]["losses"][0]["error"] == "inf"
    assert told["details"]["layers"] == {"fp16": 2}
    assert run(*command, *data, "--fp16-tolerance", "0.5", "--samples", "1") == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--profile", "x=1x4", "--profile", "x=2x4"), "--profile x is given twice: '1x4' and '2x4'"),
        (("--device", "cuda:3"), "tensorrt-rtx builds without a GPU, not on 'cuda:3'"),
        (("--samples", "0"), "--samples is for --precision fp16"),
        (("--data", "x"), "--data is for --precision fp16"),
        (("--fp16-keep", "grow", "--precision", "fp32"), "--fp16-keep is for --precision fp16"),
        (("--precision", "fp16", "--samples", "4"), "--samples needs --data"),
        (("--precision", "fp16", "--data", "none"), "no data at 'none'"),
        (("--precision", "fp16", "--data", "data", "--samples", "-1"), "--samples is a whole number from 1, not -1"),
        (("--precision", "fp16", "--data", "data", "--fp16-tolerance", "-1"), "tolerance must be a number above 0"),
    ],
)
def test_wrong_use_of_samples(
    growing: Path, arguments: tuple[str, ...], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "--device" in arguments:  # a question of the backend itself
        pytest.importorskip("tensorrt_rtx_bindings")
    monkeypatch.chdir(growing.parent)
    with pytest.raises(ConfigError, match=words):
        run("build", growing, "--backend", "tensorrt-rtx", *arguments)
