"""Do our models stand in the order of the paper's? Point by point, with paired intervals.

The paper's orderings (Augustin et al. 2020, Tables 1 and 3, CIFAR-10) are ORDERINGS below, written
down before models were compared here (the cards of cifar10-ratio-0.25, cifar10-at-0.5 and the small
pair were known). Both models of an ordering see the same images:
  clean, l2 0.5, l2 1.0  all test images; Newcombe's interval for paired shares. The attack is the
      first two searches of AutoAttack `standard`, APGD-CE and APGD-T with 9 targets, 100 steps
      each; what FAB and Square would add is left out (nothing, for the two robust models that were
      put through all four on 1,000 images). So each robust accuracy is an upper bound.
  AUC, WC-AUC            all test images against 1,000 (drawn by seed 0) of every out-distribution
      set that no training saw, plain mean over these sets, scores after the temperature of the
      card (fitted on the calibration sample where the card has none); DeLong's paired variance, the
      test images shared by all sets. WC-AUC: l2 1.0, APGD 100 steps × 5 restarts on log-confidence
      and on the lead over the second class, per point the worse of both, searched and scored after
      temperature; an upper bound. `--double SET` asks again with twice the steps and another seed:
      the AUC may move by 0.5 points at most.
Verdict: "reproduced" where the 95 % interval of the difference lies wholly on the paper's side of
the margin, "not reproduced" where it lies wholly on the other, else "open". The margin is 0, or
FAR where the text says "far below". Twenty verdicts at 95 % err once on average.
Failure cases: the limits of docs/papers/ratio2020.md, written down before training; "RATIO alone
has none" is reproduced when no RATIO model has one and every other model of Table 1 has.

Result: none yet; the script was tried on 64 images of the small pair alone.
Run: python benchmarks/zoo_orderings.py MODEL ... --data SPEC --ood NAME=SPEC ... --out DIR
     [--seen NAME] [--double NAME] [--attack l2:0.5] [--points 10000] [--minutes 10]
MODEL is zoo:NAME, a checkpoint folder, or NAME=either; NAME is a recipe's, e.g.
cifar10-at-0.25=RUN/model. Points are kept in DIR/points, one file for each model and quantity, all
models' first quantity first; the same command goes on where it was stopped. All models of DIR are
compared, also those of earlier commands; without MODEL nothing is measured, and neither data nor
weights are needed. Result: DIR/zoo_orderings.json. Needs torch, not the command line.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from counterlens import metrics
from counterlens.data import name_of, open_set, subset
from counterlens.errors import CounterlensError, InputError
from counterlens.metrics.intervals import Z, delong, delong_parts, holding, newcombe_paired
from counterlens.metrics.numbers import pair_counts
from counterlens.runs import Number, key_part, read_json, write_json
from counterlens.workflows.cards import UNSEEN, set_kind
from counterlens.workflows.table1 import failures, plain_beside, printed
from zoo_points import ABOUT, Points, gathered, measured, opened, pieces

FAR = 0.30
"""What "far below" means in worst-case AUC; the paper's own gaps are 75 points and more."""

ORDERINGS: tuple[tuple[str, str, str, float], ...] = (
    ("l2 0.5", "ratio-0.25", "at-0.25", 0),
    ("l2 0.5", "ratio-0.5", "at-0.5", 0),
    ("l2 0.5", "ratio-0.5", "trades-0.5", 0),
    ("l2 0.5", "ratio-0.25", "acet", 0),
    ("l2 0.5", "at-0.5", "at-0.25", 0),
    ("l2 0.5", "acet", "oe", 0),
    ("l2 0.5", "acet", "plain", 0),
    ("l2 1.0", "ratio-0.25", "at-0.25", 0),
    ("l2 1.0", "ratio-0.5", "at-0.5", 0),
    ("WC-AUC", "ratio-0.25", "at-0.25", 0),
    ("WC-AUC", "ratio-0.5", "at-0.5", 0),
    ("WC-AUC", "ratio-0.25", "at-0.5", 0),
    ("WC-AUC", "ratio-0.5", "trades-0.5", 0),
    ("WC-AUC", "ratio-0.25", "plain", FAR),
    ("WC-AUC", "ratio-0.25", "oe", FAR),
    ("WC-AUC", "ratio-0.5", "plain", FAR),
    ("WC-AUC", "ratio-0.5", "oe", FAR),
    ("WC-AUC", "ratio-0.25", "acet", 0),
    ("WC-AUC", "acet", "at-0.5", 0),
    ("WC-AUC", "at-0.5", "at-0.25", 0),
    ("WC-AUC", "at-0.25", "oe", 0),
    ("WC-AUC", "oe", "plain", 0),
    ("AUC", "ratio-0.25", "at-0.25", 0),
    ("AUC", "ratio-0.5", "at-0.5", 0),
    ("AUC", "ratio-0.25", "at-0.5", 0),
    ("AUC", "oe", "plain", 0),
    ("AUC", "plain", "at-0.5", 0),
    ("clean", "plain", "ratio-0.25", 0),
    ("clean", "ratio-0.25", "ratio-0.5", 0),
    ("clean", "ratio-0.25", "at-0.5", 0),
    ("clean", "at-0.25", "at-0.5", 0),
    ("l2 0.5", "ratio-small", "plain-small", 0),
    ("WC-AUC", "ratio-small", "plain-small", FAR),
    ("clean", "plain-small", "ratio-small", 0),
)
"""Column of the paper's table, the row that is higher, the row that is lower, by how much."""

