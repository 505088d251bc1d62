"""Profiles a model on one or several backends."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.executed_layers import ListsBuiltLayers, ReportsLayers, seconds_of
from ..core.model_source import ModelLike, ModelSource
from ..core.target import Target
from ..errors import ConfigError
from ..graph.files import read_model
from ..loading.registry import backend_class, load
from ..loading.samples import random_inputs
from .mapping import OriginalGraph, map_layers
from .report import LayerReport, LayerSide, make_rows

if TYPE_CHECKING:
    from ..custom_ops import CustomOp

__all__ = ["ProfileSettings", "list_built", "profile"]


#: Arguments of `load()` that are no options of a profile.
_TAKEN = ("backend", "device", "precision", "custom_ops", "profiling", "while_building")


@dataclass(frozen=True)
class ProfileSettings:
    """The settings of a profile.

    Attributes:
        runs: the number of timed runs, with and without the profiler.
        warm_up: the number of runs before.
        batch: the size of a free first axis; None means 1.
        shapes: shapes by name for inputs with other free axes.
        seed: the seed of the random inputs.
        options: options of the backends as in `load()`, including `cut_custom_ops`.
    """

    runs: int = 20
    warm_up: int = 5
    batch: int | None = None
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, least in (("runs", 1), ("warm_up", 1), ("batch", 1), ("seed", 0)):
            value = getattr(self, name)
            if not (name == "batch" and value is None) and (not isinstance(value, Integral) or value < least):
                raise ConfigError(f"{name} must be at least {least}, not {value!r}; it is a whole number")
        for name in ("shapes", "options"):
            if not isinstance(value := getattr(self, name), Mapping):
                raise ConfigError(f"{name} must be a mapping by names, not {value!r}")
        if taken := [name for name in _TAKEN if name in self.options]:
            raise ConfigError(f"options must not have {taken[0]!r}: the profile, its targets or custom_ops= decide it")


def profile(
    model: ModelLike,
    targets: str | Target | Sequence[str | Target] = "onnxruntime",
    settings: ProfileSettings | None = None,
    *,
    original: ModelLike | None = None,
    custom_ops: Sequence[type[CustomOp]] | None = None,
) -> LayerReport:
    """Profiles a model on each target and compares the executed layers by the nodes of the model.

    Args:
        model: as in `load()`. The layers of an engine are those that its inspector reports. The nodes of a model that
            is converted to ONNX are those of the converted model.
        targets: one target, such as `"openvino"`, or several, such as `["onnxruntime", "openvino@cpu/bf16"]`.
        settings: the settings of the runs.
        original: the ONNX file of an engine, for its nodes.
        custom_ops: as in `load()`.

    Raises:
        ConfigError: a value is wrong, a target is repeated, a backend does not report its layers, a free axis has no
            shape, or the original is not an ONNX file.
        BackendError, ModelError, InferenceError: as `load()` and `Infer.forward()`.
    """
    source, settings = ModelSource.of(model), _checked(settings)
    given = [targets] if isinstance(targets, (str, Target)) or not isinstance(targets, Iterable) else targets
    wanted = [Target.parse(one) for one in given]
    if len(set(wanted)) < len(wanted) or not wanted:
        raise ConfigError(f"give each target once, and at least one; not {', '.join(map(str, wanted)) or 'none'}")
    whole = source if original is None else ModelSource.of(original)
    graph = _original(whole)
    if original is not None and graph is None:
        raise ConfigError(f"original {str(whole)!r} is not an ONNX file; give the one that the engine was built from")
    runs = [_profile_one(source, target, settings, custom_ops, read=graph is None) for target in wanted]
    graph = graph or next((own for _, _, own in runs if own is not None), OriginalGraph(None))
    sides = [dataclasses.replace(side, layers_of=map_layers(graph, side.layers)) for side, _, _ in runs]
    return LayerReport(source.name, graph, runs[0][1], tuple(sides), make_rows(graph, sides))


def list_built(
    model: ModelLike, target: str | Target, compute_capability: str, settings: ProfileSettings | None = None
) -> LayerReport:
    """Builds a model for a GPU, which need not be present, and lists the layers without times.

    Args:
        target: the backend `"tensorrt-rtx"`, optionally with a precision.
        compute_capability: the compute capability of the GPU, such as `"8.9"`.
        settings: the batch, shapes and options.

    Raises:
        ConfigError: the backend cannot build without the GPU.
        ModelError, PrecisionUnavailableError: the model cannot be built.
    """
    source, settings, target = ModelSource.of(model), _checked(settings), Target.parse(target)
    kind = backend_class(target.backend)
    if not issubclass(kind, ListsBuiltLayers):
        raise ConfigError(
            f"backend {target.backend!r} cannot list layers without the GPU; profile the model on the GPU"
        )
    graph = _original(source) or OriginalGraph(None)
    options = dict(settings.options)
    if settings.shapes:
        sizes = {name: list(shape) for name, shape in settings.shapes.items()}
        options["profiles"] = {name: {"min": size, "opt": size, "max": size} for name, size in sizes.items()}
    from ..config import convert

    result = kind.built_layers(
        source, compute_capability=compute_capability, precision=target.precision, max_batch=settings.batch,
        options=convert(options, kind.declaration.options, f"options of backend {target.backend!r}"),
    )  # fmt: skip
    side = LayerSide(
        str(target), target.backend, f"compute capability {compute_capability}", target.precision or "as written",
        kind.declaration.probe().version, result, map_layers(graph, result.layers),
    )  # fmt: skip
    shapes = {name: tuple(shape) for name, shape in settings.shapes.items()}
    return LayerReport(source.name, graph, shapes, (side,), make_rows(graph, [side]))


def _checked(settings: ProfileSettings | None) -> ProfileSettings:
    if settings is not None and not isinstance(settings, ProfileSettings):
        raise ConfigError(f"settings must be ProfileSettings(...), not {settings!r}")
    return settings or ProfileSettings()


def _original(source: ModelSource) -> OriginalGraph | None:
    """The nodes of an ONNX model; None for other formats."""
    return OriginalGraph(read_model(source)) if source.is_onnx else None


def _profile_one(
    source: ModelSource,
    target: Target,
    settings: ProfileSettings,
    custom_ops: Sequence[type[CustomOp]] | None,
    *,
    read: bool,
) -> tuple[LayerSide, dict[str, tuple[int, ...]], OriginalGraph | None]:
    """Profiles a model on one target.

    Args:
        read: whether to read the graph that ran, which may have been converted.

    Returns:
        The side, whose layers are not mapped yet, the shapes of the inputs, and the graph that ran, if it is read.
    """
    kind = backend_class(target.backend)
    if not issubclass(kind, ReportsLayers):
        raise ConfigError(f"backend {target.backend!r} does not report the layers that it executes")
    arguments: dict[str, Any] = {**target.arguments, **settings.options, "custom_ops": custom_ops}
    if settings.batch is not None:
        arguments["max_batch"] = settings.batch
    with load(source, **arguments) as plain, load(source, **arguments, profiling=True) as infer:
        assert isinstance(infer, ReportsLayers)
        feeds = random_inputs(infer.input_specs, batch=settings.batch, seed=settings.seed, shapes=settings.shapes)
        for one in (plain, infer):
            for name, array in feeds.items():
                np.copyto(one.inputs[name].resize(array.shape).numpy(writable=True), array)
            for _ in range(settings.warm_up):
                one.forward()
        # Half before and half after, since the speed of a machine varies. `infersdk bench` measures `engine` likewise.
        walls = seconds_of(plain.forward, (settings.runs + 1) // 2)
        result = infer.profile_layers(settings.runs)
        walls += seconds_of(plain.forward, (settings.runs + 1) // 2)
        side = LayerSide(
            str(target), infer.backend, infer.device, infer.precision, kind.declaration.probe().version, result, (),
            statistics.median(walls),
        )  # fmt: skip
        shapes = {name: array.shape for name, array in feeds.items()}
        return side, shapes, _original(infer.model) if read else None
