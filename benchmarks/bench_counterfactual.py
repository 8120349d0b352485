"""Cost of pixel counterfactuals against the bare forward and backward passes that they need.

Claim: 16 images × 6 radii of 500 steps cost at most 1.15 times as much as 501 forward and backward
passes and one forward pass over the same 96 rows.
Result: not measured yet: run it and paste the line here.
Run: make bench-counterfactual
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from counterlens import zoo
from counterlens.classifier import Classifier
from counterlens.data import open_set
from counterlens.explanations.pixel import counterfactuals, default_radii
from counterlens.images import prepare
from counterlens.models import load, nets
from counterlens.objectives import log_confidence
from counterlens.search.pgd import value_and_grad
from counterlens.types import Preprocess


def bare(model: Classifier, x: torch.Tensor, target: torch.Tensor, steps: int) -> None:
    """What no search can do without: the passes themselves."""
    objective = log_confidence(model, target)
    with torch.no_grad():
        objective(x)
    for _ in range(steps + 1):
        value_and_grad(objective, x)


def race(rounds: int, **arms: Callable[[], None]) -> dict[str, list[float]]:
    """Time the arms in turn, round after round, so that a busy machine slows all alike."""
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(rounds):
        for name, arm in arms.items():
            start = time.process_time()  # of all threads: other programs do not count
            arm()
            seconds[name].append(time.process_time() - start)
    return seconds


def network() -> Classifier:
    """The shipped small model; the same architecture untrained where it is not there."""
    if "cifar10-ratio-small" in zoo.names():
        return load("zoo:cifar10-ratio-small", device="cpu")
    net = nets.build({"kind": "resnet18", "kwargs": {"widths": [16, 32, 64, 128]}}, 10)
    names = [str(i) for i in range(10)]
    return Classifier(net, names, preprocess=Preprocess((32, 32)), name="untrained").eval()


def main() -> None:
    """Race both, print one line, write results/counterfactual.json."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--steps", type=int, default=500)
    options.add_argument("--images", type=int, default=16)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--threads", type=int, default=2)
    asked = options.parse_args()
    torch.set_num_threads(asked.threads)
    model = network().requires_grad_(False)
    pictures = open_set("sample:cifar10", limit=asked.images)
    ready = [prepare(pictures.read(i), model.preprocess) for i in range(len(pictures))]
    x = torch.stack([torch.from_numpy(one) for one in ready]).float() / 255
    radii = default_radii("l2", (32, 32))
    targets = [[i % 10] for i in range(len(x))]
    rows = x.repeat_interleave(len(radii), 0)
    target = torch.tensor([t for (t,) in targets for _ in radii])
    seconds = race(
        asked.rounds,
        search=lambda: (
            counterfactuals(model, x, targets, radii=radii, steps=asked.steps, batch=len(rows))
            and None
        ),
        passes=lambda: bare(model, rows, target, asked.steps),
    )
    ratios = [a / b for a, b in zip(seconds["search"], seconds["passes"], strict=True)]
    low, middle, high = min(ratios), statistics.median(ratios), max(ratios)
    noisy = "" if high / low < 1.5 else " NOISY, do not quote"
    line = (
        f"{model.name}: {len(rows)} rows × {asked.steps} steps, ratio {middle:.3f} "
        f"[{low:.3f}, {high:.3f}] over {asked.rounds} rounds, {min(seconds['search']):.1f} s of "
        f"CPU time at best, torch {torch.__version__}, {asked.threads} threads{noisy}"
    )
    print(line)
    out = Path(__file__).parent / "results" / "counterfactual.json"
    out.parent.mkdir(exist_ok=True)
    record = {"line": line, "ratios": ratios, "seconds": seconds, "steps": asked.steps}
    out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
