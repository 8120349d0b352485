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
from counterlens.data.made.digit_factors import open_digits
from counterlens.data.made.mnist_variants import Variant, independence, variant
from counterlens.errors import InputError
from counterlens.generators.cgn import model as cgn
from counterlens.generators.cgn.model import CGN, DCGAN
from counterlens.models.nets.digit_net import DigitNet
from counterlens.models.sources import checkpoint
from counterlens.runs import Number, Run, new_folder
from counterlens.workflows._shared import entry_point as bare
from counterlens.workflows._shared.session import Say, teller, write_report
from counterlens.workflows.cgn import figures
from counterlens.workflows.cgn.ablation import ablate
from counterlens.workflows.cgn.generate import make
from counterlens.workflows.cgn.measure import (
    Measured,
    Test,
    as_classifier,
    baselines,
    flips,
    measured,
    open_test,
    overlap,
    pooled,
)
from counterlens.workflows.cgn.stack import Pool, answers, single, train_stack
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


def evaluate(
    which: str,
    *,
    cgns: Sequence[str],
    gans: Sequence[str] = (),
    mnist: str = "sample:mnist",
    textures: str | None = None,
    count: int = 50_000,
    ratio: int = 1,
    originals: int | None = None,
    epochs: int = 10,
    sizes: Sequence[int] = (),
    ratios: Sequence[int] = (1, 5, 10, 20),
    seen: int = 10_000,
    tsne: int = 3840,
    compared: int = 3,
    out: Path | None = None,
    resume: bool = False,
    seed: int = 0,
    device: str = "auto",
    quiet: bool = False,
) -> Run:
    """Train and measure the classifiers of one set (Table 3), or its size × ratio ablation.

    Args:
        cgns, gans: runs of `cgn train`, or their seed-N folders; without GANs those arms are left
            out.
        count, ratio: counterfactuals per arm, and pictures per mask.
        originals: how many originals the combined arms see; all of them without.
        sizes: sizes of the ablation; with them only the ablation is run.
        ratios: ratios of the ablation.
        seen: test pictures whose heat maps are compared with masks.
        tsne: pictures in each t-SNE panel; 0 for none.
        compared: with how many of the CGNs, the first ones, the other arms are trained; every CGN
            has a classifier of its counterfactuals.
    """
    say = teller(quiet)
    digits = open_digits(mnist)
    train = variant(which, "train", digits, textures=textures)
    test = variant(which, "test", digits, textures=textures)
    makers = {
        "cgn": _sources(cgns, "cgn", train, say),
        "gan": _sources(gans, "gan", train, say),
    }
    if not makers["cgn"]:
        raise InputError("no CGN came, expected --cgn RUN of counterlens cgn train.")
    asked = {
        "set": which, "cgns": list(cgns), "gans": list(gans), "mnist": mnist, "textures": textures,
        "count": count, "ratio": ratio, "originals": originals, "epochs": epochs,
        "sizes": list(sizes), "ratios": list(ratios), "seen": seen, "tsne": tsne,
        "compared": compared, "seed": seed,
    }  # fmt: skip
    folder = out or new_folder("cgn-evaluate", which)
    run = Run.create(folder, "cgn evaluate", asked, resume=resume)
    where = pick_device(device)
    if where.type == "cuda":
        torch.backends.cudnn.benchmark = True
        torch.set_float32_matmul_precision("high")
    for source in (*makers["cgn"], *makers["gan"]):
        source.net.to(where)
    run.write_table("independence", independence(test))
    run.note(model=f"{which}-mnist classifiers", data=which, device=device_name(where), seed=seed)
    asked_test = open_test(test, where, seed=seed)
    if sizes:
        nets = [source.net for source in makers["cgn"]]
        ablate(run, nets, asked_test, sizes, ratios, epochs, say)
    else:
        pool, arms = _arms(train, makers, count, ratio, originals, compared, where)
        trained = _train(run, pool, arms, epochs, say)
        rows, ends = _measure(run, trained, pool, asked_test, makers["cgn"], seen, say)
        _numbers(run, rows, ends, which, count)
        _baselines(run, asked_test, seen)
        _figures(run, trained, asked_test, makers["cgn"], rows, tsne, seed)
    write_report(run, say)
    run.finish()
    return run


