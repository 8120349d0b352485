"""The statistics of a receipt, against SciPy, and its verdicts."""

import numpy as np
import pytest
from scipy.stats import binomtest

from counterlens.errors import InputError
from counterlens.metrics.intervals import paired
from counterlens.runs import Number
from counterlens.workflows.repair import receipt
from counterlens.workflows.repair.groups import Grouped


@pytest.mark.parametrize(("gained", "lost"), [(0, 0), (3, 9), (9, 3), (5, 5), (0, 7), (40, 22)])
def test_mcnemar_is_a_binomial_test(gained: int, lost: int) -> None:
    expected = binomtest(gained, gained + lost).pvalue if gained + lost else 1.0
    assert paired.mcnemar(gained, lost) == pytest.approx(expected)
    before = np.array([False] * gained + [True] * lost + [True] * 10)
    after = np.array([True] * gained + [False] * lost + [True] * 10)
    worse = binomtest(lost, gained + lost, alternative="greater").pvalue if gained + lost else 1.0
    assert receipt.paired(before, after)["p_worse"] == pytest.approx(worse)


def test_exact_bounds_are_those_of_scipy() -> None:
    for hits, n in [(0, 10), (7, 10), (10, 10), (33, 80)]:
        for side, alternative in ((0, "greater"), (1, "less")):
            ends = binomtest(hits, n, alternative=alternative).proportion_ci(0.99, "exact")
            assert paired.exact_bounds(hits, n, 0.01)[side] == pytest.approx(
                (ends.low, ends.high)[side]
            )


def two_groups(n: int) -> Grouped:
    rows = np.arange(4 * n)
    return Grouped(rows % 2, rows // 2 % 2, ("cat", "dog"), ("no", "yes"))


def hits(by: Grouped, shares: dict[int, float], seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.random(len(by.labels)) < np.array([shares[g] for g in by.groups.tolist()])


def test_the_worst_group_interval_holds_whichever_group_is_worst() -> None:
    by, held = two_groups(60), 0
    before, after = {0: 0.5, 1: 0.9, 2: 0.55, 3: 0.8}, {0: 0.8, 1: 0.7, 2: 0.75, 3: 0.72}
    for seed in range(200):
        change = paired.worst_change(hits(by, before, seed), hits(by, after, 999 + seed), by.groups)
        held += change.low <= 0.2 <= change.high
    assert held >= 195


def test_better_worse_and_not_shown() -> None:
    by = two_groups(200)
    low, high = {0: 0.95, 1: 0.3, 2: 0.3, 3: 0.95}, dict.fromkeys(range(4), 0.85)
    bad, good = hits(by, low, 0), hits(by, high, 1)
    assert receipt.certify(bad, good, by, want="groups.worst", allow={}).verdict == "better"
    lost = receipt.certify(good, bad, by, want="groups.worst", allow={})
    assert lost.verdict == "worse" and "cat, yes" in lost.why
    same = receipt.certify(good, good, by, want="groups.worst", allow={})
    assert same.verdict == "not shown" and not any(row["worse"] for row in same.rows)
    assert {row["kind"] for row in same.rows} == {"all", "class", "group"}


def test_a_gain_counts_only_where_the_loss_is_ruled_out() -> None:
    gain = Number(0.3, 500, 0.1, 0.4, "t")
    allow = {"accuracy.top1": -0.01}

    def verdict(low: float, high: float) -> str:
        top = Number((low + high) / 2, 500, low, high, "t")
        return receipt.decide({"groups.worst": gain, "accuracy.top1": top}, "groups.worst", allow)[
            0
        ]

    assert verdict(-0.005, 0.02) == "better"
    assert verdict(-0.02, 0.02) == "not shown"
    assert verdict(-0.08, -0.02) == "worse"


def test_allowed_losses_are_read_or_refused() -> None:
    assert receipt.parse_allow(["groups.worst:0"]) == {"groups.worst": 0.0}
    for text in ("accuracy.top1", "accuracy.top1:0.1", "top1:-0.1", "accuracy.top1:x"):
        with pytest.raises(InputError, match="expected KEY:CHANGE"):
            receipt.parse_allow([text])


def test_more_images_show_smaller_gains() -> None:
    few, many = paired.smallest_worst_gain([30, 90]), paired.smallest_worst_gain([300, 900])
    assert few is not None and many is not None and many < few
    assert paired.smallest_worst_gain([3, 90]) is None


@pytest.mark.parametrize("sizes", [[60, 60], [40, 200, 90]])
def test_the_smallest_gain_is_shown_and_the_next_smaller_is_not(sizes: list[int]) -> None:
    """Oracle: the interval itself, on answers that gain so many in the smallest group."""
    groups = np.repeat(np.arange(len(sizes)), sizes)
    small = np.flatnonzero(groups == int(np.argmin(sizes)))
    least = paired.smallest_worst_gain(sizes)
    assert least is not None
    count = round(least * len(small))
    for gained, shown in ((count, True), (count - 1, False)):
        before = np.ones(len(groups), dtype=bool)
        before[small[: len(small) // 2 + gained // 2]] = False
        after = before.copy()
        after[small[:gained]] = True
        assert (paired.worst_change(before, after, groups).low > 0) == shown


def test_a_placebo_that_gains_as_much_withholds_the_verdict() -> None:
    by = two_groups(200)
    low, high = {0: 0.95, 1: 0.3, 2: 0.3, 3: 0.95}, dict.fromkeys(range(4), 0.85)
    bad, good, also = hits(by, low, 0), hits(by, high, 1), hits(by, high, 2)

    def verdict(placebo: np.ndarray) -> tuple[str, str]:
        proof = receipt.certify(
            bad, good, by, want="groups.worst", allow={}, placebos={"plain refit": placebo}
        )
        return proof.verdict, proof.why

    assert verdict(bad)[0] == "better" and "every placebo (plain refit)" in verdict(bad)[1]
    assert verdict(also)[0] == "not shown"
    assert "the gain over the placebo (plain refit) is not shown" in verdict(also)[1]


def test_keys_before_and_after_have_paired_intervals() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 400)
    before = rng.normal(size=(400, 2))
    before[np.arange(400), labels] += 1.0
    rows = {row["key"]: row for row in receipt.key_rows(before, before / 3, labels, seed=0)}
    assert rows["accuracy.top1"]["change"] == 0 == rows["accuracy.top1"]["high"]
    p = np.exp(before) / np.exp(before).sum(1, keepdims=True)
    nll = -np.log(p[np.arange(400), labels]).mean()
    assert rows["calibration.nll"]["before"] == pytest.approx(nll)
    assert rows["confidence.mean"]["high"] < 0
    for row in rows.values():
        assert row["low"] <= row["change"] <= row["high"]


def test_a_head_stands_with_intervals_that_hold_its_shares() -> None:
    by = two_groups(50)
    right = hits(by, {0: 0.9, 1: 0.4, 2: 0.8, 3: 1.0}, 3)
    facts = receipt.standing(right, by.groups)
    assert facts["worst"] == 1 and facts["worst_low"] < facts["worst_group"] < facts["worst_high"]
    assert facts["accuracy"] == right.mean()
