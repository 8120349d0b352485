"""How good a generator is: does it draw what the prompt says, exactly, variedly, and not by rote?

Everything is measured on images as drawn, none rejected. The classifier that judges must have
taken no part in making the generator.
"""

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from counterlens.ball import mix
from counterlens.classifier import Classifier, pick_device
from counterlens.data import open_set
from counterlens.data.synthetic import captions
from counterlens.errors import InputError
from counterlens.explanations.counterfactuals.targets import class_named
from counterlens.generators.diffusion import model as latent
from counterlens.generators.diffusion.cutouts import seen
from counterlens.generators.diffusion.model import LatentDiffusion
from counterlens.generators.diffusion.optimise import draw
from counterlens.images import tile, write_png
from counterlens.metrics.generation import kid_interval, nearest, psnr, recall
from counterlens.metrics.intervals.closed_form import mean_interval, wilson
from counterlens.models import load
from counterlens.models.parts import features
from counterlens.runs import Number, Run
from counterlens.types import Images, Preprocess
from counterlens.workflows._shared import entry_point
from counterlens.workflows._shared.options import takes
from counterlens.workflows._shared.result import Result
from counterlens.workflows._shared.session import begin, logger
from counterlens.workflows.train.datasets import decoded
from counterlens.workflows.train.options import QualityOptions

GUIDANCE, STEPS = 3.0, 25
"""Of samples, unless the generator was made for others."""
BATCH = {"cuda": 500, "cpu": 25, "mps": 50}
ATTRIBUTES = (
    "a photograph of a red automobile on a plain white background",
    "a photograph of a blue bird, bright",
    "a photograph of a black cat on a white background",
    "a photograph of a steel arch bridge",
    "a photograph of a school bus",
    "a photograph of a suspension bridge on a blue background",
    "a photograph of a green bell pepper",
    "a photograph of a ship, dark",
)


def samples(
    model: LatentDiffusion,
    prompts: Sequence[str],
    *,
    seed: int = 0,
    guidance: float | None = None,
) -> Images:
    """One image per prompt, with 8-bit values, on the CPU; image i depends on i and the seed."""
    usual, steps = model.sampler or (GUIDANCE, STEPS)
    guidance = usual if guidance is None else guidance
    seeds = mix(torch.arange(len(prompts)), seed)
    size = BATCH.get(model.device.type, 25)
    parts = [
        draw(
            model, prompts[a : a + size], seeds[a : a + size], guidance=guidance, steps=steps
        ).cpu()
        for a in range(0, len(prompts), size)
    ]
    return (torch.cat(parts) * 255).round() / 255


@dataclass(frozen=True)
class References:
    """What generated images are compared with; what is None is left out.

    Args:
        judge: a classifier that took no part in making the generator.
        test: test images.
        train: the generator's training images.
    """

    judge: Classifier | None
    test: UInt8[Tensor, "n 3 h w"] | None
    train: UInt8[Tensor, "m 3 h w"] | None


