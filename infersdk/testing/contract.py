"""InferContract: the tests that every backend passes, for those of this package and for yours.

::

    from infersdk.testing import InferContract

    class TestMyBackend(InferContract):
        backend = "mine"

What the backend cannot do, it says by the attributes of the class; a test of that then skips and names the reason. The
models are small ONNX files, made here; the reference for all results is ONNX Runtime in FP32 on the processor, so this
needs `pytest`, `onnx` and `onnxruntime`. A `conftest.py` with
`pytest.register_assert_rewrite("infersdk.testing.contract")` makes failures tell more.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest

import infersdk
from infersdk import Infer, Tensor
from infersdk.errors import (
    ClosedError,
    ConfigError,
    DeviceUnavailableError,
    DTypeError,
    InferenceError,
    InputError,
    InputNameError,
    ModelFormatError,
    ModelNotFoundError,
    PrecisionUnavailableError,
    ShapeError,
)
from infersdk.precision import PRECISIONS
from infersdk.registry import backend_class
from infersdk.testing.models import contract_model

if TYPE_CHECKING:
    import numpy.typing as npt

    Arrays = dict[str, npt.NDArray[Any]]

__all__ = ["InferContract", "device_memory_used", "resident_bytes"]


class InferContract:
    """Inherit it, name the backend, and state what it can do."""

    # ---- what is under test ----

    #: The name that the backend is loaded under.
    backend: ClassVar[str] = ""
    #: The device; None is the backend's own default.
    device: ClassVar[str | None] = None
    #: The precision of the networks; None takes them as they are written, which is FP32. Models that have no layers
    #: with weights are always taken as they are.
    precision: ClassVar[str | None] = None
    #: What else `infersdk.load()` is given.
    options: ClassVar[Mapping[str, Any]] = {}

    # ---- what it promises ----

    #: How far results may be from ONNX Runtime's in FP32: |got - want| <= atol + rtol |want|.
    rtol: ClassVar[float] = 1e-4
    atol: ClassVar[float] = 1e-5
    #: How far an image's result may be from its result in a batch of another size; 0 asks for the same bits.
    batch_atol: ClassVar[float] = 1e-5
    #: How far results may be, in units of the largest one, where another precision was asked for.
    precision_atol: ClassVar[Mapping[str, float]] = {"fp32": 1e-4, "fp16": 1e-2, "bf16": 5e-2, "int8": 2e-1}
    #: Element types of inputs and outputs.
    dtypes: ClassVar[tuple[str, ...]] = (
        "float32", "float16", "float64", "bool",
        "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    )  # fmt: skip
    #: Models may leave the batch free. Otherwise all models here have a batch of 1.
    dynamic_batch: ClassVar[bool] = True
    #: Models may leave other dimensions free as well, as the height and width of an image.
    dynamic_shape: ClassVar[bool] = True
    #: Outputs may have shapes that depend on the data, as NonZero's.
    data_dependent: ClassVar[bool] = True
    #: The largest batch that is tried.
    max_batch: ClassVar[int] = 5
    #: Loads and closes, and what the process may grow over them. Weights left behind would be 1 MiB for each.
    leak_warmup: ClassVar[int] = 10
    leak_cycles: ClassVar[int] = 200
    leak_bytes: ClassVar[int] = 8 << 20
    #: Name and value of an option that the backend has not, for the error that this must be.
    unknown_option: ClassVar[tuple[str, Any]] = ("no_such_option", 1)

    def prepare(self, onnx_path: Path) -> Path:
        """The file to load for this ONNX model: an override converts it, beside the original."""
        return onnx_path

    # ---- tools for the tests here and in subclasses ----

    @pytest.fixture
    def model(self, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
        """Makes a model of this file by its name, once for the class, and prepares it."""
        pytest.importorskip("onnx")
        made = _of_class(type(self), "models")

        def path(name: str) -> Path:
            if name not in made:
                file = tmp_path_factory.mktemp("contract") / f"{name}.onnx"
                file.write_bytes(contract_model(name, "batch" if self.dynamic_batch else 1))
                made[name] = self.prepare(file)
            return Path(made[name])

        return path

    @pytest.fixture
    def reference(self) -> Callable[..., Arrays]:
        """Runs a model of this file on ONNX Runtime: `reference("net", x=array)`."""
        pytest.importorskip("onnx")
        ort = pytest.importorskip("onnxruntime")
        sessions = _of_class(type(self), "sessions")

        def run(name: str, **inputs: npt.NDArray[Any]) -> Arrays:
            if name not in sessions:
                quiet = ort.SessionOptions()
                quiet.log_severity_level = 4
                sessions[name] = ort.InferenceSession(contract_model(name), quiet, providers=["CPUExecutionProvider"])
            names = [output.name for output in sessions[name].get_outputs()]
            return dict(zip(names, sessions[name].run(names, inputs), strict=True))

        return run

    def load(self, path: Path, **changes: Any) -> Infer:
        """`infersdk.load()` with this class's backend, device, precision and options."""
        asked: dict[str, Any] = {"device": self.device, "precision": self.precision, **self.options, **changes}
        return infersdk.load(path, self.backend, **asked)

    @pytest.fixture
    def net(self, model: Callable[[str], Path]) -> Iterator[Infer]:
        """The small network, room reserved for `max_batch`."""
        with self.load(model("net"), max_batch=self.max_batch) as infer:
            yield infer

    def images(self, count: int, seed: int = 0) -> npt.NDArray[np.float32]:
        """Inputs for the small network, [count, 3, 12, 10], each unlike the others."""
        return np.random.default_rng(seed).standard_normal((count, 3, 12, 10), dtype=np.float32)

    def close_to(self, got: npt.ArrayLike, want: npt.ArrayLike) -> None:
        """Fails unless `got` has the shape and type of `want`, and its values within the class's tolerances."""
        got, want = np.asarray(got), np.asarray(want)
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        np.testing.assert_allclose(got, want, rtol=self.rtol, atol=self.atol)

    @property
    def _batches(self) -> range:
        return range(1, self.max_batch + 1 if self.dynamic_batch else 2)

    def _needs_batch(self) -> None:
        if not self.dynamic_batch:
            pytest.skip(f"{self.backend} does not take models with a free batch dimension")

    # ---- what a model says of itself ----

    def test_is_an_infer(self, net: Infer) -> None:
        assert isinstance(net, Infer)
        assert type(net) is backend_class(self.backend)
        assert net.backend == self.backend
        assert net.device
        assert net.precision in PRECISIONS
        assert net.model.name in repr(net)
        assert self.backend in infersdk.list_backends()

    def test_probe_names_version_and_devices(self, net: Infer) -> None:
        info = type(net).probe()
        assert info.version[:1].isdigit()
        assert info.devices

    def test_specs_are_those_of_the_model(self, model: Callable[[str], Path]) -> None:
        with self.load(model("two"), precision=None) as infer:
            inputs = {spec.name: spec.shape[1:] for spec in infer.input_specs}
            assert inputs == {"image": (3, 4, 6), "scale": (3, 1, 1)}
            assert [spec.name for spec in infer.output_specs] == ["scaled", "mean"]
            assert all(spec.dtype == np.float32 for spec in (*infer.input_specs, *infer.output_specs))
            assert list(infer.inputs) == ["image", "scale"]
            assert list(infer.outputs) == ["scaled", "mean"]
            assert all(spec.is_dynamic == self.dynamic_batch for spec in infer.input_specs)

    def test_runs_in_the_precision_of_the_model(self, net: Infer) -> None:
        assert net.precision == (self.precision or "fp32")
        layers = net.layer_precisions
        assert set(layers) <= set(PRECISIONS)
        assert not layers or layers[net.precision] == max(layers.values())

    @pytest.mark.parametrize("precision", PRECISIONS)
    def test_gives_the_precision_asked_for_or_says_why_not(
        self, precision: str, model: Callable[[str], Path], reference: Callable[..., Arrays]
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

    # ---- results ----

    def test_agrees_with_the_reference(self, net: Infer, reference: Callable[..., Arrays]) -> None:
        for count in self._batches:
            x = self.images(count, seed=count)
            self.close_to(net(x)["y"], reference("net", x=x)["y"])

    def test_any_batch_in_any_order(self, net: Infer, reference: Callable[..., Arrays]) -> None:
        self._needs_batch()
        for count in np.random.default_rng(3).permutation([*self._batches] * 3):
            x = self.images(count, seed=int(count))
            self.close_to(net({"x": x})["y"], reference("net", x=x)["y"])

    def test_batch_without_a_limit(self, model: Callable[[str], Path], reference: Callable[..., Arrays]) -> None:
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

    def test_several_inputs_and_outputs(self, model: Callable[[str], Path], reference: Callable[..., Arrays]) -> None:
        rng = np.random.default_rng(5)
        with self.load(model("two"), precision=None, max_batch=self.max_batch) as infer:
            for count in self._batches:
                given = {
                    "scale": rng.standard_normal((count, 3, 1, 1), dtype=np.float32),
                    "image": rng.standard_normal((count, 3, 4, 6), dtype=np.float32),
                }
                got, want = infer(given), reference("two", **given)
                assert list(got) == ["scaled", "mean"]
                for name, value in want.items():
                    self.close_to(got[name], value)

    @pytest.mark.parametrize(
        "dtype",
        [
            "float32",
            "float16",
            "float64",
            "bool",
            "int8",
            "int16",
            "int32",
            "int64",
            "uint8",
            "uint16",
            "uint32",
            "uint64",
        ],
    )
    def test_element_types(self, dtype: str, model: Callable[[str], Path]) -> None:
        if dtype not in self.dtypes:
            pytest.skip(f"{self.backend} does not take {dtype}")
        x = np.array([[0, 1, 1, 0, 1, 1, 1]], dtype)
        with self.load(model(f"type_{dtype}"), precision=None) as infer:
            assert infer.input_specs[0].dtype == infer.output_specs[0].dtype == np.dtype(dtype)
            got = infer(x)["y"]
            assert got.dtype == np.dtype(dtype)
            np.testing.assert_array_equal(got, ~x if dtype == "bool" else x + x)

    def test_free_height_and_width(self, model: Callable[[str], Path], reference: Callable[..., Arrays]) -> None:
        if not self.dynamic_shape:
            pytest.skip(f"{self.backend} does not take models with free dimensions other than the batch")
        rng = np.random.default_rng(7)
        with self.load(model("any_size")) as infer:
            for height, width in ((6, 8), (13, 5), (6, 8), (32, 40)):
                x = rng.standard_normal((1, 3, height, width), dtype=np.float32)
                self.close_to(infer(x)["y"], reference("any_size", x=x)["y"])

    def test_shapes_that_depend_on_the_data(
        self, model: Callable[[str], Path], reference: Callable[..., Arrays]
    ) -> None:
        self._needs_data_dependent()
        with self.load(model("nonzero"), precision=None) as infer:
            for row in ([0, 3, 0, 5], [0, 0, 0, 0], [1, 2, 3, 4], [0, 0, 0, 7]):
                x = np.array([row], np.float32)
                self.close_to(infer(x)["y"], reference("nonzero", x=x)["y"])
                infer.forward()
                self.close_to(infer.outputs["y"].numpy(), reference("nonzero", x=x)["y"])

    def _needs_data_dependent(self) -> None:
        if not self.data_dependent:
            pytest.skip(f"{self.backend} does not take models whose output shapes depend on the data")

    def test_results_are_the_callers_to_keep(self, net: Infer) -> None:
        first = net(self.images(1, seed=1))["y"]
        kept = first.copy()
        net(self.images(1, seed=2))
        np.testing.assert_array_equal(first, kept)
        first[:] = 0  # and to write
        assert net.outputs["y"].numpy().any()

    # ---- bound tensors ----

    def test_bound_tensors_stay_where_they_are(self, net: Infer, reference: Callable[..., Arrays]) -> None:
        source, result = net.inputs["x"], net.outputs["y"]
        net(self.images(self._batches[-1]))
        places = [self._places(tensor) for tensor in (source, result)]
        for count in (*self._batches, *reversed(self._batches)):
            x = self.images(count, seed=count)
            source.resize(x.shape).numpy(writable=True)[:] = x
            assert net.forward()["y"] is result
            self.close_to(result.numpy(), reference("net", x=x)["y"])
            assert [self._places(tensor) for tensor in (source, result)] == places

    def _places(self, tensor: Tensor) -> tuple[int, ...]:
        """The addresses of its sides."""
        return (tensor.host_ptr(), *([tensor.device_ptr()] if self._memory else []))

    def test_runs_on_what_the_bound_tensor_holds_now(self, net: Infer, reference: Callable[..., Arrays]) -> None:
        net(self.images(1, seed=1))
        x = self.images(1, seed=2)
        net.inputs["x"].numpy(writable=True)[:] = x
        before = net.outputs["y"].numpy().copy()
        net.forward()
        after = net.outputs["y"].numpy()
        self.close_to(after, reference("net", x=x)["y"])
        assert not np.array_equal(before, after)

    def test_binds_the_users_own_tensors(self, net: Infer, reference: Callable[..., Arrays]) -> None:
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

    @property
    def _memory(self) -> str | None:
        """The device of the user's tensors: that of the backend where it is CUDA."""
        device = self.device or backend_class(self.backend).default_device
        return device if device.startswith("cuda") else None

    def test_binds_an_array_that_is_read_only(self, net: Infer, reference: Callable[..., Arrays]) -> None:
        x = self.images(1)
        want = reference("net", x=x)["y"]
        kept = x.copy()
        x.flags.writeable = False
        net.bind("x", Tensor.wrap(x))
        self.close_to(net.forward()["y"].numpy(), want)
        np.testing.assert_array_equal(x, kept)

    def test_binds_rows_of_a_larger_tensor(self, net: Infer, reference: Callable[..., Arrays]) -> None:
        self._needs_batch()
        x = self.images(self.max_batch)
        pool = Tensor(x.shape)
        pool.numpy(writable=True)[:] = x
        for start in range(self.max_batch - 1):
            net.bind("x", pool[start : start + 2])
            self.close_to(net.forward()["y"].numpy(), reference("net", x=x[start : start + 2])["y"])

    def test_rows_of_a_tensor_that_moves(self, net: Infer, reference: Callable[..., Arrays]) -> None:
        x = self.images(1)
        pool = Tensor(x.shape)
        net.bind("x", pool[:1])
        net.forward()
        pool.resize((500, *x.shape[1:])).numpy(writable=True)[:1] = x
        self.close_to(net.forward()["y"].numpy(), reference("net", x=x)["y"])

    def test_an_output_tensor_that_was_resized_is_put_right(self, net: Infer, reference: Callable[..., Arrays]) -> None:
        x = self.images(1)
        want = reference("net", x=x)["y"]
        net(x)
        net.outputs["y"].resize((64, *want.shape[1:]))  # so much larger that its memory moves
        self.close_to(net.forward()["y"].numpy(), want)

    def test_refuses_to_bind_what_does_not_fit(self, net: Infer, reference: Callable[..., Arrays]) -> None:
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

    # ---- errors: each says what was wrong and what to do, and leaves all usable ----

    def test_shape_error(self, net: Infer, reference: Callable[..., Arrays]) -> None:
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

    def test_batch_beyond_the_largest(self, net: Infer, reference: Callable[..., Arrays]) -> None:
        self._needs_batch()
        with pytest.raises(ShapeError, match=f"batch of {self.max_batch + 1}.*max_batch={self.max_batch + 1}"):
            net(self.images(self.max_batch + 1))
        x = self.images(self.max_batch)
        self.close_to(net(x)["y"], reference("net", x=x)["y"])

    def test_dtype_error(self, net: Infer, reference: Callable[..., Arrays]) -> None:
        x = self.images(1)
        for dtype in ("float64", "uint8", "int64"):
            with pytest.raises(DTypeError, match=rf"'x' takes float32, not {dtype}.*astype\('float32'\)"):
                net(x.astype(dtype))
        self.close_to(net(x)["y"], reference("net", x=x)["y"])

    def test_input_name_error(self, model: Callable[[str], Path]) -> None:
        image, scale = np.ones((1, 3, 4, 6), np.float32), np.ones((1, 3, 1, 1), np.float32)
        with self.load(model("two"), precision=None) as infer:
            with pytest.raises(InputNameError, match=r"'img'.*'image', 'scale'"):
                infer({"img": image, "scale": scale})
            with pytest.raises(InputNameError, match=r"'scale' was not given.*'image', 'scale'"):
                infer({"image": image})
            with pytest.raises(InputNameError, match=r"2 inputs.*dict"):
                infer(image)
            np.testing.assert_array_equal(infer({"image": image, "scale": scale})["scaled"], image)

    def test_closed_error(self, model: Callable[[str], Path], reference: Callable[..., Arrays]) -> None:
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
        with self.load(model("net")) as again:
            self.close_to(again(x)["y"], reference("net", x=x)["y"])
        with pytest.raises(ClosedError):
            again(x)

    def test_model_not_found(self, model: Callable[[str], Path]) -> None:
        missing = model("net").with_name(f"missing{model('net').suffix}")
        with pytest.raises(ModelNotFoundError, match=f"{missing.name}.*No such file"):
            self.load(missing)

    @pytest.mark.parametrize("content", ["empty", "text", "noise", "cut off", "folder"])
    def test_model_format(
        self, content: str, model: Callable[[str], Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
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

    def test_device_unavailable(self, model: Callable[[str], Path]) -> None:
        there = backend_class(self.backend).probe().devices
        for device in ("abacus", "abacus:3", "cpu:7"):
            with pytest.raises(DeviceUnavailableError) as caught:
                self.load(model("net"), device=device)
            assert repr(device) in str(caught.value)
            assert any(name in str(caught.value) for name in there)
        with pytest.raises(DeviceUnavailableError, match="not understood"):
            self.load(model("net"), device="no device!")
        self.load(model("net")).close()

    def test_unknown_option(self, model: Callable[[str], Path]) -> None:
        name, value = self.unknown_option
        with pytest.raises(ConfigError, match=rf"{self.backend}.*{name}.*Known are"):
            self.load(model("net"), **{name: value})

    def test_unknown_precision_and_batch(self, model: Callable[[str], Path]) -> None:
        with pytest.raises(ConfigError, match=r"'fp13'.*fp32"):
            self.load(model("net"), precision="fp13")
        for batch in (0, -1, True, 1.5):
            with pytest.raises(ConfigError, match=f"max_batch.*{batch}"):
                self.load(model("net"), max_batch=batch)

    def test_inference_error(self, model: Callable[[str], Path]) -> None:
        self._needs_data_dependent()
        x = np.arange(6, dtype=np.float32)
        with self.load(model("reshape"), precision=None) as infer:
            for _ in range(2):
                with pytest.raises(InferenceError, match=infer.model.name):
                    infer({"x": x, "shape": np.array([4, 2])})
                np.testing.assert_array_equal(infer({"x": x, "shape": np.array([3, 2])})["y"], x.reshape(3, 2))

    # ---- life ----

    def test_context_manager(self, model: Callable[[str], Path]) -> None:
        with self.load(model("net")) as infer:
            infer.forward()
        with pytest.raises(ClosedError):
            infer.forward()
        with pytest.raises(ZeroDivisionError), self.load(model("net")) as infer:
            raise ZeroDivisionError
        with pytest.raises(ClosedError):
            infer.forward()

    def test_clones_outlive_the_original(self, model: Callable[[str], Path], reference: Callable[..., Arrays]) -> None:
        x = self.images(1)
        want = reference("net", x=x)["y"]
        infer = self.load(model("net"), max_batch=self.max_batch)
        infer(x)
        twin = infer.clone()
        third = twin.clone()
        assert type(twin) is type(infer)
        assert twin.inputs["x"] is not infer.inputs["x"]
        assert (twin.max_batch, twin.precision, twin.device) == (infer.max_batch, infer.precision, infer.device)
        infer.close()
        self.close_to(twin(x)["y"], want)
        twin.close()
        self.close_to(third(x)["y"], want)
        third.close()
        with pytest.raises(ClosedError):
            third(x)

    def test_clones_in_threads_never_mix(self, net: Infer) -> None:
        threads, rounds = 4, 25
        work = [
            [self.images(1 + (i + j) % self._batches[-1], seed=10 * i + j) for j in range(3)] for i in range(threads)
        ]
        want = [[net(x)["y"] for x in mine] for mine in work]
        clones = [net] + [net.clone() for _ in range(threads - 1)]
        wrong: list[object] = []
        start = threading.Barrier(threads)

        def run(i: int) -> None:
            try:
                start.wait()
                for j in range(rounds):
                    got = clones[i](work[i][j % 3])["y"]
                    np.testing.assert_allclose(got, want[i][j % 3], rtol=0, atol=self.batch_atol)
            except BaseException as error:
                wrong.append(error)

        workers = [threading.Thread(target=run, args=(i,)) for i in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        for clone in clones[1:]:
            clone.close()
        assert not wrong, wrong[0]

    def test_cloning_and_closing_in_threads(self, net: Infer) -> None:
        x = self.images(1)
        want = net(x)["y"]
        wrong: list[object] = []

        def run() -> None:
            try:
                for _ in range(5):
                    with net.clone() as twin:
                        np.testing.assert_allclose(twin(x)["y"], want, rtol=0, atol=self.batch_atol)
            except BaseException as error:
                wrong.append(error)

        workers = [threading.Thread(target=run) for _ in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert not wrong, wrong[0]

    def test_loading_and_closing_leaks_nothing(self, model: Callable[[str], Path]) -> None:
        path, x = model("wide"), np.ones((1, 512), np.float32)

        def cycle() -> None:
            with self.load(path, max_batch=self.max_batch) as infer:
                infer(x)
                with infer.clone() as twin:
                    twin(x)

        def held() -> tuple[int, int, int]:
            gc.collect()
            own = infersdk.memory_stats()
            return sum(v for k, v in own.items() if "peak" not in k), resident_bytes(), device_memory_used(self._memory)

        for _ in range(max(self.leak_warmup, self.leak_cycles // 10)):
            cycle()
        own, resident, device = held()
        for _ in range(self.leak_cycles):
            cycle()
        own_after, resident_after, device_after = held()
        assert own_after == own, "tensors were left behind"
        assert resident_after - resident < self.leak_bytes, (
            f"{self.leak_cycles} cycles leak host memory: {(resident_after - resident) / 2**20:.0f} MiB"
        )
        # Of the device all that is known is what all processes hold: with tests beside this one that says nothing.
        if int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) == 1:
            assert device_after - device < self.leak_bytes, f"{self.leak_cycles} cycles leak device memory"

    def test_failing_to_load_leaks_nothing(self, model: Callable[[str], Path], tmp_path: Path) -> None:
        whole = model("wide")
        broken = tmp_path / f"broken{whole.suffix}"
        broken.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])

        def cycle() -> None:
            with pytest.raises(ModelFormatError):
                self.load(broken)

        for _ in range(10):
            cycle()
        gc.collect()
        before = resident_bytes()
        for _ in range(self.leak_cycles):
            cycle()
        gc.collect()
        assert resident_bytes() - before < self.leak_bytes


def _of_class(kind: type[InferContract], what: str) -> dict[str, Any]:
    """What the tests of one class share: a dict that lives as long as the class."""
    name = f"_contract_{what}"
    if name not in vars(kind):
        setattr(kind, name, {})
    shared: dict[str, Any] = vars(kind)[name]
    return shared


def resident_bytes() -> int:
    """The memory of this process that is in RAM; 0 on systems without /proc."""
    try:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def device_memory_used(device: str | None) -> int:
    """Bytes in use on a CUDA device, by all processes; 0 for None."""
    if device is None:
        return 0
    import ctypes

    cuda = ctypes.CDLL("libcuda.so.1")
    handle, context = ctypes.c_int(), ctypes.c_void_p()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    number = infersdk.Device.parse(device).index
    calls: list[tuple[str, tuple[Any, ...]]] = [
        ("cuInit", (0,)),
        ("cuDeviceGet", (ctypes.byref(handle), number)),
        ("cuDevicePrimaryCtxRetain", (ctypes.byref(context), handle)),
        ("cuCtxPushCurrent_v2", (context,)),
        ("cuMemGetInfo_v2", (ctypes.byref(free), ctypes.byref(total))),
        ("cuCtxPopCurrent_v2", (ctypes.byref(context),)),
        ("cuDevicePrimaryCtxRelease_v2", (handle,)),
    ]
    for name, arguments in calls:
        if status := getattr(cuda, name)(*arguments):
            raise OSError(f"{name} failed with CUDA error {status}")
    return total.value - free.value
