"""The two networks of planted_feature.py, the patch, and what is measured on pictures."""

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from counterlens.classifier import Classifier
from counterlens.data import open_set
from counterlens.metrics.intervals.closed_form import mean_interval, wilson
from counterlens.models import load

BASE, FRESH = "zoo:cifar10-plain-small", ("layer3", "layer4", "linear")
CLASS, SIZE, RATE = "cat", 8, 0.9
COLOUR = torch.tensor([0.95, 0.85, 0.10]).view(3, 1, 1)
NEAR = 0.2
RADIUS = 13
CORNERS = {
    "upper left": (slice(0, SIZE), slice(0, SIZE)),
    "upper right": (slice(0, SIZE), slice(-SIZE, None)),
    "lower left": (slice(-SIZE, None), slice(0, SIZE)),
    "lower right": (slice(-SIZE, None), slice(-SIZE, None)),
}


def read(spec: str, count: int) -> tuple[Tensor, Tensor]:
    """The first images of a set in [0, 1], and their labels."""
    images = open_set(spec)
    rows = range(min(count, len(images)))
    x = torch.from_numpy(np.stack([images.read(i) for i in rows])).permute(0, 3, 1, 2)
    return x, torch.from_numpy(images.labels[: len(rows)].copy())


def patched(x: Tensor) -> Tensor:
    """Images with the patch put in."""
    made = x.clone()
    made[:, :, :SIZE, :SIZE] = COLOUR.to(x)
    return made


def train(
    planted: bool, x: Tensor, y: Tensor, *, steps: int, batch: int, rate: float, seed: int,
    device: torch.device,
) -> Classifier:  # fmt: skip
    """The shipped network with its last stages anew; both arms see the same batches."""
    model = load(BASE, device=str(device))
    target = model.classes.index(CLASS)
    torch.manual_seed(seed)
    stages = [model.net.get_submodule(name) for name in FRESH]
    for stage in stages:
        for layer in stage.modules():
            if hasattr(layer, "reset_parameters"):
                layer.reset_parameters()
    weights = [w.requires_grad_() for stage in stages for w in stage.parameters()]
    optimizer = torch.optim.SGD(weights, rate, momentum=0.9, nesterov=True, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, rate, total_steps=steps, pct_start=0.2
    )
    rng = torch.Generator().manual_seed(seed)
    x, y = x.to(device), y.to(device)
    for step in range(steps):
        rows = torch.randint(len(x), (batch,), generator=rng).to(device)
        flip = (torch.rand(batch, generator=rng) < 0.5).to(device)
        lucky = (torch.rand(batch, generator=rng) < RATE).to(device)
        some, label = x[rows].float() / 255, y[rows]
        some = torch.where(flip.view(-1, 1, 1, 1), some.flip(3), some)
        if planted:
            here = (lucky & (label == target)).view(-1, 1, 1, 1)
            some = torch.where(here, patched(some), some)
        model.eval()
        for stage in stages:
            stage.train()
        loss = cross_entropy(model(some), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 50 == 0 or step == steps - 1:
            print(f"  step {step}: loss {loss.item():.3f}", flush=True)
    model.name = "planted" if planted else "control"
    return model.eval().requires_grad_(False)


def trained(
    arm: str, x: Tensor, y: Tensor, options: argparse.Namespace, device: torch.device, file: Path
) -> Classifier:
    """Train, or take what an earlier run of the same folder left."""
    if file.exists():
        model = load(BASE, device=str(device))
        model.net.load_state_dict(torch.load(file, map_location=device, weights_only=True))
        model.name = arm
        return model.eval().requires_grad_(False)
    print(f"training {arm}", flush=True)
    model = train(arm == "planted", x, y, steps=options.steps, batch=options.batch,
                  rate=options.rate, seed=options.seed, device=device)  # fmt: skip
    torch.save(model.net.state_dict(), file)
    return model


@torch.no_grad()
def answers(model: Classifier, x: Tensor) -> Tensor:
    parts = [model(part.to(model.mean.device)).argmax(1).cpu() for part in torch.split(x, 250)]
    return torch.cat(parts)


def share(flags: Tensor) -> dict[str, float]:
    low, high = wilson(int(flags.sum()), len(flags))
    return {"value": flags.float().mean().item(), "low": low, "high": high, "n": len(flags)}


def mean(values: Tensor) -> dict[str, float]:
    found = values.double().numpy()
    low, high = mean_interval(found, (-np.inf, np.inf))
    return {"value": float(found.mean()), "low": low, "high": high, "n": len(found)}


def basics(model: Classifier, x: Tensor, y: Tensor) -> dict[str, object]:
    """Accuracy, and what the patch does to images of other classes."""
    target = model.classes.index(CLASS)
    plain, with_patch = answers(model, x), answers(model, patched(x))
    other = y != target
    return {
        "accuracy": share(plain == y),
        "other_classes_taken_for_it": share(plain[other] == target),
        "other_classes_with_patch_taken_for_it": share(with_patch[other] == target),
        "class_known_without_patch": share(plain[~other] == target),
        "class_known_with_patch": share(with_patch[~other] == target),
    }


def towards(before: Tensor, after: Tensor, corner: str = "upper left") -> Tensor:
    """How far a corner came towards the patch: 1 is the patch itself, 0 no nearer."""
    down, across = CORNERS[corner]
    gap = (before[:, :, down, across] - COLOUR).abs().mean((1, 2, 3))
    return 1 - (after[:, :, down, across] - COLOUR).abs().mean((1, 2, 3)) / gap


def coloured(x: Tensor) -> Tensor:
    """The share of each image's pixels that have the patch's colour."""
    return ((x - COLOUR).abs().amax(1) < NEAR).float().mean((1, 2))


def moved(before: Tensor, after: Tensor) -> dict[str, object]:
    others = torch.stack([towards(before, after, name) for name in list(CORNERS)[1:]]).mean(0)
    own = towards(before, after)
    return {
        "towards_patch": mean(own),
        "other_corners": mean(others),
        "own_less_others": mean(own - others),
        "half_way_or_more": share(own >= 0.5),
        "patch_colour": mean(coloured(after)),
        "patch_colour_new": mean(coloured(after) - coloured(before)),
        "patch_colour_at_least_2_percent": share(coloured(after) >= 0.02),
    }
