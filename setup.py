"""Builds the native core with the C compiler, and on request its CUDA part with nvcc.

Switches, by environment:
    INFERSDK_SANITIZE=address,undefined   build with those sanitizers
    INFERSDK_CUDA=1                       build the CUDA part too; it takes minutes
    INFERSDK_CUDA_ARCHS=90,120            for these compute capabilities only (default: 75 to 120, and PTX)
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
VERSION = re.search(r'^version = "(.+?)"', (ROOT / "pyproject.toml").read_text("utf-8"), re.MULTILINE)[1]
FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))  # such a Python has no stable ABI yet
WINDOWS = sysconfig.get_platform().startswith("win")  # of the target: _PYTHON_HOST_PLATFORM names another one
ARCHS = ("75", "80", "90", "100", "120")  # code for 8.0 runs on 8.6 and 8.9 too


def find_nvcc() -> str | None:
    wanted = os.environ.get("INFERSDK_CUDA") or "0"
    if wanted not in ("0", "1"):
        raise SystemExit(f"INFERSDK_CUDA={wanted}: it is 1, which builds the CUDA part, or 0, the default")
    if wanted == "0":
        return None
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    nvcc = shutil.which("nvcc", path=f"{home}/bin" if home else None)
    if nvcc is None:
        place = f"in {home}/bin (CUDA_HOME)" if home else "on PATH"
        raise SystemExit(f"INFERSDK_CUDA=1, but there is no nvcc {place}; install the CUDA toolkit")
    return nvcc


class BuildNative(build_ext):
    """Compiles the sources of the core, with sanitizers or nvcc if requested."""

    def finalize_options(self):
        super().finalize_options()
        if sys.platform == "win32" and self.compiler is None:
            self.compiler = "mingw32"  # gcc, or the compiler that CC names; the core is C11 with GNU attributes

    def get_ext_filename(self, fullname):
        name = super().get_ext_filename(fullname)
        return name.replace(".abi3.so", ".pyd") if WINDOWS else name

    def build_extension(self, ext):
        self.check_tools()
        native = Path("native")
        nvcc = find_nvcc()
        missing = "cuda_missing.c"  # replaces native/cuda
        ext.sources += sorted(str(p) for p in (native / "src").glob("*.c") if nvcc is None or p.name != missing)
        ext.depends += [str(p) for p in [*native.glob("*/*.h"), *native.glob("cuda/*.cuh")]]
        ext.include_dirs += [str(native / "include"), str(native / "src")]
        ext.define_macros += [("IFS_VERSION", f'"{VERSION}"')]
        ext.define_macros += [("_GNU_SOURCE", "1")]  # plain C11 has no posix_memalign() and no fileno()
        # No contraction: results must not depend on whether the compiler fuses a multiply and an add.
        ext.extra_compile_args += ["-std=c11", "-O3", "-g0", "-fvisibility=hidden", "-ffp-contract=off"]
        # The speed of a loop must not depend on the size of the code before it.
        ext.extra_compile_args += ["-falign-functions=64", "-falign-loops=32"]
        ext.extra_compile_args += ["-Wall", "-Wextra", "-Werror=implicit-function-declaration"]
        ext.extra_compile_args += ["-Wno-missing-field-initializers"]
        if not WINDOWS:
            ext.libraries += ["m", "pthread"]
        if sanitize := os.environ.get("INFERSDK_SANITIZE"):
            flags = [f"-fsanitize={sanitize}", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all", "-g", "-O1"]
            ext.extra_compile_args += flags
            ext.extra_link_args += flags[:1]
        if nvcc is not None:
            ext.extra_objects += self.compile_cuda(nvcc, native)
            root = self.cuda_root(nvcc)
            ext.library_dirs += [str(p) for n in ("lib64", "lib") if (p := root / n).is_dir()]
            ext.libraries += ["cudart_static", "dl", "rt"]
        with ThreadPoolExecutor(os.cpu_count()) as pool:  # of compilers, a source each
            compile_one = self.compiler.compile
            self.compiler.compile = lambda sources, **options: [
                name for names in pool.map(lambda source: compile_one([source], **options), sources) for name in names
            ]
            super().build_extension(ext)

    def check_tools(self) -> None:
        """Stops with one line about a missing compiler or header, before a compilation fails with pages of output."""
        if sys.platform == "win32":
            return
        compiler = self.compiler.compiler_so[0]
        if shutil.which(compiler) is None:
            raise SystemExit(
                f"no C compiler ({compiler!r}) to build infersdk with; install one: apt install gcc libc6-dev (Debian, "
                "Ubuntu), dnf install gcc (Fedora, RHEL), apk add gcc musl-dev (Alpine)"
            )
        if not any(Path(folder, "Python.h").exists() for folder in self.include_dirs):
            raise SystemExit(
                "no Python.h to build infersdk with; install the headers of Python: apt install python3-dev (Debian, "
                "Ubuntu), dnf install python3-devel (Fedora, RHEL), apk add python3-dev (Alpine)"
            )

    @staticmethod
    def cuda_root(nvcc: str) -> Path:
        """The folder of the toolkit; nvcc itself may be a wrapper elsewhere."""
        dry = subprocess.run([nvcc, "--dryrun", "-c", "x.cu"], check=False, capture_output=True, text=True).stderr
        return Path(re.search(r"^#\$ TOP=(.+)$", dry, re.MULTILINE)[1].strip())

    def compile_cuda(self, nvcc: str, native: Path) -> list[str]:
        named = os.environ.get("INFERSDK_CUDA_ARCHS") or ",".join(ARCHS)
        archs = [arch.strip() for arch in named.split(",")]
        if not all(re.fullmatch(r"\d+[af]?", arch) for arch in archs):
            raise SystemExit(f"INFERSDK_CUDA_ARCHS={named}: it is a list of compute capabilities, such as 90,120")
        targets = [f"-gencode=arch=compute_{a},code=sm_{a}" for a in archs]
        targets += [f"-gencode=arch=compute_{archs[-1]},code=compute_{archs[-1]}"]
        headers = [*native.glob("*/*.h"), *native.glob("cuda/*.cuh")]
        objects = []
        for source in sorted((native / "cuda").glob("*.cu")):
            target = Path(self.build_temp) / f"{source.stem}.cu.o"
            objects.append(str(target))
            if target.exists() and target.stat().st_mtime > max(p.stat().st_mtime for p in [source, *headers]):
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            command = [nvcc, "-c", str(source), "-o", str(target), "-O3", "-std=c++17", "--fmad=false", "--threads=0"]
            command += ["-Xfatbin=-compress-all", "--compress-mode=size"]
            command += [
                "-Xcompiler=-fPIC,-fvisibility=hidden,-ffp-contract=off,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics",
                "-Inative/include",
                "-Inative/src",
            ]
            self.spawn([*command, *targets])
        return objects


def packages() -> list[str]:
    """All packages, by the folders that `package-dir` of pyproject.toml maps into `infersdk`."""
    found = ["infersdk.include"]  # headers alone: the folder is no Python package
    for folder, name in (("infersdk", "infersdk"), ("backends", "infersdk.backends"), ("models", "infersdk.models")):
        found += [name, *(f"{name}.{inner}" for inner in find_packages(str(ROOT / folder)))]
    return sorted(set(found))


setup(
    packages=packages(),
    cffi_modules=["native/build_ffi.py:ffibuilder"],
    cmdclass={"build_ext": BuildNative},
    options={} if FREE_THREADED else {"bdist_wheel": {"py_limited_api": "cp310"}},
)
