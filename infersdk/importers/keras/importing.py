"""Keras HDF5 files, converted by Keras in a separate process from a copy without code."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from ..processes import worker
from .cleaning import clean_configuration, write_copy
from .files import KerasFile

if TYPE_CHECKING:
    from ..conversion import Imported, Request

__all__ = ["import_h5"]


def import_h5(request: Request) -> Imported:
    """The importer of Keras's `.h5` files.

    Raises:
        BackendUnavailableError: no framework for the file is installed.
        ConfigError: the shapes do not fit the inputs.
        UnsupportedModelError: the file contains code, or no framework can convert it.
        ModelFormatError: the file is damaged.
    """
    file = KerasFile(request.source)
    config = clean_configuration(file.config)
    with worker("keras_h5", request.python) as work:
        write_copy(work.folder / "model.h5", config, file)
        shapes = [dataclasses.asdict(shape) for shape in request.shapes]
        return work.export({"model": "model.h5", "version": file.version, "shapes": shapes})
