"""Options, declared once: a frozen record per command.

From the fields of a record derive the flag, the Python keyword, the entry in run.json, the
comparison of a resumed run, and the table in docs/reference/options.md. Nothing here loads torch.

    @record
    class AuditOptions(Output, Resumable, Compute):
        limit: int | None = option(None, help="Use only this many images of each set.", unit="N")

    @takes(AuditOptions)
    def audit(models, data, options): ...      # called as audit(models, data, limit=100)

How to add one: docs/extending/add-an-option.md.
"""

import functools
import inspect
import operator
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeVar, dataclass_transform

from counterlens.errors import InputError, nearest
from counterlens.notation import check_device

T = TypeVar("T")
R = TypeVar("R")


def option(
    default: Any = MISSING,
    *,
    help: str,
    unit: str | None = None,
    flag: str | None = None,
    group: str = "Options",
    choices: tuple[str, ...] = (),
    check: Callable[[Any], object] | None = None,
    scope: str = "settings",
) -> Any:
    """A field of an options record.

    Args:
        default: immutable; several values are a tuple. A field without a default is required.
        help: one sentence for --help, for help() in Python and for the docs table.
        unit: what stands for the value in --help: N, SPEC, BALL, FOLDER.
        flag: where the flag is not the field's name with dashes: "--class", or "--quiet/-q".
        group: heading under which --help lists it.
        choices: the values that are allowed.
        check: raises InputError for a value that no run could use; it loads no library.
        scope: "settings": decides what is computed, is written to run.json and compared by
            --resume; "run": how the run is done, not what it computes; "command": known to the
            command line alone; "objects": settings that Python may give as objects, not texts.
    """
    facts = {
        "help": help,
        "unit": unit,
        "flag": flag,
        "group": group,
        "choices": choices,
        "check": check,
        "scope": scope,
    }
    if default is MISSING:
        return field(metadata=facts)
    return field(default=default, metadata=facts)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(option, field))
def record(kind: type[T]) -> type[T]:
    """A frozen dataclass whose fields are given by name: records can inherit from each other."""
    return dataclass(frozen=True, kw_only=True)(kind)


@record
class Printed:
    """What is printed."""

    json: bool = option(False, help="Print the result as JSON.", group="Run", scope="command")
    quiet: bool = option(
        False, flag="--quiet/-q", help="No progress, no summary.", group="Run", scope="run"
    )


@record
class Output(Printed):
    """Where a run is written and what is printed."""

    out: Path | None = option(
        None,
        help="Run folder to create. Default: under runs/.",
        unit="FOLDER",
        group="Run",
        scope="run",
    )


@record
class Resumable:
    """Of runs that can be continued."""

    resume: bool = option(
        False, help="Continue the unfinished run in --out.", group="Run", scope="run"
    )


@record
class Compute:
    """Of workflows that run a model."""

    seed: int = option(0, help="Seed of everything random.", unit="N", group="Run")
    device: str = option(
        "auto", help="auto, cpu, cuda, cuda:1, mps.", check=check_device, group="Run"
    )


@record
class TrustOption:
    """Of workflows that load models by spec."""

    trust_remote_code: bool = option(
        False,
        help="Allow a model to run code of its own, also a FILE.py that a run folder names.",
        group="Run",
    )


@record
class Distributed:
    """Of workflows that can be spread over a Ray cluster."""

    on: str = option(
        "here", help="Where to compute: here, ray, or ray://HOST:PORT.", group="Run", scope="run"
    )
    ray_workers: int | None = option(
        None,
        help="Most workers on Ray. Default: the GPUs, or the cores.",
        unit="N",
        group="Run",
        scope="run",
    )


@record
class Pipeline:
    """Of commands with gates, as a pipeline runs them."""

    junit: Path | None = option(
        None,
        help="Write gates and the doctor's checks to this file, as JUnit XML.",
        unit="FILE",
        group="Gates",
        scope="run",
    )
    log_to: tuple[str, ...] = option(
        (),
        help="Log numbers and report to mlflow, wandb, tensorboard or trackio.",
        unit="TRACKER",
        choices=("mlflow", "wandb", "tensorboard", "trackio"),
        group="Run",
        scope="run",
    )


def options_of(kind: type[Any]) -> dict[str, Field[Any]]:
    """The fields of a record that were declared by `option`, by name."""
    return {one.name: one for one in fields(kind) if "scope" in one.metadata}


def keywords_of(kind: type[Any]) -> list[str]:
    """The options that Python knows: all but those of the command line alone."""
    return [name for name, one in options_of(kind).items() if one.metadata["scope"] != "command"]


