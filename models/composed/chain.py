"""An image on its way through a detector and a second model, which gets the parts of all images under way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Executor
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

from ...errors import DeadlineExceeded
from ..requests import Requests
from .requests import submit_for, submit_group

if TYPE_CHECKING:
    from ...pipeline.futures import RequestGroup, TaggedRequest
    from ..image_model import ImageModel
    from ..results import Detections
    from .outcomes import EndedRequest

__all__ = ["Chain", "ChainedImage", "Stages"]

#: Parts that come into a pipeline at once, about: its lock is held meanwhile.
AT_ONCE = 64


class Stages(Protocol):
    """The two models, and what is between them."""

    detector: ImageModel[Detections]
    second: ImageModel[Any]

    @property
    def cuts_quickly(self) -> bool:
        """Whether the thread that has the boxes cuts the parts and takes them to the second model, for neither takes
        long. Otherwise a thread of `executor()` does.
        """

    def cut(self, image: Any, boxes: Detections) -> Sequence[Any]:
        """The part of each box, or the reason why it cannot be cut out."""

    def joined(self, boxes: Detections, answers: Sequence[Any]) -> Detections:
        """The result: the boxes, and what the second model says of each."""

    def executor(self) -> Executor:
        """The threads that cut parts, and wait for slots of the second model."""


class Chain:
    """An image on its way through both models. It ends once: with its result or with an exception.

    Args:
        stages: the models.
        image: what the detector gets.
        until: when all parts have to have left, on the monotonic clock.
        on_end: called with the result or the exception.
    """

    __slots__ = (
        "_boxes", "_cancelled", "_first", "_image", "_on_end", "_patient", "_results", "_rows", "_second", "_stages",
        "_until",
    )  # fmt: skip

    def __init__(self, stages: Stages, image: Any, until: float | None, on_end: Callable[[Any], object]) -> None:
        self._stages, self._image, self._until = stages, image, until
        self._on_end: Callable[[Any], object] | None = on_end
        self._patient = self._cancelled = False
        self._first: Any = None  # the request of the detector
        self._second: RequestGroup | None = None  # those of the parts
        self._boxes: Any = None
        self._results: list[Any] = []  # the parts, and in their places what the second model says of them
        self._rows: list[int] = []  # of the parts that could be cut out

    def begin(
        self, parameters: Mapping[str, Any], limits: Mapping[str, float | None], *, patient: bool = False
    ) -> None:
        """Takes the image in for the detector. Raises what `submit()` of a model raises: then it does not end.

        Args:
            patient: wait for slots of both models as long as it takes, whatever their settings say.
        """
        self._patient = patient
        detector = self._stages.detector
        try:
            first = submit_for(detector, self._detected, self._image, parameters, limits, patient=patient)
        except BaseException:
            self._let_go()
            raise
        if self._on_end is not None:  # it has not ended meanwhile
            self._first = first

    @staticmethod
    def begin_together(chains: Sequence[Chain], parameters: Mapping[str, Any]) -> None:
        """Takes images in for a wrapper at once, patiently. Raises what `submit()` raises."""
        detector = chains[0]._stages.detector
        assert isinstance(detector, Requests)
        for chain in chains:
            chain._patient = True
        images = [(chain._image, chain) for chain in chains]
        firsts = detector.submit_each(images, Chain._detected_together, parameters, patient=True)
        for chain, first in zip(chains, firsts, strict=True):
            if chain._on_end is not None:  # it has not ended meanwhile
                chain._first = first

    @staticmethod
    def _detected_together(ends: Sequence[TaggedRequest]) -> None:
        """The detector has ended several images: their parts come into the second model's pipeline at once."""
        stages = ends[0].tag._stages
        if not stages.cuts_quickly:
            for end in ends:
                end.tag._detected(end)
            return
        ready: list[tuple[Chain, Sequence[Any]]] = []
        count = 0
        for end in ends:
            chain: Chain = end.tag
            if end.error is not None:
                chain._end(end.error)
            elif parts := chain._parts(end.result):
                ready.append((chain, parts))
                count += len(parts)
            if count >= AT_ONCE:
                Chain._submit_together(stages.second, ready)
                ready, count = [], 0
        if ready:
            Chain._submit_together(stages.second, ready)

    @staticmethod
    def _submit_together(second: Requests[Any], ready: Sequence[tuple[Chain, Sequence[Any]]]) -> None:
        try:
            groups = second.submit_groups(
                [(chain._answered, parts) for chain, parts in ready], patient=True, wait=False
            )
        except BaseException as error:
            for chain, _ in ready:
                chain._end(error)
            return
        for (chain, _), group in zip(ready, groups, strict=True):
            chain._begun(group)

    def cancel(self) -> None:
        """Cancels what has not left."""
        self._cancelled = True
        for request in (self._first, self._second):
            if request is not None:
                request.cancel()

    def _detected(self, first: EndedRequest) -> None:
        """The detector has ended."""
        if first.error is not None:
            self._end(first.error)
        elif self._stages.cuts_quickly:
            self._run_second(first.result, wait=False)
        else:
            try:
                self._stages.executor().submit(self._run_second, first.result, wait=True)
            except BaseException as error:
                self._end(error)

    def _run_second(self, boxes: Detections, *, wait: bool) -> None:
        """Takes the parts to the second model.

        Args:
            wait: until all of them have slots.
        """
        parts = self._parts(boxes)
        if parts:
            try:
                self._submit_parts(parts, wait)
            except BaseException as error:
                self._end(error)

    def _parts(self, boxes: Detections) -> list[Any]:
        """What the second model gets. Where that is nothing, or cutting fails, the image has ended."""
        try:
            if self._cancelled:
                raise CancelledError
            if parts := self._cut(boxes):
                return parts
            outcome: Any = self._stages.joined(boxes, self._results)
        except BaseException as error:
            outcome = error
        self._end(outcome)
        return []

    def _cut(self, boxes: Detections) -> list[Any]:
        """The parts that could be cut out."""
        self._boxes, self._results = boxes, list(self._stages.cut(self._image, boxes))
        self._rows = [index for index, part in enumerate(self._results) if not isinstance(part, Exception)]
        return [self._results[index] for index in self._rows]

    def _submit_parts(self, parts: Sequence[Any], wait: bool) -> None:
        left = None if self._until is None else self._until - monotonic()
        if left is not None and left <= 0:
            raise DeadlineExceeded("the deadline passed before the boxes went to the second model")
        second = self._stages.second
        group = submit_group(second, self._answered, parts, deadline=left, patient=self._patient, wait=wait)
        self._begun(group)

    def _begun(self, group: RequestGroup) -> None:
        """The parts are on their way."""
        if self._on_end is not None:  # it has not ended meanwhile
            self._second = group
        if self._cancelled:
            group.cancel()

    def _answered(self, group: RequestGroup) -> None:
        """The second model has ended."""
        cancelled = next((one for one in group.outcomes if isinstance(one, CancelledError)), None)
        if cancelled is not None:
            self._end(cancelled)
            return
        try:
            for index, answer in zip(self._rows, group.outcomes, strict=True):
                self._results[index] = answer
            outcome = self._stages.joined(self._boxes, self._results)
        except BaseException as error:
            self._end(error)
        else:
            self._end(outcome)

    def _end(self, outcome: Any) -> None:
        """What the callbacks of a future raise goes on to the thread that ends it."""
        on_end = self._let_go()
        if on_end is not None:
            on_end(outcome)

    def _let_go(self) -> Callable[[Any], object] | None:
        """Holds neither the image nor its parts any more. Returns what is called with the outcome, once."""
        on_end, self._on_end = self._on_end, None
        self._image = self._first = self._second = self._boxes = None
        self._results = []
        return on_end


class ChainedImage:
    """The result of one image, which one thread alone waits for. It costs less than a future."""

    __slots__ = ("_ended", "_outcome", "chain")

    def __init__(self, stages: Stages, image: Any) -> None:
        self._ended = threading.Lock()  # held until there is an outcome
        self._ended.acquire()
        self._outcome: Any = None
        self.chain = Chain(stages, image, None, self._end)

    def _end(self, outcome: Any) -> None:
        self._outcome = outcome
        self._ended.release()

    def result(self) -> Detections:
        """Waits for the result; raises the exception of the image."""
        with self._ended:
            outcome: Any = self._outcome
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome  # type: ignore[no-any-return]

    def cancel(self) -> bool:
        """Cancels what has not left."""
        self.chain.cancel()
        return True
