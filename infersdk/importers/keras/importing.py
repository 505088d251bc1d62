"""Keras `.h5` files and `.keras` archives, converted by Keras in a separate process.

Keras imports objects that the configuration of an archive names. The configuration is therefore checked first and may
name only classes of Keras.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ...errors import ModelFormatError, UnsupportedModelError
from ..processes import opened_archive, worker
from .cleaning import ACTIVATIONS
from .files import write_copy

if TYPE_CHECKING:
    from ..conversion import Imported, Request

__all__ = ["check_configuration", "import_archive", "import_h5"]

_MOST_CONFIG = 1 << 26
#: Classes of Keras that execute code, or read other files.
_REACHING = frozenset({
    "Lambda", "TFSMLayer", "TorchModuleWrapper", "JaxLayer", "FlaxLayer", "StringLookup", "IntegerLookup",
    "TextVectorization", "FeatureSpace", "Hashing", "HashedCrossing", "__lambda__", "SearchableDict",
})  # fmt: skip


def import_h5(request: Request) -> Imported:
    """The importer of `.h5` files, which are converted from a copy without code.

    Raises:
        BackendUnavailableError: no framework for the file is installed.
        ConfigError: the shapes do not fit the inputs.
        UnsupportedModelError: the file contains code, or no framework can convert it.
        ModelFormatError: the file is damaged.
    """
    with worker("keras_export", request.python) as work:
        version = write_copy(request.source, work.folder / "model.h5")
        return work.export(request, model="model.h5", version=version)


def import_archive(request: Request) -> Imported:
    """The importer of `.keras` files. Raises the errors of `import_h5`."""
    with opened_archive(request.source, "a Keras archive") as archive:
        if any(name.startswith("/") or ".." in name.split("/") for name in archive.namelist()):
            raise ModelFormatError(f"{str(request.source)!r} has entries outside of its folder")
        info = archive.getinfo("config.json")
        if info.file_size > _MOST_CONFIG:
            raise ModelFormatError(f"the configuration in {str(request.source)!r} has {info.file_size} bytes")
        try:
            config = json.loads(archive.read(info))
        except RecursionError:
            raise ValueError("its configuration is nested too deeply") from None
    check_configuration(config)
    with worker("keras_export", request.python) as work:
        (work.folder / "model.keras").write_bytes(request.source.read())
        return work.export(request, model="model.keras", version="3.")


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
