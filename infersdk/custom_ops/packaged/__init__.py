"""The custom operators of infersdk, in the domain `infersdk`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .detection_nms import DetectionNMS
from .grid_sample import GridSample3D

if TYPE_CHECKING:
    from ..declaration import CustomOp

__all__ = ["OPERATORS", "DetectionNMS", "GridSample3D"]

OPERATORS: tuple[type[CustomOp], ...] = (DetectionNMS, GridSample3D)
