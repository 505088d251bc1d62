"""Keras models, `.h5` and `.keras` files, by Keras itself in a process of its own."""

from .archives import import_archive
from .importing import import_h5

__all__ = ["import_archive", "import_h5"]
