"""Evaluate: how good are counterfactuals? Several methods side by side on the same pictures.

Each picture that the model gets right is turned to the same seeded targets by every method. All
images are written with their ids, so that a user study can draw its pairs from the same run.

Paper: Augustin, Neuhaus, Hein 2024 (digin2024), section 5 and its user study.
Differs: the paper asks 30 people about 30 pairs; here numbers stand for them, and the pairs that
       people could be shown are drawn by the paper's rule.
"""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch

from counterlens.ball import Norm
from counterlens.classifier import Classifier
from counterlens.errors import InputError
from counterlens.explanations.counterfactuals import dvce
from counterlens.explanations.counterfactuals.pixel import default_radii, temperature_of
from counterlens.explanations.counterfactuals.targets import seeded
from counterlens.explanations.counterfactuals.uvce import UVCE, EditSettings
from counterlens.explanations.figure import Panel
from counterlens.images import SUFFIXES, read
from counterlens.models.nets.lpips import Lpips
from counterlens.models.nets.lpips import load as load_lpips
from counterlens.notation import parse_radius
from counterlens.runs import Number, Run, key_part
from counterlens.types import Images, Labels, Probs
from counterlens.workflows._shared.figures import save, save_figure
from counterlens.workflows._shared.generation.edit_settings import edited, numbers_changed
from counterlens.workflows._shared.generation.generate import check_steps
from counterlens.workflows._shared.generation.generator import open_generator_for
from counterlens.workflows._shared.objects import (
    headline,
    load_all,
    model_given,
    pictures_given,
    texts,
    words,
)
from counterlens.workflows._shared.options import takes
from counterlens.workflows._shared.pictures import (
    Given,
    Pictures,
    confidences_of,
    open_pictures,
)
from counterlens.workflows._shared.result import Result
from counterlens.workflows._shared.session import facts, logger, running
from counterlens.workflows.quality.measures import Measured, gaps, measure, numbers, rows_of
from counterlens.workflows.quality.methods import ArmImages, Bench, make
from counterlens.workflows.quality.options import ARMS, EvaluateOptions
from counterlens.workflows.quality.real import Real, open_real

GENERATED = ("dvce", "prompt-to-prompt", "diffusion")
PAIRS = 30
"""Pairs for a user study, as many as the paper showed."""
SURE = 0.8
FIGURE = 12
"""Rows of the figure."""


@takes(EvaluateOptions)
def evaluate(model: object, images: object = (), *, options: EvaluateOptions) -> Result:
    """Compare methods of counterfactuals; write a run with a table, galleries and all images.

    Judges take no part in making counterfactuals; the first one's features measure realism.

    Args:
        model: a spec, a Classifier or a torch module.
        images: a labelled SPEC or part of one; pictures the model gets wrong are left out.

    >>> import counterlens as cl
    >>> result = cl.evaluate_counterfactuals(
    ...     "zoo:cifar10-plain-small", "sample:cifar10#0:3", arm="pixel", steps=2, quiet=True
    ... )
    >>> {row["method"] for row in result.table("quality")}
    {'pixel'}
    """
    _check(options)
    robust = texts(options.robust)
    given = [model_given(one, options.device) for one in (model, *options.judge, *robust)]
    wanted = pictures_given(images, options.limit, options.seed)
    nets = load_all(given, device=options.device, trust_remote_code=options.trust_remote_code)
    judges = nets[1 : 1 + len(options.judge)]
    helper = nets[-1] if robust else None
    arms, notes = choose_arms(options.arm, helper, options.generator)
    lpips = load_lpips(options.lpips, device=nets[0].mean.device) if options.lpips else None
    bench, left = _bench(options, nets[0], helper, arms, wanted)
    pool, missing = _real(options.real, wanted, bench, judges, options.seed)
    notes += [*left, *missing, *bench.pictures.notes]
    inputs = {"model": words(given[0]), "images": [words(one) for one in wanted]}
    written = replace(
        options,
        judge=tuple(words(one) for one in given[1 : 1 + len(judges)]),
        robust=words(given[-1]) if robust else None,
        radius=tuple(str(one) for one in options.radius),
    )
    name = key_part(bench.classifier.name)
    with running("evaluate", written, name=name, inputs=inputs) as run:
        run.note(**facts(bench.classifier, seed=options.seed))
        run.note(
            model=headline(words(given[0]), bench.classifier),
            data=f"{len(bench.pictures)} pictures",
            temperature=temperature_of(bench.classifier),
            generator=bench.model.name if bench.model else None,
        )
        record(run, bench, make(bench, arms, run, logger(options)), judges, lpips, pool)
        run.write_table("notes", [{"note": note} for note in notes])
    return Result(run)


