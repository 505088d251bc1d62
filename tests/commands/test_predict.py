"""`infersdk predict` on images: models of every task, and what the options do."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import ocr_models
import pytest
from command_line import run
from head_models import head_model
from PIL import Image

from infersdk import models
from infersdk.cli import parser
from infersdk.commands.row_files import row_files
from infersdk.data import CLASSIFIER, DETECTOR, IMAGE
from infersdk.errors import OutputError

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

PREDICT = ("predict", IMAGE, "--model", DETECTOR)
#: A box of 100 x 50 pixels of an image of 200 x 100.
BOX = (50, 25, 150, 75)
NAMES = {"names": "{0: 'cat'}"}


@pytest.fixture
def rows(capsys: pytest.CaptureFixture[str]) -> Callable[..., list[dict[str, Any]]]:
    """Runs a command with `--json`; returns its rows."""

    def rows(*arguments: Any) -> list[dict[str, Any]]:
        assert run(*arguments, "--json") == 0, capsys.readouterr().err
        return json.loads(capsys.readouterr().out)

    return rows


@pytest.fixture
def grey(tmp_path: Path) -> Path:
    path = tmp_path / "grey.png"
    Image.new("RGB", (200, 100), (90, 90, 90)).save(path)
    return path


# ---- every task ----


def head(*extra: float) -> np.ndarray[Any, Any]:
    output = np.zeros((5 + len(extra), 84), np.float32)
    output[:, 20] = [32, 32, 32, 16, 0.9, *extra]
    return output


def boxes(path: Path) -> Iterator[Any]:
    yield from ("--model", head_model(path, [head()], NAMES | {"task": "detect"}), "--type", "yolov8")


def masks(path: Path) -> Iterator[Any]:
    yield from ("--model", head_model(path, [head(1.0), np.full((1, 16, 16), 9.0)], NAMES))


def keypoints(path: Path) -> Iterator[Any]:
    found = np.zeros((300, 12), np.float32)
    found[0] = 16, 24, 48, 40, 0.9, 0, 20, 32, 0.9, 44, 32, 0.9
    yield from ("--model", head_model(path, [found], NAMES | {"kpt_shape": "[2, 3]"}))


def scene(path: Path) -> Iterator[Any]:
    scores = np.zeros((2, 64, 64), np.float32)
    scores[0, :32], scores[1, 32:] = 1, 1
    metadata = {"names": "{0: 'sky', 1: 'road'}"}
    yield from ("--model", head_model(path, [scores], metadata), "--preset", "unit")


def vector(path: Path) -> Iterator[Any]:
    metadata = {"task": "embedding"}
    yield from ("--model", head_model(path, [np.arange(1, 65, dtype=np.float32)], metadata), "--preset", "unit")


def digits(path: Path) -> Iterator[Any]:
    yield from ("--model", CLASSIFIER, "--preset", "unit", "--resize", "32", "--top-k", "3")


def text(path: Path) -> Iterator[Any]:
    pytest.importorskip("cv2")
    det, rec = ocr_models.finder(path.with_name("det.onnx")), ocr_models.reads(path.with_name("rec.onnx"))
    yield from ("--type", "ocr", "--detection", det, "--recognition", rec, "--text-score", "0.2")


@pytest.mark.parametrize(
    ("model", "task", "count", "shown"),
    [
        (boxes, "detect", 1, "cat  0.900  50.0, 25.0, 150.0, 75.0"), (masks, "segment", 1, "cat"),
        (keypoints, "pose", 1, "cat"), (scene, "semantic", 2, "road"), (vector, "embed", 1, ""),
        (digits, "classify", 3, "one"), (text, "ocr", 1, "0."),
    ],
)  # fmt: skip
def test_a_model_of_each_task(
    model: Callable[[Path], Iterator[Any]], task: str, count: int, shown: str, tmp_path: Path, grey: Path,
    rows: Callable[..., list[dict[str, Any]]], capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    if model is text:
        Image.fromarray(ocr_models.page((100, 100, 300, 120))).save(grey)
    command = ("predict", grey, *model(tmp_path / "model.onnx"))
    drawn = tmp_path / "out" / "drawn.png"
    output = () if task == "embed" else ("-o", drawn)
    (row,) = rows(*command, *output)
    assert (row["image"], row["task"], len(row["results"])) == (str(grey), task, count)
    assert row["size"] == list(Image.open(grey).size)
    assert set(row["milliseconds"]) == {"read", "preprocess", "infer", "postprocess", "total"}
    assert sum(list(row["milliseconds"].values())[:-1]) <= row["milliseconds"]["total"] * 1.01 + 0.01
    if "xyxy" in row["results"][0]:
        assert row["results"][0]["xyxy"] == pytest.approx(BOX, abs=1e-3)
    if output:
        assert row["output"] == str(drawn)
        assert (np.asarray(Image.open(drawn)) != np.asarray(Image.open(grey))).any()
    assert run(*command) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{grey}: read ")
    assert shown in out


def test_results_that_are_not_drawn(tmp_path: Path, grey: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ("predict", grey, *vector(tmp_path / "model.onnx"))
    assert run(*command, "-o", tmp_path / "out.png") == 2
    assert "out.json" in capsys.readouterr().err
    assert run(*command, "-o", tmp_path / "out.json") == 0
    assert len(json.loads((tmp_path / "out.json").read_text())[0]["vector"]) == 64


# ---- options ----


def test_settings_change_the_results(rows: Callable[..., list[dict[str, Any]]]) -> None:
    every = rows(*PREDICT)[0]["results"]
    assert rows(*PREDICT, "--max-det", "1", "--conf", "0.5")[0]["results"] == every[:1]
    wanted = sorted({box["label"] for box in every})[:2]
    expected = [box for box in every if box["label"] in wanted]
    numbers = ", ".join(str(box["class_id"]) for box in expected)
    for classes in (",".join(wanted), numbers, f"{wanted[0]},{wanted[1]},", json.dumps(wanted)):
        assert rows(*PREDICT, "--classes", classes)[0]["results"] == expected
    assert {box["label"] for box in rows(*PREDICT, "--classes", f" {wanted[0]}")[0]["results"]} == {wanted[0]}
    letters = rows(*PREDICT, "--names", json.dumps(list("abcdefghij")))[0]["results"]
    assert [box["label"] for box in letters] == ["abcdefghij"[box["class_id"]] for box in every]


def test_how_pixels_are_normalised(rows: Callable[..., list[dict[str, Any]]]) -> None:
    def scores(*more: str) -> list[float]:
        found = rows("predict", "--model", CLASSIFIER, "--resize", "32", IMAGE, *more)
        return [row["score"] for row in found[0]["results"]]

    unit = scores("--preset", "unit")
    assert scores("--mean", "0", "--std", "1,1,1", "--scale", str(1 / 255)) == pytest.approx(unit, abs=1e-6)
    assert scores("--preset", "unit", "--input-order", "bgr") != unit
    assert scores("--mean", "-0.5,0.5,0.5") == scores("--mean=-0.5,0.5,0.5")


def test_canvas_sizes_are_json(rows: Callable[..., list[dict[str, Any]]], capsys: pytest.CaptureFixture[str]) -> None:
    assert rows(*PREDICT, "--canvas", "fit", "--canvas-sizes", "[[192, 96]]")[0]["results"]
    assert "--canvas-sizes JSON" in shown(capsys)


def test_several_maps(tmp_path: Path, grey: Path, rows: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    maps = [np.zeros((2, 64, 64), np.float32)] * 2
    model = head_model(tmp_path / "m.onnx", maps, {}, names=("lanes", "segmentation"))
    assert run("predict", grey, "--model", model) == 2
    assert "--area lanes, --lanes segmentation" in capsys.readouterr().err
    (row,) = rows("predict", grey, "--model", model, "--area", "lanes", "--lanes", "segmentation")
    assert [one["map"] for one in row["results"]] == ["area", "lanes"]


def test_tiles_are_those_of_the_wrapper(rows: Callable[..., list[dict[str, Any]]]) -> None:
    (row,) = rows(*PREDICT, "--tile", "120x100", "--overlap", "0.4", "--merge", "union")
    with models.load(DETECTOR) as model:
        expected = models.Tiled(model, tile=(120, 100), overlap=0.4, merge="union")(IMAGE)
        assert expected.to_dicts() != model(IMAGE).to_dicts()
    assert row["results"] == json.loads(expected.to_json())
    assert set(row["milliseconds"]) == {"read", "total"}, "a composition has no stages"


def test_limits_are_reported(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(*PREDICT, "-o", tmp_path / "one.jpg", "--max-det", "1") == 0
    assert "8 more boxes were left out by max_det" in capsys.readouterr().out
    assert Image.open(tmp_path / "one.jpg").format == "JPEG"


@pytest.mark.parametrize("option", ["--csv", "--json-lines"])
def test_rows_do_not_overwrite_an_image(option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As where the name of the file was forgotten."""
    image = tmp_path / "one.png"
    image.write_bytes(IMAGE.read_bytes())
    assert run(*PREDICT, option, image) == 2
    assert "one.png' is the name of an image, a video or a model" in capsys.readouterr().err
    assert image.read_bytes() == IMAGE.read_bytes()


