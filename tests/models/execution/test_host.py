"""Calls with one image on the processor: where an array of its shape and strides came before, less is done."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from infersdk import errors
from infersdk.image import Geometry, HostImage
from infersdk.models import Timings, VisionModel
from infersdk.models.execution import placements
from infersdk.models.preprocessor import ImageInput, Preprocessor

if TYPE_CHECKING:
    from numpy.typing import NDArray

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


class Seen(VisionModel[Any]):
    """Returns what the network has seen of an image, and the size of that."""

    def preprocessing(self, input: ImageInput) -> Preprocessor:
        return Preprocessor.letterbox(input, channel_order=self.channel_order, order="rgb", fill=114, scale=1 / 255)

    def postprocess(self, outputs: Mapping[str, NDArray[Any]], geometries: Sequence[Geometry]) -> list[Any]:
        return [(outputs["seen"][i].copy(), geometry.source) for i, geometry in enumerate(geometries)]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from onnx import TensorProto, helper, numpy_helper

    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 3, 32, 32]) for name in ("images", "seen")]
    nodes = [helper.make_node("Mul", ["images", "one"], ["seen"])]
    graph = helper.make_graph(nodes, "seen", ends[:1], ends[1:], [numpy_helper.from_array(np.float32(1), "one")])
    file = tmp_path_factory.mktemp("seen") / "seen.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), file)
    return file


@pytest.fixture
def model(path: Path) -> Iterator[Seen]:
    with Seen(path) as seen:
        yield seen


def check(model: Seen, image: NDArray[Any] | HostImage, size: tuple[int, int]) -> None:
    """Calls the model; what the network saw must be what whole batches are given."""
    (expected,) = next(model.network_inputs([image])).values()
    seen, source = model(image)
    np.testing.assert_array_equal(seen, expected[0])
    assert source == size


def noise(shape: tuple[int, ...], seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def test_images_of_one_shape_are_each_seen_as_they_are(model: Seen) -> None:
    for seed in range(3):
        check(model, noise((20, 30, 3), seed), (30, 20))
    image = noise((20, 30, 3), 4)
    check(model, image, (30, 20))
    image[:] = noise((20, 30, 3), 5)
    check(model, image, (30, 20))


@pytest.mark.parametrize(
    "take",
    [
        pytest.param(lambda image: image[::-1], id="mirrored-rows"),
        pytest.param(lambda image: image[:, ::-1], id="mirrored-columns"),
        pytest.param(lambda image: image[..., ::-1], id="reversed-channels"),
        pytest.param(lambda image: image[2:12, 3:20], id="a-region"),
        pytest.param(lambda image: np.dstack([image, image[..., :1]])[..., :3], id="three-of-four-channels"),
        pytest.param(lambda image: image[..., 0], id="a-channel"),
        pytest.param(np.asfortranarray, id="fortran-order"),
    ],
)
def test_arrays_of_any_strides(model: Seen, take: Any) -> None:
    for seed in range(3):
        image = take(noise((20, 30, 3), seed))
        check(model, image, (image.shape[1], image.shape[0]))


def test_a_shape_has_several_strides(model: Seen) -> None:
    """The same shape, once dense and once as every second row: what is kept of one is not taken for the other."""
    for seed in range(2):
        whole = noise((40, 30, 3), seed)
        check(model, whole[:20], (30, 20))
        check(model, whole[::2], (30, 20))
        check(model, np.moveaxis(noise((3, 20, 30), seed), 0, -1), (30, 20))


@pytest.mark.parametrize("count", [2, 8, 19])
def test_lists_of_arrays(model: Seen, count: int) -> None:
    """More than a batch, of different shapes and strides; some are copied before they are preprocessed."""
    takes: list[Any] = [
        lambda image: image,
        lambda image: image[::-1],
        lambda image: image[..., ::-1],
        np.asfortranarray,
    ]
    for seed in range(2):
        images = [takes[i % 4](noise((20 + i // 8, 30, 3), 100 * seed + i)) for i in range(count)]
        expected = [image for rows in model.network_inputs(images) for image in rows["images"]]
        results = model(images)
        assert len(results) == len(expected) == count
        for image, (seen, source), other in zip(images, results, expected, strict=True):
            np.testing.assert_array_equal(seen, other)
            assert source == (image.shape[1], image.shape[0])


def test_lists_with_other_sources(model: Seen) -> None:
    """What is not an array takes the path of files; the results stay in order."""
    images: list[Any] = [noise((20, 30, 3), seed) for seed in range(5)]
    images[2] = HostImage(images[2], "bgr")
    expected = [model(image)[0] for image in images]
    for (seen, _), other in zip(model(images), expected, strict=True):
        np.testing.assert_array_equal(seen, other)
    assert model([]) == []


def test_an_array_that_is_no_image_ends_its_batch(model: Seen) -> None:
    runs = 0
    forward = model.network.forward

    def counted() -> Any:
        nonlocal runs
        runs += 1
        return forward()

    image = noise((20, 30, 3))
    model([image, image])
    model.network.forward = counted  # type: ignore[method-assign]
    with pytest.raises(errors.ImageError, match="uint8, not float64"):
        model([image, image.astype(float)])
    assert runs == 0
    model([image, image])
    assert runs == 1


def test_nv12(path: Path) -> None:
    with Seen(path, channel_order="nv12") as model:
        for seed in range(3):
            check(model, noise((30, 24), seed), (24, 20))


def test_kinds_of_sources_take_turns(model: Seen) -> None:
    for seed in range(3):
        image = noise((20, 30, 3), seed)
        check(model, image, (30, 20))
        check(model, HostImage(image, "rgb"), (30, 20))
        check(model, noise((20, 30, 4), seed), (30, 20))


def test_an_array_of_another_type_is_refused_after_images_of_its_shape(model: Seen) -> None:
    image = noise((20, 30, 3))
    for _ in range(2):
        model(image)
        with pytest.raises(errors.ImageError, match="uint8, not int8"):
            model(image.view(np.int8))


def test_many_shapes(model: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placements, "KNOWN_SHAPES", 4)
    for width in [*range(8, 20), *range(8, 20)]:
        check(model, noise((10, width, 3), width), (width, 10))


def test_no_image_is_kept_alive(model: Seen) -> None:
    for seed in range(2):
        image = noise((20, 30, 3), seed)
        alive = weakref.ref(image)
        model(image)
        del image
        gc.collect()
        assert alive() is None


def test_the_network_may_be_used_between_calls(model: Seen) -> None:
    """Its input may be resized, filled and bound by others, and its memory given back."""
    image = noise((20, 30, 3))
    check(model, image, (30, 20))
    model.network(np.zeros((5, 3, 32, 32), np.float32))
    check(model, image, (30, 20))
    model.network.release()
    check(model, image, (30, 20))
    model.release()
    check(model, image, (30, 20))


def test_stages_are_timed(model: Seen) -> None:
    model(noise((20, 30, 3)))
    first = model.timings
    model(noise((20, 30, 3)))
    assert isinstance(first, Timings)
    assert model.timings is not first
    assert min(model.timings.preprocess, model.timings.infer, model.timings.postprocess) > 0
    assert model.timings.total >= model.timings.infer
