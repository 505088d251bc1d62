"""Optical character recognition: detection, orientation and recognition of lines of text."""

from .lines import TextLine, TextLines
from .reader import OCR

__all__ = ["OCR", "TextLine", "TextLines"]
