"""From a model file to the wrapper that fits."""

from __future__ import annotations

import builtins
import importlib
import os
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .._text import logger
from ..errors import ConfigError, UnsupportedModelError, nearest
from ..graph.info import onnx_info
from ..graph.passes import EndAtHead
from ..infer import Infer
from ..model_source import ModelSource
from ..registry import load as load_network
from .classifier import Classifier
from .declaration import unknown_setting
from .description import ModelDescription
from .detr import DETR, RFDETR, RTDETR
from .embedder import Embedder
from .end_to_end import EndToEnd
from .obb import YOLOv8OBB
from .pose import EndToEndPose, YOLOv8Pose
from .preprocessor import ImageInput
from .raw_head import head_cut_off, without_decoding
from .segment import EndToEndSeg, YOLOv5Seg, YOLOv8Seg
from .semantic import SemanticSegmentation, TwinLiteNet
from .vision import VisionModel, loading_names
from .yolo import YOLOX, YOLOv5, YOLOv8
from .yunet import YuNet

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..model_source import ModelLike
    from ..options import Progress

__all__ = ["TYPES", "fitting_types", "load", "named_type", "source_of_wrapper", "type_names", "wrapper_type"]

_log = logger("infersdk.models")

#: Every wrapper, by the name that a configuration and the command line use. A new task is one line here.
TYPES: dict[str, builtins.type[VisionModel[Any]]] = {
    "yolov5": YOLOv5,
    "yolov8": YOLOv8,
    "yolox": YOLOX,
    "end-to-end": EndToEnd,
    "yolov5-seg": YOLOv5Seg,
    "yolov8-seg": YOLOv8Seg,
    "end-to-end-seg": EndToEndSeg,
    "yolov8-pose": YOLOv8Pose,
    "end-to-end-pose": EndToEndPose,
    "yolov8-obb": YOLOv8OBB,
    "detr": DETR,
    "rt-detr": RTDETR,
    "rf-detr": RFDETR,
    "yunet": YuNet,
    "segmentation": SemanticSegmentation,
    "twinlitenet": TwinLiteNet,
    "classifier": Classifier,
    "embedding": Embedder,
}

#: Other names of the same layouts.
_SAME = {
    "yolo11": "yolov8",
    "yolov11": "yolov8",
    "yolov7": "yolov5",
    "yolov10": "end-to-end",
    "yolo26": "end-to-end",
    "yolov7-seg": "yolov5-seg",
    "yolo11-seg": "yolov8-seg",
    "yolo26-seg": "end-to-end-seg",
    "rt-detrv2": "rt-detr",
    "d-fine": "rt-detr",
    "yolo11-pose": "yolov8-pose",
    "yolo11-obb": "yolov8-obb",
    "yolo26-pose": "end-to-end-pose",
}


def load(
    path: ModelLike | Infer,
    backend: str = "onnxruntime",
    *,
    type: str | None = None,
    warm_up: bool | Progress = False,
    **settings: Any,
) -> VisionModel[Any]:
    """The wrapper that fits a model.

    Args:
        path: the model file, its bytes or an open binary file, or an `Infer` that is loaded already.
        backend: what runs it; see `infersdk.load()`.
        type: a name of `TYPES`, or `"module:Class"` for a wrapper of your own; None decides by the file's metadata and
            shapes.
        warm_up: whether every batch size and canvas is run on every instance before this returns, so that the first
            request takes no longer than later ones: `warm_up()` of the wrapper. A function is called with the progress.
        settings: what the wrapper's constructor takes.

    Raises:
        ConfigError: an unknown type, or a setting that the wrapper does not have.
        UnsupportedModelError: no wrapper fits, or several do: the message says what the file looks like.
        BackendError, ModelError: see `infersdk.load()`.
    """
    model = _load(path, backend, type, settings)
    if warm_up:
        try:
            model.warm_up(warm_up if callable(warm_up) else None)
        except BaseException:
            model.close()
            raise
    return model


