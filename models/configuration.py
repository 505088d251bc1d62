"""Models from a configuration: wrappers, compositions, and readers of text.

::

    [models.aerial]                  # a composition has a table for each of its models
    type = "tiled"
    tile = 640

    [models.aerial.model]
    type = "yolov8"
    path = "yolov8n.onnx"

    [models.reader]
    type = "ocr"
    detection = "det.onnx"
    recognition = "rec.onnx"
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import msgspec

from ..config import convert, model_tables, read
from ..errors import ConfigError
from ..pipeline import PipelineSettings
from .composed import Composed, Tiled, TwoStage
from .declaration import unknown_setting
from .loading import is_bundle, load, named_type, type_names, unknown_type
from .ocr import OCR

if TYPE_CHECKING:
    from .image_model import ImageModel
    from .vision import VisionModel

__all__ = ["COMPOSITIONS", "READER_FILES", "create", "named_kind"]

#: Compositions by the name that a configuration uses.
COMPOSITIONS: dict[str, type[Composed[Any]]] = {"tiled": Tiled, "two-stage": TwoStage}
#: The name of readers of text, and the fields that name their files.
_READER, READER_FILES = "ocr", ("detection", "recognition", "orientation")


def create(config: str | os.PathLike[str] | Mapping[str, Any]) -> dict[str, ImageModel[Any]]:
    """The models that a configuration describes, by name: `create("app.toml")["detector"]`.

    Args:
        config: a TOML, YAML or JSON file, or a mapping, with a table `models` (see `infersdk.config`).

    Raises:
        ConfigError: names the table and the field at fault.
        BackendError, ModelError: what loading raises. Models that were loaded before are closed.
    """
    tables = model_tables(read(config))
    with ExitStack() as opened:
        models: dict[str, ImageModel[Any]] = {}
        for name, table in tables.items():
            models[name] = _create_one(f"models.{name}", table)
            opened.callback(models[name].close)
        opened.pop_all()
    return models


def _create_one(name: str, table: Any) -> ImageModel[Any]:
    """The model of a table. `name` leads to it, for messages."""
    if not isinstance(table, Mapping):
        raise ConfigError(f"{name} is a table, not {table!r}")
    fields = dict(table)
    try:
        if is_bundle(fields.get("path")):
            return _of_bundle(fields)
        kind = named_kind(fields.pop("type", None))
        if not issubclass(kind, Composed):
            return _model(kind, fields)
    except (ConfigError, TypeError) as error:
        raise ConfigError(f"{name}: {error}") from None
    return _composition(name, kind, fields)


def named_kind(name: Any) -> type[Any]:
    """The wrapper, composition or reader of the `type` of a table: a name, or `"module:Class"` for a wrapper of your
    own.
    """
    kinds: dict[str, type[Any]] = {**COMPOSITIONS, _READER: OCR}
    names = [*type_names(), *kinds]
    if not isinstance(name, str) or not (name in names or ":" in name):
        raise unknown_type(name, names)
    return kinds[name] if name in kinds else named_type(name)


def _composition(name: str, kind: type[Composed[Any]], fields: dict[str, Any]) -> ImageModel[Any]:
    """A composition from its table: a table for each model, and settings."""
    if missing := [part for part in kind.parts if not isinstance(fields.get(part), Mapping)]:
        raise ConfigError(
            f"{name}: {kind.__name__} has a table for its {missing[0]}, [{name}.{missing[0]}], with a type and a path"
        )
    with ExitStack() as opened:
        models = []
        for part in kind.parts:
            models.append(_create_one(f"{name}.{part}", fields.pop(part)))
            opened.callback(models[-1].close)
        try:
            model = kind(*models, **fields)
        except (ConfigError, TypeError) as error:
            raise ConfigError(f"{name}: {error}") from None
        opened.pop_all()
    return model


def _of_bundle(fields: dict[str, Any]) -> ImageModel[Any]:
    """A wrapper from a table with the path of a bundle, which knows the `type`, and `key`, `trust` and `verify`."""
    pipeline = _pipeline("bundle", fields)
    model = load(fields.pop("path"), **fields)
    model.details.set_pipeline_defaults(pipeline)
    return model


def _model(kind: type[VisionModel[Any] | OCR], fields: dict[str, Any]) -> ImageModel[Any]:
    """A wrapper or a reader of text from its table: its files, `backend`, settings, `options` (the backend's) and
    `pipeline` (its requests').
    """
    files = {name: fields.pop(name, None) for name in (READER_FILES if kind is OCR else ("path",))}
    pipeline = _pipeline(kind.__name__, fields)
    if unknown := sorted(set(fields) - {"backend", *kind.Settings.__struct_fields__}):
        own = f"files go under {', '.join(files)}, the backend's own go under options, those of submit() under pipeline"
        raise unknown_setting(kind, unknown[0], own, ("type", "backend", "pipeline", *files))
    for name, path in files.items():
        if not isinstance(path, (str, os.PathLike)) and (path is not None or name != "orientation"):
            raise ConfigError(f"{kind.__name__}: {name} names a model file, and is {path!r}")
    model = kind(*files.values(), **fields)
    model.details.set_pipeline_defaults(pipeline)
    return model


def _pipeline(kind: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Takes the settings of the pipeline out of a table."""
    settings = convert(fields.pop("pipeline", {}), PipelineSettings, f"{kind} pipeline")
    return msgspec.structs.asdict(settings)
