"""Networks that give an image, and mattes."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from head_models import head_model
from onnx_models import node, save, value

from infersdk.errors import InputError, UnsupportedModelError
from infersdk.image import Geometry
from infersdk.models import BackgroundRemoval, ImageResult, ImageToImage, Matte, load
from infersdk.ops import resize_map

pytest.importorskip("onnxruntime")

RNG = np.random.default_rng(0)
IMAGE = RNG.integers(0, 256, (40, 50, 3), np.uint8)


def network(path: Path, scale: int, factor: float = 1.0, layout: str = "chw") -> Path:
    """Repeats each pixel `scale` times along both sides, and multiplies it."""
    axes = ("batch", 3, 64, 64) if layout == "chw" else ("batch", 64, 64, 3)
    sizes = [1, 1, scale, scale] if layout == "chw" else [1, scale, scale, 1]
    nodes = [node("Resize", "x  sizes", "big", mode="nearest"), node("Mul", "big factor", "y")]
    nodes[0].input[:] = ["x", "", "sizes"]
    shape = ("batch", *(side * scale if side == 64 else side for side in axes[1:]))
    weights = {"sizes": np.array(sizes, np.float32), "factor": np.float32(factor)}
    return save(path, nodes, [value("x", axes)], [value("y", shape)], weights)


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("layout", ["chw", "hwc"])
def test_an_image_is_enlarged(tmp_path: Path, backend: str, layout: str) -> None:
    pytest.importorskip(backend)
    expected = IMAGE[..., ::-1].repeat(2, axis=0).repeat(2, axis=1)
    with load(network(tmp_path / "m.onnx", 2, layout=layout), backend=backend, max_batch=4) as model:
        assert type(model) is ImageToImage
        for found in (model(IMAGE), model.submit(IMAGE).result(30), *model.map([IMAGE] * 5), *model.stream([IMAGE])):
            assert found.scale == (2, 2)
            assert np.array_equal(found.pixels, expected)
        with pytest.raises(InputError, match=r"80 x 40 is larger than the network's input of 64 x 64.*fit=\"stretch\""):
            model(np.zeros((40, 80, 3), np.uint8))


def test_pixels_and_order_are_settings(tmp_path: Path) -> None:
    for pixels, factor in (("unit", 1), ("byte", 1), ("signed", 1)):
        path = network(tmp_path / f"{pixels}.onnx", 1, factor)
        with pytest.raises(UnsupportedModelError, match='type="image-to-image"'):
            load(path)
        with load(path, type="super-resolution", pixels=pixels, order="bgr") as model:
            assert np.array_equal(model(IMAGE).numpy(), IMAGE), pixels
    with load(network(tmp_path / "n.onnx", 1, 255.0), type="image-to-image", output_pixels="byte") as model:
        assert np.array_equal(model(IMAGE).numpy(), IMAGE)
        assert model(IMAGE[:20]).size == (50, 20)
    refused = pytest.raises(UnsupportedModelError, match='its pixels, from 0 to 1, reach .* output_pixels="byte"')
    with load(tmp_path / "n.onnx", type="image-to-image") as model, refused:
        model(IMAGE)
    with load(tmp_path / "unit.onnx", type="image-to-image", fit="stretch") as model:
        found = model(IMAGE)
        assert found.size == (64, 64)
        assert found.scale == (64 / 50, 64 / 40)


def test_images_of_uint8_are_copies(tmp_path: Path) -> None:
    axes = ("batch", 64, 64, 3)
    path = save(
        tmp_path / "m.onnx", [node("Identity", "x", "y")], [value("x", axes, "uint8")], [value("y", axes, "uint8")], {}
    )
    frames = [np.full((64, 64, 3), shade, np.uint8) for shade in (7, 50, 100)]
    with load(path, type="image-to-image", max_batch=2) as model:
        model(frames[0][:20])  # a part of the canvas is copied in any case
        for results in ([model(frame) for frame in frames], model(frames), list(model.stream(frames))):
            assert [np.unique(one.pixels).tolist() for one in results] == [[7], [50], [100]]


def test_all_forms_of_an_image() -> None:
    found = ImageResult(IMAGE[..., ::-1].copy(), (2.0, 2.0))
    assert found.to_dicts() == [{"width": 50, "height": 40, "scale": [2.0, 2.0]}]
    assert np.array_equal(np.asarray(found.draw()), found.pixels)
    assert np.array_equal(found.to_tensors()["image"], found.pixels)
    with pytest.raises(InputError, match='order is "?.?gbr'):
        found.numpy("gbr")


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_a_matte_comes_back_to_the_image(tmp_path: Path, backend: str) -> None:
    pytest.importorskip(backend)
    values = RNG.uniform(0.2, 0.8, (1, 64, 64)).astype(np.float32)
    resized = resize_map(values[0], Geometry.stretch((50, 40), (64, 64)))
    path = head_model(tmp_path / "m.onnx", [values, values / 2], {})  # U2-Net gives several maps, the best one first
    with load(path, backend=backend, type="matte", preset="imagenet", max_batch=4) as model:
        assert type(model) is BackgroundRemoval
        for found in (model(IMAGE), model.submit(IMAGE).result(30), *model.map([IMAGE] * 5)):
            np.testing.assert_allclose(found.values, resized, atol=1e-6)
        stretched = model(IMAGE, stretch=True).values
        assert (stretched.min(), stretched.max()) == (0, 1)
    path = head_model(tmp_path / "n.onnx", [np.log(values / (1 - values))], {})
    refused = pytest.raises(UnsupportedModelError, match='probabilities reach .* give scores="logit"')
    with load(path, backend=backend, type="matte", preset="imagenet") as model, refused:
        model(IMAGE)
    with load(path, backend=backend, type="matte", preset="imagenet", scores="logit") as model:
        np.testing.assert_allclose(model(IMAGE).values, resized, atol=1e-5)
    large = head_model(tmp_path / "l.onnx", [np.full((1, 64, 64), -200, np.float32)], {})
    with (
        load(large, backend=backend, type="matte", preset="imagenet", scores="logit") as model,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("error")
        assert not model(IMAGE).values.any()


def test_nan_is_black_and_unknown(tmp_path: Path) -> None:
    """The networks take the root of their input, from -1 to 1."""
    image, white = IMAGE.copy(), np.full((40, 50, 3), 255, np.uint8)
    image[:, :25] = 0
    shape = ("batch", 3, 64, 64)
    path = save(tmp_path / "i.onnx", [node("Sqrt", "x", "y")], [value("x", shape)], [value("y", shape)], {})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with load(path, type="image-to-image", pixels="signed", output_pixels="unit", fit="stretch") as model:
            assert (model(white).pixels == 255).all()
            assert not model(image).pixels[:, :30].any()
        nodes = [node("ReduceMean", "x", "mean", axes=[1], keepdims=1), node("Sqrt", "mean", "y")]
        path = save(tmp_path / "m.onnx", nodes, [value("x", shape)], [value("y", ("batch", 1, 64, 64))], {}, opset=13)
        with load(path, type="matte", preset="inception", stretch=True) as model:
            assert not model(white).values.any()
            assert np.isnan(model(image).values[:, :20]).all()
            unknown = model(np.zeros_like(white))
    assert np.isnan(unknown.values).all()
    assert not unknown.alpha.any()


def test_all_forms_of_a_matte() -> None:
    values = np.zeros((40, 50), np.float32)
    values[:, 25:] = 1
    found = Matte(values).with_image(IMAGE)
    cut = np.asarray(found.cut_out())
    assert np.array_equal(cut[..., :3], IMAGE[..., ::-1])
    assert np.array_equal(cut[..., 3], values * 255)
    drawn = np.asarray(found.draw())
    assert (drawn[:, :25] == 255).all()
    assert np.array_equal(drawn[:, 25:], IMAGE[:, 25:, ::-1])
    assert found.to_dicts() == [{"area": 0.5}]
    assert Matte(np.array([[-1, np.inf, np.nan, 5]], np.float32)).to_dicts() == [{"area": 0.5}]
    assert found.to_tensors()["matte"].shape == (40, 50)
    assert found.agreement(Matte(np.ones_like(values))).percent == 50
    with pytest.raises(InputError, match="10 x 20 pixels"):
        found.cut_out(np.zeros((20, 10, 3), np.uint8))
