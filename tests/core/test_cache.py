"""The cache: whole or not at all, one maker among many processes, and never larger than its limit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from infersdk.bundles.sealing import CacheSealer, Sealer
from infersdk.core.cache import Cache, default_folder, key_of
from infersdk.core.text import parse_size
from infersdk.errors import ConfigError, OutputError

ABOUT = {"kind": "engine", "backend": "test", "label": "net.onnx"}
KEYS = [key_of({"number": i}) for i in range(6)]


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache", limit=0)


def sealer(number: int) -> CacheSealer:
    pytest.importorskip("cryptography")
    return CacheSealer(Sealer(bytes([number] * 32), bytes(32)))


@pytest.fixture(params=["plain", "encrypted"])
def either(request: pytest.FixtureRequest, cache: Cache) -> Cache:
    """A cache of plain entries, and one of encrypted entries."""
    if request.param == "encrypted":
        cache.sealer = sealer(1)
    return cache


def run(code: str, *arguments: object) -> subprocess.Popen[str]:
    """A real process; it says "ready" by a line on its output."""
    head = f"import sys, time, os\nfrom pathlib import Path\nfrom infersdk.core.cache import Cache\nABOUT = {ABOUT!r}\n"
    command = [sys.executable, "-c", head + textwrap.dedent(code), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def names(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


def left(folder: Path) -> set[str]:
    """The files that are left after entries were removed. Windows keeps those of locks."""
    return {name for name in names(folder) if sys.platform != "win32" or not name.endswith(".lock")}


# ---- keys, sizes, places ----


def test_key_depends_on_every_part_and_not_on_their_order() -> None:
    parts = {"model": "abc", "max_batch": 4, "profiles": {"x": [[1], [2], [3]]}}
    assert key_of(parts) == key_of(dict(reversed(parts.items())))
    others = [{**parts, "model": "abd"}, {**parts, "max_batch": None}, {**parts, "profiles": {"x": [[1], [2], [4]]}}]
    assert len({key_of(p) for p in [parts, *others]}) == 4


@pytest.mark.parametrize(
    ("text", "size"),
    [(5, 5), ("0", 0), ("10GB", 10**10), ("512 MiB", 512 << 20), ("1.5k", 1500), ("2gib", 2 << 30), ("7b", 7)],
)
def test_sizes(text: str | int, size: int) -> None:
    assert parse_size(text, "limit") == size


@pytest.mark.parametrize("text", ["", "ten", "-1", -1, "1XB", "1 2", True])
def test_sizes_that_are_none(text: str | int) -> None:
    with pytest.raises(ConfigError, match="limit is a number of bytes"):
        parse_size(text, "limit")


@pytest.mark.parametrize("text", ["9" * 400, "9223373TB"])
def test_sizes_that_are_too_large(text: str) -> None:
    with pytest.raises(ConfigError, match="a number of bytes is less than"):
        parse_size(text, "limit")


@pytest.mark.posix
def test_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("INFERSDK_CACHE", str(tmp_path / "a"))
    assert default_folder() == tmp_path / "a"
    monkeypatch.delenv("INFERSDK_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "b"))
    assert default_folder() == tmp_path / "b" / "infersdk"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "c"))
    assert default_folder() == tmp_path / "c" / ".cache" / "infersdk"


def test_limit_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("INFERSDK_CACHE_LIMIT", "3MB")
    assert Cache(tmp_path).limit == 3_000_000
    monkeypatch.setenv("INFERSDK_CACHE_LIMIT", "much")
    with pytest.raises(ConfigError, match=r"INFERSDK_CACHE_LIMIT.*'much'"):
        Cache(tmp_path)


# ---- one process ----


@pytest.mark.parametrize("nbytes", [0, 1, 3 << 20])
def test_what_was_put_is_got(either: Cache, nbytes: int) -> None:
    data = os.urandom(nbytes)
    either.put(KEYS[0], data, **ABOUT, details={"precision": "fp16"})
    for _ in range(2):  # the first call marks it as used
        found = Cache(either.folder, sealer=either.sealer).get(KEYS[0])
        assert found[0] == data
        assert found[1].details == {"precision": "fp16"}
    assert either.get(KEYS[1]) is None
    assert names(either.folder) == {f"{KEYS[0]}.{suffix}" for suffix in ("bin", "json", "lock")}


def test_an_encrypted_entry_is_read_with_its_key_alone(cache: Cache) -> None:
    data = os.urandom(1000)
    cache.sealer = sealer(1)
    for key in KEYS[:2]:
        cache.put(key, data, **ABOUT, details={"precision": "fp16"})
    blobs = [cache.path(key).read_bytes() for key in KEYS[:2]]
    assert blobs[0] != blobs[1], "each entry has a salt of its own"
    assert b"fp16" not in (cache.folder / f"{KEYS[0]}.json").read_bytes()
    assert not any(data[:16] in blob for blob in blobs)
    assert Cache(cache.folder, sealer=sealer(2)).get(KEYS[0]) is None
    assert Cache(cache.folder).get(KEYS[0])[0] == blobs[0], "without a sealer, entries are returned as stored"


def test_a_plain_entry_is_no_encrypted_one(cache: Cache) -> None:
    cache.put(KEYS[0], b"plain", **ABOUT)
    cache.sealer = sealer(1)
    assert cache.get(KEYS[0]) is None


def test_makes_once(either: Cache) -> None:
    cache = either
    made: list[int] = []

    def make() -> tuple[bytes, dict[str, object]]:
        made.append(1)
        return b"engine", {"n": len(made)}

    assert cache.get_or_make(KEYS[0], make, **ABOUT) == (b"engine", {"n": 1}, False)
    assert cache.get_or_make(KEYS[0], make, **ABOUT) == (b"engine", {"n": 1}, True)
    assert len(made) == 1


def test_a_maker_that_fails_leaves_nothing(cache: Cache) -> None:
    def make() -> tuple[bytes, dict[str, object]]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.get_or_make(KEYS[0], make, **ABOUT)
    assert cache.entries() == []
    assert names(cache.folder) <= {f"{KEYS[0]}.lock"}
    assert cache.get_or_make(KEYS[0], lambda: (b"good", {}), **ABOUT)[2] is False


@pytest.mark.parametrize("damage", ["flip", "truncate", "grow", "remove", "manifest", "manifest of another", "empty"])
def test_damage_is_seen_and_mended(either: Cache, damage: str) -> None:
    cache, data = either, os.urandom(5000)
    cache.put(KEYS[0], data, **ABOUT)
    cache.put(KEYS[1], b"other", **ABOUT)
    blob, manifest = cache.path(KEYS[0]), cache.folder / f"{KEYS[0]}.json"
    stored = blob.read_bytes()
    if damage == "flip":
        blob.write_bytes(stored[:2500] + bytes([stored[2500] ^ 1]) + stored[2501:])
    elif damage == "truncate":
        blob.write_bytes(stored[:-1])
    elif damage == "grow":
        blob.write_bytes(stored + b"0")
    elif damage == "remove":
        blob.unlink()
    elif damage == "manifest":
        manifest.write_bytes(manifest.read_bytes()[:50])
    elif damage == "manifest of another":
        manifest.write_bytes((cache.folder / f"{KEYS[1]}.json").read_bytes())
    else:
        manifest.write_bytes(b"")
    assert cache.get(KEYS[0]) is None
    assert cache.get_or_make(KEYS[0], lambda: (data, {}), **ABOUT) == (data, {}, False)
    assert cache.get_or_make(KEYS[0], lambda: (b"", {}), **ABOUT) == (data, {}, True)


def test_a_manifest_whose_times_have_no_zone_is_a_damaged_one(cache: Cache) -> None:
    for key in KEYS[:2]:
        cache.put(key, b"data", **ABOUT)
    manifest = cache.folder / f"{KEYS[0]}.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_bytes()) | {"last_used": "2024-01-01T00:00:00"}))
    assert [entry.key for entry in cache.entries()] == [KEYS[1]]
    nbytes = sum(file.stat().st_size for file in cache.folder.iterdir())
    assert Cache(cache.folder, limit=nbytes).evict() == 0
    Cache(cache.folder, limit=nbytes - 1).evict()
    assert {name.partition(".")[0] for name in left(cache.folder)} == {KEYS[1]}


def test_what_a_dead_process_left_goes_with_the_next_entry(cache: Cache) -> None:
    cache.folder.mkdir(mode=0o700)
    for name in (f"{KEYS[0]}.bin", f".{KEYS[1]}.bin.tmp", f"{KEYS[2]}.lock"):
        (cache.folder / name).write_bytes(b"part")
    cache.put(KEYS[3], b"data", **ABOUT)
    assert {name.partition(".")[0] for name in left(cache.folder)} == {KEYS[3]}


def test_the_beginning_of_a_download_stays_within_the_limit(cache: Cache) -> None:
    cache.put(KEYS[0], bytes(1000), **ABOUT)
    cache.part(KEYS[1]).write_bytes(bytes(1000))
    with cache.held(KEYS[2]):
        cache.part(KEYS[2]).write_bytes(bytes(1000))
        cache.evict()
        assert cache.part(KEYS[1]).exists()
        small = Cache(cache.folder, limit=1500)
        small.evict(keep=KEYS[0])
        assert not cache.part(KEYS[1]).exists()
        cache.part(KEYS[1]).write_bytes(bytes(1000))
        cache.clear()
        assert {name for name in names(cache.folder) if name.endswith(".part")} == {f"{KEYS[2]}.part"}
    assert left(cache.folder) == set()


def test_least_recently_used_go_first(tmp_path: Path) -> None:
    cache = Cache(tmp_path, limit=0)
    for key in KEYS[:4]:
        cache.put(key, bytes(1000), **ABOUT)
    cache.get(KEYS[0])
    size = max(sum(f.stat().st_size for f in tmp_path.glob(f"{key}.*")) for key in KEYS[:4])
    small = Cache(tmp_path, limit=3 * size)
    small.put(KEYS[4], bytes(1000), **ABOUT)
    assert [entry.key for entry in small.entries()] == [KEYS[4], KEYS[0], KEYS[3]]
    assert {name.partition(".")[0] for name in left(tmp_path)} == {KEYS[4], KEYS[0], KEYS[3]}


def test_the_limit_holds_at_each_entry(tmp_path: Path) -> None:
    cache = Cache(tmp_path, limit=30_000)
    for number in range(60):
        cache.put(f"{number:064x}", bytes(1000), **ABOUT)
        assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= cache.limit
    assert len(cache.entries()) > 10


def test_entries_far_below_the_limit_list_the_folder_once(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    listed: list[Path] = []

    def scandir(folder: Path) -> Any:
        listed.append(folder)
        return whole(folder)

    whole = os.scandir
    monkeypatch.setattr(os, "scandir", scandir)
    for number in range(20):
        cache.put(f"{number:064x}", bytes(1000), **ABOUT)
    assert listed == [cache.folder]


def test_clear(cache: Cache) -> None:
    cache.put(KEYS[0], bytes(1000), **ABOUT)
    cache.put(KEYS[1], bytes(1000), **{**ABOUT, "backend": "other"})
    (cache.folder / "notes.txt").write_text("not of the cache")
    assert cache.clear("other")[0] == 1
    count, nbytes = cache.clear()
    assert count == 1
    assert nbytes > 1000
    assert cache.entries() == []
    assert left(cache.folder) == {"notes.txt"}


def test_clear_where_there_is_nothing(tmp_path: Path) -> None:
    assert Cache(tmp_path / "none").clear() == (0, 0)
    assert Cache(tmp_path / "none").entries() == []
    assert Cache(tmp_path / "none").get(KEYS[0]) is None


# ---- folders that cannot be used ----


@pytest.fixture
def blocked(tmp_path: Path) -> Path:
    """A folder that no user can make, the superuser included: a file of that name exists."""
    (tmp_path / "file").write_text("")
    return tmp_path / "file" / "cache"


def test_unwritable_goes_on_with_a_warning(blocked: Path) -> None:
    with pytest.warns(RuntimeWarning, match=r"cannot be written.*net\.onnx is not kept.*INFERSDK_CACHE"):
        assert Cache(blocked).get_or_make(KEYS[0], lambda: (b"made", {"a": 1}), **ABOUT) == (b"made", {"a": 1}, False)


@pytest.mark.posix
def test_unwritable_is_an_error_where_it_was_asked_for(blocked: Path) -> None:
    with pytest.raises(OutputError, match=r"file.cache' cannot be written"):
        Cache(blocked, required=True).get_or_make(KEYS[0], lambda: (b"made", {}), **ABOUT)
    with pytest.raises(OutputError, match="cannot be written"):
        Cache(blocked).put(KEYS[0], b"made", **ABOUT)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.put(KEYS[0], b"before", **ABOUT)
    real = open

    def full(file: object, mode: str = "r", *rest: object, **more: object) -> object:
        if ".tmp" in str(file):  # what the disk says when it is full, from the kernel itself
            real(file, mode).close()  # type: ignore[call-overload]
            return real("/dev/full", "wb")
        return real(file, mode, *rest, **more)  # type: ignore[call-overload]

    monkeypatch.setattr("builtins.open", full)
    with pytest.raises(OutputError, match=r"10,000 bytes.*No space left"):
        cache.put(KEYS[0], bytes(10_000), **ABOUT)
    with pytest.warns(RuntimeWarning, match="No space left"):
        assert cache.get_or_make(KEYS[1], lambda: (b"made", {}), **ABOUT)[0] == b"made"
    monkeypatch.undo()
    found = cache.get(KEYS[0])
    assert found[0] == b"before"
    assert not [name for name in names(cache.folder) if ".tmp" in name]


def test_without_locks_it_is_read(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a file system that is mounted read-only."""
    cache.put(KEYS[0], b"engine", **ABOUT)
    (cache.folder / f"{KEYS[0]}.lock").unlink()
    (cache.folder / f"{KEYS[0]}.lock").mkdir()  # no lock file can be here
    assert cache.get_or_make(KEYS[0], lambda: (b"", {}), **ABOUT) == (b"engine", {}, True)


