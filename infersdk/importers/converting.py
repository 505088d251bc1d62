"""`convert()`: converts a model to ONNX and checks the result."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

import numpy as np

from ..accuracy.compare import Tolerance, difference
from ..core.formats import FORMATS, WEIGHTS_APART, FileFormat
from ..core.model_source import ModelLike, ModelSource
from ..core.text import logger
from ..errors import BackendUnavailableError, ConfigError, InferSDKError, ModelFormatError, UnsupportedModelError
from ..graph.files import model_bytes, read_model, require_onnx
from ..graph.passes import FreeBatch
from ..loading.registry import is_torch_module, load
from .conversion import (
    Check,
    Conversion,
    Imported,
    InputShape,
    Reference,
    Request,
    Sample,
    argument,
    samples_by_name,
    shapes_of,
)

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping, Sequence

    from ..accuracy.compare import Difference
    from ..infer import Infer

__all__ = ["DEFAULT_TOLERANCE", "convert", "importable"]

#: The default maximum difference from the source, relative to the largest magnitude of an output.
DEFAULT_TOLERANCE = 1e-4
#: The minimum magnitude by which differences are scaled.
_MIN_PEAK = 1e-6
_log = logger("infersdk.importers")


def importable() -> dict[str, FileFormat]:
    """The convertible formats by key."""
    return {key: result for key, result in FORMATS.items() if result.importer}


def convert(
    model: ModelLike | Any,
    *,
    shapes: Mapping[str, Sequence[int]] | Iterable[InputShape | str | Sequence[int]] = (),
    inputs: Sequence[str] = (),
    outputs: Sequence[str] = (),
    free_batch: bool = True,
    check: bool = True,
    tolerance: float = DEFAULT_TOLERANCE,
    python: str | os.PathLike[str] | None = None,
    external_data: Any = None,
    samples: Mapping[str, Any] | Iterable[str] = (),
) -> Conversion:
    """Converts a model to ONNX and compares it with the source on random inputs.

    Args:
        model: a file, its bytes, or a `torch.nn.Module`.
        shapes: shapes of inputs for sources without them, by name or in order, as sizes or as texts
            `[NAME=]1,3,224,224[:float32]`.
        inputs, outputs: names of values of a TensorFlow graph that become inputs and outputs.
        free_batch: whether to make a fixed batch free. If the graph does not allow this, a note gives the reason.
        check: whether to check the result.
        tolerance: the tolerance of `Check.passed`.
        python: the Python interpreter with the framework of a file; None means the present one.
        external_data: the weights file of a model in memory.
        samples: values by the name of the input, for inputs that do not accept random ones: `{"offsets": [0, 3, 5]}`,
            or texts `NAME=0,3,5[:int64]` and `NAME=FILE.npy`. They also define the shape of the input, and the
            type if the source does not contain it.

    Raises:
        ModelFormatError: the file is damaged, or its format cannot be converted.
        UnsupportedModelError: the model has unsupported operators or features; the message lists all of them.
        BackendUnavailableError: a required package is not installed.
        ConfigError: shapes are missing or do not fit.
    """
    tolerance, free_batch = argument("tolerance", tolerance), argument("free_batch", free_batch)
    inputs, outputs = argument("inputs", inputs), argument("outputs", outputs)
    source, module, kind = _source(model, external_data)
    if (inputs or outputs) and kind.key != "tensorflow-graph":
        raise ConfigError(
            f"inputs and outputs apply to frozen TensorFlow graphs; {str(source)!r} is {kind.title}, which defines them"
        )
    if python is not None and kind.key in ("pnnx", "torch-module"):
        raise ConfigError(f"python={python!r} is for files of frameworks; {kind.title} is converted in this process")
    request = Request(
        source, module, shapes_of(shapes), tuple(inputs), tuple(outputs), argument("python", python),
        argument("check", check), samples_by_name(samples),
    )  # fmt: skip
    require_onnx("converting a model")
    imported = _importer(source, kind, installed=python is None)(request)
    if imported.alternative is None:
        return _converted(imported, request, kind, free_batch, tolerance)
    result: Conversion | InferSDKError
    try:
        result = _converted(imported, request, kind, free_batch, tolerance)
        if result.check is None or result.check.passed:
            return result
        reason = f"differs by {result.check.scaled:.3g} of an output's largest value"
    except InferSDKError as error:
        result, reason = error, f"does not run: {error}"
    try:
        other = _converted(imported.alternative(), request, kind, free_batch, tolerance)
        if other.check is not None and other.check.passed:
            note = f"{other.notes[0]}, because the result of the first exporter {reason}"
            return dataclasses.replace(other, notes=(note, *other.notes[1:]))
    except InferSDKError as error:
        _log.debug("the other exporter fails as well: %s", error)
    if isinstance(result, InferSDKError):
        raise result
    return result


def _converted(
    imported: Imported, request: Request, kind: FileFormat, free_batch: bool, tolerance: float
) -> Conversion:
    """Frees the batch of an imported model, if requested and possible, and checks it."""
    content, notes, check, unchecked = imported.model, list(imported.notes), None, ""
    reference = imported.reference if request.check else "not requested"
    if free_batch:
        samples = () if isinstance(reference, str) else reference.samples
        content = _with_free_batch(_exported(request, content), samples, notes)
    if isinstance(reference, str):
        unchecked = reference
    else:
        try:
            check = _check(_exported(request, content), reference, tolerance)
            if check.passed and (blank := _without_numbers(reference)) is not None:
                check = None
                unchecked = f"output {blank} of the source has no finite number for these inputs; give other samples"
        except BackendUnavailableError as error:
            unchecked = str(error)
    return Conversion(str(request.source), kind.key, content, check, unchecked, tuple(notes))


def _exported(request: Request, content: bytes) -> ModelSource:
    """The converted model, under a name for messages."""
    return ModelSource(None, content, name=f"{request.source} in ONNX")


def _source(model: Any, external_data: Any) -> tuple[ModelSource, Any, FileFormat]:
    """The file, or the module, and the format."""
    if is_torch_module(model):
        source, module = ModelSource(None, b"", name=type(model).__name__), model
        kind: FileFormat | None = FORMATS["torch-module"]
    else:
        source, module = ModelSource.of(model, external_data), None
        kind, external_data = source.format, source.external_data if source.path is None else None
    if kind is None:
        raise ModelFormatError(
            f"{str(source)!r} is not a model of a known format; supported are "
            f"{', '.join(one.title for one in importable().values())}"
        )
    if kind.key == "onnx":
        raise ConfigError(f"{str(source)!r} is already an ONNX model; edit it with `infersdk graph`")
    if not kind.importer:
        raise ModelFormatError(
            f"{str(source)!r} is {kind.title}, which cannot be converted; {kind.help_for(str(source))}"
        )
    if external_data is not None and kind.key not in WEIGHTS_APART:
        raise ConfigError(
            f"external_data is for a PNNX graph or a PaddlePaddle model in memory; {str(source)!r} is {kind.title}, "
            "which contains its weights"
        )
    return source, module, kind


def _importer(source: ModelSource, kind: FileFormat, installed: bool) -> Any:
    """The function that imports a format.

    Args:
        installed: whether the packages have to be installed here, and not in another interpreter.
    """
    absent = [name for name in kind.packages if installed and importlib.util.find_spec(name) is None]
    if absent:
        raise BackendUnavailableError(
            f"converting {str(source)!r}, {kind.title}, needs {' and '.join(absent)}, which is not installed: "
            f"{kind.install}"
        )
    module, _, attribute = kind.importer.partition(":")
    return getattr(importlib.import_module(module), attribute)


def _with_free_batch(source: ModelSource, samples: Sequence[Sample], notes: list[str]) -> bytes:
    """Frees the batch. If the graph does not allow this, adds a note and returns the model unchanged."""
    model, content = read_model(source), source.read()
    shapes = [list(value.shape) for value in model.graph.inputs if value.shape is not None]
    if not shapes or any(not shape or not isinstance(shape[0], int) for shape in shapes):
        return content
    try:
        if not FreeBatch().apply(model):
            return content
        free = model_bytes(model)
    except (UnsupportedModelError, ConfigError) as error:
        reason = str(error)
    except Exception as error:  # unexpected failures of the shape trace
        reason = f"its shapes cannot be traced ({type(error).__name__}: {error})"
    else:
        if not samples or _free_batch_agrees(content, free, samples):
            return free
        reason = "with another batch the images affect each other"
    notes.append(f"the batch stays at {shapes[0][0]}: {reason}")
    return content


# ---- the source against the model ----


def _check(model: ModelSource, reference: Reference, tolerance: float) -> Check:
    """Runs the model on the inputs of the source and compares the outputs."""
    differences: list[Difference] = []
    scaled = 0.0
    with load(model, "onnxruntime") as infer:
        names = [spec.name for spec in infer.output_specs]
        for sample in reference.samples:
            outputs = list(_run(infer, sample.inputs).values())
            if len(outputs) != len(sample.outputs):
                raise UnsupportedModelError(
                    f"the model has {len(outputs)} outputs, and the source {len(sample.outputs)}"
                )
            for name, expected, result in zip(names, sample.outputs, outputs, strict=True):
                one = difference(expected, result, Tolerance(1e30, 1e30, 2.0), name=name)
                differences.append(one)
                scaled = max(scaled, one.max_abs / max(_MIN_PEAK, _peak(expected)) if not one.note else float("inf"))
    worst = {name: max((one for one in differences if one.name == name), key=lambda one: one.max_abs) for name in names}
    rounds = len(reference.samples)
    return Check(reference.runtime, rounds, tolerance, tuple(worst.values()), scaled, scaled <= tolerance)


def _without_numbers(reference: Reference) -> int | None:
    """The first output of the source, by its number, that has elements and is NaN or infinite throughout."""
    for number, results in enumerate(zip(*(sample.outputs for sample in reference.samples), strict=True)):
        if any(np.size(array) for array in results) and not any(np.isfinite(array).any() for array in results):
            return number
    return None


def _peak(array: Any) -> float:
    values = np.abs(np.asarray(array, np.float64))
    return float(values.max(where=np.isfinite(values), initial=0.0))


def _run(infer: Infer, inputs: Sequence[Any]) -> dict[str, Any]:
    if len(inputs) != len(infer.input_specs):
        raise UnsupportedModelError(f"the model has {len(infer.input_specs)} inputs, and the source {len(inputs)}")
    return infer(
        {spec.name: np.asarray(array, spec.dtype) for spec, array in zip(infer.input_specs, inputs, strict=True)}
    )


def _free_batch_agrees(fixed: bytes, free: bytes, samples: Sequence[Sample]) -> bool:
    """Whether a model with a free batch gives the same results for two samples at once as the fixed one for each.

    True without ONNX Runtime, which compares them.
    """
    try:
        with load(fixed, "onnxruntime") as one, load(free, "onnxruntime") as many:
            if not all(spec.has_free_batch for spec in many.input_specs):
                return False
            first, second, *_ = [*samples, *samples]
            alone = [list(_run(one, sample.inputs).values()) for sample in (first, second)]
            pairs = zip(first.inputs, second.inputs, strict=True)
            together = list(_run(many, [np.concatenate([a, b]) for a, b in pairs]).values())
    except BackendUnavailableError:
        return True
    except (InferSDKError, ValueError):
        return False
    return all(_same(pair, both) for *pair, both in zip(*alone, together, strict=True))


def _same(pair: Sequence[Any], both: Any) -> bool:
    if any(np.ndim(one) == 0 for one in pair):
        return False
    whole = np.concatenate(pair)
    return difference(whole, both, Tolerance(DEFAULT_TOLERANCE * max(1.0, _peak(whole)), 0.0, 2.0)).within
