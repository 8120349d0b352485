"""The pytest plugin: the fixture `audit_gate` and the option --counterlens-runs.

Loading it imports nothing heavy; torch is imported by the first audit.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from counterlens.workflows._shared.result import Result


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where audits of a test suite are kept."""
    parser.getgroup("counterlens").addoption(
        "--counterlens-runs",
        metavar="FOLDER",
        type=Path,
        help="keep the runs and reports of audit_gate here, a folder per test; "
        "default: the test's temporary folder",
    )


@pytest.fixture
def audit_gate(
    request: pytest.FixtureRequest, tmp_path: Path, record_property: Callable[[str, object], None]
) -> "Callable[..., Result]":
    """`assert_audit` whose runs are kept and whose numbers are properties of the test."""
    from counterlens.runs import in_words, key_part, latest
    from counterlens.testing import assert_audit

    chosen = request.config.getoption("--counterlens-runs")
    root = tmp_path if chosen is None else chosen / key_part(request.node.name)
    count = 0

    def audit_gate(model: object, data: object, *, require: Any, **options: Any) -> "Result":
        nonlocal count
        count += 1
        folder = Path(options.pop("out", None) or root / f"audit-{count}")
        try:
            return assert_audit(model, data, require=require, out=folder, **options)
        finally:
            run = latest()
            if run is not None and run.folder.is_relative_to(folder):
                record_property("counterlens.report", run.folder / "report.html")
                for key, number in run.numbers.items():
                    record_property(key, in_words(number))

    return audit_gate
