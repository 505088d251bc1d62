"""Faces and other objects brought upright: crops in which landmarks lie where a recognition network expects them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.tensor_spec import as_numbers
from ..errors import InputError, ShapeError
from ..image.geometry import Geometry, size_of
from ..image.images import ImageView, PixelFormat, image_view
from ..image.transforms import PixelTransform
from .preprocessing import preprocess

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["FIVE_POINTS", "aligned_crops", "alignments", "similarity"]

#: Five landmarks of a face of 112 x 112 pixels, for ArcFace and later networks, in coordinates of pixel centres. They
#: are the eye on the left of the image, the other eye, the tip of the nose, and both corners of the mouth.
#: (J. Deng et al., "ArcFace: Additive Angular Margin Loss for Deep Face Recognition", 2019.)
FIVE_POINTS = ((38.2946, 51.6963), (73.5318, 51.5014), (56.0252, 71.7366), (41.5493, 92.3655), (70.7299, 92.2041))
_TEMPLATE_SIDE = 112


def similarity(points: npt.ArrayLike, targets: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """The rotation, scale and shift that bring points closest to their targets, as a 2 x 3 matrix.

    It minimises the sum of squared distances and never mirrors (S. Umeyama, "Least-squares estimation of
    transformation parameters between two point patterns", 1991, equations 40 to 42).

    Args:
        points, targets: (N, 2) each, at least two of them.

    Raises:
        ShapeError: the shapes differ, or are not (N, 2) with N of 2 or more.
        InputError: a coordinate is no number, not finite or too large, all points, or all targets, coincide, or each
            rotation brings them equally close.
    """
    x, y = as_numbers("points", points, np.float64), as_numbers("targets", targets, np.float64)
    if x.shape != y.shape or x.ndim != 2 or x.shape[1] != 2 or len(x) < 2:
        raise ShapeError(f"points have shape {x.shape} and targets {y.shape}; use (N, 2) for both, with N of 2 or more")
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise InputError("a point or a target is not finite; leave its object out")
    # The variance does not show it: it is rounded, and rarely exactly 0.
    if (x == x[0]).all() or (y == y[0]).all():
        raise InputError("all points or all targets coincide, so there is no rotation and no scale between them")
    x_mean, y_mean = x.mean(axis=0), y.mean(axis=0)
    x0, y0 = x - x_mean, y - y_mean
    with np.errstate(over="ignore"):
        variance, covariance = (x0**2).sum() / len(x), y0.T @ x0 / len(x)
    if not (0 < variance < np.inf and np.isfinite(covariance).all()):
        raise InputError(
            f"coordinates reach {max(abs(x).max(), abs(y).max()):g}, which is too large or too small to compute with "
            "squares of them; use pixels"
        )
    u, d, v = np.linalg.svd(covariance)
    signs = np.array([1.0, 1.0 if np.linalg.det(u) * np.linalg.det(v) > 0 else -1.0])
    strength = float(d @ signs)
    if not strength > 0:
        raise InputError("no rotation brings the points closest to their targets: all are equally close")
    rotation = (u * signs) @ v
    matrix = np.empty((2, 3))
    matrix[:, :2] = strength / variance * rotation
    matrix[:, 2] = y_mean - matrix[:, :2] @ x_mean
    return matrix


def aligned_crops(
    image: ImageView | npt.NDArray[np.uint8],
    landmarks: npt.ArrayLike,
    size: int | tuple[int, int] = _TEMPLATE_SIDE,
    *,
    template: npt.ArrayLike | None = None,
    transform: PixelTransform | None = None,
    format: PixelFormat | None = None,
) -> npt.NDArray[Any]:
    """A crop for each object, turned and scaled so that its landmarks lie on those of a template.

    Args:
        image: the image; without a view, a uint8 array as `image_view` takes it.
        landmarks: (N, points, 2) or (N, points, more): x and y of each point in pixels of the image. Five points of a
            face in the order of `FIVE_POINTS` fit the default template.
        size: of a crop, a number or (width, height).
        template: (points, 2): where the landmarks belong in the crop, as coordinates of pixel centres; None is
            `FIVE_POINTS`, scaled from 112 x 112 to a square `size`.
        transform: the conversion of pixels. None gives uint8, height x width x channels, BGR as in OpenCV: an image for
            a wrapper.
        format: of an array, as for `image_view`.

    Returns:
        (N, *transform.shape). What lies outside of the image is filled: black, or as the transform says.

    Raises:
        ShapeError: landmarks and template have different numbers of points.
        InputError: the points of an object coincide, are not finite or no numbers; the size is below 1, or needs a
            template.
    """
    image = image_view(image, format)
    geometries = alignments(image.size, landmarks, size, template=template)
    transform = transform or PixelTransform("bgr", "hwc", "uint8", fill=0, scale=1.0)
    shape = transform.shape(Geometry.stretch(image.size, size_of("size", size)))
    crops = np.empty((len(geometries), *shape), transform.dtype)
    for crop, geometry in zip(crops, geometries, strict=True):
        preprocess(image, geometry, transform, out=crop)
    return crops


def alignments(
    source: tuple[int, int],
    landmarks: npt.ArrayLike,
    size: int | tuple[int, int] = _TEMPLATE_SIDE,
    *,
    template: npt.ArrayLike | None = None,
) -> list[Geometry]:
    """The map from each crop of `aligned_crops()` to an image, for images that lie elsewhere: on a device.

    Args:
        source: (width, height) of the image.
        landmarks, size, template: see `aligned_crops()`.

    Raises:
        ShapeError, InputError: see `aligned_crops()`.
    """
    width, height = Geometry.stretch(source, size_of("size", size)).canvas  # refuses wrong sizes
    if template is None:
        if width != height:
            raise InputError(f"the default template is of a square, and size is {width} x {height}; give a template")
        target = np.asarray(FIVE_POINTS) * (width / _TEMPLATE_SIDE)
    else:
        target = as_numbers("template", template, np.float64)
    points = as_numbers("landmarks", landmarks, np.float64)
    if points.ndim != 3 or points.shape[2] < 2 or target.shape != (points.shape[1], 2):
        raise ShapeError(
            f"landmarks have shape {points.shape} and the template {target.shape}; use (N, points, 2) and (points, 2)"
        )
    return [_geometry(source, (width, height), one[:, :2], target) for one in points]


def _geometry(
    source: tuple[int, int], canvas: tuple[int, int], points: npt.NDArray[np.float64], target: npt.NDArray[np.float64]
) -> Geometry:
    """The map from the canvas back to the image, in edge coordinates; points and targets are pixel centres."""
    forward = similarity(points + 0.5, target + 0.5)
    back = np.linalg.inv(forward[:, :2])
    return Geometry.affine(source, canvas, np.hstack([back, -back @ forward[:, 2:]]))