def settings_of(options: Any, **facts: object) -> dict[str, object]:
    """What run.json keeps of a record: what decides the result, behind further facts.

    Fields without `option`, such as the spec of the model, are always kept.
    """
    stored = {
        one.name: getattr(options, one.name)
        for one in fields(options)
        if one.metadata.get("scope", "settings") in ("settings", "objects")
    }
    return {**facts, **stored}


def shared(options: Any, kind: type[Any]) -> dict[str, Any]:
    """The values of a record that another record has fields for."""
    names = {one.name for one in fields(kind)}
    return {one.name: getattr(options, one.name) for one in fields(options) if one.name in names}


def build(
    kind: type[T], keywords: Mapping[str, Any], options: T | None = None, *, command: str
) -> T:
    """A record from keywords, on top of `options` where both came; wrong ones are one line."""
    known = keywords_of(kind)
    for name in keywords:
        if name not in known:
            near = nearest(name, known)
            hint = f"Did you mean {near}?" if near else f"It has: {', '.join(sorted(known))}."
            raise InputError(f"{command} has no option {name!r}. {hint}")
    if options is not None and not isinstance(options, kind):
        raise InputError(
            f"options of {command} is {type(options).__name__}, expected {kind.__name__}."
        )
    record_type: type[Any] = kind
    start = {one.name: getattr(options, one.name) for one in fields(record_type)} if options else {}
    values = {**start, **keywords}
    for name, one in options_of(kind).items():
        if name not in values and one.default is MISSING:
            raise InputError(f"{command} needs {name}: {one.metadata['help']}")
    types_of = typing.get_type_hints(kind)
    declared = options_of(kind)
    return kind(
        **{
            name: _fitting(name, value, types_of[name], declared[name])
            if name in declared
            else value
            for name, value in values.items()
        }
    )


