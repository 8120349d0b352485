"""Explain by pixel counterfactuals: pictures, distances, second opinions, verdicts."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, cast

import numpy as np
import torch

from counterlens.ball import Norm, show_radius
from counterlens.explanations.counterfactuals.evidence import (
    EVIDENCE,
    NOISE,
    RULE,
    Opinion,
    opinion,
    verdicts,
)
from counterlens.explanations.counterfactuals.pixel import (
    Counterfactuals,
    counterfactuals,
    default_radii,
    join,
    rows_that_fit,
)
from counterlens.explanations.figure import Panel
from counterlens.metrics.intervals.closed_form import mean_interval, wilson
from counterlens.progress import doing
from counterlens.runs import Number, atomic, key_part
from counterlens.workflows._shared.figures import difference, save, save_figure
from counterlens.workflows.explain.job import ExplainJob
from counterlens.workflows.explain.options import PixelOptions

SURE = 0.9
FIGURES = 12
"""At most so many pictures get a figure, of at most so many targets; all are in the table."""


def explain_pixel(job: ExplainJob, options: PixelOptions) -> dict[str, Number]:
    """Counterfactuals of every picture, target and radius; returns the run's numbers."""
    result = search(job, options)
    opinions = [
        opinion(judge, job.classifier.classes, job.pictures.x, result) for judge in job.judges
    ]
    words = verdicts(result, opinions)
    job.run.write_table("counterfactuals", table_rows(job, result, opinions, words))
    job.run.note(rule=RULE, judges=[judge.name for judge in job.judges])
    draw(job, result, opinions, words)
    return numbers(result, opinions, words)


