"""`infersdk doctor`: checks the backends of this machine."""

from __future__ import annotations

import argparse
import platform
from importlib.metadata import packages_distributions
from typing import Any

from rich.text import Text

from .. import __version__
from ..core._lib import lib, text
from ..core.tensor import Tensor
from ..errors import BackendError, ConfigError, DeviceUnavailableError
from ..loading.registry import backend_class, install_hint, list_backends
from .common import add_options, console, print_json, print_table, print_text
from .selftest import SelfTest, text_of

DESCRIPTION = "Prints for each backend whether it works here: version and devices, or why not and what to do."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--backend", help="this one alone; the exit code is 3 if it does not work")
    parser.add_argument(
        "--selftest", metavar="BACKEND",
        help="build, run and compare the packaged models, and print a report to paste into an issue; "
        "tensorrt, or with a device onnxruntime@cuda:0",
    )  # fmt: skip
    add_options(parser, "--json")


def run(arguments: argparse.Namespace) -> int:
    if arguments.selftest is not None:
        return _selftest(arguments)
    names = list_backends() if arguments.backend is None else [arguments.backend]
    result = {name: examine(name) for name in names}
    core, problems = examine_core(), examine_packages()
    if arguments.json:
        print_json({
            "infersdk": __version__, "python": platform.python_version(), "core": core, "backends": result,
            "problems": problems,
        })  # fmt: skip
    else:
        _print(core, result, problems)
    return 3 if arguments.backend is not None and not result[arguments.backend]["works"] else 0


def _selftest(arguments: argparse.Namespace) -> int:
    if arguments.backend is not None:
        raise ConfigError(f"--selftest {arguments.selftest} names its backend; leave --backend out")
    progress = console(stderr=True)
    test = SelfTest(arguments.selftest, lambda line: progress.print(line, markup=False))
    test.run()
    report = test.report()
    if arguments.json:
        print_json(report)
    else:
        print_text(text_of(report))
    return 0 if test.passed else 1


def examine_core() -> dict[str, Any]:
    """The native core: its SIMD variant, and whether its CUDA half is built and finds a GPU."""
    core: dict[str, Any] = {"simd": text(lib.ifs_simd_name(lib.ifs_simd())), "cuda": bool(lib.ifs_has_cuda())}
    try:
        with Tensor((1,), device="cuda:0") as tensor:
            tensor.device_ptr()
        core["gpu"] = True
    except DeviceUnavailableError as error:
        core["gpu"], core["why"] = False, str(error)
    return core


def examine_packages() -> list[str]:
    """Problems of the installed packages, with the remedy: several distributions of ONNX Runtime share files, so that
    installing or removing one damages the others.
    """
    several = sorted(set(packages_distributions().get("onnxruntime", ())))
    if len(several) < 2:
        return []
    return [
        f"{' and '.join(several)} overwrite one another's files; keep one: pip uninstall -y {' '.join(several)}, and "
        f"then pip install {several[-1]}, or the one that has your provider"
    ]


def examine(name: str) -> dict[str, Any]:
    """Version and devices of a backend, or the reason of its failure and the install command."""
    try:
        info = backend_class(name).declaration.probe()
    except BackendError as error:
        return {"works": False, "why": str(error), "install": install_hint(name) if name in list_backends() else None}
    except Exception as error:  # a runtime may raise any exception
        return {"works": False, "why": f"{type(error).__name__}: {error}", "install": install_hint(name)}
    if not info.devices:
        why = f"version {info.version} is installed, and finds no device here"
        return {"works": False, "version": info.version, "devices": [], "why": why, "install": None}
    return {"works": True, "version": info.version, "devices": list(info.devices)}


def _print(core: dict[str, Any], found: dict[str, dict[str, Any]], problems: list[str]) -> None:
    cuda = "with its CUDA half" if core["cuda"] else "CPU-only (built without INFERSDK_CUDA=1)"
    print_text(f"infersdk {__version__}, Python {platform.python_version()}, native core {cuda}, SIMD {core['simd']}")
    print_text("GPU: ready" if core["gpu"] else f"GPU: {core['why']}")
    rows: list[tuple[str | Text, ...]] = []
    for name, state in found.items():
        if state["works"]:
            rows.append((name, Text("yes", "green"), state["version"], ", ".join(state["devices"])))
        else:
            rows.append((name, Text("no", "red"), state.get("version", ""), state["why"]))
    print_table(("backend", "works", "version", "devices, or what to do"), rows)
    for problem in problems:
        print_text(Text.assemble(("problem:", "red"), f" {problem}"))
