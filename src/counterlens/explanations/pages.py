"""Pages of text and tables as a PDF with text that can be selected and searched.

A4, one column; a long cell is broken over lines, a long table over pages.
"""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from counterlens.runs import atomic

PageTable = tuple[Sequence[str], Sequence[Sequence[str]]]
"""Head and rows."""
PagePart = tuple[str, Sequence[str], Sequence[PageTable]]
"""Heading, lines and tables."""
WIDTH, HEIGHT = 8.27, 11.69  # inches
LEFT, TOP, BOTTOM = 0.75, 0.8, 0.8
SIZE, LINE = 8.0, 0.155
"""Points of the text, inches between lines."""
PER_INCH = 15.8
"""Letters of that size in an inch, on average."""


def write_pdf(path: Path, title: str, parts: Sequence[PagePart]) -> None:
    """Write a document: its title, then per part a heading, lines and tables."""
    from matplotlib.backends.backend_pdf import PdfPages

    with atomic(path) as target, PdfPages(target, metadata={"Title": title}) as pdf:
        page = _Page(pdf, title)
        page.text(title, size=15, gap=2.6)
        for number, (heading, lines, tables) in enumerate(parts, 1):
            page.heading(f"{number}. {heading}")
            for line in lines:
                page.paragraph(line, bullet=len(lines) > 1)
            for head, rows in tables:
                page.table(head, rows)
        page.end()


class _Page:
    """The page that is being written; a full one is stored and a new one begun."""

    def __init__(self, pdf: Any, title: str) -> None:
        self.pdf, self.title, self.number = pdf, title, 0
        self.figure: Any = None
        self._begin()

    def _begin(self) -> None:
        from matplotlib.figure import Figure

        self.number += 1
        self.figure = Figure(figsize=(WIDTH, HEIGHT))
        self.y = HEIGHT - TOP
        self._put(WIDTH - LEFT, 0.45, f"{self.number}", align="right", colour="0.4")
        self._put(LEFT, 0.45, textwrap.shorten(self.title, 100, placeholder=" …"), colour="0.4")

    def _put(
        self, x: float, y: float, text: str, *, size: float = SIZE, bold: bool = False,
        align: str = "left", colour: str = "0.1",
    ) -> None:  # fmt: skip
        text = text.replace("$", r"\$")
        self.figure.text(
            x / WIDTH, y / HEIGHT, text, fontsize=size, ha=align, va="baseline", color=colour,
            weight="bold" if bold else "normal", family="DejaVu Sans",
        )  # fmt: skip

    def room(self, inches: float) -> None:
        """Begin a new page unless so much is left of this one."""
        if self.y - inches < BOTTOM:
            self.end()
            self._begin()

    def text(self, text: str, *, size: float = SIZE, bold: bool = False, gap: float = 1.0) -> None:
        for line in textwrap.wrap(text, int((WIDTH - 2 * LEFT) * PER_INCH * SIZE / size)) or [""]:
            self.room(LINE)
            self._put(LEFT, self.y, line, size=size, bold=bold)
            self.y -= LINE * max(1.0, size / SIZE)
        self.y -= LINE * (gap - 1)

    def heading(self, text: str) -> None:
        self.room(6 * LINE)  # never alone at the foot of a page
        self.y -= 0.8 * LINE
        self.text(text, size=11, bold=True, gap=1.4)

    def paragraph(self, text: str, *, bullet: bool) -> None:
        width = int((WIDTH - 2 * LEFT) * PER_INCH) - 2
        for i, line in enumerate(textwrap.wrap(text, width) or [""]):
            self.room(LINE)
            if bullet and i == 0:
                self._put(LEFT, self.y, "•")
            self._put(LEFT + (0.15 if bullet else 0), self.y, line)
            self.y -= LINE
        self.y -= 0.3 * LINE

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        widths = _widths([head, *rows])
        self.y -= 0.3 * LINE
        self.room(3 * LINE)
        self._line(head, widths, bold=True)
        for row in rows:
            tall = max(len(_wrapped(cell, width)) for cell, width in zip(row, widths, strict=True))
            if self.y - tall * LINE < BOTTOM:
                self.room(HEIGHT)
                self._line(head, widths, bold=True)
            self._line(row, widths)
        self.y -= 0.8 * LINE

    def _line(self, row: Sequence[str], widths: Sequence[float], *, bold: bool = False) -> None:
        from matplotlib.lines import Line2D

        cells = [_wrapped(cell, width) for cell, width in zip(row, widths, strict=True)]
        x = LEFT
        for lines, width in zip(cells, widths, strict=True):
            for i, line in enumerate(lines):
                self._put(x, self.y - i * LINE, line, bold=bold)
            x += width
        self.y -= max(map(len, cells)) * LINE
        y = (self.y + 0.68 * LINE) / HEIGHT
        ends = [LEFT / WIDTH, (WIDTH - LEFT) / WIDTH]
        self.figure.add_artist(Line2D(ends, [y, y], color="0.4" if bold else "0.88", linewidth=0.5))
        self.y -= 0.12 * LINE

    def end(self) -> None:
        """Store the page."""
        self.pdf.savefig(self.figure)


def _widths(rows: Sequence[Sequence[str]]) -> list[float]:
    """Inches of the columns: by their longest cells, none below a tenth or above six tenths."""
    whole = WIDTH - 2 * LEFT
    longest = [max(min(len(cell), 60) for cell in column) + 2 for column in zip(*rows, strict=True)]
    shares = [min(max(size / sum(longest), 0.1), 0.6) for size in longest]
    return [whole * share / sum(shares) for share in shares]


def _wrapped(cell: str, width: float) -> list[str]:
    return textwrap.wrap(cell.replace("\u202f", " "), max(6, int(width * PER_INCH) - 1)) or [""]
