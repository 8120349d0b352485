"""Classifiers of counterfactuals alone, by the number of images and of images per mask.

Paper: cgnstudy2022, figure 10.
"""

from collections.abc import Sequence
from typing import Any

import torch

from counterlens.generators.cgn.model import CGN, DCGAN
from counterlens.runs import Run
from counterlens.workflows._shared.session import Log
from counterlens.workflows.cgn import figures
from counterlens.workflows.cgn.generate import make
from counterlens.workflows.cgn.generate import sizes as plan_sizes
from counterlens.workflows.cgn.measure import Test
from counterlens.workflows.cgn.stack import TrainingPool, answers, train_stack


def ablate(
    run: Run,
    nets: Sequence[CGN | DCGAN],
    test: Test,
    sizes: Sequence[int],
    ratios: Sequence[int],
    epochs: int,
    log: Log,
) -> None:
    """Counterfactuals alone, every size and ratio; the networks of one size are one stack."""
    rows: list[dict[str, Any]] = run.table("sizes")
    for size in sizes:
        if any(row["size"] == size for row in rows):
            continue
        cells = [(ratio, i) for ratio in ratios for i in range(len(nets))]
        least = min(sum(plan_sizes(size, ratio)) for ratio in ratios)
        device = test.x.device
        x = torch.empty(least * len(cells), 3, 32, 32, dtype=torch.uint8, device=device)
        y = torch.empty(least * len(cells), dtype=torch.long, device=device)
        arms = list(torch.arange(len(y)).view(len(cells), least))
        for (ratio, i), rows_of in zip(cells, arms, strict=True):  # filled in place: it is large
            here = slice(int(rows_of[0]), int(rows_of[0]) + least)
            images, labels = make(nets[i], size, ratio=ratio, seed=i)
            x[here], y[here] = images[:least], labels[:least]
        pool = TrainingPool(x, y)
        log(f"{len(arms)} classifiers of {least} counterfactuals")
        net = train_stack(
            pool, arms, [i for _, i in cells], epochs=epochs, log=log,
            folder=run.folder / "state" / f"size-{size}",
        )  # fmt: skip
        right = (answers(net, test.x) == test.y[:, None]).float().mean(0).tolist()
        rows += [
            {"size": size, "ratio": ratio, "seed": i, "test": round(share, 4)}
            for (ratio, i), share in zip(cells, right, strict=True)
        ]
        run.write_table("sizes", rows)
        for row in rows[-len(cells) :]:
            log(" · ".join(f"{k} {v}" for k, v in row.items()))
    run.write_table("gallery", [figures.ablation_figure(run, rows)])
