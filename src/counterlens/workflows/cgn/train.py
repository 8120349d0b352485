"""Train counterfactual generative networks of several seeds side by side, and the GAN baseline.

All seeds of a set are one stack on one device. The masks are examined after every epoch by the
criterion of `cgn_masks`. A network that ends with a collapsed digit is trained again from a new
start, and the restarts are counted; a round in which all is lost by half-time ends there.

8 epochs of Coloured MNIST are 30,000 updates, 15 of another set 46,875; `cgn_players` says what one
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
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from counterlens.classifier import pick_device
from counterlens.data.made.digit_factors import open_digits
from counterlens.data.made.mnist_variants import Variant, independence, variant
from counterlens.errors import InputError
from counterlens.fit import Plan, fit
from counterlens.generators.cgn import model as cgn
from counterlens.generators.cgn.model import CGN, CLASSES, DCGAN
from counterlens.losses.cgn import level_of
from counterlens.models.nets import vgg
from counterlens.models.nets.digit_net import DigitNet
from counterlens.runs import Run, new_folder
from counterlens.workflows._shared import entry_point as bare
from counterlens.workflows._shared.session import Say, teller, write_report
from counterlens.workflows.cgn import networks as players
from counterlens.workflows.cgn.masks import Health, examine, mask_numbers, reads, train_reader
from counterlens.workflows.cgn.settings import check, defaults, next_round, numbers_of
from counterlens.workflows.cgn.sheets import save_sheet
from counterlens.workflows.cgn.stack import Shuffled
from counterlens.workflows.train import recipes
from counterlens.workflows.train.run import device_name

ATTEMPT = 1_000_003  # between the seeds of two attempts
UNFINISHED = "unfinished"  # folder of the networks of a round that has not ended
LOST = 5  # fewer intact digits than this at half-time are lost


@dataclass(frozen=True)
class _Job:
    run: Run
    which: str
    kind: str
    settings: Mapping[str, Any]
    data: Variant
    x: Tensor
    y: Tensor
    reader: DigitNet | None
    features: vgg.VGG16 | None
    known: Sequence[Tensor] | None
    device: torch.device
    dtype: torch.dtype
    say: Say


class _Lost(Exception):
    """Every network of a round has collapsed."""


def train_cgn(
    which: str,
    *,
    kind: str = "cgn",
    mnist: str = "sample:mnist",
    textures: str | None = None,
    vgg_file: str | None = None,
    seeds: Sequence[int] = (0,),
    changes: Sequence[str] = (),
    out: Path | None = None,
    resume: bool = False,
    device: str = "auto",
    quiet: bool = False,
) -> Run:
    """Train; write RUN/seed-N for each seed, sheets, and what became of every attempt.

    Args:
        which: coloured, double-coloured or wildlife.
        kind: cgn, or gan for the baseline.
        mnist: both splits of MNIST: known:mnist@ROOT or sample:mnist.
        textures: of Wildlife: pack:FILE.npz or the folder of DTD; drawn by code without.
        vgg_file: weights of VGG-16 for the style loss, see `models.vgg`.
        changes: `key=value` settings that replace those of the set.
    """
    began = time.monotonic()
    settings = defaults(which, kind)
    recipes.change(settings, changes)
    check(settings)
    chosen = list(dict.fromkeys(seeds))
    if not chosen:
        raise InputError("no seed came, expected one or more, e.g. --seeds 0,1,2.")
    say = teller(quiet)
    digits = open_digits(mnist)
    data = variant(which, "train", digits, textures=textures)
    features = None
    if kind == "cgn" and any(settings["style"]):
        features = vgg.load(vgg_file)
    where = pick_device(device)
    asked = {
        "set": which, "kind": kind, "mnist": mnist, "textures": textures, "seeds": chosen,
        "settings": settings,
    }  # fmt: skip
    run = Run.create(
        out or new_folder("cgn-train", f"{which}-{kind}"), "cgn train", asked, resume=resume
    )
    fixed, ours = players.dtypes(settings, where)
    reader = None
    if kind == "cgn":
        reader = train_reader(
            digits[0], folder=run.folder / "state" / "reader", device=where, say=say,
            updates=settings["reader_updates"], graph=where.type == "cuda",
        )  # fmt: skip
        share = reads(reader, digits[1])
        run.add_numbers({"cgn.reader": share})
        say(f"the reader reads {share.value:.1%} of {share.n} real digits")
    x = data.pixels().to(where)
    if features:
        features = features.to(where, fixed)
    job = _Job(
        run, which, kind, settings, data, x, data.labels.to(where), reader, features,
        players.known_grams(x, settings, features), where, ours, say,
    )  # fmt: skip
    run.write_table("independence", independence(variant(which, "test", digits, textures=textures)))
    say(f"{which}: {len(data)} pictures, seeds {chosen} on {device_name(where)}")
    _rounds(job, chosen)
    _finish(job, chosen, time.monotonic() - began)
    write_report(run, say)
    run.finish()
    return run


def _rounds(job: _Job, seeds: Sequence[int]) -> None:
    """Train all seeds, then those with a collapsed digit again, until none is left."""
    rows: list[dict[str, Any]] = job.run.table("attempts")
    number = max((row["round"] for row in rows), default=-1) + 1
    began, settings = time.monotonic(), job.settings
    while True:
        team = next_round(
            rows, seeds, settings["attempts"], settings["stack"], settings["together"]
        )
        if not team:
            return
        spent = time.monotonic() - began  # a round of fewer networks takes half of it at least
        if rows and settings["minutes"] and 1.5 * spent > 60 * settings["minutes"]:
            job.say(f"no further round: it would not end within {settings['minutes']} min.")
            return
        job.say(f"round {number + 1}: " + ", ".join(f"seed {s} try {a + 1}" for s, a in team))
        made = _round(job, number, team)
        rows += made
        job.run.write_table("attempts", rows)
        number += 1


def _round(job: _Job, number: int, team: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
    """Train one stack; keep each network that is the best of its seed so far."""
    starts = [seed + ATTEMPT * attempt for seed, attempt in team]
    net, critic = players.nets(job.kind, job.settings, starts, job.x, job.dtype)
    healths: list[Health] = []
    began = time.monotonic()
    early = False
    try:
        net = _fit(job, number, team, net, critic, healths)
    except _Lost:
        job.say("every network of this round has collapsed: it ends here.")
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
    healths: list[Health],
) -> CGN | DCGAN:
    """Train one stack, its masks examined after every epoch; the networks to keep."""
    settings, stack, cuda = job.settings, len(team), job.device.type == "cuda"
    folder = job.run.folder / "state" / f"round-{number}"
    generator = torch.Generator(job.device)
    seed = team[0][0] + 101 * number
    order = Shuffled(len(job.x), settings["batch"], stack, seed, job.device)
    plan = Plan(
        steps=settings["epochs"] * order.per_epoch,
        per_epoch=order.per_epoch,
        seed=seed,
        schedule="linear" if settings["hold"] < 1 else "constant",
        hold=settings["hold"],
        average=settings["average"],
        graph=cuda if settings["graph"] == "auto" else bool(settings["graph"]),
        log_every=200,
        checkpoint_minutes=3.0,
    )
    began = time.monotonic()

    def judge(mixed: nn.Module, step: int) -> dict[str, float]:
        kept: Any = mixed.net
        nets, seconds = (net, kept), time.monotonic() - began
        return _judge(job, number, team, step // order.per_epoch, nets, healths, seconds)

    level = level_of(job.x, job.y) if settings["level"] else None
    progress, made = fit(
        players.team(job.kind, settings, net, critic, job.features, known=job.known, level=level),
        players.batches(job.x, job.y, settings, order, generator),
        plan=plan,
        folder=folder,
        generator=generator,
        judge=judge,
        log=job.say,
    )
    if not progress.done:
        progress.resend()
        raise InputError(f"stopped before the end: repeat with --resume ({job.run.folder}).")
    kept: Any = made[0]
    if isinstance(kept, CGN) and not healths:  # continued after its last epoch
        healths.append(_examined(job, kept))
    job.run.write_table(f"epochs_round_{number + 1}", progress.rows)
    assert isinstance(kept, CGN | DCGAN)
    return kept


def _judge(
    job: _Job,
    number: int,
    team: Sequence[tuple[int, int]],
    epoch: int,
    nets: tuple[nn.Module, nn.Module],
    healths: list[Health],
    seconds: float,
) -> dict[str, float]:
    """What the networks are like after an epoch, of which all is kept that a later one needs.

    Args:
        nets: as they are trained, and as they would be kept.
    """
    live, kept = nets
    assert isinstance(kept, CGN | DCGAN)
    title = f"seed {team[0][0]}, epoch {epoch}"
    save_sheet(job.run, f"round-{number + 1}-epoch-{epoch:02d}", kept, title)
    found: dict[str, float] = {}
    intact = torch.full((len(team),), CLASSES)
    if isinstance(kept, CGN):
        healths.append(_examined(job, kept))
        intact = healths[-1].intact.sum(1)
        found = {"intact": intact.float().mean().item(), "whole": float((intact == 10).sum())}
        if kept is not live and isinstance(live, CGN):  # as it is without the average
            found["unaveraged"] = _examined(job, live.eval()).intact.sum(1).float().mean().item()
    last, every = job.settings["epochs"], job.settings["keep_every"]
    if every and epoch % every == 0 and epoch < last:
        _keep_unfinished(job, kept, team, intact.tolist(), epoch, seconds)
    if last / 2 <= epoch < last and int(intact.max()) < LOST:
        raise _Lost
    return found


def _examined(job: _Job, net: CGN) -> Health:
    assert job.reader is not None
    return examine(net, job.reader, count=job.settings["examined"])


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
        "options": players.options(job.kind, job.settings),
        "recipe": dict(job.settings),
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
    job.say(f"{len(rows)} trainings for {len(seeds)} seeds in {seconds / 60:.1f} min.")


def _mask_numbers(
    job: _Job, rows: Sequence[Mapping[str, Any]], taken: Sequence[Mapping[str, Any]]
) -> None:
    tries = job.settings["attempts"]
    job.run.add_numbers(mask_numbers(rows, taken, tries))
    missing = [
        f"seed {row['seed']}: digits {row['collapsed']}" for row in taken if row["intact"] < 10
    ]
    if missing:
        text = f"Collapsed masks after {tries} tries: {'; '.join(missing)}."
        job.run.write_table("notes", [{"note": text}])
        job.say(text + " Raise attempts or edge (--set attempts=12), or take other seeds.")


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m counterlens.workflows.cgn.train`: for machines without the command line."""
    parser = bare.options(train_cgn.__doc__, seed=False)
    parser.add_argument("which")
    parser.add_argument("--kind", default="cgn")
    parser.add_argument("--mnist", default="sample:mnist")
    parser.add_argument("--textures")
    parser.add_argument("--vgg", dest="vgg_file")
    parser.add_argument("--seeds", default="0", type=numbers_of)
    parser.add_argument("--set", action="append", default=[], dest="changes", metavar="K=V")
    given = vars(parser.parse_args(arguments))
    return bare.command(lambda: train_cgn(given.pop("which"), **given))


if __name__ == "__main__":
    sys.exit(main())
