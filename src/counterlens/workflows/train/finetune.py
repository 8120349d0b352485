"""Fine-tune a network on a folder: settings from the data, an audit before and after.

Works from a few dozen images on. Each class gives a share that is held out; the learning rate is
the best of three, tried on images set apart from the rest of the training images; where images are
few, batch norm keeps the statistics it came with. No choice looks at the held-out images.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from counterlens.classifier import Classifier, pick_device
from counterlens.data import subset
from counterlens.errors import InputError
from counterlens.fit import Plan, Progress, Trainable, fit
from counterlens.images import ImageSet, fitting_size
from counterlens.models import load
from counterlens.models.sources import checkpoint
from counterlens.models.sources.finetuned import save_finetuned, with_new_head
from counterlens.models.sources.objects import as_classifier
from counterlens.models.specs import parse
from counterlens.progress import doing, within
from counterlens.runs import Run
from counterlens.types import Batch
from counterlens.workflows._shared.objects import Objects, words
from counterlens.workflows._shared.options import takes
from counterlens.workflows._shared.result import Result
from counterlens.workflows._shared.session import Log, begin, end, facts, logger
from counterlens.workflows.train.datasets import check_labels
from counterlens.workflows.train.finetune_data import (
    LabelledBytes,
    accuracy,
    batches,
    decode,
    labels_of,
    mean_loss,
    split,
)
from counterlens.workflows.train.finetune_options import FinetuneOptions

START = "zoo:cifar10-plain-small"
"""The network to start from where none is given: it is shipped, so it is always there."""
UPDATES = 120
RATES = (3e-5, 2e-4, 1e-3)
TRIAL = 8
"""Updates of each trial of a learning rate."""
FEW = 1000
"""Training images below which batch norm keeps its statistics."""
NEW_HEAD = 10.0
"""How much faster a new last layer learns than the layers before it."""


@dataclass(frozen=True)
class FineTuneSettings:
    """Settings of one fine-tuning, given or derived."""

    epochs: int
    batch: int
    freeze_norms: bool
    new_head: bool
    augment: str


@dataclass(frozen=True, repr=False)
class Finetuned(Result):
    """The result of a fine-tuning, with the network itself in eval mode."""

    classifier: Classifier | None = None


@takes(FinetuneOptions)
def finetune(data: object, start: object = START, *, options: FinetuneOptions) -> Finetuned:
    """Train a network further on labelled images; the result has `.classifier` and an audit.

    The network given is not changed. `result.parts` are audits on the held-out images: of the
    start, where it knows the classes, and of the fine-tuned network.

    Args:
        data: labelled images: a folder with a folder per class, any other spec, or an object; see
            `as_image_set`.
        start: a spec, a Classifier, or a torch module that describes itself; see `as_classifier`.
            Where its classes are those of the data it keeps them, otherwise its last layer is
            replaced.

    >>> import counterlens as cl
    >>> result = cl.finetune("photos/", "timm:resnet18")                  # doctest: +SKIP
    >>> result.numbers["held_out.clean"], result.classifier               # doctest: +SKIP
    """
    log = logger(options)
    _check(options)
    spec = str(start) if isinstance(start, str | Path) else None
    classifier = _classifier(start, options)
    objects = Objects(options.device, None, options.seed, options.trust_remote_code)
    size = fitting_size(classifier.preprocess)
    images = objects.open(objects.set_spec(data), size=size, channels=classifier.channels)
    check_labels(images)
    labels, new_head = labels_of(classifier, images, options.classes)
    fitted, held = split(labels, images.ids, options.held_out)
    settings = _settings(options, len(fitted), new_head)
    model = with_new_head(classifier, images.classes) if new_head else classifier
    model.name = f"{classifier.name}-finetuned"
    inputs = {"recipe": "finetune", "data": images.name, "start": spec or words(classifier)}
    inputs["data_fingerprint"] = images.fingerprint
    run = begin("train", options, name=f"finetune-{images.name}", inputs=inputs)
    run.note(**facts(model, images, seed=options.seed))
    log(_intentions(model, images, settings, len(fitted), len(held), spec))
    before = copy.deepcopy(classifier) if not new_head else None
    rows = torch.from_numpy(labels)
    with within("decoding images"):
        train, test = (
            LabelledBytes(decode(images, part, model.preprocess, model.channels), rows[part])
            for part in (fitted, held)
        )
    progress = _train(run, model, train, test, settings, options, log)
    if not progress.done:
        log(f"not finished: repeat the command with --resume ({run.folder}).")
        progress.resend()
        return Finetuned(run, classifier=model)
    _save(run, model, spec, images, settings, progress)
    reported = replace(subset(images, held.numpy()), name=f"{images.name}, held out")
    audited = _audit(run, before, model, reported, options)
    run.add_numbers(_numbers(audited))
    end(run, log)
    return Finetuned(run, audited.parts or (audited,), model)


def _check(options: FinetuneOptions) -> None:
    """Refuse settings that cannot work before anything is loaded."""
    for name in ("epochs", "batch", "lr"):
        value = getattr(options, name)
        if value is not None and not value > 0:
            raise InputError(f"{name} is {value}, expected more than 0.")
    if options.held_out is not None and not 0 < options.held_out < 1:
        raise InputError(f"held_out is {options.held_out}, expected a share such as 0.2.")


def _classifier(start: object, options: FinetuneOptions) -> Classifier:
    """A copy of the start that can be trained."""
    if isinstance(start, str | Path):
        base = load(str(start), device=options.device, trust_remote_code=options.trust_remote_code)
    else:
        base = as_classifier(start, device=options.device)
    try:
        own = copy.deepcopy(base)
    except Exception as error:  # a network that cannot be copied is trained itself, if from a spec
        if not isinstance(start, str | Path):
            raise InputError(
                f"{base.name} cannot be copied ({type(error).__name__}), and the object itself "
                "must not be changed. Give it as FILE.py:FACTORY."
            ) from error
        own = base
    weights = [p for p in own.parameters() if p.is_floating_point()]
    if not weights:
        raise InputError(
            f"{base.name} has no weights that could be trained: programs such as ONNX files keep "
            "them as constants. Start from the network in PyTorch."
        )
    for one in weights:
        one.requires_grad_(True)
    return own.to(pick_device(options.device))


def _settings(options: FinetuneOptions, count: int, new_head: bool) -> FineTuneSettings:
    """What was given, and for the rest what fits so many training images."""
    quarter = 2 ** int(math.log2(max(4, count / 4)))
    batch = options.batch or min(64, quarter)
    if batch > count:
        raise InputError(f"batch is {batch}, expected at most the {count} training images.")
    epochs = options.epochs or min(30, max(3, round(UPDATES * batch / count)))
    frozen = count < FEW if options.freeze_norms is None else options.freeze_norms
    return FineTuneSettings(epochs, batch, frozen, new_head, options.augment)


def _intentions(
    model: Classifier,
    images: ImageSet,
    s: FineTuneSettings,
    count: int,
    held: int,
    spec: str | None,
) -> str:
    """What is about to happen, in a few sentences."""
    shape = " × ".join(map(str, model.preprocess.size))
    head = (
        f"a new last layer for the {len(images.classes)} classes of the data"
        if s.new_head
        else f"the {len(model.classes)} classes of the network kept"
    )
    norms = "; batch norm keeps its statistics" if s.freeze_norms else ""
    hint = (
        f" Nothing to start from was given, so it is the shipped {START}, for {shape} pixels. For "
        "photographs start from your own network or timm:resnet18: --set start=MODEL."
        if spec == START
        else ""
    )
    return (
        f"{count} images to train on, {held} held out; {shape} pixels; {head}. {s.epochs} epochs "
        f"in batches of {s.batch}{norms}.{hint}"
    )


def _train(
    run: Run,
    model: Classifier,
    train: LabelledBytes,
    test: LabelledBytes,
    settings: FineTuneSettings,
    options: FinetuneOptions,
    log: Log,
) -> Progress:
    """Choose the learning rate, then train by it; the checkpoint lies in the run."""
    lr = options.lr
    if lr is None:
        tried = run.table("rates") or _try_rates(model, train, settings, options.seed, log)
        run.write_table("rates", tried)
        lr = float(min(tried, key=lambda row: row["loss"])["lr"])
        log(f"learning rate {lr:g}: the lowest loss of {len(tried)} on images set apart.")
    generator = torch.Generator(model.mean.device)
    per_epoch = len(train.y) // settings.batch
    plan = Plan(
        steps=settings.epochs * per_epoch,
        per_epoch=per_epoch,
        seed=options.seed,
        schedule="cosine",
        warmup=min(10, per_epoch),
        judge_every=max(1, settings.epochs // 10),
    )
    trainable = Trainable(model, _loss(settings), _optimizer(model, lr, settings))
    progress, _ = fit(
        trainable,
        batches(model, train, settings.batch, settings.augment, options.seed, generator),
        plan=plan,
        folder=run.folder / "state",
        generator=generator,
        judge=lambda net, step: {"held_out.clean": accuracy(net, model, test)},
        log=log,
    )
    model.eval().requires_grad_(False)
    run.write_table("epochs", progress.rows)
    run.write_table("derived", _derived(settings, lr, options, len(train.y), len(test.y)))
    return progress


def _derived(
    s: FineTuneSettings, lr: float, options: FinetuneOptions, count: int, held: int
) -> list[dict[str, Any]]:
    """Each setting with where it comes from."""
    rows = (
        ("images to train on", count, "all that are not held out"),
        ("held out", held, "given" if options.held_out else "a share of each class, by file name"),
        ("epochs", s.epochs, "given" if options.epochs else f"about {UPDATES} updates"),
        ("batch", s.batch, "given" if options.batch else "a quarter of the images, 4 to 64"),
        ("learning rate", lr, "given" if options.lr else "lowest loss on images set apart"),
        ("batch norm", "keeps its statistics" if s.freeze_norms else "learns them anew",
         f"{count} images" if options.freeze_norms is None else "given"),
        ("last layer", "new" if s.new_head else "kept", "classes of the data and of the network"),
    )  # fmt: skip
    return [{"setting": name, "value": str(value), "why": why} for name, value, why in rows]


def _optimizer(model: Classifier, lr: float, s: FineTuneSettings) -> torch.optim.Optimizer:
    """AdamW; a new last layer learns faster than the layers it stands on."""
    from counterlens.models.parts import head_name

    weights = [p for p in model.parameters() if p.requires_grad]
    if not s.new_head:
        return torch.optim.AdamW(weights, lr=lr, weight_decay=0.01)
    head = model.net.get_submodule(head_name(model.net, len(model.classes)))
    own = {id(p) for p in head.parameters()}
    groups = [
        {"params": [p for p in weights if id(p) not in own], "lr": lr},
        {"params": list(head.parameters()), "lr": min(1e-2, NEW_HEAD * lr)},
    ]
    return torch.optim.AdamW(groups, lr=lr, weight_decay=0.01)


def _loss(s: FineTuneSettings) -> Callable[[nn.Module, Batch, int], dict[str, Tensor]]:
    def loss(net: nn.Module, batch: Batch, step: int) -> dict[str, Tensor]:
        if s.freeze_norms:
            hold_norms(net)
        return {"in": cross_entropy(net(batch["x"]), batch["y"])}

    return loss


def hold_norms(net: nn.Module) -> None:
    """Let batch norm use the statistics it has, and change none."""
    for layer in net.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            layer.eval()


def _try_rates(
    model: Classifier, train: LabelledBytes, s: FineTuneSettings, seed: int, log: Log
) -> list[dict[str, float]]:
    """A few updates at each rate from the same start; the loss on training images set apart."""
    order = torch.randperm(len(train.y), generator=torch.Generator().manual_seed(seed))
    apart = max(1, min(256, len(order) // 4))
    test, rest = train.part(order[:apart]), train.part(order[apart:])
    trial = replace(s, batch=min(s.batch, len(rest.y)))
    start = copy.deepcopy(model.state_dict())
    rows = []
    for rate in RATES:
        optimizer, loss = _optimizer(model, rate, trial), _loss(trial)
        generator = torch.Generator(model.mean.device).manual_seed(seed)
        batch = batches(model, rest, trial.batch, trial.augment, seed, generator)
        model.train()
        for step in range(TRIAL):
            doing(f"trying learning rate {rate:g}, updates", step, TRIAL)
            optimizer.zero_grad(set_to_none=True)
            loss(model, batch(step), step)["in"].backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        model.eval()
        reached = mean_loss(model, test)
        rows.append({"lr": rate, "loss": reached if math.isfinite(reached) else 1e30})
        model.load_state_dict(start)
    return rows


def _save(
    run: Run,
    model: Classifier,
    spec: str | None,
    images: ImageSet,
    s: FineTuneSettings,
    progress: Progress,
) -> None:
    """The classifier as RUN/model: a checkpoint folder where its architecture has a name."""
    facts = {
        "data": {"in": {"name": images.name, "n": len(images), "fingerprint": images.fingerprint}},
        "training": {"seconds": round(progress.seconds, 1), "updates": progress.step},
    }
    folder = run.folder / "model"
    named = spec is not None and parse(spec).scheme in ("zoo", "folder")
    if named and isinstance(model.card.get("architecture"), dict) and not s.new_head:
        card = {"architecture": model.card["architecture"], "start": {"name": spec}, **facts}
        model.card = {}
        checkpoint.save(folder, model, card)
    else:
        save_finetuned(folder, model, spec, new_head=s.new_head, facts=facts)
    model.card = {**facts, "spec": str(folder)}


def _audit(
    run: Run,
    before: Classifier | None,
    after: Classifier,
    held: ImageSet,
    options: FinetuneOptions,
) -> Result:
    """Audit of the held-out images: of both networks side by side where both know the classes."""
    from counterlens.workflows.audit.run import audit

    models = {"fine-tuned": after}
    if before is not None:
        models = {"before": before.eval().requires_grad_(False), **models}
    folder = run.folder / "audit"
    return audit(
        models, held, out=folder, seed=options.seed, device=options.device, quiet=options.quiet,
        resume=folder.exists(), anyway=True,
    )  # fmt: skip


def _numbers(audited: Result) -> dict[str, Any]:
    """Accuracy on the held-out images, and before the training where that was measured."""
    parts = audited.parts or (audited,)
    numbers = {"held_out.clean": parts[-1].numbers["accuracy.top1"]}
    if len(parts) > 1:
        numbers["held_out.before"] = parts[0].numbers["accuracy.top1"]
    return numbers
