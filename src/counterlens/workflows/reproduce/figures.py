"""Reproduce: regenerate figures of the papers with the shipped models.

Paper: Augustin et al. 2020 (ratio2020), Figures 1, 2, 5, 7 and 13.
Differs: our models are smaller, and the out-distribution pictures come from the set you name (the
       80 million tiny images are withdrawn).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from counterlens.ball import Ball, show_radius
from counterlens.classifier import Classifier
from counterlens.data import name_of
from counterlens.errors import InputError
from counterlens.explanations.counterfactuals.pixel import (
    Counterfactuals,
    confidences,
    counterfactuals,
    default_radii,
)
from counterlens.explanations.figure import Panel
from counterlens.metrics.intervals.closed_form import mean_interval
from counterlens.notation import parse_radius
from counterlens.objectives import margin
from counterlens.runs import Number, Run, key_part
from counterlens.search import frozen
from counterlens.search.apgd import apgd
from counterlens.types import Scores
from counterlens.workflows._shared.figures import save, save_figure
from counterlens.workflows._shared.objects import load_all
from counterlens.workflows._shared.options import takes
from counterlens.workflows._shared.pictures import Pictures, confidences_of, open_pictures
from counterlens.workflows._shared.result import Result
from counterlens.workflows._shared.session import Log, logger, running
from counterlens.workflows._shared.settings import check_choice
from counterlens.workflows.reproduce.options import OodFigureOptions

PANELS = 8


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
    log: Log

    def search(
        self, model: Classifier, x: torch.Tensor, targets: list[list[int]], radii: Sequence[float]
    ) -> Counterfactuals:
        """Counterfactuals of one model."""
        rows = sum(map(len, targets)) * len(radii)
        self.log(f"{model.name}: {rows} counterfactuals, {self.steps} steps")
        return counterfactuals(model, x, targets, radii=radii, steps=self.steps, seed=self.seed)


@takes(OodFigureOptions)
def figure(name: str, options: OodFigureOptions) -> Result:
    """Regenerate a figure of the RATIO paper.

    Args:
        name: one of `FIGURES`.
    """
    check_choice("the figure", name, list(FIGURES))
    draw, needs_ood = FIGURES[name]
    if options.shown < 1:
        raise InputError(f"shown is {options.shown}, expected 1 or more.")
    if options.ood and not needs_ood:
        raise InputError(f"ood has no effect on {name}. Leave it out.")
    data, seed = str(options.data), options.seed
    ood = list(options.ood) or ["sample:textures"]
    models = load_all(options.models, device=options.device)
    inside = open_pictures([data], models[0], limit=10**9, seed=seed)
    outside = open_pictures(ood, models[0], limit=options.shown, seed=seed) if needs_ood else None
    radii = tuple(map(parse_radius, options.radius)) or default_radii(
        "l2", models[0].preprocess.size
    )
    with running("reproduce", options, name=name, inputs={"figure": name}) as run:
        run.note(model=", ".join(m.name for m in models), data=name_of(data), seed=seed)
        job = Figures(
            run, models, inside, outside, radii, options.shown, options.steps, seed,
            logger(options),
        )  # fmt: skip
        run.write_table("counterfactuals", draw(job))
        run.add_numbers({})
    return Result(run)


def figure1(job: Figures) -> list[dict[str, Any]]:
    """A plain model: high confidence in any class, only noise to see."""
    model = job.models[0]
    probs = confidences_of(model, job.inside)
    right = probs.argmax(1) == torch.tensor(job.inside.labels)
    chosen = job.inside.only(_drawn(right, job))
    targets = [
        [int(k) for k in confidences_of(model, chosen)[i].topk(2).indices]
        for i in range(len(chosen))
    ]
    return _rows_by_radius(job, [model], chosen, [targets], "towards")


def figure2(job: Figures) -> list[dict[str, Any]]:
    """Images all models get wrong, towards the truth and towards each model's own mistake."""
    chosen = job.inside.only(_drawn(_all_wrong(job), job))
    targets = [
        [
            [label, int(row.argmax())]
            for label, row in zip(chosen.labels, confidences_of(m, chosen), strict=True)
        ]
        for m in job.models
    ]
    return _rows_by_radius(job, job.models, chosen, targets, "towards")


def figure7(job: Figures) -> list[dict[str, Any]]:
    """Images of other things, towards the class each model takes them for."""
    assert job.outside is not None
    targets = [[[int(row.argmax())] for row in confidences_of(m, job.outside)] for m in job.models]
    return _rows_by_radius(job, job.models, job.outside, targets, "taken for")


