"""The end of a command on the terminal: what was found, in reading order, and what to open next."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from counterlens.cli.show.next_step import next_step, short_path
from counterlens.report.kit.explained import headline_rows, second_opinion, sentence
from counterlens.runs import Number
from counterlens.runs.headline import headline_keys, kind
from counterlens.runs.keys import Unit, meaning, model_words, show_interval, show_number, verdict

SENTENCES = 24
"""At most so many pictures of an explanation are described on the terminal."""
WIDE = 160
"""Columns to use where the output is a file or a pipe: nothing is cut there."""
COLOURS = {"fail": "red", "worse": "yellow", "best": "green", "do not quote": "red"}


def show_run(run: Any, parts: Sequence[Any] = ()) -> None:
    """Print a finished run to standard error.

    Args:
        run: the result of a workflow, or its run.
        parts: runs that it consists of, whose gates and doctor count too.
    """
    parts = parts or getattr(run, "parts", ())
    console = Console(stderr=True)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = Console(stderr=True, width=WIDE)
    command = str(run.manifest.get("command", ""))
    if command == "compare":
        _comparison(console, run)
    else:
        sentences = _sentences(console, run) if command == "explain" else 0
        if sentences != 1:  # numbers with n = 1 say nothing that the sentence does not
            _numbers(console, run, command)
    for part in parts or (run,):
        _warnings(console, part, f"{model_words(str(part.manifest.get('model')))}: " * bool(parts))
    report = run.folder / "report.html"
    if report.exists():
        console.print(f"Report: {short_path(report)}", soft_wrap=True, highlight=False)
    step = next_step(run, parts)
    if step:
        console.print(f"Then: {step}", soft_wrap=True, highlight=False)


def _numbers(console: Console, run: Any, command: str) -> None:
    """The numbers of a run that its command shows first, or all."""
    facts = run.manifest
    if facts.get("model") and facts.get("data"):
        head = f"{model_words(str(facts['model']))} on {facts['data']}"
        console.print(Text(f"\n{head}", style="bold"))
    numbers: Mapping[str, Number] = run.numbers
    keys = headline_keys(command, numbers)
    if not keys:  # pictures alone
        return
    console.print(numbers_table(numbers, keys), highlight=False)
    rest = len(numbers) - len(keys)
    if rest:
        console.print(f"{rest} more numbers and their protocols are in the report.")


def _sentences(console: Console, run: Any) -> int:
    """A sentence per counterfactual of an explanation and the run's notes; how many there are."""
    rows = headline_rows(run.table("counterfactuals"))
    judged = any(row.get("opinions") for row in rows)
    lines = [
        f"{sentence(row)}.{f' {second_opinion(row)}.' if judged else ''}"
        for row in rows[:SENTENCES]
    ]
    if rows and not judged:
        lines.append(f"{second_opinion(rows[0])}; --with MODEL asks one.")
    if len(rows) > SENTENCES:
        lines.append(f"{len(rows) - SENTENCES} more are in the report.")
    lines += [f"note: {row['note']}" for row in run.table("notes")]
    console.print()
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False, markup=False)
    return len(rows)


def numbers_table(
    numbers: Mapping[str, Number], keys: Sequence[str], notes: Mapping[str, str] | None = None
) -> Table:
    """One line per number: words, value, interval, n, how far it can be trusted, and a note."""
    table = _plain_table(("", "left"), ("", "right"), ("95 % interval", "left"), ("n", "right"))
    table.add_column()
    for key in keys:
        number, m = numbers[key], meaning(key)
        why = f"({number.reason})" if number.bound else number.reason
        notes_of = [text for text in (why, verdict(number), (notes or {}).get(key)) if text]
        table.add_row(
            m.label,
            show_number(number, m.unit),
            show_interval(number, m.unit),
            f"{number.n:,}",
            "; ".join(notes_of),
        )
    return table


