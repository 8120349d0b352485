"""Explain by small edits: colours and frames that change the answer, or do not."""

from collections.abc import Sequence

import torch

from counterlens.explanations.colour import colour_variants
from counterlens.explanations.fickleness import frame_variants
from counterlens.explanations.figure import Panel
from counterlens.explanations.pixel import rows_that_fit, temperature_of
from counterlens.explanations.variants import Flips, Variant, flip_numbers, flips
from counterlens.runs import Number
from counterlens.workflows.showing import Job, save, save_figure

COLUMNS = 8


def explain_colour(job: Job) -> dict[str, Number]:
    """Hues, saturations, grey and channel orders."""
    return _explain(job, colour_variants(), "bias.colour", "hue, saturation, grey, channel order")


def explain_frame(job: Job) -> dict[str, Number]:
    """Small shifts, scales and crops."""
    return _explain(job, frame_variants(), "bias.frame", "shifts, scales, crops")


def _explain(job: Job, variants: Sequence[Variant], key: str, what: str) -> dict[str, Number]:
    classes = job.classifier.classes
    device = job.classifier.mean.device
    warm = temperature_of(job.classifier)
    parts = torch.split(job.pictures.x, rows_that_fit(job.pictures.x))
    found = Flips.join(
        [flips(job.classifier, part.to(device), variants, temperature=warm) for part in parts]
    )
    rows = []
    for i in range(len(job.pictures)):
        x = job.pictures.x[i : i + 1]
        before = classes[int(found.before[i])]
        panels = [Panel(x[0], f"original\n{before[:16]} {found.sure[i]:.2f}")]
        for v, variant in enumerate(variants):
            edited = variant.edit(x)[0]
            answer, sure = classes[int(found.answers[i, v])], found.confidences[i, v].item()
            flipped = bool(found.flipped[i, v])
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
            title = f"{job.pictures.ids[i]}: {int(found.flipped[i].sum())} of {len(variants)} flip"
            save_figure(job.run, f"figure-{i:03d}", grid, title=title)
    job.run.write_table("edits", rows)
    return flip_numbers(found, key, what)
