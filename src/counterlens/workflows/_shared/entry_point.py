"""Workflows as commands of their own, `python -m counterlens.workflows.NAME`.

For `accelerate launch`, and for machines that have torch but not the libraries of the command line.
"""

import argparse
import sys
import typing
from collections.abc import Callable, Sequence
from dataclasses import MISSING
from typing import Any, Protocol

from counterlens.errors import CounterlensError
from counterlens.runs import discard_unstarted, how_to_resume
from counterlens.workflows._shared.options import in_flags, many, options_of


class HasFolder(Protocol):
    """A run or a result."""

    @property
    def folder(self) -> Any:
        """Where it is."""


def parser(about: str | None, kind: type[Any]) -> argparse.ArgumentParser:
    """A parser whose flags are the fields of an options record, as on the command line.

    Args:
        about: docstring of what it runs.
    """
    arguments = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    types_of = typing.get_type_hints(kind)
    for name, one in options_of(kind).items():
        flags = (one.metadata["flag"] or f"--{name.replace('_', '-')}").split("/")
        text, annotation = one.metadata["help"].replace("%", "%%"), types_of[name]
        if annotation is bool:
            arguments.add_argument(*flags, dest=name, action="store_true", help=text)
            continue
        several = many(annotation)
        arguments.add_argument(
            *flags,
            dest=name,
            help=text,
            type=_type(annotation),
            action="append" if several else "store",
            required=one.default is MISSING,
            default=[] if several else None if one.default is MISSING else one.default,
            metavar=one.metadata["unit"],
        )
    return arguments


def _type(annotation: Any) -> Any:
    """What reads one value: of `int | None` int, of `tuple[str, ...]` str."""
    kinds = [k for k in typing.get_args(annotation) if k not in (type(None), Ellipsis)]
    return kinds[0] if kinds else annotation


def options_from(kind: type[Any], given: dict[str, Any]) -> Any:
    """The record of parsed flags, which are taken out of `given`."""
    values = {name: given.pop(name) for name in options_of(kind)}
    return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})


def command(work: Callable[[], HasFolder], kind: type[Any]) -> int:
    """Do the work, print the run folder; the exit code. Bad input is one line.

    Args:
        kind: the options record, whose keywords become flags in errors.
    """
    try:
        print(work().folder)
    except KeyboardInterrupt:
        print(f"interrupted; {how_to_resume()}", file=sys.stderr)
        return 130
    except CounterlensError as error:
        if error.exit_code == 2:
            discard_unstarted()
        print(f"error: {in_flags(str(error), kind)}", file=sys.stderr)
        return error.exit_code
    return 0


def run(
    function: Callable[..., HasFolder],
    kind: type[Any],
    arguments: Sequence[str] | None,
    positional: str | None = None,
) -> int:
    """A workflow with one positional argument, or with `--data` for several sets, as a command.

    Args:
        function: takes the argument and `options`.
        positional: name of the argument; None for `--data`, which may be repeated.
    """
    about = parser(function.__doc__, kind)
    if positional:
        about.add_argument(positional)
    else:
        about.add_argument("--data", action="append", default=[])
    given = vars(about.parse_args(arguments))
    options = options_from(kind, given)
    return command(lambda: function(given[positional or "data"], options=options), kind)
