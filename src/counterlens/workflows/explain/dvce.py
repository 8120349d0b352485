"""Explain by DVCE: guided sampling from the noised picture, a robust classifier helping."""

from dataclasses import replace
from typing import Any

import torch

from counterlens.errors import InputError
from counterlens.explanations.counterfactuals import dvce as guided
from counterlens.explanations.counterfactuals.dvce import DvceSettings, dvce
from counterlens.explanations.counterfactuals.evidence import (
    EVIDENCE,
    NOISE,
    RULE,
    opinion,
    verdicts,
)
from counterlens.explanations.counterfactuals.pixel import Counterfactuals, confidences, size_of
from counterlens.explanations.counterfactuals.targets import matched
from counterlens.explanations.counterfactuals.uvce import class_term
from counterlens.explanations.figure import Panel
from counterlens.generators.diffusion.cutouts import seen
from counterlens.generators.diffusion.memory import rows_at_a_time
from counterlens.metrics.similarity import changed_pixels, smoothness
from counterlens.progress import show_iterates
from counterlens.runs import Number, atomic
from counterlens.search import frozen
from counterlens.types import Images, Labels
from counterlens.workflows._shared.figures import save_figure
from counterlens.workflows._shared.generation.generate import seed_of
from counterlens.workflows.explain.job import ExplainJob
from counterlens.workflows.explain.options import DvceOptions
from counterlens.workflows.explain.pixel import FIGURES, mean_of, share_of, table_rows

SURE = 0.8


def explain_dvce(job: ExplainJob, options: DvceOptions) -> dict[str, Number]:
    """One counterfactual of every picture and target; returns the run's numbers."""
    result = _search(job, options)
    opinions = [
        opinion(judge, job.classifier.classes, job.pictures.x, result) for judge in job.judges
    ]
    words = verdicts(result, opinions)
    job.run.write_table("counterfactuals", table_rows(job, result, opinions, words, method="dvce"))
    job.run.note(
        rule=RULE, judges=[judge.name for judge in job.judges],
        helper=job.robust.name if job.robust else None,
    )  # fmt: skip
    _draw(job, result, words)
    helper = f"helper {job.robust.name}" if job.robust else "no robust helper"
    how = f"DVCE, {helper}, 8-bit pictures, after temperature"
    key = "counterfactual.dvce"
    out = {
        f"{key}.reached": share_of(result.reached, f"target is the top answer; {how}"),
        f"{key}.sure": share_of(result.after >= SURE, f"confidence of {SURE} or more; {how}"),
        f"{key}.confidence": mean_of(result.after, (0, 1), f"mean confidence; {how}"),
        f"{key}.smoothness": mean_of(result.smooth, (-1, 1), f"mean smoothness; {how}"),
    }
    if opinions:
        agreed = torch.stack([one.agrees for one in opinions]).float().mean(0) > 0.5
        names = ", ".join(one.judge for one in opinions)
        protocol = f"more than half of the second classifiers ({names}) answer it; {how}"
        out[f"{key}.agreed"] = share_of(agreed, protocol)
    return out


def _search(job: ExplainJob, options: DvceOptions) -> Counterfactuals:
    """All counterfactuals, a batch at a time; a resumed run skips what it has."""
    assert job.generator is not None
    model, settings = job.generator, chain_of(options)
    image = torch.tensor([i for i, wanted in enumerate(job.targets) for _ in wanted])
    target = torch.tensor([t for wanted in job.targets for t in wanted])
    nets = [job.classifier] if job.robust is None else [job.classifier, job.robust]
    for net in nets:
        if net.channels != 3:
            raise InputError(f"{net.name} sees grey pictures; the generator draws in colour.")
    size = options.batch or rows_at_a_time(model)
    parts = []
    for at in range(0, len(image), size):
        path = job.run.path("state", f"dvce-{at}.pt")
        cut = slice(at, at + size)
        if not path.exists():
            job.log(f"pictures {at + 1}–{at + len(image[cut])} of {len(image)}: "
                    f"{settings.start} steps")  # fmt: skip
            images = _batch(job, nets, image[cut], target[cut], settings)
            with atomic(path) as file:
                torch.save((images * 255).round().byte(), file)
        parts.append(torch.load(path, weights_only=True).float() / 255)
    return _measured(job, image, target, torch.cat(parts))


def chain_of(options: DvceOptions) -> DvceSettings:
    """The paper's settings with so many steps, of which the second half is walked."""
    steps = options.sampling_steps
    return replace(guided.PAPER, steps=steps, start=max(1, steps // 2))


def _batch(
    job: ExplainJob, nets: list[Any], image: Labels, target: Labels, settings: DvceSettings
) -> Images:
    assert job.generator is not None
    model, names = job.generator, job.classifier.classes
    terms = [class_term(net, matched(net, names, target)) for net in nets]
    seeds = torch.tensor(
        [
            seed_of("dvce", job.seed, job.pictures.ids[i], t)
            for i, t in zip(image.tolist(), target.tolist(), strict=True)
        ],
        device=model.device,
    )

    wanted = [names[t] for t in target.tolist()]

    def report(i: int, images: Images) -> None:
        with torch.no_grad():
            sure = terms[0].on_crops(seen(images, terms[0].side)[:, None])[:, 0].exp()
        show_iterates(images, sure, wanted)
        if i % 20 == 0:
            job.log(f"  step {i} of {settings.start}")

    with frozen(nets[0]), frozen(nets[-1]):
        images = dvce(
            model, seen(job.pictures.x[image], model.side), terms[0],
            helper=terms[1] if len(terms) > 1 else None, settings=settings, seeds=seeds,
            callback=report,
        )  # fmt: skip
    return images.cpu()


def _measured(job: ExplainJob, image: Labels, target: Labels, points: Images) -> Counterfactuals:
    """What the classifier says of them; the budget that a row needed stands for its radius."""
    x, side = job.pictures.x[image], job.classifier.preprocess.size[0]
    before, probs = (confidences(job.classifier, seen(images, side)) for images in (x, points))
    sure, answer = probs.max(1)
    rows = torch.arange(len(target))
    change = points - x
    levels = (change.double() * 255).round().numpy()
    distance = torch.tensor([size_of(row, "l2") for row in levels], dtype=torch.float64)
    return Counterfactuals(
        norm="l2", image=image, target=target, radius=distance, points=points,
        before=before[rows, target], after=probs[rows, target], answer_before=before.argmax(1),
        answer=answer, sure=sure, distance=distance, changed=changed_pixels(points, x),
        smooth=smoothness(change),
    )  # fmt: skip


def _draw(job: ExplainJob, result: Counterfactuals, words: list[str]) -> None:
    """A figure per picture: a row per target."""
    classes = job.classifier.classes
    for i in range(min(len(job.pictures), FIGURES)):
        here = torch.nonzero(result.image == i).flatten().tolist()[:FIGURES]
        grid, sides = [], []
        for k in here:
            name = classes[int(result.target[k])]
            tone: Any = {EVIDENCE: "good", NOISE: "bad"}.get(words[k], "")
            first = Panel(job.pictures.x[i], f"{name} {result.before[k]:.2f}")
            panel = Panel(result.points[k], f"{name} {result.after[k]:.2f}\n{words[k]}", tone)
            grid.append([first, panel])
            sides.append(f"towards\n{name}")
        title = f"{job.pictures.ids[i]}: {job.row(i)['predicted']} {job.row(i)['confidence']:.2f}"
        save_figure(
            job.run, f"figure-{i:03d}", grid, heads=["original", "DVCE"], sides=sides, title=title
        )
