"""From a model file to the wrapper that fits."""

from __future__ import annotations

import builtins
import importlib
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeGuard

import numpy as np

from ..core.formats import FORMATS
from ..core.model_source import ModelSource, is_address, with_digest
from ..core.text import logger
from ..errors import ConfigError, InferenceError, OutOfMemoryError, UnsupportedModelError, nearest
from ..graph.info import onnx_info
from ..graph.passes import EndAtHead
from ..infer import Infer
from ..loading.registry import load as load_network
from .declaration import unknown_setting
from .description import ModelDescription
from .names import class_names
from .preprocessor import ImageInput
from .raw_head import head_cut_off, without_decoding
from .registry import ALIASES, TYPES, answers, looks_like
from .vision import LOADING, VisionModel, loading_names, loading_settings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..core.backend import Progress
    from ..core.model_source import ModelLike

__all__ = [
    "fitting_types", "is_bundle", "load", "named_type", "run_once", "source_of_wrapper", "type_names", "type_of_file",
    "unknown_type", "wrapper_type",
]  # fmt: skip

_log = logger("infersdk.models")


def load(
    path: ModelLike | Infer,
    backend: str | None = None,
    *,
    type: str | None = None,
    warm_up: bool | Progress = False,
    sha256: str | None = None,
    key: Any = None,
    trust: str | os.PathLike[str] | None = None,
    verify: Literal["first", "always", "never"] = "first",
    **settings: Any,
) -> VisionModel[Any]:
    """The wrapper that fits a model.

    Args:
        path: the model file, its bytes or an open binary file, or an `Infer` that is loaded already; or a bundle, with
            the wrapper and the settings in it (`infersdk.bundles`).
        backend: the runtime; see `infersdk.load()`. It is not for an `Infer`.
        type: a name of `TYPES`, or `"module:Class"` for a wrapper of your own; None decides by the file's metadata and
            shapes.
        warm_up: whether to call `warm_up()` of the wrapper, so that the first request takes no longer than later ones.
            A function is called with the progress.
        sha256: of the file at an address, hexadecimal, as `#sha256=` in the address.
        key, trust: of a bundle: its key, and the public key that must have signed it; see `infersdk.bundles.Bundle`.
        verify: when the golden samples of a bundle are run: on the first load on a machine (`"first"`), on each
            (`"always"`), or not at all (`"never"`).
        settings: those of the wrapper.

    Raises:
        ConfigError: an unknown type, or a setting that the wrapper does not have.
        UnsupportedModelError: no wrapper fits, or several do; the message names the likely families.
        BackendError, ModelError: see `infersdk.load()`.
    """
    path = _local(path, sha256)
    if is_bundle(path):
        of_bundle = importlib.import_module(".bundles.loading", __package__.rpartition(".")[0]).load_bundle
        model: VisionModel[Any] = of_bundle(
            path, backend, type=type, settings=settings, key=key, trust=trust, verify=verify
        )
    elif key is not None or trust is not None or verify != "first":
        raise ConfigError(f"key=, trust= and verify= are for a bundle, and {path!r} is none")
    else:
        model = _load(path, backend, type, settings)
    if warm_up:
        try:
            model.warm_up(warm_up if callable(warm_up) else None)
        except BaseException:
            model.close()
            raise
    return model


def _local(path: ModelLike | Infer, sha256: str | None) -> ModelLike | Infer:
    """A model; of an address the file that it names."""
    if is_address(path):
        return ModelSource.of(with_digest(path, sha256))
    if sha256 is not None:
        raise ConfigError(f"sha256= is for an address, hf://org/name@revision/file.onnx for example, not for {path!r}")
    return path


def is_bundle(path: Any) -> TypeGuard[str | os.PathLike[str]]:
    """Whether it is the path of a bundle, or the address of one. Loading reports errors of other paths."""
    if is_address(path) or isinstance(path, ModelSource):
        path = ModelSource.of(path).path
    if not isinstance(path, (str, os.PathLike)) or not os.path.isfile(path):
        return False
    return os.path.getsize(path) > 0 and ModelSource.of(path).format is FORMATS["bundle"]


def _load(path: ModelLike | Infer, backend: str | None, type: str | None, settings: dict[str, Any]) -> VisionModel[Any]:
    if type is not None:
        return named_type(type)(path, backend, **settings)
    if isinstance(path, Infer):
        return wrapper_type(path, settings)(path, backend, **settings)
    if settings.get("canvas") == "fit":  # the wrapper changes the model before it is loaded
        return type_of_file(ModelSource.of(path))(path, backend, **settings)
    backend = "onnxruntime" if backend is None else backend
    source = source_of_wrapper(path, backend, **settings)
    names = loading_names(backend) if settings else set()
    options = {key: value for key, value in settings.items() if key in names and key not in LOADING}
    for name in sorted(settings.keys() - names):
        if not any(name in kind.Settings.__struct_fields__ for kind in TYPES.values()):
            raise _unknown_setting(path, name, names)
    network = load_network(source, backend, **loading_settings(settings, options))
    try:
        kind = wrapper_type(network, settings)
        return kind(path, backend, _network=network, **settings)
    except BaseException:
        network.close()
        raise