ALIKE = {"ratio-small": "ratio-0.25", "plain-small": "plain"}
"""Rows of ours that the paper has at another size only."""

TABLE_1 = ("plain", "oe", "acet", "at-0.5", "at-0.25", "ratio-0.5", "ratio-0.25")
PLAN = "plan.json"
STEPS, RESTARTS, MOST_MOVED = 100, 5, 0.005
ROBUST = {"l2 0.5": "l2:0.5", "l2 1.0": "l2:1.0"}  # column → attack


# ---- comparing


def share_gap(first: Tensor, second: Tensor) -> Number:
    """Share of the first less share of the second on the same images."""
    ends = newcombe_paired(*pair_counts(first, second))
    gap = (first.double() - second.double()).mean().item()
    return Number(gap, len(first), *ends, f"{len(first)} images; Newcombe paired")


def auroc_gap(
    inside: tuple[Any, Any], outside: Sequence[tuple[Any, Any]], names: Sequence[str]
) -> Number:
    """Mean AUROC over sets, first less second; the known images are the same for every set.

    Args:
        inside: scores of the known images, by the first and by the second.
        outside: scores of the unknown images, one such pair per set.
    """
    parts = [[delong_parts(a, b) for a, b in zip(inside, pair, strict=True)] for pair in outside]
    known = np.mean([one[0] - two[0] for one, two in parts], axis=0)
    unknown = [one[1] - two[1] for one, two in parts]
    gap, m = float(known.mean()), len(known)
    variance = known.var(ddof=1) / m
    variance += sum(u.var(ddof=1) / len(u) for u in unknown) / len(unknown) ** 2
    half = Z * sqrt(variance)
    n = sum(len(u) for u in unknown)
    text = f"{m} known, {n} unknown images of {', '.join(names)}; DeLong paired"
    return Number(gap, n, *holding(gap, gap - half, gap + half, (-1.0, 1.0)), text)


def gap(one: Points, two: Points, column: str, sets: Sequence[str]) -> Number | None:
    """First less second in a column of the table; None where one of the two lacks it."""
    if column == "clean":
        return share_gap(one.right, two.right)
    if column in ROBUST:
        found = [p.robust.get(ROBUST[column]) for p in (one, two)]
        if found[0] is None or found[1] is None:
            return None
        return share_gap(found[0], found[1])
    told = [p.worst if column == "WC-AUC" else p.outside for p in (one, two)]
    if not sets or any(name not in logits for name in sets for logits in told):
        return None
    inside = (one.scores(one.logits), two.scores(two.logits))
    outside = [(one.scores(told[0][s]), two.scores(told[1][s])) for s in sets]
    return auroc_gap(inside, outside, sets)


def verdict(number: Number, margin: float = 0.0) -> str:
    """On which side of the margin the interval lies."""
    assert number.low is not None and number.high is not None
    if number.low > margin:
        return "reproduced"
    return "not reproduced" if number.high < margin else "open"


def orderings(models: Mapping[str, Points], kinds: Mapping[str, str]) -> list[dict[str, Any]]:
    """One row per ordering whose two models came and have the quantity."""
    paper, rows = printed(), []
    sets = [name for name, kind in kinds.items() if kind == UNSEEN]
    for column, high, low, margin in ORDERINGS:
        if high not in models or low not in models:
            continue
        number = gap(models[high], models[low], column, sets)
        if number is None:
            continue
        theirs = [paper[ALIKE.get(row, row)][column] for row in (high, low)]
        rows.append(
            {
                "column": column, "higher": high, "lower": low, "margin": margin,
                "paper": (theirs[0] - theirs[1]) / 100, "ours": number.to_json(),
                "verdict": verdict(number, margin),
                "sets": _per_set(models[high], models[low], column, sets),
            }
        )  # fmt: skip
    return rows


def _per_set(one: Points, two: Points, column: str, sets: Sequence[str]) -> dict[str, Any]:
    if "AUC" not in column:
        return {}
    found = {name: gap(one, two, column, [name]) for name in sets}
    return {name: number.to_json() for name, number in found.items() if number}


