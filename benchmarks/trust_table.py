"""Verdicts on healthy and on masked models, for robust accuracy and worst-case confidence.

Four shipped networks must be trusted under version standard; nine masked models around one of them
(tests/masked_models.py) must not be quoted, with a budget and without one.

Run: python benchmarks/trust_table.py --points 1000 --masked-points 48 --out FILE.json
Needs torch, not the command line. The exit code is 1 if a verdict is not the expected one.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from counterlens.ball import Ball
from counterlens.classifier import Classifier
from counterlens.data import open_set
from counterlens.models import load
from counterlens.runs import atomic
from counterlens.search import AttackSettings, robust, worst_confidence
from counterlens.workflows.audit.attacks.search import pixels
from counterlens.workflows.audit.attacks.spec import parse_attack

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from masked_models import MASKED

HEALTHY = ("plain-small", "ratio-small", "ratio-0.25", "at-0.5")
ATTACKS = ("linf:8/255", "l2:0.5")
CONFIDENCE = "l2:1.0"
BUDGETS = (0.1, None)


def sample(spec: str, net: Classifier, count: int) -> tuple[Tensor, Tensor]:
    """Images from all over a set, and their labels."""
    data = open_set(spec, seed=0, size=net.preprocess.size, channels=net.channels)
    rows = np.linspace(0, len(data) - 1, min(count, len(data))).astype(np.int64)
    return pixels(data, rows, net), torch.from_numpy(data.labels[rows])


def measure(
    name: str, model: nn.Module, net: Classifier, count: int, budget: float | None
) -> list[dict[str, Any]]:
    """One row per attack: the number, its verdict and the reasons."""
    settings = AttackSettings(budget=budget)
    rows = []
    known, labels = sample("sample:cifar10", net, count)
    for attack in ATTACKS:
        began = time.monotonic()
        result = robust(model, known, labels, parse_attack(attack), settings=settings)
        row = {"robust accuracy": result.accuracy, "n": len(known), "trust": result.trust}
        rows.append({"attack": attack, "seconds": time.monotonic() - began, **row})
    unknown, _ = sample("sample:textures", net, count)
    ball: Ball = parse_attack(CONFIDENCE)
    began = time.monotonic()
    extreme = worst_confidence(model, unknown, ball, settings=settings)
    mean = extreme.scores.double().exp().mean().item()
    row = {"highest confidence": mean, "n": len(unknown), "trust": extreme.trust}
    rows.append({"attack": f"OOD {CONFIDENCE}", "seconds": time.monotonic() - began, **row})
    return [{"model": name, "budget": budget, **row} for row in rows]


def main() -> int:
    """Measure, print and keep the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", type=int, default=1000, help="of healthy models; 0: none")
    parser.add_argument("--masked-points", type=int, default=48, help="of masked models; 0: none")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    cases: list[tuple[str, nn.Module, Classifier, int, float | None, str]] = []
    for name in HEALTHY if given.points else ():
        net = load(f"zoo:cifar10-{name}", device=given.device)
        cases.append((name, net, net, given.points, None, "trusted"))
    hidden = load("zoo:cifar10-ratio-small", device=given.device)
    for name, mask in MASKED.items() if given.masked_points else ():
        for budget in BUDGETS:
            model = mask(hidden).eval()
            cases.append((name, model, hidden, given.masked_points, budget, "do not quote"))
    table = []
    for *case, expected in cases:
        for row in measure(*case):
            trust = row.pop("trust").to_json()
            row |= {"expected": expected, "verdict": trust["verdict"], **trust}
            table.append(row)
            value = row.get("robust accuracy", row.get("highest confidence"))
            good = "ok" if trust["verdict"] == expected else "NOT AS EXPECTED"
            print(
                f"{row['model']:28} budget {row['budget']}  {row['attack']:12} n {row['n']:5} "
                f"{value:.4f} {trust['verdict']:13} {row['seconds']:6.1f} s  {good}  "
                + ("; ".join(trust["reasons"]) if good != "ok" else ""),
                flush=True,
            )
            with atomic(given.out) as part:
                part.write_text(json.dumps(table, indent=1))
    return int(any(row["verdict"] != row["expected"] for row in table))


if __name__ == "__main__":
    sys.exit(main())
