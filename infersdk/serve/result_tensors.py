"""The results of model wrappers as tensors with fixed names.

For N images with at most M rows each; what an image has fewer is filled up with zeros, and class -1:

==========================  =======  =================  =====================================================
output                      type     shape
==========================  =======  =================  =====================================================
`num_detections`            INT32    [N]                boxes of each image
`detection_boxes`           FP32     [N, M, 4]          left, top, right, bottom in pixels of the image
`detection_scores`          FP32     [N, M]             0 to 1, best first
`detection_classes`         INT32    [N, M]             numbers of the classes
`detection_labels`          BYTES    [N, M]             their names
`detection_NAME`            any      [N, M, ...]        a column of the result, such as `detection_keypoints`
`class_ids`, `class_scores`, INT32,  [N, K]             the best classes of a classifier, best first
`class_labels`              FP32,
                            BYTES
`embedding`                 FP32     [N, D]             a vector of length 1 for each image
`class_map`                 UINT8    [N, H, W]          the class of each pixel; 255 right of and below a smaller image
`class_map_NAME`            UINT8    [N, H, W]          the same of a model with several maps
`num_lines`                 INT32    [N]                lines of text of each image
`line_texts`                BYTES    [N, M]             what they say
`line_scores`               FP32     [N, M]             0 to 1
`line_polygons`             FP32     [N, M, 4, 2]       corners in pixels of the image, from where a line begins above
`result`                    BYTES    [N]                of any other result: its rows as JSON
==========================  =======  =================  =====================================================

A column that is no array (masks) is BYTES [N, M]: each element is JSON.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np

from ..models import Classifications, ClassMap, ClassMaps, Detections, Embedding, TextLines
from ..ops import NO_CLASS
from .datatypes import datatype_of
from .messages import TensorInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

__all__ = ["ResultTensors", "plain_rows"]

_Make: TypeAlias = "Callable[[Sequence[Any]], npt.NDArray[Any]]"


class ResultTensors:
    """How the results of one model become tensors.

    Args:
        example: a result of the model; all its results have the same columns.
    """

    def __init__(self, example: Any) -> None:
        self._make: Mapping[str, _Make] = _makers(example)
        self.outputs = tuple(_info(name, make([example])) for name, make in self._make.items())

    def tensors(self, results: Sequence[Any], names: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
        """The tensors of these names for results of several images."""
        return {name: self._make[name](results) for name in names}


def plain_rows(result: Any) -> Any:
    """The rows of a result as plain data, for JSON."""
    rows = result.to_dicts() if hasattr(result, "to_dicts") else result
    return msgspec.to_builtins(rows, enc_hook=_plain, builtin_types=(bytes,))


def _plain(value: Any) -> Any:
    """What JSON lacks: arrays and NumPy's numbers become lists and numbers; other objects say how they are written."""
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    for name in ("to_coco", "to_dicts", "to_dict"):
        if hasattr(value, name):
            return getattr(value, name)()
    raise TypeError(f"a {type(value).__name__} cannot be written as JSON")


def _makers(example: Any) -> dict[str, _Make]:
    if isinstance(example, Detections):
        return {**_DETECTIONS, **{f"detection_{name}": _column(name, example) for name in example.columns}}
    if isinstance(example, Classifications):
        return _CLASSIFICATIONS
    if isinstance(example, TextLines):
        return _LINES
    if isinstance(example, Embedding):
        return {"embedding": lambda results: np.stack([result.vector for result in results])}
    if isinstance(example, ClassMap):
        return {"class_map": lambda results: _class_maps([result.class_ids for result in results])}
    if isinstance(example, ClassMaps):
        return {f"class_map_{name}": _named_map(name) for name in example}
    return {"result": lambda results: _objects([msgspec.json.encode(plain_rows(result)) for result in results])}


def _info(name: str, array: npt.NDArray[Any]) -> TensorInfo:
    """The axes of images and rows are open, and those of pixels; the others are the same in each result."""
    is_open = 3 if name.startswith("class_map") else 1 if name == "embedding" else 2
    shape = tuple(-1 if axis < is_open else side for axis, side in enumerate(array.shape))
    return TensorInfo(name, datatype_of(array.dtype), shape)


def _padded(rows: Sequence[npt.NDArray[Any]], fill: Any = 0) -> npt.NDArray[Any]:
    """Arrays with different numbers of rows as one."""
    if len(rows) == 1:
        return np.ascontiguousarray(rows[0])[None]
    longest = max(len(array) for array in rows)
    whole = np.full((len(rows), longest, *rows[0].shape[1:]), fill, rows[0].dtype)
    for target, array in zip(whole, rows, strict=True):
        target[: len(array)] = array
    return whole


def _class_maps(maps: Sequence[npt.NDArray[np.uint8]]) -> npt.NDArray[np.uint8]:
    """Maps of images of different sizes as one."""
    height, width = (max(array.shape[axis] for array in maps) for axis in (0, 1))
    whole = np.full((len(maps), height, width), NO_CLASS, np.uint8)
    for target, array in zip(whole, maps, strict=True):
        target[: array.shape[0], : array.shape[1]] = array
    return whole


def _named_map(name: str) -> _Make:
    return lambda results: _class_maps([result[name].class_ids for result in results])


def _objects(values: Sequence[bytes]) -> npt.NDArray[Any]:
    array = np.empty(len(values), np.object_)
    array[:] = values
    return array


def _texts(values: Sequence[Sequence[str]]) -> npt.NDArray[Any]:
    return _padded([_objects([value.encode() for value in row]) for row in values], b"")


def _column(name: str, example: Detections) -> _Make:
    values = example.columns[name]
    if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":
        return lambda results: _padded([result.columns[name] for result in results])
    return lambda results: _padded(
        [_objects([msgspec.json.encode(row[name]) for row in plain_rows(result)]) for result in results], b""
    )


_DETECTIONS: dict[str, _Make] = {
    "num_detections": lambda results: np.array([len(result) for result in results], np.int32),
    "detection_boxes": lambda results: _padded([result.xyxy for result in results]),
    "detection_scores": lambda results: _padded([result.scores for result in results]),
    "detection_classes": lambda results: _padded([result.class_ids for result in results], -1),
    "detection_labels": lambda results: _texts([result.labels for result in results]),
}
_CLASSIFICATIONS: dict[str, _Make] = {
    "class_ids": lambda results: _padded([result.class_ids for result in results], -1),
    "class_scores": lambda results: _padded([result.scores for result in results]),
    "class_labels": lambda results: _texts([result.labels for result in results]),
}
_LINES: dict[str, _Make] = {
    "num_lines": lambda results: np.array([len(result) for result in results], np.int32),
    "line_texts": lambda results: _texts([result.texts for result in results]),
    "line_scores": lambda results: _padded([result.scores for result in results]),
    "line_polygons": lambda results: _padded([result.polygons for result in results]),
}
