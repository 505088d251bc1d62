"""Custom operators as TensorRT plugins, and in keys and manifests of engines. Nothing here needs a GPU.

A runtime that parses plugin nodes is TensorRT-RTX 1.7 or later; INFERSDK_TENSORRT_RTX names the folder of one that was
installed aside (`pip install --target`). The tests that need it run in a process of their own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from custom_operators import Everything, HardSwish, swish_model

pytest.importorskip("onnx")
TESTS = Path(__file__).resolve().parent.parent


def newer_runtime() -> Path:
    """The folder of a TensorRT-RTX that parses plugin nodes."""
    folder = Path(os.environ.get("INFERSDK_TENSORRT_RTX", "/nonexistent"))
    if not (folder / "tensorrt_rtx_bindings").is_dir():
        pytest.skip("INFERSDK_TENSORRT_RTX names no folder with TensorRT-RTX 1.7 or later")
    return folder


#: The wheel of 1.7 ends the process unless a library by its unversioned name is there when it starts.
START = """
import ctypes, json, subprocess, sys
folder, scratch, tests = sys.argv[1:4]
sys.path.insert(0, folder); sys.path.insert(0, tests)
libs = folder + "/tensorrt_rtx_libs"
open(scratch + "/empty.c", "w").close()
subprocess.run(["cc", "-shared", "-o", scratch + "/libtensorrt_rtx.so", scratch + "/empty.c",
    "-Wl,-soname,libtensorrt_rtx.so", "-Wl,--no-as-needed", libs + "/libtensorrt_rtx.so.1", "-Wl,-rpath," + libs],
    check=True)
ctypes.CDLL(scratch + "/libtensorrt_rtx.so", ctypes.RTLD_GLOBAL)
from infersdk.backends._trt.build import build_engine, engine_key
from infersdk.backends._trt.flavour import FLAVOURS
from infersdk.backends._trt.options import Options
from infersdk.backends._trt.flavour import takes_plugins
from infersdk.custom_ops.operator_set import OperatorSet
from infersdk.graph.digest import model_digest
from pathlib import Path
import custom_operators as ops
flavour = FLAVOURS["tensorrt-rtx"]
def build(path, *used):
    arguments = dict(precision=None, max_batch=4, options=Options(), capabilities=("8.9",), device=None)
    arguments["custom_ops"] = OperatorSet(used)
    return build_engine(flavour, path, digest=model_digest(path), **arguments)
"""


def aside(tmp_path: Path, code: str) -> Any:
    """What the code leaves in `result`, in a process with the newer runtime."""
    command = [sys.executable, "-P", "-c", f"{START}\n{code}\nprint('RESULT' + json.dumps(result))"]
    done = subprocess.run(
        [*command, str(newer_runtime()), str(tmp_path), str(TESTS)], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.rpartition("RESULT")[2])


def test_the_attributes_arrive_and_sizes_are_computed(tmp_path: Path) -> None:
    """All kinds of attributes, given and not; two outputs of types and sizes of their own."""
    result = aside(
        tmp_path,
        """
import infersdk.backends._trt.plugins as plugins
seen = []
real = plugins._plugin_class
def watched(trt):
    kind = real(trt)
    def make(op, name, device):
        seen.append(op.values())
        return kind(op, name, device)
    return make
plugins._plugin_class = watched
path = ops.save_model(Path(scratch, "m.onnx"),
    [ops.node(ops.Everything, ["x", "i"], ["y", "n"], "all", whole=2, flag=0, text="q r", factors=[1.5, -2])],
    {"x": ("float32", ["b", 3]), "i": ("int64", ["b"])}, {"y": ("float32", ["b", 6]), "n": ("int32", ["b"])})
data, details = build(path, ops.Everything)
result = [seen[0], [[spec.shape, spec.dtype] for spec in details.outputs]]
""",
    )
    values, outputs = result
    assert values["whole"] == 2
    assert values["flag"] is False
    assert values["text"] == "q r"
    assert values["factors"] == [1.5, -2]
    assert values["wholes"] == list(Everything(whole=1).wholes)  # a default
    assert values["factor"] == Everything(whole=1).factor
    assert outputs == [[["b", 6], "float32"], [["b"], "int32"]]


# ---- versions ----


class HardSwishNext(HardSwish):
    name = "HardSwish"
    version = 2


def test_another_version_is_another_engine(tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx_bindings")
    from infersdk.backends._trt.build import engine_key
    from infersdk.backends._trt.flavour import FLAVOURS
    from infersdk.backends._trt.options import Options
    from infersdk.custom_ops.operator_set import OperatorSet

    path = swish_model(tmp_path / "m.onnx")
    arguments: dict[str, Any] = {"precision": None, "max_batch": 4, "options": Options(), "capabilities": ("8.9",)}
    keys = [
        engine_key(FLAVOURS["tensorrt-rtx"], path, device=None, custom_ops=ops, **arguments)[0]
        for ops in (None, OperatorSet([HardSwish]), OperatorSet([HardSwishNext]), OperatorSet([HardSwish]))
    ]
    assert len(set(keys)) == 3
    assert keys[1] == keys[3]


def test_an_engine_of_another_version_is_refused() -> None:
    pytest.importorskip("tensorrt_rtx_bindings")
    from infersdk.backends._trt.details import EngineDetails
    from infersdk.backends._trt.engine import check_operators
    from infersdk.custom_ops.operator_set import OperatorSet
    from infersdk.errors import EngineError

    details = EngineDetails(
        version="1", capabilities=[], gpu=None, precision="fp32", inputs=[], outputs=[], profiles=[], metadata={},
        model="m.onnx", model_sha256="", options={}, build_seconds=0, custom_ops=["tests.custom::HardSwish@1"],
    )  # fmt: skip
    check_operators("m.engine", details, OperatorSet([HardSwish]))
    for ops, there in ((None, "none"), (OperatorSet([HardSwishNext]), "tests.custom::HardSwish@2")):
        with pytest.raises(EngineError, match=f"tests.custom::HardSwish@1, and declared are: {there}; load it with"):
            check_operators("m.engine", details, ops)
    check_operators("m.engine", None, None)


def test_segments_carry_the_versions(tmp_path: Path) -> None:
    """So that the engines of a model that is cut have other keys for another version, too."""
    import infersdk

    pytest.importorskip("onnxruntime")
    path = swish_model(tmp_path / "m.onnx")
    with infersdk.load(path, "onnxruntime", custom_ops=[HardSwish], cut_custom_ops=True) as infer:
        for segment in infer.plan.segments:  # type: ignore[attr-defined]
            assert segment.model.metadata_props["infersdk.custom_ops"] == "tests.custom::HardSwish@1"