def _sources(specs: Sequence[str], kind: str, train: Variant, say: Say) -> list[_Source]:
    """Generators of a kind, each checked to imitate this very data where its card says so."""
    found = []
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
                say(f"{one}: an imported checkpoint, its training data cannot be compared.")
            elif data != train.fingerprint:
                raise InputError(
                    f"{one} was trained on other {train.which} data than this. Give the same "
                    "--mnist and --textures as in its training."
                )
            found.append(_Source(net, card))
    return found


def _arms(
    train: Variant,
    makers: Mapping[str, Sequence[_Source]],
    count: int,
    ratio: int,
    originals: int | None,
    compared: int,
    device: torch.device,
) -> tuple[Pool, list[tuple[str, int, Tensor]]]:
    """All pictures on the device, and which of them each classifier learns from."""
    parts = [(train.pixels().to(device), train.labels.to(device))]
    first = torch.arange(len(train))
    some = first if originals is None else first[:: max(1, len(train) // originals)][:originals]
    arms: list[tuple[str, int, Tensor]] = []
    start = len(train)
    for i in range(len(makers["cgn"])):
        if i < compared:
            arms.append(("original", i, first))
        for kind in ("gan", "cgn"):
            if i >= (len(makers["cgn"]) if kind == "cgn" else min(compared, len(makers["gan"]))):
                continue
            x, y = make(makers[kind][i].net, count, ratio=ratio if kind == "cgn" else 1, seed=i)
            parts.append((x, y))
            rows = torch.arange(start, start + len(x))
            start += len(x)
            arms.append((kind, i, rows))
            if i < compared:
                arms.append((f"original+{kind}", i, torch.cat([some, rows])))
    return Pool(torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])), arms


def _train(
    run: Run, pool: Pool, arms: Sequence[tuple[str, int, Tensor]], epochs: int, say: Say
) -> list[_Trained]:
    """Every arm, those of equal size together; in the order of ARMS."""
    groups: dict[int, list[tuple[str, int, Tensor]]] = {}
    for arm in arms:
        groups.setdefault(len(arm[2]), []).append(arm)
    trained = []
    for size, group in groups.items():
        say(f"{len(group)} classifiers of {size} pictures")
        net = train_stack(
            pool,
            [rows for _, _, rows in group],
            [seed for _, seed, _ in group],
            epochs=epochs,
            folder=run.folder / "state" / f"classifiers-{size}",
            say=say,
            graph=pool.x.is_cuda,
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
    pool: Pool,
    test: Test,
    makers: Sequence[_Source],
    seen: int,
    say: Say,
) -> tuple[list[dict[str, Any]], list[dict[str, Measured]]]:
    """One row per classifier, and the interval of each of its values."""
    said, turned = {}, {}
    for one in trained:
        if id(one.net) not in said:
            said[id(one.net)] = answers(one.net, test.x)
            turned[id(one.net)] = flips(one.net, test)
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
        found = {
            "train": measured(answers(alone, pool.x[part])[:, 0] == pool.y[part]),
            "test": measured(said[id(one.net)][:, one.place] == test.y),
            "counterfactual": measured(answers(alone, x)[:, 0] == y),
            "iou": measured(both),
            "object_iou": measured(object_alone),
            **{f"flips_{k}": measured(v[:, one.place]) for k, v in turned[id(one.net)].items()},
        }
        row: dict[str, Any] = {"arm": one.arm, "seed": one.seed, "pictures": len(one.rows)}
        row |= {key: round(value.mean, 4) for key, value in found.items()}
        rows.append(row | {"intact": makers[one.seed].card["training"]["intact"]})
        ends.append(found)
        say(" · ".join(f"{k} {v}" for k, v in rows[-1].items()))
        run.write_table("classifiers", rows)
    return rows, ends


