"""The names, signatures, enums and attributes of TensorRT's Python interface that the backend uses, against three
versions of it: the stubs of 10.13, the real bindings of 11.4, and those of TensorRT-RTX.

The full TensorRT needs libraries of gigabytes. Its bindings are a small wheel, which is imported here over empty
stand-ins for these libraries. What this cannot show is whether calls do what they should; `infersdk doctor --selftest
tensorrt` does, on a machine with a GPU.

    pip install --target stubs --no-deps "tensorrt-stubs==10.13.*"
    pip install --target bindings --no-deps "tensorrt-cu13-bindings==11.4.*"
    INFERSDK_TRT_STUBS=stubs INFERSDK_TRT_BINDINGS=bindings pytest tests/backends/test_trt_api.py
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from trt_uses import Use, module_names, object_uses, overridden, repaired  # noqa: E402

SOURCES = HERE.parent.parent / "backends" / "_trt"
#: What TensorRT-RTX alone has; the code asks the flavour, or whether the name is there, before it uses these.
RTX_ONLY = {
    "ComputeCapability", "DynamicShapesKernelSpecializationStrategy", "EngineInvalidityDiagnostics",
    "EngineInvalidityDiagnostics.UNSUPPORTED_CC", "EngineValidity", "EngineValidity.INVALID",
}  # fmt: skip


def folder(variable: str, what: str) -> Path:
    value = os.environ.get(variable)
    if not value:
        pytest.skip(f"needs {what} in the folder that {variable} names")
    return Path(value).resolve()


@pytest.fixture(scope="session", name="stubs")
def _stubs() -> str:
    file = folder("INFERSDK_TRT_STUBS", "tensorrt-stubs") / "tensorrt_bindings" / "tensorrt.pyi"
    return repaired(file.read_text("utf-8"))


@pytest.fixture(scope="session", name="real")
def _real(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The bindings of the full TensorRT, over libraries whose functions do nothing."""
    site = folder("INFERSDK_TRT_BINDINGS", "tensorrt-cu13-bindings")
    compiler, nm = shutil.which(os.environ.get("CC", "cc")), shutil.which("nm")
    if compiler is None or nm is None:
        pytest.skip("needs a C compiler and nm")
    libraries = tmp_path_factory.mktemp("libraries")
    (extension,) = (site / "tensorrt_bindings").glob("tensorrt*.so")
    undefined = subprocess.run([nm, "-D", "--undefined-only", extension], capture_output=True, text=True, check=True)
    # Those of the C library and of Python have a version behind them, or begin with Py.
    names = re.findall(r" U ((?!_?Py|dl)\w+)$", undefined.stdout, re.MULTILINE)
    source = libraries / "nothing.c"
    source.write_text("".join(f"void *{name}(void) {{ return 0; }}\n" for name in names))
    for name in set(re.findall(rb"lib(?:nvinfer|nvonnxparser)\w*\.so\.\d+", extension.read_bytes())):
        target = libraries / name.decode()
        subprocess.run([compiler, "-shared", source, f"-Wl,-soname,{target.name}", "-o", target], check=True)
    return dump("tensorrt_bindings", site, {"LD_LIBRARY_PATH": str(libraries)})


@pytest.fixture(scope="session", name="rtx")
def _rtx() -> dict[str, Any]:
    if importlib.util.find_spec("tensorrt_rtx_bindings") is None:
        pytest.skip("needs tensorrt-rtx-cu13-bindings")
    return dump("tensorrt_rtx_bindings")


def dump(module: str, site: Path | None = None, environment: dict[str, str] | None = None) -> dict[str, Any]:
    command = [sys.executable, str(HERE / "trt_dump.py"), module, *([str(site)] if site else [])]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | (environment or {}), check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(done.stdout))


def has(module: dict[str, Any], name: str) -> bool:
    owner, _, last = name.rpartition(".")
    return (last in module["members"].get(owner, ())) if owner else last in module["names"]


def signatures(text: str) -> list[tuple[int, int, list[str]]]:
    """Of each overload in a docstring of pybind11: the arguments that it needs, those it takes, and their names."""
    found = []
    for line in text.splitlines():
        match = re.match(r"(?:\d+\. )?\w+\((self: [^,)]+(?:, )?)?(.*)\) -> ", line.strip())
        if match is None:
            continue
        parameters = [p for p in re.split(r", (?=\w+: )", match[2]) if p]
        names = [p.partition(":")[0] for p in parameters]
        found.append((sum(" = " not in p for p in parameters), len(parameters), names))
    return found


