"""Drawings as inline SVG: light, printable, and coloured by the page's own CSS variables.

Series are distinguished by colour, by dash and by marker, so that no reader depends on colour.
Every drawing says in words what it shows, for readers who cannot see it.
"""

import math
from collections.abc import Mapping, Sequence

from markupsafe import Markup, escape

from counterlens.report.kit import svg
from counterlens.report.kit.svg import Frame, Series


def curves(
    series: Sequence[Series],
    *,
    title: str,
    x_label: str,
    y_label: str,
    percent: bool = True,
    ys: tuple[float, float] | None = None,
    x_percent: bool = False,
    narrow: bool = False,
) -> Markup:
    """Lines over a common axis, with bands where bounds are known."""
    x_values = [x for s in series for x, _ in s.points]
    y_values = [y for s in series for _, y in s.points] + [
        b for s in series for p in s.bounds for b in p
    ]
    frame = Frame(
        width=300 if narrow else 400,
        height=340 if narrow else 270,
        xs=(min(0.0, *x_values, 0.0), max(x_values)) if x_values else (0.0, 1.0),
        ys=ys or _range(y_values),
    )
    parts = [svg.axes(frame, x_label, y_label, percent=percent, x_percent=x_percent)]
    for index, line in enumerate(series):
        parts.append(svg.band(frame, line, index))
        parts.append(svg.line(frame, line, index))
    names = ", ".join(s.name for s in series)
    return svg.drawing(frame, title, f"Lines for {names}. {x_label} against {y_label}.", parts)


def sizes(series: Sequence[Series], *, title: str, y_label: str, percent: bool = True) -> Markup:
    """Points with whiskers over a logarithmic number of parameters; each series is joined."""
    counts = [x for s in series for x, _ in s.points]
    xs = math.log10(min(counts)) - 0.12, math.log10(max(counts)) + 0.12
    values = [v for s in series for pair in s.bounds for v in pair]
    low, high = min(values), max(values)
    room = 0.08 * (high - low) or 0.05
    ys = max(0.0, low - room), min(1.0, high + room) if percent and high <= 1 else high + room
    frame = Frame(width=300, height=270, xs=xs, ys=ys)
    parts = [svg.axes(frame, "Parameters", y_label, percent=percent, over=_decades(*xs))]
    for index, line in enumerate(series):
        points = [(math.log10(x), y) for x, y in line.points]
        for (x, _), (lower, upper) in zip(points, line.bounds, strict=True):
            ends = [(frame.x(x), frame.y(lower)), (frame.x(x), frame.y(upper))]
            parts.append(svg.path(ends, f"stem s{index % 6}"))
        parts.append(svg.line(frame, Series(line.name, points, labels=line.labels), index))
    text = "; ".join(
        f"{label}, {x / 1e6:.3g} million parameters: {svg.tick(y, percent)}"
        for line in series
        for label, (x, y) in zip(line.labels, line.points, strict=True)
    )
    return svg.drawing(frame, title, text, parts)


def _decades(low: float, high: float) -> list[tuple[float, str]]:
    """Round numbers between two powers of ten, as places and words.

    >>> _decades(6.0, 7.0)
    [(6.0, '1 M'), (6.301, '2 M'), (6.699, '5 M'), (7.0, '10 M')]
    """
    wide = high - low
    steps: tuple[float, ...] = (1, 2, 5) if wide <= 1.5 else (1,)
    steps = (1, 1.5, 2, 3, 4, 6, 8) if wide < 0.7 else steps
    tens = range(math.floor(low), math.ceil(high) + 1)
    ticks = [(math.log10(step * 10.0**k), step * 10.0**k) for k in tens for step in steps]
    return [
        (round(x, 3), f"{v / 1e6:g} M" if v >= 1e5 else f"{v / 1e3:g} k")
        for x, v in ticks
        if low - 1e-9 <= x <= high + 1e-9
    ]


