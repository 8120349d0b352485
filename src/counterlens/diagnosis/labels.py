"""Do the names belong to the outputs? Class order and accuracy.

With labels: answers that follow the labels, but by another order than the names say. Without: the
outputs of classes that share a word ("tiger shark", "white shark") rise and fall together in a
trained network; if those that share a word do not, the names are not in the outputs' order.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int64
from scipy.optimize import linear_sum_assignment
from scipy.stats import binom

from counterlens.diagnosis.finding import Finding
from counterlens.label_spaces import imagenet_index

LEAST_LABELS = 24
CLEAR_P, CLEAR_GAIN, MOST_MET = 1e-4, 0.2, 0.5
"""Another order speaks clearly at this p, with so large a share more of the labels, and so large a
share in all: on pictures chosen because a model errs, swapping what it confuses meets some more."""
LEAST_PAIRS, RELATED, UNRELATED = 30, 8.0, 3.0

_Answers = Int64[np.ndarray, "n"]


def class_order(
    answers: _Answers, labels: _Answers, classes: Sequence[str], logits: Float[np.ndarray, "m k"]
) -> Finding:
    """Are the names in the order of the outputs?"""
    if len(labels) >= LEAST_LABELS:
        right = answers == labels
        renamed = reassigned(answers, labels, len(classes))
        hits = {how: answers == order[labels] for how, order in orders(classes).items()}
        how = max(hits, key=lambda key: float(hits[key].mean()))
        if hits[how].mean() < renamed.mean() - 0.05:  # a usual order explains all, or it is none
            how, hits = "they are renamed one to one", {"they are renamed one to one": renamed}
        evidence = _better(right, hits[how])
        if evidence:
            examples = _examples(answers, labels, classes)
            fix = f"Reorder classes=[…] to match the outputs: {examples}."
            return Finding("class order", "fail", f"{evidence} {how}.", "high", fix)
        if right.mean() > 0.5:
            return Finding(
                "class order", "ok", f"{right.mean():.0%} of {len(right)} are classified right."
            )
    return _by_names(classes, logits, len(labels))


def orders(classes: Sequence[str]) -> dict[str, _Answers]:
    """Usual wrong orders: for each class the output that would really be its own."""
    count = len(classes)
    index = np.arange(count)
    alphabet = np.argsort(np.argsort(np.array([c.lower() for c in classes]), kind="stable"))
    as_text = np.argsort(np.argsort(np.array([str(i) for i in index])))
    usual = {
        "the outputs start one later (a background class first?)": (index + 1) % count,
        "the outputs start one earlier": (index - 1) % count,
        "the outputs are in alphabetical order": alphabet,
        "the names are in alphabetical order": np.argsort(alphabet),
        "the outputs are in the order 0, 1, 10, 11, …": as_text,
        "the names are in the order 0, 1, 10, 11, …": np.argsort(as_text),
        "the order is reversed": index[::-1].copy(),
    }
    known = imagenet_index(classes)
    if known and sorted(known) == list(index):
        usual["the outputs are in ImageNet's order"] = np.array(known)
    return usual


def reassigned(answers: _Answers, labels: _Answers, classes: int) -> np.ndarray:
    """Hits when each half is renamed by the assignment that fits the other half best."""
    hits = np.zeros(len(labels), dtype=bool)
    half = np.arange(len(labels)) % 2 == 0
    for learn in (half, ~half):
        counts = np.zeros((classes, classes))
        np.add.at(counts, (labels[learn], answers[learn]), 1)
        seen = np.unique(labels[learn])
        rows, columns = linear_sum_assignment(counts[seen], maximize=True)
        met = counts[seen][rows, columns] > 0
        rename = np.full(classes, -1)
        rename[seen[rows[met]]] = columns[met]
        hits[~learn] = rename[labels[~learn]] == answers[~learn]
    return hits


def _better(now: np.ndarray, other: np.ndarray) -> str:
    """Words where `other` hits clearly more often (exact McNemar test), else none."""
    gained, lost = int((other & ~now).sum()), int((now & ~other).sum())
    p = float(binom.sf(gained - 1, gained + lost, 0.5)) if gained + lost else 1.0
    if p > CLEAR_P or other.mean() - now.mean() < CLEAR_GAIN or other.mean() < MOST_MET:
        return ""
    return f"{now.mean():.0%} of {len(now)} are classified right as named, {other.mean():.0%} if"


def _examples(answers: _Answers, labels: _Answers, classes: Sequence[str]) -> str:
    counts = np.zeros((len(classes), len(classes)))
    np.add.at(counts, (labels, answers), 1)
    rows, columns = linear_sum_assignment(counts, maximize=True)
    clear = sorted(zip(rows, columns, strict=True), key=lambda rc: -counts[rc])
    return ", ".join(f"output {c} is {classes[r]}" for r, c in clear[:4] if counts[r, c]) + ", …"


def _by_names(classes: Sequence[str], logits: Float[np.ndarray, "m k"], labelled: int) -> Finding:
    """Labels are few or do not tell: do outputs whose names share a word go together?"""
    name = "class order"
    if logits.shape[1] != len(classes):
        return Finding(name, "skipped", "cannot tell before the class count is right.", "low")
    now, pairs = relatedness(classes, logits)
    if pairs < LEAST_PAIRS:
        why = f"cannot tell from {labelled} labelled images, most of them misclassified."
        if labelled < LEAST_LABELS:
            why = f"cannot tell from {labelled} labelled images, needs {LEAST_LABELS}."
        return Finding(name, "skipped", why, "low")
    message = f"outputs of the {pairs} pairs of names that share a word agree by {now:+.1f} σ"
    if now >= RELATED:
        return Finding(name, "ok", f"{message}.", "medium")
    for how, order in orders(classes).items():
        other = relatedness(classes, logits[:, order])[0]
        if other >= RELATED:
            fix = (
                f"The outputs may be in another order ({how}): give labelled DATA to be sure, "
                "or reorder classes=[…] to match."
            )
            return Finding(name, "warn", f"{message}, by {other:+.1f} σ if {how}.", "medium", fix)
    if now < UNRELATED:
        fix = "Give labelled DATA to be sure; reorder classes=[…] to match the outputs."
        return Finding(
            name, "warn", f"{message}: names in another order, or untrained.", "medium", fix
        )
    return Finding(name, "ok", f"{message}.", "low")


def relatedness(classes: Sequence[str], logits: Float[np.ndarray, "m k"]) -> tuple[float, int]:
    """How much more the outputs of names with a common last word correlate than any two outputs.

    Returns:
        Standard errors above the mean of random pairs, and the number of pairs.
    """
    groups: dict[str, list[int]] = {}
    for i, text in enumerate(classes):
        groups.setdefault(
            text.split(",")[0].split()[-1].lower() if text.strip() else "", []
        ).append(i)
    pairs = [(i, j) for group in groups.values() for k, i in enumerate(group) for j in group[:k]]
    if not pairs:
        return 0.0, 0
    z = logits - logits.mean(1, keepdims=True)
    z = z - z.mean(0)
    z = z / np.maximum(np.linalg.norm(z, axis=0), 1e-12)
    correlation = z.T @ z
    upper = correlation[np.triu_indices(len(classes), 1)]
    related = np.array([correlation[i, j] for i, j in pairs])
    # pairs of one group share members: count each class once, not each pair
    members = len({i for pair in pairs for i in pair})
    error = upper.std() / max(members / 2, 1.0) ** 0.5
    return float((related.mean() - upper.mean()) / max(error, 1e-12)), len(pairs)


def accuracy(answers: _Answers, labels: _Answers, classes: int, *, mined: bool) -> Finding:
    """Are the labels met more often than by chance?

    Args:
        mined: whether the images were selected because models get them wrong.
    """
    if mined:
        why = "the images were selected because models get them wrong; their labels cannot tell."
        return Finding("accuracy", "skipped", why, "low")
    n = len(labels)
    if n < LEAST_LABELS:
        return Finding("accuracy", "skipped", f"{n} labelled images, needs {LEAST_LABELS}.", "low")
    hits = int((answers == labels).sum())
    chance = float(np.bincount(labels).max() / n) if classes == 2 else 1 / classes
    p = float(binom.sf(hits - 1, n, chance))
    message = f"{hits} of {n} images classified right, by chance {n * chance:.1f}"
    if p < 0.01:
        return Finding("accuracy", "ok", f"{message}.")
    fix = "Check weights, labels and preprocessing; an untrained model looks like this."
    return Finding("accuracy", "warn", f"{message}: no better than chance.", "medium", fix)
