"""What a report page is made of: plain records that the templates turn into HTML."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from markupsafe import Markup

Tone = Literal["", "good", "warn", "bad", "muted"]
Level = Literal["act", "watch"]

MANY_COLUMNS = 10
"""More than these are wider than a screen."""
FEW_ROWS = 4
LONGEST_WORD = 20


@dataclass(frozen=True)
class Badge:
    """A word with a tone; its sign makes it readable without colour."""

    text: str
    tone: Tone = ""

    @property
    def sign(self) -> str:
        """A shape that says the same as the colour."""
        return {"good": "✓", "warn": "!", "bad": "✕"}.get(self.tone, "")


@dataclass(frozen=True)
class Cell:
    """One cell of a table.

    Args:
        text: what it says.
        sub: a smaller second line, such as an interval.
        sort: what the column sorts by; the text itself when None.
        badge: a verdict shown beside the text.
        bar: a small inline drawing.
        tone: background of the cell.
        more: a second small line, such as n.
    """

    text: str
    sub: str = ""
    sort: float | str | None = None
    badge: Badge | None = None
    bar: Markup | None = None
    tone: Tone = ""
    more: str = ""

    @property
    def breaks(self) -> bool:
        """It holds a word so long that it may be broken anywhere."""
        words = f"{self.text} {self.sub}".replace("-", " ").split()
        return any(len(word) > LONGEST_WORD for word in words)


@dataclass(frozen=True)
class Column:
    """The head of a column."""

    name: str
    numeric: bool = False
    sub: str = ""
    long: bool = False


@dataclass(frozen=True)
class Table:
    """Rows and columns.

    Args:
        caption: what the table shows; `quiet` keeps it for screen readers where a heading says it.
        sortable: the browser may sort it.
        note: a line beneath.
        folded: behind an expander.
    """

    kind: ClassVar[str] = "table"
    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    sortable: bool = False
    note: str = ""
    folded: bool = False
    quiet: bool = False

    @property
    def turned(self) -> bool:
        """Few rows of many columns are read better with a line for each column."""
        return len(self.columns) > MANY_COLUMNS and len(self.rows) <= FEW_ROWS


@dataclass(frozen=True)
class Figure:
    """One drawing with its legend and the figures it was drawn from."""

    kind: ClassVar[str] = "figure"
    title: str
    svg: Markup
    caption: str = ""
    legend: Sequence[tuple[Markup, str]] = ()
    data: Table | None = None


@dataclass(frozen=True)
class Row:
    """Figures side by side where the page is wide enough."""

    kind: ClassVar[str] = "row"
    figures: Sequence[Figure]
    small: bool = False


@dataclass(frozen=True)
class Picture:
    """One picture of a gallery."""

    source: str
    alt: str
    title: str
    line: str = ""
    sub: str = ""
    pixelated: bool = False
    number: int = 0
    badge: Badge | None = None


@dataclass(frozen=True)
class Gallery:
    """Pictures in a grid; each can be enlarged without a script."""

    kind: ClassVar[str] = "gallery"
    title: str
    pictures: Sequence[Picture]
    name: str
    note: str = ""


@dataclass(frozen=True)
class Strip:
    """A picture and what was made of it, side by side."""

    kind: ClassVar[str] = "strip"
    title: str
    text: str
    pictures: Sequence[Picture]
    name: str


@dataclass(frozen=True)
class Slider:
    """Two pictures of one size, one over the other up to a line that the reader moves.

    Args:
        fade: the reader moves how strongly it is drawn over the whole, in place of a line.
    """

    kind: ClassVar[str] = "slider"
    title: str
    before: Picture
    after: Picture
    change: Picture | None = None
    facts: Sequence[tuple[str, str]] = ()
    fade: bool = False


@dataclass(frozen=True)
class Protocols:
    """How the numbers above were measured."""

    kind: ClassVar[str] = "protocols"
    lines: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    kind: ClassVar[str] = "text"
    text: str


@dataclass(frozen=True)
class Code:
    """Text to copy, or a manifest to read."""

    kind: ClassVar[str] = "code"
    title: str
    text: str
    folded: bool = True
    copy: bool = False


Block = Table | Figure | Row | Gallery | Strip | Slider | Protocols | Text | Code


@dataclass(frozen=True)
class Section:
    """A heading with blocks beneath it."""

    name: str
    title: str
    blocks: Sequence[Block]
    lead: str = ""
    short: str = ""


@dataclass(frozen=True)
class Tile:
    """A headline number."""

    label: str
    value: str
    interval: str
    n: int
    protocol: str
    bar: Markup | None = None
    badge: Badge | None = None
    why: Sequence[str] = ()


@dataclass(frozen=True)
class Worry:
    """Something to act on or to watch, in plain words."""

    level: Level
    title: str
    text: str
    link: str = ""


@dataclass(frozen=True)
class Page:
    """A whole report."""

    title: str
    eyebrow: str
    subtitle: str
    facts: Sequence[tuple[str, str]]
    sections: Sequence[Section]
    tiles: Sequence[Tile] = ()
    warnings: Sequence[Worry] | None = None
    rules: Sequence[str] = ()
    gates: Table | None = None
    verdict: Badge | None = None
    notices: Sequence[Badge] = field(default_factory=tuple)
    version: str = ""
