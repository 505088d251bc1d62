"""Inputs for models: random ones, and those of a folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_models as models
import pytest
from PIL import Image

from infersdk import Tensor, TensorSpec
from infersdk.errors import ConfigError, DTypeError, ImageError, InputError, ShapeError
from infersdk.graph import onnx_info
from infersdk.loading.samples import random_inputs, read_samples

IMAGES = TensorSpec("images", np.dtype("float32"), ("batch", 3, 32, 48))


def spec(name: str, dtype: str, *shape: int | str | None) -> TensorSpec:
    return TensorSpec(name, np.dtype(dtype), shape)


def test_random_inputs_follow_the_specs() -> None:
    specs = [
        spec("f", "float32", "n", 1000), spec("h", "float16", "n", 7), spec("u", "uint8", 1, 5000),
        spec("i", "int8", 1, 5000), spec("l", "int64", None, 500), spec("b", "bool", 100), spec("s", "float64"),
    ]  # fmt: skip
    found = random_inputs(specs, batch=None, seed=3)
    assert list(found) == [s.name for s in specs]
    for s in specs:
        s.check(found[s.name].shape, found[s.name].dtype)
    assert found["f"].shape == (1, 1000)
    assert 0 <= found["f"].min() < 0.1
    assert 0.9 < found["f"].max() < 1
    assert (found["u"].min(), found["u"].max()) == (0, 255)
    assert (found["i"].min(), found["i"].max()) == (-128, 127)
    assert (found["l"].min(), found["l"].max()) == (0, 9)
    assert set(found["b"].tolist()) == {False, True}
    again = random_inputs(specs, seed=3)
    assert all(np.array_equal(found[name], again[name]) for name in found)
    assert not np.array_equal(found["f"], random_inputs(specs, seed=4)["f"])


def test_free_axes() -> None:
    assert random_inputs([IMAGES], batch=4)["images"].shape == (4, 3, 32, 48)
    free = spec("x", "float32", "n", 3, "height", None)
    with pytest.raises(ConfigError, match=r"x=1,3,640,640"):
        random_inputs([free])
    assert random_inputs([free], shapes={"x": (2, 3, 4, 5)})["x"].shape == (2, 3, 4, 5)
    assert random_inputs([free], batch=2, shapes={"x": (2, 3, 4, 5)})["x"].shape == (2, 3, 4, 5)
    with pytest.raises(ConfigError, match="has a shape with a batch of 2, not 3; leave the batch out"):
        random_inputs([free], batch=3, shapes={"x": (2, 3, 4, 5)})
    with pytest.raises(ConfigError, match="takes shape"):
        random_inputs([free], shapes={"x": (2, 4, 4, 5)})
    with pytest.raises(ConfigError, match="'y'"):
        random_inputs([free], shapes={"y": (2,)})
    with pytest.raises(ConfigError, match="no elements"):
        random_inputs([free], shapes={"x": (0, 3, 4, 5)})
    with pytest.raises(ConfigError, match="fixed batch of 2"):
        random_inputs([spec("x", "float32", 2, 3)], batch=4)


def test_arrays_from_a_folder(tmp_path: Path, rng: np.random.Generator) -> None:
    arrays = [rng.random((n, 3, 32, 48), np.float32) for n in (1, 2, 3)]
    np.save(tmp_path / "a.npy", arrays[0])
    np.savez(tmp_path / "b.npz", images=arrays[1], unused=np.zeros(3))
    Tensor.wrap(arrays[2]).save(tmp_path / "c.bin")
    (tmp_path / "notes.txt").write_text("not data")
    (tmp_path / "folder").mkdir()
    found = list(read_samples(tmp_path, [IMAGES]))
    assert [list(sample) for sample in found] == [["images"]] * 3
    for sample, array in zip(found, arrays, strict=True):
        np.testing.assert_array_equal(sample["images"], array)


def test_several_inputs_come_in_one_npz(tmp_path: Path) -> None:
    specs = [spec("a", "float32", 2), spec("b", "int64", "n")]
    np.savez(tmp_path / "run.npz", b=np.arange(3, dtype=np.int64), a=np.zeros(2, np.float32))
    (sample,) = read_samples(tmp_path, specs)
    assert list(sample) == ["a", "b"]
    np.savez(tmp_path / "run.npz", a=np.zeros(2, np.float32))
    with pytest.raises(InputError, match="nothing for input 'b'"):
        list(read_samples(tmp_path, specs))
    np.save(tmp_path / "a.npy", np.zeros(2, np.float32))
    with pytest.raises(InputError, match=r"one \.npz"):
        list(read_samples(tmp_path / "a.npy", specs))


def test_images_from_a_folder(tmp_path: Path) -> None:
    colours = [(255, 0, 0), (0, 255, 0), (0, 0, 255)]
    for index, colour in enumerate(colours):
        Image.new("RGB", (96, 64), colour).save(tmp_path / f"{index}.png")
    found = list(read_samples(tmp_path, [IMAGES], batch=2))
    assert [sample["images"].shape for sample in found] == [(2, 3, 32, 48), (1, 3, 32, 48)]
    pixels = np.concatenate([sample["images"] for sample in found])
    for index, colour in enumerate(colours):
        assert np.all(pixels[index] == np.array(colour, np.float32).reshape(3, 1, 1) / 255)
    (sample,) = read_samples(tmp_path, [spec("x", "uint8", 4, 32, 48, 3)])
    assert sample["x"].shape == (4, 32, 48, 3)
    assert sample["x"][:, 5, 5].tolist() == [*map(list, colours), [0, 0, 255]], "a fixed batch is filled up"
    (sample,) = read_samples(tmp_path / "0.png", [spec("x", "float16", "n", 1, 8, 12)])
    assert sample["x"].dtype == np.float16
    assert sample["x"].shape == (1, 1, 8, 12)


def test_a_batch_that_the_file_declares_as_minus_one_is_free(tmp_path: Path) -> None:
    sides = [models.value(name, (-1, 3, 8, 12)) for name in "xy"]
    specs = onnx_info(models.save(tmp_path / "m.onnx", [models.node("Relu", "x", "y")], sides[:1], sides[1:])).inputs
    assert specs[0].has_free_batch
    np.save(tmp_path / "a.npy", np.zeros((2, 3, 8, 12), np.float32))
    (sample,) = read_samples(tmp_path / "a.npy", specs)
    assert sample["x"].shape == random_inputs(specs, batch=2)["x"].shape == (2, 3, 8, 12)


def test_data_that_does_not_fit(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no data at"):
        list(read_samples(tmp_path / "nothing", [IMAGES]))
    (tmp_path / "notes.txt").write_text("not data")
    with pytest.raises(ConfigError, match="nothing in"):
        list(read_samples(tmp_path, [IMAGES]))
    np.save(tmp_path / "a.npy", np.zeros((1, 3, 32, 47), np.float32))
    with pytest.raises(ShapeError, match=r"a\.npy"):
        list(read_samples(tmp_path, [IMAGES]))
    np.save(tmp_path / "a.npy", np.zeros((1, 3, 32, 48)))
    with pytest.raises(DTypeError, match="float64"):
        list(read_samples(tmp_path, [IMAGES]))
    np.save(tmp_path / "a.npy", np.array([{}], object), allow_pickle=True)
    with pytest.raises(InputError, match="cannot be read"):
        list(read_samples(tmp_path, [IMAGES]))
    for name in ("a.npy", "a.npz"):
        (tmp_path / name).write_bytes(b"damaged")
        with pytest.raises(InputError, match="cannot be read"):
            list(read_samples(tmp_path / name, [IMAGES]))
    np.savez(tmp_path / "a.npz", images=np.zeros((1, 3, 32, 48), np.float32))
    content = (tmp_path / "a.npz").read_bytes()
    for damaged in (content[:2000], content[:1000] + b"\xff" + content[1001:]):
        (tmp_path / "a.npz").write_bytes(damaged)
        with pytest.raises(InputError, match="cannot be read"):
            list(read_samples(tmp_path / "a.npz", [IMAGES]))
    (tmp_path / "a.png").write_bytes(b"damaged")
    with pytest.raises(ImageError):
        list(read_samples(tmp_path / "a.png", [IMAGES]))
    Image.new("RGB", (9, 9)).save(tmp_path / "a.png")
    with pytest.raises(InputError, match="does not take images"):
        list(read_samples(tmp_path / "a.png", [spec("x", "float32", "n", 10)]))
