"""All that is tried: the model as it is, a plain refit, each remedy and its placebo."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from counterlens.classifier import Classifier
from counterlens.errors import InputError
from counterlens.progress import within
from counterlens.workflows.repair.heads import Examples, Head, Problem
from counterlens.workflows.repair.receipt import KEYS, change, standing
from counterlens.workflows.repair.remedies import REMEDIES, refit

AS_IS, REFIT = "as it is", "plain refit"
MoreCandidates = Callable[[str], list["Candidate"]]
"""From a remedy that trains the whole network to its row and that of its placebo."""
Score = Callable[["Candidate", str], float]


@dataclass(frozen=True)
class Tuned:
    """A network that was trained further, and what enters its last layer.

    Args:
        network: the whole network.
        choose, check: features of the images that choose and of those that prove.
    """

    network: Classifier
    choose: Examples
    check: Examples


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
        tuned: the network below the head, where it was trained further, too.
    """

    name: str
    kind: str
    of: str
    head: Head | None
    seconds: float = 0.0
    refused: str = ""
    tuned: Tuned | None = None

    def choose(self, problem: Problem) -> Examples:
        """The images that choose, as its head sees them."""
        return problem.choose if self.tuned is None else self.tuned.choose

    def check(self, check: Examples) -> Examples:
        """The images that prove, as its head sees them."""
        return check if self.tuned is None else self.tuned.check


def fit_all(
    problem: Problem, names: Sequence[str], log: Callable[[str], None], more: MoreCandidates
) -> list[Candidate]:
    """The model as it is and a plain refit, then the remedies with their placebos.

    A remedy that cannot work on these images is a row that says why; where none can, the first
    reason is raised.

    Args:
        further: fits what is no head alone.
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
            if (placebo := remedy.placebo_of(problem)) is not None:
                fit, control = placebo
                label = f"{name}, {control}"
                out.append(_timed(label, "placebo", name, partial(fit, problem)))
        log(f"{name}: {one.seconds:.1f} s")
    for name in names:
        if name not in REMEDIES:
            out += more(name)
    if not any(one.kind == "remedy" and one.head for one in out):
        raise InputError(next(one.refused for one in out if one.refused))
    return out


def _timed(name: str, kind: str, of: str, fit: Callable[[], Head]) -> Candidate:
    start = time.perf_counter()
    head = fit()
    return Candidate(name, kind, of, head, time.perf_counter() - start)


def pick(
    tried: Sequence[Candidate], want: str, limits: Mapping[str, float], score: Score
) -> Candidate:
    """The best remedy, or no change, on the images that choose; cheapest first among equals.

    Remedies beyond a limit on these images are left out.

    Args:
        score: value of a key for a candidate, on the images that choose.
    """
    best, top = tried[0], score(tried[0], want)
    for one in tried:
        if one.kind != "remedy" or one.head is None:
            continue
        within_limits = all(
            score(one, key) - score(tried[0], key) >= limit for key, limit in limits.items()
        )
        if within_limits and score(one, want) > top:
            best, top = one, score(one, want)
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
        right, choose = one.check(check).right(one.head), one.choose(problem)
        facts = standing(right, check.by.groups)
        row |= {
            "choose_accuracy": choose.accuracy(one.head),
            "choose_worst": choose.worst(one.head),
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


def placebos_of(picked: Candidate, tried: Sequence[Candidate]) -> dict[str, Candidate]:
    """The plain refit, and the picked remedy without what is supposed to help."""
    return {
        one.name: one
        for one in tried
        if one.kind == "placebo" and one.of in ("", picked.of) and one.head is not None
        if not (one.name == REFIT and picked.name == "refit")  # it is that very head
    }
