"""The code of a page: its blocks in order, and the functions that run them.

A comment `<!-- needs an NVIDIA GPU -->` before a block names a requirement that a machine for tests lacks; `NEEDS` has
those that are checked. Lines of shell blocks that install or fetch something do not run.
"""

from __future__ import annotations

import ast
import asyncio
import importlib.util
import inspect
import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
#: Programs whose scripts are shown beside ours, as titles of blocks.
OTHERS = ("Ultralytics", "supervision", "ONNX Runtime", "Triton", "model_api", "RF-DETR", "torchvision", "transformers",
          "infersdk client")  # fmt: skip
#: Optional packages, and the words in code that show their use besides imports.
OPTIONAL = {
    "av": ("infersdk.video", ".mp4"), "cv2": ("OCR(", "--type ocr"), "fastapi": (), "h11": ("infersdk.serve",),
    "jinja2": ("--html", "write_page"), "openvino": ("openvino",), "pycocotools": ("DetectTask", "--annotations"),
    "supervision": ("to_supervision",), "tensorrt_rtx_bindings": ("tensorrt-rtx",), "torch": ("net.pt", "pnnx"),
    "trackers": ('Tracker("',), "uvicorn": ("infersdk.serve", "infersdk serve"),
    "vl_convert": ("--html", "write_page"),
}  # fmt: skip
#: Commands that change the machine or belong to another program.
FOREIGN = ("pip", "apt", "git", "curl", "python3", "cd", "docker", "kubectl", "yolo", "wget", "pytest", "sudo",
           "uvicorn", ".", "export", "openssl")  # fmt: skip
#: Arguments that make a command short. They override those of the page.
SHORT = {
    "bench": ["--batch", "1", "--time", "0.1", "--warmup", "0.1", "--rounds", "1", "--starts", "1"],
    "tune": ["--batch", "1", "--budget", "2"],
}
#: Requirements that some machines for tests meet.
NEEDS = {"a processor with bfloat16": lambda: "bf16" in Path("/proc/cpuinfo").read_text()}


@dataclass(frozen=True)
class Block:
    """A block of code, with the requirement that the comment before it names."""

    language: str
    title: str
    code: str
    needs: str = ""


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page, and its indented commands, in order."""
    return list(_blocks((DOCS / page).read_text("utf-8")))


def _blocks(text: str) -> Any:
    pattern = (
        r"(?:<!-- needs (?P<needs>[^\n]*?) -->\n\s*)?"
        r'(?:^(?P<indent> *)```(?P<language>\w*)(?: title="(?P<title>[^"]*)")?[^\n]*\n(?P<code>.*?)^(?P=indent)```'
        r"|(?<=\n)\n(?P<lines>(?:    [^\n]*\n)+))"
    )
    for found in re.finditer(pattern, text, re.DOTALL | re.MULTILINE):
        if found["lines"] is not None:
            yield Block("sh", "", inspect.cleandoc("\n" + found["lines"]) + "\n", found["needs"] or "")
        else:
            code = inspect.cleandoc("\n" + found["code"]) + "\n"
            yield Block(found["language"], found["title"] or "", code, found["needs"] or "")


def commands(block: Block) -> list[str]:
    """The commands of a shell block, with continued lines joined."""
    if block.language not in ("", "console", "bash", "sh"):
        return []
    lines = re.sub(r"\\\n\s*", "", block.code).splitlines()
    starts = r"(?:\$ )?((?:[A-Z_]+=\S+ )*(?:infersdk|python) .*)"
    return [found[1] for line in lines if (found := re.match(starts, line))]


def compiled(code: str, page: str) -> CodeType:
    return compile(code, page, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def missing_package(code: str) -> str | None:
    """An optional package that a block or command needs and that is not installed."""
    imports = set(re.findall(r"^ *(?:import|from) (\w+)", code, re.MULTILINE))
    needs = [name for name, words in OPTIONAL.items() if name in imports or any(word in code for word in words)]
    return next((name for name in needs if importlib.util.find_spec(name) is None), None)


def run(page: str, folder: Path, namespace: dict[str, Any]) -> None:
    """Runs the blocks of a page in `folder`, the working directory; skips with the reasons of those left out."""
    left_out = []
    for block in blocks(page):
        if block.language in ("toml", "text", "yaml") and re.fullmatch(r"[\w./-]+\.\w+", block.title):
            (folder / block.title).write_text(block.code)
    for block in blocks(page):
        if block.title.startswith(OTHERS):
            continue
        if block.needs and not NEEDS.get(block.needs, bool)():
            left_out.append(block.needs)
        elif block.language == "python":
            if (package := missing_package(block.code)) is not None:
                left_out.append(package)
                continue
            if block.title.endswith(".py"):
                (folder / block.title).write_text(block.code)
            run_python(block.code, page, namespace)
        else:
            for command in commands(block):
                if (package := missing_package(command)) is not None:
                    left_out.append(package)
                    continue
                run_command(command, folder, fails="[IFS" in block.code)
    if left_out:
        pytest.skip(f"blocks that need {', '.join(sorted(set(left_out)))} did not run")


def run_python(code: str, page: str, namespace: dict[str, Any]) -> None:
    program = compiled(code, page)
    if program.co_flags & inspect.CO_COROUTINE:
        asyncio.run(eval(program, namespace))
    else:
        exec(program, namespace)


def run_command(command: str, folder: Path, *, fails: bool) -> None:
    """Runs `infersdk` in this process, and a script in another. Exit code 1 of a check is a result."""
    from infersdk.cli import main

    words = shlex.split(command, comments=True)
    environment = {}
    while "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        environment[name] = value
    if words[:2] == ["infersdk", "serve"]:
        code = serve(words[2])
    elif words[0] == "infersdk":
        if "--compare" not in words:
            words += SHORT.get(words[1], [])
        code = main(words[1:])
    else:
        path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
        program = [sys.executable, *words[1:]]
        code = subprocess.run(
            program, check=False, env={**os.environ, "PYTHONPATH": path, **environment}, cwd=folder, timeout=100
        ).returncode
    allowed = (2, 3, 4) if fails else (0, 1) if words[1] in ("compare", "graph") else (0,)
    assert code in allowed, f"{command}: exit code {code}"


def serve(configuration: str) -> int:
    """Serves on free ports until the server answers, then ends it."""
    program = [sys.executable, "-m", "infersdk", "serve", configuration, "--http-port", "0", "--grpc-port", "0"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        line = next((line for line in server.stdout if line.startswith("HTTP: ")), "")
        if line:
            with urllib.request.urlopen(f"{line.split()[1]}/v2/health/ready", timeout=30) as answer:
                assert answer.status == 200
            server.send_signal(signal.SIGTERM)
        return 0 if server.wait(30) in (0, 143) and line else 4
