"""What workflows with a generator share: whether it can draw a class, and optimisation.

Every image is written as soon as it is finished, so a stopped run goes on with the next one.
"""

import hashlib
import json
import math
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from counterlens import images
from counterlens.classifier import Classifier
from counterlens.data.synthetic import captions
from counterlens.errors import InputError
from counterlens.explanations.counterfactuals.targets import class_named
from counterlens.generators.diffusion.cuda_graph import recorded
from counterlens.generators.diffusion.cutouts import seen
from counterlens.generators.diffusion.memory import room, steps_to_keep
from counterlens.generators.diffusion.model import LatentDiffusion
from counterlens.generators.diffusion.optimise import (
    ChainSettings,
    Inputs,
    Term,
    ascend,
    begin,
    draw,
)
from counterlens.generators.diffusion.recompute import StoredSteps
from counterlens.label_spaces.matching import ALIASES
from counterlens.runs import Run, write_json
from counterlens.scale import Columns, ShardWork, map_shards, shards
from counterlens.search import frozen
from counterlens.search.adam import Iterate
from counterlens.types import Images, Labels
from counterlens.workflows._shared.batches import in_parts
from counterlens.workflows._shared.figures import save
from counterlens.workflows._shared.session import Log

DRAWS = 8
ENOUGH = 0.5
"""Below this share of prompt samples in which the class is seen, the generator cannot draw it."""


def seed_of(*parts: object) -> int:
    """A seed that depends on its arguments and on nothing else."""
    text = " ".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 2


SMALL = 128
"""Below so many pixels a generator is small."""
REACH = 1.0
"""How far its conditions may go, in distances between class prompts."""


def fitting(settings: ChainSettings, model: LatentDiffusion) -> ChainSettings:
    """The paper's settings where the generator has its size; for a small one others.

    The paper's constants are for 512 pixels. At 32 its noise alone fools a classifier, so that
    cut-outs no longer query the image, and its steps are short. Longer steps leave what the text
    encoder says of any text, so they are bound to the distance between two classes. A generator of
    few steps has its own chain.
    """
    guidance, steps = sampling(model, None, None, settings)
    settings = replace(settings, guidance=guidance, steps=steps)
    if model.side >= SMALL:
        return settings
    sigma = min(settings.sigma, 0.01)
    return replace(
        settings, text_rate=0.1, noise_rate=0.005, clip=None, sigma=sigma, reach=REACH
    )  # fmt: skip


def sampling(
    model: LatentDiffusion, guidance: float | None, steps: int | None, usual: ChainSettings
) -> tuple[float, int]:
    """Guidance and steps of a chain: as asked, else the generator's own, else the usual ones."""
    own = model.sampler or (usual.guidance, usual.steps)
    return own[0] if guidance is None else guidance, own[1] if steps is None else steps


def check_steps(model: LatentDiffusion, steps: int) -> None:
    """Refuse chains of other lengths than the one that a generator was distilled for."""
    if model.sampler and steps != model.sampler[1]:
        guidance, own = model.sampler
        raise InputError(
            f"{model.name} was distilled for chains of {own} steps and is asked for {steps}. Give "
            f"sampling_steps={own} guidance={guidance:g}."
        )


def changed(settings: ChainSettings, changes: Sequence[str]) -> ChainSettings:
    """Settings with some of them changed, as KEY=VALUE.

    >>> changed(ChainSettings(), ["cuts=4", "clip=0.1", "schedule=cosine"]).clip
    0.1
    """
    known = {one.name: getattr(settings, one.name) for one in fields(settings)}
    new: dict[str, Any] = {}
    for text in changes:
        key, sign, value = text.partition("=")
        if not sign or key not in known:
            raise InputError(f"changes has {text!r}, expected KEY=VALUE with {', '.join(known)}.")
        try:
            if key == "schedule":
                if value not in ("constant", "cosine"):
                    raise ValueError
                new[key] = value
            elif key in ("clip", "reach"):
                new[key] = None if value == "none" else float(value)
            else:
                new[key] = type(known[key])(value)
        except ValueError:
            raise InputError(f"changes has {text!r}; {key} is now {known[key]!r}.") from None
    result = replace(settings, **new)
    low = {"guidance": 1, "steps": 1, "last": 1, "updates": 0, "cuts": 0, "sigma": 0,
           "text_rate": 0, "noise_rate": 0}  # fmt: skip
    if result.reach is not None:
        low["reach"] = 0
    for key, least in low.items():
        if not getattr(result, key) >= least:
            raise InputError(f"{key} is {getattr(result, key)}, expected {least} or more.")
    return result


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
    word = captions.word(name).lower()
    listed = [part.strip() for part in name.split(",")[1:]]
    known = [other for group in ALIASES if word in group for other in group if other != word]
    return [*listed, *known][:3]


