"""Files of other frameworks, as the frameworks write them."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np


def write_pnnx(
    folder: Path, text: str, weights: Mapping[str, Any] | None = None, compression: int = zipfile.ZIP_STORED
) -> Path:
    """A PNNX graph `m.pnnx.param` and its weights `m.pnnx.bin`; returns the path of the graph."""
    folder.mkdir(exist_ok=True)
    (folder / "m.pnnx.param").write_text(text)
    with zipfile.ZipFile(folder / "m.pnnx.bin", "w", compression) as archive:
        for name, array in (weights or {}).items():
            archive.writestr(name, array.tobytes())
    return folder / "m.pnnx.param"


def write_keras(path: Path, config: Any, version: str, weights: dict[str, dict[str, Any]]) -> Path:
    """An HDF5 file of Keras 2: weights by layer and name."""
    import h5py

    with h5py.File(path, "w") as file:
        file.attrs["model_config"] = config if isinstance(config, str) else json.dumps(config)
        file.attrs["keras_version"] = version
        root = file.create_group("model_weights")
        root.attrs["layer_names"] = np.asarray([name.encode() for name in weights], dtype="S")
        for layer, arrays in weights.items():
            group = root.create_group(layer)
            group.attrs["weight_names"] = np.asarray([name.encode() for name in arrays], dtype="S") if arrays else []
            for name, array in arrays.items():
                group.create_dataset(name, data=array)
    return path
