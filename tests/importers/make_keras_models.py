"""Makes keras_models.npz out of a folder of Keras files with their inputs and outputs, as Keras computes them.

    python tests/importers/make_keras_models.py FOLDER

The folder has NAME.h5, and NAME.npz with in_0, in_1, ..., out_0, out_1, ... The archive keeps of each file its
configuration and its weights: HDF5 files would be ten times as large.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import h5py
import numpy as np

TARGET = Path(__file__).resolve().parent / "keras_models.npz"
#: Larger ones stay out.
LARGEST = 60_000


def main(folder: Path) -> None:
    arrays = {}
    for path in sorted(folder.glob("*.npz")):
        name = path.stem
        with np.load(path) as values, h5py.File(folder / f"{name}.h5") as file:
            own = {f"{name}|{key}": values[key] for key in values.files}
            root = file["model_weights"]
            names: dict[str, list[str]] = {}
            for layer in root.attrs["layer_names"]:
                group = root[layer]
                names[str(layer)] = [str(weight) for weight in group.attrs["weight_names"]]
                own |= {f"{name}|weight|{layer}|{weight}": group[weight][()] for weight in names[str(layer)]}
            about = {
                "config": json.loads(file.attrs["model_config"]),
                "version": file.attrs["keras_version"],
                "weights": names,
            }
            own[f"{name}|about"] = np.frombuffer(json.dumps(about).encode(), np.uint8)
        if sum(array.nbytes for array in own.values()) <= LARGEST:
            arrays |= own
    np.savez_compressed(TARGET, **arrays)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
