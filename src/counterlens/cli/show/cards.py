"""The card of a shipped model, generator or sample on the terminal."""

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console

from counterlens import zoo
from counterlens.cli.show.summary import WIDE, numbers_table
from counterlens.runs import Number, key_part
from counterlens.runs.headline import AUDIT, in_order
from counterlens.runs.keys import meaning
from counterlens.workflows.train import recipes

_APART = {"seen": "like the out-data that RATIO saw", "noise": "noise"}


def show_card(card: Mapping[str, Any]) -> None:
    """Print what it is, what it was made of, what it cost, and every number that is known."""
    console = Console()
    console = console if console.is_terminal else Console(width=WIDE)
    facts = {what: text for what, text in _facts(card) if text}
    for what, text in facts.items():
        console.print(f"{what:12}{text}", highlight=False, soft_wrap=True)
    numbers = {key: Number.from_json(number) for key, number in card.get("numbers", {}).items()}
    if numbers:
        keys = in_order(numbers, AUDIT)
        console.print(numbers_table(numbers, keys, _kinds(card)), highlight=False)
        hint = f"Protocols, recipe and data in full: counterlens zoo {card['name']} --json"
        console.print(hint, highlight=False, soft_wrap=True)


def _facts(card: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "name", str(card["name"])
    yield "about", str(card.get("summary") or card.get("what") or _recipe(card).get("about", ""))
    shape = card.get("architecture") or {}
    yield "network", ", ".join(_words(key, value) for key, value in shape.items())
    yield "classes", ", ".join(card.get("classes", ()))
    yield "trained on", "; ".join(_sets(card.get("data", {})))
    yield "training", _training(card)
    if card.get("weights") == "not kept":
        yield "weights", f"not shipped; make them: {_command(card)}"
    audit = card.get("audit") or {}
    if audit:
        fitted = audit.get("calibrate")
        temperature = f", temperature fitted on {fitted}" if fitted else ""
        yield "audited", f"{audit['date']} on {audit['data']}{temperature}"
    yield "source", str(card.get("source", ""))
    yield "licence", str(card.get("licence", ""))


def _command(card: Mapping[str, Any]) -> str:
    """What trains such a model; a start that a card names is a shipped model."""
    recipe = _recipe(card)
    start = {"start": f"zoo:{recipe['start']}"} if recipe.get("start") else {}
    changes = recipes.changes_of({**recipe, **start})
    out = " --out-data POOL" if "out" in card["data"] else ""
    options = "".join(f" --set {shlex.quote(text)}" for text in changes)
    return f"counterlens train {recipe['name']} --data TRAIN{out}{options}"


def _kinds(card: Mapping[str, Any]) -> dict[str, str]:
    """Which numbers are of sets that stay out of comparisons, and why."""
    kinds = {
        key_part(name): kind for name, kind in (card.get("audit") or {}).get("ood", {}).items()
    }
    subjects = {key: kinds.get(meaning(key).subject, "") for key in card["numbers"]}
    return {key: _APART[kind] for key, kind in subjects.items() if kind in _APART}


def _recipe(card: Mapping[str, Any]) -> Mapping[str, Any]:
    recipe: Mapping[str, Any] = card.get("recipe") or {}
    return recipe


def _words(key: str, value: Any) -> str:
    text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if key == "kind" else f"{key} {text}"


def _sets(data: Mapping[str, Any]) -> Iterator[str]:
    """Names and sizes of the sets a card tells of; held-out images were not trained on."""
    parts = data.get("sets") or [part for key, part in data.items() if key in ("in", "out")]
    for part in parts:
        yield f"{part.get('name') or part['spec']} ({part['n']:,})"
    yield from data.get("sources", ())


def _training(card: Mapping[str, Any]) -> str:
    epochs, seconds = zoo.cost(card)
    device = (card.get("training") or {}).get("device")
    parts = [f"{epochs} epochs"] if epochs else []
    if seconds is not None:
        parts.append(f"{seconds / 60:.1f} min" + (f" on {device}" if device else ""))
    return ", ".join(parts)
