"""Keras models: `.h5` files of Keras 2 by a reader of their own, `.keras` files by Keras 3."""

from .importing import import_h5, translate

__all__ = ["import_h5", "translate"]
