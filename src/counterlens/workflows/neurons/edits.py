"""Counterfactuals of units and components: a real image with a feature raised, and lowered.

Changes of the object are penalised and the background is free, so what appears or goes around it
may be what the feature sees there. How much of the object stays is not measured.

Paper: Augustin, Neuhaus, Hein 2024 (digin2024), section 5, Figures 10 to 12.
Differs: cut-outs with noise, as the paper's text has it; its code asks about the whole image alone
       (`cuts=0`), which at a generator as small as the classifier invites noise.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from counterlens.classifier import Classifier
from counterlens.data.masks import object_of
from counterlens.data.synthetic import captions
from counterlens.errors import InputError
from counterlens.explanations.cam import feature_saliency, overlay
from counterlens.explanations.counterfactuals.masks import resized
from counterlens.explanations.counterfactuals.pixel import temperature_of
from counterlens.explanations.counterfactuals.uvce import (
    NEURON,
    Change,
    EditSettings,
    Prepared,
    prepare,
    uvce,
)
from counterlens.explanations.features.directions import Direction, unit_direction
from counterlens.explanations.figure import Panel
from counterlens.generators.diffusion.cutouts import seen
from counterlens.generators.diffusion.memory import room, steps_to_keep
from counterlens.generators.diffusion.model import LatentDiffusion
from counterlens.generators.diffusion.optimise import COUNTERFACTUAL, Term, begin
from counterlens.generators.diffusion.recompute import StoredSteps
from counterlens.images import prepare as prepare_image
from counterlens.images import read
from counterlens.metrics.intervals.closed_form import mean_interval, wilson
from counterlens.models.parts import features
from counterlens.runs import Number, Run
from counterlens.search import frozen
from counterlens.search.adam import Iterate
from counterlens.types import Images, Labels, Preprocess, Probs, Scores
from counterlens.workflows._shared.batches import in_parts
from counterlens.workflows._shared.figures import save, save_figure
from counterlens.workflows._shared.generation.edit_settings import edited
from counterlens.workflows._shared.generation.generate import REACH, reread, seed_of
from counterlens.workflows._shared.generation.generator import open_generator_for
from counterlens.workflows._shared.objects import pictures_given
from counterlens.workflows._shared.pictures import Pictures, open_pictures
from counterlens.workflows._shared.session import Log
from counterlens.workflows.neurons.data import read_known
from counterlens.workflows.neurons.job import FeatureRows, NeuronJob, NeuronWork
from counterlens.workflows.neurons.npca import components
from counterlens.workflows.neurons.options import CounterfactualOptions
from counterlens.workflows.neurons.pixel import key

WAYS = {"raised": 1.0, "lowered": -1.0}
MOST = 64
EDIT: EditSettings = replace(NEURON, chain=COUNTERFACTUAL)
"""As the paper's text: prompt and schedule of the code, with cut-outs."""


AT_32 = replace(EDIT, chain=replace(EDIT.chain, text_rate=0.1, noise_rate=0.005, reach=REACH))
"""For small generators, whose inputs have to move further; the paper's steps are for 512 pixels."""
SMALL = 128


def usual(model: LatentDiffusion) -> EditSettings:
    """The settings for a generator of its size."""
    return AT_32 if model.side < SMALL else EDIT


@dataclass(frozen=True)
class FeatureEditing:
    """One call: which features, on which images, with which generator.

    Args:
        pictures: of the generator's size.
        objects: the class of each picture, whose word is held.
        masks: of the object, in place of those by attention.
    """

    run: Run
    classifier: Classifier
    model: LatentDiffusion
    pictures: Pictures
    objects: Labels
    masks: torch.Tensor | None
    settings: EditSettings
    seed: int
    memory: str | None
    log: Log


