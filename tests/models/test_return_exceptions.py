"""Images that cannot be read, among others: the exception of each in its place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from infersdk import models
from infersdk.data import CLASSIFIER, CLASSIFIER_SETTINGS, DETECTOR, IMAGE
from infersdk.errors import ConfigError, ImageError
from infersdk.image import read_image
from infersdk.models import Detections, Tiled, TwoStage

pytest.importorskip("onnxruntime")


def detector() -> Any:
    return models.YOLOv5(DETECTOR, max_batch=2, threads=1)


def two_stage() -> Any:
    return TwoStage(detector(), models.Classifier(CLASSIFIER, max_batch=4, threads=1, **CLASSIFIER_SETTINGS))


@pytest.fixture(scope="module", params=[detector, two_stage, lambda: Tiled(detector(), tile=320)],
                ids=["wrapper", "two stages", "tiles"])  # fmt: skip
def model(request: pytest.FixtureRequest) -> Iterator[Any]:
    with request.param() as made:
        yield made


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Six images, of which 0, 3 and 5 cannot be read."""
    truncated = tmp_path_factory.mktemp("images") / "truncated.png"
    truncated.write_bytes(IMAGE.read_bytes()[:2000])
    array = read_image(IMAGE).pixels
    return [truncated, IMAGE, array[:300].copy(), "none.jpg", array.copy(), b"nothing"]


@pytest.mark.parametrize("way", ["__call__", "stream", "map"])
def test_an_exception_in_the_place_of_its_image(way: str, model: Any, images: list[Any]) -> None:
    results = list(getattr(model, way)(images, return_exceptions=True, conf=0.4))
    assert [isinstance(one, ImageError) for one in results] == [True, False, False, True, False, True]
    assert "none.jpg" in str(results[3])
    for image, result in zip(images, results, strict=True):
        if isinstance(result, Detections):
            np.testing.assert_array_equal(result.xyxy, model(image, conf=0.4).xyxy)
    with pytest.raises(ImageError):
        list(getattr(model, way)(images))


def test_the_results_of_a_list_know_their_images(images: list[Any]) -> None:
    with detector() as model:
        found = model(images[:2], return_exceptions=True)
        assert found[1].draw().size == read_image(IMAGE).size
        assert model([], return_exceptions=True) == []


def test_one_image_has_its_exception_raised(model: Any) -> None:
    with pytest.raises(ConfigError, match="return_exceptions is for a list of images"):
        model(IMAGE, return_exceptions=True)


def test_a_wrong_parameter_is_raised_all_the_same(images: list[Any]) -> None:
    with detector() as model, pytest.raises(ConfigError):
        model(images, return_exceptions=True, conf=7)
