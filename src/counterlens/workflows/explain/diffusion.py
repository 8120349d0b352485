"""Explain by universal counterfactuals: a generator changes what the picture shows, little else.

Caption, inversion, attention, mask, prompt-to-prompt, search: all intermediate results are written
to the run. Each case is written as soon as it is computed, so a stopped run resumes with the next.

Paper: Augustin, Neuhaus, Hein 2024 (digin2024), section 5 and appendix D.
Differs: the caption is a template with the class in it, or the user's own; the mask is where the
       class word is attended to, a segmenter's of points there, or the user's own.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from counterlens import images
from counterlens.ball import Seeds
from counterlens.classifier import Classifier
from counterlens.explanations.counterfactuals.masks import SoftMask
from counterlens.explanations.counterfactuals.memory import plan_edits
from counterlens.explanations.counterfactuals.points import PointSegmenter
from counterlens.explanations.counterfactuals.uvce import (
    ERROR,
    Change,
    Edit,
    EditSettings,
    Prepared,
    class_term,
    prepare,
    uvce,
)
from counterlens.generators.diffusion.cutouts import seen
from counterlens.generators.diffusion.recompute import StoredSteps
from counterlens.metrics.generation import psnr
from counterlens.progress import show_iterates
from counterlens.runs import Number, Run, read_json, write_json
from counterlens.search import frozen
from counterlens.search.adam import Iterate
from counterlens.types import Scores
from counterlens.workflows._shared.batches import in_parts
from counterlens.workflows._shared.figures import save
from counterlens.workflows._shared.generation.generate import seed_of
from counterlens.workflows._shared.generation.vocabulary import unknown
from counterlens.workflows.explain.cases import Case, cases_of, places_of, read_masks
from counterlens.workflows.explain.diffusion_numbers import report_cases
from counterlens.workflows.explain.job import Editing, ExplainJob

WORDS = 12
"""Words whose attention is shown."""


def explain_diffusion(job: ExplainJob) -> dict[str, Number]:
    """Counterfactuals of every picture, target and guiding classifier; returns the numbers."""
    editing = _editing(job)
    cases, notes = cases_of(
        editing, job.classifier, job.pictures, job.probs, job.targets, seed=job.seed
    )
    wanted = [job.classifier.classes[case.target] for case in cases]
    if strange := unknown(editing.model.card, wanted):
        job.run.note(unknown_to_generator=strange)
        job.log(strange)
    guides = (job.classifier, *job.judges)
    places = [places_of(guide, job.classifier, cases) for guide in guides]
    masks = read_masks(editing, job.classifier, job.pictures)
    if masks is None and not editing.masks and any(one is not None for one in job.pictures.masks):
        job.log("masks: the generator's attention; the set's own are missing, empty or full.")
    for kind in ("error", "other"):
        some = [i for i, case in enumerate(cases) if (case.kind == "error") == (kind == "error")]
        if some:
            _make_all(job, editing, [cases[i] for i in some], guides,
                      [[row[i] for i in some] for row in places], masks)  # fmt: skip
    states = [[_state(job.run, case, g) for g in range(len(guides))] for case in cases]
    if notes:
        job.run.note(left_out=notes)
        for note in notes:
            job.log(note)
    rows = [
        [{**asdict(case), **read_json(path)} for path in paths]
        for case, paths in zip(cases, states, strict=True)
    ]
    return report_cases(job, guides, places, rows)


def _editing(job: ExplainJob) -> Editing:
    assert job.editing is not None
    return job.editing


def _make_all(
    job: ExplainJob,
    editing: Editing,
    cases: Sequence[Case],
    guides: Sequence[Classifier],
    places: Sequence[Sequence[int]],
    masks: SoftMask | None,
) -> None:
    """Make what is not there yet, as many cases at a time as memory allows."""
    settings = editing.settings
    if cases[0].kind == "error":
        settings = replace(settings, inject=ERROR.inject, blend=ERROR.blend)
    if cases[0].kind == "attribute":  # a softmax of two raw cosines is never sure
        settings = replace(settings, rounds=0)
    todo = [
        i for i, case in enumerate(cases)
        if not all(_state(job.run, case, g).exists() for g in range(len(guides)))
    ]  # fmt: skip
    if len(todo) < len(cases):
        job.log(f"{len(cases) - len(todo)} of {len(cases)} cases are in the run already.")

    def make(some: Sequence[int], stored: StoredSteps) -> None:
        part = [cases[i] for i in some]
        ready = _prepared(job, editing, settings, part, masks)
        for g, guide in enumerate(guides):
            wanted = torch.tensor([places[g][i] for i in some])
            _make(job, settings, part, guide, g, wanted, ready, stored)

    in_parts(
        todo, lambda: plan_edits(editing.model, settings, len(todo), editing.memory, guides), make,
        steps=settings.chain.steps, log=job.log, what="cases",
    )  # fmt: skip


def _prepared(
    job: ExplainJob,
    editing: Editing,
    settings: EditSettings,
    cases: Sequence[Case],
    masks: SoftMask | None,
) -> Prepared:
    """Invert each picture once, keep what was seen, and give each case its row."""
    pictures = list(dict.fromkeys(case.picture for case in cases))
    first = {case.picture: case for case in reversed(cases)}
    steps = settings.chain.steps

    def report(i: int, error: Scores) -> None:
        job.log(f"  {bar(i + 1, steps)} inversion {i + 1} of {steps}")

    ready = prepare(
        editing.model, job.pictures.x[pictures], [first[i].source for i in pictures],
        [first[i].words[0] for i in pictures],
        masks=_masks_of(job, editing, pictures, masks), settings=settings, callback=report,
    )  # fmt: skip
    for k, i in enumerate(pictures):
        _write_prepared(job.run, i, job.pictures.x[i], ready.rows([k]))
    return ready.rows([pictures.index(case.picture) for case in cases])


def _masks_of(
    job: ExplainJob, editing: Editing, pictures: Sequence[int], masks: SoftMask | None
) -> SoftMask | PointSegmenter | None:
    """The masks of some pictures: the user's or the set's, a segmenter's, or by attention."""
    if masks is not None:
        return masks[list(pictures)]
    if editing.segment is None:
        return None
    seeds = [seed_of("points", job.seed, job.pictures.ids[i]) for i in pictures]
    return PointSegmenter(editing.segment, torch.tensor(seeds))


