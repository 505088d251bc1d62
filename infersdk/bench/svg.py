"""Plots as inline SVG: scatter plots on logarithmic axes, and stacked bars. Colours come from the page's style."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

__all__ = ["Bar", "Mark", "scatter", "stacked_bars"]

WIDTH = 720
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 24, 16, 52
_RADIUS = 10.0


@dataclass
class Mark:
    """A point of a scatter plot, with a number in it.

    Attributes:
        x, y: in the units of the axes.
        number: what it is called in the table.
        colour: the number of a series, from 0.
        tip: what is told of it.
        hollow: drawn as a ring.
        x_range, y_range: its intervals.
    """

    x: float
    y: float
    number: int
    colour: int
    tip: str
    hollow: bool = False
    x_range: tuple[float, float] | None = None
    y_range: tuple[float, float] | None = None


@dataclass
class Bar:
    """A bar of parts one after another: (value, colour, tip) each."""

    label: str
    parts: list[tuple[float, int, str]] = field(default_factory=list)


class _Axis:
    """From values to pixels. Logarithmic where all values are above 0 and it is asked for."""

    def __init__(self, values: Sequence[float], low: float, high: float, *, log: bool) -> None:
        self.log = log and min(values) > 0
        first, last = min(values), max(values)
        if self.log:
            # A third of a decade of air at least, so that a single point does not fill the plot.
            a, b = math.log10(first), math.log10(last)
            room = max(0.08 * (b - a), (0.4 - (b - a)) / 2, 0.04)
            self._from, self._to = a - room, b + room
        else:
            room = max(0.12 * (last - first), 0.01 * max(abs(last), abs(first)), 1e-6)
            self._from, self._to = first - room, last + room
        self._low, self._high = low, high

    def at(self, value: float) -> float:
        v = math.log10(value) if self.log else value
        return self._low + (v - self._from) / (self._to - self._from) * (self._high - self._low)

    def ticks(self, most: int = 7) -> list[float]:
        if not self.log:
            return _round_numbers(self._from, self._to, most)
        for steps in ((1, 2, 3, 4, 5, 6, 7, 8, 9), (1, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
            found = [
                step * 10.0**power
                for power in range(math.floor(self._from), math.ceil(self._to) + 1)
                for step in steps
                if self._from <= math.log10(step) + power <= self._to
            ]
            if len(found) <= most:
                break
        if len(found) >= 3:
            return found
        found = _round_numbers(10**self._from, 10**self._to, most)
        return [value for value in found if value > 0]


def _round_numbers(first: float, last: float, most: int) -> list[float]:
    rough = (last - first) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(s * power for s in (1, 2, 2.5, 5, 10) if s * power >= rough)
    return [i * step for i in range(math.ceil(first / step - 1e-9), math.floor(last / step + 1e-9) + 1)]


def number(value: float) -> str:
    """As a tick says it: three or four digits, thousands apart."""
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def scatter(
    marks: Sequence[Mark],
    x_title: str,
    y_title: str,
    *,
    log: bool = True,
    log_y: bool | None = None,
    height: int = 400,
    y_most: float = math.inf,
) -> str:
    """Marks that would cover each other are pushed apart, with a line to where they belong.

    Args:
        y_most: the vertical axis has no ticks beyond it.
    """
    xs = [v for m in marks for v in (m.x, *(m.x_range or ()))]
    ys = [v for m in marks for v in (m.y, *(m.y_range or ()))]
    x = _Axis(xs, _LEFT, WIDTH - _RIGHT, log=log)
    y = _Axis(ys, height - _BOTTOM, _TOP, log=log if log_y is None else log_y)
    out = [_open(height, f"{y_title} against {x_title}"), *_grid(x, y, height, x_title, y_title, y_most)]
    for mark in marks:
        c = f"s{mark.colour}"
        if mark.x_range and mark.x_range[1] > mark.x_range[0]:
            a, b = (x.at(v) for v in mark.x_range)
            out.append(f'<path class="whisker {c}" d="M{a:.1f} {y.at(mark.y):.1f}H{b:.1f}"/>')
        if mark.y_range and mark.y_range[1] > mark.y_range[0]:
            a, b = (y.at(v) for v in mark.y_range)
            out.append(f'<path class="whisker {c}" d="M{x.at(mark.x):.1f} {a:.1f}V{b:.1f}"/>')
    there = [(x.at(m.x), y.at(m.y)) for m in marks]
    for mark, (ax, ay), (bx, by) in zip(marks, there, _apart(there, height), strict=True):
        if math.hypot(bx - ax, by - ay) > 3:
            out.append(f'<path class="leader s{mark.colour}" d="M{ax:.1f} {ay:.1f}L{bx:.1f} {by:.1f}"/>')
            out.append(f'<circle class="dot s{mark.colour}" cx="{ax:.1f}" cy="{ay:.1f}" r="2.5"/>')
        shape = "ring" if mark.hollow else "disc"
        out.append(
            f'<g class="mark {shape} s{mark.colour}" tabindex="0" data-tip="{escape(mark.tip)}">'
            f'<circle cx="{bx:.1f}" cy="{by:.1f}" r="{_RADIUS:g}"/>'
            f'<text x="{bx:.1f}" y="{by + 3.6:.1f}">{mark.number}</text></g>'
        )
    return "".join(out) + "</svg>"


def _apart(points: Sequence[tuple[float, float]], height: int) -> list[tuple[float, float]]:
    """The points moved until no two are closer than a mark is wide, within the plot."""
    moved = [(px + 1e-3 * i, py) for i, (px, py) in enumerate(points)]
    least = 2 * _RADIUS + 1
    for _ in range(200):
        quiet = True
        for i in range(len(moved)):
            for j in range(i):
                (ax, ay), (bx, by) = moved[i], moved[j]
                dx, dy = ax - bx, ay - by
                gap = math.hypot(dx, dy) or 1e-6
                if gap < least:
                    quiet = False
                    push = (least - gap) / 2 + 0.05
                    ux, uy = dx / gap, dy / gap
                    moved[i] = _inside(ax + push * ux, ay + push * uy, height)
                    moved[j] = _inside(bx - push * ux, by - push * uy, height)
        if quiet:
            break
    return moved


def _inside(x: float, y: float, height: int) -> tuple[float, float]:
    return (
        min(max(x, _LEFT + _RADIUS), WIDTH - _RIGHT - _RADIUS),
        min(max(y, _TOP + _RADIUS), height - _BOTTOM - _RADIUS),
    )


def _grid(x: _Axis, y: _Axis, height: int, x_title: str, y_title: str, most: float) -> list[str]:
    bottom, right = height - _BOTTOM, WIDTH - _RIGHT
    out = []
    for tick in x.ticks():
        at = x.at(tick)
        out.append(f'<path class="grid" d="M{at:.1f} {_TOP}V{bottom}"/>')
        out.append(f'<text class="tick" text-anchor="middle" x="{at:.1f}" y="{bottom + 18}">{number(tick)}</text>')
    for tick in y.ticks():
        if tick > most + 1e-9:
            break
        at = y.at(tick)
        out.append(f'<path class="grid" d="M{_LEFT} {at:.1f}H{right}"/>')
        out.append(f'<text class="tick" text-anchor="end" x="{_LEFT - 8}" y="{at + 4:.1f}">{number(tick)}</text>')
    out.append(f'<path class="axis" d="M{_LEFT} {bottom}H{right}"/>')
    middle = (_LEFT + right) / 2
    out.append(f'<text class="title" text-anchor="middle" x="{middle:g}" y="{height - 10}">{escape(x_title)}</text>')
    turn = f"rotate(-90 14 {(_TOP + bottom) / 2:g})"
    out.append(
        f'<text class="title" text-anchor="middle" x="14" y="{(_TOP + bottom) / 2:g}" transform="{turn}">'
        f"{escape(y_title)}</text>"
    )
    return out


def stacked_bars(bars: Sequence[Bar], x_title: str, *, label_width: int = 190) -> str:
    """One bar below another, with the sum at its end."""
    row, thick = 30, 18
    height = _TOP + row * len(bars) + _BOTTOM
    longest = max(sum(value for value, _, _ in bar.parts) for bar in bars) or 1.0
    left, right = label_width, WIDTH - 84
    out, bottom = [_open(height, x_title)], height - _BOTTOM
    for tick in _round_numbers(0, longest, 6):
        at = left + tick / longest * (right - left)
        out.append(f'<path class="grid" d="M{at:.1f} {_TOP}V{bottom}"/>')
        out.append(f'<text class="tick" text-anchor="middle" x="{at:.1f}" y="{bottom + 18}">{number(tick)}</text>')
    for i, bar in enumerate(bars):
        y = _TOP + i * row + (row - thick) / 2
        out.append(f'<text class="label" text-anchor="end" x="{left - 10}" y="{y + 13:.1f}">{escape(bar.label)}</text>')
        at = float(left)
        for value, colour, tip in bar.parts:
            wide = value / longest * (right - left)
            if wide >= 0.3:
                # A gap of the page's colour between parts, where they are wide enough for one.
                drawn = max(wide - 1.5, 0.5) if wide > 3 else wide
                out.append(
                    f'<rect class="part s{colour}" tabindex="0" data-tip="{escape(tip)}" x="{at:.1f}" y="{y:.1f}" '
                    f'width="{drawn:.2f}" height="{thick}" rx="2"/>'
                )
            at += wide
        total = number(float(f"{sum(value for value, _, _ in bar.parts):.3g}"))
        out.append(f'<text class="value" x="{at + 8:.1f}" y="{y + 13:.1f}">{total}</text>')
    middle = (left + right) / 2
    out.append(f'<text class="title" text-anchor="middle" x="{middle:g}" y="{height - 10}">{escape(x_title)}</text>')
    return "".join(out) + "</svg>"


def _open(height: int, label: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(label)}">'
