"""Explain by small edits: colours and frames that change the answer, or do not."""

from counterlens.explanations.edits.sweeps import SWEEPS, all_flips
from counterlens.explanations.edits.variants import flip_numbers
from counterlens.explanations.figure import Panel
from counterlens.runs import Number
from counterlens.workflows._shared.figures import save, save_figure
from counterlens.workflows.explain.job import ExplainJob

COLUMNS = 8


def explain_colour(job: ExplainJob) -> dict[str, Number]:
    """Hues, saturations, grey and channel orders."""
    return _explain(job, "bias.colour")


def explain_frame(job: ExplainJob) -> dict[str, Number]:
    """Small shifts, scales and crops."""
    return _explain(job, "bias.frame")


def _explain(job: ExplainJob, key: str) -> dict[str, Number]:
    what, sweep = SWEEPS[key]
    variants = sweep()
    classes = job.classifier.classes
    result = all_flips(job.classifier, job.pictures.x, variants)
    rows = []
    for i in range(len(job.pictures)):
        x = job.pictures.x[i : i + 1]
        before = classes[int(result.before[i])]
        panels = [Panel(x[0], f"original\n{before} {result.sure[i]:.2f}")]
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
            caption = f"{variant.name}\n{answer} {sure:.2f}"
            panels.append(Panel(edited, caption, "bad" if flipped else ""))
        if i < 12:
            grid = [panels[a : a + COLUMNS] for a in range(0, len(panels), COLUMNS)]
            title = f"{job.pictures.ids[i]}: {int(result.flipped[i].sum())} of {len(variants)} flip"
            save_figure(job.run, f"figure-{i:03d}", grid, title=title)
    job.run.write_table("edits", rows)
    return flip_numbers(result, key, what)
