"""Curate: choose images of a pool that fixed classifiers get wrong, or are fooled by.

Paper: Hendrycks et al. 2021, Natural Adversarial Examples (section 3).
Differs: see `filters.natural_adversarial` and `filters.out_of_distribution`.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from counterlens.classifier import Classifier
from counterlens.data import name_of, open_set
from counterlens.errors import InputError
from counterlens.filters import natural_adversarial, out_of_distribution
from counterlens.filters.funnel import Rule, run_funnel
from counterlens.filters.opinions import Opinions
from counterlens.filters.screens import Copies, Marking, Marks, leaks, near_duplicates
from counterlens.images import ImageSet
from counterlens.label_spaces import imagenet_groups
from counterlens.label_spaces.overlap import overlaps
from counterlens.runs import Run, new_folder, write_json
from counterlens.workflows._shared.objects import texts
from counterlens.workflows._shared.options import takes
from counterlens.workflows._shared.result import Result
from counterlens.workflows._shared.session import Log, logger, running
from counterlens.workflows.curate.failure_modes import probe
from counterlens.workflows.curate.options import AdversarialOptions, Mining, OodOptions
from counterlens.workflows.curate.pool import (
    ClassFrame,
    Pool,
    PoolParts,
    choose_frame,
    filter_facts,
    judge_pool,
    labelled,
    load_models,
    matches,
)
from counterlens.workflows.curate.record import (
    Curation,
    filter_accuracies,
    low_level_number,
    write_funnel,
    write_shortlist,
)
from counterlens.workflows.curate.sharded import Where, in_shards


@dataclass(frozen=True)
class _Mining:
    """A curation under way.

    Args:
        run: where it is written.
        options: as they were given.
        models: the filters.
        frame: the classes in which answers are counted.
        pool: the images to choose from.
        log: takes lines of progress.
    """

    run: Run
    options: Mining
    models: Sequence[Classifier]
    frame: ClassFrame
    pool: Pool
    log: Log

    @property
    def where(self) -> Where:
        """How a pass over images is cut, and where it runs."""
        options = self.options
        return Where(options.shard, options.on, options.ray_workers, options.device)

    @property
    def provenance(self) -> dict[str, str]:
        """Licence and source of images whose set does not state them."""
        return {"licence": self.options.licence, "source": self.options.source}

    def opinions(self, *, crops: bool) -> dict[str, np.ndarray]:
        """What the filters say of every image of the pool."""
        options, first = self.options, self.models[0]
        half = min(first.preprocess.size) // 2
        query = Opinions(
            self.pool.images,
            options.filters,
            self.frame.columns,
            crops=crops,
            least_side=half if options.least_side is None else options.least_side,
            device=options.device,
            trust_remote_code=options.trust_remote_code,
        )
        return judge_pool(self.run, query, self.where, log=self.log)

    def low_level(self, rows: np.ndarray, other: ImageSet, others: np.ndarray) -> None:
        """How far low-level statistics alone tell the chosen images from others."""
        ends = (self.pool.images, rows), (other, others)
        number = low_level_number(*ends, self.models[0], self.options.seed)
        self.run.add_numbers(number)


@takes(AdversarialOptions)
def adversarial(pool: Sequence[str], options: AdversarialOptions) -> Result:
    """Mine natural adversarial examples from a pool of labelled photographs.

    Args:
        pool: specs of the sets to choose from.

    >>> import counterlens as cl
    >>> mined = cl.curate.adversarial("sample:cifar10", filters="zoo:cifar10-plain-small",
    ...                               limit=40, confidence=0.5, tags=0, quiet=True)
    >>> [row["stage"] for row in mined.table("funnel")][:2]
    ['pool', 'pictures']
    """
    limits = natural_adversarial.Limits(
        options.confidence,
        cast(natural_adversarial.Cap, options.per),
        options.confusion,
        options.shortlist,
    )
    log, specs = logger(options), texts(pool)
    models, parts = _opened(specs, options)
    parts.need_labels()
    frame = choose_frame(models, parts, options.label_space)
    log(f"answers are counted over {frame.description}")
    limits = replace(limits, groups=_groups(frame) if options.egregious else None)
    whole = labelled(parts, frame, models[0])
    known = [open_set(spec) for spec in options.against]
    name = f"adversarial-{name_of(specs[0])}"
    with _running("adversarial", options, name, specs) as run:
        job = _Mining(run, options, models, frame, whole, log)
        _describe(job, "adversarial")
        run.write_table("matching", matches(parts, models[0]))
        _mine_adversarial(job, limits, known)
    return _closed(run, log)


def _mine_adversarial(
    job: _Mining, limits: natural_adversarial.Limits, known: Sequence[ImageSet]
) -> None:
    table, labels = job.opinions(crops=True), job.pool.images.labels
    count, copies = len(job.options.filters), Copies()
    screens = _screens(job, known, copies)
    rules = natural_adversarial.rules(table, labels, count, limits, screens)
    funnel = run_funnel(len(labels), rules)
    tags = cast(AdversarialOptions, job.options).tags
    job.log(f"{len(funnel.rows)} images are left; probing the first {min(tags, len(funnel.rows))}")
    probes = probe(job.models[0], job.pool.images, funnel.rows[:tags].tolist())
    scores = {"true_confidence": natural_adversarial.truth(table, count, "true_max")}
    curation = Curation(job.run, job.pool, job.frame, table, funnel)
    write_shortlist(curation, job.provenance, scores, probes)
    write_funnel(curation, copies)
    eligible = np.flatnonzero((table["why"] == "") & (labels >= 0))
    job.low_level(funnel.rows, job.pool.images, np.setdiff1d(eligible, funnel.rows))
    filter_accuracies(job.run, table, labels, eligible, job.options.filters)


@takes(OodOptions)
def ood(pool: Sequence[str], options: OodOptions) -> Result:
    """Mine images of unknown classes that classifiers are sure about.

    Args:
        pool: specs of sets of foreign classes.
    """
    limits = out_of_distribution.OutsideLimits(
        options.confidence, options.per_answer, options.shortlist
    )
    log, specs = logger(options), texts(pool)
    models, parts = _opened(specs, options)
    frame = choose_frame(models, parts, options.label_space)
    foreign, shared = _foreign(parts, models)
    whole = labelled(parts, frame, models[0])
    whole.images.labels[:] = -1  # nothing in the pool has a right answer
    known = open_set(options.inside) if options.inside else None
    with _running("ood", options, f"ood-{name_of(specs[0])}", specs) as run:
        job = _Mining(run, options, models, frame, whole, log)
        _describe(job, "ood")
        if known is not None:
            run.note(inside_fingerprint=known.fingerprint)
        run.write_table("matching", shared)
        _mine_ood(job, limits, foreign, known)
    return _closed(run, log)


def _mine_ood(
    job: _Mining,
    limits: out_of_distribution.OutsideLimits,
    foreign: np.ndarray,
    known: ImageSet | None,
) -> None:
    table, copies, count = job.opinions(crops=False), Copies(), len(job.options.filters)
    screens = _screens(job, [known] if known else [], copies)
    rules = out_of_distribution.rules(table, foreign, count, limits, screens)
    funnel = run_funnel(len(foreign), rules)
    scores = {"least_confidence": out_of_distribution.certainty(table, count)}
    curation = Curation(job.run, job.pool, job.frame, table, funnel)
    write_shortlist(curation, job.provenance, scores)
    write_funnel(curation, copies)
    if known is not None:
        job.low_level(funnel.rows, known, np.arange(len(known)))


def _opened(specs: Sequence[str], options: Mining) -> tuple[list[Classifier], PoolParts]:
    """The filters and the sets of the pool."""
    models = load_models(
        options.filters, device=options.device, trust_remote_code=options.trust_remote_code
    )
    return models, PoolParts.open(
        specs, alias=options.alias, limit=options.limit, seed=options.seed
    )


def _running(
    kind: str, options: Mining, name: str, specs: Sequence[str]
) -> AbstractContextManager[Run]:
    folder = options.out or new_folder("curate", name)
    return running(f"curate {kind}", options, name=name, inputs={"pool": specs}, folder=folder)


def _groups(frame: ClassFrame) -> tuple[str, ...]:
    groups = imagenet_groups(frame.classes)
    if groups is None:
        raise InputError(
            "egregious knows the groups of ImageNet's classes, and these are others: "
            f"{', '.join(frame.classes[:3])}, …. Leave it out, and drop near misses in review."
        )
    return groups


def _describe(job: _Mining, kind: str) -> None:
    """What the manifest says of the filters, of the pool and of the classes."""
    run, frame, images, filters = job.run, job.frame, job.pool.images, job.options.filters
    run.note(
        model=" + ".join(filters),
        data=images.name,
        kind=kind,
        protocol=frame.description,
        filters=filter_facts(filters, job.models),
        data_fingerprint=images.fingerprint,
        device=str(job.models[0].mean.device),
        notes={"pool": list(images.notes)} if images.notes else {},
    )
    columns = [list(c) for c in frame.columns]
    facts = {"classes": list(frame.classes), "columns": columns, "description": frame.description}
    write_json(run.path("tables", "classes.json"), facts)


def _screens(job: _Mining, known: Sequence[ImageSet], copies: Copies) -> tuple[Rule, ...]:
    """Stages that drop copies; known images are marked shard by shard, for --resume."""
    options, pool, run = job.options, job.pool.images, job.run
    bits, cosine = options.bits, options.cosine
    if bits < 0:
        return ()
    judge = job.models[0] if cosine > 0 else None

    def marked(images: ImageSet) -> Callable[[], Marks]:
        spec = options.filters[0] if judge else None
        query = Marking(images, spec, options.device, options.trust_remote_code)
        make = query if options.on != "here" else lambda: query.using(judge)
        folder = run.path("state", f"known-{images.fingerprint}-{len(images)}/x").parent
        what = f"images of {images.name} compared"
        return lambda: Marks.of_table(
            in_shards(folder, make, len(images), job.where, what=what, log=job.log)
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
    parts: PoolParts, models: Sequence[Classifier]
) -> tuple[np.ndarray, list[dict[str, object]]]:
    """Whether each image's class is none of any filter's, and which classes are not."""
    flags: list[np.ndarray] = []
    rows: list[dict[str, object]] = []
    for part in parts.sets:
        shared = np.zeros(len(part.classes) + 1, bool)  # the last entry: no class known
        for model in models:
            for other in overlaps(model.classes, part.classes):
                data_class = f"{part.name}: {part.classes[other.other]}"
                if not shared[other.other]:
                    rows.append(
                        {
                            "data_class": data_class,
                            "model_class": model.classes[other.own],
                            "how": other.how,
                        }
                    )
                shared[other.other] = True
        flags.append(~shared[part.labels])
    return np.concatenate(flags), rows


def _closed(run: Run, log: Log) -> Result:
    """The result of a finished curation, with its funnel and the next step in the log."""
    rows = run.table("funnel")
    log("funnel: " + " → ".join(f"{row['kept']:,}" for row in rows))
    log(_next_step(run, rows))
    return Result(run)


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
    if run.manifest["settings"]["label_space"] == "pool":
        text += "; a choice among few classes is easy: --classes all counts over all of them"
    return f"{text}. Try a larger or harder pool, or another --confidence."
