"""Do our models stand in the order of the paper's? Every pair of models in every column.

All pairs are generated, none is chosen: every two models of Augustin et al. 2020, Table 1
(CIFAR-10) and TRADES 0.5 that are trained here, in every column in which the paper prints both
(Tables 1, 3) and ours can be compared image by image. Nothing is measured here: what the models
said about each image is read from the folders of their audits. Both models of a pair saw the same
images, paired by id:
  clean           all test images that both report on; Newcombe's interval for paired shares.
  l2 0.5, l2 1.0, l∞ 8/255   the images that both audits attacked by the same version of
      AutoAttack; where there are several such versions, the one of the most images, `standard`
      before `fast` (APGD-CE and APGD-T with 3 targets). Each robust accuracy is an upper bound.
  AUC, WC-AUC     these test images against each out-distribution set that both saw and no training
      did, plain mean over the sets, scores after the temperature that the audit fitted; DeLong's
      paired variance, the test images shared by all sets. WC-AUC: the most confident points of the
      audit's search (l2 1.0, APGD 100 steps × 5 restarts on log-confidence and on the lead over the
      second class, the worse of both), searched at temperature 1, scored after temperature; an
      upper bound. `--doubled` asks a search of twice the steps and another seed (zoo_doubled.py):
      the worse of both may move the AUC by 0.5 points at most.
  MMC             mean confidence on the images of the same sets, paired; normal interval.
ECE has no paired interval here and T is a setting: both are not compared. The sets of AUC, WC-AUC
and MMC are not the paper's (SVHN, CIFAR-100, LSUN, ImageNet-, two noises): what is asked there is
whether the order carries over to other sets.
Verdict: "reproduced" where the 95 % interval of the difference lies wholly on the paper's side of
0, "reversed" where it lies wholly on the other, else "open". Pairs that the paper prints as equal
have no verdict, nor have pairs that an audit lacks. Of K pairs of equal models K/40 would be called
reproduced and K/40 reversed by chance; `beyond_chance` says of a pair whether its verdict stands
with its interval stretched to the level 1 - 0.05/K (Bonferroni). Training is not equal (epochs
differ, see the cards), so a verdict is about these models, not about the losses alone. A
difference under attack carries the worse trust verdict of both models' attacks (`fast` alone is
always weak), and what other versions of the attack say beside it.
Failure cases: the limits of docs/papers/ratio2020.md, written down before training, on the numbers
of the audits (robust accuracy by `standard`); "RATIO alone has none" is reproduced when no RATIO
model has one and every other model of Table 1 has.

Result (results/zoo_orderings.json, results/points): docs/papers/ratio2020.md.
Run: python benchmarks/zoo_orderings.py benchmarks/results/points/*.npz --out FILE.json
     python benchmarks/zoo_orderings.py [NAME=]AUDIT ... [FILE.npz ...] [--doubled NAME=FOLDER]
         [--seen SET] [--keep DIR] [--table FILE.json] --out FILE.json
AUDIT is the folder of a finished audit; NAME a recipe's, e.g. cifar10-at-0.25, by default the
model's, the training's or the audit's. Several audits of one NAME are put together, each quantity
from the one of the most images; with FILE.npz of the same NAME and weights they replace what they
measured anew. FOLDER has SET.npz of zoo_doubled.py. `--keep` writes DIR/NAME.npz for every model
that came as audits: all that is compared here, in a file that can stand for them. `--table` writes
the pairs for the report of `counterlens reproduce table ratio-table1`. Needs no weights, no data.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import expit, ndtri

import zoo_points
from counterlens.errors import CounterlensError, InputError
from counterlens.metrics.intervals.closed_form import Z, delong_parts, holding, newcombe_paired
from counterlens.metrics.numbers import pair_counts
from counterlens.runs import Number, key_part, write_json
from counterlens.runs.keys import worst_verdict
from counterlens.workflows.reproduce.cards import UNSEEN
from counterlens.workflows.reproduce.table1 import NO_PLAIN, failures, plain_beside
from counterlens.workflows.reproduce.table1_pairs import (
    ABSENT,
    COLUMNS,
    OPEN,
    REPRODUCED,
    REVERSED,
    TIE,
    counts,
)
from counterlens.workflows.reproduce.table1_paper import printed
from zoo_audits import STANDARD, Points, Rows, add_doubled, gathered, opened, same_images

TABLE_1 = ("plain", "oe", "acet", "at-0.5", "at-0.25", "ratio-0.5", "ratio-0.25")
MODELS = (*TABLE_1, "trades-0.5")
ATTACKED = {
    "l2 0.5": ("l2 0.5", "l2-0.5"),
    "l2 1.0": ("l2 1.0", "l2-1.0"),
    "l∞ 8/255": (f"linf {8 / 255}", "linf-8_255"),
}
"""Column of the table → how points and how numbers of an audit name its attack."""

MOST_MOVED = 0.005


def paired(one: Rows, two: Rows, what: str) -> tuple[Any, Any]:
    """Both models' values on the images that both have, in one order."""
    ids = [i for i in one if i in two]
    if len(ids) < 2:
        raise InputError(f"{what}: {len(ids)} images have the same id in both, expected 2 or more.")
    return np.array([one[i] for i in ids]), np.array([two[i] for i in ids])


