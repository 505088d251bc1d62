"""Normalisations of pixels by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from ..errors import ConfigError
from ..image import PixelTransform

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .preprocessor import ImageInput

__all__ = ["PRESETS", "Preset", "pixel_options"]

#: Normalisations of pixels of common families of models: y = (x * scale - mean) / std.
PRESETS: dict[str, dict[str, Any]] = {
    # torchvision, timm's default, most of the ONNX model zoo
    "imagenet": {"scale": 1 / 255, "mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225), "input_order": "rgb"},
    # Caffe: SqueezeNet, the first GoogLeNet and VGG, MobileNet of the Caffe zoo
    "caffe": {"scale": 1.0, "mean": (104.0, 117.0, 123.0), "std": (1.0, 1.0, 1.0), "input_order": "bgr"},
    # TensorFlow's Inception and MobileNet: -1 to 1
    "inception": {"scale": 1 / 255, "mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5), "input_order": "rgb"},
    # IS-Net and RMBG: -0.5 to 0.5
    "centred": {"scale": 1 / 255, "mean": (0.5, 0.5, 0.5), "std": (1.0, 1.0, 1.0), "input_order": "rgb"},
    # OpenAI's CLIP, OpenCLIP, and models made of them
    "clip": {
        "scale": 1 / 255,
        "mean": (0.48145466, 0.4578275, 0.40821073),
        "std": (0.26862954, 0.26130258, 0.27577711),
        "input_order": "rgb",
    },
    # 0 to 1, such as Ultralytics' classifiers
    "unit": {"scale": 1 / 255, "mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0), "input_order": "rgb"},
}

Preset = Literal["imagenet", "caffe", "inception", "centred", "clip", "unit"]


def pixel_options(input: ImageInput, pixels: Mapping[str, Any], **given: Any) -> dict[str, Any]:
    """The order, scale and bias of a normalisation as in `PRESETS`, for `ImageInput.transform()`. A network of
    uint8 input normalises its pixels itself.

    Args:
        given: settings by name that have no effect for a network of uint8 input; None where they are not given.
    """
    if input.dtype == "uint8":
        if ignored := [f"{name}={value!r}" for name, value in given.items() if value is not None]:
            raise ConfigError(
                f"{', '.join(ignored)}: the network takes pixels of uint8 and normalises them itself; leave this out"
            )
        return {"order": pixels["input_order"]}
    normal = PixelTransform.normalize(pixels["mean"], pixels["std"], max_value=1 / pixels["scale"])
    return {"order": pixels["input_order"], "scale": normal.scale, "bias": normal.bias}
