"""A detector, and a second model on its boxes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from ...errors import ConfigError, DeadlineExceeded
from ..declaration import UNCHECKED, argument
from ..results import Detections
from .base import Composed, map_requests, require_boxes, whole_image
from .composition import Joined
from .crops import CropKind, Cutter, cutter

if TYPE_CHECKING:
    from ...image import DeviceImage, HostImage, ImageSource
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
        self._cut = self.crop if callable(self.crop) else cutter(self.crop, self.margin)
        self._threads: ThreadPoolExecutor | None = None
        self._guard = threading.Lock()

    # ---- calls ----

    def stream(self, images: Iterable[ImageSource | HostImage], **parameters: Any) -> Iterator[Detections]:
        """The results of any number of images, in order; up to 16 of them are read ahead."""
        read: deque[HostImage | DeviceImage] = deque()

        def sources() -> Iterator[Any]:
            for source in images:
                read.append(self._read(source))
                yield read[-1]

        batch = self.second.batch_limit
        waiting: list[tuple[Detections, Sequence[Any]]] = []
        count = 0
        for boxes in self.detector.stream(sources(), **parameters):
            parts = self._parts(read.popleft(), boxes)
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
            yield self._with(boxes, [part if isinstance(part, Exception) else next(answers) for part in parts])

    # ---- requests ----

    def submit(
        self,
        image: ImageSource | HostImage,
        *,
        timeout: float | None = None,
        deadline: float | None = None,
        **parameters: Any,
    ) -> Future[Detections]:
        """One image, whose boxes and parts run together with whatever else is waiting. See `Pipeline.submit()`.

        The image is read in the calling thread. The deadline holds for both models. Cancelling the future cancels what
        has not left.
        """
        until = None if deadline is None else monotonic() + deadline
        source: Any = self._read(image)
        first = self.detector.submit(source, timeout=timeout, deadline=deadline, **parameters)
        chain: _Chain = _Chain(first)
        first.add_done_callback(lambda done: self._executor().submit(self._continue, chain, source, done, until))
        return chain

    def map(
        self,
        images: Iterable[ImageSource | HostImage],
        *,
        in_flight: int | None = None,
        return_exceptions: bool = False,
        **parameters: Any,
    ) -> Iterator[Detections]:
        """As `stream()`, through the pipelines of both models, which run side by side.

        Args:
            in_flight: images that are read ahead; None is twice what the detector's pipeline takes in.
            return_exceptions: return the exception of an image in place of its result, instead of raising it.
        """
        ahead = in_flight if in_flight is not None else 2 * self.detector.pipelines[0].slots
        return map_requests(images, lambda image: self.submit(image, **parameters), ahead, return_exceptions)

    def _continue(
        self, chain: _Chain, image: HostImage | DeviceImage, first: Future[Detections], until: float | None
    ) -> None:
        """Once the boxes are there: the parts go to the second model. On a thread of this object's own: waiting for a
        slot there would hold up the detector's.
        """
        try:
            if first.cancelled():
                chain.cancel()
                return
            boxes = first.result()
            parts = self._parts(image, boxes)
            results: list[Any] = list(parts)
            rows = [index for index, part in enumerate(parts) if not isinstance(part, Exception)]
            left = None if until is None else until - monotonic()
            if left is not None and left <= 0 and rows:
                raise DeadlineExceeded("the deadline passed before the boxes went to the second model")

            def join(answers: list[Any]) -> Detections:
                for index, one in zip(rows, answers, strict=True):
                    results[index] = one
                return self._with(boxes, results)

            joined: Joined[Any, Detections] = Joined(join, len(rows), keep_errors=True)
            chain.follow(joined)
            for position, index in enumerate(rows):
                left = None if until is None else max(until - monotonic(), 0.0)
                joined.add(position, self.second.submit(parts[index], deadline=left))
        except BaseException as error:
            chain.fail(error)

    # ---- shared ----

    def _read(self, source: Any) -> HostImage | DeviceImage:
        """The image; on the device of both models if its parts can be cut there."""
        first, second = self.detector.image_device, self.second.image_device
        on_device = isinstance(self.crop, str) and first == second  # a function may need the pixels on the host
        return whole_image(source, self.channel_order, first if on_device else None)

    def _parts(self, image: HostImage | DeviceImage, boxes: Detections) -> Sequence[Any]:
        parts = self._cut(image, boxes)
        if len(parts) != len(boxes):
            raise ConfigError(
                f"the function for crop gives {len(parts)} images for {len(boxes)} boxes; give one for each"
            )
        return parts

    def _with(self, boxes: Detections, answers: Sequence[Any]) -> Detections:
        column = np.empty(len(answers), object)
        for index, one in enumerate(answers):
            column[index] = one
        return boxes.with_columns(**{self.column: column})

    def _executor(self) -> ThreadPoolExecutor:
        with self._guard:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(2, thread_name_prefix="infersdk-two-stage")
            return self._threads

    def close(self) -> None:
        """Closes both models."""
        super().close()
        if self._threads is not None:
            self._threads.shutdown()

    def __repr__(self) -> str:
        return f"<TwoStage {self.detector!r}, then {self.second!r}>"


class _Chain(Future[Detections]):
    """The result of one request after another: cancelling it cancels the one that is under way."""

    def __init__(self, first: Future[Any]) -> None:
        super().__init__()
        self._current: Future[Any] = first

    def follow(self, last: Future[Detections]) -> None:
        """Ends as `last` does."""
        self._current = last
        if self.cancelled():
            last.cancel()
        last.add_done_callback(self._end)

    def fail(self, error: BaseException) -> None:
        if not self.done() and self.set_running_or_notify_cancel():
            self.set_exception(error)
        self._current.cancel()

    def cancel(self) -> bool:
        cancelled = super().cancel()
        if cancelled:
            self._current.cancel()
        return cancelled

    def _end(self, last: Future[Detections]) -> None:
        if last.cancelled():
            super().cancel()
        elif not self.done() and self.set_running_or_notify_cancel():
            if (error := last.exception()) is not None:
                self.set_exception(error)
            else:
                self.set_result(last.result())
