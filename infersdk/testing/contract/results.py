"""The contract on results."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from .base import ContractBase, MakeModel, RunReference

if TYPE_CHECKING:
    from infersdk import Infer

__all__ = ["ResultContract"]


class ResultContract(ContractBase):
    """They agree with the reference, for each batch, type and shape."""

    def test_agrees_with_the_reference(self, net: Infer, reference: RunReference) -> None:
        for count in np.random.default_rng(3).permutation([*self._batches] * 3):  # in any order
            x = self.images(count, seed=int(count))
            self.close_to(net(x)["y"], reference("net", x=x)["y"])

    def test_batch_without_a_limit(self, model: MakeModel, reference: RunReference) -> None:
        self._needs_batch()
        with self.load(model("net")) as infer:
            if infer.max_batch is not None:
                pytest.skip(f"{self.backend} sets a largest batch of its own, {infer.max_batch}")
            for count in (1, 9, 2):
                x = self.images(count)
                self.close_to(infer(x)["y"], reference("net", x=x)["y"])

    def test_a_image_alone_is_a_image_in_a_batch(self, net: Infer) -> None:
        self._needs_batch()
        x = self.images(self.max_batch)
        alone = np.concatenate([net(x[i : i + 1])["y"] for i in range(len(x))])
        for order in (range(len(x)), range(len(x) - 1, -1, -1), np.random.default_rng(1).permutation(len(x))):
            batched = net(x[[*order]])["y"]
            np.testing.assert_allclose(batched, alone[[*order]], rtol=0, atol=self.batch_atol)

    def test_several_inputs_and_outputs(self, model: MakeModel, reference: RunReference) -> None:
        rng = np.random.default_rng(5)
        with self.load(model("two"), precision=None, max_batch=self._batches[-1]) as infer:
            for count in self._batches:
                given = {
                    "scale": rng.standard_normal((count, 3, 1, 1), dtype=np.float32),
                    "image": rng.standard_normal((count, 3, 4, 6), dtype=np.float32),
                }
                got, want = infer(given), reference("two", **given)
                assert list(got) == ["scaled", "mean"]
                for name, value in want.items():
                    self.close_to(got[name], value)

    @pytest.mark.parametrize("dtype", ContractBase.dtypes)
    def test_element_types(self, dtype: str, model: MakeModel) -> None:
        if dtype not in self.dtypes:
            pytest.skip(f"{self.backend} does not take {dtype}")
        x = np.array([[0, 1, 1, 0, 1, 1, 1]], dtype)
        with self.load(model(f"type_{dtype}"), precision=None) as infer:
            assert infer.input_specs[0].dtype == infer.output_specs[0].dtype == np.dtype(dtype)
            got = infer(x)["y"]
            assert got.dtype == np.dtype(dtype)
            np.testing.assert_array_equal(got, ~x if dtype == "bool" else x + x)

    def test_free_height_and_width(self, model: MakeModel, reference: RunReference) -> None:
        if not self.dynamic_shape:
            pytest.skip(f"{self.backend} does not take models with free dimensions other than the batch")
        rng = np.random.default_rng(7)
        with self.load(model("any_size")) as infer:
            for height, width in ((6, 8), (13, 5), (6, 8), (32, 40)):
                x = rng.standard_normal((1, 3, height, width), dtype=np.float32)
                self.close_to(infer(x)["y"], reference("any_size", x=x)["y"])

    def test_shapes_that_depend_on_the_data(self, model: MakeModel, reference: RunReference) -> None:
        self._needs_data_dependent()
        with self.load(model("nonzero"), precision=None) as infer:
            for row in ([0, 3, 0, 5], [0, 0, 0, 0], [1, 2, 3, 4], [0, 0, 0, 7]):
                x = np.array([row], np.float32)
                self.close_to(infer(x)["y"], reference("nonzero", x=x)["y"])
                infer.forward()
                self.close_to(infer.outputs["y"].numpy(), reference("nonzero", x=x)["y"])

    def test_results_are_the_callers_to_keep(self, net: Infer) -> None:
        first = net(self.images(1, seed=1))["y"]
        kept = first.copy()
        net(self.images(1, seed=2))
        np.testing.assert_array_equal(first, kept)
        first[:] = 0  # and to write
        assert net.outputs["y"].numpy().any()
