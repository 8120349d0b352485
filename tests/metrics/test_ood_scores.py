"""OOD scores against literal loops in NumPy, ODIN against a closed form, pairs against DeLong."""

import math

import numpy as np
import pytest
import torch

from counterlens.errors import InputError
from counterlens.metrics import auroc
from counterlens.metrics.intervals.closed_form import delong_parts
from counterlens.metrics.ood_scores import (
    FEATURE_SCORES,
    SCORES,
    LinearHead,
    auroc_replicates,
    differences,
    fit,
    mean_auroc,
    odin,
    parse_scores,
)

RNG = np.random.default_rng(3)
WIDTH, CLASSES = 12, 4
FITTED = np.abs(RNG.normal(size=(90, WIDTH))) + 0.1
LABELS = RNG.integers(0, CLASSES, 90)
FRESH = np.abs(RNG.normal(size=(7, WIDTH))) * 1.5
WEIGHT, BIAS = RNG.normal(size=(CLASSES, WIDTH)), RNG.normal(size=CLASSES)
HEAD = LinearHead(torch.from_numpy(WEIGHT), torch.from_numpy(BIAS))


def _logsumexp(z):
    top = max(z)
    return top + math.log(sum(math.exp(v - top) for v in z))


def _distance(x, mean, covariance):
    gap = x - mean
    return float(gap @ np.linalg.solve(covariance, gap))


def _means():
    return [FITTED[c == LABELS].mean(0) for c in range(CLASSES)]


def _tied(means):
    total = np.zeros((WIDTH, WIDTH))
    for x, c in zip(FITTED, LABELS, strict=True):
        total += np.outer(x - means[c], x - means[c])
    return total / len(FITTED)


def _keep(x, share):
    k = len(x) - round(len(x) * share)
    order = sorted(range(len(x)), key=lambda i: -x[i])[:k]
    return k, [x[i] if i in order else 0.0 for i in range(len(x))]


