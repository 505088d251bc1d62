"""Which backends there are, and load(): names, entry points, and what it refuses."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import infersdk
import infersdk.custom_ops.loading
from infersdk import load
from infersdk.data import DETECTOR
from infersdk.errors import BackendNotFoundError, BackendUnavailableError, ConfigError, DeviceUnavailableError
from infersdk.loading import registry

# A whole backend of another package: it adds one to its inputs, and its models are text files.
MINE = """
import msgspec
import numpy as np
from infersdk.infer import BackendInfo, Declaration, Infer
from infersdk.core.backend import BackendOptions
from infersdk.core.tensor_spec import TensorSpec

class Options(BackendOptions, frozen=True):
    step: int = 1

class Mine(Infer):
    backend = "mine"
    declaration = Declaration(probe=lambda: BackendInfo("1.0", ("cpu",)), options=Options)
    precision = "fp32"

    def _load(self):
        self.input_specs = self.output_specs = (TensorSpec("x", np.dtype("float32"), ("n",)),)

    def _bind(self):
        self._outputs["x"].resize(self._inputs["x"].shape)

    def _enqueue(self):
        self._outputs["x"].numpy(writable=True)[:] = self._inputs["x"].numpy() + self.options.step

    def _clone(self, twin):
        pass

    def _close(self):
        pass

class NoInfer:
    pass

class Outer:
    Inner = Mine
"""


def in_a_process_with(folder: Path, points: dict[str, str], code: str) -> Any:
    """Runs `code` where a distribution with these entry points is installed; returns what it puts into `result`."""
    (folder / "infersdk_mine.py").write_text(MINE)
    (folder / "infersdk_broken.py").write_text("raise OSError('libmine.so.7: cannot open shared object file')\n")
    (folder / "infersdk_needy.py").write_text("import a_missing_package\n")
    info = folder / "infersdk_mine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: infersdk-mine\nVersion: 1.0\n")
    lines = "\n".join(f"{name} = {target}" for name, target in points.items())
    (info / "entry_points.txt").write_text(f"[infersdk.backends]\n{lines}\n")
    program = (
        f"import json, sys; sys.path.insert(0, {str(folder)!r})\n"
        "import infersdk, numpy as np\nfrom infersdk.loading.registry import backend_class, list_backends\n"
        "def error(call):\n    try:\n        call()\n    except infersdk.InferSDKError as e:\n"
        "        return [type(e).__name__, str(e)]\n"
        f"{code}\nprint(json.dumps(result))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_backend_from_outside_works_like_one_of_ours(tmp_path: Path) -> None:
    (tmp_path / "model.txt").write_text("a model")
    names, values, wrong = in_a_process_with(
        tmp_path,
        {"mine": "infersdk_mine:Mine", "nested": "infersdk_mine:Outer.Inner"},
        f"""path = {str(tmp_path / "model.txt")!r}
x = np.array([1, 2], 'float32')
with infersdk.load(path, backend='mine', step=5) as infer:
    values = [infer(x)['x'].tolist(), infer.clone()(x)['x'].tolist(), infer.precision, infer.device]
