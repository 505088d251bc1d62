"""The classifier wrapper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_models import node, onnx, save, value
from PIL import Image

from infersdk import errors
from infersdk.image import Geometry, PixelTransform, image_view
from infersdk.models import Classifier
from infersdk.ops import preprocess

pytest.importorskip("onnxruntime")
#: The filters of Pillow, by the names of `interpolation`.
PILLOW = {"bilinear-antialias": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


def mean_model(path: Path, size: int | str = 8, dtype: str = "float32", softmax: bool = False) -> Path:
    """A classifier of three classes whose logits are ten times the means of the three input channels."""
    nodes = [
        node("ReduceMean", "data", "mean", axes=[2, 3], keepdims=0),
        node("Mul", "mean ten", "scaled" if softmax else "logits"),
    ]
    if softmax:
        nodes.append(node("Softmax", "scaled", "logits", axis=1))
    data, logits = value("data", ["n", 3, size, size], dtype), value("logits", ["n", 3], dtype)
    metadata = {"names": '["red", "green", "blue"]'}
    return save(path, nodes, [data], [logits], {"ten": np.array(10, dtype)}, opset=13, metadata=metadata)


def red(height: int = 20, width: int = 30) -> np.ndarray[Any, Any]:
    """An all red image, in OpenCV's BGR."""
    image = np.zeros((height, width, 3), np.uint8)
    image[..., 2] = 255
    return image


def softmax(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    e = np.exp(x - x.max())
    return e / e.sum()


def test_channels_normalisation_and_softmax(tmp_path: Path) -> None:
    path = mean_model(tmp_path / "m.onnx")
    with Classifier(path, preset="unit", resize=8) as model:
        found = model(red())
    assert found.labels == ["red", "green", "blue"]
    np.testing.assert_allclose(found.scores, softmax(np.array([10.0, 0, 0])), rtol=1e-5)
    with Classifier(path, preset="caffe", resize=8, softmax=False) as model:
        raw = model(red())
    # BGR minus (104, 117, 123): blue is -104, green -117, red 132
    assert raw.class_ids.tolist() == [2, 0, 1]
    np.testing.assert_allclose(raw.scores, [1320, -1040, -1170], rtol=1e-5)
    with Classifier(
        path, resize=8, mean=[0.5, 0, 0], std=[0.5, 1, 1], scale=1 / 255, input_order="rgb", softmax=False
    ) as model:
        np.testing.assert_allclose(model(red())[0].score, 10, rtol=1e-5)
    with Classifier(path, preset="unit", resize=8, channel_order="rgb") as model:
        assert model(red())[0].label == "blue"


def test_probabilities_are_left_alone(tmp_path: Path) -> None:
    with Classifier(mean_model(tmp_path / "s.onnx", softmax=True), preset="unit", resize=8, top_k=2) as model:
        found = model(red())
    assert len(found) == 2
    np.testing.assert_allclose(found.scores[0], softmax(np.array([10.0, 0, 0]))[0], rtol=1e-5)


def quantised_model(path: Path) -> Path:
    """Probabilities of three classes in steps of 1/16, of which those of mixed colours do not add up to 1."""
    path = mean_model(path, softmax=True)
    model = onnx.load(path)
    model.graph.node[-1].output[0] = "exact"
    model.graph.node.extend(
        [node("QuantizeLinear", "exact step", "whole"), node("DequantizeLinear", "whole step", "logits")]
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(1 / 16), "step"))
    onnx.save(model, path)
    return path


def test_the_first_run_decides_on_softmax_for_all_images(tmp_path: Path) -> None:
    path = quantised_model(tmp_path / "q.onnx")
    mixed = np.full((8, 8, 3), 255, np.uint8)  # 5/16 for each class
    with Classifier(path, preset="unit", resize=8) as model:
        assert [model(image).scores.max() for image in (red(), mixed, red())] == [1, 5 / 16, 1]
        assert [result.scores.max() for result in model([mixed, red()])] == [5 / 16, 1]
        assert model(mixed, top_k=1).scores == 5 / 16
        with model.clone() as twin:
            assert twin(mixed).scores.max() == 5 / 16
    refused = pytest.raises(errors.UnsupportedModelError, match="do not add up to 1.* give softmax=False")
    with Classifier(path, preset="unit", resize=8) as model, refused:
        model(mixed)
    with Classifier(path, preset="unit", resize=8, softmax=False) as model:
        assert model(mixed, softmax=False).scores.max() == 5 / 16
        with pytest.raises(errors.UnsupportedModelError, match="do not add up to 1.* give softmax=False"):
            model(mixed, softmax=None)


