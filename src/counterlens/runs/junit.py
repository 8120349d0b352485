"""JUnit XML of runs: what continuous integration shows of gates and of the doctor's checks.

A run is a test suite. A gate is a test case that passes or fails; a check of the doctor is one
that passes, fails or is skipped. Every number of the run is a property of its suite, with its
interval and n. The form is the one that Jenkins, GitLab and GitHub's readers share.
"""

import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from counterlens.runs.files import write_text
from counterlens.runs.gates import parse_gate
from counterlens.runs.keys import model_words
from counterlens.runs.number import Number, in_words
from counterlens.runs.run import Run

_FORBIDDEN = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


def write_junit(path: Path, runs: Sequence[Run]) -> None:
    """Write the runs as one JUnit file."""
    write_text(Path(path), junit_xml(runs))


def junit_xml(runs: Sequence[Run]) -> str:
    """The runs as JUnit XML, one suite each."""
    root = ET.Element("testsuites", name="counterlens")
    for run in runs:
        root.append(_suite(run))
    for count in ("tests", "failures", "errors", "skipped"):
        root.set(count, str(sum(int(suite.get(count, "0")) for suite in root)))
    ET.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def gate_message(row: Mapping[str, Any], numbers: Mapping[str, Number]) -> str:
    """One gate in words: the rule, what was measured, with its interval and n."""
    number = numbers.get(parse_gate(str(row["gate"])).key)
    measured = f"; measured {in_words(number)}" if number else ""
    return f"{row['gate']}: {row['why']}{measured}"


def _suite(run: Run) -> ET.Element:
    facts, numbers = run.manifest, run.numbers
    command = str(facts["command"])
    model = model_words(str(facts.get("model") or facts["settings"].get("model") or ""))
    name = " ".join(part for part in (command, model) if part)
    suite = ET.Element("testsuite", name=_text(name), timestamp=str(facts["started"])[:19])
    suite.set("time", f"{_seconds(facts):.3f}")
    properties = ET.SubElement(suite, "properties")
    about = {"run": run.folder, "data": facts.get("data", ""), "report": run.folder / "report.html"}
    shown = {key: in_words(number) for key, number in numbers.items()}
    for key, value in {**about, **shown}.items():
        ET.SubElement(properties, "property", name=_text(key), value=_text(str(value)))
    home = _text(f"counterlens.{command}.{model}".rstrip("."))
    for row in run.table("doctor"):
        suite.append(_check(row, f"{home}.doctor"))
    for row in run.table("gates"):
        suite.append(_gate(row, numbers, f"{home}.gates"))
    counts = {"failures": "failure", "errors": "error", "skipped": "skipped"}
    suite.set("tests", str(len(suite.findall("testcase"))))
    for attribute, tag in counts.items():
        suite.set(attribute, str(len(suite.findall(f"testcase/{tag}"))))
    return suite


def _gate(row: Mapping[str, Any], numbers: Mapping[str, Number], home: str) -> ET.Element:
    case = ET.Element("testcase", classname=home, name=_text(str(row["gate"])), time="0")
    message = _text(gate_message(row, numbers))
    if row["passed"]:
        ET.SubElement(case, "system-out").text = message
    else:
        ET.SubElement(case, "failure", message=message, type="gate").text = message
    return case


def _check(row: Mapping[str, Any], home: str) -> ET.Element:
    """A check of the doctor; a warning passes and says so in its output."""
    case = ET.Element("testcase", classname=home, name=_text(str(row["check"])), time="0")
    message = _text(" ".join(str(row.get(key) or "") for key in ("found", "fix")).strip())
    match row["status"]:
        case "fail":
            ET.SubElement(case, "failure", message=message, type="doctor").text = message
        case "skipped":
            ET.SubElement(case, "skipped", message=message)
        case status:
            ET.SubElement(case, "system-out").text = f"{status}: {message}"
    return case


def _seconds(facts: Mapping[str, Any]) -> float:
    try:
        start, end = (datetime.fromisoformat(str(facts[key])) for key in ("started", "finished"))
    except (KeyError, ValueError):  # a run that is not finished
        return 0.0
    return max(0.0, (end - start).total_seconds())


def _text(text: str) -> str:
    """Without the characters that XML 1.0 does not allow."""
    return _FORBIDDEN.sub("", text)