values.append(backend_class('nested').__name__)
result = [list_backends(), values, error(lambda: infersdk.load(path, backend='mine', stride=2))]""",
    )
    assert {"mine", "nested", "onnxruntime"} <= set(names)
    assert names == sorted(names)
    assert values == [[6, 7], [6, 7], "fp32", "cpu", "Mine"]
    assert wrong[0] == "ConfigError"
    assert "options of backend 'mine'" in wrong[1]
    assert "Known are: step" in wrong[1]


def test_backends_from_outside_that_do_not_work_say_why(tmp_path: Path) -> None:
    points = {
        "broken": "infersdk_broken:Mine", "needy": "infersdk_needy:Mine", "gone": "infersdk_gone:Mine",
        "noinfer": "infersdk_mine:NoInfer", "function": "infersdk_mine:msgspec", "nothing": "infersdk_mine:Nothing",
        "colonless": "infersdk_mine",
    }  # fmt: skip
    result = in_a_process_with(
        tmp_path, points, f"result = {{n: error(lambda: backend_class(n)) for n in {[*points]!r}}}"
    )
    assert {kind for kind, _ in result.values()} == {"BackendUnavailableError"}
    said = {name: message for name, (_, message) in result.items()}
    assert said["broken"] == (
        "backend 'broken' is installed but fails to import: OSError: libmine.so.7: cannot open shared object file. "
        "Try to reinstall it: pip install --upgrade infersdk-mine"
    )
    assert said["needy"] == (
        "backend 'needy' needs a_missing_package, which is not installed: pip install --upgrade infersdk-mine"
    )
    assert "needs infersdk_gone, which is not installed" in said["gone"]
    assert said["noinfer"] == "backend 'noinfer': infersdk_mine:NoInfer is not a subclass of infersdk.Infer"
    assert "is not a subclass" in said["function"]
    assert "AttributeError" in said["nothing"]
    assert "infersdk_mine" in said["colonless"]


def test_an_interrupt_while_a_backend_is_imported(tmp_path: Path) -> None:
    code = "raise ImportError('initialization failed') from KeyboardInterrupt()"
    (tmp_path / "infersdk_interrupted.py").write_text(code)
    code = "try:\n    backend_class('mine')\nexcept KeyboardInterrupt as e:\n    result = str(type(e))"
    assert in_a_process_with(tmp_path, {"mine": "infersdk_interrupted:Mine"}, code) == "<class 'KeyboardInterrupt'>"


def test_a_built_in_name_cannot_be_taken_over(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    points = dict.fromkeys(("onnxruntime", "auto"), "infersdk_mine:Mine")
    module, names = in_a_process_with(
        tmp_path, points, "result = backend_class('onnxruntime').__module__, list_backends()"
    )
    assert module == "infersdk.backends.onnxruntime"
    assert "auto" not in names


def test_unknown_names_are_told_the_known_ones() -> None:
    with pytest.raises(
        BackendNotFoundError, match=r"no backend 'onnxruntme'; there are .*onnxruntime.*; did you mean 'onnxruntime'"
    ):
        registry.backend_class("onnxruntme")
    with pytest.raises(BackendNotFoundError) as caught:
        registry.backend_class("zzz")
    assert "did you mean" not in str(caught.value)
    with pytest.raises(BackendNotFoundError):
        registry.install_hint("zzz")


def test_every_built_in_backend_has_an_install_hint_and_names_a_class() -> None:
    for name, (target, hint) in registry._BUILT_IN.items():
        assert hint.startswith('pip install "infersdk[')
        assert registry.install_hint(name) == hint
        try:
            kind = registry.backend_class(name)
        except BackendUnavailableError as error:
            assert hint in str(error)  # noqa: PT017 - either way is right
            continue
        assert kind.backend == name
        module, _, attribute = target.partition(":")
        assert getattr(importlib.import_module(module), attribute) is kind


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"precision": "fp61"}, ConfigError, "unknown precision 'fp61'; use one of fp32, bf16, fp16, int8"),
        ({"precision": 16}, ConfigError, "unknown precision 16; use one of"),
        ({"max_batch": 0}, ConfigError, "max_batch is a whole number from 1, not 0"),
        ({"max_batch": 2.0}, ConfigError, "max_batch is a whole number from 1, not 2.0"),
        ({"max_batch": True}, ConfigError, "max_batch is a whole number from 1, not True"),
        ({"device": "cuda:x"}, DeviceUnavailableError, "unknown device 'cuda:x'"),
        ({"device": ""}, DeviceUnavailableError, "unknown device ''"),
        ({"device": 0}, DeviceUnavailableError, 'unknown device 0; use a name such as "cpu", "cuda" or "cuda:1"'),
        ({"device": "cuda:99999999999"}, DeviceUnavailableError, "cuda:99999999999"),
        ({"backend": "tensorflow"}, BackendNotFoundError, "no backend 'tensorflow'"),
        ({"treads": 1}, ConfigError, "unknown field `treads`"),
    ],
)
def test_arguments_that_load_refuses(
    arguments: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    pytest.importorskip("onnxruntime")
    models = pytest.importorskip("onnx_models")
    with pytest.raises(error, match=message):
        infersdk.load(models.double(tmp_path / "m.onnx"), **arguments)


def test_load_takes_all_kinds_of_paths_and_devices(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    path = pytest.importorskip("onnx_models").double(tmp_path / "mödel 1.onnx")
    x = np.ones((1, 4), np.float32)
    for file, device in ((path, None), (str(path), "cpu"), (path, "CPU"), (path, infersdk.Device("cpu"))):
        with infersdk.load(file, device=device) as infer:
            assert (infer(x)["y"] == 2).all()
            assert infer.device == "cpu"


def test_the_largest_batch_may_be_a_number_of_numpy(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    path = pytest.importorskip("onnx_models").double(tmp_path / "m.onnx")
    with infersdk.load(path, max_batch=np.int64(4)) as infer:  # type: ignore[arg-type]
        assert type(infer.max_batch) is int
        assert infer.max_batch == 4


# ---- a configuration in place of a model ----


def configuration(folder: Path, text: str, name: str = "app.toml") -> Path:
    file = folder / name
    file.write_text(text)
    return file


def test_a_configuration_of_one_model_is_loaded(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("openvino")
    (tmp_path / "d.onnx").write_bytes(DETECTOR.read_bytes())
    file = configuration(
        tmp_path,
        """
        [models.detector]
        type = "yolov5"
        path = "d.onnx"
        backend = "openvino"
        max_batch = 3
        conf = 0.4
        options = { threads = 1 }
        pipeline = { max_delay = 0.1 }
        """,
    )
    with load(file) as infer:
        assert (infer.backend, infer.max_batch, infer.options.threads) == ("openvino", 3, 1)
    with load(str(file), max_batch=2, performance_hint="throughput") as infer:  # what is said here goes first
        assert (infer.max_batch, infer.options.performance_hint, infer.options.threads) == (2, "throughput", 1)
    with load(file, "onnxruntime") as infer:  # options are of the backend beside them
        assert (infer.backend, infer.max_batch, infer.options.threads) == ("onnxruntime", 3, 0)


@pytest.fixture
def refused_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")

    def refuse(kind: Any, source: Any, device: Any, custom_ops: Any, cut: bool) -> Any:
        raise ConfigError(f"operators {custom_ops}, cut {cut}")

    monkeypatch.setattr(infersdk.custom_ops.loading, "with_custom_ops", refuse)


@pytest.mark.usefixtures("refused_operators")
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"custom_ops": [3]}, r"operators \[3\], cut False"),
        ({"custom_ops": [3], "cut_custom_ops": True}, r"operators \[3\], cut True"),
        ({"external_data": "weights"}, "external_data"),
        ({"convert": {"shapes": [(1, 3)]}}, "convert= is for a model that is converted"),
        ({"convert": "1,3,8,8"}, "convert is a mapping of arguments, .* not '1,3,8,8'"),
    ],
)
def test_arguments_beside_a_configuration_are_those_of_its_model(
    tmp_path: Path, given: dict[str, Any], message: str
) -> None:
    (tmp_path / "d.onnx").write_bytes(DETECTOR.read_bytes())
    file = configuration(tmp_path, "[models.detector]\npath = 'd.onnx'")
    with pytest.raises(ConfigError, match=message) as direct:
        load(tmp_path / "d.onnx", **given)
    with pytest.raises(ConfigError) as beside:
        load(file, **given)
    assert str(beside.value).endswith(str(direct.value))


@pytest.mark.usefixtures("refused_operators")
def test_a_configuration_says_whether_operators_are_cut(tmp_path: Path) -> None:
    (tmp_path / "d.onnx").write_bytes(DETECTOR.read_bytes())
    file = configuration(tmp_path, "[models.detector]\npath = 'd.onnx'\noptions = { cut_custom_ops = true }")
    with pytest.raises(ConfigError, match="cut True"):
        load(file, custom_ops=[3])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "takes a configuration of one model.*it has none"),
        ('[models.a]\npath="a"\n[models.b]\npath="b"', r"it has 2 of them \(a, b\); infersdk.models.create"),
        ("[models.a]\nbackend='openvino'", "models.a has no path"),
        ("[models.a]\npath='a.onnx'\nbatch=2", "models.a has no field 'batch'; there are path, backend"),
        ("[models.a]\npath='a.onnx'\npipline=2", "no field 'pipline'; .*, pipeline; did you mean 'pipeline'"),
        ("[models.a]\npath='a.onnx'\noptions=2", "models.a.options is a table, not 2"),
        ("[models.a]\npath='a.toml'", "is a configuration, not a model file"),
        ("[models.a]\npath='a.onnx'\nprecision='fp9'", "models.a: unknown precision 'fp9'; use one of"),
        ("[models.a]\npath='a.onnx'\n[model.b]\npath='b.onnx'", "has 'model'.*; did you mean 'models'"),
        ("[models", "app.toml"),
    ],
)
def test_a_configuration_that_load_cannot_take(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(configuration(tmp_path, text))
