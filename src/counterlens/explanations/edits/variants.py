"""Small edits of an image and what they do to the answer: the frame of colour and fickleness.

Paper: Hendrycks et al. 2021 (nae2021) shows single cases; a flip is a changed top answer.
Differs: flips are counted, per image and over a whole set, with intervals.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from counterlens.classifier import Classifier
from counterlens.errors import InputError
from counterlens.metrics.intervals.closed_form import mean_interval, wilson
from counterlens.runs import Number
from counterlens.types import Images


@dataclass(frozen=True)
class EditVariant:
    """One small edit of an image.

    Args:
        family: what kind of edit, e.g. hue.
        name: which one, e.g. "hue 60°".
        edit: images in [0, 1] to images in [0, 1] of the same size.
    """

    family: str
    name: str
    edit: Callable[[Images], Images]


@dataclass(frozen=True)
class Flips:
    """What a sweep of v variants did to b images.

    Args:
        variants: the edits, in the order of the columns.
        before: the answer to each untouched image.
        sure: its confidence.
        answers: the answer to each edited image.
        confidences: its confidence.
    """

    variants: tuple[EditVariant, ...]
    before: Int[Tensor, "b"]
    sure: Float[Tensor, "b"]
    answers: Int[Tensor, "b v"]
    confidences: Float[Tensor, "b v"]

    @property
    def flipped(self) -> Bool[Tensor, "b v"]:
        """Where the answer changed."""
        return self.answers != self.before[:, None]

    def family(self, name: str) -> Bool[Tensor, "b v"]:
        """The columns of one family."""
        columns = [i for i, variant in enumerate(self.variants) if variant.family == name]
        return self.flipped[:, columns]

    @classmethod
    def join(cls, parts: "Sequence[Flips]") -> "Flips":
        """The flips of several batches as one."""
        return cls(
            parts[0].variants,
            torch.cat([part.before for part in parts]),
            torch.cat([part.sure for part in parts]),
            torch.cat([part.answers for part in parts]),
            torch.cat([part.confidences for part in parts]),
        )


@torch.no_grad()
def flips(
    classifier: Classifier, x: Images, variants: Sequence[EditVariant], *, temperature: float = 1.0
) -> Flips:
    """Ask about each image and each of its variants."""
    if not variants:
        raise InputError("the sweep has no variants, expected at least one.")

    def ask(images: Images) -> tuple[Tensor, Tensor]:
        sure, answer = (classifier(images).float() / temperature).softmax(1).max(1)
        return answer.cpu(), sure.cpu()

    before, sure = ask(x)
    edited = [ask(variant.edit(x)) for variant in variants]
    return Flips(
        tuple(variants),
        before,
        sure,
        torch.stack([answer for answer, _ in edited], 1),
        torch.stack([confidence for _, confidence in edited], 1),
    )


def flip_numbers(result: Flips, key: str, what: str) -> dict[str, Number]:
    """Flip rates as numbers: any edit, the mean over edits, and each family.

    Args:
        key: first part of the keys, e.g. "bias.colour".
        what: the sweep in words, for the protocol.

    `KEY_flip` is the share of images whose answer at least one edit changes (Wilson interval);
    `KEY_flip_mean` the mean share of edits that change it (bootstrap over images).
    """
    count = len(result.before)
    sweep = f"{what}: {len(result.variants)} edits of {count} image{'s' if count > 1 else ''}"
    mean = result.flipped.double().mean(1)
    low, high = mean_interval(mean.numpy(), (0.0, 1.0))
    numbers = {
        f"{key}_flip": _share(result.flipped, f"share of images any edit flips; {sweep}"),
        f"{key}_flip_mean": Number(
            mean.mean().item(), count, low, high, f"mean share of edits that flip; {sweep}"
        ),
    }
    for family in dict.fromkeys(variant.family for variant in result.variants):
        hit = result.family(family)
        text = f"share of images any of {hit.shape[1]} {family} edits flips; {sweep}"
        numbers[f"{key}_{family}_flip"] = _share(hit, text)
    return numbers


def _share(flipped: Bool[Tensor, "b v"], protocol: str) -> Number:
    hits, count = int(flipped.any(1).sum()), len(flipped)
    low, high = wilson(hits, count)
    return Number(hits / count, count, low, high, protocol)
