"""Detection: against a slow and obvious reference in NumPy, on random and on real outputs, for every SIMD variant."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from detection_cases import Case, greedy_nms, random_output, some_classes
from hypothesis import given, settings
from hypothesis import strategies as st
from native_math import reference_exp
from simd_variants import VARIANTS, variant

from infersdk import Tensor, errors
from infersdk.core._lib import ffi
from infersdk.ops import DETECTION, DetectionDecoder, DetectStats, letterbox, nms

F = np.float32
IDENTITY = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)


class Geometry:
    """The least that a detector needs of a geometry."""

    def __init__(
        self,
        width: int = 640,
        height: int = 640,
        to_source: tuple[float, ...] = IDENTITY,
        canvas: tuple[int, int] = (640, 640),
    ) -> None:
        self._c = ffi.new("ifs_geometry *")
        self._c.source_width, self._c.source_height = width, height
        self._c.canvas_width, self._c.canvas_height = canvas
        self._c.to_source = to_source


# ---- the reference ----


def reference_boxes(p: Case, rows: np.ndarray, canvas: tuple[int, int]) -> np.ndarray:
    x, y, w, h = (rows[:, i].copy() for i in range(4))
    if p.head == "yolox":
        cells = [(cx, cy, s) for s in p.strides for cy in range(canvas[1] // s) for cx in range(canvas[0] // s)]
        column, row, stride = np.array(cells, F).T
        x, y = (x + column) * stride, (y + row) * stride
        w, h = reference_exp(w) * stride, reference_exp(h) * stride
    half = F(0.5)
    return np.stack([x - w * half, y - h * half, x + w * half, y + h * half], axis=1)


def reference(p: Case, output: np.ndarray, geometry: Geometry) -> tuple[np.ndarray, DetectStats]:
    with np.errstate(all="ignore"):
        rows = (output.T if p.head == "yolov8" else output).astype(F)
        boxes = reference_boxes(p, rows, (geometry._c.canvas_width, geometry._c.canvas_height))
        objectness, first = (F(1), 4) if p.head == "yolov8" else (rows[:, 4:5], 5)
        classes = rows[:, first : first + p.num_classes]
        scores = classes * objectness
        good = (scores > F(p.conf)) & np.isfinite(scores)
        good &= (p.head == "yolov8") | (objectness > F(p.conf))
        good &= np.isfinite(boxes).all(axis=1, keepdims=True)
        if p.classes is not None:
            good &= np.isin(np.arange(p.num_classes), p.classes)
        if not p.multi_label:
            best = np.where(good, scores, F(-1)).argmax(axis=1)
            good &= np.arange(p.num_classes) == best[:, None]
        anchors, c = np.nonzero(good)
        total = len(anchors)
        order = np.lexsort((c, anchors, -scores[anchors, c]))[: p.max_candidates or None]
        anchors, c = anchors[order], c[order]
        b, s = boxes[anchors], scores[anchors, c]
        keep, _ = greedy_nms(b, s, None if p.class_agnostic else c, p.iou)
        m = list(geometry._c.to_source)
        size = [geometry._c.source_width, geometry._c.source_height]
        kept = len(keep)
        result = np.zeros(min(kept, p.max_det), DETECTION)
        keep = keep[: p.max_det]
        corners = b[keep][:, [0, 1, 2, 1, 0, 3, 2, 3]].reshape(-1, 4, 2).astype(np.float64)
        x = ((m[0] * corners[..., 0] + m[1] * corners[..., 1]) + m[2]).astype(F)
        y = ((m[3] * corners[..., 0] + m[4] * corners[..., 1]) + m[5]).astype(F)
        edges = np.stack([x.min(1), y.min(1), x.max(1), y.max(1)], axis=1) if keep else np.zeros((0, 4), F)
        result["xyxy"] = edges.clip(0, [*size, *size])
        result["score"], result["class_id"], result["row"] = s[keep], c[keep], anchors[keep]
        return result, DetectStats(total, total - len(order), kept, max(0, kept - p.max_det))


def assert_same(p: Case, output: np.ndarray, geometry: Geometry) -> DetectStats:
    expected, stats = reference(p, output, geometry)
    with p.detector() as detector:  # one for all, so that scratch memory was used before
        for simd in VARIANTS:
            with variant(simd):
                got, got_stats = detector(output, geometry)
            assert got_stats == stats
            assert got.dtype == DETECTION
            assert got.tobytes() == expected.tobytes()
    return stats


YOLOX = {"strides": (8, 16, 32), "num_anchors": 84}  # a canvas of 64 x 64
HEADS: list[dict[str, Any]] = [{"head": "yolov5"}, {"head": "yolov8"}, {"head": "yolox", **YOLOX}]


@pytest.mark.parametrize("head", HEADS, ids=lambda h: h["head"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("multi_label", [False, True], ids=["single", "multi"])
@pytest.mark.parametrize("kind", ["plain", "ties", "degenerate", "odd", "none", "low"])
def test_equals_the_reference(
    rng: np.random.Generator, head: dict[str, Any], dtype: str, multi_label: bool, kind: str
) -> None:
    for num_classes in (1, 3, 16, 17, 33, 80, 81):
        p = Case(
            num_classes=num_classes,
            multi_label=multi_label,
            dtype=dtype,
            classes=some_classes(rng, num_classes) if rng.random() < 0.5 else None,
            extra=int(rng.choice([0, 0, 1, 3, 32, 97])),
            **{"num_anchors": int(rng.choice([1, 15, 16, 17, 31, 63, 64, 65, 129, 1025])), **head},
        )
        p = p._replace(class_agnostic=bool(rng.integers(2)), conf=float(rng.choice([0, 0.25, 0.6])))
        p = p._replace(max_det=int(rng.choice([1, 7, 300])), max_candidates=int(rng.choice([0, 1, 20, 30000])))
        canvas = (64, 64) if p.head == "yolox" else (640, 640)
        geometry = Geometry(250, 180, (1.3, 0, -7.25, 0, 1.3, 4.5), canvas)
        assert_same(p, random_output(rng, p, kind), geometry)


def test_other_classes_take_no_place() -> None:
    """Neither as the best class of an anchor, nor in NMS, nor in the limits."""
    output = np.zeros((4, 5 + 3), F)
    output[:, :4] = [[50, 50, 20, 20], [51, 50, 20, 20], [200, 50, 20, 20], [300, 50, 20, 20]]
    output[:, 4] = 1
    output[:, 5:] = [[0.9, 0.1, 0.5], [0.1, 0.1, 0.4], [0.8, 0.7, 0.1], [0.95, 0.1, 0.3]]
    settings = {"num_classes": 3, "num_anchors": 4, "max_det": 2, "class_agnostic": True}
    with DetectionDecoder(**settings, classes=[2]) as detector:
        boxes, stats = detector(output, Geometry())
    assert boxes["row"].tolist() == [0, 3], "the first suppresses the second; its class 0 does not count"
    assert boxes["class_id"].tolist() == [2, 2]
    assert stats == DetectStats(3, 0, 2, 0)
    with DetectionDecoder(**settings, classes={1, 2}, multi_label=True, conf=0.45) as detector:
        boxes, stats = detector(output, Geometry())
    assert [tuple(row) for row in boxes[["row", "class_id"]].tolist()] == [(2, 1), (0, 2)]
    assert stats == DetectStats(2, 0, 2, 0)


@pytest.mark.parametrize("head", ["yolov5", "yolov8"])
def test_the_row_leads_to_the_extra_numbers(head: str) -> None:
    rng, first = np.random.default_rng(5), 5 if head == "yolov5" else 4
    p = Case(head, num_classes=4, num_anchors=70, multi_label=True, extra=6)
    rows = random_output(rng, p, "plain")
    table = rows.T if head == "yolov8" else rows
    table[:, first + 4 :] = np.arange(70)[:, None] * 10 + np.arange(6)
    with p.detector() as detector:
        found, _ = detector(rows, Geometry())
    assert len(set(found["row"].tolist())) > 20
    for detection in found:
        x, y, w, h = table[detection["row"], :4]
        np.testing.assert_array_equal(
            detection["xyxy"], np.clip([x - w / 2, y - h / 2, x + w / 2, y + h / 2], 0, 640).astype(F)
        )
        assert table[detection["row"], first + 4 :].tolist() == [detection["row"] * 10 + i for i in range(6)]


@given(data=st.data())
@settings(max_examples=50)
def test_any_output(data: st.DataObject) -> None:
    head = data.draw(st.sampled_from(["yolov5", "yolov8"]))
    p = Case(
        head,
        num_classes=data.draw(st.integers(1, 5)),
        num_anchors=data.draw(st.integers(1, 12)),
        conf=data.draw(st.sampled_from([0.0, 0.25, 0.5, 1.0])),
        iou=data.draw(st.sampled_from([0.0, 0.3, 0.45, 0.5, 1.0])),
        max_det=data.draw(st.integers(1, 6)),
        max_candidates=data.draw(st.integers(0, 8)),
        multi_label=data.draw(st.booleans()),
        class_agnostic=data.draw(st.booleans()),
        extra=data.draw(st.integers(0, 2)),
    )
    p = p._replace(classes=data.draw(st.none() | st.sets(st.integers(0, p.num_classes - 1), min_size=1).map(tuple)))
    numbers = st.one_of(
        st.sampled_from(
            [0.0, 0.25, 0.5, 0.75, 1.0, 2.0, 4.0, 8.0, -1.0, float("nan"), float("inf"), -float("inf"), 3e38]
        ),
        st.floats(width=32),
        st.floats(0, 1, width=32),
    )
    width = p.num_classes + p.extra + (5 if head == "yolov5" else 4)
    count = p.num_anchors * width
    values = np.array(data.draw(st.lists(numbers, min_size=count, max_size=count)), F)
    shape = (-1, width) if head == "yolov5" else (-1, p.num_anchors)
    assert_same(p, values.reshape(shape), Geometry(12, 9))


def test_counts_what_is_lost() -> None:
    p = Case(num_classes=1, num_anchors=40, max_det=3, max_candidates=25)
    output = np.zeros((40, 6), F)
    output[:, 0] = np.arange(40) * 10 + 5  # side by side
    output[:, 1:4] = 5, 10, 10
    output[:, 4] = 1
    output[:, 5] = np.linspace(0.3, 0.9, 40)
    assert assert_same(p, output, Geometry()) == DetectStats(40, 15, 25, 22)


def test_thresholds_are_strict() -> None:
    output = np.array([[50, 50, 10, 10, 0.5, 2.0], [80, 50, 10, 10, 0.75, 0.75], [20, 20, 9, 9, 2.0, 0.25]], F)
    for conf, scores in ((0.4999, [1.0, 0.5625, 0.5]), (0.5, [0.5625]), (0.5625, [])):
        with DetectionDecoder(num_classes=1, num_anchors=3, conf=conf) as detector:
            boxes, _ = detector(output, Geometry())
            assert boxes["score"].tolist() == scores


def test_an_affine_map_gives_the_rectangle_around_the_corners() -> None:
    p = Case(num_anchors=30, conf=0.3)
    output = random_output(np.random.default_rng(3), p, "plain")
    assert_same(p, output, Geometry(400, 300, (0.9, -0.4, 60.0, 0.4, 0.9, -20.0)))
    assert_same(p, output, Geometry(400, 300, (-1.0, 0.0, 400.0, 0.0, 1.0, 0.0)))  # mirrored


def test_a_batch_dimension_of_one_and_an_address_are_fine() -> None:
    p = Case()
    output = random_output(np.random.default_rng(1), p, "plain")
    with p.detector() as detector:
        plain = detector(output, Geometry())[0]
        assert detector(output[None], Geometry())[0].tobytes() == plain.tobytes()
        assert detector(output.ctypes.data, Geometry())[0].tobytes() == plain.tobytes()
        assert len(plain)


def test_two_threads_do_not_share_a_decoder() -> None:
    """A call at the same time as another one is an error, and the other one gives its own boxes."""
    p, end, used = Case(num_anchors=4000), time.monotonic() + 10, []
    outputs = [random_output(np.random.default_rng(seed), p, "plain") for seed in (1, 2)]
    with p.detector() as detector:
        expected = [detector(output, Geometry())[0].tobytes() for output in outputs]

        def gives_its_boxes(number: int) -> bool:
            while len(used) < 20 and time.monotonic() < end:
                try:
                    if detector(outputs[number], Geometry())[0].tobytes() != expected[number]:
                        return False
                except errors.InUseError as error:
                    used.append(str(error))
            return True

        with ThreadPoolExecutor(2) as pool:
            assert all(pool.map(gives_its_boxes, range(2)))
    assert "a decoder of its own" in used[0]


def test_results_are_the_callers() -> None:
    p = Case()
    output = random_output(np.random.default_rng(1), p, "plain")
    with p.detector() as detector:
        first, _ = detector(output, Geometry())
        kept = first.copy()
        detector(output[::-1].copy(), Geometry())
    assert first.tobytes() == kept.tobytes()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"conf": float("nan")}, "^conf is nan; it must be 0 to 1"),
        ({"conf": -0.1}, "^conf is -0.1"),
        ({"iou": 1.5}, "^iou is 1.5"),
        ({"num_classes": 0}, "num_classes is 0"),
        ({"num_anchors": -3}, "num_anchors is -3"),
        ({"num_anchors": 2**31}, "num_anchors is 2147483648"),
        ({"num_anchors": 2**30}, "more than 2147483647"),
        ({"extra": -1}, "^extra is -1; it must be 0 or more"),
        ({"extra": 2**31}, "extra is 2147483648"),
        ({"num_anchors": 2**20, "extra": 2**11 - 7}, "2041 extra numbers has more than 2147483647"),
        ({"max_det": 0}, "^max_det is 0; it must be 1 or more"),
        ({"max_candidates": -1}, "max_candidates is -1"),
        ({"strides": (8,)}, "num_strides is 1"),
        ({"head": "yolox"}, "num_strides is 0"),
        ({"head": "yolox", "strides": (8, 0)}, "stride is 0"),
        ({"head": "yolox", "strides": range(1, 10)}, "strides has 9"),
        ({"head": "yolox", "strides": (8, 2**31)}, r"strides\[1\] is 2147483648; it must fit 32 bits"),
        ({"head": "yolov9000"}, "yolov9000"),
        ({"dtype": "int8"}, "int8"),
        ({"classes": [0, 3]}, "classes has 3, but the head has 3 classes"),
        ({"classes": [-1]}, "classes has -1"),
        ({"classes": []}, "classes has no class"),
        ({"classes": [1.0]}, r"a class is 1\.0; it must be a whole number"),
        ({"max_det": 300.0}, r"max_det is 300\.0; it must be a whole number"),
        ({"num_anchors": "50"}, "num_anchors is '50'; it must be a whole number"),
        ({"strides": (4.0,)}, r"strides\[0\] is 4\.0; it must be a whole number"),
        ({"dtype": np.dtype(">f4")}, "use float32 or float16"),
    ],
)
def test_parameters_are_checked(change: dict[str, Any], words: str) -> None:
    with pytest.raises(errors.InputError, match=words):
        DetectionDecoder(**{"num_classes": 3, "num_anchors": 50, **change})


@pytest.mark.parametrize("dtype", [np.float16, np.dtype("float16")])
def test_a_type_of_numpy_is_one_of_elements(dtype: Any) -> None:
    with DetectionDecoder(num_classes=3, num_anchors=50, dtype=dtype) as detector:
        assert len(detector(np.zeros((50, 8), np.float16), Geometry())[0]) == 0


def test_sizes_that_are_numpys_integers(rng: np.random.Generator) -> None:
    """Their product does not fit their type: 80 times 200 is 128 in 8 bits."""
    output = rng.random((200, 85), np.float32)
    settings = {"multi_label": True, "conf": 0.0, "iou": 1.0}
    with (
        DetectionDecoder(num_classes=np.uint8(80), num_anchors=np.uint8(200), **settings) as detector,
        DetectionDecoder(num_classes=80, num_anchors=200, **settings) as plain,
    ):
        found, expected = (one(output, Geometry())[0] for one in (detector, plain))
    assert len(found) == 300
    np.testing.assert_array_equal(found, expected)


def test_the_output_is_checked() -> None:
    detector = DetectionDecoder(num_classes=3, num_anchors=50)
    with pytest.raises(errors.ShapeError, match=r"\(50, 9\).*\(50, 8\)"):
        detector(np.zeros((50, 9), F), Geometry())
    with pytest.raises(errors.DTypeError, match=r"float64.*float32"):
        detector(np.zeros((50, 8)), Geometry())
    for other in ([[0.0] * 8] * 50, Tensor((50, 8)), None):
        with pytest.raises(errors.InputError, match=f"the output is a {type(other).__name__}; pass an array"):
            detector(other, Geometry())  # type: ignore[arg-type]
    with pytest.raises(errors.InputError, match="C order"):
        detector(np.zeros((8, 50), F).T, Geometry())
    with pytest.raises(errors.InputError, match="the output is not aligned to its elements"):
        detector(np.frombuffer(bytes(50 * 8 * 4 + 1), F, offset=1).reshape(50, 8), Geometry())
    with pytest.raises(errors.InputError, match="0 x 640"):
        detector(np.zeros((50, 8), F), Geometry(width=0))
    with pytest.raises(errors.InputError, match=r"to_source\[2\] is nan"):
        detector(np.zeros((50, 8), F), Geometry(to_source=(1, 0, float("nan"), 0, 1, 0)))
    with pytest.raises(errors.InputError):
        detector(0, Geometry())
    detector.close()
    detector.close()
    with pytest.raises(errors.ClosedError):
        detector(np.zeros((50, 8), F), Geometry())


def test_the_grids_must_fit_the_canvas() -> None:
    with DetectionDecoder("yolox", 3, 84, strides=(8, 16, 32)) as detector:
        with pytest.raises(errors.ShapeError, match=r"640 x 640 canvas have 8400 cells.*84"):
            detector(np.zeros((84, 8), F), Geometry())
        with pytest.raises(errors.InputError, match="-64 x -64"):
            detector(np.zeros((84, 8), F), Geometry(canvas=(-64, -64)))


# ---- NMS alone ----


def crowd(rng: np.random.Generator, n: int, size: float, spread: float = 640) -> np.ndarray:
    center = rng.random((n, 2)) * spread
    half = rng.random((n, 2)) * size / 2 + size / 50
    return np.concatenate([center - half, center + half], axis=1).astype(F)


@pytest.mark.parametrize("iou", [0.0, 0.2, 0.26, 0.45, 0.6, 1.0])
def test_nms_equals_the_reference(rng: np.random.Generator, iou: float) -> None:
    for n, size in [(0, 1), (1, 10), (15, 300), (33, 300), (100, 200), (300, 120)]:
        boxes, scores = crowd(rng, n, size), np.round(rng.random(n), 2).astype(F)
        class_ids = rng.integers(-2, 2, n)
        assert_same_nms(boxes, scores, None, iou)
        assert_same_nms(boxes, scores, class_ids, iou)


def assert_same_nms(boxes: np.ndarray, scores: np.ndarray, class_ids: np.ndarray | None, iou: float) -> None:
    expected, _ = greedy_nms(boxes, scores, class_ids, iou)
    for simd in VARIANTS:
        with variant(simd):
            assert nms(boxes, scores, class_ids, iou=iou).tolist() == expected


@pytest.mark.parametrize("iou", [0.0, -0.0, 0.25, 1 / 3, 0.45, 0.7, 1.0])
@pytest.mark.parametrize("size", [3, 40, 400])
def test_nms_of_many_boxes_of_a_class(rng: np.random.Generator, iou: float, size: float) -> None:
    """So many that the grid is laid."""
    boxes, scores = crowd(rng, 3000, size), rng.random(3000).astype(F)
    boxes[:300] = boxes[300:600] + rng.normal(0, size / 20, (300, 4))  # near doubles
    assert_same_nms(boxes, scores, None, iou)


def strips(
    rng: np.random.Generator, n: int, iou: float, spread: float, slack: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """`n` boxes, and strips along one of their sides that cover iou * (1 + slack) of them, with better scores."""
    corner, size = rng.random((n, 2)) * spread, rng.random((n, 2)) * 60 + 25
    boxes = np.concatenate([corner, corner + size], axis=1).astype(F)
    cut = boxes.astype(np.float64)
    side, axis = rng.integers(2, size=n), rng.integers(2, size=n)
    covered = iou * (1 + slack) * (cut[range(n), axis + 2] - cut[range(n), axis])
    cut[range(n), axis + 2 * side] = cut[range(n), axis + 2 * (1 - side)] + np.where(side == 0, -1, 1) * covered
    scores = rng.random(n) / 2
    return np.concatenate([boxes, cut.astype(F)]), np.concatenate([scores, scores + 0.5]).astype(F)


@pytest.mark.parametrize("iou", [0.21, 1 / 3, 0.5, 0.7])
def test_nms_finds_what_covers_a_side(rng: np.random.Generator, iou: float) -> None:
    """A suppressor that covers as little of the box as one can, in a grid whose cells are smaller than the boxes."""
    boxes, scores = strips(rng, 1000, iou, 600, rng.random(1000) * 0.1)
    specks = crowd(rng, 4000, 1)
    assert_same_nms(np.concatenate([boxes, specks]), np.concatenate([scores, rng.random(4000).astype(F)]), None, iou)


@pytest.mark.parametrize("iou", [0.25, 0.45, 0.5, 0.7])
@pytest.mark.parametrize("n", [7, 100, 2500])
def test_nms_rounds_as_it_is_written(rng: np.random.Generator, iou: float, n: int) -> None:
    """Overlaps within a few units of the last place of the threshold: each rounding counts."""
    for _ in range(2000 // n + 1):
        boxes, scores = strips(rng, n, iou, 3000 if n > 1000 else 600, rng.normal(0, 1e-7, n))
        assert_same_nms(boxes, scores, np.tile(np.arange(n), 2) if n < 1000 else None, iou)


@pytest.mark.parametrize("case", ["lattice", "far", "tiny", "huge", "flat", "one point", "one large"])
def test_nms_of_many_awkward_boxes(rng: np.random.Generator, case: str) -> None:
    boxes, scores = crowd(rng, 2000, 30), np.round(rng.random(2000), 2).astype(F)
    if case == "lattice":  # overlaps that are exactly the threshold
        corner = rng.integers(0, 60, (2000, 2)) * 4
        boxes = np.concatenate([corner, corner + rng.choice([4, 8, 16], (2000, 2))], axis=1).astype(F)
    elif case == "far":  # coordinates with few bits left for the size
        boxes += F(2**22)
    elif case == "tiny":
        boxes *= F(1e-18)
    elif case == "huge":
        boxes *= F(1e35)
    elif case == "flat":
        boxes[::3, 2] = boxes[::3, 0]
        boxes[1::3, 3] = boxes[1::3, 1] - 2
    elif case == "one point":
        boxes[:] = 5
    elif case == "one large":
        boxes[7] = -1e6, -1e6, 1e6, 1e6
    for iou in (0.25, 0.5, 0.6):
        assert_same_nms(boxes, scores, None, iou)


@given(
    st.lists(st.tuples(*[st.integers(0, 8)] * 4, st.integers(0, 3), st.integers(0, 1)), max_size=40),
    st.sampled_from([0.0, 0.2, 0.25, 1 / 3, 0.5, 1.0]),
)
@settings(max_examples=50)
def test_nms_of_any_boxes(rows: list[tuple[int, ...]], iou: float) -> None:
    table = np.array(rows, F).reshape(-1, 6)
    boxes, scores, class_ids = table[:, :4].copy(), table[:, 4].copy(), table[:, 5].astype(np.int64)
    assert_same_nms(boxes, scores, class_ids, iou)


def test_nms_takes_what_numpy_takes() -> None:
    boxes = [[0, 0, 10, 10], [1, 1, 11, 11], [50, 50, 60, 60]]
    assert nms(boxes, [0.5, 0.9, 0.7]).tolist() == [1, 2]
    assert nms(boxes, [0.5, 0.9, 0.7], [0, 1, 0]).tolist() == [1, 2, 0]
    assert nms(boxes, [0.5, 0.9, 0.7], [0, 1, 0], max_det=2).tolist() == [1, 2]
    assert nms([], []).tolist() == []
    assert nms(np.zeros((0, 4)), np.zeros(0), []).dtype == np.int64
    assert nms(boxes, [-1, -0.0, 0.0]).tolist() == [1, 2]  # negative scores too; 0 and -0 are equal


def test_nms_checks_its_arguments() -> None:
    boxes, scores = np.zeros((3, 4)), np.ones(3)
    with pytest.raises(errors.ShapeError, match=r"\(3, 4\).*\(2,\)"):
        nms(boxes, scores[:2])
    with pytest.raises(errors.ShapeError, match=r"\(3, 5\)"):
        nms(np.zeros((3, 5)), scores)
    with pytest.raises(errors.ShapeError, match=r"\(2,\).*3 boxes"):
        nms(boxes, scores, [1, 2])
    with pytest.raises(errors.DTypeError, match="float64"):
        nms(boxes, scores, [0.5, 1, 2])
    with pytest.raises(errors.DTypeError, match="32 bits"):
        nms(boxes, scores, [2**40, 1, 2])
    with pytest.raises(errors.InputError, match=r"box 1 .*nan"):
        nms(boxes, [1, np.nan, 1])
    with pytest.raises(errors.InputError, match=r"box 2 .*inf"):
        nms([[0, 0, 1, 1], [0, 0, 1, 1], [0, 0, 1, np.inf]], scores)
    for iou in (float("nan"), -0.1, 1.1):
        with pytest.raises(errors.InputError, match="^iou is .*; it must be 0 to 1"):
            nms(boxes, scores, iou=iou)
    with pytest.raises(errors.InputError, match="max_det is -1"):
        nms(boxes, scores, max_det=-1)


# ---- exp, which the sizes of YOLOX (and softmax) stand on ----


def test_exp_is_within_two_units_of_the_last_place(rng: np.random.Generator) -> None:
    """Of the reference, whose bits those of all variants are in the tests above."""
    x = np.concatenate([rng.uniform(-104.5, 88.7, 40000), [0, 88.72283, 1e-30, -103.9, -103.97, -104, -3e38, -np.inf]])
    with np.errstate(all="ignore"):
        got, exact = reference_exp(x.astype(F)), np.exp(x.astype(F).astype(np.float64))
        assert (np.abs(got - exact) < 2 * np.spacing(exact.astype(F))).all()
        assert reference_exp(np.array([88.7229, 89, 1e30, np.inf], F)).tolist() == [np.inf] * 4
    assert not got[x < -104].any()


# ---- real outputs ----


def real_output(assets: Any, model: str) -> tuple[np.ndarray, Geometry]:
    cv2 = pytest.importorskip("cv2")
    pytest.importorskip("onnxruntime")
    onnx_models = pytest.importorskip("onnx_models")
    blob, geometry = letterbox(cv2.imread(str(assets / "images" / "bus.jpg")), 640)
    (output,) = onnx_models.run(assets / "models" / model, blob[None])[0]
    return output, geometry


@pytest.mark.assets
def test_the_bus(assets: Any) -> None:
    output, geometry = real_output(assets, "yolov5n.onnx")
    with DetectionDecoder() as detector:
        boxes, stats = detector(output, geometry)
    assert sorted(boxes["class_id"]) == [0, 0, 0, 0, 5]
    assert stats.kept == 5
    assert_same(Case(num_classes=80, num_anchors=25200, conf=0.25), output, geometry)


@pytest.mark.assets
@pytest.mark.parametrize("multi_label", [False, True], ids=["single", "multi"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_yolov8_of_the_bus(assets: Any, multi_label: bool, dtype: str) -> None:
    output, geometry = real_output(assets, "yolov8n.onnx")
    p = Case("yolov8", 80, 8400, conf=0.001, iou=0.7, multi_label=multi_label, dtype=dtype)
    assert assert_same(p, output.astype(dtype), geometry).kept > 100
