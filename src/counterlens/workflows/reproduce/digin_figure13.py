"""Figure 13 of DiG-IN: does the gradient lie on the thing? Without help, with cut-outs, with noise.

On pictures with masks, or on pictures that a generator draws, where the mask is what its attention
to the class word says.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from counterlens.ball import row_seeds
from counterlens.classifier import Classifier
from counterlens.data import name_of, open_set
from counterlens.data.made import captions
from counterlens.data.masks import ReadMask, open_masks, own_masks
from counterlens.errors import InputError
from counterlens.explanations.counterfactuals import masks as attention_masks
from counterlens.explanations.counterfactuals.pixel import confidences, temperature_of
from counterlens.explanations.counterfactuals.targets import class_named
from counterlens.explanations.figure import Panel
from counterlens.explanations.gradients import ARMS, Gradients, gradients, magnitude
from counterlens.generators.diffusion.attention import Watch
from counterlens.generators.diffusion.ddim import ddim
from counterlens.generators.diffusion.optimise import COUNTERFACTUAL, Term, begin
from counterlens.generators.diffusion.words import carriers
from counterlens.images import ImageSet, prepare
from counterlens.metrics.intervals.closed_form import mean_interval
from counterlens.models import load
from counterlens.models.weights import weights_hash
from counterlens.objectives import entry, probabilities
from counterlens.runs import Number, Run, key_part, new_folder
from counterlens.search import frozen
from counterlens.types import Images
from counterlens.workflows._shared.figures import save, save_figure
from counterlens.workflows._shared.generate import column, seed_of
from counterlens.workflows._shared.generator import open_generator_for
from counterlens.workflows._shared.result import Result
from counterlens.workflows._shared.session import Say, teller, write_report


@dataclass(frozen=True)
class Things:
    """Pictures, where the thing is in each, and the class whose confidence is differentiated."""

    ids: tuple[str, ...]
    x: Images
    masks: Bool[Tensor, "n h w"]
    classes: tuple[int, ...]


def figure13(
    model: str,
    *,
    data: str,
    masks: str | None = None,
    generator: str | None = None,
    count: int = 8,
    out: Path | None = None,
    resume: bool = False,
    seed: int = 0,
    device: str = "auto",
    quiet: bool = False,
) -> Result:
    """Share of the gradient's mass inside the thing, in three arms.

    Args:
        data, masks: pictures, and where their masks lie unless the set has its own; without any a
            generator draws both.
        generator: for drawn pictures: a diffusers folder; None takes the shipped one.
    """
    if count < 1:
        raise InputError(f"count is {count}, expected 1 or more.")
    settings = {"figure": "digin-figure13", "model": model, "data": data,
                "masks": masks, "generator": generator, "count": count, "seed": seed}  # fmt: skip
    say = teller(quiet)
    net = load(model, device=device)
    pictures = open_set(data)
    own = own_masks(data, pictures)
    thing = open_masks(masks, data, pictures) if masks else own[1] if own else None
    if thing is not None:
        things, source = _given(net, pictures, thing, count, seed), name_of(data)
    else:
        things, source = _drawn(net, generator, count, seed, say), "drawn pictures"
    run = Run.create(out or new_folder("reproduce", "digin-figure13"), "reproduce", settings,
                     resume=resume)  # fmt: skip
    run.note(model=model, data=source, weights_hash=weights_hash(net), seed=seed)
    found = {name: _arm(net, things, name, seed, say) for name in ARMS}
    rows = _rows(run, net, things, found)
    run.write_table("gradients", rows)
    run.add_numbers(_numbers(things, found))
    _figure(run, net, things, found)
    write_report(run, say)
    run.finish()
    return Result(run)


def _given(net: Classifier, pictures: ImageSet, thing: ReadMask, count: int, seed: int) -> Things:
    """Pictures of a set at random, with their masks at the classifier's size."""
    order = torch.randperm(len(pictures), generator=torch.Generator().manual_seed(seed)).tolist()
    ids, xs, kept, classes = [], [], [], []
    for i in order:
        found = thing(i)
        if found is None:
            continue
        white = np.repeat(found[..., None], 3, axis=2).astype(np.uint8) * 255
        mask = prepare(white, net.preprocess)[0] > 127
        if not 0.02 < mask.mean() < 0.98:  # the thing was cut away, or fills the picture
            continue
        ids.append(str(pictures.ids[i]))
        xs.append(prepare(pictures.read(i), net.preprocess))
        kept.append(mask)
        known = int(pictures.labels[i])
        classes.append(class_named(net.classes, pictures.classes[known]) if known >= 0 else -1)
        if len(ids) == count:
            break
    if not ids:
        raise InputError(f"the masks of {pictures.name} mark nothing.")
    x = torch.from_numpy(np.stack(xs)).float() / 255
    answers = torch.cat([confidences(net, part) for part in torch.split(x, 32)]).argmax(1).tolist()
    chosen = tuple(k if k >= 0 else answer for k, answer in zip(classes, answers, strict=True))
    return Things(tuple(ids), x, torch.from_numpy(np.stack(kept)), chosen)


