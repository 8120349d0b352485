"""One way through a run: folder and manifest, work, report, end.

    @takes(DoctorOptions)
    def doctor(model, data=None, *, options) -> Result:
        classifier, images = ...  # refuse bad input before this line
        inputs = {"model": model, "data": data}  # what decides the result
        with running("doctor", options, name=classifier.name, inputs=inputs) as run:
            run.note(**facts(classifier, images, seed=options.seed))
            log = logger(options)
            log("examining")
            run.write_table("doctor", rows)
            run.add_numbers(numbers)
        return Result(run)

`running` creates the folder (`out`, or a new one under runs/) or resumes it, writes run.json from
the options record, and at the end of the block renders the report and finishes the run. When the
block raises, the run stays unfinished and can be resumed. Work that may pause, such as a training
that ran out of time, calls the two halves itself: `begin` first, `end` once it is done.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from counterlens.progress import doing
from counterlens.runs import Run, new_folder
from counterlens.workflows._shared.options import settings_of

if TYPE_CHECKING:
    from counterlens.classifier import Classifier
    from counterlens.images import ImageSet

Log = Callable[[str], None]
"""Takes one line of progress."""
LogFunction = Log


@contextmanager
def running(
    command: str,
    options: Any,
    *,
    name: str,
    inputs: Mapping[str, object] | None = None,
    folder: Path | None = None,
) -> Iterator[Run]:
    """A run from its beginning to its end; the block does the work.

    Args:
        command: the command that the manifest names.
        options: the options record; `out`, `resume` and `quiet` are read where it has them.
        name: what the folder is called after the command where none is given.
        inputs: specs and other facts that decide the result and are no options.
        folder: in place of `options.out`, for instance of one of several models.
    """
    run = begin(command, options, name=name, inputs=inputs, folder=folder)
    yield run
    end(run, logger(options))


def begin(
    command: str,
    options: Any,
    *,
    name: str,
    inputs: Mapping[str, object] | None = None,
    folder: Path | None = None,
) -> Run:
    """Create the run or resume it; its settings are the inputs and the options record."""
    where = folder or getattr(options, "out", None) or new_folder(command.replace(" ", "-"), name)
    settings = settings_of(options, **(inputs or {}))
    return Run.create(where, command, settings, resume=getattr(options, "resume", False))


def end(run: Run, log: Log) -> None:
    """Render the report and finish the run."""
    write_report(run, log)
    run.finish()


def facts(
    classifier: "Classifier | None" = None, *sets: "ImageSet | None", seed: int | None = None
) -> dict[str, object]:
    """What the manifest says of a classifier and of the images, the data set first."""
    out: dict[str, object] = {} if seed is None else {"seed": seed}
    if classifier is not None:
        from counterlens.models.weights import weights_hash

        out["model"] = classifier.name
        out["classes"] = len(classifier.classes)
        out["weights_hash"] = weights_hash(classifier)
        out["device"] = str(classifier.mean.device)
    opened = [one for one in sets if one is not None]
    if opened:
        out["data"] = opened[0].name
        out["data_fingerprint"] = {one.name: one.fingerprint for one in opened}
        if notes := {one.name: list(one.notes) for one in opened if one.notes}:
            out["notes"] = notes
    return out


def logger(options: Any) -> Log:
    """Lines to standard error, or silence where the options (or `quiet` itself) want it."""
    quiet = options if isinstance(options, bool) else getattr(options, "quiet", False)
    return (lambda line: None) if quiet else _log


log_of = logger


def _log(line: str) -> None:
    if len(line) <= 80:  # a longer one says more than what is being done
        doing(line.rstrip("."))
    print(line, file=sys.stderr, flush=True)


def write_report(run: Run, log: Log) -> None:
    """Render the run's report; a machine without the libraries of a page says so and goes on."""
    try:
        from counterlens.report import render

        render(run)
    except ImportError as error:
        log(f"no report: {error}. Write it later: counterlens report {run.folder}")
