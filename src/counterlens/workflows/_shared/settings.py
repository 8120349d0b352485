"""Typed settings of a training: a frozen record, read from YAML and changed by `--set key=value`.

    @dataclass(frozen=True)
    class Judging:
        every: int = 5

    @dataclass(frozen=True)
    class Recipe:
        epochs: float = 100
        judge: Judging = Judging()

    values = as_dict(Recipe())
    change(Recipe, values, ["epochs=30", "judge.every=1"])
    recipe = build(Recipe, values)

The types of the fields are the rules: a name that no field has and a value of another type are
each one line, with the nearest name where there is one. A field of type Mapping is open: its keys
are checked by whom it is for. Nothing here loads torch.
"""

import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Literal, TypeVar

from counterlens.errors import InputError, first_line, nearest

T = TypeVar("T")
Switch = bool | Literal["auto"]
"""On, off, or what suits the device."""
_WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    types.NoneType: "null",
}


def as_dict(record: Any) -> dict[str, Any]:
    """A record as it is written to a card: sections as dicts, several values as lists.

    An open section that is empty is left out.
    """
    values = {one.name: _plain(getattr(record, one.name)) for one in fields(record)}
    return {name: value for name, value in values.items() if value != {}}


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return as_dict(value)
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, tuple) else value


def build(kind: type[T], values: Mapping[str, Any]) -> T:
    """The record of values that `merge` has checked."""
    types_of = typing.get_type_hints(kind)
    return kind(**{name: _ready(value, types_of[name]) for name, value in values.items()})


def _ready(value: Any, annotation: Any) -> Any:
    if is_dataclass(annotation):
        return build(typing.cast(type[Any], annotation), value)
    return tuple(value) if isinstance(value, list) else value


def merge(kind: type[Any], values: dict[str, Any], layer: Mapping[str, Any], where: str) -> None:
    """Put the settings of one layer over `values`, in place.

    Args:
        kind: the record that says which settings there are.
        where: what a mistake is blamed on.
    """
    types_of = typing.get_type_hints(kind)
    for key, value in layer.items():
        if key not in types_of:
            near = nearest(str(key), types_of)
            hint = f"Did you mean {near}?" if near else f"Known: {', '.join(types_of)}."
            raise InputError(f"{where} sets {key!r}, which no training has. {hint}")
        annotation = types_of[key]
        section = is_dataclass(annotation)
        if section or _open(annotation):
            if not isinstance(value, Mapping):
                raise InputError(f"{where} sets {key} to {value!r}, expected {key}.KEY=VALUE.")
            if section:
                merge(typing.cast(type[Any], annotation), values[key], value, f"{where}: {key}")
            else:
                values[key] = _merged(values.get(key, {}), value)
        else:
            values[key] = _fitting(f"{where} sets {key}", value, annotation)


def _merged(before: Mapping[str, Any], layer: Mapping[str, Any]) -> dict[str, Any]:
    """An open section: another `kind` has other options, which are not mixed."""
    fresh = layer.get("kind", before.get("kind")) != before.get("kind")
    return dict(layer) if fresh else {**before, **layer}


def change(kind: type[Any], values: dict[str, Any], changes: Sequence[str]) -> None:
    """Replace settings by `key=value`, keys of sections joined by a dot."""
    for one in changes:
        merge(kind, values, nested([one]), "--set")


def nested(changes: Sequence[str]) -> dict[str, Any]:
    """`key=value` texts as a dictionary; the last dot-joined key wins.

    >>> nested(["lr=0.2", "near.radius=1e-1"])
    {'lr': 0.2, 'near': {'radius': 0.1}}
    """
    out: dict[str, Any] = {}
    for one in changes:
        key, sign, text = one.partition("=")
        if not sign:
            raise InputError(f"changes has {one!r}, expected KEY=VALUE such as lr=0.2.")
        inner: Any = read_value(text)
        for part in reversed(key.strip().split(".")):
            inner = {part: inner}
        out |= inner
    return out


def changed(record: T, changes: Sequence[str]) -> T:
    """A record with `key=value` in place of some of its settings."""
    values = as_dict(record)
    change(type(record), values, changes)
    return build(type(record), values)


def read_value(text: str) -> Any:
    """A value as YAML reads it; 1e-3 is a number, too.

    >>> read_value("[1, 2]"), read_value("1e-3"), read_value("cosine"), read_value("null")
    ([1, 2], 0.001, 'cosine', None)
    """
    import yaml

    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"changes has the value {text[:80]!r}: {first_line(error)}.") from None
    return _numeric(value)


def _numeric(value: Any) -> Any:
    """Texts such as 1e-3 as numbers, also in lists: YAML wants a dot in them, people don't."""
    if isinstance(value, list):
        return [_numeric(one) for one in value]
    if not isinstance(value, str):
        return value
    try:
        return float(value)
    except ValueError:
        return value


def differing(values: Mapping[str, Any], base: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Keys of sections joined by a dot, and values, where they are not those of `base`."""
    for key, value in values.items():
        if key not in base or value == base[key]:
            continue
        if isinstance(value, dict) and isinstance(base[key], dict):
            yield from ((f"{key}.{k}", v) for k, v in differing(value, base[key]))
        else:
            yield key, value


def check_choice(name: str, value: object, allowed: Sequence[str]) -> None:
    """Refuse a value that is not one of several, with the nearest one."""
    if value not in allowed:
        near = nearest(str(value), allowed)
        hint = f" Did you mean {near}?" if near else ""
        raise InputError(f"{name} is {value!r}, expected one of {', '.join(allowed)}.{hint}")


def _open(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (Mapping, dict)


def _fitting(what: str, value: Any, annotation: Any) -> Any:
    """The value as it is kept, or one line that names what was expected."""
    kinds = _alternatives(annotation)
    for ready in (value, _numeric(value)):
        if any(_fits(ready, kind) for kind in kinds):
            return ready
    whole = isinstance(value, float) and value.is_integer()
    if whole and int in kinds:  # --set batch=1e3
        return int(value)
    raise InputError(f"{what} to {value!r}, expected {_expected(annotation)}.")


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        return tuple(k for one in typing.get_args(annotation) for k in _alternatives(one))
    return (annotation,)


def _fits(value: Any, kind: Any) -> bool:
    if typing.get_origin(kind) is Literal:
        return value in typing.get_args(kind)
    if typing.get_origin(kind) is tuple:
        part, *rest = typing.get_args(kind)
        several = isinstance(value, list | tuple) and all(_fits(one, part) for one in value)
        return several and (Ellipsis in rest or len(value) == 1 + len(rest))
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, int | float if kind is float else kind)


def _expected(annotation: Any) -> str:
    parts = []
    for kind in _alternatives(annotation):
        if typing.get_origin(kind) is Literal:
            parts += [str(one) for one in typing.get_args(kind)]
        elif typing.get_origin(kind) is tuple:
            part, *rest = typing.get_args(kind)
            count = "" if Ellipsis in rest else f"{1 + len(rest)} "
            words = {int: "whole numbers", float: "numbers"}.get(part, "texts")
            parts.append(f"a list of {count}{words}")
        else:
            parts.append(_WORDS[kind])
    return " or ".join(parts)
