"""The native kernels as plain functions over NumPy arrays."""

from .image import Geometry, ImageView, PixelTransform, as_image, letterbox, preprocess, preprocess_into

__all__ = ["Geometry", "ImageView", "PixelTransform", "as_image", "letterbox", "preprocess", "preprocess_into"]
