"""A remedy that uses the groups beats its placebos; where groups mean nothing it does not."""

import numpy as np

from counterlens.workflows.repair import run
from counterlens.workflows.repair.groups import Grouped
from counterlens.workflows.repair.remedies import Examples, Head, weights


def examples(n: int, seed: int, agree: float) -> Examples:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n)
    z = np.where(rng.random(n) < agree, y, 1 - y)
    x = rng.normal(size=(n, 3))
    x[:, 0] += 1.5 * (2 * y - 1)
    x[:, 1] += 4.0 * (2 * z - 1)
    return Examples(x, Grouped(y, z, ("cat", "dog"), ("no", "yes")))


def test_only_meaningful_groups_beat_the_placebos() -> None:
    old = Head(np.array([[-1.0, -1.0, 0.0], [1.0, 1.0, 0.0]]), np.zeros(2))
    for agree, words in ((0.95, "Ahead of every placebo"), (0.5, "Not shown to beat")):
        fit, choose, check = (examples(n, n, agree) for n in (3000, 3001, 9000))
        new = weights(old, fit, choose, np.random.default_rng(0))
        placebos = run._placebos("weights", old, fit, choose, 0)
        assert set(placebos) == {"plain refit", "weights, shuffled groups"}
        rows = run._placebo_rows("weights", new, placebos, check, "groups.worst")
        assert run._sentence("weights", rows).startswith(words), rows
