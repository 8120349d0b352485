"""Settings of searches that `--set` changes, beside those of the chain."""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from counterlens.errors import InputError
from counterlens.explanations.counterfactuals.prepare import EditSettings
from counterlens.workflows._shared.generation.generate import changed

EDIT = "edit."


def edited(settings: EditSettings, changes: Sequence[str]) -> EditSettings:
    """An edit whose own numbers (edit.KEY=VALUE) or whose chain's settings (KEY=VALUE) changed.

    >>> new = edited(EditSettings(), ["edit.pixel_weight=100", "cuts=4"])
    >>> new.pixel_weight, new.chain.cuts
    (100.0, 4)
    """
    own = [text.removeprefix(EDIT) for text in changes if text.startswith(EDIT)]
    rest = [text for text in changes if not text.startswith(EDIT)]
    new: EditSettings = numbers_changed(settings, own)
    return replace(new, chain=changed(new.chain, rest))


def numbers_changed(settings: Any, changes: Sequence[str]) -> Any:
    """A record with some of its numbers changed."""
    known = {
        one.name: getattr(settings, one.name)
        for one in fields(settings)
        if type(getattr(settings, one.name)) in (int, float)
    }
    new = {}
    for text in changes:
        key, _, value = text.partition("=")
        try:
            new[key] = type(known[key])(value)
        except (KeyError, ValueError):
            wanted = ", ".join(f"{name}={was:g}" for name, was in known.items())
            raise InputError(f"{text!r} cannot be set, expected one of {wanted}.") from None
    return replace(settings, **new)
