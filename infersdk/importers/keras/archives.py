"""Keras 3 `.keras` archives, converted by Keras with the PyTorch backend in a separate process.

Keras imports objects that the configuration names. The configuration is therefore checked first and may name only
classes of Keras.
"""

from __future__ import annotations

import importlib.util
import json
import zipfile
from typing import TYPE_CHECKING, Any

from ...errors import BackendUnavailableError, ConfigError, ModelFormatError, UnsupportedModelError
from ..processes import worker
from .cleaning import ACTIVATIONS

if TYPE_CHECKING:
    from ...core.model_source import ModelSource
    from ..conversion import Imported, Request

__all__ = ["check_configuration", "import_archive"]

_MOST_CONFIG = 1 << 26
#: The maximum ratio of the uncompressed to the compressed size of an archive.
_LARGEST_RATIO = 100
#: Classes of Keras that execute code, or read other files.
_REACHING = frozenset({
    "Lambda", "TFSMLayer", "TorchModuleWrapper", "JaxLayer", "FlaxLayer", "StringLookup", "IntegerLookup",
    "TextVectorization", "FeatureSpace", "Hashing", "HashedCrossing", "__lambda__", "SearchableDict",
})  # fmt: skip


def import_archive(request: Request) -> Imported:
    """The importer of `.keras` files.

    Raises:
        ConfigError: shapes are given.
        BackendUnavailableError: Keras 3 or PyTorch is not installed.
        UnsupportedModelError: the configuration names code, or Keras cannot export the model.
    """
    if request.shapes:
        raise ConfigError("a Keras 3 archive contains its shapes; omit shapes")
    _check_archive(request.source)
    absent = [name for name in ("keras", "torch", "onnxscript") if importlib.util.find_spec(name) is None]
    if request.python is None and absent:
        raise BackendUnavailableError(
            f"converting a Keras 3 model needs {' and '.join(absent)}, which is not installed: pip install "
            '"infersdk[keras]", or specify a Python that has it (--python)'
        )
    with worker("keras_export", request.python) as work:
        path = work.folder / "model.keras"
        path.write_bytes(request.source.read())
        return work.export({"model": str(path)})


def _check_archive(source: ModelSource) -> None:
    try:
        with source.open() as stream, zipfile.ZipFile(stream) as archive:
            infos = archive.infolist()
            if sum(info.file_size for info in infos) > max(stream.seek(0, 2), 1 << 20) * _LARGEST_RATIO:
                raise ModelFormatError(f"{str(source)!r} expands to more than {_LARGEST_RATIO} times its size")
            if any(name.startswith("/") or ".." in name.split("/") for name in archive.namelist()):
                raise ModelFormatError(f"{str(source)!r} has entries outside of its folder")
            info = archive.getinfo("config.json")
            if info.file_size > _MOST_CONFIG:
                raise ModelFormatError(f"the configuration in {str(source)!r} has {info.file_size} bytes")
            config = json.loads(archive.read(info))
    except (
        zipfile.BadZipFile, OSError, ValueError, KeyError, NotImplementedError, RuntimeError, RecursionError, EOFError,
    ) as error:  # fmt: skip
        raise ModelFormatError(f"{str(source)!r} is not a Keras archive, or is damaged: {error}") from None
    check_configuration(config)


def check_configuration(value: Any, depth: int = 0) -> None:
    """Raises UnsupportedModelError for objects other than Keras layers and unknown functions."""
    if depth > 200:
        raise ModelFormatError("the configuration is nested more than 200 deep")
    if isinstance(value, list):
        for inner in value:
            check_configuration(inner, depth + 1)
    if not isinstance(value, dict):
        return
    kind, module = value.get("class_name"), value.get("module")
    if kind is not None:
        known = (
            kind == "__keras_tensor__"
            or module is None
            or (isinstance(module, str) and f"{module}.".startswith("keras."))
        )
        if kind == "function":
            known = value.get("config") in ACTIVATIONS
        if (
            not isinstance(kind, str)
            or kind in _REACHING
            or not known
            or value.get("registered_name") not in (None, kind)
        ):
            raise UnsupportedModelError(
                f"the configuration names {module}.{kind}, which can execute code or read files, and code in files is "
                "never executed"
            )
    for inner in value.values():
        check_configuration(inner, depth + 1)
