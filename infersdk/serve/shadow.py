"""A second model that gets a share of the requests, so that its results are compared before it takes over.

No client gets a result of it, and none waits for it: an image is dropped where the second model is busy.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np

from ..core.text import logger
from ..errors import Overloaded

if TYPE_CHECKING:
    from ..models import ImageModel
    from ..models.results import Result

__all__ = ["Shadow", "ShadowShare"]

_log = logger("infersdk.serve")


class ShadowShare(msgspec.Struct, frozen=True):
    """Of the table `shadow` of a model. All other fields are those of a model.

    Attributes:
        share: of the images that the second model gets, from 0 to 1.
    """

    share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.1


class Shadow:
    """Compares a second model with the one that serves.

    Args:
        model: belongs to the shadow, which closes it.
        share: see `ShadowShare`.

    Attributes:
        outcomes: the number of images that were compared, were dropped because the model was busy, and failed.
        agreement: sum of the agreement of the results, from 0 to 1 each: `infersdk.models.Result.agreement()`.
    """

    def __init__(self, name: str, model: ImageModel[Any], share: float) -> None:
        self._name, self._model, self._share = name, model, share
        self._thread = ThreadPoolExecutor(1, "infersdk-shadow")  # where compositions decode their images
        self._places = threading.Semaphore(model.details.pipelines[0].slots)  # for images that wait for the thread
        self._random, self._lock = random.Random(), threading.Lock()
        self.outcomes = {"compared": 0, "dropped": 0, "failed": 0}
        self.agreement = 0.0

    def offer(self, item: Any, parameters: Mapping[str, Any], result: Result) -> None:
        """An image and its result. Does not wait.

        Args:
            item: encoded bytes or an array; images on a device are left out.
        """
        if not isinstance(item, (bytes, np.ndarray)) or self._random.random() >= self._share:
            return
        if not self._places.acquire(blocking=False):
            self._count("dropped")
            return
        try:
            self._thread.submit(self._begin, item, parameters, result)
        except RuntimeError:  # it is closed
            self._count("dropped")

    def _begin(self, item: Any, parameters: Mapping[str, Any], result: Result) -> None:
        try:
            future: Future[Any] = self._model.submit(item, timeout=0, **parameters)
        except Overloaded:
            self._count("dropped")
        except Exception as error:
            self._failed(error)
        else:
            future.add_done_callback(lambda done: self._compare(result, done))
        finally:
            self._places.release()

    def _compare(self, result: Result, done: Future[Any]) -> None:
        if done.cancelled():
            self._count("dropped")
        elif (error := done.exception()) is not None:
            self._failed(error)
        else:
            try:
                self._count("compared", result.agreement(done.result()).percent / 100)
            except Exception as wrong:  # results of another type, or without agreement()
                self._failed(wrong)

    def _failed(self, error: BaseException) -> None:
        _log.warning("the shadow of model %r failed: %s", self._name, error)
        self._count("failed")

    def _count(self, outcome: str, agreement: float = 0.0) -> None:
        with self._lock:
            self.outcomes[outcome] += 1
            self.agreement += agreement

    def close(self) -> None:
        """Frees the model. Images that wait for the thread are left out."""
        self._thread.shutdown(cancel_futures=True)
        self._model.close()
