"""The rules that make boxes the result of scores and boxes that are known exactly.

A runtime rounds scores and boxes. Candidates whose scores differ by less than that change places, and a limit or a
suppression then leaves another one out: two results of one network differ, and both follow the rules here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from infersdk.models import Detections

#: `conf` below this counts as this.
LOWEST_CONF = 1e-6


@dataclass(frozen=True)
class Rules:
    """The settings of a detector.

    Args:
        score: how far a score may be from the exact one, as a share of it; further 2e-7 are allowed.
        box: how far an edge may be from the exact one, in pixels.
        share: further distance of an edge, in widths or heights of its box.
    """

    conf: float
    iou: float
    max_det: int
    max_candidates: int
    multi_label: bool
    class_agnostic: bool
    score: float = 2e-5
    box: float = 1e-3
    share: float = 0.0

    def violations(self, found: Detections, decoded: np.ndarray, size: tuple[int, int]) -> list[str]:
        """The rules that a result breaks.

        Args:
            decoded: (rows, 5 + classes): centre, size, objectness and class scores of each row, in float64.
            size: (width, height) of the image, which is the input.
        """
        rows, kinds, exact = found.data["row"], found.class_ids, _edges(decoded[:, :4])
        scores = decoded[:, 5:] * decoded[:, 4:5]
        conf, result = max(self.conf, LOWEST_CONF), []
        best = scores if self.multi_label else scores.max(axis=1, keepdims=True)

        def counted(limit: float) -> int:
            return int(((best > limit) & (decoded[:, 4:5] > limit)).sum())

        off = self._off(conf)
        least, most = counted(conf + off), counted(conf - off)
        stats = found.stats
        if not least <= stats.candidates <= most:
            result.append(f"{stats.candidates} candidates, not {least} to {most}")
        if stats.dropped_candidates != max(0, stats.candidates - self.max_candidates) * bool(self.max_candidates):
            result.append(f"{stats.dropped_candidates} dropped of {stats.candidates} candidates")
        if stats.dropped_detections != max(0, stats.kept - self.max_det) or len(found) != min(stats.kept, self.max_det):
            result.append(f"{len(found)} boxes, {stats.kept} kept, {stats.dropped_detections} dropped")
        own = scores[rows, kinds]
        if np.any(np.abs(found.scores - own) > self._off(own)):
            result.append(f"scores are off by up to {np.abs(found.scores - own).max():g}")
        if np.any(np.minimum(own, decoded[rows, 4]) < conf - off):
            result.append("a score is below the threshold")
        if not self.multi_label and np.any(own < best[rows, 0] - 2 * self._off(own)):
            result.append("a class is not the best of its row")
        order = list(zip(-found.scores.astype(float), rows.tolist(), kinds.tolist(), strict=True))
        if order != sorted(order) or len(set(order)) < len(order):
            result.append("not in the order of score, row, class")
        spare = self._spare(exact)
        limits = np.tile(np.array(size, float), 2)
        distance = np.abs(found.xyxy - np.clip(exact, 0, limits)[rows])
        if np.any(distance > spare[rows]):
            result.append(f"edges are off by up to {distance.max():g}")
        alike = np.ones((len(rows),) * 2, bool) if self.class_agnostic else kinds[:, None] == kinds
        overlap = self._overlap(exact[rows], exact[rows], spare[rows], spare[rows], certain=True)
        if np.any(np.triu(overlap & alike, 1)):
            result.append("two boxes overlap")
        return result + self._missing(found, exact, scores, decoded[:, 4], best, spare)

    def _missing(self, found: Detections, exact: Any, scores: Any, objectness: Any, best: Any, spare: Any) -> list[str]:
        """Candidates that were left out, and that nothing explains."""
        conf = max(self.conf, LOWEST_CONF)
        conf += self._off(conf)
        certain = (scores > conf) & (objectness[:, None] > conf)
        if not self.multi_label:  # the second best class of a row counts for none
            certain &= scores >= best
            certain &= (scores > best - 2 * self._off(best)).sum(axis=1, keepdims=True) == 1
        certain[found.data["row"], found.class_ids] = False
        rows, kinds = np.nonzero(certain)
        own = scores[rows, kinds]
        highest = own - 2 * self._off(own)
        explained = np.zeros(len(rows), bool)
        if found.stats.dropped_detections:
            explained |= highest < found.scores.min()
        if found.stats.dropped_candidates:
            ranked = np.sort((best * (objectness[:, None] > 0)).ravel())[::-1]
            explained |= highest < ranked[self.max_candidates - 1]
        alike = (kinds[:, None] == found.class_ids) | self.class_agnostic
        chosen = found.data["row"]
        overlap = self._overlap(exact[rows], exact[chosen], spare[rows], spare[chosen], certain=False)
        better = found.scores > highest[:, None]
        explained |= (overlap & alike & better).any(axis=1)
        if explained.all():
            return []
        first = int(np.argmin(explained))
        return [f"{(~explained).sum()} boxes are missing: row {rows[first]}, class {kinds[first]}, score {own[first]}"]

    def _off(self, score: Any) -> Any:
        return self.score * score + 2e-7

    def _spare(self, edges: Any) -> Any:
        sides = np.abs(edges[:, 2:] - edges[:, :2])
        return self.box + self.share * np.tile(sides, 2)

    def _overlap(self, a: Any, b: Any, spare_a: Any, spare_b: Any, *, certain: bool) -> Any:
        """Which boxes of `a` overlap which of `b` above `iou`, with all edges off by what they may be."""
        sign = 1 if certain else -1
        turn = np.array([1, 1, -1, -1]) * sign
        (inner_a, inner_b), (outer_a, outer_b) = ((a + f * turn * spare_a, b + f * turn * spare_b) for f in (1, -1))
        common = np.prod(
            np.clip(np.minimum(inner_a[:, None, 2:], inner_b[:, 2:]) - np.maximum(inner_a[:, None, :2], inner_b[:, :2]),
                    0, None), axis=2,
        )  # fmt: skip
        areas = [np.prod(np.clip(one[:, 2:] - one[:, :2], 0, None), axis=1) for one in (outer_a, outer_b)]
        union = areas[0][:, None] + areas[1] - common
        return common * (1 - sign * 1e-5) > self.iou * union


def _edges(boxes: Any) -> Any:
    return np.concatenate([boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2], axis=1)