def test_rows_below_a_file(tmp_path: Path) -> None:
    file = tmp_path / "one.png"
    file.touch()
    message = re.escape(f"cannot write {str(file / 'x.csv')!r}: {str(file)!r} is not a folder")
    with pytest.raises(OutputError, match=message), row_files(None, file / "x.csv", to_stdout=False):
        pass


def test_values_separated_by_commas(tmp_path: Path, grey: Path, rows: Callable[..., list[dict[str, Any]]]) -> None:
    """A line for each result; columns that only later results have come last."""
    found = rows("predict", IMAGE, *PREDICT[1:], "--csv", tmp_path / "out.csv")
    table = list(csv.DictReader((tmp_path / "out.csv").open()))
    assert len(table) == 2 * len(found[0]["results"])
    for line, box in zip(table, found[0]["results"] * 2, strict=True):
        assert line["source"] == str(IMAGE)
        assert [float(line[f"xyxy.{edge}"]) for edge in range(4)] == box["xyxy"]
        assert (line["label"], float(line["score"])) == (box["label"], box["score"])
    rows("predict", grey, *keypoints(tmp_path / "model.onnx"), "--csv", tmp_path / "points.csv")
    (line,) = csv.DictReader((tmp_path / "points.csv").open())
    assert json.loads(line["keypoints"])[1] == pytest.approx([137.5, 50, 0.9], abs=1e-3)