def reliability(rows: Sequence[Mapping[str, float]], *, title: str) -> Markup:
    """Accuracy per bin of confidence against the diagonal, with a count of images beneath."""
    frame = Frame(width=300, height=340, bottom=118)
    parts = [
        svg.axes(frame, "", "Accuracy", percent=True, x_percent=True),
        svg.path([(frame.x(0), frame.y(0)), (frame.x(1), frame.y(1))], "diagonal"),
    ]
    most = max((row["n"] for row in rows), default=1) or 1
    floor, reach = frame.height - 30, 40.0
    for row in rows:
        if not row["n"]:
            continue
        x, wide = frame.x(row["bin_low"]), frame.x(row["bin_high"]) - frame.x(row["bin_low"])
        parts.append(svg.rect(x, frame.y(row["accuracy"]), wide, frame.y(0), "bar s0"))
        high, low = sorted((frame.y(row["accuracy"]), frame.y(row["confidence"])))
        kind = "over" if row["confidence"] > row["accuracy"] else "under"
        parts.append(svg.rect(x, high, wide, low, f"gap {kind}"))
        parts.append(svg.rect(x, floor - reach * row["n"] / most, wide, floor, "count"))
    parts += [
        svg.text(frame.left, floor - reach - 10, "Images per bin", "small"),
        svg.text((frame.x(0) + frame.x(1)) / 2, frame.height - 6, "Confidence", "label", "middle"),
        svg.path([(frame.x(0), floor), (frame.x(1), floor)], "axis"),
    ]
    worst = max(rows, key=lambda r: abs(r["accuracy"] - r["confidence"]) * r["n"], default=None)
    text = (
        f"Largest share of the error between confidence {100 * worst['bin_low']:.0f} % and "
        f"{100 * worst['bin_high']:.0f} %: accuracy {100 * worst['accuracy']:.1f} %, "
        f"mean confidence {100 * worst['confidence']:.1f} %, {worst['n']:,} images."
        if worst
        else "No images."
    )
    return svg.drawing(frame, title, text, parts)


def histogram(
    rows: Sequence[Mapping[str, float]],
    reference: Sequence[Mapping[str, float]],
    *,
    title: str,
    colour: int = 1,
) -> Markup:
    """Confidence on one set as filled bars, on the reference set as an outline.

    An outline more than twice as high as the bars is cut off, and its height is written there.
    """
    own = max((r["share"] for r in rows), default=0.0) or 1.0
    other = max((r["share"] for r in reference), default=0.0)
    top = min(max(own, other), 2 * own)
    frame = Frame(width=270, height=180, left=44, top=10, bottom=40, ys=(0.0, top * 1.05))
    parts = [svg.axes(frame, "Confidence", "", percent=True, x_percent=True, wanted=3)]
    for row in rows:
        left, right = frame.x(row["bin_low"]), frame.x(row["bin_high"])
        parts.append(
            svg.rect(left, frame.y(row["share"]), right - left, frame.y(0), f"bar s{colour}")
        )
    steps: list[tuple[float, float]] = []
    for row in reference:
        height = frame.y(min(row["share"], frame.ys[1]))
        steps += [(frame.x(row["bin_low"]), height), (frame.x(row["bin_high"]), height)]
    if steps:
        start, end = (steps[0][0], frame.y(0)), (steps[-1][0], frame.y(0))
        parts.append(svg.path([start, *steps, end], "outline"))
    if other > 2 * own:
        tall = max(reference, key=lambda r: r["share"])
        left = frame.x(tall["bin_low"]) - 4
        parts.append(svg.text(left, frame.top + 10, f"{svg.tick(other, True)} ↑", "tick", "end"))
    high = sum(r["share"] for r in rows if r["bin_low"] >= 0.9 - 1e-9)
    return svg.drawing(
        frame, title, f"{100 * high:.1f} % of the images above confidence 90 %.", parts
    )


