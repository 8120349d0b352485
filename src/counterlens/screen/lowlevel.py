"""Low-level statistics of pictures, and how well they alone tell two sets apart.

A classifier that can tell known from unknown images by their colours, sharpness or codec need not
look at what they show. A linear model on such statistics measures the danger: an AUROC of 0.5 says
that they give nothing away, 1 that they give all.

Paper: none; noise level after Immerkær 1996; blockiness as the excess of differences across the
    8-pixel grid.
Differs: nothing is read from files, so re-encoded and resized pictures are judged by what is left
    in their pixels.
"""

import math
import warnings

import numpy as np
from jaxtyping import Float64
from scipy.fft import dctn
from scipy.signal import convolve2d

from counterlens.errors import InputError
from counterlens.images import Pixels
from counterlens.metrics.intervals.closed_form import Z, delong_parts, holding, wilson
from counterlens.runs import Number
from counterlens.screen.hashes import Plane

_Vector = Float64[np.ndarray, "_"]
_Rows = Float64[np.ndarray, "_ _"]

FOLDS = 5
_STRENGTH = 0.1  # inverse of the l2 penalty on standardised features
_BINS, _TURNS, _BANDS = 8, 8, 6
_TINY = 1e-9
_LAPLACE = np.array([[1.0, -2.0, 1.0], [-2.0, 4.0, -2.0], [1.0, -2.0, 1.0]])

_COLOUR = (
    *(f"{what} of {c}" for c in "RGB" for what in ("mean", "spread", "skew", "kurtosis")),
    *(f"share of {c} in bin {i}" for c in "RGB" for i in range(_BINS)),
    "correlation RG",
    "correlation RB",
    "correlation GB",
    "mean saturation",
    "spread of saturation",
    "share of black",
    "share of white",
)
_EDGES = (
    "mean gradient",
    "spread of gradient",
    "flat share",
    "gradient across over down",
    *(f"share of gradients at turn {i}" for i in range(_TURNS)),
    *(f"log power in band {i}" for i in range(_BANDS)),
)
_CODEC = (
    "blockiness across",
    "blockiness down",
    "strongest grid across",
    "strongest grid down",
    "noise level",
    "share of exact planes",
    "zero coefficients on the grid",
    "zero coefficients on over off the grid",
    "fine chroma over fine luma",
    "distinct colours",
    "unevenness of grey levels",
)
NAMES: tuple[str, ...] = (*_COLOUR, *_EDGES, *_CODEC)
"""What each entry of `features` measures."""

GROUPS: dict[str, slice] = {
    "colour": slice(0, len(_COLOUR)),
    "edges": slice(len(_COLOUR), len(_COLOUR) + len(_EDGES)),
    "codec": slice(len(_COLOUR) + len(_EDGES), len(NAMES)),
}
"""Which entries of `features` form a group."""


def features(pixels: Pixels) -> _Vector:
    """Statistics of one picture, named by `NAMES`: colour, edges, traces of codecs; all finite.

    Compare pictures of one size: bring both sets to the classifier's size first.
    """
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] not in (1, 3):
        raise InputError(
            f"got a picture of {pixels.dtype} and shape {pixels.shape}, expected uint8 "
            "height × width × 3."
        )
    if min(pixels.shape[:2]) < 8:
        raise InputError(f"got a picture of {pixels.shape[:2]} pixels, expected 8 × 8 or more.")
    rgb = np.repeat(pixels, 3, axis=2) if pixels.shape[2] == 1 else pixels
    luma, *chroma = _luma_chroma(rgb.astype(np.float64))
    return np.array(_colour(rgb) + _edges(luma) + _codec(rgb, luma, chroma))