def _unknown_setting(path: ModelLike, name: str, options: set[str]) -> ConfigError:
    """The error for a setting that no wrapper has, and that is not an option of the backend."""
    if not _is_module(path) and (source := ModelSource.of(path)).is_onnx:
        _, fitting = types_of_file(source)
        if len(fitting) == 1:
            return unknown_setting(TYPES[fitting[0]], name, options=options)
    known = {setting for kind in TYPES.values() for setting in kind.Settings.__struct_fields__}
    return ConfigError(f"no wrapper has a setting {name!r}{nearest(name, known | options)}")


def source_of_wrapper(path: ModelLike, backend: str, *, type: str | None = None, **settings: Any) -> ModelLike:
    """A model as its wrapper loads it, for `infersdk.load()`: without the decoding of its head, where that can be.

    Args:
        path, backend, type, settings: as `load()` takes them; of the settings, `device`, `decode_head` and
            `while_building` count.

    Raises:
        ConfigError: an unknown type; or `decode_head="native"` where the network has to decode.
        ModelNotFoundError, ModelFormatError, InputError: as `ModelSource.of()`.
    """
    if type is not None and named_type(type).raw_layout is None:
        return path
    is_missing = isinstance(path, (str, os.PathLike)) and not os.path.isfile(path) and not isinstance(path, ModelSource)
    if settings.get("decode_head") == "graph" or is_missing or _is_module(path):
        return path  # loading it raises the error
    source = ModelSource.of(path, {**loading_settings(settings, {}), **settings}.get("external_data"))
    source = without_decoding(
        source, backend, settings.get("device"), settings.get("while_building"),
        required=settings.get("decode_head") == "native",
    )  # fmt: skip
    return source if source.passes or source.path is None else path


def _is_module(path: Any) -> bool:
    """Whether it is a model object of another framework."""
    return not isinstance(path, (str, os.PathLike, bytes, bytearray, memoryview)) and not hasattr(path, "read")


def types_of_file(source: ModelSource) -> tuple[ModelDescription, list[str]]:
    """The description of an ONNX file, and the names of the wrappers that say yes: by its declarations, or by its graph
    where these are not enough.
    """
    info = onnx_info(source)
    model = ModelDescription.of_specs(source.name, info.inputs, info.outputs, info.metadata)
    fitting = fitting_types(model)
    if model.has_open_outputs and len(fitting) > 1:
        head = head_cut_off(source.with_passes(EndAtHead()))
        if head is not None:
            fitting = [next(name for name, kind in TYPES.items() if kind.raw_layout == head.layout)]
    return model, fitting


def type_of_file(source: ModelSource) -> builtins.type[VisionModel[Any]]:
    """The one wrapper that fits an ONNX file."""
    model, fitting = types_of_file(source)
    return TYPES[fitting[0]] if len(fitting) == 1 else wrapper_type(model)


def fitting_types(model: Infer | ModelDescription) -> list[str]:
    """The names of the wrappers that say yes to a model."""
    description = ModelDescription.of(model) if isinstance(model, Infer) else model
    return [name for name, one in answers(description).items() if one.answer == "yes"]


def nearly_fitting(model: ModelDescription) -> dict[str, str]:
    """The names of the wrappers that say nearly to a model, with their reasons."""
    return {name: one.because for name, one in answers(model).items() if one.answer == "nearly"}


def wrapper_type(
    network: Infer | ModelDescription, settings: Mapping[str, Any] | None = None
) -> builtins.type[VisionModel[Any]]:
    """The one wrapper of `TYPES` that says yes to a network.

    Where several do, those are left that say yes with the given names in place of those of the metadata. Where several
    are left, each runs the network once, on noise; those that refuse its outputs are left out. Where none does, those
    that say nearly are tried in the same way: the message names the ones whose first run passes.

    Args:
        network: a network; or the description of a file, which is not run.
        settings: those that the wrapper will have.

    Raises:
        UnsupportedModelError: none fits, or several do.
    """
    model = network if isinstance(network, ModelDescription) else ModelDescription.of(network)
    infer = network if isinstance(network, Infer) else None
    fitting = fitting_types(model)
    if len(fitting) > 1 and infer is not None and model.has_open_outputs:
        model = run_once(infer, model)  # a run shows open dimensions
        fitting = fitting_types(model)
    if len(fitting) > 1 and settings and settings.get("names") is not None:
        fitting = fitting_types(replace(model, names=class_names(settings["names"]))) or fitting
    trials: dict[str, _Trial] = {}
    if len(fitting) > 1 and infer is not None:
        trials = _tried(fitting, infer, settings)
        fitting = [name for name, trial in trials.items() if trial.refusal is None]
    if len(fitting) == 1:
        _log.debug("%s: wrapper %r", model.name, fitting[0])
        return TYPES[fitting[0]]
    if fitting:
        raise UnsupportedModelError(
            f"{model.name} can be read in more than one way, and nothing in the file says which is right: it looks "
            f"like {looks_like(model)}. Name it: {_readings(fitting, trials)}"
        )
    raise _no_wrapper(model, infer, trials, settings)


