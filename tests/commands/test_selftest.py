"""`infersdk doctor --selftest`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from infersdk import cli, device_count, load
from infersdk.data import CLASSIFIER
from infersdk.errors import PrecisionUnavailableError

pytest.importorskip("onnxruntime")


def results(report: dict[str, Any]) -> dict[str, str]:
    return {step["name"]: step["result"] for step in report["steps"]}


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_a_backend_that_works(backend: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip(backend)
    assert cli.main(["doctor", "--selftest", backend, "--json"]) == 0
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert report["passed"]
    assert report["target"] == backend
    assert report["machine"]["packages"][backend]
    found = results(report)
    assert set(found.values()) <= {"passed", "skipped"}
    for name in ("load, built", "digits of the packaged image", "32 requests side by side", "a wrong shape is refused"):
        assert found[name] == "passed"
    if backend == "openvino":
        assert found["outputs, batch 4"] == found["load again, from the cache"] == "passed"
    assert captured.err.count("[ passed]") == list(found.values()).count("passed")


def test_a_narrower_precision_has_its_own_tolerance(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("openvino")
    try:
        load(CLASSIFIER, "openvino", precision="bf16").close()
    except PrecisionUnavailableError as error:
        pytest.skip(str(error))
    assert cli.main(["doctor", "--selftest", "openvino/bf16", "--json"]) == 0
    assert results(json.loads(capsys.readouterr().out))["outputs, batch 4"] == "passed"


def test_a_selftest_of_one_backend_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--backend", "onnxruntime", "--selftest", "openvino"]) == 2
    assert "leave --backend out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("target", "code", "words"),
    [("openvino@gpu:7", 3, "gpu:7"), ("nonesuch", 3, "nonesuch"), ("a b c", 2, "does not name a backend")],
)
def test_what_is_not_there(target: str, code: int, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("openvino")
    assert cli.main(["doctor", "--selftest", target]) == code
    assert words in capsys.readouterr().err.splitlines()[-1]


def test_wrong_outputs_fail(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A backend with wrong outputs: each step reports it, and the others run. The report is text to paste."""
    pytest.importorskip("openvino")
    from infersdk.infer import Infer

    right = Infer.__call__

    def wrong(self: Infer, *arguments: Any, **named: Any) -> Any:
        outputs = right(self, *arguments, **named)
        return {name: array + 1 for name, array in outputs.items()} if self.backend == "openvino" else outputs

    monkeypatch.setattr(Infer, "__call__", wrong)
    assert cli.main(["doctor", "--selftest", "openvino@cpu"]) == 1
    first, *lines = capsys.readouterr().out.splitlines()
    assert "self-test of openvino@cpu: FAILED in " in first
    steps = ("[ failed] outputs, batch 1 (", "[ failed] another model (", "[ passed] digits of the packaged image (")
    for step in steps:
        assert any(line.startswith(step) for line in lines), step
    assert "differs by 1 from ONNX Runtime's" in next(line for line in lines if line.startswith("[ failed]"))


@pytest.mark.gpu
@pytest.mark.parametrize("target", ["tensorrt-rtx", "onnxruntime@cuda:0"])
def test_on_a_gpu(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    if not device_count():
        pytest.skip("needs an NVIDIA GPU")
    code = cli.main(["doctor", "--selftest", target])
    text = capsys.readouterr().out
    if code == 3:
        pytest.skip("the backend is not there")
    assert code == 0, text
    assert "[ passed] CUDA graphs" in text
