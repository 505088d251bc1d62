"""Preprocessing of a classifier by the metadata of its file: mean, std, scale, colour order, size, filter."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ..errors import ConfigError

__all__ = ["pixel_settings"]

_ORDERS = {"rgb": "rgb", "bgr": "bgr"}
#: model_api's images are BGR, and reversed for networks that want RGB.
_REVERSED = {"true": "rgb", "yes": "rgb", "1": "rgb", "false": "bgr", "no": "bgr", "0": "bgr"}
#: timm and Ultralytics resize by Pillow.
_FILTERS = {"bilinear": "bilinear-antialias", "bicubic": "bicubic"}


def pixel_settings(metadata: Mapping[str, str], given: Collection[str] = ()) -> dict[str, Any]:
    """The settings of `Classifier` in the metadata of a file, by name; {} if there are none.

    Known entries are:

    - `mean`, `std`, `scale`, `input_order` (also `color_order`), `crop_pct` and `interpolation`, as in timm;
    - `input_size` (also `imgsz`): channels, height and width, or height and width;
    - `mean_values`, `scale_values` and `reverse_input_channels` of OpenVINO's model_api, also after `model_info `;
    - `author`: pixels of Ultralytics' exports are 0 to 1, and images are resized by Pillow's BILINEAR.

    Args:
        given: the settings that are known already: entries for these are not read.
    """
    entries = {key.removeprefix("model_info ").strip().lower(): text for key, text in metadata.items()}
    result: dict[str, Any] = {}
    size = next((key for key in ("input_size", "imgsz") if key in entries), None)
    if size is not None and not {"crop", "resize"} <= set(given):
        expected = "a size, such as 224 or (3, 224, 224)"
        sides = _numbers(size, entries[size], expected, (1, 2, 3), lambda side: side >= 1 and side.is_integer())[-2:]
        result["crop"] = int(sides[-1]), int(sides[0])
    if entries.get("author", "").lower() == "ultralytics":
        result |= {"scale": 1 / 255, "mean": (0.0,) * 3, "std": (1.0,) * 3, "input_order": "rgb"}
        result["interpolation"] = _FILTERS["bilinear"]
        return result | ({"resize": min(result["crop"])} if "crop" in result else {})
    for key in ("input_order", "color_order", "colour_order", "reverse_input_channels"):
        if key in entries and "input_order" not in given:
            result["input_order"] = _one_of(key, entries[key], _REVERSED if key.startswith("reverse") else _ORDERS)
            break
    if "interpolation" in entries and "interpolation" not in given:
        result["interpolation"] = _one_of("interpolation", entries["interpolation"], _FILTERS)
    if "crop_pct" in entries and "crop" in result and "resize" not in given:
        result["resize"] = math.floor(min(result["crop"]) / _positive("crop_pct", entries["crop_pct"]))
    return result if {"mean", "std", "scale"} <= set(given) else result | _normalisation(entries)


def _normalisation(entries: Mapping[str, str]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, of_bytes in (("mean", "mean_values"), ("std", "scale_values")):
        key = name if name in entries else of_bytes
        if key in entries:
            numbers = _numbers(key, entries[key], "one number, or one for each channel", (1, 3))
            result[name] = tuple(numbers * (3 // len(numbers)))
    if "scale" in entries:
        result["scale"] = _positive("scale", entries["scale"])
    elif "mean_values" in entries or "scale_values" in entries:
        result["scale"] = 1.0
    elif result:
        result["scale"] = _scale_of(result)
    if result:
        result = {"mean": (0.0,) * 3, "std": (1.0,) * 3, **result}
    if not all(value > 0 for value in result.get("std", ())):
        raise ConfigError(f"the metadata's std {result['std']} must be above 0; give mean=, std= and scale= instead")
    return result


def _scale_of(found: Mapping[str, Any]) -> float:
    """Whether mean and std are of pixels from 0 to 1, or from 0 to 255."""
    numbers = [*found.get("mean", ()), *found.get("std", ())]
    if max(numbers) > 2:
        return 1.0
    if "mean" in found and any(0 < value < 1 for value in numbers):
        return 1 / 255
    stated = ", ".join(f"{key} {value}" for key, value in found.items())
    raise ConfigError(
        f"the metadata has {stated}, of pixels from 0 to 1 or from 0 to 255, and does not say which; give mean=, std= "
        "and scale= (1/255 or 1)"
    )


def _positive(key: str, text: str) -> float:
    return _numbers(key, text, "a number above 0", (1,), lambda number: number > 0)[0]


def _numbers(
    key: str, text: str, expected: str, counts: Collection[int], valid: Callable[[float], bool] = math.isfinite
) -> list[float]:
    """`[0.5, 0.5, 0.5]`, `(0.5, 0.5, 0.5)`, `0.5 0.5 0.5`, `0.5`: so many valid numbers."""
    try:
        numbers = [float(part) for part in text.strip(" [](){}").replace(",", " ").split()]
    except ValueError:
        numbers = []
    if len(numbers) not in counts or not all(math.isfinite(number) and valid(number) for number in numbers):
        raise _wrong(key, text, expected)
    return numbers


def _one_of(key: str, text: str, known: Mapping[str, str]) -> str:
    if (value := known.get(text.strip(" '\"").lower())) is None:
        raise _wrong(key, text, f"one of {', '.join(known)}")
    return value


def _wrong(key: str, text: str, expected: str) -> ConfigError:
    return ConfigError(
        f"the metadata's {key} is {text[:80]!r}, not {expected}; give the settings (preset=, or mean=, std=, scale=, "
        "input_order=, resize=, interpolation=) instead"
    )