def test_lines_of_numbers_that_are_none_are_valid_json(tmp_path: Path) -> None:
    with row_files(tmp_path / "t.jsonl", None, to_stdout=False) as emit:
        assert emit is not None
        emit({"image": "a", "results": [{"score": float("nan")}]})
    assert (tmp_path / "t.jsonl").read_text() == '{"image": "a", "results": [{"score": "nan"}]}\n'


def test_rows_of_a_live_source_have_the_time_of_day(tmp_path: Path) -> None:
    with row_files(None, tmp_path / "t.csv", to_stdout=False) as emit:
        assert emit is not None
        emit({"stream": "a", "frame": 7, "time": 0.25, "clock": 1764500000.125, "results": [{"x": 1}]})
    assert list(csv.reader((tmp_path / "t.csv").open())) == [
        ["source", "frame", "time", "clock", "x"], ["a", "7", "0.25", "1764500000.125", "1"],
    ]  # fmt: skip


def test_columns_of_later_rows(tmp_path: Path) -> None:
    with row_files(None, tmp_path / "t.csv", to_stdout=False) as emit:
        assert emit is not None
        emit({"image": "a", "results": [{"x": 1}, {"x": 2, "y": {"z": [3, 4]}}]})
        emit({"image": "b", "error": "damaged"})
        emit({"image": "c", "results": [{"text": 'a "b", c'}]})
    assert list(csv.reader((tmp_path / "t.csv").open())) == [
        ["source", "x", "y.z.0", "y.z.1", "text"], ["a", "1", "", "", ""], ["a", "2", "3", "4", ""],
        ["c", "", "", "", 'a "b", c'],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("found", "columns"),
    [
        ([], "source"), ([{"image": "a", "results": []}], "source"), ([{"image": "a", "error": "damaged"}], "source"),
        ([{"stream": "a", "frame": 0, "time": 0.0, "results": []}, {"summary": {}}], "source,frame,time"),
    ],
)  # fmt: skip
def test_columns_without_results(found: list[dict[str, Any]], columns: str, tmp_path: Path) -> None:
    with row_files(None, tmp_path / "t.csv", to_stdout=False) as emit:
        assert emit is not None
        for row in found:
            emit(row)
    assert (tmp_path / "t.csv").read_text().splitlines() == [columns]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OutputError])
