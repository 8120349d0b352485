"""What workflows with a generator share: asking whether it can draw, optimising.

Every image is kept as soon as it is made, so a run that was stopped goes on with the next one.
"""

import hashlib
import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from counterlens import images
from counterlens.classifier import Classifier
from counterlens.data.made import captions
from counterlens.errors import InputError
from counterlens.explanations.counterfactuals.pixel import temperature_of
from counterlens.explanations.counterfactuals.targets import class_named
from counterlens.generators.diffusion.cutouts import seen
from counterlens.generators.diffusion.memory import room, steps_to_keep
from counterlens.generators.diffusion.model import LatentDiffusion
from counterlens.generators.diffusion.optimise import Inputs, Settings, Term, ascend, begin, draw
from counterlens.generators.diffusion.recompute import StoredSteps
from counterlens.label_spaces.matching import ALIASES
from counterlens.runs import Run, write_json
from counterlens.scale import Columns, Work, map_shards, shards
from counterlens.search import frozen
from counterlens.search.adam import Iterate
from counterlens.types import Images, Labels, Logits, Probs
from counterlens.workflows._shared.batches import in_parts
from counterlens.workflows._shared.result import save
from counterlens.workflows._shared.session import Say

DRAWS = 8
ENOUGH = 0.5
"""Below this share of prompt samples in which the class is seen, the generator cannot draw it."""


@dataclass(frozen=True)
class Wish:
    """One image to make.

    Args:
        name: of its files.
        prompt: where it starts.
        seed: of its noise and cut-outs.
        columns: what each term of the score reads.
    """

    name: str
    prompt: str
    seed: int
    columns: tuple[int, ...]


@dataclass(frozen=True)
class Made:
    """One image that was made, as files in the run."""

    wish: Wish
    image: str
    start: str
    score: float
    before: float
    trace: tuple[float, ...]


def seed_of(*parts: object) -> int:
    """A seed that depends on what is asked and on nothing else."""
    text = " ".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 2


SMALL = 128
"""Below so many pixels a generator is small."""


def fitting(settings: Settings, model: LatentDiffusion) -> Settings:
    """The paper's settings where the generator has its size; for a small one others.

    The paper's constants are for 512 pixels. At 32 its noise alone fools a classifier, so that
    cut-outs no longer ask about the image, and its steps are short.
    """
    if model.side >= SMALL:
        return settings
    sigma = min(settings.sigma, 0.01)
    return replace(settings, text_rate=0.1, noise_rate=0.005, clip=None, sigma=sigma)


def changed(settings: Settings, changes: Sequence[str]) -> Settings:
    """Settings with some of them changed, as KEY=VALUE.

    >>> changed(Settings(), ["cuts=4", "clip=0.1", "schedule=cosine"]).clip
    0.1
    """
    known = {one.name: getattr(settings, one.name) for one in fields(settings)}
    new: dict[str, Any] = {}
    for text in changes:
        key, sign, value = text.partition("=")
        if not sign or key not in known:
            raise InputError(f"--set got {text!r}, expected KEY=VALUE with {', '.join(known)}.")
        try:
            if key == "schedule":
                if value not in ("constant", "cosine"):
                    raise ValueError
                new[key] = value
            elif key == "clip":
                new[key] = None if value == "none" else float(value)
            else:
                new[key] = type(known[key])(value)
        except ValueError:
            raise InputError(f"--set got {text!r}; {key} is now {known[key]!r}.") from None
    found = replace(settings, **new)
    low = {"guidance": 1, "steps": 1, "last": 1, "updates": 0, "cuts": 0, "sigma": 0,
           "text_rate": 0, "noise_rate": 0}  # fmt: skip
    for key, least in low.items():
        if not getattr(found, key) >= least:
            raise InputError(f"{key} is {getattr(found, key)}, expected {least} or more.")
    return found


def logit_table(classifier: Classifier) -> Callable[[Images], Logits]:
    """Images of the classifier's size to its logits, after temperature; differentiable."""
    warmth = temperature_of(classifier)

    def table(x: Images) -> Logits:
        logits: torch.Tensor = classifier(x)
        return logits.float() / warmth

    return table


