"""The wrapper of docs/own-model.md: the code of the page itself, on both backends of the processor."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from docs.page_code import blocks

from infersdk.errors import ConfigError
from infersdk.models import load

pytestmark = pytest.mark.assets
pytest.importorskip("onnx")


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the page's `yunet.py`, on the path."""
    (code,) = (one.code for one in blocks("own-model.md") if one.title == "yunet.py")
    assert len(code.strip().splitlines()) <= 44  # 40 of code, and the blank lines between
    assert len([line for line in code.splitlines() if line.strip()]) <= 40
    folder = tmp_path_factory.mktemp("own")
    (folder / "yunet.py").write_text(code)
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))
    sys.modules.pop("yunet", None)


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_faces_and_landmarks(module: Path, assets: Path, backend: str) -> None:
    pytest.importorskip(backend)
    kind: Any = importlib.import_module("yunet").YuNet
    images = [assets / "images" / name for name in ("bus.jpg", "zidane.jpg")]
    with kind(assets / "face" / "yunet_n_dynamic.onnx", backend=backend) as faces:
        bus, zidane = faces(images)
        # The figures of the test data's own notes: 0.92 and 0.90; 0.91, 0.89 and a false one.
        assert bus.scores[:2] == pytest.approx([0.92, 0.90], abs=0.03)
        assert zidane.scores[:2] == pytest.approx([0.91, 0.89], abs=0.03)
        for face in (*bus[:2], *zidane[:2]):
            points = face.columns["keypoints"]
            x1, y1, x2, y2 = face.xyxy
            assert points.shape == (5, 2)
            assert (points > (x1, y1)).all()
            assert (points < (x2, y2)).all()
            assert points[:2, 1].mean() < points[3:, 1].mean(), "eyes above the mouth"
        for found in (faces.submit(images[0]).result(60), *faces.map(images[:1]), *faces.stream(images[:1])):
            np.testing.assert_allclose(found.xyxy, bus.xyxy, atol=1e-3)
        strict = faces.submit(images[0], conf=0.91).result(60)
        assert len(strict) == int((bus.scores > 0.91).sum())
        with pytest.raises(ConfigError, match="conf"):
            kind(assets / "face" / "yunet_n_dynamic.onnx", conf=2)
    with load(assets / "face" / "yunet_n_dynamic.onnx", backend=backend, type="yunet:YuNet", conf=0.7) as again:
        assert type(again) is kind


@pytest.mark.slow
def test_it_is_benchmarked(module: Path, assets: Path, tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "infersdk", "bench", str(assets / "face" / "yunet_n_dynamic.onnx"),
        "--type", "yunet:YuNet", "--backends", "onnxruntime", "--starts", "1",
        "--data", str(assets / "images"), "--time", "0.1", "--warmup", "0.1", "--rounds", "1", "--json",
    ]  # fmt: skip
    path = os.pathsep.join(filter(None, [str(module), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}
    )
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["rows"]
    assert row["status"] == "ok", row["reason"]
    assert row["ran"]["kind"] == "yunet:YuNet"
    assert row["cold_start"] is not None, row["notes"]  # a process of its own imports the wrapper, too


def test_what_cannot_be_imported(assets: Path) -> None:
    for name, words in (("nonesuch:Model", "nonesuch"), ("json:Nothing", "Nothing"), ("json:JSONDecoder", "subclass")):
        with pytest.raises(ConfigError, match=words):
            load(assets / "face" / "yunet_n_dynamic.onnx", type=name)
