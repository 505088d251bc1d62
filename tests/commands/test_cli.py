"""The command line, as a person and as a script use it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from infersdk import registry
from infersdk.cli import main
from infersdk.data import CLASSIFIER, DETECTOR, IMAGE
from infersdk.infer import BackendInfo

pytest.importorskip("onnxruntime")

MODEL = ("--model", str(DETECTOR))
CLASSIFY = ("--model", str(CLASSIFIER), "--preset", "unit", "--resize", "32")


def run(*arguments: str | Path) -> int:
    try:
        return main([str(a) for a in arguments])
    except SystemExit as stop:  # argparse
        return int(stop.code or 0)


def test_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "out" / "demo.png"
    assert run("demo", "--json", "-o", target) == 0
    report = json.loads(capsys.readouterr().out)
    truth = json.loads((Path(report["image"]).parent / "demo.json").read_text())
    assert sorted(d["label"] for d in report["detections"]) == sorted(str(box["label"]) for box in truth["objects"])
    assert set(report["milliseconds"]) == {"read", "preprocess", "infer", "postprocess", "total"}
    assert Image.open(target).size == Image.open(report["image"]).size
    assert run("demo", "-o", target) == 0
    shown = capsys.readouterr().out
    assert "annotated image" in shown
    assert "infer" in shown


def test_demo_on_an_unwritable_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert run("demo", "-o", tmp_path / "file" / "demo.png") == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "demo.png" in error


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["demo", "--backend", "nonesuch"], 3, "nonesuch"),
        (["demo", "--device", "cuda:99"], 3, "cuda:99"),
        (["demo", "--precision", "fp16"], 3, "fp16"),
        (["demo", "--option", "threads"], 2, "KEY=VALUE"),
        (["demo", "--option", "treads=2"], 2, "treads"),
        (["detect", "nowhere.jpg", *MODEL], 2, "nowhere.jpg"),
        (["detect", "x.jpg", "--model", "nowhere.onnx"], 2, "nowhere.onnx"),
        (["detect", "x.jpg", "--conf", "nan", *MODEL], 2, "conf"),
        (["detect", "x.jpg", "--setting", "legacy=true", *MODEL], 2, "legacy"),
        (["detect", "a.jpg", "b.jpg", "-o", "one.jpg", *MODEL], 2, "folder"),
        (["info", "nowhere.onnx"], 2, "nowhere.onnx"),
        (["doctor", "--backend", "nonesuch"], 3, None),
        (["frobnicate"], 2, "frobnicate"),
        ([], 2, "COMMAND"),
    ],
)
def test_errors_are_one_line_and_a_code(
    arguments: list[str],
    code: int,
    words: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(*arguments) == code
    captured = capsys.readouterr()
    if words is not None:
        assert words in captured.err
        assert "Traceback" not in captured.err
        assert captured.err.strip().splitlines()[-1].startswith("infersdk: ")
    assert list(tmp_path.iterdir()) == []


def test_detect_writes_and_tells(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("detect", *MODEL, IMAGE, IMAGE, "-o", tmp_path / "drawn", "--json", "--option", "threads=1") == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["output"] for row in rows] == [str(tmp_path / "drawn" / IMAGE.name)] * 2
    assert rows[0]["detections"] == rows[1]["detections"]
    assert run("detect", *MODEL, IMAGE, "-o", tmp_path / "one.jpg", "--max-det", "1") == 0
    assert "left out" in capsys.readouterr().out
    assert Image.open(tmp_path / "one.jpg").format == "JPEG"


def test_classify(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("classify", *CLASSIFY, IMAGE, "--json", "--top-k", "3") == 0
    assert len(json.loads(capsys.readouterr().out)[0]["classes"]) == 3
    assert run("classify", *CLASSIFY, IMAGE) == 0
    assert "score" in capsys.readouterr().out


def test_a_model_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    """The packaged models read digits; only the demo runs them."""
    for command in ("detect", "classify"):
        assert run(command, IMAGE) == 2
        assert f"no model to run: infersdk {command} ... --model" in capsys.readouterr().err


def test_classes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run("detect", *MODEL, IMAGE, "--json") == 0
    every = json.loads(capsys.readouterr().out)[0]["detections"]
    wanted = sorted({box["label"] for box in every})[:2]
    expected = [box for box in every if box["label"] in wanted]
    for text in (",".join(wanted), ", ".join(str(box["class_id"]) for box in expected), f"{wanted[0]},{wanted[1]},"):
        assert run("detect", *MODEL, IMAGE, "--json", "--classes", text, "-o", tmp_path / "out.png") == 0
        assert json.loads(capsys.readouterr().out)[0]["detections"] == expected
    for wrong, words in (
        ("thre", "did you mean 'three'"),
        ("10", "no class number 10; use those that it has, from 0 to 9"),
        ("bicycle", "zero, one"),
        ("-1", "'-1'"),
    ):
        assert run("detect", *MODEL, IMAGE, f"--classes={wrong}") == 2
        assert words in capsys.readouterr().err


def test_how_pixels_are_normalised(capsys: pytest.CaptureFixture[str]) -> None:
    def scores(*more: str) -> list[float]:
        assert run("classify", "--model", CLASSIFIER, "--resize", "32", IMAGE, "--json", *more) == 0
        return [row["score"] for row in json.loads(capsys.readouterr().out)[0]["classes"]]

    unit = scores("--preset", "unit")
    assert scores("--mean", "0", "--std", "1,1,1", "--scale", str(1 / 255)) == pytest.approx(unit, abs=1e-6)
    assert scores("--preset", "unit", "--input-order", "bgr") != unit
    assert run("classify", "--model", CLASSIFIER, IMAGE, "--mean", "1,2") == 2
    assert "neither one number nor three" in capsys.readouterr().err


def test_a_model_of_another_kind(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("classify", *MODEL, IMAGE) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert run("detect", "--model", CLASSIFIER, IMAGE) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_settings_and_flags_do_not_contradict(capsys: pytest.CaptureFixture[str]) -> None:
    for setting, words in (("conf=0.9", "use --conf"), ("names=x", "use --names"), ("device=cpu", "use --device"),
                           ("path=x", "argument of its own"), ("max_det=1", "use --max-det"),
                           ("confidence=1", "YOLOv5 has no setting 'confidence'; did you mean 'conf'?"),
                           ("treads=2", "did you mean 'threads'?")):  # fmt: skip
        assert run("detect", *MODEL, IMAGE, "--setting", setting) == 2
        assert words in capsys.readouterr().err
    for option, words in (
        ("conf=0.9", "no such option"), ("path=x", "argument of its own"), ("names=x", "no such option"),
        ("treads=2", "did you mean 'threads'?"),
        ("backend=openvino", "use --backend"), ("threads=18446744073709551616", "more than 64 bits"),
        ('provider_options={"a":[18446744073709551616]}', "more than 64 bits"), ("threads=[1]", "Expected `int`"),
        ('threads={"a":{"b":1}}', "Expected `int`"), (f"threads={'[' * 100_000}", "nested too deeply"),
        (f"threads={'9' * 5000}", "Expected `int`"), ("execution_mode=x", "use one of 'parallel', 'sequential'"),
    ):  # fmt: skip
        assert run("detect", *MODEL, IMAGE, "--option", option) == 2
        error = capsys.readouterr().err
        assert words in error
        assert "Traceback" not in error


@pytest.mark.parametrize(
    ("arguments", "usage", "words"),
    [
        (["detect", "x.jpg", "--modle", "m.onnx"], "usage: infersdk detect ", "did you mean --model?"),
        (["info", "x.onnx", "--frobnicate"], "usage: infersdk info ", "--frobnicate"),
        (["cache", "list", "--jsn"], "usage: infersdk cache list ", "did you mean --json?"),
        (["classify", "x.jpg", "--preset", "imagnet"], "usage: infersdk classify ", "'imagenet', 'caffe'"),
        (["classify", "x.jpg", "--preset", "imagnet"], "usage: infersdk classify ", "did you mean 'imagenet'?"),
        (["classify", "x.jpg", "--top", "3", "--topk=3"], "usage: infersdk classify ", "did you mean --top-k?"),
        (["clasify", "x.jpg"], "usage: infersdk ", "did you mean 'classify'?"),
        (["--frobnicate"], "usage: infersdk ", ""),
    ],
)
def test_a_wrong_flag_shows_the_usage_of_its_command(
    arguments: list[str], usage: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith(usage)
    assert words in error


def test_info(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnx")
    assert run("info", DETECTOR, "--json") == 0
    info = json.loads(capsys.readouterr().out)
    assert info["inputs"][0]["name"] == "images"
    assert info["precision"] == "fp32"
    assert run("info", DETECTOR) == 0
    assert "images" in capsys.readouterr().out


def test_a_mistake_in_a_wrapper_of_one_s_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own_wrapper.py").write_text(
        "from infersdk.models import YOLOv5\n"
        "class Own(YOLOv5):\n"
        "    def postprocess(self, outputs, geometries):\n"
        "        return outputs['nonesuch']\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert run("detect", *MODEL, IMAGE, "--type", "own_wrapper:Own") == 4
    error = capsys.readouterr().err
    assert "KeyError: 'nonesuch'" in error
    last = error.splitlines()[-1]
    assert last.startswith(f"infersdk: postprocess() in {tmp_path / 'own_wrapper.py'}, line 4, failed")
    assert "fault of infersdk" not in error


def test_a_fault_of_infersdk(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("infersdk.commands.info.print_json", None)
    assert run("info", DETECTOR, "--json") == 4
    assert "this is a fault of infersdk" in capsys.readouterr().err.splitlines()[-1]


def test_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("doctor", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["backends"]["onnxruntime"]["works"]
    assert "cpu" in found["backends"]["onnxruntime"]["devices"]
    assert isinstance(found["core"]["cuda"], bool)
    assert run("doctor", "--backend", "onnxruntime") == 0
    assert "native core" in capsys.readouterr().out


def test_doctor_of_a_backend_without_a_device(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Deviceless(registry.backend_class("onnxruntime")):  # type: ignore[misc]
        @classmethod
        def probe(cls) -> BackendInfo:
            return BackendInfo("1.2.3", ())

    monkeypatch.setattr("infersdk.commands.doctor.backend_class", lambda name: Deviceless)
    monkeypatch.setenv("COLUMNS", "200")
    assert run("doctor", "--backend", "onnxruntime", "--json") == 3
    found = json.loads(capsys.readouterr().out)["backends"]["onnxruntime"]
    assert (found["works"], found["version"]) == (False, "1.2.3")
    assert "finds no device" in found["why"]
    assert run("doctor", "--backend", "onnxruntime") == 3
    assert "version 1.2.3 is installed, and finds no device" in " ".join(capsys.readouterr().out.split())


def test_as_a_module_and_into_a_closed_pipe() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "infersdk", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("infersdk ")
    command = f"{sys.executable} -P -m infersdk info {DETECTOR} | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0"
    assert "Traceback" not in done.stderr


def test_what_the_output_cannot_spell_is_no_failure(tmp_path: Path) -> None:
    """Where stdout is not in UTF-8, names come out by their numbers, and JSON stays JSON."""
    image = tmp_path / "Zahlen \u00fc \u65e5.jpg"
    image.write_bytes(IMAGE.read_bytes())
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}

    def detect(*more: str) -> bytes:
        command = [sys.executable, "-P", "-m", "infersdk", "detect", *MODEL, image, *more]
        return subprocess.run(command, env=environment, capture_output=True, check=True).stdout

    assert b"Zahlen \\xfc \\u65e5.jpg" in detect()
    assert json.loads(detect("--json"))[0]["image"] == str(image)


def test_a_pipe_has_no_edge(tmp_path: Path) -> None:
    """What is not shown on a terminal is neither broken nor cut at 80 columns."""
    environment = {key: value for key, value in os.environ.items() if key != "COLUMNS"}
    target = tmp_path / ("long " * 20) / "annotated.png"
    command = [sys.executable, "-P", "-m", "infersdk", "detect", *MODEL, IMAGE, "-o", target]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, encoding="utf-8")
    assert str(target) in done.stdout


def test_brackets_in_names_are_no_markup(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image, names = tmp_path / "a[red][" / "b].jpg", tmp_path / "names.txt"
    image.parent.mkdir()
    image.write_bytes(IMAGE.read_bytes())
    names.write_text("\n".join(f"[bold][/x{number}]" for number in range(10)), "utf-8")
    assert run("detect", *MODEL, str(image), "--names", str(names), "-o", str(tmp_path / "out[dim][" / "d].png")) == 0
    out = capsys.readouterr().out.replace("\n", "")
    assert "a[red]" in out
    assert "out[dim]" in out
    assert "[bold][/x2]" in out
    assert run("classify", *CLASSIFY, str(image), "--names", str(names)) == 0
    out = capsys.readouterr().out.replace("\n", "")
    assert "a[red]" in out
    assert "[bold][/x" in out


@pytest.mark.assets
def test_a_yolox_of_the_first_release(assets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models = assets / "models"
    given = ["--model", models / "yolox_nano.onnx", "--names", models / "coco80.txt", "--type", "yolox"]
    for legacy in ([], ["--setting", "legacy=true"]):  # its weights tell the release, or it is named
        assert run("detect", assets / "images" / "bus.jpg", *given, *legacy, "--json") == 0
        labels = [box["label"] for box in json.loads(capsys.readouterr().out)[0]["detections"]]
        assert labels[0] == "bus"
        assert labels.count("person") == 3
