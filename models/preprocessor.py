"""How images become a network's input: where their pixels go, and what happens to each pixel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..errors import ConfigError, ImageError, InputError, UnsupportedModelError
from ..image import DeviceImage, Geometry, HostImage, ImageSource, PixelTransform, image_view, read_image
from ..ops import preprocess_into, resample
from ..ops.batch import ImageBatch, shared_workers

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from ..image import ImageView
    from ..infer import Infer
    from ..tensor import Tensor
    from ..tensor_spec import TensorSpec

__all__ = ["ImageInput", "Preprocessor", "as_size", "geometry_of_pixels", "view_of"]

Size = tuple[int, int]

#: Images that go through together when nothing else limits the batch.
DEFAULT_BATCH = 8


@dataclass(frozen=True)
class ImageInput:
    """A network's input of images.

    Attributes:
        spec: the input as the model declares it.
        size: (width, height) in pixels.
        layout: `"chw"` or `"hwc"`.
        dtype: `"float32"`, `"float16"` or `"uint8"`.
        channels: 3.
    """

    spec: TensorSpec
    size: Size
    layout: Literal["chw", "hwc"]

    @classmethod
    def of(cls, specs: Sequence[TensorSpec], asked: Size | None, fallback: int) -> ImageInput:
        """The one input of a network, NCHW or NHWC with three channels.

        Args:
            specs: the network's inputs.
            asked: (width, height) that was asked for, for a model that leaves it open.
            fallback: the side of the square where the model leaves it open and nothing was asked for.

        Raises:
            UnsupportedModelError: this is no input of images; the message has the reason alone.
            ConfigError: another size was asked for than the model has.
        """
        if (reason := cls.refuses(specs)) is not None:
            raise UnsupportedModelError(reason)
        spec = specs[0]
        layout: Literal["chw", "hwc"] = "hwc" if spec.shape[1] != 3 and spec.shape[3] == 3 else "chw"
        height, width = spec.shape[2:] if layout == "chw" else spec.shape[1:3]
        sides = []
        for side, wanted in zip((width, height), asked or (None, None), strict=True):
            if isinstance(side, int) and wanted not in (None, side):
                raise ConfigError(f"the model's input is {width} x {height}; it cannot be set to {asked}")
            sides.append(side if isinstance(side, int) else wanted or fallback)
        return cls(spec, (sides[0], sides[1]), layout)

    @staticmethod
    def refuses(specs: Sequence[TensorSpec]) -> str | None:
        """Why inputs are not one input of images; None if they are."""
        if len(specs) != 1:
            return f"it has {len(specs)} inputs, not one for images"
        spec = specs[0]
        if len(spec.shape) != 4:
            return f"its input {spec} does not have the four dimensions of a batch of images"
        if spec.dtype not in (np.float32, np.float16, np.uint8):
            return f"its input {spec} takes neither float32, float16 nor uint8"
        if 3 not in (spec.shape[1], spec.shape[3]) and isinstance(spec.shape[1], int):
            return f"its input {spec} has {spec.shape[1]} channels, not 3"
        return None

    @property
    def dtype(self) -> str:
        return str(self.spec.dtype.name)

    @cached_property
    def has_free_batch(self) -> bool:
        return self.spec.has_free_batch

    @cached_property
    def image_shape(self) -> tuple[int, int, int]:
        """The shape of one image in the input, without the batch."""
        width, height = self.size
        return (3, height, width) if self.layout == "chw" else (height, width, 3)

    @cached_property
    def image_nbytes(self) -> int:
        """The bytes of one image in the input."""
        return math.prod(self.image_shape) * self.spec.dtype.itemsize

    def batch_limit(self, infer: Infer, asked: int | None = None) -> int:
        """The most images in one run: what is asked for, what the network was loaded for, or 8; or its fixed batch."""
        fixed = self.spec.fixed_batch
        return fixed if fixed is not None else asked or infer.max_batch or DEFAULT_BATCH

    def tensor(self, infer: Infer, images: int, limit: int) -> Tensor:
        """The bound input of `infer`, sized for so many images at least, and `limit` at most."""
        tensor: Tensor = infer.inputs[self.spec.name]
        rows = min(infer.bucket_batch(images), limit) if self.has_free_batch else limit
        return tensor.resize((rows, *self.image_shape))


@dataclass(frozen=True)
class Preprocessor:
    """What a wrapper says of its preprocessing.

    Args:
        input: the network's input.
        transform: what happens to each pixel.
        geometry: makes the geometry of an image of (width, height); asked once for each size.
        channel_order: of NumPy arrays that are given as images: `"bgr"`, `"rgb"` or `"nv12"`.
        scaled_decode: decode JPEG files at 1/2, 1/4 or 1/8 of their size, where no less is left than the resize needs.
        interpolation: `"bilinear"` is OpenCV's INTER_LINEAR, in one pass with all else. `"bicubic"` is Pillow's: images
            on the host are resized by its filter as they are read, for geometries that resize without padding.
    """

    input: ImageInput
    transform: PixelTransform
    geometry: Callable[[Size], Geometry]
    channel_order: str = "bgr"
    scaled_decode: bool = False
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"
    _cached: Callable[[Size], Geometry] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Frames of a video and of cameras repeat their size.
        geometry = self.geometry if self.interpolation == "bilinear" else lambda size: Geometry.stretch(size, size)
        object.__setattr__(self, "_cached", lru_cache(maxsize=64)(geometry))

    @classmethod
    def letterbox(
        cls, input: ImageInput, *, channel_order: str = "bgr", centred: bool = True, **pixels: Any
    ) -> Preprocessor:
        """The image is scaled to fit, and centred or put in the upper left corner; the rest is filled. `pixels`:
        settings of `PixelTransform`.
        """
        transform = PixelTransform(layout=input.layout, dtype=input.dtype, **pixels)

        def in_corner(size: Size) -> Geometry:
            scale = min(input.size[0] / size[0], input.size[1] / size[1])
            width, height = (max(round(side * scale), 1) for side in size)
            return Geometry.resize(size, input.size, (width, height))

        def in_centre(size: Size) -> Geometry:
            return Geometry.letterbox(size, input.size)

        return cls(input, transform, in_centre if centred else in_corner, channel_order)

    @classmethod
    def stretch(cls, input: ImageInput, *, channel_order: str = "bgr", **pixels: Any) -> Preprocessor:
        """The image is stretched to the input's size. `pixels`: settings of `PixelTransform`."""
        transform = PixelTransform(layout=input.layout, dtype=input.dtype, **pixels)
        return cls(input, transform, lambda size: Geometry.stretch(size, input.size), channel_order)

    @classmethod
    def crop(cls, input: ImageInput, *, channel_order: str = "bgr", **pixels: Any) -> Preprocessor:
        """The image is scaled to cover the input, and its centre cropped. `pixels`: settings of `PixelTransform`."""
        transform = PixelTransform(layout=input.layout, dtype=input.dtype, **pixels)

        def covering(size: Size) -> Geometry:
            scale = max(input.size[0] / size[0], input.size[1] / size[1])
            width, height = (max(round(side * scale), least) for side, least in zip(size, input.size, strict=True))
            offset = (input.size[0] - width) // 2, (input.size[1] - height) // 2
            return Geometry.resize(size, input.size, (width, height), offset)

        return cls(input, transform, covering, channel_order)

    def read(self, source: ImageSource | HostImage) -> HostImage:
        at_least = self._resized_size if self.scaled_decode else None
        image = read_image(source, channel_order=self.channel_order, at_least=at_least)
        return image if self.interpolation == "bilinear" else self._resampled(image)

    def _resampled(self, image: HostImage) -> HostImage:
        """The image on the canvas, resized by Pillow's filter."""
        if image.format == "nv12":
            raise ImageError(
                "an NV12 frame cannot be resized by interpolation='bicubic'; convert the frame to BGR first"
            )
        geometry = self.geometry(image.size)
        assert geometry.resized is not None
        assert geometry.offset is not None
        left, top = -geometry.offset[0], -geometry.offset[1]
        crop = left, top, left + geometry.canvas[0], top + geometry.canvas[1]
        pixels = resample(view_of(image), geometry.resized, filter=self.interpolation, crop=crop)
        return HostImage(pixels, image.format.removesuffix("a"), image.decoder)

    def read_any(self, source: ImageSource | HostImage) -> HostImage | DeviceImage:
        """As `read()`; an array on a CUDA device stays there."""
        if isinstance(source, DeviceImage):
            return source.twin()  # several models may borrow it, each for work on its own stream
        if not isinstance(source, np.ndarray) and DeviceImage.is_one(source):
            if self.interpolation != "bilinear":
                raise ImageError(
                    f"interpolation={self.interpolation!r} is for images on the host, and this one is on a GPU; "
                    "copy it to the host first, or use interpolation='bilinear'"
                )
            return DeviceImage(source, self.channel_order)
        return self.read(source)

    def geometry_of(self, size: Size) -> Geometry:
        """How an image of (width, height) comes onto the canvas; `HostImage.size` where it was reduced."""
        return self._cached(size)

    def _resized_size(self, size: Size) -> Size:
        """The size that an image of (width, height) is resized to; its own, if it is warped instead."""
        return self._cached(size).resized or size

    def write(
        self, images: Sequence[HostImage], address: int, nbytes: int, batch: ImageBatch, *, shares_cpu: bool = False
    ) -> list[Geometry]:
        """Preprocesses images into memory of the host, several of them on several threads.

        Args:
            images: as many as `batch` takes, at most.
            address, nbytes: where the first one goes, and the bytes that may be written.
            batch: its C arrays are used.
            shares_cpu: see `shared_workers()`.
        """
        if len(images) == 1:
            image, geometry = images[0], self._cached(images[0].size)
            preprocess_into(view_of(image), geometry_of_pixels(image, geometry), self.transform, address, nbytes)
            return [geometry]
        geometries = [self._cached(image.size) for image in images]
        views = [view_of(image) for image in images]
        sampled = [geometry_of_pixels(image, geometry) for image, geometry in zip(images, geometries, strict=True)]
        batch.fill(views, sampled)
        batch.preprocess(self.transform, address, nbytes, workers=shared_workers(shares_cpu=shares_cpu))
        return geometries

    def array(self, images: Sequence[HostImage], rows: int | None = None) -> npt.NDArray[Any]:
        """The network's input for these images; with `rows` the last image is repeated up to that many."""
        several = [*images, *[images[-1]] * ((rows or 0) - len(images))]
        out = np.empty((len(several), *self.input.image_shape), self.input.spec.dtype)
        self.write(several, out.ctypes.data, out.nbytes, ImageBatch(len(several)))
        return out


def view_of(image: HostImage) -> ImageView:
    return image_view(image.pixels, image.format)  # type: ignore[arg-type]


def geometry_of_pixels(image: HostImage, geometry: Geometry) -> Geometry:
    """The geometry for the pixels of an image, whose own geometry is for its full size.

    They differ where the file was decoded at a reduced size. Boxes are mapped back by the geometry for the full size.
    """
    if image.reduced_from is None or geometry.resized is None or geometry.offset is None:
        return geometry
    return _resize(image.pixel_size, geometry.canvas, geometry.resized, geometry.offset)


_resize = lru_cache(maxsize=64)(Geometry.resize)


def as_size(size: int | Sequence[int] | None, what: str) -> Size | None:
    """`640` or `(640, 384)` as (width, height)."""
    if size is None:
        return None
    sides = (size, size) if isinstance(size, int) else tuple(size) if isinstance(size, Sequence) else ()
    if len(sides) != 2 or not all(isinstance(side, int) and side >= 1 for side in sides):
        raise InputError(f"{what} is a number of pixels or (width, height), not {size!r}")
    width, height = sides
    return width, height
