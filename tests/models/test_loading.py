"""Which wrapper a file gets, and which files are refused: nothing is decoded on a guess."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import numpy as np
import pytest
from head_models import head_model
from onnx_models import need_runtime, node, save, value

import infersdk
from infersdk.errors import ConfigError, UnsupportedModelError
from infersdk.models import (
    TYPES,
    YOLOX,
    Classifications,
    Classifier,
    Detections,
    EndToEnd,
    ModelDescription,
    VisionModel,
    YOLOv5,
    YOLOv8,
    YOLOv8Pose,
    YOLOv8Seg,
    YuNet,
    fitting_types,
    load,
    wrapper_type,
)

pytest.importorskip("onnxruntime")

IMAGE = np.random.default_rng(0).integers(0, 256, (48, 64, 3), np.uint8)
NAMES2 = {"names": "{0: 'cat', 1: 'dog'}"}


@pytest.mark.parametrize(
    ("shape", "metadata", "looks"),
    [
        ((84, 6), {"task": "pose", **NAMES2}, "task 'pose'"),
        ((6, 84), {"task": "pose", "names": "{0: 'person'}", "kpt_shape": "[17, 3]"}, "task 'pose'"),
        ((7, 84), {"task": "obb", **NAMES2}, "oriented boxes"),
        ((7, 84), NAMES2, "oriented boxes"),
        ((38, 84), NAMES2, "2 classes and 32 more values a box"),
        ((6, 84), {"task": "classify", **NAMES2}, "task 'classify'"),
        ((300, 6), NAMES2, "end-to-end"),
        ((300, 38), {}, "end-to-end"),
        ((300, 57), {"end2end": "True"}, "end-to-end"),
    ],
)
def test_heads_of_other_families_are_refused(
    tmp_path: Path, shape: tuple[int, int], metadata: dict[str, str], looks: str
) -> None:
    path = head_model(tmp_path / "m.onnx", [np.zeros(shape, np.float32)], metadata)
    for kind in (YOLOv5, YOLOv8):
        with pytest.raises(UnsupportedModelError, match=looks):
            kind(path)
    if shape not in ((300, 6), (7, 84)) and metadata.get("task") != "pose":  # for these there are wrappers
        with pytest.raises(UnsupportedModelError, match=looks):
            load(path)


@pytest.mark.parametrize(
    ("outputs", "looks"),
    [
        ([(100, 80), (100, 4)], "queries"),
        ([(38, 84), (40, 16, 16)], "instance segmentation"),
        ([(64, 1), (16, 1), (64, 4), (16, 4)], "an output for each kind of value and stride"),
        ([(2, 64, 64)], "maps"),
    ],
)
def test_several_outputs_are_refused(tmp_path: Path, outputs: list[tuple[int, ...]], looks: str) -> None:
    path = head_model(tmp_path / "m.onnx", [np.zeros(shape, np.float32) for shape in outputs], {})
    with pytest.raises(UnsupportedModelError, match=looks):
        load(path)
    with pytest.raises(UnsupportedModelError, match=looks):
        YOLOv8(path)


def test_a_model_without_inputs_is_refused(tmp_path: Path) -> None:
    nodes = [node("Constant", "", "y", value_floats=[1.0, 2.0])]
    path = save(tmp_path / "constant.onnx", nodes, [], [value("y", [2])])
    with pytest.raises(UnsupportedModelError, match="no wrapper is for constant.onnx"):
        load(path)
    with pytest.raises(UnsupportedModelError, match="it has 0 inputs, not one for images"):
        YOLOv8(path)


@pytest.mark.parametrize("low", [-3.0, 310.0])
def test_scores_outside_0_to_1_are_refused_on_the_first_run(tmp_path: Path, low: float) -> None:
    """A pose head without metadata is a detector of 52 classes by its shape; its keypoints are in pixels."""
    output = np.zeros((56, 84), np.float32)
    output[5:, :] = low
    with YOLOv8(head_model(tmp_path / "m.onnx", [output], {})) as model:
        for _ in range(2):
            with pytest.raises(UnsupportedModelError, match=rf"{low:g}.*scores lie in 0 to 1"):
                model(IMAGE)
        with pytest.raises(UnsupportedModelError, match="scores lie in 0 to 1"):
            model.submit(IMAGE).result(30)


@pytest.mark.parametrize("names", [["a"], ["a", "b", "c"]])
def test_another_number_of_names_is_refused(tmp_path: Path, names: list[str]) -> None:
    path = head_model(tmp_path / "m.onnx", [np.zeros((6, 84), np.float32)], NAMES2)
    with pytest.raises(UnsupportedModelError, match=rf"2 classes.*names has {len(names)} names"):
        load(path, names=names)
    with load(path, names=["x", "y"]) as model:
        assert model.class_names == ("x", "y")
    metadata = {"names": repr(dict(enumerate(names)))}
    with pytest.raises(UnsupportedModelError, match=rf"2 classes.*metadata has {len(names)} names"):
        YOLOv8(head_model(tmp_path / "n.onnx", [np.zeros((6, 84), np.float32)], metadata))


def test_the_wrapper_that_fits(tmp_path: Path) -> None:
    for shape, kind in (((6, 84), YOLOv8), ((252, 7), YOLOv5), ((10,), Classifier)):
        path = head_model(tmp_path / "m.onnx", [np.zeros(shape, np.float32)], {})
        with load(path, max_batch=2, conf=0.5) if kind is not Classifier else load(path, top_k=2) as model:
            assert type(model) is kind
            assert type(model(IMAGE)).__name__ in ("Detections", "Classifications")
        with infersdk.load(path, backend="onnxruntime") as network:
            assert wrapper_type(network) is kind
            assert kind in [TYPES[name] for name in fitting_types(network)]


def test_settings_are_those_given(tmp_path: Path) -> None:
    path = head_model(tmp_path / "m.onnx", [np.zeros((6, 84), np.float32)], {})
    options = {"threads": 2}
    given: dict[str, Any] = {"device": "cpu", "precision": "fp32", "max_batch": 4, "options": options}
    with load(path, **given) as found, type(found)(path, **given) as made, load(path) as plain:
        assert found.settings == made.settings
        assert found.path == made.path == path
        assert {name: getattr(found, name) for name in given} == given
        assert (found.network.max_batch, found.network.options.threads) == (4, 2)
        assert (plain.settings.device, plain.network.device) == (None, "cpu")


def test_the_backend_of_the_network_is_that_of_the_model(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    path = head_model(tmp_path / "m.onnx", [np.zeros((6, 84), np.float32)], {})
    with load(path, "openvino") as model, YOLOv8(model.network.clone()) as twin:
        assert model.backend == twin.backend == "openvino"


def test_a_file_that_leaves_its_shape_open_is_run_once(tmp_path: Path) -> None:
    path = head_model(tmp_path / "m.onnx", [np.zeros((252, 7), np.float32)], {}, open_shapes=True)
    with infersdk.load(path, backend="onnxruntime") as network:
        assert ModelDescription.of(network).has_open_outputs
    with load(path) as model:
        assert type(model) is YOLOv5


def test_wrong_settings(tmp_path: Path) -> None:
    path = head_model(tmp_path / "m.onnx", [np.zeros((10,), np.float32)], {})
    with pytest.raises(ConfigError, match="^Classifier has no setting 'conf'; its settings are .*top_k"):
        load(path, conf=0.5)
    with pytest.raises(ConfigError, match=r"^Classifier has no setting 'labels'; did you mean 'names'\?$"):
        load(path, labels=["a"])
    with pytest.raises(ConfigError, match=f"unknown type 'heads'; use one of {', '.join(TYPES)}, "):
        load(path, type="heads")
    with pytest.raises(ConfigError, match="^unknown type 8; use one of"):
        load(path, type=8)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^unknown type 'yolo8'; did you mean 'yolov8'\?$"):
        load(path, type="yolo8")
    unknown = r"^Classifier has no setting 'topk'; did you mean 'top_k'\?$"
    for model in (path, path.read_bytes()):
        with pytest.raises(ConfigError, match=unknown):
            load(model, topk=2)
    with infersdk.load(path) as network, pytest.raises(ConfigError, match=unknown):
        load(network, topk=2)
    open_between_two = head_model(tmp_path / "t.onnx", [np.zeros((84, 7), np.float32)], {})
    with pytest.raises(ConfigError, match=r"^no wrapper has a setting 'confidence'; did you mean 'conf'\?$"):
        load(open_between_two, confidence=0.5)
    assert isinstance(load(head_model(tmp_path / "v.onnx", [np.zeros((6, 84), np.float32)], {}), type="yolo11"), YOLOv8)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"options": None}, "options is .*None"),
        ({"options": {"device": "cpu"}}, "'device' is not an option of the backend; move it out of options"),
        ({"options": {"threads": 1}, "threads": 2}, "'threads' is also given outside of options; give it once"),
    ],
)
@pytest.mark.parametrize("type", [None, "yolov8"])
def test_wrong_options(tmp_path: Path, settings: dict[str, Any], message: str, type: str | None) -> None:
    path = head_model(tmp_path / "m.onnx", [np.zeros((6, 84), np.float32)], {})
    with pytest.raises(ConfigError, match=message):
        load(path, type=type, **settings)


def test_settings_without_effect_are_refused(tmp_path: Path) -> None:
    path = head_model(tmp_path / "m.onnx", [np.zeros((6, 84), np.float32)], {})
    for make in (load, YOLOv8):
        with infersdk.load(path) as network, pytest.raises(ConfigError, match="backend: these belong to load"):
            make(network, "openvino")  # type: ignore[operator]
        with pytest.raises(
            ConfigError, match="preprocess='device' needs a model on a CUDA device, and m.onnx is on cpu"
        ):
            make(path, preprocess="device")  # type: ignore[operator]


@pytest.mark.parametrize("make", [load, YOLOv8])
def test_a_configuration_is_refused(tmp_path: Path, make: Any) -> None:
    model = head_model(tmp_path / "m.onnx", [np.zeros((6, 84), np.float32)], {})
    path = tmp_path / "app.toml"
    path.write_text(f'[models.detector]\ntype = "yolov8"\npath = {str(model)!r}\nconf = 0.9\n')
    with pytest.raises(ConfigError, match=r"app.toml' is a configuration, not a model file; .*models.create\(\)"):
        make(path)


def test_a_failed_run_is_the_reason_of_a_refusal(tmp_path: Path) -> None:
    """The network takes images of one row alone, and its file leaves the rows open."""
    need_runtime((1, 27), "infers the shape of the output")
    nodes = [
        node("Compress", "weight one", "row", axis=2), node("Concat", "images row", "both", axis=1),
        node("Compress", "both one", "some", axis=1), node("ReduceMax", "some", "output", axes=[3], keepdims=0),
    ]  # fmt: skip
    weights = {"weight": np.zeros((1, 1, 1, 640), np.float32), "one": np.ones(1, bool)}
    ends = [value("images", ["n", 3, "h", "w"])], [value("output", ["a", "b", "c"])]
    words = (
        r"leaves the shapes of its outputs open, and a run on an image of 640 x 640 fails: .*Concat.*; pass type= for"
    )
    with pytest.raises(UnsupportedModelError, match=words):
        load(save(tmp_path / "m.onnx", nodes, *ends, weights))


@pytest.mark.assets
def test_models_of_the_test_data(assets: Path) -> None:
    models = assets / "models"
    refused: dict[str, Any] = {
        "twinlitenet.onnx": 'area="lanes", lanes="segmentation"',
        "selfie_segmentation.onnx": r"'segmentation' may fit, but .*pass type=\"segmentation\" \(.*preset=\"unit\"",
        "osnet_x0_25_msmt17.onnx": 'type="classifier" or type="embedding"',
    }  # fmt: skip
    for name, looks in refused.items():
        with pytest.raises(UnsupportedModelError, match=looks):
            load(models / name)
    for name, kind in {
        "yolov5n.onnx": YOLOv5,
        "yolov8n.onnx": YOLOv8,
        "yolox_nano.onnx": YOLOX,
        "squeezenet1.1.onnx": Classifier,
        "yolov10n.onnx": EndToEnd,
        "yolov8n-pose.onnx": YOLOv8Pose,
        "yolov8n-seg.onnx": YOLOv8Seg,
        "../face/yunet_n_dynamic.onnx": YuNet,
    }.items():
        with load(models / name) as model:
            assert type(model) is kind


def in_new_process(code: str, *arguments: object) -> Any:
    """The output of the code, from JSON."""
    done = subprocess.run(
        [sys.executable, "-c", f"import json, sys\n{code}", *map(str, arguments)],
        check=True, capture_output=True, text=True, cwd=gettempdir(),
    )  # fmt: skip
    return json.loads(done.stdout)


def test_wrappers_of_other_tasks_are_not_imported(tmp_path: Path) -> None:
    path = head_model(tmp_path / "m.onnx", [np.zeros((6, 84), np.float32)], {"task": "detect", **NAMES2})
    code = """
