"""Units and components on real images: contributions, counterfactuals, and where features live.

What `neurons` does when it is asked for components (--npca), for features on the background
(--spurious), or for changed pictures by a generator (--image with --method diffusion).
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from counterlens import zoo
from counterlens.ball import mix
from counterlens.classifier import Classifier
from counterlens.data.made import captions
from counterlens.data.masks import object_of
from counterlens.errors import InputError
from counterlens.explanations.counterfactuals.attention_masks import attention_masks
from counterlens.explanations.counterfactuals.masks import resized
from counterlens.explanations.features.directions import Direction, unit_direction
from counterlens.generators.diffusion.cutouts import seen
from counterlens.generators.diffusion.model import LatentDiffusion
from counterlens.images import prepare, read
from counterlens.models import load
from counterlens.models.parts import features
from counterlens.models.weights import weights_hash
from counterlens.report import render
from counterlens.runs import Number, Run, key_part, new_folder
from counterlens.types import Images, Labels, Preprocess
from counterlens.workflows._shared.generate import changed
from counterlens.workflows._shared.generator import misfit, open_generator_for
from counterlens.workflows._shared.pictures import Given, open_pictures
from counterlens.workflows._shared.result import Result
from counterlens.workflows._shared.session import Say, teller
from counterlens.workflows.neurons.data import Known, read_known
from counterlens.workflows.neurons.edits import EDIT, Editing, edit_directions, usual
from counterlens.workflows.neurons.npca import components, show_components
from counterlens.workflows.neurons.object_masks import Find, find_masks
from counterlens.workflows.neurons.pixel import raised
from counterlens.workflows.neurons.scan import pixels
from counterlens.workflows.neurons.spurious import (
    FEWEST,
    ask,
    features_of_classes,
    judge,
    write_spurious,
)

Table = list[dict[str, Any]]


@dataclass(frozen=True)
class Study:
    """What was asked.

    Args:
        unit, npca: features by number, CLASS:COMPONENT, CLASS, or all.
        image: pictures to change by a generator; none: the features are shown on the data.
        spurious: rank features by how far they live on the background.
        masks: FOLDER, key:NAME, attention or cam; for pictures a mask file or a folder.
        method: of changing pictures: pixel, the feature attack; or diffusion.
        changes: of the search's settings, e.g. cuts=0 to ask as the paper's code does.
    """

    unit: tuple[int, ...] = ()
    npca: tuple[str, ...] = ()
    image: tuple[Given, ...] = ()
    spurious: bool = False
    masks: str | None = None
    data: str | None = None
    limit: int | None = None
    generator: str | None = None
    method: str = "diffusion"
    changes: tuple[str, ...] = ()
    memory: str | None = None
    seed: int = 0

    def check(self) -> None:
        """Refuse what cannot work before anything is loaded."""
        if not (self.spurious or self.npca or self.image):
            raise InputError(
                "--limit and --masks need --npca, --spurious, or --image by diffusion."
            )
        if self.spurious and self.image:
            raise InputError("--spurious looks at a whole set: leave --image out, give --data.")
        if (self.spurious or self.npca) and not self.data:
            why = "--spurious" if self.spurious else "--npca"
            raise InputError(f"{why} needs images to look at: --data SPEC.")
        if self.masks and not (self.spurious or (self.image and self.method == "diffusion")):
            raise InputError("--masks belongs to --spurious, or to --image by diffusion.")
        if self.image and not (self.unit or self.npca):
            raise InputError("no feature came, expected --unit NUMBER or --npca CLASS:COMPONENT.")
        changed(EDIT.chain, self.changes)
        if self.limit is not None and self.limit < 1:
            raise InputError(f"limit is {self.limit}, expected 1 or more.")


def study(
    model: str | Classifier,
    asked: Study,
    *,
    out: Path | None = None,
    resume: bool = False,
    device: str = "auto",
    trust_remote_code: bool = False,
    quiet: bool = False,
) -> Result:
    """Do what was asked; write a run with tables, pictures and numbers."""
    asked.check()
    classifier = (
        load(model, device=device, trust_remote_code=trust_remote_code)
        if isinstance(model, str)
        else model
    )
    units = [unit_direction(classifier, n) for n in dict.fromkeys(asked.unit)]
    _check_head(classifier)
    name = "spurious" if asked.spurious else "-".join(str(n) for n in (*asked.unit, *asked.npca))
    folder = out or new_folder("neurons", f"{key_part(classifier.name)}-{key_part(name)}")
    say = teller(quiet)
    settings = {
        "model": model if isinstance(model, str) else model.name,
        **{k: v for k, v in vars(asked).items() if k != "image"},
        "image": [str(one) if isinstance(one, str | Path) else "an array" for one in asked.image],
    }
    lists = {key: list(getattr(asked, key)) for key in ("unit", "npca", "changes")}
    settings |= lists
    known = None
    if asked.data is not None and (asked.spurious or asked.npca):
        known = read_known(classifier, asked.data, limit=asked.limit, seed=asked.seed, say=say)
    run = Run.create(folder, "neurons", settings, resume=resume)
    run.note(
        model=settings["model"], weights_hash=weights_hash(classifier), seed=asked.seed,
        data=known.images.name if known else None, device=str(classifier.mean.device),
    )  # fmt: skip
    rows: Table = []
    if asked.spurious:
        assert known is not None
        found = _spurious(run, classifier, known, asked, units, say)
    elif asked.image:
        parts = components(classifier, known, asked.npca) if known and asked.npca else []
        chosen = [*units, *(direction for _, direction in parts)]
        work = _edits if asked.method == "diffusion" else _attacks
        rows, found = work(run, classifier, asked, chosen, say)
    else:
        assert known is not None
        parts = components(classifier, known, asked.npca)
        rows, found = show_components(run, classifier, known, parts, say)
    return _end(run, rows, found)


def _end(run: Run, rows: Table, found: dict[str, Number]) -> Result:
    if rows:
        run.write_table("neurons", rows)
    run.add_numbers(found)
    render(run)
    run.finish()
    return Result(run)


def _check_head(classifier: Classifier) -> None:
    """Refuse, before a set is read, a model whose logits are no linear function of features."""
    blank = torch.zeros(1, classifier.channels, *classifier.preprocess.size)
    with torch.no_grad():
        features(classifier, blank.to(classifier.mean))


def _spurious(
    run: Run,
    classifier: Classifier,
    known: Known,
    asked: Study,
    units: Sequence[Direction],
    say: Say,
) -> dict[str, Number]:
    assert asked.data is not None

    def attention() -> Find:
        model = open_generator_for([classifier], asked.generator, half=False)
        return marking(model, classifier, asked.seed)

    fits = bool(zoo.generators()) and not misfit(classifier)
    masks = find_masks(
        classifier, known, asked.data, asked.masks, attention=attention,
        generator=asked.generator is not None or fits, say=say,
    )  # fmt: skip
    run.note(masks=masks.told)
    named = [ask(direction, None, known, masks) for direction in units]
    if asked.npca:
        parts = components(classifier, known, asked.npca)
        named += [ask(direction, pca.target, known, masks) for pca, direction in parts]
    wanted = [one for one in named if one is not None]
    if not (units or asked.npca):
        wanted = features_of_classes(classifier, known, masks)
    elif not wanted:
        raise InputError(f"fewer than {FEWEST} images have a usable mask. Give more --data.")
    say(f"maps of {len(wanted)} features")
    judged = judge(
        classifier, wanted, masks, lambda rows: pixels(classifier, known.images, rows),
        say=say, seed=asked.seed,
    )  # fmt: skip
    left = int((~masks.usable).sum())
    notes = [] if masks.independent else [f"Masks: {masks.told}."]
    if left:
        notes.append(f"{left} of {len(known.images)} images were left out: no mask, an empty one, "
                     "or one that fills the picture.")  # fmt: skip
    run.write_table("notes", [{"note": note} for note in notes])
    return write_spurious(run, classifier, known, masks, judged, say)


def marking(model: LatentDiffusion, classifier: Classifier, seed: int) -> Find:
    """Masks by a generator's attention to the word of each image's class."""

    def find(x: Images, classes: Labels) -> torch.Tensor:
        words = [captions.word(classifier.classes[int(k)]) for k in classes]
        prompts = [captions.prompt(word) for word in words]
        seeds = mix(torch.arange(len(x)), seed)
        small = seen(x.to(model.device), model.side)
        soft = attention_masks(model, small, prompts, words, seeds=seeds)
        return resized(soft, classifier.preprocess.size)[:, 0] > 0.5

    return find


def _edits(
    run: Run, classifier: Classifier, asked: Study, chosen: Sequence[Direction], say: Say
) -> tuple[Table, dict[str, Number]]:
    model = open_generator_for([classifier], asked.generator, half=False)
    side = Preprocess((model.side, model.side))
    pictures = open_pictures(
        asked.image, classifier, limit=asked.limit, seed=asked.seed, preprocess=side
    )
    things = torch.tensor(pictures.labels)
    if (things < 0).any():
        with torch.no_grad():
            small = seen(pictures.x, classifier.preprocess.size[0]).to(classifier.mean.device)
            answers = torch.cat(
                [classifier(part).argmax(1).cpu() for part in torch.split(small, 64)]
            )
        things = torch.where(things < 0, answers, things)
    base = usual(model)
    settings = replace(base, chain=changed(base.chain, asked.changes))
    run.note(search=asdict(settings.chain))
    masks = _own_masks(asked.masks, pictures.ids, side) if asked.masks else None
    job = Editing(
        run, classifier, model, pictures, things, masks, settings, asked.seed,
        asked.memory, say,
    )  # fmt: skip
    run.note(generator=model.name)
    run.write_table("notes", [{"note": note} for note in pictures.notes])
    return edit_directions(job, chosen)


def _attacks(
    run: Run, classifier: Classifier, asked: Study, chosen: Sequence[Direction], say: Say
) -> tuple[Table, dict[str, Number]]:
    """The feature attack in pixel space, and where each picture drives the feature."""
    pictures = open_pictures(asked.image, classifier, limit=asked.limit, seed=asked.seed)
    rows: Table = []
    for direction in chosen:
        say(f"{direction.name} on {len(pictures)} pictures")
        rows += raised(run, classifier, pictures, direction)
    return rows, {}


def _own_masks(spec: str, ids: Sequence[str], side: Preprocess) -> torch.Tensor | None:
    """Masks of the pictures: one file for all, or a folder of files by the pictures' names."""
    if spec == "attention":
        return None
    fit = replace(side, interpolation="nearest")
    found = []
    for name in ids:
        path = Path(spec)
        path = path / f"{Path(name).stem}.png" if path.is_dir() else path
        if not path.is_file():
            raise InputError(
                f"no mask {path} for {name}: expected a PNG file, or a folder of them."
            )
        white = object_of(read(path), border=True)[..., None].repeat(3, 2).astype("uint8") * 255
        found.append(torch.from_numpy(prepare(white, fit)[:1] >= 128).float())
    return torch.stack(found)
