"""Robust accuracy over grids of rotations, translations and colours: exact, without a verdict."""

import numpy as np
import torch
from jaxtyping import Int64

from counterlens.classifier import Classifier
from counterlens.errors import InputError, nearest
from counterlens.images import ImageSet
from counterlens.metrics.intervals.closed_form import wilson
from counterlens.progress import doing
from counterlens.runs import Number, Run
from counterlens.search.grid import GRIDS, GridResult, grid_of, worst_of_grid
from counterlens.workflows.audit.attacks.search import attacked_rows, pixels
from counterlens.workflows.audit.protocol import Protocol, judged_model
from counterlens.workflows.audit.settings import Settings

WORDS = {
    "spatial": "31 rotations of ±30° × 5 × 5 translations of ±3/32 of each side, black outside",
    "colour": "HSV: 5 hues of ±0.1 × 5 saturations × 0.5 to 1.5 × 5 values × 0.7 to 1.3",
}


def check_grids(settings: Settings) -> None:
    """Refuse unknown grids before anything is loaded."""
    for name in settings.grid:
        if name not in GRIDS:
            near = nearest(name, GRIDS)
            meant = f" (did you mean {near}?)" if near else ""
            raise InputError(f"grid is {name!r}{meant}, expected one of {', '.join(GRIDS)}.")


def grid_accuracy(
    run: Run,
    classifier: Classifier,
    images: ImageSet,
    protocol: Protocol,
    reported: Int64[np.ndarray, "n"],
    settings: Settings,
) -> None:
    """Accuracy at the worst point of each grid, and which changes break images."""
    some, which = attacked_rows(protocol.labels[reported], settings)
    rows = reported[some]
    model = judged_model(classifier, protocol)
    device = classifier.mean.device
    x = pixels(images, rows, classifier).to(device)
    y = torch.from_numpy(protocol.labels[rows]).to(device)
    table = [row for row in run.table("grids") if row["grid"] not in settings.grid]
    for name in settings.grid:
        doing(f"{name} grid on {len(rows)} images")
        result = worst_of_grid(model, x, y, name)
        number = _number(result, name, f"{which} {len(reported)} reported images")
        run.add_numbers({f"robust.{name}-grid.accuracy": number})
        table += _breaking(result, name)
    run.write_table("grids", table)


def _number(result: GridResult, name: str, which: str) -> Number:
    n, hits = len(result.right), int(result.right.sum())
    clean = result.clean.double().mean().item()
    text = (
        f"right at all {result.points} points of the grid: {WORDS[name]}; {which}, {clean:.4f} "
        "right before; exact over the grid, which says nothing about other changes; Wilson interval"
    )
    return Number(hits / n, n, *wilson(hits, n), text)


def _breaking(result: GridResult, name: str) -> list[dict[str, object]]:
    """The changes that are the first to break an image, those that break most of them first."""
    first = result.worst[result.worst > 0].cpu().numpy()
    numbers, counts = np.unique(first, return_counts=True)
    names = [words for words, _ in grid_of(name)]
    order = np.argsort(-counts, kind="stable")[:10]
    return [
        {"grid": name, "change": names[int(numbers[k])], "images": int(counts[k])}
        for k in order.tolist()
    ]
