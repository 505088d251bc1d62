"""Endpoints of wrappers and compositions: images in, results out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from .datatypes import bytes_of, datatype_of
from .endpoint import Endpoint
from .errors import RequestError, Status
from .messages import InferRequest, TensorInfo
from .regions import SharedTensor
from .result_tensors import ResultTensors

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..models import ImageModel
    from .settings import ServerSettings

__all__ = ["ENCODED", "PIXELS", "ImageEndpoint"]

#: The two inputs: encoded images (JPEG, PNG, ...), or decoded images of one size. A request has one of them.
ENCODED = TensorInfo("image", "BYTES", (-1,), optional=True)
PIXELS = TensorInfo("pixels", "UINT8", (-1, -1, -1, -1), optional=True)
#: Results with more rows are converted in a worker thread.
_MANY_ROWS = 64


def _verify(models: Sequence[Any]) -> None:
    """Runs the golden samples of models; raises GoldenSampleError if they differ."""
    for model in models:
        model.details.golden_samples.verify(model)


class ImageEndpoint(Endpoint):
    """A model of `infersdk.models`: preprocessing and postprocessing are part of the model.

    The endpoint owns the model, which is warm. It runs one grey image to find the output tensors.
    """

    batched = True
    inputs = (ENCODED, PIXELS)

    def __init__(self, name: str, version: str, model: ImageModel[Any], settings: ServerSettings) -> None:
        self._tensors = ResultTensors.of(model)  # first: its request is not one of a client
        super().__init__(name, version, model.details.pipelines, settings.max_queue)
        self.model, self._settings = model, settings
        self.platform = ", ".join(dict.fromkeys(network.backend for network in model.details.networks))

        packed = [part for part in model.details.parts if getattr(part.details, "golden_samples", None) is not None]
        self.check_samples = partial(_verify, packed) if packed else None
        self._device = str(model.details.image_device)  # inputs on this device are not copied
        self.parameters = frozenset(model.per_call)
        self.outputs = self._tensors.outputs

    def takes_shared(self, tensor: SharedTensor) -> bool:
        return tensor.device == self._device

    def rows(self, request: InferRequest) -> list[Any]:
        if len(request.inputs) != 1 or not request.inputs.keys() <= {ENCODED.name, PIXELS.name}:
            raise RequestError(
                f"model {self.name!r} takes either {ENCODED.text} (encoded images) or {PIXELS.text} (decoded ones: "
                f"image, row, column, channel), not {', '.join(request.inputs) or 'a request without inputs'}"
            )
        ((name, given),) = request.inputs.items()
        is_shared = isinstance(given, SharedTensor)  # decoded images on the device of the model
        is_encoded = name == ENCODED.name and not is_shared
        info = ENCODED if is_encoded else PIXELS
        if datatype_of(given.dtype) != info.datatype or not (is_encoded or given.ndim == len(info.shape)):
            raise RequestError(
                f"input {info.name!r} of model {self.name!r} takes {info.datatype} {list(info.shape)}, not "
                f"{datatype_of(given.dtype)} {list(given.shape)}"
            )
        # Encoded images are bytes, because text would be opened as a path.
        images = bytes_of(given) if is_encoded else [image.tensor() if is_shared else image for image in given]
        if not 1 <= len(images) <= self._settings.max_images:
            raise RequestError(f"a request has 1 to {self._settings.max_images} images, not {len(images)}")
        return images

    def _wanted(self, request: InferRequest) -> list[str]:
        names = super()._wanted(request)
        if refused := [one.name for one in request.outputs or () if one.classification]:
            known = [one.name for one in self.outputs if "class" in one.name and not one.name.endswith("_scores")]
            remedy = f"; the classes are in {', '.join(known)}" if known else ""
            raise RequestError(
                f"output {refused[0]!r} of model {self.name!r}: classification is for the outputs of networks, in "
                f"which the index of a number is its class{remedy}"
            )
        return names

    def _check_parameters(self, parameters: Mapping[str, Any]) -> None:
        super()._check_parameters(parameters)
        for name, value in parameters.items():
            if name.startswith("max_"):
                most = self._most(name)
                if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
                    raise RequestError(f"parameter {name} is a whole number from 1 to {most:,}, not {value!r:.100}")

    def _most(self, name: str) -> int:
        """The maximum of a parameter that limits rows: `max_results`, or a larger value of the configuration."""
        return max(self._settings.max_results, getattr(self.model, name, 0))

    def check_result(self, result: Any) -> None:
        """Raises RequestError if a result has too many rows."""
        rows, most = len(result) if hasattr(result, "__len__") else 1, self._most("max_det")
        if rows > most:
            raise RequestError(
                f"the result of model {self.name!r} has {rows:,} rows, and the limit (max_results) is {most:,}; raise "
                "the thresholds of the request",
                Status.TOO_LARGE,
            )

    async def run(self, item: Any, deadline: float | None, parameters: Mapping[str, Any]) -> Any:
        result = await self.model.infer(item, deadline=deadline, **parameters)
        if self.shadow is not None:
            self.shadow.offer(item, parameters, result)
        return result

    def gather(self, results: Sequence[Any], names: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
        for result in results:
            self.check_result(result)
        return self._tensors.tensors(results, names)

    def gathers_slowly(self, results: Sequence[Any]) -> bool:
        return sum(len(result) if hasattr(result, "__len__") else _MANY_ROWS for result in results) > _MANY_ROWS

    def release(self) -> None:
        if self.shadow is not None:
            self.shadow.close()
        self.model.close()
