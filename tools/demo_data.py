"""The data of the demo models: handwritten digits on composed images, and the measures taken on them.

The digits are the UCI set "Optical Recognition of Handwritten Digits" (E. Alpaydin and C. Kaynak, 1998,
doi:10.24432/C50P49, CC BY 4.0) in the form that scikit-learn ships: 1,797 grey images of 8 x 8. They are split once,
*before* anything is composed, so a held-back image shows no digit that was seen in training.

An image is a function of (digits, seed): the same seed gives the same pixels, in any order and in any process.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from infersdk.accuracy import Contender, DetectTask
from infersdk.image import Geometry, PixelTransform
from infersdk.ops import preprocess

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
#: The sides of the images that the detector and the classifier take, and of a source digit, in pixels.
SIZE, CROP, _GLYPH = 320, 32, 8
#: The range of the sizes of digits on an image of about SIZE, in pixels; they are log-uniform.
DIGIT_SIZES = (16.0, 96.0)
#: The digits that are held back: the last fifth of the set.
HELD_BACK = 360


@dataclass(frozen=True)
class Digits:
    """Source digits: `glyphs` float32 [n, 8, 8] in 0..1 (1 is ink) and `labels` int64 [n]."""

    glyphs: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Canvas:
    """A composed image: `image` uint8 RGB [h, w, 3], `boxes` float32 [n, 4] as x1, y1, x2, y2, `labels` int64 [n]."""

    image: np.ndarray
    boxes: np.ndarray
    labels: np.ndarray


def load_digits() -> tuple[Digits, Digits]:
    """The digits for training, and those held back: the last `HELD_BACK` in the order of the file.

    The file is ordered by collection, so a cut keeps a writer's digits mostly on one side of it; a shuffled split
    would mix them and flatter the figures.
    """
    from sklearn.datasets import load_digits as load

    data = load()
    glyphs, labels = (data.images / 16).astype(np.float32), data.target.astype(np.int64)
    return Digits(glyphs[:-HELD_BACK], labels[:-HELD_BACK]), Digits(glyphs[-HELD_BACK:], labels[-HELD_BACK:])


def compose(
    digits: Digits,
    seed: tuple[int, ...],
    width: int = SIZE,
    height: int = SIZE,
    count: tuple[int, int] = (0, 12),
    sizes: tuple[float, float] = DIGIT_SIZES,
) -> Canvas:
    """An image of `count[0]` to `count[1]` digits (fewer where they do not fit), `sizes` pixels high.

    Backgrounds are flat, shaded, mottled or striped, with shapes on them. Ink is lighter or darker than the background.
    Digits are turned by up to 12 degrees, stretched a little, and overlap by at most a twentieth. Then the whole image
    is blurred and noised. A box encloses the pixels that are at least half ink.
    """
    rng = np.random.default_rng(seed)
    image = _background(rng, width, height)
    boxes: list[tuple[int, int, int, int]] = []
    labels: list[int] = []
    for _ in range(rng.integers(count[0], count[1] + 1)):
        index = int(rng.integers(len(digits)))
        alpha = _ink(rng, digits.glyphs[index], float(np.exp(rng.uniform(*np.log(sizes)))))
        rows, columns = np.flatnonzero((alpha >= 0.5).any(1)), np.flatnonzero((alpha >= 0.5).any(0))
        patch_height, patch_width = alpha.shape
        if len(rows) == 0 or patch_height > height or patch_width > width:
            continue
        for _ in range(12):  # tries to find a free place
            x, y = int(rng.integers(width - patch_width + 1)), int(rng.integers(height - patch_height + 1))
            box = (x + int(columns[0]), y + int(rows[0]), x + int(columns[-1]) + 1, y + int(rows[-1]) + 1)
            if all(_overlap(box, other) <= 0.05 for other in boxes):
                _paint(rng, image[y : y + patch_height, x : x + patch_width], alpha)
                boxes.append(box)
                labels.append(int(digits.labels[index]))
                break
    if rng.random() < 0.4:
        image = cv2.GaussianBlur(image, (0, 0), rng.uniform(0.3, 0.9) * max(width, height) / SIZE)
    if rng.random() < 0.6:
        image += rng.standard_normal((height, width, 1), dtype=np.float32) * np.float32(rng.uniform(1, 10))
    return Canvas(
        np.clip(np.rint(image), 0, 255).astype(np.uint8),
        np.array(boxes, np.float32).reshape(-1, 4),
        np.array(labels, np.int64),
    )


def _background(rng: np.random.Generator, width: int, height: int) -> np.ndarray:
    """A float32 RGB image in 0..255."""
    base = rng.uniform(20, 235, 3)
    kind = rng.integers(4)
    if kind == 0:  # flat
        coarse = base[None, None]
    elif kind == 1:  # shaded from corner to corner
        coarse = base + rng.uniform(-70, 70, (2, 2, 3))
    elif kind == 2:  # mottled
        cells = int(rng.integers(3, 24))
        coarse = base + rng.uniform(-30, 30, (cells, cells, 3))
    else:  # striped, or a weave
        phase = np.linspace(0, rng.uniform(20, 150), SIZE)
        wave = np.sin(phase + rng.uniform(0, 6)) * rng.uniform(4, 18)
        weave = wave[None, :] + (rng.random() < 0.5) * wave[:, None]
        coarse = base + weave[..., None]
    image = cv2.resize(coarse.astype(np.float32), (width, height), interpolation=cv2.INTER_LINEAR)
    for _ in range(rng.integers(0, 5)):  # shapes that are no digits
        color = (base + rng.uniform(-60, 60, 3)).tolist()
        a, b = rng.integers(0, (width, height), (2, 2)).tolist()
        if rng.random() < 0.5:
            cv2.rectangle(image, a, b, color, -1)
        else:
            axes = (abs(a[0] - b[0]) // 2 + 1, abs(a[1] - b[1]) // 2 + 1)
            cv2.ellipse(image, a, axes, float(rng.uniform(0, 180)), 0, 360, color, -1, cv2.LINE_AA)
    return np.clip(image, 0, 255)


def _ink(rng: np.random.Generator, glyph: np.ndarray, size: float) -> np.ndarray:
    """The coverage, float32 in 0..1, of a digit turned, stretched and `size` pixels high, with a border."""
    angle = np.deg2rad(rng.uniform(-12, 12))
    scale = size / _GLYPH
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    linear = turn @ np.diag([scale * rng.uniform(0.85, 1.15), scale])
    side = int(np.ceil(size * 1.35)) + 2
    center = np.full(2, (_GLYPH - 1) / 2)
    matrix = np.column_stack([linear, (side - 1) / 2 - linear @ center])
    grey = cv2.warpAffine(glyph, matrix, (side, side), flags=cv2.INTER_CUBIC)
    edge = rng.uniform(0.35, 0.5)  # a lower edge is a broader pen
    t = np.clip((grey - edge + 0.15) / 0.3, 0, 1)
    return t * t * (3 - 2 * t)


def _paint(rng: np.random.Generator, patch: np.ndarray, alpha: np.ndarray) -> None:
    """Inks a part of the image, at least 70 grey levels lighter or darker than before."""
    luma = np.array([0.299, 0.587, 0.114], np.float32)
    under = float((patch @ luma).mean())
    lighter = under < 90 or (under < 165 and rng.random() < 0.5)
    target = rng.uniform(under + 70, 255) if lighter else rng.uniform(0, under - 70)
    color = rng.uniform(0, 255, 3)
    color = np.clip(color + (target - color @ luma), 0, 255)
    color += target - color @ luma  # what clipping took; once is near enough
    patch += (np.clip(color, 0, 255).astype(np.float32) - patch) * alpha[..., None]


def _overlap(a: tuple[int, int, int, int], b: tuple[int, int, int, int]) -> float:
    """The intersection over the smaller of two boxes."""
    wide, high = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    if wide <= 0 or high <= 0:
        return 0.0
    return wide * high / min((a[2] - a[0]) * (a[3] - a[1]), (b[2] - b[0]) * (b[3] - b[1]))


def letterbox(canvas: Canvas, size: int = SIZE) -> Canvas:
    """The canvas scaled to fit a square of `size` and centred on grey, boxes with it."""
    height, width = canvas.image.shape[:2]
    geometry = Geometry.letterbox((width, height), (size, size))
    image = preprocess(canvas.image, geometry, PixelTransform("bgr", "hwc", "uint8", scale=1))
    boxes = canvas.boxes * np.float32(min(size / width, size / height)) + np.float32([*geometry.offset] * 2)
    return Canvas(image, boxes, canvas.labels)


def detector_canvas(digits: Digits, seed: tuple[int, ...], size: int = SIZE, most: int = 12) -> Canvas:
    """An image of at most `most` digits, `size` x `size`: every other one letterboxed, from 4:3 or 3:4."""
    width, height = ((size, size), (size, size * 3 // 4), (size, size), (size * 3 // 4, size))[seed[-1] % 4]
    smallest, largest = DIGIT_SIZES
    return letterbox(compose(digits, seed, width, height, (0, most), (smallest, min(largest, size / 2))), size)


def demo_canvas(digits: Digits) -> Canvas:
    """The packaged image: nine digits on 640 x 480, so that a detector has to scale and letterbox it.

    Its seed is chosen, unlike those of the images that are measured: of (3, 0), (3, 1), ... it is the first whose
    nine digits both models read without a mistake.
    """
    smallest, largest = DIGIT_SIZES
    return compose(digits, (3, 2), 640, 480, (9, 9), (2 * smallest, 2 * largest))


def crop(image: np.ndarray, box: np.ndarray, margin: float = 0.1, square: bool = True) -> np.ndarray:
    """One digit for the classifier, uint8 RGB [CROP, CROP, 3].

    The box is widened by `margin` of its size on each side; `square` cuts a square of the longer side, otherwise the
    cut is stretched. What lies outside the image repeats its border.
    """
    low, high = np.asarray(box, np.float64).reshape(2, 2)
    half = (high - low) * (0.5 + margin)
    if square:
        half[:] = half.max()
    first = np.floor((low + high) / 2 - half).astype(int)
    last = np.maximum(np.ceil((low + high) / 2 + half).astype(int), first + 1)
    height, width = image.shape[:2]
    columns, rows = np.arange(first[0], last[0]).clip(0, width - 1), np.arange(first[1], last[1]).clip(0, height - 1)
    cut = image[np.ix_(rows, columns)]
    shrinks = min(cut.shape[:2]) > CROP
    return cv2.resize(cut, (CROP, CROP), interpolation=cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR)


def planes(images: list[np.ndarray]) -> np.ndarray:
    """Images of one size, uint8 [h, w, 3], as a batch [n, 3, h, w]."""
    return np.ascontiguousarray(np.stack(images).transpose(0, 3, 1, 2))


def tensor(images: list[np.ndarray]) -> np.ndarray:
    """Images as both networks take them: float32 RGB / 255, [batch, 3, h, w]."""
    return planes(images).astype(np.float32) / np.float32(255)


def mean_ap(model: Path, canvases: list[Canvas]) -> tuple[float, float]:
    """The detector's mAP at IoU 0.5, and at 0.5:0.95, with one class for each anchor."""
    images, truth = [], []
    with tempfile.TemporaryDirectory() as folder:
        for number, canvas in enumerate(canvases):
            file = Path(folder, f"{number}.png")
            cv2.imwrite(str(file), canvas.image[..., ::-1])
            images.append({"id": number, "file_name": file.name})
            for box, label in zip(canvas.boxes.tolist(), canvas.labels.tolist(), strict=True):
                bbox = [*box[:2], box[2] - box[0], box[3] - box[1]]
                truth.append({"image_id": number, "category_id": label, "bbox": bbox})
        categories = [{"id": number, "name": name} for number, name in enumerate(NAMES)]
        annotations = Path(folder, "truth.json")
        annotations.write_text(json.dumps({"images": images, "annotations": truth, "categories": categories}), "utf-8")
        figures = DetectTask(annotations, folder, multi_label=False).measure(Contender(model)).figures
    return figures["mAP50"], figures["mAP"]
