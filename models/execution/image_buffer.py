"""Images in the batches of a pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from ...errors import InputError
from ...image import DeviceImage, HostImage, image_view
from ...ops import preprocess_into

if TYPE_CHECKING:
    from ...image import Geometry
    from ..vision import VisionModel

__all__ = ["ImageBatchBuffer"]

Result = TypeVar("Result")

#: Shapes of images that a buffer remembers.
KNOWN = 64


class ImageBatchBuffer(Generic[Result]):
    """A `BatchBuffer` of a wrapper: each image goes straight into its row of the model's input.

    On a device with a stream of its own a row keeps the image, and the whole batch is brought over in one go.

    Args:
        model: the buffer's own; it is closed with it.
    """

    def __init__(self, model: VisionModel[Result]) -> None:
        self._model = model
        self.capacity = model._limit
        self._arrange()

    def _arrange(self) -> None:
        model, capacity = self._model, self.capacity
        self._geometries: list[Geometry] = [model._geometry((1, 1))] * capacity
        self._images: list[HostImage | DeviceImage | None] = [None] * capacity
        self._found: list[Result] = []
        # A stream of frames brings the same shape again and again: on a device, where nothing else is left to do, what
        # it says is looked up and not worked out.
        self._known: dict[tuple[int, ...], tuple[str, Geometry]] = {}
        if model._path is None:
            tensor = model._input_of(model.network, capacity)
            # What fits the capacity keeps its address, so it holds for the smaller batches too.
            self._at, self._stride = tensor.host_ptr(read=False, write=True), tensor.nbytes // tensor.shape[0]

    def quick(self, item: Any) -> bool:
        """On a device an image that is decoded is only noted down here."""
        return self._model._path is not None and (isinstance(item, (np.ndarray, HostImage)) or DeviceImage.is_one(item))

    def prepare(self, row: int, item: Any, parameters: Mapping[str, Any] | None) -> None:
        if parameters:
            raise InputError(
                f"{type(self._model).__name__} takes no parameters with a request, and {', '.join(sorted(parameters))} "
                "was given; give them to the wrapper"
            )
        model = self._model
        known = self._known.get(item.shape) if type(item) is np.ndarray else None
        if known is not None and item.dtype == np.uint8:
            self._images[row], self._geometries[row] = HostImage(item, known[0]), known[1]
            return
        image = model._read(item)
        geometry = model._geometry(image.size)
        if model._path is None:
            assert isinstance(image, HostImage)
            view = image_view(image.pixels, image.format)  # type: ignore[arg-type]
            preprocess_into(view, geometry, model._transform, self._at + row * self._stride, self._stride)
        else:
            self._images[row] = image
            if isinstance(image, HostImage) and image.pixels is item and len(self._known) < KNOWN:
                self._known[item.shape] = image.format, geometry
        self._geometries[row] = geometry

    def move(self, source: int, target: int) -> None:
        self._geometries[target] = self._geometries[source]
        self._images[target] = self._images[source]
        if self._model._path is None:
            tensor = self._model._input_of(self._model.network, self.capacity)
            rows = tensor.numpy(writable=True)
            rows[target] = rows[source]

    def run(self, count: int) -> None:
        model = self._model
        if model._path is not None:
            self._found = self._run_on_device(self._images[:count], self._geometries[:count])
            return
        tensor = model._input_of(model.network, count)
        tensor.host_ptr(read=False, write=True)  # its rows were written behind its back
        model.network.forward()

    def _run_on_device(self, images: Sequence[Any], geometries: Sequence[Geometry]) -> list[Result]:
        """Those on a device and those on the host do not mix: two runs then."""
        path = self._model._path
        assert path is not None
        found: list[Any] = [None] * len(images)
        for kind in (HostImage, DeviceImage):
            rows = [row for row, image in enumerate(images) if isinstance(image, kind)]
            if rows:
                results = path.run_one([images[row] for row in rows], [geometries[row] for row in rows])
                for row, result in zip(rows, results, strict=True):
                    found[row] = result
        return found

    def results(self, count: int) -> Sequence[Result]:
        if self._model._path is None:
            return self._model._results(self._geometries[:count])
        found, self._found = self._found, []
        self._images = [None] * self.capacity
        return found

    def refresh(self) -> None:
        if self._model._outdated:
            self._model._follow()
            self._arrange()

    def batch_sizes(self) -> Sequence[int]:
        network = self._model.network
        return sorted({min(network.bucket_batch(count), self.capacity) for count in range(1, self.capacity + 1)})

    def warm_up(self, count: int) -> None:
        gray = np.full((64, 64, 3), 114, np.uint8)
        for row in range(count):
            self.prepare(row, gray, None)
        self.run(count)
        self.results(count)

    def close(self) -> None:
        self._model.close()
