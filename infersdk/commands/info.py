"""`infersdk info`: describes a model file."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from rich.markup import escape
from rich.table import Table

from ..bundles import Bundle
from ..bundles.sealing import KEY_VARIABLE
from ..config import model_table, read
from ..core.cache import Manifest, read_manifest
from ..core.formats import FORMATS, FileFormat
from ..core.model_source import ModelSource
from ..core.tensor_spec import TensorSpec
from ..core.text import without_password
from ..errors import BackendUnavailableError, ConfigError, ModelFormatError
from ..graph import onnx_info
from ..importers.loading import converted_source
from ..loading.registry import backend_class, list_backends, load
from ..models.description import ModelDescription
from ..models.loading import fitting_types, nearly_fitting, types_of_file
from ..models.pixel_metadata import pixel_settings
from ..models.registry import TYPES, looks_like
from .common import add_options, console, print_json
from .wrapper_options import configuration_of

DESCRIPTION = (
    "Shows the inputs, outputs and metadata of a model file, and the wrapper that models.load() takes, "
    "without running it. It reads ONNX models, TensorRT engines with their manifest, and the formats of the "
    "installed backends. Models of other frameworks are converted to ONNX first, as in load()."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="the file, its address, or a configuration as predict --model takes it")
    add_options(parser, "--key", "--trust", "--json")


def run(arguments: argparse.Namespace) -> int:
    source = ModelSource.of(_model_file(arguments.model))
    shown = without_password(arguments.model)
    if source.format is FORMATS["bundle"]:
        result = _bundle(Bundle(source, key=arguments.key, trust=arguments.trust), with_key=arguments.key is not None)
    elif arguments.key is not None or arguments.trust is not None:
        raise ConfigError(f"--key and --trust are for a bundle, and {shown!r} is none")
    else:
        result = _described(source)
    result["pixels"] = _pixels(result["metadata"])
    if arguments.json:
        print_json({"model": shown, **result})
        return 0
    table = Table(show_header=False, title=escape(shown), title_justify="left")
    for name, value in result.items():
        for text in _texts(name, value):
            table.add_row(escape(name.removesuffix("s") if name in ("inputs", "outputs") else name), escape(text))
    for key, value in result["metadata"].items():
        table.add_row(escape(key), escape(value if len(value) <= 400 else f"{value[:400]} …"))
    console(width=100).print(table)
    return 0


def _model_file(text: str) -> str:
    """The path or address of a model, also where a configuration names it."""
    if (found := configuration_of(text)) is None:
        return text
    path, name = found
    file = model_table(read(path), name).get("path")
    if not isinstance(file, str):
        raise ConfigError(f"{text!r} has no path of a model file; give one of the files that it names")
    return file


def _texts(name: str, value: Any) -> list[str]:
    """The rows of an entry."""
    if name in ("metadata", "types") or value in (None, {}, []):
        return []
    if name == "nearly":
        return [f"{kind}, but {reason}" for kind, reason in value.items()]
    if name in ("inputs", "outputs"):
        return [f"{one['name']}: {one['dtype']} {_shape(one['shape'])}" for one in value]
    if name == "pixels":
        return ["; ".join(f"{key} {_short(inner)}" for key, inner in value.items())]
    if name == "operators":
        return [", ".join(f"{key} {count}" for key, count in sorted(value.items()))]
    return [f"{value:,}" if isinstance(value, int) and name == "parameters" else _short(value)]


def _shape(shape: list[Any]) -> str:
    return f"({', '.join('?' if side is None else str(side) for side in shape)})"


def _short(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return ", ".join(map(_short, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _described(source: ModelSource) -> dict[str, Any]:
    """The description of a file, by the names of the rows."""
    kind = source.format
    if kind is None or kind.key == "onnx":
        return {"format": FORMATS["onnx"].title, **_onnx(source)}  # raises for an unknown format
    if kind.key in ("tensorrt", "tensorrt-rtx"):
        return {"format": kind.title, **_engine(source)}
    reader = _reader_of(kind)
    if kind.importer:
        try:
            return {"format": f"{kind.title}, converted to ONNX", **_onnx(converted_source(source, {}))}
        except BackendUnavailableError:  # no converter
            if reader is None:
                raise
    if reader is None:
        raise ModelFormatError(f"{str(source)!r} is {kind.title}; {kind.help_for(str(source))}")
    return {"format": f"{kind.title}, read by backend {reader!r}", **_loaded(source, reader)}


def _bundle(bundle: Bundle, *, with_key: bool) -> dict[str, Any]:
    """The manifest of a bundle, and its model. The model of an encrypted one only where there is a key."""
    manifest = bundle.manifest
    result = {
        "format": FORMATS["bundle"].title,
        "name": f"{manifest.name} {manifest.version}".strip(),
        "licence": manifest.licence,
        "origin": manifest.origin,
        "wrapper": manifest.type,
        "settings": manifest.settings,
        "forms": [form.precision for form in manifest.forms],
        "signed_by": manifest.signer or "not signed",
        "encrypted": "yes" if manifest.encryption is not None else "no",
        "created_by": manifest.created_by,
    }
    readable = manifest.encryption is None or with_key or KEY_VARIABLE in os.environ
    return {**(_onnx(bundle.source()) if readable else {"metadata": {}}), **result}


def _reader_of(kind: FileFormat) -> str | None:
    """The first installed backend that reads a format directly."""
    for name in list_backends():
        with contextlib.suppress(BackendUnavailableError):
            if kind.key in (backend_class(name).declaration.formats or ()):
                return name
    return None


def _signature(
    model: ModelDescription, fitting: list[str], inputs: Iterable[TensorSpec], outputs: Iterable[TensorSpec]
) -> dict[str, Any]:
    """The wrapper that `models.load()` chooses for a model, and its inputs and outputs."""
    if len(fitting) == 1:
        said = f"{fitting[0]} (infersdk.models.{TYPES[fitting[0]].__name__})"
    elif fitting:
        said = f"{' or '.join(fitting)}: models.load() runs the model to decide, and asks for type= where it cannot"
    else:
        said = f"none: it looks like {looks_like(model)}"
    nearly = {} if fitting else nearly_fitting(model)
    sides = {"inputs": [_spec(spec) for spec in inputs], "outputs": [_spec(spec) for spec in outputs]}
    return {"wrapper": said, "types": fitting, "nearly": nearly, **sides}


def _onnx(source: ModelSource) -> dict[str, Any]:
    info = onnx_info(source)
    return {
        **_signature(*types_of_file(source), info.inputs, info.outputs),
        "opset": info.opset,
        "ir_version": info.ir_version,
        "producer": info.producer or "unknown",
        "precision": info.precision,
        "parameters": info.parameters,
        "operators": dict(info.operators),
        "metadata": dict(info.metadata),
    }


def _loaded(source: ModelSource, backend: str) -> dict[str, Any]:
    """The description by a backend that loads the file."""
    with load(source, backend) as infer:
        model = ModelDescription.of(infer)
        return {
            **_signature(model, fitting_types(model), infer.input_specs, infer.output_specs),
            "precision": f"{infer.precision} on {infer.device}",
            "metadata": dict(infer.metadata),
        }


def _engine(source: ModelSource) -> dict[str, Any]:
    """The description in the manifest; an engine itself contains only its version."""
    path = Path(f"{source}.json")
    if not path.exists():
        return {"manifest": f"not found: {path}", "metadata": {}}
    manifest = read_manifest(path)
    try:
        if manifest is not None:
            return _of_manifest(source.name, manifest)
    except (AttributeError, KeyError, TypeError, ValueError):  # details of other types
        pass
    raise ModelFormatError(f"the manifest {str(path)!r} is damaged; build the engine again with infersdk build")


def _of_manifest(name: str, manifest: Manifest) -> dict[str, Any]:
    details = manifest.details
    inputs, outputs = (
        [TensorSpec(one["name"], np.dtype(one["dtype"]), tuple(one["shape"])) for one in details.get(side, ())]
        for side in ("inputs", "outputs")
    )
    metadata = {str(key): str(value) for key, value in details.get("metadata", {}).items()}
    model = ModelDescription.of_specs(name, inputs, outputs, metadata)
    return {
        **_signature(model, fitting_types(model), inputs, outputs),
        "built_by": f"{manifest.backend} {details.get('version', '')}".strip(),
        "compute_capability": details.get("capabilities") or "8.0 and later",
        "gpu": details.get("gpu"),
        "precision": details.get("precision"),
        "profiles": [_profile(profile) for profile in details.get("profiles", [])],
        "built_from": details.get("model"),
        "metadata": metadata,
    }


def _profile(profile: dict[str, Any]) -> str:
    return "; ".join(f"{name} {' to '.join(map(_shape, (low, high)))}" for name, (low, _, high) in profile.items())


def _pixels(metadata: dict[str, str]) -> dict[str, Any]:
    """The pixel settings of a classifier in the metadata."""
    task = metadata.get("task", metadata.get("model_type", "classify")).lower()
    if not task.startswith("classif"):
        return {}
    try:
        return pixel_settings(metadata)
    except ConfigError as error:
        return {"cannot be used": str(error)}


def _spec(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "dtype": str(spec.dtype), "shape": list(spec.shape)}
