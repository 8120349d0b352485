"""Train a classifier with heads of shape, texture and background on composed counterfactuals.

Paper: Sauer and Geiger 2021 (cgn2021, §3.3): a pretrained trunk, three fresh heads, batch norm that
       keeps its statistics, one counterfactual for each original.
Differs: AdamW with a cosine schedule and few epochs in place of SGD for 45; a frozen trunk, whose
       features are computed once, is the default, so that minutes on a CPU are enough.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from counterlens.classifier import Classifier, pick_device
from counterlens.data import subset
from counterlens.errors import InputError
from counterlens.fit import Plan, Trainable, fit
from counterlens.images import ImageSet
from counterlens.losses.heads import factor_labels, heads_loss
from counterlens.models import load
from counterlens.models.nets.heads import ThreeHeads, head_logits, with_three_heads
from counterlens.models.sources.heads import save_heads
from counterlens.progress import doing, within
from counterlens.types import Batch
from counterlens.workflows._shared.objects import Objects
from counterlens.workflows._shared.options import takes
from counterlens.workflows._shared.result import Result
from counterlens.workflows._shared.session import begin, end, facts, logger
from counterlens.workflows.train.finetune import Finetuned, hold_norms
from counterlens.workflows.train.finetune_data import decode, split
from counterlens.workflows.train.heads_options import HeadsOptions

COLUMNS = ("texture", "background")
EPOCHS = {"frozen": 40, "trained": 4}
CHUNK = 64


@dataclass(frozen=True)
class Half:
    """Originals or counterfactuals: images as bytes or stored features, and their labels.

    Args:
        x: n × 3 × h × w bytes, or v × n × d features of v views.
        y: labels of originals, n; of counterfactuals 3 × n.
    """

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return self.y.shape[-1]


@takes(HeadsOptions)
def train_heads(data: object, start: object, *, options: HeadsOptions) -> Finetuned:
    """Train the heads; the result has `.classifier` and an audit that shows each head.

    Args:
        data: labelled real images.
        start: spec of a pretrained classifier, whose trunk is taken.

    >>> import counterlens as cl
    >>> cl.train_heads("pets/", "timm:resnet18",
    ...     counterfactuals="runs/composed/counterfactuals.jsonl")      # doctest: +SKIP
    """
    log = logger(options)
    _check(options, start)
    objects = Objects(options.device, None, options.seed, options.trust_remote_code)
    size = (options.side, options.side)
    images = objects.open(objects.set_spec(data), size=size, channels=3)
    if len(images.classes) < 2 or (images.labels < 0).any():
        raise InputError(f"{images.name} has no two classes, expected labelled images.")
    others = _counterfactuals(options, objects, images.classes, size)
    base = load(str(start), device="cpu", trust_remote_code=options.trust_remote_code)
    torch.manual_seed(options.seed)  # of the fresh heads
    model = with_three_heads(base, images.classes, size=options.side)
    model.to(pick_device(options.device))
    fitted, held = split(images.labels.astype(np.int64), images.ids, options.held_out)
    inputs = {"recipe": "heads", "data": images.name, "start": str(start),
              "data_fingerprint": images.fingerprint}  # fmt: skip
    run = begin("train", options, name=f"heads-{images.name}", inputs=inputs)
    run.note(**facts(model, images, *([others] if others else []), seed=options.seed))
    log(
        f"{len(fitted)} originals, {len(others) if others else 0} counterfactuals, "
        f"{len(held)} held out; {options.side} pixels; trunk {options.trunk}; "
        f"learns from {options.arm}."
    )
    with within("decoding images"):
        halves = _halves(model, images, others, fitted, options)
    progress = _train(run.folder, model, halves, options, log)
    if not progress.done:
        log(f"not finished: repeat the command with --resume ({run.folder}).")
        progress.resend()
        return Finetuned(run, classifier=model)
    model.eval().requires_grad_(False)
    run.write_table("epochs", progress.rows)
    training = {"updates": progress.step, "seconds": round(progress.seconds, 1),
                "arm": options.arm, "trunk": options.trunk}  # fmt: skip
    save_heads(run.folder / "model", model, str(start), {"training": training})
    model.card = {"training": training, "spec": str(run.folder / "model")}
    audited = _audit(run.folder / "audit", model, subset(images, held.numpy()), options)
    run.add_numbers({"held_out.clean": audited.numbers["accuracy.top1"]})
    end(run, log)
    return Finetuned(run, (audited,), model)


def _check(options: HeadsOptions, start: object) -> None:
    for name in ("epochs", "batch", "lr", "side"):
        value = getattr(options, name)
        if value is not None and not value > 0:
            raise InputError(f"{name} is {value}, expected more than 0.")
    if not isinstance(start, str):
        raise InputError(
            f"start is {type(start).__name__}, expected the spec of a pretrained classifier."
        )
    if options.arm != "originals" and options.counterfactuals is None:
        raise InputError(
            f"arm={options.arm!r} needs counterfactuals: counterfactuals="
            "'RUN/counterfactuals.jsonl' of cgn compose, or take arm='originals'."
        )


def _counterfactuals(
    options: HeadsOptions, objects: Objects, classes: tuple[str, ...], size: tuple[int, int]
) -> ImageSet | None:
    """The set of counterfactuals, checked for the labels of all factors."""
    if options.counterfactuals is None or options.arm == "originals":
        return None
    others = objects.open(options.counterfactuals, size=size, channels=3)
    lacking = [name for name in COLUMNS if name not in others.extra]
    if lacking:
        raise InputError(
            f"{others.name} has no column {lacking[0]}, expected the manifest of cgn compose: "
            "RUN/counterfactuals.jsonl."
        )
    named = {*others.classes, *(str(n) for column in COLUMNS for n in others.extra[column])}
    if unknown := sorted(named - set(classes)):
        raise InputError(
            f"{others.name} names {unknown[0]!r}, which is no class of the originals: "
            f"{', '.join(classes[:6])}."
        )
    return others


def _halves(
    model: Classifier,
    images: ImageSet,
    others: ImageSet | None,
    rows: Tensor,
    options: HeadsOptions,
) -> tuple[Half | None, Half | None]:
    """Originals and counterfactuals to learn from; features where the trunk is frozen."""
    real = cf = None
    if options.arm != "counterfactuals":
        x = decode(images, rows, model.preprocess, model.channels)
        real = Half(x, torch.from_numpy(images.labels.astype(np.int64))[rows])
    if others is not None:
        x = decode(others, torch.arange(len(others)), model.preprocess, model.channels)
        shapes = [others.classes[int(k)] for k in others.labels]
        columns = [shapes, *(list(others.extra[name]) for name in COLUMNS)]
        cf = Half(x, factor_labels(columns, images.classes))
    if options.trunk == "frozen":
        real, cf = (one and replace(one, x=_features(model, one.x)) for one in (real, cf))
    return real, cf


@torch.no_grad()
def _features(model: Classifier, x: Tensor) -> Tensor:
    """Features of all images and of their mirror images, 2 × n × d."""
    net, device = model.net.eval(), model.mean.device
    assert isinstance(net, ThreeHeads)
    views: list[list[Tensor]] = [[], []]
    for start in range(0, len(x), CHUNK):
        part = (x[start : start + CHUNK].to(device).float() / 255 - model.mean) / model.std
        for view, shown in zip(views, (part, part.flip(3)), strict=True):
            view.append(net.features(shown).cpu())
        doing("features", min(start + CHUNK, len(x)), len(x))
    return torch.stack([torch.cat(view) for view in views])


def _train(
    folder: Any,
    model: Classifier,
    halves: tuple[Half | None, Half | None],
    options: HeadsOptions,
    log: Any,
) -> Any:
    net = model.net
    assert isinstance(net, ThreeHeads)
    frozen = options.trunk == "frozen"
    main = halves[0] or halves[1]
    assert main is not None
    if options.batch > len(main):
        raise InputError(f"batch is {options.batch}, expected at most the {len(main)} images.")
    per_epoch = len(main) // options.batch
    epochs = options.epochs or EPOCHS[options.trunk]
    for weight in model.parameters():
        weight.requires_grad_(True)
    net.trunk.requires_grad_(not frozen)
    groups = [{"params": list(net.heads.parameters()), "lr": options.lr}]
    if not frozen:
        groups.append({"params": list(net.trunk.parameters()), "lr": options.lr / 10})
    optimizer = torch.optim.AdamW(groups, lr=options.lr, weight_decay=0.01)
    generator = torch.Generator(model.mean.device)
    progress, _ = fit(
        Trainable(model, _loss(model, net, frozen), optimizer),
        _batches(model, halves, options, per_epoch, generator),
        plan=Plan(steps=epochs * per_epoch, per_epoch=per_epoch, seed=options.seed,
                  schedule="cosine", warmup=min(10, per_epoch)),
        folder=folder / "state", generator=generator, log=log,
    )  # fmt: skip
    return progress


def _loss(
    model: Classifier, net: ThreeHeads, frozen: bool
) -> Callable[[nn.Module, Batch, int], dict[str, Tensor]]:
    """The terms of an update; what `fit` hands over is the model itself, in full precision."""

    def loss(same: nn.Module, batch: Batch, step: int) -> dict[str, Tensor]:
        hold_norms(model)
        x = batch["x"]
        logits = net.on_features(x) if frozen else head_logits(model, x)
        return heads_loss(logits, batch.get("real"), batch.get("factors"))

    return loss


def _batches(
    model: Classifier,
    halves: tuple[Half | None, Half | None],
    options: HeadsOptions,
    per_epoch: int,
    generator: torch.Generator,
) -> Callable[[int], Batch]:
    """The batch of an update: originals, then as many counterfactuals, each shuffled anew."""
    device = model.mean.device

    def batch(step: int) -> Batch:
        epoch, part = divmod(step, per_epoch)
        out: dict[str, Tensor] = {}
        parts = []
        for key, half in zip(("real", "factors"), halves, strict=True):
            if half is None:
                continue
            seed = (options.seed * 1_000_003 + epoch) * 2 + (key == "factors")
            order = torch.randperm(len(half), generator=torch.Generator().manual_seed(seed))
            places = (torch.arange(options.batch) + part * options.batch) % len(half)
            rows = order[places]
            parts.append(_shown(half.x, rows, device, generator))
            out[key] = half.y[..., rows].to(device)
        return {"x": torch.cat(parts), **out}

    return batch


def _shown(x: Tensor, rows: Tensor, device: torch.device, generator: torch.Generator) -> Tensor:
    """Stored features of one of the views, or images shifted and mirrored at random."""
    flips = torch.rand(len(rows), generator=generator, device=device) < 0.5
    if x.dtype != torch.uint8:
        return x[flips.long().cpu(), rows].to(device)
    images = x[rows].to(device).float() / 255
    pad = max(1, images.shape[2] // 16)
    by = torch.randint(2 * pad + 1, (len(rows), 2), generator=generator, device=device)
    padded = nn.functional.pad(images, (pad,) * 4, mode="reflect")
    side = images.shape[2]
    cut = [one[:, i : i + side, j : j + side]
           for one, (i, j) in zip(padded, by.tolist(), strict=True)]  # fmt: skip
    shifted = torch.stack(cut)
    return torch.where(flips[:, None, None, None], shifted.flip(3), shifted)


def _audit(folder: Any, model: Classifier, held: ImageSet, options: HeadsOptions) -> Result:
    from counterlens.workflows.audit.run import audit

    held = replace(held, name=f"{held.name}, held out")
    return audit(
        model, held, out=folder, seed=options.seed, device=options.device, quiet=options.quiet,
        resume=folder.exists(), anyway=True,
    )  # fmt: skip
