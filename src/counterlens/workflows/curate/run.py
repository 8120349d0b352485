"""Curate: choose images of a pool that fixed classifiers get wrong, or are fooled by.

Paper: Hendrycks et al. 2021, Natural Adversarial Examples (section 3).
Differs: see `filters.natural_adversarial` and `filters.out_of_distribution`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from counterlens.classifier import Classifier
from counterlens.data import name_of, open_set
from counterlens.errors import InputError
from counterlens.filters import natural_adversarial, out_of_distribution
from counterlens.filters.funnel import Rule, run_funnel
from counterlens.filters.opinions import Opinions
from counterlens.filters.screens import BITS, COSINE, Copies, Marking, Marks, leaks, near_duplicates
from counterlens.images import ImageSet
from counterlens.label_spaces import imagenet_groups
from counterlens.label_spaces.overlap import overlaps
from counterlens.report import render
from counterlens.runs import Run, new_folder, write_json
from counterlens.workflows._shared.session import Say, teller
from counterlens.workflows.curate.failure_modes import probe
from counterlens.workflows.curate.pool import (
    Frame,
    Parts,
    Pool,
    choose_frame,
    filter_facts,
    judge_pool,
    labelled,
    load_models,
    matches,
)
from counterlens.workflows.curate.record import (
    filter_accuracies,
    keep_shortlist,
    low_level_number,
    write_funnel,
)
from counterlens.workflows.curate.sharded import SHARD, Where, in_shards


def adversarial(
    pool: Sequence[str],
    *,
    filters: Sequence[str],
    classes: str = "pool",
    confidence: float = 0.15,
    per: natural_adversarial.Cap = "crop",
    confusion: int = 15,
    egregious: bool = False,
    shortlist: int | None = None,
    against: Sequence[str] = (),
    bits: int = BITS,
    cosine: float = COSINE,
    least_side: int | None = None,
    alias: Sequence[str] = (),
    tags: int = 200,
    licence: str = "",
    source: str = "",
    limit: int | None = None,
    shard: int = SHARD,
    on: str = "here",
    workers: int | None = None,
    out: Path | None = None,
    resume: bool = False,
    seed: int = 0,
    device: str = "auto",
    trust_remote_code: bool = False,
    quiet: bool = False,
) -> Run:
    """Mine natural adversarial examples from a pool of labelled photographs.

    Args:
        pool: specs of the sets to choose from.
        filters: models that must all be wrong.
        classes: in which classes answers are counted: pool, all, a declared space, or a file.
        confidence: most probability any filter may give the label.
        per: whether that holds for each crop or for the mean of ten.
        confusion: most images of one label and answer.
        egregious: drop confusions within a group of classes that WordNet puts close together.
        shortlist: how many images go to review; None for all that are left.
        against: sets of which no image may leak in, such as the filters' training data.
        bits: hashes that differ in at most so many of 64 bits are copies.
        cosine: features of at least this cosine are copies of images of `against`; 0 for never.
        least_side: images of a shorter side than this are set aside; None takes half the
            filter's input.
        alias: "NAME=CLASS": classes of the pool that the filters know by another name.
        tags: how many images of the shortlist are probed for failure modes.
        licence, source: said of each image whose set does not say it itself.
        limit: at most so many images of each set.
        shard: images per shard, the unit that a resumed run does not repeat.
        on: here, ray, or ray://HOST:PORT.
        workers: most workers on Ray.
    """
    limits = natural_adversarial.Limits(confidence, per, confusion, shortlist)  # refused at once
    settings = _settings(locals(), ("limits", "out", "resume", "quiet", "on", "workers"))
    say = teller(quiet)
    models = load_models(filters, device=device, trust_remote_code=trust_remote_code)
    parts = Parts.open(pool, alias=alias, limit=limit, seed=seed)
    parts.need_labels()
    frame = choose_frame(models, parts, classes)
    say(f"answers are counted over {frame.told}")
    limits = replace(limits, groups=_groups(frame) if egregious else None)
    whole = labelled(parts, frame, models[0])
    known = [open_set(spec) for spec in against]
    run = _begin(out, "adversarial", pool, settings, resume, whole, frame, filters, models)
    run.write_table("matching", matches(parts, models[0]))
    asked = Opinions(
        whole.images,
        tuple(filters),
        frame.columns,
        least_side=_least(least_side, models[0]),
        device=device,
        trust_remote_code=trust_remote_code,
    )
    table = judge_pool(run, asked, size=shard, on=on, workers=workers, say=say)
    copies = Copies()
    where = Where(shard, on, workers, device)
    screens = _screens(run, whole.images, known, copies, models[0], where=where, say=say)
    labels = whole.images.labels
    made = run_funnel(
        len(labels),
        natural_adversarial.rules(table, labels, len(filters), limits, screens),
    )
    sure = natural_adversarial.truth(table, len(filters), "true_max")
    given = {"licence": licence, "source": source}
    say(f"{len(made.rows)} images are left; probing the first {min(tags, len(made.rows))}")
    probes = probe(models[0], whole.images, made.rows[:tags].tolist())
    keep_shortlist(run, whole, frame, table, made, given, {"true_confidence": sure}, probes)
    write_funnel(run, whole, table, made, copies)
    eligible = np.flatnonzero((table["why"] == "") & (labels >= 0))
    rest = np.setdiff1d(eligible, made.rows)
    run.add_numbers(low_level_number(whole.images, made.rows, whole.images, rest, models[0], seed))
    filter_accuracies(run, table, labels, eligible, filters)
    return _end(run, say)


def ood(
    pool: Sequence[str],
    *,
    filters: Sequence[str],
    inside: str | None = None,
    classes: str = "all",
    confidence: float = 0.5,
    per_answer: int | None = None,
    shortlist: int | None = None,
    bits: int = BITS,
    cosine: float = COSINE,
    least_side: int | None = None,
    alias: Sequence[str] = (),
    licence: str = "",
    source: str = "",
    limit: int | None = None,
    shard: int = SHARD,
    on: str = "here",
    workers: int | None = None,
    out: Path | None = None,
    resume: bool = False,
    seed: int = 0,
    device: str = "auto",
    trust_remote_code: bool = False,
    quiet: bool = False,
) -> Run:
    """Mine images of unknown things that classifiers are sure about.

    Args:
        pool: specs of sets of foreign classes.
        filters: models that must all be fooled.
        inside: images of the known classes: near-duplicates of them are dropped, and the chosen
            images are compared with them.
        classes: in which classes answers are counted: all, a declared space, or a file.
        confidence: least probability of the answer.
        per_answer: most images of one answer.
        (the others as for `adversarial`)
    """
    limits = out_of_distribution.Limits(confidence, per_answer, shortlist)
    settings = _settings(locals(), ("limits", "out", "resume", "quiet", "on", "workers"))
    say = teller(quiet)
    models = load_models(filters, device=device, trust_remote_code=trust_remote_code)
    parts = Parts.open(pool, alias=alias, limit=limit, seed=seed)
    frame = choose_frame(models, parts, classes)
    foreign, shared = _foreign(parts, models)
    whole = labelled(parts, frame, models[0])
    whole.images.labels[:] = -1  # nothing in the pool has a right answer
    known = open_set(inside) if inside else None
    run = _begin(out, "ood", pool, settings, resume, whole, frame, filters, models)
    run.write_table("matching", shared)
    asked = Opinions(
        whole.images,
        tuple(filters),
        frame.columns,
        crops=False,
        least_side=_least(least_side, models[0]),
        device=device,
        trust_remote_code=trust_remote_code,
    )
    table = judge_pool(run, asked, size=shard, on=on, workers=workers, say=say)
    copies = Copies()
    where = Where(shard, on, workers, device)
    against = [known] if known else []
    screens = _screens(run, whole.images, against, copies, models[0], where=where, say=say)
    rules = out_of_distribution.rules(table, foreign, len(filters), limits, screens)
    made = run_funnel(len(foreign), rules)
    given = {"licence": licence, "source": source}
    sure = out_of_distribution.certainty(table, len(filters))
    keep_shortlist(run, whole, frame, table, made, given, {"least_confidence": sure})
    write_funnel(run, whole, table, made, copies)
    if known is not None:
        every = np.arange(len(known))
        run.add_numbers(low_level_number(whole.images, made.rows, known, every, models[0], seed))
    return _end(run, say)


def _settings(given: dict[str, Any], without: Sequence[str]) -> dict[str, Any]:
    return {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in given.items()
        if key not in without
    }


def _groups(frame: Frame) -> tuple[str, ...]:
    groups = imagenet_groups(frame.classes)
    if groups is None:
        raise InputError(
            "--egregious knows the groups of ImageNet's classes, and these are others: "
            f"{', '.join(frame.classes[:3])}, …. Leave it out, and drop near misses in review."
        )
    return groups


def _least(asked: int | None, first: Classifier) -> int:
    return min(first.preprocess.size) // 2 if asked is None else asked


def _begin(
    out: Path | None,
    kind: str,
    specs: Sequence[str],
    settings: dict[str, Any],
    resume: bool,
    pool: Pool,
    frame: Frame,
    filters: Sequence[str],
    models: Sequence[Classifier],
) -> Run:
    folder = out or new_folder("curate", f"{kind}-{name_of(specs[0])}")
    run = Run.create(folder, f"curate {kind}", settings, resume=resume)
    run.note(
        model=" + ".join(filters),
        data=pool.images.name,
        kind=kind,
        protocol=frame.told,
        filters=filter_facts(filters, models),
        data_fingerprint=pool.images.fingerprint,
        device=str(models[0].mean.device),
        notes={"pool": list(pool.images.notes)} if pool.images.notes else {},
    )
    columns = [list(c) for c in frame.columns]
    frame_facts = {"classes": list(frame.classes), "columns": columns, "told": frame.told}
    write_json(run.path("tables", "classes.json"), frame_facts)
    return run


def _screens(
    run: Run,
    pool: ImageSet,
    known: Sequence[ImageSet],
    copies: Copies,
    first: Classifier,
    *,
    where: Where,
    say: Say,
) -> tuple[Rule, ...]:
    """Stages that drop copies; known images are marked shard by shard and kept for --resume."""
    settings = run.manifest["settings"]
    bits, cosine = settings["bits"], settings["cosine"]
    if bits < 0:
        return ()
    judge = first if cosine > 0 else None

    def marked(images: ImageSet) -> Callable[[], Marks]:
        spec = settings["filters"][0] if judge else None
        asked = Marking(images, spec, where.device, settings["trust_remote_code"])
        make = asked if where.on != "here" else lambda: asked.using(judge)
        folder = run.path("state", f"known-{images.fingerprint}-{len(images)}/x").parent
        what = f"images of {images.name} compared"
        return lambda: Marks.of_table(
            in_shards(folder, make, len(images), where, what=what, say=say)
        )

    return (
        near_duplicates(pool, copies, bits=bits),
        *(
            leaks(
                pool, k, copies, bits=bits, classifier=judge, cosine=cosine, known_marks=marked(k)
            )
            for k in known
        ),
    )


def _foreign(
    parts: Parts, models: Sequence[Classifier]
) -> tuple[np.ndarray, list[dict[str, object]]]:
    """Whether each image's class is none of any filter's, and which classes are not."""
    flags: list[np.ndarray] = []
    rows: list[dict[str, object]] = []
    for part in parts.sets:
        shared = np.zeros(len(part.classes) + 1, bool)  # the last entry: no class known
        for model in models:
            for found in overlaps(model.classes, part.classes):
                told = f"{part.name}: {part.classes[found.other]}"
                if not shared[found.other]:
                    rows.append(
                        {
                            "data_class": told,
                            "model_class": model.classes[found.own],
                            "how": found.how,
                        }
                    )
                shared[found.other] = True
        flags.append(~shared[part.labels])
    return np.concatenate(flags), rows


def _end(run: Run, say: Say) -> Run:
    render(run)
    run.finish()
    rows = run.table("funnel")
    say("funnel: " + " → ".join(f"{row['kept']:,}" for row in rows))
    say(_next_step(run, rows))
    return run


def _next_step(run: Run, funnel: Sequence[dict[str, Any]]) -> str:
    """What to do with the shortlist, or why it is empty and what would change that."""
    if funnel[-1]["kept"]:
        return (
            f"next: counterlens curate review {run.folder} --reviewer NAME (in the terminal), or "
            f"with --sheet sheet.html (in a browser)"
        )
    last = next(row for row in funnel if not row["kept"])
    text = (
        f"no image is left: the stage {last['stage']!r} dropped the last {last['before']:,} "
        f"({last['rule']}). Answers were counted over {run.manifest['protocol']}"
    )
    if run.manifest["settings"]["classes"] == "pool":
        text += "; a choice among few classes is easy: --classes all counts over all of them"
    return f"{text}. Try a larger or harder pool, or another --confidence."
