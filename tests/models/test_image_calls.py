"""Methods that models of other programs have: the error names what to use."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infersdk import Pipeline, models
from infersdk.data import DETECTOR, IMAGE
from infersdk.errors import InputError
from infersdk.image import read_image
from infersdk.models import ModelGroup, Tiled

pytest.importorskip("onnxruntime")


@pytest.mark.parametrize("make", [lambda model: model, lambda model: Tiled(model, tile=320)], ids=["wrapper", "tiles"])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("predict", r"^\w+ has no 'predict'; call it: model\(image\)$"),
        ("track", r"^\w+ has no 'track'; Tracker\(\)\.update\(model\(frame\)\) "),
        ("to", r"^\w+ has no 'to'; device= and precision= are arguments "),
        ("nothing", r"^'\w+' object has no attribute 'nothing'$"),
    ],
)
def test_methods_of_other_programs(make: Any, name: str, message: str) -> None:
    with make(models.YOLOv5(DETECTOR, threads=1)) as model, pytest.raises(AttributeError, match=message):
        getattr(model, name)


@pytest.mark.parametrize("name", ["submit_many", "release", "configure_pipeline", "pipeline"])
def test_what_the_models_of_a_composition_have(name: str) -> None:
    message = f"^Tiled has no '{name}'; each of its `models` has its own$"
    with Tiled(models.YOLOv5(DETECTOR, threads=1)) as model, pytest.raises(AttributeError, match=message):
        getattr(model, name)


@pytest.mark.parametrize(
    ("channel_order", "shape", "drawn"),
    [("bgr", (48, 64, 3), (30, 20, 10)), ("rgb", (48, 64, 3), (10, 20, 30)), ("nv12", (72, 64), (0, 0, 0))],
)
@pytest.mark.parametrize("make", [lambda model: model, lambda model: ModelGroup(only=model)], ids=["wrapper", "group"])
def test_a_result_draws_its_array_in_the_order_of_the_model(
    make: Any, channel_order: str, shape: tuple[int, ...], drawn: tuple[int, int, int]
) -> None:
    pixels = np.full(shape, (10, 20, 30) if len(shape) == 3 else 128, np.uint8)
    if channel_order == "nv12":
        pixels[:48] = 16  # black
    with make(models.YOLOv5(DETECTOR, threads=1, conf=1.0, channel_order=channel_order)) as model:
        for result in (model(pixels), *model([pixels])):
            assert result.draw().size == (64, 48)
            assert result.draw().getpixel((5, 5)) == drawn


@pytest.mark.parametrize("composed", [False, True])
@pytest.mark.parametrize("call", ["stream", "map", "submit_many", "submit_batch", "network_inputs"])
def test_one_image_in_place_of_several_is_refused(call: str, composed: bool) -> None:
    """Text would be iterated by its characters, and an array by its rows."""
    image = read_image(IMAGE)
    with models.YOLOv5(DETECTOR, threads=1) as inner:
        model = Tiled(inner, tile=(320, 320)) if composed else inner
        if call == "submit_many":
            if composed:
                pytest.skip("compositions have no submit_many()")
            ask: Any = model.submit_many
        elif call == "submit_batch":
            ask = lambda images: model.submit_batch(images, lambda index, outcome: None)  # noqa: E731
        elif call == "network_inputs":
            ask = lambda images: list(inner.details.network_inputs(images))  # noqa: E731
        else:
            ask = getattr(model, call)
        said = r"an iterable of images is expected, not one image .* give a list: \["
        with pytest.raises(InputError, match=re.escape(f"[{str(IMAGE)!r}]")):
            ask(str(IMAGE))
        for one in (IMAGE, Path(IMAGE).read_bytes(), image, image.pixels, image.pixels[..., 0]):
            with pytest.raises(InputError, match=said):
                ask(one)
        with Path(IMAGE).open("rb") as file, pytest.raises(InputError, match="not one image"):
            ask(file)
        gray = np.stack([image.pixels[..., 0]] * 2)
        ended: list[Any] = list(ask(gray))  # a stack of two gray images
        assert len(ended) == (1 if call == "network_inputs" and inner.details.batch_limit > 1 else 2)


def test_one_item_of_a_pipeline_in_place_of_several_is_refused() -> None:
    with models.YOLOv5(DETECTOR, threads=1) as model, Pipeline(model) as pipeline:
        for ask in (pipeline.map, pipeline.submit_many, lambda items: pipeline.submit_batch(items, print)):
            with pytest.raises(InputError, match="not one image"):
                ask(str(IMAGE))  # type: ignore[operator]
        assert len(list(pipeline.map([IMAGE]))) == 1
