"""The command line: parse, import, call, print.

Standard output carries the answer alone: with --json the JSON, else the run folder as its last
line. Everything else goes to standard error. Exit codes: 0 ok · 1 a gate failed · 2 bad input ·
3 the doctor refused · 70 a crash (its traceback is kept in the run).
"""

import os
import sys
import traceback
from typing import Annotated, NoReturn

import typer

from counterlens.cli import audits, cgn, curation, explanations, figures, generating, training
from counterlens.cli.shared import app
from counterlens.errors import NO_GRADIENTS, CounterlensError, InputError

__all__ = [
    "app",
    "audits",
    "cgn",
    "curation",
    "explanations",
    "figures",
    "generating",
    "main",
    "training",
]


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """The debugger for image classifiers: audit, explain, discover, curate, train."""
    if version:
        from counterlens import __version__

        print(__version__)
        raise typer.Exit


def main() -> NoReturn:
    """Entry point: every deliberate error is one red line, a crash keeps its traceback."""
    try:
        app(standalone_mode=True)
    except CounterlensError as error:
        if error.exit_code == 2:
            from counterlens.runs import discard_unstarted

            discard_unstarted()
        _say(f"error: {error}", red=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        _say("interrupted; what was done is kept, add --resume to go on.", red=True)
        sys.exit(130)
    except Exception as error:
        if "does not require grad" in str(
            error
        ):  # raised by torch wherever a gradient is asked for
            _say(f"error: {NO_GRADIENTS}", red=True)
            sys.exit(InputError.exit_code)
        text = traceback.format_exc()
        sys.stderr.write(text)
        _say(f"crash: this is a defect of counterlens.{_keep_crash(text)}", red=True)
        sys.exit(70)
    sys.exit(0)


def _keep_crash(text: str) -> str:
    """Keep a traceback in the run that was being written, if there was one."""
    from counterlens.runs import latest

    run = latest()
    if run is None:
        return ""
    path = run.folder / "crash.txt"
    try:
        path.write_text(text, encoding="utf-8")
    except OSError:
        return ""
    return f" The traceback is kept in {path}."


def _say(text: str, *, red: bool) -> None:
    colour = red and sys.stderr.isatty() and "NO_COLOR" not in os.environ
    sys.stderr.write(f"\033[31m{text}\033[0m\n" if colour else f"{text}\n")
