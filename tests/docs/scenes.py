"""Drawn images, and ONNX files that return their contents, for the programs and the images of the documentation.

The networks are constants in the output formats of real exports. They show what results look like, and no accuracy.
The drawings are part of this project, under its licence.
"""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from head_models import head_model
from PIL import Image, ImageDraw, ImageFilter, ImageFont

SIZE = (640, 360)
#: The side of the networks' inputs. Letterboxing puts an image of SIZE between two bars.
INPUT = 640
BAR = (INPUT - SIZE[1]) // 2
NAMES = {0: "person", 1: "bicycle", 2: "car", 3: "motorcycle", 4: "airplane", 5: "bus"}
SEMANTIC = ["sky", "building", "road", "sidewalk", "person", "bus"]
#: Drawings are made larger and reduced, which smooths their edges.
SCALE = 3

Box = tuple[float, float, float, float]


@dataclass
class Thing:
    """A drawn object: its class, its pixels and, of a person, its 17 keypoints."""

    class_id: int
    mask: np.ndarray[Any, Any]
    points: list[tuple[float, float]] = field(default_factory=list)

    @property
    def box(self) -> Box:
        rows, columns = np.nonzero(self.mask)
        return columns.min(), rows.min(), columns.max() + 1.0, rows.max() + 1.0


@dataclass
class Scene:
    """An image, its objects, and the class of each pixel."""

    image: Image.Image
    things: list[Thing]
    classes: np.ndarray[Any, Any]


class _Canvas:
    """Draws the same shape on the image and on the mask of the current object."""

    def __init__(self) -> None:
        size = (SIZE[0] * SCALE, SIZE[1] * SCALE)
        self.image, self._mask = Image.new("RGB", size), Image.new("L", size)
        self._on_image, self._on_mask = ImageDraw.Draw(self.image), ImageDraw.Draw(self._mask)

    def _both(self, name: str, points: Any, fill: Any, **options: Any) -> None:
        points = [(x * SCALE, y * SCALE) for x, y in points]
        for draw, colour in ((self._on_image, fill), (self._on_mask, 255)):
            getattr(draw, name)(points, fill=colour, **options)

    def rectangle(self, left: float, top: float, right: float, bottom: float, fill: Any, radius: float = 0) -> None:
        self._both("rounded_rectangle", [(left, top), (right, bottom)], fill, radius=radius * SCALE)

    def ellipse(self, x: float, y: float, rx: float, ry: float, fill: Any) -> None:
        self._both("ellipse", [(x - rx, y - ry), (x + rx, y + ry)], fill)

    def line(self, points: Any, fill: Any, width: float) -> None:
        self._both("line", points, fill, width=round(width * SCALE), joint="curve")
        for x, y in points:
            self.ellipse(x, y, width / 2, width / 2, fill)

    def polygon(self, points: Any, fill: Any) -> None:
        self._both("polygon", points, fill)

    def mask(self) -> np.ndarray[Any, Any]:
        """The pixels drawn since the last call."""
        pixels = np.asarray(self._mask.resize(SIZE, Image.Resampling.LANCZOS)) > 127
        self._on_mask.rectangle((0, 0, *self._mask.size), 0)
        return pixels

    def reduced(self) -> Image.Image:
        return self.image.resize(SIZE, Image.Resampling.LANCZOS)


