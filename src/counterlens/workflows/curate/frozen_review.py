"""Which images of a shortlist are frozen, and what the review of each of them was.

The sentence on the card is made from the verdicts: how many images all reviewers accepted, how
many an adjudicator accepted against a reviewer, and who did both.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from counterlens.errors import InputError
from counterlens.review import Decision, Store, agreement, decisions, store_path
from counterlens.runs import Number, Run

_OUTCOMES = ("accept", "reject", "contested", "pending")


@dataclass(frozen=True)
class Accepted:
    """The rows to freeze with their review, what the card says of it, and the agreement."""

    rows: list[dict[str, Any]]
    card: dict[str, Any]
    numbers: dict[str, Number]


def accepted(run: Run, *, unreviewed: bool, least: int) -> Accepted:
    """The images to freeze: those the review accepted, or the whole shortlist.

    Args:
        unreviewed: take the whole shortlist, whatever reviewers said of it.
        least: reviewers that must have judged an image.
    """
    rows = run.table("shortlist")
    path = store_path(run.folder)
    latest = Store.open(path).latest() if path.exists() else []
    if not latest and not unreviewed:
        raise InputError(
            f"nobody has reviewed {run.folder}. Review it: counterlens curate review "
            f"{run.folder} --reviewer NAME, or freeze the whole shortlist with unreviewed=True."
        )
    ids = [row["id"] for row in rows]
    decided = decisions(ids, latest, least=least)
    every = [
        {**row, "tags": list(decided[row["id"]].tags), **_review(decided[row["id"]])}
        for row in rows
    ]
    if not latest:
        summary = "no person has looked at these images"
        return Accepted(every, {"reviewed": False, "summary": summary}, {})
    frozen = every if unreviewed else [row for row in every if row["outcome"] == "accept"]
    card = _facts(decided, least, unreviewed)
    return Accepted(frozen, card, agreement(ids, latest))


def _review(decision: Decision) -> dict[str, Any]:
    """The review of one image: who gave which verdict, and who settled it."""
    names = {
        word: sorted(name for name, given in decision.verdicts.items() if given == word)
        for word in ("accept", "reject", "unsure")
    }
    return {
        "outcome": decision.outcome,
        "accepted_by": names["accept"],
        "rejected_by": names["reject"],
        "unsure": names["unsure"],
        "adjudicated_by": sorted(decision.adjudicated),
    }


def _facts(decided: Mapping[str, Decision], least: int, unreviewed: bool) -> dict[str, Any]:
    """What the card says of the review."""
    every = list(decided.values())
    agreed = [d for d in every if d.outcome == "accept"]
    adjudicated = [d for d in agreed if d.adjudicated]
    facts: dict[str, Any] = {
        "reviewed": not unreviewed,
        "reviewers": _people(d.verdicts for d in every),
        "adjudicators": _people(d.adjudicated for d in every),
        "least_reviewers": least,
        "outcomes": _ordered(Counter(d.outcome for d in every)),
        "accepted": {
            "by_all_reviewers": len(agreed) - len(adjudicated),
            "by_adjudicator": len(adjudicated),
            "by_adjudicator_though_rejected": sum(
                "reject" in d.verdicts.values() for d in adjudicated
            ),
        },
        "judged_by": dict(sorted(Counter(str(len(d.verdicts)) for d in agreed).items())),
    }
    return {**facts, "summary": _summary(facts, len(every), unreviewed)}


def _summary(facts: Mapping[str, Any], shortlist: int, unreviewed: bool) -> str:
    outcomes = ", ".join(f"{count} {word}" for word, count in facts["outcomes"].items())
    people = _named("reviewer", facts["reviewers"])
    if unreviewed:
        return (
            f"frozen without regard to the review: the whole shortlist of {shortlist} images, of "
            f"which {people} had judged some or all ({outcomes})"
        )
    ways = facts["accepted"]
    judged = ", ".join(
        f"{count} judged by {number}" for number, count in facts["judged_by"].items()
    )
    text = (
        f"{people}; of the shortlist of {shortlist} images: {outcomes}. "
        f"{ways['by_all_reviewers']} frozen images were accepted by every reviewer who judged them"
    )
    if ways["by_adjudicator"]:
        text += (
            f"; {ways['by_adjudicator']} were accepted by an adjudicator "
            f"({', '.join(facts['adjudicators'])}), who had not reviewed them, "
            f"{ways['by_adjudicator_though_rejected']} of them against a reviewer's rejection"
        )
    return f"{text}. Reviewers per frozen image: {judged}"


def _named(word: str, people: Sequence[str]) -> str:
    return f"{len(people)} {word}{'s' * (len(people) != 1)} ({', '.join(people)})"


def _people(groups: Iterable[Mapping[str, str]]) -> list[str]:
    return sorted({name for group in groups for name in group})


def _ordered(outcomes: Mapping[str, int]) -> dict[str, int]:
    return {word: outcomes[word] for word in _OUTCOMES if outcomes[word]}