def figure13(job: Figures) -> list[dict[str, Any]]:
    """A random panel: images all models get wrong, towards the truth, at the largest radius."""
    chosen = job.inside.only(_drawn(_all_wrong(job), job))
    names = job.models[0].classes
    panels = [_sheet(chosen.x, [names[label] for label in chosen.labels])]
    save_figure(job.run, "figure-000", panels[0], title="originals and their labels")
    rows = []
    for number, model in enumerate(job.models, 1):
        searched = job.search(model, chosen.x, [[label] for label in chosen.labels], job.radii[-1:])
        words = [
            f"{names[t]} {p:.2f}"
            for t, p in zip(searched.target.tolist(), searched.after.tolist(), strict=True)
        ]
        sheet = _sheet(searched.points, words)
        title = f"{model.name}, l2 {show_radius('l2', job.radii[-1])}"
        save_figure(job.run, f"figure-{number:03d}", sheet, title=title)
        rows += _table(job, model, chosen, searched)
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
        targets = [[int(row.argmax())] for row in confidences_of(model, job.outside)]
        searched = job.search(model, job.outside.x, targets, job.radii)
        start = searched.before[searched.radius == job.radii[0]]
        values = [start, *(searched.after[searched.radius == radius] for radius in job.radii)]
        profile += _profile(job, f"{model.name}, other things", values)
        rows += _table(job, model, job.outside, searched)
    job.run.write_table("confidence_radius", profile)
    return rows


def _attacked(job: Figures, model: Classifier, pictures: Pictures) -> list[Scores]:
    """Confidence in the true class at the worst point of each radius, the largest margin.

    Equation: ratio2020 Fig. 5a   p̂_y(argmax_{‖z − x‖ ≤ ε} max_{k≠y} f_k(z) − f_y(z))
    """
    x, label = pictures.x.to(model.mean), torch.tensor(pictures.labels, device=model.mean.device)
    rows = torch.arange(len(x))
    job.log(f"{model.name}: {len(x) * len(job.radii)} attacks, {job.steps} steps")
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
    answers = torch.stack([confidences_of(model, job.inside).argmax(1) for model in job.models])
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
    results = [
        job.search(m, pictures.x, wanted, job.radii)
        for m, wanted in zip(models, targets, strict=True)
    ]
    heads = ["original", *(f"ε = {show_radius('l2', r)}" for r in job.radii)]
    rows = []
    for i, name in enumerate(pictures.ids):
        grid, sides = [], []
        for model, wanted, result in zip(models, targets, results, strict=True):
            classes = model.classes
            for target in dict.fromkeys(wanted[i]):
                here = (
                    torch.nonzero((result.image == i) & (result.target == target))
                    .flatten()
                    .tolist()
                )
                first = Panel(pictures.x[i], f"{classes[target]}: {result.before[here[0]]:.2f}")
                rest = [
                    Panel(result.points[k], f"{classes[target]}: {result.after[k]:.2f}")
                    for k in here
                ]
                grid.append([first, *rest])
                sides.append(f"{_brief(model.name)}\n{word}\n{classes[target]}")
        label = pictures.labels[i]
        truth = f", labelled {models[0].classes[label]}" if label >= 0 else ""
        save_figure(
            job.run, f"figure-{i:03d}", grid, heads=heads, sides=sides, title=f"{name}{truth}"
        )
    for model, result in zip(models, results, strict=True):
        rows += _table(job, model, pictures, result)
    return rows


def _table(
    job: Figures, model: Classifier, pictures: Pictures, result: Counterfactuals
) -> list[dict[str, Any]]:
    rows = []
    for k in range(len(result)):
        i, target = int(result.image[k]), int(result.target[k])
        stem = f"{key_part(model.name)}-{i:03d}-{target}-{result.radius[k].item():.4g}"
        label = pictures.labels[i]
        rows.append(
            {
                "model": model.name,
                "id": pictures.ids[i],
                "label": model.classes[label] if label >= 0 else None,
                "predicted": model.classes[int(result.answer_before[k])],
                "target": model.classes[target],
                "norm": "l2",
                "radius": result.radius[k].item(),
                "original": save(job.run, f"{i:03d}-original.png", pictures.x[i]),
                "image": save(job.run, f"{stem}.png", result.points[k]),
                "before": round(result.before[k].item(), 6),
                "after": round(result.after[k].item(), 6),
                "answer": model.classes[int(result.answer[k])],
                "distance": result.distance[k].item(),
                "changed": int(result.changed[k]),
                "smoothness": round(result.smooth[k].item(), 4),
            }
        )
    return rows


def _sheet(x: torch.Tensor, words: Sequence[str]) -> list[list[Panel]]:
    panels = [Panel(one, word) for one, word in zip(x, words, strict=True)]
    return [panels[a : a + PANELS] for a in range(0, len(panels), PANELS)]


def _brief(name: str) -> str:
    return name.removeprefix("cifar10-")[:16]