def _person(canvas: _Canvas, x: float, y: float, height: float, coat: str, step: float) -> list[tuple[float, float]]:
    """A walking person whose feet are at (x, y). Returns COCO's keypoints."""
    u = height / 8
    head, neck, hip = (x, y - 7.2 * u), (x, y - 6.2 * u), (x, y - 3.6 * u)
    left_knee, right_knee = (x + step * u, y - 1.9 * u), (x - step * 0.6 * u, y - 1.8 * u)
    left_foot, right_foot = (x + 1.5 * step * u, y - 0.2 * u), (x - 1.5 * step * u, y - 0.2 * u)
    left_shoulder, right_shoulder = (x + 0.75 * u, neck[1] + 0.35 * u), (x - 0.75 * u, neck[1] + 0.35 * u)
    left_elbow, right_elbow = (x + (0.9 - step) * u, y - 4.6 * u), (x - (0.9 - step) * u, y - 4.6 * u)
    left_wrist, right_wrist = (x + (0.9 - 1.6 * step) * u, y - 3.5 * u), (x - (0.9 - 1.6 * step) * u, y - 3.5 * u)
    left_hip, right_hip = (hip[0] + 0.4 * u, hip[1]), (hip[0] - 0.4 * u, hip[1])
    for side in ((right_hip, right_knee, right_foot), (left_hip, left_knee, left_foot)):
        canvas.line(side, "#27364d", 0.75 * u)
    canvas.line((right_shoulder, right_elbow, right_wrist), "#7d4a33", 0.5 * u)
    canvas.polygon([right_shoulder, left_shoulder, (x + 0.65 * u, hip[1] + u), (x - 0.65 * u, hip[1] + u)], coat)
    canvas.line((left_shoulder, neck, right_shoulder), coat, 0.6 * u)
    canvas.line((left_shoulder, left_elbow, left_wrist), coat, 0.55 * u)
    canvas.ellipse(*left_wrist, 0.3 * u, 0.3 * u, "#d9a27e")
    canvas.ellipse(*head, 0.62 * u, 0.8 * u, "#d9a27e")
    canvas.ellipse(head[0], head[1] - 0.4 * u, 0.66 * u, 0.5 * u, "#3b2a20")
    face = [(0, 0.1), (0.22, -0.05), (-0.22, -0.05), (0.6, 0), (-0.6, 0)]
    points = [(head[0] + dx * u, head[1] + dy * u) for dx, dy in face]
    return [
        *points, left_shoulder, right_shoulder, left_elbow, right_elbow, left_wrist, right_wrist, left_hip, right_hip,
        left_knee, right_knee, left_foot, right_foot,
    ]  # fmt: skip


def street() -> Scene:
    """Three people and a bus."""
    canvas, classes = _Canvas(), np.zeros(SIZE[::-1], np.uint8)
    canvas.rectangle(0, 0, *SIZE, "#bcd9ee")
    canvas.mask()
    for i, (left, right, top, colour) in enumerate(
        [(0, 120, 60, "#b98b73"), (120, 250, 30, "#c9b79c"), (250, 420, 75, "#9aa5a8"), (420, 530, 20, "#b3917e"),
         (530, 640, 65, "#c2ad8d")]
    ):  # fmt: skip
        canvas.rectangle(left, top, right, 240, colour)
        for x in range(left + 14, right - 20, 28):
            for y in range(top + 14, 205, 36):
                canvas.rectangle(x, y, x + 14, y + 20, "#5f7486" if (x + y + i) % 3 else "#e8d9a0")
    classes[canvas.mask()] = 1
    canvas.rectangle(0, 238, 640, 272, "#bdb8ae")
    classes[canvas.mask()] = 3
    canvas.rectangle(0, 268, 640, 360, "#55595e")
    for x in range(10, 640, 90):
        canvas.rectangle(x, 318, x + 46, 323, "#dddccf")
    classes[canvas.mask()] = 2
    canvas.rectangle(250, 150, 545, 288, "#c8362f", 12)
    canvas.rectangle(262, 166, 533, 214, "#24323e", 6)
    for x in (312, 364, 416, 468):
        canvas.rectangle(x, 166, x + 5, 214, "#c8362f")
    canvas.rectangle(250, 240, 545, 246, "#f1e7d6")
    canvas.ellipse(545 - 8, 262, 6, 6, "#ffe9a3")
    for x in (310, 480):
        canvas.ellipse(x, 288, 24, 24, "#1d1f22")
        canvas.ellipse(x, 288, 11, 11, "#8d9296")
    things = [Thing(5, canvas.mask())]
    classes[things[0].mask] = 5
    for x, y, height, coat, step in ((100, 322, 168, "#2f7d6b", 0.5), (202, 306, 140, "#d8a02c", 0.35),
                                     (590, 330, 176, "#5a4b9c", 0.45)):  # fmt: skip
        points = _person(canvas, x, y, height, coat, step)
        things.append(Thing(0, canvas.mask(), points))
        classes[things[-1].mask] = 4
    return Scene(canvas.reduced(), things, classes)