def _no_wrapper(
    model: ModelDescription, infer: Infer | None, trials: Mapping[str, _Trial], settings: Mapping[str, Any] | None
) -> UnsupportedModelError:
    """The error for a model to which no wrapper says yes, or whose outputs those refuse that do."""
    text = f"no wrapper is for {model.name}: it looks like {looks_like(model)}"
    nearly = nearly_fitting(model)
    if infer is not None:
        trials = {**trials, **_tried(list(nearly), infer, settings)}
        nearly = {name: reason for name, reason in nearly.items() if trials[name].refusal is None}
    text += "".join(f". {name!r} does not fit: {trial.refusal}" for name, trial in trials.items() if trial.refusal)
    text += "".join(f". {name!r} may fit, but {reason}" for name, reason in nearly.items())
    if nearly and infer is not None:
        text += f". If it is one of these, pass {_readings(list(nearly), trials)}"
    return UnsupportedModelError(
        f"{text}. There are wrappers for {', '.join(TYPES)}; infersdk.load() runs any model, arrays in and arrays out"
    )


def _readings(names: Sequence[str], trials: Mapping[str, _Trial]) -> str:
    """The types that a user may name, each with the settings that it needs."""
    return " or ".join(
        f'type="{name}"' + (f" ({trials[name].open})" if name in trials and trials[name].open else "")
        for name in names
    )  # fmt: skip


class _Trial(NamedTuple):
    """Why a wrapper refuses the outputs of a network; or which settings it needs for a trial."""

    refusal: str | None = None
    open: str | None = None


def _tried(names: Sequence[str], network: Infer, settings: Mapping[str, Any] | None) -> dict[str, _Trial]:
    return {name: _try(TYPES[name], network, settings or {}) for name in names}


def _try(kind: builtins.type[VisionModel[Any]], network: Infer, settings: Mapping[str, Any]) -> _Trial:
    """Runs a network on an image of noise, as a wrapper does it."""
    own = {key: value for key, value in settings.items() if key in kind.Settings.__struct_fields__}
    with network.clone() as twin:
        try:
            model = kind(network.model, network.backend, _network=twin, **own)
        except UnsupportedModelError as error:
            return _Trial(open=error.reason)
        try:
            width, height = model.input_size
            model(np.random.default_rng(0).integers(0, 256, (min(height, 480), min(width, 640), 3), np.uint8))
        except UnsupportedModelError as error:
            return _Trial(refusal=error.reason)
        except (InferenceError, OutOfMemoryError) as error:
            return _Trial(refusal=f"its first run fails: {error}")
    return _Trial()


def run_once(network: Infer, model: ModelDescription, batch: int = 1) -> ModelDescription:
    """The model with the shapes of a run on empty images; without one where the input is not of images."""
    try:
        image = ImageInput.of(network.input_specs, None, 640)
    except UnsupportedModelError:
        return model
    try:
        outputs = network(image.feed(np.zeros((image.spec.fixed_batch or batch, *image.image_shape), image.spec.dtype)))
    except (InferenceError, OutOfMemoryError) as error:
        raise UnsupportedModelError(
            f"{model.name} leaves the shapes of its outputs open, and a run on an image of {image.size[0]} x "
            f"{image.size[1]} fails: {error}. It looks like {looks_like(model)}; pass type= for its wrapper, or use "
            "infersdk.load() for arrays in and arrays out"
        ) from error
    return model.with_shapes({name: np.shape(array) for name, array in outputs.items()}, image.size)


def named_type(name: str) -> builtins.type[VisionModel[Any]]:
    """The wrapper of a name in `TYPES`, or of `"module:Class"`."""
    if not isinstance(name, str):
        raise unknown_type(name, type_names())
    if ":" in name:
        return _imported(name)
    kind = TYPES.get(ALIASES.get(name, name))
    if kind is None:
        raise unknown_type(name, type_names())
    return kind


def unknown_type(name: Any, names: Sequence[str]) -> ConfigError:
    """The error for a type that is none of `names`; it lists them where none is alike."""
    if name == "network":
        return ConfigError(
            "type 'network' is a network without a wrapper, which infersdk.load() and infersdk serve take; "
            "give the type of a wrapper here"
        )
    hint = nearest(name, names) if isinstance(name, str) else ""
    return ConfigError(
        ("type is missing" if name is None else f"unknown type {name!r}")
        + (hint or f"; use one of {', '.join(names)}, or module:Class for your own wrapper")
    )


def type_names() -> list[str]:
    """The names that `named_type()` knows."""
    return [*TYPES, *ALIASES]


def _imported(name: str) -> builtins.type[VisionModel[Any]]:
    module, _, attribute = name.partition(":")
    try:
        kind = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # a module of the user's may raise anything; ":Class" and ".a:Class" name none
        raise ConfigError(f"type {name!r} cannot be imported: {error}; is its folder on PYTHONPATH?") from error
    if not (isinstance(kind, builtins.type) and issubclass(kind, VisionModel)):
        raise ConfigError(f"type {name!r} is not a subclass of infersdk.models.VisionModel")
    return kind
