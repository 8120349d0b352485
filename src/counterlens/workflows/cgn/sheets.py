"""Pictures to look at: what each mechanism makes, and counterfactuals put together from them.

Paper: figures 1 and 3 of cgnstudy2022.
"""

from typing import Any

import torch
from torch import Tensor

from counterlens.classifier import pick_device
from counterlens.errors import InputError
from counterlens.generators.cgn import model as cgn
from counterlens.generators.cgn.model import CGN, CLASSES, DCGAN, NOISE, PLACES, compose
from counterlens.images import tile, write_png
from counterlens.runs import Run
from counterlens.workflows._shared.options import takes
from counterlens.workflows._shared.result import Result
from counterlens.workflows._shared.session import running
from counterlens.workflows.cgn.generate import PictureShard, make_shard, pixels
from counterlens.workflows.cgn.options import CgnShowOptions

ROWS = ("shape", "object", "background", "same class", "counterfactual", "counterfactual")


@torch.no_grad()
def sheet(net: CGN | DCGAN, *, row: int = 0, seed: int = 0) -> Tensor:
    """One column per digit: mask, object, background, their picture, two counterfactuals.

    Args:
        row: which network of a stack.

    Returns:
        3 × h × w bytes.
    """
    device = next(net.parameters()).device
    generator = torch.Generator().manual_seed(seed)
    u = torch.randn(5, CLASSES, net.stack, NOISE, generator=generator).to(device)
    y = torch.arange(CLASSES, device=device)[:, None].expand(-1, net.stack)
    if isinstance(net, DCGAN):
        rows = [pixels(net(one, y)[:, row : row + 1]) for one in u[:4]]
        return _tiled(torch.cat(rows))
    places = torch.rand(3, 2, CLASSES, net.stack, PLACES, generator=generator).to(device)
    mask = net.masks(u[0], y)
    front = net.fills("object", u[0], y, places[0, 0])
    behind = net.fills("background", u[0], y, places[0, 1])
    shown = [(mask * 2 - 1).expand_as(front), front, behind, compose(mask, front, behind)]
    for i in (1, 2):
        other, third = ((y + 3 * i) % CLASSES, (y + 3 * i + 4) % CLASSES)
        f = net.fills("object", u[i], other, places[i, 0])
        b = net.fills("background", u[i + 2], third, places[i, 1])
        shown.append(compose(mask, f, b))
    return _tiled(torch.cat([pixels(one[:, row : row + 1]) for one in shown]))


def _tiled(x: Tensor) -> Tensor:
    tiles = tile([one.permute(1, 2, 0).cpu().numpy() for one in x], columns=CLASSES)
    return torch.from_numpy(tiles).permute(2, 0, 1)


def save_sheet(run: Run, name: str, net: CGN | DCGAN, title: str, **which: int) -> dict[str, Any]:
    """Write a sheet into the run; its row of the gallery table."""
    picture = sheet(net, **which)
    write_png(run.path("images", f"{name}.png"), picture.permute(1, 2, 0).numpy())
    return {"group": "sheets", "image": f"images/{name}.png", "id": name, "label": title}


def show_shard(run: Run, shard: PictureShard) -> None:
    """The first hundred pictures of a shard, as a picture of the run."""
    cells = [one.permute(1, 2, 0).cpu().numpy() for one in shard.x[:100]]
    write_png(run.path("images", "counterfactuals.png"), tile(cells, columns=20))
    row = {
        "group": "counterfactuals",
        "image": "images/counterfactuals.png",
        "id": "counterfactuals",
        "label": "the first hundred",
    }
    run.write_table("gallery", [row])


@takes(CgnShowOptions)
def show(model: str, options: CgnShowOptions) -> Result:
    """Draw sheets of a CGN: each mechanism, the composed image, counterfactuals.

    Args:
        model: a folder seed-N of `cgn train`, or zoo:NAME.

    >>> import counterlens as cl
    >>> cl.cgn.show("zoo:wildlife-mnist-cgn", sheets=1, quiet=True).tables()
    ['gallery']
    """
    count, seed = options.sheets, options.seed
    if count < 1:
        raise InputError(f"got {count} sheets, expected 1 or more.")
    net, card = cgn.load(model)
    net = net.to(pick_device(options.device))
    name = f"{card['set']}-{card['kind']}"
    with running("cgn show", options, name=name, inputs={"model": model}) as run:
        counts = {name: ROWS.count(name) for name in ROWS}
        lines = [name if n == 1 else f"{n} × {name}" for name, n in counts.items()]
        text = f"from top to bottom {', '.join(lines)}" if card["kind"] == "cgn" else "samples"
        rows = [
            save_sheet(run, f"sheet-{i}", net, f"sheet {i + 1}: {text}", seed=seed + i)
            for i in range(count)
        ]
        run.write_table("gallery", rows)
        run.note(model=card["name"], data=card["set"], seed=seed)
        shard = make_shard(net, 0, 100, seed=seed)
        cells = [one.permute(1, 2, 0).cpu().numpy() for one in shard.x]
        write_png(run.path("images", "counterfactuals.png"), tile(cells, columns=20))
    return Result(run)
