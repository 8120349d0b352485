"""Counterfactual pictures by the thousand: in shards, each a function of model, seed and number.

Paper: Sauer and Geiger 2021 (cgn2021), MNIST code: batches of 100 masks; for each mask `ratio`
       pictures whose object and background classes are two independent permutations of the
       batch's classes (so a tenth of them agree with the digit by chance). The label is the
       digit's.
Differs: everything random is drawn on the CPU, so that the factors are the same on every device.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from counterlens.classifier import pick_device
from counterlens.errors import InputError
from counterlens.generators.cgn import model as cgn
from counterlens.generators.cgn.model import CGN, CLASSES, DCGAN, NOISE, PLACES, CgnPart, compose
from counterlens.runs import atomic, write_json
from counterlens.workflows._shared.options import takes
from counterlens.workflows._shared.result import Result
from counterlens.workflows._shared.session import logger, running
from counterlens.workflows.cgn.options import CgnGenerateOptions
from counterlens.workflows.cgn.stack import pieces

BATCH = 100
SHARD = 10_000
CHUNK = 2_000
PARTS: tuple[CgnPart, CgnPart] = ("object", "background")


@dataclass(frozen=True)
class PictureShard:
    """Pictures with the classes of their factors.

    Args:
        x: pixels.
        y: the digit's class, which is the label.
        object, background: classes of the other factors; the label itself for a GAN.
        mask: which of the shard's masks each has.
    """

    x: UInt8[Tensor, "n 3 32 32"]
    y: Int[Tensor, "n"]
    object: Int[Tensor, "n"]
    background: Int[Tensor, "n"]
    mask: Int[Tensor, "n"]


def sizes(count: int, ratio: int, shard: int = SHARD) -> list[int]:
    """How many pictures each shard has: ⌊count/100/ratio⌋ batches of masks in all.

    Equation: cgn2021 §A   masks = ⌊size / 100 / n_cf⌋ · 100

    >>> sizes(25_000, 1), sizes(1_250, 5)
    ([10000, 10000, 5000], [1000])
    """
    if ratio < 1 or count < BATCH * ratio:
        raise InputError(
            f"got {count} pictures at ratio {ratio}, expected a ratio of 1 or more and at least "
            f"{BATCH} · ratio pictures."
        )
    unit = BATCH * ratio
    whole, each = count // unit * unit, max(shard // unit, 1) * unit
    return [min(each, whole - start) for start in range(0, whole, each)]


@torch.no_grad()
def make_shard(
    net: CGN | DCGAN, number: int, count: int, *, ratio: int = 1, seed: int = 0
) -> PictureShard:
    """Shard `number` of a data set; `net` is one network in eval mode, on any device."""
    generator = torch.Generator().manual_seed((seed * 0x9E3779B97F4A7C15 + number) % 2**63)
    batches = count // (BATCH * ratio)
    y = torch.randint(CLASSES, (batches, BATCH), generator=generator)
    orders = torch.rand(2, batches, ratio, BATCH, generator=generator).argsort(3)
    shape = y[:, None].expand(-1, ratio, -1)
    front, behind = (shape.gather(2, order).flatten() for order in orders)
    mask = torch.arange(batches * BATCH).view(batches, 1, BATCH).expand(-1, ratio, -1).flatten()
    noise = torch.randn(batches * BATCH, NOISE, generator=generator)
    others = torch.randn(2, count, NOISE, generator=generator)
    places = torch.rand(2, count, PLACES, generator=generator)
    label = shape.flatten()
    if isinstance(net, DCGAN):
        x = _fake(net, others[0], label)
        return PictureShard(x, label, label, label, torch.arange(count))
    x = _composed(net, (noise, y.flatten()), mask, others, places, (front, behind))
    return PictureShard(x, label, front, behind, mask)


def _composed(
    net: CGN,
    shapes: tuple[Float[Tensor, "m 32"], Int[Tensor, "m"]],
    mask: Int[Tensor, "n"],
    others: Float[Tensor, "2 n 32"],
    places: Float[Tensor, "2 n 16"],
    classes: tuple[Int[Tensor, "n"], Int[Tensor, "n"]],
) -> UInt8[Tensor, "n 3 32 32"]:
    device = next(net.parameters()).device
    u, y = (value.to(device)[:, None] for value in shapes)
    masks = torch.cat(
        [net.masks(*part) for part in zip(pieces(u, CHUNK), pieces(y, CHUNK), strict=True)]
    )
    composed = []
    for rows in pieces(torch.arange(len(mask)), CHUNK):
        fills = [
            net.fills(
                part,
                others[i, rows].to(device)[:, None],
                classes[i][rows].to(device)[:, None],
                places[i, rows].to(device)[:, None],
            )
            for i, part in enumerate(PARTS)
        ]
        composed.append(pixels(compose(masks[mask[rows].to(device)], *fills)))
    return torch.cat(composed)


def _fake(net: DCGAN, u: Float[Tensor, "n 32"], y: Int[Tensor, "n"]) -> UInt8[Tensor, "n 3 32 32"]:
    device = next(net.parameters()).device
    parts = zip(pieces(u, CHUNK), pieces(y, CHUNK), strict=True)
    return torch.cat([pixels(net(a.to(device)[:, None], b.to(device)[:, None])) for a, b in parts])


def pixels(x: Float[Tensor, "n 1 3 32 32"]) -> UInt8[Tensor, "n 3 32 32"]:
    """[−1, 1] to bytes."""
    return ((x[:, 0].clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)


def make(
    net: CGN | DCGAN, count: int, *, ratio: int = 1, seed: int = 0
) -> tuple[UInt8[Tensor, "n 3 32 32"], Int[Tensor, "n"]]:
    """All pictures and labels of a data set at once, on the network's device."""
    device = next(net.parameters()).device
    shards = [
        make_shard(net, i, size, ratio=ratio, seed=seed)
        for i, size in enumerate(sizes(count, ratio))
    ]
    return torch.cat([s.x for s in shards]), torch.cat([s.y for s in shards]).to(device)


