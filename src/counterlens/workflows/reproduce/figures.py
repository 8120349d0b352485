"""Reproduce: regenerate figures of the papers with the shipped models.

Paper: Augustin et al. 2020 (ratio2020), Figures 1, 2, 5, 7 and 13.
Differs: our models are smaller, and the out-distribution pictures come from the set you name (the
       80 million tiny images are withdrawn).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from counterlens.ball import Ball
from counterlens.classifier import Classifier
from counterlens.data import name_of
from counterlens.errors import InputError
from counterlens.explanations.counterfactuals.pixel import (
    STEPS,
    Counterfactuals,
    confidences,
    counterfactuals,
    default_radii,
)
from counterlens.explanations.figure import Panel
from counterlens.metrics.intervals.closed_form import mean_interval
from counterlens.objectives import margin
from counterlens.report import render
from counterlens.runs import Number, Run, key_part, new_folder
from counterlens.search import frozen
from counterlens.search.apgd import apgd
from counterlens.types import Scores
from counterlens.workflows._shared.figures import save, save_figure
from counterlens.workflows._shared.pictures import Pictures, open_pictures
from counterlens.workflows._shared.result import Result
from counterlens.workflows._shared.session import Say, teller
from counterlens.workflows.explain.pixel import show_radius
from counterlens.workflows.explain.run import ask, load_all

PANELS = 8
DEFAULTS = ("zoo:cifar10-plain-small", "zoo:cifar10-ratio-small")


@dataclass(frozen=True)
class Figures:
    """What a figure is made of."""

    run: Run
    models: list[Classifier]
    inside: Pictures
    outside: Pictures | None
    radii: tuple[float, ...]
    count: int
    steps: int
    seed: int
    say: Say

    def search(
        self, model: Classifier, x: torch.Tensor, targets: list[list[int]], radii: Sequence[float]
    ) -> Counterfactuals:
        """Counterfactuals of one model."""
        rows = sum(map(len, targets)) * len(radii)
        self.say(f"{model.name}: {rows} counterfactuals, {self.steps} steps")
        return counterfactuals(model, x, targets, radii=radii, steps=self.steps, seed=self.seed)


def reproduce(
    name: str,
    *,
    model: Sequence[str] = DEFAULTS,
    data: str = "sample:cifar10",
    ood: str = "sample:textures",
    count: int = 4,
    steps: int = STEPS,
    radius: Sequence[float] = (),
    out: Path | None = None,
    resume: bool = False,
    seed: int = 0,
    device: str = "auto",
    quiet: bool = False,
) -> Result:
    """Regenerate a figure of a paper.

    Args:
        name: one of `FIGURES`.
        model: the models to compare, plain first.
        data: test images of the models' classes.
        ood: images of other things, for Figure 7.
        count: how many images to show.
    """
    if name not in FIGURES:
        raise InputError(f"no figure {name!r}, expected one of {', '.join(FIGURES)}.")
    if count < 1:
        raise InputError(f"count is {count}, expected 1 or more.")
    make, needs_ood = FIGURES[name]
    settings: dict[str, Any] = {
        "figure": name, "model": list(model), "data": data, "ood": ood, "count": count,
        "steps": steps, "radius": list(radius), "seed": seed,
    }  # fmt: skip
    models = load_all(model, device=device)
    inside = open_pictures([f"{data}"], models[0], limit=10**9, seed=seed)
    outside = open_pictures([ood], models[0], limit=count, seed=seed) if needs_ood else None
    run = Run.create(out or new_folder("reproduce", name), "reproduce", settings, resume=resume)
    run.note(model=", ".join(m.name for m in models), data=name_of(data), seed=seed)
    radii = tuple(radius) or default_radii("l2", models[0].preprocess.size)
    job = Figures(run, models, inside, outside, radii, count, steps, seed, teller(quiet))
    run.write_table("counterfactuals", make(job))
    run.add_numbers({})
    render(run)
    run.finish()
    return Result(run)


def figure1(job: Figures) -> list[dict[str, Any]]:
    """A plain model: high confidence in any class, only noise to see."""
    model = job.models[0]
    probs = ask(model, job.inside)
    right = probs.argmax(1) == torch.tensor(job.inside.labels)
    chosen = job.inside.only(_drawn(right, job))
    targets = [[int(k) for k in ask(model, chosen)[i].topk(2).indices] for i in range(len(chosen))]
    return _rows_by_radius(job, [model], chosen, [targets], "towards")


def figure2(job: Figures) -> list[dict[str, Any]]:
    """Images all models get wrong, towards the truth and towards each model's own mistake."""
    chosen = job.inside.only(_drawn(_all_wrong(job), job))
    targets = [
        [
            [label, int(row.argmax())]
            for label, row in zip(chosen.labels, ask(m, chosen), strict=True)
        ]
        for m in job.models
    ]
    return _rows_by_radius(job, job.models, chosen, targets, "towards")