from infersdk.models import load
with load(sys.argv[1]) as model:
    print(json.dumps([type(model).__name__, *sys.modules]))
"""
    name, *modules = in_new_process(code, path)
    assert name == "YOLOv8"
    assert "infersdk.models.yolo" in modules
    assert not {f"infersdk.models.{other}" for other in ("segment", "semantic", "depth", "classifier")} & set(modules)


def test_the_registry_knows_the_tasks_of_wrappers_before_they_are_imported() -> None:
    declared = {name: {kind.task, *kind.other_tasks} for name, kind in TYPES.items()}
    tasks = set().union(*declared.values())
    code = """
from infersdk.models import TYPES
print(json.dumps({task: TYPES.of_task(task) for task in sys.argv[1:]}))
"""
    asked = in_new_process(code, *tasks)
    assert {name: {task for task in tasks if name in asked[task]} for name in TYPES} == declared
    for task in tasks:
        model = ModelDescription.of_specs("m", [], [], {"task": task})
        for name, kind in TYPES.items():
            assert task in declared[name] or kind.recognises(model).answer == "no"


def test_a_type_that_a_program_adds_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(YOLOv8):
        pass

    path = head_model(tmp_path / "m.onnx", [np.zeros((6, 84), np.float32)], {"task": "detect", **NAMES2})
    monkeypatch.setitem(TYPES, "own", Own)
    with pytest.raises(UnsupportedModelError, match='type="yolov8" or type="own"'):
        load(path)
    monkeypatch.delitem(TYPES, "yolov8")
    with load(path) as model:
        assert type(model) is Own


def test_what_a_wrapper_returns() -> None:
    assert object not in {kind.result_type() for kind in TYPES.values()}

    class Nameless(VisionModel[Any]):
        pass

    assert YOLOv8Seg.result_type() is YuNet.result_type() is Detections
    assert Classifier.result_type() is Classifications
    assert Nameless.result_type() is object


@pytest.mark.parametrize("name", [":Own", ".own:Own", "own:", "os:path", "no such module:Own"])
def test_names_of_classes_that_lead_nowhere(name: str) -> None:
    with pytest.raises(ConfigError, match="type "):
        infersdk.models.create({"models": {"own": {"type": name, "path": "m.onnx"}}})
