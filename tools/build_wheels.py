"""Builds the source distribution, and from it a wheel for each platform, on one machine.

    pip install ".[wheels]"
    python tools/build_wheels.py                            # all platforms, into dist/
    python tools/build_wheels.py --only linux-x86_64
    INFERSDK_CUDA=1 python tools/build_wheels.py --only linux-x86_64    # with the CUDA part

zig's compiler brings the C libraries of all platforms. A wheel of this machine is tried in a virtual environment of its
own, with no compiler on PATH.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: The platforms by setuptools' names, and zig's. glibc 2.28 is Debian 10, Ubuntu 20.04, RHEL 8 and all that is newer.
TARGETS = {
    "linux-x86_64": "x86_64-linux-gnu.2.28",
    "linux-aarch64": "aarch64-linux-gnu.2.28",
    "musllinux_1_2-x86_64": "x86_64-linux-musl",
    "musllinux_1_2-aarch64": "aarch64-linux-musl",
    "macosx-11.0-arm64": "aarch64-macos.11.0",
    "macosx-11.0-x86_64": "x86_64-macos.11.0",
    "win-amd64": "x86_64-windows-gnu",
}
#: The part of Python's pyconfig.h for Windows that the limited API needs.
WINDOWS_CONFIG = """
#define MS_WINDOWS
#define MS_WIN64
#define HAVE_DECLSPEC_DLL
#define Py_ENABLE_SHARED
#define HAVE_SSIZE_T 1
#define SIZEOF_SHORT 2
#define SIZEOF_INT 4
#define SIZEOF_LONG 4
#define SIZEOF_LONG_LONG 8
#define SIZEOF_VOID_P 8
#define SIZEOF_SIZE_T 8
#define SIZEOF_WCHAR_T 2
#define SIZEOF_TIME_T 8
#define ALIGNOF_MAX_ALIGN_T 8
#include <stdio.h>
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "dist", help="(default: dist)")
    parser.add_argument("--only", choices=TARGETS, nargs="+", default=[*TARGETS], help="(default: all)")
    parser.add_argument("--extra", default="onnxruntime", help="installed with the wheel to try it")
    parser.add_argument("--no-trial", action="store_true", help="build alone")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        run("build", "--no-isolation", "--sdist", "-o", folder, str(ROOT))
        (sdist,) = Path(folder).glob("*.tar.gz")
        print(shutil.copy2(sdist, arguments.output))
        for name in arguments.only:
            wheel = checked(built(sdist, name, Path(folder, name)), name)
            if name == f"linux-{platform.machine()}" and not arguments.no_trial:
                try_out(wheel, Path(folder, "trial"), arguments.extra)
            print(shutil.copy2(wheel, arguments.output))
    return 0


def run(module: str, *arguments: str, **environment: str) -> None:
    """Runs a module of Python, with the tools of its environment on PATH."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = [sys.executable, "-m", module, *arguments]
    subprocess.run(command, check=True, env=os.environ | {"PATH": path} | environment)


def built(sdist: Path, name: str, folder: Path) -> Path:
    """The wheel that is built from the source distribution, not from the checkout."""
    shutil.unpack_archive(sdist, folder)
    tree = folder / sdist.name.removesuffix(".tar.gz")
    zig = f"{sys.executable} -m ziglang cc -target {TARGETS[name]}"
    environment = {"CC": zig, "LDSHARED": f"{zig} -shared -s", "_PYTHON_HOST_PLATFORM": name}
    if name != f"linux-{platform.machine()}":
        environment["INFERSDK_CUDA"] = "0"
    if name.startswith("macosx"):
        environment["LDSHARED"] += " -undefined dynamic_lookup"
    elif name.startswith("win"):
        write_python(python := folder / "python")
        environment["CC"] += f" -I{python}"
        # zig writes an import library of the module, by default next to it.
        environment["LDSHARED"] += f" -Wl,--out-implib,{python}/unused.lib {python}/python3.lib"
    run("build", "--no-isolation", "--wheel", "-o", str(folder), str(tree), **environment)
    (wheel,) = folder.glob("*.whl")
    return wheel


def write_python(folder: Path) -> None:
    """Writes the headers and the import library of Python for Windows, made from the headers of this Python."""
    shutil.copytree(sysconfig.get_path("include"), folder)
    (folder / "pyconfig.h").write_text(WINDOWS_CONFIG)
    functions, data = declared(folder)
    names = sorted({*functions, *(f"{name} DATA" for name in data)})
    (folder / "python3.def").write_text("\n".join(["LIBRARY python3.dll", "EXPORTS", *names]))
    run("ziglang", "dlltool", "-m", "i386:x86-64", "-d", f"{folder}/python3.def", "-l", f"{folder}/python3.lib")


def declared(folder: Path) -> tuple[list[str], list[str]]:
    """The names of the functions and of the data that the headers of Python in a folder declare."""
    headers = "".join(path.read_text() for path in folder.glob("*.h"))
    return re.findall(r"PyAPI_FUNC\([^)]+\)\s*(\w+)\(", headers), re.findall(r"PyAPI_DATA\([^)]+\)\s*(\w+)", headers)


def checked(wheel: Path, name: str) -> Path:
    """Checks the libraries that a wheel needs, and returns the wheel with its final platform tags."""
    repaired = wheel.parent / "repaired"
    repaired.mkdir()
    if name.startswith("linux"):
        run("auditwheel", "repair", "--plat", "auto", "--only-plat", "-w", str(repaired), str(wheel))
    elif name.startswith("win"):
        run("delvewheel", "repair", "-w", str(repaired), str(wheel))
    else:  # auditwheel and delocate need the libraries of the platform
        (module,) = wheel.parent.glob("*/build/lib*/infersdk/*.so")
        if others := needed(module) - {"/usr/lib/libSystem.B.dylib", "libc.so"}:
            raise SystemExit(f"{wheel.name} needs libraries that not each {name} has: {', '.join(sorted(others))}")
        return wheel
    (made,) = repaired.glob("*.whl")
    return made


def needed(module: Path) -> set[str]:
    """The libraries that a module for Linux or macOS loads."""
    from elftools.elf.elffile import ELFFile
    from macholib.MachO import MachO

    with module.open("rb") as file:
        if file.read(4) != b"\x7fELF":
            return {name for header in MachO(str(module)).headers for *_, name in header.walkRelocatables()}
        return {tag.needed for tag in ELFFile(file).get_section_by_name(".dynamic").iter_tags("DT_NEEDED")}


def try_out(wheel: Path, folder: Path, extra: str) -> None:
    """Installs the wheel in a virtual environment without a compiler on PATH, and runs the demo."""
    venv.create(folder, with_pip=True)
    bare = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
    bare["PATH"] = str(folder / "bin")
    package = f"infersdk[{extra}] @ {wheel.resolve().as_uri()}"
    for command in (
        ["python", "-m", "pip", "install", "-q", "--only-binary", ":all:", package],
        ["infersdk", "doctor"],
        ["infersdk", "demo", "-o", str(folder / "demo.png")],
    ):  # fmt: skip
        subprocess.run([folder / "bin" / command[0], *command[1:]], check=True, env=bare, cwd=folder)


if __name__ == "__main__":
    sys.exit(main())
