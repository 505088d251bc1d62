"""`load(backend="auto")`: the fastest backend with the right results, measured once."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from idle_backend import IdleInfer
from onnx_models import node, save, value

import infersdk
from infersdk import load, models
from infersdk.commands.common import backend_options
from infersdk.core.cache import Cache
from infersdk.data import DETECTOR
from infersdk.errors import BackendUnavailableError, ConfigError, InferenceError, UnsupportedModelError
from infersdk.infer import BackendInfo, Declaration
from infersdk.loading import registry
from infersdk.testing import contract_model

pytest.importorskip("onnxruntime")

STATE: dict[str, int] = {}


class Fast(IdleInfer):
    """Returns the sum of an image at once."""

    backend = "fast"
    declaration = Declaration(probe=lambda: BackendInfo("1", ("cpu", "auto")), formats=("onnx",))
    wrong = 0.0

    def _load(self) -> None:
        STATE[self.backend] = STATE.get(self.backend, 0) + 1
        if STATE.get("broken"):
            raise UnsupportedModelError("the fast backend is broken now")
        spec = infersdk.TensorSpec("x", np.dtype(np.float32), ("batch", 7))
        self.input_specs, self.output_specs = (spec,), (infersdk.TensorSpec("y", spec.dtype, spec.shape),)

    def _bind(self) -> None:
        self._outputs["y"].resize(self._inputs["x"].shape)

    def _enqueue(self) -> None:
        self._outputs["y"].numpy(writable=True)[:] = self._inputs["x"].numpy() * 2 + self.wrong


class Wrong(Fast):
    backend = "wrong"
    wrong = 0.5


class Failing(Fast):
    backend = "failing"

    def _enqueue(self) -> None:
        raise InferenceError("the runtime says no")


class Nowhere(Fast):
    """Reports a device whose name is wrong."""

    backend = "nowhere"
    declaration = Declaration(probe=lambda: BackendInfo("1", ("Chip 1",)))


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("INFERSDK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("infersdk.loading.auto.BUDGET", 0.02)
    STATE.clear()


@pytest.fixture
def backends(monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime and the backends of this file. ONNX Runtime would be the fastest otherwise."""
    kinds = (Fast, Wrong, Failing, Nowhere)
    own = {kind.backend: registry._Backend(f"{__name__}:{kind.__name__}", "nothing") for kind in kinds}
    monkeypatch.setitem(sys.modules, __name__, sys.modules[Fast.__module__])
    missing = registry._Backend("no_such_module:Infer", "pip install no-such-package")
    built_in = {"onnxruntime": registry._BUILT_IN["onnxruntime"], "missing": missing, **own}
    monkeypatch.setattr(registry, "_BUILT_IN", built_in)
    monkeypatch.setattr("infersdk.loading.auto.perf_counter", _clock(monkeypatch))


def _clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Time that only runs of ONNX Runtime take."""
    from infersdk.backends.onnxruntime import OnnxRuntimeInfer

    now = [0.0]
    run = OnnxRuntimeInfer._run_bound

    def slow(self: Any) -> None:
        now[0] += 0.01
        run(self)

    def read() -> float:
        now[0] += 1e-4
        return now[0]

    monkeypatch.setattr(OnnxRuntimeInfer, "_run_bound", slow)
    return read


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "double.onnx"
    path.write_bytes(contract_model("type_float32"))
    return path


@pytest.mark.usefixtures("backends")
class TestChoice:
    def test_is_the_fastest_with_the_right_results(self, model: Path, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.INFO, "infersdk.load"), load(model, backend="auto") as infer:
            assert type(infer) is Fast
            selection = infer.selection
        by_name = {one.target: one for one in selection.candidates}
        assert selection.target == "fast@cpu"
        assert by_name["onnxruntime@cpu"].reason == ""
        assert by_name["onnxruntime@cpu"].seconds > by_name["fast@cpu"].seconds
        assert "elements of output 'y' differ by up to" in by_name["wrong@cpu"].reason
        assert by_name["failing@cpu"].reason == "the runtime says no"
        assert "pip install no-such-package" in by_name["missing"].reason
        assert "Chip 1" in by_name["nowhere"].reason
        assert "fast@auto" not in by_name
        assert selection.reason in caplog.text

    def test_is_measured_once(self, model: Path) -> None:
        with load(model, backend="auto") as infer:
            first = infer.selection
        loads = STATE["fast"]
        with load(model, backend="auto") as infer:
            assert infer.selection.cached
            assert infer.selection.candidates == first.candidates
        assert STATE["fast"] == loads + 1
        with load(model, backend="auto", max_batch=2) as infer:  # other arguments
            assert not infer.selection.cached
        with load(model.read_bytes(), backend="auto") as infer:  # nothing of a model in memory is kept
            assert not infer.selection.cached
        assert [entry.kind for entry in Cache().entries()].count("selection") == 2

    def test_of_a_model_with_free_axes(self, tmp_path: Path) -> None:
        shape = ["n", 3, "height", "width"]
        model = save(tmp_path / "m.onnx", [node("Relu", "x", "y")], [value("x", shape)], [value("y", shape)])
        with load(model, backend="auto", max_batch=2) as infer:
            assert infer.selection.target == "onnxruntime@cpu"

    def test_never_falls_back_later(self, model: Path) -> None:
        load(model, backend="auto").close()
        STATE["broken"] = 1
        with pytest.raises(UnsupportedModelError, match="the fast backend is broken now"):
            load(model, backend="auto")

    def test_names_all_reasons_where_nothing_runs(self, model: Path) -> None:
        with pytest.raises(BackendUnavailableError, match=r"nothing runs double\.onnx here.*fast@cuda:0.*missing"):
            load(model, backend="auto", device="cuda:0", no_such_option=1)


def test_an_image_of_a_free_size_is_measured(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(contract_model("any_size"))
    with load(path, backend="auto", device="cpu") as infer:
        assert {one.target for one in infer.selection.candidates} >= {"onnxruntime@cpu"}
        assert f"{infer.backend}@{infer.device}" == infer.selection.target


def test_a_precision_is_for_all_candidates(model: Path) -> None:
    with pytest.raises(ConfigError, match="fp13"):
        load(model, backend="auto", precision="fp13")


def test_a_wrapper_a_configuration_and_the_command_line_take_it(tmp_path: Path) -> None:
    with models.load(DETECTOR, backend="auto", device="cpu", max_batch=1) as model:
        assert model.network.selection.target.partition("@")[0] == model.network.backend
    file = tmp_path / "models.toml"
    file.write_text(f'[models.detector]\npath = "{DETECTOR.as_posix()}"\nbackend = "auto"\ndevice = "cpu"\n')
    with load(file) as infer:
        assert infer.selection is not None
    with pytest.raises(ConfigError, match="threads"):
        backend_options(["threads=2"], "auto")
