"""Differences between two models measured on the same images, from the logits their runs kept.

Paper: Bonett and Price 2012, Adjusted Wald confidence interval for a difference of binomial
       proportions based on paired data; DeLong et al. 1988, Comparing the areas under two or more
       correlated receiver operating characteristic curves.
Differs: nothing. Calibration is compared by log-likelihood, a proper score and a mean over images.
       ECE is neither: its bias depends on the model, so a difference of two has no interval here.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from math import sqrt
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
from jaxtyping import Bool, Float64

from counterlens.errors import InputError, first_line
from counterlens.runs import LogitSet, Run, plain_file, stored_logits

Z = 1.959963984540054  # two-sided 95 %


def paired_rows(logits: Mapping[str, Mapping[str, LogitSet]]) -> list[dict[str, Any]]:
    """One row per pair of models and metric that both kept logits for."""
    return [
        row
        for first, second in combinations(logits, 2)
        for row in _pair(first, second, logits[first], logits[second])
    ]


def _pair(
    first: str, second: str, one: Mapping[str, LogitSet], two: Mapping[str, LogitSet]
) -> Iterable[dict[str, Any]]:
    inside = known_set(one, two)
    if inside is None:
        return
    left, right = common_rows(one[inside], two[inside])
    base = {"first": first, "second": second}
    if len(left) and np.array_equal(one[inside].labels[left], two[inside].labels[right]):
        a, b = right_rows(one[inside], left), right_rows(two[inside], right)
        known = one[inside].labels[left] >= 0
        a, b = a[known], b[known]
        if len(a):
            value, low, high = difference_of_shares(a, b)
            protocol = (
                f"paired on {len(a):,} images of {inside}, adjusted Wald interval (bonett2012)"
            )
            yield {
                **base,
                **_row("accuracy.top1", value, low, high, len(a), protocol),
                **_counts(a, b),
            }
            sides = (one[inside], left[known]), (two[inside], right[known])
            for row in _likelihoods(sides):
                yield {**base, **row}
    known_sides = _Sides(one[inside], two[inside], left, right)
    for name in _shared(one, two, "ood"):
        auroc_row = _auroc(known_sides, _sides(one[name], two[name]), f"ood.{name}.auroc")
        if auroc_row:
            yield {**base, **auroc_row}


def _shared(one: Mapping[str, LogitSet], two: Mapping[str, LogitSet], role: str) -> list[str]:
    return [name for name in one if name in two and one[name].role == two[name].role == role]


def known_set(one: Mapping[str, LogitSet], two: Mapping[str, LogitSet]) -> str | None:
    """The known images of both models."""
    return next(iter(_shared(one, two, "in")), None)


class _Sides(NamedTuple):
    """Logits of two models, and the rows of each that show the same images."""

    one: LogitSet
    two: LogitSet
    left: Any
    right: Any

    def scores(self) -> list[Any]:
        return [_confidence(self.one, self.left), _confidence(self.two, self.right)]


def _sides(one: LogitSet, two: LogitSet) -> _Sides:
    return _Sides(one, two, *common_rows(one, two))


def _auroc(known: _Sides, unknown: _Sides, key: str) -> dict[str, Any] | None:
    """The difference in AUROC, unless there is too little to judge it by."""
    m, n = len(known.left), len(unknown.left)
    if min(m, n) < 2:
        return None
    (in_a, in_b), (out_a, out_b) = known.scores(), unknown.scores()
    protocol = f"paired on {m:,} images of {known.one.name} and {n:,} of {unknown.one.name}"
    difference = difference_of_aurocs(in_a, out_a, in_b, out_b)
    return _row(key, *difference, m + n, f"{protocol} (delong1988)")


def _likelihoods(sides: Sequence[tuple[LogitSet, Any]]) -> Iterable[dict[str, Any]]:
    """Differences in negative log-likelihood, before and after temperature."""
    scaled = any(logits.temperature != 1 for logits, _ in sides)
    n = len(sides[0][1])
    if n < 2:
        return
    for after in (False, True) if scaled else (False,):
        a, b = (
            _surprise(logits, rows, logits.temperature if after else 1.0) for logits, rows in sides
        )
        key = "calibration.nll_scaled" if after else "calibration.nll"
        protocol = f"paired on {n:,} images of {sides[0][0].name}, normal interval of the mean"
        yield _row(key, *difference_of_means(a, b), n, protocol)


def worst_rows(runs: Mapping[str, Run]) -> list[dict[str, Any]]:
    """One row per pair of models and set around whose images both were searched alike."""
    rows = []
    logits = {model: stored_logits(run) for model, run in runs.items()}
    met = {model: _worst(run, logits[model]) for model, run in runs.items()}
    for first, second in combinations(runs, 2):
        inside = known_set(logits[first], logits[second])
        if inside is None or not _alike(runs[first], runs[second], "ood_attack"):
            continue
        ball = runs[first].manifest["settings"].get("ood_attack")
        known = _sides(logits[first][inside], logits[second][inside])
        for name in (n for n in met[first] if n in met[second]):
            key = f"ood.{name}.worst_auroc"
            row = _auroc(known, _sides(met[first][name], met[second][name]), key)
            if row:
                protocol = f"{row['protocol']}, worst points within {ball}"
                rows.append({"first": first, "second": second, **row, "protocol": protocol})
    return rows


def _worst(run: Run, logits: Mapping[str, LogitSet]) -> dict[str, LogitSet]:
    """Logits at the worst points that an audit met around unknown images."""
    worst = {}
    for path in sorted((run.folder / "tables").glob("worst-*.npz")):
        name = path.stem.removeprefix("worst-")
        if name in logits:
            with _opened(run, path) as file:
                ids = tuple(map(str, file["ids"]))
                worst[name] = replace(logits[name], logits=file["logits"], ids=ids)
    return worst


def robust_rows(runs: Mapping[str, Run]) -> list[dict[str, Any]]:
    """One row per pair of models and attack that both were put through on the same images."""
    survivors = {model: _survivors(run) for model, run in runs.items()}
    rows = []
    for first, second in combinations(survivors, 2):
        if not _alike(runs[first], runs[second], "attack_version"):
            continue
        for attack in (a for a in survivors[first] if a in survivors[second]):
            one, two = survivors[first][attack], survivors[second][attack]
            both = [name for name in one if name in two]
            if not both:
                continue
            a, b = (np.array([flags[name] for name in both], dtype=bool) for flags in (one, two))
            protocol = (
                f"paired on {len(both):,} attacked images, adjusted Wald interval (bonett2012)"
            )
            key = f"robust.{attack}.accuracy"
            row = _row(key, *difference_of_shares(a, b), len(both), protocol)
            rows.append({"first": first, "second": second, **row, **_counts(a, b)})
    return rows


def _alike(one: Run, two: Run, setting: str) -> bool:
    """Whether two audits were made in the same way, as far as this setting says."""
    first, second = (run.manifest["settings"].get(setting) for run in (one, two))
    return bool(first == second)


def _opened(run: Run, path: Path) -> Any:
    """The arrays of a file of a run."""
    plain_file(run.file(path.relative_to(run.folder)))
    try:
        return np.load(path)
    except (EOFError, OSError, ValueError, BadZipFile) as error:
        raise InputError(f"{path} is no whole .npz file ({first_line(error)}).") from None


def _survivors(run: Run) -> dict[str, dict[str, bool]]:
    """Per attack, which images stayed right."""
    survivors = {}
    for path in sorted((run.folder / "tables").glob("adversarial-*.npz")):
        with _opened(run, path) as file:
            flags = zip(file["all_ids"].tolist(), file["robust"].tolist(), strict=True)
            survivors[path.stem.removeprefix("adversarial-")] = dict(flags)
    return survivors


def _counts(a: Bool[np.ndarray, "n"], b: Bool[np.ndarray, "n"]) -> dict[str, int]:
    return {
        "both_right": int((a & b).sum()),
        "only_first": int((a & ~b).sum()),
        "only_second": int((~a & b).sum()),
        "both_wrong": int((~a & ~b).sum()),
    }


def _row(key: str, value: float, low: float, high: float, n: int, protocol: str) -> dict[str, Any]:
    return {
        "key": key,
        "difference": value,
        "low": low,
        "high": high,
        "n": n,
        "clear": bool(low > 0 or high < 0),
        "protocol": protocol,
    }


def difference_of_shares(
    a: Bool[np.ndarray, "n"], b: Bool[np.ndarray, "n"]
) -> tuple[float, float, float]:
    """Share of `a` minus share of `b` on the same images, with its 95 % interval.

    Equation: bonett2012 (adjusted Wald)   d̃ ± z √((p̃₁₂ + p̃₂₁ − d̃²)/(n + 2)), d̃ = p̃₁₂ − p̃₂₁,
        p̃ = (f + 1)/(n + 2)

    >>> difference_of_shares(np.ones(8, bool), np.ones(8, bool))[0]
    0.0
    """
    n = len(a)
    only_a, only_b = int((a & ~b).sum()), int((~a & b).sum())
    value = (only_a - only_b) / n
    p, q = (only_a + 1) / (n + 2), (only_b + 1) / (n + 2)
    spread = Z * sqrt((p + q - (p - q) ** 2) / (n + 2))
    low, high = max(p - q - spread, -1.0), min(p - q + spread, 1.0)
    return value, min(low, value), max(high, value)


def difference_of_means(
    a: Float64[np.ndarray, "n"], b: Float64[np.ndarray, "n"]
) -> tuple[float, float, float]:
    """Mean of `a` minus mean of `b` on the same images, with its 95 % interval.

    >>> difference_of_means(np.array([1.0, 3.0]), np.array([1.0, 3.0]))
    (0.0, 0.0, 0.0)
    """
    gaps = a - b
    value, spread = float(gaps.mean()), Z * float(gaps.std(ddof=1)) / sqrt(len(gaps))
    return value, value - spread, value + spread


def difference_of_aurocs(
    in_a: Float64[np.ndarray, "m"],
    out_a: Float64[np.ndarray, "n"],
    in_b: Float64[np.ndarray, "m"],
    out_b: Float64[np.ndarray, "n"],
) -> tuple[float, float, float]:
    """AUROC of scores `a` minus that of `b` on the same images, with its 95 % interval.

    Equation: delong1988 (variance)   var(θ̂ₐ − θ̂_b) = var(V₁₀ᵃ − V₁₀ᵇ)/m + var(V₀₁ᵃ − V₀₁ᵇ)/n
    """
    (in_one, out_one), (in_two, out_two) = _components(in_a, out_a), _components(in_b, out_b)
    value = float(in_one.mean() - in_two.mean())
    variance = (in_one - in_two).var(ddof=1) / len(in_a) + (out_one - out_two).var(ddof=1) / len(
        out_a
    )
    spread = Z * sqrt(float(variance))
    return value, max(value - spread, -1.0), min(value + spread, 1.0)


def _components(
    inside: Float64[np.ndarray, "m"], outside: Float64[np.ndarray, "n"]
) -> tuple[Float64[np.ndarray, "m"], Float64[np.ndarray, "n"]]:
    """Per image, the share of the other side it beats; ties count half."""
    ranks = _ranks(np.concatenate([inside, outside]))
    m, n = len(inside), len(outside)
    beats = (ranks[:m] - _ranks(inside)) / n
    beaten = 1 - (ranks[m:] - _ranks(outside)) / m
    return beats, beaten


def _ranks(values: Float64[np.ndarray, "n"]) -> Float64[np.ndarray, "n"]:
    """Ranks from 1; equal values share their mean rank."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    middle = np.cumsum(counts) - (counts - 1) / 2
    return np.asarray(middle[place], dtype=np.float64)


