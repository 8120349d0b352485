"""Train counterfactual generative networks of several seeds side by side, and the GAN baseline.

All seeds of a set are one stack on one device. The masks are examined after every epoch by the
criterion of `cgn_masks`. A network that ends with a collapsed digit is trained again from a new
start, and the restarts are counted; a round in which all is lost by half-time ends there.

8 epochs of Coloured MNIST are 30,000 updates, 15 of another set 46,875; `networks` says what one
costs.

Paper: Sauer and Geiger 2021 (cgn2021, MNIST code); cgnstudy2022 for the edge loss.
Differs: the edge loss has weight 1 in all sets (the study: 0.1, Coloured alone): where a digit is
       drawn right it is nearly 0, so only a wrong mask feels it. Backgrounds start at the colour
       of the data's border (`border_start`, see `generators.cgn.start_background`). The last epoch
       counts: nothing is picked by hand. Weights are averaged over updates (`average`), and the
       learning rate may fall to 0 at the end (`hold`): at a constant one the masks of neighbouring
       updates differ. The critic may see pictures relative to their class (`level`).
"""

import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from counterlens.classifier import pick_device
from counterlens.data.synthetic.digit_factors import Digits, open_digits
from counterlens.data.synthetic.mnist_variants import DigitVariant, independence, variant
from counterlens.errors import InputError
from counterlens.fit import Plan, fit
from counterlens.generators.cgn import model as cgn
from counterlens.generators.cgn.model import CGN, CLASSES, DCGAN
from counterlens.losses.cgn import level_of
from counterlens.models.nets import vgg
from counterlens.models.nets.digit_net import DigitNet
from counterlens.runs import Run
from counterlens.workflows._shared import entry_point
from counterlens.workflows._shared.options import takes
from counterlens.workflows._shared.result import Result
from counterlens.workflows._shared.session import Log, logger, running
from counterlens.workflows._shared.settings import as_dict, changed
from counterlens.workflows.cgn import networks
from counterlens.workflows.cgn.masks import (
    MaskHealth,
    accuracy,
    examine,
    mask_numbers,
    train_digit_classifier,
)
from counterlens.workflows.cgn.options import CgnTrainOptions
from counterlens.workflows.cgn.settings import CgnRecipe, check, defaults, next_round, numbers_of
from counterlens.workflows.cgn.sheets import save_sheet
from counterlens.workflows.cgn.stack import Shuffled
from counterlens.workflows.train.recipe import on
from counterlens.workflows.train.run import device_name

ATTEMPT = 1_000_003  # between the seeds of two attempts
UNFINISHED = "unfinished"  # folder of the networks of a round that has not ended
LOST = 5  # fewer intact digits than this at half-time are lost


@dataclass(frozen=True)
class _Job:
    """A training under way.

    Args:
        which, kind: the set, and cgn or gan.
        data, x, y: the set, its pixels and labels on the device.
        digit_classifier: reads masks; None for a GAN.
        features: VGG-16 for the style loss, where it is used.
        known: Gram matrices of all images, where they are stored.
        dtype: of the networks' convolutions.
    """

    run: Run
    which: str
    kind: str
    recipe: CgnRecipe
    data: DigitVariant
    x: Tensor
    y: Tensor
    digit_classifier: DigitNet | None
    features: vgg.VGG16 | None
    known: Sequence[Tensor] | None
    device: torch.device
    dtype: torch.dtype
    log: Log


class _Lost(Exception):
    """Every network of a round has collapsed."""


@takes(CgnTrainOptions)
def train_cgn(which: str, options: CgnTrainOptions) -> Result:
    """Train; write RUN/seed-N for each seed, sheets, and the outcome of every attempt.

    Args:
        which: coloured, double-coloured or wildlife.
    """
    began = time.monotonic()
    recipe = changed(defaults(which, options.kind), options.changes)
    check(recipe)
    seeds = numbers_of(options.seeds)
    if not seeds:
        raise InputError("no seed given, expected one or more, e.g. seeds=0,1,2.")
    splits = open_digits(options.mnist)
    data = variant(which, "train", splits, textures=options.textures)
    features = None
    if options.kind == "cgn" and any(recipe.style):
        features = vgg.load(options.vgg)
    name = f"{which}-{options.kind}"
    inputs = {"set": which, "settings": as_dict(recipe)}
    with running("cgn train", options, name=name, inputs=inputs) as run:
        job = _begin(run, options, recipe, splits, data, features)
        test = variant(which, "test", splits, textures=options.textures)
        run.write_table("independence", independence(test))
        job.log(f"{which}: {len(data)} pictures, seeds {seeds} on {device_name(job.device)}")
        _rounds(job, seeds)
        _finish(job, seeds, time.monotonic() - began)
    return Result(run)


