"""Embeddings, and the gallery to look them up in."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from head_models import head_model
from PIL import Image
from waiting import together

from infersdk import models
from infersdk.errors import ConfigError, InputError, ShapeError, UnsupportedModelError
from infersdk.models import Classifier, Embedder, Embedding, Gallery, load

pytest.importorskip("onnxruntime")

IMAGE = np.zeros((100, 200, 3), np.uint8)


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("shape", [(128,), (128, 1, 1)])
def test_vectors_have_length_1(tmp_path: Path, rng: np.random.Generator, backend: str, shape: tuple[int, ...]) -> None:
    pytest.importorskip(backend)
    values = rng.normal(0, 3, shape).astype(np.float32)
    path = head_model(tmp_path / "m.onnx", [values], {"task": "embedding"})
    expected = values.reshape(-1) / np.linalg.norm(values)
    with load(path, backend=backend, max_batch=4) as model:
        assert type(model) is Embedder
        for found in (model(IMAGE), model.submit(IMAGE).result(30), *model.map([IMAGE] * 5), *model.stream([IMAGE])):
            np.testing.assert_allclose(found.vector, expected, rtol=1e-6, atol=1e-7)
            assert found.norm == pytest.approx(np.linalg.norm(values), rel=1e-6)
    table = {"type": "embedding", "path": str(path), "backend": backend, "preset": "inception", "fit": "crop"}
    with models.create({"models": {"faces": table}})["faces"] as model:
        np.testing.assert_allclose(model(IMAGE).vector, expected, rtol=1e-6, atol=1e-7)


def test_metadata_first_else_both_readings(tmp_path: Path) -> None:
    vector = np.linspace(-1, 2, 512, dtype=np.float32)  # logits, or a vector
    bare = head_model(tmp_path / "bare.onnx", [vector], {})
    with pytest.raises(UnsupportedModelError, match='type="classifier" or type="embedding"'):
        load(bare)
    with load(bare, type="embedding") as model:
        assert len(model(IMAGE)) == 512
    names = {"names": str({i: f"c{i}" for i in range(512)})}
    for metadata, kind in ((names, Classifier), ({"task": "classify"}, Classifier), ({"task": "reid"}, Embedder)):
        with load(head_model(tmp_path / "m.onnx", [vector], metadata)) as model:
            assert type(model) is kind
    with load(head_model(tmp_path / "k.onnx", [np.ones(1000, np.float32)], {})) as model:
        assert type(model) is Classifier
    with pytest.raises(UnsupportedModelError, match="not a vector"):
        Embedder(head_model(tmp_path / "map.onnx", [np.ones((8, 8), np.float32)], {}))
    with pytest.raises(UnsupportedModelError, match="2 outputs"):
        Embedder(head_model(tmp_path / "two.onnx", [vector, vector], {}))
    with pytest.raises(ConfigError, match="fit"):
        Embedder(bare, fit="pad")
    zero, broken = (head_model(tmp_path / f"{value}.onnx", [vector * value], {}) for value in (0, np.nan))
    with Embedder(zero) as model, pytest.raises(InputError, match="length of 0"):
        model(IMAGE)
    with Embedder(broken) as model, pytest.raises(UnsupportedModelError, match="not finite"):
        model(IMAGE)


@pytest.mark.parametrize("name", ["image_embeds", "pooler_output", "features", "Embedding"])
@pytest.mark.parametrize("open_shapes", [False, True])
def test_the_name_of_an_output_may_say_that_it_is_a_vector(tmp_path: Path, name: str, open_shapes: bool) -> None:
    vector = np.linspace(-1, 2, 440, dtype=np.float32)
    path = head_model(tmp_path / "m.onnx", [vector], {}, names=[name], open_shapes=open_shapes)
    with pytest.raises(UnsupportedModelError, match='type="classifier" or type="embedding"'):
        load(path)
    named = head_model(tmp_path / "n.onnx", [vector], {"task": "classify"}, names=[name], open_shapes=open_shapes)
    with load(named) as model:
        assert type(model) is Classifier
    plane = head_model(tmp_path / "p.onnx", [np.ones((1, 8, 8), np.float32)], {}, names=[name], open_shapes=open_shapes)
    with pytest.raises(UnsupportedModelError):
        load(plane)


@pytest.mark.parametrize("fit", ["stretch", "letterbox", "crop"])
def test_how_an_image_comes_onto_the_input(tmp_path: Path, fit: Any) -> None:
    image = np.zeros((100, 200, 3), np.uint8)
    image[:, 50:150] = 255  # the middle half
    with Embedder(head_model(tmp_path / "m.onnx", [np.ones(64, np.float32)], {}), fit=fit, preset="unit") as model:
        (inputs,) = model.details.network_inputs([image])
    row = inputs["images"][0, 0, 32]
    white = {"stretch": 32, "letterbox": 32, "crop": 64}[fit]
    assert (row > 0.5).sum() == pytest.approx(white, abs=1)


@pytest.mark.parametrize("resize", [None, 64, 80])
def test_images_of_clip_and_dinov2(tmp_path: Path, rng: np.random.Generator, resize: int | None) -> None:
    """As torchvision's Resize and CenterCrop with Pillow's filter, and the normalisation of CLIP."""
    image = rng.integers(0, 256, (100, 131, 3), np.uint8)
    path = head_model(tmp_path / "m.onnx", [np.ones(64, np.float32)], {})
    with Embedder(path, fit="crop", preset="clip", resize=resize, interpolation="bicubic") as model:
        (inputs,) = model.details.network_inputs([image[..., ::-1]])
    height = resize or 64
    resized = Image.fromarray(image).resize((int(131 * height / 100), height), Image.Resampling.BICUBIC)
    left, top = (round((side - 64) / 2) for side in resized.size)
    crop = np.asarray(resized.crop((left, top, left + 64, top + 64))) / 255
    mean, std = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
    np.testing.assert_allclose(inputs["images"][0], ((crop - mean) / std).transpose(2, 0, 1), atol=1e-5)
    with pytest.raises(ConfigError, match="resize=80 is for fit='crop'; with fit='stretch' leave it out"):
        Embedder(path, resize=80)
    with pytest.raises(ConfigError, match="resize=63 is less than the crop"):
        Embedder(path, fit="crop", resize=63)


@pytest.mark.slow
@pytest.mark.assets
@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_persons_of_a_video(assets: Path, backend: str) -> None:
    """The figures of the test data's own notes: the same person 0.75, different ones 0.51."""
    pytest.importorskip(backend)
    pytest.importorskip("av")
    from infersdk.video import VideoReader

    persons = {"a": (80, 160), "b": (280, 440, 800), "c": (580, 660)}  # frames with one person each
    who = {number: name for name, numbers in persons.items() for number in numbers}
    crops: dict[int, np.ndarray] = {}
    with (
        load(assets / "models" / "yolov8n.onnx", backend=backend, conf=0.5, classes="person", max_batch=1) as detector,
        VideoReader(assets / "video" / "people.mp4") as video,
    ):
        for number, frame in enumerate(video):
            if number in who:
                pixels = np.array(frame.pixels)
                (person,) = (box for box in detector(pixels) if box.xyxy[3] - box.xyxy[1] > 100)
                x1, y1, x2, y2 = map(int, person.xyxy)
                crops[number] = np.ascontiguousarray(pixels[y1:y2, x1:x2])
            if number == max(who):
                break
    path = assets / "models" / "osnet_x0_25_msmt17.onnx"
    with load(path, type="embedding", backend=backend) as embed:
        vectors = dict(zip(crops, embed.map(crops.values()), strict=True))
    pairs = [(one, other) for one in who for other in who if one < other]
    same = [vectors[one].cosine(vectors[other]) for one, other in pairs if who[one] == who[other]]
    different = [vectors[one].cosine(vectors[other]) for one, other in pairs if who[one] != who[other]]
    assert min(same) == pytest.approx(0.75, abs=0.03)
    assert np.mean(different) == pytest.approx(0.51, abs=0.03)
    assert max(different) < min(same) - 0.1
    gallery = Gallery((name, vectors[numbers[0]]) for name, numbers in persons.items())
    for number in (160, 440, 800, 660):
        match = gallery.nearest(vectors[number], at_least=0.65)
        assert match.label == who[number]


