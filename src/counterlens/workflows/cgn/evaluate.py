"""Classifiers that learn from counterfactuals, compared with those that learn from the originals.

Arms: the original data; a GAN's pictures; counterfactuals; the original with either. Each arm is
trained once per seed (generator and classifier), the last epoch counts, every result is kept.
All networks that see equally many pictures are trained as one stack.

50,000 pictures and 10 epochs are 7,810 updates. On one H200 an update of 13 classifiers takes
3.1 ms (`benchmarks/cgn_study.py speed`), so that the arms of ten CGNs take about a minute.

Paper: Sauer and Geiger 2021 (cgn2021, Table 3); cgnstudy2022 (Table 3, figures 3, 4, 7 and 10).
Differs: CGNs trained from scratch, not picked by hand. `originals` limits how many originals the
       combined arms see: they are where the shortcut is learnt.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from counterlens.classifier import pick_device
from counterlens.data.synthetic.digit_factors import open_digits
from counterlens.data.synthetic.mnist_variants import DigitVariant, independence, variant
from counterlens.errors import InputError
from counterlens.generators.cgn import model as cgn
from counterlens.generators.cgn.model import CGN, DCGAN
from counterlens.models.nets.digit_net import DigitNet
from counterlens.models.sources import checkpoint
from counterlens.runs import Number, Run
from counterlens.workflows._shared import entry_point
from counterlens.workflows._shared.options import takes
from counterlens.workflows._shared.result import Result
from counterlens.workflows._shared.session import Log, logger, running
from counterlens.workflows.cgn import figures
from counterlens.workflows.cgn.ablation import ablate
from counterlens.workflows.cgn.generate import make
from counterlens.workflows.cgn.measure import (
    MeasuredMean,
    Test,
    as_classifier,
    baselines,
    flips,
    measured,
    open_test,
    overlap,
    pooled,
)
from counterlens.workflows.cgn.options import CgnEvaluateOptions
from counterlens.workflows.cgn.stack import TrainingPool, answers, single, train_stack
from counterlens.workflows.train.run import device_name

ARMS = ("original", "gan", "cgn", "original+gan", "original+cgn")
HELD_OUT = 10_000
FRESH = 1_000  # added to the seed of counterfactuals nobody learns from


@dataclass(frozen=True)
class _Source:
    """A generator with its card; the i-th of each kind belongs to seed i."""

    net: CGN | DCGAN
    card: Mapping[str, Any]


@dataclass(frozen=True)
class _Trained:
    """One classifier: its arm, seed, place in its stack, and the rows it learnt from."""

    arm: str
    seed: int
    net: DigitNet
    place: int
    rows: Tensor


@takes(CgnEvaluateOptions)
def evaluate(which: str, options: CgnEvaluateOptions) -> Result:
    """Train and measure the classifiers of one set (Table 3), or its size × ratio ablation.

    Without GANs those arms are left out; with `sizes` only the ablation is run.

    Args:
        which: coloured, double-coloured or wildlife.
    """
    log = logger(options)
    sizes, ratios = counts(options.sizes, "--sizes"), counts(options.ratios, "--ratios")
    digits = open_digits(options.mnist)
    train = variant(which, "train", digits, textures=options.textures)
    test = variant(which, "test", digits, textures=options.textures)
    makers = _Makers(
        _sources(options.cgns, "cgn", train, log), _sources(options.gans, "gan", train, log)
    )
    if not makers.cgns:
        raise InputError("no CGN given, expected cgns=RUN of a training.")
    with running("cgn evaluate", options, name=which, inputs={"set": which}) as run:
        device = pick_device(options.device)
        _prepare(device, makers)
        run.write_table("independence", independence(test))
        run.note(
            model=f"{which}-mnist classifiers",
            data=which,
            device=device_name(device),
            seed=options.seed,
        )
        opened = open_test(test, device, seed=options.seed)
        if sizes:
            nets = [source.net for source in makers.cgns]
            ablate(run, nets, opened, sizes, ratios, options.epochs, log)
        else:
            _arms_measured(run, options, train, opened, makers)
    return Result(run)


@dataclass(frozen=True)
class _Makers:
    """The generators of both kinds."""

    cgns: Sequence[_Source]
    gans: Sequence[_Source]


def _prepare(device: torch.device, makers: _Makers) -> None:
    if device.type == "cuda":
        torch.backends.cudnn.benchmark = True
        torch.set_float32_matmul_precision("high")
    for source in (*makers.cgns, *makers.gans):
        source.net.to(device)


def _arms_measured(
    run: Run, options: CgnEvaluateOptions, train: DigitVariant, test: Test, makers: _Makers
) -> None:
    """Train every arm and measure it."""
    log = logger(options)
    pool, arms = _arms(train, makers, options, test.x.device)
    trained = _train(run, pool, arms, options.epochs, log)
    rows, ends = _measure(run, trained, pool, test, makers.cgns, options.seen, log)
    _numbers(run, rows, ends, train.which, options.count)
    _baselines(run, test, options.seen)
    _figures(run, trained, test, makers.cgns, rows, options)


def _sources(specs: Sequence[str], kind: str, train: DigitVariant, log: Log) -> list[_Source]:
    """Generators of a kind, each checked to imitate this very data where its card says so."""
    sources = []
    for spec in specs:
        folders = sorted(Path(spec).glob("seed-*"), key=lambda p: int(p.name[5:]))
        for one in [str(folder) for folder in folders] or [spec]:
            net, card = cgn.load(one)
            if card["kind"] != kind or card["set"] != train.which:
                raise InputError(
                    f"{one} holds a {card['kind']} of {card['set']}, expected a {kind} of "
                    f"{train.which}."
                )
            data = card["data"]["fingerprint"]
            if data is None:  # imported: only its set is known
                log(f"{one}: an imported checkpoint, its training data cannot be compared.")
            elif data != train.fingerprint:
                raise InputError(
                    f"{one} was trained on other {train.which} data than this. Give the same "
                    "mnist and textures as in its training."
                )
            sources.append(_Source(net, card))
    return sources


def _arms(
    train: DigitVariant, makers: _Makers, options: CgnEvaluateOptions, device: torch.device
) -> tuple[TrainingPool, list[tuple[str, int, Tensor]]]:
    """All images on the device, and which of them each classifier learns from."""
    compared, originals = options.compared, options.originals
    parts = [(train.pixels().to(device), train.labels.to(device))]
    first = torch.arange(len(train))
    some = first if originals is None else first[:: max(1, len(train) // originals)][:originals]
    arms: list[tuple[str, int, Tensor]] = []
    start = len(train)
    for i in range(len(makers.cgns)):
        if i < compared:
            arms.append(("original", i, first))
        for kind, sources, most in (
            ("gan", makers.gans, min(compared, len(makers.gans))),
            ("cgn", makers.cgns, len(makers.cgns)),
        ):
            if i >= most:
                continue
            ratio = options.ratio if kind == "cgn" else 1
            x, y = make(sources[i].net, options.count, ratio=ratio, seed=i)
            parts.append((x, y))
            rows = torch.arange(start, start + len(x))
            start += len(x)
            arms.append((kind, i, rows))
            if i < compared:
                arms.append((f"original+{kind}", i, torch.cat([some, rows])))
    return TrainingPool(torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])), arms


def _train(
    run: Run, pool: TrainingPool, arms: Sequence[tuple[str, int, Tensor]], epochs: int, log: Log
) -> list[_Trained]:
    """Every arm, those of equal size together; in the order of ARMS."""
    groups: dict[int, list[tuple[str, int, Tensor]]] = {}
    for arm in arms:
        groups.setdefault(len(arm[2]), []).append(arm)
    trained = []
    for size, group in groups.items():
        log(f"{len(group)} classifiers of {size} pictures")
        net = train_stack(
            pool,
            [rows for _, _, rows in group],
            [seed for _, seed, _ in group],
            epochs=epochs,
            folder=run.folder / "state" / f"classifiers-{size}",
            log=log,
        )
        trained += [_Trained(a, s, net, i, rows) for i, (a, s, rows) in enumerate(group)]
    for one in trained:
        name = f"{one.arm.replace('+', '-')}-{one.seed}"
        alone = as_classifier(single(one.net, one.place).cpu(), name)
        card = {
            "architecture": {"kind": "digit-net"},
            "training": {"arm": one.arm, "seed": one.seed},
        }
        checkpoint.save(run.folder / "classifiers" / name, alone, card, half=True)
    return sorted(trained, key=lambda t: (ARMS.index(t.arm), t.seed))


def _measure(
    run: Run,
    trained: Sequence[_Trained],
    pool: TrainingPool,
    test: Test,
    makers: Sequence[_Source],
    seen: int,
    log: Log,
) -> tuple[list[dict[str, Any]], list[dict[str, MeasuredMean]]]:
    """One row per classifier, and the interval of each of its values."""
    predicted, flipped = {}, {}
    for one in trained:
        if id(one.net) not in predicted:
            predicted[id(one.net)] = answers(one.net, test.x)
            flipped[id(one.net)] = flips(one.net, test)
    fresh = {
        i: make(source.net, max(100, min(HELD_OUT, len(test.x)) // 100 * 100), seed=FRESH + i)
        for i, source in enumerate(makers)
    }
    rows, ends = [], []
    for one in trained:
        alone = single(one.net, one.place).to(test.x.device)
        part = one.rows[:: max(1, len(one.rows) // HELD_OUT)].to(pool.x.device)
        x, y = fresh[one.seed]
        both, object_alone = overlap(alone, test, count=seen)
        values = {
            "train": measured(answers(alone, pool.x[part])[:, 0] == pool.y[part]),
            "test": measured(predicted[id(one.net)][:, one.place] == test.y),
            "counterfactual": measured(answers(alone, x)[:, 0] == y),
            "iou": measured(both),
            "object_iou": measured(object_alone),
            **{f"flips_{k}": measured(v[:, one.place]) for k, v in flipped[id(one.net)].items()},
        }
        row: dict[str, Any] = {"arm": one.arm, "seed": one.seed, "pictures": len(one.rows)}
        row |= {key: round(value.mean, 4) for key, value in values.items()}
        rows.append(row | {"intact": makers[one.seed].card["training"]["intact"]})
        ends.append(values)
        log(" · ".join(f"{k} {v}" for k, v in rows[-1].items()))
        run.write_table("classifiers", rows)
    return rows, ends


def _numbers(
    run: Run,
    rows: Sequence[Mapping[str, Any]],
    ends: Sequence[Mapping[str, MeasuredMean]],
    which: str,
    count: int,
) -> None:
    """Medians over the seeds of all arms; the interval is that of the median's pictures."""
    numbers = {}
    common = {row["seed"] for row in rows if row["arm"] == "original"}
    common = common or {row["seed"] for row in rows}
    for arm in ARMS:
        here = [
            (row, values)
            for row, values in zip(rows, ends, strict=True)
            if row["arm"] == arm and row["seed"] in common
        ]
        for key in here[0][1] if here else ():
            middle = sorted((values[key] for _, values in here), key=lambda one: one.mean)
            all_of_them = ", ".join(f"{100 * row[key]:.1f}" for row, _ in here)
            protocol = f"{which}, {arm}, {count} made pictures, last epoch; median of {all_of_them}"
            one = middle[(len(middle) - 1) // 2]
            number = Number(one.mean, one.n, one.low, one.high, protocol)
            numbers[f"cgn.{arm.replace('+', '_')}.{key}"] = number
    run.add_numbers(numbers)


def _baselines(run: Run, test: Test, seen: int) -> None:
    """The overlap of trivial heat maps with the same masks: what a classifier's has to exceed."""
    rows, numbers = [], {}
    for name, values in baselines(test, count=seen).items():
        rows.append({"map": name} | {key: round(one.mean, 4) for key, one in values.items()})
        protocol = f"{test.split.which}, a heat map that ignores the image ({name})"
        for key, one in values.items():
            number = Number(one.mean, one.n, one.low, one.high, protocol)
            numbers[f"cgn.trivial_{name}.{key}"] = number
    run.write_table("baselines", rows)
    run.add_numbers(numbers)


def _figures(
    run: Run,
    trained: Sequence[_Trained],
    test: Test,
    makers: Sequence[_Source],
    rows: Sequence[Mapping[str, Any]],
    options: CgnEvaluateOptions,
) -> None:
    device, tsne = test.x.device, options.tsne
    nets = {t.arm: single(t.net, t.place).to(device) for t in trained if t.seed == 0}
    gallery = [figures.map_figure(run, nets, test)]
    dots = [(row["intact"], row["test"]) for row in rows if row["arm"] == "cgn"]
    dots = [dot for dot in dots if dot[0] is not None]  # unknown of imported ones
    if dots:
        gallery.append(figures.mask_figure(run, dots))
    if tsne:
        x, y = make(makers[0].net, max(100, tsne // 100 * 100), seed=FRESH)
        panels = {}
        for arm in (arm for arm in ("original", "cgn") if arm in nets):
            panels[f"{arm}, test pictures"] = (
                pooled(nets[arm], test.x[:tsne]),
                test.y[:tsne].cpu(),
            )
            panels[f"{arm}, counterfactuals"] = (pooled(nets[arm], x[:tsne]), y[:tsne].cpu())
        gallery.append(figures.plane_figure(run, panels, seed=options.seed))
    run.write_table("gallery", gallery)


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m counterlens.workflows.cgn.evaluate`: for machines without the command line."""
    return entry_point.run(evaluate, CgnEvaluateOptions, arguments, "which")


def counts(given: str | Sequence[int], option: str) -> list[int]:
    """Whole numbers above 0, as people write them or as numbers.

    >>> counts("1e4, 100000", "--sizes"), counts("", "--sizes"), counts([5], "--ratios")
    ([10000, 100000], [], [5])
    """
    try:
        parts = given.split(",") if isinstance(given, str) else given
        numbers = [float(part) for part in parts] if given != "" else []
    except ValueError:
        numbers = [0.5]
    if not all(n >= 1 and n == int(n) for n in numbers):
        raise InputError(f"{option} is {given!r}, expected whole numbers such as 10000,100000.")
    return [int(n) for n in numbers]


if __name__ == "__main__":
    sys.exit(main())