def _warnings(console: Console, run: Any, who: str) -> None:
    """What a reader must not miss: the release gates, and what the doctor doubts."""
    for row in run.table("gates"):
        text = Text("pass" if row["passed"] else "FAIL", "green" if row["passed"] else "red")
        console.print(text.append(f"  {who}{row['gate']} ({row['why']})", "none"), soft_wrap=True)
    if run.manifest.get("verdict"):
        console.print(Text(str(run.manifest["verdict"]), "bold"), soft_wrap=True)
    for row in run.table("doctor"):
        if row["status"] in ("warn", "fail"):
            text = Text(f"doctor, {row['status']}: ", "yellow")
            console.print(
                text.append(f"{who}{row['check']}: {row['found']}", "none"), soft_wrap=True
            )


def _comparison(console: Console, run: Any) -> None:
    """One column per model; then who failed where, and differences on the same images."""
    rows = [*run.table("summary"), *_hardest(run.table("everything"))]
    models = list(dict.fromkeys(row["model"] for row in run.table("models")))
    wide = 44 + sum(max(22, len(model) + 2) for model in models)
    heads = models if wide <= console.width else [f"model {i}" for i in range(1, len(models) + 1)]
    console.print()
    for head, model in zip(heads, models, strict=True):
        if head != model:
            console.print(f"{head}: {model}", highlight=False)
    columns = [(head, "right") for head in heads]
    table = _plain_table(("", "left"), *columns, ("n", "right"))
    for key in dict.fromkeys(row["key"] for row in rows):
        own = {row["model"]: row for row in rows if row["key"] == key}
        first = next(iter(own.values()))
        count = sorted({f"{row['n']:,}" for row in own.values() if row["n"]})
        cells = [_cell(own.get(model)) for model in models]
        table.add_row(first["label"], *cells, " / ".join(count))
    failed = [row["model"] for row in run.table("failures")]
    counts = [failed.count(model) for model in models]
    marks = [Text(str(count), "red" if count else "green") for count in counts]
    table.add_row("Clear failures", *marks, "")
    console.print(table, highlight=False)
    for note in run.table("notes"):
        console.print(f"note: {note['note']}", soft_wrap=True, highlight=False)
    names = dict(zip(models, heads, strict=True))
    for row in run.table("paired"):
        if row["key"] == "accuracy.top1":
            console.print(_difference(row, names), soft_wrap=True, highlight=False)


def _cell(row: Mapping[str, Any] | None) -> Text:
    if row is None or row["value"] is None:
        return Text("–")
    unit: Unit = row["unit"]
    ends, why = (row["low"], row["high"]), row.get("reason")
    number = Number(row["value"], row["n"], *ends, row["protocol"], why, bound=row.get("bound"))
    text = Text(show_number(number, unit), COLOURS.get(row["status"], ""))
    text.append(f" {show_interval(number, unit)}", "dim")
    if row["trust"] in ("weak", "do not quote"):
        text.append(f" {row['trust']}", "yellow")
    return text


def _hardest(everything: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The lowest AUROC of each model over its out-of-distribution sets, where there are several."""
    out = []
    for model in dict.fromkeys(row["model"] for row in everything):
        own = [
            row
            for row in everything
            if row["model"] == model
            and kind(row["key"]) == "ood.auroc"
            and row["value"] is not None
        ]
        if len(own) > 1:
            worst = min(own, key=lambda row: float(row["value"]))
            label = f"AUROC, hardest of {len(own)} sets"
            plain = {"key": "hardest", "label": label, "unit": "share", "status": "", "trust": ""}
            out.append({**worst, **plain})
    return out


def _difference(row: Mapping[str, Any], names: Mapping[str, str]) -> str:
    sign = "more" if row["difference"] >= 0 else "less"
    ends = sorted(abs(100 * row[end]) for end in ("low", "high"))
    span = f"[{ends[0]:.1f}, {ends[1]:.1f}]"
    if row["low"] <= 0 <= row["high"]:
        span = f"[{100 * row['low']:.1f}, {100 * row['high']:.1f}], no clear difference"
    return (
        f"On the same {row['n']:,} images {names[row['first']]} is right on "
        f"{abs(100 * row['difference']):.1f} points {sign} than {names[row['second']]} {span}."
    )


def _plain_table(*columns: tuple[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading, justify in columns:
        table.add_column(heading, justify=justify, overflow="fold")
    return table