# ---- numbers of one model, and where it fails


def numbers(points: Points) -> dict[str, Number]:
    """The model's numbers under the keys of a card."""
    heat, n = points.about["temperature"], len(points.labels)
    ece = metrics.ece((points.logits.double() / heat).softmax(1), points.labels)
    found = {
        "accuracy.top1": metrics.share(points.right, "all images"),
        "calibration.ece_scaled": Number(ece, n, None, None, f"temperature {heat:.4g}"),
    }
    for attack, held in points.robust.items():
        text = f"{attack}, APGD-CE and APGD-T, upper bound"
        found[f"robust.{key_part(attack)}.accuracy"] = metrics.share(held, text)
    inside = points.scores(points.logits)
    for prefix, told in (("", points.outside), ("worst_", points.worst)):
        for name, logits in told.items():
            said = metrics.answers(logits, temperature=heat)
            area = metrics.auroc(torch.from_numpy(inside), said.score)
            ends, part = delong(inside, said.score.numpy()), f"ood.{key_part(name)}.{prefix}"
            found[f"{part}auroc"] = Number(area, len(logits), *ends, "DeLong")
            sure = metrics.mmc(said.confidence)
            found[f"{part}mmc"] = Number(sure, len(logits), None, None, "mean confidence")
    return found


def doubled(points: Points) -> dict[str, dict[str, Any]]:
    """How far a search of twice the steps moves the worst-case AUROC, per set."""
    found = {}
    inside = points.scores(points.logits)
    for name in (name for name in points.doubled if name in points.worst):
        first, second = (points.scores(p[name]) for p in (points.worst, points.doubled))
        both = np.maximum(first, second)
        alone, moved = (
            auroc_gap((inside, inside), [(first, other)], [name]) for other in (second, both)
        )
        found[name] = {
            "twice_alone": alone.to_json(),
            "worse_of_both": moved.to_json(),
            "holds": bool(moved.value is not None and moved.value <= MOST_MOVED),
        }
    return found