def harbour() -> tuple[Image.Image, list[tuple[float, float, float, float, float, int]]]:
    """Ships from above. Returns (centre x, y, length, width, angle, class) of each."""
    canvas, ships = _Canvas(), []
    canvas.rectangle(0, 0, *SIZE, "#2f6f8f")
    for y in range(8, 360, 22):
        canvas.line([(x, y + 4 * math.sin(x / 37 + y)) for x in range(0, 641, 16)], "#347796", 2)
    canvas.rectangle(0, 0, 640, 34, "#9c9789")
    canvas.rectangle(300, 0, 326, 180, "#a8a294")
    for x, y, length, width, degrees, kind, colour in (
        (150, 120, 190, 44, 28, 0, "#e9e4d8"), (440, 110, 130, 32, -50, 0, "#d5dbe0"),
        (220, 270, 120, 30, -18, 0, "#efe7cf"), (540, 250, 150, 38, 70, 0, "#dfe3e6"),
        (390, 290, 66, 20, 10, 1, "#e2b04a"),
    ):  # fmt: skip
        angle = math.radians(degrees)

        def turned(u: float, v: float, x: float = x, y: float = y, angle: float = angle) -> tuple[float, float]:
            return x + u * math.cos(angle) - v * math.sin(angle), y + u * math.sin(angle) + v * math.cos(angle)

        u, v = length / 2, width / 2
        canvas.polygon([turned(-u, -v), turned(0.55 * u, -v), turned(u, 0), turned(0.55 * u, v), turned(-u, v)], colour)
        cabin = [turned(a * u, b * v) for a, b in ((-0.8, -0.6), (-0.2, -0.6), (-0.2, 0.6), (-0.8, 0.6))]
        canvas.polygon(cabin, "#6b7680")
        ships.append((x, y, float(length), float(width), angle, kind))
    return canvas.reduced(), ships


def faces() -> tuple[Image.Image, list[tuple[Box, list[tuple[float, float]]]]]:
    """Three faces. Returns the box and the five landmarks of each."""
    canvas, found = _Canvas(), []
    canvas.rectangle(0, 0, *SIZE, "#d7dde2")
    for x, y, r, skin, hair, coat in ((130, 160, 62, "#e0ac88", "#51382a", "#2f7d6b"),
                                      (322, 140, 70, "#9a6a4c", "#20181a", "#5a4b9c"),
                                      (512, 168, 58, "#f0c6a4", "#b06a2c", "#b0413e")):  # fmt: skip
        canvas.ellipse(x, y + 2.3 * r, 1.6 * r, 1.3 * r, coat)
        canvas.rectangle(x - 0.3 * r, y + 0.7 * r, x + 0.3 * r, y + 1.3 * r, skin)
        canvas.ellipse(x, y - 0.15 * r, 0.98 * r, 1.15 * r, hair)
        canvas.ellipse(x, y + 0.1 * r, 0.8 * r, 1.0 * r, skin)
        eyes = [(x - 0.33 * r, y - 0.05 * r), (x + 0.33 * r, y - 0.05 * r)]
        for ex, ey in eyes:
            canvas.ellipse(ex, ey, 0.15 * r, 0.09 * r, "#ffffff")
            canvas.ellipse(ex, ey, 0.07 * r, 0.07 * r, "#2b2320")
        nose = (x, y + 0.3 * r)
        canvas.line([(x, y + 0.1 * r), (x + 0.07 * r, y + 0.3 * r), nose], "#7d4a33", 2)
        mouth = [(x - 0.27 * r, y + 0.55 * r), (x + 0.27 * r, y + 0.55 * r)]
        canvas.line([mouth[0], (x, y + 0.66 * r), mouth[1]], "#8f2f33", 4)
        found.append(((x - 0.84 * r, y - 0.95 * r, x + 0.84 * r, y + 1.12 * r), [*eyes, nose, *mouth]))
    return canvas.reduced(), found


