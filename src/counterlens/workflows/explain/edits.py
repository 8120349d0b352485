"""Explain by small edits: colours and frames that change the answer, or do not."""

from collections.abc import Callable, Sequence

import torch

from counterlens.classifier import Classifier
from counterlens.explanations.counterfactuals.pixel import rows_that_fit, temperature_of
from counterlens.explanations.edits.colour import colour_variants
from counterlens.explanations.edits.frame import frame_variants
from counterlens.explanations.edits.variants import Flips, Variant, flip_numbers, flips
from counterlens.explanations.figure import Panel
from counterlens.images import ImageSet, prepare
from counterlens.runs import Number
from counterlens.search import frozen
from counterlens.types import Images
from counterlens.workflows._shared.figures import save, save_figure
from counterlens.workflows.explain.job import Job

COLUMNS = 8


def explain_colour(job: Job) -> dict[str, Number]:
    """Hues, saturations, grey and channel orders."""
    return _explain(job, "bias.colour")


def explain_frame(job: Job) -> dict[str, Number]:
    """Small shifts, scales and crops."""
    return _explain(job, "bias.frame")


SWEEPS: dict[str, tuple[str, Callable[[], tuple[Variant, ...]]]] = {
    "bias.colour": ("hue, saturation, grey, channel order", colour_variants),
    "bias.frame": ("shifts, scales, crops", frame_variants),
}


def edit_numbers(
    classifier: Classifier, images: ImageSet, *, points: int = 500
) -> dict[str, Number]:
    """Flip rates over the first images of a set, for an audit.

    `bias.colour_flip`, `bias.frame_flip` and their families; a grey model has no colours to edit.
    """
    rows = range(min(points, len(images)))
    ready = [
        prepare(images.read(i), classifier.preprocess, channels=classifier.channels) for i in rows
    ]
    x = torch.stack([torch.from_numpy(one) for one in ready]).float() / 255
    numbers: dict[str, Number] = {}
    for key, (what, variants) in SWEEPS.items():
        if key != "bias.colour" or classifier.channels == 3:
            numbers |= flip_numbers(_ask(classifier, x, variants()), key, what)
    return numbers


def _ask(classifier: Classifier, x: Images, variants: Sequence[Variant]) -> Flips:
    """The flips of many images, batch by batch."""
    device, warm = classifier.mean.device, temperature_of(classifier)
    with frozen(classifier):
        return Flips.join(
            [
                flips(classifier, part.to(device), variants, temperature=warm)
                for part in torch.split(x, rows_that_fit(x, device))
            ]
        )


def _explain(job: Job, key: str) -> dict[str, Number]:
    what, sweep = SWEEPS[key]
    variants = sweep()
    classes = job.classifier.classes
    result = _ask(job.classifier, job.pictures.x, variants)
    rows = []
    for i in range(len(job.pictures)):
        x = job.pictures.x[i : i + 1]
        before = classes[int(result.before[i])]
        panels = [Panel(x[0], f"original\n{before[:16]} {result.sure[i]:.2f}")]
        for v, variant in enumerate(variants):
            edited = variant.edit(x)[0]
            answer, sure = classes[int(result.answers[i, v])], result.confidences[i, v].item()
            flipped = bool(result.flipped[i, v])
            rows.append(
                {
                    **job.row(i),
                    "family": variant.family,
                    "variant": variant.name,
                    "image": save(job.run, f"{i:03d}-{v:02d}.png", edited),
                    "answer": answer,
                    "sure": round(sure, 6),
                    "flipped": flipped,
                }
            )
            caption = f"{variant.name}\n{answer[:16]} {sure:.2f}"
            panels.append(Panel(edited, caption, "bad" if flipped else ""))
        if i < 12:
            grid = [panels[a : a + COLUMNS] for a in range(0, len(panels), COLUMNS)]
            title = f"{job.pictures.ids[i]}: {int(result.flipped[i].sum())} of {len(variants)} flip"
            save_figure(job.run, f"figure-{i:03d}", grid, title=title)
    job.run.write_table("edits", rows)
    return flip_numbers(result, key, what)
