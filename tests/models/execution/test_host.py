"""Calls on the processor, with images of all shapes and strides."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from onnx_models import node, save, value

from infersdk import errors
from infersdk.image import Geometry, HostImage
from infersdk.models import Timings, VisionModel
from infersdk.models.preprocessor import ImageInput, Preprocessor

if TYPE_CHECKING:
    from numpy.typing import NDArray

pytest.importorskip("onnxruntime")


class Seen(VisionModel[Any]):
    """Returns what the network has seen of an image, and the size of that."""

    def preprocessing(self, input: ImageInput) -> Preprocessor:
        return Preprocessor.letterbox(input, order="rgb", fill=114, scale=1 / 255)

    def postprocess(self, outputs: Mapping[str, NDArray[Any]], geometries: Sequence[Geometry]) -> list[Any]:
        return [(outputs["seen"][i].copy(), geometry.source) for i, geometry in enumerate(geometries)]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    ends = [value(name, ["batch", 3, 32, 32]) for name in ("images", "seen")]
    file = tmp_path_factory.mktemp("seen") / "seen.onnx"
    return save(file, [node("Mul", "images one", "seen")], ends[:1], ends[1:], {"one": np.float32(1)})


@pytest.fixture
def model(path: Path) -> Iterator[Seen]:
    with Seen(path) as seen:
        yield seen


def check(model: Seen, image: NDArray[Any] | HostImage, size: tuple[int, int]) -> None:
    """Calls the model; what the network saw must be what whole batches are given."""
    (expected,) = next(model.details.network_inputs([image])).values()
    seen, source = model(image)
    np.testing.assert_array_equal(seen, expected[0])
    assert source == size


def noise(shape: tuple[int, ...], seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


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
        expected = [image for rows in model.details.network_inputs(images) for image in rows["images"]]
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


@pytest.mark.parametrize("threads", [0, 1])
def test_an_array_that_is_no_image_ends_the_list(path: Path, threads: int) -> None:
    image = noise((20, 30, 3))
    with Seen(path, threads=threads) as model:
        for bad in range(4):
            images: list[Any] = [image] * 4
            images[bad] = image.astype(float)
            with pytest.raises(errors.ImageError, match="uint8, not float64"):
                model(images)
        assert len(model([image] * 9)) == 9


def test_nv12(path: Path) -> None:
    with Seen(path, channel_order="nv12") as model:
        for seed in range(3):
            check(model, noise((30, 24), seed), (24, 20))


def test_a_fixed_batch_has_zeros_behind_its_images(tmp_path: Path) -> None:
    """Networks that quantise their input take its range from all rows."""

    class Behind(Seen):
        def postprocess(self, outputs: Mapping[str, NDArray[Any]], geometries: Sequence[Geometry]) -> list[Any]:
            return [outputs["seen"][len(geometries) :].copy()] * len(geometries)

    ends = [value(name, [3, 3, 32, 32]) for name in ("images", "seen")]
    path = save(tmp_path / "m.onnx", [node("Mul", "images one", "seen")], ends[:1], ends[1:], {"one": np.float32(1)})
    with Behind(path) as model:
        image = noise((24, 40, 3))
        for request in (lambda: model.submit(image).result(60), lambda: model(image)):
            behind = request()
            assert behind.shape == (2, 3, 32, 32)
            assert not behind.any()
        model([image] * 3)
        assert not model(image).any()


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


@pytest.mark.parametrize(
    ("results", "found"),
    [
        (lambda geometries: (None for _ in geometries), "generator"),
        (lambda geometries: None, "NoneType"),
        (lambda geometries: np.zeros((len(geometries), 6)), "ndarray"),
        (lambda geometries: [], "list of 0"),
        (lambda geometries: [1] * (len(geometries) + 1), r"list of \d"),
    ],
)
def test_a_postprocess_that_does_not_return_a_list_of_results(path: Path, results: Any, found: str) -> None:
    class Own(Seen):
        factor: int = 1
        per_call = frozenset({"factor"})

        def postprocess(self, outputs: Mapping[str, NDArray[Any]], geometries: Sequence[Geometry]) -> list[Any]:
            wrong: list[Any] = results(geometries)
            return wrong

    image, message = noise((20, 30, 3)), rf"Own.postprocess\(\) returned a {found}; return a list of one"
    with Own(path, threads=1) as model:
        requests: list[Any] = [
            lambda: model(image), lambda: model([image] * 3), lambda: model(image, factor=2),
            lambda: model.submit(image).result(60),
        ]  # fmt: skip
        for request in requests:
            with pytest.raises(errors.InferenceError, match=message):
                request()


def test_a_wrapper_without_postprocess_is_refused(path: Path) -> None:
    class Own(VisionModel[Any]):
        preprocessing = Seen.preprocessing  # type: ignore[assignment]

    with pytest.raises(TypeError, match="postprocess"):
        Own(path)  # type: ignore[abstract]


# ---- streams ----


def test_a_stream_reads_no_further_ahead_than_a_batch_or_the_cores(path: Path) -> None:
    for threads in (0, 1):
        with Seen(path, threads=threads, max_batch=4) as model:
            taken = 0

            def images(count: int) -> Iterator[Any]:
                nonlocal taken
                for seed in range(count):
                    taken += 1
                    yield noise((20, 30, 3), seed)

            ahead = max(model.network.scheduling.one_core_clones + 1, 4)
            results = model.stream(images(1000))
            for index in range(20):
                seen, _ = next(results)
                (expected,) = next(model.details.network_inputs([noise((20, 30, 3), index)])).values()
                np.testing.assert_array_equal(seen, expected[0])
                assert taken <= index + 1 + ahead


def test_an_error_in_a_stream_comes_behind_the_results_before_it(path: Path) -> None:
    images: list[Any] = [noise((20, 30, 3), seed) for seed in range(6)]
    images[4] = images[4].astype(float)
    with Seen(path) as model:
        if not model.network.scheduling.one_core_clones:
            pytest.skip("the machine has one core")
        results = model.stream(images)
        for _ in range(4):
            next(results)
        with pytest.raises(errors.ImageError, match="uint8, not float64"):
            next(results)


def test_streams_of_a_caller_are_read_by_its_thread(path: Path, tmp_path: Path) -> None:
    """As PIL images: they may belong to the thread that gives them."""
    import io
    import threading

    from PIL import Image

    threads = set[int]()

    class Stream(io.BytesIO):
        def read(self, *arguments: Any) -> bytes:
            threads.add(threading.get_ident())
            return super().read(*arguments)

    buffer = io.BytesIO()
    Image.fromarray(noise((20, 30, 3))).save(buffer, "png")
    for options in ({}, {"threads": 1}):
        with Seen(path, **options) as model:
            assert len(model([Stream(buffer.getvalue()) for _ in range(6)])) == 6
    assert threads == {threading.get_ident()}
