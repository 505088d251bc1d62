"""A detector, and a second model on its boxes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from concurrent.futures import CancelledError
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import numpy as np

from ...errors import ClosedError, ConfigError, DeadlineExceeded, ImageError, InputError, Overloaded
from ...image import DeviceImage, HostImage, ImageSource, SharedImage, read_image
from ...pipeline.request import PipelineThread, RequestFuture, UntilError, check_in_flight, results_in_order
from ..declaration import UNCHECKED, argument
from ..results import Detections
from ..results.detections import OWN_NAMES
from .base import Composed, require_boxes, whole_image
from .crops import CropKind, Cutter, cutter
from .image_request import ImageRequest

if TYPE_CHECKING:
    from ..image_model import ImageModel

__all__ = ["TwoStage"]

#: Images whose parts are gathered for one call of the second model, at most.
GATHERED = 16

#: Images in order: the boxes or the exception of each, and its parts.
_Group: TypeAlias = "list[tuple[Any, Sequence[Any]]]"


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
            its `Detections` that returns an image for each box. A call raises InputError where the boxes have no angles
            or keypoints for it.
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
        taken = OWN_NAMES | {"mask", "keypoints", "oriented", "track_id"}
        if not self.column.isidentifier() or self.column in taken:
            raise ConfigError(f"column is {self.column!r}; use a plain name that Detections do not have already")
        require_boxes(self.detector)
        self._free: SimpleQueue[None] | None = None  # an item for each image that may come in
        self._guard = threading.Lock()
        self._cut = self.crop if callable(self.crop) else cutter(self.crop, self.margin)
        first, second = self.detector.details.image_device, self.second.details.image_device
        #: Where parts are cut. A function may need the pixels on the host.
        self._device = first if first == second and isinstance(self.crop, str) else None

    # ---- calls ----

    def _stream(self, images: Iterable[ImageSource | HostImage], parameters: Mapping[str, Any]) -> Iterator[Detections]:
        detect = partial(self.detector.stream, **parameters)
        for group in self._groups(images, detect, GATHERED, read=True):
            parts = _parts(group)
            yield from self._results(group, self._answers(parts) if parts else [])

    def _answers(self, parts: list[Any]) -> list[Any]:
        """The results of the second model in a call, or the exceptions of the parts that fail."""
        try:
            return self.second(parts)
        except ClosedError:
            raise
        except Exception:  # requests show which part it is
            return self.second(parts, return_exceptions=True)

    def _map(
        self, images: Iterable[Any], in_flight: int | None, return_exceptions: bool, parameters: Mapping[str, Any]
    ) -> Iterator[Detections]:
        """Half of the images that are read ahead are in the detector's pipeline; the parts of the others are in that of
        the second model.
        """
        ahead = check_in_flight(self._slots if in_flight is None else in_flight)
        first = (ahead + 1) // 2
        size = max(min(GATHERED, (ahead - first) // 2), 1)
        detect = partial(self.detector.map, in_flight=first, return_exceptions=True, **parameters)
        submitted: deque[_Group] = deque()

        def submit(group: _Group, future: RequestFuture) -> None:
            submitted.append(group)
            future.request = request = ImageRequest(future.end, wait=True)
            if parts := _parts(group):
                request.submit(self.second, parts, request.end)
            else:
                request.end([])

        def results() -> Iterator[Detections]:
            groups = self._groups(images, detect, size)
            for answers in results_in_order(groups, submit, max((ahead - first) // size, 1), return_exceptions=False):
                if (ended := _ended(answers)) is not None:
                    raise ended
                yield from self._results(submitted.popleft(), answers, return_exceptions)

        return results()

    def _groups(
        self, images: Iterable[Any], detect: Callable[[Iterator[Any]], Iterator[Any]], size: int, read: bool = False
    ) -> Iterator[_Group]:
        """Images whose parts go through the second model together: they fill a batch, or are `size` images.

        Args:
            detect: the boxes or exceptions of the detector.
            read: the images are decoded before the detector has them.
        """
        shared: deque[Any] = deque()  # images that the detector has

        def sources() -> Iterator[Any]:
            for image in images:
                try:
                    shared.append(self._shared(image, read))
                except (ImageError, InputError):
                    shared.append(image)  # the detector cannot read it either, and has an exception in its place
                yield shared[-1]

        batch = self.second.details.batch_limit
        group: _Group = []
        detected = UntilError(detect(sources()))
        for boxes in detected:
            image = shared.popleft()
            if isinstance(boxes, Exception):
                group.append((boxes, ()))
            else:
                try:
                    group.append((boxes, self.cut(image, boxes)))
                except Exception as error:
                    group.append((error, ()))
            if len(group) == size or sum(len(parts) for _, parts in group) >= batch:
                yield group
                group = []
        if group:
            yield group
        detected.check()

    def _results(self, group: _Group, answers: Iterable[Any], return_exceptions: bool = False) -> Iterator[Any]:
        """The results of several images, of which the answers for all parts are there."""
        rest = iter(answers)
        for found, parts in group:
            if not isinstance(found, Exception):
                yield self.joined(found, parts, rest)
            elif return_exceptions:
                yield found
            else:
                raise found

    # ---- requests ----

    def _begin(self, image: ImageSource | HostImage, request: ImageRequest) -> None:
        """The thread that ends the detector's request cuts the parts and submits them. The number of images in progress
        is limited to the slots of both pipelines.
        """
        if request.wait is not False and not self._take_slot(request):
            return
        shared = self._shared(image, read=request.wait is None)

        def detected(outcomes: list[Any]) -> None:
            (boxes,) = outcomes
            if isinstance(boxes, BaseException):
                request.end(boxes)
                return
            parts = self.cut(shared, boxes)
            good = _parts([(boxes, parts)])

            def answered(answers: list[Any]) -> None:
                ended = _ended(answers)
                request.end(self.joined(boxes, parts, answers) if ended is None else ended)

            request.wait = False  # a thread of a pipeline must not wait for slots
            if good:
                request.submit(self.second, good, answered)
            else:
                answered([])

        request.submit(self.detector, [shared], detected, request.parameters)

    def _take_slot(self, request: ImageRequest) -> bool:
        """Waits until fewer images are in progress than both pipelines have slots. False where the deadline passes,
        which ends the request.
        """
        settings = self.detector.details.pipelines[0].settings
        with self._guard:
            if self._free is None:
                self._free = SimpleQueue()
                for _ in range(self._slots):
                    self._free.put(None)
        slots = self._free
        patience = settings.timeout if request.timeout is None else request.timeout
        if request.wait:
            patience = None
        elif settings.when_full == "raise":
            patience = 0
        limits = [limit for limit in (patience, request.seconds_left) if limit is not None]
        in_callback = isinstance(threading.current_thread(), PipelineThread)
        try:
            slots.get(timeout=0 if in_callback else max(min(limits), 0.0) if limits else None)
        except Empty:
            if in_callback and patience != 0:  # these threads free the slots; its requests wait in the queue
                return True
        else:
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
        """The part of each box, cut on the device of both models if it is the same one; the reason where that fails."""
        parts = self._cut(whole_image(image, self.channel_order, self._device), boxes)
        if not isinstance(parts, Sized) or len(parts) != len(boxes):
            given = f"{len(parts)} images" if isinstance(parts, Sized) else type(parts).__name__
            raise ConfigError(
                f"the function for crop gives {given} for {len(boxes)} boxes; give a list of one for each"
            )
        return parts

    def joined(self, boxes: Detections, parts: Sequence[Any], answers: Iterable[Any]) -> Detections:
        """The boxes with a column of the answers for their parts, or the reasons why there is no part."""
        if self.column in boxes.columns:
            raise ConfigError(f"the boxes of the detector have a column {self.column!r} already; pass another column=")
        rest = iter(answers)
        column = np.empty(len(parts), object)
        for index, part in enumerate(parts):
            column[index] = part if isinstance(part, Exception) else next(rest)
        return boxes.with_columns(**{self.column: column})

    def _shared(self, source: Any, read: bool = False) -> Any:
        """The image for the detector, decoded once for both models, now if `read`, and copied to their device once."""
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


def _parts(group: _Group) -> list[Any]:
    """The parts that could be cut out, for the second model."""
    return [part for _, parts in group for part in parts if not isinstance(part, Exception)]


def _ended(answers: Iterable[Any]) -> BaseException | None:
    """The first answer that says that the second model was closed, or the request cancelled: it ends all of them."""
    return next((one for one in answers if isinstance(one, (CancelledError, ClosedError))), None)
