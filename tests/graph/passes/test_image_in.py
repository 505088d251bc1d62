"""Preprocessing inside the model, held against that of the core."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infersdk.errors import ConfigError, UnsupportedModelError
from infersdk.graph import Graph
from infersdk.graph import open as open_graph
from infersdk.graph.passes import ImageIn
from infersdk.image import Geometry, PixelTransform
from infersdk.ops import preprocess

models = pytest.importorskip("onnx_models")
pytest.importorskip("onnxruntime")

IMAGES = np.random.default_rng(0).integers(0, 256, (2, 30, 44, 3), np.uint8)


def smooth(height: int, width: int) -> Any:
    """An image without sharp edges, in which a resize in floating point and one in 8 bits differ by rounding alone."""
    y, x = np.mgrid[:height, :width]
    return np.stack([x * 255 / width, y * 255 / height, (x + y) * 255 / (width + height)], -1).astype(np.uint8)


def identity(path: Path, shape: tuple[Any, ...], **options: Any) -> Graph:
    """A model that gives its input back."""
    dtype = options.pop("dtype", "float32")
    return open_graph(
        models.save(
            path,
            [models.node("Identity", "x", "y")],
            [models.value("x", shape, dtype)],
            [models.value("y", shape, dtype)],
            **options,
        )
    )


def run(graph: Graph, images: Any) -> Any:
    assert images.dtype == np.uint8
    return models.run(graph, images)[0]


def test_normalised_as_the_core_does(tmp_path: Path) -> None:
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    graph = identity(tmp_path / "m.onnx", ("batch", 3, 30, 44))
    name = graph.inputs[0].name
    assert graph.apply(ImageIn(mean=mean, std=std))
    assert str(graph.inputs[0].shape) == "[batch,30,44,3]"
    assert graph.inputs[0].name == name
    transform = PixelTransform(
        scale=[1 / 255 / s for s in std], bias=[-m / s for m, s in zip(mean, std, strict=True)]
    )  # fmt: skip
    geometry = Geometry.stretch((44, 30), (44, 30))
    want = np.stack([preprocess(image, geometry, transform, format="rgb") for image in IMAGES])
    np.testing.assert_allclose(run(graph, IMAGES), want, atol=1e-6)


def test_channels_the_other_way_round(tmp_path: Path) -> None:
    graph = identity(tmp_path / "m.onnx", (2, 3, 30, 44))
    graph.apply(ImageIn(bgr=True, divide=1))
    np.testing.assert_array_equal(run(graph, IMAGES), IMAGES[..., ::-1].transpose(0, 3, 1, 2).astype(np.float32))


def test_a_model_with_channels_last_and_in_float16(tmp_path: Path) -> None:
    graph = identity(tmp_path / "m.onnx", ("batch", 30, 44, 3), dtype="float16")
    graph.apply(ImageIn(divide=1))
    got = run(graph, IMAGES)
    assert got.dtype == np.float16
    np.testing.assert_array_equal(got, IMAGES.astype(np.float16))


@pytest.mark.parametrize("size", [(300, 440), (97, 61), (61, 97), (64, 48), (3, 200)])
def test_letterboxed_as_the_core_does(tmp_path: Path, size: tuple[int, int]) -> None:
    graph = identity(tmp_path / "m.onnx", ("batch", 3, 64, 96))
    graph.apply(ImageIn(resize="letterbox", divide=1))
    image = smooth(*size)
    geometry = Geometry.letterbox((size[1], size[0]), (96, 64))
    want = preprocess(image, geometry, PixelTransform(scale=1), format="rgb")
    got = run(graph, image[None])
    assert got.shape == (1, 3, 64, 96)
    (left, top), (width, height) = geometry.offset or (0, 0), geometry.resized or (0, 0)
    border = np.ones((64, 96), bool)
    border[top : top + height, left : left + width] = False
    assert (got[0][:, border] == 114).all()
    np.testing.assert_allclose(got[0], want, atol=1.01)


def test_stretched_as_the_core_does(tmp_path: Path) -> None:
    graph = identity(tmp_path / "m.onnx", (1, 3, 64, 96))
    graph.apply(ImageIn(resize="stretch", divide=1))
    image = smooth(50, 50)
    want = preprocess(image, Geometry.stretch((50, 50), (96, 64)), PixelTransform(scale=1), format="rgb")
    np.testing.assert_allclose(run(graph, image[None])[0], want, atol=1.01)


def test_an_old_opset_is_raised(tmp_path: Path) -> None:
    graph = identity(tmp_path / "m.onnx", ("batch", 3, 64, 96), opset=11)
    graph.apply(ImageIn(resize="letterbox"))
    assert graph.opset == 13
    assert run(graph, IMAGES).shape == (2, 3, 64, 96)


def test_wrong_use(tmp_path: Path) -> None:
    def model(shape: tuple[Any, ...], dtype: str = "float32") -> Graph:
        return identity(tmp_path / "m.onnx", shape, dtype=dtype)

    with pytest.raises(UnsupportedModelError, match="is UINT8; the pass needs"):
        model((1, 3, 4, 4), "uint8").apply(ImageIn())
    with pytest.raises(ConfigError, match="mean has 2 numbers, and the images have 3 channels"):
        model((1, 3, 4, 4)).apply(ImageIn(mean=(1.0, 2.0)))
    for given in ({"mean": 0.5}, {"std": (None,)}, {"pad": "black"}):
        with pytest.raises(ConfigError, match="mean and std tuples of numbers, such as"):
            model((1, 3, 4, 4)).apply(ImageIn(**given))
    for wrong in (ImageIn(divide=0), ImageIn(divide=float("nan")), ImageIn(std=(1.0, 0.0, 1.0))):
        with pytest.raises(ConfigError, match="numbers must be finite, and divide and std not 0"):
            model((1, 3, 4, 4)).apply(wrong)
    for pad in (-1, 300):
        with pytest.raises(ConfigError, match=f"pad is from 0 to 255, not {pad}"):
            model((1, 3, 4, 4)).apply(ImageIn(resize="letterbox", pad=pad))
    with pytest.raises(ConfigError, match="unknown resize 'crop'; use none, stretch or letterbox"):
        model((1, 3, 4, 4)).apply(ImageIn(resize="crop"))  # type: ignore[arg-type]
    with pytest.raises(UnsupportedModelError, match="has no fixed image size"):
        model((1, 3, "h", "w")).apply(ImageIn(resize="stretch"))
    with pytest.raises(ConfigError, match="exactly one image input with four axes"):
        model((1, 3)).apply(ImageIn())
