"""How long an update of a stack of CGNs takes, for each form of convolution and each precision.

Result (H200, alone): ten Coloured CGNs 6.5 ms an update, three Wildlife 5.4, three GANs 1.35. Two
CPU cores, one network: 237, 333 and 485 ms (Coloured, Double-coloured, Wildlife).
Run: python benchmarks/cgn_study.py speed --vgg vgg16.ckpt        (random pictures; no MNIST needed)

100 updates of warm-up (kernels are chosen, graphs captured), then 200 that are timed, drawing of
the batches and both optimisers included. The work of an update is counted on one network, with
the style of real pictures as if it were not kept. On a CPU: one network of each set.
"""

import argparse
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode

from counterlens.classifier import pick_device
from counterlens.fit import Plan, Trainable, fit
from counterlens.generators.cgn.stacked import arrange
from counterlens.models.nets import vgg
from counterlens.models.nets.digit_net import DigitNet
from counterlens.workflows.cgn import networks
from counterlens.workflows.cgn.settings import defaults
from counterlens.workflows.cgn.stack import Shuffled, nll_terms

STEPS, WARM = 200, 100
PICTURES = 4096
UPDATES = {"coloured": 56_250, "double-coloured": 46_875, "wildlife": 46_875}  # of 15 epochs


@dataclass(frozen=True)
class Case:
    """One training to be timed; those that matter most come first."""

    which: str
    stack: int
    form: str
    precision: str
    kind: str = "cgn"


CASES = (
    Case("coloured", 10, "matmul", "mixed"),
    Case("wildlife", 3, "matmul", "mixed"),
    Case("double-coloured", 3, "matmul", "mixed"),
    Case("coloured", 10, "grouped", "tf32"),  # as it was before there was a choice
    Case("coloured", 10, "matmul", "bf16"),
    Case("coloured", 10, "grouped", "mixed"),
    Case("wildlife", 3, "apart", "mixed"),
    Case("coloured", 3, "matmul", "mixed", "gan"),
    Case("coloured", 3, "apart", "mixed", "gan"),
    Case("coloured", 13, "matmul", "tf32", "classifier"),
    Case("coloured", 13, "grouped", "tf32", "classifier"),
    Case("coloured", 1, "grouped", "mixed"),
    Case("coloured", 10, "apart", "mixed"),
    Case("coloured", 10, "matmul", "tf32"),
)
CPU = tuple(Case(which, 1, "grouped", "fp32") for which in UPDATES)


def speed(given: argparse.Namespace) -> None:
    """Time the cases, print each as it is known; none is begun after the time."""
    began = time.monotonic()
    device = pick_device(given.device)
    full = vgg.load(given.vgg)
    for case in CASES if device.type == "cuda" else CPU:
        if time.monotonic() - began > 60 * given.minutes:
            print("time is up: the other cases were not begun.")
            return
        try:
            ms, flop = timed(case, full, device, given.steps)
        except torch.OutOfMemoryError as error:
            print(f"{case}: {str(error).splitlines()[0]}", flush=True)
            continue
        print(
            f"{case.kind} {case.which} × {case.stack}, {case.form}, {case.precision}: "
            f"{ms:.2f} ms an update = {ms / case.stack:.2f} a network, "
            f"{flop / 1e9:.0f} GFLOP, {flop / ms / 1e9:.1f} TFLOP/s "
            f"({time.monotonic() - began:.0f} s); extrapolated to {UPDATES[case.which]} updates: "
            f"{UPDATES[case.which] * ms / case.stack / 6e4:.1f} min a network",
            flush=True,
        )


def timed(case: Case, full: vgg.VGG16, device: torch.device, steps: int) -> tuple[float, float]:
    """Milliseconds and floating-point operations of an update."""
    kind = "gan" if case.kind == "gan" else "cgn"
    settings = replace(defaults(case.which, kind), form=case.form, precision=case.precision)
    fixed, ours = networks.dtypes(settings, device)
    generator = torch.Generator(device).manual_seed(0)
    x = torch.randint(256, (PICTURES, 3, 32, 32), device=device, generator=generator)
    x, y = x.to(torch.uint8), torch.arange(PICTURES, device=device) % 10
    features = vgg.VGG16(
        [layer.weight.detach().clone() for layer in full.convs],
        [layer.bias.detach().clone() for layer in full.convs],
    ).to(device, fixed)

    def sides(stack: int) -> list[Trainable]:
        if case.kind == "classifier":
            net = DigitNet(stack=stack).to(device)
            arrange(net, case.form)
            return [Trainable(net, nll_terms, torch.optim.Adadelta(net.parameters(), lr=1.0))]
        pair = networks.nets(kind, settings, range(stack), x, ours)
        used = features if kind == "cgn" else None
        known = networks.known_grams(x, settings, used)
        return networks.trainables(kind, settings, *pair, used, known=known)

    batch = 64 if case.kind == "classifier" else settings.batch

    def drawn(stack: int):
        order = Shuffled(PICTURES, batch, stack, 0, device)
        make = networks.batches(x, y, settings, order, generator)
        if case.kind != "classifier":
            return lambda step: make(step % order.per_epoch)

        def rows(step: int) -> dict[str, torch.Tensor]:
            chosen = order(step % order.per_epoch)
            pictures = x[chosen.flatten()].float() / 127.5 - 1
            return {"x": pictures.view(batch, 3 * stack, 32, 32), "y": y[chosen]}

        return rows

    with FlopCounterMode(display=False) as counter:
        for one in sides(1):
            torch.stack(list(one.loss(one.net, drawn(1)(0), 0).values())).sum().backward()
    part = max(1, steps // 2)
    plan = Plan(
        steps=3 * part, per_epoch=part, schedule="constant", graph=device.type == "cuda",
        log_every=part, checkpoint_minutes=60.0,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        progress, _ = fit(
            sides(case.stack), drawn(case.stack), plan=plan, folder=Path(folder),
            generator=generator, log=lambda line: print(line) if "graph" in line else None,
        )  # fmt: skip
    rates = [row["images_per_second"] for row in progress.rows[1:]]
    ms = sum(1e3 * batch / rate for rate in rates) / len(rates)
    return ms, float(counter.get_total_flops()) * case.stack