def test_a_first_run_of_zeros_does_not_decide_on_softmax(tmp_path: Path) -> None:
    nodes = [node("ReduceMean", "data", "scores", axes=[2, 3], keepdims=0)]
    path = save(tmp_path / "m.onnx", nodes, [value("data", ["n", 3, 8, 8])], [value("scores", ["n", 3])], opset=13)
    black, grey = np.zeros((8, 8, 3), np.uint8), np.full((8, 8, 3), 51, np.uint8)
    with Classifier(path, preset="unit", resize=8) as model:
        np.testing.assert_allclose(model(black).scores, 1 / 3, rtol=1e-6)
        with pytest.raises(errors.UnsupportedModelError, match="do not add up to 1"):
            model(grey)
        np.testing.assert_allclose(model(red()).scores, [1, 0, 0], atol=1e-6)
        np.testing.assert_allclose(model(grey).scores, 0.2, rtol=1e-5)


def test_open_size_float16_and_lists(tmp_path: Path) -> None:
    path = mean_model(tmp_path / "o.onnx", size="side", dtype="float16")
    with Classifier(path, preset="unit", crop=12, max_batch=2) as model:
        assert model.input_size == (12, 12)
        assert model.preprocessing(model._input).geometry((40, 40)).resized == (14, 14)
        assert [r[0].label for r in model([red(), red(40, 13), red(12, 12)])] == ["red"] * 3


@pytest.mark.parametrize("declared", [["n", 3, 8], ["n", "c", "w"]])
def test_boxes_are_no_classes(declared: list[int | str], tmp_path: Path) -> None:
    nodes = [node("ReduceMean", "data", "boxes", axes=[2], keepdims=0)]
    path = save(tmp_path / "boxes.onnx", nodes, [value("data", ["n", 3, 8, 8])], [value("boxes", declared)], opset=13)
    with pytest.raises(errors.UnsupportedModelError, match="not a row of classes"), Classifier(path) as model:
        model(red())


def test_more_names_than_classes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.UnsupportedModelError, match="3 classes.* 4 names"):
        Classifier(mean_model(tmp_path / "m.onnx"), names=["a", "b", "c", "d"])


def with_metadata(path: Path, **entries: str) -> Path:
    model = onnx.load(path)
    onnx.helper.set_model_props(model, entries)
    onnx.save(model, path)
    return path


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        (  # timm
            {"mean": "[0.5, 0.25, 0]", "std": "(0.5, 1, 1)", "input_size": "(3, 8, 8)"},
            {"mean": [0.5, 0.25, 0], "std": [0.5, 1, 1], "scale": 1 / 255, "input_order": "rgb"},
        ),
        (  # OpenVINO's model_api
            {"model_info mean_values": "104 117 123", "model_info reverse_input_channels": "NO"},
            {"mean": [104, 117, 123], "std": 1, "scale": 1, "input_order": "bgr"},
        ),
        ({"scale_values": "255.0", "color_order": "BGR"}, {"mean": 0, "std": 255, "scale": 1, "input_order": "bgr"}),
        ({"mean": "0.5", "std": "0.5", "input_order": "'rgb'"}, {"preset": "inception"}),
        ({"mean": "0", "std": "1", "scale": "0.1"}, {"mean": 0, "std": 1, "scale": 0.1, "input_order": "rgb"}),
        (
            {"author": "Ultralytics", "imgsz": "[8, 8]"},
            {"preset": "unit", "resize": 8, "interpolation": "bilinear-antialias"},
        ),
        ({"interpolation": "bilinear"}, {"interpolation": "bilinear-antialias"}),
        ({"interpolation": "bicubic"}, {"interpolation": "bicubic"}),
        ({"input_size": "(3, 8, 8)", "crop_pct": "0.8"}, {"resize": 10}),
    ],
)
def test_metadata_is_used(
    entries: dict[str, str], expected: dict[str, Any], tmp_path: Path, rng: np.random.Generator
) -> None:
    plain = mean_model(tmp_path / "plain.onnx")
    stated = with_metadata(mean_model(tmp_path / "stated.onnx"), **entries)
    image = rng.integers(0, 256, (20, 30, 3), np.uint8)
    with Classifier(stated, softmax=False) as model, Classifier(plain, softmax=False, **expected) as other:
        found, wanted = model(image), other(image)
        np.testing.assert_array_equal(found.class_ids, wanted.class_ids)
        np.testing.assert_allclose(found.scores, wanted.scores, rtol=1e-5, atol=1e-5)
    if "preset" not in expected and "mean" in expected:
        with (
            Classifier(stated, softmax=False, preset="unit") as model,
            Classifier(plain, softmax=False, preset="unit") as other,
        ):
            np.testing.assert_array_equal(model(image).scores, other(image).scores)


