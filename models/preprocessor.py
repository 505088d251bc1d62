"""Preprocessing: from images to the input of a network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from operator import truediv
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..errors import ConfigError, UnsupportedModelError
from ..image import DeviceImage, Geometry, HostImage, ImageSource, PixelTransform, read_image
from ..image.batch import ImageBatch, shared_workers
from ..ops import preprocess, resample
from ..pipeline.batch_buffer import DEFAULT_BATCH

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from ..core.tensor import Tensor
    from ..core.tensor_spec import TensorSpec
    from ..infer import Infer

__all__ = [
    "SIZE_INPUT", "ImageInput", "Preprocessor", "as_size", "geometry_of_pixels", "image_axes", "image_sides", "scaled",
]  # fmt: skip

Size = tuple[int, int]

#: The second input of networks that scale their boxes themselves (D-FINE, RT-DETR): (width, height) of each image. It
#: is filled with the size of the network's input, so that boxes are pixels of the input.
SIZE_INPUT = "orig_target_sizes"


@dataclass(frozen=True)
class ImageInput:
    """A network's input of images.

    Attributes:
        spec: the input as the model declares it.
        size: (width, height) in pixels.
        layout: `"chw"` or `"hwc"`.
        channels: 3, or 1 of gray images.
        dtype: `"float32"`, `"float16"` or `"uint8"`.
        size_spec: the input `SIZE_INPUT`, where there is one.
    """

    spec: TensorSpec
    size: Size
    layout: Literal["chw", "hwc"]
    channels: Literal[1, 3] = 3
    size_spec: TensorSpec | None = None

    @classmethod
    def of(cls, specs: Sequence[TensorSpec], asked: Size | None, fallback: int) -> ImageInput:
        """The one input of a network, NCHW or NHWC with three channels or one.

        Args:
            specs: the network's inputs.
            asked: the requested (width, height), for a model that leaves it open.
            fallback: the side of the square input, where the model leaves it open and no size is requested.

        Raises:
            UnsupportedModelError: this is no input of images; the message has the reason alone.
            ConfigError: the requested size is not that of the model.
        """
        if (reason := cls.refuses(specs)) is not None:
            raise UnsupportedModelError(reason)
        (spec,), size_spec = _images_and_sizes(specs)
        axes = image_axes(spec.shape)
        assert axes is not None
        height, width = image_sides(spec.shape)
        sides = []
        for side, wanted in zip((width, height), asked or (None, None), strict=True):
            if isinstance(side, int) and wanted not in (None, side):
                raise ConfigError(f"the model's input is {width} x {height}; it cannot be set to {asked}")
            sides.append(side if isinstance(side, int) else wanted or fallback)
        return cls(spec, (sides[0], sides[1]), *axes, size_spec)

    @staticmethod
    def refuses(specs: Sequence[TensorSpec]) -> str | None:
        """Why inputs are not one input of images; None if they are."""
        images, _ = _images_and_sizes(specs)
        if len(images) != 1:
            return f"it has {len(specs)} inputs, not one for images"
        (spec,) = images
        if len(spec.shape) != 4:
            return f"its input {spec} does not have the four dimensions of a batch of images"
        if spec.dtype not in (np.float32, np.float16, np.uint8):
            return f"its input {spec} takes neither float32, float16 nor uint8"
        if image_axes(spec.shape) is None:
            return f"its input {spec} has neither three channels nor one, as its second or its last dimension"
        return None

    @property
    def dtype(self) -> str:
        return str(self.spec.dtype.name)

    @cached_property
    def image_shape(self) -> tuple[int, int, int]:
        """The shape of one image in the input, without the batch."""
        width, height = self.size
        return (self.channels, height, width) if self.layout == "chw" else (height, width, self.channels)

    def transform(self, *, order: Literal["rgb", "bgr", "gray"] = "rgb", **pixels: Any) -> PixelTransform:
        """The conversion of each pixel, in the layout and type of this input.

        Args:
            order: of three channels. A single channel is gray: (3735 B + 19235 G + 9798 R + 16384) >> 15 of each pixel
                before it is resized, the bytes of OpenCV's BGR2GRAY.
            pixels: `fill`, `scale` and `bias` of `PixelTransform`. The scale of a uint8 input is 1 by default.

        Raises:
            UnsupportedModelError: `order` is gray, and the input has three channels; or the input has one, and the
                numbers of three channels differ. The message has the reason alone.
        """
        if self.dtype == "uint8":
            pixels = {"scale": 1.0, **pixels}
        if self.channels == 1:
            single = {name: _single(name, value) for name, value in pixels.items()}
            return PixelTransform("gray", self.layout, self.dtype, **single)
        if order == "gray":
            raise UnsupportedModelError(f"its input {self.spec} has three channels, and order='gray' gives one")
        return PixelTransform(order, self.layout, self.dtype, **pixels)

    def batch_limit(self, infer: Infer, asked: int | None = None) -> int:
        """Maximum number of images in one run: the fixed batch, the requested one, that of the network, or 8."""
        fixed = self.spec.fixed_batch
        return fixed if fixed is not None else asked or infer.max_batch or DEFAULT_BATCH

    def tensor(self, infer: Infer, images: int, limit: int) -> Tensor:
        """The bound input of `infer`, resized for `images` rows or more, up to `limit`."""
        tensor: Tensor = infer.inputs[self.spec.name]
        rows = min(infer.scheduling.bucket_batch(images), limit) if self.spec.has_free_batch else limit
        if self.size_spec is not None:
            infer.inputs[self.size_spec.name].resize((rows, 2)).numpy(writable=True)[:] = self.size
        return tensor.resize((rows, *self.image_shape))

    def feed(self, images: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
        """The inputs by name for an array of images, as a call of the network takes them."""
        if self.size_spec is None:
            return {self.spec.name: images}
        sizes = np.tile(np.array(self.size, self.size_spec.dtype), (len(images), 1))
        return {self.spec.name: images, self.size_spec.name: sizes}


def _images_and_sizes(specs: Sequence[TensorSpec]) -> tuple[list[TensorSpec], TensorSpec | None]:
    """The inputs except `SIZE_INPUT`, and that input where there is one."""
    sizes = next((spec for spec in specs if spec.name == SIZE_INPUT and len(spec.shape) == 2), None)
    return [spec for spec in specs if spec is not sizes], sizes


Interpolation = Literal["bilinear", "bilinear-antialias", "bicubic"]


class _Resized(HostImage):
    """The part of an image that its canvas shows, resized already. Its size is that of the image before."""


@dataclass(frozen=True)
class Preprocessor:
    """The preprocessing of a wrapper.

    Args:
        input: the network's input.
        transform: the conversion of each pixel.
        geometry: makes the geometry of an image of (width, height); asked once for each size.
        channel_order: of NumPy arrays that are given as images: `"bgr"`, `"rgb"` or `"nv12"`. A wrapper sets this,
            `scaled_decode` and `interpolation` to those of its settings.
        scaled_decode: decode JPEG files at 1/2, 1/4 or 1/8 of their size, where no less is left than the resize needs.
        interpolation: `"bilinear"` is OpenCV's INTER_LINEAR, in one pass with all else. `"bilinear-antialias"` and
            `"bicubic"` are Pillow's filters BILINEAR and BICUBIC: images are resized by them on the host as they are
            read, for geometries that resize.

    Attributes:
        geometry_of: the cached geometry of an image of (width, height); of a reduced image, by `HostImage.size`.
    """

    input: ImageInput
    transform: PixelTransform
    geometry: Callable[[Size], Geometry]
    channel_order: str = "bgr"
    scaled_decode: bool = False
    interpolation: Interpolation = "bilinear"
    geometry_of: Callable[[Size], Geometry] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.transform.channels != self.input.channels:
            raise UnsupportedModelError(
                f"its input {self.input.spec} has {self.input.channels} channels, and its preprocessing gives "
                f"{self.transform.channels} ({self.transform.order!r}); make it with ImageInput.transform()"
            )
        if self.scaled_decode and self.resizes_on_host:
            raise ConfigError(
                f"scaled_decode has no effect with interpolation={self.interpolation!r}; leave it out, or give "
                "interpolation='bilinear'"
            )
        # Frames of a video and of cameras repeat their size.
        object.__setattr__(self, "geometry_of", lru_cache(maxsize=64)(self.geometry))

    @classmethod
    def letterbox(cls, input: ImageInput, *, centred: bool = True, **pixels: Any) -> Preprocessor:
        """The image is scaled to fit, and centred or put in the upper left corner; the rest is filled. `pixels`:
        those of `ImageInput.transform()`.
        """

        def geometry(size: Size) -> Geometry:
            if centred:
                return Geometry.letterbox(size, input.size)
            return scaled(size, input.size, min(map(truediv, input.size, size)), centred=False)

        return cls(input, input.transform(**pixels), geometry)

    @classmethod
    def stretch(cls, input: ImageInput, **pixels: Any) -> Preprocessor:
        """The image is stretched to the input's size. `pixels`: those of `ImageInput.transform()`."""
        return cls(input, input.transform(**pixels), lambda size: Geometry.stretch(size, input.size))

    @classmethod
    def crop(cls, input: ImageInput, *, resize: int | None = None, **pixels: Any) -> Preprocessor:
        """The shorter side is resized, and the centre is cropped, as torchvision's Resize and CenterCrop do it.

        For an input that is not square, the image is resized to cover the input, as in timm, at a scale that is larger
        by `resize` / the input's shorter side.

        Args:
            resize: None is the input's shorter side.
            pixels: those of `ImageInput.transform()`.
        """
        shorter = min(input.size)
        resize = resize or shorter
        if resize < shorter:
            raise ConfigError(f"resize={resize} is less than the crop of {input.size}; it must cover it")

        def geometry(size: Size) -> Geometry:
            if len(set(input.size)) == 1:
                return Geometry.resize_crop(size, resize, input.size)
            scale = max(map(truediv, input.size, size)) * resize / shorter
            resized = [round(side * scale) for side in size]
            offset = [-round((own - side) / 2) for own, side in zip(resized, input.size, strict=True)]
            return Geometry.resize(size, input.size, resized, offset)

        return cls(input, input.transform(**pixels), geometry)

    @property
    def resizes_on_host(self) -> bool:
        """Whether one of Pillow's filters resizes images as they are read."""
        return self.interpolation != "bilinear"

    def read(self, source: ImageSource | HostImage) -> HostImage:
        at_least = self._resized_size if self.scaled_decode else None
        image = read_image(source, channel_order=self.channel_order, at_least=at_least)
        return self._resampled(image) if self.resizes_on_host else image

    def _resampled(self, image: HostImage) -> HostImage:
        """The part of the image that the canvas shows, resized by Pillow's filter."""
        if image.format == "nv12":  # the filters have no form for it
            whole = Geometry.stretch(image.size, image.size)
            converted = preprocess(image.view(), whole, PixelTransform("bgr", "hwc", "uint8", scale=1.0))
            image = HostImage(converted, "bgr", image.decoder)
        resized, part, _ = _shown(self.geometry_of(image.size))
        pixels = resample(image.view(), resized, filter=self.interpolation.removesuffix("-antialias"), crop=part)
        return _Resized(pixels, image.format.removesuffix("a"), image.decoder, reduced_from=image.size)

    def read_any(self, source: ImageSource | HostImage) -> HostImage | DeviceImage:
        """As `read()`; an image on a CUDA device stays there, unless Pillow's filter resizes it on the host."""
        if isinstance(source, DeviceImage):
            image = source
        elif not isinstance(source, np.ndarray) and DeviceImage.is_one(source):
            image = DeviceImage(source, self.channel_order)
        else:
            return self.read(source)
        return self._resampled(image.to_host()) if self.resizes_on_host else image

    def _resized_size(self, size: Size) -> Size:
        """The size that an image of (width, height) is resized to; its own, if it is warped instead."""
        return self.geometry_of(size).resized or size

    def array(self, images: Sequence[HostImage], rows: int | None = None) -> npt.NDArray[Any]:
        """The network's input for these images; with `rows` the last image is repeated up to that many."""
        several = [*images, *[images[-1]] * ((rows or 0) - len(images))]
        out = np.empty((len(several), *self.input.image_shape), self.input.spec.dtype)
        batch = ImageBatch(len(several))
        sampled = [geometry_of_pixels(image, self.geometry_of(image.size)) for image in several]
        batch.fill([image.view() for image in several], sampled)
        batch.preprocess(self.transform, out.ctypes.data, out.nbytes, workers=shared_workers())
        return out


