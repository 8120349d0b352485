"""One update of DiG-IN at 512 pixels with the architecture of Stable Diffusion 1.4, random weights.

Claim to be tested: half-precision weights, images in batches, replayed or compiled networks, and
recomputing only what memory asks for make an update at least four times as fast per image as the
paper's form (float32, every block recomputed, one image).

Setting: 20 DDIM steps, guidance 3, score over the last 3 predictions, 16 cut-outs, one classifier
(torchvision's efficientnet_b0 at 224, random weights, standing in for an EfficientNet-Lite). The
conditions are random; what is measured is machinery, not pictures. The paper's arm runs with
PyTorch's defaults for float32: convolutions may use TF32, matrix products may not.

With --cosine FOLDER: how well half precision keeps the gradient of the chain, per variable, on
a trained generator (bar: a cosine of 0.99 with float32).

Result (one H200 without other processes, torch 2.11, results/diffusion_h200.json; two timed updates
per arm, the quicker one; seconds per update and image, times as fast as the paper's form, most
memory in tensors and reserved by the allocator):
    paper        1 image   3.04 s           22.9 GiB   23.3
    eager-8      8 images  0.551 s   5.5   101.2 GiB  101.7   6 of 20 steps kept
    replay-8     8 images  0.531 s   5.7    32.2 GiB   93.9   4 kept
    replay-4     4 images  0.545 s   5.6    17.3 GiB   85.1   10 kept
    eager-16GB   1 image   2.68 s    1.1    11.3 GiB   11.4   4 kept, limit enforced
    replay-16GB  1 image   0.971 s   3.1     5.8 GiB   10.8   2 kept, limit enforced
The claim holds in batches; ten times was not reached, nor four times with 16 GB. Contiguous layouts
were not slower than channels-last (8 images, forward and backward: UNet 127 against 129 ms, decoder
217 against 280). Least cosine of half precision to float32 over 4 images of a trained generator at
32 pixels: bfloat16 0.9996, float16 0.99997, for z_T, C_t and null texts. Replayed against plain:
0.9999 or more. The arm compiled-replay-8 was not run. An earlier run on a machine shared in part
had 4.17 s for the paper's form (7.8 times for replay-8) and ran out of memory with 16 GB, since
planning left 4.9 GiB behind each time; that was mended.
Run: .venv/bin/python benchmarks/bench_diffusion.py all --seconds 165 --out sd.json     (all arms)
     .venv/bin/python benchmarks/bench_diffusion.py [--arm paper] [--arm ours] [--batch 8]
     [--memory 16GB] [--replay] [--compile] [--tiny] [--cosine zoo:cifar10-diffusion]
A line of JSON for each arm as it comes. --tiny shows on a CPU that everything runs.
"""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from counterlens import zoo
from counterlens.ball import row_seeds
from counterlens.generators.diffusion.ddim import ddim
from counterlens.generators.diffusion.model import load
from counterlens.generators.diffusion.optimise import COUNTERFACTUAL, ChainSettings, begin
from diffusion_arms import ALL, Arm, Bench, cosine


def cosines(
    spec: str, device: torch.device, settings: ChainSettings, half: str, images: int
) -> dict[str, Any]:
    """Cosines of the gradients of the whole chain in half precision and float32, per variable.

    Of each image: of z_T, of all C_t and of all null texts; and the least of any single step's.
    """
    folder = zoo.generator(spec[4:]) if spec.startswith("zoo:") else Path(spec)
    grads = []
    for precision in ("float32", half):
        model = load(folder, device=device, precision=precision)
        seeds = row_seeds(images, 0)
        given = begin(model, ["a photograph of a cat"] * images, seeds, steps=settings.steps)
        leaves = [t.detach().clone().requires_grad_() for t in (given.z, given.cond, given.null)]
        chain = ddim(model, *leaves, guidance=settings.guidance, last=settings.last, stored=0)
        generator = torch.Generator().manual_seed(0)
        way = torch.randn(images, 3, model.side, model.side, generator=generator).to(device)
        total = sum((model.decode(z) * way).sum() for z in chain.originals)
        grads.append(torch.autograd.grad(total, leaves))
    row: dict[str, Any] = {"images": images, "steps": settings.steps, "device": str(device)}
    for name, a, b in zip(("z_T", "C_t", "null_t"), *grads, strict=True):
        each = [cosine(x, y) for x, y in zip(a, b, strict=True)]
        row[name] = {"least": min(each), "each": each}
        if name != "z_T":
            row[name]["least_of_a_step"] = min(
                cosine(a[i, t], b[i, t]) for i in range(images) for t in range(settings.steps)
            )
    return row


def compare_precisions(
    given: argparse.Namespace, device: torch.device, bench: Bench | None = None
) -> None:
    """Both half precisions on a trained generator."""
    settings = replace(COUNTERFACTUAL, steps=3 if given.tiny else COUNTERFACTUAL.steps)
    for half in ("bfloat16", "float16"):

        def body(half: str = half) -> dict[str, Any]:
            return cosines(given.cosine, device, settings, half, given.images)

        row = {"cosine": given.cosine, "precision": half}
        if bench is not None:
            bench.guard(row, 60, body)
        else:
            print(json.dumps(row | body()), flush=True)


def main() -> None:
    """Measure the arms that were asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", nargs="?", choices=("all",))
    parser.add_argument("--arm", action="append", choices=("paper", "ours"), default=[])
    parser.add_argument("--only", help="of `all`: names of arms, with commas")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--memory")
    parser.add_argument("--updates", type=int, default=4, help="looks; two fewer are timed")
    parser.add_argument("--seconds", type=int, default=240, help="for all arms, on a GPU")
    parser.add_argument("--replay", action="store_true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--cosine", metavar="FOLDER")
    parser.add_argument("--images", type=int, default=4, help="for the cosines")
    parser.add_argument("--out")
    given = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if given.cosine and given.what is None:
        compare_precisions(given, device)
        return
    if device.type == "cpu" and not given.tiny:
        raise SystemExit("no CUDA device; --tiny shows that the script runs.")
    bench = Bench(given, device)
    ours = Arm("ours", batch=given.batch, memory=given.memory, replay=given.replay,
               compile=given.compile, seconds=300)  # fmt: skip
    arms = tuple(ALL[0] if name == "paper" else ours for name in given.arm or ("paper", "ours"))
    if given.what == "all":
        arms = tuple(a for a in ALL if not given.only or a.name in given.only.split(","))
    given.cosine = given.cosine or "zoo:cifar10-diffusion"
    if given.tiny:
        arms = tuple(replace(arm, batch=min(arm.batch, 2)) for arm in arms)
    for arm in arms:
        if given.what == "all" and arm.name == "eager-8":
            bench.probe(arm.batch)
        if given.what == "all" and arm.name == "replay-8":
            compare_precisions(given, device, bench)
            bench.check_replay()
        bench.take(arm)
    bench.keep({"end": True, "seconds": round(time.perf_counter() - bench.began, 1)})


if __name__ == "__main__":
    main()