def test_a_size_in_the_metadata_is_for_models_that_leave_it_open(tmp_path: Path) -> None:
    path = with_metadata(mean_model(tmp_path / "m.onnx", size="side"), input_size="(3, 10, 12)")
    with Classifier(path) as model:
        assert model.input_size == (12, 10)
    with Classifier(path, crop=6) as model:
        assert model.input_size == (6, 6)
    fixed = with_metadata(mean_model(tmp_path / "f.onnx"), input_size="(3, 10, 12)")
    with Classifier(fixed) as model:
        assert model.input_size == (8, 8)


@pytest.mark.parametrize(
    ("entries", "words", "remedy"),
    [
        ({"mean": "many"}, "mean is 'many', not one number, or one for each channel", {"preset": "unit"}),
        ({"mean": "0.5, 0.5"}, "one number, or one for each channel", {"mean": 0.5, "std": 0.5, "scale": 1 / 255}),
        ({"mean": "0", "std": "1"}, "does not say which", {"mean": 0, "std": 1, "scale": 1.0}),
        ({"std": "0"}, "does not say which", {"preset": "unit"}),
        ({"std": "0 1 300"}, "must be above 0", {"preset": "unit"}),
        ({"input_order": "yuv"}, "one of rgb, bgr", {"input_order": "rgb"}),
        ({"interpolation": "lanczos"}, "one of bilinear, bicubic", {"interpolation": "bilinear"}),
        ({"input_size": "(1, 3, 8, 8)"}, "not a size", {"crop": 8, "resize": 8}),
        ({"input_size": "8", "crop_pct": "0"}, "a number above 0", {"resize": 8}),
    ],
)
def test_metadata_that_cannot_be_used(
    entries: dict[str, str], words: str, remedy: dict[str, Any], tmp_path: Path
) -> None:
    """It is refused with what to give instead, and what is given replaces it."""
    path = with_metadata(mean_model(tmp_path / "m.onnx"), **entries)
    with pytest.raises(errors.ConfigError, match=words):
        Classifier(path)
    with Classifier(path, **remedy) as model:
        assert model(red())[0].label == "0"


