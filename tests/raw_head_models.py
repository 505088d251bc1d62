"""Small networks that end with the decoding of a detector's head, in the forms in which exporters write it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from onnx_models import onnx, save, value

F = np.float32
_SIDES = 4
#: Strides, and the anchors of a cell.
STRIDES = (8, 16, 32)
ANCHORS = (
    ((10, 13), (16, 30), (33, 23)),
    ((30, 61), (62, 45), (59, 119)),
    ((116, 90), (156, 198), (373, 326)),
)


class _Graph:
    """Nodes and weights that are written one after another."""

    def __init__(self, dtype: Any) -> None:
        self.nodes: list[Any] = []
        self.weights: dict[str, Any] = {}
        self.dtype = dtype

    def __call__(self, operator: str, *inputs: Any, outputs: int = 1, **attributes: Any) -> Any:
        """The name of the node's result, or of its results. Arrays become weights, in the type of the model."""
        names = [one if isinstance(one, str) else self.weight(one) for one in inputs]
        made = [f"{operator}_{len(self.nodes)}_{index}" for index in range(outputs)]
        self.nodes.append(
            onnx.helper.make_node(operator, names, made, name=f"{operator}_{len(self.nodes)}", **attributes)
        )
        return made[0] if outputs == 1 else made

    def weight(self, array: Any) -> str:
        values, name = np.asarray(array), f"w{len(self.weights)}"
        self.weights[name] = values.astype(self.dtype if values.dtype.kind == "f" else np.int64)
        return name

    def save(
        self, path: Path, size: tuple[int, int], batch: int | str, output: list[int], classes: int, *further: str
    ) -> Path:
        """Writes a detector whose output is the result of the last node.

        Args:
            output: the shape of an image's output.
            further: names of values that are outputs, too.
        """
        self.nodes[-1].output[0] = "output0"
        kind = np.dtype(self.dtype).name
        outputs = [value("output0", [batch, *output], kind), *(value(name, None, kind) for name in further)]
        metadata = {"names": str({i: f"c{i}" for i in range(classes)}), "stride": "32"}
        images = value("images", [batch, 3, size[1], size[0]], kind)
        return save(path, self.nodes, [images], outputs, self.weights, opset=13, metadata=metadata)


def split_form(g: _Graph, s: str, grid: Any, stride: float, anchors: Any) -> str:
    """As YOLOv5 of version 6.2 and later is exported."""
    values = grid["values"]
    xy, wh, rest = g("Split", s, np.array([2, 2, values - 4]), outputs=3, axis=4)
    xy = g("Mul", g("Add", g("Mul", xy, F(2)), grid["cells"] - F(0.5)), F(stride))
    wh = g("Mul", g("Pow", g("Mul", wh, F(2)), F(2)), anchors)
    return str(g("Concat", xy, wh, rest, axis=4))


def slice_form(g: _Graph, s: str, grid: Any, stride: float, anchors: Any) -> str:
    """As version 6.0 and earlier: slices, and the half taken off apart."""

    def part(first: int, last: int) -> str:
        return str(g("Slice", s, np.array([first]), np.array([last]), np.array([4]), np.array([1])))

    xy = g("Mul", g("Add", g("Sub", g("Mul", part(0, 2), F(2)), F(0.5)), grid["cells"]), F(stride))
    doubled = g("Mul", part(2, 4), F(2))
    wh = g("Mul", g("Mul", doubled, doubled), anchors)
    return str(g("Concat", xy, wh, part(4, 2**31 - 1), axis=-1))


def folded_form(g: _Graph, s: str, grid: Any, stride: float, anchors: Any) -> str:
    """As a tool may simplify it: constants folded into one another, in another order."""
    xy, wh, rest = g("Split", s, np.array([2, 2, grid["values"] - 4]), outputs=3, axis=-1)
    xy = g("Add", (grid["cells"] - F(0.5)) * F(stride), g("Mul", F(2 * stride), xy))
    wh = g("Mul", 4 * anchors, g("Pow", wh, F(2)))
    return str(g("Concat", xy, wh, rest, axis=4))


FORMS: dict[str, Callable[..., str]] = {"split": split_form, "slice": slice_form, "folded": folded_form}


