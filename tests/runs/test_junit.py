"""JUnit and annotations against the standard library's XML parser and GitHub's escaping rules."""

import xml.etree.ElementTree as ET
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from counterlens.runs import Number, Run
from counterlens.runs.annotations import annotate, annotations, markdown
from counterlens.runs.junit import junit_xml


def run_of(folder: Path, message: str) -> Run:
    run = Run.create(folder, "audit", {"model": "m", "data": "d"})
    run.note(model="my|model", data="d")
    run.add_numbers({"accuracy.top1": Number(0.5, 10, 0.3, 0.7, "p")})
    run.write_table(
        "gates",
        [
            {"gate": "accuracy.top1>=0.9", "value": 0.5, "passed": False, "why": "value 0.5"},
            {"gate": "accuracy.top1>=0.1", "value": 0.5, "passed": True, "why": "value 0.5"},
        ],
    )
    run.write_table(
        "doctor", [{"check": "logits", "status": "warn", "found": message, "fix": "Look: 50 %"}]
    )
    return run


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_any_text_gives_xml_that_a_parser_reads(tmp_path_factory, text):
    run = run_of(tmp_path_factory.mktemp("junit") / "r", text)
    root = ET.fromstring(junit_xml([run, run]).encode())
    assert (root.get("tests"), root.get("failures"), root.get("skipped")) == ("6", "2", "0")
    failure = root.find("testsuite/testcase/failure")
    assert failure is not None
    assert "n = 10" in failure.attrib["message"]


def test_annotations_are_one_line_each_and_only_on_github(tmp_path, capsys):
    run = run_of(tmp_path / "r", "first\nsecond: 3 %")
    lines = annotations(run)
    assert lines[0].startswith("::error title=my|model%3A gate failed::accuracy.top1>=0.9: value")
    assert lines[1].endswith("::first%0Asecond: 3 %25 Look: 50 %25")
    assert not any("\n" in line for line in lines)
    annotate([run], {})
    assert capsys.readouterr().err == ""
    annotate([run], {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(tmp_path / "s.md")})
    assert capsys.readouterr().err.splitlines() == lines
    text = (tmp_path / "s.md").read_text(encoding="utf-8")
    assert text == markdown(run)
    assert "my\\|model" in text
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert {line.replace("\\|", "").count("|") for line in rows} == {4, 6}
