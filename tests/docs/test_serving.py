"""The code of docs/serving.md."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from docs.page_code import DOCS, blocks

from infersdk.data import CLASSIFIER, DETECTOR, IMAGE
from infersdk.errors import BackendUnavailableError
from infersdk.serve.server import require_packages

pytest.importorskip("onnxruntime")
try:
    require_packages()
except BackendUnavailableError as error:
    pytest.skip(str(error), allow_module_level=True)


def test_the_pages_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from infersdk.serve import Server

    code = {one.title: one.code for one in blocks("serving.md")}
    monkeypatch.chdir(tmp_path)
    shutil.copy(DETECTOR, "yolov5n.onnx")
    shutil.copy(CLASSIFIER, "backbone.onnx")
    shutil.copy(IMAGE, "bus.jpg")
    (tmp_path / "app.toml").write_text(code["app.toml"].replace("[server]", "[server]\naccess_log = false"))
    exec(code["in_process"], {})
    first, second = capsys.readouterr().out.split()
    assert int(first) != int(second)
    with Server("app.toml", http_port=None, grpc_port=0).start() as server:
        names: dict[str, Any] = {"grpc_port": server.grpc_port}
        exec(code["image"], names)
        assert names["boxes"].shape[0] == 1
        assert names["boxes"].shape[2] == 4
        assert names["boxes"].shape[1] == names["result"].as_numpy("num_detections")[0] > 0
        names["client"].close()


def test_the_page_names_each_setting() -> None:
    from infersdk.serve import ServerSettings

    section = (DOCS / "serving.md").read_text("utf-8").partition("## Settings")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(\w+)`", section.replace('`"/"`', "")))
    assert set(ServerSettings.__struct_fields__) <= named
