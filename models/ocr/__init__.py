"""Text in images: where it is, which way up, and what it says."""

from .lines import TextLine, TextLines
from .reader import OCR

__all__ = ["OCR", "TextLine", "TextLines"]
