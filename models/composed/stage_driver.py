"""One thread that takes blocks of images through two models on a device.

A request of its own for each image and each part costs more than a GPU takes for it: queues, futures, and threads that
wait for the interpreter's lock. Here one thread has whole batches of both models. It queues batches of the detector and
batches of parts on the device, and waits for the oldest one only when it has nothing to queue. The batches are borrowed
from the pipelines of the models, so requests of other callers share both models with it.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from itertools import islice
from time import monotonic
from typing import TYPE_CHECKING, Any

from ...errors import ForkError
from ...pipeline.threads import log_error
from ..requests import Requests

if TYPE_CHECKING:
    from ...pipeline.batch_loans import BorrowedBatch
    from ..results import Detections
    from .chain import Stages

__all__ = ["ImageBlock", "StageDriver", "map_blocks"]

#: While parts for so many batches wait, no further images begin.
BATCHES_OF_PARTS = 4
#: Batches of images on the device at a time. Their copies are there before they begin, so one runs and one is ready;
#: more of them would take turns with each other and with those of the parts, and all would run longer.
BATCHES_OF_IMAGES = 2


class ImageBlock:
    """Images that go to the detector together. They end together, each with its result or with an exception.

    Args:
        images: what the detector gets; an exception in place of an image is its outcome.
    """

    __slots__ = ("_ended", "_missing", "images", "outcomes", "submitted")

    def __init__(self, images: Sequence[Any]) -> None:
        self.images: Sequence[Any] = images
        self.outcomes: list[Any] = [None] * len(images)
        self.submitted = monotonic()
        self._missing = len(images)
        self._ended = threading.Lock()  # held until all have ended
        self._ended.acquire()

    def end(self, index: int, outcome: Any) -> None:
        """One of the images has its outcome. Called by one thread alone, once for each of them."""
        self.outcomes[index] = outcome
        self._missing -= 1
        if not self._missing:
            self.images = ()
            self._ended.release()

    def end_all(self, error: BaseException) -> None:
        """Those that have no outcome yet end with an exception."""
        if self._missing:
            self.outcomes = [error if outcome is None else outcome for outcome in self.outcomes]
            self._missing, self.images = 0, ()
            self._ended.release()

    def wait(self) -> list[Any]:
        """Waits for the outcomes of all images."""
        with self._ended:
            return self.outcomes


class _ImageParts:
    """The parts of an image on their way through the second model.

    Attributes:
        block, index: the image is `block.images[index]`.
        boxes: of the parts.
        answers: of each part what the second model says, or the reason why there is nothing.
        missing: answers that are to come.
    """

    __slots__ = ("answers", "block", "boxes", "index", "missing")

    def __init__(self, block: ImageBlock, index: int, boxes: Detections, answers: list[Any]) -> None:
        self.block, self.index, self.boxes, self.answers = block, index, boxes, answers
        self.missing = 0


class StageDriver:
    """Takes blocks of images through both models, in a thread of its own that ends with `close()`.

    Args:
        stages: two wrappers, and what is between them; `cut()` takes little time.
        parameters: those of the detector.

    Attributes:
        capacity: images in a batch of the detector.
    """

    def __init__(self, stages: Stages, parameters: Mapping[str, Any]) -> None:
        detector, second = stages.detector, stages.second
        assert isinstance(detector, Requests)
        assert isinstance(second, Requests)
        self._stages, self._parameters = stages, parameters or None
        self._detector, self._second = detector.pipeline, second.pipeline
        self.capacity, self._parts_capacity = self._detector.max_batch, self._second.max_batch
        self._changed = threading.Condition()
        self._blocks: deque[ImageBlock] = deque()  # that are to begin
        self._closed = False
        self._error: BaseException | None = None  # of all images from now on: the thread has ended
        # Of the thread alone:
        self._images_in_flight: deque[tuple[BorrowedBatch, ImageBlock, Sequence[int]]] = deque()
        self._parts: deque[tuple[Any, _ImageParts, int, float]] = deque()  # each with its row, and when it was cut
        self._parts_in_flight: deque[tuple[BorrowedBatch, Sequence[tuple[Any, _ImageParts, int, float]]]] = deque()
        self._open: dict[ImageBlock, None] = {}  # blocks that have begun and not ended
        self._thread = threading.Thread(target=self._work, name="infersdk-two-stage", daemon=True)
        self._thread.start()

    def submit(self, images: Sequence[Any]) -> ImageBlock:
        """Takes images in, up to `capacity` of them.

        Raises:
            ForkError: this process was forked off after the map() began.
        """
        if not self._in_this_process:
            raise ForkError(
                f"the map() began in another process, and this is process {os.getpid()}, which has none of its "
                "threads; begin it after the fork, or start processes with the method 'spawn'"
            )
        block = ImageBlock(images)
        with self._changed:
            if self._error is None:
                self._blocks.append(block)
                self._changed.notify()
                return block
        block.end_all(self._error)
        return block

    def close(self) -> None:
        """Nothing more begins. The thread ends when what is on the device has ended; it is not waited for."""
        if self._in_this_process:
            with self._changed:
                self._closed = True
                self._changed.notify()

    @property
    def _in_this_process(self) -> bool:
        """Whether the thread is, or was, one of this process: a fork leaves it behind, perhaps with the lock."""
        return self._thread.is_alive() or self._error is not None

    # ---- the thread ----

    def _work(self) -> None:
        error: BaseException = CancelledError()
        try:
            while self._step():
                """Until it is closed."""
        except BaseException as fault:  # a pipeline was closed, or is at fault
            error = fault
        finally:
            self._end(error)

    def _step(self) -> bool:
        """Queues what can be queued, and waits for one batch; whether to go on."""
        if self._closed:
            return False
        self._begin_images()
        self._begin_parts()
        self._begin_images()  # fewer parts wait now
        if self._images_in_flight:
            self._finish_images()
        elif self._parts_in_flight:
            self._finish_parts()
        elif self._blocks and len(self._parts) < self._parts_capacity:  # requests of others have all batches
            self._begin_images(wait=True)
        elif self._parts:
            self._begin_parts(wait=True)
        else:
            with self._changed:
                while not self._blocks and not self._closed:
                    self._changed.wait()
        return True

    def _begin_images(self, *, wait: bool = False) -> None:
        """Queues batches of the detector. Parts come first: while many of them wait, no further images begin."""
        while (
            self._blocks
            and len(self._images_in_flight) < BATCHES_OF_IMAGES
            and len(self._parts) < BATCHES_OF_PARTS * self._parts_capacity
        ):
            batch = self._detector.borrow_batch(wait=wait)
            if batch is None:
                return
            wait = False
            block = self._blocks.popleft()
            self._open[block] = None
            rows = [index for index, image in enumerate(block.images) if not isinstance(image, Exception)]
            self._images_in_flight.append((batch, block, rows))
            batch.begin([block.images[index] for index in rows], [block.submitted] * len(rows), self._parameters)
            for index, image in enumerate(block.images):
                if isinstance(image, Exception):
                    self._end_image(block, index, image)

    def _begin_parts(self, *, wait: bool = False) -> None:
        """Queues batches of parts: full ones, and what is left where no image is on its way."""
        parts, capacity = self._parts, self._parts_capacity
        while len(parts) >= capacity or (parts and not self._images_in_flight and not self._blocks):
            batch = self._second.borrow_batch(wait=wait)
            if batch is None:
                if not self._parts_in_flight:
                    return
                self._finish_parts()
                continue
            wait = False
            own = [parts.popleft() for _ in range(min(capacity, len(parts)))]
            self._parts_in_flight.append((batch, own))
            batch.begin([part for part, *_ in own], [cut for *_, cut in own])

    def _finish_images(self) -> None:
        """Waits for the oldest batch of the detector, and cuts the parts of its images."""
        batch, block, rows = self._images_in_flight.popleft()
        results = batch.results()
        now = monotonic()
        for index, boxes in zip(rows, results, strict=True):
            if isinstance(boxes, BaseException):
                self._end_image(block, index, boxes)
                continue
            try:
                answers = list(self._stages.cut(block.images[index], boxes))
            except Exception as error:
                self._end_image(block, index, error)
                continue
            own = _ImageParts(block, index, boxes, answers)
            for row, part in enumerate(answers):
                if not isinstance(part, Exception):
                    self._parts.append((part, own, row, now))
                    own.missing += 1
            if not own.missing:
                self._join(own)

    def _finish_parts(self) -> None:
        """Waits for the oldest batch of parts."""
        batch, parts = self._parts_in_flight.popleft()
        for (_, own, row, _), answer in zip(parts, batch.results(), strict=True):
            own.answers[row] = answer
            own.missing -= 1
            if not own.missing:
                self._join(own)

    def _join(self, own: _ImageParts) -> None:
        try:
            outcome: Any = self._stages.joined(own.boxes, own.answers)
        except Exception as error:
            outcome = error
        self._end_image(own.block, own.index, outcome)

    def _end_image(self, block: ImageBlock, index: int, outcome: Any) -> None:
        block.end(index, outcome)
        if not block.images:
            del self._open[block]

    def _end(self, error: BaseException) -> None:
        """Gives all batches back, and ends all images."""
        with self._changed:
            self._error = error
            blocks = [*self._open, *self._blocks]
            self._blocks.clear()
        for batch in (*(batch for batch, *_ in self._images_in_flight), *(batch for batch, _ in self._parts_in_flight)):
            try:
                batch.results()
            except BaseException as fault:  # not a model's: that is an outcome. The others go back all the same
                log_error("ending a batch of a map() failed", fault)
        for block in blocks:
            block.end_all(error)
        self._images_in_flight.clear()
        self._parts_in_flight.clear()
        self._parts.clear()
        self._open.clear()


def map_blocks(
    images: Iterator[Any],
    submit: Callable[[Sequence[Any]], ImageBlock],
    capacity: int,
    ahead: int,
    return_exceptions: bool = False,
) -> Iterator[Any]:
    """The outcomes of any number of images, in order.

    Args:
        submit: takes up to `capacity` images in.
        ahead: images that are read ahead of the result that is returned.
        return_exceptions: return the exception of an image in place of its result, instead of raising it.
    """
    size = min(capacity, max(ahead // 2, 1))  # one block is read while another one is on its way
    blocks: deque[ImageBlock] = deque()
    while several := list(islice(images, size)):
        blocks.append(submit(several))
        if (len(blocks) + 1) * size > ahead:
            yield from _outcomes(blocks.popleft(), return_exceptions)
    while blocks:
        yield from _outcomes(blocks.popleft(), return_exceptions)


def _outcomes(block: ImageBlock, return_exceptions: bool) -> Iterator[Any]:
    for outcome in block.wait():
        if isinstance(outcome, BaseException) and not (return_exceptions and isinstance(outcome, Exception)):
            raise outcome
        yield outcome