def counterfactual(job: NeuronJob, options: CounterfactualOptions) -> NeuronWork:
    """The features that the options name, raised and lowered on pictures by a generator."""
    net = job.classifier
    directions = [unit_direction(net, number) for number in dict.fromkeys(options.unit)]
    job.check_head()
    if options.npca:
        known = read_known(net, options.data, limit=options.limit, seed=options.seed, log=job.log)
        directions += [direction for _, direction in components(net, known, options.npca)]
    model = open_generator_for([net], options.generator, half=options.half)
    side = Preprocess((model.side, model.side))
    given = pictures_given(options.image, options.limit, options.seed)
    pictures = open_pictures(given, net, limit=options.limit, seed=options.seed, preprocess=side)
    base = usual(model)
    settings = edited(base, options.changes)
    masks = _masks(options.mask, pictures.ids, side)

    def work(run: Run) -> tuple[FeatureRows, dict[str, Number]]:
        run.note(search=asdict(settings.chain), generator=model.name)
        run.write_table("notes", [{"note": note} for note in pictures.notes])
        editing = FeatureEditing(
            run, net, model, pictures, _objects(net, pictures), masks, settings, options.seed,
            options.memory, job.log,
        )  # fmt: skip
        return edit_directions(editing, directions)

    return work


def _objects(classifier: Classifier, pictures: Pictures) -> Labels:
    """The class of each picture: its label where known, else the classifier's answer."""
    labels = torch.tensor(pictures.labels)
    if (labels >= 0).all():
        return labels
    with torch.no_grad():
        small = seen(pictures.x, classifier.preprocess.size[0]).to(classifier.mean.device)
        answers = [classifier(part).argmax(1).cpu() for part in torch.split(small, 64)]
    return torch.where(labels < 0, torch.cat(answers), labels)


def _masks(mask: Sequence[str], ids: Sequence[str], side: Preprocess) -> torch.Tensor | None:
    """Masks of the pictures: a file of all or of each, or a folder of files by their names."""
    if not mask or tuple(mask) == ("attention",):
        return None
    if len(mask) not in (1, len(ids)):
        raise InputError(f"{len(mask)} masks for {len(ids)} pictures, expected 1 or {len(ids)}.")
    fit = replace(side, interpolation="nearest")
    masks = []
    for name, given in zip(ids, mask if len(mask) > 1 else [mask[0]] * len(ids), strict=True):
        path = Path(given)
        path = path / f"{Path(name).stem}.png" if path.is_dir() else path
        if not path.is_file():
            raise InputError(
                f"no mask {path} for {name}: expected a PNG file, or a folder of them."
            )
        white = object_of(read(path), border=True)[..., None].repeat(3, 2).astype("uint8") * 255
        masks.append(torch.from_numpy(prepare_image(white, fit)[:1] >= 128).float())
    return torch.stack(masks)


def direction_term(classifier: Classifier, direction: Direction, weight: float, n: int) -> Term:
    """A direction's value, raised or lowered.

    Equation: digin2024 (6)   max ±φ(D(z_0))_n,  or ±α_l(D(z_0))
    """
    return Term(direction.objective(classifier, n), classifier.preprocess.size[0], weight)


def edit_directions(
    job: FeatureEditing, directions: Sequence[Direction]
) -> tuple[list[dict[str, Any]], dict[str, Number]]:
    """Every feature, raised and lowered, on every picture: rows, and numbers."""
    names = [f"picture-{i:03d}" for i in range(len(job.pictures))]
    missing = [
        i for i, name in enumerate(names)
        if not all(_path(job.run, d, way, name).exists() for d in directions for way in WAYS)
    ]  # fmt: skip
    with frozen(job.classifier):
        in_parts(
            missing, lambda: _plan(job, directions, len(missing)),
            lambda rows, stored: _make(job, directions, rows, stored, names),
            steps=job.settings.chain.steps, log=job.log, what="pictures",
        )  # fmt: skip
    rows: list[dict[str, Any]] = []
    numbers: dict[str, Number] = {}
    for direction in directions:
        part = _measure(job, direction, names)
        rows += part
        numbers |= _numbers(job, direction, part)
    return rows, numbers


def measured(
    classifier: Classifier, direction: Direction, x: Images, target: Labels
) -> tuple[Scores, Probs, Labels]:
    """A direction's value, the confidence in each image's class, and the answer."""
    temperature = temperature_of(classifier)
    values, sure, answers = [], [], []
    with torch.no_grad(), frozen(classifier):
        for part, y in zip(torch.split(x, MOST), torch.split(target, MOST), strict=True):
            small = seen(part.to(classifier.mean.device), classifier.preprocess.size[0])
            values.append(direction.values(features(classifier, small).float()).cpu())
            probs = (classifier(small).float() / temperature).softmax(1).cpu()
            sure.append(probs.gather(1, y[:, None]))
            answers.append(probs.argmax(1))
    return torch.cat(values), torch.cat(sure), torch.cat(answers)


