"""From a run of any command to the page that shows it."""

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from counterlens.report.kit.blocks import Badge, Block, Code, Page, Section, Text
from counterlens.report.kit.parts import number_list, plain_table
from counterlens.report.pages import cgn as digits
from counterlens.report.pages import chapter, quality, table1
from counterlens.report.pages import compare as comparison
from counterlens.report.pages import curate as curated
from counterlens.report.pages import explain as explained
from counterlens.report.pages import outdata as screened
from counterlens.report.pages import repair as repaired
from counterlens.report.pages import train as trained
from counterlens.report.pages.audit import page as audit
from counterlens.report.pages.card import model_card
from counterlens.report.pages.warnings import RULES, warnings
from counterlens.runs import Run
from counterlens.runs.keys import model_words

PAGES: dict[str, Any] = {
    "compare": comparison,
    "outdata": screened,
    "train": trained,
    "repair": repaired,
}
"""Command → the module whose `sections(run)` shows it; TABLES names the tables it has shown."""
_FOLDED = 60
"""More numbers than these are folded."""


def page(run: Run) -> Page:
    """Everything the template needs."""
    manifest = run.manifest
    command = str(manifest["command"])
    sections, used = _sections(run, command)
    sections += [s for s in (_other_tables(run, used), _numbers(run), _card(run, command)) if s]
    sections.append(_manifest(manifest))
    audited = command == "audit"
    tables = run.tables()
    return Page(
        title=_title(run, manifest),
        eyebrow=command,
        subtitle=_subtitle(manifest),
        facts=_facts(run, manifest),
        sections=sections,
        tiles=audit.tiles(run.numbers) if command != "compare" else (),
        warnings=warnings(run) if audited or "doctor" in tables else None,
        rules=RULES,
        gates=audit.gate_table(run.table("gates")),
        verdict=_verdict(run),
        notices=_notices(run),
    )


def _sections(run: Run, command: str) -> tuple[list[Section], set[str]]:
    """What is particular to a command, and the tables that need not be shown again."""
    modules = [PAGES[command]] if command in PAGES else []
    if command.startswith("curate"):
        modules = [curated, explained]
    elif command.startswith("cgn"):
        modules = [digits]
    elif not modules:
        modules = [table1] if run.table("table1") else [quality, explained, audit, chapter]
    sections = [section for module in modules for section in module.sections(run)]
    if command == "explain" and run.table("notes"):  # the pictures come first
        notes: list[Block] = [Text(str(row["note"])) for row in run.table("notes")]
        sections.append(Section("notes", "Notes on this run", notes))
    return sections, {table for module in modules for table in module.TABLES}


def _title(run: Run, manifest: Mapping[str, Any]) -> str:
    settings = manifest["settings"]
    if manifest["command"] == "compare":
        return f"{len(run.table('models'))} models compared"
    if manifest["command"] == "outdata":
        return str(manifest.get("data", "")).partition(" against ")[0] + ", cleaned"
    model = manifest.get("model") or settings.get("model") or settings.get("recipe")
    model = model.get("name") if isinstance(model, dict) else model
    return model_words(model) if isinstance(model, str) and model else run.folder.name


def _subtitle(manifest: Mapping[str, Any]) -> str:
    if manifest["command"] == "compare":
        return str(manifest.get("model", ""))
    if manifest["command"] == "outdata":
        inside = str(manifest.get("data", "")).partition(" against ")[2]
        looked = manifest.get("model")
        return f"against {inside}" + (f", as {looked} sees them" if looked else "")
    data = manifest.get("data") or manifest["settings"].get("data")
    return f"on {data}" if isinstance(data, str) and data else ""


def _facts(run: Run, manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    facts = [("Run", run.folder.name), ("Started", _time(manifest.get("started")))]
    if manifest.get("finished"):
        facts.append(("Took", _took(manifest["started"], manifest["finished"])))
    top = run.numbers.get("accuracy.top1")
    if top:
        facts.append(("Images", f"{top.n:,}"))
    for key, word in (("device", "Device"), ("seed", "Seed"), ("temperature", "Temperature")):
        value = manifest.get(key, manifest["settings"].get(key))
        if value is not None and not isinstance(value, (dict, list)):
            facts.append((word, f"{value:.3g}" if isinstance(value, float) else str(value)))
    return facts


def _time(text: str | None) -> str:
    return datetime.fromisoformat(text).strftime("%d %b %Y, %H:%M UTC") if text else "–"


def _took(start: str, end: str) -> str:
    seconds = int((datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds())
    if seconds < 120:
        return f"{seconds} s"
    minutes, rest = divmod(seconds, 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _verdict(run: Run) -> Badge | None:
    gates = run.table("gates")
    if not gates:
        return repaired.badge(run)
    failed = sum(not row["passed"] for row in gates)
    if failed:
        return Badge(f"{failed} of {len(gates)} gates failed", "bad")
    return Badge("the gate passed" if len(gates) == 1 else f"all {len(gates)} gates passed", "good")


def _notices(run: Run) -> list[Badge]:
    """Things to know before reading: warnings first, then remarks on the data."""
    first = () if run.manifest["command"] == "explain" else run.table("notes")
    notices = [Badge(str(row["note"]), "warn") for row in first]
    noted = run.manifest.get("notes")
    for name, lines in noted.items() if isinstance(noted, dict) else ():
        notices += [Badge(f"{name}: {line}") for line in lines]
    if run.manifest.get("verdict"):
        notices.insert(0, Badge(str(run.manifest["verdict"])))
    if "error" in run.manifest:
        notices.insert(0, Badge(f"This run ended with an error: {run.manifest['error']}", "bad"))
    return notices


def _other_tables(run: Run, used: set[str]) -> Section | None:
    blocks: list[Block] = []
    for name in run.tables():
        rows = run.table(name)
        if name not in used and name != "notes" and rows:
            blocks += plain_table(name, rows, folded=True)
    return Section("tables", "Further tables", blocks) if blocks else None


def _numbers(run: Run) -> Section | None:
    numbers = run.numbers
    if not numbers:
        return None
    lead = Text("Every number of result.json, by its key. Intervals are 95 %.")
    listed = number_list(numbers, caption="All numbers", keys=True)
    many = len(numbers) > _FOLDED  # groups alone can make hundreds
    return Section("numbers", "All numbers", [lead, replace(listed, folded=many, quiet=not many)])


def _card(run: Run, command: str) -> Section | None:
    if command != "audit" or not run.numbers:
        return None
    lead = "Paste this into the model’s card or README."
    block = Code("Markdown", model_card(run), folded=False, copy=True)
    return Section("card", "Model card", [block], lead)


def _manifest(manifest: Mapping[str, Any]) -> Section:
    text = json.dumps(manifest, indent=2, ensure_ascii=False)
    lead = "What was run, with which versions and on which data."
    return Section("manifest", "Manifest", [Code("run.json", text)], lead)
