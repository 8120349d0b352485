"""Why the Mahalanobis score is near chance on the shipped CIFAR-10 networks.

Features of test images of CIFAR-10 and of five unknown sets (near: Tiny ImageNet, Caltech-256; far:
flowers, scenes, street-view characters); fitted on the 2,000 images of sample:cifar10-calibration,
which trained no network, and on as many training images. Each row is the mean AUROC over the sets
of one change to the score:

    as it is           the class means and the tied covariance
    fitted on training images
    Ledoit-Wolf        the covariance shrunk as scikit-learn does it
    classes            distance within the K − 1 directions in which the class means differ
    rest               distance within all other directions
    unit length        features divided by their length first (Mahalanobis++, arXiv:2505.18032)
    relative           less the distance to one Gaussian of all images (rmd2021)
    length             the length of the features, no distance at all

Result: docs/how-to/ood-scores.md.
Run: python benchmarks/mahalanobis.py FOLDER --out benchmarks/results/mahalanobis.json
FOLDER holds cifar10_test.npz, cifar10_train_part0.npz; --packs the files ood32_NAME.npz.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from sklearn.covariance import LedoitWolf
from sklearn.metrics import roc_auc_score

import counterlens as cl
from counterlens.data.sets import sample_rows, subset
from counterlens.models import parts

MODELS = ("plain-small", "ratio-small", "at-0.5", "ratio-0.25")
SETS = ("tinyimagenet_val", "caltech256", "flowers102", "intel_scenes", "streetview_chars")
Array = np.ndarray


@torch.no_grad()
def features(model: cl.Classifier, spec: str, limit: int) -> tuple[Array, Array]:
    """What enters the last layer, and the labels."""
    images = cl.open_set(spec)
    images = subset(images, sample_rows(len(images), limit, 0))
    out = []
    for start in range(0, len(images), 100):
        rows = range(start, min(start + 100, len(images)))
        x = np.stack([images.read(i) for i in rows]).transpose(0, 3, 1, 2)
        out.append(parts.features(model, torch.from_numpy(x).float() / 255).double().numpy())
    return np.concatenate(out), images.labels


def distance(x: Array, means: Array, precision: Array) -> Array:
    """Least squared distance to a mean, negated, so that known images are higher."""
    gaps = x[:, None] - means[None]
    return -np.einsum("nkd,de,nke->nk", gaps, precision, gaps).min(1)


class Gaussians:
    """Class means and what is left of the features without them."""

    def __init__(self, z: Array, labels: Array) -> None:
        self.means = np.stack([z[labels == c].mean(0) for c in np.unique(labels)])
        self.rest = z - self.means[np.searchsorted(np.unique(labels), labels)]
        self.whole = z - z.mean(0)
        self.middle = z.mean(0)[None]
        self.covariance = self.rest.T @ self.rest / len(z)
        self.precision = np.linalg.pinv(self.covariance, hermitian=True)


def whitened(g: Gaussians) -> tuple[Array, Array]:
    """Projectors on the whitened directions between the class means, and on all others."""
    values, vectors = np.linalg.eigh(g.covariance)
    keep = values > 1e-10 * values[-1]
    root = vectors[:, keep] / np.sqrt(values[keep])
    span = np.linalg.svd((g.means - g.means.mean(0)) @ root, full_matrices=False)
    between = span[2][: len(g.means) - 1]
    inside = root @ between.T
    outside = root - inside @ between
    return inside @ inside.T, outside @ outside.T


def unit(z: Array) -> Array:
    """Rows of length 1."""
    return z / np.maximum(np.linalg.norm(z, axis=1, keepdims=True), 1e-12)


def scores(fit: tuple[Array, Array], train: tuple[Array, Array], x: Array) -> dict[str, Array]:
    """Every variant on some images."""
    g, t = Gaussians(*fit), Gaussians(*train)
    u = Gaussians(unit(fit[0]), fit[1])
    whole = np.linalg.pinv(g.whole.T @ g.whole / len(g.whole), hermitian=True)
    shrunk = LedoitWolf(assume_centered=True).fit(g.rest).precision_
    inside, outside = whitened(g)
    plain = distance(x, g.means, g.precision)
    near = ((x[:, None] - g.means[None]) ** 2).sum(2).argmin(1)
    gap = x - g.means[near]
    return {
        "as it is": plain,
        "fitted on training images": distance(x, t.means, t.precision),
        "Ledoit-Wolf": distance(x, g.means, shrunk),
        "classes": distance(x, g.means, inside),
        "rest": -np.einsum("nd,de,ne->n", gap, outside, gap),
        "unit length": distance(unit(x), u.means, u.precision),
        "relative": plain - distance(x, g.middle, whole),
        "length": np.linalg.norm(x, axis=1),
    }


def study(name: str, args: argparse.Namespace) -> dict[str, object]:
    """Mean AUROC of each variant, and what the features are like."""
    model = cl.load(f"zoo:cifar10-{name}")
    fit = features(model, "sample:cifar10-calibration", 2000)
    train = features(model, f"pack:{args.folder / 'cifar10_train_part0.npz'}", 2000)
    known, _ = features(model, f"pack:{args.folder / 'cifar10_test.npz'}", args.limit)
    inside = scores(fit, train, known)
    area: dict[str, dict[str, float]] = {key: {} for key in inside}
    lengths = {"known": float(np.linalg.norm(known, axis=1).mean())}
    for one in SETS:
        unknown, _ = features(model, f"pack:{args.packs / f'ood32_{one}.npz'}", args.limit)
        lengths[one] = float(np.linalg.norm(unknown, axis=1).mean())
        for key, other in scores(fit, train, unknown).items():
            truth = np.r_[np.ones(len(known)), np.zeros(len(unknown))]
            area[key][one] = float(roc_auc_score(truth, np.r_[inside[key], other]))
    g = Gaussians(*fit)
    values = np.linalg.eigvalsh(g.covariance)[::-1]
    total = np.trace(g.covariance)
    between = g.means - g.means.mean(0)
    facts = {
        "features": known.shape[1],
        "condition": float(values[0] / values[-1]),
        "directions with 99 % of the variance": int(
            np.searchsorted(np.cumsum(values) / total, 0.99) + 1
        ),
        "between over within": float((between**2).sum() / len(between) / total),
        "zero features": float((known == 0).mean()),
    }
    means = {key: float(np.mean(list(row.values()))) for key, row in area.items()}
    print(name, json.dumps({"mean AUROC": means, "length": lengths, **facts}, indent=1), flush=True)
    return {"mean": means, "auroc": area, "length": lengths, **facts}


def main() -> None:
    """Every network, printed and stored."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--packs", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=500)
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--out", type=Path, required=True, help="it can be run again to go on")
    args = parser.parse_args()
    torch.set_num_threads(1)
    known = json.loads(args.out.read_text())["models"] if args.out.exists() else {}
    for name in args.models:
        known[name] = known.get(name) or study(name, args)
        facts = {"images": args.limit, "fitted": 2000, "models": known}
        args.out.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
