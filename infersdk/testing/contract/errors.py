"""The contract on errors."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from infersdk import Infer, Tensor
from infersdk.errors import (
    ClosedError,
    ConfigError,
    DeviceUnavailableError,
    DTypeError,
    InferenceError,
    InputNameError,
    ModelFormatError,
    ModelNotFoundError,
    ShapeError,
)
from infersdk.loading.registry import backend_class

from .base import ContractBase, MakeModel, RunReference

__all__ = ["ErrorContract"]


class ErrorContract(ContractBase):
    """Each error states cause and remedy, and the model stays usable."""

    def test_shape_error(self, net: Infer, reference: RunReference) -> None:
        x = self.images(1)
        for shape in ((1, 3, 12, 9), (3, 12, 10), (1, 4, 12, 10), (1, 1, 3, 12, 10), ()):
            with pytest.raises(ShapeError) as caught:
                net(np.zeros(shape, np.float32))
            assert "'x'" in str(caught.value)
            assert str(shape) in str(caught.value)
            assert "3, 12, 10" in str(caught.value)
            self.close_to(net(x)["y"], reference("net", x=x)["y"])
        net.inputs["x"].resize((1, 3, 12, 9))
        with pytest.raises(ShapeError, match=r"'x'.*\(1, 3, 12, 9\)"):
            net.forward()
        self.close_to(net(x)["y"], reference("net", x=x)["y"])

    def test_batch_beyond_the_largest(self, net: Infer, reference: RunReference) -> None:
        self._needs_batch()
        with pytest.raises(ShapeError, match=f"batch of {self.max_batch + 1}.*max_batch={self.max_batch + 1}"):
            net(self.images(self.max_batch + 1))
        x = self.images(self.max_batch)
        self.close_to(net(x)["y"], reference("net", x=x)["y"])

    def test_dtype_error(self, net: Infer, reference: RunReference) -> None:
        x = self.images(1)
        for dtype in ("float64", "uint8", "int64"):
            with pytest.raises(DTypeError, match=rf"'x' takes float32, not {dtype}.*astype\('float32'\)"):
                net(x.astype(dtype))
        self.close_to(net(x)["y"], reference("net", x=x)["y"])

    def test_input_name_error(self, model: MakeModel) -> None:
        image, scale = np.ones((1, 3, 4, 6), np.float32), np.ones((1, 3, 1, 1), np.float32)
        with self.load(model("two"), precision=None) as infer:
            with pytest.raises(InputNameError, match=r"'img'.*'image', 'scale'"):
                infer({"img": image, "scale": scale})
            with pytest.raises(InputNameError, match=r"'scale' was not given.*'image', 'scale'"):
                infer({"image": image})
            with pytest.raises(InputNameError, match=r"2 inputs.*dict"):
                infer(image)
            np.testing.assert_array_equal(infer({"image": image, "scale": scale})["scaled"], image)

    def test_closed_error(self, model: MakeModel) -> None:
        x = self.images(1)
        infer = self.load(model("net"))
        infer(x)
        source = infer.inputs["x"]
        infer.close()
        infer.close()
        uses: list[Callable[[], object]] = [
            infer.forward,
            infer.clone,
            infer.__enter__,
            lambda: infer(x),
            lambda: infer.bind("x", Tensor(x.shape)),
            source.numpy,
        ]
        for use in uses:
            with pytest.raises(ClosedError, match=r"closed.*(load it again|create a new one)"):
                use()
        assert "closed" in repr(infer)

    def test_model_not_found(self, model: MakeModel) -> None:
        missing = model("net").with_name(f"missing{model('net').suffix}")
        with pytest.raises(FileNotFoundError) as reason:
            missing.stat()
        with pytest.raises(ModelNotFoundError, match=f"{missing.name}.*{re.escape(str(reason.value.strerror))}"):
            self.load(missing)

    @pytest.mark.parametrize("content", ["empty", "text", "noise", "cut off", "folder"])
    def test_model_format(
        self, content: str, model: MakeModel, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        whole = model("net")
        file = tmp_path / f"model{whole.suffix}"
        if content == "folder":
            file.mkdir()
        else:
            noise = np.random.default_rng(0).integers(0, 256, 5000, np.uint8).tobytes()
            half = whole.read_bytes()[: whole.stat().st_size // 2]
            file.write_bytes(
                {"empty": b"", "text": b"This is no model.\n" * 30, "noise": noise, "cut off": half}[content]
            )
        capfd.readouterr()
        with pytest.raises(ModelFormatError) as caught:
            self.load(file)
        assert file.name in str(caught.value)
        assert tuple(capfd.readouterr()) == ("", "")
        self.load(whole).close()

    def test_device_unavailable(self, model: MakeModel) -> None:
        there = backend_class(self.backend).declaration.probe().devices
        for device in ("abacus", "abacus:3", "cpu:7"):
            with pytest.raises(DeviceUnavailableError) as caught:
                self.load(model("net"), device=device)
            assert repr(device) in str(caught.value)
            assert any(name in str(caught.value) for name in there)
        with pytest.raises(DeviceUnavailableError, match="unknown device"):
            self.load(model("net"), device="no device!")
        self.load(model("net")).close()

    def test_unknown_option(self, model: MakeModel) -> None:
        name, value = self.unknown_option
        with pytest.raises(ConfigError, match=rf"{self.backend}.*{name}.*Known are"):
            self.load(model("net"), **{name: value})

    def test_unknown_precision_and_batch(self, model: MakeModel) -> None:
        with pytest.raises(ConfigError, match=r"'fp13'.*fp32"):
            self.load(model("net"), precision="fp13")
        for batch in (0, -1, True, 1.5):
            with pytest.raises(ConfigError, match=f"max_batch.*{batch}"):
                self.load(model("net"), max_batch=batch)

    def test_inference_error(self, model: MakeModel) -> None:
        self._needs_data_dependent()
        x = np.arange(6, dtype=np.float32)
        with self.load(model("reshape"), precision=None) as infer:
            for _ in range(2):
                with pytest.raises(InferenceError, match=infer.model.name):
                    infer({"x": x, "shape": np.array([4, 2], np.int64)})
                np.testing.assert_array_equal(
                    infer({"x": x, "shape": np.array([3, 2], np.int64)})["y"], x.reshape(3, 2)
                )
