"""Tables of papers on the terminal: theirs, ours, side by side."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

WIDE = 150


def show_table1(
    rows: Sequence[Mapping[str, Any]],
    measured: Sequence[Mapping[str, Any]],
    differences: Sequence[Mapping[str, str]],
) -> None:
    """Print "ours (paper)" per model and column to standard error, and what differs in protocol."""
    states = {row["row"]: row for row in measured}
    metrics = list(dict.fromkeys(row["metric"] for row in rows))
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("ours (paper), %")
    for metric in metrics:
        table.add_column(metric, justify="right", no_wrap=True)
    table.add_column("from")
    for name in states:
        cells = [_cell(row) for row in rows if row["row"] == name]
        table.add_row(name, *cells, _source(states[name]))
    console = Console(stderr=True)
    console = console if console.is_terminal else Console(stderr=True, width=WIDE)
    console.print(table)
    console.print(_LEGEND)
    for row in measured:
        if row["failures"]:
            console.print(f"Failure cases of {row['row']}: {'; '.join(row['failures'])}.")
        for text in row["unjudged"]:
            console.print(f"Not judged of {row['row']}: {text}.")
    apart = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("differs", "paper", "ours"):
        apart.add_column(title)
    for row in differences:
        apart.add_row(row["what"], row["paper"], row["ours"])
    console.print(apart)


_LEGEND = (
    "– not measured; ? attack not trusted; T is no per cent. AUC, WC-AUC, MMC are not like for "
    "like: ours are means over four far sets, the paper's over six with CIFAR-100, ImageNet− and "
    "noise among them. Set by set, all pairs of models, n, interval and protocol: report.html."
)


def _cell(row: Mapping[str, Any]) -> str:
    scale, digits = (1, 2) if row["metric"] == "T" else (100, 1)
    ours, paper = (
        "–" if row[side] is None else f"{scale * row[side]:.{digits}f}"
        for side in ("ours", "paper")
    )
    mark = "?" if row.get("verdict") in ("weak", "do not quote") else ""
    return f"{ours}{mark} ({paper})"


def _source(row: Mapping[str, Any]) -> str:
    return f"{row['state']}: {row['recipe']}" if row["recipe"] else str(row["state"])