def changed_inside(x: Images, start: Images, mask: torch.Tensor) -> Scores:
    """Root mean square change of channel values on the object, per image; 0 without an object."""
    square = (mask * (x - start).square()).sum((1, 2, 3))
    return (square / (x.shape[1] * mask.sum((1, 2, 3))).clamp_min(1e-12)).sqrt()


def _plan(
    job: FeatureEditing, directions: Sequence[Direction], count: int
) -> tuple[StoredSteps, int]:
    """What to keep for the backward pass, and pictures at a time."""
    chain, count = job.settings.chain, min(count, MOST)
    some = begin(job.model, [""] * count, torch.zeros(count).long(), steps=chain.steps)
    term = direction_term(job.classifier, directions[0], 1.0, count)
    return steps_to_keep(job.model, some, chain, room(job.memory, job.model.device), [term])


def _make(
    job: FeatureEditing,
    directions: Sequence[Direction],
    rows: Sequence[int],
    stored: StoredSteps,
    names: Sequence[str],
) -> None:
    """Invert some pictures once, then change them for every feature and way."""
    words = [captions.word(job.classifier.classes[int(job.objects[i])]) for i in rows]
    prompts = [captions.prompt(word) for word in words]
    x = job.pictures.x[list(rows)]
    masks = job.masks[list(rows)] if job.masks is not None else None
    job.log(f"inverting {len(rows)} pictures")
    ready = prepare(job.model, x, prompts, words, masks=masks, settings=job.settings)
    for b, i in enumerate(rows):
        save(job.run, f"{names[i]}-mask.png", ready.masks[b].cpu())
        save(job.run, f"{names[i]}-again.png", ready.inversion.images[b].cpu())
    seeds = torch.tensor([seed_of("edit", job.seed, job.pictures.ids[i]) for i in rows])
    for direction in directions:
        for way, weight in WAYS.items():
            job.log(f"{direction.name} {way} on {len(rows)} pictures")
            edited = _edit(job, ready, prompts, words, direction, weight, seeds, stored)
            for b, i in enumerate(rows):
                save(job.run, _path(job.run, direction, way, names[i]).name, edited[b].cpu())


def _edit(
    job: FeatureEditing, ready: Prepared, prompts: list[str], words: list[str],
    direction: Direction, weight: float, seeds: torch.Tensor, stored: StoredSteps,
) -> Images:  # fmt: skip
    updates = job.settings.chain.updates

    def report(k: int, now: Iterate) -> None:
        if k % 5 == 0 or k == updates:
            job.log(f"  update {k} of {updates}: mean score {now.judged.mean().item():.3f}")

    term = direction_term(job.classifier, direction, weight, len(prompts))
    changes = [Change(text, (word, word)) for text, word in zip(prompts, words, strict=True)]
    return uvce(
        job.model, ready, [term], changes, settings=job.settings,
        seeds=seeds.to(job.model.device), stored=stored, callback=report,
    ).images  # fmt: skip


def _path(run: Run, direction: Direction, way: str, name: str) -> Any:
    return run.path("images", f"{key(direction)}-{name}-{way}.png")


def _measure(
    job: FeatureEditing, direction: Direction, names: Sequence[str]
) -> list[dict[str, Any]]:
    """Values and confidences of the files as they lie on disk; the figure."""
    arms: dict[str, tuple[Images, Scores, Probs, Labels]] = {}
    images = {"start": job.pictures.x}
    for way in WAYS:
        files = [f"images/{_path(job.run, direction, way, name).name}" for name in names]
        images[way] = reread(job.run, files)
    for way, x in images.items():
        arms[way] = (x, *measured(job.classifier, direction, x, job.objects))
    rows, grid = [], []
    for i, name in enumerate(names):
        line = []
        for way in ("lowered", "start", "raised"):
            x, values, sure, _ = arms[way]
            line.append(Panel(x[i], f"{way}\n{values[i]:.2f} ({sure[i, 0]:.2f})"))
        mask = reread(job.run, [f"images/{name}-mask.png"])[0]
        grid.append([Panel(mask, "kept"), *line])
        for way in WAYS:
            rows.append(_row(job, direction, way, i, name, arms, mask))
    title = f"{job.classifier.name}, {direction.name}: value (confidence in the class)"
    sides = [job.pictures.ids[i] for i in range(len(names))][:12]
    save_figure(job.run, f"figure-edit-{key(direction)}", grid[:12], sides=sides, title=title)
    return rows