def figure7(job: Figures) -> list[dict[str, Any]]:
    """Images of other things, towards the class each model takes them for."""
    assert job.outside is not None
    targets = [[[int(row.argmax())] for row in ask(m, job.outside)] for m in job.models]
    return _rows_by_radius(job, job.models, job.outside, targets, "taken for")


def figure13(job: Figures) -> list[dict[str, Any]]:
    """A random panel: images all models get wrong, towards the truth, at the largest radius."""
    chosen = job.inside.only(_drawn(_all_wrong(job), job))
    names = job.models[0].classes
    panels = [_sheet(chosen.x, [names[label] for label in chosen.labels])]
    save_figure(job.run, "figure-000", panels[0], title="originals and their labels")
    rows = []
    for number, model in enumerate(job.models, 1):
        found = job.search(model, chosen.x, [[label] for label in chosen.labels], job.radii[-1:])
        words = [
            f"{names[t]} {p:.2f}"
            for t, p in zip(found.target.tolist(), found.after.tolist(), strict=True)
        ]
        sheet = _sheet(found.points, words)
        title = f"{model.name}, l2 {show_radius('l2', job.radii[-1])}"
        save_figure(job.run, f"figure-{number:03d}", sheet, title=title)
        rows += _table(job, model, chosen, found)
    return rows


def figure5(job: Figures) -> list[dict[str, Any]]:
    """Profiles: confidence in the truth under attack, and in the first answer on other things."""
    assert job.outside is not None
    labelled = [i for i, label in enumerate(job.inside.labels) if label >= 0]
    inside = job.inside.only(labelled[: job.count])
    rows: list[dict[str, Any]] = []
    profile: list[dict[str, Any]] = []
    for model in job.models:
        profile += _profile(
            job, f"{model.name}, true class under attack", _attacked(job, model, inside)
        )
        targets = [[int(row.argmax())] for row in ask(model, job.outside)]
        found = job.search(model, job.outside.x, targets, job.radii)
        start = found.before[found.radius == job.radii[0]]
        values = [start, *(found.after[found.radius == radius] for radius in job.radii)]
        profile += _profile(job, f"{model.name}, other things", values)
        rows += _table(job, model, job.outside, found)
    job.run.write_table("confidence_radius", profile)
    return rows


def _attacked(job: Figures, model: Classifier, pictures: Pictures) -> list[Scores]:
    """Confidence in the true class at the worst point of each radius, the largest margin.

    Equation: ratio2020 Fig. 5a   p̂_y(argmax_{‖z − x‖ ≤ ε} max_{k≠y} f_k(z) − f_y(z))
    """
    x, label = pictures.x.to(model.mean), torch.tensor(pictures.labels, device=model.mean.device)
    rows = torch.arange(len(x))
    job.say(f"{model.name}: {len(x) * len(job.radii)} attacks, {job.steps} steps")
    values = [confidences(model, x)[rows, label.cpu()]]
    for radius in job.radii:
        with frozen(model):
            z = apgd(margin(model, label), x, Ball("l2", radius), steps=job.steps).points
        values.append(confidences(model, z)[rows, label.cpu()])
    return values


def _profile(job: Figures, name: str, values: Sequence[Scores]) -> list[dict[str, Any]]:
    """Mean confidence at radius 0 and at each radius, as rows for the report and as numbers."""
    rows, numbers = [], {}
    for radius, scores in zip((0.0, *job.radii), values, strict=True):
        mean = scores.double().mean().item()
        low, high = mean_interval(scores.double().numpy(), (0.0, 1.0))
        key = f"profile.{key_part(name)}-{radius:g}.confidence"
        how = f"mean confidence, l2 radius {radius:g}, APGD {job.steps} steps"
        numbers[key] = Number(mean, len(scores), low, high, how)
        rows.append(
            {"set": name, "norm": "l2", "radius": radius, "confidence": mean, "n": len(scores)}
        )
    job.run.add_numbers(numbers)
    return rows


