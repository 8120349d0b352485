"""Evaluate: how good are counterfactuals? Several methods side by side on the same pictures.

Each picture that the model gets right is turned to the same seeded targets by every method. All
images are kept with their ids, so that a user study can draw its pairs from the same run.

Paper: Augustin, Neuhaus, Hein 2024 (digin2024), section 5 and its user study.
Differs: the paper asks 30 people about 30 pairs; here numbers stand for them, and the pairs that
       people could be shown are drawn by the paper's rule.
"""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch

from counterlens.ball import NORMS, Norm
from counterlens.classifier import Classifier
from counterlens.errors import InputError
from counterlens.explanations.counterfactuals import dvce
from counterlens.explanations.counterfactuals.pixel import STEPS, default_radii, temperature_of
from counterlens.explanations.counterfactuals.targets import seeded
from counterlens.explanations.counterfactuals.uvce import UVCE, EditSettings
from counterlens.explanations.figure import Panel
from counterlens.images import SUFFIXES, read
from counterlens.models.nets.lpips import Lpips
from counterlens.models.nets.lpips import load as load_lpips
from counterlens.models.weights import weights_hash
from counterlens.runs import Number, Run, key_part, new_folder
from counterlens.types import Images, Labels, Probs
from counterlens.workflows._shared.figures import save, save_figure
from counterlens.workflows._shared.generate import changed
from counterlens.workflows._shared.generator import open_generator_for
from counterlens.workflows._shared.pictures import Given, Pictures, open_pictures
from counterlens.workflows._shared.result import Result
from counterlens.workflows._shared.session import teller, write_report
from counterlens.workflows.explain.run import ask, load_all, parse_radius
from counterlens.workflows.quality.measures import Measured, gaps, measure, numbers, rows_of
from counterlens.workflows.quality.methods import Bench, Made, make
from counterlens.workflows.quality.real import Real, open_real

ARMS = ("pixel", "pixel-robust", "dvce", "prompt-to-prompt", "diffusion")
GENERATED = ("dvce", "prompt-to-prompt", "diffusion")
PAIRS = 30
"""Pairs for a user study, as many as the paper showed."""
SURE = 0.8
FIGURE = 12
"""Rows of the figure."""


def evaluate(
    model: str | Classifier,
    images: Sequence[Given],
    *,
    arm: Sequence[str] = (),
    judge: Sequence[str | Classifier] = (),
    robust: str | Classifier | None = None,
    targets: int = 1,
    real: str | None = None,
    lpips: str | None = None,
    generator: str | None = None,
    radius: float | None = None,
    norm: str = "l2",
    steps: int | None = None,
    updates: int = UVCE.chain.updates,
    changes: Sequence[str] = (),
    limit: int | None = None,
    batch: int | None = None,
    memory: str | None = None,
    half: bool = False,
    out: Path | None = None,
    resume: bool = False,
    seed: int = 0,
    device: str = "auto",
    trust_remote_code: bool = False,
    quiet: bool = False,
) -> Result:
    """Compare methods of counterfactuals; write a run with a table, galleries and all images.

    Args:
        images: a labelled SPEC or part of one; pictures the model gets wrong are left out.
        arm: methods, of ARMS; none: all that can be run with what is given.
        judge: classifiers that take no part and say what they see. The first one's features
            measure realism.
        robust: a robust classifier: explained by pixels too, and DVCE's helper.
        targets: classes per picture, neither true nor predicted, drawn by id and seed.
        real: labelled images for realism; None takes the set that the pictures come from.
        lpips: weights of LPIPS, see `models.lpips`.
        radius, norm, steps: of the pixel methods; None: 2 at 32 pixels in l2, scaled by size.
        updates: of DiG-IN's search.
        batch, memory: rows at a time for the generator, and its budget, such as 60GB.
        changes: of further settings, as KEY=VALUE: those of its chain (text_rate=0.05), of the edit
            (edit.inner=20) and of DVCE (dvce.towards=0.2).
    """
    steps = STEPS if steps is None else steps
    _check(arm, norm, targets, steps, updates)
    asked: dict[str, Any] = {
        "model": _name(model), "images": [str(one) for one in images], "arm": list(arm),
        "judge": [_name(one) for one in judge], "robust": None if robust is None else _name(robust),
        "targets": targets, "real": real, "lpips": lpips, "generator": generator, "radius": radius,
        "norm": norm, "steps": steps, "updates": updates, "changes": list(changes),
        "limit": limit, "half": half, "seed": seed,
    }  # fmt: skip
    say = teller(quiet)
    given = [model, *judge, *([robust] if robust is not None else [])]
    nets = load_all(given, device=device, trust_remote_code=trust_remote_code)
    classifier, judges = nets[0], nets[1 : 1 + len(judge)]
    helper = nets[-1] if robust is not None else None
    arms, notes = choose_arms(arm, helper, generator)
    where = classifier.mean.device
    drawn = any(one in GENERATED for one in arms)
    drawer = open_generator_for([classifier], generator, half=half) if drawn else None
    looks = load_lpips(lpips, device=where) if lpips else None
    pictures = open_pictures(images, classifier, limit=limit, seed=seed)
    pictures, probs, left = right_ones(classifier, pictures)
    checked: Norm = norm  # type: ignore[assignment]
    guided, edit = searches([f"updates={updates}", *changes])
    bench = Bench(
        classifier, helper, drawer, pictures, *seeded_rows(pictures, probs, targets, seed),
        probs.argmax(1), checked, radius or default_radii(checked, classifier.preprocess.size)[3],
        steps, guided, edit, batch, seed, memory,
    )  # fmt: skip
    pool, missing = _real(real, images, bench, judges, seed)
    notes += [*left, *missing, *pictures.notes]
    run = _run(out, asked, bench, resume)
    record(run, bench, make(bench, arms, run, say), judges, looks, pool)
    run.write_table("notes", [{"note": note} for note in notes])
    write_report(run, say)
    run.finish()
    return Result(run)


