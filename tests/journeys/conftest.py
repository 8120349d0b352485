"""Journeys go through the command line as a user would."""

from pathlib import Path

import pytest

from journeys.command import Command


@pytest.fixture
def counterlens(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Command:
    """The command, run from an empty folder."""
    folder = tmp_path / "empty"
    folder.mkdir()
    return Command(monkeypatch, capsys, folder)