FIGURES: Mapping[str, tuple[Callable[[Figures], list[dict[str, Any]]], bool]] = {
    "ratio-figure1": (figure1, False),
    "ratio-figure2": (figure2, False),
    "ratio-figure5": (figure5, True),
    "ratio-figure7": (figure7, True),
    "ratio-figure13": (figure13, False),
}
"""Name → (what draws it, whether it needs images of other things)."""


def _all_wrong(job: Figures) -> torch.Tensor:
    truth = torch.tensor(job.inside.labels)
    answers = torch.stack([ask(model, job.inside).argmax(1) for model in job.models])
    return (answers != truth).all(0) & (truth >= 0)


def _drawn(flags: torch.Tensor, job: Figures) -> list[int]:
    """Up to `count` of the flagged images, at random, in their own order."""
    rows = torch.nonzero(flags).flatten()
    if not len(rows):
        raise InputError("no image fits: the models share no mistake on this set. Use more images.")
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(job.seed))
    return sorted(rows[order[: job.count]].tolist())


def _rows_by_radius(
    job: Figures,
    models: Sequence[Classifier],
    pictures: Pictures,
    targets: Sequence[list[list[int]]],
    word: str,
) -> list[dict[str, Any]]:
    """One figure per image: a row per model and target, a column per radius."""
    found = [
        job.search(m, pictures.x, wanted, job.radii)
        for m, wanted in zip(models, targets, strict=True)
    ]
    heads = ["original", *(f"ε = {show_radius('l2', r)}" for r in job.radii)]
    rows = []
    for i, name in enumerate(pictures.ids):
        grid, sides = [], []
        for model, wanted, made in zip(models, targets, found, strict=True):
            classes = model.classes
            for target in dict.fromkeys(wanted[i]):
                here = torch.nonzero((made.image == i) & (made.target == target)).flatten().tolist()
                first = Panel(pictures.x[i], f"{classes[target]}: {made.before[here[0]]:.2f}")
                rest = [
                    Panel(made.points[k], f"{classes[target]}: {made.after[k]:.2f}") for k in here
                ]
                grid.append([first, *rest])
                sides.append(f"{_brief(model.name)}\n{word}\n{classes[target]}")
        label = pictures.labels[i]
        truth = f", labelled {models[0].classes[label]}" if label >= 0 else ""
        save_figure(
            job.run, f"figure-{i:03d}", grid, heads=heads, sides=sides, title=f"{name}{truth}"
        )
    for model, made in zip(models, found, strict=True):
        rows += _table(job, model, pictures, made)
    return rows


def _table(
    job: Figures, model: Classifier, pictures: Pictures, found: Counterfactuals
) -> list[dict[str, Any]]:
    rows = []
    for k in range(len(found)):
        i, target = int(found.image[k]), int(found.target[k])
        stem = f"{key_part(model.name)}-{i:03d}-{target}-{found.radius[k].item():.4g}"
        label = pictures.labels[i]
        rows.append(
            {
                "model": model.name,
                "id": pictures.ids[i],
                "label": model.classes[label] if label >= 0 else None,
                "predicted": model.classes[int(found.answer_before[k])],
                "target": model.classes[target],
                "norm": "l2",
                "radius": found.radius[k].item(),
                "original": save(job.run, f"{i:03d}-original.png", pictures.x[i]),
                "image": save(job.run, f"{stem}.png", found.points[k]),
                "before": round(found.before[k].item(), 6),
                "after": round(found.after[k].item(), 6),
                "answer": model.classes[int(found.answer[k])],
                "distance": found.distance[k].item(),
                "changed": int(found.changed[k]),
                "smoothness": round(found.smooth[k].item(), 4),
            }
        )
    return rows


def _sheet(x: torch.Tensor, words: Sequence[str]) -> list[list[Panel]]:
    panels = [Panel(one, word) for one, word in zip(x, words, strict=True)]
    return [panels[a : a + PANELS] for a in range(0, len(panels), PANELS)]


def _brief(name: str) -> str:
    return name.removeprefix("cifar10-")[:16]
