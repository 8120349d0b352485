"""What one update of DiG-IN takes in memory at 512 pixels, counted on shapes: no device is needed.

The networks of bench_diffusion.py lie on PyTorch's meta device, where tensors have shapes and no
values; every storage that is alive is counted after every operation, forward and backward, over a
whole update: all kept steps, and two that are computed again. Attention is counted as fused kernels
have it. Kernels' scratch memory is not in it, nor what an allocator loses.

Claim to be tested: in half precision one image fits 16 GB, with room to keep some steps.

Result (counted, in GiB; one image, bfloat16, 16 cut-outs, efficientnet_b0): weights 1.77; a step
    keeps 1.44 and takes 1.49 at most; a decoded image with its cut-outs keeps 3.48 and takes 3.49.
    A whole update takes 2.83 with every block computed twice, 5.27 with no step kept, and 12.49
    with the 5 steps that the plan for 16 GB keeps; the allocator may have 14.34 there. On an H200
    under that limit (bench_diffusion.py, eager-16GB) the plan kept 4, by count 11.05; 11.26 were
    measured.
Run: .venv/bin/python benchmarks/diffusion_memory.py [--memory 16GB]     (minutes)
"""

import argparse
import contextlib
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from counterlens.ball import row_seeds
from counterlens.generators.diffusion.memory import (
    CONTEXT,
    at_most,
    measure,
    parse_memory,
    steps_to_keep,
)
from counterlens.generators.diffusion.meter import Live
from counterlens.generators.diffusion.model import LatentDiffusion
from counterlens.generators.diffusion.optimise import ChainSettings, Inputs, Term, ascend
from counterlens.generators.diffusion.recompute import StoredSteps
from diffusion_arms import Arm, Bench


class Enough(Exception):
    """One update was made."""


class _Attention(torch.autograd.Function):
    """What fused attention takes: it keeps its inputs, its output and a number per query."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(q)
        ctx.save_for_backward(q, k, v, out, q.new_empty(q.shape[:3], dtype=torch.float32))
        return out

    @staticmethod
    def backward(ctx: Any, slope: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(torch.empty_like(one) for one in ctx.saved_tensors[:3])


@contextlib.contextmanager
def fused() -> Iterator[None]:
    """Attention as fused kernels do it; where there are only shapes, PyTorch writes it out."""
    functional: Any = torch.nn.functional
    plain = functional.scaled_dot_product_attention

    def attend(q: Any, k: Any, v: Any, **more: Any) -> Any:
        return _Attention.apply(q, k, v)

    functional.scaled_dot_product_attention = attend
    try:
        yield
    finally:
        functional.scaled_dot_product_attention = plain


def count(bench: Bench, memory: str) -> None:
    """What an image's update takes, counted on shapes alone: no device is needed.

    Kernels' scratch memory is not in it, nor what an allocator loses.
    """
    arm = Arm("count")
    bench.prepare(arm)
    start, terms = bench.inputs(arm)
    nets = (bench.model.unet, bench.model.vae, bench.classifier)
    weights = sum(one.nbytes for net in nets for one in net.parameters())
    settings, gib = bench.settings, 2**30
    with fused():
        step, picture = measure(bench.model, start, settings, terms)
        row: dict[str, Any] = {
            "counted": "bfloat16, one image, 512 pixels", "weights_gib": weights / gib,
            "step_gib": [step.stored / gib, step.peak / gib],
            "picture_gib": [picture.stored / gib, picture.peak / gib],
            "planned_gib": {k: (weights + at_most(step, picture, k)) / gib for k in range(8)},
        }  # fmt: skip
        left = parse_memory(memory) - CONTEXT - weights
        planned, _ = steps_to_keep(bench.model, start, settings, left, terms)
        row["plan"] = {"memory": memory, "kept": planned}
        levels: dict[StoredSteps, None] = dict.fromkeys((planned, "blocks", 0))
        print(json.dumps(row), flush=True)
        for stored in levels:
            most = weights + whole_update(bench.model, start, terms, settings, stored)
            print(json.dumps({"kept": stored, "whole_update_gib": most / gib}), flush=True)


def whole_update(
    model: LatentDiffusion,
    start: Inputs,
    terms: list[Term],
    settings: ChainSettings,
    stored: StoredSteps,
) -> int:
    """The most bytes at a time of one update, from the start to Adam's step.

    Two steps are computed again: more of them take no more, since they come one after another.
    """
    steps = 2 + (stored if isinstance(stored, int) else 0)
    settings = replace(settings, steps=steps)
    start = Inputs(start.z, start.cond[:, :steps], start.null[:, :steps])
    with Live() as live, contextlib.suppress(Enough):

        def told(k: int, now: object) -> None:
            if k == 1:
                raise Enough

        seeds = row_seeds(len(start.z), 0, device=start.z.device)
        ascend(model, start, terms, settings=settings, seeds=seeds, stored=stored, callback=told)
    return live.peak


def main() -> None:
    """Count."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--memory", default="16GB")
    given = parser.parse_args()
    asked = argparse.Namespace(updates=4, tiny=False, out=None, seconds=0)
    count(Bench(asked, torch.device("meta")), given.memory)


if __name__ == "__main__":
    main()
