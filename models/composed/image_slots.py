"""How many images may be on their way through several models."""

from __future__ import annotations

import threading

from ...errors import Overloaded

__all__ = ["ImageSlots"]


class ImageSlots:
    """Images on their way through two models, at most so many. Any number of threads may use it.

    A pipeline has slots for what waits for its own model. What has left the first one waits for the second, in a queue
    without an end, and the first one takes in more meanwhile.

    Args:
        count: images at a time.
        rejects: whether an image is refused at once when there are that many.
        timeout: seconds that an image waits otherwise; None is without limit.
    """

    def __init__(self, count: int, *, rejects: bool, timeout: float | None) -> None:
        self._count, self._rejects, self._timeout = count, rejects, timeout
        self._freed = threading.Condition()
        self._taken = set[object]()

    def take(self, image: object, *, timeout: float | None, until_deadline: float | None, patient: bool) -> bool:
        """Takes a slot for an image; False if its deadline passes before there is one.

        Args:
            timeout: seconds to wait, instead of the setting.
            until_deadline: seconds; None for an image without a deadline.
            patient: wait as long as it takes, whatever the settings say.

        Raises:
            Overloaded: there is none, and the settings or `timeout` say not to wait any longer.
        """
        wait = None if patient else self._timeout if timeout is None else timeout
        rejects = self._rejects and not patient
        limits = [limit for limit in (wait, until_deadline) if limit is not None]
        with self._freed:
            if len(self._taken) >= self._count:
                if rejects:
                    self._refuse("; submit later, or make the pipelines with more slots")
                if not self._freed.wait_for(lambda: len(self._taken) < self._count, min(limits, default=None)):
                    if wait is None or (until_deadline is not None and until_deadline <= wait):
                        return False
                    self._refuse(f", and none ended within {wait:g} s")
            self._taken.add(image)
        return True

    def _refuse(self, remedy: str) -> None:
        raise Overloaded(f"{self._count} images are on their way through both models{remedy}")

    def free(self, image: object) -> None:
        """An image is not on its way any more. A second call does nothing."""
        with self._freed:
            if image in self._taken:
                self._taken.remove(image)
                self._freed.notify()
