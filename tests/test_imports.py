"""The direction of imports: read from the sources, and tried in separate processes."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import infersdk

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {"infersdk": ROOT / "infersdk", "infersdk.backends": ROOT / "backends", "infersdk.models": ROOT / "models"}

#: Runtimes of vendors; `OPTIONAL` adds packages that no module needs when it is imported.
RUNTIMES = {
    "onnxruntime", "openvino", "tensorrt", "tensorrt_rtx", "tensorrt_rtx_bindings", "tensorrt_bindings", "pycuda",
    "cuda", "torch",
}  # fmt: skip
OPTIONAL = RUNTIMES | {
    "onnx", "onnx_ir", "sympy", "cv2", "supervision", "yaml", "cupy", "numba", "matplotlib", "pytest", "av",
    "prometheus_client", "pycocotools", "faster_coco_eval", "jinja2", "markupsafe", "vl_convert", "h5py",
    "uvicorn", "uvloop", "h11", "grpc", "google", "tritonclient", "orjson", "python_multipart", "opentelemetry",
    "ray", "kserve", "grpc_interceptor", "fastapi",
}  # fmt: skip
NEEDED = {"cffi", "_cffi_backend", "numpy", "PIL", "msgspec", "rich", "tomli", "typing_extensions", "infersdk"}

#: These modules need the package that they are named for.
ABOUT_A_PACKAGE = {
    "infersdk.testing.contract": "pytest",
    "infersdk.testing.onnx_backend": "onnx",
    "infersdk.serve.http.connection": "uvicorn",
    "infersdk.serve.grpc": "grpc",
    "infersdk._pyinstaller.hook-infersdk": "PyInstaller",
    "infersdk._pyinstaller.hook-openvino": "PyInstaller",
    "infersdk._pyinstaller.hook-tensorrt_rtx_libs": "PyInstaller",
}


def modules() -> dict[str, Path]:
    """Each module of the package by its full name."""
    found = {}
    for package, folder in PACKAGES.items():
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            name = ".".join([package, *(part for part in parts if part != "__init__")])
            found[name] = path
    return found


MODULES = modules()


class Import(NamedTuple):
    target: str
    line: int
    lazy: bool  # within a function
    typing: bool  # under `if TYPE_CHECKING:`


@cache
def imports(name: str) -> list[Import]:
    """The full names that a module imports."""
    path, found = MODULES[name], []
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]

    def visit(node: ast.AST, lazy: bool, typing: bool) -> None:
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            for child in node.body:
                visit(child, lazy, True)
            for child in node.orelse:
                visit(child, lazy, typing)
        elif isinstance(node, ast.Import):
            found.extend(Import(alias.name, node.lineno, lazy, typing) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:  # `from . import errors` names a module, `from .errors import X` does not
                inner = f"{base}.{alias.name}"
                target = inner if inner in MODULES or inner == "infersdk._native" else base
                found.append(Import(target, node.lineno, lazy, typing))
        else:
            lazy |= isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            for child in ast.iter_child_nodes(node):
                if not isinstance(child, ast.expr):
                    visit(child, lazy, typing)

    visit(ast.parse(path.read_text("utf-8")), False, False)
    return found


def ours(name: str, *, typing: bool = False) -> set[str]:
    """The modules of the package that a module imports; with `typing`, also those for the type checker alone."""
    return {one.target for one in imports(name) if within(one.target, "infersdk") and typing >= one.typing}


def within(name: str, *parents: str) -> bool:
    return any(name == parent or name.startswith(f"{parent}.") for parent in parents)


def test_import_direction() -> None:
    wrong = []
    core = ("infersdk.core", "infersdk.errors", "infersdk._native", "infersdk._checkout")
    for name in MODULES:
        known = ours(name)

        def forbid(reason: str, *packages: str, name: str = name, known: set[str] = known) -> None:
            wrong.extend(f"{name} imports {other}: {reason}" for other in sorted(known) if within(other, *packages))

        if name != "infersdk.core._lib":
            forbid("only _lib imports the native module", "infersdk._native")
        if within(name, "infersdk.backends"):
            forbid("a backend imports no model and no command", "infersdk.models", "infersdk.cli", "infersdk.commands")
        else:
            forbid("backends are named as strings", "infersdk.backends")
        if not within(name, "infersdk.cli", "infersdk.commands", "infersdk.__main__"):
            forbid("only the command line imports the command line", "infersdk.cli", "infersdk.commands")
        if within(name, "infersdk.quant"):
            forbid("quantisation imports no model", "infersdk.models")
        if within(name, "infersdk.ops", "infersdk.image.sources"):
            forbid("operations import no models", "infersdk.infer", "infersdk.models")
        if not within(name, "infersdk.testing") and "infersdk.testing" in known:
            wrong.append(f"{name} imports infersdk.testing")
        if within(name, "infersdk.core", "infersdk.infer"):
            forbid("the core imports only the core", *(other for other in known if not within(other, *core)))
        if within(name, "infersdk.errors", "infersdk._checkout"):
            forbid("errors import nothing of the package", "infersdk")
    assert wrong == []


def test_module_level_imports_are_of_required_packages() -> None:
    allowed = sys.stdlib_module_names | NEEDED
    wrong = [
        f"{MODULES[name]}:{one.line} imports {one.target}"
        for name in MODULES
        if not within(name, "infersdk.backends", "infersdk.integrations", *ABOUT_A_PACKAGE)
        for one in imports(name)
        if not (one.lazy or one.typing) and one.target.split(".")[0] not in allowed
    ]
    assert wrong == []


def fresh(code: str) -> str:
    """The output of a separate process."""
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_importing_infersdk_imports_no_runtime_and_little_else() -> None:
    loaded = set(json.loads(fresh("import sys, json, infersdk; print(json.dumps(list(sys.modules)))")))
    assert not {name.split(".")[0] for name in loaded} & OPTIONAL
    assert not loaded & {"infersdk.models", "infersdk.backends", "infersdk.ops", "infersdk.cli", "PIL.Image", "rich"}
    assert not loaded & {"numpy", "msgspec", "infersdk.core.tensor", "infersdk.infer", "infersdk.loading.registry"}
    assert {"infersdk.core._lib", "infersdk.errors"} <= loaded


def test_all_public_names_are_there() -> None:
    code = "import infersdk; print(all(getattr(infersdk, n) is not None for n in infersdk.__all__), dir(infersdk)[0])"
    assert fresh(code).startswith("True")
    with pytest.raises(AttributeError, match="no attribute 'nonesuch'"):
        infersdk.nonesuch


#: A finder that reports all optional packages as missing.
BLOCK = f"""
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in {sorted(OPTIONAL)!r}:
            raise ModuleNotFoundError(f'No module named {{name!r}}', name=name)
