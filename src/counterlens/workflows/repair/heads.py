"""Last layers as arrays, what they are fitted on, and the logistic regression that fits them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float64
from scipy.optimize import minimize
from scipy.special import logsumexp

from counterlens.workflows.repair.groups import Codes, Grouped

Matrix = Float64[np.ndarray, "n d"]
Vector = Float64[np.ndarray, "n"]
Right = Bool[np.ndarray, "n"]
STRENGTHS = (0.001, 0.01, 0.1, 1.0)  # inverse weights of the penalty, the strongest penalty first


@dataclass(frozen=True)
class Clips:
    """Contributions to logits of which only the negative part stays.

    Args:
        classes: the logit of each.
        weight, bias: contribution = x · weight + bias.
    """

    classes: Codes
    weight: Matrix
    bias: Vector

    def taken(self, x: Matrix, count: int) -> Matrix:
        """What they take off each of `count` logits: the sum of their positive parts."""
        positive = np.maximum(x @ self.weight.T + self.bias, 0)
        sums: Matrix = positive @ np.eye(count)[self.classes]
        return sums


@dataclass(frozen=True)
class Head:
    """Logits = x · weightᵀ + bias, less what is clipped."""

    weight: Matrix
    bias: Vector
    clips: Clips | None = None

    def logits(self, x: Matrix) -> Matrix:
        """One row of logits per row of features."""
        raw: Matrix = x @ self.weight.T + self.bias
        return raw if self.clips is None else raw - self.clips.taken(x, len(self.bias))

    def state(self) -> dict[str, torch.Tensor]:
        """Its arrays by name, as they are stored."""
        arrays = {"weight": self.weight, "bias": self.bias}
        if self.clips is not None:
            clips = self.clips
            arrays |= {"clip_weight": clips.weight, "clip_bias": clips.bias}
            arrays |= {"clip_classes": clips.classes}
        return {name: torch.from_numpy(np.ascontiguousarray(a)) for name, a in arrays.items()}

    def answers(self, x: Matrix) -> Codes:
        """The class of the largest logit."""
        best: Codes = self.logits(x).argmax(1)
        return best


@dataclass(frozen=True)
class Examples:
    """Features with their classes and groups."""

    x: Matrix
    by: Grouped

    def right(self, head: Head) -> Right:
        """Which answers are right."""
        hits: Right = head.answers(self.x) == self.by.labels
        return hits

    def worst(self, head: Head) -> float:
        """Accuracy of the worst group."""
        right, groups = self.right(head), self.by.groups
        return min(float(right[groups == g].mean()) for g in np.unique(groups))

    def accuracy(self, head: Head) -> float:
        """Share of right answers."""
        return float(self.right(head).mean())

    def joined(self, other: "Examples") -> "Examples":
        """These examples and others of the same classes and values."""
        labels = np.concatenate([self.by.labels, other.by.labels])
        values = np.concatenate([self.by.values, other.by.values])
        by = Grouped(labels, values, self.by.classes, self.by.names)
        return Examples(np.concatenate([self.x, other.x]), by)


@dataclass(frozen=True)
class Pairs:
    """Fit images beside edited versions of them.

    Args:
        rows: of the fit images.
        edited: the same images, edited, with the classes and groups they now belong to.
        unrelated: the same images after an edit that has nothing to do with the shortcut.
    """

    rows: Codes
    edited: Examples
    unrelated: Matrix


@dataclass(frozen=True)
class Problem:
    """What a remedy starts from.

    Args:
        old: the head as it is.
        fit: images to fit on.
        choose: other images, to choose settings on.
        pairs: of fit images; None where no edit was named.
        want: what should rise, "groups.worst" or "accuracy.top1".
        seed: of everything random.
    """

    old: Head
    fit: Examples
    choose: Examples
    pairs: Pairs | None = None
    want: str = "groups.worst"
    seed: int = 0

    def score(self, head: Head) -> tuple[float, float]:
        """How good a head is on the images that choose; accuracy decides between equals."""
        accuracy = self.choose.accuracy(head)
        return (self.choose.worst(head) if self.want == "groups.worst" else accuracy, accuracy)

    def best(self, heads: Sequence[Head]) -> Head:
        """The best head on the images that choose; among equals the first."""
        return max(heads, key=self.score)

    def rng(self, stream: int = 0) -> np.random.Generator:
        """The same numbers at every call."""
        return np.random.default_rng([self.seed, stream])


@dataclass(frozen=True)
class Scale:
    """Mean and spread of each feature; constant features keep their size."""

    mean: Vector
    spread: Vector

    @classmethod
    def of(cls, x: Matrix) -> "Scale":
        """Those of a set."""
        spread = x.std(0)
        return cls(x.mean(0), np.where(spread > 0, spread, 1.0))

    def apply(self, x: Matrix) -> Matrix:
        """Standardised features."""
        scaled: Matrix = (x - self.mean) / self.spread
        return scaled

    def folded(self, weight: Matrix, bias: Vector) -> Head:
        """A head on standardised features as one on the features themselves."""
        small = weight / self.spread
        return Head(small, bias - small @ self.mean)


@dataclass(frozen=True)
class Consistency:
    """Rows of `x` and of `other` whose logits should agree, and how much that weighs."""

    x: Matrix
    other: Matrix
    weight: float


@dataclass(frozen=True)
class Start:
    """Where a fit of standardised features starts.

    Args:
        weight, bias: the head.
        free: which rows may move; the others belong to classes without examples.
    """

    weight: Matrix
    bias: Vector
    free: Right

    @classmethod
    def of(cls, problem: Problem, scale: Scale) -> "Start":
        """Zeros for classes with fit images; the old rows for the others."""
        free = np.isin(np.arange(len(problem.old.bias)), problem.fit.by.labels)
        keep = ~free
        weight = np.where(keep[:, None], problem.old.weight * scale.spread, 0.0)
        bias = np.where(keep, problem.old.bias + problem.old.weight @ scale.mean, 0.0)
        return cls(weight, bias, free)


def logistic(
    x: Matrix,
    y: Codes,
    start: Start,
    *,
    strength: float,
    share: Vector | None = None,
    consistency: Consistency | None = None,
) -> Start:
    """Softmax regression: the minimum of Σ s_i CE_i / n + ‖W‖² / (2 C n) + λ mean ‖f(x) − f(x')‖².

    Args:
        x: standardised features.
        y: classes.
        start: weights to start from; rows that are not free stay.
        strength: C, the inverse weight of the penalty, which is on free rows alone.
        share: weight s of each image, 1 on average.
        consistency: pairs whose logits should agree.
    """
    n, rows = len(x), np.arange(len(x))
    pull = np.ones(n) if share is None else share
    count, width = int(start.free.sum()), x.shape[1]
    gap = None if consistency is None else consistency.x - consistency.other
    rate = 0.0 if consistency is None else consistency.weight / max(len(consistency.x), 1)
    weight, bias = start.weight.copy(), start.bias.copy()

    def put(flat: Vector) -> None:
        weight[start.free], bias[start.free] = flat[count:].reshape(count, width), flat[:count]

    def loss(flat: Vector) -> tuple[float, Vector]:
        put(flat)
        own = weight[start.free]
        logits = x @ weight.T + bias
        total = logsumexp(logits, axis=1)
        value = float(pull @ (total - logits[rows, y])) / n
        error = np.exp(logits - total[:, None])
        error[rows, y] -= 1
        error = error[:, start.free] * (pull[:, None] / n)
        slope = error.T @ x + own / (strength * n)
        value += float((own**2).sum()) / (2 * strength * n)
        if gap is not None:
            apart = gap @ own.T
            value += rate * float((apart**2).sum())
            slope += 2 * rate * (apart.T @ gap)
        return value, np.concatenate([error.sum(0), slope.ravel()])

    first = np.concatenate([bias[start.free], weight[start.free].ravel()])
    settings = {"maxiter": 500, "ftol": 1e-10, "gtol": 1e-6}
    put(minimize(loss, first, jac=True, method="L-BFGS-B", options=settings).x)
    return Start(weight, bias, start.free)


def regression(
    problem: Problem,
    share: Vector | None = None,
    *,
    score: Callable[[Head], tuple[float, float]] | None = None,
) -> Head:
    """Softmax regression at each strength, each started from the last; the best head.

    Args:
        share: weight of each fit image.
        score: what is best; the problem's own score by default.
    """
    scale = Scale.of(problem.fit.x)
    x, now, heads = scale.apply(problem.fit.x), Start.of(problem, scale), []
    for strength in STRENGTHS:
        now = logistic(x, problem.fit.by.labels, now, strength=strength, share=share)
        heads.append(scale.folded(now.weight, now.bias))
    return max(heads, key=score or problem.score)