def _load(path: ModelLike | Infer, backend: str, type: str | None, settings: dict[str, Any]) -> VisionModel[Any]:
    if type is not None:
        return named_type(type)(path, backend, **settings)
    if isinstance(path, Infer):
        return _of(path, settings)
    if settings.get("canvas") == "fit":  # the wrapper changes the model before it is loaded
        return _type_of_file(ModelSource.of(path))(path, backend, **settings)
    known = _all_settings()
    if (others := set(settings) - known) and (unknown := sorted(others - loading_names(backend))):
        raise _unknown_setting(path, unknown[0], known, backend)
    loading = {key: value for key, value in settings.items() if key in _LOADING or key not in known}
    options = dict(settings.get("options", {}))
    arguments = {key: value for key, value in loading.items() if key != "options"}
    network = load_network(_to_load(path, backend, settings), backend, **arguments, **options)
    try:
        own = {key: value for key, value in settings.items() if key not in loading and key != "options"}
        return _of(network, own)
    except BaseException:
        network.close()
        raise


def _all_settings() -> set[str]:
    """The settings of all wrappers."""
    return {name for kind in TYPES.values() for name in kind.Settings.__struct_fields__}


def _unknown_setting(path: ModelLike, name: str, known: set[str], backend: str) -> ConfigError:
    """The error for a setting that neither a wrapper nor the backend has."""
    source = None if _is_module(path) else ModelSource.of(path)
    if source is not None and source.format is not None and source.format.key == "onnx":
        return unknown_setting(_type_of_file(source), name, options=loading_names(backend))
    return ConfigError(f"no wrapper has a setting {name!r}{nearest(name, known | loading_names(backend))}")


def source_of_wrapper(path: ModelLike, backend: str, *, type: str | None = None, **settings: Any) -> ModelLike:
    """A model in the form in which its wrapper loads it, for `infersdk.load()`. It is for tools that hold the network
    and measure what the wrapper does.

    Args:
        path, backend, type, settings: as `load()` takes them; of the settings, `device`, `decode_head` and
            `while_building` count.

    Raises:
        ConfigError: an unknown type; or `decode_head="native"`, and what runs the model decodes it in the network.
        ModelNotFoundError, ModelFormatError, InputError: as `ModelSource.of()`.
    """
    if type is not None and named_type(type).raw_layout is None:
        return path
    return _to_load(path, backend, settings)


def _to_load(path: ModelLike, backend: str, settings: Mapping[str, Any]) -> ModelLike:
    """A model as the wrapper that fits it would load it: without the decoding of its head, where that can be."""
    is_missing = isinstance(path, (str, os.PathLike)) and not os.path.isfile(path) and not isinstance(path, ModelSource)
    if settings.get("decode_head") == "graph" or is_missing or _is_module(path):
        return path  # loading it says what is wrong with it
    source = ModelSource.of(path, {**settings.get("options", {}), **settings}.get("external_data"))
    source = without_decoding(
        source, backend, settings.get("device"), settings.get("while_building"),
        required=settings.get("decode_head") == "native",
    )  # fmt: skip
    return source if source.passes or source.path is None else path


def _is_module(path: Any) -> bool:
    """Whether it is a model of another framework, in place of a file."""
    return not isinstance(path, (str, os.PathLike, bytes, bytearray, memoryview)) and not hasattr(path, "read")


def _type_of_file(source: ModelSource) -> builtins.type[VisionModel[Any]]:
    """The wrapper that fits an ONNX file, by what it declares; by what its graph computes, where that is not enough."""
    info = onnx_info(source)
    model = ModelDescription.of_specs(source.name, info.inputs, info.outputs, info.metadata)
    if model.has_open_outputs and len(fitting_types(model)) > 1:
        head = head_cut_off(source.with_passes(EndAtHead()))
        if head is not None:
            return next(kind for kind in TYPES.values() if kind.raw_layout == head.layout)
    return wrapper_type(model)


def _of(network: Infer, settings: dict[str, Any]) -> VisionModel[Any]:
    """The wrapper that fits a network."""
    kind = wrapper_type(network, settings)
    if unknown := sorted(set(settings) - _all_settings()):
        raise unknown_setting(kind, unknown[0])
    if other := sorted(set(settings) - set(kind.Settings.__struct_fields__)):
        raise UnsupportedModelError(
            f"{network.model.name} looks like {ModelDescription.of(network).looks_like}, and {kind.__name__} has no "
            f"setting {other[0]!r}; its settings are {', '.join(kind.Settings.__struct_fields__)}"
        )
    return kind(network, **settings)


_LOADING = {"device", "precision", "max_batch", "while_building"}


def fitting_types(model: ModelDescription) -> list[str]:
    """The names of the wrappers that recognize a model, and do not refuse it."""
    return [name for name, kind in TYPES.items() if kind.refuses(model) is None and kind.recognizes(model)]