def _run(out: Path | None, asked: Mapping[str, Any], bench: Bench, resume: bool) -> Run:
    """The run and its manifest."""
    net = bench.classifier
    folder = out or new_folder("explain", f"quality-{key_part(net.name)}")
    run = Run.create(folder, "evaluate", asked, resume=resume)
    run.note(
        model=asked["model"], weights_hash=weights_hash(net), device=str(net.mean.device),
        seed=bench.seed, temperature=temperature_of(net), data=f"{len(bench.pictures)} pictures",
        generator=bench.model.name if bench.model else None,
    )  # fmt: skip
    return run


def searches(changes: Sequence[str]) -> tuple[dvce.Settings, EditSettings]:
    """The settings of DVCE and of DiG-IN's edit, some of them changed.

    >>> searches(["dvce.near=0.3", "edit.inner=2", "cuts=4"])[1].chain.cuts
    4
    """
    parts: dict[str, list[str]] = {"dvce": [], "edit": [], "": []}
    for text in changes:
        area, dot, rest = text.partition(".")
        key = area if dot and area in parts else ""
        parts[key].append(rest if key else text)
    edit: EditSettings = _numbers_changed(UVCE, parts["edit"])
    return (
        _numbers_changed(dvce.PAPER, parts["dvce"]),
        replace(edit, chain=changed(edit.chain, parts[""])),
    )


def _numbers_changed(settings: Any, changes: Sequence[str]) -> Any:
    """A record with some of its numbers changed."""
    known = {
        one.name: getattr(settings, one.name)
        for one in fields(settings)
        if type(getattr(settings, one.name)) in (int, float)
    }
    new = {}
    for text in changes:
        key, _, value = text.partition("=")
        try:
            new[key] = type(known[key])(value)
        except (KeyError, ValueError):
            wanted = ", ".join(f"{name}={was:g}" for name, was in known.items())
            raise InputError(f"{text!r} cannot be set, expected one of {wanted}.") from None
    return replace(settings, **new)


