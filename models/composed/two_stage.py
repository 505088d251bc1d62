"""A detector, and a second model on its boxes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from ...errors import ConfigError, DeadlineExceeded, Overloaded
from ...image import DeviceImage, HostImage, ImageSource, SharedImage, read_image
from ...pipeline.futures import RequestFuture
from ..declaration import UNCHECKED, argument
from ..results import Detections
from .base import Composed, map_requests, require_boxes, whole_image
from .crops import CropKind, Cutter, cutter
from .image_request import ImageRequest

if TYPE_CHECKING:
    from ..image_model import ImageModel

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

    The results are those of the detector with one column more: what the second model says of each box, in the order of
    the boxes. The parts of all images that are under way fill the second model's batches. A part that cannot be cut
    out, or fails, fails alone: its row of the column holds the exception.

    Args:
        detector: a model whose results are `Detections`: a wrapper, or `Tiled`.
        second: any wrapper, or `OCR`.
        crop: what the second model gets: `"box"` the pixels within the box, `"oriented"` an oriented box turned
            upright, `"landmarks"` a face turned and scaled by its five landmarks; or a function of an image and its
            `Detections` that returns an image for each box.
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
        self._slots: threading.Semaphore | None = None
        self._guard = threading.Lock()
        self._cut = self.crop if callable(self.crop) else cutter(self.crop, self.margin)
        first, second = self.detector.image_device, self.second.image_device
        #: Where parts are cut. A function may need the pixels on the host.
        self._device = first if first == second and isinstance(self.crop, str) else None

    # ---- calls ----

    def stream(
        self, images: Iterable[ImageSource | HostImage], *, return_exceptions: bool = False, **parameters: Any
    ) -> Iterator[Detections]:
        """The results of any number of images, in order; up to 16 of them are read ahead.

        Args:
            return_exceptions: return the exception of an image in place of its result, as `map()` does, through which
                the images go then.
        """
        if return_exceptions:
            return self.map(images, return_exceptions=True, **parameters)
        return self._stream(images, parameters)

    def _stream(self, images: Iterable[ImageSource | HostImage], parameters: Mapping[str, Any]) -> Iterator[Detections]:
        read: deque[Any] = deque()

        def sources() -> Iterator[Any]:
            for source in images:
                read.append(self._shared(source, read=True))
                yield read[-1]

        batch = self.second.batch_limit
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
            yield self.joined(boxes, [part if isinstance(part, Exception) else next(answers) for part in parts])

    # ---- requests ----

    def _begin(
        self,
        image: ImageSource | HostImage,
        request: ImageRequest,
        parameters: Mapping[str, Any] | None,
        timeout: float | None,
        wait: bool | None,
    ) -> None:
        """The boxes and the parts run together with whatever else is waiting. The thread that ends the detector's
        request cuts the parts and submits them. As many images may be on their way as both pipelines have slots.
        """
        if wait is not False and not self._take_slot(request, timeout, wait):
            return
        shared = self._shared(image, read=wait is None)  # `map()` reads files in the detector's threads

        def detected(outcomes: list[Any]) -> None:
            (boxes,) = outcomes
            if isinstance(boxes, BaseException):
                request.end(boxes)
                return
            answers = list(self.cut(shared, boxes))
            rows = [index for index, part in enumerate(answers) if not isinstance(part, Exception)]

            def answered(outcomes: list[Any]) -> None:
                for row, outcome in zip(rows, outcomes, strict=True):
                    if isinstance(outcome, CancelledError):
                        raise outcome
                    answers[row] = outcome
                request.end(self.joined(boxes, answers))

            if rows:
                request.submit(self.second, [answers[row] for row in rows], answered, wait=False)
            else:
                request.end(self.joined(boxes, answers))

        request.submit(self.detector, [shared], detected, parameters, timeout=timeout, wait=wait)

    def _take_slot(self, request: ImageRequest, timeout: float | None, wait: bool | None) -> bool:
        """Waits until fewer images are on their way than both pipelines have slots. False where the deadline passes,
        which ends the request.

        Raises:
            Overloaded: the settings of the detector's pipeline or `timeout` say not to wait any longer.
        """
        settings = self.detector.pipelines[0].settings
        with self._guard:
            count = sum(model.pipelines[0].slots for model in self.models)
            self._slots = slots = self._slots or threading.Semaphore(count)
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
            request.end(DeadlineExceeded("the deadline passed while other images were on their way"))
            return False
        waited = f", and none ended within {patience:g} s" if patience else ""
        raise Overloaded(
            f"{count} images are on their way through both models{waited}; submit later, or make the pipelines with "
            "more slots"
        )

    def map(
        self,
        images: Iterable[ImageSource | HostImage],
        *,
        in_flight: int | None = None,
        return_exceptions: bool = False,
        **parameters: Any,
    ) -> Iterator[Detections]:
        """As `stream()`, through the pipelines of both models, which run side by side. Waits for slots, whatever
        `submit()` does when all are taken.

        Args:
            in_flight: images that are read ahead; None is twice what the detector's pipeline takes in.
            return_exceptions: return the exception of an image in place of its result, instead of raising it.
        """

        def submit(image: ImageSource | HostImage) -> Future[Detections]:
            future = RequestFuture()
            future.request = request = ImageRequest(future.end, None)
            self._begin_or_refuse(image, request, parameters or None, None, True)
            return future

        ahead = 2 * self.detector.pipelines[0].slots if in_flight is None else in_flight
        return map_requests(images, submit, ahead, return_exceptions)

    # ---- between the models ----

    def cut(self, image: Any, boxes: Detections) -> Sequence[Any]:
        """The part of each box, cut on the device of both models if it is the same one; the reason where that fails.

        Args:
            image: what the detector got.
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

    def joined(self, boxes: Detections, answers: Sequence[Any]) -> Detections:
        """The boxes with the column of the answers."""
        column = np.empty(len(answers), object)
        for index, one in enumerate(answers):
            column[index] = one
        return boxes.with_columns(**{self.column: column})

    def _shared(self, source: Any, read: bool = False) -> Any:
        """What the detector gets: an image that is decoded once for both models, and copied to their device once.

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
