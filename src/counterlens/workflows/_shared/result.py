"""What every workflow returns: one Result, which reads its run folder and loads no torch."""

import sys
import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from counterlens.errors import InputError, MissingExtra, nearest
from counterlens.runs import Number, Run, file_bytes, user_path

if TYPE_CHECKING:
    from pandas import DataFrame

    from counterlens.images import PillowImage


class Numbers(dict[str, Number]):
    """The numbers of a result by key; a key that it does not have names the nearest one."""

    def __missing__(self, key: str) -> Number:
        near = nearest(str(key), self)
        hint = f"Did you mean {near}?" if near else f"It has: {', '.join(self) or 'none'}."
        raise KeyError(f"the result has no number {key!r}. {hint}")


class Table(list[dict[str, Any]]):
    """The rows of a table, each a dictionary from column to value."""

    def frame(self) -> "DataFrame":
        """The rows as a pandas DataFrame, where pandas is installed."""
        try:
            import pandas
        except ImportError:
            raise MissingExtra(
                "frame needs pandas: pip install pandas. Without it, .table(name) gives rows."
            ) from None
        return pandas.DataFrame(self)


@dataclass(frozen=True, repr=False)
class Result:
    """A finished run: its numbers, tables, images and page. A notebook shows a summary of it.

    Args:
        run: the run folder that everything is read from.
        parts: results of the runs that it is made of, such as the audits behind a comparison.
    """

    run: Run
    parts: "tuple[Result, ...]" = ()

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self.run.folder

    @property
    def done(self) -> bool:
        """Whether the run came to its end; a training that is out of time has not."""
        return self.run.done

    @property
    def manifest(self) -> dict[str, Any]:
        """Command, settings, versions, hashes, seed, device: what run.json holds."""
        return self.run.manifest

    @property
    def numbers(self) -> Numbers:
        """Every measured number by key, each with value, low, high, n and protocol."""
        return Numbers(self.run.numbers)

    def tables(self) -> list[str]:
        """The names of the tables."""
        return self.run.tables()

    def table(self, name: str) -> Table:
        """A table as rows, with `.frame()` for pandas; empty where the run has no such table."""
        return Table(self.run.table(name))

    def frame(self, name: str) -> "DataFrame":
        """A table as a pandas DataFrame, where pandas is installed."""
        return self.table(name).frame()

    def images(self, name: str | None = None) -> "list[PillowImage]":
        """Pillow images: of a gallery ("mistakes"), of a table, or all of the run."""
        from counterlens.images import decode_pillow

        return [decode_pillow(file_bytes(p), str(p)) for p in self.image_files(name)]

    def image_files(self, name: str | None = None) -> list[Path]:
        """Paths of the images that `images` would open."""
        every = sorted((self.folder / "images").glob("*.png"))
        if name is None:
            return every
        gallery = [row for row in self.table("gallery") if row.get("group") == name]
        rows = gallery or self.table(name)
        if paths := list(dict.fromkeys(path for row in rows for path in _paths(row))):
            return [self.run.file(path) for path in paths]
        if named := [path for path in every if path.stem.startswith(name)]:
            return named
        groups = dict.fromkeys(str(row["group"]) for row in self.table("gallery"))
        known = [*groups, *(t for t in self.tables() if any(map(_paths, self.table(t))))]
        raise InputError(
            f"the run has no images {name!r}. It has: {', '.join(dict.fromkeys(known)) or 'none'}."
        )

    @property
    def figures(self) -> list[Path]:
        """The figures as PNG files; a PDF lies beside each."""
        return sorted((self.folder / "images").glob("figure*.png"))

    @property
    def report(self) -> Path:
        """The page: one file that works offline."""
        return self.folder / "report.html"

    def show(self) -> None:
        """Open the report: inside the notebook where there is one, else in the browser."""
        if not self.report.exists():
            raise InputError(f"{self.folder} has no report: its run is not finished.")
        if "ipykernel" in sys.modules:
            from IPython.display import IFrame, display

            display(IFrame(self.report, "100%", 800))
        elif not webbrowser.open(self.report.resolve().as_uri()):
            print(self.report)

    def __repr__(self) -> str:
        parts = f", {len(self.parts)} parts" if self.parts else ""
        command = self.manifest["command"]
        return f"<Result of {command}: {len(self.run.numbers)} numbers{parts}, {self.folder}>"

    def _repr_html_(self) -> str:
        from counterlens.workflows._shared.summary import summary_html

        return summary_html(self)


def open_result(folder: str | Path) -> Result:
    """The result in a run folder, whoever wrote it; of a comparison without its parts.

    >>> result = open_result("runs/mine")                                   # doctest: +SKIP
    """
    return Result(Run.open(user_path(folder)))


def runs_of(given: Sequence[Any]) -> list[Any]:
    """Runs, results and lists of them, flat: of a result with parts its parts."""
    out: list[Any] = []
    for one in given:
        if isinstance(one, Result):
            out += runs_of(one.parts) if one.parts else [one.run]
        else:
            out += runs_of(one) if isinstance(one, list | tuple) else [one]
    return out


def _paths(row: dict[str, Any]) -> list[str]:
    """The images that the cells of a row name."""
    cells = [
        cell for value in row.values() for cell in (value if isinstance(value, list) else [value])
    ]
    return [cell for cell in cells if isinstance(cell, str) and cell.startswith("images/")
            and cell.endswith(".png")]  # fmt: skip