def auroc(a: _Rows, b: _Rows, seed: int = 0) -> Number:
    """How well a linear model tells rows of a from rows of b that it was not trained on.

    Logistic regression with an l2 penalty on standardised features, five folds; the mean of the
    folds' AUROCs, so that no score is compared with one of another model.
    """
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1]:
        raise InputError(
            f"got features of shapes {a.shape} and {b.shape}, expected rows of equal length."
        )
    fewest = min(len(a), len(b))
    protocol = (
        f"logistic regression on {a.shape[1]} low-level features, l2 penalty, mean of {FOLDS} "
        f"folds; {len(a)} against {len(b)} pictures; DeLong interval on the logit scale, "
        "models held fixed"
    )
    if fewest < 2 * FOLDS:
        reason = f"only {fewest} pictures on one side, at least {2 * FOLDS} are needed"
        return Number.missing(reason, protocol, fewest)
    areas, variances = zip(*_folds(a, b, seed), strict=True)
    area = float(np.mean(areas))
    if not 0 < area < 1:
        return Number(area, fewest, *wilson(area * fewest, fewest), protocol)
    half = Z * math.sqrt(sum(variances)) / FOLDS / (area * (1 - area))
    logit = math.log(area / (1 - area))
    low, high = (1 / (1 + math.exp(-end)) for end in (logit - half, logit + half))
    return Number(area, fewest, *holding(area, low, high), protocol)


def most_different(a: _Rows, b: _Rows, *, most: int = 5) -> list[tuple[str, float]]:
    """The features whose means differ most, in standard deviations of both sets joined."""
    joint = np.concatenate([a, b])
    spread = joint.std(0)
    gaps = np.where(spread > _TINY, (b.mean(0) - a.mean(0)) / np.maximum(spread, _TINY), 0.0)
    order = np.argsort(-np.abs(gaps), kind="stable")[:most]
    return [(NAMES[i], float(gaps[i])) for i in order]


