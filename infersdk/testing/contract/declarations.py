"""The contract on the declarations of an Infer."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest

import infersdk
from infersdk import Infer
from infersdk.config import convert
from infersdk.core.backend import BackendOptions, SharedOption
from infersdk.core.target import PRECISIONS
from infersdk.errors import ConfigError, MemoryLimitError, PrecisionUnavailableError
from infersdk.loading.registry import backend_class

from .base import ContractBase, MakeModel, RunReference

__all__ = ["DeclarationContract"]

#: For each shared option: values that a backend takes if it has the option, and values that it refuses.
_SHARED: dict[str, tuple[list[Any], list[Any]]] = {
    "threads": ([0, 1, 4], [-1, "2", 1.5]),
    "streams": ([0, 1, 4], [-1, "2", 1.5]),
    "performance_hint": (["latency", "throughput"], ["fast", 1]),
    "cuda_graph": ([True, False], [2, "yes"]),
    "half_io": ([True, False], [2, "yes"]),
    "progress": ([None, lambda phase, fraction: None], []),
    "cache_dir": ([None, "folder"], [3, True]),
    "memory_limit": ([None, 1 << 30, "2GB"], [1.5, ["2GB"]]),
}


class DeclarationContract(ContractBase):
    """Class, specs, precision, options."""

    def test_is_an_infer(self, net: Infer) -> None:
        assert isinstance(net, Infer)
        assert type(net) is backend_class(self.backend)
        assert net.backend == self.backend
        assert net.device
        assert net.precision in (*PRECISIONS, "unknown")
        assert net.model.name in repr(net)
        assert self.backend in infersdk.list_backends()

    def test_probe_names_version_and_devices(self, net: Infer) -> None:
        info = net.declaration.probe()
        assert info.version[:1].isdigit()
        assert info.devices

    def test_specs_are_those_of_the_model(self, model: MakeModel) -> None:
        with self.load(model("two"), precision=None) as infer:
            inputs = {spec.name: spec.shape[1:] for spec in infer.input_specs}
            assert inputs == {"image": (3, 4, 6), "scale": (3, 1, 1)}
            assert [spec.name for spec in infer.output_specs] == ["scaled", "mean"]
            assert all(spec.dtype == np.float32 for spec in (*infer.input_specs, *infer.output_specs))
            assert list(infer.inputs) == ["image", "scale"]
            assert list(infer.outputs) == ["scaled", "mean"]
            assert all(spec.is_dynamic == self.dynamic_batch for spec in infer.input_specs)

    def test_runs_in_the_precision_of_the_model(self, net: Infer) -> None:
        assert net.precision in (self.precision or "fp32", "unknown" if self.precision is None else "")
        layers = net.layer_precisions
        assert set(layers) <= set(PRECISIONS)
        assert not layers or layers[net.precision] == max(layers.values())

    def test_shared_options_mean_the_same_everywhere(self) -> None:
        kind = backend_class(self.backend).declaration.options
        assert issubclass(kind, BackendOptions)
        assert set(get_args(SharedOption)) == set(_SHARED)
        for name, (right, wrong) in _SHARED.items():
            if name not in kind.__struct_fields__:
                continue
            assert kind.has(name)  # type: ignore[arg-type]
            for value in right:
                convert({name: value}, kind, "options")
            for value in wrong:
                with pytest.raises(ConfigError, match=name):
                    convert({name: value}, kind, "options")

    def test_a_memory_limit_is_kept_or_refused(self, model: MakeModel, reference: RunReference) -> None:
        path, x = model("net"), self.images(1)
        if self._memory is None or not backend_class(self.backend).declaration.options.has("memory_limit"):
            with pytest.raises(ConfigError, match="memory_limit='1GB'"):
                self.load(path, memory_limit="1GB")
            return
        with pytest.raises(MemoryLimitError, match=rf"{path.name}.*raise memory_limit"):
            self.load(path, memory_limit=1000)
        with self.load(path, memory_limit="1GB") as infer:
            assert infer.memory_budget is not None
            self.close_to(infer(x)["y"], reference("net", x=x)["y"])
            held = infer.memory_budget.used
            with infer.clone() as twin:
                assert twin.memory_budget is infer.memory_budget
                self.close_to(twin(x)["y"], reference("net", x=x)["y"])
                assert held < infer.memory_budget.used <= infer.memory_budget.limit
            with infer.memory_budget.reserve(infer.memory_budget.limit - infer.memory_budget.used):
                with pytest.raises(MemoryLimitError, match=path.name):
                    infer.clone()
                self.close_to(infer(x)["y"], reference("net", x=x)["y"])

    @pytest.mark.parametrize("precision", PRECISIONS)
    def test_gives_the_precision_asked_for_or_says_why_not(
        self, precision: str, model: MakeModel, reference: RunReference
    ) -> None:
        x = self.images(1)
        want = reference("net", x=x)["y"]
        try:
            infer = self.load(model("net"), precision=precision)
        except PrecisionUnavailableError as error:
            assert precision in str(error)  # noqa: PT017 - either way is right
            return
        with infer:
            assert infer.precision == precision
            np.testing.assert_allclose(infer(x)["y"], want, atol=self.precision_atol[precision] * np.abs(want).max())