def _bench(
    options: EvaluateOptions,
    classifier: Classifier,
    helper: Classifier | None,
    arms: Sequence[str],
    wanted: Sequence[Given],
) -> tuple[Bench, list[str]]:
    """What every method gets: pictures and targets, generator and settings; and remarks."""
    drawn = any(one in GENERATED for one in arms)
    drawer = (
        open_generator_for([classifier], options.generator, half=options.half) if drawn else None
    )
    if drawer:
        check_steps(drawer, searches(options.changes)[1].chain.steps)
    pictures = open_pictures(wanted, classifier, limit=options.limit, seed=options.seed)
    pictures, probs, left = right_ones(classifier, pictures)
    norm = cast(Norm, options.norm)
    usual = default_radii(norm, classifier.preprocess.size)[3]
    guided, edit = searches([f"updates={options.updates}", *options.changes])
    rows = seeded_rows(pictures, probs, options.targets, options.seed)
    bench = Bench(
        classifier, helper, drawer, pictures, *rows, probs.argmax(1), norm,
        only_radius(options.radius) or usual, options.steps, guided, edit, options.batch,
        options.seed, options.memory,
    )  # fmt: skip
    return bench, left


def searches(changes: Sequence[str]) -> tuple[dvce.DvceSettings, EditSettings]:
    """The settings of DVCE and of DiG-IN's edit, some of them changed.

    >>> searches(["dvce.near=0.3", "edit.inner=2", "cuts=4"])[1].chain.cuts
    4
    """
    own = [text.removeprefix("dvce.") for text in changes if text.startswith("dvce.")]
    rest = [text for text in changes if not text.startswith("dvce.")]
    return numbers_changed(dvce.PAPER, own), edited(UVCE, rest)


def choose_arms(
    chosen: Sequence[str], robust: Classifier | None, generator: str | None
) -> tuple[list[str], list[str]]:
    """The methods to run, and what is left out for want of something."""
    from counterlens import zoo

    able = {
        one: True
        if one == "pixel"
        else robust is not None
        if one == "pixel-robust"
        else generator is not None or bool(zoo.generators())
        for one in ARMS
    }
    needs = {"pixel-robust": "a robust model: --robust MODEL"}
    for one in chosen:
        if not able[one]:
            need = needs.get(one, "a generator: --generator FOLDER")
            raise InputError(f"{one} needs {need}.")
    if chosen:
        return [one for one in ARMS if one in chosen], []
    left = [
        f"{one} was left out: it needs {needs.get(one, 'a generator: --generator FOLDER')}."
        for one in ARMS
        if not able[one]
    ]
    return [one for one in ARMS if able[one]], left


def right_ones(classifier: Classifier, pictures: Pictures) -> tuple[Pictures, Probs, list[str]]:
    """The pictures that the classifier answers right, what it says, and how many it does not."""
    probs = confidences_of(classifier, pictures)
    answer = probs.argmax(1).tolist()
    pairs = list(enumerate(zip(answer, pictures.labels, strict=True)))
    good = [i for i, (top, label) in pairs if label in (top, -1)]
    if not good:
        raise InputError(
            f"{classifier.name} answers none of the {len(pictures)} pictures right, so there is "
            "nothing to turn. Give more, or pictures of its classes."
        )
    left = len(pictures) - len(good)
    notes = (
        [f"{left} of {len(pictures)} pictures were answered wrong and left out."] if left else []
    )
    return pictures.only(good), probs[good], notes


def seeded_rows(pictures: Pictures, probs: Probs, count: int, seed: int) -> tuple[Labels, Labels]:
    """For each picture the same few random targets, whatever the method."""
    image, target = [], []
    for i, (name, label) in enumerate(zip(pictures.ids, pictures.labels, strict=True)):
        taken = {int(probs[i].argmax()), label}
        wanted = seeded(probs.shape[1], taken, f"{seed} {name}")[:count]
        image += [i] * len(wanted)
        target += wanted
    return torch.tensor(image), torch.tensor(target)


def record(
    run: Run,
    bench: Bench,
    outputs: Iterable[tuple[str, ArmImages]],
    judges: Sequence[Classifier],
    lpips: Lpips | None,
    real: Real | None,
) -> None:
    """Measure each method once it has images; write images, rows, numbers, study pairs."""
    how = f"{len(bench.image)} counterfactuals of {len(bench.pictures)} pictures"
    names = [_file(bench, k) for k in range(len(bench.image))]
    starts = _saved(run, "original", names, bench.x)
    masks, shapes = None, [None] * len(names)
    measured: dict[str, Measured] = {}
    rows: dict[str, list[dict[str, Any]]] = {}
    if real is not None:
        run.add_numbers(_unchanged(bench, real, how))
    for arm, one in outputs:
        if masks is None and one.masks is not None:
            masks, shapes = one.masks, _saved(run, "mask", names, one.masks)
        guide = bench.robust if arm == "pixel-robust" and bench.robust else bench.classifier
        measured[arm] = measure(bench, one, guide, judges, masks=masks, lpips=lpips, real=real)
        files = _saved(run, arm, names, one.images)
        lines = zip(rows_of(bench, arm, measured[arm], files), starts, shapes, strict=True)
        rows[arm] = [{**row, "original": start, "mask": shape} for row, start, shape in lines]
        run.add_numbers(numbers(bench, arm, one, measured[arm], real, how))
        order = [name for name in ARMS if name in measured]
        run.write_table("quality", [row for name in order for row in rows[name]])
    last = order[-1]
    for arm in order[:-1]:
        run.add_numbers(gaps(bench, (last, measured[last]), (arm, measured[arm])))
    table = run.table("quality")
    run.write_table("study", study_pairs(table, order, seed=bench.seed))
    draw(run, table, order)


