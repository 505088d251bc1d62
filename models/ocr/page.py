"""How a page is read: the lines of text are located, cut out upright, and read in batches of about equal length."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from ...image import Geometry, HostImage, PixelTransform
from ...ops import preprocess, topk
from ..execution import Timings
from .lines import TextLine
from .network import input_array, run
from .regions import (
    LINE_HEIGHT,
    along_the_text,
    corner_areas,
    line_width,
    reading_order,
    sides,
    text_regions,
    upright_geometry,
)

if TYPE_CHECKING:
    import numpy.typing as npt
    from typing_extensions import Self

    from ...infer import Infer

__all__ = ["PageReader"]

#: What all three networks take: (x / 255 - 0.5) / 0.5 of BGR.
_PIXELS = PixelTransform("bgr", "chw", "float32", fill=0, scale=1 / 127.5, bias=-1.0)
_BGR = PixelTransform("bgr", "hwc", "uint8", fill=0, scale=1.0)
#: The width of a line whose orientation is looked at.
ORIENTATION_WIDTH = 192
#: Widths of lines are multiples of this one, so that the runtime sees few shapes.
BUCKET = 64
#: Images that are wider than high by more than this get a margin above and below, and those of fewer rows too.
WIDEST, FEWEST_ROWS = 8.0, 30
#: The score above which a line is read from its other end too.
TURNED = 0.9


class PageReader:
    """Reads images, one at a time.

    Args:
        detection, recognition, orientation: the networks; the reader does not close them.
        characters: what each class of the recognition stands for.
        settings: those of `OCR`.

    Attributes:
        timings: how long the stages of the last image took.
    """

    def __init__(
        self, detection: Infer, recognition: Infer, orientation: Infer | None, characters: Sequence[str], settings: Any
    ) -> None:
        self.detection, self.recognition, self.orientation = detection, recognition, orientation
        self._characters, self._settings = characters, settings
        self.timings = Timings()

    @property
    def networks(self) -> tuple[Infer, ...]:
        """The networks of the reader."""
        networks = (self.detection, self.recognition, self.orientation)
        return tuple(network for network in networks if network is not None)

    def clone(self) -> Self:
        """A second reader for another thread, on networks of its own over the same weights."""
        twin = copy.copy(self)
        twin.timings = Timings()
        with ExitStack() as opened:
            for name in ("detection", "recognition", "orientation"):
                if (network := getattr(self, name)) is not None:
                    setattr(twin, name, network.clone())
                    opened.callback(getattr(twin, name).close)
            opened.pop_all()
        return twin

    def close(self) -> None:
        """Closes the networks."""
        for network in self.networks:
            network.close()

    def read(self, image: HostImage) -> list[TextLine]:
        """The lines of an image of any score, in the order of reading."""
        self.timings = Timings()
        quads = self.regions(image)
        lines = self.read_lines(image, quads)
        doubtful = self._upside_down(image, quads)
        # The orientation network sees 192 pixels of a line, and errs; the better score of the text decides.
        for index, turned in zip(doubtful, self.read_lines(image, quads[doubtful][:, [2, 3, 0, 1]]), strict=True):
            if turned.score > lines[index].score:
                lines[index] = turned
        return lines

    # ---- detection ----

    def regions(self, image: HostImage) -> npt.NDArray[np.float32]:
        """See `OCR.regions()`."""
        with self._timed("preprocess"):
            padded, above = _with_margin(image)
            geometry = Geometry.stretch(padded.pixel_size, self._canvas(padded.pixel_size))
            view = padded.view()
            preprocess(view, geometry, _PIXELS, out=input_array(self.detection, (1, 3, *reversed(geometry.canvas)))[0])
        with self._timed("infer"):
            probability = run(self.detection)[0, 0]
        with self._timed("postprocess"):
            settings = self._settings
            regions = text_regions(
                probability, threshold=settings.threshold, box_threshold=settings.box_threshold, unclip=settings.unclip
            )
            # On whole pixels, so that a line that lies along the rows is not blurred where it is cut out.
            points = np.round(geometry.to_source(regions.reshape(-1, 2))) - (0, above)
            corners = np.clip(points, 0, image.pixel_size).astype(np.float32).reshape(-1, 4, 2)
            corners = corners[[min(sides(quad)) > 3 and corner_areas(quad).min() >= 1 for quad in corners]]
            upright = [along_the_text(quad) for quad in corners[reading_order(corners)]]
            return np.array(upright, np.float32).reshape(-1, 4, 2) / _reduction(image)

    def _canvas(self, size: tuple[int, int]) -> tuple[int, int]:
        """The size at which an image is searched, in multiples of 32."""
        side, max_side = self._settings.side, self._settings.max_side
        scale = min(max_side / max(size), 1.0)
        scale = min(max(side / min(size), scale), 2 * max_side / max(size))
        width, height = (max(round(int(edge * scale) / 32) * 32, 32) for edge in size)
        return width, height

    # ---- orientation and recognition ----

    def _upside_down(self, image: HostImage, quads: npt.NDArray[np.float32]) -> list[int]:
        """The lines that the orientation network takes for upside down."""
        if self.orientation is None:
            return []
        turned: list[int] = []
        for group in _groups(range(len(quads)), self._settings.batch):
            scores = self._run(self.orientation, image, quads, group, ORIENTATION_WIDTH)
            turned += [index for row, index in enumerate(group) if scores[row, 1] > TURNED]
        return turned

    def read_lines(self, image: HostImage, quads: npt.NDArray[np.float32]) -> list[TextLine]:
        """See `OCR.read_lines()`."""
        lines: list[Any] = [None] * len(quads)
        widths = [line_width(quad) for quad in quads]
        order = sorted(range(len(quads)), key=widths.__getitem__)  # lines of one batch are about as long
        for group in _groups(order, self._settings.batch):
            width = -(-widths[group[-1]] // BUCKET) * BUCKET
            steps = self._run(self.recognition, image, quads, group, width)
            with self._timed("postprocess"):
                for index, one in zip(group, steps, strict=True):
                    lines[index] = self._decoded(one, quads[index])
        return lines

    def _run(
        self, network: Infer, image: HostImage, quads: npt.NDArray[np.float32], group: Sequence[int], width: int
    ) -> npt.NDArray[Any]:
        """A network's output for lines, upright and 48 pixels high, with zeros on their right."""
        with self._timed("preprocess"):
            view, pixels = image.view(), quads * _reduction(image)
            array = input_array(network, (len(group), 3, LINE_HEIGHT, width))
            for row, index in enumerate(group):
                own = min(line_width(quads[index]), width)
                array[row, :, :, own:] = 0
                array[row, :, :, :own] = preprocess(
                    view, upright_geometry(image.pixel_size, pixels[index], own), _PIXELS
                )
        with self._timed("infer"):
            return run(network)

    def _decoded(self, steps: npt.NDArray[Any], quad: npt.NDArray[np.float32]) -> TextLine:
        """Connectionist temporal classification, the best path: the best class of each step, of equal neighbours one,
        without blanks (A. Graves et al., 2006).
        """
        best, scores = (column[:, 0] for column in topk(np.ascontiguousarray(steps, np.float32), 1, softmax=False))
        chosen = best != 0
        chosen[1:] &= best[1:] != best[:-1]
        own = scores[chosen]
        text = "".join(self._characters[i] for i in best[chosen])
        return TextLine(text, float(own.mean()) if len(own) else 0.0, quad, tuple(own.tolist()))

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        """Adds the time of the block to a stage of `timings`."""
        start = perf_counter()
        try:
            yield
        finally:
            setattr(self.timings, stage, getattr(self.timings, stage) + perf_counter() - start)


def _groups(indices: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    """Indices in groups of up to `size`, in order."""
    return (indices[start : start + size] for start in range(0, len(indices), size))


def _reduction(image: HostImage) -> npt.NDArray[np.float32]:
    """The pixels by those of the whole image, along both sides: 1 unless it was decoded at a reduced size."""
    return np.divide(image.pixel_size, image.size).astype(np.float32)


def _with_margin(image: HostImage) -> tuple[HostImage, int]:
    """An image that is very wide, or has few rows, with black above and below; and how many rows above."""
    width, height = image.pixel_size
    if height > FEWEST_ROWS and width / height <= WIDEST:
        return image, 0
    above = abs(max(int(width / WIDEST), FEWEST_ROWS) * 2 - height) // 2
    pixels, pixel_format = image.pixels, image.format
    if pixel_format == "nv12":  # its rows are those of two planes
        pixels, pixel_format = preprocess(image.view(), Geometry.stretch(image.size, image.size), _BGR), "bgr"
    margins = [(above, above), (0, 0), (0, 0)][: pixels.ndim]
    return HostImage(np.pad(pixels, margins), pixel_format, image.decoder), above