def _write_prepared(run: Run, i: int, x: torch.Tensor, one: Prepared) -> None:
    """Reconstruction, attention and mask of a picture, as files."""
    name = f"{i:03d}"
    again = one.inversion.images[0].cpu()
    words = []
    for k, (word, attention) in enumerate(list(one.words[0].items())[:WORDS]):
        file = f"{name}-word-{k:02d}.png"
        words.append(
            {"word": word, "image": save(run, file, attention.cpu()[None].expand(3, -1, -1))}
        )
    mask = one.masks[0].cpu()
    known = {
        "reconstruction": save(run, f"{name}-reconstruction.png", again),
        "psnr": round(min(psnr(_bits(again)[None], x[None]), 99.0), 3),
        "mask": save(run, f"{name}-mask.png", mask.expand(3, -1, -1)),
        "mask_share": round(mask.mean().item(), 4),
        "mask_by": one.mask_source[0],
        "points": [] if one.points is None else one.points[0].tolist(),
        "attention": words,
    }
    write_json(run.path("state", f"{name}-seen.json"), known)


def _bits(x: torch.Tensor) -> torch.Tensor:
    """As a PNG file holds it."""
    return (x * 255).round() / 255


def _make(
    job: ExplainJob,
    settings: EditSettings,
    cases: Sequence[Case],
    guide: Classifier,
    number: int,
    wanted: torch.Tensor,
    ready: Prepared,
    stored: StoredSteps,
) -> None:
    """The counterfactuals of one guide for some cases, as files."""
    model, updates = _editing(job).model, settings.chain.updates
    term = class_term(guide, wanted)
    names = [f"{case.words[1]}, {guide.name}" for case in cases]

    def report(k: int, now: Iterate) -> None:
        job.log(f"  {bar(k, updates)} {guide.name}: update {k} of {updates}, "
                f"mean score {now.judged.mean().item():.3f}")  # fmt: skip
        with torch.no_grad():
            sure = term.on_crops(seen(now.points.detach(), term.side)[:, None])[:, 0].exp()
        show_iterates(now.points.detach(), sure, names)
        shown = [x.detach().cpu() for x in now.points[:16]]
        images.write_png(job.run.path("images", "preview.png"), images.tile(shown, columns=8))

    seeds: Seeds = torch.tensor([case.seed for case in cases], device=model.device)
    with frozen(guide):
        edit = uvce(
            model, ready, [term],
            [Change(case.goal, case.words) for case in cases], settings=settings, seeds=seeds,
            stored=stored, callback=report,
        )  # fmt: skip
    for k, case in enumerate(cases):
        _write(job.run, case, number, edit, k)


def _write(run: Run, case: Case, guide: int, edit: Edit, k: int) -> None:
    name = f"{case.name}-{guide}"
    share, blend = edit.schedule[k]
    state: dict[str, Any] = {
        **read_json(run.path("state", f"{case.picture:03d}-seen.json")),
        "image": save(run, f"{name}.png", edit.images[k].cpu()),
        "start": save(run, f"{name}-start.png", edit.start_images[k].cpu()),
        "inject": share,
        "blend": blend,
        "round": edit.rounds[k],
        "score": edit.scores[k].item(),
        "start_score": edit.start[k].item(),
        "trace": edit.trace[:, k].tolist(),
    }
    write_json(_state(run, case, guide), state)


def _state(run: Run, case: Case, guide: int) -> Path:
    return run.path("state", f"{case.name}-{guide}.json")


def bar(done: int, total: int, *, wide: int = 20) -> str:
    """How far something is.

    >>> bar(5, 20, wide=4)
    '█░░░'
    """
    full = wide * done // max(1, total)
    return "█" * full + "░" * (wide - full)
