"""Compositions of models: large images in tiles, a second model on the boxes of a first one, several models on the same
images.

They have the interface of a wrapper: calls, `stream()`, `submit()`, `map()` and asyncio.
"""

from .base import Composed
from .model_group import GroupResult, ModelGroup
from .tiles import Tile, Tiled, tile_grid
from .two_stage import TwoStage

__all__ = ["Composed", "GroupResult", "ModelGroup", "Tile", "Tiled", "TwoStage", "tile_grid"]
