"""Slices: clusters of images on which a classifier errs more than its classes explain.

Paper: Eyuboglu et al. 2022, Domino: Discovering Systematic Errors with Cross-Modal Embeddings
       (arXiv:2203.14960): a mixture of diagonal Gaussians on PCA features times categorical
       distributions of the label and of the answer, started from the cells of the confusion table.
Differs: features are also taken less the mean of their class, else most components are the
       classes again; the start is k-means++ with every second seed an error; three mixtures give
       candidates, of 8 and 25 components less class means and of 25 as they are, and so do the
       lowest and highest twentieth and tenth of each measured attribute; variances are drawn
       towards those of all images. The answer takes part in fitting alone: whether an image
       belongs to a slice is decided by its features and its label, for a slice that sees the
       answer has errors by construction. Slices are ranked by their errors beyond those of other
       images of the same classes, not by P(ŷ|s) − P(y|s), and confirmed on images that fitted
       nothing. Answers are hard.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import hypot

import numpy as np
from jaxtyping import Float, Float64, Int64
from scipy.special import logsumexp

from counterlens.errors import InputError
from counterlens.metrics.intervals.closed_form import BoolArray, holding, jeffreys
from counterlens.metrics.intervals.multiple import bonferroni, stratified_test

_Codes = Int64[np.ndarray, "_"]
JointDensity = Float64[np.ndarray, "_ _"]
MIXTURES = ((8, True), (25, True), (25, False))
"""Components, and whether features are taken less the mean of their class."""
DIMENSIONS, STEPS = 128, 50
NOISE, PRIOR, TOLERANCE = 1e-3, 20.0, 0.01
TESTED, LEAST = 5, 10
"""So many slices are tested on the other half; of fewer images that have others of their class
in the same half none is made or confirmed."""
REPEATS = 4
EXTREMES = (0.05, 0.1, 0.9, 0.95)
Measures = Mapping[str, Float64[np.ndarray, "_"]]
_Candidate = tuple[str, BoolArray, "Excess"]


@dataclass(frozen=True)
class Mixture:
    """A fitted mixture and the projection in front of it.

    Args:
        means: what is subtracted from the features of each class.
        axes: principal directions of the features less their class mean, as columns.
        weights: share of each component.
        centres, variances: of the Gaussians.
        labels, answers: P(y|s) and P(ŷ|s), a row per component.
    """

    means: JointDensity
    axes: JointDensity
    weights: Float64[np.ndarray, "s"]
    centres: JointDensity
    variances: JointDensity
    labels: JointDensity
    answers: JointDensity

    def assign(self, features: Float[np.ndarray, "_ _"], labels: _Codes) -> _Codes:
        """The likeliest component of each image by features and label; the answer has no say."""
        x = (features - self.means[labels]) @ self.axes
        joint = _gaussian(x, self.centres, self.variances) + np.log(self.weights)
        component: _Codes = (joint + np.log(self.labels.T[labels])).argmax(1)
        return component


def fit_mixture(
    features: Float[np.ndarray, "_ _"],
    labels: _Codes,
    answers: _Codes,
    classes: int,
    rng: np.random.Generator,
    *,
    components: int,
    centred: bool = True,
) -> Mixture:
    """Fit by expectation and maximisation.

    Equation: domino2022 mixture   P(s) N(z; μ_s, Σ_s) P(y|s)^γ P(ŷ|s)^γ̂, γ = γ̂ = 1
    """
    means = _class_means(features, labels, classes)
    if not centred:
        means = np.broadcast_to(features.mean(0, dtype=np.float64), means.shape)
    axes = _principal(features - means[labels])
    x = (features - means[labels]) @ axes
    hot_y, hot_a = np.eye(classes)[labels], np.eye(classes)[answers]
    belief = _start(x, labels != answers, components, rng)
    whole, before = x.var(0) + 1e-12, -np.inf
    for _ in range(STEPS):
        total = belief.sum(0) + 1e-9
        weights = total / total.sum()
        centres = belief.T @ x / total[:, None]
        own = np.maximum(belief.T @ x**2 - total[:, None] * centres**2, 0.0)
        variances = (own + PRIOR * whole) / (total[:, None] + PRIOR)
        p_y = (belief.T @ hot_y + 1e-6) / (total[:, None] + classes * 1e-6)
        p_a = (belief.T @ hot_a + 1e-6) / (total[:, None] + classes * 1e-6)
        joint = _gaussian(x, centres, variances) + np.log(weights)
        joint += np.log(p_y.T[labels]) + np.log(p_a.T[answers])
        density = logsumexp(joint, axis=1, keepdims=True)
        belief = np.exp(joint - density)
        now = float(density.mean())
        if now - before < TOLERANCE:
            break
        before = now
    return Mixture(means, axes, weights, centres, variances, p_y, p_a)


def _class_means(features: Float[np.ndarray, "_ _"], labels: _Codes, classes: int) -> JointDensity:
    """Mean features of each class, drawn towards that of all images where there are few."""
    means = np.zeros((classes, features.shape[1]))
    np.add.at(means, labels, features)
    counts = np.bincount(labels, minlength=classes)[:, None]
    whole: JointDensity = (means + features.mean(0)) / (counts + 1)
    return whole


def _principal(centred: JointDensity) -> JointDensity:
    values, axes = np.linalg.eigh(centred.T @ centred / len(centred))
    most = min(DIMENSIONS, len(centred) - 1, int((values > 1e-9 * values[-1]).sum()))
    principal: JointDensity = axes[:, ::-1][:, : max(1, most)]
    return principal


def _start(
    x: JointDensity, wrong: BoolArray, components: int, rng: np.random.Generator
) -> JointDensity:
    """Beliefs that give each image to the nearest of so many far-apart ones, half of them errors.

    The first of a pair of seeds is drawn among the errors, the second among all images, each with
    a chance that grows with its distance to the seeds so far (k-means++).
    """
    distance = np.full(len(x), np.inf)
    place = np.zeros(len(x), dtype=np.int64)
    for j in range(components):
        chance = np.where(np.isinf(distance), 1.0, distance)
        if j % 2 == 0 and (chance * wrong).sum() > 0:
            chance = chance * wrong
        seed = rng.choice(len(x), p=chance / chance.sum()) if chance.sum() > 0 else j % len(x)
        own = ((x - x[seed]) ** 2).sum(1)
        place[own < distance] = j
        distance = np.minimum(distance, own)
    belief = rng.uniform(0, NOISE, (len(x), components))
    belief[np.arange(len(x)), place] += 1.0
    start: JointDensity = belief / belief.sum(1, keepdims=True)
    return start


def _gaussian(x: JointDensity, centres: JointDensity, variances: JointDensity) -> JointDensity:
    """Log density of each image under each diagonal Gaussian."""
    precision = 1 / variances
    square = x**2 @ precision.T - 2 * x @ (centres * precision).T
    square += (centres**2 * precision).sum(1)
    density: JointDensity = -0.5 * (square + np.log(2 * np.pi * variances).sum(1))
    return density


@dataclass(frozen=True)
class Excess:
    """How much more a slice errs than other images of the same classes.

    Args:
        n: images of the slice that have such others.
        error: their share of errors.
        expected: that of the others, weighted by the classes of the slice.
        low, high: interval of error − expected.
        p: one-sided exact test within classes, by which candidates are picked.
    """

    n: int
    error: float
    expected: float
    low: float
    high: float
    p: float

    @property
    def value(self) -> float:
        """Error less expected error."""
        return self.error - self.expected


def excess(inside: BoolArray, wrong: BoolArray, labels: _Codes, *, z: float) -> Excess | None:
    """Errors of a slice beyond those of its classes; None where nothing can be compared.

    The interval is Newcombe's square-and-add of Jeffreys intervals, whose lower ends err no more
    often than their upper ones; the variance of the expected error is turned into an effective
    number of images.
    """
    hits, n, totals, spread, expected = [], [], [], 0.0, 0.0
    for label in np.unique(labels[inside]):
        own, other = inside & (labels == label), ~inside & (labels == label)
        if other.any():
            hits.append(int(wrong[own].sum()))
            n.append(int(own.sum()))
            totals.append((int(wrong[own | other].sum()), int((own | other).sum())))
    count = sum(n)
    if not count:
        return None
    for x, k, (marked, size) in zip(hits, n, totals, strict=True):
        share, rest = k / count, size - k
        expected += share * (marked - x) / rest
        smooth = (marked - x + 0.5) / (rest + 1)
        spread += share**2 * smooth * (1 - smooth) / rest
    error, middle = sum(hits) / count, min(max(expected, 0.5 / count), 1 - 0.5 / count)
    effective = max(1, round(middle * (1 - middle) / spread))
    low_s, high_s = jeffreys(sum(hits), count, z=z)
    low_r, high_r = jeffreys(expected * effective, effective, z=z)
    value = error - expected
    low = value - hypot(error - low_s, high_r - expected)
    high = value + hypot(high_s - error, expected - low_r)
    low, high = holding(value, low, high, (-1.0, 1.0))
    return Excess(count, error, expected, low, high, stratified_test(hits, n, totals))


@dataclass(frozen=True)
class Slice:
    """A cluster that erred more on the half that fitted, and what the other half says.

    Args:
        members: which of all images belong to it.
        fit, check: its excess on either half.
        p: one-sided p-value on the check half after Holm.
        rule: the attribute and its limit that define it; empty for a cluster.
        again: in how many of REPEATS other halvings a similar slice was found.
    """

    members: BoolArray
    fit: Excess
    check: Excess | None
    again: int = 0
    rule: str = ""

    @property
    def confirmed(self) -> bool:
        """Whether the interval on the images that fitted nothing lies above 0."""
        return self.check is not None and self.check.low > 0


def find_slices(
    features: Float[np.ndarray, "_ _"],
    labels: _Codes,
    answers: _Codes,
    *,
    measures: Measures | None = None,
    seed: int = 0,
    repeats: int = REPEATS,
) -> tuple[list[Slice], BoolArray]:
    """Slices, confirmed ones first, and which images fitted them.

    Args:
        measures: attributes of each image by name, whose extremes are candidates, too.

    One half of the images fits and picks at most TESTED slices; the other half tests these alone.
    """
    if len(features) < 4 * LEAST:
        raise InputError(
            f"slices need {4 * LEAST} images or more, got {len(features)}: give more images."
        )
    wrong, given = answers != labels, (features, labels, answers, measures or {})
    fits, candidates = _candidates(*given, (seed, 0))
    z = bonferroni(len(candidates))
    checks = [
        excess(m & ~fits, wrong & ~fits, np.where(fits, -1, labels), z=z) for _, m, _ in candidates
    ]
    checks = [one if one is not None and one.n >= LEAST else None for one in checks]
    others = [
        [m for _, m, _ in _candidates(*given, (seed, r))[1]]
        for r in range(1, repeats + 1 if candidates else 1)
    ]
    slices = [
        Slice(m, fit, check, sum(any(_similar(m, o) for o in one) for one in others), rule)
        for (rule, m, fit), check in zip(candidates, checks, strict=True)
    ]
    return sorted(slices, key=lambda s: (not s.confirmed, -(s.check or s.fit).value)), fits


def _candidates(
    features: Float[np.ndarray, "_ _"],
    labels: _Codes,
    answers: _Codes,
    measures: Measures,
    seed: tuple[int, int],
) -> tuple[BoolArray, list[_Candidate]]:
    """The half that fits, and the slices with the smallest p-values on it."""
    rng = np.random.default_rng(seed)
    fits: BoolArray = np.isin(
        np.arange(len(labels)), rng.permutation(len(labels))[: len(labels) // 2]
    )
    wrong, passed = answers != labels, []
    every = [*_clusters(features, labels, answers, fits, rng), *_extremes(measures, fits)]
    for rule, members in every:
        if min((members & fits).sum(), (members & ~fits).sum()) < LEAST:
            continue
        one = excess(members & fits, wrong & fits, np.where(fits, labels, -1), z=bonferroni(1))
        if one is not None and one.n >= LEAST and one.value > 0:
            passed.append((rule, members, one))
    picked: list[_Candidate] = []
    for candidate in sorted(passed, key=lambda one: one[2].p):
        if len(picked) < TESTED and not any(_similar(candidate[1], one[1]) for one in picked):
            picked.append(candidate)
    return fits, picked


def _clusters(
    features: Float[np.ndarray, "_ _"],
    labels: _Codes,
    answers: _Codes,
    fits: BoolArray,
    rng: np.random.Generator,
) -> Iterator[tuple[str, BoolArray]]:
    """The components of each mixture, fitted on one half, over all images."""
    classes = int(max(labels.max(), answers.max())) + 1
    for size, centred in MIXTURES:
        mixture = fit_mixture(
            features[fits], labels[fits], answers[fits], classes, rng,
            components=min(size, max(2, int(fits.sum()) // LEAST)), centred=centred,
        )  # fmt: skip
        place = mixture.assign(features, labels)
        yield from (("", place == j) for j in np.unique(place))


def _extremes(measures: Measures, fits: BoolArray) -> Iterator[tuple[str, BoolArray]]:
    """The images with the lowest and the highest values of each attribute."""
    for name, values in measures.items():
        known = values[fits & np.isfinite(values)]
        if len(known):
            for share in EXTREMES:
                limit = float(np.quantile(known, share))
                low = share < 0.5
                members = values <= limit if low else values >= limit
                yield f"{name} {'≤' if low else '≥'} {limit:.3g}", members


def _similar(one: BoolArray, two: BoolArray) -> bool:
    """Whether two slices share at least a third of the images that either holds."""
    return bool(3 * (one & two).sum() >= (one | two).sum())


def standardised(values: Sequence[float] | Float64[np.ndarray, "_"], inside: BoolArray) -> float:
    """Difference of the means of a slice and of the other images, in standard deviations."""
    column = np.asarray(values, dtype=np.float64)
    known = np.isfinite(column)
    one, two = column[inside & known], column[~inside & known]
    spread = column[known].std() if known.any() else 0.0
    return float((one.mean() - two.mean()) / spread) if len(one) and len(two) and spread else 0.0