def choose_arms(
    asked: Sequence[str], robust: Classifier | None, generator: str | None
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
    for one in asked:
        if not able[one]:
            need = needs.get(one, "a generator: --generator FOLDER")
            raise InputError(f"{one} needs {need}.")
    if asked:
        return [one for one in ARMS if one in asked], []
    left = [
        f"{one} was left out: it needs {needs.get(one, 'a generator: --generator FOLDER')}."
        for one in ARMS
        if not able[one]
    ]
    return [one for one in ARMS if able[one]], left


def right_ones(classifier: Classifier, pictures: Pictures) -> tuple[Pictures, Probs, list[str]]:
    """The pictures that the classifier answers right, what it says, and how many it does not."""
    probs = ask(classifier, pictures)
    answer = probs.argmax(1).tolist()
    pairs = list(enumerate(zip(answer, pictures.labels, strict=True)))
    good = [i for i, (said, label) in pairs if label in (said, -1)]
    if not good:
        raise InputError(
            f"{classifier.name} answers none of the {len(pictures)} pictures right, so there is "
            "nothing to turn. Give more, or pictures of its classes."
        )
    left = len(pictures) - len(good)
    told = [f"{left} of {len(pictures)} pictures were answered wrong and left out."] if left else []
    return pictures.only(good), probs[good], told


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
    made: Iterable[tuple[str, Made]],
    judges: Sequence[Classifier],
    lpips: Lpips | None,
    real: Real | None,
) -> None:
    """Measure every method as soon as it is made; write images, rows, numbers, study pairs."""
    how = f"{len(bench.image)} counterfactuals of {len(bench.pictures)} pictures"
    names = [_file(bench, k) for k in range(len(bench.image))]
    starts = _saved(run, "original", names, bench.x)
    masks, shapes = None, [None] * len(names)
    found: dict[str, Measured] = {}
    rows: dict[str, list[dict[str, Any]]] = {}
    if real is not None:
        run.add_numbers(_unchanged(bench, real, how))
    for arm, one in made:
        if masks is None and one.masks is not None:
            masks, shapes = one.masks, _saved(run, "mask", names, one.masks)
        guide = bench.robust if arm == "pixel-robust" and bench.robust else bench.classifier
        found[arm] = measure(bench, one, guide, judges, masks=masks, lpips=lpips, real=real)
        files = _saved(run, arm, names, one.images)
        told = zip(rows_of(bench, arm, found[arm], files), starts, shapes, strict=True)
        rows[arm] = [{**row, "original": start, "mask": shape} for row, start, shape in told]
        run.add_numbers(numbers(bench, arm, one, found[arm], real, how))
        order = [name for name in ARMS if name in found]
        run.write_table("quality", [row for name in order for row in rows[name]])
    last = order[-1]
    for arm in order[:-1]:
        run.add_numbers(gaps(bench, (last, found[last]), (arm, found[arm])))
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
            made = [other for other in rows if other["method"] == arm][k]
            others = [said for who, said in made["answers"].items() if who != made["guide"]]
            caption = f"{made['target']} {made['confidence']:.2f}\n{', '.join(others)[:24]}"
            tone: Any = "good" if made.get("agreed") else "bad" if others else ""
            line.append(Panel(read(run.folder / made["image"]), caption, tone))
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
    told = f"the pictures unchanged against real images of the targets, {real.how}; {how}"
    return {"quality.original.kid": Number(value, len(features), low, high, f"KID of {told}")}


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
    found = open_real(
        spec, bench.classifier, judges[0], target=bench.target, taken=bench.pictures.ids, seed=seed
    )
    return found, []


def _check(arm: Sequence[str], norm: str, targets: int, steps: int, updates: int) -> None:
    """Refuse what cannot work before anything is loaded."""
    wrong = [one for one in arm if one not in ARMS]
    if wrong:
        raise InputError(f"no method {wrong[0]!r}, expected some of {', '.join(ARMS)}.")
    if norm not in NORMS:
        raise InputError(f"norm is {norm!r}, expected one of {', '.join(NORMS)}.")
    if targets < 1 or steps < 1 or updates < 0:
        raise InputError(
            f"targets {targets}, steps {steps}, updates {updates}; expected 1 or more, 1 or more, "
            "0 or more."
        )


def only_radius(given: Sequence[str | float]) -> float | None:
    """The one budget of an evaluation, if any was given.

    >>> only_radius(["8/255"]) == 8 / 255, only_radius([])
    (True, None)
    """
    if len(given) > 1:
        raise InputError(f"{len(given)} budgets came, expected one: methods get the same.")
    return parse_radius(given[0]) if given else None


def _file(bench: Bench, k: int) -> str:
    i, t = int(bench.image[k]), int(bench.target[k])
    return f"{i:04d}-{key_part(bench.pictures.ids[i])[-40:]}-{t}"


def _name(one: str | Classifier) -> str:
    return one if isinstance(one, str) else one.name


__all__ = ["ARMS", "evaluate"]
