"""The declared features of a backend, and the fixtures and helpers of all tests."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np
import pytest

import infersdk
from infersdk import Infer
from infersdk.loading.registry import backend_class
from infersdk.testing.models import contract_model

if TYPE_CHECKING:
    import numpy.typing as npt

#: The fixtures `model` and `reference`.
MakeModel: TypeAlias = Callable[[str], Path]
RunReference: TypeAlias = "Callable[..., dict[str, npt.NDArray[Any]]]"

__all__ = ["ContractBase", "MakeModel", "RunReference"]

#: The prepared models by name, which the tests of a class share.
_MODELS: defaultdict[type, dict[str, Path]] = defaultdict(dict)


class ContractBase:
    """The attributes of a contract class, its fixtures, and helpers."""

    # ---- the tested backend ----

    #: The name that the backend is loaded under.
    backend: ClassVar[str] = ""
    #: The device; None is the backend's own default.
    device: ClassVar[str | None] = None
    #: The precision of the networks; None takes them as they are written, which is FP32. Models that have no layers
    #: with weights are always taken as they are.
    precision: ClassVar[str | None] = None
    #: Further arguments of `infersdk.load()`.
    options: ClassVar[Mapping[str, Any]] = {}

    # ---- declared features ----

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
    #: Cycles of loading and closing, and the maximum growth of the process. Leaked weights are 1 MiB each.
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
    def model(self, tmp_path_factory: pytest.TempPathFactory) -> MakeModel:
        """Makes a model of this file by its name, once for the class, and prepares it."""
        pytest.importorskip("onnx")
        made = _MODELS[type(self)]

        def path(name: str) -> Path:
            if name not in made:
                file = tmp_path_factory.mktemp("contract") / f"{name}.onnx"
                file.write_bytes(contract_model(name, "batch" if self.dynamic_batch else 1))
                made[name] = Path(self.prepare(file))
            return made[name]

        return path

    @pytest.fixture
    def reference(self) -> RunReference:
        """Runs a model of this file on ONNX Runtime: `reference("net", x=array)`."""
        pytest.importorskip("onnx")
        pytest.importorskip("onnxruntime")

        def run(name: str, **inputs: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
            session = _reference_session(name)
            names = [output.name for output in session.get_outputs()]
            return dict(zip(names, session.run(names, inputs), strict=True))

        return run

    def load(self, path: Path, **changes: Any) -> Infer:
        """`infersdk.load()` with this class's backend, device, precision and options."""
        asked: dict[str, Any] = {"device": self.device, "precision": self.precision, **self.options, **changes}
        return infersdk.load(path, self.backend, **asked)

    @pytest.fixture
    def net(self, model: MakeModel) -> Iterator[Infer]:
        """The small network, with memory for `max_batch`."""
        with self.load(model("net"), max_batch=self._batches[-1]) as infer:
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

    def _needs_data_dependent(self) -> None:
        if not self.data_dependent:
            pytest.skip(f"{self.backend} does not take models whose output shapes depend on the data")

    @property
    def _memory(self) -> str | None:
        """The device of the user's tensors: that of the backend where it is CUDA."""
        device = self.device or backend_class(self.backend).declaration.default_device
        return device if device.startswith("cuda") else None


@functools.cache
def _reference_session(name: str) -> Any:
    import onnxruntime

    quiet = onnxruntime.SessionOptions()
    quiet.log_severity_level = 4
    return onnxruntime.InferenceSession(contract_model(name), quiet, providers=["CPUExecutionProvider"])