def yolov5_model(
    path: Path,
    form: str | Callable[..., str] = "split",
    *,
    classes: int = 3,
    size: tuple[int, int] = (96, 64),
    dtype: Any = F,
    batch: int | str = "batch",
    computed_shapes: bool = False,
    sigmoid: str = "Sigmoid",
    perm: tuple[int, ...] = (0, 1, 3, 4, 2),
    grid_of: Callable[[Any], Any] = lambda cells: cells,
    anchors_of: Callable[[Any], Any] = lambda anchors: anchors,
    further_output: bool = False,
    pointwise: bool = False,
    scale: float = 1,
    seed: int = 0,
) -> Path:
    """A network of one convolution a level, and YOLOv5's head behind it.

    Args:
        form: how the boxes are written, of `FORMS` or a function of its own.
        size: (width, height).
        computed_shapes: whether the targets of Reshape nodes are computed from the shape of the map.
        sigmoid, perm, grid_of, anchors_of: what is written in place of the head's own.
        further_output: whether a map is an output, too.
        pointwise: whether the convolution of a level is of 1x1, behind another one: a decoder may start at its
            features.
        scale: factor of the weights that give the logits.
    """
    rng, values, g = np.random.default_rng(seed), 5 + classes, _Graph(dtype)
    write = FORMS[form] if isinstance(form, str) else form
    flats, maps = [], []
    for stride, anchors in zip(STRIDES, ANCHORS, strict=True):
        count, width, height = len(anchors), size[0] // stride, size[1] // stride
        channels = 64 if pointwise else count * values
        kernel = rng.normal(0, 3 / stride, (channels, 3, stride, stride)).astype(F) * F(1 if pointwise else scale)
        bias = rng.normal(0, 1, channels).astype(F)
        maps.append(g("Conv", "images", kernel, bias, kernel_shape=[stride, stride], strides=[stride, stride]))
        if pointwise:
            kernel = rng.normal(0, 0.1, (count * values, channels, 1, 1)).astype(F) * F(scale)
            bias = rng.normal(-1, 1, count * values).astype(F)
            maps[-1] = g(
                "Conv", g("Relu", maps[-1]), kernel, bias, kernel_shape=[1, 1], dilations=[1, 1], group=1,
                pads=[0, 0, 0, 0], strides=[1, 1],
            )  # fmt: skip
        first: Any = np.array([-1 if batch == "batch" else batch, count, values, height, width])
        last: Any = np.array([-1 if batch == "batch" else batch, count * height * width, values])
        if computed_shapes:
            n = g("Slice", g("Shape", maps[-1]), np.array([0]), np.array([1]))
            first, last = g("Concat", n, first[1:], axis=0), g("Concat", n, last[1:], axis=0)
        s = g(sigmoid, g("Transpose", g("Reshape", maps[-1], first), perm=perm))
        cells = np.stack(np.meshgrid(np.arange(width), np.arange(height)), axis=-1).astype(F)
        grid = {"cells": grid_of(np.broadcast_to(cells, (1, count, height, width, 2))), "values": values}
        sizes = anchors_of(np.broadcast_to(np.array(anchors, F)[None, :, None, None], (1, count, height, width, 2)))
        flats.append(g("Reshape", write(g, s, grid, stride, sizes), last))
    g("Concat", *flats, axis=1)
    rows = sum(3 * (size[0] // stride) * (size[1] // stride) for stride in STRIDES)
    return g.save(path, size, batch, [rows, values], classes, *maps[: int(further_output)])


def quantised_yolov5(path: Path, target: str, **settings: Any) -> Path:
    """The file of `yolov5_model` in 8 bits. For ONNX Runtime its last convolutions stay in floating point.

    Args:
        target: of `quant.quantize`.
        settings: of `yolov5_model`.
    """
    from infersdk import quant

    whole = yolov5_model(path.with_name(f"{path.stem}_fp32.onnx"), pointwise=True, **settings)
    model = onnx.load(str(whole))
    shape = [dim.dim_value or 1 for dim in model.graph.input[0].type.tensor_type.shape.dim]
    samples = [{"images": np.random.default_rng(i).random(shape, F)} for i in range(8)]
    table = quant.calibrate(whole, samples, target=target, method="minmax")
    quant.quantize(whole, path, table, target=target)
    return path


def yolov8_model(
    path: Path,
    *,
    classes: int = 3,
    bins: int = 5,
    size: tuple[int, int] = (96, 64),
    separate: bool = False,
    last_axis: bool = False,
    slices: bool = False,
    computed_slices: bool = False,
    grid_of: Callable[[Any], Any] = lambda cells: cells,
    strides_of: Callable[[Any], Any] = lambda strides: strides,
    weights_of: Callable[[Any], Any] = lambda weights: weights,
    centre: tuple[str, float] = ("Div", 2.0),
    softmax_axis: int | None = None,
    turned: bool = False,
    scale: float = 1,
    seed: int = 0,
) -> Path:
    """A network of two convolutions a level, and YOLOv8's head behind them.

    Args:
        size: (width, height).
        separate: whether boxes and scores are joined apart, not each level's first.
        last_axis: whether the softmax is of the last axis.
        slices, computed_slices: whether distances are sliced, not split; and whether at a half that is computed of
            their shape, as an exporter writes it that does not simplify.
        grid_of, strides_of, weights_of, centre, softmax_axis: what is written in place of the head's own.
        turned: whether the distances of right and lower edge come first.
        scale: factor of the weights that give the logits.
    """
    rng, g, count = np.random.default_rng(seed), _Graph(F), _SIDES * bins
    boxes, scores, both, cells, strides = [], [], [], [], []
    for stride in STRIDES:
        width, height = size[0] // stride, size[1] // stride
        maps = []
        for channels in (count, classes):
            kernel = rng.normal(0, 3 / stride, (channels, 3, stride, stride)).astype(F) * F(scale)
            bias = rng.normal(0, 1, channels).astype(F)
            maps.append(g("Conv", "images", kernel, bias, kernel_shape=[stride, stride], strides=[stride, stride]))
        if separate:
            boxes.append(g("Reshape", maps[0], np.array([0, count, -1])))
            scores.append(g("Reshape", maps[1], np.array([0, classes, -1])))
        else:
            both.append(g("Reshape", g("Concat", *maps, axis=1), np.array([0, count + classes, -1])))
        rows, columns = np.divmod(np.arange(width * height), width)
        cells.append(np.stack([columns, rows]) + F(0.5))
        strides.append(np.full(width * height, stride, F))
    if separate:
        logits, classed = g("Concat", *boxes, axis=2), g("Concat", *scores, axis=2)
    else:
        joined = g("Concat", *both, axis=2)
        logits, classed = g("Split", joined, np.array([count, classes]), outputs=2, axis=1)
    grouped = g("Reshape", logits, np.array([0, _SIDES, bins, -1]))
    if last_axis:
        share = g("Softmax", g("Transpose", grouped, perm=(0, 3, 1, 2)), axis=softmax_axis or 3)
        share = g("Transpose", share, perm=(0, 3, 2, 1))
    else:
        share = g("Softmax", g("Transpose", grouped, perm=(0, 2, 1, 3)), axis=softmax_axis or 1)
    weights = weights_of(np.arange(bins, dtype=F).reshape(1, bins, 1, 1))
    distances = g("Reshape", g("Conv", share, weights), np.array([0, _SIDES, -1]))
    if computed_slices:
        side = g("Gather", g("Shape", distances), np.array([1]), axis=0)
        half = g("Div", g("Add", side, np.array([1])), np.array([2]))
        near = g("Slice", distances, np.array([0]), half, np.array([1]))
        far = g("Slice", distances, half, g("Mul", half, np.array([2])), np.array([1]))
    elif slices:
        near, far = (g("Slice", distances, np.array([first]), np.array([first + 2]), np.array([1])) for first in (0, 2))
    else:
        near, far = g("Split", distances, np.array([2, 2]), outputs=2, axis=1)
    near, far = (far, near) if turned else (near, far)
    grid = grid_of(np.concatenate(cells, axis=1)[None].astype(F))
    low, high = g("Sub", grid, near), g("Add", grid, far)
    middle = g(centre[0], g("Add", low, high), F(centre[1]))
    box = g("Mul", g("Concat", middle, g("Sub", high, low), axis=1), strides_of(np.concatenate(strides)[None]))
    g("Concat", box, g("Sigmoid", classed), axis=1)
    total = sum((size[0] // stride) * (size[1] // stride) for stride in STRIDES)
    return g.save(path, size, "batch", [_SIDES + classes, total], classes)
