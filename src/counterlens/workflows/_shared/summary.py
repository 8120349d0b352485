"""A result in a notebook cell: its figures, its first numbers, what must not be missed."""

import base64
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from counterlens.runs.headline import headline_keys
from counterlens.runs.keys import meaning, model_words, show_interval, show_number, verdict

if TYPE_CHECKING:
    from counterlens.workflows._shared.result import Result

_MOST = 24
"""Numbers, sentences and figures that a cell shows at most."""


def summary_html(result: "Result") -> str:
    """The summary as HTML without outside addresses."""
    facts = result.manifest
    words = [str(facts["command"]), model_words(str(facts.get("model") or "")).strip()]
    if facts.get("data"):
        words.append(f"on {facts['data']}")
    parts = [f"<b>{escape(' '.join(word for word in words if word))}</b>"]
    parts += [_figure(path) for path in result.figures[:_MOST]]
    parts += [f"<p>{escape(line)}</p>" for line in _sentences(result)[:_MOST]]
    parts.append(_numbers(result))
    for part in result.parts or (result,):
        parts += [f"<p>{escape(line)}</p>" for line in _warnings(part)]
    if result.report.exists():
        parts.append(f"<p>Report: <code>{escape(str(result.report))}</code></p>")
    return "\n".join(part for part in parts if part)


def _figure(path: Path) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<img alt="{path.stem}" style="max-width:100%" src="data:image/png;base64,{data}">'


def _sentences(result: "Result") -> list[str]:
    """One sentence per counterfactual: what changed what."""
    from counterlens.report.kit.explained import headline_rows, sentence

    return [f"{sentence(row)}." for row in headline_rows(result.table("counterfactuals"))]


def _numbers(result: "Result") -> str:
    """The numbers that the command shows first, each with its interval and n."""
    numbers = result.numbers
    keys = headline_keys(str(result.manifest["command"]), numbers)[:_MOST]
    if not keys:
        return ""
    rows = []
    for key in keys:
        number, known = numbers[key], meaning(key)
        why = "; ".join(text for text in (number.reason, verdict(number)) if text)
        cells = (known.label, show_number(number, known.unit), show_interval(number, known.unit),
                 f"n = {number.n:,}", why)  # fmt: skip
        rows.append("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in cells) + "</tr>")
    rest = len(numbers) - len(keys)
    more = f"<p>{rest} more in <code>.numbers</code>.</p>" if rest else ""
    return f"<table>{''.join(rows)}</table>{more}"


def _warnings(result: "Result") -> list[str]:
    """Gates, and what the doctor doubts."""
    gates = [
        f"{'pass' if row['passed'] else 'FAIL'}: {row['gate']} ({row['why']})"
        for row in result.table("gates")
    ]
    doubts = [
        f"doctor, {row['status']}: {row['check']}: {row['found']}"
        for row in result.table("doctor")
        if row["status"] in ("warn", "fail")
    ]
    return [*gates, *doubts]