def confidence_table(classifier: Classifier) -> Callable[[Images], Probs]:
    """Images of the classifier's size to its confidences, after temperature; differentiable."""
    logits = logit_table(classifier)
    return lambda x: logits(x).softmax(1)


def column(values: Sequence[int], device: torch.device) -> Labels:
    """Columns of a table, one per image."""
    return torch.tensor(list(values), device=device)


def can_draw(
    run: Run,
    model: LatentDiffusion,
    classifiers: Sequence[Classifier],
    name: str,
    *,
    seed: int,
    guidance: float,
    steps: int,
) -> dict[str, Any]:
    """Eight prompt samples of a class: in how many does some classifier see it?

    Where that are too few, other words for it are tried, and the best word is taken.
    """
    tried: list[dict[str, Any]] = []
    words = [name, *_synonyms(name)]
    for word in words:
        seeds = torch.tensor([seed_of("draw", seed, word, i) for i in range(DRAWS)])
        with torch.no_grad():
            x = draw(model, [captions.prompt(word)] * DRAWS, seeds, guidance=guidance, steps=steps)
            hits = torch.zeros(DRAWS, dtype=torch.bool)
            for one in classifiers:
                place = class_named(one.classes, name)
                answer = one(seen(x.to(one.mean.device), one.preprocess.size[0])).argmax(1)
                hits |= (answer == place).cpu()
        shown = [
            save(run, f"draw-{captions.word(word).replace(' ', '_')}-{i}.png", x[i].cpu())
            for i in range(DRAWS)
        ]
        tried.append({"class": name, "word": captions.word(word), "n": DRAWS,
                      "agreement": hits.float().mean().item(), "images": shown})  # fmt: skip
        if tried[-1]["agreement"] >= ENOUGH:
            break
    best = max(tried, key=lambda row: row["agreement"])
    return {**best, "able": best["agreement"] >= ENOUGH}


def _synonyms(name: str) -> list[str]:
    bare = captions.word(name).lower()
    listed = [part.strip() for part in name.split(",")[1:]]
    known = [other for group in ALIASES if bare in group for other in group if other != bare]
    return [*listed, *known][:3]


Nets = Sequence[Classifier]
Terms = Callable[[Nets, Sequence[Wish]], list[Term]]
"""The score of some wishes, given the classifiers; where they are is not its business."""


@dataclass(frozen=True)
class Crew:
    """Workers that make images side by side, on Ray; each writes its own into the run's folder.

    Args:
        on: ray, or ray://HOST:PORT; there all machines must reach the folder.
        make: opens generator and classifiers, once per worker.
        workers: how many at most; None takes the GPUs, or else the cores, of this machine.
        gpus: per worker.
    """

    on: str
    make: Callable[[], tuple[LatentDiffusion, Nets]]
    workers: int | None = None
    gpus: float = 0.0


def optimise(
    run: Run,
    model: LatentDiffusion,
    wishes: Sequence[Wish],
    terms: Terms,
    nets: Nets,
    *,
    settings: Settings,
    memory: str | None,
    say: Say,
    crew: Crew | None = None,
) -> list[Made]:
    """Make all images, as many at a time as memory allows; those there are not made again."""
    waiting = [wish for wish in wishes if not _state(run, wish).exists()]
    if len(waiting) < len(wishes):
        say(f"{len(wishes) - len(waiting)} of {len(wishes)} images were made before.")
    if waiting and crew is not None:
        _spread(run, crew, waiting, terms, settings, memory, say)
    elif waiting:
        _make_all(run, model, waiting, terms, nets, settings, room(memory, model.device), say)
    return [_load(run, wish) for wish in wishes]