def failing(models: Mapping[str, Points], kinds: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Failure cases by the limits stated before training, and which limits were not judged."""
    cards = {
        f"cifar10-{row}": {
            "numbers": {key: number.to_json() for key, number in numbers(points).items()},
            "audit": {"ood": dict(kinds)},
            "architecture": points.about["architecture"],
        }
        for row, points in models.items()
    }
    found = {}
    for row, points in models.items():
        card = cards[f"cifar10-{row}"]
        plain = plain_beside(card, cards)
        absent = [] if plain else ["no plain model of the same architecture"]
        absent += [] if ROBUST["l2 0.5"] in points.robust else ["no robust accuracy"]
        absent += [f"no AUC on {name}" for name in kinds if name not in points.outside]
        absent += [f"no worst-case AUC on {name}" for name in kinds if name not in points.worst]
        found[row] = {"failures": failures(card, plain), "not_judged": absent}
    return found


def alone(found: Mapping[str, Mapping[str, Any]]) -> tuple[str, str]:
    """Whether RATIO alone has no failure case, and why."""
    ours = [row for row in TABLE_1 if row in found and row.startswith("ratio")]
    others = [row for row in TABLE_1 if row in found and row not in ours]
    failed = {row: bool(found[row]["failures"]) for row in (*ours, *others)}
    known = {row: failed[row] or not found[row]["not_judged"] for row in failed}
    against = [f"{row} has one" for row in ours if failed[row]]
    against += [f"{row} has none" for row in others if known[row] and not failed[row]]
    if against:
        return "not reproduced", "; ".join(against)
    absent = [f"{row} not judged in full" for row in failed if not known[row]]
    absent += [f"no {row}" for row in TABLE_1 if row not in found]
    if absent:
        return "open", "; ".join(absent)
    return "reproduced", f"{', '.join(ours)}: none; every other model of Table 1 has one"


def study(given: argparse.Namespace) -> dict[str, Any]:
    """Measure what there is time for, then compare what is there."""
    out = Path(given.out)
    left = _measure(given, out) if given.models else []
    if not (out / PLAN).exists():
        raise InputError(f"{out} holds no points. Name models to measure: zoo_orderings.py MODEL…")
    results = {**compared(out), "left": left}
    write_json(out / "zoo_orderings.json", results)
    return results


def _measure(given: argparse.Namespace, out: Path) -> list[str]:
    """Write down what is wanted, measure it, and say what no time was left for."""
    torch.backends.cudnn.allow_tf32 = False
    if not given.data:
        raise InputError("no test images came, expected --data SPEC.")
    data = open_set(given.data)
    data = subset(data, range(min(given.points, len(data))))
    # drawn, not the first: such sets are often sorted by class
    sets = {name_of(s): open_set(s, limit=given.ood_points, seed=0) for s in given.ood}
    unknown = sorted({*given.seen, *given.double} - set(sets))
    if unknown:
        raise InputError(f"no set {unknown[0]!r} among --ood: {', '.join(sets)}.")
    models = [opened(text, given) for text in given.models]
    for model in models:
        if tuple(data.classes) != model.net.classes:
            raise InputError(
                f"{model.row} answers {model.net.classes}, {data.name} has {data.classes}."
            )
    wanted = pieces(given, data, sets)
    plan = {
        "images": {data.name: len(data), **{name: len(one) for name, one in sets.items()}},
        "kinds": {name_of(spec): set_kind(name_of(spec), spec, given.seen) for spec in given.ood},
        "steps": given.steps, "restarts": given.restarts, "seed": given.seed,
        "files": [(piece.kind, piece.key, piece.file) for piece in wanted],
    }  # fmt: skip
    write_json(out / PLAN, plan)
    return measured(given, models, wanted)


def compared(out: Path) -> dict[str, Any]:
    """Verdicts and numbers from the points of all models that are kept."""
    plan = read_json(out / PLAN)
    models: dict[str, Points] = {}
    for folder in sorted(path.parent for path in (out / "points").glob(f"*/{ABOUT}")):
        points = gathered(folder, plan["files"])
        if points is None:
            continue
        if points.about["row"] in models:
            raise InputError(f"two models in {out} are called {points.about['row']}. Remove one.")
        models[points.about["row"]] = points
    failed = failing(models, plan["kinds"])
    claim, why = alone(failed)
    facts = {
        row: {
            **points.about, **failed[row], "doubled": doubled(points),
            "numbers": {key: number.to_json() for key, number in numbers(points).items()},
        }
        for row, points in models.items()
    }  # fmt: skip
    return {
        "protocol": __doc__.partition("\nRun:")[0],
        **{key: value for key, value in plan.items() if key != "files"},
        "known": next(iter(plan["images"].values())),
        "orderings": orderings(models, plan["kinds"]),
        "alone": {"verdict": claim, "why": why},
        "models": facts,
    }


def told(results: Mapping[str, Any]) -> None:
    """Print the verdicts, then each model's numbers and failure cases."""
    print(f"{'ordering':42}{'paper':>7}  {'ours':24}{'n':>11}  verdict")
    for row in results["orderings"]:
        number = row["ours"]
        by = f" by {row['margin']:.0%}" if row["margin"] else ""
        what = f"{row['column']}: {row['higher']} > {row['lower']}{by}"
        known = f"{results['known']}+" if "AUC" in row["column"] else ""
        low, high = (100 * number[k] for k in ("low", "high"))
        ours = f"{100 * number['value']:+.1f} [{low:+.1f}, {high:+.1f}]"
        n, by = known + str(number["n"]), f"{100 * row['paper']:+.1f}"
        print(f"{what:42}{by:>7}  {ours:24}{n:>11}  {row['verdict']}")
    claim = results["alone"]
    print(f"RATIO alone without a failure case: {claim['verdict']} ({claim['why']})")
    for row, model in results["models"].items():
        values = {
            k: round(100 * v["value"], 1) for k, v in model["numbers"].items() if "mmc" not in k
        }
        print(f"{row} (temperature {model['temperature']:.3f}): {values}")
        print(f"  failure cases: {'; '.join(model['failures']) or 'none'}")
        if model["not_judged"]:
            print(f"  not judged: {'; '.join(model['not_judged'])}")
        for name, moved in model["doubled"].items():
            by, holds = 100 * moved["worse_of_both"]["value"], moved["holds"]
            print(f"  twice the steps on {name}: {by:+.2f}, {'holds' if holds else 'too much'}")
    if results["left"]:
        print(f"no time for {len(results['left'])}: {'; '.join(results['left'])}")


def main() -> int:
    """Run the study; the exit code is 2 on bad input."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="[NAME=]MODEL")
    parser.add_argument("--data")
    parser.add_argument("--ood", action="append", default=[])
    parser.add_argument("--seen", action="append", default=[], help="sets that training saw")
    parser.add_argument("--double", action="append", default=[], help="sets of the doubling check")
    parser.add_argument("--attack", action="append", help="default: l2:0.5")
    parser.add_argument("--calibrate", default="sample:cifar10-calibration")
    parser.add_argument("--out", required=True)
    parser.add_argument("--points", type=int, default=10_000)
    parser.add_argument("--ood-points", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--restarts", type=int, default=RESTARTS)
    parser.add_argument("--chunk", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--device", default="auto")
    given = parser.parse_args()
    given.attack = given.attack or [ROBUST["l2 0.5"]]
    try:
        told(study(given))
    except CounterlensError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
