"""An option that a mode does not use is an error, never silence."""

import pytest
from typer.testing import CliRunner

from counterlens.cli import app
from counterlens.errors import InputError

CASES = [
    (["reproduce", "table", "ratio-table1", "--data", "x"], "data has no effect without --rerun"),
]


@pytest.mark.parametrize(("line", "words"), CASES)
def test_an_option_without_effect_is_refused(line: list[str], words: str) -> None:
    with pytest.raises(InputError, match=words):
        CliRunner().invoke(app, line, catch_exceptions=False)
