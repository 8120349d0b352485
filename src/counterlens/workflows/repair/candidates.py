"""All that is tried: the model as it is, a plain refit, each remedy and its placebo."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from counterlens.errors import InputError
from counterlens.progress import within
from counterlens.workflows.repair.heads import Examples, Head, Problem
from counterlens.workflows.repair.receipt import KEYS, change, standing
from counterlens.workflows.repair.remedies import REMEDIES, refit

AS_IS, REFIT = "as it is", "plain refit"


@dataclass(frozen=True)
class Candidate:
    """One head, or why there is none.

    Args:
        name: in the table.
        kind: "model", "placebo" or "remedy".
        of: the remedy that a placebo belongs to; "" where it belongs to all.
        head: the head; None where it was refused.
        seconds: of the fit.
        refused: why there is no head.
    """

    name: str
    kind: str
    of: str
    head: Head | None
    seconds: float = 0.0
    refused: str = ""


def fit_all(problem: Problem, names: Sequence[str], log: Callable[[str], None]) -> list[Candidate]:
    """The model as it is and a plain refit, then the remedies with their placebos.

    A remedy that cannot work on these images is a row that says why; where none can, the first
    reason is raised.
    """
    out = [Candidate(AS_IS, "model", "", problem.old)]
    out.append(_timed(REFIT, "placebo", "", partial(refit, problem)))
    for name, remedy in REMEDIES.items():
        if name not in names:
            continue
        with within(f"fitting {name}"):
            try:
                one = _timed(name, "remedy", name, partial(remedy.fit, problem))
            except InputError as error:
                out.append(Candidate(name, "remedy", name, None, refused=str(error)))
                log(f"{name}: not tried. {error}")
                continue
            out.append(one)
            if remedy.placebo is not None:
                label, fit = f"{name}, {remedy.control}", remedy.placebo
                out.append(_timed(label, "placebo", name, partial(fit, problem)))
        log(f"{name}: {one.seconds:.1f} s")
    if not any(one.kind == "remedy" and one.head for one in out):
        raise InputError(next(one.refused for one in out if one.refused))
    return out


def _timed(name: str, kind: str, of: str, fit: Callable[[], Head]) -> Candidate:
    start = time.perf_counter()
    head = fit()
    return Candidate(name, kind, of, head, time.perf_counter() - start)


def pick(problem: Problem, tried: Sequence[Candidate], limits: Mapping[str, float]) -> Candidate:
    """The best remedy, or no change, on the images that choose; cheapest first among equals.

    Remedies beyond a limit on these images are left out.
    """
    scores = {"groups.worst": problem.choose.worst, "accuracy.top1": problem.choose.accuracy}
    best, top = tried[0], problem.score(problem.old)[0]
    for one in tried:
        if one.kind != "remedy" or one.head is None:
            continue
        head = one.head
        within_limits = all(
            scores[key](head) - scores[key](problem.old) >= limit for key, limit in limits.items()
        )
        score = problem.score(head)[0]
        if within_limits and score > top:
            best, top = one, score
    return best


def table(
    problem: Problem, tried: Sequence[Candidate], picked: Candidate, check: Examples
) -> list[dict[str, Any]]:
    """Every candidate on the images that choose and on those that prove."""
    rows, before = [], check.right(problem.old)
    for one in tried:
        row: dict[str, Any] = {"name": one.name, "kind": one.kind, "picked": one is picked}
        if one.head is None:
            rows.append({**row, "refused": one.refused})
            continue
        right = check.right(one.head)
        facts = standing(right, check.by.groups)
        row |= {
            "choose_accuracy": problem.choose.accuracy(one.head),
            "choose_worst": problem.choose.worst(one.head),
            **facts,
            "worst": check.by.group_name(facts["worst"]),
            "groups": {
                check.by.group_name(group): float(right[check.by.groups == group].mean())
                for group in check.by.sizes()
            },
            "seconds": one.seconds,
        }
        if one.kind != "model":
            for key in KEYS:
                gap = change(key, before, right, check.by.groups)
                row |= {f"{key}.change": gap.value, f"{key}.low": gap.low, f"{key}.high": gap.high}
        rows.append(row)
    return rows


def placebos_of(picked: Candidate, tried: Sequence[Candidate]) -> dict[str, Head]:
    """The plain refit, and the picked remedy without what is supposed to help."""
    return {
        one.name: one.head
        for one in tried
        if one.kind == "placebo" and one.of in ("", picked.of) and one.head is not None
        if not (one.name == REFIT and picked.name == "refit")  # it is that very head
    }
