"""What a video may reach: a file nothing but itself, an address no file."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from web import content, served

from infersdk.errors import VideoError
from infersdk.video import VideoReader, VideoWriter

pytest.importorskip("av")

PLAYLIST = "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{}\n#EXT-X-ENDLIST\n"
SESSION = (
    "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 5004 RTP/AVP 96\na=rtpmap:96 H264/90000\n"
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a.ts, a video of ten frames."""
    monkeypatch.chdir(tmp_path)
    with VideoWriter("a.ts") as writer:
        for _ in range(10):
            writer.write(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8))
    return tmp_path


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("list.m3u8", PLAYLIST.format("a.ts")),
        ("list.mp4", PLAYLIST.format("a.ts")),
        ("list.txt", "ffconcat version 1.0\nfile a.ts\n"),
        ("list.mp4", "ffconcat version 1.0\nfile a.ts\n"),
        ("session.sdp", SESSION),
        ("notes.txt", "person\nbicycle\n" * 90),
    ],
)
def test_a_file_that_names_others_is_no_video(name: str, text: str, folder: Path) -> None:
    Path(name).write_text(text)
    with pytest.raises(VideoError, match=f"'{name}' cannot be opened as a video"):
        VideoReader(name)


def test_a_playlist_of_addresses_is_not_followed_from_a_file(folder: Path) -> None:
    asked = []
    data = content(Path("a.ts").read_bytes(), "video/mp2t")
    with served({"/a.ts": lambda request: (asked.append(request.path), data(request))[1]}) as address:
        Path("list.m3u8").write_text(PLAYLIST.format(f"{address}/a.ts"))
        with pytest.raises(VideoError, match="cannot be opened as a video"):
            VideoReader("list.m3u8")
    assert asked == []


@pytest.mark.parametrize("name", ["concat:a.ts|a.ts", "subfile,,start,0,end,0,,:a.ts", "pipe:0"])
def test_a_path_is_no_protocol(name: str, folder: Path) -> None:
    with pytest.raises(VideoError, match=r"no video at '"):
        VideoReader(name)


def test_a_path_is_no_pattern_of_names(folder: Path) -> None:
    for number in range(3):
        Image.new("RGB", (64, 48)).save(f"image{number}.png")
    for name in ("image%d.png", "image1.png"):
        with pytest.raises(VideoError, match="it has no format of a video that is read"):
            VideoReader(name)


@pytest.mark.skipif(os.name != "posix", reason="a name with a colon")
def test_a_path_with_a_colon_is_a_path(folder: Path) -> None:
    Path("a:b.ts").write_bytes(Path("a.ts").read_bytes())
    with VideoReader("a:b.ts") as reader:
        assert len(list(reader)) == 10


def test_a_playlist_of_a_server_names_addresses_and_no_files(folder: Path) -> None:
    data = Path("a.ts").read_bytes()
    pages = {
        "/a.ts": content(data, "video/mp2t"),
        "/good.m3u8": content(PLAYLIST.format("a.ts").encode(), "application/vnd.apple.mpegurl"),
        "/bad.m3u8": content(PLAYLIST.format(f"file://{folder}/a.ts").encode(), "application/vnd.apple.mpegurl"),
        "/list": content(f"ffconcat version 1.0\nfile {folder}/a.ts\n".encode(), None),
    }
    with served(pages) as address:
        with VideoReader(f"{address}/good.m3u8", timeout=20) as reader:
            assert len(list(reader)) == 10
        for page in ("bad.m3u8", "list"):
            with pytest.raises(VideoError):
                VideoReader(f"{address}/{page}", timeout=20)


def test_frames_have_a_limit_of_pixels(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infersdk.video.source_reader.MAX_PIXELS", 64 * 64 - 1)
    with pytest.raises(VideoError, match="'a.ts' is 64 x 64; a frame has at most 4,095 pixels"):
        VideoReader("a.ts")
