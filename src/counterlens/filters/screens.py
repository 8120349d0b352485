"""Stages that detect copies: near-duplicates within the pool, and leaks of images known elsewhere.

Only images that earlier stages left are looked at: copies of what was dropped do no harm.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float

from counterlens.classifier import Classifier
from counterlens.data import subset
from counterlens.errors import InputError
from counterlens.filters.funnel import Rows, Rule
from counterlens.images import ImageSet, Pixels, prepared
from counterlens.models import load
from counterlens.models.parts import features
from counterlens.scale import Columns, ShardWork
from counterlens.screen.copies import Signatures, copies, signatures
from counterlens.screen.duplicates import nearest
from counterlens.screen.hashes import near, phash

BITS = 6
COSINE = 0.97
_BATCH = 64
_PROBED = 2000
_FEW = 10  # images below which a mean says nothing


@dataclass
class Copies:
    """Copies that stages detected: which image, of what, and how near."""

    rows: list[dict[str, object]] = field(default_factory=list)


def near_duplicates(pool: ImageSet, record: Copies, *, bits: int = BITS) -> Rule:
    """Of images that look alike, only the first stays."""

    def keep(rows: Rows) -> Rows:
        codes = [phash(picture) for picture in _pictures(pool, rows)]
        gone: set[int] = set()
        for i, j, distance in near(codes, codes, bits):
            if i < j and i not in gone and j not in gone:
                gone.add(j)
                one, other = pool.ids[int(rows[j])], pool.ids[int(rows[i])]
                record.rows.append({"id": one, "copy_of": other, "set": "pool", "bits": distance})
        return rows[[k not in gone for k in range(len(rows))]]

    return Rule("no twins", f"of images within {bits} of 64 bits of a hash one stays", keep)


@dataclass(frozen=True)
class Marks:
    """Hashes of some images and of cut-outs of them, and features where a classifier gave any."""

    signatures: Signatures
    features: Float[np.ndarray, "n d"] | None

    @classmethod
    def of_table(cls, table: Columns) -> "Marks":
        """From the columns that `Marking` makes."""
        n, views = table["cosine"].shape
        grey = table["grey"].reshape(n, views, -1)
        return cls(Signatures(table["cosine"], table["gradient"], grey), table.get("features"))


@dataclass(frozen=True)
class Marking:
    """Everything a worker needs to mark rows of a set; pickles as paths and names.

    Args:
        images: the set.
        model: spec of the classifier whose features are taken; None for hashes alone.
        device: where it runs.
        trust_remote_code: allow the model to run code of its own.
    """

    images: ImageSet
    model: str | None
    device: str = "auto"
    trust_remote_code: bool = False

    def __call__(self) -> ShardWork:
        """Load the classifier."""
        if self.model is None:
            return self.using(None)
        trust = self.trust_remote_code
        return self.using(load(self.model, device=self.device, trust_remote_code=trust))

    def using(self, classifier: Classifier | None) -> ShardWork:
        """Mark rows with a classifier that is loaded already."""

        def work(start: int, stop: int) -> Columns:
            marked = marks(self.images, range(start, stop), classifier)
            n = stop - start
            table = {
                "cosine": marked.signatures.cosine,
                "gradient": marked.signatures.gradient,
                "grey": marked.signatures.grey.reshape(n, -1),
            }
            return table if marked.features is None else {**table, "features": marked.features}

        return work


def leaks(
    pool: ImageSet,
    known: ImageSet,
    record: Copies,
    *,
    bits: int = BITS,
    classifier: Classifier | None = None,
    cosine: float = COSINE,
    known_marks: Callable[[], Marks] | None = None,
) -> Rule:
    """Images that look like one of a known set are dropped.

    Args:
        pool: the images of the funnel.
        known: the images that must not leak in: training data, or the known classes.
        record: where the pairs are written down.
        bits: hashes of at most so many different bits are copies.
        classifier: whose features are compared as well; None compares hashes alone.
        cosine: features of at least this cosine are copies.
        known_marks: gives the marks of `known`; None marks them here, one after another.
    """

    def keep(rows: Rows) -> Rows:
        if not len(rows):
            return rows
        theirs = known_marks() if known_marks else marks(known, range(len(known)), classifier)
        ours = marks(pool, rows, classifier)
        pairs: list[tuple[int, int, str, float]] = [
            (copy.other, copy.own, "bits", float(copy.bits))
            for copy in copies(theirs.signatures, ours.signatures, most_bits=bits)
        ]
        if ours.features is not None and theirs.features is not None:
            close = _nearer(ours.features, theirs.features, cosine)
            pairs += [(i, j, "cosine", c) for i, j, c in close]
        gone = {i for i, _, _, _ in pairs}
        for i, j, measure, value in pairs:
            row = {"id": pool.ids[int(rows[i])], "copy_of": known.ids[j], "set": known.name}
            record.rows.append({**row, measure: value})
        return rows[[k not in gone for k in range(len(rows))]]

    description = f"no copy of an image of {known.name} by hashes of {bits} different bits or fewer"
    if classifier is not None:
        description += (
            f", nor at a cosine of {cosine} or more by the features of {classifier.name}, where "
            "that is nearer than its images are to each other"
        )
    return Rule(f"not in {known.name}", description, keep)


def _nearer(
    ours: Float[np.ndarray, "n d"], theirs: Float[np.ndarray, "m d"], least: float
) -> list[tuple[int, int, float]]:
    """Rows of ours at a cosine of `least` or more that lie nearer than theirs to each other.

    A trained network maps images of one class to nearly one point. What is near is measured by
    the known images themselves, of which one in a thousand has a neighbour this near.
    """
    middle = theirs.mean(0) if len(theirs) >= _FEW else 0 * theirs[0]
    inside, outside = theirs - middle, ours - middle
    step = max(1, len(inside) // _PROBED)
    probed = np.zeros(len(inside), bool)
    probed[::step] = True
    if step == 1:
        between = nearest(inside, inside, apart=True)[1] if len(inside) > 1 else np.array([-1.0])
    else:
        between = nearest(inside[probed], inside[~probed])[1]
    limit = max(least, float(np.quantile(between, 0.999)))
    place, cosine = nearest(outside, inside)
    close = np.flatnonzero(cosine >= limit - 1e-6).tolist()
    return [(i, int(place[i]), float(cosine[i])) for i in close]


def marks(
    images: ImageSet, rows: Rows | Sequence[int], classifier: Classifier | None = None
) -> Marks:
    """Hashes of some images and of cut-outs of them, and their features."""
    features = None if classifier is None else embed(classifier, images, rows)
    return Marks(signatures(_pictures(images, rows)), features)


def _pictures(images: ImageSet, rows: Rows | Sequence[int]) -> Iterator[Pixels]:
    """Pictures one after another; a flat one stands for what cannot be read."""
    for row in rows:
        try:
            yield images.read(int(row))
        except (InputError, OSError):
            yield np.zeros((8, 8, 3), np.uint8)


@torch.inference_mode()
def embed(
    classifier: Classifier, images: ImageSet, rows: Rows | Sequence[int]
) -> Float[np.ndarray, "n d"]:
    """Penultimate features of some images; rows of zeros where they cannot be read."""
    part = subset(images, rows)
    place = classifier.mean.device
    out: list[np.ndarray] = []
    for start in range(0, len(part), _BATCH):
        views, good = [], []
        for i in range(start, min(start + _BATCH, len(part))):
            try:
                views.append(
                    prepared(part.read, i, classifier.preprocess, channels=classifier.channels)
                )
                good.append(i - start)
            except (InputError, OSError):
                continue
        count = min(_BATCH, len(part) - start)
        if not views:
            out.append(np.zeros((count, out[-1].shape[1] if out else 1), np.float32))
            continue
        x = torch.from_numpy(np.stack(views)).to(place).float().div_(255)
        values = features(classifier, x).float().cpu().numpy()
        block = np.zeros((count, values.shape[1]), np.float32)
        block[good] = values
        out.append(block)
    return np.concatenate(out)
