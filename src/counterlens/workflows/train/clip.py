"""Train a small image–text pair, so that zero-shot classification is real on a bare machine.

Planned cost on one H200: 2.9 M weights, 0.3 GFLOP a pass, 0.9 TFLOP an update of 1,024 pictures;
at an eighth of 790 TFLOP/s 9 ms, 6,000 updates (6.1 M pictures) in about a minute and a half.

Paper: Radford et al. 2021 (clip2021).
"""

import copy
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn
from torch.nn.functional import normalize

from counterlens.classifier import pick_device
from counterlens.data import open_set
from counterlens.data.augment import augment
from counterlens.data.made import captions
from counterlens.errors import InputError
from counterlens.fit import Plan, Progress, Trainable, fit
from counterlens.generators.diffusion.tiny import make_tokenizer
from counterlens.losses.contrastive import contrastive
from counterlens.metrics.intervals.closed_form import wilson
from counterlens.models.sources.clip_small import Pair, build_pair, load_pair, save_pair
from counterlens.predictions import predict
from counterlens.runs import Number, Run, new_folder, write_json
from counterlens.workflows._shared import entry_point as bare
from counterlens.workflows._shared.session import teller
from counterlens.workflows.train import recipes
from counterlens.workflows.train.captioned import Pictures, gather, tokens
from counterlens.workflows.train.datasets import default_cache
from counterlens.workflows.train.run import device_name

Settings = Mapping[str, Any]

DEFAULTS: dict[str, Any] = {
    "name": "cifar10-clip",
    "side": 32,
    "held_out": 2000,
    "variants": 6,
    "shares": [0.7, 0.3],
    "tokens": 24,
    "merges": 400,
    "sizes": {"side": 32, "patch": 4, "width": 192, "layers": 6, "text": 128, "text_layers": 2,
              "heads": 4},
    "augment": "crop-flip",
    "steps": 6000,
    "batch": 1024,
    "lr": 1e-3,
    "warmup": 300,
    "weight_decay": 0.05,
    "average": 0.999,
    "per_epoch": 250,
    "fast": "auto",
}  # fmt: skip


def train_clip(
    data: Sequence[str],
    *,
    test: str | None = None,
    changes: Sequence[str] = (),
    out: Path | None = None,
    resume: bool = False,
    seed: int = 0,
    device: str = "auto",
    max_minutes: float | None = None,
    cache: Path | None = None,
    quiet: bool = False,
) -> Run:
    """Train, export to RUN/model (use it as clip:RUN/model), measure on held-out pictures.

    Args:
        data: specs of labelled sets; the first one's last pictures are held out, and its classes
            are those of the classifier unless others are named.
        test: spec of a labelled set of the same classes; the exported pair is asked about it.
        changes: `key=value` settings that replace the defaults.
    """
    settings = copy.deepcopy(DEFAULTS)
    recipes.change(settings, changes)
    if not data:
        raise InputError("no data came, expected --data SPEC, e.g. pack:A.npz+B.npz.")
    where = pick_device(device)
    say = teller(quiet)
    asked = {"recipe": settings, "data": list(data), "seed": seed}
    run = Run.create(out or new_folder("train", settings["name"]), "train", asked, resume=resume)
    pictures = gather(data, settings, cache=cache or default_cache())
    texts = [text for row in pictures.texts for text in row]
    tokenizer = make_tokenizer(texts, merges=settings["merges"], tokens=settings["tokens"])
    pair = build_pair(tokenizer, settings["sizes"], seed=seed).to(where).train()
    pictures.x, pictures.held = pictures.x.to(where), pictures.held.to(where)
    weights = sum(p.numel() for p in pair.parameters()) / 1e6
    say(f"{settings['name']}: {weights:.2f} M weights, {settings['steps']} updates of "
        f"{settings['batch']} pictures on {device_name(where)}")  # fmt: skip
    prompts = [[captions.prompt(name)] for name in pictures.classes]
    words = tokens(tokenizer, prompts)[:, 0].to(where).long()
    ids = tokens(tokenizer, pictures.texts).to(where)
    progress, kept = _fit(run, pair, pictures, ids, words, settings, seed, max_minutes, say)
    hits = int(_right(kept, pictures, words).sum())
    n = len(pictures.held)
    told = f"zero-shot accuracy on {n} held-out training pictures"
    number = Number(hits / n, n, *wilson(hits, n), told)
    training = {"seed": seed, "updates": progress.step, "finished": progress.done,
                "seconds": round(progress.seconds, 1), "device": device_name(where)}  # fmt: skip
    card = {"name": settings["name"], "kind": "image-text pair", "classes": list(pictures.classes),
            "recipe": settings, "data": pictures.facts, "training": training,
            "numbers": {"zero_shot": number.to_json()}}  # fmt: skip
    model = run.folder / "model"
    save_pair(kept, tokenizer, model, card=card)
    run.add_numbers({"held_out.zero_shot": number})
    say(f"{told}: {hits / n:.4f}")
    if test is not None:
        number = tested(model, test, where)
        run.add_numbers({"test.zero_shot": number})
        card["numbers"]["test.zero_shot"] = number.to_json()
        write_json(model / "card.json", {"schema": 1, **card})
        say(f"{number.protocol}: {number.value:.4f} [{number.low:.4f}, {number.high:.4f}]")
    if progress.done:
        run.finish()
    return run


