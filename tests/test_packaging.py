"""The source distribution, the wheel that is built from it, and what that installs."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {"infersdk": "infersdk", "backends": "infersdk/backends", "models": "infersdk/models"}  # and in the wheel

# What is made in a checkout, and is not of it.
MADE = shutil.ignore_patterns(
    "build", "dist", "*.egg-info", ".git", ".*_cache", "__pycache__", "*.so", "*.o", "zz_pending.c", ".benchmarks",
    ".hypothesis", ".venv", "venv",
)  # fmt: skip


def sources() -> set[str]:
    """The files of the package and of its native half, by their paths in the repository."""
    found = set()
    for folder in (*FOLDERS, "native"):
        for path in (ROOT / folder).rglob("*"):
            parts = path.relative_to(ROOT).parts
            made = "__pycache__" in parts or path.suffix in (".so", ".o", ".pyc") or path.name == "zz_pending.c"
            if path.is_file() and not made:
                found.add("/".join(parts))
    return found


def call(*command: str, folder: Path) -> None:
    environment = os.environ | {"INFERSDK_CUDA": "0", "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=folder, env=environment)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


def needs(*packages: str) -> None:
    """Skips without these packages. Nothing is imported: setuptools replaces parts of Python."""
    for name in packages:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"needs {name} to be installed: there may be no network")


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution, built from a copy of the tree so that nothing is left behind in it."""
    needs("build", "setuptools", "cffi", "pip")
    folder = tmp_path_factory.mktemp("sdist")
    shutil.copytree(ROOT, folder / "tree", ignore=MADE)
    build = [sys.executable, "-m", "build", "--sdist", "--no-isolation", "-o", str(folder / "dist")]
    call(*build, folder=folder / "tree")
    (found,) = (folder / "dist").iterdir()
    return found


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that is built from the source distribution alone."""
    folder = tmp_path_factory.mktemp("wheel")
    shutil.unpack_archive(sdist, folder)
    (tree,) = folder.iterdir()
    call(sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", str(folder / "dist"), folder=tree)
    (found,) = (folder / "dist").iterdir()
    return found


@pytest.mark.slow
def test_the_sdist_has_all_that_the_build_and_the_tests_need(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert sdist.name == f"infersdk-{version()}.tar.gz"
    assert sources() - names == set()
    assert {
        "pyproject.toml", "setup.py", "README.md", "LICENSE", "tests/conftest.py", "tests/native/test_core.c",
    } <= names  # fmt: skip
    assert not {n for n in names if n.endswith((".so", ".o", ".pyc", "zz_pending.c"))}
    assert not {n for n in names if n.split("/")[0] in ("build", "dist")}


@pytest.mark.slow
def test_the_wheel_has_the_package_and_nothing_else(wheel: Path) -> None:
    assert wheel.name.startswith(f"infersdk-{version()}-cp310-abi3-")
    with zipfile.ZipFile(wheel) as archive:
        entries = {info.filename: info for info in archive.infolist()}
        tags = archive.read(f"infersdk-{version()}.dist-info/WHEEL").decode()
        commands = archive.read(f"infersdk-{version()}.dist-info/entry_points.txt").decode()
    wanted = set()
    for source in sources():
        folder, _, rest = source.partition("/")
        if folder in FOLDERS:
            wanted.add(f"{FOLDERS[folder]}/{rest}")
        if source.startswith("native/include/"):  # for those who write kernels
            wanted.add(source.replace("native/", "infersdk/"))
    got = {name for name in entries if name.startswith("infersdk/")}
    assert got == wanted | {"infersdk/_native.abi3.so"}
    assert {"infersdk/py.typed", "infersdk/backends/onnxruntime.py", "infersdk/models/__init__.py"} <= got
    assert {name.split("/")[0] for name in entries} == {"infersdk", f"infersdk-{version()}.dist-info"}
    assert f"infersdk-{version()}.dist-info/licenses/LICENSE" in entries
    assert "Tag: cp310-abi3-" in tags
    assert "infersdk = infersdk.cli:main" in commands


@pytest.mark.slow
def test_the_wheel_is_small(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        sizes = {i.filename: i.compress_size for i in archive.infolist() if not i.filename.startswith("infersdk/data/")}
    assert sum(sizes.values()) < 3_000_000, sorted(sizes.items(), key=lambda item: -item[1])[:5]


@pytest.mark.slow
def test_the_native_module_shows_its_init_function_and_needs_the_c_library_alone(wheel: Path, tmp_path: Path) -> None:
    if sys.platform != "linux" or shutil.which("nm") is None or shutil.which("readelf") is None:
        pytest.skip("needs binutils on Linux")
    with zipfile.ZipFile(wheel) as archive:
        module = archive.extract("infersdk/_native.abi3.so", tmp_path)
    exported = subprocess.run(["nm", "-D", "--defined-only", module], check=True, capture_output=True, text=True).stdout
    names = {line.split()[-1].partition("@")[0] for line in exported.splitlines()}
    assert names <= {"PyInit__native", "_cffi_pypyinit__native", "RegisterCustomOps"}  # the last is ONNX Runtime's
    dynamic = subprocess.run(["readelf", "-d", module], check=True, capture_output=True, text=True).stdout
    needed = {line.partition("[")[2].partition("]")[0] for line in dynamic.splitlines() if "(NEEDED)" in line}
    assert {name.partition(".so")[0] for name in needed} <= {"libc", "libm", "libpthread", "ld-linux-x86-64"}


def install(wheel: Path, folder: Path) -> Path:
    """Where the wheel, and nothing that it needs, was installed."""
    target = folder / "site"
    options = ["-q", "--no-deps", "--target", str(target)]
    call(sys.executable, "-m", "pip", "install", *options, str(wheel), folder=folder)
    return target


@pytest.mark.slow
def test_the_wheel_installs_and_works(wheel: Path, tmp_path: Path) -> None:
    target = install(wheel, tmp_path)
    code = f"""
