"""PaddlePaddle models (`.pdmodel` or `.json` with `.pdiparams`), converted by paddle2onnx in a separate process."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, BinaryIO

from ..core.formats import varint
from ..errors import ConfigError, ModelFormatError, UnsupportedModelError
from ..graph.files import model_bytes, read_model
from ..graph.passes._sizes import lift_constants
from ..graph.shapes import infer_shapes, is_unknown
from .processes import worker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ..core.model_source import ModelSource
    from .conversion import Imported, Request

__all__ = ["check_weights", "import_paddle", "weights_file"]

#: The size of an element by the code of its type in Paddle's `VarType`.
_ELEMENT_BYTES = {0: 1, 1: 2, 2: 4, 3: 8, 4: 2, 5: 4, 6: 8, 20: 1, 21: 1, 22: 2, 23: 8, 24: 16, 32: 1, 33: 1}
#: The maximum size of the description of a tensor.
_LARGEST_DESCRIPTION = 4096


def import_paddle(request: Request) -> Imported:
    """The importer of PaddlePaddle's inference models."""
    source = request.source
    weights = weights_file(source)
    if weights is not None:
        with open(weights, "rb") as stream:
            check_weights(stream, weights.stat().st_size, str(weights))
    with worker("paddle_export", request.python) as work:
        _link_files(source, weights, work.folder)
        imported = work.export(request)
    imported.model = _tidy(imported.model)
    if weights is None:
        imported.notes.append("no weights: the folder of the model has no .pdiparams file")
    return imported


def _tidy(content: bytes) -> bytes:
    """Removes Identity nodes and names the free axes."""
    import onnx_ir as ir
    from onnx_ir.passes.common import IdentityEliminationPass

    model = read_model(content)
    lift_constants(model)
    IdentityEliminationPass()(model)
    for value in model.graph.inputs:
        if value.shape is not None:
            names = ["batch", *(f"{value.name}_{axis}" for axis in range(1, len(value.shape)))]
            sizes = zip(value.shape, names, strict=False)
            value.shape = ir.Shape([size if isinstance(size, int) else name for size, name in sizes])
    for value in model.graph.outputs:
        if value.shape is not None:
            value.shape = ir.Shape([size if isinstance(size, int) else None for size in value.shape])
    infer_shapes(model)
    for value in model.graph.outputs:
        if value.shape is not None:
            value.shape = ir.Shape([None if is_unknown(size) else size for size in value.shape])
    return model_bytes(model)


def _link_files(source: ModelSource, weights: Path | None, folder: Path) -> None:
    """Links the model and its weights under the names that the worker expects."""
    kind = source.format
    target = folder / ("model.json" if kind is not None and kind.key == "paddle-pir" else "model.pdmodel")
    if source.path is not None:
        target.symlink_to(source.path.absolute())
    else:
        target.write_bytes(source.read())
    if weights is not None:
        (folder / "model.pdiparams").symlink_to(weights.absolute())


def weights_file(source: ModelSource) -> Path | None:
    """The weights file of a model; None if there is none.

    Raises:
        ConfigError: `external_data` of a model in memory is a folder.
    """
    if source.path is None:
        path = source.external_data
        if path is not None and path.is_dir():
            raise ConfigError(
                f"external_data of a PaddlePaddle model must be its .pdiparams file, but {str(path)!r} is a folder"
            )
        return path
    candidates = [source.path.with_suffix(".pdiparams"), source.path.with_name("__params__")]
    return next((path for path in candidates if path.is_file()), None)


# ---- the weights file ----


def check_weights(stream: BinaryIO, size: int, name: str) -> int:
    """Validates the tensors of a `.pdiparams` file; returns their number.

    Each tensor has a version, levels of detail, another version, a description and its elements. The description is a
    protobuf message with the type (field 1) and the axes (field 2). PaddlePaddle allocates the described size without a
    check, so it is compared with the size of the file here.
    """
    offset = count = 0

    def skip(length: int) -> None:
        nonlocal offset
        if length > size - offset:
            raise ModelFormatError(
                f"{name!r} is damaged or truncated: tensor {count} needs {length} bytes from {offset} on, and the file "
                f"has {size}"
            )
        offset += length

    def take(length: int) -> bytes:
        stream.seek(offset)
        skip(length)
        return stream.read(length)

    while offset < size:
        version = int.from_bytes(take(4), "little")
        for _ in range(_number(take(8), 64, name, "levels of detail")):
            skip(int.from_bytes(take(8), "little"))
        if version or int.from_bytes(take(4), "little"):
            raise ModelFormatError(
                f"{name!r} is not a PaddlePaddle weights file: tensor {count} does not have version 0"
            )
        description = take(_number(take(4), _LARGEST_DESCRIPTION, name, "bytes of a description"))
        skip(_tensor_bytes(description, name, count))
        count += 1
    return count


def _number(data: bytes, limit: int, name: str, what: str) -> int:
    value = int.from_bytes(data, "little")
    if value > limit:
        raise ModelFormatError(f"{name!r} is damaged: it claims {value} {what}")
    return value


def _tensor_bytes(description: bytes, name: str, count: int) -> int:
    """The size in bytes of a tensor with a description."""
    try:
        fields = list(_varints(description))
    except ValueError:
        fields = []
    kinds = [value for number, value in fields if number == 1]
    if len(kinds) != 1 or any(number not in (1, 2) for number, _ in fields):
        raise ModelFormatError(f"{name!r} is damaged: the description of tensor {count} is not a type and axes")
    if kinds[0] not in _ELEMENT_BYTES:
        raise UnsupportedModelError(f"tensor {count} of {name!r} has elements of the unknown type {kinds[0]}")
    return math.prod(value for number, value in fields if number == 2) * _ELEMENT_BYTES[kinds[0]]


def _varints(message: bytes) -> Iterator[tuple[int, int]]:
    """Field numbers and values of a protobuf message of integers. Raises ValueError for other messages."""
    at = 0
    while at < len(message):
        tag, at = varint(message, at, len(message))
        value, at = varint(message, at, len(message))
        if tag & 7:
            raise ValueError(f"field {tag >> 3} is not a number")
        yield tag >> 3, value
