"""Disagree: images that one classifier takes for a class and another does not.

From "a photograph of a CLASS", both ways, and then back to real photographs: the nearest of them,
and how often this error happens on real images of the class. With an old and a new version of one
model this is a release check.

Paper: Augustin, Neuhaus, Hein 2024 (digin2024), section 4.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from counterlens.classifier import Classifier
from counterlens.data.made import captions
from counterlens.data.sources.objects import as_image_set
from counterlens.errors import InputError
from counterlens.explanations.counterfactuals.targets import class_index, class_named
from counterlens.explanations.figure import Panel
from counterlens.generators.diffusion.optimise import DISAGREEMENT, Settings
from counterlens.images import ImageSet
from counterlens.models.weights import weights_hash
from counterlens.runs import Run, check_gates, key_part, new_folder, parse_gate
from counterlens.scale import check_place
from counterlens.workflows._shared.figures import save_figure
from counterlens.workflows._shared.generate import (
    SMALL,
    Workers,
    can_draw,
    changed,
    fitting,
    reread,
)
from counterlens.workflows._shared.generator import open_generator_for
from counterlens.workflows._shared.objects import headline, model_given, texts, words
from counterlens.workflows._shared.result import Result
from counterlens.workflows._shared.session import teller, write_report
from counterlens.workflows.disagree.numbers import Rows, numbers, real_numbers, verdict
from counterlens.workflows.disagree.persist import persist as search_again
from counterlens.workflows.disagree.real import verify_on
from counterlens.workflows.disagree.search import WAYS, Pair, Shared, Task, search
from counterlens.workflows.explain.run import load_all

SCORES = ("auto", "difference", "logarithms")
"""Small classifiers are so sure that confidences have no gradient: there auto takes logarithms."""


def disagree(
    first: object,
    second: object,
    *,
    classes: str | Sequence[str] = (),
    count: int = 10,
    generator: str | None = None,
    verify: object = None,
    judge: object = (),
    persist: object = (),
    require: str | Sequence[str] = (),
    updates: int = DISAGREEMENT.updates,
    steps: int = DISAGREEMENT.steps,
    guidance: float = DISAGREEMENT.guidance,
    changes: Sequence[str] = (),
    score: str = "auto",
    memory: str | None = None,
    half: bool = False,
    on: str = "here",
    workers: int | None = None,
    out: Path | None = None,
    resume: bool = False,
    seed: int = 0,
    device: str = "auto",
    trust_remote_code: bool = False,
    quiet: bool = False,
) -> Result:
    """Search images on which two classifiers differ most; write a run with grids and numbers.

    Args:
        first, second: specs, Classifiers or torch modules; see `as_classifier`.
        classes: names or numbers of the first classifier's classes, or all.
        count: images per class and way.
        generator: a diffusers folder or hub id; None takes the shipped one.
        verify: real labelled images, to which every finding is brought back: a spec or an object
            (see `as_image_set`).
        judge: further classifiers: whom do they side with?
        persist: other second classifiers, with which the search is repeated.
        require: gates such as disagree.first.real<=0.02.
        updates, steps, guidance: of Adam, of the chain, and of the text.
        changes: of the search's further settings, e.g. text_rate=0.05.
        score: difference of confidences, as in the paper, or logarithms; auto takes the latter
            for small generators.
        memory: budget such as 12GB, on Ray per worker; None takes most of what is free.
        half: generator in half precision.
        on, workers: here, ray or ray://HOST:PORT, and how many at most.
    """
    classes, require, changes = texts(classes), texts(require), texts(changes)
    specs = [model_given(one, device) for one in (first, second, *texts(persist))]
    judge = [model_given(one, device) for one in texts(judge)]
    real = verify if verify is None or isinstance(verify, str) else as_image_set(verify)
    asked: dict[str, Any] = {
        "first": words(specs[0]), "second": words(specs[1]), "classes": list(classes),
        "count": count, "generator": generator, "verify": None if real is None else words(real),
        "judge": [words(one) for one in judge], "persist": [words(one) for one in specs[2:]],
        "require": list(require), "updates": updates,
        "steps": steps, "guidance": guidance, "changes": list(changes), "score": score,
        "half": half, "seed": seed,
    }  # fmt: skip
    _check(asked, on)
    load: dict[str, Any] = {"device": device, "trust_remote_code": trust_remote_code}
    nets, judges = load_all(specs, **load), load_all(judge, **load)
    pair = (nets[0], nets[1])
    wanted, notes = shared_classes(pair, classes)
    model = open_generator_for(pair, generator, half=half)
    folder = out or new_folder("disagree", f"{key_part(pair[0].name)}-{key_part(pair[1].name)}")
    run = Run.create(folder, "disagree", asked, resume=resume)
    say = teller(quiet)
    names = [headline(words(one), net) for one, net in zip(specs[:2], pair, strict=True)]
    run.note(
        model=" against ".join(names), generator=model.name, seed=seed,
        weights_hash=[weights_hash(net) for net in pair], device=str(model.device),
    )  # fmt: skip

    def opened() -> tuple[Any, list[Classifier]]:  # in a worker: its own device
        mine = load_all(specs, **load)
        return open_generator_for(mine[:2], generator, half=half), mine

    settings = settings_of(asked, fitting(DISAGREEMENT, model))
    logarithms = score == "logarithms" or (score == "auto" and model.side < SMALL)
    used = "logarithms" if logarithms else "difference"
    run.note(search={**asdict(settings), "score": used})
    gpus = float(model.device.type == "cuda")
    crew = None if on == "here" else Workers(on, opened, workers, gpus)
    task = Task(run, model, tuple(judges), settings, count, seed, memory, say, crew, logarithms)
    wanted = _drawable(task, pair, wanted, notes)
    rows = search(task, pair, wanted)
    run.add_numbers(numbers(rows, [net.name for net in judges]))
    if specs[2:]:
        again, found = search_again(task, pair[0], nets[2:], wanted, rows, notes)
        run.write_table("persistence", again)
        run.add_numbers(found)
    if real is not None:
        _bring_back(run, real, pair, wanted, rows, task)
    return _end(run, rows, notes, pair, require, task)


def _check(asked: dict[str, Any], on: str) -> None:
    """Refuse what cannot work before anything is loaded."""
    if not asked["classes"] or asked["count"] < 1:
        raise InputError(f"{len(asked['classes'])} classes, {asked['count']} images each; "
                         "expected one or more: --class cat, or --class all.")  # fmt: skip
    if asked["score"] not in SCORES:
        raise InputError(f"score is {asked['score']!r}, expected one of {', '.join(SCORES)}.")
    for text in asked["require"]:
        parse_gate(text)
    check_place(on)
    settings_of(asked, DISAGREEMENT)


def settings_of(asked: dict[str, Any], base: Settings) -> Settings:
    """The settings of the search: the usual ones, and what was asked for."""
    named = [f"{key}={asked[key]}" for key in ("updates", "steps", "guidance")]
    return changed(base, [*named, *asked["changes"]])


def _bring_back(
    run: Run, spec: str | ImageSet, pair: Pair, wanted: Sequence[Shared],
    rows: list[dict[str, Any]], task: Task,
) -> None:  # fmt: skip
    """To real photographs: their neighbours, rates, and the verdict."""
    places = {one.name: one.places for one in wanted}
    real = verify_on(run, spec, pair, places, rows, say=task.say)
    names = (pair[0].name, pair[1].name)
    found = real_numbers(real, names)
    run.add_numbers(found)
    run.note(verdict=verdict(found, real, names))


def _end(
    run: Run, rows: list[dict[str, Any]], notes: Sequence[str], pair: Pair,
    require: Sequence[str], task: Task,
) -> Result:  # fmt: skip
    run.write_table("disagreements", rows)
    run.write_table("notes", [{"note": note} for note in notes])
    gates = check_gates([parse_gate(text) for text in require], run.numbers)
    run.write_table("gates", [{"gate": one.gate.text, "value": one.value, "passed": one.passed,
                               "why": one.why} for one in gates])  # fmt: skip
    _figures(run, rows, pair)
    write_report(run, task.say)
    run.finish()
    return Result(run)


def _drawable(task: Task, pair: Pair, wanted: Sequence[Shared], notes: list[str]) -> list[Shared]:
    """The classes under the words that the generator knows; notes on those it does not."""
    drawn, found = [], []
    for one in wanted:
        row = can_draw(task.run, task.model, pair, one.name, seed=task.seed,
                       guidance=task.settings.guidance, steps=task.settings.steps)  # fmt: skip
        drawn.append(row)
        found.append(replace(one, word=row["word"]))
        if not row["able"]:
            notes.append(
                f"The generator cannot draw {one.word}: in {row['agreement']:.0%} of {row['n']} "
                "prompt samples some classifier sees it. What follows for it says little."
            )
        elif row["word"] != one.word:
            notes.append(f"Drawn as “{row['word']}”: the generator does not know {one.word}.")
    task.run.write_table("drawable", drawn)
    return found


def shared_classes(pair: Pair, classes: Sequence[str]) -> tuple[list[Shared], list[str]]:
    """The classes asked for, in both classifiers; and what a reader should know about them."""
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


def _figures(run: Run, rows: Rows, pair: Pair) -> None:
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
        sides = ["start", f"{pair[0].name[-14:]}\nup", f"{pair[1].name[-14:]}\nup"]
        title = f"{word}: confidence of {pair[0].name} / of {pair[1].name}"
        save_figure(run, f"figure-{key_part(word)}", grid, sides=sides, title=title)
