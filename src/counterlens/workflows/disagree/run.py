"""Disagree: images that one classifier takes for a class and another does not.

From "a photograph of a CLASS", both ways, and then back to real photographs: the nearest of them,
and how often this error happens on real images of the class. With an old and a new version of one
model this is a release check.

Paper: Augustin, Neuhaus, Hein 2024 (digin2024), section 4.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from counterlens.classifier import Classifier
from counterlens.data.sources.objects import as_image_set
from counterlens.data.synthetic import captions
from counterlens.errors import InputError
from counterlens.explanations.counterfactuals.targets import class_index, class_named
from counterlens.explanations.figure import Panel
from counterlens.generators.diffusion.model import LatentDiffusion
from counterlens.generators.diffusion.optimise import DISAGREEMENT, ChainSettings
from counterlens.images import ImageSet
from counterlens.models.weights import weights_hash
from counterlens.runs import Run, check_gates, key_part, parse_gate
from counterlens.scale import check_place
from counterlens.workflows._shared.figures import save_figure
from counterlens.workflows._shared.generation.generate import (
    SMALL,
    Workers,
    can_draw,
    changed,
    check_steps,
    fitting,
    reread,
)
from counterlens.workflows._shared.generation.generator import check_graphs, open_generator_for
from counterlens.workflows._shared.objects import headline, load_all, model_given, words
from counterlens.workflows._shared.options import takes
from counterlens.workflows._shared.result import Result
from counterlens.workflows._shared.session import logger, running
from counterlens.workflows.disagree.numbers import TableRows, numbers, real_numbers, verdict
from counterlens.workflows.disagree.options import DisagreeOptions
from counterlens.workflows.disagree.persist import persist
from counterlens.workflows.disagree.real import verify_on
from counterlens.workflows.disagree.realism import realism
from counterlens.workflows.disagree.search import WAYS, ClassifierPair, DisagreeTask, Shared, search


@takes(DisagreeOptions)
def disagree(first: object, second: object, *, options: DisagreeOptions) -> Result:
    """Search images on which two classifiers differ most; write a run with grids and numbers.

    With an old model, then the new one, classes="all" and verify=DATA: a release check.

    Args:
        first, second: specs, Classifiers or torch modules; see `as_classifier`.

    >>> import counterlens as cl
    >>> plain, robust = "zoo:cifar10-plain-small", "zoo:cifar10-ratio-small"
    >>> result = cl.disagree(plain, robust, classes="cat", count=2)         # doctest: +SKIP
    """
    _check(options)
    models = _open(first, second, options)
    pair, judges = models.pair, models.judges
    wanted, notes = shared_classes(pair, [str(one) for one in options.classes])
    generator = open_generator_for(pair, options.generator, half=options.half)
    check_graphs(generator, options.graphs)
    inputs = {"first": models.names[0], "second": models.names[1]}
    name = f"{key_part(pair[0].name)}-{key_part(pair[1].name)}"
    with running("disagree", _written(options, models), name=name, inputs=inputs) as run:
        task = _task(run, models, generator, options)
        wanted = _drawable(task, pair, wanted, notes)
        rows = search(task, pair, wanted)
        run.add_numbers(numbers(rows, [net.name for net in judges]))
        if models.others:
            again, results = persist(task, pair[0], models.others, wanted, rows, notes)
            run.write_table("persistence", again)
            run.add_numbers(results)
        if models.real is not None:
            _verify(run, models.real, pair, wanted, rows, task)
            if judges:
                names = [one.name for one in wanted]
                run.add_numbers(realism(run, judges[0], as_image_set(models.real), names, rows))
        run.write_table("disagreements", rows)
        run.write_table("notes", [{"note": note} for note in notes])
        run.write_table("gates", _gates(run, options.require))
        _figures(run, rows, pair)
    return Result(run)


@dataclass(frozen=True)
class _Models:
    """Whom a search is about.

    Args:
        given: the two models and those of `persist`, as they came.
        names: what stands for these in the manifest.
        judged_by: what stands for the judges.
        pair, others, judges: loaded.
        real: images on which findings are checked.
    """

    given: list[str | Classifier]
    names: list[str]
    judged_by: list[str]
    pair: ClassifierPair
    others: list[Classifier]
    judges: list[Classifier]
    real: str | ImageSet | None


def _open(first: object, second: object, options: DisagreeOptions) -> _Models:
    """Load the models."""
    given = [model_given(one, options.device) for one in (first, second, *options.persist)]
    judges = [model_given(one, options.device) for one in options.judge]
    real = options.verify
    nets, loaded = _load(given, options), _load(judges, options)
    return _Models(
        given, [words(one) for one in given], [words(one) for one in judges], (nets[0], nets[1]),
        nets[2:], loaded, real if real is None or isinstance(real, str) else as_image_set(real),
    )  # fmt: skip


def _load(given: Sequence[str | Classifier], options: DisagreeOptions) -> list[Classifier]:
    return load_all(given, device=options.device, trust_remote_code=options.trust_remote_code)


def _written(options: DisagreeOptions, models: _Models) -> DisagreeOptions:
    """The options as the manifest holds them: specs in place of objects."""
    return replace(
        options,
        classes=tuple(str(one) for one in options.classes),
        judge=tuple(models.judged_by),
        persist=tuple(models.names[2:]),
        verify=None if models.real is None else words(models.real),
    )


def _task(
    run: Run, models: _Models, generator: LatentDiffusion, options: DisagreeOptions
) -> DisagreeTask:
    """How the search is done; the manifest says it, too."""
    settings = search_settings(options, fitting(DISAGREEMENT, generator))
    check_steps(generator, settings.steps)
    logarithms = options.score == "logarithms" or (
        options.score == "auto" and generator.side < SMALL
    )
    pairs = zip(models.names[:2], models.pair, strict=True)
    run.note(
        model=" against ".join(headline(name, net) for name, net in pairs),
        generator=generator.name, seed=options.seed, device=str(generator.device),
        weights_hash=[weights_hash(net) for net in models.pair],
        search={**asdict(settings), "score": "logarithms" if logarithms else "difference"},
    )  # fmt: skip

    def opened() -> tuple[Any, list[Classifier]]:  # in a worker: its own device
        mine = _load(models.given, options)
        return open_generator_for(mine[:2], options.generator, half=options.half), mine

    gpus = float(generator.device.type == "cuda")
    workers = (
        None if options.on == "here" else Workers(options.on, opened, options.ray_workers, gpus)
    )
    return DisagreeTask(
        run, generator, tuple(models.judges), settings, options.count, options.seed,
        options.memory, logger(options), workers, logarithms, options.graphs,
    )  # fmt: skip


def _check(options: DisagreeOptions) -> None:
    """Refuse what cannot work before anything is loaded."""
    if not options.classes or options.count < 1:
        raise InputError(
            f"{len(options.classes)} classes, {options.count} images each; "
            "expected one or more: classes=cat, or classes=all."
        )
    for text in options.require:
        parse_gate(text)
    check_place(options.on)
    search_settings(options, DISAGREEMENT)


def search_settings(options: DisagreeOptions, base: ChainSettings) -> ChainSettings:
    """The settings of the search: those of its generator, changed by the options."""
    named = {"updates": options.updates, "steps": options.sampling_steps,
             "guidance": options.guidance}  # fmt: skip
    return changed(base, [*(f"{key}={value}" for key, value in named.items()), *options.changes])


def _verify(
    run: Run, real: str | ImageSet, pair: ClassifierPair, wanted: Sequence[Shared],
    rows: list[dict[str, Any]], task: DisagreeTask,
) -> None:  # fmt: skip
    """To real photographs: their neighbours, rates, and the verdict."""
    places = {one.name: one.places for one in wanted}
    counts = verify_on(run, real, pair, places, rows, log=task.log)
    names = (pair[0].name, pair[1].name)
    rates = real_numbers(counts, names)
    run.add_numbers(rates)
    run.note(verdict=verdict(rates, counts, names))


def _gates(run: Run, require: Sequence[str]) -> list[dict[str, Any]]:
    """How each release gate went."""
    gates = check_gates([parse_gate(text) for text in require], run.numbers)
    return [
        {"gate": one.gate.text, "value": one.value, "passed": one.passed, "why": one.why}
        for one in gates
    ]


def _drawable(
    task: DisagreeTask, pair: ClassifierPair, wanted: Sequence[Shared], notes: list[str]
) -> list[Shared]:
    """The classes under the words that the generator knows; notes on those it does not."""
    rows, known = [], []
    for one in wanted:
        row = can_draw(task.run, task.model, pair, one.name, seed=task.seed,
                       guidance=task.settings.guidance, steps=task.settings.steps)  # fmt: skip
        rows.append(row)
        known.append(replace(one, word=row["word"]))
        if not row["able"]:
            notes.append(
                f"The generator cannot draw {one.word}: in {row['agreement']:.0%} of {row['n']} "
                "prompt samples some classifier sees it. What follows for it says little."
            )
        elif row["word"] != one.word:
            notes.append(f"Drawn as “{row['word']}”: the generator does not know {one.word}.")
    task.run.write_table("drawable", rows)
    return known


def shared_classes(pair: ClassifierPair, classes: Sequence[str]) -> tuple[list[Shared], list[str]]:
    """The wanted classes, in both classifiers; and remarks on them."""
    both = [
        Shared(name, captions.word(name), (i, place))
        for i, name in enumerate(pair[0].classes)
        if (place := class_named(pair[1].classes, name)) >= 0
    ]
    notes = []
    if len(both) < max(len(net.classes) for net in pair):
        notes.append(
            f"{pair[0].name} has {len(pair[0].classes)} classes, {pair[1].name} "
            f"{len(pair[1].classes)}; {len(both)} are shared and used."
        )
    if list(classes) == ["all"]:
        chosen = both
    else:
        known = {one.places[0]: one for one in both}
        places = [class_index(pair[0].classes, name) for name in classes]
        missing = [pair[0].classes[k] for k in places if k not in known]
        if missing:
            some = ", ".join(one.word for one in both[:6])
            raise InputError(
                f"{pair[1].name} has no class {missing[0]!r}. Shared classes: {some or 'none'}."
            )
        chosen = [known[k] for k in dict.fromkeys(places)]
    if not chosen:
        raise InputError(f"{pair[0].name} and {pair[1].name} share no class.")
    return chosen, notes


def _figures(run: Run, rows: TableRows, pair: ClassifierPair) -> None:
    """As in the paper: the start above, then each way, with both confidences."""
    for word in dict.fromkeys(row["class"] for row in rows):
        ways = [[r for r in rows if r["class"] == word and r["way"] == way][:8] for way in WAYS]
        starts = reread(run, [row["start"] for row in ways[0]])
        first = [
            Panel(x, f"{row['start_p_up']:.2f} / {row['start_p_down']:.2f}")
            for x, row in zip(starts, ways[0], strict=True)
        ]
        grid = [first]
        for way, part in enumerate(ways):
            x = reread(run, [row["image"] for row in part])
            grid.append(
                [
                    Panel(
                        one,
                        f"{row[('p_up', 'p_down')[way]]:.2f} / {row[('p_down', 'p_up')[way]]:.2f}",
                        "good" if row["succeeded"] else "",
                    )
                    for one, row in zip(x, part, strict=True)
                ]
            )
        sides = ["start", f"{pair[0].name}\nup", f"{pair[1].name}\nup"]
        title = f"{word}: confidence of {pair[0].name} / of {pair[1].name}"
        save_figure(run, f"figure-{key_part(word)}", grid, sides=sides, title=title)
