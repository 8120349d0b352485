"""Train a CGN of photographs on a class-conditional generator; which loss is needed for what.

Paper: Sauer and Geiger 2021 (cgn2021, §3.2); the ablation of cgnstudy2022 (Table 6): one loss
       removed, mean mask and a quality score of images whose mechanisms share a class.
Differs: classes are drawn for each image in place of each micro-batch; the gradient is a mean over
       the batch in place of a sum, which Adam does not see but for its ε.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from counterlens import metrics
from counterlens.classifier import Classifier, pick_device
from counterlens.errors import InputError
from counterlens.fit import Plan, Trainable, fit
from counterlens.generators.cgn.natural import NAMES, Mechanisms, Salient, check_generator
from counterlens.images import resize, tile, to_pixels, write_png
from counterlens.losses.cgn_natural import natural_terms, weights_of
from counterlens.models import check_consent, load, parse
from counterlens.models.nets import vgg
from counterlens.models.nets.vgg import VGG16
from counterlens.models.sources.files import factory_product
from counterlens.runs import Number, Run, atomic
from counterlens.types import Batch, Images
from counterlens.workflows._shared.options import takes
from counterlens.workflows._shared.result import Result
from counterlens.workflows._shared.session import begin, end, logger
from counterlens.workflows.cgn.options import CgnNaturalOptions

RATES = {"shape": 8e-6, "texture": 3e-5, "background": 1e-5}
MEASURED = 50
COLLAPSED = (0.1, 0.9)
UNDECIDED = 0.5
"""Bits per pixel above which masks count as undecided."""
CELL = 96


@dataclass(frozen=True)
class GivenGenerator:
    """The generator with what it says of itself."""

    net: nn.Module
    noise: int
    classes: tuple[str, ...]
    name: str


@takes(CgnNaturalOptions)
def train_natural(generator: object, options: CgnNaturalOptions) -> Result:
    """Train shape, texture and background mechanisms; RUN/mechanisms.safetensors has them.

    Args:
        generator: FILE.py:FACTORY, or a torch module: G(noise b × d, class b) → images in [0, 1].
            It says `noise = d` and `classes = names`.

    >>> import counterlens as cl
    >>> cl.cgn.train_natural("my_gan.py:make", salient="u2netp.onnx",
    ...     vgg="vgg16-397923af.pth")                                   # doctest: +SKIP
    """
    given = open_generator(generator)
    side = check_generator(given.net, given.noise, len(given.classes))
    _check(options, given)
    salient = _salient(options.salient)
    features = vgg.load(options.vgg) if options.vgg else None
    judge = load(options.judged_by, device=options.device) if options.judged_by else None
    device, log = pick_device(options.device), logger(options)
    inputs = {"generator": given.name, "classes": list(given.classes)}
    run = begin("cgn train-natural", options, name=given.name, inputs=inputs)
    count = sum(p.numel() for p in given.net.parameters())
    log(
        f"{given.name}: {len(given.classes)} classes, {side} pixels, {count:,} weights; loss left "
        f"out: {options.ablation}."
    )
    if features is None:
        log("no VGG-16 was given, so the losses of style are left out: textures stay as they are.")
    net = Mechanisms(given.net, salient).to(device)
    progress = _train(run, net, given, features, options, log)
    if not progress.done:
        log(f"not finished: repeat the command with --resume ({run.folder}).")
        progress.resend()
        return Result(run)
    run.write_table("epochs", progress.rows)
    _save(run, net)
    run.add_numbers(measure(run, net.eval(), given, judge, options.seed))
    sheet(run, net, given, options.seed)
    run.note(
        model=given.name, classes=len(given.classes), seed=options.seed, ablation=options.ablation
    )
    end(run, log)
    return Result(run)


def open_generator(generator: object) -> GivenGenerator:
    """The generator of a spec or an object, with its noise and its classes."""
    name = type(generator).__name__
    if isinstance(generator, str | Path):
        spec = parse(check_consent(str(generator), source=Path(), trust=True))
        if spec.scheme != "file":
            raise InputError(
                f"the generator is {generator}, expected FILE.py:FACTORY, a function that returns "
                "a torch module G(noise, class)."
            )
        generator, name = factory_product(spec), str(spec.weights)
    noise, classes = getattr(generator, "noise", None), getattr(generator, "classes", None)
    if not isinstance(noise, int) or noise < 1:
        raise InputError(f"the generator's noise is {noise!r}, expected its length: noise = 128.")
    if isinstance(classes, int):
        classes = [str(k) for k in range(classes)]
    if not isinstance(classes, Sequence) or isinstance(classes, str) or len(classes) < 2:
        raise InputError(
            f"the generator's classes are {classes!r}, expected two names or more: with one class "
            "there is no counterfactual."
        )
    if not isinstance(generator, nn.Module):
        raise InputError(f"the generator is {name}, expected a torch module with weights.")
    return GivenGenerator(generator, noise, tuple(map(str, classes)), name)


def _check(options: CgnNaturalOptions, given: GivenGenerator) -> None:
    if options.iterations < 1 or options.images < 1:
        raise InputError(
            f"iterations are {options.iterations}, images {options.images}, expected 1 or more."
        )
    weights_of(options.ablation)


def _salient(path: object) -> Salient:
    """A segmenter that carries gradients: U²-Net as ONNX, or a module."""
    if isinstance(path, nn.Module):
        return path
    from counterlens.models.salient import load_salient_module

    if not Path(str(path)).is_file():
        raise InputError(f"no segmenter {path}: there is no such file. Expected u2netp.onnx.")
    return load_salient_module(str(path))


def _train(
    run: Run,
    net: Mechanisms,
    given: GivenGenerator,
    features: VGG16 | None,
    options: CgnNaturalOptions,
    log: Callable[[str], None],
) -> Any:
    """Adam at the study's rates, one group a mechanism."""
    device = pick_device(options.device)
    groups = [
        {"params": list(net.get_submodule(name).parameters()), "lr": options.speed * rate}
        for name, rate in RATES.items()
    ]
    weights = weights_of(options.ablation, style=features is not None)
    features = None if features is None else features.to(device)

    def loss(same: nn.Module, batch: Batch, step: int) -> dict[str, Tensor]:
        patches = torch.Generator().manual_seed((options.seed << 32) + step)
        return natural_terms(net(batch["u"], batch["y"]), net.salient, features, weights, patches)

    def batch(step: int) -> Mapping[str, Tensor]:
        u, y = draws(given, options.images, options.seed, step)
        return {"u": u.to(device), "y": y.to(device)}

    per_epoch = max(1, options.iterations // 10)
    progress, _ = fit(
        Trainable(net, loss, torch.optim.Adam(groups)),
        batch,
        plan=Plan(steps=options.iterations, per_epoch=per_epoch, seed=options.seed,
                  schedule="constant", log_every=min(50, per_epoch)),
        folder=run.folder / "state",
        log=log,
    )  # fmt: skip
    return progress


def draws(
    given: GivenGenerator, count: int, seed: int, step: int
) -> tuple[Float[Tensor, "b d"], Int[Tensor, "b"]]:
    """Noise of the truncated normal in [−2, 2], and classes; a function of seed and step."""
    rng = torch.Generator().manual_seed((seed * 0x9E3779B97F4A7C15 + step) % 2**63)
    u = torch.empty(count, given.noise)
    nn.init.trunc_normal_(u, 0, 1, -2, 2, generator=rng)
    return u, torch.randint(len(given.classes), (count,), generator=rng)


def _save(run: Run, net: Mechanisms) -> None:
    from safetensors.torch import save_file

    state = {
        f"{name}.{key}": value.detach().cpu().contiguous().clone()
        for name in NAMES
        for key, value in net.get_submodule(name).state_dict().items()
    }
    with atomic(run.folder / "mechanisms.safetensors") as path:
        save_file(state, path)


@torch.no_grad()
def measure(
    run: Run, net: Mechanisms, given: GivenGenerator, judge: Classifier | None, seed: int
) -> dict[str, Number]:
    """Mean mask, entropy, collapse, and how often a judge sees the class, at truncation 0.5.

    Equation: cgnstudy2022 §4.4   μ_mask = mean m over images whose mechanisms share a class
    """
    device = next(net.parameters()).device
    areas, doubts, right = [], [], []
    for step in range(MEASURED // 10):
        u, y = draws(given, 10, seed + 10_000, step)
        part = net.draw(0.5 * u.to(device), (y.to(device),) * 3)
        mask = part.mask.double()
        areas.append(mask.mean((1, 2, 3)).cpu())
        doubts.append(
            (-(mask * mask.log2() + (1 - mask) * (1 - mask).log2())).mean((1, 2, 3)).cpu()
        )
        if judge is not None:
            right.append(_judged(judge, part.x, given) == y)
    area, doubt = torch.cat(areas), torch.cat(doubts)
    numbers = {
        "natural.mask": _mean(area, "mean mask, same class, truncation 0.5"),
        "natural.entropy": _mean(doubt, "bits per pixel of the mask"),
        "natural.collapsed": metrics.share(
            (area < COLLAPSED[0]) | (area > COLLAPSED[1]) | (doubt > UNDECIDED),
            "masks below 0.1, above 0.9, or with more than half a bit per pixel",
        ),
    }
    if judge is not None:
        numbers["natural.judged"] = metrics.share(torch.cat(right), f"class by {judge.name}")
    run.write_table("masks", [{"area": float(a), "entropy": float(d)}
                              for a, d in zip(area, doubt, strict=True)])  # fmt: skip
    return numbers


def _judged(judge: Classifier, x: Images, given: GivenGenerator) -> Tensor:
    """Places in the generator's classes of what the judge answers; −1 for any other class."""
    from counterlens.label_spaces.matching import pair_classes

    size = judge.preprocess.size
    seen = nn.functional.interpolate(x, size, mode="bilinear", antialias=True)
    places = [place for place, _ in pair_classes(given.classes, judge.classes)]
    return torch.tensor(places)[judge(seen.clamp(0, 1)).argmax(1).cpu()]


def _mean(values: Tensor, protocol: str) -> Number:
    n, mean = len(values), float(values.mean())
    half = 1.96 * float(values.std()) / n**0.5
    return Number(mean, n, max(0.0, mean - half), min(1.0, mean + half),
                  f"{protocol}; normal interval")  # fmt: skip


@torch.no_grad()
def sheet(run: Run, net: Mechanisms, given: GivenGenerator, seed: int) -> None:
    """A row for each of up to twelve classes: every factor, the composition, counterfactuals."""
    device, k = next(net.parameters()).device, len(given.classes)
    rows = min(12, k)
    u = 0.5 * draws(given, rows, seed, 10**6)[0].to(device)
    y = torch.arange(rows, device=device) * k // rows
    parts = replace(net.draw(u, (y, y, y)), target=net.target(u, y))
    mixed = [net.draw(u, (y, (y + 1) % k, (y + 2) % k)), net.draw(u, (y, (y + 3) % k, (y + 1) % k))]
    assert parts.target is not None
    columns = [parts.target, parts.shape, parts.mask.expand_as(parts.x), parts.front, parts.behind,
               parts.x, *(one.x for one in mixed)]  # fmt: skip
    cells = [
        resize(to_pixels(column[i].clamp(0, 1)), (CELL, CELL), "bicubic")
        for i in range(rows)
        for column in columns
    ]
    write_png(run.path("images", "sheet.png"), tile(cells, columns=len(columns), gap=3))
    names = ", ".join(given.classes[int(i)] for i in y)
    label = (
        f"{names}. From left to right: the generator, shape, mask, texture, background, put "
        "together, 2 counterfactuals"
    )
    run.write_table("gallery", [{"group": "photographs", "image": "images/sheet.png",
                                 "id": "sheet", "label": label}])  # fmt: skip
