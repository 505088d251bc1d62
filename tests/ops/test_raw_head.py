"""Raw heads: their boxes are those that the decoder of decoded outputs gives for what the formulas make of the maps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native_math import reference_exp
from simd_variants import VARIANTS, variant

from infersdk import errors
from infersdk.image import Geometry
from infersdk.ops import DetectionDecoder, GridLevel, RawHeadDecoder

F = np.float32
GEOMETRY = Geometry.letterbox((250, 180), (640, 640))


def sigmoid(x: np.ndarray) -> np.ndarray:
    return F(1) / (F(1) + reference_exp(F(0) - x))


def cells(level: GridLevel) -> tuple[np.ndarray, np.ndarray]:
    """The column and row of each position."""
    rows, columns = np.divmod(np.arange(level.width * level.height), level.width)
    return columns.astype(F), rows.astype(F)


def decoded_yolov5(levels: list[GridLevel], maps: list[np.ndarray]) -> np.ndarray:
    """[rows, values], as the network with its decoding gives them."""
    parts = []
    for level, one in zip(levels, maps, strict=True):
        planes = one.astype(F).reshape(len(level.anchors), -1, level.width * level.height)
        x, y = cells(level)
        for (width, height), values in zip(level.anchors, planes, strict=True):
            s = sigmoid(values)
            d = s[:4] * F(2)
            box = [(d[0] + (x - F(0.5))) * F(level.stride), (d[1] + (y - F(0.5))) * F(level.stride)]
            box += [d[2] * d[2] * F(width), d[3] * d[3] * F(height)]
            parts.append(np.concatenate([np.stack(box), s[4:]]).T)
    return np.ascontiguousarray(np.concatenate(parts))


def decoded_yolov8(levels: list[GridLevel], maps: list[np.ndarray], bins: list[float]) -> np.ndarray:
    """[values, rows]."""
    parts = []
    for index, level in enumerate(levels):
        boxes, classes = (one.astype(F).reshape(len(one), -1) for one in maps[2 * index : 2 * index + 2])
        x, y = (side + F(0.5) for side in cells(level))
        edges = []
        for logits in boxes.reshape(4, len(bins), -1):
            share = reference_exp(logits - np.fmax.reduce(logits, axis=0))
            total, weighted = np.zeros_like(share[0]), np.zeros_like(share[0])
            for one, value in zip(share, bins, strict=True):
                total, weighted = total + one, weighted + one * F(value)
            edges.append(weighted / total)
        x1, y1, x2, y2 = x - edges[0], y - edges[1], x + edges[2], y + edges[3]
        stride, half = F(level.stride), F(0.5)
        box = [(x1 + x2) * half * stride, (y1 + y2) * half * stride, (x2 - x1) * stride, (y2 - y1) * stride]
        parts.append(np.concatenate([np.stack(box), sigmoid(classes)]))
    return np.ascontiguousarray(np.concatenate(parts, axis=1))


def random_levels(rng: np.random.Generator, head: str) -> list[GridLevel]:
    """Maps of awkward sizes."""
    levels = []
    for stride in rng.choice([4, 8, 16, 32], int(rng.integers(1, 4)), replace=False).tolist():
        anchors = rng.uniform(3, 300, (int(rng.integers(1, 5)), 2)).astype(F).tolist() if head == "yolov5" else ()
        levels.append(GridLevel(int(rng.integers(1, 24)), int(rng.integers(1, 14)), stride, anchors))
    return levels


def random_maps(
    rng: np.random.Generator,
    head: str,
    levels: list[GridLevel],
    classes: int,
    bins: int,
    kind: str,
    dtype: str,
    extra: int,
) -> list[np.ndarray]:
    maps = []
    for level in levels:
        counts = [len(level.anchors) * (5 + classes + extra)] if head == "yolov5" else [4 * bins, classes]
        for count in counts:
            one = rng.normal(0, 3, (count, level.height, level.width)).astype(F)
            if kind == "ties":
                one = np.round(one)
            if kind == "none":
                one -= 30
            if kind == "odd":
                odd = np.array([np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-42, -0.0, 90, -104], F)
                where = rng.random(one.shape) < 0.02
                one[where] = rng.choice(odd, int(where.sum()))
            with np.errstate(over="ignore"):
                maps.append(np.ascontiguousarray(one.astype(dtype)))
    return maps


def random_settings(rng: np.random.Generator, classes: int) -> dict[str, Any]:
    """Settings of a decoder of so many classes."""
    return {
        "class_agnostic": bool(rng.integers(2)),
        "classes": [None, np.flatnonzero(rng.random(classes) < 0.5).tolist() or [0]][int(rng.integers(2))],
        "conf": float(rng.choice([0, 0.001, 0.25, 0.6])),
        "max_det": int(rng.choice([1, 7, 300])),
        "max_candidates": int(rng.choice([0, 1, 20, 30000])),
    }


def check(
    head: str, levels: list[GridLevel], maps: list[np.ndarray], num_classes: int, bins: list[float], **own: Any
) -> int:
    """Every variant gives the bits of the decoder behind the formulas; the number of candidates."""
    with np.errstate(all="ignore"):
        whole = decoded_yolov5(levels, maps) if head == "yolov5" else decoded_yolov8(levels, maps, bins)
    rows = whole.shape[0 if head == "yolov5" else 1]
    dtype = own.pop("dtype", "float32")
    with DetectionDecoder(head, num_classes, rows, **own) as reference:
        want, stats = reference(whole, GEOMETRY)
    with RawHeadDecoder(head, num_classes, levels, bins=bins, dtype=dtype, **own) as decoder:
        for simd in VARIANTS:
            with variant(simd):
                got, got_stats = decoder(maps, GEOMETRY)
            assert got_stats == stats
            assert got.tobytes() == want.tobytes()
    return stats.candidates


@pytest.mark.parametrize("head", ["yolov5", "yolov8"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("multi_label", [False, True], ids=["single", "multi"])
@pytest.mark.parametrize("kind", ["plain", "ties", "odd", "none"])
def test_equals_the_formulas(rng: np.random.Generator, head: str, dtype: str, multi_label: bool, kind: str) -> None:
    seen = 0
    for classes in (1, 3, 17, 80):
        levels = random_levels(rng, head)
        bins = [] if head == "yolov5" else rng.uniform(0, 15, int(rng.integers(1, 17))).astype(F).tolist()
        extra = int(rng.integers(3)) if head == "yolov5" else 0
        maps = random_maps(rng, head, levels, classes, len(bins), kind, dtype, extra)
        seen += check(
            head, levels, maps, classes, bins, dtype=dtype, multi_label=multi_label, extra=extra,
            **random_settings(rng, classes),
        )  # fmt: skip
    assert kind == "none" or seen > 0


def by_all_variants(count: int, levels: list[GridLevel], maps: list[np.ndarray], **own: Any) -> tuple[bytes, Any]:
    """The boxes that each variant gives, also when it runs again, and their statistics."""
    found = set()
    with RawHeadDecoder("yolov5", count, levels, **own) as decoder:
        assert decoder.shapes == tuple(one.shape for one in maps)
        for simd in [*VARIANTS, *VARIANTS]:
            with variant(simd):
                boxes, stats = decoder(maps, GEOMETRY)
            found.add((boxes.tobytes(), stats))
    (one,) = found
    return one


def map_of(features: np.ndarray, weights: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """What a convolution of 1 x 1 makes, each product and each sum rounded to float32."""
    out = np.repeat(bias, features[0].size).reshape(len(bias), *features.shape[1:])
    for feature, column in zip(features, weights.T, strict=True):
        out = out + feature * column[:, None, None]
    return np.ascontiguousarray(out)


@pytest.mark.parametrize("multi_label", [False, True], ids=["single", "multi"])
@pytest.mark.parametrize("kind", ["plain", "ties", "odd", "none"])
def test_features(rng: np.random.Generator, multi_label: bool, kind: str) -> None:
    """The same bits as from the maps of the features, whichever levels have features; of any number, and more positions
    than are read at a time.
    """
    seen = 0
    for classes, large in ((1, False), (3, True), (17, False), (80, False), (12, True)):
        levels = random_levels(rng, "yolov5")
        if large:
            levels[0] = levels[0]._replace(width=37, height=29)
        extra = int(rng.integers(3))
        own = {"multi_label": multi_label, "extra": extra, **random_settings(rng, classes)}
        maps, given_levels, given_maps = [], [], []
        for level in levels:
            channels, count = len(level.anchors) * (5 + classes + extra), int(rng.integers(1, 40))
            features = random_maps(rng, "yolov8", [level], count, 0, kind, "float32", 0)[1]
            weights = rng.normal(0, 0.4, (channels, count)).astype(F)
            weights = np.abs(weights) if kind == "none" else weights
            bias = rng.normal(0, 1, channels).astype(F) * F(rng.random() < 0.8)
            with np.errstate(all="ignore"):
                maps.append(map_of(features, weights, bias))
            if rng.random() < 0.2:
                given_levels.append(level)
                given_maps.append(maps[-1])
            else:
                given_levels.append(level._replace(weights=weights, bias=bias if bias.any() else None))
                given_maps.append(features)
        want = by_all_variants(classes, levels, maps, **own)
        assert by_all_variants(classes, given_levels, given_maps, **own) == want
        seen += want[1].candidates
    assert kind == "none" or seen > 0


def test_weights_and_biases_that_are_not_contiguous(rng: np.random.Generator) -> None:
    level, levels, copies = GridLevel(4, 3, 8, [(10, 13)]), [], []
    for _ in range(3):  # of one size, so that memory that is freed too early holds the numbers of another level
        weights, bias = rng.normal(0, 1, (5, 7)).astype(F).T, rng.normal(0, 1, 14).astype(F)[::2]
        levels.append(level._replace(weights=weights, bias=bias))
        copies.append(level._replace(weights=np.ascontiguousarray(weights), bias=bias.copy()))
    maps = [rng.normal(0, 1, (5, 3, 4)).astype(F) for _ in levels]
    found, want = (RawHeadDecoder("yolov5", 2, one, conf=0.1)(maps, GEOMETRY) for one in (levels, copies))
    assert len(want[0])
    assert (found[0].tobytes(), found[1]) == (want[0].tobytes(), want[1])


def test_weights_of_another_form_are_refused() -> None:
    good = GridLevel(4, 3, 8, [(10, 13)], weights=np.zeros((7, 5), F))
    with RawHeadDecoder("yolov5", 2, [good]) as decoder:
        assert decoder.shapes == ((5, 3, 4),)
        with pytest.raises(
            errors.ShapeError, match=r"map 0 has shape \(7, 3, 4\), but the decoder was made for \(5, 3,"
        ):
            decoder([np.zeros((7, 3, 4), F)], GEOMETRY)
    for weights in (np.zeros((8, 5), F), np.zeros((7, 0), F), np.zeros(7, F)):
        with pytest.raises(errors.ShapeError, match=r"levels\[0\].weights has shape .*; it must be \(7, features\)"):
            RawHeadDecoder("yolov5", 2, [good._replace(weights=weights)])
    with pytest.raises(errors.ShapeError, match=r"levels\[0\].bias has shape \(8,\); it must be \(7,\)"):
        RawHeadDecoder("yolov5", 2, [good._replace(bias=np.zeros(8, F))])
    with pytest.raises(errors.DTypeError, match=r"levels\[0\].weights is float64; it must be float32"):
        RawHeadDecoder("yolov5", 2, [good._replace(weights=np.zeros((7, 5)))])  # type: ignore[arg-type]
    with pytest.raises(errors.DTypeError, match=r"levels\[0\].bias is float16"):
        RawHeadDecoder("yolov5", 2, [good._replace(bias=np.zeros(7, np.float16))])  # type: ignore[arg-type]
    with pytest.raises(
        errors.InputError, match=r"levels\[0\] has 5 features; they need the head YOLOV5, float32, and weights"
    ):
        RawHeadDecoder("yolov5", 2, [good], dtype="float16")
    with pytest.raises(errors.InputError, match=r"levels\[0\] has weights; yolov8 takes maps"):
        RawHeadDecoder("yolov8", 2, [good._replace(anchors=())], bins=[0, 1])
    with pytest.raises(errors.InputError, match=r"levels\[0\] has a bias, and no weights"):
        RawHeadDecoder("yolov5", 2, [good._replace(weights=None, bias=np.zeros(7, F))])


@pytest.mark.parametrize("head", ["yolov5", "yolov8"])
@given(data=st.data())
@settings(max_examples=40)
def test_the_threshold_decides_as_it_does_for_scores(head: str, data: st.DataObject) -> None:
    """Thresholds that are scores themselves, and their neighbours: no candidate more, and none less."""
    classes = data.draw(st.integers(1, 3))
    levels = [GridLevel(data.draw(st.integers(1, 5)), 2, 8, [(10.0, 20.0)] if head == "yolov5" else ())]
    bins = [] if head == "yolov5" else [0.0, 1.0, 2.0]
    seed = data.draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    maps = random_maps(rng, head, levels, classes, len(bins), "plain", "float32", 0)
    spread = data.draw(st.sampled_from([1, 5, 20]))
    maps = [one * F(spread) for one in maps]
    logit = float(rng.choice(maps[-1].ravel()))
    with np.errstate(over="ignore"):
        conf = sigmoid(np.array([logit], F))[0]
    conf = data.draw(st.sampled_from([conf, np.nextafter(conf, F(0)), np.nextafter(conf, F(1)), F(0), F(1)]))
    check(head, levels, maps, classes, bins, conf=min(float(conf), 1.0), multi_label=data.draw(st.booleans()))


def test_what_is_wrong_is_said() -> None:
    level = GridLevel(4, 3, 8, [(10, 13)])
    with pytest.raises(errors.InputError, match=r"'yolox' has no raw form; use one of yolov5, yolov8"):
        RawHeadDecoder("yolox", 2, [level])
    with pytest.raises(errors.InputError, match=r"levels has 0 of them; give 1 to 8"):
        RawHeadDecoder("yolov5", 2, [])
    with pytest.raises(errors.InputError, match=r"levels\[0\] has 9 anchors; give 1 to 8"):
        RawHeadDecoder("yolov5", 2, [level._replace(anchors=[(1, 1)] * 9)])
    with pytest.raises(errors.InputError, match=r"levels\[0\].anchors is .*; an anchor is \(width, height\)"):
        RawHeadDecoder("yolov5", 2, [level._replace(anchors=((10, 13, 16), (30, 33, 23)))])  # type: ignore[arg-type]
    with pytest.raises(errors.InputError, match=r"levels\[0\].num_anchors is 0; it must be 1 to 8"):
        RawHeadDecoder("yolov5", 2, [level._replace(anchors=())])
    with pytest.raises(errors.InputError, match=r"levels\[0\].anchors\[1\] is -1; it must be above 0"):
        RawHeadDecoder("yolov5", 2, [level._replace(anchors=[(1, -1)])])
    with pytest.raises(errors.InputError, match=r"levels\[0\].stride is 0; it must be 1 to"):
        RawHeadDecoder("yolov5", 2, [level._replace(stride=0)])
    with pytest.raises(errors.InputError, match=r"levels\[0\].width is \d+; it must fit 32 bits"):
        RawHeadDecoder("yolov5", 2, [level._replace(width=2**40, height=0)])
    with pytest.raises(errors.InputError, match=r"num_bins is 2; it must be 1 to 64 for YOLOV8, and 0 for YOLOV5"):
        RawHeadDecoder("yolov5", 2, [level], bins=[0, 1])
    with pytest.raises(errors.InputError, match=r"num_bins is 0"):
        RawHeadDecoder("yolov8", 2, [level._replace(anchors=())])
    with pytest.raises(errors.InputError, match=r"bins\[1\] is nan; it must be finite"):
        RawHeadDecoder("yolov8", 2, [level._replace(anchors=())], bins=[0, float("nan")])
    with pytest.raises(errors.InputError, match=r"num_extra is 3; the raw form of YOLOV8 has none"):
        RawHeadDecoder("yolov8", 2, [level._replace(anchors=())], bins=[0, 1], extra=3)


def test_maps_of_another_form_are_refused() -> None:
    decoder = RawHeadDecoder("yolov5", 2, [GridLevel(4, 3, 8, [(10, 13)])])
    assert decoder.shapes == ((7, 3, 4),)
    good = np.zeros((7, 3, 4), F)
    assert len(decoder([good], GEOMETRY)[0]) == 0, "scores of a quarter are not above a quarter"
    assert decoder([good + F(0.1)], GEOMETRY)[1].candidates == 12
    with pytest.raises(errors.ShapeError, match="2 maps were given, and the decoder was made for 1"):
        decoder([good, good], GEOMETRY)
    with pytest.raises(
        errors.ShapeError, match=r"map 0 has shape \(7, 4, 3\), but the decoder was made for \(7, 3, 4\)"
    ):
        decoder([good.reshape(7, 4, 3)], GEOMETRY)
    with pytest.raises(errors.DTypeError, match="map 0 is float16"):
        decoder([good.astype(np.float16)], GEOMETRY)
    with pytest.raises(errors.InputError, match="map 0 is not in C order"):
        decoder([np.asfortranarray(good)], GEOMETRY)
    decoder.close()
    with pytest.raises(errors.ClosedError):
        decoder([good], GEOMETRY)
