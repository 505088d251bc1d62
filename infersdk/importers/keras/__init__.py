"""Keras `.h5` and `.keras` files, converted by Keras in a separate process."""

from .importing import import_archive, import_h5

__all__ = ["import_archive", "import_h5"]
