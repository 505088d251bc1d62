"""ncnn as a backend of infersdk: `infersdk.load("model.param", backend="ncnn")`.

It is also a template for other backends. The methods are in the order of their calls: options, probing, loading,
binding, running, cloning, closing.
"""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Annotated, Any

import msgspec
import ncnn
import numpy as np

from infersdk.core.backend import BackendOptions, Count
from infersdk.core.processors import available_processors
from infersdk.core.tensor_spec import TensorSpec
from infersdk.errors import (
    DeviceUnavailableError,
    InferenceError,
    ModelFormatError,
    PrecisionUnavailableError,
    ShapeError,
    UnsupportedModelError,
)
from infersdk.infer import BackendInfo, Declaration, Infer

Size = Annotated[int, msgspec.Meta(ge=1)]


class Options(BackendOptions, frozen=True, kw_only=True):
    """Options of `load(..., backend="ncnn", **options)`.

    Attributes:
        threads: threads of a run; 0 is one for each available processor.
        shapes: the shape of one row of each input, `{"in0": [3, 224, 224]}`, if the .param file does not contain it.
    """

    threads: Count = 0
    shapes: dict[str, list[Size]] = {}


class NcnnInfer(Infer):
    """A model on ncnn. ncnn runs one image at a time, so a batch runs row by row. Clones share one network."""

    backend = "ncnn"  # the name of the entry point in pyproject.toml
    declaration = Declaration(probe=lambda: BackendInfo(ncnn.__version__, ("cpu",)), options=Options)

    # Strict: the requested device and precision, or an error with the remedy.
    def _load(self) -> None:
        if (self._device.kind, self._device.index) != ("cpu", 0):
            raise DeviceUnavailableError(f"device {str(self._device)!r}: this backend runs ncnn on the cpu; use 'cpu'")
        if self._requested_precision not in (None, "fp32"):
            raise PrecisionUnavailableError(
                f"precision {self._requested_precision!r}: this backend runs ncnn in fp32; leave precision out"
            )
        if self.model.suffix == ".onnx":
            from infersdk_ncnn_convert import convert

            with tempfile.TemporaryDirectory() as folder:
                self._open(convert(Path(self.model), Path(folder) / "model.param"))
        else:
            self._open(Path(self.model))

    def _open(self, param: Path) -> None:
        shapes = input_shapes(param) | {name: tuple(shape) for name, shape in self.options.shapes.items()}
        self._net = net = ncnn.Net()
        net.opt.num_threads = self.options.threads or available_processors()
        # By default ncnn stores and computes in FP16 if the processor supports it.
        net.opt.use_fp16_packed = net.opt.use_fp16_storage = net.opt.use_fp16_arithmetic = False
        if net.load_param(str(param)) != 0:
            raise UnsupportedModelError(
                f"ncnn {ncnn.__version__} cannot load {self.model.name}; its messages on stderr have the reason"
            )
        weights = param.with_suffix(".bin")
        if not weights.is_file() or net.load_model(str(weights)) != 0:
            raise ModelFormatError(
                f"{self.model.name} needs its weights in the same folder: {str(weights)!r} is missing or broken"
            )
        if missing := [name for name in net.input_names() if not shapes.get(name)]:
            raise UnsupportedModelError(
                f"{self.model.name} does not contain the shape of its input {missing[0]!r}; "
                f"load it with shapes={{{missing[0]!r}: [channels, height, width]}}"
            )
        self.input_specs = tuple(spec(name, shapes[name]) for name in net.input_names())
        # No file contains the shapes of outputs: a run on zeros determines them.
        zeros = {s.name: ncnn.Mat(np.zeros(shapes[s.name], np.float32)) for s in self.input_specs}
        results = self._extract(zeros, net.output_names())
        self.output_specs = tuple(spec(name, row.shape) for name, row in results.items())

    # Called only when shapes or addresses have changed, so that runs are short.
    def _bind(self) -> None:
        batches = {tensor.shape[0] for tensor in self._inputs.values()}
        if len(batches) != 1:
            raise ShapeError(f"the inputs have batches of {sorted(batches)} rows; give all of them the same")
        batch = batches.pop()
        for s in self.output_specs:
            self._outputs[s.name].resize((batch, *s.shape[1:]))
        # A Mat over an array uses its memory without a copy. `_kept` keeps the array alive.
        self._kept = {name: tensor.numpy() for name, tensor in self._inputs.items()}
        self._rows = [{name: ncnn.Mat(array[i]) for name, array in self._kept.items()} for i in range(batch)]

    def _enqueue(self) -> None:
        for tensor in self._inputs.values():
            tensor.host_ptr()  # copies to the host if the device is newer
        targets = {name: tensor.numpy(writable=True) for name, tensor in self._outputs.items()}
        for i, mats in enumerate(self._rows):
            for name, row in self._extract(mats, targets).items():
                targets[name][i] = row

    def _extract(self, mats: dict[str, Any], names: Any) -> dict[str, Any]:
        """One row through the network."""
        with self._net.create_extractor() as extractor:
            for name, mat in mats.items():
                extractor.input(name, mat)
            rows = {}
            for name in names:
                code, mat = extractor.extract(name)
                if code != 0:
                    raise InferenceError(f"ncnn failed to compute {name!r} of {self.model.name}: code {code}")
                rows[name] = np.array(mat)
        return rows

    @property
    def precision(self) -> str:
        return "fp32"

    def _clone(self, twin: NcnnInfer) -> None:
        pass  # the clone shares the network; each run makes its own extractor

    def _close(self) -> None:
        self._rows, self._kept = [], {}
        del self._net


def spec(name: str, row: tuple[int, ...]) -> TensorSpec:
    return TensorSpec(name, np.dtype(np.float32), ("batch", *row))


def input_shapes(param: Path) -> dict[str, tuple[int, ...]]:
    """The inputs of a .param file whose layers contain a shape, with this shape.

    ncnn reports errors of a file on stderr only, so this function checks the file first. Its layout: a magic number;
    the numbers of layers and blobs; then for each layer a line `type name inputs outputs blob... key=value...`.

    Raises:
        ModelFormatError: the file is not a .param file, or is truncated.
    """
    try:
        magic, counts, *layers = param.read_text("utf-8").splitlines()
        fields = [line.split() for line in layers if line.strip()]
        if magic.strip() != "7767517" or len(fields) != int(counts.split()[0]) or not fields:
            raise ValueError
        shapes = {}
        for kind, _, inputs, outputs, *rest in fields:
            blobs, pairs = rest[: int(inputs) + int(outputs)], rest[int(inputs) + int(outputs) :]
            values = dict(pair.split("=", 1) for pair in pairs)
            if len(blobs) != int(inputs) + int(outputs):
                raise ValueError
            if kind == "Input":  # 0 is the width, 1 the height, 11 the depth, 2 the channels
                shapes[blobs[0]] = tuple(int(values[key]) for key in ("2", "11", "1", "0") if int(values.get(key, 0)))
    except (ValueError, IndexError):  # UnicodeDecodeError is a ValueError
        raise ModelFormatError(f"{str(param)!r} is not an ncnn .param file, or is truncated") from None
    return {name: shape for name, shape in shapes.items() if math.prod(shape) > 0}