def share_gap(first: Any, second: Any, what: str) -> Number:
    """Share of the first less share of the second on the same images."""
    ends = newcombe_paired(*pair_counts(torch.from_numpy(first), torch.from_numpy(second)))
    gap, n = float(first.mean() - second.mean()), len(first)
    return Number(gap, n, *ends, f"{what}, {n} images; Newcombe paired")


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


def confidence_gap(outside: Sequence[tuple[Any, Any]], names: Sequence[str]) -> Number:
    """Mean confidence over sets, first less second, from log-odds of the same images."""
    apart = [expit(one.astype(float)) - expit(two.astype(float)) for one, two in outside]
    gap = float(np.mean([one.mean() for one in apart]))
    half = Z * sqrt(sum(one.var(ddof=1) / len(one) for one in apart)) / len(apart)
    n = sum(map(len, apart))
    text = f"mean confidence, {n} unknown images of {', '.join(names)}; paired, normal"
    return Number(gap, n, *holding(gap, gap - half, gap + half, (-1.0, 1.0)), text)


def gap(one: Points, two: Points, column: str, sets: Sequence[str]) -> Number | None:
    """First less second in a column of the table; None where one of the two lacks it."""
    if column == "clean":
        return share_gap(*paired(one.right, two.right, column), column)
    if column in ATTACKED:
        return next(iter(robust_gaps(one, two, column).values()), None)
    if not sets:
        return None
    outside = [paired(one.of(column)[s], two.of(column)[s], s) for s in sets]
    if column == "MMC":
        return confidence_gap(outside, sets)
    found = auroc_gap(paired(one.known, two.known, "known images"), outside, sets)
    keys = [f"ood.{key_part(name)}.worst_auroc" for name in sets]
    return trusted(found, one, two, keys) if column == "WC-AUC" else found


def robust_gaps(one: Points, two: Points, column: str) -> dict[str, Number]:
    """Robust accuracy, first less second, per version; most images first, then `standard`."""
    if column not in ATTACKED:
        return {}
    attack, name = ATTACKED[column]
    found = {}
    for (where, version), held in one.robust.items():
        if where == attack and (where, version) in two.robust:
            both = paired(held, two.robust[where, version], column)
            key = name + ("" if version == STANDARD else f"-{version}")
            number = share_gap(*both, f"AutoAttack {version}")
            found[version] = trusted(number, one, two, [f"robust.{key}.accuracy"])
    return dict(sorted(found.items(), key=lambda item: (-item[1].n, item[0] != STANDARD)))


def trusted(number: Number, one: Points, two: Points, keys: Sequence[str]) -> Number:
    """A difference with the worst verdict of the attacks behind it."""
    cards = [points.card["numbers"] for points in (one, two)]
    worst = worst_verdict(
        Number.from_json(held[key]) for held in cards for key in keys if key in held
    )
    return replace(number, trust={"verdict": worst}) if worst else number


def shared_sets(one: Points, two: Points, column: str) -> list[str]:
    """The sets that a column is averaged over: unseen in training, and both models saw them."""
    if column not in ("AUC", "WC-AUC", "MMC"):
        return []
    return [s for s in one.of(column) if s in two.of(column) and one.kinds[s] == UNSEEN]


def verdict(low: float, high: float) -> str:
    """On which side of 0 the interval lies, the paper's side being above."""
    if low > 0:
        return REPRODUCED
    return REVERSED if high < 0 else OPEN