@pytest.mark.parametrize("framing", ["crop", "stretch"])
@pytest.mark.parametrize("interpolation", ["bilinear", *PILLOW])
def test_framing_and_interpolation(framing: str, interpolation: str, tmp_path: Path, rng: np.random.Generator) -> None:
    """The network's input, against Pillow and OpenCV, in every kind of call."""
    cv2 = pytest.importorskip("cv2")

    image = rng.integers(0, 256, (45, 60, 3), np.uint8)
    size = (8, 8) if framing == "stretch" else (13, 10)
    if interpolation in PILLOW:
        resized = np.asarray(Image.fromarray(image).resize(size, PILLOW[interpolation]))
    else:
        resized = cv2.resize(image, size)
    left, top = ((side - 8) // 2 for side in size)
    if framing == "crop":
        left = round((size[0] - 8) / 2)  # torchvision's CenterCrop
    canvas = resized[top : top + 8, left : left + 8]
    expected = (canvas[..., ::-1].astype(np.float32) / np.float32(255)).transpose(2, 0, 1)
    settings: dict[str, Any] = {"preset": "unit", "framing": framing, "interpolation": interpolation, "max_batch": 2}
    if framing == "crop":
        settings["resize"] = 10
    with Classifier(mean_model(tmp_path / "m.onnx"), **settings) as model:
        (found,) = (inputs["data"][0] for inputs in model.details.network_inputs([image]))
        np.testing.assert_allclose(found, expected, atol=1e-6)
        direct = model(image)
        for other in (*model([image, image]), model.submit(image).result(60), *model.stream([image])):
            np.testing.assert_allclose(other.scores, direct.scores, rtol=1e-5)
        rgba = np.dstack([image, np.full(image.shape[:2], 7, np.uint8)])
        np.testing.assert_allclose(model(rgba).scores, direct.scores, rtol=1e-5)
        assert len(model(image[..., 0])) == 3


@pytest.mark.parametrize("interpolation", PILLOW)
def test_frames_in_nv12(interpolation: str, tmp_path: Path, rng: np.random.Generator) -> None:
    """They are resized as the same frame in BGR."""
    frame = rng.integers(0, 256, (60, 64), np.uint8)
    whole = Geometry.stretch((64, 40), (64, 40))
    bgr = preprocess(image_view(frame, "nv12"), whole, PixelTransform("bgr", "hwc", "uint8", scale=1.0))
    settings: dict[str, Any] = {"preset": "unit", "interpolation": interpolation, "resize": 10}
    path = mean_model(tmp_path / "m.onnx")
    with Classifier(path, channel_order="nv12", **settings) as model, Classifier(path, **settings) as other:
        np.testing.assert_array_equal(model(frame).scores, other(bgr).scores)


@pytest.mark.parametrize("framing", ["crop", "stretch"])
def test_postprocess_gets_the_geometry_of_the_image_with_any_interpolation(framing: str, tmp_path: Path) -> None:
    class Placed(Classifier):
        def postprocess(self, outputs: Any, geometries: Any) -> Any:
            return [(one.source, one.to_source([[0, 0], [3, 5]]).tolist()) for one in geometries]

    image, found = np.zeros((45, 60, 3), np.uint8), []
    for interpolation in ("bilinear", *PILLOW):
        with Placed(mean_model(tmp_path / "m.onnx"), framing=framing, preset="unit", interpolation=interpolation) as m:
            found += [m(image), *m([image] * 2), m.submit(image).result(60)]
    assert found[0][0] == (60, 45)
    assert found == [found[0]] * 12


@pytest.mark.parametrize("interpolation", ["bilinear", *PILLOW])
@pytest.mark.parametrize(
    ("source", "resized", "corner"),
    [((60, 45), (36, 27), (2, 6)), ((45, 90), (36, 72), (2, 28)), ((90, 30), (54, 18), (11, 1))],
)
def test_a_crop_covers_an_input_that_is_not_square(
    source: tuple[int, int],
    resized: tuple[int, int],
    corner: tuple[int, int],
    interpolation: str,
    tmp_path: Path,
    rng: np.random.Generator,
) -> None:
    """As timm's ResizeKeepRatio and CenterCrop: the input is 32 x 16, and crop_pct brings 16 to 18."""
    cv2 = pytest.importorskip("cv2")

    image = rng.integers(0, 256, (source[1], source[0], 3), np.uint8)
    if interpolation in PILLOW:
        whole = np.asarray(Image.fromarray(image).resize(resized, PILLOW[interpolation]))
    else:
        whole = cv2.resize(image, resized)
    left, top = corner
    canvas = whole[top : top + 16, left : left + 32]
    path = with_metadata(mean_model(tmp_path / "m.onnx", "side"), input_size="(3, 16, 32)", crop_pct="0.8888")
    with Classifier(path, preset="unit", interpolation=interpolation) as model:
        (found,) = (inputs["data"][0] for inputs in model.details.network_inputs([image]))
    expected = (canvas[..., ::-1].astype(np.float32) / np.float32(255)).transpose(2, 0, 1)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_bad_settings(tmp_path: Path) -> None:
    path = mean_model(tmp_path / "m.onnx")
    for settings, words in [
        ({"preset": "imagnet"}, "imagnet"),
        ({"resize": 4}, "resize=4"),
        ({"top_k": 0}, "top_k"),
        ({"mean": [1, 2]}, "mean"),
        ({"scale": 0.0}, "scale"),
        ({"scale": float("inf")}, "scale is inf, not a float <="),
        ({"crop": 9}, "9"),
        ({"crop": 0}, r"crop is a number of pixels or \(width, height\), not 0"),
        ({"framing": "stretch", "resize": 9}, "framing='crop'"),
        ({"framing": "pad"}, "'crop', 'stretch'"),
        ({"interpolation": "nearest"}, "nearest"),
        ({"interpolation": "bicubic", "scaled_decode": True}, "scaled_decode has no effect with .*='bicubic'"),
        ({"mean": True}, "mean"),
    ]:
        with pytest.raises(errors.ConfigError, match=words):
            Classifier(path, **settings)
    with pytest.raises(errors.InputError, match="std"):
        Classifier(path, std=[0, 1, 1])


def test_a_network_of_bytes_normalises_its_pixels_itself(tmp_path: Path) -> None:
    nodes = [node("Cast", "data", "float", to=1), node("ReduceMean", "float", "logits", axes=[2, 3], keepdims=0)]
    data, logits = value("data", ["n", 3, 8, 8], "uint8"), value("logits", ["n", 3])
    path = save(tmp_path / "m.onnx", nodes, [data], [logits], opset=13)
    for settings, name in (({}, "0"), ({"input_order": "bgr"}, "2")):
        with Classifier(path, **settings) as model:
            assert model(red())[0].label == name
    for settings in ({"mean": 3.0}, {"std": (0.2, 0.2, 0.2)}, {"scale": 2.0}, {"preset": "inception"}):
        with pytest.raises(errors.ConfigError, match=f"{next(iter(settings))}=.* normalises them itself; leave this"):
            Classifier(path, **settings)


@pytest.mark.assets
def test_top1_of_squeezenet(assets: Path) -> None:
    from accuracy import imagenet_top

    names = assets / "models" / "imagenet1000.txt"
    with Classifier(assets / "models" / "squeezenet1.1.onnx", preset="caffe", resize=256, names=names) as model:
        assert model.input_size == (227, 227)
        first, five = imagenet_top(model, assets / "imagenet")
    assert first == 64
    assert five >= 86
