"""A second model that gets a share of the requests, so that its results are compared before it takes over.

No client gets a result of it, and none waits for it: an image is dropped where the second model is busy.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from contextvars import Context
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.text import logger
from ..errors import ClosedError, Overloaded
from .workers import in_worker

if TYPE_CHECKING:
    from ..models import ImageModel
    from ..models.results import Result

__all__ = ["Shadow"]

_log = logger("infersdk.serve")


class Shadow:
    """Compares a second model with the one that serves.

    Args:
        model: belongs to the shadow, which closes it.
        share: of the images that the model gets, from 0 to 1.

    Attributes:
        outcomes: the number of images that were compared, were dropped because the model was busy, and failed.
        agreement: sum of the agreement of the results, from 0 to 1 each: `infersdk.models.Result.agreement()`.
    """

    def __init__(self, name: str, model: ImageModel[Any], share: float) -> None:
        self._name, self._model, self._share = name, model, share
        self._slots = model.details.pipelines[0].slots
        self._running = set[asyncio.Future[None]]()
        self.outcomes = {"compared": 0, "dropped": 0, "failed": 0}
        self.agreement = 0.0

    def offer(self, item: Any, parameters: Mapping[str, Any], result: Result) -> None:
        """An image and its result; images on a device are left out. Call it in the thread of the event loop; it does
        not wait.
        """
        if not isinstance(item, (bytes, np.ndarray)) or random.random() >= self._share:
            return
        if len(self._running) >= self._slots:
            self.outcomes["dropped"] += 1
            return
        # In a context of its own: the stages of this run are not those of the request.
        task = Context().run(asyncio.ensure_future, self._compare(item, parameters, result))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _compare(self, item: Any, parameters: Mapping[str, Any], result: Result) -> None:
        try:
            other = await self._model.infer(item, **parameters)
            agreement = await in_worker(result.agreement, other)
        except (Overloaded, ClosedError):
            self.outcomes["dropped"] += 1
        except Exception as error:  # also of results of another type, or without agreement()
            _log.warning("the shadow of model %r failed: %s", self._name, error)
            self.outcomes["failed"] += 1
        else:
            self.outcomes["compared"] += 1
            self.agreement += agreement.percent / 100

    def close(self) -> None:
        """Frees the model. Images that wait for it are dropped."""
        self._model.close()