def _folds(a: _Rows, b: _Rows, seed: int) -> list[tuple[float, float]]:
    """AUROC and its variance on each fold."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    x = np.concatenate([a, b])
    y = np.repeat([1, 0], [len(a), len(b)])
    if not np.isfinite(x).all():
        raise InputError("features hold NaN or infinite values.")
    out = []
    for train, test in StratifiedKFold(FOLDS, shuffle=True, random_state=seed).split(x, y):
        model = make_pipeline(
            StandardScaler(),
            LogisticRegression(C=_STRENGTH, class_weight="balanced", max_iter=500),
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # still a linear model
            model.fit(x[train], y[train])
        scores = model.decision_function(x[test])
        known, unknown = delong_parts(scores[y[test] == 1], scores[y[test] == 0])
        variance = known.var(ddof=1) / len(known) + unknown.var(ddof=1) / len(unknown)
        out.append((float(known.mean()), float(variance)))
    return out


def _luma_chroma(rgb: Float64[np.ndarray, "_ _ 3"]) -> tuple[Plane, Plane, Plane]:
    """Luminance and colour differences as JPEG has them."""
    luma: Plane = rgb @ np.array([0.299, 0.587, 0.114])
    return luma, (rgb[..., 2] - luma) / 1.772, (rgb[..., 0] - luma) / 1.402


def _colour(rgb: Pixels) -> list[float]:
    values = rgb.reshape(-1, 3) / 255.0
    mean, spread = values.mean(0), values.std(0)
    unit = (values - mean) / np.maximum(spread, _TINY)
    moments = np.stack([mean, spread, (unit**3).mean(0), np.log1p((unit**4).mean(0))], 1)
    bins = np.minimum(rgb.reshape(-1, 3) >> 5, _BINS - 1)
    shares = [np.bincount(bins[:, c], minlength=_BINS) / len(bins) for c in range(3)]
    relation = unit.T @ unit / len(unit)
    top = values.max(1)
    saturation = (top - values.min(1)) / np.maximum(top, _TINY)
    return [
        *moments.ravel(),
        *np.concatenate(shares),
        *(relation[0, 1], relation[0, 2], relation[1, 2]),
        *(saturation.mean(), saturation.std()),
        *((top <= 1 / 255).mean(), (values.min(1) >= 254 / 255).mean()),
    ]


def _edges(luma: Plane) -> list[float]:
    across = (luma[1:-1, 2:] - luma[1:-1, :-2]) / 2
    down = (luma[2:, 1:-1] - luma[:-2, 1:-1]) / 2
    size = np.hypot(across, down)
    turn = np.floor(np.arctan2(down, across) % math.pi / math.pi * _TURNS).astype(int) % _TURNS
    weights = np.bincount(turn.ravel(), size.ravel(), minlength=_TURNS)
    ratio = math.log((np.abs(across).sum() + 1) / (np.abs(down).sum() + 1))
    return [
        math.log1p(size.mean()),
        math.log1p(size.std()),
        float((size < 1).mean()),
        ratio,
        *(weights / max(weights.sum(), _TINY)),
        *_bands(luma),
    ]


def _bands(luma: Plane) -> list[float]:
    """Log power of the cosine spectrum in bands of relative frequency, each twice the last."""
    power = dctn(luma, norm="ortho") ** 2
    u, v = (np.arange(n) / n for n in power.shape)
    radius = np.hypot(u[:, None], v[None, :]) / math.sqrt(2)
    band = np.floor(_BANDS + np.log2(np.maximum(radius, 2.0**-_BANDS))).astype(int)
    band = np.clip(band, 0, _BANDS - 1).ravel()
    power[0, 0] = 0  # brightness is a matter of colour
    sums = np.bincount(band, power.ravel(), minlength=_BANDS)
    counts = np.bincount(band, minlength=_BANDS)
    return [float(x) for x in np.log1p(sums / np.maximum(counts, 1))]


def _codec(rgb: Pixels, luma: Plane, chroma: list[Plane]) -> list[float]:
    noise = convolve2d(luma, _LAPLACE, mode="valid")
    fine = [float(np.abs(convolve2d(plane, _LAPLACE, mode="valid")).mean()) for plane in chroma]
    on, off = _zeros(luma), _zeros(luma[4:-4, 4:-4]) if min(luma.shape) >= 16 else 0.0
    codes = rgb.astype(np.int64) @ np.array([65536, 256, 1])
    levels = np.bincount(np.rint(luma).astype(int).ravel(), minlength=256).astype(float)
    return [
        *(_grid(luma), _grid(luma.T)),
        *(_grid(luma, strongest=True), _grid(luma.T, strongest=True)),
        math.log1p(math.sqrt(math.pi / 2) / 6 * np.abs(noise).mean()),
        float((np.abs(noise) < 0.5).mean()),
        on,
        on - off,
        math.log((sum(fine) + 0.1) / (float(np.abs(noise).mean()) + 0.1)),
        len(np.unique(codes)) / codes.size,
        math.log1p(float(np.abs(np.diff(levels)).sum()) / codes.size),
    ]


def _grid(luma: Plane, *, strongest: bool = False) -> float:
    """Log of the mean step across the lines of an 8-pixel grid over that of the other lines."""
    steps = np.abs(np.diff(luma, axis=1)).mean(0)
    phases = np.array([steps[k::8].mean() if len(steps[k::8]) else 0.0 for k in range(8)])
    own = phases.max() if strongest else phases[7]
    others = (phases.sum() - own) / 7
    return math.log((own + 0.1) / (others + 0.1))


def _zeros(luma: Plane) -> float:
    """Share of cosine coefficients of the 8 × 8 blocks that a quantiser could have zeroed."""
    rows, columns = (n // 8 for n in luma.shape)
    if not rows or not columns:
        return 0.0
    blocks = luma[: rows * 8, : columns * 8].reshape(rows, 8, columns, 8).transpose(0, 2, 1, 3)
    return float((np.abs(dctn(blocks, axes=(2, 3), norm="ortho")) < 1).mean())
