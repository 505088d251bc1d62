"""What products build around models: large images in tiles, a second model on what the first one found, several models
on the same images.

They are used as a wrapper is: calls, `stream()`, `submit()`, `map()` and asyncio. They hold no network of their own.
"""

from .crops import cutter
from .model_group import GroupResult, ModelGroup
from .tiles import Tile, Tiled, tile_grid
from .two_stage import TwoStage

__all__ = ["GroupResult", "ModelGroup", "Tile", "Tiled", "TwoStage", "cutter", "tile_grid"]
