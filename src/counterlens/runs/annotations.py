"""What GitHub Actions shows of runs: an annotation per failed gate and a summary of the job.

Written only where GitHub says that it runs the job: GITHUB_ACTIONS is "true". Annotations are lines
on standard error; the summary is appended to the file that GITHUB_STEP_SUMMARY names.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from counterlens.runs.headline import headline_keys
from counterlens.runs.junit import gate_message
from counterlens.runs.keys import meaning, model_words, show_interval, show_number, verdict
from counterlens.runs.run import Run

_LEVELS = {"fail": "error", "warn": "warning"}


def annotate(runs: Sequence[Run], environment: Mapping[str, str] = os.environ) -> None:
    """Annotate the job and append its summary, where GitHub Actions runs it."""
    if environment.get("GITHUB_ACTIONS") != "true":
        return
    for run in runs:
        for line in annotations(run):
            print(line, file=sys.stderr, flush=True)
    if summary := environment.get("GITHUB_STEP_SUMMARY"):
        with Path(summary).open("a", encoding="utf-8") as file:
            file.write("".join(map(markdown, runs)))


def annotations(run: Run) -> list[str]:
    """One line per failed gate, and per check of the doctor that failed or warns."""
    numbers = run.numbers
    name = _called(run)
    lines = [
        _line("error", f"{name}: gate failed", gate_message(row, numbers))
        for row in run.table("gates")
        if not row["passed"]
    ]
    return lines + [
        _line(_LEVELS[row["status"]], f"{name}: doctor, {row['check']}", _measured(row))
        for row in run.table("doctor")
        if row["status"] in _LEVELS
    ]


def markdown(run: Run) -> str:
    """Gates and first numbers of a run as Markdown tables."""
    numbers, gates = run.numbers, run.table("gates")
    keys = headline_keys(str(run.manifest["command"]), numbers)
    lines = [f"### counterlens {run.manifest['command']}: {_cell(_called(run))}", ""]
    if gates:
        lines += ["| gate | result | measured |", "|---|---|---|"]
        lines += [
            f"| `{row['gate']}` | {'passed' if row['passed'] else '**failed**'} | {row['why']} |"
            for row in gates
        ]
        lines.append("")
    if keys:
        lines += ["| number | value | 95 % interval | n | verdict |", "|---|---:|---|---:|---|"]
    for key in keys:
        number, known = numbers[key], meaning(key)
        value, interval = show_number(number, known.unit), show_interval(number, known.unit)
        cells = (_cell(known.label), value, interval, f"{number.n:,}", verdict(number))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n\n"


def _called(run: Run) -> str:
    facts = run.manifest
    return model_words(str(facts.get("model") or facts["settings"].get("model") or run.folder.name))


def _measured(row: Mapping[str, Any]) -> str:
    return " ".join(str(row.get(key) or "") for key in ("found", "fix")).strip()


def _line(level: str, title: str, message: str) -> str:
    """A workflow command; its reserved characters are written as GitHub's own toolkit does.

    >>> _line("error", "a: b", "50 %")
    '::error title=a%3A b::50 %25'
    """
    return f"::{level} title={_escaped(title, property_of=True)}::{_escaped(message)}"


def _escaped(text: str, *, property_of: bool = False) -> str:
    pairs = [("%", "%25"), ("\r", "%0D"), ("\n", "%0A")]
    for sign, code in [*pairs, *([(":", "%3A"), (",", "%2C")] if property_of else [])]:
        text = text.replace(sign, code)
    return text


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
