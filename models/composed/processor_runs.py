"""Models whose results belong together, on the same cores of the processor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ...device import Device
from ...ops.batch import available_processors
from ..execution import RunLock
from ..vision import VisionModel
from .base import Composed

if TYPE_CHECKING:
    from ...infer import Infer
    from ..image_model import ImageModel

__all__ = ["run_one_at_a_time"]


def run_one_at_a_time(models: Iterable[ImageModel[Any]]) -> None:
    """The batches of requests to these models run one after another, as far as each takes all cores.

    The threads of a runtime wait for each other after every layer. With a second model on the same cores some of them
    are not running just then, and the others wait: both models together take longer than one after the other.
    Models that run on a device of their own, or on fewer threads than there are cores, run side by side as before. A
    model that several compositions share runs at another time than the other models of each of them.
    """
    wrappers = [wrapper for model in models for wrapper in _wrappers(model) if _takes_all_cores(wrapper.network)]
    if len(wrappers) < 2 or set.intersection(*(set(wrapper.run_locks) for wrapper in wrappers)):
        return  # a composition of the same models has seen to it
    lock = RunLock()
    for wrapper in wrappers:
        wrapper.run_within(lock)


def _wrappers(model: ImageModel[Any]) -> Iterator[VisionModel[Any]]:
    """The wrappers in a model, which may be a composition."""
    if isinstance(model, VisionModel):
        yield model
    elif isinstance(model, Composed):
        for part in model.models:
            yield from _wrappers(part)


def _takes_all_cores(network: Infer) -> bool:
    """Whether one run takes all cores of the processor, and one run is made at a time."""
    infer = network.current()
    if Device.parse(infer.device).kind != "cpu" or infer.concurrency != 1 or not infer.Options.has("threads"):
        return False
    threads: int = infer.options.threads
    return threads == 0 or threads >= available_processors()
