"""The reference for Keras files: Keras itself, in a process of its own, on a copy of the file that holds no code.

Keras can execute what a configuration names: functions of modules, bytecode. The copy has the layers that the importer
knows, with the settings that it reads, and the weights as they were read; everything else is left out.
"""

from __future__ import annotations

import importlib.util
import json
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import InferSDKError, UnsupportedModelError
from ..conversion import Reference, Request
from ..processes import worker
from .config import MODELS
from .layers.activations import FUNCTIONS
from .translation import LAYERS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from .files import KerasFile

__all__ = ["reference_of"]

_CELLS = {"LSTMCell", "GRUCell", "SimpleRNNCell"}
_ACTIVATIONS = {*FUNCTIONS, "softmax", "log_softmax"}


def reference_of(request: Request, file: KerasFile, sizes: Mapping[str, tuple[int, ...]]) -> Reference | str:
    """The reference of a file, or why there is none.

    Args:
        sizes: of inputs, for those that have free axes.
    """
    if request.python is None and all(importlib.util.find_spec(name) is None for name in ("tf_keras", "keras")):
        return "Keras is not installed: pip install tf_keras tensorflow, or name a Python that has it (--python)"
    try:
        config = _clean(file.config, "")
    except UnsupportedModelError as error:
        return f"Keras could execute code for this file: {error}"

    def run(sets: list[list[Any]]) -> list[list[Any]]:
        with worker("keras_reference", request.python) as work:
            _write(work.folder / "model.h5", config, file)
            for number, arrays in enumerate(sets):
                work.write_arrays(f"inputs{number}.npz", arrays)
            work.run({"model": "model.h5", "rounds": len(sets)})
            return [work.read_arrays(f"outputs{number}.npz") for number in range(len(sets))]

    try:
        return Reference(_runtime(request.python), run, sizes=sizes)
    except InferSDKError as error:
        return str(error)


def _runtime(python: str | None) -> str:
    if python is not None:
        return f"Keras of {python}"
    from importlib.metadata import version

    name = "tf_keras" if importlib.util.find_spec("tf_keras") is not None else "keras"
    return f"{name} {version(name)}"


def _clean(value: Any, key: str) -> Any:
    """Settings without what training alone needs, and without names of modules.

    Raises:
        UnsupportedModelError: it has an object of a class that the importer does not know.
    """
    if key.endswith("_initializer"):
        return "zeros"
    if key.endswith(("_regularizer", "_constraint")):
        return None
    if isinstance(value, list):
        return [_clean(inner, "") for inner in value]
    if not isinstance(value, dict):
        return value
    kind = value.get("class_name")
    if kind is not None:
        if kind == "function" and value.get("config") in _ACTIVATIONS:
            return value["config"]
        if kind == "DTypePolicy":
            return dict(value.get("config", {})).get("name", "float32")
        if not isinstance(kind, str) or kind not in {*LAYERS, *MODELS, *_CELLS, "InputLayer", "__keras_tensor__"}:
            raise UnsupportedModelError(f"an object of the class {kind!r}")
    module = value.get("module")
    if isinstance(module, str) and not module.startswith(("keras", "tensorflow.keras", "tf_keras")):
        raise UnsupportedModelError(f"an object of the module {module!r}")
    dropped = {"registered_name", "build_config", "compile_config", "shared_object_id"}
    return {name: _clean(inner, name) for name, inner in value.items() if name not in dropped}


def _write(path: Path, config: dict[str, Any], file: KerasFile) -> None:
    """A file of the same layout, of what was read."""
    import h5py

    with h5py.File(path, "w") as made:
        made.attrs["model_config"] = json.dumps(config)
        made.attrs["keras_version"] = file.version
        made.attrs["backend"] = "tensorflow"
        root = made.create_group("model_weights")
        root.attrs["layer_names"] = (
            np.asarray([name.encode() for name in file.weights], dtype="S") if file.weights else []
        )
        root.attrs["keras_version"] = file.version
        root.attrs["backend"] = "tensorflow"
        for layer, weights in file.weights.items():
            group = root.create_group(layer)
            group.attrs["weight_names"] = (
                np.asarray([name.encode() for name, _ in weights], dtype="S") if weights else []
            )
            for name, array in weights:
                group.create_dataset(name, data=array)
