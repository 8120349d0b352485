"""What an evaluation measures on every counterfactual, and the numbers it makes of that.

Validity, closeness, realism, truth, sparsity and cost. Several targets of one picture are no
independent evidence: every interval is over pictures.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from counterlens.classifier import Classifier
from counterlens.explanations.counterfactuals.evidence import ask_whole
from counterlens.explanations.counterfactuals.pixel import confidences, rows_that_fit
from counterlens.explanations.counterfactuals.targets import matched
from counterlens.metrics.closeness import VISIBLE, changed_share, masked_l2, masked_mean
from counterlens.metrics.generation import kid_blocks, t_interval
from counterlens.metrics.intervals.closed_form import mean_interval, newcombe_paired, wilson
from counterlens.metrics.similarity import smoothness
from counterlens.models.nets.lpips import Lpips
from counterlens.runs import Number
from counterlens.types import Images, Labels
from counterlens.workflows.quality.methods import ArmImages, Bench
from counterlens.workflows.quality.real import Real

SURE = 0.8
SHARES = ("flipped", "sure", "agreed")
UNIT = (0.0, 1.0)
FREE = (-math.inf, math.inf)
WORDS: dict[str, tuple[str, tuple[float, float]]] = {
    "flipped": ("the guiding model's top answer is the target", UNIT),
    "sure": (f"its confidence in the target is {SURE:g} or more", UNIT),
    "confidence": ("its mean confidence in the target", UNIT),
    "agreed": ("more than half of the independent classifiers answer the target", UNIT),
    "judged": ("mean confidence in the target of the independent classifiers", UNIT),
    "l2": ("l2 distance to the picture", (0.0, math.inf)),
    "l2_inside": ("the same inside the object's mask", (0.0, math.inf)),
    "l2_outside": ("the same outside of it", (0.0, math.inf)),
    "lpips": ("LPIPS (AlexNet, 0.1) to the picture", (0.0, math.inf)),
    "lpips_inside": ("mean of its map inside the mask", (0.0, math.inf)),
    "lpips_outside": ("mean of its map outside of the mask", (0.0, math.inf)),
    "nearest": ("cosine distance to the nearest real image of the target class", (0.0, 2.0)),
    "nearest_l2": ("l2 distance in pixels to the nearest real one", (0.0, math.inf)),
    "changed": (f"share of pixels that moved by more than {int(VISIBLE * 255)}/255", UNIT),
    "smoothness": ("correlation of the change at neighbouring pixels", (-1.0, 1.0)),
}

_Columns = dict[str, Float[Tensor, "n"]]


@dataclass(frozen=True)
class Measured:
    """One method, measured.

    Args:
        guide: whose answer was to be changed.
        columns: one value per row for each of WORDS that could be measured.
        answers: the guide's and each judge's top answer, in words.
        blocks: KID of disjoint blocks of pictures, if there are real images.
    """

    guide: str
    columns: _Columns
    answers: Mapping[str, tuple[str, ...]]
    blocks: Float[Tensor, "m"] | None


def measure(
    bench: Bench,
    output: ArmImages,
    guide: Classifier,
    judges: Sequence[Classifier],
    *,
    masks: Float[Tensor, "n 1 h w"] | None,
    lpips: Lpips | None,
    real: Real | None,
) -> Measured:
    """Everything about one method's images."""
    x, z = bench.x, output.images
    columns, answers = _validity(bench, z, guide)
    columns |= _truth(bench, z, judges, answers)
    columns["l2"] = (z - x).flatten(1).norm(dim=1)
    columns["changed"] = changed_share(z, x)
    columns["smoothness"] = smoothness(z - x)
    if masks is not None:
        columns["l2_inside"] = masked_l2(z, x, masks)
        columns["l2_outside"] = masked_l2(z, x, 1 - masks)
    if lpips is not None:
        columns |= _looks(lpips, z, x, masks)
    blocks = None
    if real is not None:
        features = real.features(z)
        near = real.nearest(z, features, bench.target)
        columns["nearest"], columns["nearest_l2"] = near
        blocks = kid_blocks(features, real.reference)
    return Measured(guide.name, columns, answers, blocks)


