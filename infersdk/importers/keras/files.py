"""Keras models in HDF5 files: the configuration, and the weights by layer and name.

In the layout of Keras 2, the attribute `model_config` contains the architecture as JSON. The group `model_weights` has
a group per layer, whose attribute `weight_names` lists its datasets. Training configurations and links to other files
are not read.
"""

from __future__ import annotations

import json
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import ModelFormatError, UnsupportedModelError

if TYPE_CHECKING:
    import numpy.typing as npt

    from ...core.model_source import ModelSource

__all__ = ["KerasFile"]

#: The maximum size of a configuration in bytes.
_MOST_CONFIG = 1 << 28
#: The maximum compression ratio of a weight.
_LARGEST_RATIO = 200


class KerasFile:
    """The contents of a Keras file.

    Attributes:
        config: the architecture, with `class_name` and `config`.
        version: the version of Keras that wrote the file.
        weights: the names and arrays of the weights of each top-level layer, in order.
    """

    def __init__(self, source: ModelSource) -> None:
        import h5py

        self._name = str(source)
        try:
            with source.open() as stream, h5py.File(stream, "r") as file:
                self._size = stream.seek(0, 2)
                self.config = self._config(file)
                version = file.attrs.get("keras_version", "")
                self.version = version.decode("utf-8", "replace") if isinstance(version, bytes) else str(version)
                self.weights = self._weights(file)
        except (ModelFormatError, UnsupportedModelError):
            raise
        except Exception as error:  # h5py raises many types of errors
            raise ModelFormatError(f"{self._name!r} is not a Keras model, or is damaged: {error}") from None

    def _config(self, file: Any) -> dict[str, Any]:
        if "model_config" not in file.attrs:
            what = "only weights" if "layer_names" in file.attrs or "layer_names" in dict(file.attrs) else "no model"
            raise UnsupportedModelError(
                f"{self._name!r} has {what} and no architecture; save the whole model: model.save('model.h5')"
            )
        attribute = file.attrs.get_id("model_config")
        if attribute.get_storage_size() > _MOST_CONFIG or attribute.get_storage_size() > max(self._size, 4096):
            raise ModelFormatError(f"the configuration in {self._name!r} has {attribute.get_storage_size()} bytes")
        text = file.attrs["model_config"]
        if isinstance(text, bytes):
            text = text.decode("utf-8")
        if not isinstance(text, str) or len(text) > _MOST_CONFIG:
            raise ModelFormatError(f"the configuration in {self._name!r} is not a text")
        try:
            config = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ModelFormatError(f"the configuration in {self._name!r} is not JSON: {error}") from None
        if not isinstance(config, dict) or not isinstance(config.get("class_name"), str):
            raise ModelFormatError(f"the configuration in {self._name!r} names no class of a model")
        return config

    def _weights(self, file: Any) -> dict[str, list[tuple[str, npt.NDArray[Any]]]]:
        import h5py

        if "model_weights" not in file:
            return {}
        root = self._group(file, "model_weights")
        result: dict[str, list[tuple[str, npt.NDArray[Any]]]] = {}
        for layer in _names(root, "layer_names", list(root)):
            if layer not in root:
                continue
            group = self._group(root, layer)
            arrays = []
            for name in _names(group, "weight_names", []):
                self._refuse_links(group, name)
                if name not in group:
                    raise ModelFormatError(f"the weight {name!r} of layer {layer!r} is missing in {self._name!r}")
                dataset = group[name]
                if not isinstance(dataset, h5py.Dataset):
                    raise ModelFormatError(f"the weight {name!r} of layer {layer!r} is not an array")
                arrays.append((name, self._array(dataset, name)))
            result[layer] = arrays
        return result

    def _group(self, parent: Any, name: str) -> Any:
        import h5py

        self._refuse_links(parent, name)
        group = parent[name]
        if not isinstance(group, h5py.Group):
            raise ModelFormatError(f"{name!r} in {self._name!r} is not a group")
        return group

    def _refuse_links(self, group: Any, path: str) -> None:
        """Rejects links, which could refer to other files."""
        import h5py

        for part in path.split("/"):
            if not part:
                continue
            link = group.get(part, getlink=True)
            if link is not None and not isinstance(link, h5py.HardLink):
                raise ModelFormatError(
                    f"{path!r} in {self._name!r} is a link, which is not supported; save the weights in the model"
                )
            if link is None:
                return
            group = group[part]
            if not isinstance(group, h5py.Group):
                return

    def _array(self, dataset: Any, name: str) -> npt.NDArray[Any]:
        dtype = dataset.dtype
        if not isinstance(dtype, np.dtype) or dtype.kind not in "fiub" or dtype.itemsize > 8:
            raise ModelFormatError(f"the weight {name!r} is of type {dtype}")
        if dataset.external or dataset.is_virtual:
            raise ModelFormatError(
                f"the weight {name!r} is in another file, which is not supported; save it in the model"
            )
        wanted, stored = prod(dataset.shape) * dtype.itemsize, dataset.id.get_storage_size()
        compressed = dataset.chunks is not None
        if stored > self._size or (wanted > stored and not compressed) or wanted > stored * _LARGEST_RATIO:
            raise ModelFormatError(
                f"the weight {name!r} has {stored} bytes in {self._name!r}; shape {dataset.shape} of {dtype} needs "
                f"{wanted}"
            )
        array: npt.NDArray[Any] = dataset[()]
        return array


def _names(group: Any, attribute: str, default: list[str]) -> list[str]:
    """A list of names. Keras splits long lists: `weight_names0`, `weight_names1`, ..."""
    result: list[Any] = []
    if attribute in group.attrs:
        result = list(group.attrs[attribute])
    else:
        number = 0
        while f"{attribute}{number}" in group.attrs:
            result.extend(group.attrs[f"{attribute}{number}"])
            number += 1
        if not number:
            return default
    return [name.decode("utf-8") if isinstance(name, bytes) else str(name) for name in result]
