"""Models of images, wrappers and compositions: images in, boxes, classes or text out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .datatypes import bytes_of, datatype_of
from .endpoint import Endpoint
from .errors import RequestError, Status
from .messages import InferRequest, TensorInfo
from .regions import SharedTensor
from .result_tensors import ResultTensors

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping, Sequence

    import numpy.typing as npt

    from ..models import ImageModel

__all__ = ["ENCODED", "PIXELS", "ImageEndpoint"]

#: Encoded images (JPEG, PNG, ...), or decoded ones of one size. A request has one of the two.
ENCODED = TensorInfo("image", "BYTES", (-1,), optional=True)
PIXELS = TensorInfo("pixels", "UINT8", (-1, -1, -1, -1), optional=True)
#: More rows of results become tensors in a worker thread.
_MANY_ROWS = 64


class ImageEndpoint(Endpoint):
    """A model of `infersdk.models`: preprocessing and postprocessing are part of the model.

    Args:
        model: belongs to the endpoint, which closes it. It is warmed up, and runs one gray image.
        queue: how many requests may wait; see `Admission`.
        max_images: in one request.
        max_results: rows of one result; see `ServerSettings`.
    """

    batched = True
    inputs = (ENCODED, PIXELS)

    def __init__(
        self,
        name: str,
        version: str,
        model: ImageModel[Any],
        queue: int | None,
        max_images: int,
        max_results: int = 30_000,
    ) -> None:
        super().__init__(name, version, model.pipelines, queue)
        self.model, self._max_images, self._max_results = model, max_images, max_results
        self.platform = ", ".join(dict.fromkeys(network.backend for network in model.networks))

        self._device = str(model.image_device)  # where frames may stay
        self.labels = tuple(model.class_names)
        self.parameters = frozenset(model.per_call)
        gray = np.full((64, 64, 3), 114, np.uint8)
        self._tensors = ResultTensors(model.submit(gray).result())
        self.outputs = self._tensors.outputs
        self.start_counting()

    def takes_shared(self, tensor: SharedTensor) -> bool:
        return tensor.device == self._device

    def rows(self, request: InferRequest) -> list[Any]:
        if unknown := sorted(set(request.inputs) - {ENCODED.name, PIXELS.name}):
            raise RequestError(
                Status.INVALID,
                f"unexpected inference input {unknown[0]!r} for model {self.name!r}; it takes {ENCODED.text} (encoded "
                f"images) or {PIXELS.text} (decoded ones: image, row, column, channel)",
            )
        if len(request.inputs) != 1:
            raise RequestError(
                Status.INVALID,
                f"model {self.name!r} takes either {ENCODED.text} (encoded images) or {PIXELS.text} (decoded ones), "
                f"and {len(request.inputs)} of them were given",
            )
        ((name, given),) = request.inputs.items()
        if isinstance(given, SharedTensor):
            return self._checked_count(self._on_device(given))
        images = self._encoded(given) if name == ENCODED.name else self._pixels(given)
        return self._checked_count(images)

    def _checked_count(self, images: list[Any]) -> list[Any]:
        if not 1 <= len(images) <= self._max_images:
            raise RequestError(Status.INVALID, f"a request has 1 to {self._max_images} images, not {len(images)}")
        return images

    def _on_device(self, given: SharedTensor) -> list[Any]:
        """Decoded images in memory of the model's own device, where they stay."""
        if given.dtype != np.uint8 or given.ndim != 4:
            raise self._wrong(given, PIXELS)
        return [given[index].tensor() for index in range(len(given))]

    def _encoded(self, array: npt.NDArray[Any]) -> list[Any]:
        if datatype_of(array.dtype) != ENCODED.datatype:
            raise self._wrong(array, ENCODED)
        return list(bytes_of(array))  # bytes: text would be taken as a path

    def _pixels(self, array: npt.NDArray[Any]) -> list[Any]:
        if array.dtype != np.uint8 or array.ndim != 4:
            raise self._wrong(array, PIXELS)
        return list(array)

    def _wrong(self, array: npt.NDArray[Any] | SharedTensor, info: TensorInfo) -> RequestError:
        return RequestError(
            Status.INVALID,
            f"input {info.name!r} of model {self.name!r} takes {info.datatype} {list(info.shape)}, not "
            f"{datatype_of(array.dtype)} {list(array.shape)}",
        )

    def _check_parameters(self, parameters: Mapping[str, Any]) -> None:
        super()._check_parameters(parameters)
        for name, value in parameters.items():
            if name.startswith("max_"):
                most = self._most(name)
                if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
                    raise RequestError(
                        Status.INVALID, f"parameter {name} is a whole number from 1 to {most:,}, not {value!r:.100}"
                    )

    def _most(self, name: str) -> int:
        """The largest value of a parameter that limits rows: `max_results`, or more where the configuration has it."""
        return max(self._max_results, getattr(self.model, name, 0))

    def check_result(self, result: Any) -> None:
        """Raises RequestError for a result of too many rows."""
        rows, most = len(result) if hasattr(result, "__len__") else 1, self._most("max_det")
        if rows > most:
            raise RequestError(
                Status.TOO_LARGE,
                f"the result of model {self.name!r} has {rows:,} rows, and the limit (max_results) is {most:,}; raise "
                "the thresholds of the request",
            )

    def run(self, item: Any, deadline: float | None, parameters: Mapping[str, Any]) -> Coroutine[Any, Any, Any]:
        return self.model.infer(item, deadline=deadline, **parameters)

    def gather(
        self, request: InferRequest, results: Sequence[Any], names: Sequence[str]
    ) -> dict[str, npt.NDArray[Any]]:
        for result in results:
            self.check_result(result)
        return self._tensors.tensors(results, names)

    def gathers_slowly(self, results: Sequence[Any]) -> bool:
        return sum(len(result) if hasattr(result, "__len__") else _MANY_ROWS for result in results) > _MANY_ROWS

    def release(self) -> None:
        self.model.close()