def _begin(
    run: Run,
    options: CgnTrainOptions,
    recipe: CgnRecipe,
    splits: tuple[Digits, Digits],
    data: DigitVariant,
    features: vgg.VGG16 | None,
) -> _Job:
    """Everything on the device; the digit classifier trained, of a CGN."""
    log, device = logger(options), pick_device(options.device)
    fixed, ours = networks.dtypes(recipe, device)
    digit_classifier = None
    if options.kind == "cgn":
        train, test = splits
        digit_classifier = train_digit_classifier(
            train, folder=run.folder / "state" / "digit-classifier", device=device, log=log,
            updates=recipe.digit_classifier_updates,
        )  # fmt: skip
        share = accuracy(digit_classifier, test)
        run.add_numbers({"cgn.digit_classifier": share})
        log(f"the digit classifier reads {share.value:.1%} of {share.n} real digits")
    x = data.pixels().to(device)
    if features:
        features = features.to(device, fixed)
    known = networks.known_grams(x, recipe, features)
    return _Job(
        run, data.which, options.kind, recipe, data, x, data.labels.to(device), digit_classifier,
        features, known, device, ours, log,
    )  # fmt: skip


def _rounds(job: _Job, seeds: Sequence[int]) -> None:
    """Train all seeds, then those with a collapsed digit again, until none is left."""
    rows: list[dict[str, Any]] = job.run.table("attempts")
    number = max((row["round"] for row in rows), default=-1) + 1
    began, recipe = time.monotonic(), job.recipe
    while True:
        team = next_round(rows, seeds, recipe.attempts, recipe.stack, recipe.first_attempts)
        if not team:
            return
        spent = time.monotonic() - began  # a round of fewer networks takes half of it at least
        if rows and recipe.minutes and 1.5 * spent > 60 * recipe.minutes:
            job.log(f"no further round: it would not end within {recipe.minutes} min.")
            return
        job.log(f"round {number + 1}: " + ", ".join(f"seed {s} try {a + 1}" for s, a in team))
        rows += _round(job, number, team)
        job.run.write_table("attempts", rows)
        number += 1