def takes(kind: type[Any]) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Let a function whose parameter `options` is a record be called with keywords as well.

    The signature and the docstring that Python and notebooks show list the options.
    """

    def decorate(function: Callable[..., R]) -> Callable[..., R]:
        signature = inspect.signature(function)
        own = [one for one in signature.parameters.values() if one.name != "options"]
        names = {one.name for one in own}

        @functools.wraps(function)
        def call(*given: Any, options: Any = None, **keywords: Any) -> R:
            mine = {name: keywords.pop(name) for name in names & keywords.keys()}
            ready = build(kind, keywords, options, command=function.__name__)
            return function(*given, options=ready, **mine)

        listed = [*own, *_parameters(kind), _whole(kind)]
        call.__signature__ = signature.replace(parameters=listed)  # type: ignore[attr-defined]
        call.__doc__ = _documented(function.__doc__, {"Options": kind})
        return call

    return decorate


def takes_by(
    kinds: Mapping[str, type[Any]], *, default: str
) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """As `takes`, of a function with methods: each method has a record of its own.

    The function's parameters `method` and `options` say which, and with what. An option of
    another method is refused, and the error names the methods that it belongs to.
    """

    def decorate(function: Callable[..., R]) -> Callable[..., R]:
        signature = inspect.signature(function)
        own = [p for p in signature.parameters.values() if p.name not in ("options", "method")]
        names = {one.name for one in own}
        command = function.__name__

        @functools.wraps(function)
        def call(*given: Any, method: str | None = None, options: Any = None, **keywords: Any) -> R:
            if method is None:
                method = next((m for m, kind in kinds.items() if type(options) is kind), default)
            _known_method(method, kinds)
            mine = {name: keywords.pop(name) for name in names & keywords.keys()}
            _of_method(keywords, method, kinds, command)
            ready = build(kinds[method], keywords, options, command=f"{command} by {method}")
            return function(*given, method=method, options=ready, **mine)

        every = {p.name: p for kind in reversed(list(kinds.values())) for p in _parameters(kind)}
        chosen = inspect.Parameter(
            "method", inspect.Parameter.KEYWORD_ONLY, default=default, annotation=str
        )
        listed = [*own, chosen, *every.values(), _whole(*kinds.values())]
        call.__signature__ = signature.replace(parameters=listed)  # type: ignore[attr-defined]
        heads = {f"Options of method={method!r}": kind for method, kind in kinds.items()}
        call.__doc__ = _documented(function.__doc__, heads)
        return call

    return decorate


def _known_method(method: object, kinds: Mapping[str, Any]) -> None:
    if method not in kinds:
        near = nearest(str(method), list(kinds))
        hint = f" Did you mean {near}?" if near else ""
        raise InputError(f"method is {method!r}, expected one of {', '.join(kinds)}.{hint}")


def _of_method(
    keywords: Mapping[str, Any], method: str, kinds: Mapping[str, type[Any]], command: str
) -> None:
    """Refuse an option that belongs to other methods."""
    for name in keywords:
        owners = [repr(other) for other, kind in kinds.items() if name in keywords_of(kind)]
        if owners and repr(method) not in owners:
            raise InputError(
                f"{command} by {method} has no option {name!r}; it belongs to "
                f"method={' or '.join(owners)}."
            )


def _parameters(kind: type[Any]) -> list[inspect.Parameter]:
    """The options of a record as keyword parameters."""
    types_of = typing.get_type_hints(kind)
    return [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if one.default is MISSING else one.default,
            annotation=types_of[name],
        )
        for name, one in options_of(kind).items()
        if name in keywords_of(kind)
    ]


def _whole(*kinds: type[Any]) -> inspect.Parameter:
    """The parameter that takes a whole record."""
    annotation = functools.reduce(operator.or_, kinds, None)
    return inspect.Parameter(
        "options", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
    )


def _documented(text: str | None, kinds: Mapping[str, type[Any]]) -> str:
    """A docstring with its options, each with its sentence; those of all records stand last."""
    lines, common = [inspect.cleandoc(text or "")], None
    if len(kinds) > 1:
        common = set.intersection(*(set(keywords_of(kind)) for kind in kinds.values()))
    for head, kind in kinds.items():
        own = [name for name in keywords_of(kind) if name not in (common or ())]
        lines += [
            "",
            f"{head}:",
            *(f"    {n}: {options_of(kind)[n].metadata['help']}" for n in own),
        ]
        if not own:
            lines.append("    none of its own")
    if common:
        first = options_of(next(iter(kinds.values())))
        shared_ones = [name for name in first if name in common]
        lines += ["", "Options of every method:"]
        lines += [f"    {name}: {first[name].metadata['help']}" for name in shared_ones]
    return "\n".join(lines)


def many(annotation: Any) -> bool:
    """Whether an option may be repeated: its type is a tuple."""
    return typing.get_origin(annotation) is tuple


def _fitting(name: str, value: Any, annotation: Any, one: Field[Any]) -> Any:
    """The value as its field wants it: one of several as a tuple, a text as a path."""
    if one.metadata["scope"] == "objects":
        for part in value if isinstance(value, list | tuple) else (value,):
            if isinstance(part, str):
                _choice(name, part, one)
        return value
    if many(annotation):
        several = isinstance(value, Sequence) and not isinstance(value, str)
        values = () if value is None else tuple(value) if several else (value,)
        for part in values:
            _choice(name, part, one)
        return values
    kinds = typing.get_args(annotation) if _union(annotation) else (annotation,)
    if value is None and types.NoneType in kinds:
        return None
    for kind in kinds:
        ready = _converted(value, kind)
        if ready is not None:
            _choice(name, ready, one)
            return ready
    words = " or ".join(kind.__name__ for kind in kinds if kind is not types.NoneType)
    raise InputError(f"{name} is {value!r} ({type(value).__name__}), expected {words}.")


def _converted(value: Any, kind: type[Any]) -> Any:
    """The value as this type, or None where it is another."""
    if kind is bool:
        return bool(value) if isinstance(value, bool | int) and value in (0, 1) else None
    if isinstance(value, bool):
        return None
    if kind is int:
        return int(value) if isinstance(value, Integral) else None
    if kind is float:
        return float(value) if isinstance(value, Real) else None
    if kind is Path:
        return Path(value) if isinstance(value, str | Path) else None
    if kind is str:
        return str(value) if isinstance(value, str | Path) else None
    return value if isinstance(value, kind) else None


def _choice(name: str, value: Any, one: Field[Any]) -> None:
    allowed = one.metadata["choices"]
    if allowed and value not in allowed:
        near = nearest(str(value), allowed)
        hint = f" Did you mean {near}?" if near else ""
        raise InputError(f"{name} is {value!r}, expected one of {', '.join(allowed)}.{hint}")
    if one.metadata["check"] is not None:
        one.metadata["check"](value)


def _union(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (types.UnionType, typing.Union)


def in_flags(text: str, kind: type[Any]) -> str:
    """A library's error in the words of the command line: `limit=40` becomes `--limit 40`.

    Errors say what to change in Python; the options of the command, by their keywords, are
    rewritten here and nowhere else: `NAME=VALUE` anywhere, `NAME is …` and `NAME has …` at the
    beginning.
    """
    for name, one in options_of(kind).items():
        flag = (one.metadata["flag"] or f"--{name.replace('_', '-')}").split("/")[0]
        pattern = rf"\b{name}=(\[[^\]]*\]|[^\s]+?)(?=[.,;:)]*(?:\s|$))"

        def typed(match: re.Match[str], flag: str = flag) -> str:
            values = [part.strip(" '\"") for part in match[1].strip("[]").split("', '")]
            return flag if values == ["True"] else " ".join(f"{flag} {value}" for value in values)

        text = re.sub(pattern, typed, text)
        text = re.sub(rf"^{name}(?= (is|has) )", flag, text)  # changes has 'x', expected …
    return text
