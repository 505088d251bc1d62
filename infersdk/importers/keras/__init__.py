"""Keras `.h5` and `.keras` files, converted by Keras in a separate process."""

from .archives import import_archive
from .importing import import_h5

__all__ = ["import_archive", "import_h5"]
