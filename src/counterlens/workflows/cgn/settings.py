"""Settings of the CGN trainings: those the shipped networks were trained with, and the next try.

Paper: Sauer and Geiger 2021 (cgn2021, MNIST code); cgnstudy2022 for the edge loss.
Differs: `edge`, `border_start`, `average`, `hold` and `level`; what the papers' code has instead is
       `PAPERS`.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from counterlens.data.made.mnist_variants import WHICH
from counterlens.errors import InputError
from counterlens.generators.cgn.model import CLASSES, KINDS

SETS: dict[str, dict[str, Any]] = {
    "coloured": {
        "entropy": 0.1, "style": [0.05, 0.1, 0.01, 0.0], "critic": "linear", "critic_width": 512,
        "init": "orthogonal", "gain": 0.1, "epochs": 8, "hold": 0.5, "level": True,
    },
    "double-coloured": {
        "entropy": 0.3, "style": [0.0, 0.05, 0.0, 0.05], "critic": "linear", "critic_width": 512,
        "init": "orthogonal", "gain": 0.2,
    },
    "wildlife": {
        "entropy": 0.3, "style": [0.01, 0.05, 0.0, 0.01], "critic": "conv", "critic_width": 32,
        "init": "normal", "gain": 0.03, "hold": 0.6,
    },
}  # fmt: skip
COMMON: dict[str, Any] = {
    "epochs": 15, "batch": 16, "lr": 2e-4, "width": 32, "shuffle": "shift", "edge": 1.0,
    "edge_form": "study", "attempts": 6, "stack": 12, "reader_updates": 9000,
    "examined": 500, "graph": "auto", "form": "auto", "precision": "auto", "border_start": True,
    "keep_grams": "auto", "together": 1, "minutes": 0.0, "average": 0.999,
    "keep_every": 3, "hold": 1.0, "level": False,
}  # fmt: skip
PAPERS: dict[str, Any] = {
    "epochs": 15, "edge": 0.0, "border_start": False, "average": 0.0, "hold": 1.0, "level": False,
    "attempts": 1,
}  # fmt: skip
"""The papers' way where ours is another; the study's code has edge 0.1 on Coloured MNIST."""
GAN = {**PAPERS, "critic": "linear", "critic_width": 512, "init": "normal", "gain": 0.02}


def defaults(which: str, kind: str) -> dict[str, Any]:
    """The settings of a set."""
    if which not in WHICH:
        raise InputError(f"no set {which!r}, expected one of {', '.join(WHICH)}.")
    if kind not in KINDS:
        raise InputError(f"kind is {kind!r}, expected cgn or gan.")
    return copy.deepcopy({**COMMON, **SETS[which], **(GAN if kind == "gan" else {})})


def check(settings: Mapping[str, Any]) -> None:
    """Refuse what cannot be meant."""
    hold = settings["hold"]
    if not isinstance(settings["level"], bool):
        raise InputError(f"level is {settings['level']!r}, expected true or false.")
    if not 0 <= hold <= 1:
        raise InputError(
            f"hold is {hold}, expected the share of epochs at full learning rate, e.g. hold=0.5."
        )


def next_round(
    rows: Sequence[Mapping[str, Any]],
    seeds: Sequence[int],
    attempts: int,
    stack: int,
    together: int = 1,
) -> list[tuple[int, int]]:
    """Which (seed, attempt) to train next; a stack has room for several attempts of a seed.

    Args:
        together: tries of each seed in the first round, where a later one would take too long.

    >>> next_round([], [0, 1, 2], 6, 12)
    [(0, 0), (1, 0), (2, 0)]
    >>> done = [{"seed": s, "attempt": 0, "intact": 10 - s} for s in (0, 1)]
    >>> next_round(done, [0, 1], 3, 12)
    [(1, 1), (1, 2)]
    >>> next_round([], [0, 1], 3, 12, together=2)
    [(0, 0), (0, 1), (1, 0), (1, 1)]
    """
    tried = {seed: [row for row in rows if row["seed"] == seed] for seed in seeds}
    waiting = [
        seed
        for seed in seeds
        if len(tried[seed]) < attempts
        and not any(row.get("intact", CLASSES) == CLASSES for row in tried[seed])
    ]
    if not rows:
        return [(seed, attempt) for seed in waiting for attempt in range(min(attempts, together))]
    copies = max(1, stack // max(1, len(waiting)))
    return [
        (seed, attempt)
        for seed in waiting
        for attempt in range(len(tried[seed]), min(attempts, len(tried[seed]) + copies))
    ]


def numbers_of(text: str) -> list[int]:
    """Seeds as people write them.

    >>> numbers_of("0-2,7")
    [0, 1, 2, 7]
    """
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise InputError(f"seeds are {text!r}, expected numbers such as 0,1,2 or 0-9.")
        found += range(int(first), int(last or first) + 1)
    return found