@torch.no_grad()
def _drawn(net: Classifier, generator: str | None, count: int, seed: int, say: Say) -> Things:
    """Pictures of the classes in turn, each with what its class word attends to."""
    model = open_generator_for([net], generator, half=False)
    chain = COUNTERFACTUAL
    classes = [i % len(net.classes) for i in range(count)]
    words = [captions.word(net.classes[k]) for k in classes]
    prompts = [captions.prompt(word) for word in words]
    say(f"{count} pictures drawn by {model.name}")
    xs, kept = [], []
    for a in range(0, count, 16):
        part = prompts[a : a + 16]
        seeds = torch.tensor([seed_of("gradient", seed, a + i) for i in range(len(part))])
        given = begin(model, part, seeds, steps=chain.steps)
        watch = Watch(model, len(part), -(-chain.steps // 2), torch.device("cpu"))
        end = ddim(model, given.z, given.cond, given.null, guidance=chain.guidance, around=watch)
        tokens = [carriers(model, p, w) for p, w in zip(part, words[a : a + 16], strict=True)]
        heat = attention_masks.attended(
            attention_masks.averaged(watch.maps, steps=chain.steps), tokens
        )
        x = model.decode(end.originals[-1]).cpu()
        xs.append(x)
        kept.append(attention_masks.soft_map(heat, x.shape[-1])[:, 0] > attention_masks.SHOWN)
    ids = tuple(f"{word} {i}" for i, word in enumerate(words))
    return Things(ids, torch.cat(xs), torch.cat(kept).cpu(), tuple(classes))


def _arm(net: Classifier, things: Things, name: str, seed: int, say: Say) -> Gradients:
    """One arm over all pictures, one at a time: cut-outs make sixteen of each."""
    say(f"gradients: {name}")
    seeds = row_seeds(len(things.ids), seed)
    device, side = net.mean.device, net.preprocess.size[0]
    table = probabilities(net, temperature_of(net))
    parts = []
    for i, k in enumerate(things.classes):
        term = Term(entry(table, column([k], device)), side)
        with frozen(net):
            parts.append(
                gradients(term, things.x[i : i + 1].to(device),
                          things.masks[i : i + 1].to(device), ARMS[name],
                          seeds=seeds[i : i + 1].to(device))
            )  # fmt: skip
    return Gradients(torch.cat([one.values.cpu() for one in parts]),
                     torch.cat([one.inside.cpu() for one in parts]))  # fmt: skip


def _rows(
    run: Run, net: Classifier, things: Things, found: dict[str, Gradients]
) -> list[dict[str, Any]]:
    rows = []
    for i, name in enumerate(things.ids):
        for arm, made in found.items():
            stem = f"{i:03d}-{key_part(arm)}"
            rows.append(
                {
                    "id": name, "class": net.classes[things.classes[i]], "arm": arm,
                    "inside": made.inside[i].item() if made.inside[i].isfinite() else None,
                    "area": things.masks[i].float().mean().item(),
                    "original": save(run, f"{i:03d}-original.png", things.x[i]),
                    "mask": save(run, f"{i:03d}-mask.png", things.masks[i].float()[None]),
                    "image": save(run, f"{stem}.png", shown(made.values[i])),
                }
            )  # fmt: skip
    return rows


def shown(values: Tensor) -> Tensor:
    """A gradient as a grey picture: its mass, white where it is highest."""
    heat = magnitude(values[None])[0]
    top = torch.quantile(heat.flatten(), 0.995).clamp_min(1e-30)
    return (heat / top).clamp(0, 1)[None]


def _numbers(things: Things, found: dict[str, Gradients]) -> dict[str, Number]:
    """Mean shares, and their paired differences to no augmentation."""
    told = f"share of the gradient's mass inside the thing, {len(things.ids)} pictures"
    area = things.masks.float().mean((1, 2)).double().numpy()
    numbers = {"gradient.area": _mean(area, (0, 1), "share of the picture that the thing takes")}
    plain = next(iter(found.values())).inside.double().numpy()
    for arm, made in found.items():
        values = made.inside.double().numpy()
        numbers[f"gradient.{key_part(arm)}.inside"] = _mean(values, (0, 1), f"{told}; {arm}")
        if arm != next(iter(found)):
            numbers[f"gradient.{key_part(arm)}.gain"] = _mean(
                values - plain, (-1, 1), f"{told}; {arm} less no augmentation, paired"
            )
    return numbers


def _mean(values: Any, bounds: tuple[float, float], protocol: str) -> Number:
    values = values[np.isfinite(values)]
    if not len(values):
        return Number.missing("no gradient at all", protocol)
    low, high = mean_interval(values, bounds) if len(values) > 1 else (None, None)
    return Number(float(values.mean()), len(values), low, high, protocol)


def _figure(run: Run, net: Classifier, things: Things, found: dict[str, Gradients]) -> None:
    """A row per picture: itself, the thing, and the three gradients."""
    heads = ["picture", "thing", *found]
    grid: list[list[Panel]] = []
    for i in range(min(8, len(things.ids))):
        seen_: Sequence[Panel] = [
            Panel(things.x[i], net.classes[things.classes[i]][:18]),
            Panel(things.masks[i].float()[None], f"{things.masks[i].float().mean():.0%} of it"),
        ]
        made = [
            Panel(shown(one.values[i]), f"{one.inside[i]:.0%} inside") for one in found.values()
        ]
        grid.append([*seen_, *made])
    title = f"{net.name}: where the gradient of the confidence lies"
    save_figure(run, "figure-000", grid, heads=heads, title=title)