# ---- several processes ----


def test_processes_make_it_once(cache: Cache, tmp_path: Path) -> None:
    code = """
        folder, key, log = sys.argv[1:]
        def make():
            with open(log, "a") as file: file.write("made\\n")
            time.sleep(0.5)
            return os.urandom(1000), {"pid": os.getpid()}
        data, details, there = Cache(folder).get_or_make(key, make, **ABOUT)
        print(data.hex(), details["pid"])
    """
    several = [run(code, cache.folder, KEYS[0], tmp_path / "log") for _ in range(4)]
    said = {process.communicate(timeout=60)[0] for process in several}
    assert all(process.returncode == 0 for process in several)
    assert (tmp_path / "log").read_text() == "made\n"
    assert len(said) == 1
    assert said.pop().strip()


def holder(cache: Cache, key: str) -> subprocess.Popen[str]:
    """A process that is busy making `key`."""
    process = run(
        """
        def make():
            print("ready", flush=True)
            time.sleep(60)
            return b"", {}
        Cache(sys.argv[1]).get_or_make(sys.argv[2], make, **ABOUT)
        """,
        cache.folder,
        key,
    )
    assert process.stdout.readline() == "ready\n"
    return process


def test_a_maker_that_is_killed_blocks_no_other(cache: Cache) -> None:
    process = holder(cache, KEYS[0])
    (cache.folder / f".{KEYS[0]}.bin.{process.pid}.abcd.tmp").write_bytes(bytes(1000))  # half of what it was writing
    process.kill()
    process.communicate(timeout=60)
    start = time.monotonic()
    found = cache.get_or_make(KEYS[0], lambda: (b"mine", {}), **ABOUT)
    assert found == (b"mine", {}, False)
    assert time.monotonic() - start < 10
    cache.remove(KEYS[0])
    assert left(cache.folder) == set()