def _spread(
    run: Run,
    crew: Crew,
    wishes: Sequence[Wish],
    terms: Terms,
    settings: Settings,
    memory: str | None,
    say: Say,
) -> None:
    """Cut the wishes into shards for workers. What a lost worker had written is not made again."""
    local = torch.cuda.device_count() / crew.gpus if crew.gpus else os.cpu_count() or 1
    workers = crew.workers or max(1, int(local))
    folder = run.folder.resolve()

    def make() -> Work:
        model, nets = crew.make()
        own = Run.open(folder)
        share = 1 if crew.gpus or memory else workers
        budget = room(memory, model.device) // share

        def work(start: int, stop: int) -> Columns:
            left = [wish for wish in wishes[start:stop] if not _state(own, wish).exists()]
            _make_all(own, model, left, terms, nets, settings, budget, lambda line: None)
            return {"row": np.arange(start, stop)}

        return work

    todo = shards(
        len(wishes), min(MOST["cuda"] if crew.gpus else FEW, math.ceil(len(wishes) / workers))
    )
    done = 0
    for shard, _ in map_shards(
        make, todo, on=crew.on, workers=workers, gpus=crew.gpus, tell=say
    ):  # fmt: skip
        done += shard.stop - shard.start
        say(f"{done} of {len(wishes)} images")


def _make_all(
    run: Run,
    model: LatentDiffusion,
    waiting: Sequence[Wish],
    terms: Terms,
    nets: Nets,
    settings: Settings,
    budget: int,
    say: Say,
) -> None:
    most = MOST.get(model.device.type, FEW)

    def plan() -> tuple[StoredSteps, int]:
        some = waiting[:most]
        with _all_frozen(nets):
            return steps_to_keep(
                model, _begin(model, some, settings), settings, budget, terms(nets, some)
            )

    def make(batch: Sequence[Wish], stored: StoredSteps) -> None:
        with _all_frozen(nets):
            _make(run, model, batch, terms(nets, batch), settings, stored, say)

    in_parts(waiting, plan, make, steps=settings.steps, say=say)


MOST = {"cuda": 256}
FEW = 8
"""Images at a time, at most; elsewhere few, so that little is lost when a run is stopped."""


def _begin(model: LatentDiffusion, batch: Sequence[Wish], settings: Settings) -> Inputs:
    seeds = torch.tensor([wish.seed for wish in batch])
    return begin(model, [wish.prompt for wish in batch], seeds, steps=settings.steps)


def _make(
    run: Run,
    model: LatentDiffusion,
    batch: Sequence[Wish],
    terms: list[Term],
    settings: Settings,
    stored: StoredSteps,
    say: Say,
) -> None:
    def callback(k: int, now: Iterate) -> None:
        if k % 5 == 0 or k == settings.updates:
            say(f"  update {k} of {settings.updates}: mean score {now.judged.mean().item():.3f}")
            preview = images.tile([x.detach().cpu() for x in now.points[:16]], columns=8)
            images.write_png(run.path("images", "preview.png"), preview)

    seeds = torch.tensor([wish.seed for wish in batch], device=model.device)
    start = _begin(model, batch, settings)
    found = ascend(
        model, start, terms, settings=settings, seeds=seeds, stored=stored, callback=callback
    )
    for i, wish in enumerate(batch):
        images.write_png(run.path("images", f"{wish.name}.png"), found.images[i].cpu())
        images.write_png(run.path("images", f"{wish.name}-start.png"), found.start_images[i].cpu())
        state = {"score": found.scores[i].item(), "before": found.start[i].item(),
                 "trace": found.trace[:, i].tolist(), "wish": asdict(wish)}  # fmt: skip
        write_json(_state(run, wish), state)


def _state(run: Run, wish: Wish) -> Path:
    return run.path("state", f"{wish.name}.json")


def _load(run: Run, wish: Wish) -> Made:
    state = json.loads(_state(run, wish).read_text(encoding="utf-8"))
    image, start = f"images/{wish.name}.png", f"images/{wish.name}-start.png"
    return Made(wish, image, start, state["score"], state["before"], tuple(state["trace"]))


def _all_frozen(nets: Nets) -> Any:
    from contextlib import ExitStack

    stack = ExitStack()
    for net in nets:
        stack.enter_context(frozen(net))
    return stack


def reread(run: Run, names: Sequence[str]) -> Images:
    """Images as they lie on disk: what others will see."""
    pixels = [torch.from_numpy(images.read(run.folder / name)) for name in names]
    return torch.stack(pixels).permute(0, 3, 1, 2).float() / 255


__all__ = [
    "Crew",
    "Made",
    "Nets",
    "Wish",
    "can_draw",
    "changed",
    "column",
    "confidence_table",
    "fitting",
    "logit_table",
    "optimise",
    "reread",
    "seed_of",
]