def test_cosine_and_json(rng: np.random.Generator, tmp_path: Path) -> None:
    a, b = rng.normal(0, 1, (2, 16))
    one, two = Embedding.of(a), Embedding.of(b)
    expected = a @ b / np.linalg.norm(a) / np.linalg.norm(b)
    assert one.cosine(two) == pytest.approx(expected, abs=1e-6)
    assert one.cosine(b) == pytest.approx(expected, abs=1e-6)
    assert one.cosine(one) == pytest.approx(1)
    assert one.cosine(-a) == pytest.approx(-1)
    assert json.loads(one.to_json()) == [{"vector": one.to_list(), "norm": pytest.approx(np.linalg.norm(a))}]
    assert json.loads(one.save(tmp_path / "a.json").read_text())[0]["vector"] == one.to_list()
    np.testing.assert_array_equal(np.asarray(one), one.vector)
    with pytest.raises(ConfigError, match=r"out\.json"):
        one.save(tmp_path / "a.png")
    with pytest.raises(ShapeError, match="16 dimensions, the other one 3"):
        one.cosine([1, 2, 3])
    for largest in (3e38, 1e-44):  # the length, or its reciprocal, is no float32
        np.testing.assert_allclose(Embedding.of([largest, largest]).vector, np.sqrt([0.5, 0.5]), rtol=1e-6)
    for values in (np.zeros(4), [np.inf, 1]):
        with pytest.raises(InputError, match="no direction"):
            Embedding.of(values)
    with pytest.raises(ShapeError, match=r"\(2, 16\)"):
        Embedding.of(np.stack([a, b]))