def test_columns_of_later_rows_of_a_run_that_was_ended(error: type[BaseException], tmp_path: Path) -> None:
    polygons = [[0.25] * 50_000]  # more characters than the module csv reads by default
    with contextlib.suppress(error), row_files(None, tmp_path / "t.csv", to_stdout=False) as emit:
        assert emit is not None
        emit({"stream": "a", "results": [{"polygons": polygons}, {"polygons": [], "y": 3}]})
        raise error
    first, second = csv.DictReader((tmp_path / "t.csv").open())
    assert (json.loads(first["polygons"]), first["y"]) == (polygons, "")
    assert second == {"source": "a", "polygons": "", "y": "3"}


@pytest.mark.skipif(sys.platform == "win32", reason="there are no named pipes")
def test_columns_in_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    for more, error in (
        ({}, contextlib.nullcontext()),
        ({"y": 2}, pytest.raises(OutputError, match="further columns")),
    ):
        with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE, text=True) as reader:
            with error, row_files(None, pipe, to_stdout=False) as emit:
                assert emit is not None
                emit({"image": "a", "results": [{"x": 1}, {"x": 3, **more}]})
            assert reader.communicate()[0].splitlines()[:2] == ["source,x", "a,1"]


def test_a_window_needs_a_display(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(sys.modules, "tkinter", None)
    assert run(*PREDICT, "--show") == 3
    assert "--show needs tkinter, which is not installed" in capsys.readouterr().err
    monkeypatch.delitem(sys.modules, "tkinter")
    pytest.importorskip("tkinter")
    assert run(*PREDICT, "--show") == 3
    assert "--show needs a display: " in capsys.readouterr().err


# ---- which model ----


def test_a_model_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("predict", IMAGE) == 2
    assert "no model to run: infersdk predict ... --model" in capsys.readouterr().err
    for files in ((), ("--detection", "det.onnx")):
        assert run("predict", IMAGE, "--type", "ocr", *files) == 2
        assert "--type ocr has two or three model files: --detection, --recognition" in capsys.readouterr().err


def test_a_model_of_a_configuration(
    tmp_path: Path, rows: Callable[..., list[dict[str, Any]]], capsys: pytest.CaptureFixture[str]
) -> None:
    wrapper = f'type = "yolov5"\npath = "{DETECTOR}"\n'
    app = tmp_path / "app.toml"
    app.write_text(
        f"[models.plain]\n{wrapper}conf = 0.9\n[models.plain.options]\nthreads = 1\n"
        f'[models.tiles]\ntype = "tiled"\ntile = [120, 100]\n[models.tiles.model]\n{wrapper}'
    )
    (row,) = rows("predict", IMAGE, "--model", f"{app}:plain")
    assert min(box["score"] for box in row["results"]) > 0.9
    (row,) = rows("predict", IMAGE, "--model", f"{app}:plain", "--max-det", "1", "--option", "allow_spinning=false")
    assert len(row["results"]) == 1
    (row,) = rows("predict", IMAGE, "--model", f"{app}:tiles", "--match", "iou")
    with models.load(DETECTOR) as model:
        assert row["results"] != model(IMAGE).to_dicts()
    for model, more, words in (
        (app, (), "has 2 models, plain, tiles; name one of them"),
        (f"{app}:plane", (), "did you mean 'plain'?"),
        (f"{app}:plain", ("--type", "yolov5"), "leave it out"),
        (f"{app}:plain", ("--confidence", "1"), "YOLOv5 has no setting 'confidence'; did you mean 'conf'?"),
        (f"{app}:tiles", ("--backend", "openvino"), "--backend: tiles is a composition; set it in the tables"),
        (f"{app}:tiles", ("--max-batch", "2"), "--max-batch: tiles is a composition"),
        (f"{app}:tiles", ("--option", "threads=2"), "--option: tiles is a composition"),
        (f"{app}:tiles", ("--tile", "64"), "is a model on tiles already"),
    ):
        assert run("predict", IMAGE, "--model", model, *more) == 2
        assert words in capsys.readouterr().err


def test_a_model_of_a_configuration_in_json(tmp_path: Path, rows: Callable[..., list[dict[str, Any]]]) -> None:
    app = tmp_path / "app.json"
    app.write_text(json.dumps({"models": {"digits": {"type": "yolov5", "path": str(DETECTOR), "conf": 0.9}}}))
    for model in (app, f"{app}:digits"):
        (row,) = rows("predict", IMAGE, "--model", model)
        assert min(box["score"] for box in row["results"]) > 0.9


# ---- settings as options ----


def shown(capsys: pytest.CaptureFixture[str], *arguments: Any) -> str:
    assert run("predict", *arguments, "--help") == 0
    return " ".join(capsys.readouterr().out.split())


def test_the_help_names_each_value_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a model, the options are those of all wrappers."""
    assert "--channel-order {bgr,rgb,nv12} of NumPy arrays" in shown(capsys)


def test_the_help_lists_the_settings_of_the_wrapper(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    common = shown(capsys)
    assert "--names FILE|JSON class names in order: a list" in common
    assert "--class-agnostic" not in common
    for given in (("--type", "yolov5"), ("--model", DETECTOR)):
        text = shown(capsys, *given)
        assert "settings of YOLOv5" in text
        assert "--class-agnostic, --no-class-agnostic boxes of different classes suppress one another." in text
        assert "--conf X the score (and objectness) that a box must exceed, 0 to 1" in text
        assert "(default: 0.25)" in text
        assert "--top-k" not in text
    assert "--detection FILE locates lines" in shown(capsys, "--type", "ocr")
    for command in ("bench", "compare", "quantize", "tune"):
        assert run(command, "--type", "classifier", "--help") == 0
        assert "settings of Classifier" in capsys.readouterr().out
        assert run(command, "--help") == 0
        assert "--names FILE" in capsys.readouterr().out
    assert run("predict", "--model", tmp_path / "none.onnx", "--help") == 2


@pytest.mark.parametrize("kind", [*models.TYPES, "ocr"])
def test_every_setting_is_an_option_with_a_help_text(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "--type", kind)
    settings = models.OCR.Settings if kind == "ocr" else models.TYPES[kind].Settings
    for name in set(settings.__struct_fields__) - {"options"}:
        option = name.replace("_", "-")
        assert re.search(rf" --{option}(, --no-{option})?( [^ -][^ ]*)? [^ -]", text), name


@pytest.mark.parametrize("command", ["predict", "bench", "compare", "quantize", "tune"])
def test_no_option_of_a_command_hides_a_setting(command: str) -> None:
    """Such a setting could not be given."""
    arguments = parser().parse_args([command, *("x.jpg" if command == "predict" else "m.onnx",)])
    own = {name for name in vars(arguments) if not name.startswith("setting:")}
    settings = {name for kind in models.TYPES.values() for name in kind.Settings.__struct_fields__}
    assert own & settings <= {"device", "precision", "max_batch"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--confidence", "1"), "YOLOv5 has no setting 'confidence'; did you mean 'conf'?"),
        (("--top-k", "1"), "YOLOv5"),
        (("--type", "yolo5"), "did you mean 'yolov5'?"),
        (("--type", "yolov5", "--top-k", "1"), "YOLOv5 has no setting 'top_k'"),
        (("--modle", "1"), "did you mean --model?"),
        (("--type",), "argument --type: expected one argument"),
        (("--conf", "nan"), "conf"),
        (("--conf", "2"), "conf"),
        (("--conf", "[1"), "is not JSON"),
        (("--decode-head", "nativ"), "use one of 'auto', 'graph', 'native'; did you mean 'native'?"),
        (("--classes", "thre"), "did you mean 'three'"),
        (("--classes", "null"), "the model has no class 'null'"),
        (("--canvas", "fit", "--canvas-sizes", "192,96"), "canvas_sizes is '192,96', not a list"),
        (("--classes", "10"), "no class number 10; use those that it has, from 0 to 9"),
        (("--names", "none.txt"), "cannot read the class names in 'none.txt'"),
        (("--overlap", "0.5"), "--overlap is about tiles; give their size with --tile"),
        (("--tile", "big"), "'big' is not a size; use 640 or 640x480"),
        (("--tile", "64", "--overlap", "1"), "overlap is a share of a tile's side, from 0 to below 1, not 1.0"),
        (("--tile", "0"), "not (0, 0)"),
        (("--type", "ocr"), "--type ocr has two or three model files: --detection, --recognition"),
        (("--track",), "give videos alone"),
        (("--give-up", "nan"), "--give-up is about cameras and streams"),
        (("--json-lines", "rows.out", "--csv", "./rows.out"), "two results go to"),
        (("--option", "conf=0.9"), "no such option"),
        (("--option", "path=x"), "argument of its own"),
        (("--option", "treads=2"), "did you mean 'threads'?"),
        (("--option", "backend=openvino"), "use --backend"),
        (("--option", "threads=18446744073709551616"), "numbers have 64 bits at most"),
        (("--option", 'provider_options={"a":[18446744073709551616]}'), "numbers have 64 bits at most"),
        (("--option", 'threads={"a":{"b":1}}'), "threads is {'a': {'b': 1}}, not an int"),
        (("--option", f"threads={'[' * 100_000}"), "nested too deeply"),
        (("--option", f"threads={'9' * 5000}"), "threads is '999"),
        (("--option", "execution_mode=x"), "use one of 'parallel', 'sequential'"),
    ],
)
def test_wrong_arguments(arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*PREDICT, *arguments) == 2
    error = capsys.readouterr().err
    assert words in error
    assert "Traceback" not in error


@pytest.mark.assets
def test_a_yolox_of_the_first_release(assets: Path, rows: Callable[..., list[dict[str, Any]]]) -> None:
    folder = assets / "models"
    given = ["--model", folder / "yolox_nano.onnx", "--names", folder / "coco80.txt", "--type", "yolox"]
    for legacy in ([], ["--legacy"]):  # its weights tell the release, or it is named
        labels = [box["label"] for box in rows("predict", assets / "images" / "bus.jpg", *given, *legacy)[0]["results"]]
        assert labels[0] == "bus"
        assert labels.count("person") == 3