def common_rows(one: LogitSet, two: LogitSet) -> tuple[Any, Any]:
    """Rows of the two that show the same images, in the same order."""
    place = {name: i for i, name in enumerate(two.ids)}
    both = [(i, place[name]) for i, name in enumerate(one.ids) if name in place]
    left, right = np.asarray(both, dtype=np.int64).reshape(-1, 2).T
    return left, right


def with_first(
    logits: Mapping[str, Mapping[str, LogitSet]],
) -> Iterator[tuple[str, str, LogitSet, LogitSet, tuple[Any, Any]]]:
    """Each later model beside the first on the images of a known set that both saw.

    Yields:
        its name; the set; the logits of both; the rows of each that show the same images.
    """
    first, *later = logits
    for name in later:
        inside = known_set(logits[first], logits[name])
        if inside is not None:
            one, two = logits[first][inside], logits[name][inside]
            yield name, inside, one, two, common_rows(one, two)


def right_rows(logits: LogitSet, rows: Any) -> Any:
    return np.asarray(logits.logits[rows]).argmax(1) == logits.labels[rows]


def _surprise(logits: LogitSet, rows: Any, temperature: float) -> Any:
    """Negative log-likelihood of the true classes."""
    z = np.asarray(logits.logits[rows], dtype=np.float64) / temperature
    z -= z.max(1, keepdims=True)
    return np.log(np.exp(z).sum(1)) - z[np.arange(len(z)), logits.labels[rows]]


def _confidence(logits: LogitSet, rows: Any) -> Any:
    """Log-confidence after temperature, in float64 so that near-certain answers do not tie."""
    z = np.asarray(logits.logits[rows], dtype=np.float64) / logits.temperature
    others = np.exp(z - z.max(1, keepdims=True))
    others[np.arange(len(z)), z.argmax(1)] = 0
    return -np.log1p(others.sum(1))
