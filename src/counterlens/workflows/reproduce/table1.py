"""Reproduce Table 1: the paper's rows, ours from stored audits, and what differs between them.

Paper: Augustin et al. 2020 (ratio2020), Tables 1, 3, 5 and 8, CIFAR-10 (table1_paper.py).
Differs: see `DIFFERENCES`, which the report prints beside the numbers.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from counterlens import zoo
from counterlens.data import name_of
from counterlens.errors import InputError
from counterlens.runs import Number, Run, key_part, new_folder
from counterlens.runs.keys import bounded, meaning, verdict, worst_verdict
from counterlens.workflows._shared.options import options_of, takes
from counterlens.workflows._shared.result import Result
from counterlens.workflows._shared.session import logger, running
from counterlens.workflows.reproduce.cards import NOISE, SEEN, UNSEEN, with_audit
from counterlens.workflows.reproduce.options import Table1Options
from counterlens.workflows.reproduce.table1_pairs import counts
from counterlens.workflows.reproduce.table1_paper import DIFFERENCES, METRICS, printed, printed_sets
from counterlens.workflows.train import recipes

ROWS: dict[str, tuple[str, str | None]] = {
    "plain": ("Plain", "cifar10-plain"),
    "oe": ("OE", "cifar10-oe"),
    "acet": ("ACET", "cifar10-acet"),
    "madry": ("M 0.5", None),
    "at-0.5": ("AT 0.5", "cifar10-at-0.5"),
    "at-0.25": ("AT 0.25", "cifar10-at-0.25"),
    "jem": ("JEM-0", None),
    "ratio-0.5": ("RATIO 0.5", "cifar10-ratio-0.5"),
    "ratio-0.25": ("RATIO 0.25", "cifar10-ratio-0.25"),
    "trades-0.5": ("TRADES 0.5", "cifar10-trades-0.5"),
    "half-at-0.5": ("50/50 AT 0.5", "cifar10-half-at-0.5"),
    "three-part-ratio-0.5": ("RATIO 0.5, three-part", "cifar10-three-part-ratio-0.5"),
    "plain-small": ("Plain, small", "cifar10-plain-small"),
    "ratio-small": ("RATIO 0.25, small", "cifar10-ratio-small"),
}
"""Row → its name in print, and the recipe that makes ours; the last four are not in Table 1."""

PROTOCOL = {
    "attack": ["l2:0.5", "l2:1.0", "linf:8/255"],
    "ood_attack": "l2:1.0",
    "attack_version": "standard",
    "attack_points": 1000,
    "seed": 0,
}
"""How a row is audited where its card does not say otherwise."""

# the limits of docs/papers/ratio2020.md, written down before the models were trained
_FAR_FROM_PLAIN, _LEAST_ROBUST, _MOST_ECE, _LEAST_AUC, _LEAST_WORST = 0.05, 0.5, 0.05, 0.8, 0.5


NO_PLAIN = "clean accuracy: no plain model of the same architecture"
_PLAIN = ("cifar10-plain", "cifar10-plain-small")


@takes(Table1Options)
def table1(options: Table1Options) -> Result:
    """Put the paper's table beside ours; audit one row again where `rerun` names it.

    >>> import counterlens as cl
    >>> cl.reproduce.table1(quiet=True).numbers["table1.cifar10-ratio-0.25.clean"].n
    10000
    """
    _check(options)
    cards = zoo.audited()
    name, model = _row(options.rerun)
    folder = options.out or new_folder("reproduce", "ratio-table1")
    inputs = {"table": "ratio-table1"}
    with running("reproduce", options, name=name, inputs=inputs, folder=folder) as run:
        if model is not None:
            again = _audit(name, model, cards.get(name, {}), options, folder)
            run.note(rerun=name, audit=again.folder.name)
            cards[name] = with_audit(cards.get(name, {}), again)
        run.note(model="RATIO, Table 1", data="CIFAR-10")
        run.write_table("table1", rows(cards))
        run.write_table("table1_sets", per_set(cards))
        run.write_table("table1_rows", origins(cards, rerun=name))
        pairs = zoo.pairs_of_table1()
        run.write_table("table1_counts", [{"column": c, **n} for c, n in counts(pairs).items()])
        run.write_table("table1_pairs", pairs)
        differences = [{"what": w, "paper": p, "ours": o} for w, p, o in DIFFERENCES]
        run.write_table("differences", differences)
        run.add_numbers(numbers(cards))
    return Result(run)


def _check(options: Table1Options) -> None:
    """Options of the audit of a row have no effect without one."""
    if options.rerun is None:
        for name in ("data", "ood", "calibrate", "points"):
            if getattr(options, name) != options_of(Table1Options)[name].default:
                raise InputError(f"{name} has no effect without rerun=NAME.")


def _row(rerun: str | None) -> tuple[str, str | None]:
    """The recipe and the model of the row that is audited again."""
    if rerun is None:
        return "", None
    name, _, model = rerun.partition("=")
    known = [recipe for _, recipe in ROWS.values() if recipe]
    if name not in known:
        raise InputError(f"rerun {name} is no row of the table, expected {', '.join(known)}.")
    if not model and name not in zoo.names():
        raise InputError(
            f"the weights of {name} are not shipped. Train it (counterlens train {name} …), then "
            f"rerun={name}=RUN/model."
        )
    return name, model or f"zoo:{name}"


def _audit(
    name: str, model: str, card: Mapping[str, Any], options: Table1Options, folder: Path
) -> Run:
    """The audit of a row, by the protocol of its card."""
    from counterlens.workflows.audit.run import audit

    stored = card.get("audit", {})  # one without attacks says nothing about them
    how = {**PROTOCOL, **{k: v for k, v in stored.items() if k in PROTOCOL and v}}
    absent = sorted(set(stored.get("ood", ())) - {name_of(spec) for spec in options.ood})
    if absent:
        logger(options)(f"sets of the stored audit not given, so left out: {', '.join(absent)}")
    if options.points is not None:
        how["attack_points"] = options.points
    return audit(
        [model],
        options.data or "sample:cifar10",
        ood=list(options.ood),
        calibrate=options.calibrate,
        out=folder / f"audit-{name}",
        device=options.device,
        quiet=options.quiet,
        **how,
    ).run


def ours(card: Mapping[str, Any], metric: str) -> Number | None:
    """A number of a card in the sense of a column of the table."""
    stored = {k: Number.from_json(v) for k, v in card.get("numbers", {}).items()}
    key = METRICS[metric]
    if not key.startswith("ood."):
        return stored.get(key) or stored.get(key.replace("-1.0.", "-1."))  # l2:1.0 or l2:1
    kinds = card.get("audit", {}).get("ood", {})
    natural = [name for name, kind in kinds.items() if kind == UNSEEN]
    wanted = key.removeprefix("ood.")
    return mean([stored.get(f"ood.{key_part(name)}.{wanted}") for name in natural], natural)


def mean(numbers: Sequence[Number | None], names: Sequence[str]) -> Number | None:
    """Plain mean over sets; the ends are averaged too, as if all erred together."""
    if not numbers or any(n is None or n.value is None for n in numbers):
        return None
    values, lows, highs = ([getattr(n, part) for n in numbers] for part in ("value", "low", "high"))
    whole = None not in (*lows, *highs)
    ends = "ends averaged, which is no narrower than the truth" if whole else "no interval"
    first = next(number.protocol for number in numbers if number)
    protocol = f"mean over {', '.join(names)}; {ends}; {names[0]}: {first}"
    worst = worst_verdict(number for number in numbers if number)
    trust = {"verdict": worst, "reasons": []} if worst else None
    n = sum(number.n for number in numbers if number)
    low, high = (fmean(lows), fmean(highs)) if whole else (None, None)
    whole_or_not = bounded(number for number in numbers if number)
    return Number(fmean(values), n, low, high, protocol, trust=trust, **whole_or_not)


def rows(cards: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row per model and column: the paper's figure and ours, both as shares."""
    paper, out = printed(), []
    for row, (title, recipe) in ROWS.items():
        card = cards.get(recipe or "", {})
        for metric in METRICS:
            theirs = paper.get(row, {}).get(metric)
            number = ours(card, metric)
            scale = 1.0 if metric == "T" else 100.0
            out.append(
                {
                    "row": title,
                    "recipe": recipe,
                    "metric": metric,
                    "paper": None if theirs is None else theirs / scale,
                    "ours": number.value if number else None,
                    "low": number.low if number else None,
                    "high": number.high if number else None,
                    "n": number.n if number else None,
                    "protocol": number.protocol if number else None,
                    "verdict": verdict(number) if number else None,
                }
            )
    return out


