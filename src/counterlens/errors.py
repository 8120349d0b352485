"""Everything counterlens raises on purpose, and how it quotes what others raise.

CounterlensError            base: one clear line for the user, exit code 2
├── InputError              something given does not fit: what came, what was expected, what to type
├── MissingExtra            an optional dependency is not installed
├── RunExists               a run folder would have been overwritten
├── StorageError            a run cannot be kept: its folder is gone
│   └── DiskFull            a file does not fit on the disk
├── DoctorRefused           the classifier is wrapped wrongly, exit code 3
└── TrainingFailed          a loss stopped being finite: step, term and last good checkpoint named
"""

from collections.abc import Iterable

NO_GRADIENTS = (
    "no gradient of the model reaches the pixels, and this needs one. Give a model without "
    "detach, no_grad or NumPy in forward, or a differentiable stand-in: counterlens.bpda."
)


class CounterlensError(Exception):
    """Base of all errors whose text is meant for the user."""

    exit_code = 2


class InputError(CounterlensError):
    """Something given does not fit."""


class MissingExtra(CounterlensError):
    """An optional dependency is not installed."""


class RunExists(CounterlensError):
    """A run folder would have been overwritten."""


class StorageError(CounterlensError):
    """What a run found cannot be kept: its folder is gone."""


class DiskFull(StorageError):
    """A file does not fit on the disk, or is larger than this process may write."""


class DoctorRefused(CounterlensError):
    """The classifier is wrapped wrongly, so no number about it would mean anything."""

    exit_code = 3


class TrainingFailed(CounterlensError):
    """Training stopped because a loss term was no longer finite."""


def first_line(error: BaseException, most: int = 160) -> str:
    """What an error says first, of at most so many characters; its kind where it says nothing.

    >>> first_line(ValueError("the file ends early\\nin line 3")), first_line(EOFError())
    ('the file ends early', 'EOFError')
    """
    lines = str(error).strip().splitlines()
    return lines[0][:most] if lines else type(error).__name__


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that a mistyped one most likely means, or None; the first of equals.

    Edit distance with transpositions; the end of a known name after a dash may be left out.

    >>> nearest("cifar10-plian", ["cifar10-plain-small", "cifar10-clip"])
    'cifar10-plain-small'
    """
    costs = {}
    for text in known:
        parts = text.split("-")
        heads = ["-".join(parts[:k]) for k in range(1, len(parts) + 1)]
        costs[text] = min(_edits(name, head) + (head != text) / 2 for head in heads)
    best = min(costs, key=costs.__getitem__, default=None)
    return best if best is not None and costs[best] <= max(1, len(name) / 3) else None


def _edits(a: str, b: str) -> int:
    """Insertions, deletions, changes and swaps of neighbours that lead from a to b."""
    before: list[int] = []
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        last, row = row, [i]
        for j, y in enumerate(b, 1):
            cost = min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (x != y))
            if i > 1 and j > 1 and x == b[j - 2] and y == a[i - 2]:
                cost = min(cost, before[j - 2] + 1)
            row.append(cost)
        before = last
    return row[-1]
