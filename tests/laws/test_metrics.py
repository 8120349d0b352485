"""Laws every metric obeys: order of images, order of classes, shifts of logits, ranges."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from counterlens.metrics import answers, aupr, auroc, aurra, brier, ece, fpr95, judge, nll, rms
from counterlens.metrics.intervals.closed_form import newcombe_paired, wilson

seeds = st.integers(0, 2**31)
sizes = st.integers(1, 230)
classes = st.integers(2, 12)
scales = st.sampled_from([0.0, 0.1, 3.0, 50.0, 1e4])


def _draw(seed: int, n: int, k: int, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, k, generator=rng, dtype=torch.float64) * scale
    if seed % 3 == 0:
        logits = logits.round()  # ties
    return logits, torch.randint(0, k, (n,), generator=rng)


def _all(logits: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
    probs, said = logits.softmax(1), judge(logits, labels)
    return {
        "ece": ece(probs, labels),
        "ece_common": ece(probs, labels, span="common"),
        "rms": rms(probs, labels, size=50),
        "rms_paper": rms(probs, labels, size=50, last=False),
        "brier": brier(probs, labels),
        "nll": said.nll.mean().item(),
        "aurra": aurra(said.score, said.right),
    }


@settings(deadline=None, max_examples=40)
@given(seeds, sizes, classes, scales)
def test_metrics_do_not_depend_on_the_order_of_the_images(seed, n, k, scale):
    logits, labels = _draw(seed, n, k, scale)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    before, after = _all(logits, labels), _all(logits[order], labels[order])
    for key in before:
        assert abs(before[key] - after[key]) <= 1e-9 * max(1, abs(before[key])), key


@settings(deadline=None, max_examples=40)
@given(seeds, sizes, classes, scales)
def test_metrics_stay_in_range_and_rms_is_at_least_the_share_kept(seed, n, k, scale):
    logits, labels = _draw(seed, n, k, scale)
    found = _all(logits, labels)
    for key in ("ece", "ece_common", "rms", "rms_paper", "aurra"):
        assert -1e-12 <= found[key] <= 1 + 1e-12, key
    assert found["rms_paper"] <= found["rms"] + 1e-12
    assert 0 <= found["brier"] <= 2 + 1e-9
    assert found["nll"] >= 0


@settings(deadline=None, max_examples=40)
@given(seeds, sizes, classes, st.floats(-100, 100))
def test_a_shift_of_all_logits_of_an_image_changes_nothing(seed, n, k, shift):
    logits, labels = _draw(seed, n, k, 3.0)
    before, after = judge(logits, labels), judge(logits + shift, labels)
    torch.testing.assert_close(before.score, after.score, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(before.nll, after.nll, rtol=1e-9, atol=1e-9)


@settings(deadline=None, max_examples=40)
@given(seeds, sizes, classes, st.floats(0.05, 20))
def test_temperature_never_changes_an_answer(seed, n, k, heat):
    logits, _ = _draw(seed, n, k, 3.0)
    before, after = answers(logits), answers(logits, temperature=heat)
    assert (before.answer == after.answer).all()
    change = before.confidence - after.confidence  # hotter is never surer, colder never less sure
    assert (change >= -1e-12).all() if heat >= 1 else (change <= 1e-12).all()


@settings(deadline=None, max_examples=40)
@given(seeds, st.integers(1, 80), st.integers(1, 80))
def test_swapping_known_and_unknown_turns_auroc_around(seed, m, n):
    rng = torch.Generator().manual_seed(seed)
    a = torch.randn(m, generator=rng).mul(3).round()
    b = torch.randn(n, generator=rng).mul(3).round()
    assert abs(auroc(a, b) + auroc(b, a) - 1) < 1e-12
    for metric in (auroc, aupr, fpr95):
        assert 0 <= metric(a, b) <= 1 + 1e-12
        rising = metric(a.exp(), b.exp())  # only the order counts
        assert abs(metric(a, b) - rising) < 1e-12


@settings(deadline=None, max_examples=40)
@given(seeds, classes)
def test_nll_of_probabilities_equals_that_of_logits(seed, k):
    logits, labels = _draw(seed, 50, k, 3.0)
    assert abs(nll(logits.softmax(1), labels) - judge(logits, labels).nll.mean().item()) < 1e-9


@given(st.integers(1, 10_000), st.floats(0, 1))
def test_wilson_holds_the_share_and_mirrors(n, share):
    hits = round(n * share)
    low, high = wilson(hits, n)
    assert 0 <= low <= hits / n <= high <= 1
    mirrored = wilson(n - hits, n)
    assert abs(low - (1 - mirrored[1])) < 1e-9


@given(*[st.integers(0, 500)] * 4)
def test_a_paired_difference_holds_its_value_and_mirrors(both, first, second, neither):
    n = both + first + second + neither
    if not n:
        return
    low, high = newcombe_paired(both, first, second, neither)
    assert low - 1e-12 <= (first - second) / n <= high + 1e-12
    mirrored = newcombe_paired(both, second, first, neither)
    assert abs(low + mirrored[1]) < 1e-9