def _round(job: _Job, number: int, team: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
    """Train one stack; keep each network that is the best of its seed so far."""
    starts = [seed + ATTEMPT * attempt for seed, attempt in team]
    net, critic = networks.nets(job.kind, job.recipe, starts, job.x, job.dtype)
    healths: list[MaskHealth] = []
    began = time.monotonic()
    early = False
    try:
        net = _fit(job, number, team, net, critic, healths)
    except _Lost:
        job.log("every network of this round has collapsed: it ends here.")
        early = True
    seconds = time.monotonic() - began
    rows: list[dict[str, Any]] = []
    before = job.run.table("attempts")
    for i, (seed, attempt) in enumerate(team):
        row: dict[str, Any] = {
            "round": number, "seed": seed, "attempt": attempt,
            "seconds": round(seconds / len(team), 1), "ended_early": early,
        }  # fmt: skip
        if healths:
            last = healths[-1]
            row["intact"] = int(last.intact[i].sum())
            row["collapsed"] = last.collapsed[i]
            row["read"] = round(last.read[i].mean().item(), 4)
            row["area"] = round(last.area[i].mean().item(), 4)
        rivals = [r.get("intact", CLASSES) for r in (*before, *rows) if r["seed"] == seed]
        if row.get("intact", CLASSES) > max(rivals, default=-1):  # a GAN has no masks
            _keep(job, net, i, row, seconds)
        rows.append(row)
    shutil.rmtree(job.run.folder / UNFINISHED, ignore_errors=True)
    return rows


def _fit(
    job: _Job,
    number: int,
    team: Sequence[tuple[int, int]],
    net: CGN | DCGAN,
    critic: nn.Module,
    healths: list[MaskHealth],
) -> CGN | DCGAN:
    """Train one stack, its masks examined after every epoch; the networks to keep."""
    recipe, stack, cuda = job.recipe, len(team), job.device.type == "cuda"
    folder = job.run.folder / "state" / f"round-{number}"
    generator = torch.Generator(job.device)
    seed = team[0][0] + 101 * number
    order = Shuffled(len(job.x), recipe.batch, stack, seed, job.device)
    plan = Plan(
        steps=recipe.epochs * order.per_epoch,
        per_epoch=order.per_epoch,
        seed=seed,
        schedule="linear" if recipe.hold < 1 else "constant",
        hold=recipe.hold,
        average=recipe.average,
        graph=on(recipe.graph, cuda),
        log_every=200,
        checkpoint_minutes=3.0,
    )
    began = time.monotonic()

    def judge(mixed: nn.Module, step: int) -> dict[str, float]:
        final: Any = mixed.net
        nets, seconds = (net, final), time.monotonic() - began
        return _judge(job, number, team, step // order.per_epoch, nets, healths, seconds)

    level = level_of(job.x, job.y) if recipe.level else None
    progress, trained = fit(
        networks.trainables(
            job.kind, recipe, net, critic, job.features, known=job.known, level=level
        ),
        networks.batches(job.x, job.y, recipe, order, generator),
        plan=plan,
        folder=folder,
        generator=generator,
        judge=judge,
        log=job.log,
    )
    if not progress.done:
        progress.resend()
        raise InputError(f"stopped before the end: go on with resume=True ({job.run.folder}).")
    final: Any = trained[0]
    if isinstance(final, CGN) and not healths:  # continued after its last epoch
        healths.append(_examined(job, final))
    job.run.write_table(f"epochs_round_{number + 1}", progress.rows)
    assert isinstance(final, CGN | DCGAN)
    return final


def _judge(
    job: _Job,
    number: int,
    team: Sequence[tuple[int, int]],
    epoch: int,
    nets: tuple[nn.Module, nn.Module],
    healths: list[MaskHealth],
    seconds: float,
) -> dict[str, float]:
    """What the networks are like after an epoch, of which all is stored that a later one needs.

    Args:
        nets: as they are trained, and as they would be kept.
    """
    live, final = nets
    assert isinstance(final, CGN | DCGAN)
    title = f"seed {team[0][0]}, epoch {epoch}"
    save_sheet(job.run, f"round-{number + 1}-epoch-{epoch:02d}", final, title)
    facts: dict[str, float] = {}
    intact = torch.full((len(team),), CLASSES)
    if isinstance(final, CGN):
        healths.append(_examined(job, final))
        intact = healths[-1].intact.sum(1)
        facts = {"intact": intact.float().mean().item(), "whole": float((intact == 10).sum())}
        if final is not live and isinstance(live, CGN):  # as it is without the average
            facts["unaveraged"] = _examined(job, live.eval()).intact.sum(1).float().mean().item()
    last, every = job.recipe.epochs, job.recipe.keep_every
    if every and epoch % every == 0 and epoch < last:
        _keep_unfinished(job, final, team, intact.tolist(), epoch, seconds)
    if last / 2 <= epoch < last and int(intact.max()) < LOST:
        raise _Lost
    return facts


def _examined(job: _Job, net: CGN) -> MaskHealth:
    assert job.digit_classifier is not None
    return examine(net, job.digit_classifier, count=job.recipe.examined)


def _keep_unfinished(
    job: _Job,
    net: CGN | DCGAN,
    team: Sequence[tuple[int, int]],
    intact: Sequence[int],
    epoch: int,
    seconds: float,
) -> None:
    """Write the networks as they are, the best try of each seed, as RUN/unfinished/seed-N.

    They can be used like those of a finished run if this one is lost.
    """
    for i, (seed, attempt) in sorted(enumerate(team), key=lambda one: intact[one[0]]):
        row = {"seed": seed, "attempt": attempt, "epoch": epoch}
        row |= {"intact": intact[i]} if isinstance(net, CGN) else {}
        _keep(job, net, i, row, seconds, within=UNFINISHED)


def _keep(
    job: _Job, net: CGN | DCGAN, i: int, row: Mapping[str, Any], seconds: float, within: str = "."
) -> None:
    """Write one network of the stack as RUN/seed-N."""
    card = {
        "name": f"{job.which}-mnist-{job.kind}",
        "kind": job.kind,
        "set": job.which,
        "options": networks.options(job.kind, job.recipe),
        "recipe": as_dict(job.recipe),
        "data": {
            "pictures": len(job.data),
            "fingerprint": job.data.fingerprint,
            "digits": job.data.digits.fingerprint,
        },
        "training": {
            **{k: v for k, v in row.items() if k != "round"},
            "stack": net.stack,
            "device": device_name(job.device),
            "stack_seconds": round(seconds, 1),
        },
        "licence": "Apache-2.0",
    }
    cgn.save(job.run.folder / within / f"seed-{row['seed']}", net, card, row=i)


def _finish(job: _Job, seeds: Sequence[int], seconds: float) -> None:
    """Numbers and final sheets."""
    rows = job.run.table("attempts")
    gallery, taken = [], []
    for seed in seeds:
        net, card = cgn.load(job.run.folder / f"seed-{seed}")
        title = f"seed {seed}, try {card['training']['attempt'] + 1}"
        gallery.append(save_sheet(job.run, f"sheet-seed-{seed}", net, title))
        taken.append(card["training"])
    job.run.write_table("gallery", gallery)
    if job.kind == "cgn":
        _mask_numbers(job, rows, taken)
    job.run.note(
        model=f"{job.which}-mnist-{job.kind}", data=job.which, device=device_name(job.device)
    )
    job.log(f"{len(rows)} trainings for {len(seeds)} seeds in {seconds / 60:.1f} min.")


def _mask_numbers(
    job: _Job, rows: Sequence[Mapping[str, Any]], taken: Sequence[Mapping[str, Any]]
) -> None:
    tries = job.recipe.attempts
    job.run.add_numbers(mask_numbers(rows, taken, tries))
    missing = [
        f"seed {row['seed']}: digits {row['collapsed']}" for row in taken if row["intact"] < 10
    ]
    if missing:
        text = f"Collapsed masks after {tries} tries: {'; '.join(missing)}."
        job.run.write_table("notes", [{"note": text}])
        job.log(text + " Raise attempts or edge (--set attempts=12), or take other seeds.")


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m counterlens.workflows.cgn.train`: for machines without the command line."""
    return entry_point.run(train_cgn, CgnTrainOptions, arguments, "which")


if __name__ == "__main__":
    sys.exit(main())
