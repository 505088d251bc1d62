"""TensorFlow frozen graphs, SavedModels and TensorFlow Lite models, converted by tf2onnx in a separate process.

TensorFlow needs 2 GB of disk space and ten seconds to start. OpenVINO reads these formats directly.
"""

from __future__ import annotations

import importlib.util
from dataclasses import asdict
from typing import TYPE_CHECKING

from ..errors import BackendUnavailableError, UnsupportedModelError
from .processes import worker
from .workers.exchange import ROUNDS

if TYPE_CHECKING:
    from pathlib import Path

    from ..core.model_source import ModelSource
    from .conversion import Imported, Request

__all__ = ["import_tensorflow"]


def import_tensorflow(request: Request) -> Imported:
    """The importer of `.pb`, SavedModel and `.tflite`.

    Raises:
        BackendUnavailableError: TensorFlow or tf2onnx is not installed.
        UnsupportedModelError: tf2onnx cannot convert the model, or it has operators that access files.
        ConfigError: sizes, inputs or outputs are missing.
    """
    source = request.source
    kind = source.format
    assert kind is not None
    absent = [name for name in ("tensorflow", "tf2onnx") if importlib.util.find_spec(name) is None]
    if request.python is None and absent:
        raise BackendUnavailableError(
            f"converting {kind.title} needs {' and '.join(absent)}, which is not installed: pip install "
            f'"infersdk[tensorflow]" (2 GB), or specify a Python that has it (--python). OpenVINO runs it directly: '
            "backend='openvino'"
        )
    with worker("tensorflow_export", request.python) as work:
        shapes = [asdict(one) for one in request.shapes]
        return work.export(
            {
                "model": str(_path(source, kind.key, work.folder)),
                "kind": kind.key,
                "shapes": shapes,
                "check": request.check,
                "inputs": list(request.inputs),
                "outputs": list(request.outputs),
            },
            rounds=ROUNDS if request.check else 0,
        )


def _path(source: ModelSource, kind: str, folder: Path) -> Path:
    """The path of the file or SavedModel folder. A model in memory is written to the folder of the worker."""
    if kind == "tensorflow-saved-model":
        if source.path is None:
            raise UnsupportedModelError("a SavedModel is a folder; give its path")
        return source.path.absolute().parent
    if source.path is not None:
        return source.path.absolute()
    path = folder / f"model{source.suffix or '.pb'}"
    path.write_bytes(source.read())
    return path
