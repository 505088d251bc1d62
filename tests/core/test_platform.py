"""Differences of the systems: the folder of caches of each, and a process without the modules of POSIX."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from infersdk.core import files

#: A process whose `os` has nothing of POSIX, and which cannot remove a locked file.
WINDOWS = """
import os, sys, types
import cffi, msgspec, numpy, PIL.Image, tempfile, shutil, subprocess
import multiprocessing, asyncio, concurrent.futures.process
held = set()
def locking(descriptor, mode, nbytes):
    file = os.fstat(descriptor).st_ino
    if file in held:
        raise PermissionError(13, "Permission denied")
    held.add(file)
sys.modules["msvcrt"] = types.SimpleNamespace(locking=locking, LK_NBLCK=2)
sys.modules.update(dict.fromkeys(("fcntl", "resource", "pwd", "grp", "termios")))
for name in ("O_NONBLOCK", "O_CLOEXEC", "O_NOFOLLOW", "geteuid", "getegid", "register_at_fork", "fork", "memfd_create",
             "sched_getaffinity", "mkfifo"):
    delattr(os, name)
sys.platform = "win32"
os.environ["LOCALAPPDATA"], folder = sys.argv[1:]
os.environ.pop("INFERSDK_CACHE", None)
from infersdk import Tensor
from infersdk.core.cache import Cache, key_of
import infersdk.loading, infersdk.models, infersdk.ops, infersdk.pipeline
path = os.path.join(folder, "Gr\\u00f6\\u00dfe.bin")
Tensor.wrap(numpy.arange(6.0).reshape(2, 3)).save(path)
assert Tensor.load(path).numpy().tolist() == [[0, 1, 2], [3, 4, 5]]
cache, key = Cache(), key_of({})
assert cache.folder == type(cache.folder)(sys.argv[1], "infersdk"), cache.folder
about = dict(kind="engine", backend="test", label="a")
assert cache.get_or_make(key, lambda: (b"made", {}), **about) == (b"made", {}, False)
held.clear()
assert cache.get(key)[0] == b"made"
assert not cache.remove(key), "another process holds the lock"
held.clear()
assert cache.remove(key) and cache.get(key) is None
assert [file.name for file in cache.folder.iterdir()] == [key + ".lock"]
print("good")
"""


@pytest.mark.posix
def test_a_process_without_the_modules_of_posix(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WINDOWS, str(tmp_path / "local"), str(tmp_path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "good\n"), done.stderr


@pytest.mark.posix
@pytest.mark.parametrize(
    ("system", "folder"), [("linux", "home/.cache"), ("darwin", "home/Library/Caches"), ("win32", "home/AppData/Local")]
)
def test_the_folder_of_caches(system: str, folder: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    assert files.cache_base() == tmp_path / folder
