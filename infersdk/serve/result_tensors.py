"""The results of model wrappers as tensors with fixed names.

Each result type defines its tensors (`infersdk.models.Result.to_tensors()`), which docs/serving.md lists. This module
stacks the results of N images; images with fewer rows are padded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..models import Result
from ..models.results.plain import plain_rows
from .datatypes import datatype_of
from .messages import TensorInfo

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..models import ImageModel
    from ..models.results import ResultTensorSpec

__all__ = ["ResultTensors"]


class ResultTensors:
    """Converts the results of one model to tensors. All of its results have the same ones as `example`."""

    def __init__(self, example: Any) -> None:
        self._specs: Mapping[str, ResultTensorSpec] = {spec.name: spec for spec in _as_result(example).tensor_specs()}
        self.outputs = tuple(
            TensorInfo(spec.name, datatype_of(spec.dtype), (-1, *spec.shape)) for spec in self._specs.values()
        )

    @classmethod
    def of(cls, model: ImageModel[Any]) -> ResultTensors:
        """The tensors of a model, which runs a grey image."""
        return cls(model.submit(np.full((64, 64, 3), 114, np.uint8)).result())

    def tensors(self, results: Sequence[Any], names: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
        """The tensors of these names for results of several images."""
        rows = [_as_result(result).to_tensors(names) for result in results]
        return {name: _batch([row[name] for row in rows], self._specs[name]) for name in names}


def _as_result(result: Any) -> Result:
    return result if isinstance(result, Result) else _PlainResult(result)


@dataclass(frozen=True, slots=True, eq=False)
class _PlainResult(Result):
    """The return value of a wrapper without a result type."""

    value: Any

    def to_dicts(self) -> Any:
        return plain_rows(self.value)


def _batch(arrays: Sequence[npt.NDArray[Any]], spec: ResultTensorSpec) -> npt.NDArray[Any]:
    """Stacks the arrays of several images, padded to the largest size of each axis."""
    if len(arrays) == 1:
        return np.ascontiguousarray(arrays[0][None])
    sides = (max(array.shape[axis] for array in arrays) for axis in range(len(spec.shape)))
    whole = np.full((len(arrays), *sides), spec.fill, spec.dtype)
    for row, array in enumerate(arrays):
        index: tuple[int | slice, ...] = (row, *map(slice, array.shape))
        whole[index] = array
    return whole
