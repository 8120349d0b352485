"""Disagree: images that one classifier takes for a class and another does not.

From "a photograph of a CLASS", both ways, and then back to real photographs: the nearest of them,
and how often this error happens on real images of the class.

Paper: Augustin, Neuhaus, Hein 2024 (digin2024), section 4.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from counterlens.classifier import Classifier
from counterlens.data import captions
from counterlens.errors import InputError
from counterlens.explanations.disagreement import SURE, UNSURE, disagreement, disturbed, succeeded
from counterlens.explanations.figure import Panel
from counterlens.explanations.pixel import confidences
from counterlens.explanations.targets import class_index, class_named
from counterlens.generators.ascent import DISAGREEMENT, Settings, Term
from counterlens.generators.cutouts import seen
from counterlens.generators.latent import LatentDiffusion
from counterlens.metrics.intervals import mean_interval, wilson
from counterlens.models.weights import weights_hash
from counterlens.report import render
from counterlens.runs import Number, Run, key_part, new_folder
from counterlens.types import Images, Scores
from counterlens.workflows.disagree_real import Real, verify_on
from counterlens.workflows.explain import load_all
from counterlens.workflows.generating import (
    Made,
    Wish,
    can_draw,
    column,
    confidence_table,
    open_generator,
    optimise,
    reread,
    seed_of,
)
from counterlens.workflows.showing import Explanation, save_figure
from counterlens.workflows.telling import Say, teller

WAYS = ("first", "second")


@dataclass(frozen=True)
class _Class:
    """A class that both classifiers know: its name, its words, and its place in each."""

    name: str
    word: str
    places: tuple[int, int]


def disagree(
    first: str | Classifier,
    second: str | Classifier,
    *,
    classes: Sequence[str] = (),
    count: int = 10,
    generator: str | None = None,
    verify: str | None = None,
    judge: Sequence[str] = (),
    updates: int = DISAGREEMENT.updates,
    steps: int = DISAGREEMENT.steps,
    guidance: float = DISAGREEMENT.guidance,
    memory: str | None = None,
    half: bool = False,
    out: Path | None = None,
    resume: bool = False,
    seed: int = 0,
    device: str = "auto",
    trust_remote_code: bool = False,
    quiet: bool = False,
) -> Explanation:
    """Search images on which two classifiers differ most; write a run with grids and numbers.

    Args:
        classes: names or numbers of the first classifier's classes, or all.
        count: images per class and way.
        generator: a diffusers folder or hub id; None takes the shipped one.
        verify: spec of real labelled images, to which every finding is brought back.
        judge: further classifiers: whom do they side with?
        updates, steps, guidance: of Adam, of the chain, and of the text.
        memory: budget such as 12GB; None takes most of what is free.
        half: generator in half precision.
    """
    if not classes or count < 1:
        raise InputError(f"{len(classes)} classes, {count} images each; expected one or more: "
                         "--class cat, or --class all.")  # fmt: skip
    if updates < 0 or steps < 1 or not guidance >= 1:
        raise InputError(f"updates {updates}, steps {steps}, guidance {guidance}; expected 0 or "
                         "more, 1 or more, and 1 or more.")  # fmt: skip
    names = [one if isinstance(one, str) else one.name for one in (first, second)]
    asked: dict[str, Any] = {
        "first": names[0], "second": names[1], "classes": list(classes), "count": count,
        "generator": generator, "verify": verify, "judge": list(judge), "updates": updates,
        "steps": steps, "guidance": guidance, "half": half, "seed": seed,
    }  # fmt: skip
    nets = load_all([first, second, *judge], device=device, trust_remote_code=trust_remote_code)
    pair = (nets[0], nets[1])
    wanted, notes = shared_classes(pair, classes)
    model = open_generator(generator, pair[0].mean.device, half=half)
    folder = out or new_folder("disagree", f"{key_part(pair[0].name)}-{key_part(pair[1].name)}")
    run = Run.create(folder, "disagree", asked, resume=resume)
    say = teller(quiet)
    run.note(
        model=f"{names[0]} against {names[1]}", generator=model.name, seed=seed,
        weights_hash=[weights_hash(net) for net in pair], device=str(model.device),
    )  # fmt: skip
    settings = replace(DISAGREEMENT, updates=updates, steps=steps, guidance=guidance)
    wanted = _drawable(run, model, pair, wanted, notes, settings, seed)
    rows = search(run, model, pair, tuple(nets[2:]), wanted, settings, count, seed, memory, say)
    found = numbers(rows, pair, tuple(net.name for net in nets[2:]))
    if verify is not None:
        real = verify_on(run, verify, pair, wanted_places(wanted), rows, say=say)
        found |= real_numbers(real)
    run.write_table("disagreements", rows)
    run.write_table("notes", [{"note": note} for note in notes])
    run.add_numbers(found)
    _figures(run, rows, pair)
    render(run)
    run.finish()
    return Explanation(run)


def _drawable(
    run: Run,
    model: LatentDiffusion,
    pair: tuple[Classifier, Classifier],
    wanted: Sequence[_Class],
    notes: list[str],
    settings: Settings,
    seed: int,
) -> list[_Class]:
    """The classes under the words that the generator knows; notes on those it does not."""
    drawn, found = [], []
    for one in wanted:
        row = can_draw(run, model, pair, one.name, seed=seed, guidance=settings.guidance,
                       steps=settings.steps)  # fmt: skip
        drawn.append(row)
        found.append(replace(one, word=row["word"]))
        if not row["able"]:
            notes.append(
                f"The generator cannot draw {one.word}: in {row['agreement']:.0%} of {row['n']} "
                "prompt samples some classifier sees it. What follows for it says little."
            )
        elif row["word"] != one.word:
            notes.append(f"Drawn as “{row['word']}”: the generator does not know {one.word}.")
    run.write_table("drawable", drawn)
    return found


def shared_classes(
    pair: tuple[Classifier, Classifier], classes: Sequence[str]
) -> tuple[list[_Class], list[str]]:
    """The classes asked for, in both classifiers; and what a reader should know about them."""
    both = [
        _Class(name, captions.word(name), (i, place))
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


def wanted_places(wanted: Sequence[_Class]) -> dict[str, tuple[int, int]]:
    """Name of each class and its place in both classifiers."""
    return {one.name: one.places for one in wanted}


def search(
    run: Run,
    model: LatentDiffusion,
    pair: tuple[Classifier, Classifier],
    judges: tuple[Classifier, ...],
    wanted: Sequence[_Class],
    settings: Settings,
    count: int,
    seed: int,
    memory: str | None,
    say: Say,
) -> list[dict[str, Any]]:
    """All images of all classes, both ways; both ways start from the same images."""
    rows: list[dict[str, Any]] = []
    for way in (0, 1):
        raised, lowered = pair[way], pair[1 - way]
        wishes, classes = [], []
        for one in wanted:
            for i in range(count):
                start = seed_of("disagree", seed, one.name, i)
                name = f"{WAYS[way]}-{key_part(one.word)}-{i:02d}"
                places = (one.places[way], one.places[1 - way])
                wishes.append(Wish(name, captions.prompt(one.word), start, places))
                classes.append(one)

        def terms(
            batch: Sequence[Wish], raised: Classifier = raised, lowered: Classifier = lowered
        ) -> list[Term]:
            device = raised.mean.device
            both = [
                Term(confidence_table(net), column([w.columns[k] for w in batch], device),
                     net.preprocess.size[0])
                for k, net in enumerate((raised, lowered))
            ]  # fmt: skip
            return disagreement(*both)

        say(f"{raised.name} up, {lowered.name} down: {len(wishes)} images")
        made = optimise(run, model, wishes, terms, pair, settings=settings, memory=memory, say=say)
        rows += _rows(run, made, classes, way, pair, judges)
    return rows


def _rows(
    run: Run,
    made: Sequence[Made],
    classes: Sequence[_Class],
    way: int,
    pair: tuple[Classifier, Classifier],
    judges: tuple[Classifier, ...],
) -> list[dict[str, Any]]:
    """Everything measured on the PNG files, read back from disk."""
    x = reread(run, [one.image for one in made])
    begin = reread(run, [one.start for one in made])
    up, down = pair[way], pair[1 - way]
    ups = torch.tensor([one.places[way] for one in classes])
    downs = torch.tensor([one.places[1 - way] for one in classes])
    columns = {
        "p_up": asked(up, x, ups), "p_down": asked(down, x, downs),
        "start_p_up": asked(up, begin, ups), "start_p_down": asked(down, begin, downs),
    }  # fmt: skip
    for name, other in disturbed(x).items():
        columns[f"{name}.p_up"] = asked(up, other, ups)
        columns[f"{name}.p_down"] = asked(down, other, downs)
    for judge in judges:
        places = torch.tensor([class_named(judge.classes, one.name) for one in classes])
        if (places >= 0).all():
            columns[f"{judge.name}.p"] = asked(judge, x, places)
    good = succeeded(columns["p_up"], columns["p_down"])
    return [
        {
            "class": classes[i].word, "name": classes[i].name, "way": WAYS[way],
            "up": up.name, "down": down.name,
            "image": one.image, "start": one.start, "succeeded": bool(good[i]),
            **{key: round(values[i].item(), 6) for key, values in columns.items()},
        }
        for i, one in enumerate(made)
    ]  # fmt: skip


def asked(net: Classifier, x: Images, places: torch.Tensor) -> Scores:
    """A classifier's confidences in one class per image, after temperature."""
    parts = torch.split(seen(x, net.preprocess.size[0]), 64)
    probs = torch.cat([confidences(net, part) for part in parts])
    return probs.gather(1, places[:, None])[:, 0]


