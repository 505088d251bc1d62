"""Images: where they come from, how their pixels lie, and where they go on a network's canvas."""

from .geometry import Geometry
from .images import DeviceImage, HostImage, ImageView, PixelFormat, device_image_view, image_view
from .sources import ImageSource, SharedImage, image_size, read_image
from .transforms import PixelTransform

__all__ = [
    "DeviceImage", "Geometry", "HostImage", "ImageSource", "ImageView", "PixelFormat", "PixelTransform", "SharedImage",
    "device_image_view", "image_size", "image_view", "read_image",
]  # fmt: skip
