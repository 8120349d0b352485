"""Put audits side by side, flag clear failures, and pair what was measured on the same images.

Paper: Augustin et al. 2020, Adversarial Robustness on In- and Out-Distribution Improves
       Explainability, ECCV (Tables 1 and 2).
Differs: the paper marks an entry "significantly worse" than the best by eye. Here a failure is a
         gap to the best model beyond a stated limit that chance does not explain.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from counterlens.errors import InputError
from counterlens.runs import (
    Number,
    Run,
    check_gates,
    key_part,
    parse_gate,
    reading,
    stored_logits,
)
from counterlens.runs.keys import bounded, meaning, model_words, show, verdict, worst_verdict
from counterlens.workflows._shared.options import takes
from counterlens.workflows._shared.pipeline import reporting
from counterlens.workflows._shared.result import Result, runs_of
from counterlens.workflows._shared.session import running
from counterlens.workflows.compare import families, pairs
from counterlens.workflows.compare.flips import flip_results
from counterlens.workflows.compare.group_flips import group_flip_results
from counterlens.workflows.compare.options import CompareOptions
from counterlens.workflows.compare.parity import parity_results
from counterlens.workflows.compare.seen import copy_seen, seen_rows

RULE = (
    "A model fails where it is behind the best of the comparison by more than the metric's limit "
    "and the 95 % interval of the difference, made of those of the two numbers, does not hold 0. "
    "Numbers that must not be quoted are never best."
)
_MEANS = ("auroc", "worst_auroc", "mmc")


@takes(CompareOptions)
def compare(*runs: str | Path | Run | Result | Sequence[Any], options: CompareOptions) -> Result:
    """Compare finished runs that hold numbers: one result, with the compared runs as its parts.

    Args:
        runs: at least two results, runs or their folders, audits as a rule; or lists of them.

    >>> import counterlens as cl
    >>> both = cl.compare("runs/plain", "runs/robust", out="runs/both")     # doctest: +SKIP
    >>> both.table("summary"), both.parts[0].numbers                        # doctest: +SKIP
    """
    gates = [parse_gate(text) for text in options.require]
    opened = [_open(one) for one in runs_of(runs)]
    if len(opened) < 2:
        raise InputError(f"compare got {len(opened)} run, expected two or more: compare(a, b).")
    with reading(*opened), reporting(options.junit, options.log_to) as reported:
        names = model_names(opened)
        tables, numbers = _compare(names, opened, options)
        inputs = {"runs": [str(one.folder) for one in opened]}
        with running("compare", options, name="-".join(names), inputs=inputs) as run:
            run.note(model=" · ".join(names), rule=RULE)
            run.add_numbers(numbers)
            results = check_gates(gates, run.numbers)
            tables["gates"] = [
                {"gate": r.gate.text, "value": r.value, "passed": r.passed, "why": r.why}
                for r in results
            ]
            tables["seen"] = copy_seen(run, tables["seen"])
            for name, rows in tables.items():
                run.write_table(name, rows)
        reported.append(run)
    return Result(run, tuple(map(Result, opened)))


def _compare(
    names: Sequence[str], opened: Sequence[Run], options: CompareOptions
) -> tuple[dict[str, list[dict[str, Any]]], dict[str, Number]]:
    """Everything that a comparison writes; nothing is written before all of it was read."""
    facts = families.facts_of(options.about, names)
    numbers = dict(zip(names, (run.numbers for run in opened), strict=True))
    notes = _notes(names, opened)
    summary = summarise(numbers, judged=not notes)
    by_name = dict(zip(names, opened, strict=True))
    logits = {name: stored_logits(one) for name, one in by_name.items()}
    paired = [
        *pairs.paired_rows(logits),
        *pairs.robust_rows(by_name),
        *pairs.worst_rows(by_name),
    ]
    paired = [{**row, "trust": _trust(row, numbers)} for row in paired if _whole(row, numbers)]
    rates, flipped = flip_results(logits)
    group_rates, group_rows = group_flip_results(by_name, logits)
    equal, parted = parity_results(logits)
    tables = {
        "flips": flipped,
        "group_flips": group_rows,
        "parity": parted,
        "models": _models(names, opened),
        "families": families.family_rows(names, opened, facts),
        "response_rate": families.response_rows(names, opened),
        "notes": [{"note": note} for note in notes],
        "summary": summary,
        "failures": [row for row in summary if row["status"] == "fail"],
        "paired": paired,
        "everything": _everything(numbers),
        "seen": seen_rows(by_name),
    }
    return tables, {
        **_failure_counts(names, summary),
        **_paired_numbers(paired),
        **rates,
        **group_rates,
        **equal,
    }


def model_names(runs: Sequence[Run]) -> list[str]:
    """A short name for each run, made unique where two runs are of the same model."""
    names = []
    for run in runs:
        facts = run.manifest
        model = facts.get("model") or facts["settings"].get("model") or run.folder.name
        names.append(model_words(model) if isinstance(model, str) else run.folder.name)
    return [
        name if names.count(name) == 1 else f"{name} ({run.folder.name})"
        for name, run in zip(names, runs, strict=True)
    ]


def summarise(
    numbers: Mapping[str, Mapping[str, Number]], *, judged: bool = True
) -> list[dict[str, Any]]:
    """One row per metric and model: value, interval, gap to the best, and a status.

    Status is best, ok, worse (beyond the limit, may be chance), fail, missing, do not quote,
    incomplete where the value is only a bound, or apart where the runs must not be judged against
    each other.
    """
    measured = {model: _with_means(own, numbers) for model, own in numbers.items()}
    every = dict.fromkeys(key for own in measured.values() for key in own)
    scaled = "calibration.ece_scaled" in every  # as the paper does; the raw error only without it
    keys = [k for k in every if _in_summary(k) and not (scaled and k == "calibration.ece")]
    return [row for key in sorted(keys, key=_place) for row in _judge(key, measured, judged)]


def _judge(
    key: str, measured: Mapping[str, Mapping[str, Number]], judged: bool
) -> list[dict[str, Any]]:
    m = meaning(key)
    usable = {
        model: own[key]
        for model, own in measured.items()
        if key in own
        and own[key].value is not None
        and not own[key].bound
        and verdict(own[key]) != "do not quote"
    }
    pick = max if m.better == "up" else min
    best = pick(usable, key=lambda model: usable[model].value or 0.0) if usable else None
    rows = []
    for model, own in measured.items():
        number = own.get(key) or Number.missing("this run did not measure it", "")
        gap = _gap(number, usable[best], m.better) if best and number.value is not None else None
        if model not in usable:
            status = "incomplete" if number.bound else "do not quote"
            status = "missing" if number.value is None else status
        elif not judged or best is None or gap is None:
            status = "apart"
        elif number.value == usable[best].value:
            status = "best"
        elif m.limit is None or gap <= m.limit + 1e-9:
            status = "ok"
        else:
            status = "fail" if _clear(number, usable[best], gap) else "worse"
        rows.append(
            {
                "key": key,
                "label": m.label,
                "better": m.better,
                "unit": m.unit,
                "limit": m.limit,
                "model": model,
                "value": number.value,
                "low": number.low,
                "high": number.high,
                "n": number.n,
                "gap": gap,
                "best_model": best,
                "status": status,
                "trust": verdict(number),
                "protocol": number.protocol,
                "reason": number.reason,
                "bound": number.bound,
            }
        )
    return rows


def _gap(number: Number, best: Number, better: str) -> float:
    assert number.value is not None
    assert best.value is not None
    return best.value - number.value if better == "up" else number.value - best.value


def _clear(number: Number, best: Number, gap: float) -> bool:
    """Whether the interval of the gap lies above 0; without intervals every gap is clear.

    Two intervals may overlap although their difference is clear: 0 of 4 and 3 of 4.

    Equation: newcombe1998 (10)   gap − √((distance to the near end of one)² + (of the other)²)
    """
    if None in (number.low, number.high, best.low, best.high):
        return True
    values = (float(end or 0.0) for end in (number.low, number.high, best.low, best.high))
    low, high, best_low, best_high = values
    value, top = float(number.value or 0.0), float(best.value or 0.0)
    near = (high - value, top - best_low) if value < top else (value - low, best_high - top)
    return gap > math.hypot(*near)


def _in_summary(key: str) -> bool:
    m = meaning(key)
    return m.limit is not None and (m.area != "ood" or m.subject.startswith("mean of "))


def _place(key: str) -> tuple[int, str]:
    order = ["accuracy", "robust", "calibration", "ood"]
    m = meaning(key)
    rank = order.index(m.area) if m.area in order else len(order)
    within = _MEANS.index(m.metric) if m.area == "ood" else 0
    return 10 * rank + within, key


def _with_means(
    own: Mapping[str, Number], numbers: Mapping[str, Mapping[str, Number]]
) -> dict[str, Number]:
    """Add plain means over the out-of-distribution sets that every run measured."""
    out = dict(own)
    for metric in _MEANS:
        shared = [
            key
            for key in own
            if meaning(key).area == "ood"
            and meaning(key).metric == metric
            and all(key in other and other[key].value is not None for other in numbers.values())
        ]
        if not shared:
            continue
        word = "1 OOD set" if len(shared) == 1 else f"{len(shared)} OOD sets"
        out[f"ood.mean of {word}.{metric}"] = _mean([own[key] for key in shared], shared)
    return out


def _mean(parts: Sequence[Number], keys: Sequence[str]) -> Number:
    """Plain mean; its bounds are the means of the bounds, which is on the safe side."""

    def mean(name: str) -> float | None:
        ends = [getattr(part, name) for part in parts]
        return None if None in ends else sum(ends) / len(ends)

    sets = ", ".join(meaning(key).subject for key in keys)
    worst = worst_verdict(parts)
    return Number(
        mean("value"),
        sum(part.n for part in parts),
        mean("low"),
        mean("high"),
        f"plain mean over {sets}; bounds are the means of the sets' bounds",
        trust={"verdict": worst} if worst else None,
        **bounded(parts),
    )


def _everything(numbers: Mapping[str, Mapping[str, Number]]) -> list[dict[str, Any]]:
    keys = dict.fromkeys(key for own in numbers.values() for key in own)
    return [
        {"key": key, "model": model, **own[key].to_json()}
        for key in keys
        for model, own in numbers.items()
        if key in own
    ]


def _failure_counts(
    names: Sequence[str], summary: Sequence[Mapping[str, Any]]
) -> dict[str, Number]:
    out = {}
    for name in names:
        own = [r for r in summary if r["model"] == name and r["status"] not in ("missing", "apart")]
        failed = float(sum(row["status"] == "fail" for row in own))
        out[f"compare.{key_part(name)}.failures"] = Number(failed, len(own), failed, failed, RULE)
    return out


def _trust(
    row: Mapping[str, Any], numbers: Mapping[str, Mapping[str, Number]]
) -> dict[str, Any] | None:
    """A difference can be trusted as far as the worse of the two attacks behind it."""
    both = [numbers[row[side]].get(row["key"]) for side in ("first", "second")]
    worst = worst_verdict(number for number in both if number)
    return {"verdict": worst, "reasons": []} if worst else None


def _whole(row: Mapping[str, Any], numbers: Mapping[str, Mapping[str, Number]]) -> bool:
    """Whether both sides of a difference are estimates; two bounds have no difference."""
    sides = (numbers[row[side]].get(row["key"]) for side in ("first", "second"))
    return not any(number and number.bound for number in sides)


def _paired_numbers(rows: Sequence[Mapping[str, Any]]) -> dict[str, Number]:
    out = {}
    for row in rows:
        pair = f"{key_part(row['first'])}-vs-{key_part(row['second'])}"
        metric = row["key"].replace(".", "_")
        out[f"paired.{pair}.{metric}"] = Number(
            row["difference"], row["n"], row["low"], row["high"], row["protocol"],
            trust=row["trust"],
        )  # fmt: skip
    return out


def _models(names: Sequence[str], runs: Sequence[Run]) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for name, run in zip(names, runs, strict=True):
        top = run.numbers.get("accuracy.top1")
        rows.append(
            {
                "model": name,
                "data": _data(run),
                "images": top.n if top else None,
                "accuracy": show(top.value, "share") if top else None,
                "run": run.folder.name,
                "started": run.manifest.get("started"),
            }
        )
    return rows


def _data(run: Run) -> str:
    facts = run.manifest
    return str(facts.get("data") or facts["settings"].get("data") or "")


def _fingerprint(run: Run) -> str:
    """Hash of the labelled set; audits note one for each of their sets."""
    known = run.manifest.get("data_fingerprint", "")
    return str(known.get(_data(run), "") if isinstance(known, dict) else known)


def _notes(names: Sequence[str], runs: Sequence[Run]) -> list[str]:
    """Reasons why the runs must not be judged against each other."""
    notes = []
    for (first, one), (second, two) in combinations(zip(names, runs, strict=True), 2):
        for fact, values in (
            ("data", (_data(one), _data(two))),
            ("fingerprint", (_fingerprint(one), _fingerprint(two))),
        ):
            if "" not in values and values[0] != values[1]:
                notes.append(
                    f"{first} and {second} saw different images ({fact} {values[0]} and "
                    f"{values[1]}), so nothing is flagged."
                )
                break
    return notes


def _open(given: str | Path | Run) -> Run:
    if not isinstance(given, str | Path | Run):
        raise InputError(
            f"a run to compare is {type(given).__name__}, expected a run folder or a Run."
        )
    folder = given.folder if isinstance(given, Run) else given
    run = Run.open(Path(folder))
    if not run.done:
        raise InputError(f"{folder} is unfinished: it has no DONE. Finish it with resume first.")
    if run.manifest.get("command") == "compare":
        of = ", ".join(map(str, run.manifest["settings"].get("runs", ()))) or "the audits in it"
        raise InputError(
            f"{folder} is a comparison, expected runs of models: give the audits themselves ({of})."
        )
    if not run.numbers:
        raise InputError(f"{folder} holds no numbers, so there is nothing to compare.")
    return run