def _validity(
    bench: Bench, z: Images, guide: Classifier
) -> tuple[_Columns, dict[str, tuple[str, ...]]]:
    place = matched(guide, bench.classifier.classes, bench.target)
    size = rows_that_fit(z, guide.mean.device)
    before, probs = (
        torch.cat([confidences(guide, part) for part in torch.split(images, size)])
        for images in (bench.x, z)
    )
    after = probs.gather(1, place[:, None])[:, 0]
    answer = probs.argmax(1)
    columns = {
        "flipped": (answer == place).float(),
        "sure": (after >= SURE).float(),
        "confidence": after,
        "before": before.gather(1, place[:, None])[:, 0],
    }
    return columns, {guide.name: tuple(guide.classes[k] for k in answer.tolist())}


def _truth(
    bench: Bench, z: Images, judges: Sequence[Classifier], answers: dict[str, tuple[str, ...]]
) -> _Columns:
    """The answers of classifiers that took no part; they go into `answers`."""
    if not judges:
        return {}
    votes, sure = [], []
    columns: _Columns = {}
    for judge in judges:
        place = matched(judge, bench.classifier.classes, bench.target)
        probs = ask_whole(judge, z)
        answer = probs.argmax(1)
        votes.append((answer == place).float())
        sure.append(probs.gather(1, place[:, None])[:, 0])
        answers[judge.name] = tuple(judge.classes[k] for k in answer.tolist())
        columns[f"agreed.{judge.name}"] = votes[-1]
    columns["agreed"] = (torch.stack(votes).mean(0) > 0.5).float()
    columns["judged"] = torch.stack(sure).mean(0)
    return columns


def _looks(lpips: Lpips, z: Images, x: Images, masks: Float[Tensor, "n 1 h w"] | None) -> _Columns:
    device = lpips.mean.device
    pairs = list(zip(torch.split(z, 250), torch.split(x, 250), strict=True))
    columns = {"lpips": torch.cat([lpips(a.to(device), b.to(device)).cpu() for a, b in pairs])}
    if masks is not None:
        maps = torch.cat([lpips.maps(a.to(device), b.to(device)).cpu() for a, b in pairs])
        columns["lpips_inside"] = masked_mean(maps, masks)
        columns["lpips_outside"] = masked_mean(maps, 1 - masks)
    return columns


def numbers(
    bench: Bench, arm: str, output: ArmImages, measured: Measured, real: Real | None, how: str
) -> dict[str, Number]:
    """One method's row of the table."""
    key = f"quality.{arm}"
    out: dict[str, Number] = {}
    for name, (words, bounds) in WORDS.items():
        if name in measured.columns:
            protocol = f"{words}; guide {measured.guide}; {how}"
            out[f"{key}.{name}"] = mean_number(
                measured.columns[name], bench.image, bounds, protocol, share=name in SHARES
            )
    for name in (one for one in measured.columns if one.startswith("agreed.")):
        judge = name.removeprefix("agreed.").replace(".", "_")
        protocol = f"{name.removeprefix('agreed.')} answers the target; {how}"
        out[f"{key}.agreed_{judge}"] = mean_number(
            measured.columns[name], bench.image, UNIT, protocol, share=True
        )
    if measured.blocks is not None and real is not None:
        value, low, high = t_interval(measured.blocks)
        out[f"{key}.kid"] = Number(
            value, len(output.images), low, high,
            f"unbiased KID to {len(real.reference)} real images of the target classes, "
            f"{real.how}; mean of {len(measured.blocks)} disjoint blocks, Student's interval; "
            f"{how}",
        )  # fmt: skip
    rows = len(output.images)
    out[f"{key}.seconds"] = Number(
        output.seconds / rows, rows, None, None, f"seconds per counterfactual, in batches; {how}"
    )
    for name, count in output.passes.items():
        word = "denoiser" if name == "denoiser" else "classifier"
        before = out.get(f"{key}.{word}_passes")
        total = count / rows + (before.value or 0 if before else 0)
        out[f"{key}.{word}_passes"] = Number(
            total, rows, None, None, f"forward passes through the {word} per counterfactual; {how}"
        )
    return out


