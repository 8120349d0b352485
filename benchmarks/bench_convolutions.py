"""What the library's convolutions alone take of a RATIO update: the floor of bench_ratio_update.py.

Each convolution of the recipe's network is timed by itself at the batch of an update: forward,
gradient of the input, gradient of the weights. An update of s attack steps is s + 2 forwards, s + 1
gradients of the input and one of the weights.

Result (NVIDIA H200, torch 2.11, bf16, channels last, 1,024 images; matrix rate 790 TFLOP/s):
    3x3, channels, side    GFLOP   forward         input           weights
      3 -> 64,  32             4   0.177 ms   20   0.209 ms   17   0.207 ms   18 TFLOP/s
     64 -> 64,  32            77   0.169     458   0.163     475   0.160     483
     64 -> 128, 32 to 16      39   0.073     532   0.129     299   0.086     449
    128 -> 128, 16            77   0.107     726   0.112     687   0.125     618
    128 -> 256, 16 to 8       39   0.059     651   0.079     492   0.076     509
    256 -> 256, 8             77   0.099     783   0.102     760   0.117     662
    256 -> 320, 8 to 4        24   0.055     436   0.050     480   0.051     476
    320 -> 320, 4             30   0.066     457   0.054     564   0.064     472
    256 -> 512, 8 to 4        39   0.053     723   0.065     596   0.067     574
    512 -> 512, 4             77   0.093     830   0.094     824   0.108     717
    Together, at 8 steps: 40 ms. A copy of 134 MB (64 channels, side 32) takes 0.065 ms: 4.1 TB/s.
    The rows were measured by such calls one after the other and added up by hand.
Run: .venv/bin/python benchmarks/bench_convolutions.py [RECIPE] [KEY=VALUE ...]
"""

import sys
import time
from collections import Counter
from collections.abc import Callable

import torch
from torch import nn

from counterlens.classifier import pick_device
from counterlens.models.nets import resnets as nets
from counterlens.workflows.train import recipes
from counterlens.workflows.train.recipe import Recipe

Shape = tuple[int, int, int, int, int]
"""Channels in and out, side of the input, stride, side of the kernel."""


def shapes(recipe: Recipe) -> Counter[Shape]:
    """The convolutions of a network, and how often each kind is there."""
    found: Counter[Shape] = Counter()

    def note(conv: nn.Module, inputs: tuple[torch.Tensor], _: torch.Tensor) -> None:
        assert isinstance(conv, nn.Conv2d) and conv.groups == 1
        sides = (inputs[0].shape[2], conv.stride[0], conv.kernel_size[0])
        found[(conv.in_channels, conv.out_channels, *sides)] += 1

    net = nets.build(recipe.architecture, 10).eval()
    for part in net.modules():
        if isinstance(part, nn.Conv2d):
            part.register_forward_hook(note)
    with torch.no_grad():
        net(torch.zeros(1, 3, recipe.size, recipe.size))
    return found


def milliseconds(work: Callable[[], object], device: torch.device, times: int = 10) -> float:
    """Of one call, warmed up."""
    for _ in range(3):
        work()
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    wait()
    began = time.perf_counter()
    for _ in range(times):
        work()
    wait()
    return 1e3 * (time.perf_counter() - began) / times


def measure(shape: Shape, batch: int, device: torch.device) -> tuple[float, list[float]]:
    """GFLOP of one pass, and the time of each of the three."""
    cin, cout, side, stride, kernel = shape
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32

    def random(*size: int) -> torch.Tensor:
        made = torch.rand(*size, device=device, dtype=dtype)
        return made.to(memory_format=torch.channels_last)

    x, weight = random(batch, cin, side, side), random(cout, cin, kernel, kernel)
    steps, pads = [stride, stride], [kernel // 2] * 2
    y = torch.conv2d(x, weight, None, steps, pads)
    grad = torch.rand_like(y)

    def backward(*wanted: bool) -> float:
        return milliseconds(
            lambda: torch.ops.aten.convolution_backward(
                grad, x, weight, None, steps, pads, [1, 1], False, [0, 0], 1, wanted
            ),
            device,
        )

    forward = milliseconds(lambda: torch.conv2d(x, weight, None, steps, pads), device)
    times = [forward, backward(True, False, False), backward(False, True, False)]
    return 2 * y.numel() * cin * kernel**2 / 1e9, times


def main() -> None:
    """Print each convolution of a recipe's network, then what an update needs for all."""
    name, *changes = sys.argv[1:] or ["cifar10-ratio-0.25"]
    recipe = recipes.load(name, changes)
    device = pick_device()
    torch.backends.cudnn.benchmark = device.type == "cuda"
    batch = recipe.batch + (recipe.out_batch or recipe.batch)
    counts = recipe.near.steps
    steps = max(counts) if isinstance(counts, tuple) else counts
    total = 0.0
    for shape, count in shapes(recipe).items():
        work, times = measure(shape, batch, device)
        passes = (steps + 2, steps + 1, 1)
        total += count * sum(n * ms for n, ms in zip(passes, times, strict=True))
        told = "  ".join(f"{ms:.3f} ms {work / ms:.3g} TFLOP/s" for ms in times)
        print(f"{count} of {shape}: {work:.3g} GFLOP  {told}", flush=True)
    print(f"an update of {batch} images and {steps} steps: {total:.1f} ms")


if __name__ == "__main__":
    main()