def evaluate(
    model: LatentDiffusion,
    run: Run,
    classes: Sequence[str],
    *,
    references: References,
    count: int = 1000,
    seed: int = 0,
    log: Callable[[str], None],
) -> dict[str, Number]:
    """Draw images of every class, measure them, write sheets; returns the numbers."""
    judge, test, train = references.judge, references.test, references.train
    each = max(1, count // len(classes))
    prompts = [captions.prompt(name) for name in classes for _ in range(each)]
    images = samples(model, prompts, seed=seed)
    sheet(run, "samples", images, each, len(classes))
    few = min(10, each)
    shown = samples(model, [text for text in ATTRIBUTES for _ in range(few)], seed=seed + 1)
    sheet(run, "prompts", shown, few, len(ATTRIBUTES))
    numbers: dict[str, Number] = {}
    guidance, steps = model.sampler or (GUIDANCE, STEPS)
    how = f"{len(images)} images, guidance {guidance:g}, {steps} steps, none rejected"
    if judge is not None:
        numbers["generator.agreement"] = agreement(run, images, classes, each, judge, how)
    if test is not None:
        numbers |= exactness(model, test)
        if judge is not None:
            numbers |= realism(judge, images, test, how)
        if train is not None:
            numbers |= copies(model, images, test[: len(images)], train)
    for key, number in numbers.items():
        value = "—" if number.value is None else f"{number.value:.4f}"
        log(f"{key} {value} (n {number.n}): {number.protocol}")
    run.add_numbers(numbers)
    return numbers


def agreement(
    run: Run, images: Images, classes: Sequence[str], each: int, judge: Classifier, how: str
) -> Number:
    """How often the judge sees the class of the prompt."""
    places = torch.tensor([class_named(judge.classes, name) for name in classes])
    if (places < 0).any():
        missing = [name for name, k in zip(classes, places.tolist(), strict=True) if k < 0]
        raise InputError(f"{judge.name} has no class {missing[0]!r}, so it cannot judge.")
    with torch.no_grad():
        answer = torch.cat(
            [_logits(judge, part).argmax(1).cpu() for part in torch.split(images, 250)]
        )
    hits = answer == places.repeat_interleave(each)
    rows = [
        {"class": name, "n": each, "agreement": part.float().mean().item()}
        for name, part in zip(classes, torch.split(hits, each), strict=True)
    ]
    run.write_table("agreement", rows)
    low, high = wilson(int(hits.sum()), len(hits))
    protocol = f"{judge.name} answers the prompt's class; {how}"
    return Number(hits.float().mean().item(), len(hits), low, high, protocol)


@torch.no_grad()
def exactness(model: LatentDiffusion, test: UInt8[Tensor, "n 3 h w"]) -> dict[str, Number]:
    """Decibels between test images and their reconstructions, over all pixels and image by image.

    The mean over images is the higher one: an image that is hard weighs less in it.
    """
    rebuilt, wanted = [], []
    for part in torch.split(test, 250):
        x = part.to(model.device).float() / 255
        rebuilt.append(model.decode(model.encode(x)).cpu())
        wanted.append(x.cpu())
    pairs = zip(torch.cat(rebuilt), torch.cat(wanted), strict=True)
    each = np.array([psnr(one[None], other[None]) for one, other in pairs])
    whole = f"PSNR of the autoencoder over all pixels of {len(test)} test images, in dB"
    mean = f"PSNR of the autoencoder, mean over {len(test)} test images, in dB"
    low, high = mean_interval(each, (0.0, math.inf))
    return {
        "generator.psnr": Number(
            psnr(torch.cat(rebuilt), torch.cat(wanted)), len(test), None, None, whole
        ),
        "generator.psnr_image": Number(float(each.mean()), len(test), low, high, mean),
    }


@torch.no_grad()
def realism(
    judge: Classifier, images: Images, test: UInt8[Tensor, "n 3 h w"], how: str
) -> dict[str, Number]:
    """KID and recall against test images in the judge's features."""
    real = test[: len(images)].float() / 255
    ours = torch.cat([_features(judge, part) for part in torch.split(images, 250)])
    theirs = torch.cat([_features(judge, part) for part in torch.split(real, 250)])
    order = torch.randperm(len(ours), generator=torch.Generator().manual_seed(0))
    ours = ours[order]  # else a block of them would be of one class
    value, low, high = kid_interval(ours, theirs)
    against = f"features of {judge.name}, against {len(real)} test images; {how}"
    return {
        "generator.kid": Number(value, len(images), low, high, f"unbiased KID, {against}"),
        "generator.recall": Number(
            recall(ours, theirs), len(images), None, None, f"recall, k = 3, {against}"
        ),
    }


@torch.no_grad()
def copies(
    model: LatentDiffusion,
    images: Images,
    test: UInt8[Tensor, "n 3 h w"],
    train: UInt8[Tensor, "m 3 h w"],
) -> dict[str, Number]:
    """How near generated images are to training images, against how near test images are."""
    pool = train.to(model.device)
    bytes_ = [(images * 255).to(model.device), test.to(model.device).float()]
    distances = [_nearest(x, pool).cpu() / 255 for x in bytes_]
    protocol = "median l2 distance to the nearest training image, as a ratio to that of test images"
    usual = distances[1].median().item()
    near = (distances[0] < distances[1].quantile(0.01)).double().mean().item()
    low, high = wilson(round(near * len(images)), len(images))
    return {
        "generator.nearest": Number(
            distances[0].median().item() / usual, len(images), None, None, protocol
        )
        if usual > 0
        else Number.missing("the test images are training images", protocol, len(images)),
        "generator.copies": Number(
            near, len(images), low, high,
            "share nearer to a training image than 99 % of test images are",
        ),
    }  # fmt: skip


def _nearest(x: Images, pool: UInt8[Tensor, "m 3 h w"]) -> Tensor:
    best = x.new_full((len(x),), float("inf"))
    for part in torch.split(pool, 8192):
        best = torch.minimum(best, nearest(x, part.float())[0])
    return best


def _logits(judge: Classifier, x: Images) -> Float[Tensor, "b k"]:
    out: Tensor = judge(_fit(judge, x))
    return out


def _features(judge: Classifier, x: Images) -> Float[Tensor, "b d"]:
    return features(judge, _fit(judge, x)).float().cpu()


def _fit(judge: Classifier, x: Images) -> Images:
    return seen(x.to(judge.mean.device), judge.preprocess.size[0])


def sheet(run: Run, name: str, images: Images, each: int, rows: int, *, columns: int = 10) -> None:
    """A row of pictures per prompt, as one PNG."""
    chosen = [images[r * each + c] for r in range(rows) for c in range(min(columns, each))]
    write_png(run.path("images", f"{name}.png"), tile(chosen, columns=min(columns, each)))


@takes(QualityOptions)
def measure_generator(generator: str, options: QualityOptions) -> Result:
    """Measure a generator again.

    Args:
        generator: its folder.
    """
    device = pick_device(options.device)
    model = latent.load(generator, device=device)
    judge = load(options.judge, device=str(device))
    size = Preprocess((model.side, model.side))
    held = open_set(options.test)
    test = decoded(held, size, cache=None)
    train = decoded(open_set(options.train), size, cache=None) if options.train else None
    inputs = {"generator": generator}
    run = begin("quality", options, name=model.name, inputs=inputs)
    log, names = logger(options), [captions.word(name) for name in held.classes]
    references = References(judge, test, train)
    evaluate(
        model, run, names, references=references, count=options.count, seed=options.seed, log=log
    )
    run.finish()
    return Result(run)


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m counterlens.workflows.train.diffusion_quality GENERATOR`."""
    return entry_point.run(measure_generator, QualityOptions, arguments, "generator")


if __name__ == "__main__":
    sys.exit(main())