Nets = Sequence[Classifier]


@dataclass(frozen=True)
class Request:
    """One image to generate.

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
class Generated:
    """One generated image, as files in the run."""

    request: Request
    image: str
    start: str
    score: float
    before: float
    trace: tuple[float, ...]


Terms = Callable[[Nets, Sequence[Request]], list[Term]]
"""The score of some requests, given the classifiers; where they are is not its business."""


@dataclass(frozen=True)
class Workers:
    """Workers that generate images side by side, on Ray; each writes into the run's folder.

    Args:
        on: ray, or ray://HOST:PORT; there all machines must reach the folder.
        make: opens generator and classifiers, once per worker.
        most: how many at most; None takes the GPUs, or else the cores, of this machine.
        gpus: per worker.
    """

    on: str
    make: Callable[[], tuple[LatentDiffusion, Nets]]
    most: int | None = None
    gpus: float = 0.0


@dataclass(frozen=True)
class Generation:
    """How images are generated for a score.

    Args:
        run: where they are written.
        model: the generator.
        nets: the classifiers that the score reads.
        terms: the score of some requests.
        settings: of the search.
        memory: budget such as 12GB; None takes most of what is free.
        log: takes lines of progress.
        workers: None computes here.
        graphs: the network is recorded and replayed, see `cuda_graph`.
    """

    run: Run
    model: LatentDiffusion
    nets: Nets
    terms: Terms
    settings: ChainSettings
    memory: str | None
    log: Log
    workers: Workers | None = None
    graphs: bool = False

    def exists(self, request: Request) -> bool:
        """Whether the image of a request is in the run."""
        return _state(self.run, request).exists()


def optimise(job: Generation, requests: Sequence[Request]) -> list[Generated]:
    """Generate all images, as many at a time as memory allows; those in the run are skipped."""
    waiting = [one for one in requests if not job.exists(one)]
    if len(waiting) < len(requests):
        job.log(f"{len(requests) - len(waiting)} of {len(requests)} images are in the run already.")
    if waiting and job.workers is not None:
        _distribute(job, job.workers, waiting)
    elif waiting:
        _generate_all(job, waiting, room(job.memory, job.model.device))
    return [_load(job.run, one) for one in requests]


def _distribute(job: Generation, workers: Workers, requests: Sequence[Request]) -> None:
    """Cut the requests into shards for workers; what a lost worker had written is skipped."""
    local = torch.cuda.device_count() / workers.gpus if workers.gpus else os.cpu_count() or 1
    count = workers.most or max(1, int(local))
    folder, memory = job.run.folder.resolve(), job.memory
    terms, settings, graphs = job.terms, job.settings, job.graphs

    def make() -> ShardWork:
        model, nets = workers.make()
        own = Generation(
            Run.open(folder), model, nets, terms, settings, memory, lambda line: None,
            graphs=graphs,
        )  # fmt: skip
        share = 1 if workers.gpus or memory else count
        budget = room(memory, model.device) // share

        def work(start: int, stop: int) -> Columns:
            left = [one for one in requests[start:stop] if not own.exists(one)]
            _generate_all(own, left, budget)
            return {"row": np.arange(start, stop)}

        return work

    size = min(MOST["cuda"] if workers.gpus else FEW, math.ceil(len(requests) / count))
    done = 0
    for shard, _ in map_shards(
        make, shards(len(requests), size), on=workers.on, workers=count, gpus=workers.gpus,
        tell=job.log,
    ):  # fmt: skip
        done += shard.stop - shard.start
        job.log(f"{done} of {len(requests)} images")


def _generate_all(job: Generation, waiting: Sequence[Request], budget: int) -> None:
    model, settings = job.model, job.settings
    most = MOST.get(model.device.type, FEW)

    def plan() -> tuple[StoredSteps, int]:
        some = waiting[:most]
        with _all_frozen(job.nets):
            terms = job.terms(job.nets, some)
            return steps_to_keep(model, _begin(model, some, settings), settings, budget, terms)

    replays: dict[int, LatentDiffusion] = {}

    def make(batch: Sequence[Request], stored: StoredSteps) -> None:
        own = job
        if job.graphs and stored != "blocks":
            keep = HELD_BY_GRAPHS * (settings.steps if stored is None else stored)
            if int(keep) not in replays:
                replays.clear()  # gives memory back before more is taken
                replays[int(keep)] = recorded(model, keep=int(keep))
            own = replace(job, model=replays[int(keep)])
        with _all_frozen(job.nets):
            _generate(own, batch, stored)

    in_parts(waiting, plan, make, steps=settings.steps, log=job.log)


HELD_BY_GRAPHS = 0.5
"""Steps that recordings store of those that fit: on an H200 4 of 6 and 2 of 4, as each recording
keeps memory of its own."""
MOST = {"cuda": 256}
FEW = 8
"""Images at a time, at most; elsewhere few, so that little is lost when a run is stopped."""


def _begin(model: LatentDiffusion, batch: Sequence[Request], settings: ChainSettings) -> Inputs:
    seeds = torch.tensor([one.seed for one in batch])
    return begin(model, [one.prompt for one in batch], seeds, steps=settings.steps)


def _generate(job: Generation, batch: Sequence[Request], stored: StoredSteps) -> None:
    run, model, settings = job.run, job.model, job.settings

    def callback(k: int, now: Iterate) -> None:
        if k % 5 == 0 or k == settings.updates:
            score = now.judged.mean().item()
            job.log(f"  update {k} of {settings.updates}: mean score {score:.3f}")
            preview = images.tile([x.detach().cpu() for x in now.points[:16]], columns=8)
            images.write_png(run.path("images", "preview.png"), preview)

    seeds = torch.tensor([one.seed for one in batch], device=model.device)
    result = ascend(
        model, _begin(model, batch, settings), job.terms(job.nets, batch), settings=settings,
        seeds=seeds, stored=stored, callback=callback,
    )  # fmt: skip
    for i, one in enumerate(batch):
        images.write_png(run.path("images", f"{one.name}.png"), result.images[i].cpu())
        images.write_png(run.path("images", f"{one.name}-start.png"), result.start_images[i].cpu())
        state = {"score": result.scores[i].item(), "before": result.start[i].item(),
                 "trace": result.trace[:, i].tolist(), "request": asdict(one)}  # fmt: skip
        write_json(_state(run, one), state)


def _state(run: Run, request: Request) -> Path:
    return run.path("state", f"{request.name}.json")


def _load(run: Run, request: Request) -> Generated:
    state = json.loads(_state(run, request).read_text(encoding="utf-8"))
    image, start = f"images/{request.name}.png", f"images/{request.name}-start.png"
    trace = tuple(state["trace"])
    return Generated(request, image, start, state["score"], state["before"], trace)


def _all_frozen(nets: Nets) -> ExitStack:
    stack = ExitStack()
    for net in nets:
        stack.enter_context(frozen(net))
    return stack


def reread(run: Run, names: Sequence[str]) -> Images:
    """Images as they lie on disk: what others will see."""
    pixels = [torch.from_numpy(images.read(run.folder / name)) for name in names]
    return torch.stack(pixels).permute(0, 3, 1, 2).float() / 255


__all__ = [
    "Generated",
    "Generation",
    "Nets",
    "Request",
    "Workers",
    "can_draw",
    "changed",
    "column",
    "fitting",
    "optimise",
    "reread",
    "seed_of",
]
