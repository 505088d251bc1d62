"""The operators that come with infersdk, in the domain `infersdk`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .detection_nms import DetectionNMS

if TYPE_CHECKING:
    from ..declaration import CustomOp

__all__ = ["OPERATORS", "DetectionNMS"]

OPERATORS: tuple[type[CustomOp], ...] = (DetectionNMS,)