LINES = ("INVOICE 2041", "12 cameras  1,080.00", "Total  1,285.20")


def document() -> Image.Image:
    """A page with three lines of text."""
    image = Image.new("RGB", SIZE, "#f7f5ef")
    draw = ImageDraw.Draw(image)
    for text, y, size in zip(LINES, (50, 160, 250), (44, 34, 34), strict=True):
        draw.text((60, y), text, "#1b1b1b", ImageFont.load_default(size))
    return image


# ---- the networks ----


def _rows(things: list[Thing], extra: Callable[[int], Any] = lambda i: ()) -> np.ndarray[Any, Any]:
    """Rows of selected boxes: corners in the input, score, class and further columns."""
    rows = []
    for i, thing in enumerate(things):
        left, top, right, bottom = thing.box
        rows.append([left, top + BAR, right, bottom + BAR, 0.94 - 0.04 * i, thing.class_id, *extra(i)])
    table = np.zeros((300, len(rows[0])))
    table[: len(rows)] = rows
    return table


def _detector(path: Path) -> None:
    output = np.zeros((4 + len(NAMES), 8400))
    for i, thing in enumerate(street().things):
        left, top, right, bottom = thing.box
        output[:4, 40 * i] = (left + right) / 2, (top + bottom) / 2 + BAR, right - left, bottom - top
        output[4 + thing.class_id, 40 * i] = 0.94 - 0.04 * i
    head_model(path, [output], {"task": "detect", "names": str(NAMES)}, size=INPUT)


