"""From logits to the numbers of an audit: value, n, 95 % interval and protocol of each.

What the intervals speak about: other images drawn as these were, with the model, the classes, the
bins, the ratio of known to unknown images and the temperature held fixed.
"""

from collections.abc import Sequence
from typing import Literal

from jaxtyping import Bool, Float
from torch import Tensor

from counterlens.metrics.accuracy import top_k
from counterlens.metrics.answers import Judged, answers, judge
from counterlens.metrics.bias import CueVotes, background_gap
from counterlens.metrics.calibration import count_bins, ece_of, rms_of, width_bins
from counterlens.metrics.intervals.bootstrap import aupr_interval, aurra_interval, fpr95_interval
from counterlens.metrics.intervals.calibration import ece_interval, rms_interval
from counterlens.metrics.intervals.closed_form import (
    delong,
    mean_interval,
    newcombe,
    newcombe_paired,
    wilson,
)
from counterlens.metrics.intervals.temperature import by_ece_with_interval, by_nll_interval
from counterlens.metrics.ood import aupr, auroc, fpr95
from counterlens.metrics.selective import aurra
from counterlens.metrics.temperature import HIGHEST, LOWEST, STEPS, by_nll
from counterlens.runs import Number, key_part
from counterlens.types import Flags, Labels, Logits, Scores

NumberDict = dict[str, Number]
_INF = float("inf")


def classification_numbers(
    logits: Logits,
    labels: Labels,
    *,
    temperature: float | None = None,
    protocol: str = "",
    everything: tuple[Float[Tensor, "b a"], Labels] | None = None,
    seed: int = 0,
) -> NumberDict:
    """Accuracy, calibration and selective prediction of one model on one labelled set.

    Args:
        logits: over the classes of the protocol, already restricted to them.
        labels: true classes, as columns of `logits`.
        temperature: fitted on other images; adds the scaled errors. None leaves them out.
        protocol: what the classes are, stated in every number, e.g. "200 classes of ImageNet-A".
        everything: logits and labels over all classes of the model, for `accuracy.top1_all`;
            None when the protocol already covers them all.
        seed: of the resampling.
    """
    judged = judge(logits, labels)
    classes = logits.shape[1]
    how = protocol or f"all {classes} classes of the model"
    out = {"accuracy.top1": share(judged.right, f"arg-max is the true class; {how}")}
    if classes > 5:
        five = top_k(logits, labels, k=5)
        out["accuracy.top5"] = share(five, f"true class among the 5 highest; {how}")
    if everything is None:
        out["accuracy.top1_all"] = out["accuracy.top1"]
    else:
        right = top_k(*everything)
        over = f"arg-max over all {everything[0].shape[1]} classes of the model"
        out["accuracy.top1_all"] = share(right, over)
    out |= _calibration(judged, classes, how, "temperature 1", seed)
    out["selective.aurra"] = _aurra(judged, how, seed)
    if temperature is not None:
        scaled = _calibration(
            judge(logits, labels, temperature=temperature),
            classes,
            how,
            f"temperature {temperature:.4g}, fitted on other images",
            seed,
        )
        keys = ("calibration.ece", "calibration.ece_common", "calibration.rms", "calibration.nll")
        out |= {f"{key}_scaled": scaled[key] for key in keys}
    return out


def share(hits: Flags, protocol: str) -> Number:
    """A proportion with its Wilson interval."""
    n, count = len(hits), int(hits.sum())
    low, high = wilson(count, n)
    return Number(count / n, n, low, high, f"{protocol}; Wilson interval")


def _calibration(judged: Judged, classes: int, how: str, temperature: str, seed: int) -> NumberDict:
    n = len(judged.right)
    hybrid = "95 % interval of the population value with the same bins, by test inversion"
    out: NumberDict = {}
    for key, start in (("ece", 1 / classes), ("ece_common", 0.0)):
        bins = width_bins(judged.confidence, judged.right, bins=15, start=start)
        value = ece_of(bins)
        low, high = ece_interval(bins, value, seed=seed)
        span = "[1/K, 1]" if key == "ece" else "[0, 1]"
        text = f"15 equal bins of {span}; {temperature}; {how}; {hybrid}"
        out[f"calibration.{key}"] = Number(value, n, low, high, text)
    equal = count_bins(judged.confidence, judged.right)
    for key, last in (("rms", True), ("rms_paper", False)):
        if not last and len(equal.n) == 1:  # nothing would be left: a perfect 0 that means nothing
            continue
        value = rms_of(equal, last=last)
        low, high = rms_interval(equal, value, last=last, seed=seed)
        which = "all bins" if last else "the most confident bin skipped, as the authors' code does"
        text = f"bins of 100 images, {which}; {temperature}; {how}; {hybrid}"
        out[f"calibration.{key}"] = Number(value, n, low, high, text)
    boot = f"{temperature}; {how}; BCa bootstrap"
    out["calibration.nll"] = _mean(judged.nll, f"−log p(true class), nats; {boot}", (0, _INF), seed)
    out["calibration.brier"] = _mean(
        judged.brier, f"squared distance to the true corner, 0 to 2; {boot}", (0, 2), seed
    )
    return out


def _mean(values: Tensor, protocol: str, bounds: tuple[float, float], seed: int) -> Number:
    low, high = mean_interval(values.numpy(), bounds, seed=seed)
    return Number(values.mean().item(), len(values), low, high, protocol)


def _aurra(judged: Judged, how: str, seed: int) -> Number:
    value = aurra(judged.score, judged.right)
    low, high = aurra_interval(judged.score.numpy(), judged.right.numpy(), value, seed=seed)
    text = (
        f"mean accuracy over all response rates, surest first; temperature 1; {how}; BCa bootstrap"
    )
    return Number(value, len(judged.right), low, high, text)