def per_set(cards: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """AUROC, worst-case AUROC and MMC on every set: ours as on the card, and the paper's."""
    paper, out = printed_sets(), []
    order = [UNSEEN, SEEN, NOISE]
    for row, (title, recipe) in ROWS.items():
        card = cards.get(recipe or "", {})
        theirs = dict(paper.get(row, {}))
        kinds = card.get("audit", {}).get("ood", {})
        for name, kind in sorted(kinds.items(), key=lambda item: order.index(item[1])):
            line: dict[str, Any] = {"row": title, "set": name, "kind": kind}
            for metric in ("auroc", "worst_auroc", "mmc"):
                line[metric] = card["numbers"].get(f"ood.{key_part(name)}.{metric}")
            out.append(line | _printed(theirs.pop(name, None)))
        for name, cells in theirs.items():
            line = {"row": title, "set": name, "kind": "paper's alone"}
            out.append(line | dict.fromkeys(("auroc", "worst_auroc", "mmc")) | _printed(cells))
    return out


def _printed(cells: tuple[float, float] | None) -> dict[str, float | None]:
    """The paper's two figures on a set, as shares."""
    clean, worst = (cell / 100 for cell in cells) if cells else (None, None)
    return {"paper_auroc": clean, "paper_worst_auroc": worst}


def origins(cards: Mapping[str, Mapping[str, Any]], *, rerun: str = "") -> list[dict[str, Any]]:
    """What makes each row, what it cost, and where it fails."""
    known, out = set(recipes.names()), []
    for title, recipe in ROWS.values():
        card = cards.get(recipe or "", {})
        state = "not trained"
        if recipe is None:
            state = "of other authors, no recipe"
        elif not card and recipe in zoo.names():
            state = "trained, no audit stored"
        elif card:
            state = "audited again" if recipe == rerun else "stored audit"
            if any(ours(card, metric) is None for metric in METRICS):
                state += ", in part"
        epochs, seconds = zoo.cost(card)
        plain = plain_beside(card, cards)
        out.append(
            {
                "row": title,
                "recipe": recipe if recipe in known else None,
                "state": state,
                "epochs": epochs,
                "minutes": None if seconds is None else round(seconds / 60, 1),
                "device": card.get("training", {}).get("device"),
                "audited": card.get("audit", {}).get("date"),
                "failures": failures(card, plain) if card else None,
                "unjudged": [] if plain or not card else [NO_PLAIN],
            }
        )
    return out


def plain_beside(card: Mapping[str, Any], cards: Mapping[str, Mapping[str, Any]]) -> Number | None:
    """Clean accuracy of the plain model of the same architecture, where there is one."""
    plain = [cards[name] for name in _PLAIN if name in cards]
    same = [p for p in plain if p.get("architecture") == card.get("architecture")]
    return ours(same[0], "clean") if same else None


def failures(card: Mapping[str, Any], plain: Number | None) -> list[str]:
    """Failure cases by the limits stated before training; a number that is absent is not judged."""
    out = []
    clean, robust, ece = (ours(card, m) for m in ("clean", "l2 0.5", "ECE"))
    if clean and plain and _below(clean, (plain.value or 0) - _FAR_FROM_PLAIN):
        gap = 100 * ((plain.value or 0) - (clean.value or 0))
        out.append(f"clean accuracy {gap:.1f} points below the plain model, more than 5")
    if _below(robust, _LEAST_ROBUST):
        out.append("robust accuracy below 50 %")
    if ece and ece.value is not None and ece.value > _MOST_ECE:
        out.append("calibration error above 5 %")
    strange = [name for name in _sets_below(card, "auroc", _LEAST_AUC) if _natural(card, name)]
    worst = _sets_below(card, "worst_auroc", _LEAST_WORST)
    out += [f"AUC below 80 % on {', '.join(strange)}"] if strange else []
    out += [f"worst-case AUC below 50 % on {', '.join(worst)}"] if worst else []
    return out


def _sets_below(card: Mapping[str, Any], metric: str, limit: float) -> list[str]:
    """Sets on which a measured AUROC is lower than that."""
    out = []
    for key, stored in card.get("numbers", {}).items():
        m, value = meaning(key), stored["value"]
        if m.area == "ood" and m.metric == metric and value is not None and value < limit:
            out.append(m.subject)
    return out


def _natural(card: Mapping[str, Any], subject: str) -> bool:
    kinds = card.get("audit", {}).get("ood", {})
    noises = {key_part(name) for name, kind in kinds.items() if kind == NOISE}
    return subject not in noises


def _below(number: Number | None, limit: float | None) -> bool:
    return bool(number and number.value is not None and limit is not None and number.value < limit)


def numbers(cards: Mapping[str, Mapping[str, Any]]) -> dict[str, Number]:
    """Our columns as numbers of the run."""
    out = {}
    for _, recipe in ROWS.values():
        for metric in METRICS:
            number = ours(cards.get(recipe or "", {}), metric)
            if number is not None:
                name = METRICS[metric].rpartition(".")[2] if "ood." in METRICS[metric] else metric
                out[f"table1.{recipe}.{key_part(name)}"] = number
    return out
