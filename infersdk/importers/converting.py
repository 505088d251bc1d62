"""`convert()`: converts a model to ONNX and checks the result."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from ..core.formats import FORMATS, FileFormat
from ..core.model_source import ModelLike, ModelSource
from ..core.text import logger
from ..errors import (
    BackendUnavailableError,
    ConfigError,
    InferSDKError,
    InputError,
    ModelFormatError,
    UnsupportedModelError,
)
from ..graph.files import model_bytes, parse_model, require_onnx
from ..graph.passes import FreeBatch
from .checking import check_model, check_samples, free_batch_agrees, samples_of
from .conversion import (
    Check,
    Conversion,
    Imported,
    InputShape,
    Reference,
    Request,
    Sample,
    samples_by_name,
    shapes_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import onnx_ir as ir

__all__ = ["DEFAULT_TOLERANCE", "convert", "importable"]

#: The default maximum difference from the source, relative to the largest magnitude of an output.
DEFAULT_TOLERANCE = 1e-4
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
    python: str | None = None,
    external_data: Any = None,
    seed: int = 0,
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
        python: the Python interpreter with the framework of the source; None means the present one.
        external_data: the weights file of a model in memory.
        seed: the seed of random inputs.
        samples: values by the name of the input, for inputs that do not accept random ones: `{"offsets": [0, 3, 5]}`,
            or texts `NAME=0,3,5[:int64]` and `NAME=FILE.npy`. They also define the shape and type of the input.

    Raises:
        ModelFormatError: the file is damaged, or its format cannot be converted.
        UnsupportedModelError: the model has unsupported operators or features; the message lists all of them.
        BackendUnavailableError: a required package is not installed.
        ConfigError: shapes are missing or do not fit.
    """
    if not 0 <= tolerance < float("inf"):
        raise ConfigError(f"tolerance must be a number from 0, not {tolerance!r}")
    request, kind = _request(model, external_data)
    request = Request(
        request.source, request.module, shapes_of(shapes), tuple(inputs), tuple(outputs), python, check, seed,
        samples_by_name(samples),
    )  # fmt: skip
    if (request.inputs or request.outputs) and kind.key != "tensorflow-graph":
        raise ConfigError(
            f"inputs and outputs apply to frozen TensorFlow graphs; {str(request.source)!r} is {kind.title}, which "
            "defines them"
        )
    require_onnx("converting a model")
    imported = _importer(kind)(request)
    drawn = isinstance(imported.reference, Reference) and imported.reference.run is None
    if request.samples and drawn and not kind.key.startswith(("torch", "pnnx")):
        raise ConfigError(f"samples are not supported for {kind.title}; omit them")
    try:
        result = _converted(imported, request, kind, free_batch, tolerance)
    except InferSDKError as error:
        if imported.alternative is None:
            raise
        failure: InferSDKError | str = error
    else:
        if imported.alternative is None or result.check is None or result.check.passed:
            return result
        failure = f"{result.check.scaled:.3g} of an output's largest value"
    try:
        other = _converted(imported.alternative.run(), request, kind, free_batch, tolerance)
    except InferSDKError as error:
        _log.debug("%s fails as well: %s", imported.alternative.name, error)
        other = None
    if other is not None and other.check is not None and other.check.passed:
        what = f"differs by {failure}" if isinstance(failure, str) else f"does not run: {failure}"
        note = f"by {imported.alternative.name}, because the result of the first exporter {what}"
        return dataclasses.replace(other, notes=(note, *other.notes))
    if isinstance(failure, InferSDKError):
        raise failure
    return result


def _converted(
    imported: Imported, request: Request, kind: FileFormat, free_batch: bool, tolerance: float
) -> Conversion:
    """Frees the batch of an imported model, if requested and possible, and checks it."""
    notes = list(imported.notes)
    content = _content(imported.model)
    samples, unchecked = _samples(content, imported.reference, request)
    if free_batch:
        content = _with_free_batch(content, samples, notes)
    result: Check | None = None
    if not unchecked:
        assert isinstance(imported.reference, Reference)
        try:
            result = check_model(content, imported.reference.runtime, samples, tolerance)
        except BackendUnavailableError as error:
            unchecked = str(error)
    return Conversion(str(request.source), kind.key, content, result, unchecked, tuple(notes))


def _request(model: Any, external_data: Any) -> tuple[Request, FileFormat]:
    if _is_module(model):
        name = type(model).__name__
        return Request(ModelSource(None, b"", name=name), module=model), FORMATS["torch-module"]
    source = ModelSource.of(model, external_data)
    kind = source.format
    if kind is None:
        raise ModelFormatError(
            f"{str(source)!r} is not a model of a known format; supported are {', '.join(_titles())}"
        )
    if kind.key == "onnx":
        raise ConfigError(f"{str(source)!r} is already an ONNX model; edit it with `infersdk graph`")
    if not kind.importer:
        raise ModelFormatError(
            f"{str(source)!r} is {kind.title}, which cannot be converted; {kind.help_for(str(source))}"
        )
    return Request(source), kind


def _titles() -> list[str]:
    return [result.title for result in importable().values()]


def _is_module(model: Any) -> bool:
    return any(
        kind.__module__ == "torch.nn.modules.module" and kind.__name__ == "Module" for kind in type(model).__mro__
    )


def _importer(kind: FileFormat) -> Any:
    for name in kind.packages:
        if importlib.util.find_spec(name) is None:
            raise BackendUnavailableError(
                f"converting {kind.title} needs {name}, which is not installed: {kind.install}"
            )
    module, _, attribute = kind.importer.partition(":")
    return getattr(importlib.import_module(module), attribute)


def _content(model: ir.Model | bytes) -> bytes:
    return model if isinstance(model, bytes) else model_bytes(model)


def _samples(content: bytes, reference: Reference | str, request: Request) -> tuple[list[Sample], str]:
    """The results of the source, or the reason why there are none."""
    if isinstance(reference, str) or reference.run is not None:  # otherwise the importer has used them
        check_samples(content, request.samples)
    if not request.check:
        return [], "not requested"
    if isinstance(reference, str):
        return [], reference
    try:
        result = samples_of(content, reference, request.seed, request.samples)
    except InferSDKError as error:
        return [], f"{reference.runtime} does not run the source: {error}"
    return result, "" if result else f"{reference.runtime} gave no results"


def _with_free_batch(content: bytes, samples: Sequence[Sample], notes: list[str]) -> bytes:
    """Frees the batch. If the graph does not allow this, adds a note and returns the model unchanged."""
    model = parse_model(content)
    shapes = [list(value.shape) for value in model.graph.inputs if value.shape is not None]
    if not shapes or any(not shape or not isinstance(shape[0], int) for shape in shapes):
        return content
    try:
        changed = FreeBatch().apply(model)
        free = model_bytes(model)
    except (UnsupportedModelError, ConfigError, InputError) as error:
        notes.append(f"the batch stays at {shapes[0][0]}: {error}")
        return content
    except Exception as error:  # unexpected failures of the shape trace
        notes.append(
            f"the batch stays at {shapes[0][0]}: its shapes cannot be traced ({type(error).__name__}: {error})"
        )
        return content
    if not changed:
        return content
    try:
        agrees = not samples or free_batch_agrees(content, free, samples)
    except BackendUnavailableError:
        return free
    if not agrees:
        notes.append(f"the batch stays at {shapes[0][0]}: with another batch the images affect each other")
        return content
    return free
