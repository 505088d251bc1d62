"""Conversion in `infersdk.load()` of files that the backend does not read, with a cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..core.cache import Cache, key_of
from ..core.files import digest_of
from ..core.model_source import ModelSource
from ..core.text import logger
from ..errors import ConfigError, UnsupportedModelError
from ..graph.files import files_of
from . import paddle
from .conversion import Conversion, argument
from .converting import convert
from .pnnx.graph import weights_file as pnnx_weights_file
from .processes import worker
from .workers.versions import versions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

__all__ = ["converted_source", "source_files"]

_log = logger("infersdk.importers")
#: Packages whose versions affect the result of a conversion.
_PACKAGES = (
    "onnx", "onnx-ir", "torch", "onnxscript", "tensorflow", "tf2onnx", "keras", "tf-keras", "paddlepaddle",
    "paddle2onnx", "h5py",
)  # fmt: skip


def converted_source(model: Any, arguments: Mapping[str, Any]) -> ModelSource:
    """Converts a file in another format to ONNX, or reads the result from the cache.

    Models in memory are never written to disk and are converted each time.

    Args:
        arguments: arguments of `convert()`.

    Raises:
        UnsupportedModelError: the results of the converted model differ from those of the source.
        ConfigError: `convert()` has no such argument, or it has another type.
        ModelError, BackendUnavailableError: as `convert()`.
    """
    known = [name for name in convert.__kwdefaults__ or {} if name != "external_data"]  # which load() takes itself
    if unknown := sorted(set(arguments) - set(known)):
        raise ConfigError(f"convert={{{unknown[0]!r}: ...}}: the arguments are {', '.join(known)}")
    arguments = {name: argument(name, value) for name, value in arguments.items()}
    source = model if isinstance(model, ModelSource) else None
    if source is None or source.path is None:
        conversion = _checked(convert(model, **arguments))
        return ModelSource(None, conversion.content, name=f"{source.stem if source else conversion.source}.onnx")

    def make() -> tuple[bytes, dict[str, Any]]:
        conversion = _checked(convert(source, **arguments))
        return conversion.content, {
            "format": conversion.format,
            "verdict": conversion.verdict,
            "notes": list(conversion.notes),
        }

    content, details, stored = Cache().get_or_make(
        _key(source, arguments), make, kind="conversion", backend="onnx", label=source.name
    )
    if stored:
        _log.debug("%s: converted before (%s)", source.name, details.get("verdict"))
    return ModelSource(None, content, name=f"{source.stem}.onnx", origin=source.path)


def _checked(conversion: Conversion) -> Conversion:
    for note in conversion.notes:
        _log.warning("%s: %s", conversion.source, note)
    if conversion.check is None:
        _log.warning("%s: the conversion is %s", conversion.source, conversion.verdict)
    elif not conversion.check.passed:
        raise UnsupportedModelError(
            f"{conversion.source!r} was converted to ONNX, and the result differs: {conversion.verdict}; inspect it "
            "with infersdk convert, or allow the difference: convert={'tolerance': ...}"
        )
    return conversion


def source_files(source: ModelSource) -> Iterator[Path]:
    """The files of a model, including its weights."""
    assert source.path is not None
    kind = source.format.key if source.format is not None else ""
    if kind == "tensorflow-saved-model":
        yield from sorted(path for path in source.path.parent.rglob("*") if path.is_file())
        return
    yield from files_of(source)
    if kind == "openvino":
        yield source.path.with_suffix(".bin")
    weights = paddle.weights_file if kind.startswith("paddle") else pnnx_weights_file if kind == "pnnx" else None
    path = weights(source) if weights is not None else None
    if path is not None and path.is_file():
        yield path


def _key(source: ModelSource, arguments: Mapping[str, Any]) -> str:
    assert source.path is not None
    files = {}
    for path in source_files(source):
        with open(path, "rb") as file:
            files[str(path.relative_to(source.path.parent))] = digest_of(file)
    given = dict(arguments)
    if "shapes" in given:
        given["shapes"] = [[one.name, list(one.sizes), one.dtype] for one in given["shapes"]]
    if "samples" in given:
        given["samples"] = {name: [array.dtype.name, array.tolist()] for name, array in given["samples"].items()}
    packages: dict[str, Any] = versions(("infersdk", *_PACKAGES))
    if (python := arguments.get("python")) is not None:
        with worker("versions", python) as work:
            packages = {"here": packages, "there": work.run({"packages": _PACKAGES})}
    return key_of({"conversion": 2, "files": files, "arguments": given, "packages": packages})
