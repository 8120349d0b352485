"""Workflows as commands of their own: what they say of bad input and of Ctrl-C."""

from pathlib import Path

import pytest

from counterlens.errors import InputError
from counterlens.runs import Run
from counterlens.workflows._shared.entry_point import command
from counterlens.workflows.train.options import TrainOptions


def test_ctrl_c_says_what_is_kept_and_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def work() -> Run:
        Run.create(tmp_path / "run", "train", {})
        raise KeyboardInterrupt

    assert command(work, TrainOptions) == 130
    out = capsys.readouterr()
    assert out.out == "" and len(out.err.splitlines()) == 1
    assert f"interrupted; the work so far is in {tmp_path / 'run'}" in out.err
    assert "--resume" in out.err


def test_errors_name_flags_where_flags_are_typed(capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> Run:
        raise InputError("no images given. Name a set: out_data=SPEC.")

    assert command(work, TrainOptions) == 2
    assert capsys.readouterr().err == "error: no images given. Name a set: --out-data SPEC.\n"