def search(job: ExplainJob, options: PixelOptions) -> Counterfactuals:
    """All counterfactuals of a job, a few pictures at a time; a resumed run skips what it has."""
    norm = cast(Norm, options.norm)
    radii = job.radii or default_radii(norm, job.classifier.preprocess.size)
    per_picture = max(len(wanted) for wanted in job.targets) * len(radii)
    device = job.classifier.mean.device
    rows_at_once = options.batch or (
        0 if device.type == "cpu" else rows_that_fit(job.pictures.x, device)
    )
    group = max(1, rows_at_once // per_picture)  # a processor takes one picture after the other
    count = len(job.pictures)
    job.log(
        f"{count} picture{'s' * (count > 1)}, {per_picture} counterfactuals each, "
        f"{options.steps} steps"
    )
    parts = []
    for at in range(0, len(job.pictures), group):
        doing("counterfactuals, pictures", at, count)
        path = job.run.path("state", f"pixel-{at}-{min(group, count - at)}.npz")
        if path.exists():
            parts.append(_load(path.read_bytes(), norm))
            continue
        part = counterfactuals(
            job.classifier,
            job.pictures.x[at : at + group],
            job.targets[at : at + group],
            norm=norm,
            radii=radii,
            steps=options.steps,
            seed=job.seed,
            batch=options.batch,
        )
        columns = {f.name: getattr(part, f.name) for f in fields(part) if f.name != "norm"}
        columns["image"] = part.image + at
        with atomic(path) as file, file.open("wb") as opened:
            np.savez(opened, **{name: value.numpy() for name, value in columns.items()})
        parts.append(Counterfactuals(norm=norm, **columns))
    return join(parts)


def numbers(
    result: Counterfactuals, opinions: Sequence[Opinion], words: Sequence[str]
) -> dict[str, Number]:
    """How often each budget was enough, and for whom."""
    out = {}
    agreed = (
        torch.stack([one.agrees for one in opinions]).float().mean(0) > 0.5 if opinions else None
    )
    names = ", ".join(one.judge for one in opinions)
    for radius in sorted(set(result.radius.tolist())):
        rows = result.radius == radius
        key = f"counterfactual.{key_part(f'{result.norm}:{show_radius(result.norm, radius)}')}"
        how = f"{result.norm} {show_radius(result.norm, radius)}, 8-bit pictures, after temperature"
        sure = result.after[rows] >= SURE
        out[f"{key}.reached"] = share_of(result.reached[rows], f"target is the top answer; {how}")
        out[f"{key}.sure"] = share_of(sure, f"confidence in the target of {SURE} or more; {how}")
        if agreed is not None:
            out[f"{key}.agreed"] = share_of(
                agreed[rows], f"more than half of the second classifiers ({names}) answer it; {how}"
            )
        picked = [word for word, here in zip(words, rows.tolist(), strict=True) if here]
        shown = torch.tensor([word == EVIDENCE for word in picked])
        out[f"{key}.evidence"] = share_of(shown, f"verdict class evidence; {how}")
        out[f"{key}.confidence"] = mean_of(result.after[rows], (0, 1), f"mean confidence; {how}")
        out[f"{key}.smoothness"] = mean_of(result.smooth[rows], (-1, 1), f"mean smoothness; {how}")
    return out


def draw(
    job: ExplainJob, result: Counterfactuals, opinions: Sequence[Opinion], words: Sequence[str]
) -> None:
    """A figure per picture as in the paper: a row per target, a column per radius."""
    classes = job.classifier.classes
    radii = sorted(set(result.radius.tolist()))
    heads = ["original", *(f"{_sign(result.norm)} {show_radius(result.norm, r)}" for r in radii)]
    for i in range(min(len(job.pictures), FIGURES)):
        grids, sides = [], []
        for target in job.targets[i][:FIGURES]:
            here = torch.nonzero((result.image == i) & (result.target == target)).flatten().tolist()
            here.sort(key=lambda k: result.radius[k].item())
            first = Panel(job.pictures.x[i], f"{classes[target]} {result.before[here[0]]:.2f}")
            grids.append([first, *(_panel(result, k, classes[target], words[k]) for k in here)])
            sides.append(f"towards\n{classes[target]}")
        title = f"{job.pictures.ids[i]}: {job.row(i)['predicted']} {job.row(i)['confidence']:.2f}"
        save_figure(job.run, f"figure-{i:03d}", grids, heads=heads, sides=sides, title=title)


def _panel(result: Counterfactuals, k: int, name: str, word: str) -> Panel:
    tone = {EVIDENCE: "good", NOISE: "bad"}.get(word, "")
    return Panel(result.points[k], f"{name} {result.after[k]:.2f}\n{word}", tone)  # type: ignore[arg-type]


def table_rows(
    job: ExplainJob,
    result: Counterfactuals,
    opinions: Sequence[Opinion],
    words: Sequence[str],
    *,
    method: str = "",
) -> list[dict[str, Any]]:
    """One row per counterfactual, its pictures as files; another method than pixels says so."""
    classes = job.classifier.classes
    size = result.points.shape[2] * result.points.shape[3]
    rows = []
    for k in range(len(result)):
        i, target = int(result.image[k]), int(result.target[k])
        budget = f"{key_part(result.norm)}-{result.radius[k].item():.4g}"
        name = f"{i:03d}-{target}-{method or budget}"
        x, z = job.pictures.x[i], result.points[k]
        rows.append(
            {
                **job.row(i),
                "target": classes[target],
                **({"method": method} if method else {}),
                "norm": result.norm,
                "radius": result.radius[k].item(),
                "image": save(job.run, f"{name}.png", z),
                "difference": save(job.run, f"{name}-difference.png", difference(z, x)),
                "before": round(result.before[k].item(), 6),
                "after": round(result.after[k].item(), 6),
                "answer": classes[int(result.answer[k])],
                "sure": round(result.sure[k].item(), 6),
                "distance": result.distance[k].item(),
                "changed": int(result.changed[k]),
                "changed_share": round(int(result.changed[k]) / size, 6),
                "smoothness": round(result.smooth[k].item(), 4),
                "opinions": [
                    {
                        "judge": one.judge,
                        "before": round(one.before[k].item(), 6),
                        "after": round(one.after[k].item(), 6),
                        "answer": one.answer[k],
                        "agrees": bool(one.agrees[k]),
                    }
                    for one in opinions
                ],
                "verdict": words[k],
            }
        )
    return rows


def _load(data: bytes, norm: Any) -> Counterfactuals:
    import io

    with np.load(io.BytesIO(data)) as stored:
        return Counterfactuals(norm=norm, **{k: torch.from_numpy(stored[k]) for k in stored.files})


def share_of(flags: torch.Tensor, protocol: str) -> Number:
    hits, count = int(flags.sum()), len(flags)
    low, high = wilson(hits, count)
    return Number(hits / count, count, low, high, protocol)


def mean_of(values: torch.Tensor, bounds: tuple[float, float], protocol: str) -> Number:
    low, high = mean_interval(values.double().numpy(), bounds)
    return Number(values.double().mean().item(), len(values), low, high, protocol)


def _sign(norm: str) -> str:
    return {"l2": "l₂", "l1": "l₁", "linf": "l∞"}.get(norm, norm)