def _numbers(
    run: Run,
    rows: Sequence[Mapping[str, Any]],
    ends: Sequence[Mapping[str, Measured]],
    which: str,
    count: int,
) -> None:
    """Medians over the seeds of all arms; the interval is that of the median's pictures."""
    numbers = {}
    common = {row["seed"] for row in rows if row["arm"] == "original"}
    common = common or {row["seed"] for row in rows}
    for arm in ARMS:
        here = [
            (row, found)
            for row, found in zip(rows, ends, strict=True)
            if row["arm"] == arm and row["seed"] in common
        ]
        for key in here[0][1] if here else ():
            middle = sorted((found[key] for _, found in here), key=lambda one: one.mean)
            all_of_them = ", ".join(f"{100 * row[key]:.1f}" for row, _ in here)
            told = f"{which}, {arm}, {count} made pictures, last epoch; median of {all_of_them}"
            one = middle[(len(middle) - 1) // 2]
            number = Number(one.mean, one.n, one.low, one.high, told)
            numbers[f"cgn.{arm.replace('+', '_')}.{key}"] = number
    run.add_numbers(numbers)


def _baselines(run: Run, test: Test, seen: int) -> None:
    """The overlap of trivial heat maps with the same masks: what a classifier's has to exceed."""
    rows, numbers = [], {}
    for name, found in baselines(test, count=seen).items():
        rows.append({"map": name} | {key: round(one.mean, 4) for key, one in found.items()})
        protocol = f"{test.split.which}, a heat map that ignores the image ({name})"
        for key, one in found.items():
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
    tsne: int,
    seed: int,
) -> None:
    device = test.x.device
    nets = {t.arm: single(t.net, t.place).to(device) for t in trained if t.seed == 0}
    made = [figures.heat_figure(run, nets, test)]
    dots = [(row["intact"], row["test"]) for row in rows if row["arm"] == "cgn"]
    dots = [dot for dot in dots if dot[0] is not None]  # unknown of imported ones
    if dots:
        made.append(figures.mask_figure(run, dots))
    if tsne:
        x, y = make(makers[0].net, max(100, tsne // 100 * 100), seed=FRESH)
        panels = {}
        for arm in (arm for arm in ("original", "cgn") if arm in nets):
            panels[f"{arm}, test pictures"] = (
                pooled(nets[arm], test.x[:tsne]),
                test.y[:tsne].cpu(),
            )
            panels[f"{arm}, counterfactuals"] = (pooled(nets[arm], x[:tsne]), y[:tsne].cpu())
        made.append(figures.plane_figure(run, panels, seed=seed))
    run.write_table("gallery", made)


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m counterlens.workflows.cgn.evaluate`: for machines without the command line."""
    parser = bare.options(evaluate.__doc__)
    parser.add_argument("which")
    parser.add_argument("--cgn", action="append", default=[], dest="cgns")
    parser.add_argument("--gan", action="append", default=[], dest="gans")
    parser.add_argument("--mnist", default="sample:mnist")
    parser.add_argument("--textures")
    for name, value in (("count", 50_000), ("ratio", 1), ("epochs", 10), ("seen", 10_000),
                        ("compared", 3)):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--originals", type=int)
    parser.add_argument("--sizes", default="")
    parser.add_argument("--ratios", default="1,5,10,20")
    parser.add_argument("--tsne", type=int, default=3840)
    given = vars(parser.parse_args(arguments))

    def work() -> Run:
        given.update({k: counts(given[k], f"--{k}") for k in ("sizes", "ratios")})
        return evaluate(given.pop("which"), **given)

    return bare.command(work)


def counts(text: str, option: str) -> list[int]:
    """Whole numbers above 0 as people write them.

    >>> counts("1e4, 100000", "--sizes"), counts("", "--sizes")
    ([10000, 100000], [])
    """
    try:
        found = [float(part) for part in text.split(",")] if text.strip() else []
    except ValueError:
        found = [0.5]
    if not all(n >= 1 and n == int(n) for n in found):
        raise InputError(f"{option} is {text!r}, expected whole numbers such as 10000,100000.")
    return [int(n) for n in found]


if __name__ == "__main__":
    sys.exit(main())
