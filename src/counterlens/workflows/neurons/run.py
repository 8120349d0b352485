"""Neurons: what drives a unit, as pictures made in pixel space or by a generator.

Without pictures: an image from nothing per unit. With pictures: where each of them drives the unit,
and what it turns into when the unit is raised. What is asked about components of classes, or about
features on the background, is in `neurons_study`.
"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from counterlens.classifier import Classifier
from counterlens.errors import InputError
from counterlens.explanations.counterfactuals.targets import class_index
from counterlens.explanations.features.directions import unit_direction
from counterlens.explanations.features.neurons import NeuronPictures, neuron_pictures
from counterlens.explanations.figure import Panel
from counterlens.generators.diffusion.model import LatentDiffusion
from counterlens.generators.diffusion.optimise import COUNTERFACTUAL
from counterlens.models import load
from counterlens.models.captioner import load_captioner
from counterlens.models.parts import head
from counterlens.models.weights import weights_hash
from counterlens.report import render
from counterlens.runs import Number, Run, key_part, new_folder
from counterlens.scale import check_place
from counterlens.workflows._shared.figures import save, save_figure
from counterlens.workflows._shared.generate import Workers, changed, fitting
from counterlens.workflows._shared.generator import open_generator_for
from counterlens.workflows._shared.pictures import Given, open_pictures
from counterlens.workflows._shared.result import Result
from counterlens.workflows._shared.session import teller
from counterlens.workflows.explain.run import load_all
from counterlens.workflows.neurons.diffusion import Drawing, draw_units
from counterlens.workflows.neurons.pixel import raised, votes
from counterlens.workflows.neurons.study import Study, study

COLUMNS = 8


def neurons(
    model: str | Classifier,
    *,
    unit: Sequence[int] = (),
    npca: Sequence[str] = (),
    logit: Sequence[str] = (),
    image: Sequence[Given] = (),
    spurious: bool = False,
    masks: str | None = None,
    limit: int | None = None,
    steps: int = 256,
    method: str = "pixel",
    data: str | None = None,
    generator: str | None = None,
    count: int = 4,
    similar: int = 0,
    words: Path | None = None,
    captioner: str | None = None,
    memory: str | None = None,
    changes: Sequence[str] = (),
    on: str = "here",
    workers: int | None = None,
    out: Path | None = None,
    resume: bool = False,
    seed: int = 0,
    device: str = "auto",
    trust_remote_code: bool = False,
    quiet: bool = False,
) -> Result:
    """Picture units of a model.

    Args:
        unit: penultimate units, by number.
        npca: components of classes: CLASS:COMPONENT, CLASS for its first ones, or all.
        logit: classes whose logit is raised, by name or number.
        image: pictures to draw the feature's map on and to change: in pixel space by the feature
            attack; by diffusion raised and lowered, changes of the object penalised.
        spurious: rank features by the share of their maps outside the object, over the data.
        masks: of objects: FOLDER, key:NAME of a packed set, attention or cam; None: the best there
            are. With pictures: a mask file, or a folder of them.
        limit: how many images of the data.
        steps: of the pictures from nothing.
        method: pixel, pictures from nothing; or diffusion, pictures by a generator.
        data: real images: of the components' classes, to rank features on, or, for diffusion,
            whose best ones the pictures are compared with.
        generator, memory: for diffusion: a diffusers folder, and a budget such as 12GB.
        count: for diffusion: pictures per unit.
        similar: for diffusion: how many units like each one are drawn beside it.
        words: for diffusion: a file with further candidate words, one a line.
        captioner: for diffusion: hub id or folder of a model whose captions of the best real
            images are candidates, too.
        changes: for diffusion: of the search's settings, e.g. updates=40.
        on, workers: for diffusion: here, ray or ray://HOST:PORT, and how many at most.
    """
    if method not in ("pixel", "diffusion"):
        raise InputError(f"method is {method!r}, expected pixel or diffusion.")
    if npca or spurious or masks or limit or (image and method == "diffusion"):
        if logit or similar or words or captioner or on != "here":
            raise InputError(
                "--logit, --similar, --words, --captioner and --on draw pictures from nothing: "
                "leave them out with --npca, --spurious, --masks, --limit, or --image by diffusion."
            )
        asked = Study(
            tuple(unit), tuple(npca), tuple(image), spurious, masks, data, limit, generator,
            method, tuple(changes), memory, seed,
        )  # fmt: skip
        return study(model, asked, out=out, resume=resume, device=device,
                     trust_remote_code=trust_remote_code, quiet=quiet)  # fmt: skip
    if not unit and not logit:
        raise InputError(
            "no feature came, expected --unit NUMBER, --npca CLASS:COMPONENT, --logit CLASS, or "
            "--spurious."
        )
    settings = {
        "model": model if isinstance(model, str) else model.name,
        "unit": list(unit),
        "logit": list(logit),
        "image": [str(one) if isinstance(one, str | Path) else "an array" for one in image],
        "steps": steps,
        "method": method,
        "data": data,
        "generator": generator,
        "count": count,
        "similar": similar,
        "words": str(words) if words else None,
        "captioner": captioner,
        "changes": list(changes),
        "seed": seed,
    }
    check_place(on)
    if method == "diffusion" and (image or not (unit or logit) or count < 1 or similar < 0):
        raise InputError(
            "--method diffusion takes --unit NUMBER or --logit CLASS, and --count of 1 or more."
        )
    if method == "pixel" and (similar or words or captioner or changes or on != "here"):
        raise InputError("--similar, --words, --captioner, --set and --on need --method diffusion.")
    if captioner and not data:
        raise InputError("--captioner needs real images to look at: --data SPEC.")
    changed(COUNTERFACTUAL, changes)  # refuses what is wrong before anything is loaded
    listed = _listed(words) if words else ()
    classifier = (
        load(model, device=device, trust_remote_code=trust_remote_code)
        if isinstance(model, str)
        else model
    )
    classes = [class_index(classifier.classes, name) for name in logit]
    pictures = open_pictures(image, classifier, seed=seed) if image else None
    painter: LatentDiffusion | None = None
    if method == "diffusion":
        painter = open_generator_for([classifier], generator, half=False)
    name = "-".join(str(n) for n in (*unit, *logit))
    folder = out or new_folder("neurons", f"{key_part(classifier.name)}-{name}")
    run = Run.create(folder, "neurons", settings, resume=resume)
    run.note(model=settings["model"], weights_hash=weights_hash(classifier), seed=seed)
    say = teller(quiet)
    rows: list[dict[str, Any]] = []
    panels: list[Panel] = []
    if painter is not None:

        def opened() -> tuple[LatentDiffusion, list[Classifier]]:  # in a worker: its own device
            mine = load_all([model], device=device, trust_remote_code=trust_remote_code)
            return open_generator_for(mine, generator, half=False), mine

        gpus = float(painter.device.type == "cuda")
        search = changed(fitting(COUNTERFACTUAL, painter), changes)
        run.note(search=asdict(search))
        wanted = dict.fromkeys([*unit, *(head(classifier).in_features + k for k in classes)])
        job = Drawing(
            run, classifier, painter, tuple(wanted), data, search, count, seed,
            memory, say, None if on == "here" else Workers(on, opened, workers, gpus), similar,
            listed,
            load_captioner(captioner, device=painter.device) if captioner else None,
        )  # fmt: skip
        rows, found = draw_units(job)
        return _end(run, rows, found)
    if unit:
        say(f"{len(unit)} units from nothing: {steps} steps")
        made = neuron_pictures(classifier, list(unit), steps=steps, seed=seed)
        rows += _made(run, classifier, made, "unit", list(unit), panels)
    if classes:
        say(f"{len(classes)} logits from nothing: {steps} steps")
        made = neuron_pictures(classifier, classes, kind="logit", steps=steps, seed=seed)
        rows += _made(run, classifier, made, "logit", classes, panels)
    grid = [panels[a : a + COLUMNS] for a in range(0, len(panels), COLUMNS)]
    save_figure(run, "figure-000", grid, title=f"{classifier.name}: pictures from nothing")
    if pictures is not None:
        for number in unit:
            say(f"unit {number} on {len(pictures)} pictures")
            rows += raised(run, classifier, pictures, unit_direction(classifier, number))
    return _end(run, rows, {})


def _listed(path: Path) -> tuple[str, ...]:
    """Words of a file, one a line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as a list of words: {error}.") from None
    found = tuple(dict.fromkeys(line.strip() for line in lines if line.strip()))
    if not found:
        raise InputError(f"{path} holds no word, expected one a line.")
    return found


def _end(run: Run, rows: list[dict[str, Any]], found: dict[str, Number]) -> Result:
    run.write_table("neurons", rows)
    run.add_numbers(found)
    render(run)
    run.finish()
    return Result(run)


def _made(
    run: Run,
    classifier: Classifier,
    made: NeuronPictures,
    kind: str,
    numbers: list[int],
    panels: list[Panel],
) -> list[dict[str, Any]]:
    rows = []
    for k, number in enumerate(numbers):
        word = classifier.classes[number] if kind == "logit" else f"unit {number}"
        image, value = made.images[k].cpu(), made.activation[k].item()
        panels.append(Panel(image, f"{word[:18]}\n{value:.2f}"))
        rows.append(
            {
                "kind": kind,
                "unit": number,
                "name": word,
                "how": "from nothing",
                "image": save(run, f"{kind}-{number}.png", image),
                "activation": value,
                "start": made.start[k].item(),
                "votes": votes(classifier, number) if kind == "unit" else [],
            }
        )
    return rows
