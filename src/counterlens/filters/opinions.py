"""What fixed classifiers say about a pool: one pass, a table with a row per image.

Paper: Hendrycks et al. 2021, Natural Adversarial Examples (section 3: two ResNet-50, 10 crops).
Differs: the ten crops are cut only from images that every filter gets wrong in its usual view.
    An image some filter gets right there is dropped whatever its other crops say. These images
    are decoded a second time: a photograph is held at full size only while it is resized.

Columns: row, width, height, why (empty, or why the image was excluded), and for filter number f
    f_answer, f_confidence, f_true      usual view: answer, its probability, that of the label
    f_crops, f_right                    crops seen (0 or 10), and how many of them were right
    f_true_max, f_true_mean             probability of the label: highest crop, mean of the crops
    f_crop_answer                       answer of the mean probabilities of the crops
Answers are columns of the curated set's classes; probabilities are over these classes alone.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float64, Int64, UInt8

from counterlens.classifier import Classifier
from counterlens.errors import InputError
from counterlens.images import ImageSet, Pixels, prepare, ten_crops
from counterlens.metrics import restrict
from counterlens.models import load
from counterlens.predictions import Runner, batch_size, eval_mode
from counterlens.scale import Columns

CROPS = 10
Crops = UInt8[np.ndarray, "10 c h w"]
_PREFETCH = 2  # batches being decoded while one is judged
_UNREAD = (
    (" pixels, expected at most", "too many pixels"),
    ("more than", "too many pixels"),
    ("too oblong", "too oblong"),
    ("is empty", "empty file"),
    ("is no whole picture", "no whole picture"),
    ("cannot read", "cannot be read"),
)


@dataclass(frozen=True)
class Opinions:
    """Everything a worker needs to judge rows of a pool; pickles as paths and names.

    Args:
        pool: the images; their labels are columns of the curated classes, −1 for none.
        models: specs of the filters.
        columns: for each filter its outputs that stand for the curated classes, in their order.
        crops: also judge ten crops of images that no filter gets right.
        least_side: images with a shorter side than this are excluded.
        batch: images judged at a time; None chooses by the size of the filters' input.
        device: where the filters run.
        trust_remote_code: allow a model to run code of its own.
    """

    pool: ImageSet
    models: tuple[str, ...]
    columns: tuple[tuple[int, ...], ...]
    crops: bool = True
    least_side: int = 0
    batch: int | None = None
    device: str = "auto"
    trust_remote_code: bool = False

    def __call__(self) -> "Judge":
        """Load the filters."""
        classifiers = [
            load(spec, device=self.device, trust_remote_code=self.trust_remote_code)
            for spec in self.models
        ]
        return Judge(self, classifiers)


class Judge:
    """The loaded filters; called with a range of rows, gives the table of opinions on them."""

    def __init__(self, request: Opinions, classifiers: Sequence[Classifier]) -> None:
        self.request = request
        self.filters = [
            Filter(classifier, columns)
            for classifier, columns in zip(classifiers, request.columns, strict=True)
        ]
        first = classifiers[0]
        place = first.mean.device
        self.batch = request.batch or batch_size("auto", first.preprocess, place, len(request.pool))

    def __call__(self, start: int, stop: int) -> Columns:
        """Opinions on rows start … stop − 1."""
        cuts = [(i, min(i + self.batch, stop)) for i in range(start, stop, self.batch)]
        tables = []
        with ThreadPoolExecutor(_PREFETCH) as pool:
            waiting = [pool.submit(self._read, *cut) for cut in cuts[:_PREFETCH]]
            for number, (first, last) in enumerate(cuts):
                batch = waiting.pop(0).result()
                if number + _PREFETCH < len(cuts):
                    waiting.append(pool.submit(self._read, *cuts[number + _PREFETCH]))
                tables.append(self._judge(first, last, batch))
        return {key: np.concatenate([t[key] for t in tables]) for key in tables[0]}

    def _read(self, start: int, stop: int) -> "Views":
        """Decode rows one after another; only what the filters see of a picture is stored."""
        views = Views({}, {}, {})
        for row in range(start, stop):
            try:
                pixels = self.request.pool.read(row)
            except (InputError, OSError) as error:
                views.why[row] = _reason(str(error))
                continue
            views.sides[row] = (pixels.shape[0], pixels.shape[1])
            if min(pixels.shape[:2]) < self.request.least_side:
                views.why[row] = f"shorter side below {self.request.least_side} pixels"
            elif max(pixels.shape[:2]) > 50 * min(pixels.shape[:2]):
                views.why[row] = "too oblong"
            else:
                views.usual[row] = [one.view(pixels) for one in self.filters]
            del pixels  # or it would be held while the next one is decoded
        return views

    @torch.inference_mode()
    def _judge(self, start: int, stop: int, batch: "Views") -> dict[str, np.ndarray]:
        rows = np.arange(start, stop)
        labels = self.request.pool.labels[start:stop]
        sides = np.array([batch.sides.get(r, (0, 0)) for r in rows.tolist()])
        table: dict[str, np.ndarray] = {
            "row": rows,
            "width": sides[:, 1].astype(np.int32),
            "height": sides[:, 0].astype(np.int32),
            "why": np.array([batch.why.get(int(r), "") for r in rows], dtype=object),
        }
        good = np.array([i for i, r in enumerate(rows) if int(r) not in batch.why], dtype=np.int64)
        wrong = np.ones(len(rows), bool)
        for f, one in enumerate(self.filters):
            views = [batch.usual[int(rows[i])][f] for i in good]
            table |= _named(f, one.usual(views, labels, good))
            wrong &= table[f"{f}_answer"] != labels
        again = good[wrong[good] & (labels[good] >= 0)] if self.request.crops else good[:0]
        cut = self._crops(rows[again])
        for f, one in enumerate(self.filters):
            table |= _named(f, one.cropped([crops[f] for crops in cut], labels, again))
        return table

    def _crops(self, rows: Int64[np.ndarray, "g"]) -> list[list[Crops]]:
        """Ten crops for each filter, from pictures decoded again one after another."""
        return [self._crops_of(row) for row in rows.tolist()]

    def _crops_of(self, row: int) -> list[Crops]:
        pixels = self.request.pool.read(row)  # gone when this returns, before the next is decoded
        return [one.crops(pixels) for one in self.filters]


@dataclass(frozen=True)
class Views:
    """A batch of decoded rows.

    Args:
        usual: by row, the picture as each filter usually sees it.
        sides: by row, height and width of the picture.
        why: by row, why it was excluded.
    """

    usual: dict[int, list[UInt8[np.ndarray, "c h w"]]]
    sides: dict[int, tuple[int, int]]
    why: dict[int, str]


class Filter:
    """One fixed classifier, its answers restricted to the curated classes."""

    def __init__(self, classifier: Classifier, columns: Sequence[int]) -> None:
        self.classifier, self.columns = classifier, columns
        place = classifier.mean.device
        size = batch_size("auto", classifier.preprocess, place, 4096)
        self.runner = Runner(classifier, place, False, size)

    def view(self, pixels: Pixels) -> UInt8[np.ndarray, "c h w"]:
        """A picture as the classifier usually sees it."""
        kind = self.classifier
        return prepare(pixels, kind.preprocess, channels=kind.channels)

    def usual(
        self,
        views: Sequence[UInt8[np.ndarray, "c h w"]],
        labels: Int64[np.ndarray, "n"],
        good: Int64[np.ndarray, "g"],
    ) -> dict[str, np.ndarray]:
        """Opinions on the usual views; images without one have answer −1."""
        answer = np.full(len(labels), -1, np.int32)
        confidence, true = (np.full(len(labels), np.nan, np.float32) for _ in range(2))
        if len(good):
            p = self.probabilities(np.stack(views))
            answer[good] = p.argmax(1)
            confidence[good] = p.max(1)
            true[good] = _of_label(p, labels[good])
        return {"answer": answer, "confidence": confidence, "true": true}

    def crops(self, pixels: Pixels) -> Crops:
        """Ten crops of a picture."""
        return ten_crops(pixels, self.classifier.preprocess, channels=self.classifier.channels)

    def cropped(
        self,
        crops: Sequence[Crops],
        labels: Int64[np.ndarray, "n"],
        chosen: Int64[np.ndarray, "g"],
    ) -> dict[str, np.ndarray]:
        """Opinions on ten crops of the chosen images."""
        n = len(labels)
        seen, right = np.zeros(n, np.int8), np.zeros(n, np.int8)
        answer = np.full(n, -1, np.int32)
        highest, mean = (np.full(n, np.nan, np.float32) for _ in range(2))
        if len(chosen):
            p = self.probabilities(np.concatenate(crops)).reshape(len(chosen), CROPS, -1)
            true = p[np.arange(len(chosen)), :, labels[chosen]]  # image × crop
            seen[chosen], right[chosen] = CROPS, (p.argmax(2) == labels[chosen, None]).sum(1)
            answer[chosen] = p.mean(1).argmax(1)
            highest[chosen], mean[chosen] = true.max(1), true.mean(1)
        return {
            "crops": seen,
            "right": right,
            "true_max": highest,
            "true_mean": mean,
            "crop_answer": answer,
        }

    def probabilities(self, views: UInt8[np.ndarray, "v c h w"]) -> Float64[np.ndarray, "v s"]:
        """Softmax over the curated classes alone."""
        with eval_mode(self.classifier):
            pixels = torch.from_numpy(views).to(self.classifier.mean.device)
            logits = self.runner.forward(pixels).float().cpu()
        probs: np.ndarray = restrict(logits, self.columns).double().softmax(1).numpy()
        if not np.isfinite(probs).all():
            raise InputError(f"{self.classifier.name} gave NaN or infinite logits.")
        return probs


def _of_label(
    p: Float64[np.ndarray, "g s"], labels: Int64[np.ndarray, "g"]
) -> Float64[np.ndarray, "g"]:
    out = np.full(len(p), np.nan)
    known = labels >= 0
    out[known] = p[known, labels[known]]
    return out


def _named(f: int, columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {f"{f}_{key}": value for key, value in columns.items()}


def _reason(text: str) -> str:
    return next((why for sign, why in _UNREAD if sign in text), "broken")