def literal(name, x):
    """The score of one image, read off the papers."""
    z = [float(w @ x + b) for w, b in zip(WEIGHT, BIAS, strict=True)]
    p = [math.exp(v) / sum(math.exp(u) for u in z) for v in z]
    match name:
        case "msp":
            return math.log(max(p) / (1 - max(p)))
        case "max_logit":
            return max(z)
        case "energy":
            return _logsumexp(z)
        case "entropy":
            return sum(q * math.log(q) for q in p)
        case "knn":
            unit = x / np.sqrt((x**2).sum())
            gaps = sorted(np.sqrt(((unit - y / np.sqrt((y**2).sum())) ** 2).sum()) for y in FITTED)
            return -gaps[0]  # one per thousand images, at least one
        case "mahalanobis":
            means = _means()
            return max(-_distance(x, m, _tied(means)) for m in means)
        case "relative_mahalanobis":
            means, mean = _means(), FITTED.mean(0)
            whole = np.cov(FITTED.T, bias=True)
            return max(-(_distance(x, m, _tied(means)) - _distance(x, mean, whole)) for m in means)
        case "vim":
            origin = -np.linalg.pinv(WEIGHT) @ BIAS
            gaps = FITTED - origin
            _, _, vt = np.linalg.svd(gaps, full_matrices=True)
            rest = vt[WIDTH // 2 :]
            lengths = [np.linalg.norm(rest @ g) for g in gaps]
            top = [max(WEIGHT @ y + BIAS) for y in FITTED]
            alpha = np.mean(top) / np.mean(lengths)
            return _logsumexp(z) - alpha * np.linalg.norm(rest @ (x - origin))
        case "react":
            ceiling = np.percentile(FITTED.ravel(), 90)
            return _logsumexp(WEIGHT @ np.minimum(x, ceiling) + BIAS)
        case "ash_s":
            _, kept = _keep(x, 0.9)
            return _logsumexp(WEIGHT @ (np.array(kept) * math.exp(sum(x) / sum(kept))) + BIAS)
        case "ash_b":
            k, kept = _keep(x, 0.9)
            return _logsumexp(WEIGHT @ np.array([sum(x) / k if v else 0 for v in kept]) + BIAS)
    raise AssertionError(name)


@pytest.mark.parametrize("name", [name for name in SCORES if name != "odin"])
def test_each_score_equals_the_literal_loop(name):
    fitted = fit(name, torch.from_numpy(FITTED), torch.from_numpy(LABELS), HEAD)
    scores = fitted.score(torch.from_numpy(FRESH))
    expected = [literal(name, x) for x in FRESH]
    np.testing.assert_allclose(scores.numpy(), expected, rtol=1e-9)
    assert fitted.text


def test_odin_equals_its_closed_form_on_a_linear_model():
    """On two linear logits the gradient's sign is known, so the step is, too."""
    weight = torch.tensor([[1.0, -2.0, 0.5], [0.3, 0.4, -1.0]], dtype=torch.float64)
    x = torch.rand(5, 3, 1, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = odin(lambda images: images.flatten(1) @ weight.T, x, temperature=10.0, step=0.1)
    for image, score in zip(x.flatten(1).numpy(), found.tolist(), strict=True):
        z = weight.numpy() @ image
        top, other = int(z.argmax()), int(z.argmin())
        step = 0.1 * np.sign(weight.numpy()[top] - weight.numpy()[other])
        moved = weight.numpy() @ (image + step) / 10.0
        assert score == pytest.approx(max(moved) - _logsumexp(moved), abs=1e-12)


def test_neighbours_grow_with_the_fitted_images():
    for count, k in ((90, 1), (2000, 2), (50_000, 50), (60_000, 50)):
        bank = torch.zeros(count, 2) + torch.tensor([1.0, 0.0])
        found = fit("knn", bank, torch.zeros(count, dtype=torch.int64), HEAD)
        assert f"k = {k}" in found.text


def test_a_class_without_fitted_images_has_no_mean():
    labels = torch.from_numpy(np.where(LABELS == 2, -1, LABELS))
    fitted = fit("mahalanobis", torch.from_numpy(FITTED), labels, HEAD)
    assert "3 class means" in fitted.text


def test_a_singular_covariance_is_said():
    few = torch.from_numpy(FITTED[:20]).repeat(1, 3)
    fitted = fit("mahalanobis", few, torch.from_numpy(LABELS[:20]), HEAD)
    assert "singular" in fitted.text


def test_too_few_images_are_refused():
    with pytest.raises(InputError, match="expected 20 or more"):
        fit("knn", torch.from_numpy(FITTED[:5]), torch.from_numpy(LABELS[:5]), HEAD)


def test_names_are_read_in_a_fixed_order_and_misspelt_ones_refused():
    assert parse_scores("all") == SCORES
    assert parse_scores("ASH-S,msp") == ("msp", "ash_s")
    assert set(FEATURE_SCORES) < set(SCORES)
    for wrong in ("enrgy", "", ","):
        with pytest.raises(InputError, match="expected all or some of"):
            parse_scores(wrong)


def test_the_names_of_openood_and_pytorch_ood_are_understood():
    assert parse_scores("EBO,mls,MDS,rmds,ash") == (
        *("max_logit", "energy", "mahalanobis", "relative_mahalanobis", "ash_b"),
    )
    with pytest.raises(InputError, match="did you mean energy"):
        parse_scores("enrgy")


def test_the_mean_over_unknown_sets_is_that_of_their_aurocs():
    inside = RNG.normal(size=30).round(1)
    sets = [RNG.normal(size=n).round(1) for n in (21, 13)]
    alone = [auroc(torch.from_numpy(inside), torch.from_numpy(one)) for one in sets]
    assert mean_auroc(inside, *sets) == pytest.approx(np.mean(alone), abs=1e-12)
    drawn = np.random.default_rng(7)
    rows = [drawn.integers(0, n, size=(3, n), dtype=np.int64) for n in (30, 21, 13)]
    values = auroc_replicates(inside, *sets, count=3, seed=7)
    for i in range(3):
        known = torch.from_numpy(inside[rows[0][i]])
        areas = [
            auroc(known, torch.from_numpy(one[part[i]]))
            for one, part in zip(sets, rows[1:], strict=True)
        ]
        assert values[i] == pytest.approx(np.mean(areas), abs=1e-12)


def test_replicates_equal_the_auroc_of_the_drawn_images():
    inside, outside = RNG.normal(size=30).round(1), RNG.normal(size=21).round(1)
    values = auroc_replicates(inside, outside, count=5, seed=4)
    drawn = np.random.default_rng(4)
    rows = [drawn.integers(0, n, size=(5, n), dtype=np.int64) for n in (30, 21)]
    for i in range(5):
        known, unknown = (
            torch.from_numpy(s[r[i]]) for s, r in zip((inside, outside), rows, strict=True)
        )
        assert values[i] == pytest.approx(auroc(known, unknown), abs=1e-12)


def test_two_scores_get_about_the_interval_of_the_paired_delong_variance():
    base = RNG.normal(size=400) + 1, RNG.normal(size=300)
    scores = {
        "a": (base[0] + 0.3 * RNG.normal(size=400), base[1] + 0.3 * RNG.normal(size=300)),
        "b": base,
    }
    (found,) = differences(scores, seed=1)
    (v1, w1), (v2, w2) = (delong_parts(*scores[n]) for n in "ab")
    width = 1.96 * math.sqrt((v1 - v2).var(ddof=1) / 400 + (w1 - w2).var(ddof=1) / 300)
    assert found.high - found.low == pytest.approx(2 * width, rel=0.12)
    assert found.low < found.value < found.high


def test_scores_that_never_differ_are_not_declared_equal_for_certain():
    apart = np.arange(50.0) + 100, np.arange(40.0)
    (found,) = differences({"a": apart, "b": apart})
    assert (found.value, found.high) == (0.0, pytest.approx(3.7 / 40))


@pytest.mark.slow
def test_all_pairs_hold_together_in_95_of_100_draws():
    """Scores with one true AUROC: every difference is truly 0."""
    rng = np.random.default_rng(0)
    held = 0
    for seed in range(300):
        scores = {n: (rng.normal(size=80) + 1, rng.normal(size=60)) for n in "abcd"}
        held += all(d.low <= 0 <= d.high for d in differences(scores, count=400, seed=seed))
    assert 0.92 <= held / 300 <= 0.985
