"""Pages in a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...image import HostImage, read_image
from ...pipeline import OneBucket
from .lines import TextLines
from .regions import LINE_HEIGHT

if TYPE_CHECKING:
    from ...infer import Infer
    from .page import PageReader

__all__ = ["PageBuffer", "read_page"]


class PageBuffer(OneBucket):
    """A `BatchBuffer` of pages, which are read one after another.

    Args:
        reader: belongs to the buffer, which closes its networks.
        text_score: gives the score that a line must reach, for the parameters of a request.
    """

    def __init__(
        self, reader: PageReader, capacity: int, channel_order: str, text_score: Callable[[Mapping[str, Any]], float]
    ) -> None:
        self.capacity = capacity
        self._reader, self._channel_order, self._text_score = reader, channel_order, text_score
        self._pages: list[Any] = [None] * capacity  # each an image and the score that its lines must reach
        self._results: list[TextLines | Exception] = []
        self._serving = self._current()

    def _current(self) -> list[Infer]:
        return [network.current() for network in self._reader.networks]

    def prepares_quickly(self, item: Any) -> bool:
        return isinstance(item, (HostImage, np.ndarray))

    def prepare(self, row: int, item: Any, parameters: Mapping[str, Any] | None) -> None:
        text_score = self._text_score(parameters or {})
        self._pages[row] = read_image(item, channel_order=self._channel_order), text_score

    def move(self, source: int, target: int) -> None:
        self._pages[target] = self._pages[source]

    def run(self, count: int) -> None:
        self._results = [self._result(row) for row in range(count)]

    def _result(self, row: int) -> TextLines | Exception:
        page, self._pages[row] = self._pages[row], None
        try:
            return read_page(self._reader, *page)
        except Exception as error:  # of this page alone
            return error

    def results(self, count: int) -> Sequence[TextLines | Exception]:
        results, self._results = self._results, []
        return results

    def refresh(self) -> bool:
        before, self._serving = self._serving, self._current()
        return any(new is not old for new, old in zip(self._serving, before, strict=True))

    def batch_sizes(self) -> Sequence[int]:
        return [1]  # pages run one after another

    def warm_up(self, count: int, example: Any = None) -> None:
        """Runs each network on a page and on a line of it, or reads the example. Pages of other sizes have other
        shapes.
        """
        for _ in range(self._reader.recognition.scheduling.warm_up_runs):
            if example is not None:
                self._reader.read(read_image(example, channel_order=self._channel_order))
                continue
            page = HostImage(np.full((480, 640, 3), 255, np.uint8), "bgr")
            line = np.array([[[0, 0], [320, 0], [320, LINE_HEIGHT], [0, LINE_HEIGHT]]], np.float32)
            self._reader.regions(page)
            self._reader.read_lines(page, line)

    def close(self) -> None:
        self._reader.close()


def read_page(reader: PageReader, image: HostImage, text_score: float) -> TextLines:
    """The lines of an image that reach a score."""
    lines = reader.read(image)
    kept = [line for line in lines if line.score >= text_score]
    return TextLines(kept, image.size, len(lines) - len(kept))
