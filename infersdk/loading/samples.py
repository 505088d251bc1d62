"""Inputs for a model: random ones that can be repeated, and those in the files of a folder."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.files import IMAGE_SUFFIXES
from ..core.formats import FORMATS, format_of
from ..core.tensor import Tensor
from ..errors import ConfigError, InputError, UnsupportedModelError
from ..image import PixelTransform, read_image
from ..ops.preprocessing import letterbox

if TYPE_CHECKING:
    import os

    import numpy.typing as npt

    from ..core.tensor_spec import TensorSpec

__all__ = ["random_inputs", "read_samples"]


def random_inputs(
    specs: Sequence[TensorSpec],
    *,
    batch: int | None = None,
    seed: int = 0,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> dict[str, npt.NDArray[Any]]:
    """One random array for each input, always the same ones for the same seed.

    Floating point is uniform in [0, 1), as pixels often are. 8-bit integers take their whole range, bools both values.
    Wider integers are 0 to 9, since they often count or choose something.

    Args:
        specs: the declarations of the model about its inputs.
        batch: the size of a first axis that is free; 1 if not given.
        seed: of the generator.
        shapes: by input name, for inputs with other free axes.

    Raises:
        ConfigError: an axis is free and nothing says how long it is, or the model fixes it otherwise; or a shape begins
            with another batch.
        UnsupportedModelError: an input is not a tensor of numbers.
    """
    rng = np.random.default_rng(seed)
    _check_names(shapes, specs)
    for spec in specs:
        if spec.dtype == object:
            raise UnsupportedModelError(f"input {spec.name!r} is not of numbers; random data is made for numbers alone")
    return {spec.name: _random(rng, _shape(spec, batch, shapes), spec.dtype) for spec in specs}


def _random(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    if dtype.kind == "f":
        return rng.random(shape).astype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(dtype)
    if dtype.itemsize == 1:
        limits = np.iinfo(dtype)
        return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    return rng.integers(0, 10, shape).astype(dtype)


def read_samples(
    source: str | os.PathLike[str],
    specs: Sequence[TensorSpec],
    *,
    batch: int | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> Iterator[dict[str, npt.NDArray[Any]]]:
    """The inputs in a folder (or the one in a file), in the order of the file names.

    - `.npz`: an array for each input, under its name.
    - `.npy` and tensor files (`Tensor.save`): the array of a model's one input.
    - images, for a model with one input of images: letterboxed to its size, RGB or gray. They are scaled to 0..1 for
      floating point and left as they are for uint8. `batch` of them go together.

    Files of other kinds are passed over.

    Raises:
        ConfigError: there is no such folder, or nothing of these kinds in it.
        InputError, ImageError: a file is damaged, or does not fit the model.
    """
    path = Path(source)
    if not path.exists():
        raise ConfigError(f"no data at {str(path)!r}")
    _check_names(shapes, specs)
    files = sorted(file for file in path.iterdir() if file.is_file()) if path.is_dir() else [path]
    arrays = [file for file in files if file.suffix.lower() in (".npy", ".npz") or _is_tensor_file(file)]
    images = [file for file in files if file.suffix.lower() in IMAGE_SUFFIXES]
    if not arrays and not images:
        raise ConfigError(f"nothing in {str(path)!r} is an .npy, .npz or tensor file or an image")
    for file in arrays:
        yield _read_arrays(file, specs)
    if images:
        yield from _read_images(images, specs, batch, shapes)


def _is_tensor_file(file: Path) -> bool:
    with file.open("rb") as stream:
        return format_of(stream.read(4096)) is FORMATS["tensor"]


def _read_arrays(file: Path, specs: Sequence[TensorSpec]) -> dict[str, npt.NDArray[Any]]:
    content = _numpy_file(file) if file.suffix.lower() in (".npy", ".npz") else Tensor.load(file).numpy()
    result = content if isinstance(content, dict) else {_only(specs, file).name: content}
    if missing := [spec.name for spec in specs if spec.name not in result]:
        raise InputError(f"{str(file)!r} has {', '.join(result)}; there is nothing for input {missing[0]!r}")
    for spec in specs:
        try:
            spec.check(result[spec.name].shape, result[spec.name].dtype)
        except InputError as error:
            raise type(error)(f"{str(file)!r}: {error}") from None
    return {spec.name: result[spec.name] for spec in specs}


def _numpy_file(file: Path) -> npt.NDArray[Any] | dict[str, npt.NDArray[Any]]:
    """The array of a file, or the arrays of an archive by name."""
    try:
        content = np.load(file, allow_pickle=False)
        if isinstance(content, np.ndarray):
            return content
        with content:
            return dict(content)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:  # the file is damaged
        raise InputError(f"{str(file)!r} cannot be read: {error}") from None


def _read_images(
    files: Sequence[Path], specs: Sequence[TensorSpec], batch: int | None, shapes: Mapping[str, Sequence[int]] | None
) -> Iterator[dict[str, npt.NDArray[Any]]]:
    spec = _only(specs, files[0])
    count, *rest = _shape(spec, batch, shapes) or (0,)
    layout = "chw" if rest and rest[0] in (1, 3) else "hwc"
    channels, height, width = (rest if layout == "chw" else [*rest[2:], *rest[:2]]) if len(rest) == 3 else (0, 0, 0)
    if channels not in (1, 3) or spec.dtype.name not in ("float32", "float16", "uint8"):
        raise InputError(f"{str(files[0])!r}: input {spec} does not take images; give the data as .npy")
    transform = PixelTransform(
        "rgb" if channels == 3 else "gray",
        "chw" if layout == "chw" else "hwc",
        spec.dtype,
        scale=1 if spec.dtype == np.uint8 else 1 / 255,
    )
    for start in range(0, len(files), count):
        group = files[start : start + count]
        if not spec.has_free_batch:
            group = [*group, *[group[-1]] * (count - len(group))]  # a batch of fixed size is filled up
        images = [read_image(file) for file in group]
        pixels = [letterbox(image.view(), (width, height), transform)[0] for image in images]
        yield {spec.name: np.stack(pixels)}


def _only(specs: Sequence[TensorSpec], file: Path) -> TensorSpec:
    if len(specs) != 1:
        names = [spec.name for spec in specs]
        raise InputError(f"{str(file)!r}: the model has inputs {names}; give each run as one .npz with these names")
    return specs[0]


def _shape(spec: TensorSpec, batch: int | None, shapes: Mapping[str, Sequence[int]] | None) -> tuple[int, ...]:
    shape: list[int | str | None] = list((shapes or {}).get(spec.name, spec.shape))
    given = shapes is not None and spec.name in shapes
    if shape and not given and not isinstance(shape[0], int):
        shape[0] = 1 if batch is None else batch
    elif shape and batch is not None and batch != shape[0]:
        what = "a shape with a" if given else "a fixed"
        raise ConfigError(f"input {spec} has {what} batch of {shape[0]}, not {batch}; leave the batch out")
    sizes = tuple(d for d in shape if isinstance(d, int))
    if len(sizes) < len(shape):
        example = ",".join(str(d) if isinstance(d, int) else "640" for d in shape)
        raise ConfigError(f"input {spec} has free axes; say how long they are: shape {spec.name}={example}")
    try:
        spec.check(sizes)
    except InputError as error:
        raise ConfigError(str(error)) from None
    if min(sizes, default=1) < 1:
        raise ConfigError(f"input {spec} cannot be tried with shape {sizes}: it has no elements")
    return sizes


def _check_names(shapes: Mapping[str, Sequence[int]] | None, specs: Sequence[TensorSpec]) -> None:
    names = [spec.name for spec in specs]
    if wrong := [name for name in shapes or {} if name not in names]:
        raise ConfigError(f"a shape is given for {wrong[0]!r}; the model's inputs are {names}")