def test_waiting_is_told_and_what_is_in_use_is_not_removed(cache: Cache) -> None:
    cache.put(KEYS[1], bytes(1000), **ABOUT)
    process = holder(cache, KEYS[0])
    try:
        assert not cache.remove(KEYS[0])
        small = Cache(cache.folder, limit=1)
        small.put(KEYS[2], bytes(1000), **ABOUT)  # evicts KEYS[1], and leaves KEYS[0] alone
        assert [entry.key for entry in small.entries()] == [KEYS[2]]
        assert f"{KEYS[0]}.lock" in names(cache.folder)

        def waiting() -> None:
            process.kill()

        assert cache.get_or_make(KEYS[0], lambda: (b"mine", {}), **ABOUT, waiting=waiting)[0] == b"mine"
    finally:
        process.kill()
        process.communicate(timeout=60)


def test_readers_see_the_old_or_the_new_while_writers_replace(cache: Cache, tmp_path: Path) -> None:
    """Also across removals, which take the lock file away under those who wait for it."""
    code = """
        folder, key, seed, stop = sys.argv[1:]
        cache, puts = Cache(folder, limit=0), 0
        while puts < 20 or not os.path.exists(stop):
            if int(seed) == 0: cache.remove(key)
            cache.put(key, bytes([int(seed)]) * (1000 + int(seed)), **ABOUT)
            puts += 1
            time.sleep(0.002)  # a lock that is taken again at once lets no other process in
    """
    stop = tmp_path / "stop"
    writers = [run(code, cache.folder, KEYS[0], seed, stop) for seed in range(2)]
    reads = [0, 0]
    deadline = time.monotonic() + 120
    while min(reads) < 50 and time.monotonic() < deadline and all(process.poll() is None for process in writers):
        if found := cache.get(KEYS[0]):
            data = found[0]
            assert data == bytes([data[0]]) * (1000 + data[0])
            assert found[1].matches(data)
            reads[data[0]] += 1
    stop.touch()
    for process in writers:
        process.communicate(timeout=60)
        assert process.returncode == 0
    assert min(reads) >= 50, "each writer's content is read while both write"
    assert cache.get(KEYS[0]) is not None
    assert not [name for name in names(cache.folder) if ".tmp" in name]


