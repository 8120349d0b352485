"""Figure 13 of DiG-IN: does the gradient lie on the object? In three arms.

On pictures with masks, or on pictures that a generator draws, where the mask is what its attention
to the class word says.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from counterlens.ball import row_seeds
from counterlens.classifier import Classifier
from counterlens.data import name_of, open_set
from counterlens.data.masks import ReadMask, open_masks, own_masks
from counterlens.data.synthetic import captions
from counterlens.errors import InputError
from counterlens.explanations.counterfactuals import masks as attention_masks
from counterlens.explanations.counterfactuals.pixel import confidences, temperature_of
from counterlens.explanations.counterfactuals.targets import class_named
from counterlens.explanations.figure import Panel
from counterlens.explanations.gradients import ARMS, Gradients, gradients, magnitude
from counterlens.generators.diffusion.attention import Watch
from counterlens.generators.diffusion.ddim import Hooks, ddim
from counterlens.generators.diffusion.optimise import COUNTERFACTUAL, Term, begin
from counterlens.generators.diffusion.words import carriers
from counterlens.images import ImageSet, prepare
from counterlens.metrics.intervals.closed_form import mean_interval
from counterlens.models import load
from counterlens.models.weights import weights_hash
from counterlens.objectives import entry, probabilities
from counterlens.runs import Number, Run, key_part
from counterlens.search import frozen
from counterlens.types import Images
from counterlens.workflows._shared.figures import save, save_figure
from counterlens.workflows._shared.generation.generate import column, seed_of
from counterlens.workflows._shared.generation.generator import open_generator_for
from counterlens.workflows._shared.options import takes
from counterlens.workflows._shared.result import Result
from counterlens.workflows._shared.session import Log, logger, running
from counterlens.workflows.reproduce.options import GradientFigureOptions


@dataclass(frozen=True)
class ObjectImages:
    """Images, where the object is in each, and the class whose confidence is differentiated."""

    ids: tuple[str, ...]
    x: Images
    masks: Bool[Tensor, "n h w"]
    classes: tuple[int, ...]


@takes(GradientFigureOptions)
def figure13(options: GradientFigureOptions) -> Result:
    """Share of the gradient's mass on the object, in three arms.

    Without masks, of `data` or named by `mask`, a generator draws images and masks.
    """
    count, seed = options.shown, options.seed
    if count < 1:
        raise InputError(f"shown is {count}, expected 1 or more.")
    log, data = logger(options), str(options.data)
    net = load(options.model, device=options.device)
    images = open_set(data)
    own = own_masks(data, images)
    if len(options.mask) > 1:
        raise InputError(f"got {len(options.mask)} masks, expected one folder of them.")
    masks = open_masks(options.mask[0], data, images) if options.mask else own[1] if own else None
    if masks is not None:
        objects, source = _given(net, images, masks, count, seed), name_of(data)
    else:
        objects, source = _drawn(net, options.generator, count, seed, log), "drawn pictures"
    inputs = {"figure": "digin-figure13"}
    with running("reproduce", options, name="digin-figure13", inputs=inputs) as run:
        run.note(model=options.model, data=source, weights_hash=weights_hash(net), seed=seed)
        arms = {name: _arm(net, objects, name, seed, log) for name in ARMS}
        run.write_table("gradients", _rows(run, net, objects, arms))
        run.add_numbers(_numbers(objects, arms))
        _figure(run, net, objects, arms)
    return Result(run)


def _given(
    net: Classifier, images: ImageSet, masks: ReadMask, count: int, seed: int
) -> ObjectImages:
    """Pictures of a set at random, with their masks at the classifier's size."""
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed)).tolist()
    ids, xs, inside, classes = [], [], [], []
    for i in order:
        marked = masks(i)
        if marked is None:
            continue
        white = np.repeat(marked[..., None], 3, axis=2).astype(np.uint8) * 255
        mask = prepare(white, net.preprocess)[0] > 127
        if not 0.02 < mask.mean() < 0.98:  # the object was cut away, or fills the picture
            continue
        ids.append(str(images.ids[i]))
        xs.append(prepare(images.read(i), net.preprocess))
        inside.append(mask)
        known = int(images.labels[i])
        classes.append(class_named(net.classes, images.classes[known]) if known >= 0 else -1)
        if len(ids) == count:
            break
    if not ids:
        raise InputError(f"the masks of {images.name} mark nothing.")
    x = torch.from_numpy(np.stack(xs)).float() / 255
    answers = torch.cat([confidences(net, part) for part in torch.split(x, 32)]).argmax(1).tolist()
    chosen = tuple(k if k >= 0 else answer for k, answer in zip(classes, answers, strict=True))
    return ObjectImages(tuple(ids), x, torch.from_numpy(np.stack(inside)), chosen)


