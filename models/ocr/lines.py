"""The result of reading an image: its lines of text."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import ShapeError
from ...image import HostImage, ImageSource, read_image
from .._fonts import font_for, load_font
from ..draw import to_pil
from ..results.rows import Rows, save_rows

if TYPE_CHECKING:
    import numpy.typing as npt
    from PIL import Image
    from typing_extensions import Self

__all__ = ["TextLine", "TextLines"]


@dataclass(frozen=True, slots=True)
class TextLine:
    """A line of text.

    Attributes:
        text: what it says.
        score: how sure that is, 0 to 1: the mean over the characters.
        polygon: (4, 2) of x and y in pixels of the image: the corners, in the order of reading: where the line begins
            above, ends above, ends below, begins below.
        character_scores: the score of each character.
    """

    text: str
    score: float
    polygon: npt.NDArray[np.float32]
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
        """What each line says."""
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

    def to_dicts(self) -> list[dict[str, Any]]:
        """The lines as dicts of plain Python values: `text`, `score`, `polygon`, `character_scores`."""
        return [line.to_dict() for line in self.lines]

    def draw(self, image: ImageSource | HostImage, *, font: str | os.PathLike[str] | None = None) -> Image.Image:
        """The image with an outline around each line and its text above.

        Args:
            image: what was read.
            font: a font file, for the text; None is one of the system's that has the characters.

        Raises:
            ImageError: the image cannot be read.
            ShapeError: the image has another size than the one that was read.
        """
        from PIL import ImageDraw

        source = read_image(image)
        if source.size != self.size:
            raise ShapeError(f"the image is {source.size}, and these lines are of one of {self.size}")
        drawn = to_pil(source)
        pen = ImageDraw.Draw(drawn)
        width = max(round(sum(self.size) / 1000), 1)
        height = max(round(sum(self.size) / 90), 10)
        own = load_font(font, height) if font is not None else None
        for line in self.lines:
            corners = [tuple(point) for point in line.polygon.tolist()]
            pen.line([*corners, corners[0]], (220, 40, 40), width)
            x, y = line.polygon.min(axis=0).tolist()
            pen.text((x, y), line.text, (20, 60, 200), font=own or font_for(line.text, height), anchor="lb")
        return drawn

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes `to_dicts()` to a file that ends in `.json`. Raises ConfigError, OutputError."""
        return save_rows(self, path, None)
