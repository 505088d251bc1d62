"""Image classifiers: images in, the best classes out."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import numpy as np

from ..errors import ConfigError
from ..image import Geometry, PixelTransform
from ..ops import topk
from .results import Classifications
from .vision import VisionModel, as_size

if TYPE_CHECKING:
    from ..infer import Infer
    from .execution.cuda import Stage

__all__ = ["PRESETS", "Classifier"]

#: How the common families of ImageNet models want their pixels: y = (x * scale - mean) / std.
PRESETS: dict[str, dict[str, Any]] = {
    # torchvision, timm's default, most of the ONNX model zoo
    "imagenet": {"scale": 1 / 255, "mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225), "input_order": "rgb"},
    # Caffe: SqueezeNet, the first GoogLeNet and VGG, MobileNet of the Caffe zoo
    "caffe": {"scale": 1.0, "mean": (104.0, 117.0, 123.0), "std": (1.0, 1.0, 1.0), "input_order": "bgr"},
    # TensorFlow's Inception and MobileNet: -1 to 1
    "inception": {"scale": 1 / 255, "mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5), "input_order": "rgb"},
    # 0 to 1, such as Ultralytics' classifiers
    "unit": {"scale": 1 / 255, "mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0), "input_order": "rgb"},
}

Triple = tuple[float, float, float]


class ClassifierSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the classifier's constructor takes; see there."""

    preset: Literal["imagenet", "caffe", "inception", "unit"] = "imagenet"
    resize: Annotated[int, msgspec.Meta(ge=1)] | None = None
    crop: int | tuple[int, int] | None = None
    mean: Triple | None = None
    std: Triple | None = None
    scale: float | None = None
    input_order: Literal["rgb", "bgr"] | None = None
    top_k: Annotated[int, msgspec.Meta(ge=1)] = 5
    softmax: bool | None = None


