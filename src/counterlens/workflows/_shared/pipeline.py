"""What others read of a command: JUnit XML, annotations on GitHub, experiment trackers."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from counterlens.errors import DoctorRefused, InputError
from counterlens.runs import Run, latest
from counterlens.runs.annotations import annotate
from counterlens.runs.junit import write_junit
from counterlens.workflows._shared.trackers import check_trackers, log_run


@contextmanager
def reporting(junit: Path | None, log_to: Sequence[str] = ()) -> Iterator[list[Run]]:
    """Inside, the runs of a command are collected; at its end they are reported.

    They are reported, too, where the doctor refused: the run that it refused has its findings.
    """
    if junit is not None and junit.is_dir():
        raise InputError(f"junit is the folder {junit}, expected a file, e.g. {junit}/gates.xml.")
    check_trackers(log_to)
    runs: list[Run] = []
    try:
        yield runs
    except DoctorRefused:
        refused = latest()
        _report([*runs, *([refused] if refused and refused not in runs else [])], junit)
        raise
    _report(runs, junit)
    for run in runs:
        log_run(run, log_to)


def _report(runs: list[Run], junit: Path | None) -> None:
    if junit is not None:
        write_junit(junit, runs)
    annotate(runs)
