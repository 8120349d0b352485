"""Every script in examples/ runs; the README's lines are those of test_readme."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def test_there_are_examples() -> None:
    assert EXAMPLES


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_and_prints(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(script.read_text().splitlines()) <= 60
    runpy.run_path(str(script))
    assert re.search(r"\d\.\d{3}", capsys.readouterr().out)
