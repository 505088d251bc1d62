"""What a command line names: files, folders, patterns, addresses."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import run
from PIL import Image
from web import content, served

from infersdk.commands.sources import Source, drawn_paths, find_sources
from infersdk.data import DETECTOR, IMAGE
from infersdk.errors import ConfigError, ImageError, OutputError

pytest.importorskip("onnxruntime")

PREDICT = ["predict", "--model", str(DETECTOR)]


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """b.jpg, a.png, notes.txt, film.mp4, inner/c.jpg, inner/deep/d.jpg, empty/"""
    for name in ("b.jpg", "a.png", "inner/c.jpg", "inner/deep/d.jpg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.open(IMAGE).save(tmp_path / name)
    (tmp_path / "notes.txt").write_text("no image")
    (tmp_path / "film.mp4").write_bytes(b"")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def names(*given: str, **more: bool) -> list[str]:
    return [source.name for source in find_sources(given, **more)]


def test_folders(tree: Path) -> None:
    assert names(".") == ["a.png", "b.jpg", "film.mp4"]
    found = find_sources([str(tree)], recursive=True)
    assert [str(source.below) for source in found] == ["a.png", "b.jpg", "film.mp4", "inner/c.jpg", "inner/deep/d.jpg"]
    assert [source.is_video for source in found] == [False, False, True, False, False]
    with pytest.raises(ConfigError, match="'empty' has no image or video in it$"):
        names("empty")
    (tree / "outer" / "x").mkdir(parents=True)
    (tree / "outer" / "x" / "a.jpg").write_bytes(b"")
    with pytest.raises(ConfigError, match="1 are in folders below it: --recursive"):
        names("outer")


def test_a_gif_is_a_video(tree: Path) -> None:
    Image.new("L", (8, 8)).save(tree / "empty" / "a.GIF")
    for given in ("empty", "empty/a.GIF"):
        assert [(source.name, source.is_video) for source in find_sources([given])] == [("empty/a.GIF", True)]


def test_patterns(tree: Path) -> None:
    assert names("*.jpg", "inner/*.jpg") == ["b.jpg", "inner/c.jpg"]
    assert names("**/*.jpg") == ["b.jpg", "inner/c.jpg", "inner/deep/d.jpg"]
    assert names("?.???") == ["a.png", "b.jpg"]
    with pytest.raises(ConfigError, match=r"no file matches '\*\.webp'"):
        names("*.webp")
    (tree / "odd[1].jpg").write_bytes(b"")
    assert names("odd[1].jpg") == ["odd[1].jpg"], "a file of that name comes before a pattern"
    assert names("none.jpg") == ["none.jpg"], "what is not there is an error where it is read"


def test_streams_and_cameras() -> None:
    found = find_sources(["rtsp://host/a b", "/dev/video0"])
    assert [(s.is_video, str(s.below)) for s in found] == [
        (True, "rtsp_host_a_b.mp4"), (True, "dev_video0.mp4"),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    image = IMAGE.read_bytes()
    pages = {
        "/a.jpg": content(image, "image/jpeg"), "/img": content(image, "image/jpeg"),
        "/raw": content(image, "application/octet-stream"), "/raw.jpg": content(image, "binary/octet-stream"),
        "/film": content(b"", "video/mp4"), "/film.mp4": content(b"", "application/octet-stream"),
        "/film.jpg": content(b"", "video/mp4"), "/live": content(b"", "multipart/x-mixed-replace; boundary=x"),
        "/page": content(b"<html>", "text/html"), "/unknown": content(b"nothing known", None),
    }  # fmt: skip
    with served(pages) as address:
        yield address


def test_the_content_type_tells_images_from_videos(server: str) -> None:
    kinds = {}
    for path in ("/a.jpg", "/img", "/raw", "/raw.jpg", "/film", "/film.mp4", "/film.jpg", "/live", "/unknown"):
        (source,) = find_sources([server + path])
        kinds[path] = (source.is_video, str(source.below))
        assert (source.body is None) == source.is_video
        assert source.error is None
    assert kinds == {
        "/a.jpg": (False, "a.jpg"), "/img": (False, "img.png"), "/raw": (False, "raw.png"),
        "/raw.jpg": (False, "raw.jpg"), "/film": (True, "film.mp4"),
        "/film.mp4": (True, "film.mp4"), "/film.jpg": (True, "film.jpg.mp4"),
        "/live": (True, "live.mp4"), "/unknown": (True, "unknown.mp4"),
    }  # fmt: skip
    for path, words in (("page", "its content is text/html, neither an image nor a video"), ("none.jpg", "404")):
        (source,) = find_sources([f"{server}/{path}"])
        with pytest.raises(ImageError, match=words):
            source.read()


# ---- where drawings go ----


def test_drawings_of_a_folder_keep_its_shape(tree: Path) -> None:
    found = find_sources(["inner", "b.jpg"], recursive=True)
    assert drawn_paths(found, Path("out")) == [Path("out/c.jpg"), Path("out/deep/d.jpg"), Path("out/b.jpg")]
    assert drawn_paths(found[:1], Path("one.png")) == [Path("one.png")]
    assert drawn_paths(found, None) == [None, None, None]
    with pytest.raises(ConfigError, match="one file, but there are 3 sources"):
        drawn_paths(found, Path("one.png"))
    with pytest.raises(OutputError, match="'one.txt': unknown file extension; use .json, or that of an image"):
        drawn_paths(found[:1], Path("one.txt"))
    with pytest.raises(ConfigError, match="'one.png': the suffix of a video is one of .mp4"):
        drawn_paths(find_sources(["/dev/video0"]), Path("one.png"))
    videos = find_sources(["film.mp4", "inner/film.flv", "film.wmv"])
    assert drawn_paths(videos, Path("out")) == [
        Path("out/film.mp4"),
        Path("out/film.flv.mp4"),
        Path("out/film.wmv.mp4"),
    ]
    (tree / "named.d").mkdir()
    assert drawn_paths(found[2:], Path("named.d")) == [Path("named.d/b.jpg")]


def test_nothing_is_overwritten(tree: Path) -> None:
    for output in (Path("b.jpg"), Path("."), tree):
        with pytest.raises(ConfigError, match=r"'b\.jpg' would be overwritten by its drawing"):
            drawn_paths(find_sources(["b.jpg"]), output)
    (tree / "other").mkdir()
    os.link(tree / "b.jpg", tree / "other" / "b.jpg")
    with pytest.raises(ConfigError, match=r"'b\.jpg' and 'other/b\.jpg' would both be written to 'out/b\.jpg'"):
        drawn_paths(find_sources(["b.jpg", "other/b.jpg"]), Path("out"))
    twice = drawn_paths(find_sources(["b.jpg", "b.jpg"]), Path("out"))
    assert twice == [Path("out/b.jpg")] * 2, "the same drawing twice is none lost"
    downloaded = Source("http://host/b.jpg", False, find_sources(["b.jpg"])[0].below, body=b"")
    assert drawn_paths([downloaded], Path(".")) == [Path("b.jpg")]


def test_passwords_are_in_no_path(tree: Path) -> None:
    cameras = ["rtsp://admin:secret@camera/hall", "rtsp://guest:secret@camera/hall"]
    assert drawn_paths(find_sources([cameras[0], "a.mp4"]), Path("out"))[0] == Path("out/rtsp_camera_hall.mp4")
    both = r"'rtsp://\*\*\*@camera/hall' and 'rtsp://\*\*\*@camera/hall' would both be written to"
    with pytest.raises(ConfigError, match=both):
        drawn_paths(find_sources(cameras), Path("out"))


# ---- the commands ----


def test_predict_in_a_folder(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tree / "film.mp4").unlink()
    assert run(*PREDICT, ".", "--recursive", "-o", "out", "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["image"] for row in rows] == ["a.png", "b.jpg", "inner/c.jpg", "inner/deep/d.jpg"]
    for row in rows:
        assert Image.open(row["output"]).size == tuple(row["size"])
    assert run(*PREDICT, "*.png", "--json") == 0
    assert json.loads(capsys.readouterr().out)[0]["results"] == rows[0]["results"]
    assert run(*PREDICT, "empty") == 2


def test_predict_at_an_address(server: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(*PREDICT, f"{server}/img", IMAGE, "--json", "-o", tmp_path) == 0
    web, file = json.loads(capsys.readouterr().out)
    assert web["image"] == f"{server}/img"
    assert web["results"] == file["results"]
    assert Image.open(tmp_path / "img.png").size == Image.open(IMAGE).size
    assert run(*PREDICT, f"{server}/page") == 2
    assert "neither an image nor a video" in capsys.readouterr().err


@pytest.fixture
def damaged(tree: Path) -> Path:
    """a.png, which is truncated, b.jpg, and c.png, which is no image."""
    (tree / "film.mp4").unlink()
    (tree / "a.png").write_bytes((tree / "a.png").read_bytes()[:2000])
    (tree / "c.png").write_text("no image")
    return tree


REPORTED = [
    r"infersdk: 'a\.png': cannot be decoded: .*", r"infersdk: 'c\.png': not an image of a format that is read: .*",
    "infersdk: 2 of 3 sources could not be read, and were skipped",
]  # fmt: skip


def test_images_that_cannot_be_read_are_skipped(damaged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*PREDICT, ".", "--json") == 1
    captured = capsys.readouterr()
    rows = json.loads(captured.out)
    assert [row["image"] for row in rows] == ["a.png", "b.jpg", "c.png"]
    assert ["error" in row for row in rows] == [True, False, True]
    for line, words in zip(captured.err.splitlines(), REPORTED, strict=True):
        assert re.fullmatch(words, line)
    assert run(*PREDICT, ".") == 1
    captured = capsys.readouterr()
    assert "b.jpg" in captured.out
    assert len(captured.err.splitlines()) == 3


def test_drawings_go_on_behind_an_image_that_cannot_be_read(damaged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*PREDICT, ".", "-o", "out", "--json-lines", "rows.json") == 1
    assert [path.name for path in Path("out").iterdir()] == ["b.jpg"]
    rows = [json.loads(line) for line in Path("rows.json").read_text().splitlines()]
    assert ["error" in row for row in rows] == [True, False, True]


def test_no_image_that_can_be_read_is_wrong_input(damaged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*PREDICT, "a.png", "c.png", "--json") == 2
    captured = capsys.readouterr()
    assert len(json.loads(captured.out)) == 2
    assert captured.err.splitlines()[-1] == "infersdk: 2 of 2 sources could not be read, and were skipped"
    assert run(*PREDICT, "a.png") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "'a.png': cannot be decoded" in line


def test_an_address_and_a_missing_file_are_skipped_too(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*PREDICT, f"{server}/page", "none.jpg", IMAGE, "--json") == 1
    captured = capsys.readouterr()
    assert ["error" in row for row in json.loads(captured.out)] == [True, True, False]
    assert "neither an image nor a video" in captured.err
    assert "no image at 'none.jpg'" in captured.err


def test_predict_at_an_address_of_a_video(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("av")
    from infersdk.video import VideoWriter

    with VideoWriter(tmp_path / "in.mp4", fps=10) as writer:
        for _ in range(3):
            writer.write(Image.open(IMAGE).convert("RGB"))
    with served({"/film": content((tmp_path / "in.mp4").read_bytes(), "video/mp4")}) as address:
        assert run(*PREDICT, f"{address}/film", "--json", "--classes", "three") == 0
    *rows, summary = map(json.loads, capsys.readouterr().out.splitlines())
    assert summary["summary"]["frames"] == len(rows) == 3
    assert {box["label"] for row in rows for box in row["results"]} <= {"three"}
