"""What a model is given while it is calibrated: images through a wrapper's own preprocessing, or arrays."""

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
#: Arrays (or dicts of them, by input), or a function that starts an iterator over such each time it is called.
Inputs: TypeAlias = "Iterable[Arrays] | Callable[[], Iterable[Arrays]]"


class ImageInputs:
    """Images as a wrapper gives them to its network: the preprocessing of inference. Each pass reads them again.

    Args:
        model: a `YOLOv5`, `Classifier`, ... on any backend.
        images: paths, or anything else the wrapper takes.
        batch: images that go through together, where the model leaves it open.
    """

    def __init__(self, model: VisionModel[Any], images: Sequence[ImageSource], batch: int = 1) -> None:
        self._model, self._images, self._batch = model, images, batch

    def __len__(self) -> int:
        """Images."""
        return len(self._images)

    def __iter__(self) -> Iterator[Mapping[str, npt.NDArray[Any]]]:
        yield from self._model.network_inputs(self._images, batch=self._batch)


def batches_of(data: Inputs, names: Sequence[str]) -> Iterator[dict[str, npt.NDArray[Any]]]:
    """The arrays for each run by input name.

    Raises:
        CalibrationError: the arrays do not fit the inputs.
    """
    for item in data() if callable(data) else data:
        if isinstance(item, Mapping):
            if missing := [name for name in names if name not in item]:
                raise CalibrationError(f"the data has {sorted(item)}; there is nothing for input {missing[0]!r}")
            yield {name: np.asarray(item[name]) for name in names}
        elif len(names) != 1:
            raise CalibrationError(f"the model has inputs {list(names)}; give dicts of arrays by these names")
        else:
            yield {names[0]: np.asarray(item)}
