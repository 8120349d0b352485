"""Commands made from options records: flags, groups and examples of --help.

    @command(app, AuditOptions, example="zoo:cifar10-plain-small sample:cifar10")
    def audit(models: Annotated[list[str], typer.Argument()], options: AuditOptions) -> None: ...

Arguments are parameters of the function; each field of the record becomes a flag.
"""

import functools
import inspect
import typing
from collections.abc import Callable
from dataclasses import MISSING, Field
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from counterlens.errors import CounterlensError, nearest
from counterlens.workflows._shared.options import build, in_flags, many, options_of


class GroupedCommand(TyperCommand):
    """A command whose --help lists the options under the headings of their record.

    An option that another mode has is refused with the names of those modes.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            name = getattr(error, "option_name", "")
            modes_of = getattr(ctx.parent and ctx.parent.command, "modes", {})
            owners = [m for m, one in modes_of.items() if any(name in p.opts for p in one.params)]
            if owners and hasattr(error, "possibilities"):
                error.possibilities = None
                error.message = (  # type: ignore[attr-defined]
                    f"{ctx.info_name} has no {name}; it belongs to {', '.join(owners)}."
                )
            raise

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            row = param.get_help_record(ctx)
            if row is None:
                continue
            own = getattr(param, "rich_help_panel", None)
            default = "Arguments" if param.param_type_name == "argument" else "Run"
            groups.setdefault(own or default, []).append(row)
        last = [groups.pop("Run")] if "Run" in groups else []
        for name, rows in [*groups.items(), *(("Run", rows) for rows in last)]:
            with formatter.section(name):
                formatter.write_dl(rows)


class Choices(TyperGroup):
    """Commands; a mistyped one is answered with the one that was meant, or with all of them."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except Exception as error:
            message = getattr(error, "message", "")
            if message.startswith("No such command") and "Did you mean" not in message:
                inside = [f"{g} {args[0]}" for g, one in self.commands.items() if _has(one, args)]
                hint = (
                    f"Did you mean {ctx.command_path} {inside[0]}?"
                    if inside
                    else f"It has: {', '.join(self.commands)}."
                )
                error.message = f"{message} {hint}"  # type: ignore[attr-defined]
            raise


def _has(command: Any, args: list[str]) -> bool:
    """Whether a command has a command of the name that was typed."""
    return args[0] in getattr(command, "commands", {})


def modes(
    app: typer.Typer,
    name: str,
    *,
    default: str,
    arguments: str,
    about: str,
    example: str,
    earlier: Callable[[list[str]], list[str]] | None = None,
) -> typer.Typer:
    """A command with modes, each a command of its own; without a mode it is the default one.

    Args:
        arguments: what stands in the usage line behind the optional mode.
        example: arguments of one use that works, shown at the end of --help.
        earlier: turns a line without a mode, which may be spelled as it was before there were
            modes, into one that begins with a mode.
    """

    class Modes(TyperGroup):
        @property
        def modes(self) -> Any:
            return self.commands

        def format_usage(self, ctx: Any, formatter: Any) -> None:
            formatter.write_usage(ctx.command_path, f"[COMMAND] {arguments} [OPTIONS]")

        def _mistyped(self, ctx: Any, word: str) -> None:
            """Refuse what is spelled like a mode and can be neither model nor option."""
            near = nearest(word, self.commands) if word.isalpha() else None
            if near and not Path(word).exists():
                ctx.fail(f"No such command {word!r}. Did you mean {near!r}?")

        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
                self._mistyped(ctx, args[0])
                args = earlier(args) if earlier else [default, *args]
            return super().parse_args(ctx, args)

    group = typer.Typer(
        name=name,
        cls=Modes,
        help=about,
        rich_markup_mode=None,
        no_args_is_help=True,
        epilog=f"Without a COMMAND it is {default}. Options of one: counterlens {name} {default} "
        f"--help.\n\nExample:\n\n\b\n  counterlens {name} {example}",
    )
    app.add_typer(group)
    return group


def command(
    app: typer.Typer, kind: type[Any], *, name: str | None = None, example: str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function as a command whose flags are the fields of a record.

    Args:
        app: where the command belongs.
        kind: the record; the function takes it as `options`.
        name: of the command, where it is not the function's.
        example: arguments of one use that works, shown at the end of --help.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        called = name or function.__name__
        signature = inspect.signature(function)
        own = [one for one in signature.parameters.values() if one.name != "options"]
        declared = options_of(kind)

        @functools.wraps(function)
        def run(**given: Any) -> None:
            flags = {field: given.pop(field) for field in declared}
            switches = {
                field: flags.pop(field)
                for field, one in declared.items()
                if one.metadata["scope"] == "command"
            }
            start = kind(**switches, **_required(kind, flags))
            try:
                options = build(kind, flags, start, command=called)
                function(**given, options=options)
            except CounterlensError as error:
                error.args = (in_flags(str(error), kind),)
                raise

        types_of = typing.get_type_hints(kind)
        params = [_parameter(field, types_of[field], one) for field, one in declared.items()]
        own = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own]
        run.__signature__ = signature.replace(parameters=[*own, *params])  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in [*own, *params]}
        run.options_record = kind  # type: ignore[attr-defined]
        group = (
            "counterlens"
            if app.info.name in (None, "counterlens")
            else f"counterlens {app.info.name}"
        )
        epilog = f"Example:\n\n\b\n  {group} {called} {example}"
        app.command(called, cls=GroupedCommand, epilog=epilog)(run)
        return run

    return decorate


def _required(kind: type[Any], flags: dict[str, Any]) -> dict[str, Any]:
    """Values of the fields that have no default."""
    return {n: flags[n] for n, one in options_of(kind).items() if one.default is MISSING}


def _parameter(name: str, annotation: Any, one: Field[Any]) -> inspect.Parameter:
    """One field as a parameter that Typer reads."""
    facts = one.metadata
    several = many(annotation)
    kind = list[typing.get_args(annotation)[0]] if several else annotation  # type: ignore[misc]
    text = facts["help"] + (" May be repeated." if several else "")
    flags = (facts["flag"] or f"--{name.replace('_', '-')}").split("/")
    declared = typer.Option(
        *flags, help=text, metavar=facts["unit"], rich_help_panel=facts["group"]
    )
    default: Any = list(one.default) if isinstance(one.default, tuple) else one.default
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if default is MISSING else default,
        annotation=Annotated[kind, declared],
    )


def records(app: typer.Typer) -> dict[str, type[Any]]:
    """Every command that is made from a record, `curate adversarial` with both words."""
    from typer.main import get_command

    kinds: dict[str, type[Any]] = {}

    def walk(node: Any, words: tuple[str, ...]) -> None:
        kind = getattr(node.callback, "options_record", None)
        if kind is not None:
            kinds[" ".join(words)] = kind
        for word, child in sorted(getattr(node, "commands", {}).items()):
            walk(child, (*words, word))

    walk(get_command(app), ())
    return kinds