import sys; sys.path.insert(0, {str(target)!r})
import infersdk, infersdk.models, infersdk.backends, infersdk.config, importlib.metadata, importlib.resources
assert infersdk.__file__.startswith({str(target)!r}), infersdk.__file__
assert infersdk.models.__file__.startswith({str(target)!r})
assert infersdk.__version__ == {version()!r} == importlib.metadata.version('infersdk')
assert importlib.resources.files('infersdk').joinpath('py.typed').is_file()
tensor = infersdk.Tensor((2, 3), 'uint8').copy_from([[1, 2, 300], [4, 5, 6]])
print(tensor.numpy().sum(), len(infersdk.list_backends()) > 1)
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("273 True\n", "")


@pytest.mark.slow
def test_the_command_is_installed(wheel: Path, tmp_path: Path) -> None:
    target = install(wheel, tmp_path)
    environment = os.environ | {"PYTHONPATH": str(target)}
    done = subprocess.run(
        [sys.executable, str(target / "bin" / "infersdk"), "--version"],
        check=False, capture_output=True, text=True, env=environment, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert version() in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_demo_frozen_by_pyinstaller(wheel: Path, tmp_path: Path) -> None:
    """The hook that the wheel brings is found, and the application runs without Python and without the package."""
    needs("PyInstaller", "onnxruntime")
    if sys.platform != "linux" or shutil.which("objdump") is None:
        pytest.skip("needs binutils on Linux")
    target = install(wheel, tmp_path)
    (tmp_path / "app.py").write_text("import sys\nfrom infersdk.cli import main\nsys.exit(main())\n")
    # What is installed here besides, and would go with the application: runtimes, and what other packages import.
    others = "openvino tensorrt_rtx tensorrt_rtx_bindings cv2 av torch scipy pandas matplotlib IPython pytest"
    others += " vl_convert tkinter cryptography"  # sympy comes with onnx-ir
    left_out = [f"--exclude-module={name}" for name in others.split()]
    command = [sys.executable, "-m", "PyInstaller", "--noconfirm", "--onedir", "--log-level=WARN", *left_out]
    done = subprocess.run(
        [*command, "app.py"], check=False, capture_output=True, text=True, cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(target), "PYINSTALLER_CONFIG_DIR": str(tmp_path / "config")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    application = tmp_path / "dist" / "app" / "app"

    def frozen(*arguments: str) -> dict[str, Any]:
        bare = {"PATH": "/nonexistent", "HOME": str(tmp_path)}
        run = subprocess.run([application, *arguments], check=False, capture_output=True, text=True, env=bare)
        assert (run.returncode, run.stderr) == (0, "")
        report: dict[str, Any] = json.loads(run.stdout)
        return report

    report = frozen("demo", "--json", "-o", str(tmp_path / "demo.png"))
    truth = json.loads((ROOT / "infersdk" / "data" / "demo.json").read_text())
    assert sorted(d["label"] for d in report["detections"]) == sorted(str(box["label"]) for box in truth["objects"])
    assert (tmp_path / "demo.png").stat().st_size > 10_000
    about = frozen("doctor", "--json")
    assert about["infersdk"] == version()
    assert about["backends"]["onnxruntime"]["works"]
    assert not about["backends"]["openvino"]["works"]


def test_the_hooks_name_the_runtimes_and_find_their_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    from infersdk._pyinstaller import hook_folders

    def found(package: str, search_patterns: Sequence[str]) -> list[str]:
        (folder,) = importlib.util.find_spec(package).submodule_search_locations  # type: ignore[union-attr, misc]
        return [path.name for pattern in search_patterns for path in Path(folder).rglob(pattern)]

    names = {
        "can_import_module": lambda name: name != "tensorrt_rtx", "collect_submodules": lambda *_, **__: ["infersdk"],
        "collect_data_files": lambda _: [], "copy_metadata": lambda _: [], "collect_dynamic_libs": found,
        "collect_entry_point": lambda group: ([(f"{group}-1.dist-info", ".")], [f"package_of_{group}"]),
    }  # fmt: skip
    for module in ("PyInstaller", "PyInstaller.utils", "PyInstaller.utils.hooks"):
        monkeypatch.setitem(sys.modules, module, SimpleNamespace(**names))
    (folder,) = hook_folders()
    application = runpy.run_path(f"{folder}/hook-infersdk.py")
    of_others = ["package_of_infersdk.backends", "package_of_infersdk.custom_ops"]
    known = ["infersdk", "_cffi_backend", "tensorrt", "tensorrt_rtx_bindings"]
    assert application["hiddenimports"] == [*known, *of_others]
    assert application["datas"] == [(f"infersdk.{group}-1.dist-info", ".") for group in ("backends", "custom_ops")]
    for package, library in (("openvino", "openvino_onnx_frontend"), ("tensorrt_rtx_libs", "tensorrt_onnxparser_rtx")):
        if importlib.util.find_spec(package) is not None:
            hook = runpy.run_path(f"{folder}/hook-{package}.py")
            assert any(library in name for name in hook["binaries"])


def version() -> str:
    """The one in pyproject.toml, of which all others are made."""
    for line in (ROOT / "pyproject.toml").read_text("utf-8").splitlines():
        if line.startswith("version = "):
            return line.split('"')[1]
    raise AssertionError("pyproject.toml has no version")


def test_the_native_module_has_the_version_of_the_project() -> None:
    import infersdk

    assert infersdk.__version__ == version()


def test_no_address_of_the_project_before_there_is_one() -> None:
    """An address that does not exist yet leads users nowhere."""
    for path in (ROOT / "pyproject.toml", ROOT / "README.md", ROOT / "SECURITY.md", *(ROOT / "docs").rglob("*.md")):
        assert not re.search(r"https?://[^\s)>]*infersdk", path.read_text("utf-8")), path


def failing_build(folder: Path, **environment: str) -> str:
    """What a build that fails prints."""
    needs("build", "setuptools", "cffi")
    shutil.copytree(ROOT, folder / "tree", ignore=MADE)
    done = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", str(folder), "."], check=False,
        capture_output=True, text=True, cwd=folder / "tree", env=os.environ | environment,
    )  # fmt: skip
    assert done.returncode != 0
    return done.stdout + done.stderr


def path_with_nvcc(folder: Path) -> str:
    """PATH with an nvcc in front, which says that it was called, and fails."""
    (folder / "nvcc").write_text("#!/bin/sh\necho nvcc was called; exit 1\n")
    (folder / "nvcc").chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"CC": "no-such-compiler -O2"}, "no C compiler ('no-such-compiler').*apt install gcc.*dnf install gcc"),
        ({"INFERSDK_CUDA": "1", "CC": sys.executable, "PATH": "", "CUDA_HOME": ""}, "INFERSDK_CUDA=1, but .* no nvcc"),
        ({"INFERSDK_CUDA": "1", "CUDA_HOME": "/none"}, "INFERSDK_CUDA=1, but there is no nvcc in /none/bin"),
        ({"INFERSDK_CUDA": "1", "INFERSDK_CUDA_ARCHS": "90,"}, "INFERSDK_CUDA_ARCHS=90,: it is a list of compute"),
        ({"INFERSDK_CUDA": "yes"}, "INFERSDK_CUDA=yes: it is 1, which builds the CUDA part, or 0"),
    ],
)
def test_one_line_says_what_a_build_misses(environment: dict[str, str], words: str, tmp_path: Path) -> None:
    printed = failing_build(tmp_path, **({"INFERSDK_CUDA": "0", "PATH": path_with_nvcc(tmp_path)} | environment))
    pattern = words.replace("(", r"\(").replace(")", r"\)")
    assert [line for line in printed.splitlines() if re.match(pattern, line)]
    assert "Traceback" not in printed


@pytest.mark.parametrize("wanted", ["", "1"])
def test_cuda_is_built_when_it_is_asked_for_alone(wanted: str, tmp_path: Path) -> None:
    path = path_with_nvcc(tmp_path)
    printed = failing_build(tmp_path, INFERSDK_CUDA=wanted, PATH=path, CUDA_HOME="", CUDA_PATH="", CC="false")
    assert ("nvcc was called" in printed) == (wanted == "1")


def test_every_source_file_is_python_3_10() -> None:
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            ast.parse(path.read_text("utf-8"), str(path), feature_version=(3, 10))
