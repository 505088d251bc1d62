"""A task of a user's own (`stranger_task`) goes through all of the package, which knows nothing of it."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stranger_task
from PIL import Image
from served_requests import ask, serving
from stranger_task import Depth, DepthMap

from infersdk import models
from infersdk.cli import main
from infersdk.data import IMAGE

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

TYPE = "stranger_task:Depth"


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stranger_task.network(tmp_path_factory.mktemp("network") / "depth.onnx")


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """In processes of the package, too."""
    path = [str(Path(stranger_task.__file__).parent), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))


def run(capsys: pytest.CaptureFixture[str], *arguments: Any, code: int = 0) -> str:
    assert main([str(a) for a in arguments]) == code, capsys.readouterr().err
    return capsys.readouterr().out


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_calls(network: Path, backend: str) -> None:
    pytest.importorskip(backend)
    with models.load(network, backend, type=TYPE, far=2.0) as depth:
        assert type(depth) is Depth
        result = depth(IMAGE)
        assert isinstance(result, DepthMap)
        assert result.depth.max() <= 0.5
        bad, good = depth(["none.jpg", IMAGE], return_exceptions=True)
        assert "none.jpg" in str(bad)
        for other in (good, depth.submit(IMAGE).result(60), *depth.map([IMAGE]), *depth.stream([IMAGE])):
            np.testing.assert_allclose(other.depth, result.depth, atol=1e-5)
        assert depth(IMAGE, far=1.0).depth.max() > result.depth.max()
        assert result.agreement(good).percent == pytest.approx(100, abs=1e-3)


def test_predict(network: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ("predict", IMAGE, "--model", network, "--type", TYPE)
    drawn, table = tmp_path / "drawn.png", tmp_path / "table.csv"
    (row,) = json.loads(run(capsys, *command, "--inverted", "-o", drawn, "--csv", table, "--json"))
    with Depth(network, inverted=True) as depth:
        expected = depth(IMAGE)
    assert (row["task"], row["results"]) == ("depth", expected.to_dicts())
    np.testing.assert_array_equal(np.asarray(Image.open(drawn)), np.asarray(expected.draw(IMAGE)))
    (line,) = csv.DictReader(table.open())
    assert float(line["nearest"]) == row["results"][0]["nearest"]
    assert "nearest" in run(capsys, *command)
    text = " ".join(run(capsys, "predict", "--type", TYPE, "--help").split())
    assert "--inverted, --no-inverted near is 1, and far is 0." in text
    assert main([*map(str, command), "--farr", "2"]) == 2
    assert "Depth has no setting 'farr'; did you mean 'far'?" in capsys.readouterr().err


def test_results_of_no_known_form(network: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", str(IMAGE), "--model", str(network), "--type", "stranger_task:Mean"]) == 2
    assert "the wrapper returns a float, which is not printed or drawn" in capsys.readouterr().err


def test_predict_on_videos(network: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("av")
    from infersdk.video import VideoReader, VideoWriter

    with VideoWriter(tmp_path / "in.mp4", fps=10) as writer:
        for _ in range(3):
            writer.write(Image.open(IMAGE).convert("RGB"))
    command = ("predict", tmp_path / "in.mp4", "--model", network, "--type", TYPE, "-o", tmp_path / "out.mp4", "--json")
    *rows, summary = map(json.loads, run(capsys, *command).splitlines())
    assert [set(row["results"][0]) for row in rows] == [{"nearest", "farthest"}] * 3
    assert summary["summary"]["frames"] == 3
    with VideoReader(tmp_path / "out.mp4") as reader:
        assert len(list(reader)) == 3
    assert main([*map(str, command), "--track"]) == 2
    assert "Depth gives DepthMap, and no boxes" in capsys.readouterr().err


def test_serve(network: Path) -> None:
    pytest.importorskip("uvicorn")
    triton = pytest.importorskip("tritonclient.http")
    table = {"type": TYPE, "path": str(network), "far": 2.0, "options": {"threads": 1}}
    with serving({"depth": table}, grpc_port=None) as server, Depth(network, far=2.0) as depth:
        port = server.http_port
        assert port is not None
        (output,) = ask(port, "/v2/models/depth").json()["outputs"]
        assert (output["name"], output["datatype"], output["shape"]) == ("depth", "FP32", [-1, -1, -1])
        expected = depth(IMAGE)
        answer = ask(port, "/predict?far=1", IMAGE.read_bytes()).json()
        assert (answer["task"], answer["results"]) == ("depth", depth(IMAGE, far=1.0).to_dicts())
        with triton.InferenceServerClient(f"127.0.0.1:{port}") as client:
            image = triton.InferInput("image", [1], "BYTES")
            image.set_data_from_numpy(np.array([IMAGE.read_bytes()], dtype=object))
            got = client.infer("depth", [image]).as_numpy("depth")
        np.testing.assert_allclose(got[0], expected.depth, atol=1e-5)


def test_bench(network: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fast = ("--time", "0.1", "--rounds", "1", "--warmup", "0.1", "--starts", "1", "--backends", "onnxruntime")
    (row,) = json.loads(run(capsys, "bench", network, "--type", TYPE, "--far", "2", *fast, "--json"))["rows"]
    assert row["status"] == "ok", row["reason"]


def test_compare(network: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("openvino")
    report = json.loads(run(capsys, "compare", network, "--json"))
    assert report["agrees"]


def test_quantize(network: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Image.open(IMAGE) as image:
        for number in range(8):
            image.rotate(45 * number).save(tmp_path / f"{number}.png")
    command = ("quantize", network, "--type", TYPE, "--data", tmp_path, "--method", "minmax", "-o", tmp_path / "q.onnx")
    report = json.loads(run(capsys, *command, "--json"))
    assert report["layers"] == 1  # the last one has a floating-point result
    assert 90 < report["agreement"] < 100
