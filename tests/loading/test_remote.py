"""Model files of other machines, from a local server that speaks the hub's interface and plain HTTP."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from infersdk import bundles, cli, models
from infersdk.config import read
from infersdk.core.cache import Cache
from infersdk.core.model_source import Address, ModelSource, is_address, with_digest
from infersdk.data import DETECTOR, IMAGE
from infersdk.errors import ConfigError, ModelNotFoundError, UnsupportedModelError
from infersdk.loading.remote import local_copy

COMMIT = "0123456789abcdef0123456789abcdef01234567"
DIGEST = hashlib.sha256(DETECTOR.read_bytes()).hexdigest()


class Hub(http.server.ThreadingHTTPServer):
    """Serves one file: as `org/digits` of the hub, and as `/plain/model.onnx`.

    Attributes:
        commit: that its branch names.
        requests: method and path of each.
        cut: bytes after which the connection of the next download ends; None for none.
        delay: seconds before each answer.
        ranges: whether it answers requests for parts of a file; None refuses them.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.commit = COMMIT
        self.requests: list[str] = []
        self.cut: int | None = None
        self.delay = 0.0
        self.ranges: bool | None = True
        self.content = DETECTOR.read_bytes()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def pinned(self) -> str:
        """Its address of the file with the checksum."""
        return f"{self.address}/plain/model.onnx#sha256={hashlib.sha256(self.content).hexdigest()}"


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, *_: Any) -> None:
        """Nothing on stderr."""

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        self.server.requests.append(f"{self.command} {self.path}")
        time.sleep(self.server.delay)
        if self.path.startswith("/api/models/org/digits"):
            data, headers = json.dumps({"id": "org/digits", "sha": COMMIT, "siblings": []}).encode(), {}
        elif self.path in (
            "/plain/model.onnx",
            *(f"/org/digits/resolve/{name}/onnx/model.onnx" for name in ("main", COMMIT)),
        ):
            data = self.server.content
            headers = {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', "X-Repo-Commit": self.server.commit}
        else:
            self.send_error(404)
            return
        if self.server.ranges is None and "Range" in self.headers:
            self.send_error(501)
            return
        start, code = 0, 200
        if self.server.ranges and (wanted := self.headers.get("Range", "").removeprefix("bytes=")):
            first, _, last = wanted.partition("-")
            end = min(int(last or len(data) - 1), len(data) - 1)
            headers["Content-Range"] = f"bytes {int(first)}-{end}/{len(data)}"
            data, start, code = data[int(first) : end + 1], int(first), 206
        self.send_response(code)
        if self.server.ranges:
            headers["Accept-Ranges"] = "bytes"
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if not body:
            return
        cut = self.server.cut
        if cut is not None and start + len(data) > cut:
            self.server.cut = None
            data = data[: max(cut - start, 0)]
            self.close_connection = True
        self.wfile.write(data)


@pytest.fixture(name="hub")
def _hub() -> Iterator[Hub]:
    for package in ("huggingface_hub", "fsspec", "aiohttp"):
        pytest.importorskip(package)
    hub = Hub()
    thread = threading.Thread(target=hub.serve_forever)
    thread.start()
    yield hub
    hub.shutdown()
    thread.join()
    hub.server_close()


@pytest.fixture(name="cache")
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of `run()`, for this process. The hub's client has its own, and reads its place when it is imported."""
    monkeypatch.setenv("INFERSDK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def run(hub: Hub, folder: Path, code: str, **more: str) -> subprocess.CompletedProcess[str]:
    """A process with empty caches in the folder, whose hub is this one."""
    environment = {
        **os.environ, "HF_ENDPOINT": hub.address, "HF_HOME": str(folder / "hf"),
        "INFERSDK_CACHE": str(folder / "cache"), "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_XET": "1", **more,
    }  # fmt: skip
    command = [sys.executable, "-c", f"import sys, infersdk\nfrom infersdk import cli, models\n{code}"]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def errors(hub: Hub, folder: Path, *addresses: str, **more: str) -> list[str]:
    """The traceback of loading from each address, in one process."""
    code = f"""
import json, traceback
found = []
for address in {addresses!r}:
    try:
        models.load(address).close()
    except Exception:
        found.append(traceback.format_exc())
print(json.dumps(found))
"""
    found: list[str] = json.loads(run(hub, folder, code, **more).stdout)
    assert len(found) == len(addresses)
    return found


def parts(cache: Path) -> list[Path]:
    """The beginnings of downloads."""
    return list(cache.glob("*.part"))


LOAD = "with models.load({address!r}) as model: print(len(model({image!r})))"


def load(address: str) -> str:
    return LOAD.format(address=address, image=str(IMAGE))


def copy(address: str) -> str:
    return f"from infersdk.loading.remote import local_copy; print(local_copy({address!r}))"


def test_a_second_start_sends_no_request(hub: Hub, tmp_path: Path) -> None:
    code = f"{load(f'hf://org/digits@{COMMIT}/onnx/model.onnx')}\n{load(hub.pinned)}"
    first = run(hub, tmp_path, code)
    assert first.returncode == 0, first.stderr
    assert all(int(count) > 0 for count in first.stdout.split())
    assert {request.split("/")[1] for request in hub.requests} >= {"org", "plain"}
    hub.requests.clear()
    for more in ({"HF_HUB_DISABLE_TELEMETRY": "0"}, {"HF_HUB_OFFLINE": "1"}):
        again = run(hub, tmp_path, code, **more)
        assert (again.returncode, again.stdout) == (0, first.stdout), again.stderr
    assert hub.requests == []


def test_offline(hub: Hub, tmp_path: Path) -> None:
    for error in errors(hub, tmp_path, f"hf://org/digits@{COMMIT}/onnx/model.onnx", hub.pinned, HF_HUB_OFFLINE="1"):
        assert "HF_HUB_OFFLINE forbids a download" in error
    assert hub.requests == []


def broken(hub: Hub, cut: int) -> None:
    hub.cut = cut
    with pytest.raises(ModelNotFoundError):
        local_copy(hub.pinned)


def test_a_broken_download_is_continued(hub: Hub, cache: Path) -> None:
    hub.content = bytes(range(256)) * (8 << 12)
    broken(hub, 5 << 20)
    (part,) = parts(cache)
    size = part.stat().st_size
    assert 0 < size < len(hub.content)
    broken(hub, size)  # the connection ends again
    assert part.stat().st_size == size
    broken(hub, size + (3 << 19))
    assert size < part.stat().st_size <= size + (3 << 19)  # what came before the end stays
    assert local_copy(hub.pinned).read_bytes() == hub.content
    assert parts(cache) == []


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limit of the size of files")
def test_a_full_disk(hub: Hub, tmp_path: Path) -> None:
    hub.content = bytes(2 << 20)
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))"
    last = run(hub, tmp_path, f"{limit}\n{copy(hub.pinned)}").stderr.splitlines()[-1]
    assert last.startswith(f"infersdk.errors.OutputError: {str(tmp_path / 'cache')!r} cannot hold"), last
    assert "File too large" in last
    assert parts(tmp_path / "cache") == []


