"""Keras `.h5` files and `.keras` archives, converted by Keras in a separate process.

Keras imports objects that the configuration of an archive names. The configuration is therefore checked first and may
name only classes of Keras. An HDF5 file is copied without code, training state and links to other files. In the layout
of Keras 2, its attribute `model_config` contains the architecture as JSON, and the group `model_weights` the weights.
"""

from __future__ import annotations

import json
import shutil
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import ModelFormatError, UnsupportedModelError
from ..processes import opened_archive, worker
from .cleaning import ACTIVATIONS, DEEPEST, clean_configuration

if TYPE_CHECKING:
    from pathlib import Path

    from ...core.model_source import ModelSource
    from ..conversion import Imported, Request

__all__ = ["check_configuration", "import_archive", "import_h5", "write_copy"]

#: The maximum size of a configuration in bytes.
_MOST_H5_CONFIG = 1 << 28
#: The maximum compression ratio of a weight.
_LARGEST_RATIO = 200
_MOST_CONFIG = 1 << 26
#: Classes of Keras that execute code, or read other files.
_REACHING = frozenset({
    "Lambda", "TFSMLayer", "TorchModuleWrapper", "JaxLayer", "FlaxLayer", "StringLookup", "IntegerLookup",
    "TextVectorization", "FeatureSpace", "Hashing", "HashedCrossing", "__lambda__", "SearchableDict",
})  # fmt: skip


def import_h5(request: Request) -> Imported:
    """The importer of `.h5` files, which are converted from a copy without code."""
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
    if depth > DEEPEST:
        raise ModelFormatError(f"the configuration is nested more than {DEEPEST} deep")
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


# ---- HDF5 files ----


def write_copy(source: ModelSource, path: Path) -> str:
    """Writes a copy with a cleaned configuration and only the weights; returns the version of Keras that wrote it."""
    import h5py

    name = str(source)
    with source.open() as stream, open(path, "wb") as copy:
        shutil.copyfileobj(stream, copy)
    try:
        with h5py.File(path, "r+") as file:
            file.attrs["model_config"] = json.dumps(clean_configuration(_configuration(file, name)))
            for other in set(file) - {"model_weights"}:
                del file[other]
            _refuse_links(file, name)
            arrays: dict[str, Any] = {}
            file.visititems(arrays.__setitem__)
            for entry, item in arrays.items():
                if isinstance(item, h5py.Dataset):
                    _check_array(entry, item, name)
            version = file.attrs.get("keras_version", "")
            return version.decode("utf-8", "replace") if isinstance(version, bytes) else str(version)
    except (ModelFormatError, UnsupportedModelError):
        raise
    except Exception as error:  # h5py raises many types of errors
        raise ModelFormatError(f"{name!r} is not a Keras model, or is damaged: {error}") from None


def _configuration(file: Any, name: str) -> dict[str, Any]:
    if "model_config" not in file.attrs:
        what = "only weights" if "layer_names" in file.attrs else "no model"
        raise UnsupportedModelError(
            f"{name!r} has {what} and no architecture; save the whole model: model.save('model.h5')"
        )
    size = file.attrs.get_id("model_config").get_storage_size()
    if size > _MOST_H5_CONFIG or size > max(file.id.get_filesize(), 4096):
        raise ModelFormatError(f"the configuration in {name!r} has {size} bytes")
    text = file.attrs["model_config"]
    if isinstance(text, bytes):
        text = text.decode("utf-8")
    if not isinstance(text, str) or len(text) > _MOST_H5_CONFIG:
        raise ModelFormatError(f"the configuration in {name!r} is not a text")
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelFormatError(f"the configuration in {name!r} is not JSON: {error}") from None
    if not isinstance(config, dict) or not isinstance(config.get("class_name"), str):
        raise ModelFormatError(f"the configuration in {name!r} names no class of a model")
    return config


def _refuse_links(file: Any, name: str) -> None:
    """Rejects soft and external links, which could refer to other files."""
    import h5py

    types: dict[bytes, int] = {}
    file.id.links.visit(lambda link, info: types.update({link: info.type}), info=True)
    if links := [link for link, kind in types.items() if kind != h5py.h5l.TYPE_HARD]:
        raise ModelFormatError(
            f"{links[0].decode('utf-8', 'replace')!r} in {name!r} is a link, which is not supported; save the weights "
            "in the model"
        )


def _check_array(entry: str, item: Any, name: str) -> None:
    """Rejects weights in other files and weights that are larger than their contents."""
    dtype = item.dtype
    if not isinstance(dtype, np.dtype) or dtype.kind not in "fiub" or dtype.itemsize > 8:
        raise ModelFormatError(f"the weight {entry!r} is of type {dtype}")
    if item.external or item.is_virtual:
        raise ModelFormatError(f"the weight {entry!r} is in another file, which is not supported; save it in the model")
    wanted, stored = prod(item.shape) * dtype.itemsize, item.id.get_storage_size()
    compressed = item.chunks is not None
    size = item.file.id.get_filesize()
    if stored > size or (wanted > stored and not compressed) or wanted > stored * _LARGEST_RATIO:
        raise ModelFormatError(
            f"the weight {entry!r} has {stored} bytes in {name!r}; shape {item.shape} of {dtype} needs {wanted}"
        )
