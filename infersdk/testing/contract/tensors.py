"""The contract on bound tensors."""

from __future__ import annotations

import numpy as np
import pytest

from infersdk import Infer, Tensor
from infersdk.errors import DTypeError, InputError, InputNameError, ShapeError

from .base import ContractBase, MakeModel, RunReference

__all__ = ["TensorContract"]


class TensorContract(ContractBase):
    """Bound tensors keep their memory, whatever owns it."""

    def test_bound_tensors_stay_where_they_are(self, net: Infer, reference: RunReference) -> None:
        source, result = net.inputs["x"], net.outputs["y"]
        net(self.images(self._batches[-1]))
        addresses = [self._addresses(tensor) for tensor in (source, result)]
        for count in (*self._batches, *reversed(self._batches)):
            x = self.images(count, seed=count)
            source.resize(x.shape).numpy(writable=True)[:] = x
            assert net.forward()["y"] is result
            self.close_to(result.numpy(), reference("net", x=x)["y"])
            assert [self._addresses(tensor) for tensor in (source, result)] == addresses

    def _addresses(self, tensor: Tensor) -> tuple[int, ...]:
        """The addresses of its sides."""
        return (tensor.host_ptr(), *([tensor.device_ptr()] if self._memory else []))

    def test_binds_the_users_own_tensors(self, net: Infer, reference: RunReference) -> None:
        x, y = self.images(1), np.zeros(net(self.images(1))["y"].shape, np.float32)
        source, result = Tensor.wrap(x, self._memory), Tensor.wrap(y, self._memory)
        net.bind("x", source)
        net.bind("y", result)
        assert net.inputs["x"] is source
        assert net.outputs["y"] is result
        for seed in (1, 2):
            source.numpy(writable=True)[:] = self.images(1, seed)
            net.forward()
            assert result.host_ptr() == y.ctypes.data
            assert source.host_ptr() == x.ctypes.data
            self.close_to(y, reference("net", x=self.images(1, seed))["y"])
        net.close()
        self.close_to(result.numpy(), y)  # closing the model leaves the user's tensors alone
        np.testing.assert_array_equal(source.numpy(), x)

    def test_an_output_of_the_users_takes_what_the_runtime_allocates(
        self, model: MakeModel, reference: RunReference
    ) -> None:
        self._needs_data_dependent()
        buffer = np.zeros((2, 4), np.int64)
        with self.load(model("nonzero"), precision=None) as infer:
            for own in (Tensor((2, 1), "int64", self._memory), Tensor.wrap(buffer, self._memory)):
                infer.bind("y", own)
                for row in ([0, 3, 0, 5], [0, 0, 0, 0], [1, 2, 3, 4]):
                    x = np.array([row], np.float32)
                    infer.inputs["x"].resize(x.shape).copy_from(x)
                    infer.forward()
                    assert infer.outputs["y"] is own
                    self.close_to(own.numpy(), reference("nonzero", x=x)["y"])
            np.testing.assert_array_equal(buffer, [[0, 0, 0, 0], [0, 1, 2, 3]])

    def test_binds_an_array_that_is_read_only(self, net: Infer, reference: RunReference) -> None:
        x = self.images(1)
        want = reference("net", x=x)["y"]
        kept = x.copy()
        x.flags.writeable = False
        net.bind("x", Tensor.wrap(x))
        self.close_to(net.forward()["y"].numpy(), want)
        np.testing.assert_array_equal(x, kept)

    def test_binds_rows_of_a_larger_tensor(self, net: Infer, reference: RunReference) -> None:
        self._needs_batch()
        x = self.images(self.max_batch)
        pool = Tensor(x.shape)
        pool.numpy(writable=True)[:] = x
        for start in range(self.max_batch - 1):
            net.bind("x", pool[start : start + 2])
            self.close_to(net.forward()["y"].numpy(), reference("net", x=x[start : start + 2])["y"])

    def test_rows_of_a_tensor_that_moves(self, net: Infer, reference: RunReference) -> None:
        x = self.images(1)
        pool = Tensor(x.shape)
        net.bind("x", pool[:1])
        net.forward()
        pool.resize((500, *x.shape[1:])).numpy(writable=True)[:1] = x
        self.close_to(net.forward()["y"].numpy(), reference("net", x=x)["y"])

    def test_an_output_tensor_that_was_resized_is_put_right(self, net: Infer, reference: RunReference) -> None:
        x = self.images(1)
        want = reference("net", x=x)["y"]
        net(x)
        net.outputs["y"].resize((64, *want.shape[1:]))  # so much larger that its memory moves
        self.close_to(net.forward()["y"].numpy(), want)

    def test_refuses_to_bind_what_does_not_fit(self, net: Infer, reference: RunReference) -> None:
        x = self.images(1)
        with pytest.raises(ShapeError, match=r"input 'x'.*\(1, 3, 12, 11\)"):
            net.bind("x", Tensor((1, 3, 12, 11)))
        with pytest.raises(DTypeError, match=r"input 'x' takes float32, not float64.*astype"):
            net.bind("x", Tensor(x.shape, "float64"))
        with pytest.raises(ShapeError, match=r"output 'y'.*\(1, 2\)"):
            net.bind("y", Tensor((1, 2)))
        with pytest.raises(InputNameError, match=r"'nothing'.*'x'.*'y'"):
            net.bind("nothing", Tensor(x.shape))
        with pytest.raises(InputError, match=r"Tensor\.wrap"):
            net.bind("x", x)  # type: ignore[arg-type]
        self.close_to(net(x)["y"], reference("net", x=x)["y"])
