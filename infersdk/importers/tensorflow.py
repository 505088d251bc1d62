"""TensorFlow frozen graphs, SavedModels and TensorFlow Lite models, converted by tf2onnx in a separate process.

TensorFlow needs 2 GB of disk space and ten seconds to start. OpenVINO reads these formats directly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import UnsupportedModelError
from .processes import worker

if TYPE_CHECKING:
    from .conversion import Imported, Request

__all__ = ["import_tensorflow"]


def import_tensorflow(request: Request) -> Imported:
    """The importer of `.pb`, SavedModel and `.tflite`."""
    source, kind = request.source, request.source.format
    assert kind is not None
    with worker("tensorflow_export", request.python) as work:
        if kind.key != "tensorflow-saved-model":
            model = work.model_file(source, ".pb")
        elif source.path is not None:
            model = str(source.path.absolute().parent)
        else:
            raise UnsupportedModelError("a SavedModel is a folder; give its path")
        return work.export(
            request, model=model, kind=kind.key, inputs=list(request.inputs), outputs=list(request.outputs)
        )
