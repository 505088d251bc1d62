"""Semantic segmentation: a class for each pixel."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from head_models import head_model
from onnx_models import onnx
from PIL import Image

from infersdk import models
from infersdk.bundles import pack
from infersdk.errors import ConfigError, InputError, ShapeError, UnsupportedModelError
from infersdk.models import ClassMap, ClassMaps, SemanticSegmentation, TwinLiteNet, load

pytest.importorskip("onnxruntime")

IMAGE = np.zeros((100, 200, 3), np.uint8)
NAMES3 = {"names": "{0: 'sky', 1: 'road', 2: 'car'}"}


def quadrants(size: int = 64) -> np.ndarray:
    """Scores of three classes: sky above, below the road on the left and a car on the right."""
    scores = np.zeros((3, size, size), np.float32)
    half = size // 2
    scores[0, :half], scores[1, half:, :half], scores[2, half:, half:] = 4, 5, 6
    return scores


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("layout", ["chw", "hwc"])
def test_classes_of_pixels(tmp_path: Path, backend: str, layout: str) -> None:
    pytest.importorskip(backend)
    scores = quadrants(32) if layout == "chw" else np.ascontiguousarray(quadrants(32).transpose(1, 2, 0))
    path = head_model(tmp_path / "m.onnx", [scores], NAMES3)
    with load(path, backend=backend, max_batch=4, preset="unit") as model:
        assert type(model) is SemanticSegmentation
        assert model.details.class_count == 3
        for found in (model(IMAGE), model.submit(IMAGE).result(30), *model.map([IMAGE] * 5), *model.stream([IMAGE])):
            assert found.class_ids.shape == (100, 200)
            assert (found.class_ids[:49] == 0).all()
            assert (found.class_ids[52:, :98] == 1).all()
            assert (found.class_ids[52:, 102:] == 2).all()
            assert found.areas == pytest.approx({"sky": 0.5, "car": 0.25, "road": 0.25}, abs=0.01)
    table = {"type": "segmentation", "path": str(path), "backend": backend, "preset": "imagenet", "fit": "letterbox"}
    with models.create({"models": {"scene": table}})["scene"] as model:
        found = model(IMAGE)  # the padding above and below is cut off
        assert (found.class_ids[:48] == 0).all()
        assert (found.class_ids[53:, 103:] == 2).all()


def single(path: Path, left: float, right: float, **metadata: str) -> Path:
    scores = np.full((1, 64, 64), left, np.float32)
    scores[..., 32:] = right
    return head_model(path, [scores], metadata)


def test_a_single_class(tmp_path: Path) -> None:
    path = single(tmp_path / "m.onnx", 0.1, 0.8)
    with SemanticSegmentation(path, preset="unit", names=["background", "person"], max_batch=4) as model:
        assert model.details.class_count == 2
        assert model(IMAGE).area("person") == pytest.approx(0.5, abs=0.01)
        assert model(IMAGE, threshold=0.9).area("person") == 0
        assert model(IMAGE, threshold=0.05).area("person") == 1
        futures = [model.submit(IMAGE, threshold=value) for value in (0.9, 0.05, 0.5)]
        assert [future.result(30).area(1) for future in futures] == pytest.approx([0, 1, 0.5], abs=0.01)
    logits = single(tmp_path / "n.onnx", -3.0, 3.0)
    with SemanticSegmentation(logits, preset="unit", scores="logit") as model:
        for threshold, area in ((0.5, 0.5), (0.96, 0.0), (0.04, 1.0)):
            assert model(IMAGE, threshold=threshold).area(1) == pytest.approx(area, abs=0.01)
    with SemanticSegmentation(logits, preset="unit") as model:
        with pytest.raises(UnsupportedModelError, match=r'from -3 to 3.*scores="logit"'):
            model(IMAGE)
        with pytest.raises(ConfigError, match="threshold"):
            model(IMAGE, threshold=1.0)


def test_nothing_is_guessed(tmp_path: Path) -> None:
    path = head_model(tmp_path / "m.onnx", [quadrants()], NAMES3)
    with pytest.raises(UnsupportedModelError, match='preset="unit".*preset="imagenet"'):
        load(path)
    with load(head_model(tmp_path / "u.onnx", [quadrants()], NAMES3 | {"task": "semantic"})) as model:
        assert type(model) is SemanticSegmentation  # Ultralytics' metadata says it all
    for sides in ("64,64", "h,w"):
        same = onnx.parser.parse_model(
            '<ir_version: 9, opset_import: ["": 17]>'
            f"same (float[1,3,{sides}] image) => (float[1,3,{sides}] out) {{ out = Sqrt(image) }}"
        )
        onnx.save(same, tmp_path / "image.onnx")
        with pytest.raises(UnsupportedModelError, match="its three maps are classes, and not the channels of an image"):
            load(tmp_path / "image.onnx", preset="unit")
    both = head_model(tmp_path / "b.onnx", [np.zeros((64, 64, 64), np.float32)], {})
    with pytest.raises(UnsupportedModelError, match="no scores for each class at points"):
        SemanticSegmentation(both, preset="unit")
    with pytest.raises(UnsupportedModelError, match=r"3 classes.*has 2 names"):
        SemanticSegmentation(path, preset="unit", names=["a", "b"])
    many = head_model(tmp_path / "many.onnx", [np.zeros((256, 64, 64), np.float32)], {})
    with pytest.raises(UnsupportedModelError, match="256 classes"):
        SemanticSegmentation(many, preset="unit")
    detector = head_model(tmp_path / "d.onnx", [np.zeros((6, 84), np.float32)], {})
    with pytest.raises(UnsupportedModelError, match="four dimensions"):
        SemanticSegmentation(detector, preset="unit")
    two = head_model(tmp_path / "two.onnx", [quadrants(), quadrants()], {})
    with pytest.raises(UnsupportedModelError, match="2 outputs"):
        SemanticSegmentation(two, preset="unit")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_scores_that_are_not_finite_in_the_first_run(tmp_path: Path, value: float) -> None:
    scores = quadrants()
    scores[2, 5, 5] = value
    path = head_model(tmp_path / "m.onnx", [scores], NAMES3)
    said = pytest.raises(UnsupportedModelError, match="'output0' has values that are not finite in its first run")
    with SemanticSegmentation(path, preset="unit") as model, said:
        model(IMAGE)


def test_open_shapes_are_learned_in_the_first_run(tmp_path: Path) -> None:
    path = head_model(tmp_path / "m.onnx", [quadrants()], NAMES3, open_shapes=True)
    with SemanticSegmentation(path, preset="unit") as model:
        assert model(IMAGE).labels == ["sky", "road", "car"]
        assert model.details.class_count == 3
    pack(path, tmp_path / "m.infer", images=[IMAGE], type="segmentation", settings={"preset": "unit"})
    with load(tmp_path / "m.infer", verify="always") as model:
        assert model(IMAGE).labels == ["sky", "road", "car"]


@pytest.mark.parametrize("axis", [(), (0,), (2,)], ids=["bhw", "b1hw", "bhw1"])
def test_class_numbers(tmp_path: Path, axis: tuple[int, ...]) -> None:
    """Models that end with argmax."""
    numbers = quadrants().argmax(0)
    path = head_model(tmp_path / "m.onnx", [np.expand_dims(numbers, axis)], NAMES3)
    with load(path, preset="unit", max_batch=2) as model:
        assert type(model) is SemanticSegmentation
        found = model(IMAGE)
        assert found.labels == ["sky", "road", "car"]
        assert [one.areas for one in model.map([IMAGE] * 3)] == [found.areas] * 3
    fixed = head_model(tmp_path / "fixed.onnx", [np.expand_dims(numbers, axis)], NAMES3, batch=3)
    with load(fixed, preset="unit") as model:
        assert model(IMAGE).areas == found.areas
    scores = head_model(tmp_path / "scores.onnx", [quadrants()], NAMES3)
    with load(scores, preset="unit") as model:
        assert np.mean(found.class_ids == model(IMAGE).class_ids) > 0.99


@pytest.mark.parametrize("background", [-1, 3, 500])
def test_a_background_that_is_no_class(background: int, tmp_path: Path) -> None:
    path = head_model(tmp_path / "m.onnx", [quadrants()], NAMES3)
    with pytest.raises(ConfigError, match=rf"background={background} is no class; use 0 to 2, "):
        SemanticSegmentation(path, preset="unit", background=background)
    numbers = head_model(tmp_path / "n.onnx", [quadrants().argmax(0)], {})
    if background == 3:  # how many classes there are is not known
        SemanticSegmentation(numbers, preset="unit", background=background).close()
    else:
        with pytest.raises(ConfigError, match=rf"background={background} is no class; use 0 to 254, "):
            SemanticSegmentation(numbers, preset="unit", background=background)


def test_class_numbers_are_checked(tmp_path: Path) -> None:
    numbers = quadrants().argmax(0)
    path = head_model(tmp_path / "m.onnx", [numbers], {})
    with SemanticSegmentation(path, preset="unit") as model:
        assert model(IMAGE).background is None  # how many classes there are is not known
        assert model.details.class_count is None
    with (
        SemanticSegmentation(path, preset="unit", names=["sky", "road"]) as model,
        pytest.raises(UnsupportedModelError, match=r"from 0 to 2 in its first run, and there are names for 2 classes"),
    ):
        model(IMAGE)
    negative = head_model(tmp_path / "n.onnx", [numbers - 1], {})
    with (
        SemanticSegmentation(negative, preset="unit") as model,
        pytest.raises(UnsupportedModelError, match="from -1 to 1 in its first run"),
    ):
        model(IMAGE)
    several = head_model(tmp_path / "s.onnx", [np.stack([numbers] * 3)], {})
    with pytest.raises(UnsupportedModelError, match="no map of class numbers over its input"):
        SemanticSegmentation(several, preset="unit")


def test_twinlitenet_by_the_names_of_its_outputs(tmp_path: Path) -> None:
    area, lanes = np.zeros((2, 2, 64, 64), np.float32)
    area[0] = lanes[0] = 0.5
    area[1, 32:], lanes[1, :, 30:34] = 1, 1

    def file(name: str, *outputs: str) -> Path:
        return head_model(tmp_path / name, [area, lanes], {}, names=outputs)

    with load(file("order.onnx"), max_batch=2) as model:
        assert type(model) is TwinLiteNet
        found = model(IMAGE)
        assert list(found) == ["area", "lanes"]
        assert found["area"].area("drivable area") == pytest.approx(0.5, abs=0.01)
        assert found.areas == pytest.approx({"area": 0.5, "lanes": 4 / 64}, abs=0.01)
        assert [one.areas for one in model.map([IMAGE] * 3)] == [found.areas] * 3
        Image.fromarray(IMAGE).save(tmp_path / "a.png")
        decoded = model(tmp_path / "a.png")
        assert [one.decoder for one in (decoded, *decoded.maps.values())] == ["pillow"] * 3
    for names in (("da", "ll"), ("drivable_area", "lane_lines")):
        with load(file("said.onnx", *names)) as model:
            assert model(IMAGE).areas == found.areas
    for names in (("lanes", "segmentation"), ("ll", "da"), ("x", "road")):
        swapped = file("swapped.onnx", *names)
        with pytest.raises(UnsupportedModelError, match=rf'area="{names[0]}", lanes="{names[1]}" if the order'):
            load(swapped)
        with TwinLiteNet(swapped, area=names[0], lanes=names[1]) as model:
            assert model(IMAGE).areas == found.areas
        with TwinLiteNet(swapped, area=names[1], lanes=names[0]) as model:
            assert model(IMAGE).areas == {"area": found.areas["lanes"], "lanes": found.areas["area"]}
    with pytest.raises(UnsupportedModelError, match="area='x' and lanes=None do not name"):
        TwinLiteNet(file("order.onnx"), area="x")


# ---- results ----


def test_a_map_goes_on_to_other_programs(tmp_path: Path) -> None:
    class_ids = np.zeros((20, 30), np.uint8)
    class_ids[5:15, 10:20], class_ids[18:] = 2, 255
    found = ClassMap(class_ids, ("sky", "road", "car"), background=0)
    assert repr(found) == "<ClassMap: sky 73.3%, car 16.7% in 30 x 20>"
    rows = json.loads(found.to_json())
    assert rows[1] == {"class_id": 2, "label": "car", "pixels": 100, "area": pytest.approx(1 / 6)}
    assert found.labels == ["sky", "car"]
    assert found.mask("car").sum() == found.mask(2).sum() == 100
    with pytest.raises(ConfigError, match="no class 'cat'.*car"):
        found.mask("cat")
    (row,) = found.to_coco(np.int64(7), [1, 2, 3])
    assert type(row["image_id"]) is int
    assert (row["image_id"], row["category_id"], row["segmentation"]["size"]) == (7, 3, [20, 30])
    with pytest.raises(InputError, match="class 2"):
        found.to_coco(7, [1, 2])
    assert np.array_equal(np.asarray(found.to_pil()), class_ids)

    image = np.full((20, 30, 3), 100, np.uint8)
    drawn = np.asarray(found.draw(image, opacity=0.5))
    tinted = (drawn != 100).any(axis=2)
    assert np.array_equal(tinted, class_ids == 2), "neither the background nor what was not seen"
    assert np.array_equal(np.asarray(found.draw(image, opacity=0)), image)
    with pytest.raises(InputError, match="not known any more"):
        found.draw()
    with pytest.raises(InputError, match=r"10 x 20 pixels, and the ClassMap 30 x 20"):
        found.draw(image[:, :10])
    for wrong in (2, "a"):
        with pytest.raises(InputError, match=f"opacity is {wrong!r}; use 0 to 1"):
            found.draw(image, opacity=wrong)
    with pytest.raises(ShapeError, match="float32"):
        ClassMap(class_ids.astype(np.float32), ())


def test_to_supervision() -> None:
    pytest.importorskip("supervision")
    class_ids = np.zeros((20, 30), np.uint8)
    class_ids[5:15, 10:20] = 2
    found = ClassMap(class_ids, ("sky", "road", "car"), background=0).to_supervision()
    assert found.xyxy.tolist() == [[10, 5, 20, 15]]
    assert found.mask.sum() == 100
    assert found.data["class_name"].tolist() == ["car"]
    assert len(ClassMap(class_ids * 0, (), 0).to_supervision()) == 0


def test_several_maps() -> None:
    low, high = np.zeros((2, 8, 8), np.uint8)
    low[:4], high[2:] = 1, 1
    found = ClassMaps(
        {"low": ClassMap(low, ("no", "low"), 0), "high": ClassMap(high, ("no", "high"), 0, first_colour=3)}
    )
    assert repr(found) == "<ClassMaps: low 50.0%, high 75.0% in 8 x 8>"
    assert ClassMaps({"low": ClassMap(low, ("no", "low"), background=7)}).areas == {"low": 1.0}
    assert [row["map"] for row in json.loads(found.to_json())] == ["low", "low", "high", "high"]
    drawn = np.asarray(found.draw(np.zeros((8, 8, 3), np.uint8)))
    assert len({tuple(colour) for colour in drawn.reshape(-1, 3).tolist()}) == 3
    with pytest.raises(InputError, match="the maps a cannot be compared with low, high; give results of one model"):
        found.agreement(ClassMaps({"a": ClassMap(low, ())}))
    with pytest.raises(ShapeError, match="sizes"):
        ClassMaps({"a": ClassMap(low, ()), "b": ClassMap(low[:4], ())})


# ---- models of the test data ----


@pytest.mark.assets
@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_areas_of_twinlitenet(assets: Path, backend: str) -> None:
    pytest.importorskip(backend)
    images = sorted((assets / "driving").glob("frame_*.jpg"))[::2]
    path = assets / "models" / "twinlitenet.onnx"
    with load(path, type="twinlitenet", backend=backend, area="lanes", lanes="segmentation") as model:
        areas = [found.areas for found in model.stream(images)]
    # The figures of the test data's own notes.
    assert [one["area"] for one in areas] == pytest.approx([0.233, 0.207, 0.236], abs=0.002)
    assert [one["lanes"] for one in areas] == pytest.approx([0.031, 0.024, 0.019], abs=0.002)


@pytest.mark.assets
@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_people_of_selfie_segmentation(assets: Path, backend: str) -> None:
    """Channels last, a probability. The notes say an IoU of 0.61; it is that of the images which people cover by more
    than a tenth.
    """
    pytest.importorskip(backend)
    annotations: Any = json.loads((assets / "coco" / "instances_val.json").read_text())
    pycoco = pytest.importorskip("pycocotools.mask")
    sizes = {entry["id"]: entry for entry in annotations["images"]}
    people: dict[int, list[Any]] = {}
    for row in annotations["annotations"]:
        if row["category_id"] == 1 and not row["iscrowd"]:
            people.setdefault(row["image_id"], []).append(row)
    overlaps = []
    settings = {"preset": "unit", "names": ["background", "person"], "backend": backend}
    with load(assets / "models" / "selfie_segmentation.onnx", type="segmentation", **settings) as model:
        assert type(model) is SemanticSegmentation
        for number, rows in people.items():
            image = sizes[number]
            height, width = image["height"], image["width"]
            runs = [run for row in rows for run in pycoco.frPyObjects(row["segmentation"], height, width)]
            truth = pycoco.decode([pycoco.merge(runs)])[..., 0].astype(bool)
            if truth.mean() > 0.1:
                mask = model(assets / "coco" / "val" / image["file_name"]).mask("person")
                overlaps.append((mask & truth).sum() / (mask | truth).sum())
    assert len(overlaps) == 25
    assert np.mean(overlaps) == pytest.approx(0.61, abs=0.005)
