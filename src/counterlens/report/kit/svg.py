"""Parts of drawings: a frame with scales, series, axes, lines, bars and words as SVG."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup, escape

DASHES = ("", "7 4", "2 4", "9 3 2 3", "12 5", "4 2")


@dataclass(frozen=True)
class Frame:
    """The plotting area and its scales."""

    width: float = 400
    height: float = 270
    left: float = 58
    right: float = 14
    top: float = 12
    bottom: float = 42
    xs: tuple[float, float] = (0.0, 1.0)
    ys: tuple[float, float] = (0.0, 1.0)

    def x(self, value: float) -> float:
        """Horizontal place of a value."""
        low, high = self.xs
        span = (high - low) or 1.0
        return self.left + (value - low) / span * (self.width - self.left - self.right)

    def y(self, value: float) -> float:
        """Vertical place of a value."""
        low, high = self.ys
        span = (high - low) or 1.0
        return (
            self.height
            - self.bottom
            - (value - low) / span * (self.height - self.top - self.bottom)
        )


@dataclass(frozen=True)
class Series:
    """One line.

    Args:
        name: what the legend calls it.
        points: (x, y) in the order of x.
        bounds: (low, high) of each y, if known.
        marked: which points get a marker; None marks all of a short line and none of a long one.
        labels: a name for each point, shown where the pointer rests.
    """

    name: str
    points: Sequence[tuple[float, float]]
    bounds: Sequence[tuple[float, float]] = ()
    marked: Sequence[bool] | None = None
    labels: Sequence[str] = ()


def ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """Round values between low and high.

    >>> ticks(0, 1), ticks(0, 0.13)
    ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [0.0, 0.05, 0.1])
    """
    if not high > low:
        return [low]
    raw = (high - low) / wanted
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * m for m in (1, 2, 2.5, 5, 10) if size * m >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def axes(
    frame: Frame,
    x_label: str,
    y_label: str,
    *,
    percent: bool,
    x_percent: bool = False,
    wanted: int = 5,
    over: Sequence[tuple[float, str]] | None = None,
) -> str:
    """Grid, ticks and labels."""
    parts = []
    for value in ticks(*frame.ys, wanted):
        y = frame.y(value)
        parts.append(path([(frame.x(frame.xs[0]), y), (frame.x(frame.xs[1]), y)], "grid"))
        parts.append(text(frame.left - 7, y + 4, tick(value, percent), "tick", "end"))
    for value, word in over or [(v, tick(v, x_percent)) for v in ticks(*frame.xs, 5)]:
        parts.append(text(frame.x(value), frame.y(frame.ys[0]) + 17, word, "tick", "middle"))
    base = frame.y(frame.ys[0])
    parts.append(path([(frame.x(frame.xs[0]), base), (frame.x(frame.xs[1]), base)], "axis"))
    if x_label:
        middle = (frame.left + frame.width - frame.right) / 2
        parts.append(text(middle, frame.height - 6, x_label, "label", "middle"))
    if y_label:
        middle = (frame.top + frame.y(frame.ys[0])) / 2
        parts.append(
            f'<text class="label" text-anchor="middle" transform="translate(13 {middle:.1f}) '
            f'rotate(-90)">{escape(y_label)}</text>'
        )
    return "".join(parts)


def tick(value: float, percent: bool) -> str:
    """A value as its tick says it."""
    return f"{100 * value:.3g}%" if percent else f"{value:.3g}"


def band(frame: Frame, series: Series, index: int) -> str:
    """The area between the bounds of a line."""
    if len(series.bounds) != len(series.points) or len(series.points) < 2:
        return ""
    xs = [frame.x(x) for x, _ in series.points]
    lower = [(x, frame.y(low)) for x, (low, _) in zip(xs, series.bounds, strict=True)]
    upper = [(x, frame.y(high)) for x, (_, high) in zip(xs, series.bounds, strict=True)]
    return path([*upper, *reversed(lower)], f"band s{index % 6}", close=True)


def line(frame: Frame, series: Series, index: int) -> str:
    """A line with its markers."""
    points = [(frame.x(x), frame.y(y)) for x, y in series.points]
    chosen = series.marked or [len(points) <= 25] * len(points)
    marks = [point for point, wanted in zip(points, chosen, strict=True) if wanted]
    ordered = all(a[0] <= b[0] for a, b in pairwise(points))
    line = (
        path(points, f"line s{index % 6}", dash=DASHES[index % 6])
        if ordered and len(points) > 1
        else ""
    )
    if len(series.labels) == len(marks):
        named = zip(marks, series.labels, strict=True)
        return line + "".join(
            f"<g><title>{escape(name)}</title>{marker(x, y, index)}</g>" for (x, y), name in named
        )
    return line + "".join(marker(x, y, index) for x, y in marks)


def marker(x: float, y: float, index: int) -> str:
    """The mark of a point, by the number of its series."""
    kind, name = index % 4, f"mark s{index % 6}"
    if kind == 0:
        return f'<circle class="{name}" cx="{x:.1f}" cy="{y:.1f}" r="3.3"/>'
    if kind == 1:
        return f'<rect class="{name}" x="{x - 3:.1f}" y="{y - 3:.1f}" width="6" height="6"/>'
    turn = 0 if kind == 2 else 180
    return (
        f'<path class="{name}" d="M0 -4.2L4 3.2H-4Z" '
        f'transform="translate({x:.1f} {y:.1f}) rotate({turn})"/>'
    )


def rect(x: float, top: float, width: float, floor: float, name: str) -> str:
    """A bar down to a floor, a little apart from its neighbours."""
    return (
        f'<rect class="{name}" x="{x + 0.75:.1f}" y="{top:.1f}" '
        f'width="{max(width - 1.5, 0.5):.1f}" height="{max(floor - top, 0):.1f}"/>'
    )


def path(
    points: Sequence[tuple[float, float]], name: str, *, dash: str = "", close: bool = False
) -> str:
    """A line through points."""
    steps = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<path class="{name}" d="M{steps}{"Z" if close else ""}"{dashed}/>'


def text(x: float, y: float, text: str, name: str, anchor: str = "start") -> str:
    """Words at a place."""
    return (
        f'<text class="{name}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
    )


def drawing(frame: Frame, title: str, text: str, parts: Sequence[str]) -> Markup:
    """All parts as one picture, with what it shows in words."""
    name = "plot narrow" if frame.width <= 300 else "plot"
    return Markup(
        f'<svg class="{name}" viewBox="0 0 {frame.width:g} {frame.height:g}" role="img" '
        f'aria-label="{escape(title)}. {escape(text)}">{"".join(parts)}</svg>'
    )