def tested(folder: Path, spec: str, device: torch.device) -> Number:
    """Accuracy of an exported pair on a labelled set, prompts averaged over the templates."""
    images, pair = open_set(spec), load_pair(folder, "")
    if tuple(images.classes) != tuple(pair.classes):
        raise InputError(f"{spec} has other classes than {folder}, expected the same in order.")
    found = predict(pair, images, device=device, progress=False)
    n, hits = len(found.labels), int((found.logits.argmax(1) == found.labels).sum())
    told = f"zero-shot accuracy on {n} pictures of {images.name}, half-precision weights"
    return Number(hits / n, n, *wilson(hits, n), told)


def _fit(
    run: Run,
    pair: Pair,
    pictures: Pictures,
    ids: Int[Tensor, "n v t"],
    words: Int[Tensor, "k t"],
    settings: Settings,
    seed: int,
    max_minutes: float | None,
    say: Callable[[str], None],
) -> tuple[Progress, Pair]:
    device = words.device
    cuda = device.type == "cuda"
    fast = cuda if settings["fast"] == "auto" else bool(settings["fast"])
    generator = torch.Generator(device)
    plan = Plan(
        steps=settings["steps"], per_epoch=settings["per_epoch"], seed=seed, schedule="cosine",
        warmup=settings["warmup"], average=settings["average"], judge_every=4,
        precision="bf16" if cuda else "fp32", compile=fast, graph=fast, max_minutes=max_minutes,
    )  # fmt: skip
    optimizer = torch.optim.AdamW(
        pair.parameters(), lr=settings["lr"], weight_decay=settings["weight_decay"], fused=cuda
    )

    def judge(kept: nn.Module, step: int) -> dict[str, float]:
        return {"held_out.zero_shot": _right(kept, pictures, words).float().mean().item()}

    progress, kept = fit(
        Trainable(pair, contrastive, optimizer), _batches(pictures, ids, settings, generator),
        plan=plan, generator=generator, folder=run.folder / "state", judge=judge, log=say,
    )  # fmt: skip
    run.write_table("epochs", progress.rows)
    result = kept[0]
    assert isinstance(result, Pair)
    return progress, result


def _batches(
    pictures: Pictures,
    ids: Int[Tensor, "n v t"],
    settings: Settings,
    generator: torch.Generator,
) -> Callable[[int], dict[str, Tensor]]:
    def batch(step: int) -> dict[str, Tensor]:
        rows = pictures.rows(settings["batch"], generator)
        variant = torch.randint(ids.shape[1], rows.shape, device=rows.device, generator=generator)
        x = augment(settings["augment"], pictures.x[rows], generator)
        return {"x": x, "ids": ids[rows, variant].long()}

    return batch


@torch.no_grad()
def _right(net: nn.Module, pictures: Pictures, words: Int[Tensor, "k t"]) -> Bool[Tensor, "n"]:
    """Which held-out pictures are nearest to the prompt of their own class."""
    places = {captions.prompt(name): k for k, name in enumerate(pictures.classes)}
    labels = torch.tensor([places[text] for text in pictures.held_texts], device=words.device)
    blank = pictures.held[:1].expand(len(words), -1, -1, -1).float() / 255
    text = normalize(net(blank, words)[1], dim=1)
    found = []
    for part in torch.split(pictures.held, 500):
        image = net(part.float() / 255, words[:1].expand(len(part), -1))[0]
        found.append((normalize(image, dim=1) @ text.T).argmax(1))
    return torch.cat(found) == labels


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m counterlens.workflows.train.clip`."""
    parser = bare.options(train_clip.__doc__, training=True)
    parser.add_argument("--data", action="append", default=[])
    parser.add_argument("--test")
    given = vars(parser.parse_args(arguments))
    return bare.command(lambda: train_clip(given.pop("data"), **given))


if __name__ == "__main__":
    sys.exit(main())
