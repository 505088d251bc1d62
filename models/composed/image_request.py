"""The requests of an image to the models of a composition."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from queue import SimpleQueue

    from ..image_model import CancellableRequest, ImageModel

__all__ = ["ImageRequest"]


class ImageRequest:
    """One image, which becomes requests to one model after another. It ends once.

    Any number of threads may use it.

    Args:
        on_done: called once with the result or the exception, in the thread that ends it.
        parameters: those of the call.
        deadline: seconds within which all of its requests have to leave.
        timeout, wait: whether its requests wait for slots; see `Pipeline.submit_batch()`. Where `wait` is None, only
            the first of several images that are submitted together needs a slot; the others wait in the queue.

    Attributes:
        parameters, timeout, wait: as given.
        slot: gets an item when it ends.
    """

    __slots__ = ("_lock", "_on_done", "_requests", "_until", "parameters", "slot", "timeout", "wait")

    def __init__(
        self,
        on_done: Callable[[Any], object],
        parameters: Mapping[str, Any] | None = None,
        deadline: float | None = None,
        timeout: float | None = None,
        wait: bool | None = None,
    ) -> None:
        self._on_done: Callable[[Any], object] | None = on_done
        self.parameters, self.timeout, self.wait = parameters or None, timeout, wait
        self._until = None if deadline is None else monotonic() + deadline
        self._lock = threading.Lock()
        self._requests: list[CancellableRequest] = []
        self.slot: SimpleQueue[None] | None = None

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the deadline, below 0 behind it; None without one."""
        return None if self._until is None else self._until - monotonic()

    def submit(
        self,
        model: ImageModel[Any],
        images: Sequence[Any],
        then: Callable[[list[Any]], object],
        parameters: Mapping[str, Any] | None = None,
        *,
        fail_early: bool = False,
    ) -> None:
        """Submits images to a model.

        Args:
            then: called with the result or exception of each image when the last one has ended, unless this request has
                ended before. Its exception ends this request; that of `on_done` is raised.
            parameters: see `Pipeline.submit_batch()`.
            fail_early: the first exception ends this request, and cancels the other images.

        Raises:
            PipelineError, ClosedError: see `Pipeline.submit_batch()`.
        """
        left = None if self.seconds_left is None else max(self.seconds_left, 0.0)
        outcomes: list[Any] = [None] * len(images)
        missing = len(images)

        def ended(start: int, index: int, outcome: Any) -> None:
            nonlocal missing
            outcomes[start + index] = outcome
            with self._lock:
                missing -= 1
                waiting = missing > 0
            if fail_early and isinstance(outcome, BaseException):
                self._end_and_cancel(outcome)
            elif not waiting and not self.ended:
                try:
                    then(outcomes)
                except BaseException as error:
                    if not self.end(error):  # it is an exception of `on_done`
                        raise

        first = len(images) if self.wait is not None else 1  # there may be more images than the pipeline has slots
        for start, several, wait in ((0, images[:first], self.wait), (first, images[first:], False)):
            if several:
                self._requests += model.submit_batch(
                    several, partial(ended, start), parameters, timeout=self.timeout, deadline=left, wait=wait
                )
        if self.ended:  # meanwhile
            self._cancel_requests()

    @property
    def ended(self) -> bool:
        """Whether it has its result or its exception."""
        return self._on_done is None

    def end(self, outcome: Any) -> bool:
        """Ends it with a result or an exception; False where it has ended before. Raises what `on_done` raises."""
        with self._lock:
            on_done, self._on_done = self._on_done, None
        if on_done is None:
            return False
        self.free_slot()
        on_done(outcome)
        return True

    def free_slot(self) -> None:
        """Frees the slot, if it has one."""
        slot, self.slot = self.slot, None
        if slot is not None:
            slot.put(None)

    def cancel(self) -> bool:
        """Ends it with CancelledError, and cancels the requests whose batch has not left."""
        return self._end_and_cancel(CancelledError())

    def _end_and_cancel(self, error: BaseException) -> bool:
        ended = self.end(error)
        if ended:
            self._cancel_requests()
        return ended

    def refuse(self) -> None:
        """Ends it without a call of `on_done`, and cancels its requests: whoever submits it gets an exception."""
        with self._lock:
            self._on_done = None
        self.free_slot()
        self._cancel_requests()

    def _cancel_requests(self) -> None:
        for request in self._requests[::-1]:  # a row that becomes free goes to the first one that waits
            request.cancel()