def numbers(
    rows: Sequence[dict[str, Any]], pair: tuple[Classifier, Classifier], judges: Sequence[str]
) -> dict[str, Number]:
    """Means over all images of each way, none left out."""
    found: dict[str, Number] = {}
    for way in WAYS:
        part = [row for row in rows if row["way"] == way]
        up, down = part[0]["up"], part[0]["down"]
        how = f"{up} raised, {down} lowered; all {len(part)} images, as PNG files read from disk"
        key = f"disagree.{way}"
        hits = sum(row["succeeded"] for row in part)
        low, high = wilson(hits, len(part))
        found[f"{key}.succeeded"] = Number(
            hits / len(part), len(part), low, high, f"p ≥ {SURE:g} against p ≤ {UNSURE:g}; {how}"
        )
        for column_, words in (("p_up", f"mean confidence of {up}"),
                               ("p_down", f"mean confidence of {down}"),
                               ("start_p_up", f"the same of {up} at the start"),
                               ("start_p_down", f"the same of {down} at the start")):  # fmt: skip
            found[f"{key}.{column_}"] = _mean([row[column_] for row in part], (0, 1),
                                              f"{words}; {how}")  # fmt: skip
        for name in sorted({k.removesuffix(".p_up") for k in part[0] if k.endswith(".p_up")}):
            gaps = [row[f"{name}.p_up"] - row[f"{name}.p_down"] for row in part]
            found[f"{key}.gap_{key_part(name)}"] = _mean(
                gaps, (-1, 1), f"mean difference of confidences after {name}; {how}"
            )
        for judge in judges:
            if f"{judge}.p" in part[0]:
                near = [
                    abs(row[f"{judge}.p"] - row["p_up"]) < abs(row[f"{judge}.p"] - row["p_down"])
                    for row in part
                ]
                low, high = wilson(sum(near), len(near))
                found[f"{key}.sides_{key_part(judge)}"] = Number(
                    sum(near) / len(near), len(near), low, high,
                    f"{judge} sides with {up}: its confidence is nearer to that one's; {how}",
                )  # fmt: skip
    return found


def real_numbers(real: Sequence[Real]) -> dict[str, Number]:
    """The rate of each error on real images of the class."""
    found = {}
    for one in real:
        key = f"disagree.{one.way}.real_{key_part(captions.word(one.name))}"
        told = f"real images of {one.name} that {one.up} answers right and {one.down} wrong"
        if not one.n:
            found[key] = Number.missing("no real image of the class", told)
            continue
        low, high = wilson(one.errors, one.n)
        found[key] = Number(one.errors / one.n, one.n, low, high, told)
    return found


def _mean(values: Sequence[float], bounds: tuple[float, float], protocol: str) -> Number:
    import numpy as np

    table = np.asarray(values, dtype=np.float64)
    low, high = mean_interval(table, bounds) if len(table) > 1 else (None, None)
    return Number(float(table.mean()), len(table), low, high, protocol)


def _figures(run: Run, rows: Sequence[dict[str, Any]], pair: tuple[Classifier, Classifier]) -> None:
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