def pairs(models: Mapping[str, Points]) -> list[dict[str, Any]]:
    """One row per pair of models and column in which the paper prints both, the higher first."""
    paper, rows = printed(), []
    for column in COLUMNS:
        for two_rows in combinations((row for row in MODELS if column in paper[row]), 2):
            high, low = sorted(two_rows, key=lambda row: -paper[row][column])
            rows.append(pair(models, paper, column, high, low))
    tested = [row for row in rows if row["verdict"] in (REPRODUCED, REVERSED, OPEN)]
    for row in tested:
        row["beyond_chance"] = stretched(row, len(tested)) == row["verdict"] != OPEN
    return rows


def pair(
    models: Mapping[str, Points],
    paper: Mapping[str, Mapping[str, float]],
    column: str,
    high: str,
    low: str,
) -> dict[str, Any]:
    """What the paper and ours say about one pair of models in one column."""
    theirs = (paper[high][column] - paper[low][column]) / 100
    row = {"column": column, "higher": high, "lower": low, "paper": round(theirs, 6)}
    number, sets = None, []
    if high in models and low in models:
        one, two = models[high], models[low]
        sets = shared_sets(one, two, column)
        number = gap(one, two, column, sets)
    if number is None:
        return {**row, "verdict": ABSENT}
    assert number.low is not None and number.high is not None
    each = {name: gap(one, two, column, [name]) for name in sets}
    return {
        **row,
        "verdict": verdict(number.low, number.high) if theirs else TIE,
        "ours": number.to_json(),
        "sets": {s: replace(n, protocol="").to_json() for s, n in each.items() if n},
        "others": {
            version: found.to_json()
            for version, found in list(robust_gaps(one, two, column).items())[1:]
        },
    }


def stretched(row: Mapping[str, Any], tested: int) -> str:
    """The verdict with the interval stretched about its value to the level 1 - 0.05 / tested."""
    value, low, high = (row["ours"][key] for key in ("value", "low", "high"))
    by = float(ndtri(1 - 0.025 / tested)) / Z
    return verdict(value - by * (value - low), value + by * (high - value))


def doubled(points: Points) -> dict[str, dict[str, Any]]:
    """How far a search of twice the steps moves the worst-case AUROC, per set."""
    found = {}
    inside = np.array(list(points.known.values()))
    for name, twice in points.doubled.items():
        first, second = paired(points.worst[name], twice, name)
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


# ---- where models fail


def failing(models: Mapping[str, Points]) -> dict[str, dict[str, Any]]:
    """Failure cases by the limits stated before training, and which limits were not judged."""
    cards = {f"cifar10-{row}": points.card for row, points in models.items()}
    sets = sorted({name for points in models.values() for name in points.kinds})
    found = {}
    for row, points in models.items():
        plain = plain_beside(points.card, cards)
        wanted = {"robust.l2-0.5.accuracy": "robust accuracy by `standard`"}
        wanted |= {f"ood.{key_part(s)}.auroc": f"AUC on {s}" for s in sets}
        wanted |= {f"ood.{key_part(s)}.worst_auroc": f"worst-case AUC on {s}" for s in sets}
        absent = [] if plain else [NO_PLAIN]
        held = points.card["numbers"]
        absent += [f"no {what}" for key, what in wanted.items() if key not in held]
        found[row] = {"failures": failures(points.card, plain), "not_judged": absent}
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
    """Read audits and kept points, compare the models in pairs, write the result."""
    files = [text for text in given.audits if text.endswith(".npz")]
    audits = opened([text for text in given.audits if text not in files])
    stored = {}
    for file in files:
        row, points = zoo_points.read(Path(file))
        if row in stored:
            raise InputError(f"{row} came twice: {file}, and before it. Give one of them.")
        stored[row] = points
    models = {
        row: gathered(row, runs, given.seen, stored.pop(row, None)) for row, runs in audits.items()
    }
    sets = sorted({name for points in models.values() for name in points.kinds})
    for name in given.seen:
        if name not in sets:
            raise InputError(f"--seen {name}: no audit has this set, they have {', '.join(sets)}.")
    for text in given.doubled:
        name, _, folder = text.partition("=")
        row = name.removeprefix("cifar10-")
        if row not in models or not folder:
            raise InputError(f"--doubled {text}: expected NAME=FOLDER of {', '.join(models)}.")
        add_doubled(models[row], Path(folder))
    fresh = list(models)
    models |= stored
    same_images({row: points.marks for row, points in models.items()})
    for row in fresh if given.keep else ():
        zoo_points.keep(models[row], row, given.keep / f"{row}.npz")
    failed = failing(models)
    claim, why = alone(failed)
    rows = pairs(models)
    facts = {
        row: {
            "temperature": points.temperature, "known": len(points.known),
            "weights_hash": points.weights, "audits": points.audits,
            "sets": points.kinds, **failed[row], "doubled": doubled(points),
            "numbers": points.card["numbers"],
        }
        for row, points in models.items()
    }  # fmt: skip
    results = {
        "protocol": __doc__.partition("\nResult")[0], "counts": counts(rows), "pairs": rows,
        "alone": {"verdict": claim, "why": why}, "models": facts,
    }  # fmt: skip
    write_json(given.out, results)
    if given.table:
        write_json(given.table, brief(rows))
    return results