def dots(
    rows: Sequence[tuple[str, float, float | None, float | None, bool]],
    *,
    title: str,
    percent: bool = True,
) -> Markup:
    """One value with its interval per line; failing ones are drawn hollow."""
    ends = [v for _, value, low, high, _ in rows for v in (value, low, high) if v is not None]
    low, high = min(ends), max(ends)
    room = (high - low) * 0.12 or 0.05
    xs = (max(0.0, low - room) if low >= 0 else low - room, high + room)
    if percent and high <= 1.0:
        xs = (xs[0], min(xs[1], 1.0))
    frame = Frame(width=270, height=46 + 40 * len(rows), left=8, bottom=28, top=8, xs=xs)
    parts = []
    floor = frame.height - frame.bottom
    for value in svg.ticks(*xs, 4):
        x = frame.x(value)
        parts.append(svg.path([(x, frame.top), (x, floor)], "grid"))
        parts.append(svg.text(x, floor + 17, svg.tick(value, percent), "tick", "middle"))
    for index, (name, value, lower, upper, failing) in enumerate(rows):
        y = frame.top + 40 * index + 30
        parts.append(svg.text(frame.left, y - 12, _short(name), "tick"))
        if lower is not None and upper is not None:
            parts.append(svg.path([(frame.x(lower), y), (frame.x(upper), y)], "whisker"))
        kind = "dot hollow" if failing else "dot"
        parts.append(f'<circle class="{kind}" cx="{frame.x(value):.1f}" cy="{y:.1f}" r="4.5"/>')
    text = "; ".join(f"{name} {svg.tick(value, percent)}" for name, value, *_ in rows)
    return svg.drawing(frame, title, text, parts)


def _short(name: str, most: int = 40) -> str:
    return name if len(name) <= most else f"{name[: most // 2 - 1]}…{name[-most // 2 :]}"


def interval_bar(
    value: float | None,
    low: float | None,
    high: float | None,
    *,
    scale: tuple[float, float] = (0.0, 1.0),
) -> Markup | None:
    """A value with its interval on a thin track; the numbers stand beside it as text."""
    if value is None:
        return None
    span = (scale[1] - scale[0]) or 1.0

    def place(v: float) -> float:
        return 4 + 112 * min(max((v - scale[0]) / span, 0.0), 1.0)

    parts = ['<rect class="track" x="2" y="5" width="116" height="2" rx="1"/>']
    if low is not None and high is not None:
        wide = max(place(high) - place(low), 1.5)
        parts.append(
            f'<rect class="range" x="{place(low):.1f}" y="3" width="{wide:.1f}" height="6" rx="3"/>'
        )
    parts.append(f'<circle class="dot" cx="{place(value):.1f}" cy="6" r="3.2"/>')
    return Markup(
        '<svg class="interval" viewBox="0 0 120 12" aria-hidden="true">%s</svg>'
    ) % Markup("".join(parts))


def share_bar(value: float, most: float = 1.0) -> Markup:
    """A share as a bar from the left; the number stands beside it as text."""
    wide = 116 * min(max(value / (most or 1.0), 0.0), 1.0)
    return Markup(
        '<svg class="interval" viewBox="0 0 120 12" aria-hidden="true">'
        '<rect class="track" x="2" y="5" width="116" height="2" rx="1"/>'
        f'<rect class="fill" x="2" y="3" width="{wide:.1f}" height="6" rx="1.5"/></svg>'
    )


def swatch(index: int, kind: str = "line") -> Markup:
    """A sample of a series for the legend."""
    if kind == "line":
        number = index % 6
        inner = (
            f'<path class="line s{number}" stroke-dasharray="{svg.DASHES[number]}" d="M1 7H27"/>'
            f"{svg.marker(14, 7, index)}"
        )
    elif kind == "outline":
        inner = '<path class="outline" d="M3 13V4H25V13"/>'
    else:
        inner = f'<rect class="{escape(kind)}" x="3" y="2" width="22" height="11" rx="1.5"/>'
    return Markup('<svg class="swatch" viewBox="0 0 28 14" aria-hidden="true">%s</svg>') % Markup(
        inner
    )


def _range(values: Sequence[float]) -> tuple[float, float]:
    if not values:
        return 0.0, 1.0
    low, high = min(0.0, *values), max(values)
    if 0.6 < high <= 1.0:
        return low, 1.0
    return low, high * 1.08 if high > low else low + 1.0


__all__ = [
    "Series",
    "curves",
    "dots",
    "histogram",
    "interval_bar",
    "reliability",
    "share_bar",
    "sizes",
    "swatch",
]
