"""A detector, and a second model on its boxes."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from ...errors import ClosedError, ConfigError, DeadlineExceeded, Overloaded
from ...image import DeviceImage, HostImage, ImageSource, SharedImage, read_image
from ...pipeline.request import RequestFuture
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
        self._slots: threading.Semaphore | None = None
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
        """The thread that ends the detector's request cuts the parts and submits them. The number of images in progress
        is limited to the slots of both pipelines.
        """
        if wait is not False and not self._take_slot(request, timeout, wait):
            return
        shared = self._shared(image, read=wait is None)
        self._submit([shared], request, lambda found: request.end(found[0]), parameters, timeout, wait)

    def _submit(
        self,
        images: Sequence[Any],
        request: ImageRequest,
        then: Callable[[list[Any]], object],
        parameters: Mapping[str, Any] | None,
        timeout: float | None = None,
        wait: bool | None = None,
    ) -> None:
        """Submits images to the detector, and the parts of all of them together to the second model.

        Args:
            images: from `_shared()`; an exception is the result of its row.
            then: called with a result or an exception for each image.
        """
        results: list[Any] = list(images)
        good = [row for row, image in enumerate(images) if not isinstance(image, Exception)]

        def detected(outcomes: list[Any]) -> None:
            found: list[tuple[int, Detections, list[Any]]] = []
            parts: list[Any] = []
            for row, boxes in zip(good, outcomes, strict=True):
                if isinstance(boxes, BaseException):
                    results[row] = boxes
                    continue
                try:
                    answers = list(self.cut(images[row], boxes))
                except Exception as error:
                    results[row] = error
                    continue
                found.append((row, boxes, answers))
                parts += [part for part in answers if not isinstance(part, Exception)]

            def answered(outcomes: list[Any]) -> None:
                rest = iter(outcomes)
                for row, boxes, answers in found:
                    answers[:] = [part if isinstance(part, Exception) else next(rest) for part in answers]
                    ended = next((one for one in answers if isinstance(one, (CancelledError, ClosedError))), None)
                    results[row] = self.joined(boxes, answers) if ended is None else ended
                then(results)

            if parts:
                request.submit(self.second, parts, answered, wait=False)
            else:
                answered([])

        if good:
            request.submit(
                self.detector, [images[row] for row in good], detected, parameters, timeout=timeout, wait=wait
            )
        else:
            then(results)

    def _take_slot(self, request: ImageRequest, timeout: float | None, wait: bool | None) -> bool:
        """Waits until fewer images are in progress than both pipelines have slots. False where the deadline passes,
        which ends the request.

        Raises:
            Overloaded: the settings of the detector's pipeline or `timeout` say not to wait any longer.
        """
        settings = self.detector.details.pipelines[0].settings
        with self._guard:
            count = sum(model.details.pipelines[0].slots for model in self.models)
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
            request.end(DeadlineExceeded("the deadline passed while other images were in progress"))
            return False
        waited = f", and none ended within {patience:g} s" if patience else ""
        raise Overloaded(
            f"{count} images are in progress in both models{waited}; submit later, or make the pipelines with "
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
        """As `stream()`, through the pipelines of both models, which run in parallel. Always waits for slots.

        Args:
            in_flight: images that are read ahead; None is twice the slots of the detector's pipeline.
            return_exceptions: return the exception of an image in place of its result, instead of raising it.
        """

        ahead = 2 * self.detector.details.pipelines[0].slots if in_flight is None else in_flight
        count = max(min(self.detector.details.batch_limit, GATHERED, ahead), 1)  # images that are submitted together
        source = iter(images)
        groups = iter(lambda: list(islice(source, count)), [])
        submit = partial(self._submit_group, parameters=parameters or None)
        return _in_order(map_requests(groups, submit, -(-ahead // count)), return_exceptions)

    def _submit_group(self, group: Sequence[Any], parameters: Mapping[str, Any] | None) -> Future[list[Any]]:
        """The results of several images, and exceptions in place of those that fail."""
        images: list[Any] = []
        for image in group:
            try:
                images.append(self._shared(image))
            except Exception as error:
                images.append(error)
        future = RequestFuture()
        future.request = request = ImageRequest(future.end, None)
        try:
            self._submit(images, request, request.end, parameters, wait=True)
        except BaseException:
            request.refuse()
            raise
        return future

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

    def joined(self, boxes: Detections, answers: Sequence[Any]) -> Detections:
        """The boxes with the column of the answers."""
        column = np.empty(len(answers), object)
        for index, one in enumerate(answers):
            column[index] = one
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


def _in_order(groups: Iterator[list[Any]], return_exceptions: bool) -> Iterator[Detections]:
    """The results of groups of images, one by one."""
    with contextlib.closing(groups):  # type: ignore[type-var]
        for outcomes in groups:
            for outcome in outcomes:
                failed = isinstance(outcome, BaseException) and not return_exceptions
                if failed or isinstance(outcome, (CancelledError, ClosedError)):
                    raise outcome
                yield outcome