def test_the_nearest_of_a_gallery(rng: np.random.Generator) -> None:
    vectors = rng.normal(0, 1, (50, 8))
    gallery = Gallery((f"p{i % 10}", Embedding.of(vector)) for i, vector in enumerate(vectors))
    assert len(gallery) == 50
    probe = rng.normal(0, 1, 8)
    cosines = vectors @ probe / np.linalg.norm(vectors, axis=1) / np.linalg.norm(probe)
    found = gallery.search(probe, 7)
    assert [match.number for match in found] == np.argsort(-cosines)[:7].tolist()
    assert [match.label for match in found] == [f"p{match.number % 10}" for match in found]
    np.testing.assert_allclose([match.cosine for match in found], np.sort(cosines)[::-1][:7], atol=1e-6)
    best = gallery.nearest(probe)
    assert best == found[0]
    assert gallery.nearest(probe, at_least=0.9999) is None
    assert len(gallery.search(probe, 99, at_least=0.0)) == (cosines >= 0).sum()
    for twin in (pickle.loads(pickle.dumps(gallery)), copy.deepcopy(gallery)):
        assert twin.search(probe, 7) == found
        twin.add("twin", probe)
    assert "twin" not in gallery.labels
    gallery.add("new", probe)
    assert gallery.nearest(probe).label == "new"  # type: ignore[union-attr]
    assert gallery.labels[-1] == "new"
    assert Gallery().nearest(probe) is None
    assert Gallery(MappingProxyType({"ann": Embedding.of(probe)})).labels == ["ann"]
    with pytest.raises(ShapeError, match="8 dimensions, and this one has 3"):
        gallery.add("short", [1, 2, 3])
    with pytest.raises(ShapeError, match="8 dimensions, and this one has 3"):
        gallery.search([1, 2, 3])
    for wrong in (0, 1.5, None, True):
        with pytest.raises(InputError, match=f"k is {wrong}; it must be a whole number, 1 or more"):
            gallery.search(probe, wrong)
    with pytest.raises(InputError, match="at_least is nan; use a cosine, -1 to 1"):
        gallery.search(probe, at_least=float("nan"))
    with pytest.raises(InputError, match="at_least is 'a'; use a cosine, -1 to 1"):
        gallery.search(probe, at_least="a")  # type: ignore[arg-type]
    assert gallery.search(probe, np.int64(1)) == gallery.search(probe, 1)


def test_a_gallery_keeps_what_was_added() -> None:
    embedding = Embedding.of([1.0, 0.0])
    gallery = Gallery({"ann": embedding})
    embedding.vector[:] = [0, 1]
    assert gallery.search([1.0, 0.0])[0].cosine == 1


@pytest.mark.parametrize("wrong", ["bus.jpg", [[1.0], [1.0, 2.0]], {"x": 1}, np.ones(3, complex)])
def test_what_is_no_vector(wrong: Any) -> None:
    with pytest.raises(InputError, match="an embedding is a vector of numbers, not .*; give the result of a model"):
        Gallery().add("x", wrong)


def test_a_gallery_of_several_threads(rng: np.random.Generator) -> None:
    gallery = Gallery()
    vectors = rng.normal(0, 1, (4, 200, 16))

    def work(number: int) -> None:
        for i, vector in enumerate(vectors[number]):
            gallery.add(f"{number}-{i}", vector)
            if i % 10 == 0:
                match = gallery.nearest(vector)
                assert match.cosine == pytest.approx(1, abs=1e-5)

    together(work, range(4))
    assert len(gallery) == 800
    for number in range(4):
        assert gallery.nearest(vectors[number, 77]).label == f"{number}-77"  # type: ignore[union-attr]