def test_a_reader_waits_for_no_writer(cache: Cache) -> None:
    cache.put(KEYS[0], b"engine", **ABOUT)
    code = """
        with Cache(sys.argv[1])._locked(sys.argv[2]):
            print("ready", flush=True)
            time.sleep(60)
    """
    process = run(code, cache.folder, KEYS[0])
    try:
        assert process.stdout.readline() == "ready\n"
        start = time.monotonic()
        for _ in range(20):
            found = cache.get(KEYS[0])
            assert found[0] == b"engine"
        assert time.monotonic() - start < 30  # the writer holds the lock for longer
        assert process.poll() is None
    finally:
        process.kill()
        process.communicate(timeout=60)


# ---- folders that are not to be trusted ----


@pytest.mark.posix
def test_a_lock_file_that_is_a_symbolic_link_is_not_followed(cache: Cache, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    before = victim.stat()
    cache.folder.mkdir(mode=0o700)
    for target in (victim, tmp_path / "new"):
        (cache.folder / f"{KEYS[0]}.lock").symlink_to(target)
        with pytest.raises(OutputError, match=r"\.lock' is a symbolic link; remove it"):
            cache.put(KEYS[0], b"engine", **ABOUT)
        with pytest.warns(RuntimeWarning, match="is a symbolic link"):
            assert cache.get_or_make(KEYS[0], lambda: (b"made", {}), **ABOUT)[0] == b"made"
        assert not cache.remove(KEYS[0])
        (cache.folder / f"{KEYS[0]}.lock").unlink()
    assert victim.read_text() == "precious"
    assert (victim.stat().st_mtime_ns, victim.stat().st_mode) == (before.st_mtime_ns, before.st_mode)
    assert not (tmp_path / "new").exists()


@pytest.mark.posix
def test_a_relative_folder_and_a_working_directory_that_was_deleted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    monkeypatch.setenv("INFERSDK_CACHE", "here")
    with pytest.raises(OutputError, match="'here' cannot be written.*has been deleted"):
        Cache("here", required=True).get_or_make(KEYS[0], lambda: (b"made", {}), **ABOUT)
    with pytest.warns(RuntimeWarning, match="'here' cannot be written.*has been deleted"):
        assert Cache().get_or_make(KEYS[0], lambda: (b"made", {}), **ABOUT) == (b"made", {}, False)


@pytest.mark.posix
@pytest.mark.parametrize("mode", [0o777, 0o702, 0o1777])
def test_a_folder_that_others_can_write_to_is_not_used(cache: Cache, mode: int) -> None:
    cache.put(KEYS[0], b"planted", **ABOUT)
    cache.folder.chmod(mode)
    assert cache.get(KEYS[0]) is None
    message = rf"other users can write to .*mode {mode:o}.*chmod go-w "
    with pytest.warns(RuntimeWarning, match=message):
        assert cache.get_or_make(KEYS[0], lambda: (b"made", {}), **ABOUT) == (b"made", {}, False)
    with pytest.raises(OutputError, match=message):
        cache.put(KEYS[1], b"engine", **ABOUT)
    with pytest.raises(OutputError, match=message):
        Cache(cache.folder, required=True).get_or_make(KEYS[0], lambda: (b"made", {}), **ABOUT)
    cache.folder.chmod(0o700)
    assert cache.get(KEYS[0])[0] == b"planted"  # type: ignore[index]


@pytest.mark.posix
def test_a_group_of_the_users_own_may_write(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.put(KEYS[0], b"engine", **ABOUT)
    cache.folder.chmod(0o775)
    found = cache.folder.stat()
    monkeypatch.setattr(os, "geteuid", lambda: found.st_uid)
    monkeypatch.setattr(os, "getegid", lambda: found.st_uid)
    if found.st_gid == found.st_uid:
        assert cache.get(KEYS[0]) is not None
    monkeypatch.setattr(os, "getegid", lambda: found.st_gid + 1)
    assert cache.get(KEYS[0]) is None


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() != 0, reason="only the superuser can give a folder away")
def test_a_folder_of_another_user_is_not_used(cache: Cache) -> None:
    cache.put(KEYS[0], b"planted", **ABOUT)
    os.chown(cache.folder, 12345, -1)
    assert cache.get(KEYS[0]) is None
    with pytest.raises(OutputError, match=r"belongs to the user with number 12345, and this process runs as 0"):
        cache.put(KEYS[1], b"engine", **ABOUT)


@pytest.mark.posix
def test_a_folder_that_no_file_system_takes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("x" * 300, "~nosuchuser/cache"):
        monkeypatch.setenv("INFERSDK_CACHE", str(tmp_path / name) if name[0] == "x" else name)
        with pytest.raises(OutputError, match="cache"):
            Cache(required=True).get_or_make(KEYS[0], lambda: (b"1", {}), **ABOUT)
    monkeypatch.setenv("INFERSDK_CACHE", str(tmp_path / ("x" * 300)))
    with pytest.warns(RuntimeWarning, match="cannot be written: File name too long"):
        assert Cache().get_or_make(KEYS[0], lambda: (b"1", {}), **ABOUT) == (b"1", {}, False)
    with pytest.raises(OutputError, match="null"):
        Cache("a\0b").put(KEYS[0], b"1", **ABOUT)
    assert (Cache().get(KEYS[0]), Cache().entries(), Cache().remove(KEYS[0])) == (None, [], False)


def test_a_blob_that_is_found_is_not_read_into_memory(cache: Cache) -> None:
    cache.put(KEYS[0], b"made", **ABOUT)
    found = cache.find(KEYS[0])
    assert (found[0].read_bytes(), found[1].nbytes) == (b"made", 4)
    found[0].write_bytes(b"mode")
    assert cache.find(KEYS[0]) is None
    assert cache.find(KEYS[1]) is None