@takes(CgnGenerateOptions)
def generate(model: str, options: CgnGenerateOptions) -> Result:
    """Write counterfactual images as RUN/data/shard-00000.npz, …

    Args:
        model: a folder seed-N of `cgn train`, or zoo:NAME.
    """
    net, card = cgn.load(model)
    ratio, seed = options.ratio, options.seed
    plan = sizes(options.count, ratio)
    name = f"{card['set']}-{card['kind']}"
    with running("cgn generate", options, name=name, inputs={"model": model}) as run:
        net = net.to(pick_device(options.device))
        folder, log = run.folder / "data", logger(options)
        for i, size in enumerate(plan):
            file = folder / f"shard-{i:05d}.npz"
            if file.is_file():
                continue
            _write(file, make_shard(net, i, size, ratio=ratio, seed=seed))
            log(f"shard {i + 1} of {len(plan)}: {size} pictures")
        write_json(folder / "card.json", _card(card, plan, ratio, seed))
        from counterlens.workflows.cgn.sheets import show_shard

        show_shard(run, make_shard(net, 0, plan[0], ratio=ratio, seed=seed))
        run.note(model=card["name"], data=card["set"], seed=seed, pictures=sum(plan))
    return Result(run)


def _card(card: Mapping[str, Any], plan: Sequence[int], ratio: int, seed: int) -> dict[str, object]:
    """What the folder of shards says of itself."""
    return {
        "schema": 1,
        "kind": "counterfactual digits",
        "set": card["set"],
        "fingerprint": card["data"]["fingerprint"],
        "model": card["name"],
        "weights_sha256": card["weights_sha256"],
        "pictures": sum(plan),
        "ratio": ratio,
        "seed": seed,
        "shards": len(plan),
    }


def _write(file: Path, shard: PictureShard) -> None:
    arrays = {key: value.cpu().numpy() for key, value in vars(shard).items()}
    arrays |= {key: arrays[key].astype(np.uint8) for key in ("y", "object", "background")}
    arrays["mask"] = arrays["mask"].astype(np.int32)
    with atomic(file) as part, part.open("wb") as opened:
        np.savez(opened, **arrays)
