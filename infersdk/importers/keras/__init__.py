"""Keras models: `.h5` files of Keras 2 by a reader of their own, `.keras` files by Keras 3."""

from .archives import import_archive
from .importing import import_h5, translate

__all__ = ["import_archive", "import_h5", "translate"]
