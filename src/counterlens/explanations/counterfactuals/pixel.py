"""Visual counterfactuals in pixel space: the change within a budget that helps a class most.

Paper: Augustin, Meinke, Hein 2020, Adversarial Robustness on In- and Out-Distribution Improves
       Explainability, arXiv:2003.09461 (section 4, equation 7; Figures 1, 2, 7).
Differs: the log of the confidence is raised, because the confidence itself has no gradient left
       near 0 and 1; confidences are those after the temperature of the model's card. What is
       returned is what an 8-bit PNG can hold, inside ball and box to the last bit; all figures
       are measured on it. The search begins in wider balls: from the image alone it ends on a
       lower top more often where a robust classifier is flat.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from counterlens.ball import Ball, Norm, show_radius
from counterlens.checks import check_images, check_labels
from counterlens.classifier import Classifier
from counterlens.errors import InputError
from counterlens.metrics.similarity import changed_pixels, smoothness
from counterlens.notation import EXPONENTS
from counterlens.objectives import log_confidence
from counterlens.progress import show_iterates
from counterlens.search import frozen
from counterlens.search.apgd import apgd_from_afar
from counterlens.types import Images, Labels, Scores

STEPS = 500

# For 32 × 32 pixels; the l2 ones are those of the paper.
_RADII: dict[Norm, tuple[float, ...]] = {
    "l2": (0.5, 1.0, 1.5, 2.0, 2.5, 3.0),
    "l1.5": (1.0, 2.0, 3.0, 4.0, 5.0, 6.0),
    "l1": (4.0, 8.0, 12.0, 16.0, 24.0, 32.0),
    "linf": (2 / 255, 4 / 255, 6 / 255, 8 / 255, 12 / 255, 16 / 255),
}


@dataclass(frozen=True)
class Counterfactuals:
    """One row per image, target and radius.

    Args:
        norm: the distance that was bounded.
        image: which of the given images each row started from.
        target: the class whose confidence was raised.
        radius: the budget.
        points: the counterfactuals, whole multiples of 1/255.
        before, after: confidence in the target at the image and at the counterfactual.
        answer_before, answer: the top class at both.
        sure: confidence in the top class at the counterfactual.
        distance: how far the counterfactual is from the image; never above the radius.
        changed: number of pixels that differ.
        smooth: smoothness of the change, near 0 for noise.
    """

    norm: Norm
    image: Int[Tensor, "b"]
    target: Labels
    radius: Float[Tensor, "b"]
    points: Images
    before: Scores
    after: Scores
    answer_before: Labels
    answer: Labels
    sure: Scores
    distance: Float[Tensor, "b"]
    changed: Int[Tensor, "b"]
    smooth: Scores

    def __len__(self) -> int:
        return len(self.image)

    @property
    def reached(self) -> Tensor:
        """Which rows the classifier now takes for the target."""
        return self.answer == self.target


def default_radii(norm: Norm, size: tuple[int, int]) -> tuple[float, ...]:
    """Six budgets for images of a size: the paper's 0.5 … 3 at 32 pixels, 3.5 … 21 at 224.

    A change of the same strength per pixel has an lp size that grows with pixels^(1/p).

    >>> default_radii("l2", (224, 224))
    (3.5, 7.0, 10.5, 14.0, 17.5, 21.0)
    """
    growth = (size[0] * size[1] / 32**2) ** (1 / EXPONENTS[norm])
    return tuple(radius * growth for radius in _RADII[norm])


def raise_confidence(
    classifier: Classifier,
    x: Images,
    target: Labels,
    ball: Ball,
    *,
    steps: int = STEPS,
    temperature: float = 1.0,
    seeds: Int[Tensor, "b"] | None = None,
) -> Images:
    """The point of the ball at which the classifier is surest of the target.

    Equation: ratio2020 (7)   x⁽ᵗ⁾ = argmax_{z ∈ [0,1]ᵈ, ‖z − x‖ ≤ ε} p̂_t(z)
    """
    raised = log_confidence(lambda z: classifier(z) / temperature, target)
    budgets = torch.as_tensor(ball.radius).expand(len(x)).tolist()
    names = [
        f"{classifier.classes[t]}, {ball.norm} {show_radius(ball.norm, r)}"
        for t, r in zip(target.tolist(), budgets, strict=True)
    ]

    def objective(z: Images) -> Scores:
        scores = raised(z)
        show_iterates(z.detach(), scores.detach().exp(), names)
        return scores

    with frozen(classifier):
        return apgd_from_afar(objective, x, ball, steps=steps, generator=seeds).points


def counterfactuals(
    classifier: Classifier,
    x: Images,
    targets: Sequence[Sequence[int]],
    *,
    norm: Norm = "l2",
    radii: Sequence[float] | None = None,
    steps: int = STEPS,
    seed: int = 0,
    batch: int | None = None,
) -> Counterfactuals:
    """Counterfactuals of every image towards each of its targets at every radius.

    All of them are rows of the same batches. A row depends on its image, target, radius and seed
    alone, not on the rows around it.

    Args:
        x: images of the classifier's size, whole multiples of 1/255.
        targets: for each image the classes to raise.
        radii: budgets, each searched from the image anew; None: `default_radii`.
        batch: rows per batch; None: by size of the images.
    """
    check_images(x)
    if len(targets) != len(x) or not all(targets):
        raise InputError(f"{len(targets)} lists of targets for {len(x)} images, expected one each.")
    budgets = tuple(default_radii(norm, (x.shape[2], x.shape[3])) if radii is None else radii)
    if not budgets:
        raise InputError("no radius given, expected at least one, e.g. 1.5.")
    Ball(norm, torch.tensor(budgets))  # refuses a negative one before any work is done
    rows = [(i, t, r) for i, wanted in enumerate(targets) for t in wanted for r in budgets]
    image, target = (torch.tensor(column) for column in list(zip(*rows, strict=True))[:2])
    check_labels(target, classes=len(classifier.classes), rows=len(rows), name="targets")
    radius = torch.tensor([r for _, _, r in rows], dtype=torch.float64)
    seeds = _seeds(x, rows, norm, seed)
    size = batch or rows_that_fit(x, classifier.mean.device)
    parts = []
    for at in range(0, len(rows), size):
        cut = slice(at, at + size)
        pick = image[cut]
        parts.append(_batch(classifier, x, pick, target[cut], norm, radius[cut], seeds[cut], steps))
    return join(parts)


def join(parts: Sequence[Counterfactuals]) -> Counterfactuals:
    """Several batches as one."""
    columns = {
        field.name: torch.cat([getattr(part, field.name) for part in parts])
        for field in fields(Counterfactuals)
        if field.name != "norm"
    }
    return Counterfactuals(norm=parts[0].norm, **columns)


def quantise(z: Images, x: Images, norm: Norm, radius: Float[Tensor, "b"]) -> Images:
    """The 8-bit image next to z that lies in the ball around the 8-bit image x, exactly.

    Each value is rounded to the nearest of 256; where that leaves the ball, the values that were
    rounded outwards the most step back towards x until it does not. The distance is checked in
    double precision on the whole numbers, so a PNG read from disk satisfies it too.
    """
    start = (x.double() * 255).round()
    if (start - x.double() * 255).abs().max() > 1e-3:
        raise InputError("x is no 8-bit image: its pixels are not multiples of 1/255.")
    wanted = (z.double() * 255 - start).cpu().flatten(1).numpy()
    rounded = np.rint(wanted)
    limits = radius.double().cpu().numpy()
    inside = [_inside(*row, norm) for row in zip(wanted, rounded, limits, strict=True)]
    change = torch.from_numpy(np.stack(inside)).view(z.shape)
    return ((start.cpu() + change) / 255).to(x)


def size_of(change: np.ndarray, norm: Norm) -> float:
    """Length in double precision of a change given in whole steps of 1/255."""
    return float(np.linalg.norm(np.asarray(change, np.float64).ravel() / 255, EXPONENTS[norm]))


def _inside(wanted: np.ndarray, rounded: np.ndarray, limit: float, norm: Norm) -> np.ndarray:
    """Step back outward-rounded values, the most overshooting first, as few as will do."""
    if size_of(rounded, norm) <= limit:
        return rounded
    overshoot = np.abs(rounded) - np.abs(wanted)
    outward = np.flatnonzero(overshoot > 0)
    order = outward[np.argsort(-overshoot[outward], kind="stable")]

    def stepped(count: int) -> np.ndarray:
        back = rounded.copy()
        back[order[:count]] -= np.sign(rounded[order[:count]])
        return back

    low, high = 0, len(order)  # too few, enough: with all of them no value exceeds the wanted one
    while high - low > 1:
        middle = (low + high) // 2
        if size_of(stepped(middle), norm) <= limit:
            high = middle
        else:
            low = middle
    back = stepped(high)
    while size_of(back, norm) > limit:  # z itself lay outside by float rounding
        back[np.argmax(np.abs(back))] -= np.sign(back[np.argmax(np.abs(back))])
    return back


def _batch(
    classifier: Classifier,
    x: Images,
    image: Int[Tensor, "b"],
    target: Labels,
    norm: Norm,
    radius: Float[Tensor, "b"],
    seeds: Int[Tensor, "b"],
    steps: int,
) -> Counterfactuals:
    device = classifier.mean.device
    temperature = temperature_of(classifier)
    start, wanted = x[image].to(device), target.to(device)
    ball = Ball(norm, radius.to(start))
    raised = raise_confidence(
        classifier, start, wanted, ball, steps=steps, temperature=temperature, seeds=seeds
    )
    points = quantise(raised, start, norm, radius)
    probs, probs_before = (confidences(classifier, images) for images in (points, start))
    sure, answer = probs.max(1)
    rows = torch.arange(len(target))
    change = (points - start).cpu()
    steps_of_255 = (change.double() * 255).round().numpy()
    distance = [size_of(row, norm) for row in steps_of_255]
    return Counterfactuals(
        norm=norm,
        image=image,
        target=target,
        radius=radius,
        points=points.cpu(),
        before=probs_before[rows, target],
        after=probs[rows, target],
        answer_before=probs_before.argmax(1),
        answer=answer,
        sure=sure,
        distance=torch.tensor(distance, dtype=torch.float64),
        changed=changed_pixels(points.cpu(), start.cpu()),
        smooth=smoothness(change),
    )


@torch.no_grad()
def confidences(classifier: Classifier, x: Images) -> Float[Tensor, "b k"]:
    """Class probabilities after the temperature of the card, on the CPU."""
    with frozen(classifier):
        logits = classifier(x.to(classifier.mean.device)).cpu().float()
        probs: Tensor = (logits / temperature_of(classifier)).softmax(1)
    return probs


def temperature_of(classifier: Classifier) -> float:
    """The temperature on the classifier's card; 1 where it has none."""
    value = classifier.card.get("temperature")
    return 1.0 if value is None else float(value)


def _seeds(
    x: Images, rows: Sequence[tuple[int, int, float]], norm: Norm, seed: int
) -> Int[Tensor, "b"]:
    """One seed per row, a function of what the row asks and of nothing else."""
    levels = (x * 255).round().to(torch.uint8).cpu().numpy()
    contents = [hashlib.blake2b(one.tobytes(), digest_size=8).digest() for one in levels]
    queries = [contents[i] + f"{t} {norm} {r!r} {seed}".encode() for i, t, r in rows]
    digests = [hashlib.blake2b(text, digest_size=8).digest() for text in queries]
    return torch.tensor([int.from_bytes(digest, "big") >> 2 for digest in digests])


def rows_that_fit(x: Images, device: torch.device | None = None) -> int:
    """Rows per batch: about 100,000 pixels on a CPU, where more gain nothing, 16 times on a GPU."""
    pixels = 98_304 if device is None or device.type == "cpu" else 16 * 98_304
    return max(1, pixels // (x.shape[2] * x.shape[3]))