def _row(
    job: FeatureEditing, direction: Direction, way: str, i: int, name: str,
    arms: dict[str, tuple[Images, Scores, Probs, Labels]],
    mask: torch.Tensor,
) -> dict[str, Any]:  # fmt: skip
    x, values, sure, answers = arms[way]
    first, before, begun, begun_answers = arms["start"]
    place = int(job.objects[i])
    small = seen(x[i : i + 1].to(job.classifier.mean.device), job.classifier.preprocess.size[0])
    saliency = feature_saliency(job.classifier, small, direction.weight)
    mapped = overlay(
        x[i : i + 1], resized(saliency[:, None], (x.shape[2], x.shape[3]))[:, 0].cpu()
    )[0]
    file = _path(job.run, direction, way, name).name
    return {
        "kind": direction.kind, "unit": direction.number, "name": direction.name, "how": way,
        "id": job.pictures.ids[i], "class": job.classifier.classes[place],
        "original": save(job.run, f"{name}.png", job.pictures.x[i]),
        "image": f"images/{file}",
        "map": save(job.run, file.removesuffix(".png") + "-map.png", mapped),
        "activation": values[i].item(), "start": before[i].item(),
        "confidence": sure[i, 0].item(), "confidence_start": begun[i, 0].item(),
        "inside": changed_inside(x[i : i + 1], first[i : i + 1], mask[None, :1]).item(),
        "class_kept": int(answers[i]) == place, "class_start": int(begun_answers[i]) == place,
        "votes": [],
    }  # fmt: skip


def _numbers(
    job: FeatureEditing, direction: Direction, rows: Sequence[dict[str, Any]]
) -> dict[str, Number]:
    """Means of value and confidence: as it is, raised, lowered."""
    start = f"feature.{key(direction)}"
    cuts = job.settings.chain.cuts
    protocol = (
        f"{len(job.pictures)} pictures, changes of the object penalised, "
        f"generator {job.model.name}, {job.settings.chain.updates} updates, "
        f"{cuts or 'no'} cut-outs; BCa bootstrap"
    )
    numbers: dict[str, Number] = {}
    unbounded = (-np.inf, np.inf)
    for way in ("start", *WAYS):
        part = [row for row in rows if row["how"] == (way if way != "start" else "raised")]
        value = "start" if way == "start" else "activation"
        sure = "confidence_start" if way == "start" else "confidence"
        for metric, name, bounds in (
            (way, value, unbounded), (f"{way}_confidence", sure, (0.0, 1.0))
        ):  # fmt: skip
            values = np.array([row[name] for row in part], dtype=np.float64)
            low, high = mean_interval(values, bounds) if len(values) > 1 else (None, None)
            numbers[f"{start}.{metric}"] = Number(
                float(values.mean()), len(values), low, high, protocol
            )
    for way in WAYS:
        numbers |= _unchanged(start, way, [row for row in rows if row["how"] == way], protocol)
    return numbers


def _unchanged(
    start: str, way: str, rows: Sequence[dict[str, Any]], protocol: str
) -> dict[str, Number]:
    """Was the object kept? By its pixels, and by the answer where that was the class before."""
    inside = np.array([row["inside"] for row in rows], dtype=np.float64)
    low, high = mean_interval(inside, (0.0, 1.0)) if len(inside) > 1 else (None, None)
    words = f"root mean square change of channel values on the object; {protocol}"
    numbers = {f"{start}.{way}_inside": Number(float(inside.mean()), len(inside), low, high, words)}
    right = [row["class_kept"] for row in rows if row["class_start"]]
    words = f"answered with the class still, of pictures so answered before; {protocol}"
    numbers[f"{start}.{way}_class_kept"] = (
        Number(sum(right) / len(right), len(right), *wilson(sum(right), len(right)), words)
        if right
        else Number.missing("no picture was answered with its class before", words)
    )
    return numbers
