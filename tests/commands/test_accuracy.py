"""`infersdk compare --task`, and candidates: exit codes, JSON and tables."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import command_line
import pytest

from infersdk.data import CLASSIFIER, DETECTOR

pytest.importorskip("onnxruntime")
pytest.importorskip("pycocotools")

from labelled import coco_set, crops, damaged

run = partial(command_line.run, "compare")


def test_a_detector_and_a_worse_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    annotations, images = coco_set(tmp_path)
    worse = damaged(tmp_path / "worse.onnx")
    command = (DETECTOR, "--task", "detect", "--annotations", annotations, "--data", images, "--candidate", worse)
    assert run(*command) == 1
    shown = capsys.readouterr().out
    for words in ("mAP on 3 images; a drop of 0.01 is allowed", "worse.onnx", "reference", "drops", "fp32"):
        assert words in shown
    limits = ("--max-drop", "0.99", "--max-score-shift", "0.0001")
    assert run(*command, *limits) == 1
    shown = capsys.readouterr().out
    assert "a drop of 0.99 is allowed, and a shift of scores of 0.0001" in shown
    assert shown.count("scores shift") == 2, "the column and the verdict"
    assert "drops" not in shown
    assert run(*command, "--json", "--max-drop", "0.99") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["passes"] is True
    assert report["reference"] == "digits_detector.onnx on onnxruntime"
    first, second = report["scores"]
    assert second["drop"] == first["figures"]["mAP"] - second["figures"]["mAP"] > 0.05
    assert second["layers"] == {"fp32": sum(second["layers"].values())}


def test_a_classifier_on_each_backend(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("openvino")
    command = (CLASSIFIER, "--task", "classify", "--data", crops(tmp_path), "--preset", "unit", "--resize", 32)
    assert run(*command, "--json") == 0
    scores = json.loads(capsys.readouterr().out)["scores"]
    assert [score["backend"] for score in scores] == ["onnxruntime", "openvino"]
    assert scores[0]["figures"] == scores[1]["figures"]
    worse = damaged(tmp_path / "a=b.onnx", CLASSIFIER, noise=1.5)
    assert run(*command, "--json", "--candidate", f"openvino={worse}", "--backends", "onnxruntime@cpu/fp32") == 1
    scores = json.loads(capsys.readouterr().out)["scores"]
    assert [(score["backend"], Path(score["model"]).name) for score in scores] == [
        ("onnxruntime", "digits_classifier.onnx"), ("openvino", "a=b.onnx"),
    ]  # fmt: skip
    assert run(CLASSIFIER, worse, *command[1:], "--json", "--batch", 2) == 1, "a path with an = is no backend"
    assert [score["label"] for score in json.loads(capsys.readouterr().out)["scores"]] == [
        "digits_classifier.onnx on onnxruntime", "a=b.onnx on onnxruntime",
    ]  # fmt: skip


def test_candidates_by_their_outputs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    same, worse = damaged(tmp_path / "same.onnx", noise=0), damaged(tmp_path / "worse.onnx")
    assert run(DETECTOR, same, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["sides"][0]["name"] == f"{same} on onnxruntime"
    assert report["sides"][0]["outputs"][0]["max_abs"] == 0
    assert run(DETECTOR, same, worse) == 1
    assert run(DETECTOR, same, "--layers") == 2
    assert "leave the candidates out" in capsys.readouterr().err
    assert run(DETECTOR, same, same) == 2
    assert "are the same" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--conf", "0.1"], "--conf is a setting of a wrapper, for --task"),
        (["--max-drop", "0.1"], "--max-drop is for --task detect, segment, pose, semantic or classify"),
        (["--task", "detect"], "needs the labelled images: --data"),
        (["--task", "detect", "--data", "."], "needs --annotations"),
        (
            ["--task", "detect", "--data", ".", "--annotations", "a.json", "--backends", "onnxruntime"],
            "infersdk bench",
        ),
        (["--task", "detect", "--data", ".", "--annotations", "none.json"], "cannot read the annotations 'none.json'"),
        (["--task", "classify", "--data", "none"], "no folder of images at 'none'"),
        (
            ["--task", "classify", "--data", ".", "--annotations", "a.json"],
            "--annotations is for --task detect, segment or pose",
        ),
        (["--task", "classify", "--data", ".", "--layers"], "--layers is for comparing outputs"),
        (["--task", "classify", "--data", ".", "--shape", "x=1,3"], "--shape is for comparing outputs"),
        (["--task", "classify", "--data", ".", "--atol", "5"], "--atol is for comparing outputs"),
        (["--task", "classify", "--data", ".", "--rtol", "0"], "--rtol is for comparing outputs"),
        (["--task", "classify", "--data", ".", "--cosine", "1"], "--cosine is for comparing outputs"),
        (["--task", "classify", "--data", ".", "--seed", "0"], "--seed is for comparing outputs"),
        (["--data", ".", "--seed", "9"], "--seed is for random inputs, without --data"),
        (["--task", "segment", "--data", "."], "--task segment needs --annotations"),
        (["--task", "depth", "--data", "."], "depth"),
    ],
)
def test_wrong_use(
    arguments: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(DETECTOR, *arguments) == 2
    assert words in capsys.readouterr().err


def test_an_empty_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(CLASSIFIER, "--task", "classify", "--data", tmp_path) == 2
    assert "no image in" in capsys.readouterr().err
