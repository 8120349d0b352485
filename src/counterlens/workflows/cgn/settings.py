"""Settings of the CGN trainings: those the shipped networks were trained with, and the next try.

Paper: Sauer and Geiger 2021 (cgn2021, MNIST code); cgnstudy2022 for the edge loss.
Differs: `edge`, `border_start`, `average`, `hold` and `level`; what the papers' code has instead is
       `PAPERS`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from counterlens.data.synthetic.mnist_variants import WHICH
from counterlens.errors import InputError
from counterlens.generators.cgn.model import CLASSES, KINDS
from counterlens.workflows._shared.settings import Switch


@dataclass(frozen=True)
class CgnRecipe:
    """Every setting of the training of a CGN, or of the GAN it is compared with.

    Args:
        epochs, batch, lr: of both networks.
        width, critic, critic_width: of generator and critic.
        init, gain: of their weights.
        shuffle: how textures are cut and put together again.
        entropy, style, edge, edge_form: weights of the losses, and the form of the last.
        level: whether the critic sees images relative to their class.
        border_start: whether backgrounds begin at the colour of the data's border.
        attempts, first_attempts: of each seed in all, and in the first round.
        stack: networks that are trained side by side.
        digit_classifier_updates: of the classifier that reads the masks.
        examined: masks per digit that are examined after an epoch.
        average, hold: decay of the weight average; share of epochs at full learning rate.
        keep_every, minutes: epochs between unfinished networks; time after which no round begins.
        graph, form, precision, keep_grams: "auto" suits the device.
    """

    entropy: float
    style: tuple[float, float, float, float]
    critic: Literal["linear", "conv"]
    critic_width: int
    init: Literal["orthogonal", "normal"]
    gain: float
    epochs: int = 15
    batch: int = 16
    lr: float = 2e-4
    width: int = 32
    shuffle: str = "shift"
    edge: float = 1.0
    edge_form: str = "study"
    attempts: int = 6
    stack: int = 12
    digit_classifier_updates: int = 9000
    examined: int = 500
    graph: Switch = "auto"
    form: str = "auto"
    precision: str = "auto"
    border_start: bool = True
    keep_grams: Switch = "auto"
    first_attempts: int = 1
    minutes: float = 0.0
    average: float = 0.999
    keep_every: int = 3
    hold: float = 1.0
    level: bool = False


SETS = {
    "coloured": CgnRecipe(
        entropy=0.1, style=(0.05, 0.1, 0.01, 0.0), critic="linear", critic_width=512,
        init="orthogonal", gain=0.1, epochs=8, hold=0.5, level=True,
    ),
    "double-coloured": CgnRecipe(
        entropy=0.3, style=(0.0, 0.05, 0.0, 0.05), critic="linear", critic_width=512,
        init="orthogonal", gain=0.2,
    ),
    "wildlife": CgnRecipe(
        entropy=0.3, style=(0.01, 0.05, 0.0, 0.01), critic="conv", critic_width=32,
        init="normal", gain=0.03, hold=0.6,
    ),
}  # fmt: skip
PAPERS: dict[str, Any] = {
    "epochs": 15, "edge": 0.0, "border_start": False, "average": 0.0, "hold": 1.0, "level": False,
    "attempts": 1,
}  # fmt: skip
"""The papers' way where ours is another; the study's code has edge 0.1 on Coloured MNIST."""
GAN = {**PAPERS, "critic": "linear", "critic_width": 512, "init": "normal", "gain": 0.02}


def defaults(which: str, kind: str) -> CgnRecipe:
    """The settings of a set."""
    if which not in WHICH:
        raise InputError(f"no set {which!r}, expected one of {', '.join(WHICH)}.")
    if kind not in KINDS:
        raise InputError(f"kind is {kind!r}, expected cgn or gan.")
    return replace(SETS[which], **GAN) if kind == "gan" else SETS[which]


def check(recipe: CgnRecipe) -> None:
    """Refuse what cannot be meant."""
    if not 0 <= recipe.hold <= 1:
        raise InputError(
            f"hold is {recipe.hold}, expected the share of epochs at full learning rate, e.g. "
            "hold=0.5."
        )


def next_round(
    rows: Sequence[Mapping[str, Any]],
    seeds: Sequence[int],
    attempts: int,
    stack: int,
    first: int = 1,
) -> list[tuple[int, int]]:
    """Which (seed, attempt) to train next; a stack has room for several attempts of a seed.

    Args:
        first: attempts of each seed in the first round, where a later one would take too long.

    >>> next_round([], [0, 1, 2], 6, 12)
    [(0, 0), (1, 0), (2, 0)]
    >>> done = [{"seed": s, "attempt": 0, "intact": 10 - s} for s in (0, 1)]
    >>> next_round(done, [0, 1], 3, 12)
    [(1, 1), (1, 2)]
    >>> next_round([], [0, 1], 3, 12, first=2)
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
        return [(seed, attempt) for seed in waiting for attempt in range(min(attempts, first))]
    copies = max(1, stack // max(1, len(waiting)))
    return [
        (seed, attempt)
        for seed in waiting
        for attempt in range(len(tried[seed]), min(attempts, len(tried[seed]) + copies))
    ]


def numbers_of(given: str | Sequence[int]) -> list[int]:
    """Seeds as people write them, or as numbers; each once.

    >>> numbers_of("0-2,7"), numbers_of([3, 3])
    ([0, 1, 2, 7], [3])
    """
    if not isinstance(given, str):
        return list(dict.fromkeys(given))
    numbers: list[int] = []
    for part in given.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise InputError(f"seeds are {given!r}, expected numbers such as 0,1,2 or 0-9.")
        numbers += range(int(first), int(last or first) + 1)
    return list(dict.fromkeys(numbers))