def wrapper_type(
    network: Infer | ModelDescription, settings: Mapping[str, Any] | None = None
) -> builtins.type[VisionModel[Any]]:
    """The one wrapper of `TYPES` that fits a network.

    Where several fit by what the file declares, each runs the network once, on noise. Those that refuse its outputs are
    left out.

    Args:
        network: a network; or what a file declares, of which nothing is run.
        settings: those that the wrapper will have.

    Raises:
        UnsupportedModelError: none fits, or several do. The message names the ones that do.
    """
    model = network if isinstance(network, ModelDescription) else ModelDescription.of(network)
    fitting = fitting_types(model)
    if len(fitting) > 1 and isinstance(network, Infer) and model.has_open_outputs:
        model = _run_once(network, model)  # a run shows what the file leaves open
        fitting = fitting_types(model)
    trials: dict[str, _Trial] = {}
    if len(fitting) > 1 and isinstance(network, Infer):
        trials = {name: _try(TYPES[name], network, settings or {}) for name in fitting}
        fitting = [name for name, trial in trials.items() if trial.refusal is None]
    if len(fitting) == 1:
        _log.debug("%s looks like %s: wrapper %r", model.name, model.looks_like, fitting[0])
        return TYPES[fitting[0]]
    if fitting:
        readings = " or ".join(
            f'type="{name}"' + (f" ({trials[name].open})" if name in trials and trials[name].open else "")
            for name in fitting
        )
        raise UnsupportedModelError(
            f"{model.name} can be read in more than one way, and nothing in the file says which is right: it looks "
            f"like {model.looks_like}. Name it: {readings}"
        )
    reasons = "".join(f". It is no {name}: {trial.refusal}" for name, trial in trials.items())
    raise UnsupportedModelError(
        f"no wrapper is for {model.name}: it looks like {model.looks_like}{reasons}. There are wrappers for "
        f"{', '.join(TYPES)}; infersdk.load() runs any model, arrays in and arrays out"
    )


class _Trial(NamedTuple):
    """Why a wrapper refuses the outputs of a network; or, where it cannot be tried without settings of its own, which
    these are.
    """

    refusal: str | None = None
    open: str | None = None


def _try(kind: builtins.type[VisionModel[Any]], network: Infer, settings: Mapping[str, Any]) -> _Trial:
    """Runs a network on an image of noise, as a wrapper does it."""
    own = {key: value for key, value in settings.items() if key in kind.Settings.__struct_fields__}
    with network.clone() as twin:
        try:
            model = kind(twin, **own)
        except UnsupportedModelError as error:
            return _Trial(open=error.reason)
        try:
            model(np.random.default_rng(0).integers(0, 256, (480, 640, 3), np.uint8))
        except UnsupportedModelError as error:
            return _Trial(refusal=error.reason)
    return _Trial()


def _run_once(network: Infer, model: ModelDescription) -> ModelDescription:
    """The model with the shapes of a run on an empty image."""
    try:
        image = ImageInput.of(network.input_specs, None, 640)
    except UnsupportedModelError:
        return model
    outputs = network(np.zeros((image.spec.fixed_batch or 1, *image.image_shape), image.spec.dtype))
    return model.with_shapes({name: array.shape for name, array in outputs.items()})


def named_type(name: str) -> builtins.type[VisionModel[Any]]:
    """The wrapper of a name in `TYPES`, or of `"module:Class"`."""
    if ":" in name:
        return _imported(name)
    kind = TYPES.get(_SAME.get(name, name))
    if kind is None:
        raise ConfigError(
            f"unknown type {name!r}; the types are {', '.join(type_names())}, or module:Class for your own wrapper"
            f"{nearest(name, type_names())}"
        )
    return kind


def type_names() -> list[str]:
    """The names that `named_type()` knows."""
    return [*TYPES, *_SAME]


def _imported(name: str) -> builtins.type[VisionModel[Any]]:
    module, _, attribute = name.partition(":")
    try:
        kind = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # a module of the user's may raise anything; ":Class" and ".a:Class" name none
        raise ConfigError(f"type {name!r} cannot be imported: {error}; is its folder on PYTHONPATH?") from error
    if not (isinstance(kind, builtins.type) and issubclass(kind, VisionModel)):
        raise ConfigError(f"type {name!r} is not a subclass of infersdk.models.VisionModel")
    return kind