def brief(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The pairs as a report shows them."""
    found = []
    for row in rows:
        number = row.get("ours", {})
        found.append(
            {key: row[key] for key in ("column", "higher", "lower", "paper", "verdict")}
            | {key: number.get(key) for key in ("value", "low", "high", "n")}
            | {
                "attack": number["protocol"].split(",")[0]
                if row["column"] in ATTACKED and number
                else None
            }
            | {"trust": number.get("trust", {}).get("verdict")}
            | {"beyond_chance": row.get("beyond_chance")}
        )
    return found


def shown(number: Mapping[str, Any]) -> str:
    """A difference in points, with its interval."""
    value, low, high = (100 * number[key] for key in ("value", "low", "high"))
    return f"{value:+.1f} [{low:+.1f}, {high:+.1f}]"


def told(results: Mapping[str, Any]) -> None:
    """Print the verdicts and their counts, then each model's numbers and failure cases."""
    print(f"{'pair, the higher of the paper first':42}{'paper':>7}  {'ours':24}{'n':>15}  verdict")
    for row in results["pairs"]:
        what = f"{row['column']}: {row['higher']} > {row['lower']}"
        start = f"{what:42}{100 * row['paper']:>+7.2f}  "
        if "ours" not in row:
            print(f"{start}{row['verdict']:>54}")
            continue
        number = row["ours"]
        n = f"{number['n']}" + (f" of {len(row['sets'])} sets" if row["sets"] else "")
        attacks = number.get("trust", {}).get("verdict", "")
        for version, other in row["others"].items():
            attacks += f"; {version} {shown(other)}, n = {other['n']}"
            attacks += f", {other['trust']['verdict']}" if "trust" in other else ""
        sure = " (beyond chance)" if row.get("beyond_chance") else ""
        print(f"{start}{shown(number):24}{n:>15}  {row['verdict'] + sure:30}{attacks}")
    for column, number_of in results["counts"].items():
        said = ", ".join(f"{word} {count}" for word, count in number_of.items())
        print(f"{column}: {said}")
    claim = results["alone"]
    print(f"RATIO alone without a failure case: {claim['verdict']} ({claim['why']})")
    for row, model in results["models"].items():
        values = {
            key: round(100 * number["value"], 1)
            for key, number in model["numbers"].items()
            if number["value"] is not None and "mmc" not in key and "temperature" not in key
        }
        print(f"{row} (temperature {model['temperature']:.3f}): {values}")
        print(f"  failure cases: {'; '.join(model['failures']) or 'none'}")
        if model["not_judged"]:
            print(f"  not judged: {'; '.join(model['not_judged'])}")
        for name, moved in model["doubled"].items():
            by, holds = 100 * moved["worse_of_both"]["value"], moved["holds"]
            print(f"  twice the steps on {name}: {by:+.2f}, {'holds' if holds else 'too much'}")


def main() -> int:
    """Run the study; the exit code is 2 on bad input."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("audits", nargs="+", metavar="[NAME=]AUDIT|FILE.npz")
    parser.add_argument("--doubled", nargs="+", action="extend", default=[], metavar="NAME=FOLDER")
    parser.add_argument(
        "--seen", nargs="+", action="extend", default=[], metavar="SET", help="sets training saw"
    )
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep what the audits say there")
    parser.add_argument("--table", type=Path, metavar="FILE.json", help="the pairs, for a report")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.json")
    try:
        told(study(parser.parse_args()))
    except CounterlensError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