@pytest.mark.parametrize("ranges", [False, None], ids=["ignored", "refused"])
def test_a_server_without_ranges(hub: Hub, cache: Path, ranges: bool | None) -> None:
    """A broken download then begins at the start."""
    hub.content, hub.ranges = os.urandom(6 << 20), ranges
    broken(hub, 1 << 20)
    assert parts(cache)
    assert local_copy(hub.pinned).read_bytes() == hub.content


def test_a_broken_download_without_a_checksum(
    hub: Hub, tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The next one begins at the start."""
    hub.content, hub.cut = bytes(6 << 20), 5 << 20
    fetch = ["fetch", f"{hub.address}/plain/model.onnx"]
    assert cli.main(fetch) == 2
    assert "cannot be read" in capsys.readouterr().err
    assert not any(cache.iterdir())
    killed = f"""
import os
from fsspec.implementations.http import HTTPFileSystem
def get_file(self, name, path, **options):
    with open(path, "wb") as file:
        file.write(bytes(5 << 20))
    os._exit(9)
HTTPFileSystem.get_file = get_file
cli.main({fetch})
"""
    assert run(hub, tmp_path, killed).returncode == 9
    assert [part.stat().st_size for part in parts(cache)] == [5 << 20]
    hub.content = b"\1" * (6 << 20)
    assert cli.main(fetch) == 0
    assert hashlib.sha256(hub.content).hexdigest() in capsys.readouterr().out
    assert parts(cache) == []


def test_a_branch_with_a_new_commit(hub: Hub, tmp_path: Path) -> None:
    for commit, content in ((COMMIT, b"old"), ("f" * 40, b"new")):
        hub.commit, hub.content = commit, content
        code = copy(f"hf://org/digits/onnx/model.onnx#sha256={hashlib.sha256(content).hexdigest()}")
        assert Path(run(hub, tmp_path, code).stdout.strip()).read_bytes() == content
    hub.requests.clear()
    assert Path(run(hub, tmp_path, code).stdout.strip()).read_bytes() == b"new"
    assert hub.requests == []


def test_commands_take_addresses(hub: Hub, tmp_path: Path) -> None:
    address = f"http://user:secret@127.0.0.1:{hub.server_port}/plain/model.onnx#sha256={DIGEST}"
    code = f"""
for model in {(f"hf://org/digits@{COMMIT}/onnx/model.onnx", address)!r}:
    cli.main(['predict', {str(IMAGE)!r}, '--model', model, '--conf', '0.4'])
    print('and', flush=True)
    cli.main(['info', model])
    print('then', flush=True)
"""
    shown = run(hub, tmp_path, code)
    assert "secret" not in shown.stdout
    *models, _ = shown.stdout.split("then\n")
    assert len(models) == 2, shown.stderr
    for predicted, info in (text.split("and\n") for text in models):
        assert "seven" in predicted, shown.stderr
        assert "yolov5" in info, shown.stderr


def test_a_bundle_at_an_address(hub: Hub, tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime")
    bundles.pack(DETECTOR, tmp_path / "digits.infer", images=[IMAGE], samples=1)
    hub.content = (tmp_path / "digits.infer").read_bytes()
    config = tmp_path / "app.toml"
    config.write_text(f'[models.digits]\npath = "{hub.pinned}"\n')
    cli.main(["predict", str(IMAGE), "--model", str(config), "--conf", "0.4"])
    for model in (str(config), hub.pinned):
        cli.main(["info", model])
    shown = capsys.readouterr().out
    assert "seven" in shown
    assert shown.count("a bundle") == 2
    with models.load(hub.pinned) as model:
        assert repr(model).startswith("<YOLOv5 model.onnx, "), "the name in the address, not that in the cache"


def test_several_processes_download_one_file(hub: Hub, tmp_path: Path) -> None:
    hub.content, hub.delay = bytes(range(256)) * (6 << 12), 0.3
    with ThreadPoolExecutor() as pool:
        ended = list(pool.map(lambda _: run(hub, tmp_path, copy(hub.pinned)), range(3)))
    assert [one.stderr for one in ended] == [""] * 3
    assert {Path(one.stdout.strip()).read_bytes() for one in ended} == {hub.content}


@pytest.mark.usefixtures("cache")
def test_a_slow_download(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    import aiohttp
    import fsspec

    limits = []

    async def client(**options: Any) -> Any:
        limits.append(options["timeout"])
        return aiohttp.ClientSession(**options)

    monkeypatch.setitem(fsspec.config.conf, "http", {"get_client": client})
    assert local_copy(hub.pinned).read_bytes() == hub.content
    assert [(limit.total, limit.sock_connect, limit.sock_read) for limit in limits] == [(None, 30, 60)]
    monkeypatch.setitem(
        fsspec.config.conf, "http", {"client_kwargs": {"timeout": aiohttp.ClientTimeout(sock_read=0.1)}}
    )
    hub.delay = 0.3
    with pytest.raises(ModelNotFoundError, match="cannot be read: Timeout on reading data from socket"):
        local_copy(f"{hub.address}/plain/model.onnx#sha256={'0' * 64}")


def test_another_file(hub: Hub, tmp_path: Path) -> None:
    *changed, missing, refused = errors(
        hub, tmp_path, f"hf://org/digits@{COMMIT}/onnx/model.onnx#sha256={'0' * 64}",
        f"{hub.address}/plain/model.onnx#sha256={'0' * 64}", f"hf://org/digits@{COMMIT}/other.onnx",
        f"http://127.0.0.1:9/model.onnx#sha256={DIGEST}",
    )  # fmt: skip
    for error in changed:
        assert f"the SHA-256 of the file is {DIGEST}, not {'0' * 64}" in error
    assert "ModelNotFoundError" in missing
    assert "http://127.0.0.1:9/model.onnx cannot be read: " in refused
    assert "Connect call failed" in refused


def test_passwords_are_not_shown(hub: Hub, tmp_path: Path) -> None:
    cases = [
        (hub.server_port, "plain/model.onnx"), (hub.server_port, f"plain/model.onnx#sha256={'0' * 64}"),
        (hub.server_port, f"plain/none.onnx#sha256={DIGEST}"), (9, f"plain/model.onnx#sha256={DIGEST}"),
        (9, "plain/model.onnx#sha256=1"),
    ]  # fmt: skip
    addresses = [f"http://user:secret@127.0.0.1:{port}/{rest}" for port, rest in cases]
    for (port, _), error in zip(cases, errors(hub, tmp_path, *addresses), strict=True):
        assert f"http://***@127.0.0.1:{port}/plain" in error
        assert "secret" not in error
    address = f"http://user:secret@127.0.0.1:{hub.server_port}/plain/model.onnx#sha256={DIGEST}"
    fetched = run(hub, tmp_path, f"{load(address)}\ncli.main(['fetch', {address!r}])").stdout
    assert f"http://***@127.0.0.1:{hub.server_port}/plain/model.onnx#sha256={DIGEST} (" in fetched
    assert not any(b"secret" in file.read_bytes() for file in (tmp_path / "cache").glob("*.json"))


def test_fetch_without_a_network(hub: Hub, tmp_path: Path) -> None:
    """The hub's client of HTTP has exceptions of its own."""
    address = "hf://org/digits/onnx/model.onnx"  # for a pinned one, the client tries again for 20 s
    ended = run(hub, tmp_path, f"sys.exit(cli.main(['fetch', {address!r}]))", HF_ENDPOINT="http://127.0.0.1:9")
    assert ended.returncode == 2, ended.stderr
    assert f"{address} cannot be read: " in ended.stderr
    assert "Traceback" not in ended.stderr


def test_fetch_and_lock(hub: Hub, tmp_path: Path) -> None:
    config = tmp_path / "app.toml"
    config.write_text('[models.digits]\ntype = "yolov5"\npath = "hf://org/digits/onnx/model.onnx"\n')
    use = f"with models.create('app.toml')['digits'] as model: print(len(model({str(IMAGE)!r})))"
    unpinned = run(hub, tmp_path, use)
    assert "may be another file tomorrow" in unpinned.stderr
    fetched = run(hub, tmp_path, "sys.exit(cli.main(['fetch', 'app.toml']))")
    assert fetched.returncode == 0, fetched.stderr
    entry = json.loads((tmp_path / "app.toml.lock").read_text())["hf://org/digits/onnx/model.onnx"]
    assert entry == {
        "address": f"hf://org/digits@{COMMIT}/onnx/model.onnx", "sha256": DIGEST, "size": DETECTOR.stat().st_size
    }  # fmt: skip
    hub.requests.clear()
    assert int(run(hub, tmp_path, use).stdout) > 0
    assert hub.requests == []
    (tmp_path / "app.toml.lock").write_text(
        json.dumps({"hf://org/digits/onnx/model.onnx": {**entry, "sha256": "0" * 64}})
    )
    assert re.search("the SHA-256 of the file is .*blobs.*' is damaged, remove it", run(hub, tmp_path, use).stderr)
    (tmp_path / "app.toml.lock").write_text("{}")
    assert "is not in the lock file" in run(hub, tmp_path, use).stderr


@pytest.mark.parametrize("names", ["ab", "c"])
def test_fetch_of_more_than_the_cache_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], names: str
) -> None:
    def download(address: Address, *_: Any) -> Path:
        cache = Cache()
        content = address.name.encode() * (2000 if address.name.startswith("c") else 1000)
        key = hashlib.sha256(content).hexdigest()
        cache.put(key, content, kind="download", backend="", label=address.name)
        return cache.path(key)

    monkeypatch.setattr("infersdk.commands.fetch.download", download)
    monkeypatch.setenv("INFERSDK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("INFERSDK_CACHE_LIMIT", "10000")
    config = tmp_path / "app.toml"
    config.write_text("".join(f'[models.{name}]\npath = "https://example.com/{name}.onnx"\n' for name in names))
    assert cli.main(["fetch", str(config)]) == 2
    assert "have 12,000 bytes, which the cache does not keep within its limit of 10,000" in capsys.readouterr().err
    assert not (tmp_path / "app.toml.lock").exists()
    monkeypatch.setenv("INFERSDK_CACHE_LIMIT", "0")
    assert cli.main(["fetch", str(config)]) == 0


@pytest.mark.parametrize("text", ["[1]", "[" * 100_000, '{"a":' * 100_000], ids=["list", "brackets", "braces"])
def test_a_damaged_lock_file(text: str, tmp_path: Path) -> None:
    (tmp_path / "app.toml").write_text('[models.digits]\ntype = "yolov5"\npath = "hf://org/digits/onnx/model.onnx"\n')
    (tmp_path / "app.toml.lock").write_text(text)
    with pytest.raises(ConfigError, match=r"app\.toml\.lock' is damaged"):
        read(tmp_path / "app.toml")


def test_the_lock_file_of_a_link_is_that_of_its_target(tmp_path: Path) -> None:
    address = "https://example.com/model.onnx"
    (tmp_path / "app.toml").write_text(f'[models.digits]\npath = "{address}"\n')
    entry = {"address": address, "sha256": DIGEST, "size": 1}
    (tmp_path / "app.toml.lock").write_text(json.dumps({address: entry}))
    link = tmp_path / "links" / "app.toml"
    link.parent.mkdir()
    link.symlink_to(tmp_path / "app.toml")
    assert read(link)["models"]["digits"]["path"] == f"{address}#sha256={DIGEST}"


def test_fetch_writes_the_lock_file_of_the_target(tmp_path: Path) -> None:
    (tmp_path / "app.toml").write_text("")
    (tmp_path / "link.toml").symlink_to("app.toml")
    assert cli.main(["fetch", str(tmp_path / "link.toml")]) == 0
    assert (tmp_path / "app.toml.lock").exists()
    assert not (tmp_path / "link.toml.lock").exists()


# ---- the copy of a file ----


@pytest.fixture(name="copied")
def _copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The copy of any address."""
    path = tmp_path / f"{DIGEST}.bin"
    monkeypatch.setattr("infersdk.loading.remote.local_copy", lambda _: path)
    return path


def test_a_copy_has_the_name_of_its_address(copied: Path) -> None:
    copied.write_bytes(DETECTOR.read_bytes())
    source = ModelSource.of("https://example.com/a/digits.onnx?token=1")
    assert (source.name, source.path) == ("digits.onnx", copied)
    with models.load("https://example.com/a/digits.onnx", backend="onnxruntime") as model:
        assert model.network.model.name == "digits.onnx"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("m.xml", b'<?xml version="1.0"?><net name="m" version="11">'),
        ("m.pnnx.param", b"7767517\n1 1\npnnx.Input in0 0 1 0\n"),
    ],
)
def test_a_model_with_weights_in_another_file_has_no_address(name: str, content: bytes, copied: Path) -> None:
    copied.write_bytes(content)
    with pytest.raises(UnsupportedModelError, match=rf"https://example.com/{name} is .*, whose weights are in another"):
        ModelSource.of(f"https://example.com/{name}#sha256={DIGEST}")


# ---- addresses ----


def test_parts() -> None:
    assert Address.parse(f"hf://org/na.me@{COMMIT}/a/b.onnx#sha256={DIGEST}") == Address(
        "hf", f"hf://org/na.me@{COMMIT}/a/b.onnx", DIGEST, "org/na.me", COMMIT, "a/b.onnx"
    )
    plain = Address.parse("s3://bucket/models/x.onnx?versionId=7")
    assert (plain.protocol, plain.sha256, plain.name, plain.is_pinned) == ("s3", None, "x.onnx", False)
    pull = Address.parse("hf://org/name@refs/pr/1/a/x.onnx")
    assert (pull.revision, pull.file) == ("refs/pr/1", "a/x.onnx")
    assert not Address.parse("hf://org/name@main/x.onnx").is_pinned
    assert Address.parse(f"hf://org/name@{COMMIT}/x.onnx").is_pinned


def test_what_is_an_address() -> None:
    assert is_address("hf://org/name/x.onnx")
    for other in ("model.onnx", "C:\\model.onnx", "/a/b.onnx", Path("a.onnx"), b"hf://x", ""):
        assert not is_address(other)


@pytest.mark.parametrize(
    "text",
    [
        "hf://name/x.onnx", "hf://org/name", "hf://org/name@/x.onnx", "hf://org/name/../x.onnx", "hf://org/name/a//b.onnx",
        "file:///etc/passwd", "memory://x", "s3://b/x.onnx#md5=1", "s3://b/x.onnx#sha256=12", "https://",
    ],
)  # fmt: skip
def test_wrong_addresses(text: str) -> None:
    with pytest.raises(ConfigError):
        Address.parse(text)


def test_two_checksums() -> None:
    assert with_digest("s3://b/x.onnx", DIGEST) == f"s3://b/x.onnx#sha256={DIGEST}"
    assert with_digest(f"s3://b/x.onnx#sha256={DIGEST}", DIGEST) == f"s3://b/x.onnx#sha256={DIGEST}"
    assert Address.parse(f"s3://b/x.onnx#sha256={DIGEST.upper()}").sha256 == DIGEST
    assert with_digest(f"s3://b/x.onnx#sha256={DIGEST}", DIGEST.upper()) == f"s3://b/x.onnx#sha256={DIGEST}"
    with pytest.raises(ConfigError, match="another SHA-256"):
        with_digest(f"s3://b/x.onnx#sha256={DIGEST}", "0" * 64)