@torch.no_grad()
def _drawn(net: Classifier, generator: str | None, count: int, seed: int, log: Log) -> ObjectImages:
    """Pictures of the classes in turn, each with what its class word attends to."""
    model = open_generator_for([net], generator, half=False)
    chain = COUNTERFACTUAL
    classes = [i % len(net.classes) for i in range(count)]
    words = [captions.word(net.classes[k]) for k in classes]
    prompts = [captions.prompt(word) for word in words]
    log(f"{count} pictures drawn by {model.name}")
    xs, inside = [], []
    for a in range(0, count, 16):
        part = prompts[a : a + 16]
        seeds = torch.tensor([seed_of("gradient", seed, a + i) for i in range(len(part))])
        given = begin(model, part, seeds, steps=chain.steps)
        watch = Watch(model, len(part), -(-chain.steps // 2), torch.device("cpu"))
        hooks = Hooks(around=watch)
        end = ddim(model, given.z, given.cond, given.null, guidance=chain.guidance, hooks=hooks)
        tokens = [carriers(model, p, w) for p, w in zip(part, words[a : a + 16], strict=True)]
        attended = attention_masks.attended(
            attention_masks.averaged(watch.maps, steps=chain.steps), tokens
        )
        x = model.decode(end.originals[-1]).cpu()
        xs.append(x)
        inside.append(attention_masks.soft_map(attended, x.shape[-1])[:, 0] > attention_masks.SHOWN)
    ids = tuple(f"{word} {i}" for i, word in enumerate(words))
    return ObjectImages(ids, torch.cat(xs), torch.cat(inside).cpu(), tuple(classes))


def _arm(net: Classifier, objects: ObjectImages, name: str, seed: int, log: Log) -> Gradients:
    """One arm over all pictures, one at a time: cut-outs make sixteen of each."""
    log(f"gradients: {name}")
    seeds = row_seeds(len(objects.ids), seed)
    device, side = net.mean.device, net.preprocess.size[0]
    table = probabilities(net, temperature_of(net))
    parts = []
    for i, k in enumerate(objects.classes):
        term = Term(entry(table, column([k], device)), side)
        with frozen(net):
            parts.append(
                gradients(term, objects.x[i : i + 1].to(device),
                          objects.masks[i : i + 1].to(device), ARMS[name],
                          seeds=seeds[i : i + 1].to(device))
            )  # fmt: skip
    return Gradients(torch.cat([one.values.cpu() for one in parts]),
                     torch.cat([one.inside.cpu() for one in parts]))  # fmt: skip


def _rows(
    run: Run, net: Classifier, objects: ObjectImages, arms: dict[str, Gradients]
) -> list[dict[str, Any]]:
    rows = []
    for i, name in enumerate(objects.ids):
        for arm, gradient in arms.items():
            stem = f"{i:03d}-{key_part(arm)}"
            rows.append(
                {
                    "id": name, "class": net.classes[objects.classes[i]], "arm": arm,
                    "inside": gradient.inside[i].item() if gradient.inside[i].isfinite() else None,
                    "area": objects.masks[i].float().mean().item(),
                    "original": save(run, f"{i:03d}-original.png", objects.x[i]),
                    "mask": save(run, f"{i:03d}-mask.png", objects.masks[i].float()[None]),
                    "image": save(run, f"{stem}.png", shown(gradient.values[i])),
                }
            )  # fmt: skip
    return rows


def shown(values: Tensor) -> Tensor:
    """A gradient as a grey picture: its mass, white where it is highest."""
    mass = magnitude(values[None])[0]
    top = torch.quantile(mass.flatten(), 0.995).clamp_min(1e-30)
    return (mass / top).clamp(0, 1)[None]


def _numbers(objects: ObjectImages, arms: dict[str, Gradients]) -> dict[str, Number]:
    """Mean shares, and their paired differences to no augmentation."""
    protocol = f"share of the gradient's mass on the object, {len(objects.ids)} pictures"
    area = objects.masks.float().mean((1, 2)).double().numpy()
    numbers = {"gradient.area": _mean(area, (0, 1), "share of the image that the object takes")}
    plain = next(iter(arms.values())).inside.double().numpy()
    for arm, gradient in arms.items():
        values = gradient.inside.double().numpy()
        numbers[f"gradient.{key_part(arm)}.inside"] = _mean(values, (0, 1), f"{protocol}; {arm}")
        if arm != next(iter(arms)):
            numbers[f"gradient.{key_part(arm)}.gain"] = _mean(
                values - plain, (-1, 1), f"{protocol}; {arm} less no augmentation, paired"
            )
    return numbers


def _mean(values: Any, bounds: tuple[float, float], protocol: str) -> Number:
    values = values[np.isfinite(values)]
    if not len(values):
        return Number.missing("no gradient at all", protocol)
    low, high = mean_interval(values, bounds) if len(values) > 1 else (None, None)
    return Number(float(values.mean()), len(values), low, high, protocol)


def _figure(run: Run, net: Classifier, objects: ObjectImages, arms: dict[str, Gradients]) -> None:
    """A row per picture: itself, the object, and the three gradients."""
    heads = ["picture", "object", *arms]
    grid: list[list[Panel]] = []
    for i in range(min(8, len(objects.ids))):
        first: Sequence[Panel] = [
            Panel(objects.x[i], net.classes[objects.classes[i]][:18]),
            Panel(objects.masks[i].float()[None], f"{objects.masks[i].float().mean():.0%} of it"),
        ]
        maps = [Panel(shown(one.values[i]), f"{one.inside[i]:.0%} inside") for one in arms.values()]
        grid.append([*first, *maps])
    title = f"{net.name}: where the gradient of the confidence lies"
    save_figure(run, "figure-000", grid, heads=heads, title=title)
