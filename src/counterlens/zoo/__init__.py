"""The shipped weights and sample images, each with its card; read without torch.

weights/<name>/      card.json beside the weights
audits/<name>.json   card of a model of the comparison whose weights are not shipped
table1_pairs.json    those models in pairs, made by benchmarks/zoo_orderings.py
samples/<name>.npz   packed pictures, samples/<name>.json their card
generators/<name>/   diffusers folders, card.json beside the weights
cgns/<name>/         counterfactual generative networks of digits, card.json beside the weights
pairs/<name>/        image–text pairs, card.json beside the weights: zoo:NAME[#CLASSES]

All but the cards without weights are in wheels of their own, see `distributions`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from counterlens.errors import InputError, nearest
from counterlens.runs import read_json
from counterlens.zoo.distributions import missing, roots

_AUDITS = Path(__file__).parent / "audits"
_WEIGHTS, _SAMPLES, _GENERATORS = "weights", "samples", "generators"
_CGNS, _PAIRS = "cgns", "pairs"
DRAWN = {
    "textures": {
        "name": "textures",
        "what": "400 patterns of eight kinds, drawn by code when they are read, at any size",
        "licence": "Apache-2.0",
    }
}
"""Samples that need no file, with their cards."""


def names() -> list[str]:
    """Names of the shipped models."""
    return _held(_WEIGHTS)


def folder(name: str) -> Path:
    """The folder of a shipped model."""
    known = names() + pairs()
    if name in (*generators(), *cgns()):
        shipped = ", ".join(f"zoo:{k}" for k in known)
        raise InputError(f"zoo:{name} is a generator, not a classifier. Classifiers: {shipped}.")
    return _folder(_WEIGHTS, name, known)


def card(name: str) -> dict[str, Any]:
    """What is known about a shipped model: data, recipe, numbers, licence."""
    stored: dict[str, Any] = read_json(folder(name) / "card.json")
    return stored


def cards() -> list[dict[str, Any]]:
    """Cards of everything with weights: classifiers, image–text pairs, generators."""
    folders = [folder(name) for name in names()]
    folders += [pair(name) for name in pairs()] + [generator(name) for name in generators()]
    folders += [cgn(name) for name in cgns()]
    return [read_json(path / "card.json") for path in folders]


def any_card(spec: str) -> dict[str, Any]:
    """The card of anything that has one, shipped or only recorded: NAME, zoo:NAME, sample:NAME."""
    scheme, _, name = spec.rpartition(":")
    if name in DRAWN:
        return dict(DRAWN[name])
    if scheme == "sample" or (not scheme and name in samples()):
        return sample_card(name)
    kinds = (_WEIGHTS, _PAIRS, _GENERATORS, _CGNS)
    paths = [shelf / name / "card.json" for kind in kinds for shelf in _shelves(kind)]
    for path in (*paths, _AUDITS / f"{name}.json"):
        if path.exists():
            stored: dict[str, Any] = read_json(path)
            return stored
    raise InputError(_unknown("zoo", name, [card["name"] for card in cards()], recorded()))


def cost(card: Mapping[str, Any]) -> tuple[int | None, float | None]:
    """Epochs and seconds of a training and of all that it started from; None where not stated."""
    stages: list[Mapping[str, Any]] = []
    stage: Mapping[str, Any] | None = card
    while stage:
        stages.append(stage)
        stage = stage.get("start")
    epochs = [stage.get("recipe", {}).get("epochs") for stage in stages]
    seconds = [stage.get("training", {}).get("seconds") for stage in stages]
    return _total(epochs), _total(seconds)


def _total(parts: Sequence[Any]) -> Any:
    return None if not parts or None in parts else sum(parts)


def records() -> Path:
    """The folder of cards without weights."""
    return _AUDITS


def recorded() -> list[str]:
    """Names of models that were trained and audited, whose weights are not shipped."""
    return sorted(path.stem for path in _AUDITS.glob("*.json"))


def audited() -> dict[str, dict[str, Any]]:
    """Cards that hold an audit, by name: of shipped models and of models only recorded."""
    cards = {name: read_json(_AUDITS / f"{name}.json") for name in recorded()}
    cards |= {name: card(name) for name in names()}
    return {name: one for name, one in cards.items() if one.get("numbers")}


def pairs_of_table1() -> list[dict[str, Any]]:
    """Every pair of models of the comparison in every column, with the verdict about it."""
    stored: list[dict[str, Any]] = read_json(Path(__file__).with_name("table1_pairs.json"))
    return stored


def samples() -> list[str]:
    """Names of the shipped sample sets."""
    return sorted({path.stem for shelf in _shelves(_SAMPLES) for path in shelf.glob("*.npz")})


def sample(name: str) -> Path:
    """The packed file of a shipped sample set."""
    if name not in samples():
        raise InputError(_unknown("sample", name, samples()))
    paths = [shelf / f"{name}.npz" for shelf in _shelves(_SAMPLES)]
    return next(path for path in paths if path.is_file())


def sample_card(name: str) -> dict[str, Any]:
    """Where the pictures of a shipped sample set come from."""
    stored: dict[str, Any] = read_json(sample(name).with_suffix(".json"))
    return stored


def generators() -> list[str]:
    """Names of the shipped generators."""
    return _held(_GENERATORS)


def generator(name: str) -> Path:
    """The folder of a shipped generator."""
    return _folder(_GENERATORS, name, generators())


def cgns() -> list[str]:
    """Names of the shipped counterfactual generative networks."""
    return _held(_CGNS)


def cgn(name: str) -> Path:
    """The folder of a shipped counterfactual generative network."""
    return _folder(_CGNS, name, cgns())


def pairs() -> list[str]:
    """Names of the shipped image–text pairs."""
    return _held(_PAIRS)


def pair(name: str) -> Path:
    """The folder of a shipped image–text pair."""
    return _folder(_PAIRS, name, pairs())


def _shelves(kind: str) -> list[Path]:
    """Folders that hold things of a kind: of this package and of installed distributions."""
    return [root / kind for root in roots()]


def _held(kind: str) -> list[str]:
    """Names of the folders with a card."""
    cards = [path for shelf in _shelves(kind) for path in shelf.glob("*/card.json")]
    return sorted({path.parent.name for path in cards})


def _folder(kind: str, name: str, known: list[str]) -> Path:
    """A folder by its name; otherwise a line that names what there is."""
    for shelf in _shelves(kind):
        if (shelf / name / "card.json").is_file():
            return shelf / name
    raise InputError(_unknown("zoo", name, known))


def _unknown(scheme: str, name: str, known: Sequence[str], also: Sequence[str] = ()) -> str:
    """The line about a name that is not shipped; `also`: what else could have been meant."""
    shipped = ", ".join(f"{scheme}:{k}" for k in known) or "none in this build"
    if how := missing(name):
        return f"{scheme}:{name} is not installed; {how}."
    if scheme == "zoo" and name in recorded():
        how = f"counterlens zoo {name} says how to make its weights"
        return f"zoo:{name} is a card without weights: {how}. Shipped: {shipped}."
    near = nearest(name, [*known, *also])
    hint = f" (did you mean {scheme}:{near}?)." if near else "."
    return f"{scheme}:{name} is not shipped{hint} Shipped: {shipped}."


__all__ = [
    "any_card",
    "audited",
    "card",
    "cards",
    "cgn",
    "cgns",
    "cost",
    "folder",
    "generator",
    "generators",
    "missing",
    "names",
    "pair",
    "pairs",
    "pairs_of_table1",
    "recorded",
    "records",
    "sample",
    "sample_card",
    "samples",
]