def draw(run: Run, rows: Sequence[Mapping[str, Any]], arms: Sequence[str]) -> None:
    """A figure of the first counterfactuals, none chosen: a column per method."""
    first = [row for row in rows if row["method"] == arms[0]][:FIGURE]
    grid, sides = [], []
    for k, row in enumerate(first):
        line = [Panel(read(run.folder / row["original"]), f"{row['target']} {row['before']:.2f}")]
        for arm in arms:
            other_row = [other for other in rows if other["method"] == arm][k]
            others = [
                answer for who, answer in other_row["answers"].items() if who != other_row["guide"]
            ]
            caption = (
                f"{other_row['target']} {other_row['confidence']:.2f}\n{', '.join(others)[:24]}"
            )
            tone: Any = "good" if other_row.get("agreed") else "bad" if others else ""
            line.append(Panel(read(run.folder / other_row["image"]), caption, tone))
        grid.append(line)
        sides.append(f"{row['predicted'][:10]} →\n{row['target'][:12]}")
    title = "below: the guide's confidence in the target, what the others answer"
    save_figure(run, "figure-000", grid, heads=["original", *arms], sides=sides, title=title)


def _saved(run: Run, folder: str, names: Sequence[str], images: Images) -> list[Any]:
    return [save(run, f"{folder}/{n}.png", one) for n, one in zip(names, images, strict=True)]


def _unchanged(bench: Bench, real: Real, how: str) -> dict[str, Number]:
    """What realism says of the pictures themselves: the value of changing nothing."""
    from counterlens.metrics.generation import kid_interval

    features = real.features(bench.x)
    value, low, high = kid_interval(features, real.reference)
    protocol = f"the pictures unchanged against real images of the targets, {real.how}; {how}"
    return {"quality.original.kid": Number(value, len(features), low, high, f"KID of {protocol}")}


def study_pairs(
    rows: Sequence[Mapping[str, Any]], arms: Sequence[str], *, count: int = PAIRS, seed: int = 0
) -> list[dict[str, Any]]:
    """Pairs for people to compare: the last method against DVCE, or against the first.

    As in the paper, drawn at random among those of which both guides are sure; which one stands
    left is drawn too.
    """
    if len(arms) < 2:
        return []
    ours = arms[-1]
    theirs = "dvce" if "dvce" in arms[:-1] else arms[0]
    table = {
        name: {(row["id"], row["target"]): row for row in rows if row["method"] == name}
        for name in (ours, theirs)
    }
    good = [
        key
        for key, row in table[ours].items()
        if min(row["confidence"], table[theirs][key]["confidence"]) >= SURE
    ]
    draw = random.Random(seed)
    chosen = draw.sample(good, min(count, len(good)))
    out = []
    for key in chosen:
        sides = [ours, theirs]
        draw.shuffle(sides)
        left, right = (table[side][key] for side in sides)
        out.append(
            {
                "id": key[0],
                "target": key[1],
                "original": left["original"],
                "left": left["image"],
                "right": right["image"],
                "left_method": sides[0],
                "right_method": sides[1],
            }
        )
    return out


def _real(
    spec: str | None, images: Sequence[Given], bench: Bench, judges: Sequence[Classifier], seed: int
) -> tuple[Real | None, list[str]]:
    """Real images to compare with, or why there are none."""
    if not judges:
        return None, ["Realism and truth were not measured: name an independent model, --with."]
    if spec is None and images and isinstance(images[0], str):
        spec = images[0].rpartition("#")[0] or images[0]
        spec = None if Path(spec).suffix.lower() in SUFFIXES else spec
    if spec is None:
        return None, ["Realism was not measured: name labelled images, --real SPEC."]
    if len(bench.image) < 4:  # two blocks of two
        return None, ["Realism was not measured: it takes four counterfactuals or more."]
    opened = open_real(
        spec, bench.classifier, judges[0], target=bench.target, taken=bench.pictures.ids, seed=seed
    )
    return opened, []


def _check(options: EvaluateOptions) -> None:
    """Refuse what cannot work before anything is loaded."""
    only_radius(options.radius)
    if options.targets < 1 or options.steps < 1 or options.updates < 0:
        raise InputError(
            f"targets {options.targets}, steps {options.steps}, updates {options.updates}; "
            "expected 1 or more, 1 or more, 0 or more."
        )


def only_radius(given: Sequence[str | float]) -> float | None:
    """The one budget of an evaluation, if any was given.

    >>> only_radius(["8/255"]) == 8 / 255, only_radius([])
    (True, None)
    """
    if len(given) > 1:
        raise InputError(f"got {len(given)} budgets, expected one: methods get the same.")
    return parse_radius(given[0]) if given else None


def _file(bench: Bench, k: int) -> str:
    i, t = int(bench.image[k]), int(bench.target[k])
    return f"{i:04d}-{key_part(bench.pictures.ids[i])[-40:]}-{t}"
