"""The methods that an evaluation compares: each turns the same pictures towards the same targets.

Every batch is written as soon as it is computed, with its time and the passes through each network.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from counterlens.ball import Norm
from counterlens.classifier import Classifier
from counterlens.data.synthetic import captions
from counterlens.errors import InputError
from counterlens.explanations.counterfactuals import dvce as guided
from counterlens.explanations.counterfactuals.memory import plan_edits
from counterlens.explanations.counterfactuals.pixel import STEPS, counterfactuals
from counterlens.explanations.counterfactuals.targets import matched
from counterlens.explanations.counterfactuals.uvce import (
    UVCE,
    Change,
    EditSettings,
    Prepared,
    class_term,
    prepare,
    uvce,
)
from counterlens.generators.diffusion.cutouts import seen
from counterlens.generators.diffusion.memory import less, rows_at_a_time
from counterlens.generators.diffusion.model import LatentDiffusion
from counterlens.generators.diffusion.recompute import StoredSteps
from counterlens.generators.diffusion.words import replaced
from counterlens.runs import Run, atomic
from counterlens.search import frozen
from counterlens.types import Images, Labels
from counterlens.workflows._shared.generation.generate import seed_of
from counterlens.workflows._shared.metering import metered
from counterlens.workflows._shared.pictures import Pictures
from counterlens.workflows._shared.session import Log


@dataclass(frozen=True)
class Bench:
    """What every method gets.

    Args:
        classifier: the one that is explained.
        robust: a robust one, explained by pixels too, and the helper of DVCE; None without one.
        model: the generator; None without one.
        pictures: as the classifier sees them.
        image, target: for each row the picture and the class it is turned to.
        norm, radius, steps: of the search among pixels.
        dvce, uvce: settings of the other searches.
        batch: rows at a time for the generator; None by size.
        memory: budget of the generator, such as 60GB; None takes most of what is free.
    """

    classifier: Classifier
    robust: Classifier | None
    model: LatentDiffusion | None
    pictures: Pictures
    image: Int[Tensor, "n"]
    target: Labels
    answer: Labels
    norm: Norm
    radius: float
    steps: int = STEPS
    dvce: guided.DvceSettings = guided.PAPER
    uvce: EditSettings = UVCE
    batch: int | None = None
    seed: int = 0
    memory: str | None = None

    @property
    def x(self) -> Images:
        """The picture of each row."""
        return self.pictures.x[self.image]

    @property
    def single(self) -> bool:
        """Whether no picture has two targets."""
        return len(set(self.image.tolist())) == len(self.image)

    def only(self, rows: Tensor) -> "Bench":
        """Some of the rows."""
        return replace(self, image=self.image[rows], target=self.target[rows])

    def seeds(self) -> Int[Tensor, "n"]:
        """One seed per row, by what it asks."""
        rows = zip(self.image.tolist(), self.target.tolist(), strict=True)
        return torch.tensor(
            [seed_of("evaluate", self.seed, self.pictures.ids[i], t) for i, t in rows]
        )


@dataclass(frozen=True)
class ArmImages:
    """The images of a method, one for each row.

    Args:
        images: with 8-bit values, of the classifier's size.
        seconds: what it took for all rows.
        passes: rows that went through each network, forwards.
        masks: where the method saw the object, if it did.
    """

    images: Images
    seconds: float
    passes: Mapping[str, int]
    masks: Float[Tensor, "n 1 h w"] | None = None


ArmBatch = dict[str, ArmImages]


def pixel_arm(bench: Bench, guide: Classifier, name: str) -> ArmBatch:
    """The surest picture within a ball of pixels."""
    places = matched(guide, bench.classifier.classes, bench.target)
    if guide.preprocess.size != bench.classifier.preprocess.size:
        raise InputError(
            f"{guide.name} takes {guide.preprocess.size} pixels, expected "
            f"{bench.classifier.preprocess.size} as {bench.classifier.name} does."
        )
    with metered({guide.name: guide.net}) as meter:
        result = counterfactuals(
            guide, bench.x, [[k] for k in places.tolist()], norm=bench.norm,
            radii=[bench.radius], steps=bench.steps, seed=bench.seed,
            batch=len(bench.image) if guide.mean.device.type == "cuda" else None,
        )  # fmt: skip
    return {name: ArmImages(result.points, meter.seconds, dict(meter.rows))}


def dvce_arm(bench: Bench, log: Log) -> ArmBatch:
    """Guided sampling, with the robust classifier as helper where there is one."""
    model, net = _generator(bench), bench.classifier
    nets = [net] if bench.robust is None else [net, bench.robust]
    terms = [class_term(one, matched(one, net.classes, bench.target)) for one in nets]
    x = seen(bench.x, model.side).to(model.device)

    def report(i: int, images: Images) -> None:
        if i % 25 == 0:
            log(f"  step {i} of {bench.dvce.start}")

    with ExitStack() as stack, metered(_networks(model, nets)) as meter:
        for one in nets:
            stack.enter_context(frozen(one))
        images = guided.dvce(
            model, x, terms[0], helper=terms[1] if len(terms) > 1 else None,
            settings=bench.dvce, seeds=bench.seeds().to(model.device), callback=report,
        )  # fmt: skip
        rounded = _eight_bits(images, net)
    return {"dvce": ArmImages(rounded, meter.seconds, dict(meter.rows))}


def uvce_arm(
    bench: Bench,
    stored: StoredSteps = None,
    *,
    log: Log,
    inverted: "Inverted",
    optimise: bool = True,
) -> ArmBatch:
    """DiG-IN's counterfactuals, and the prompt-to-prompt edits that they start from.

    What the edit alone costs is counted up to the first iterate of the search, which is
    prompt-to-prompt alone; both count the pictures' share of the inversion.
    """
    model, net, settings = _generator(bench), bench.classifier, bench.uvce
    if not optimise:
        settings = replace(settings, chain=replace(settings.chain, updates=0))
    words = [captions.word(name) for name in net.classes]
    ready, spent, passed = inverted(bench)
    pairs = [
        (words[int(bench.answer[i])], words[k])
        for i, k in zip(bench.image.tolist(), bench.target.tolist(), strict=True)
    ]
    early: dict[str, Any] = {}

    def report(k: int, iterate: Any) -> None:
        if not early:
            early.update(seconds=meter.elapsed(), rows=dict(meter.rows))
        if k % 5 == 0:
            log(f"  update {k} of {settings.chain.updates}")

    with frozen(net), metered(_networks(model, [net])) as meter:
        edit = uvce(
            model, ready, [class_term(net, bench.target)],
            [Change(replaced(s, pair), pair) for s, pair in zip(ready.source, pairs, strict=True)],
            settings=settings, seeds=bench.seeds().to(model.device), stored=stored, callback=report,
        )  # fmt: skip
        start, images = _eight_bits(edit.start_images, net), _eight_bits(edit.images, net)
    masks = seen(edit.masks.float(), net.preprocess.size[0]).clamp(0, 1).cpu()
    first = ArmImages(start, spent + early["seconds"], _sum(passed, early["rows"]), masks)
    if not optimise:
        return {"prompt-to-prompt": first}
    return {
        "prompt-to-prompt": first,
        "diffusion": ArmImages(images, spent + meter.seconds, _sum(passed, meter.rows), masks),
    }


class Inverted:
    """Inversions of pictures, many at a time: that costs little more than few, and no target's.

    Args:
        bench: all rows, of which batches are taken in order.
        size: pictures at a time.
    """

    def __init__(self, bench: Bench, size: int) -> None:
        self.bench, self.size = bench, size
        self.order = list(dict.fromkeys(bench.image.tolist()))
        self.places: dict[int, int] = {}

    def __call__(self, part: Bench) -> tuple[Prepared, float, dict[str, int]]:
        """A batch's rows, and its pictures' share of the seconds and of the passes."""
        wanted = list(dict.fromkeys(part.image.tolist()))
        if not all(i in self.places for i in wanted):
            first = self.order.index(wanted[0])
            try:
                self.make(self.order[first : first + max(self.size, len(wanted))])
            except torch.OutOfMemoryError:
                torch.cuda.empty_cache()
                self.make(wanted)
        share = len(wanted) / len(self.places)
        passes = {name: round(share * n) for name, n in self.passes.items()}
        rows = [self.places[i] for i in part.image.tolist()]
        return self.ready.rows(rows), share * self.seconds, passes

    def make(self, pictures: Sequence[int]) -> None:
        """Invert some pictures; those before are forgotten."""
        bench, model = self.bench, _generator(self.bench)
        self.places = {}
        own = [captions.word(bench.classifier.classes[int(bench.answer[i])]) for i in pictures]
        with metered(_networks(model, [])) as meter:
            self.ready = prepare(
                model, seen(bench.pictures.x[list(pictures)], model.side),
                [captions.prompt(word) for word in own], own, settings=bench.uvce,
            )  # fmt: skip
        self.seconds, self.passes = meter.seconds, dict(meter.rows)
        self.places = {i: k for k, i in enumerate(pictures)}


def _sum(first: Mapping[str, int], second: Mapping[str, int]) -> dict[str, int]:
    return {name: first.get(name, 0) + second.get(name, 0) for name in {**first, **second}}


def make(bench: Bench, arms: Sequence[str], run: Run, log: Log) -> Iterator[tuple[str, ArmImages]]:
    """What each method makes, as soon as it has; a resumed run skips the batches it has.

    The one that finds masks comes first, so that the others can be measured at once.
    """
    robust, whole = bench.robust, len(bench.image)
    some = bench.batch or (rows_at_a_time(bench.model) if bench.model else whole)
    wanted = "diffusion" in arms
    least: StoredSteps = "blocks"  # methods that store nothing
    jobs: dict[str, tuple[StoredSteps, int, Callable[[Bench, StoredSteps], ArmBatch]]] = {}
    if wanted or "prompt-to-prompt" in arms:
        stored, room = plan_edits(
            _generator(bench), bench.uvce, bench.batch or whole, bench.memory, [bench.classifier]
        )
        edit = partial(uvce_arm, log=log, inverted=Inverted(bench, room), optimise=wanted)
        jobs["uvce"] = (stored, bench.batch or room, edit)
    if "pixel" in arms:
        jobs["pixel"] = (least, whole, lambda part, _: pixel_arm(part, part.classifier, "pixel"))
    if "pixel-robust" in arms and robust is not None:
        jobs["pixel-robust"] = (
            least, whole, lambda part, _: pixel_arm(part, robust, "pixel-robust")
        )  # fmt: skip
    if "dvce" in arms:
        jobs["dvce"] = (least, some, lambda part, _: dvce_arm(part, log))
    for name, (stored, size, work) in jobs.items():
        by_arm: dict[str, list[ArmImages]] = {}
        for batch in _batches(bench, name, stored, size, work, run, log):
            for arm, part in batch.items():
                by_arm.setdefault(arm, []).append(part)
        for arm, parts in by_arm.items():
            joined = _joined(parts)
            log(f"{arm}: {joined.seconds:.1f} s, {joined.seconds / whole:.3f} s each")
            if arm in arms:
                yield arm, joined


def _batches(
    bench: Bench, name: str, stored: StoredSteps, size: int,
    work: Callable[[Bench, StoredSteps], ArmBatch], run: Run, log: Log,
) -> Iterator[ArmBatch]:  # fmt: skip
    """Batch after batch, smaller where memory is short; those in the run are read."""
    at, whole = 0, len(bench.image)
    while at < whole:
        part = bench.only(torch.arange(at, min(at + size, whole)))
        line = f"{name}: {at + 1}–{at + len(part.image)} of {whole} counterfactuals"
        try:
            batch = _computed_once(run, f"{name}-{at}", partial(work, part, stored), log, line)
        except torch.OutOfMemoryError:
            smaller = less(stored, len(part.image))
            if smaller is None:
                raise
            stored, size = smaller
            log(f"out of memory: going on with {size} at a time; nothing is lost.")
            torch.cuda.empty_cache()
            continue
        yield batch
        at += len(next(iter(batch.values())).images)


def _networks(model: LatentDiffusion, nets: Sequence[Classifier]) -> dict[str, nn.Module]:
    return {"denoiser": model.unet, **{net.name: net.net for net in nets}}


def _generator(bench: Bench) -> LatentDiffusion:
    if bench.model is None:
        raise InputError("this method needs a generator: generator=FOLDER.")
    return bench.model


def _eight_bits(images: Images, net: Classifier) -> Images:
    """As a PNG of the classifier's size holds them."""
    small = seen(images.detach().float(), net.preprocess.size[0]).clamp(0, 1)
    return ((small * 255).round() / 255).cpu()