def gaps(
    bench: Bench, first: tuple[str, Measured], second: tuple[str, Measured]
) -> dict[str, Number]:
    """First method less second, on the same pictures and targets."""
    (a, one), (b, two) = first, second
    key, out = f"quality_gap.{a}-less-{b}", {}
    tail = f"{a} less {b}, same pictures, targets and masks"
    for name, (words, bounds) in WORDS.items():
        if name not in one.columns or name not in two.columns:
            continue
        protocol = f"{words}: {tail}"
        left, right = one.columns[name], two.columns[name]
        wide = (-(bounds[1] - bounds[0]), bounds[1] - bounds[0])
        if name in SHARES and bench.single:
            out[f"{key}.{name}"] = _share_gap(left > 0.5, right > 0.5, protocol)
        else:
            out[f"{key}.{name}"] = mean_number(left - right, bench.image, wide, protocol)
    if one.blocks is not None and two.blocks is not None:
        value, low, high = t_interval(one.blocks - two.blocks)
        protocol = f"KID: {tail}; {len(one.blocks)} shared blocks, Student's interval"
        out[f"{key}.kid"] = Number(value, len(bench.image), low, high, protocol)
    return out


def mean_number(
    values: Float[Tensor, "n"],
    image: Labels,
    bounds: tuple[float, float],
    protocol: str,
    *,
    share: bool = False,
) -> Number:
    """The mean over rows, with an interval over pictures; rows without a value are left out."""
    known = ~values.isnan()
    values, image = values[known].double(), image[known]
    if not len(values):
        return Number.missing("no row has a value", protocol)
    pictures, place = torch.unique(image, return_inverse=True)
    mean = values.mean().item()
    if share and len(pictures) == len(values):
        low, high = wilson(int(values.sum()), len(values))
        return Number(mean, len(values), low, high, f"{protocol}; Wilson interval")
    count = torch.zeros(len(pictures), dtype=torch.float64).index_add(0, place, values * 0 + 1)
    total = torch.zeros_like(count).index_add(0, place, values)
    each = np.asarray((total / count).numpy())
    protocol += f"; {len(pictures)} pictures, BCa bootstrap over them"
    if len(each) < 2:
        return Number(mean, len(values), None, None, protocol)
    low, high = mean_interval(each, bounds)
    low, high = min(low, mean), max(high, mean)
    return Number(mean, len(values), low, high, protocol)


def _share_gap(one: Tensor, two: Tensor, protocol: str) -> Number:
    counts = [int((a & b).sum()) for a, b in ((one, two), (one, ~two), (~one, two), (~one, ~two))]
    low, high = newcombe_paired(*counts)
    gap = (one.double() - two.double()).mean().item()
    return Number(gap, len(one), low, high, f"{protocol}; Newcombe paired interval")


def rows_of(
    bench: Bench, arm: str, measured: Measured, files: Sequence[str]
) -> list[dict[str, Any]]:
    """One row per counterfactual for the run's table."""
    names = bench.classifier.classes
    out = []
    for k in range(len(files)):
        i = int(bench.image[k])
        values = {
            name: None if column[k].isnan() else round(column[k].item(), 6)
            for name, column in measured.columns.items()
        }
        label = bench.pictures.labels[i]
        out.append(
            {
                "method": arm,
                "guide": measured.guide,
                "id": bench.pictures.ids[i],
                "label": names[label] if label >= 0 else None,
                "predicted": names[int(bench.answer[i])],
                "target": names[int(bench.target[k])],
                "image": files[k],
                "answers": {who: answers[k] for who, answers in measured.answers.items()},
                **values,
            }
        )
    return out