def temperature_number(
    logits: Logits,
    labels: Labels,
    *,
    source: str,
    method: Literal["ece", "nll"] = "ece",
    seed: int = 0,
) -> Number:
    """The fitted temperature; `source` says on which images, e.g. "20 % held out by id"."""
    if method == "nll":
        value = by_nll(logits, labels)
        low, high = by_nll_interval(logits, labels, value)
        text = "lowest negative log likelihood; sandwich interval"
    else:
        value, (low, high) = by_ece_with_interval(logits, labels, seed=seed)
        text = (
            f"lowest ECE (10 bins of [1/K, 1]) of {STEPS} geometric temperatures in "
            f"[{LOWEST}, {HIGHEST}]; bootstrap of log T with redrawn answers"
        )
    return Number(value, len(labels), low, high, f"{text}; fitted on {source}")


def ood_numbers(
    inside: Logits,
    outside: Float[Tensor, "o k"],
    *,
    name: str,
    temperature: float = 1.0,
    protocol: str = "",
    seed: int = 0,
) -> NumberDict:
    """How well the confidence tells the known images from those of the unknown set `name`."""
    known, unknown = (
        answers(inside, temperature=temperature),
        answers(outside, temperature=temperature),
    )
    how = f"{protocol or f'all {inside.shape[1]} classes'}; temperature {temperature:.4g}"
    score = f"score = log-odds of the top class; {how}"
    part = f"ood.{key_part(name)}"
    numbers = detection_numbers(known.score, unknown.score, score, seed=seed)
    out = {f"{part}.{key}": number for key, number in numbers.items()}
    text = f"mean confidence in the top class; {how}; BCa bootstrap"
    out[f"{part}.mmc"] = _mean(unknown.confidence, text, (1 / inside.shape[1], 1), seed)
    return out


def detection_numbers(
    inside: Scores, outside: Float[Tensor, "o"], score: str, *, both: bool = False, seed: int = 0
) -> NumberDict:
    """AUROC, AUPR and FPR95 of one score; n is the number of unknown images.

    Args:
        score: what it is, for the protocol.
        both: AUPR with the known images positive, too, as `aupr_in`.
    """
    x, y = inside.double().numpy(), outside.double().numpy()
    m, n = len(x), len(y)
    counts = f"{n} unknown to {m} known"
    area, precision, share = auroc(inside, outside), aupr(inside, outside), fpr95(inside, outside)
    out = {
        "auroc": Number(
            *(area, n, *delong(x, y)),
            f"known positive, ties count half; {m} known, {n} unknown; {score}; "
            "DeLong interval on the logit scale",
        ),
        "aupr": Number(
            *(precision, n, *aupr_interval(x, y, precision, seed=seed)),
            f"unknown positive at {counts} (chance {n / (m + n):.4g}), average precision; {score}; "
            "BCa bootstrap, ratio held",
        ),
        "fpr95": Number(
            *(share, n, *fpr95_interval(x, y, share, seed=seed)),
            f"unknown accepted when 95 % of {m} known are; {score}; percentile bootstrap",
        ),
    }
    if both:
        precision = aupr(-outside, -inside)
        out["aupr_in"] = Number(
            *(precision, n, *aupr_interval(-y, -x, precision, seed=seed)),
            f"known positive at {counts} (chance {m / (m + n):.4g}), average precision; {score}; "
            "BCa bootstrap, ratio held",
        )
    return out


def shape_number(votes: CueVotes, *, protocol: str = "") -> Number:
    """Shape bias with its Wilson interval over the images answered by either cue."""
    return _cue_number(votes, votes.shape, "shape", protocol)


def texture_number(votes: CueVotes, *, protocol: str = "") -> Number:
    """Texture bias, which is 1 less the shape bias, with its Wilson interval."""
    return _cue_number(votes, votes.texture, "texture", protocol)


def _cue_number(votes: CueVotes, hits: int, cue: str, protocol: str) -> Number:
    decided = votes.shape + votes.texture
    text = (
        f"{cue} hits / (shape + texture hits) where the cues disagree; {votes.neither} images "
        f"followed neither{'; ' + protocol if protocol else ''}; Wilson interval"
    )
    if not decided:
        return Number.missing("no image was answered by its shape or its texture", text)
    return Number(hits / decided, decided, *wilson(hits, decided), text)


def background_number(
    same: Flags,
    random: Bool[Tensor, "o"],
    *,
    ids: tuple[Sequence[str], Sequence[str]] | None = None,
) -> Number:
    """Background gap with Newcombe's interval.

    Args:
        same, random: whether each Mixed-Same and each Mixed-Rand image was answered right.
        ids: names of the foregrounds on both sides; when they are the same images the interval
            is paired, which is narrower.
    """
    value = background_gap(same, random)
    text = "accuracy on Mixed-Same less accuracy on Mixed-Rand, 9 groups"
    if ids is not None and sorted(ids[0]) == sorted(ids[1]) and len(set(ids[0])) == len(same):
        place = {name: i for i, name in enumerate(ids[1])}
        other = random[[place[name] for name in ids[0]]]
        low, high = newcombe_paired(*pair_counts(same, other))
        return Number(value, len(same), low, high, f"{text}; same foregrounds, Newcombe paired")
    hits, n = (int(same.sum()), int(random.sum())), (len(same), len(random))
    low, high = newcombe(hits, n)
    return Number(value, min(n), low, high, f"{text}; Newcombe interval")


def pair_counts(first: Flags, second: Flags) -> tuple[int, int, int, int]:
    """Images that both, only the first, only the second, or neither got right."""
    both = int((first & second).sum())
    one, two = int(first.sum()) - both, int(second.sum()) - both
    return both, one, two, len(first) - both - one - two
