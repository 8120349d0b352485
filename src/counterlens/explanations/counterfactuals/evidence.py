"""Is a counterfactual class evidence or noise? Ask classifiers that took no part in making it.

Paper: Augustin et al. 2020 (ratio2020, section 4 and Figure 1): a robust model's counterfactual
       shows features of the class, a plain model's only fools that model.
Differs: the paper judges by eye. Here a second classifier says whether it sees the class too; with
       none at hand the smoothness of the change stands in.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from counterlens.classifier import Classifier
from counterlens.errors import InputError
from counterlens.explanations.counterfactuals.pixel import (
    Counterfactuals,
    confidences,
    rows_that_fit,
)
from counterlens.explanations.counterfactuals.targets import class_named
from counterlens.images import Pixels, prepare, to_pixels
from counterlens.types import Images, Probs, Scores

SMOOTH = 0.3
"""Without a second classifier, a change at least this smooth counts as class evidence: halfway
between the shipped plain model, near 0, and the adversarially trained ones, near 0.6."""

EVIDENCE, NOISE, SHORT = "class evidence", "noise", "not reached"

RULE = (
    "Verdicts. Not reached: the model's own top answer is not the target. Else, with second "
    "classifiers: "
    "class evidence if more than half of them answer the target too, noise if not. "
    "Without any: class evidence if neighbouring pixels changed alike (smoothness of at least "
    f"{SMOOTH}), noise if not; that is a hint, no proof."
)


@dataclass(frozen=True)
class Opinion:
    """What a second classifier says of each counterfactual.

    Args:
        judge: its name.
        before, after: its confidence in the target at the image and at the counterfactual.
        answer: its own top class, as one of its class names.
        agrees: whether that is the target.
    """

    judge: str
    before: Scores
    after: Scores
    answer: tuple[str, ...]
    agrees: Bool[Tensor, "b"]


def opinion(
    judge: Classifier, classes: Sequence[str], x: Images, result: Counterfactuals
) -> Opinion:
    """Ask a second classifier about counterfactuals of images x; classes are matched by name."""
    places = {t: class_named(judge.classes, classes[t]) for t in set(result.target.tolist())}
    missing = sorted(classes[t] for t, place in places.items() if place < 0)
    if missing:
        raise InputError(
            f"{judge.name} cannot judge: it has no class {missing[0]!r}. Choose another "
            "judge=MODEL or another target."
        )
    target = torch.tensor([places[t] for t in result.target.tolist()])
    rows = torch.arange(len(result))
    first = ask_whole(judge, x)[result.image]
    last = ask_whole(judge, result.points)
    answer = last.argmax(1)
    return Opinion(
        judge.name,
        first[rows, target],
        last[rows, target],
        tuple(judge.classes[k] for k in answer.tolist()),
        answer == target,
    )


def verdicts(result: Counterfactuals, opinions: Sequence[Opinion]) -> list[str]:
    """One word per counterfactual, by `RULE`."""
    if opinions:
        votes = torch.stack([one.agrees for one in opinions]).float().mean(0)
        evidence = votes > 0.5
    else:
        evidence = result.smooth >= SMOOTH
    words = [EVIDENCE if shown else NOISE for shown in evidence.tolist()]
    reached = result.reached.tolist()
    return [word if there else SHORT for word, there in zip(words, reached, strict=True)]


def ask_whole(judge: Classifier, x: Images) -> Probs:
    """Confidences at images of another classifier's size; frames are not cropped again."""
    whole = judge.preprocess
    if whole.crop is not None:
        whole = replace(whole, crop=1.0)
    ready = [prepare(_rgb(one), whole, channels=judge.channels) for one in x]
    batch = torch.stack([torch.from_numpy(one) for one in ready]).float() / 255
    size = rows_that_fit(batch, judge.mean.device)
    return torch.cat([confidences(judge, part) for part in torch.split(batch, size)])


def _rgb(image: Float[Tensor, "c h w"]) -> Pixels:
    pixels = to_pixels(image)
    return pixels.repeat(3, axis=2) if pixels.shape[2] == 1 else pixels
