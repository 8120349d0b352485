"""How a command ends: every deliberate error is one red line, a crash keeps its traceback.

A run that was stopped or ran out of space says how to go on. What a user's own code does (it may
call sys.exit) never looks like success.
"""

import errno
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer

from counterlens.errors import NO_GRADIENTS, CounterlensError, InputError, first_line

INTERRUPTED, TERMINATED, CRASHED = 130, 143, 70


class Terminated(BaseException):
    """The process was asked to end (SIGTERM)."""


def exit_code(command: Callable[[], Any]) -> int:
    """Run a command; print how it ended, and return its exit code."""
    try:
        with _terminable():
            code = command()
    except (KeyboardInterrupt, typer.Abort):
        return _stopped("interrupted", INTERRUPTED)
    except Terminated:
        return _stopped("terminated", TERMINATED)
    except SystemExit as error:
        return _exited(error)
    except CounterlensError as error:
        if error.exit_code == 2:
            from counterlens.runs import discard_unstarted

            discard_unstarted()
        _print(f"error: {error}")
        return error.exit_code
    except OSError as error:
        _print(f"error: {_storage(error)}")
        return 2
    except Exception as error:
        if "does not require grad" in str(error):  # torch, wherever a gradient is asked for
            _print(f"error: {NO_GRADIENTS}")
            return InputError.exit_code
        return _usage(error) or _crashed()
    if code == INTERRUPTED:  # Typer answers Ctrl-C itself, without a word
        return _stopped("interrupted", INTERRUPTED)
    return code if isinstance(code, int) else 0


@contextmanager
def _terminable() -> Iterator[None]:
    """Inside, SIGTERM raises, so that files are closed and what was done is said."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(*_: object) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _stopped(word: str, code: int) -> int:
    from counterlens.runs import how_to_resume

    _print(f"{word}; {how_to_resume()}")
    return code


def _exited(error: SystemExit) -> int:
    """Only other people's code gets here: Typer's own exits are returned, not raised."""
    if isinstance(error.__context__, BrokenPipeError):
        return 1
    last = traceback.extract_tb(error.__traceback__)[-1]
    _print(
        f"error: {last.filename}, line {last.lineno} called sys.exit({error.code!r}) before the "
        "command was finished. A model must not end the program: raise an error instead."
    )
    return 2


def _storage(error: OSError) -> str:
    """A failed system call in a line: it is no defect of counterlens."""
    from counterlens.runs import latest

    run = latest()
    name = error.filename or (run.folder if run else "")
    if run is not None and not run.folder.is_dir():
        return (
            f"the run folder {run.folder} was removed while it was being written. Nothing of it "
            "is left to resume: run the command again."
        )
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        again = f"--out {run.folder} --resume" if run else "--resume"
        return (
            f"the disk is full: {name} could not be written. Free some space, then repeat the "
            f"command with {again}."
        )
    reason = error.strerror or first_line(error)
    return f"{reason}: {name}" if name else reason


def _usage(error: Exception) -> int:
    """A mistake in the command's own words: Typer shows it with the usage."""
    show, code = getattr(error, "show", None), getattr(error, "exit_code", None)
    if not callable(show) or not isinstance(code, int):
        return 0
    show()
    return code


def _crashed() -> int:
    text = traceback.format_exc()
    sys.stderr.write(text)
    _print(f"crash: this is a defect of counterlens.{_keep_crash(text)}")
    return CRASHED


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
    return f" The traceback is in {path}."


def _print(text: str) -> None:
    colour = sys.stderr.isatty() and "NO_COLOR" not in os.environ
    sys.stderr.write(f"\033[31m{text}\033[0m\n" if colour else f"{text}\n")
