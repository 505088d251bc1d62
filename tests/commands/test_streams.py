"""The command line where its streams, its folder or the moment are bad: one line, and the documented code."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import run

from infersdk.data import DETECTOR, IMAGE

pytest.importorskip("onnxruntime")

COMMAND = f"'{sys.executable}' -m infersdk"
needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")


def shell(line: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", line], check=False, capture_output=True, text=True, cwd=cwd, env={**os.environ, **environment},
        encoding="utf-8", errors="surrogateescape", timeout=200,
    )  # fmt: skip


def predict(*more: str) -> str:
    return " ".join([COMMAND, "predict", "--model", str(DETECTOR), *more, str(IMAGE)])


# ---- output ----


@needs_full
@pytest.mark.parametrize("command", ["cache list", "cache list --json", "--help"])  # rich, plain text and argparse
def test_output_on_a_full_disk(command: str, tmp_path: Path) -> None:
    done = shell(f"{COMMAND} {command} > /dev/full", tmp_path)
    assert done.stderr == "infersdk: cannot write the output: No space left on device\n"
    assert done.returncode == 2


@needs_full
@pytest.mark.parametrize("option", ["--csv", "--json-lines"])
def test_a_file_on_a_full_disk(tmp_path: Path, option: str) -> None:
    done = shell(predict(option, "/dev/full"), tmp_path)
    assert done.returncode == 2
    assert "infersdk: cannot write '/dev/full': No space left on device" in done.stderr


def test_much_output_on_a_full_disk(tmp_path: Path) -> None:
    """More than the buffer of a stream holds: what could not be written is not written once more at the end."""
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    done = shell(f"{predict()} {f'{IMAGE} ' * 30} > /dev/full", tmp_path)
    assert done.stderr == "infersdk: cannot write the output: No space left on device\n"
    assert done.returncode == 2


def test_a_closed_stdout(tmp_path: Path) -> None:
    done = shell(f"{COMMAND} --version >&-", tmp_path)
    assert done.stderr.startswith("infersdk: the standard output is closed; redirect it")
    assert done.stderr.count("\n") == 1
    assert done.returncode == 2


def test_stderr_that_cannot_be_written_leaves_the_code(tmp_path: Path) -> None:
    for redirected in ("2>&-", "2> /dev/full", ">&- 2>&-"):
        done = shell(f"{COMMAND} info none.onnx {redirected}", tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
    done = shell(f"{COMMAND} doctor --backend onnxruntime 2>&-", tmp_path)
    assert done.returncode == 0
    assert "onnxruntime" in done.stdout


def test_a_reader_that_leaves_does_not_change_the_exit_code(tmp_path: Path) -> None:
    done = shell(f"{COMMAND} doctor --backend nonesuch | true; echo ${{PIPESTATUS[0]}}", tmp_path)
    assert (done.stdout, done.stderr) == ("3\n", "")


@pytest.mark.parametrize("command", [f"info {DETECTOR}", "cache list --json", "--help"])
def test_a_reader_that_leaves(command: str, tmp_path: Path) -> None:
    done = shell(f"{COMMAND} {command} | head -1; echo ${{PIPESTATUS[0]}}", tmp_path)
    assert done.stdout.splitlines()[-1] == "0"
    assert done.stderr == ""


def test_info_in_a_pipe_keeps_to_100_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "COLUMNS"}
    command = [sys.executable, "-m", "infersdk", "info", str(DETECTOR)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment, encoding="utf-8")
    assert 80 < max(map(len, done.stdout.splitlines())) <= 100
    monkeypatch.setenv("COLUMNS", "70")
    assert run("info", DETECTOR) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 70


# ---- paths ----


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        ("info none.onnx", 2, "no model at 'none.onnx'.*working directory, which has been deleted"),
        (f"predict none.jpg --model {DETECTOR}", 2, "no image at 'none.jpg'.*which has been deleted"),
        ("serve none.toml", 2, "cannot read the configuration 'none.toml'"),
        ("demo -o x.png", 2, "cannot write 'x.png'"),
        ("doctor --backend onnxruntime", 0, ""),
        ("cache path", 0, ""),
    ],
)
def test_a_working_directory_that_was_deleted(command: str, code: int, words: str, tmp_path: Path) -> None:
    if command.startswith("serve"):
        pytest.importorskip("uvicorn")
    (tmp_path / "gone").mkdir()
    done = shell(f"cd gone && rmdir '{tmp_path}/gone' && {COMMAND} {command}", tmp_path)
    assert done.returncode == code
    if code:
        (line,) = done.stderr.splitlines()
        assert line.startswith("infersdk: ")
        assert re.search(words, line)


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """A folder with files whose names are not UTF-8."""
    try:
        (tmp_path / os.fsdecode(b"m\xff.onnx")).write_bytes(DETECTOR.read_bytes())
    except OSError:
        pytest.skip("this file system has no such names")
    (tmp_path / os.fsdecode(b"i\xff.jpg")).write_bytes(IMAGE.read_bytes())
    return tmp_path


@pytest.mark.parametrize(
    "command", ["predict", "compare", "bench --time 0.1", "quantize --data i.jpg", "build --backend tensorrt-rtx"]
)
def test_a_model_path_that_is_not_utf_8(command: str, odd: Path) -> None:
    name, *rest = command.split()
    if name == "build":
        pytest.importorskip("tensorrt_rtx_bindings")
    model = "$'m\\xff.onnx'"
    arguments = f"{IMAGE} --model {model}" if name == "predict" else model
    done = shell(f"{COMMAND} {name} {arguments} {' '.join(rest)}", odd)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        r"infersdk: the path 'm\udcff.onnx' is not UTF-8, and the runtimes cannot open it; rename it [IFS101]"
    ]


def test_names_that_are_not_utf_8_in_reports(odd: Path) -> None:
    image = "$'i\\xff.jpg'"
    done = shell(f"{predict('--json')} {image}", odd)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[1]["image"] == os.fsdecode(b"i\xff.jpg")
    done = shell(f"{predict()} {image}", odd)
    assert done.returncode == 0, done.stderr
    assert r"i\udcff.jpg" in done.stdout
    assert os.fsdecode(b"i\xff.jpg").encode("utf-8", "surrogateescape").decode("latin-1") not in done.stdout


# ---- Ctrl-C ----

INTERRUPTED = """
import os, signal, sys
wanted = sys.argv[1]
class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == wanted:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupts())
from infersdk.cli import main
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize(
    "module",
    ["argparse", "infersdk.commands.predict", "infersdk.commands.common", "rich.console", "numpy", "onnxruntime"],
)  # fmt: skip
def test_ctrl_c_while_it_starts(module: str, tmp_path: Path) -> None:
    """Wherever the start is just then: the signal comes when the module is looked for."""
    command = [sys.executable, "-c", INTERRUPTED, module, "predict", str(IMAGE), "--model", str(DETECTOR)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stderr, done.stdout) == (130, "infersdk: interrupted\n", "")


def test_ctrl_c_within_the_exec_of_a_text(tmp_path: Path) -> None:
    """CPython ends by the signal then, even where the interrupt was caught (`python -m`)."""
    (tmp_path / "interrupted.py").write_text(
        "import sys\n"
        "from infersdk import cli\n"
        "cli._main = lambda *_: exec('raise KeyboardInterrupt')\n"
        "sys.exit(cli.main([]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "interrupted"], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert (done.returncode, done.stderr) == (130, "infersdk: interrupted\n")
