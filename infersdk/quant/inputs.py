"""Calibration inputs: images with the preprocessing of a wrapper, or arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ..errors import CalibrationError

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..image import ImageSource
    from ..models.vision import VisionModel

__all__ = ["ImageInputs", "Inputs", "batches_of"]

Arrays: TypeAlias = "npt.NDArray[Any] | Mapping[str, npt.NDArray[Any]]"
#: Arrays, or dicts of arrays by input name, or a function that returns a new iterator over them.
Inputs: TypeAlias = "Iterable[Arrays] | Callable[[], Iterable[Arrays]]"


class ImageInputs:
    """Images with the preprocessing of a wrapper. Each iteration reads them again.

    Args:
        model: a wrapper such as `YOLOv5`, on any backend.
        images: paths, or other images that the wrapper accepts.
        batch: the batch size, if that of the model is free.
    """

    def __init__(self, model: VisionModel[Any], images: Sequence[ImageSource], batch: int = 1) -> None:
        self._model, self._images, self._batch = model, images, batch

    def __len__(self) -> int:
        """The number of images."""
        return len(self._images)

    def __iter__(self) -> Iterator[Mapping[str, npt.NDArray[Any]]]:
        yield from self._model.details.network_inputs(self._images, batch=self._batch)


def batches_of(data: Inputs, names: Sequence[str]) -> Iterator[dict[str, npt.NDArray[Any]]]:
    """The arrays for each run by input name.

    Raises:
        CalibrationError: the arrays do not match the inputs.
    """
    for item in data() if callable(data) else data:
        if isinstance(item, Mapping):
            if missing := [name for name in names if name not in item]:
                raise CalibrationError(f"the data has {sorted(item)}, but not the input {missing[0]!r}")
            yield {name: np.asarray(item[name]) for name in names}
        elif len(names) != 1:
            raise CalibrationError(f"the model has inputs {list(names)}; give dicts of arrays by these names")
        else:
            yield {names[0]: np.asarray(item)}
