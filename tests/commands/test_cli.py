"""The command line, as a person and as a script use it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import run
from PIL import Image

from infersdk.commands.common import print_table
from infersdk.data import CLASSIFIER, DETECTOR, IMAGE
from infersdk.infer import BackendInfo, Declaration
from infersdk.loading import registry

pytest.importorskip("onnxruntime")

MODEL = ("--model", str(DETECTOR))
CLASSIFY = ("--model", str(CLASSIFIER), "--preset", "unit", "--resize", "32")


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
        (["demo", "--backend", ""], 3, "no backend ''"),
        (["predict", "", *MODEL], 2, "the name of a source is empty"),
        (["doctor", "--selftest", ""], 2, "'' does not name a backend"),
        (["bench", str(DETECTOR), "--precision", ""], 2, "unknown precision ''"),
        (["demo", "--option", "threads"], 2, "KEY=VALUE"),
        (["demo", "--option", "treads=2"], 2, "treads"),
        (["predict", "nowhere.jpg", *MODEL], 2, "nowhere.jpg"),
        (["predict", "x.jpg", "--model", "nowhere.onnx"], 2, "nowhere.onnx"),
        (["predict", "x.jpg", "--conf", "nan", *MODEL], 2, "conf"),
        (["predict", "x.jpg", "--legacy", *MODEL], 2, "legacy"),
        (["predict", "a.jpg", "b.jpg", "-o", "one.jpg", *MODEL], 2, "folder"),
        (["info", "nowhere.onnx"], 2, "nowhere.onnx"),
        (["doctor", "--backend", "nonesuch"], 3, None),
        (["doctor", "--backend", ""], 3, None),
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


@pytest.mark.parametrize(
    "command",
    ["bench", "compare", "tune -o t.toml", "layers", "graph show", "quantize", "pack --images .", "build"],
)
@pytest.mark.parametrize("suffix", ["toml", "json"])
def test_commands_that_take_no_configuration(
    command: str, suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if command == "build":
        pytest.importorskip("tensorrt_rtx_bindings")
    app = tmp_path / f"app.{suffix}"
    app.write_text(f'[models.digits]\ntype = "yolov5"\npath = "{DETECTOR}"\n')
    assert run(*command.split(), app) == 2
    assert "is a configuration, not a model file; give the file that its path names" in capsys.readouterr().err


def test_settings_in_messages_are_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("predict", IMAGE, "--model", DETECTOR, "--decode", "gpu", "--backend", "onnxruntime") == 2
    error = capsys.readouterr().err
    assert "--decode gpu needs a model on a CUDA device" in error
    assert "use --decode cpu or --decode auto" in error
    assert run("compare", DETECTOR, "--shape", "data=1,x") == 2
    assert "--shape 'data=1,x' is not of the form" in capsys.readouterr().err, "a value stays as it was given"
    assert run("graph", "image-in", DETECTOR, "--divide", "0", "--std", "1,2,3", "-o", tmp_path / "o.onnx") == 2
    assert ": --divide 0.0, --mean 0.0, --std 1.0,2.0,3.0, --pad 114.0 [" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command", [["pack", "--images", str(IMAGE)], ["convert"], ["build"], ["quantize", "--data", ".", "--limit", "1"]]
)
def test_a_model_is_not_replaced_by_what_is_made_of_it(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "m.onnx"
    model.write_bytes(DETECTOR.read_bytes())
    (tmp_path / "link.onnx").symlink_to(model)
    assert run(*command, model, "-o", tmp_path / "link.onnx") == 2
    assert "is the model itself; write to another file" in capsys.readouterr().err
    assert model.read_bytes() == DETECTOR.read_bytes()


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("bench m.onnx --annotations input -o input", "is an input, too"),
        ("bench m.onnx --names input --csv input", "is an input, too"),
        ("layers m.onnx --original input --trace ./input", "is an input, too"),
        ("predict input --model m.onnx --csv input", "is an input, too"),
        ("predict x.jpg --model input --csv input", "is an input, too"),
        ("predict x.jpg --model m.onnx -o x.json --csv x.json", "two results go to"),
        ("quantize m.onnx --data input -o input", "is an input, too"),
        ("quantize m.onnx --data x.jpg -o q.onnx --table q.onnx", "two results go to"),
        ("quantize m.onnx --data x.jpg --table q.json --tensorrt-cache q.json", "two results go to"),
        ("quantize m.onnx --data x.jpg --table m.int8.onnx", "two results go to"),
        ("graph split m.onnx m.onnx t.onnx", "is an input, too"),
        ("graph split m.onnx h.onnx {cwd}/h.onnx", "two results go to"),
    ],
)
def test_inputs_and_results_are_different_files(
    command: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("m.onnx").write_bytes(DETECTOR.read_bytes())
    Path("input").write_text("kept")
    before = sorted(tmp_path.iterdir())
    assert run(*command.format(cwd=tmp_path).split()) == 2
    assert words in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == before
    assert Path("input").read_text() == "kept"
    assert Path("m.onnx").read_bytes() == DETECTOR.read_bytes()


@pytest.mark.parametrize("command", ["quantize", "convert", "build", "pack", "tune", "graph to-float16"])
def test_a_read_only_file_is_refused_before_the_work(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "kept.onnx"
    output.write_bytes(b"kept")
    output.chmod(0o444)
    assert run(*command.split(), DETECTOR, "-o", output) == 2
    assert "is read-only; make it writable, or give another name" in capsys.readouterr().err
    assert output.read_bytes() == b"kept"
    assert run(*command.split(), DETECTOR, "-o", output / "new" / "m.onnx") == 2
    assert f"'{output}' is not a folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "usage", "words"),
    [
        (["predict", "x.jpg", "--modle", "m.onnx"], "usage: infersdk predict ", "did you mean --model?"),
        (["info", "x.onnx", "--frobnicate"], "usage: infersdk info ", "--frobnicate"),
        (["cache", "list", "--jsn"], "usage: infersdk cache list ", "did you mean --json?"),
        (["quantize", "x.onnx", "--method", "entrpy"], "usage: infersdk quantize ", "did you mean 'entropy'?"),
        (
            ["predict", "a.jpg", *MODEL, "b.jpg"],
            "usage: infersdk predict ",
            "b.jpg; give each SOURCE before the options",
        ),
        (["compare", "a.onnx", "--cosine", "0.1", "b.onnx"], "usage: infersdk compare ", "give each CANDIDATE before"),
        (["info", "a.onnx", "--json", "b.onnx"], "usage: infersdk info ", "unknown argument: b.onnx\n"),
        (["predct", "x.jpg"], "usage: infersdk ", "did you mean 'predict'?"),
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
    assert run("predict", *MODEL, IMAGE, "--type", "own_wrapper:Own") == 4
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


def test_doctor_of_two_distributions_of_onnx_runtime(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.path", [str(tmp_path), *(path for path in sys.path if "site-packages" not in path)])
    for name, module in (("onnxruntime", "onnxruntime"), ("onnxruntime-gpu", "onnxruntime"), ("onnxruntime-ep-x", "x")):
        folder = tmp_path / f"{name.replace('-', '_')}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (folder / "top_level.txt").write_text(f"{module}\n")
        assert run("doctor", "--json") == 0
        problems = json.loads(capsys.readouterr().out)["problems"]
        assert len(problems) == (0 if name == "onnxruntime" else 1)
    assert "onnxruntime and onnxruntime-gpu overwrite" in problems[0]
    assert "pip uninstall -y onnxruntime onnxruntime-gpu" in problems[0]
    assert run("doctor") == 0
    assert "problem: onnxruntime and onnxruntime-gpu" in capsys.readouterr().out


def test_doctor_of_a_backend_without_a_device(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Deviceless(registry.backend_class("onnxruntime")):  # type: ignore[misc]
        declaration = Declaration(probe=lambda: BackendInfo("1.2.3", ()))

    monkeypatch.setattr("infersdk.commands.doctor.backend_class", lambda name: Deviceless)
    monkeypatch.setenv("COLUMNS", "200")
    assert run("doctor", "--backend", "onnxruntime", "--json") == 3
    found = json.loads(capsys.readouterr().out)["backends"]["onnxruntime"]
    assert (found["works"], found["version"]) == (False, "1.2.3")
    assert "finds no device" in found["why"]
    assert run("doctor", "--backend", "onnxruntime") == 3
    assert "version 1.2.3 is installed, and finds no device" in " ".join(capsys.readouterr().out.split())


def test_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "infersdk", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("infersdk ")


def test_what_the_output_cannot_spell_is_no_failure(tmp_path: Path) -> None:
    """Where stdout is not in UTF-8, names come out by their numbers, and JSON stays JSON."""
    image = tmp_path / "Zahlen \u00fc \u65e5.jpg"
    image.write_bytes(IMAGE.read_bytes())
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}

    def predict(*more: str) -> bytes:
        command = [sys.executable, "-m", "infersdk", "predict", *MODEL, image, *more]
        return subprocess.run(command, env=environment, capture_output=True, check=True).stdout

    assert b"Zahlen \\xfc \\u65e5.jpg" in predict()
    assert json.loads(predict("--json"))[0]["image"] == str(image)


def test_an_unknown_width(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "0")
    assert run("info", DETECTOR) == 0
    assert "digits_detector.onnx" in capsys.readouterr().out


@pytest.mark.parametrize("width", [1, 30, 60, 80])
def test_a_narrow_terminal_keeps_the_numbers_of_a_table(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    print_table(("backend", ">max abs", ">cosine", ""), [("onnxruntime", "5.81e-07", "1.25e-09", "agrees")])
    shown = capsys.readouterr().out
    for word in ("max abs", "cosine", "5.81e-07", "1.25e-09", "agrees"):
        assert word in shown
    assert max(map(len, shown.splitlines())) <= max(width, 42)


def test_a_pipe_has_no_edge(tmp_path: Path) -> None:
    """What is not shown on a terminal is neither broken nor cut at 80 columns."""
    environment = {key: value for key, value in os.environ.items() if key != "COLUMNS"}
    target = tmp_path / ("long " * 20) / "annotated.png"
    command = [sys.executable, "-m", "infersdk", "predict", *MODEL, IMAGE, "-o", target]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, encoding="utf-8")
    assert str(target) in done.stdout


def test_brackets_in_names_are_no_markup(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image, names = tmp_path / "a[red][" / "b].jpg", tmp_path / "names.txt"
    image.parent.mkdir()
    image.write_bytes(IMAGE.read_bytes())
    names.write_text("\n".join(f"[bold][/x{number}]" for number in range(10)), "utf-8")
    assert run("predict", *MODEL, str(image), "--names", str(names), "-o", str(tmp_path / "out[dim][" / "d].png")) == 0
    out = capsys.readouterr().out.replace("\n", "")
    assert "a[red]" in out
    assert "out[dim]" in out
    assert "[bold][/x2]" in out
    assert run("predict", *CLASSIFY, str(image), "--names", str(names)) == 0
    out = capsys.readouterr().out.replace("\n", "")
    assert "a[red]" in out
    assert "[bold][/x" in out
