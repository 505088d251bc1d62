"""Writing files in one step, and finding images."""

from __future__ import annotations

import itertools
import os
import stat
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from infersdk.core.files import (
    atomic_path,
    atomic_write,
    image_files,
    is_read_only,
    open_regular,
    read_regular,
    scratch_folder,
)
from infersdk.errors import ConfigError, OutputError


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_writes_bytes_and_text_and_makes_the_folder(tmp_path: Path) -> None:
    target = tmp_path / "new" / "folder" / "a.json"
    assert atomic_write(target, "ä €\n") == target
    assert target.read_bytes() == "ä €\n".encode()
    assert atomic_write(str(target), b"\0\xff") == target
    assert target.read_bytes() == b"\0\xff"
    assert names(target.parent) == {"a.json"}


def test_a_lone_surrogate_becomes_its_escape(tmp_path: Path) -> None:
    assert atomic_write(tmp_path / "a.json", '"x\udcff"').read_bytes() == b'"x\\udcff"'


def test_names_as_long_as_a_file_system_takes(tmp_path: Path) -> None:
    name = "é" * 125 + ".png"
    assert len(name.encode()) == 254
    atomic_write(tmp_path / name, b"1")
    assert names(tmp_path) == {name}


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "a.png"
    target.write_bytes(b"old")

    def interrupted(sibling: Path) -> None:
        assert sibling.suffix == ".png"
        assert sibling.parent == tmp_path
        sibling.write_bytes(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), atomic_path(target) as sibling:
        interrupted(sibling)
    with pytest.raises(OutputError, match=r"^cannot write .*a\.png.*: unknown format"), atomic_path(target):
        raise ValueError("unknown format")
    with pytest.raises(ConfigError, match="of ours"), atomic_path(target):
        raise ConfigError("of ours")
    assert target.read_bytes() == b"old"
    assert names(tmp_path) == {"a.png"}


@pytest.mark.posix
def test_what_cannot_be_written_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OutputError, match=r"cannot write '.*file/a' \(3 bytes\): '.*file' is not a folder"):
        atomic_write(tmp_path / "file" / "a", b"123")
    assert not is_read_only(tmp_path / "file" / "a"), "there is no such file"
    with pytest.raises(OutputError, match="it is a folder"):
        atomic_write(tmp_path, b"123")
    with pytest.raises(OutputError, match="null"):
        atomic_write(f"{tmp_path}/a\0b", b"123")
    assert names(tmp_path) == {"file"}


@pytest.mark.posix
@pytest.mark.parametrize("follow", [True, False])
def test_a_symbolic_link_is_written_through_or_replaced(tmp_path: Path, follow: bool) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("folder/real")
    atomic_write(tmp_path / "link", b"new", follow=follow)
    assert (tmp_path / "link").read_bytes() == b"new"
    assert (tmp_path / "link").is_symlink() is follow
    assert (tmp_path / "folder" / "real").read_bytes() == (b"new" if follow else b"old")


@pytest.mark.posix
def test_the_permissions_of_a_file_stay(tmp_path: Path) -> None:
    target = tmp_path / "a"
    target.write_bytes(b"old")
    target.chmod(0o640)
    atomic_write(target, b"new")
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    mask = os.umask(0o022)
    try:
        atomic_write(tmp_path / "b", b"new")
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "b").stat().st_mode) == 0o644


def test_a_read_only_file_is_not_replaced(tmp_path: Path) -> None:
    target = tmp_path / "a"
    target.write_bytes(b"old")
    target.chmod(0o444)
    with pytest.raises(OutputError, match="it is read-only; make it writable"):
        atomic_write(target, b"new")
    assert target.read_bytes() == b"old"
    assert names(tmp_path) == {"a"}
    target.chmod(0o644)
    atomic_write(target, b"new")


@pytest.mark.posix
def test_what_is_no_regular_file_is_written_to_and_stays(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
    reader.start()
    atomic_write(pipe, b"through")
    reader.join(30)
    assert got == [b"through"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert names(tmp_path) == {"pipe"}
    atomic_write("/dev/null", b"nowhere")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    if os.path.exists("/dev/full"):
        with pytest.raises(OutputError, match="No space left on device"):
            atomic_write("/dev/full", b"123")


def test_images_of_a_folder(tmp_path: Path) -> None:
    for name in ("b.JPG", "a.png", "notes.txt", "inner/c.webp"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "folder.jpg").mkdir()
    assert [path.name for path in image_files(tmp_path)] == ["a.png", "b.JPG"]
    assert [path.name for path in image_files(tmp_path, recursive=True)] == ["a.png", "b.JPG", "c.webp"]


def test_a_scratch_folder_is_removed_if_an_interrupt_comes_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    remove, interrupts = os.unlink, [1]

    def unlink(*arguments: Any, **named: Any) -> None:
        if interrupts:
            interrupts.pop()
            raise KeyboardInterrupt
        remove(*arguments, **named)

    def write() -> None:
        with scratch_folder() as folder:
            folders.append(folder)
            for name in "abc":
                (folder / name).write_text(name)

    folders: list[Path] = []
    write()
    assert not folders[0].exists()
    monkeypatch.setattr(os, "unlink", unlink)
    with pytest.raises(KeyboardInterrupt):
        write()
    assert not folders[1].exists()


@pytest.mark.posix
def test_reads_regular_files_only(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    (tmp_path / "link").symlink_to("a")
    os.mkfifo(tmp_path / "pipe")
    assert read_regular(tmp_path / "a", 5) == read_regular(tmp_path / "link", 5) == b"12345"
    with open_regular(tmp_path / "a") as file:
        assert file.read() == b"12345"
    refused = {
        str(tmp_path / "pipe"): "it is not a regular file", "/dev/zero": "it is not a regular file",
        str(tmp_path): "Is a directory", str(tmp_path / "b"): "No such file", "a\0b": "null character",
    }  # fmt: skip
    for path, said in refused.items():
        with pytest.raises(OSError, match=said) as raised:
            read_regular(path, 5)
        assert raised.value.strerror is not None
    with pytest.raises(OSError, match="it has more than 4 bytes"):
        read_regular(tmp_path / "a", 4)


def test_an_interrupt_while_a_file_is_read_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal left
        if frame.f_code.co_filename != __file__:
            left -= 1
            if left == -1:
                raise KeyboardInterrupt

    before = sys.getprofile()
    for events in itertools.count():  # each call and each return raises once
        left = events
        sys.setprofile(count)
        try:
            read_regular(tmp_path / "a", 5)
            break
        except KeyboardInterrupt:
            pass
        finally:
            sys.setprofile(before)
    assert events > 10
