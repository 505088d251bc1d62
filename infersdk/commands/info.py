"""`infersdk info`: what a model file says of itself."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import ConfigError, ModelFormatError
from ..model_source import ModelSource
from ..registry import named_model
from .common import add_json_argument, console, print_json


def register(subparsers: Any) -> None:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "info",
        help="inputs, outputs, precision and metadata of a model",
        description="Shows what a model file says of itself, without running it: an ONNX model, an OpenVINO IR, or a "
        "TensorRT engine with its manifest. A model of another framework is converted to ONNX first, as detect does "
        "it. Of other files it says what they are, and what helps.",
    )
    parser.add_argument("model", type=Path)
    add_json_argument(parser)
    parser.set_defaults(func=run)


def run(arguments: argparse.Namespace) -> int:
    from rich.markup import escape
    from rich.table import Table

    source = ModelSource.of(named_model(arguments.model))
    result = _described(source)
    result["pixels"] = _pixels(result["metadata"])
    if arguments.json:
        print_json({"model": str(arguments.model), **result})
        return 0
    table = Table(show_header=False, title=str(arguments.model), title_justify="left")
    for name, value in result.items():
        for text in _texts(name, value):
            table.add_row(escape(name.removesuffix("s") if name in ("inputs", "outputs") else name), escape(text))
    for key, value in result["metadata"].items():
        table.add_row(escape(key), escape(value if len(value) <= 400 else f"{value[:400]} …"))
    console(width=100).print(table)
    return 0


def _texts(name: str, value: Any) -> list[str]:
    """The rows of an entry."""
    if name == "metadata" or value in (None, {}, []):
        return []
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
    """What a file says, by the names of the rows.

    Raises:
        ModelFormatError: it is of another format; the message says which, and what helps.
        BackendUnavailableError: what reads or converts it is not installed.
        UnsupportedModelError: it cannot be converted.
    """
    readers: dict[str, Callable[[ModelSource], dict[str, Any]]] = {
        "onnx": _onnx, "openvino": _loaded("openvino"), "ort": _loaded("onnxruntime"), "tensorrt": _engine,
        "tensorrt-rtx": _engine,
    }  # fmt: skip
    if (kind := source.format) is None:
        return _onnx(source)  # which says what is wrong with it
    if kind.importer:
        from ..importers.loading import converted_source

        return {"format": f"{kind.title}, converted to ONNX", **_onnx(converted_source(source, {}))}
    if kind.key not in readers:
        raise ModelFormatError(f"{str(source)!r} is {kind.title}; {kind.help_for(str(source))}")
    return {"format": kind.title, **readers[kind.key](source)}


def _onnx(source: ModelSource) -> dict[str, Any]:
    from ..graph import onnx_info

    info = onnx_info(source)
    return {
        "inputs": [_spec(spec) for spec in info.inputs],
        "outputs": [_spec(spec) for spec in info.outputs],
        "opset": info.opset,
        "ir_version": info.ir_version,
        "producer": info.producer or "unknown",
        "precision": info.precision,
        "parameters": info.parameters,
        "operators": dict(info.operators),
        "metadata": dict(info.metadata),
    }


def _loaded(backend: str) -> Callable[[ModelSource], dict[str, Any]]:
    """Reads the formats of one backend, by loading them."""

    def read(source: ModelSource) -> dict[str, Any]:
        from ..registry import load

        with load(source, backend) as infer:
            return {
                "inputs": [_spec(spec) for spec in infer.input_specs],
                "outputs": [_spec(spec) for spec in infer.output_specs],
                "precision": f"{infer.precision} on {infer.device}",
                "metadata": dict(infer.metadata),
            }

    return read


def _engine(source: ModelSource) -> dict[str, Any]:
    """What its manifest says. The engine itself shows only its version, and only on a GPU."""
    from ..cache import read_manifest

    manifest = read_manifest(Path(f"{source}.json"))
    if manifest is None:
        return {"manifest": f"not found: {source}.json", "metadata": {}}
    details = manifest.details
    return {
        "inputs": details.get("inputs", []),
        "outputs": details.get("outputs", []),
        "built_by": f"{manifest.backend} {details.get('version', '')}".strip(),
        "compute_capability": details.get("capabilities") or "8.0 and later",
        "gpu": details.get("gpu"),
        "precision": details.get("precision"),
        "profiles": [_profile(profile) for profile in details.get("profiles", [])],
        "built_from": details.get("model"),
        "metadata": details.get("metadata", {}),
    }


def _profile(profile: dict[str, Any]) -> str:
    return "; ".join(f"{name} {' to '.join(map(_shape, (low, high)))}" for name, (low, _, high) in profile.items())


def _pixels(metadata: dict[str, str]) -> dict[str, Any]:
    """What the metadata says of a classifier's pixels."""
    from ..models.pixel_metadata import pixel_settings

    task = metadata.get("task", metadata.get("model_type", "classify")).lower()
    if not task.startswith("classif"):
        return {}
    try:
        return pixel_settings(metadata)
    except ConfigError as error:
        return {"cannot be used": str(error)}


def _spec(spec: Any) -> dict[str, Any]:
    return {"name": spec.name, "dtype": str(spec.dtype), "shape": list(spec.shape)}