def _computed_once(
    run: Run, name: str, work: Callable[[], ArmBatch], log: Log, line: str
) -> ArmBatch:
    """A batch from the state of an interrupted run, or computed now and written."""
    path = run.path("state", f"{name}.npz")
    if not path.exists():
        log(line)
        batch = work()
        table: dict[str, Any] = {}
        for arm, part in batch.items():
            table[f"{arm}/images"] = (part.images * 255).round().byte().numpy()
            table[f"{arm}/seconds"] = np.float64(part.seconds)
            table[f"{arm}/passes"] = np.array([f"{k}={v}" for k, v in part.passes.items()])
            if part.masks is not None:
                table[f"{arm}/masks"] = part.masks.half().numpy()
        with atomic(path) as whole, whole.open("wb") as file:
            np.savez(file, **table)
    with np.load(path) as stored:
        arms = dict.fromkeys(key.rpartition("/")[0] for key in stored.files)
        return {arm: _stored(stored, arm) for arm in arms}


def _stored(stored: Any, arm: str) -> ArmImages:
    masks = stored[f"{arm}/masks"] if f"{arm}/masks" in stored.files else None
    pairs = [str(text).rpartition("=") for text in stored[f"{arm}/passes"]]
    return ArmImages(
        torch.from_numpy(stored[f"{arm}/images"]).float() / 255,
        float(stored[f"{arm}/seconds"]),
        {name: int(count) for name, _, count in pairs},
        None if masks is None else torch.from_numpy(masks).float(),
    )


def _joined(parts: Sequence[ArmImages]) -> ArmImages:
    passes: dict[str, int] = {}
    for part in parts:
        passes = _sum(passes, part.passes)
    masks = [part.masks for part in parts if part.masks is not None]
    return ArmImages(
        torch.cat([part.images for part in parts]),
        sum(part.seconds for part in parts),
        passes,
        torch.cat(masks) if len(masks) == len(parts) else None,
    )