def misfits(uses: set[Use], module: dict[str, Any]) -> list[str]:
    """The uses that a module has not, or takes otherwise."""
    wrong = []
    for use in sorted(uses, key=str):
        own = module["members"].get(use.owner)
        if own is None or use.member not in own:
            wrong.append(f"{use.owner}.{use.member} is missing")
        elif use.positional is not None and (known := signatures(own[use.member] or "")):
            given = use.positional + len(use.keywords)
            if not any(
                least <= given <= most and set(use.keywords) <= set(names[use.positional :])
                for least, most, names in known
            ):
                wrong.append(f"{use.owner}.{use.member} takes {known}, and is given {use}")
    return wrong


def test_the_uses_are_found(stubs: str) -> None:
    uses = {f"{use.owner}.{use.member}" for use in object_uses(SOURCES, stubs)}
    assert len(uses) > 55
    assert {
        "Runtime.deserialize_cuda_engine", "ICudaEngine.get_tensor_profile_shape", "IExecutionContext.execute_async_v3",
        "IExecutionContext.set_device_memory", "IBuilderConfig.progress_monitor", "ILayer.get_input", "ITensor.dtype",
        "ITimingCache.serialize", "Builder.build_serialized_network",
    } <= uses  # fmt: skip


def test_misfits_are_found() -> None:
    module = {"members": {"A": {"f": "f(self: t.A, x: int, y: int = 0) -> int\n", "g": None}}}
    uses = {Use("A", "f", 0), Use("A", "f", 1), Use("A", "f", 1, ("y",)), Use("A", "f", 1, ("z",)), Use("A", "g")}
    assert len(misfits({*uses, Use("A", "h"), Use("B", "f")}, module)) == 4
    text = "f(*args, **kwargs)\n1. f(self: t.A) -> None\n2. f(self: t.A, a: t.Dims, b: str = 'x, y') -> int"
    assert signatures(text) == [(0, 0, []), (1, 2, ["a", "b"])]


def test_stubs_of_10_13(stubs: str) -> None:
    """Names alone; mypy holds the calls against them: MYPYPATH=stubs mypy -p infersdk."""
    known = set(re.findall(r"^\s*(?:class |def )?(\w+)\b", stubs, re.MULTILINE)) | {"nptype", "__version__"}
    names = {part for name in module_names(SOURCES) - RTX_ONLY for part in name.split(".")}
    assert not names - known - {"__version__", "nptype"}, names - known
    for use in object_uses(SOURCES, stubs):
        assert re.search(rf"\b{use.member}\b", stubs), use


def test_bindings_of_11(stubs: str, real: dict[str, Any]) -> None:
    assert real["version"].startswith("11.")
    missing = {name for name in module_names(SOURCES) - RTX_ONLY if not has(real, name)}
    assert not missing
    assert not misfits(object_uses(SOURCES, stubs), real)
    assert real["derived"] == ["Logger", "Allocator", "Monitor"]


def test_bindings_of_rtx(stubs: str, rtx: dict[str, Any]) -> None:
    missing = {name for name in module_names(SOURCES) if not has(rtx, name)}
    assert not missing
    assert not misfits(object_uses(SOURCES, stubs), rtx)


@pytest.mark.parametrize("flavour", ["real", "rtx"])
def test_what_is_overridden_is_called_by_its_name(flavour: str, request: pytest.FixtureRequest) -> None:
    """pybind11 looks methods of Python up by their names, which are in the binary."""
    module = request.getfixturevalue(flavour)
    binary = Path(module["file"]).read_bytes()
    for base, methods in overridden(SOURCES).items():
        for name in methods:
            assert name.startswith("_") or f"{name}\0".encode() in binary, f"{base}.{name}"


def test_members_of_rtx_alone(rtx: dict[str, Any]) -> None:
    for owner, names in {
        "Runtime": ["get_engine_validity"],
        "ICudaEngine": ["create_runtime_config"],
        "IRuntimeConfig": [
            "create_runtime_cache", "set_runtime_cache", "set_execution_context_allocation_strategy",
            "dynamic_shapes_kernel_specialization_strategy",
        ],
        "IBuilderConfig": ["num_compute_capabilities", "set_compute_capability"],
        "IExecutionContext": ["is_stream_capturable"],
    }.items():  # fmt: skip
        assert set(names) <= set(rtx["members"][owner]), owner