def image_axes(shape: Sequence[int | str | None]) -> tuple[Literal["chw", "hwc"], Literal[1, 3]] | None:
    """Where a batch of images has its channels, and how many: `("chw", 3)`. None where neither place has three or one,
    or both have one. Channels that the model leaves open are three, in front of the sides.
    """
    _, first, _, last = shape
    if first == 3:
        return "chw", 3
    if last == 3:
        return "hwc", 3
    if last == 1 and first != 1:
        return "hwc", 1
    if first == 1 and last != 1:
        return "chw", 1
    return None if isinstance(first, int) else ("chw", 3)


def image_sides(shape: Sequence[int | str | None]) -> Sequence[int | str | None]:
    """The height and width of a batch of images; the last two dimensions of other inputs."""
    axes = image_axes(shape)
    return shape[1:3] if axes is not None and axes[0] == "hwc" else shape[2:]


def scaled(size: Size, canvas: Size, scale: float, *, centred: bool = True) -> Geometry:
    """An image of (width, height) at this scale, in the centre or the upper left corner of a canvas."""
    width, height = (max(round(side * scale), 1) for side in size)
    offset = ((canvas[0] - width) // 2, (canvas[1] - height) // 2) if centred else (0, 0)
    return Geometry.resize(size, canvas, (width, height), offset)


def _single(name: str, value: Any) -> Any:
    """The number for one channel, of numbers for three that are the same."""
    numbers = set(value) if isinstance(value, Sequence) else {value}
    if len(numbers) != 1:
        raise UnsupportedModelError(
            f"its input has one channel, and {name} has the numbers of three, {tuple(value)}; give a preset whose "
            'channels are the same, such as "unit" (0 to 1), or one number for each setting'
        )
    return numbers.pop()


def _shown(geometry: Geometry) -> tuple[Size, tuple[int, int, int, int], Size]:
    """(width, height) of the resized image; left, top, right and bottom of its part on the canvas; the corner of that
    part there.
    """
    if geometry.resized is None or geometry.offset is None:
        raise ConfigError("Pillow's filters resize images, and this geometry warps them; use interpolation='bilinear'")
    (width, height), (x, y), canvas = geometry.resized, geometry.offset, geometry.canvas
    part = max(-x, 0), max(-y, 0), min(width, canvas[0] - x), min(height, canvas[1] - y)
    return geometry.resized, part, (max(x, 0), max(y, 0))


def geometry_of_pixels(image: HostImage, geometry: Geometry) -> Geometry:
    """The geometry for the pixels of an image, whose own geometry is for its full size.

    They differ where the file was decoded at a reduced size, or its pixels are resized already. Boxes are mapped back
    by the geometry for the full size.
    """
    if isinstance(image, _Resized):
        _, (left, top, right, bottom), corner = _shown(geometry)
        return Geometry.resize(image.pixel_size, geometry.canvas, (right - left, bottom - top), corner)
    if image.reduced_from is None or geometry.resized is None or geometry.offset is None:
        return geometry
    return Geometry.resize(image.pixel_size, geometry.canvas, geometry.resized, geometry.offset)


def as_size(size: int | Sequence[int] | None, what: str) -> Size | None:
    """`640` or `(640, 384)` as (width, height). Raises ConfigError for anything but whole numbers from 1."""
    if size is None:
        return None
    sides = tuple(size) if isinstance(size, Sequence) else (size, size)
    whole = [isinstance(side, (int, np.integer)) and not isinstance(side, bool) and side >= 1 for side in sides]
    if len(sides) != 2 or not all(whole):
        raise ConfigError(f"{what} is a number of pixels or (width, height), not {size!r}")
    return int(sides[0]), int(sides[1])
