"""Model FLOP/s of a RATIO update as a share of the card's measured bf16 matrix rate.

Result (NVIDIA H200, torch 2.11, bf16, compiled, CUDA graph; share of the rate of that run):
    this script, ResNet-18 of widths 64/128/256/320, both attacks as one search:
        512 + 512, 5 steps    52.2 ms   263 TFLOP/s = 0.33
        512 + 512, 8 steps    74.3 ms   264 TFLOP/s = 0.33
        768 + 768, 5 steps    76.0 ms   271 TFLOP/s = 0.34
    whole trainings, augmentation, average and logging included:
        cifar10-ratio-0.25   512 + 512   236 to 246 TFLOP/s = 0.30 to 0.31   5.4 and 7.4 s per epoch
        cifar10-at-0.5       512         228 TFLOP/s = 0.28                  3.6 s per epoch
        cifar10-ratio-small  512 + 512   144 TFLOP/s = 0.18 (width 32)       3.7 s per epoch
    four trainings at once on one card (RATIO 0.5, AT 0.25, ACET, plain; tools/make_zoo.py, epochs
        in which all four ran): 97 + 56 + 62 + 38 = 253 TFLOP/s = 0.32: no gain over one
Floor: an update of 512 + 512 images and 5 steps is 13.7 TFLOP, 17 ms at the matrix rate.
Gap: between two convolutions every picture is read and written by the norm and the activation; at
    32 x 32 x 64 that takes as long as the convolution. Attack steps alone, at batch 2048, reach
    0.45. The bar of 0.30 is met, the goal of 0.45 is not.
Run: .venv/bin/python benchmarks/bench_ratio_update.py [RECIPE] [KEY=VALUE ...]
"""

import sys
import tempfile
import time
from pathlib import Path

import torch

from counterlens.classifier import Classifier, pick_device
from counterlens.fit import Player, fit
from counterlens.models import nets
from counterlens.types import Preprocess
from counterlens.workflows import recipes
from counterlens.workflows.plans import Work, attack, bind, make_plan, matrix_rate

UPDATES = 60


def measure(settings: dict, device: torch.device) -> dict[str, float]:
    """Seconds per update after warm-up, and the rate that makes."""
    size = settings["size"]
    net = Classifier(
        nets.build(settings["architecture"], 10),
        [str(i) for i in range(10)],
        settings["mean"],
        settings["std"],
        preprocess=Preprocess((size, size)),
    ).to(device, memory_format=torch.channels_last)
    cuda = device.type == "cuda"
    torch.backends.cudnn.benchmark = cuda
    generator = torch.Generator(device)
    near, far = attack(settings["near"], 1, ()), attack(settings["far"], 1, ())
    shape = (settings["batch"], 3, size, size)
    batch = {
        "x": torch.rand(shape, device=device),
        "y": torch.randint(10, shape[:1], device=device),
        "out": torch.rand(settings["out_batch"] or shape[0], *shape[1:], device=device),
    }
    times: list[float] = []

    def batches(step: int) -> dict[str, torch.Tensor]:
        if cuda and step in (UPDATES // 2, UPDATES - 1):
            torch.cuda.synchronize()
        times.append(time.perf_counter())
        return batch

    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, nesterov=True)
    with tempfile.TemporaryDirectory() as folder:
        fit(
            Player(net, bind(settings, near, far, generator), optimizer),
            batches,
            plan=make_plan(settings, UPDATES, UPDATES, 0, cuda, None),
            folder=Path(folder),
            generator=generator,
        )
    seconds = (times[-1] - times[UPDATES // 2]) / (UPDATES - 1 - UPDATES // 2)
    work = Work(nets.flops(net, (3, size, size)), settings, near, far)(0)
    row = {"ms": 1e3 * seconds, "tflop": work / 1e12, "tflops": work / seconds / 1e12}
    if cuda:
        row["share"] = work / seconds / matrix_rate(device)
    return row


def main() -> None:
    """Measure one recipe, both attacks as one search and apart."""
    recipe, *changes = sys.argv[1:] or ["cifar10-ratio-0.25"]
    device = pick_device()
    for name, extra in (("as one", []), ("apart", [f"far.momentum={0.9 + 1e-9}"])):
        row = measure(recipes.load(recipe, [*changes, *extra]), device)
        print(f"{recipe} {name}: " + " ".join(f"{k} {v:.4g}" for k, v in row.items()))


if __name__ == "__main__":
    main()
