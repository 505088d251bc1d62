"""A detector, and a second model on what it found."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import ConfigError, DeadlineExceeded
from ...image import DeviceImage, HostImage, ImageSource
from ..results import Detections
from .composition import Joined, device_of, require_boxes, whole_image
from .crops import CropKind, Cutter, cutter

if TYPE_CHECKING:
    from typing_extensions import Self

    from ..vision import VisionModel

__all__ = ["TwoStage"]

#: Images whose parts are gathered for one call of the second model, at most.
GATHERED = 16


class TwoStage:
    """A model of boxes, and a second model that looks at each of them.

    ::

        people = TwoStage(models.load("yolov8n.onnx", classes=["person"]), models.load("osnet.onnx"), column="vector")
        for person in people("street.jpg"):
            print(person.xyxy, person.columns["vector"])

    The results are those of the detector with one column more: what the second model says of each box, in the order of
    the boxes. The parts of all images that are under way fill the second model's batches. A part that cannot be cut
    out, or fails, fails alone: its place in the column holds the exception.

    Args:
        detector: a wrapper whose results are `Detections`.
        second: any wrapper.
        crop: what the second model gets: `"box"` the pixels within the box, `"oriented"` an oriented box turned
            upright, `"landmarks"` a face turned and scaled by its five landmarks; or a function of an image and its
            `Detections` that returns an image for each box.
        margin: by how much a box is enlarged on each side, as a share of that side.
        column: the name of the new column.

    Raises:
        ConfigError: a setting has a wrong value.
        UnsupportedModelError: the detector's results are no `Detections`.
    """

    def __init__(
        self,
        detector: VisionModel[Detections],
        second: VisionModel[Any],
        *,
        crop: CropKind | Cutter = "box",
        margin: float = 0.0,
        column: str = "second",
    ) -> None:
        if not column.isidentifier() or column in ("mask", "keypoints", "oriented"):
            raise ConfigError(f"column is {column!r}; use a plain name that Detections do not have already")
        self.detector, self.second, self.column = detector, second, column
        require_boxes(detector)
        self._cuts_anywhere = crop == "box"
        self._cut = crop if callable(crop) else cutter(crop, margin)
        self._threads: ThreadPoolExecutor | None = None
        self._guard = threading.Lock()

    # ---- calls ----

    def __call__(self, images: Any, **parameters: Any) -> Any:
        """Takes an image or a list of them, as a wrapper does. `parameters` are the detector's."""
        if isinstance(images, (list, tuple)) and not isinstance(images, HostImage):
            return list(self.stream(images, **parameters))
        return next(self.stream([images], **parameters))

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
                yield from self._finished(waiting)
                waiting, count = [], 0
        yield from self._finished(waiting)

    def _finished(self, waiting: Sequence[tuple[Detections, Sequence[Any]]]) -> Iterator[Detections]:
        """The results of images whose parts go through the second model together."""
        good = [part for _, parts in waiting for part in parts if not isinstance(part, Exception)]
        said = iter(self.second(good) if good else [])
        for boxes, parts in waiting:
            yield self._with(boxes, [part if isinstance(part, Exception) else next(said) for part in parts])

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
        ahead = in_flight if in_flight is not None else 2 * self.detector.pipeline.slots
        if ahead < 1:
            raise ConfigError(f"in_flight is at least 1, not {ahead}")
        pending: deque[Future[Detections]] = deque()
        try:
            for image in images:
                try:
                    pending.append(self.submit(image, **parameters))
                except Exception as error:
                    if not return_exceptions:
                        raise
                    failed: Future[Detections] = Future()
                    failed.set_exception(error)
                    pending.append(failed)
                if len(pending) >= ahead:
                    yield _end(pending.popleft(), return_exceptions)
            while pending:
                yield _end(pending.popleft(), return_exceptions)
        finally:
            for future in pending:
                future.cancel()

    async def infer(
        self, image: ImageSource | HostImage, *, deadline: float | None = None, **parameters: Any
    ) -> Detections:
        """From asyncio: the result of one image. Neither reading it nor waiting for slots blocks the event loop."""
        submitted = asyncio.to_thread(self.submit, image, deadline=deadline, **parameters)
        return await asyncio.wrap_future(await submitted)

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

            def join(said: list[Any]) -> Detections:
                for index, one in zip(rows, said, strict=True):
                    results[index] = one
                return self._with(boxes, results)

            joined: Joined[Any, Detections] = Joined(join, len(rows))
            chain.follow(joined)
            for position, index in enumerate(rows):
                joined.add(position, _alone(self.second.submit(parts[index], deadline=left)))
        except BaseException as error:
            chain.fail(error)

    # ---- shared ----

    def _read(self, source: Any) -> HostImage | DeviceImage:
        """The image; on the device of both models if its parts can be cut there."""
        first, second = device_of(self.detector), device_of(self.second)
        return whole_image(
            source, self.detector.channel_order, first if self._cuts_anywhere and first == second else None
        )

    def _parts(self, image: HostImage | DeviceImage, boxes: Detections) -> Sequence[Any]:
        parts = self._cut(image, boxes)
        if len(parts) != len(boxes):
            raise ConfigError(
                f"the function for crop gives {len(parts)} images for {len(boxes)} boxes; give one for each"
            )
        return parts

    def _with(self, boxes: Detections, said: Sequence[Any]) -> Detections:
        column = np.empty(len(said), object)
        for index, one in enumerate(said):
            column[index] = one
        return boxes.with_columns(**{self.column: column})

    def _executor(self) -> ThreadPoolExecutor:
        with self._guard:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(2, thread_name_prefix="infersdk-two-stage")
            return self._threads

    @property
    def class_names(self) -> tuple[str, ...]:
        """The detector's class names by class_id."""
        return tuple(self.detector.class_names)

    def close(self) -> None:
        """Closes both models."""
        self.detector.close()
        self.second.close()
        if self._threads is not None:
            self._threads.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

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


def _alone(request: Future[Any]) -> Future[Any]:
    """A future that has the exception of `request` as its result: one part does not fail the others."""
    kept = _Kept(request)
    request.add_done_callback(kept.take)
    return kept


class _Kept(Future[Any]):
    def __init__(self, request: Future[Any]) -> None:
        super().__init__()
        self._request = request

    def take(self, request: Future[Any]) -> None:
        if request.cancelled():
            super().cancel()
        elif self.set_running_or_notify_cancel():
            error = request.exception()
            self.set_result(request.result() if error is None else error)

    def cancel(self) -> bool:
        self._request.cancel()
        return super().cancel()


def _end(future: Future[Detections], return_exceptions: bool) -> Any:
    if not return_exceptions:
        return future.result()
    try:
        return future.result()
    except Exception as error:
        return error