def _masks(path: Path) -> None:
    things = street().things
    side = INPUT // 2  # exports have a quarter; half of it draws smooth outlines
    prototypes = np.full((len(things), side, side), -8.0)
    for i, thing in enumerate(things):
        reduced = Image.fromarray(thing.mask).resize((side, SIZE[1] * side // INPUT))
        top = BAR * side // INPUT
        prototypes[i, top : top + reduced.height] = np.where(np.asarray(reduced), 8.0, -8.0)
    rows = _rows(things, lambda i: np.eye(len(things))[i])
    head_model(path, [rows, prototypes], {"task": "segment", "names": str(NAMES)}, size=INPUT)


def _pose(path: Path) -> None:
    people = [thing for thing in street().things if thing.points]
    output = np.zeros((4 + 1 + 51, 8400))
    for i, person in enumerate(people):
        left, top, right, bottom = person.box
        output[:4, 40 * i] = (left + right) / 2, (top + bottom) / 2 + BAR, right - left, bottom - top
        output[4, 40 * i] = 0.94 - 0.04 * i
        output[5:, 40 * i] = [value for x, y in person.points for value in (x, y + BAR, 0.9)]
    metadata = {"task": "pose", "names": "{0: 'person'}", "kpt_shape": "[17, 3]"}
    head_model(path, [output], metadata, size=INPUT)


def _oriented(path: Path) -> None:
    _, ships = harbour()
    names = {0: "ship", 1: "boat"}
    output = np.zeros((4 + len(names) + 1, 8400))
    for i, (x, y, length, width, angle, kind) in enumerate(ships):
        output[:4, 40 * i] = x, y + BAR, length, width
        output[4 + kind, 40 * i] = 0.93 - 0.05 * i
        output[-1, 40 * i] = angle
    head_model(path, [output], {"task": "obb", "names": str(names)}, size=INPUT)


def _semantic(path: Path) -> None:
    classes = np.asarray(Image.fromarray(street().classes).resize((320, 320), Image.Resampling.NEAREST))
    names = str(dict(enumerate(SEMANTIC)))
    head_model(path, [np.eye(len(SEMANTIC))[classes].transpose(2, 0, 1) * 9], {"names": names}, size=320)


def _selfie(path: Path) -> None:
    people = np.any([thing.mask for thing in street().things if thing.points], axis=0)
    person = np.asarray(Image.fromarray(people.astype(np.float32)).resize((256, 256)))
    head_model(path, [np.stack([1 - person, person])], {}, size=256)


def _lanes(path: Path) -> None:
    classes = np.asarray(Image.fromarray(street().classes).resize((640, 360), Image.Resampling.NEAREST))
    areas = [np.stack([classes != kind, classes == kind]).astype(np.float32) for kind in (2, 3)]
    head_model(path, areas, {}, names=("lanes", "segmentation"), input=(3, 360, 640))


def _ultraface(path: Path) -> None:
    scores, boxes = np.tile([0.9, 0.1], (235, 1)), np.tile([0.1, 0.1, 0.4, 0.4], (235, 1))
    for i, (box, _) in enumerate(faces()[1]):
        scores[i], boxes[i] = [0.1 + 0.02 * i, 0.9 - 0.02 * i], np.array(box) / (*SIZE, *SIZE)
    head_model(path, [scores, boxes], {}, names=("scores", "boxes"))


def _yunet(path: Path) -> None:
    outputs = {
        f"{kind}_{stride}": np.zeros(((INPUT // stride) ** 2, values))
        for stride in (8, 16, 32)
        for kind, values in (("cls", 1), ("obj", 1), ("bbox", 4), ("kps", 10))
    }
    for (left, top, right, bottom), points in faces()[1]:
        x, y = (left + right) / 2, (top + bottom) / 2
        column, row = int(x // 32), int(y // 32)
        cell = row * (INPUT // 32) + column
        outputs["cls_32"][cell], outputs["obj_32"][cell] = 0.9, 0.94
        width, height = math.log((right - left) / 32), math.log((bottom - top) / 32)
        outputs["bbox_32"][cell] = x / 32 - column, y / 32 - row, width, height
        outputs["kps_32"][cell] = [value for px, py in points for value in (px / 32 - column, py / 32 - row)]
    head_model(path, list(outputs.values()), {}, size=INPUT, names=list(outputs))


def _embedder(path: Path) -> None:
    """A random projection of the mean colours of 4 x 4 parts of the image, to 512 values."""
    from onnx_models import node, save, value

    weights = np.random.default_rng(0).normal(size=(48, 512)).astype(np.float32)
    nodes = [
        node("AveragePool", "images", "parts", kernel_shape=[56, 56], strides=[56, 56]),
        node("Flatten", "parts", "colours"),
        node("MatMul", "colours weights", "output"),
    ]
    save(
        path, nodes, [value("images", ["batch", 3, 224, 224])], [value("output", ["batch", 512])],
        {"weights": weights}, metadata={"task": "embedding"},
    )  # fmt: skip


def _classifier(path: Path) -> None:
    head_model(path, [np.array([0.02, 2.1, 4.4])], {"task": "classify", "names": "{0: 'cat', 1: 'dog', 2: 'bus'}"})


def _queries(path: Path) -> None:
    things, (width, height) = street().things, SIZE
    logits, boxes = np.full((300, 80), -9.0), np.full((300, 4), 0.1)
    for i, thing in enumerate(things):
        left, top, right, bottom = thing.box
        logits[i, thing.class_id] = 2.5 - 0.3 * i
        boxes[i] = (
            (left + right) / 2 / width,
            (top + bottom) / 2 / height,
            (right - left) / width,
            (bottom - top) / height,
        )
    head_model(path, [logits, boxes], {}, names=("logits", "pred_boxes"), size=INPUT)


def _depth(path: Path) -> None:
    """Disparity: the road comes nearer towards the bottom, and objects are as near as their feet."""
    height, width = SIZE[1], SIZE[0]
    values = np.repeat(np.maximum(np.arange(height) - 200, 0)[:, None] / 160 + 0.05, width, axis=1)
    for thing in street().things:
        values[thing.mask] = (thing.box[3] - 200) / 160 + 0.05
    values = np.asarray(Image.fromarray(values.astype(np.float32)).resize((252, 252)))
    head_model(path, [values], {}, names=("predicted_depth",), size=252)


def _anomaly(path: Path) -> None:
    mask = Image.fromarray(street().things[-1].mask.astype(np.uint8) * 255).resize((256, 256))
    found = np.asarray(mask.filter(ImageFilter.BoxBlur(5))) / 255 * 0.8 + 0.1
    arrays = [np.array([0.91]), np.array([1.0]), found[None], (found > 0.5)[None]]
    head_model(path, arrays, {}, names=("pred_score", "pred_label", "anomaly_map", "pred_mask"), size=256)


def _matte(path: Path) -> None:
    mask = np.any([thing.mask for thing in street().things], axis=0)
    matte = np.asarray(Image.fromarray(mask.astype(np.float32)).resize((320, 320)))
    head_model(path, [np.clip(matte, 0, 1)[None]], {}, size=320)


def _enlarger(path: Path) -> None:
    """Enlarges by bicubic interpolation."""
    from onnx_models import onnx, save, value

    nodes = [onnx.helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="cubic")]
    inputs, outputs = [value("x", ["n", 3, *SIZE[::-1]])], [value("y", ["n", 3, 2 * SIZE[1], 2 * SIZE[0]])]
    save(path, nodes, inputs, outputs, {"scales": np.float32([1, 1, 2, 2])})


def _text_finder(path: Path) -> None:
    """1 at dark pixels and near them in their row, so that letters join to lines."""
    import ocr_models
    from onnx_models import node

    nodes = [
        node("ReduceMean", "x", "mean", axes=[1], keepdims=1),
        node("Mul", "mean steep", "dark"),
        node("MaxPool", "dark", "columns", kernel_shape=[13, 1], pads=[6, 0, 6, 0]),
        node("MaxPool", "columns", "lines", kernel_shape=[1, 61], pads=[0, 30, 0, 30]),
        node("Sigmoid", "lines", "y"),
    ]
    ocr_models.save(path, nodes, ["n", 1, "h", "w"], {"steep": np.float32([-9.0])})


def _text_reader(path: Path) -> None:
    """Reads each line as the one of LINES whose mean brightness is nearest."""
    import ocr_models
    from onnx_models import node

    characters = sorted(set("".join(LINES)) - {" "})
    codes = {"": 0, " ": len(characters) + 1} | {one: i + 1 for i, one in enumerate(characters)}
    steps, classes = 2 * max(map(len, LINES)), len(characters) + 2
    table = np.zeros((len(LINES), steps, classes), np.float32)
    table[:, :, 0] = 1
    for i, text in enumerate(LINES):
        for j, one in enumerate(text):
            table[i, 2 * j, 0], table[i, 2 * j, codes[one]] = 0.02, 0.98
    nodes = [
        node("ReduceMean", "x", "mean", axes=[1, 2, 3], keepdims=0),
        node("Unsqueeze", "mean one", "column"),
        node("Sub", "column keys", "difference"),
        node("Abs", "difference", "distance"),
        node("Mul", "distance steep", "near"),
        node("Softmax", "near", "chosen", axis=1),
        node("MatMul", "chosen table", "flat"),
        node("Reshape", "flat shape", "y"),
    ]
    weights = {"one": np.int64([1]), "keys": np.float32([BRIGHTNESS]), "steep": np.float32([-1e5]),
               "table": table.reshape(len(LINES), -1), "shape": np.int64([-1, steps, classes])}  # fmt: skip
    ocr_models.save(path, nodes, ["n", steps, classes], weights, character="\n".join(characters))


#: The mean of each line of LINES as the network for lines gets it.
BRIGHTNESS = (0.5896, 0.7197, 0.5375)


def _video(path: Path) -> None:
    from infersdk.video import VideoWriter

    frame = np.asarray(street().image)
    with VideoWriter(path, SIZE, 10) as writer:
        for _ in range(12):
            writer.write(frame)


def _packaged(name: str) -> Callable[[Path], None]:
    def copy(path: Path) -> None:
        from infersdk import data

        path.write_bytes(Path(getattr(data, name)).read_bytes())

    return copy


#: The number of images in a folder; calibration takes 8 at least.
DIGITS = 8


def _digits(folder: Path) -> None:
    """The packaged image of digits in several brightnesses."""
    from infersdk import data

    folder.mkdir()
    with Image.open(data.IMAGE) as image:
        for i in range(DIGITS):
            image.point([min(255, int(v * (0.8 + 0.05 * i))) for v in range(256)] * 3).save(folder / f"{i}.jpg")


def _digits_truth(path: Path) -> None:
    """The boxes of the images of `_digits`, in COCO's format."""
    from infersdk import data

    truth = json.loads(Path(data.IMAGE).with_suffix(".json").read_text())
    names = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
    boxes = [(one["class_id"], one["box"]) for one in truth["objects"]]
    annotations = [
        {"id": 1000 * i + j, "image_id": i, "category_id": kind, "iscrowd": 0,
         "bbox": [x1, y1, x2 - x1, y2 - y1], "area": (x2 - x1) * (y2 - y1)}
        for i in range(DIGITS) for j, (kind, (x1, y1, x2, y2)) in enumerate(boxes, 1)
    ]  # fmt: skip
    size = {"width": truth["width"], "height": truth["height"]}
    images = [{"id": i, "file_name": f"{i}.jpg", **size} for i in range(DIGITS)]
    categories = [{"id": i, "name": name} for i, name in enumerate(names)]
    path.write_text(json.dumps({"images": images, "annotations": annotations, "categories": categories}))


def _street_folder(folder: Path) -> None:
    folder.mkdir()
    for i in range(2):
        street().image.save(folder / f"{i}.jpg")


def _street_truth(path: Path) -> None:
    """The people, their masks as boxes and their keypoints, in COCO's format."""
    annotations = []
    for i, thing in enumerate(street().things):
        if not thing.points:
            continue
        left, top, right, bottom = map(float, thing.box)
        box = [left, top, right - left, bottom - top]
        points = [value for x, y in thing.points for value in (x, y, 2)]
        outline = [[left, top, right, top, right, bottom, left, bottom]]
        annotations += [
            {"id": 10 * image + i + 1, "image_id": image, "category_id": 1, "iscrowd": 0, "bbox": box,
             "area": box[2] * box[3], "segmentation": outline, "keypoints": points, "num_keypoints": 17}
            for image in range(2)
        ]  # fmt: skip
    images = [{"id": i, "file_name": f"{i}.jpg", "width": SIZE[0], "height": SIZE[1]} for i in range(2)]
    categories = [{"id": 1, "name": "person"}]
    path.write_text(json.dumps({"images": images, "annotations": annotations, "categories": categories}))


def _classes(folder: Path) -> None:
    """Digits cut from the packaged image, with the class at the start of each name."""
    from infersdk import data

    folder.mkdir()
    truth = json.loads(Path(data.IMAGE).with_suffix(".json").read_text())
    with Image.open(data.IMAGE) as image:
        for i, one in enumerate(truth["objects"]):
            image.crop(one["box"]).save(folder / f"{one['class_id']}_{i}.jpg")


def _torchscript(path: Path) -> None:
    import torch

    network = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU()).eval()
    torch.jit.trace(network, torch.rand(1, 3, 32, 32)).save(path)


def _pnnx(path: Path) -> None:
    """A convolution and its weights, as pnnx writes them."""
    settings = "bias=True dilation=(1,1) groups=1 in_channels=3 kernel_size=(3,3) out_channels=4 padding=(0,0)"
    path.write_text(
        "7767517\n3 2\npnnx.Input in0 0 1 0 #0=(1,3,32,32)f32\n"
        f"nn.Conv2d conv1 1 1 0 1 {settings} padding_mode=zeros stride=(1,1) @bias=(4)f32 @weight=(4,3,3,3)f32 "
        "$input=0 #0=(1,3,32,32)f32 #1=(1,4,30,30)f32\npnnx.Output out0 1 0 1 #1=(1,4,30,30)f32\n"
    )
    with zipfile.ZipFile(path.with_suffix(".bin"), "w") as archive:
        archive.writestr("conv1.bias", np.zeros(4, np.float32).tobytes())
        archive.writestr("conv1.weight", np.ones((4, 3, 3, 3), np.float32).tobytes())


def _orientation(path: Path) -> None:
    """Every line is upright."""
    head_model(path, [np.array([0.9, 0.1])], {}, input=(3, 48, 192))


def _none(path: Path) -> None:
    """Commands of the page make the file."""


def _recipes(path: Path) -> None:
    """The small network that the recipes for graphs edit."""
    import onnx_models as models

    rng = np.random.default_rng(1)
    nodes = [
        models.node("MatMul", "x w0", "p0", name="/stem/product"), models.node("Add", "p0 b0", "s0", name="/stem/bias"),
        models.node("LeakyRelu", "s0", "a0", name="/stem/act", alpha=0.1),
        models.node("Dropout", "a0", "h", name="drop"),
        models.node("MatMul", "h w1", "p1", name="/head/product"), models.node("Add", "p1 b1", "y", name="/head/bias"),
    ]  # fmt: skip
    weights = {"w0": rng.normal(size=(4, 4)), "w1": rng.normal(size=(4, 4)), "b0": rng.normal(size=4), "b1": np.ones(4)}
    constants = {name: array.astype(np.float32) for name, array in weights.items()}
    models.save(path, nodes, [models.value("x", ("n", 4))], [models.value("y", ("n", 4))], constants)


def _image(draw: Callable[[], Image.Image]) -> Callable[[Path], None]:
    return lambda path: draw().save(path, quality=92)


#: Each file that the pages name, and the function that makes it.
FILES: dict[str, Callable[[Path], None]] = {
    "bus.jpg": _image(lambda: street().image),
    "street.jpg": _image(lambda: street().image),
    "aerial.jpg": _image(lambda: street().image.resize((1600, 900))),
    "harbour.jpg": _image(lambda: harbour()[0]),
    "faces.jpg": _image(lambda: faces()[0]),
    "small.png": _image(lambda: street().image),
    "page.png": _image(document),
    "people.mp4": _video,
    "door.mp4": _video,
    "hall.mp4": _video,
    "yolov8n.onnx": _detector,
    "yolov8n-seg.onnx": _masks,
    "yolov8n-pose.onnx": _pose,
    "yolov8n-obb.onnx": _oriented,
    "scene.onnx": _semantic,
    "selfie_segmentation.onnx": _selfie,
    "twinlitenet.onnx": _lanes,
    "frame_01.jpg": _image(lambda: street().image),
    "ultraface_640.onnx": _ultraface,
    "zidane.jpg": _image(lambda: street().image),
    "in.mp4": _video,
    "crops/": _street_folder,
    "person_keypoints.json": _street_truth,
    "yunet.onnx": _yunet,
    "osnet.onnx": _embedder,
    "depth_anything_v2_vits.onnx": _depth,
    "patchcore.onnx": _anomaly,
    "u2net.onnx": _matte,
    "realesrgan_x2.onnx": _enlarger,
    "resnet18.onnx": _classifier,
    "rtdetr.onnx": _queries,
    "det.onnx": _text_finder,
    "rec.onnx": _text_reader,
    "digits_detector.onnx": _packaged("DETECTOR"),
    "digits.jpg": _packaged("IMAGE"),
    # The packaged detector is a YOLOv5 with weights: it can be quantized, edited and measured.
    "yolov5n.onnx": _packaged("DETECTOR"),
    "yolov5s.onnx": _packaged("DETECTOR"),
    "model.onnx": _packaged("CLASSIFIER"),
    "recipes.onnx": _recipes,
    "net.pt": _torchscript,
    "model.pnnx.param": _pnnx,
    "drive.mp4": _video,
    "yolov5n.int8.onnx": _none,
    "model.int8.onnx": _none,
    "cls.onnx": _orientation,
    "squeezenet1.1.onnx": _packaged("CLASSIFIER"),
    "images/": _digits,
    "streets/": _street_folder,
    "streets.json": _street_truth,
    "val/": _digits,
    "instances_val.json": _digits_truth,
    "imagenet/": _classes,
    # Files that are named for real models.
    "yunet_n_dynamic.onnx": _yunet,
    "osnet_x0_25_msmt17.onnx": _embedder,
}


def make(name: str, folder: Path, as_name: str | None = None) -> None:
    """Makes a file of `FILES` in a folder."""
    FILES[name](folder / (as_name or name))
