"""A detector, and a second model on its boxes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from ...errors import ClosedError, ConfigError, DeadlineExceeded, Overloaded
from ...image import DeviceImage, HostImage, ImageSource, SharedImage, read_image
from ..declaration import UNCHECKED, argument
from ..results import Detections
from .base import Composed, require_boxes, whole_image
from .crops import CropKind, Cutter, cutter

if TYPE_CHECKING:
    from ..image_model import ImageModel
    from .image_request import ImageRequest

__all__ = ["TwoStage"]

#: Images whose parts are gathered for one call of the second model, at most.
GATHERED = 16


class TwoStage(Composed[Detections]):
    """A model of boxes, and a second model that looks at each of them.

    ::

        persons = models.load("yolov8n.onnx", classes=["person"])
        people = TwoStage(persons, models.Embedder("osnet.onnx"), column="vector")
        for person in people("street.jpg"):
            print(person.xyxy, person.columns["vector"])

    The results are those of the detector with one more column: the results of the second model, in the order of the
    boxes. The parts of all images in progress fill the second model's batches. For a part that cannot be cut out, or
    that fails, the column holds the exception.

    Args:
        detector: a model whose results are `Detections`: a wrapper, or `Tiled`.
        second: any wrapper, or `OCR`.
        crop: the image of a box for the second model. `"box"`: the pixels within the box. `"oriented"`: an oriented box
            turned upright. `"landmarks"`: a face turned and scaled by its five landmarks. Or a function of an image and
            its `Detections` that returns an image for each box.
        margin: by how much a box is enlarged on each side, as a share of that side.
        column: the name of the new column.

    Raises:
        ConfigError: a setting has a wrong value.
        UnsupportedModelError: the results of the detector are not `Detections`.
    """

    parts = ("detector", "second")
    detector: ImageModel[Detections] = argument(kw_only=False)
    second: ImageModel[Any] = argument(kw_only=False)
    crop: Annotated[CropKind | Cutter, UNCHECKED] = "box"
    margin: float = 0.0
    column: str = "second"

    def _prepare(self) -> None:
        if not self.column.isidentifier() or self.column in ("mask", "keypoints", "oriented"):
            raise ConfigError(f"column is {self.column!r}; use a plain name that Detections do not have already")
        require_boxes(self.detector)
        self._free: threading.Semaphore | None = None
        self._guard = threading.Lock()
        self._cut = self.crop if callable(self.crop) else cutter(self.crop, self.margin)
        first, second = self.detector.details.image_device, self.second.details.image_device
        #: Where parts are cut. A function may need the pixels on the host.
        self._device = first if first == second and isinstance(self.crop, str) else None

    # ---- calls ----

    def _stream(self, images: Iterable[ImageSource | HostImage], parameters: Mapping[str, Any]) -> Iterator[Detections]:
        read: deque[Any] = deque()

        def sources() -> Iterator[Any]:
            for source in images:
                read.append(self._shared(source, read=True))
                yield read[-1]

        batch = self.second.details.batch_limit
        waiting: list[tuple[Detections, Sequence[Any]]] = []
        count = 0
        for boxes in self.detector.stream(sources(), **parameters):
            parts = self.cut(read.popleft(), boxes)
            waiting.append((boxes, parts))
            count += len(parts)
            if count >= batch or len(waiting) == GATHERED:
                yield from self._run_second(waiting)
                waiting, count = [], 0
        yield from self._run_second(waiting)

    def _run_second(self, waiting: Sequence[tuple[Detections, Sequence[Any]]]) -> Iterator[Detections]:
        """The results of images whose parts go through the second model together."""
        good = [part for _, parts in waiting for part in parts if not isinstance(part, Exception)]
        answers = iter(self.second(good) if good else [])
        for boxes, parts in waiting:
            yield self.joined(boxes, parts, answers)

    # ---- requests ----

    def _begin(
        self,
        image: ImageSource | HostImage,
        request: ImageRequest,
        parameters: Mapping[str, Any] | None,
        timeout: float | None,
        wait: bool | None,
    ) -> None:
        """The thread that ends the detector's request cuts the parts and submits them. The number of images in progress
        is limited to the slots of both pipelines.
        """
        if wait is not False and not self._take_slot(request, timeout, wait):
            return
        shared = self._shared(image, read=wait is None)

        def detected(outcomes: list[Any]) -> None:
            (boxes,) = outcomes
            if isinstance(boxes, BaseException):
                request.end(boxes)
                return
            parts = self.cut(shared, boxes)
            good = [part for part in parts if not isinstance(part, Exception)]

            def answered(answers: list[Any]) -> None:
                ended = next((one for one in answers if isinstance(one, (CancelledError, ClosedError))), None)
                request.end(self.joined(boxes, parts, answers) if ended is None else ended)

            if good:
                request.submit(self.second, good, answered, wait=False)
            else:
                answered([])

        request.submit(self.detector, [shared], detected, parameters, timeout=timeout, wait=wait)

    def _take_slot(self, request: ImageRequest, timeout: float | None, wait: bool | None) -> bool:
        """Waits until fewer images are in progress than both pipelines have slots. False where the deadline passes,
        which ends the request.

        Raises:
            Overloaded: the settings of the detector's pipeline or `timeout` say not to wait any longer.
        """
        settings = self.detector.details.pipelines[0].settings
        with self._guard:
            slots = self._free = self._free or threading.Semaphore(self._slots)
        patience = settings.timeout if timeout is None else timeout
        if wait:
            patience = None
        elif settings.when_full == "raise":
            patience = 0
        limits = [limit for limit in (patience, request.seconds_left) if limit is not None]
        if slots.acquire(timeout=min(limits, default=None)):
            request.slot = slots
            return True
        if request.seconds_left is not None and request.seconds_left <= 0:
            request.end(DeadlineExceeded("the deadline passed while other images were in progress"))
            return False
        waited = f", and none ended within {patience:g} s" if patience else ""
        raise Overloaded(
            f"{self._slots} images are in progress in both models{waited}; submit later, or make the pipelines with "
            "more slots"
        )

    # ---- between the models ----

    def cut(self, image: Any, boxes: Detections) -> Sequence[Any]:
        """The part of each box, cut on the device of both models if it is the same one; the reason where that fails.

        Args:
            image: the image of the detector.
        """
        if isinstance(image, SharedImage):
            order = self.channel_order
            image = image.read(order) if self._device is None else image.on_device(self._device, order)
        parts = self._cut(image, boxes)
        if len(parts) != len(boxes):
            raise ConfigError(
                f"the function for crop gives {len(parts)} images for {len(boxes)} boxes; give one for each"
            )
        return parts

    def joined(self, boxes: Detections, parts: Sequence[Any], answers: Iterable[Any]) -> Detections:
        """The boxes with a column of the answers for their parts, or the reasons why there is no part."""
        rest = iter(answers)
        column = np.empty(len(parts), object)
        for index, part in enumerate(parts):
            column[index] = part if isinstance(part, Exception) else next(rest)
        return boxes.with_columns(**{self.column: column})

    def _shared(self, source: Any, read: bool = False) -> Any:
        """The image for the detector, decoded once for both models, and copied to their device once.

        Args:
            read: decode it now.

        Raises:
            ImageError: it cannot be read.
        """
        if DeviceImage.is_one(source):
            return whole_image(source, self.channel_order)
        if not isinstance(source, SharedImage):
            if self._device is None and (read or isinstance(source, (np.ndarray, HostImage))):
                return read_image(source, channel_order=self.channel_order)
            source = SharedImage(source, self._pools)
        if read:
            source.read(self.channel_order)
        return source

    def __repr__(self) -> str:
        return f"<TwoStage {self.detector!r}, then {self.second!r}>"
