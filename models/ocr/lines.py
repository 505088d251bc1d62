"""The result of reading an image: its lines of text."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any

import numpy as np

from .._fonts import font_for, load_font
from ..results.agreement import Agreement, best_matches, overlaps
from ..results.habits import Row
from ..results.result import ResultTensor, bytes_array
from ..results.rows import Rows

if TYPE_CHECKING:
    import numpy.typing as npt
    from PIL import Image, ImageFont
    from typing_extensions import Self

    from ...image import HostImage, ImageSource

__all__ = ["TextLine", "TextLines"]


@dataclass(frozen=True, slots=True)
class TextLine(Row):
    """A line of text.

    Attributes:
        text: the text.
        score: mean score of the characters, 0 to 1.
        polygon: (4, 2) of x and y in pixels of the image: the corners in the order of reading, upper start, upper end,
            lower end, lower start.
        character_scores: the score of each character.
    """

    text: str
    score: float
    polygon: npt.NDArray[np.float32] = field(compare=False)
    character_scores: tuple[float, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {
            "text": self.text,
            "score": self.score,
            "polygon": self.polygon.tolist(),
            "character_scores": list(self.character_scores),
        }


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TextLines(Rows[TextLine]):
    """The lines of text of an image, in the order of reading: from top to bottom, and from left to right.

    Attributes:
        lines: the lines.
        size: (width, height) of the image.
        dropped: lines whose score was below `text_score`.
    """

    lines: Sequence[TextLine]
    size: tuple[int, int]
    dropped: int = 0

    @property
    def text(self) -> str:
        """All lines, one below the other."""
        return "\n".join(line.text for line in self.lines)

    @property
    def texts(self) -> list[str]:
        """The text of each line."""
        return [line.text for line in self.lines]

    @property
    def scores(self) -> npt.NDArray[np.float32]:
        """(N,) float32."""
        return np.array([line.score for line in self.lines], np.float32)

    @property
    def polygons(self) -> npt.NDArray[np.float32]:
        """(N, 4, 2) float32: the corners of each line; see `TextLine`."""
        return np.array([line.polygon for line in self.lines], np.float32).reshape(-1, 4, 2)

    def __len__(self) -> int:
        return len(self.lines)

    def __repr__(self) -> str:
        shown = ", ".join(repr(line.text) for line in self.lines[:3])
        return f"<{type(self).__name__}: {shown or 'nothing'}{', ...' if len(self) > 3 else ''}>"

    def _row(self, index: int) -> TextLine:
        return self.lines[index]

    def _take(self, index: slice | npt.NDArray[Any]) -> Self:
        chosen = np.arange(len(self.lines))[index]
        return dataclasses.replace(self, lines=[self.lines[i] for i in chosen])

    def summary(self) -> str:
        """The lines with their scores, and how many were dropped."""
        lines = [f"{line.score:.3f}  {line.text}" for line in self.lines] or ["no text"]
        if self.dropped:
            lines.append(f"{self.dropped} more lines were less certain than text_score")
        return "\n".join(lines)

    def draw(
        self,
        image: ImageSource | HostImage | None = None,
        *,
        channel_order: str = "bgr",
        font: str | os.PathLike[str] | ImageFont.FreeTypeFont | None = None,
    ) -> Image.Image:
        """The image with an outline around each line and its text above, as a new PIL image. A text whose line is at
        an edge is moved into the image.

        Args:
            image, channel_order: see `Result.draw()`, also for its errors.
            font: a font file or a loaded font, for the text; None is one of the system's that has the characters.
        """
        return self._drawn(self._pil(image, channel_order), font)

    def _drawn(
        self, pil: Image.Image, font: str | os.PathLike[str] | ImageFont.FreeTypeFont | None = None
    ) -> Image.Image:
        from PIL import ImageDraw

        pen = ImageDraw.Draw(pil)
        width = max(round(sum(self.size) / 1000), 1)
        height = max(round(sum(self.size) / 90), 10)
        own = load_font(font, height) if font is not None else None
        for line in self.lines:
            corners = [tuple(point) for point in line.polygon.tolist()]
            pen.line([*corners, corners[0]], (220, 40, 40), width)
            x, y = line.polygon.min(axis=0).tolist()
            face = own or font_for(line.text, height)
            _, top, right, _ = pen.textbbox((0, 0), line.text, font=face, anchor="lb")
            within = max(min(x, pil.width - right), 0), max(min(y, pil.height), -top)
            pen.text(within, line.text, (20, 60, 200), font=face, anchor="lb")
        return pil

    def _tensors(self) -> Mapping[str, ResultTensor]:
        return {
            "num_lines": ResultTensor(lambda: np.int32(len(self))),
            "line_texts": ResultTensor(lambda: bytes_array(self.texts), 1, b""),
            "line_scores": ResultTensor(lambda: self.scores, 1),
            "line_polygons": ResultTensor(lambda: self.polygons, 1),
        }

    def _agreement(self, other: Self, min_score: float) -> Agreement:
        """2 sum IoU similarity / (lines of both) over matched lines: their enclosing boxes have an IoU of at least 0.5.

        The similarity of two texts is that of `difflib`, 1 for equal ones. Lines of the other side below `min_score`
        count only where they match.
        """
        lines = [line for line in self.lines if line.score >= min_score]
        counted = [line.score >= min_score for line in other.lines]
        ious = overlaps(_boxes(other.lines), _boxes(lines))
        common, shifts = 0.0, []
        for theirs, own in best_matches(ious):
            read, known = other.lines[theirs], lines[own]
            common += 2 * float(ious[theirs, own]) * SequenceMatcher(None, known.text, read.text, False).ratio()
            shifts.append(read.score - known.score)
            counted[theirs] = True
        return Agreement.of(common, len(lines) + sum(counted), shifts)


def _boxes(lines: Sequence[TextLine]) -> npt.NDArray[np.float32]:
    """(N, 4): left, top, right and bottom of what encloses each line."""
    polygons = np.array([line.polygon for line in lines], np.float32).reshape(-1, 4, 2)
    return np.concatenate([polygons.min(axis=1), polygons.max(axis=1)], axis=1)
