"""Train a small image–text pair, so that zero-shot classification is real without a download.

Planned cost on one H200: 2.9 M weights, 0.3 GFLOP a pass, 0.9 TFLOP an update of 1,024 pictures;
at an eighth of 790 TFLOP/s 9 ms, 6,000 updates (6.1 M pictures) in about a minute and a half.

Paper: Radford et al. 2021 (clip2021).
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn
from torch.nn.functional import normalize

from counterlens.classifier import pick_device
from counterlens.data import open_set
from counterlens.data.augment import augment
from counterlens.data.synthetic import captions
from counterlens.errors import InputError
from counterlens.fit import Plan, Progress, Trainable, fit
from counterlens.generators.diffusion.tiny import make_tokenizer
from counterlens.losses.contrastive import contrastive
from counterlens.metrics.intervals.closed_form import wilson
from counterlens.models.sources.clip_small import ImageTextPair, build_pair, load_pair, save_pair
from counterlens.predictions import predict
from counterlens.runs import Number, Run, new_folder, write_json
from counterlens.workflows._shared import entry_point
from counterlens.workflows._shared.objects import texts
from counterlens.workflows._shared.options import takes
from counterlens.workflows._shared.result import Result
from counterlens.workflows._shared.session import Log, begin, logger
from counterlens.workflows._shared.settings import as_dict, changed
from counterlens.workflows.train.captioned import Captioned, gather, tokens
from counterlens.workflows.train.datasets import default_cache
from counterlens.workflows.train.options import ClipOptions
from counterlens.workflows.train.recipe import ClipRecipe, on
from counterlens.workflows.train.run import device_name


@takes(ClipOptions)
def train_clip(data: Sequence[str], options: ClipOptions) -> Result:
    """Train, export to RUN/model (use it as clip:RUN/model), measure on held-out images.

    Args:
        data: specs of labelled sets; the first one's last images are held out, and its classes
            are those of the classifier unless others are named.
    """
    recipe = changed(ClipRecipe(), options.changes)
    specs = texts(data)
    if not specs:
        raise InputError("no data given, expected data=SPEC, e.g. pack:A.npz+B.npz.")
    device = pick_device(options.device)
    folder = options.out or new_folder("train", recipe.name)
    inputs = {"recipe": as_dict(recipe), "data": specs}
    run = begin("train", options, name=recipe.name, inputs=inputs, folder=folder)
    images = gather(specs, recipe, cache=options.cache or default_cache())
    job = _Job(run, recipe, images.to(device), options.seed, options.max_minutes, logger(options))
    every = [text for row in images.texts for text in row]
    tokenizer = make_tokenizer(every, merges=recipe.merges, tokens=recipe.tokens)
    progress, trained, words = _fit(job, tokenizer, device)
    card = _export(job, trained, tokenizer, words, progress)
    if options.test is not None:
        _test(job, card, options.test, device)
    if progress.done:
        run.finish()
    return Result(run)


@dataclass(frozen=True)
class _Job:
    run: Run
    recipe: ClipRecipe
    images: Captioned
    seed: int
    max_minutes: float | None
    log: Log


def _export(
    job: _Job, trained: ImageTextPair, tokenizer: Any, words: Int[Tensor, "k t"], progress: Progress
) -> dict[str, Any]:
    """Write RUN/model with its card, and the held-out number."""
    recipe, images = job.recipe, job.images
    hits, n = int(_right(trained, images, words).sum()), len(images.held)
    protocol = f"zero-shot accuracy on {n} held-out training pictures"
    number = Number(hits / n, n, *wilson(hits, n), protocol)
    training = {"seed": job.seed, "updates": progress.step, "finished": progress.done,
                "seconds": round(progress.seconds, 1),
                "device": device_name(words.device)}  # fmt: skip
    card = {"name": recipe.name, "kind": "image-text pair", "classes": list(images.classes),
            "recipe": as_dict(recipe), "data": images.facts, "training": training,
            "numbers": {"zero_shot": number.to_json()}}  # fmt: skip
    save_pair(trained, tokenizer, job.run.folder / "model", card=card)
    job.run.add_numbers({"held_out.zero_shot": number})
    job.log(f"{protocol}: {hits / n:.4f}")
    return card


def _test(job: _Job, card: dict[str, Any], spec: str, device: torch.device) -> None:
    """The exported pair on a test set: a number of the run and of the card."""
    model = job.run.folder / "model"
    number = tested(model, spec, device)
    job.run.add_numbers({"test.zero_shot": number})
    card["numbers"]["test.zero_shot"] = number.to_json()
    write_json(model / "card.json", {"schema": 1, **card})
    job.log(f"{number.protocol}: {number.value:.4f} [{number.low:.4f}, {number.high:.4f}]")


def tested(folder: Path, spec: str, device: torch.device) -> Number:
    """Accuracy of an exported pair on a labelled set, prompts averaged over the templates."""
    images, pair = open_set(spec), load_pair(folder, "")
    if tuple(images.classes) != tuple(pair.classes):
        raise InputError(f"{spec} has other classes than {folder}, expected the same in order.")
    answers = predict(pair.to(device), images, progress=False)
    n, hits = len(answers.labels), int((answers.logits.argmax(1) == answers.labels).sum())
    protocol = f"zero-shot accuracy on {n} pictures of {images.name}, half-precision weights"
    return Number(hits / n, n, *wilson(hits, n), protocol)


def _fit(
    job: _Job, tokenizer: Any, device: torch.device
) -> tuple[Progress, ImageTextPair, Int[Tensor, "k t"]]:
    """Train; the progress, the pair to keep, and the prompts of its classes as tokens."""
    recipe, images = job.recipe, job.images
    cuda = device.type == "cuda"
    pair = build_pair(tokenizer, as_dict(recipe.sizes), seed=job.seed).to(device).train()
    weights = sum(p.numel() for p in pair.parameters()) / 1e6
    job.log(f"{recipe.name}: {weights:.2f} M weights, {recipe.steps} updates of "
            f"{recipe.batch} pictures on {device_name(device)}")  # fmt: skip
    prompts = [[captions.prompt(name)] for name in images.classes]
    words = tokens(tokenizer, prompts)[:, 0].to(device).long()
    ids = tokens(tokenizer, images.texts).to(device)
    generator, fast = torch.Generator(device), on(recipe.fast, cuda)
    plan = Plan(
        steps=recipe.steps, per_epoch=recipe.per_epoch, seed=job.seed, schedule="cosine",
        warmup=recipe.warmup, average=recipe.average, judge_every=4,
        precision="bf16" if cuda else "fp32", compile=fast, graph=fast,
        max_minutes=job.max_minutes,
    )  # fmt: skip
    optimizer = torch.optim.AdamW(
        pair.parameters(), lr=recipe.lr, weight_decay=recipe.weight_decay, fused=cuda
    )

    def judge(trained: nn.Module, step: int) -> dict[str, float]:
        return {"held_out.zero_shot": _right(trained, images, words).float().mean().item()}

    progress, trained = fit(
        Trainable(pair, contrastive, optimizer), _batches(images, ids, recipe, generator),
        plan=plan, generator=generator, folder=job.run.folder / "state", judge=judge, log=job.log,
    )  # fmt: skip
    job.run.write_table("epochs", progress.rows)
    result = trained[0]
    assert isinstance(result, ImageTextPair)
    return progress, result, words


def _batches(
    images: Captioned,
    ids: Int[Tensor, "n v t"],
    recipe: ClipRecipe,
    generator: torch.Generator,
) -> Callable[[int], dict[str, Tensor]]:
    def batch(step: int) -> dict[str, Tensor]:
        rows = images.rows(recipe.batch, generator)
        variant = torch.randint(ids.shape[1], rows.shape, device=rows.device, generator=generator)
        x = augment(recipe.augment, images.x[rows], generator)
        return {"x": x, "ids": ids[rows, variant].long()}

    return batch


@torch.no_grad()
def _right(net: nn.Module, images: Captioned, words: Int[Tensor, "k t"]) -> Bool[Tensor, "n"]:
    """Which held-out pictures are nearest to the prompt of their own class."""
    places = {captions.prompt(name): k for k, name in enumerate(images.classes)}
    labels = torch.tensor([places[text] for text in images.held_texts], device=words.device)
    blank = images.held[:1].expand(len(words), -1, -1, -1).float() / 255
    text = normalize(net(blank, words)[1], dim=1)
    right = []
    for part in torch.split(images.held, 500):
        image = net(part.float() / 255, words[:1].expand(len(part), -1))[0]
        right.append((normalize(image, dim=1) @ text.T).argmax(1))
    return torch.cat(right) == labels


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m counterlens.workflows.train.clip`."""
    return entry_point.run(train_clip, ClipOptions, arguments)


if __name__ == "__main__":
    sys.exit(main())
