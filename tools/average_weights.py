"""One model whose weights are the mean of several of the same architecture.

    .venv/bin/python tools/average_weights.py MODEL... --out FOLDER [--shares 1,2] [--name NAME]

MODEL is a checkpoint folder or a shipped name. Models that were trained on from each other lie in
one basin, and their mean is often as accurate as the most accurate and as robust as the most
robust of them (Wortsman et al. 2022, Model soups). Running statistics of batch norm are averaged,
too. The card names every part; temperature and numbers must be measured anew. Choose shares on
held-out images (sample:cifar10-calibration), never on test images.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from counterlens import zoo
from counterlens.errors import CounterlensError, InputError
from counterlens.models.sources import checkpoint

SAME = ("architecture", "classes", "mean", "std", "preprocess")
KEPT = ("name", "recipe", "data", "training", "start", "weights_sha256")
ITS_OWN = (*KEPT, "temperature", "numbers", "audit", "summary", "weights")


def averaged(folders: Sequence[Path], shares: Sequence[float], name: str, out: Path) -> Path:
    """Write the mean of some checkpoints."""
    if len(folders) < 2 or len(shares) != len(folders) or min(shares) <= 0:
        raise InputError(
            f"got {len(folders)} models and {len(shares)} shares, expected two or more models "
            "with a share above 0 each, e.g. --shares 1,2."
        )
    models = [checkpoint.load(folder) for folder in folders]
    first = models[0]
    for other in models[1:]:
        differs = [key for key in SAME if other.card[key] != first.card[key]]
        if differs:
            raise InputError(
                f"{other.name} and {first.name} differ in {', '.join(differs)}, expected the same."
            )
    total = sum(shares)
    states = [model.net.state_dict() for model in models]
    mixed = {
        key: sum(
            (
                share / total * state[key].double()
                for share, state in zip(shares, states, strict=True)
            ),
            torch.zeros((), dtype=torch.float64),
        ).to(value.dtype)
        for key, value in states[0].items()
    }
    first.net.load_state_dict(mixed)
    parts = [
        {**{key: model.card[key] for key in KEPT if key in model.card}, "share": share / total}
        for model, share in zip(models, shares, strict=True)
    ]
    card: dict[str, Any] = {k: v for k, v in first.card.items() if k not in ITS_OWN}
    return checkpoint.save(out, first.net, {**card, "name": name, "average_of": parts}, half=True)


def main() -> int:
    """Average and say where."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shares", help="one number each, e.g. 1,2; default: equal")
    parser.add_argument("--name", default="average")
    asked = parser.parse_args()
    try:
        shares = [
            float(part) for part in (asked.shares or "1," * len(asked.models)).strip(",").split(",")
        ]
        folders = [
            Path(one) if (Path(one) / "card.json").exists() else zoo.folder(one)
            for one in asked.models
        ]
        print(averaged(folders, shares, asked.name, asked.out))
    except (CounterlensError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