sys.meta_path.insert(0, Blocked())
"""


def test_a_module_alone_is_enough_without_any_optional_package() -> None:
    # Each module is the first import of its process, after the packages that contain it: processes are forked from one
    # that has imported only these packages.
    others = ("infersdk.__main__", "infersdk.backends", "infersdk.integrations", *ABOUT_A_PACKAGE)
    names = [name for name in MODULES if name == "infersdk.backends" or not within(name, *others)]
    code = f"""{BLOCK}
import importlib, os
import numpy, msgspec, cffi, PIL.Image, rich.table, rich.console, importlib.metadata, concurrent.futures
below = {{}}
for name in {names!r}:
    below.setdefault(name.rpartition('.')[0], []).append(name)

def alone(name):  # in a process that has imported the packages above it; then what is below it, each alone
    if (child := os.fork()) == 0:
        good = True
        try:
            importlib.import_module(name)
            print('imported', name, flush=True)
        except BaseException as error:
            print(f'{{name}}: {{error!r}}', flush=True)
            os._exit(1)
        for inner in below.get(name, ()):
            good = alone(inner) and good
        os._exit(not good)
    return not os.waitpid(child, 0)[1]

print(alone('infersdk'))"""
    lines = fresh(code).splitlines()
    assert lines[-1] == "True", [line for line in lines if not line.startswith("imported ")]
    assert sorted(lines[:-1]) == sorted(f"imported {name}" for name in names)


def test_backends_without_their_packages_say_so_through_the_registry() -> None:
    code = f"""{BLOCK}
import json, infersdk
from infersdk.loading.registry import backend_class, list_backends
said = {{}}
for name in list_backends():
    try:
        backend_class(name)
    except infersdk.errors.BackendUnavailableError as error:
        said[name] = str(error)
print(json.dumps([list_backends(), said]))"""
    names, said = json.loads(fresh(code))
    assert {"onnxruntime", "openvino"} <= set(names)
    assert set(said) == set(names)
    for name in ("onnxruntime", "openvino"):
        assert said[name] == f'backend {name!r} needs {name}, which is not installed: pip install "infersdk[{name}]"'
    for name, message in said.items():
        assert message.startswith(f"backend {name!r} needs ")
        assert "which is not installed: pip install" in message


@pytest.mark.parametrize("folder", ["backends", "models"])
def test_the_folders_are_imported_by_their_full_names_alone(folder: str) -> None:
    code = f"""
import sys; sys.path.insert(0, {str(ROOT)!r})
try:
    import {folder}
except ImportError as error:
    print(error)"""
    assert fresh(code) == f"this folder is the package infersdk.{folder}; import it by that name\n"