class Classifier(VisionModel[Classifications]):
    """A classifier: images in, `Classifications` out. The shorter side is resized, the centre cropped.

    Args:
        path: the model file, or an `Infer` that is loaded already.
        backend, device, precision, max_batch, options: as `infersdk.load()` takes them.
        names: class names, as a list or the path of a text file; None takes them from the model's metadata.
        channel_order: of NumPy arrays given, `"bgr"` (OpenCV's), `"rgb"` or `"nv12"`.
        preprocess: where images are preprocessed for a CUDA device: `"device"`, `"host"`, or `"auto"`, which tries
            both once. The tensors are the same.
        preset: `"imagenet"`, `"caffe"`, `"inception"` or `"unit"`: the defaults of what follows (`PRESETS`).
        resize: the shorter side is brought to this; None is 256 for a crop of 224, and in proportion for others.
        crop: the network's input, a number or (width, height), for models that leave it open (224 then).
        mean, std, scale: y = (x * scale - mean) / std, a number a channel in the order of the network's input.
        input_order: the channels that the network wants, `"rgb"` or `"bgr"`.
        top_k: how many classes an image; fewer if the model has fewer.
        softmax: whether scores become probabilities by softmax; None does so unless they are probabilities already
            (none negative, the sum within 0.001 of 1).

    Raises:
        ConfigError, BackendError, ModelError: see `infersdk.errors`.
    """

    Settings = ClassifierSettings
    fallback_size = 224

    def __init__(
        self,
        path: str | os.PathLike[str] | Infer,
        backend: str = "onnxruntime",
        *,
        device: str | None = None,
        precision: str | None = None,
        max_batch: int | None = None,
        names: Sequence[str] | str | os.PathLike[str] | None = None,
        channel_order: str = "bgr",
        preprocess: str = "auto",
        preset: str = "imagenet",
        resize: int | None = None,
        crop: int | tuple[int, int] | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        scale: float | None = None,
        input_order: str | None = None,
        top_k: int = 5,
        softmax: bool | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            path,
            backend,
            device=device,
            precision=precision,
            max_batch=max_batch,
            names=names,
            channel_order=channel_order,
            preprocess=preprocess,
            settings={
                "preset": preset,
                "resize": resize,
                "crop": crop,
                "mean": mean,
                "std": std,
                "scale": scale,
                "input_order": input_order,
                "top_k": top_k,
                "softmax": softmax,
            },
            options=options,
        )

    def _prepare(self) -> None:
        super()._prepare()
        shorter = min(self.input_size)
        self.resize = self.settings.resize or round(shorter * 256 / 224)
        if self.resize < shorter:
            raise ConfigError(f"resize={self.resize} is less than the crop of {self.input_size}; it must cover it")
        spec = self.network.output_specs[0]
        self._output = spec.name
        self._check_row(spec, spec.shape)
        sizes = [d for d in spec.shape[1:] if isinstance(d, int)]
        self._tell_classes(math.prod(sizes) if len(sizes) == len(spec.shape) - 1 else None)

    def _check_row(self, spec: object, shape: Sequence[int | str | None]) -> None:
        """Raises UnsupportedModelError when the output has more axes than that of the classes: boxes, or a map."""
        if len(shape) < 2 or sum(d != 1 for d in shape[1:] if isinstance(d, int)) > 1:
            raise self._unsupported(f"its output {spec} is not a row of classes for each image")

    def _asked_size(self) -> tuple[int, int] | None:
        return as_size(self.settings.crop, "crop")

    def _pixel_transform(self, dtype: str) -> PixelTransform:
        settings, preset = self.settings, PRESETS[self.settings.preset]
        scale = float(settings.scale if settings.scale is not None else preset["scale"])
        mean, std = settings.mean or preset["mean"], settings.std or preset["std"]
        order = settings.input_order or preset["input_order"]
        if dtype == "uint8":  # the network normalises by itself
            return PixelTransform(order=order, layout=self._layout, dtype=dtype, fill=0, scale=1.0)
        if not scale > 0:
            raise ConfigError(f"scale={scale} must be above 0")
        return PixelTransform.normalize(mean, std, max_value=1 / scale, order=order, layout=self._layout, dtype=dtype)

    def _make_geometry(self, size: tuple[int, int]) -> Geometry:
        return Geometry.resize_crop(size, self.resize, self.input_size)

    def _device_stage(self, infer: Infer, capacity: int) -> Stage:
        return _Scores(self, infer)

    def _results(self, geometries: Sequence[Geometry]) -> list[Classifications]:
        return self._rank(self.network, geometries)

    def _rank(self, infer: Infer, geometries: Sequence[Geometry]) -> list[Classifications]:
        """The best classes out of the scores that `infer` has given."""
        scores = infer.outputs[self._output].numpy()
        self._check_row(f"{self._output!r} of shape {scores.shape}", scores.shape)  # which the model may leave open
        scores = scores.reshape(scores.shape[0], -1)[: len(geometries)]  # (N, classes, 1, 1) is common
        if scores.dtype not in (np.float32, np.float16):
            raise self._unsupported(f"its output {self._output!r} is {scores.dtype}, not float32 or float16")
        self._tell_classes(scores.shape[1])
        softmax = self.settings.softmax
        results = []
        for row in scores:
            turn = softmax if softmax is not None else not _are_probabilities(row)
            class_ids, best = topk(row, min(self.settings.top_k, row.size), softmax=turn)
            results.append(Classifications(class_ids, best, self.names))
        return results


class _Scores:
    """On a device: the scores of a batch are a small copy, and are ranked on the host."""

    def __init__(self, model: Classifier, infer: Infer) -> None:
        self._model, self._infer = model, infer

    def queue(self, geometries: Sequence[Geometry]) -> None:
        assert self._infer.stream is not None
        self._infer.outputs[self._model._output].fetch(self._infer.stream)

    def collect(self, geometries: Sequence[Geometry]) -> list[Classifications]:
        return self._model._rank(self._infer, geometries)

    def close(self) -> None:
        """It holds nothing of its own."""


def _are_probabilities(row: np.ndarray[tuple[int], np.dtype[np.floating]]) -> bool:
    return bool(row.min() >= 0 and abs(float(row.sum(dtype=np.float64)) - 1) < 1e-3)
