"""Train several small digit classifiers at once: one stack, one launch for all.

Paper: Sauer and Geiger 2021 (cgn2021), MNIST code: Adadelta, rate × 0.7 an epoch, batch 64.
Differs: the last, partial batch of an epoch is left out. Each network has its own start and its
       own order of the pictures.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from counterlens.errors import InputError
from counterlens.fit import Plan, Trainable, fit
from counterlens.generators.cgn.stacked import stacked, unstacked
from counterlens.models.nets.digit_net import DigitNet
from counterlens.types import Batch
from counterlens.workflows._shared.session import Log


@dataclass(frozen=True)
class TrainingPool:
    """Pictures on the device that several trainings choose from."""

    x: UInt8[Tensor, "n 3 32 32"]
    y: Int[Tensor, "n"]


class Shuffled:
    """Rows of a batch, each once an epoch, in an order of its own for each network."""

    def __init__(self, count: int, batch: int, stack: int, seed: int, device: torch.device) -> None:
        if count < batch:
            raise InputError(f"got {count} pictures, expected at least one batch of {batch}.")
        self.count, self.batch, self.stack, self.seed, self.device = (
            count, batch, stack, seed, device,
        )  # fmt: skip
        self.per_epoch = count // batch
        self._epoch, self._order = -1, torch.zeros(0)

    def __call__(self, step: int) -> Int[Tensor, "b s"]:
        """The rows of update `step`, one column per network."""
        epoch, part = divmod(step, self.per_epoch)
        if epoch != self._epoch:
            generator = torch.Generator(self.device).manual_seed(
                (self.seed * 0x9E3779B97F4A7C15 + epoch * 0xD1B54A32D192ED03) % 2**63
            )
            orders = [
                torch.randperm(self.count, generator=generator, device=self.device)
                for _ in range(self.stack)
            ]
            self._epoch, self._order = epoch, torch.stack(orders, 1)
        return self._order[part * self.batch : (part + 1) * self.batch]


def unit_range(pixels: UInt8[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    """Bytes to [−1, 1]."""
    return pixels.float() / 127.5 - 1


def seeded(make: Callable[[], nn.Module], seed: int) -> dict[str, Tensor]:
    """The weights of a network made with this seed; the global generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make().state_dict()


def nll_terms(net: nn.Module, batch: Batch, step: int) -> dict[str, Tensor]:
    """Cross-entropy of each network, summed over the stack."""
    y = batch["y"]
    logits = net(batch["x"]).reshape(y.numel(), -1)
    return {"nll": cross_entropy(logits, y.flatten()) * y.shape[1]}


def train_stack(
    pool: TrainingPool,
    arms: Sequence[Int[Tensor, "n"]],
    seeds: Sequence[int],
    *,
    epochs: int,
    folder: Path,
    log: Log,
    batch: int = 64,
    quick: bool = False,
) -> DigitNet:
    """One network per arm, in eval mode, as a stack.

    Args:
        arms: rows of the pool that each network learns from, of one length.
        seeds: start of each network.
        folder: where the checkpoint lives.
        quick: Adam at a rate that falls to 0, for few updates, in place of the paper's Adadelta.
    """
    device, stack = pool.x.device, len(arms)
    if len({len(rows) for rows in arms}) != 1:
        raise InputError("networks of one stack learn from equally many pictures.")
    net = DigitNet(stack=stack)
    net.load_state_dict(stacked([seeded(DigitNet, seed) for seed in seeds]))
    net = net.to(device)
    table = torch.stack([rows.to(device) for rows in arms], 1)
    order = Shuffled(len(table), batch, stack, seeds[0], device)

    def batches(step: int) -> Batch:
        chosen = table.gather(0, order(step))
        x = unit_range(pool.x[chosen.flatten()])
        return {"x": x.view(batch, 3 * stack, *x.shape[2:]), "y": pool.y[chosen]}

    plan = Plan(
        steps=epochs * order.per_epoch,
        per_epoch=order.per_epoch,
        seed=seeds[0],
        schedule="linear" if quick else "epochs",
        decay=0.7,
        graph=pool.x.is_cuda,
        log_every=500,
        checkpoint_minutes=2.0,
    )
    trainable = Trainable(net, nll_terms, _optimizer(net, quick))
    progress, networks = fit(trainable, batches, plan=plan, folder=folder, log=log)
    if not progress.done:
        progress.resend()
        raise InputError("stopped before the end; what was done is stored: go on with resume=True.")
    trained = networks[0]
    assert isinstance(trained, DigitNet)
    return trained.requires_grad_(False)


def _optimizer(net: DigitNet, quick: bool) -> torch.optim.Optimizer:
    if quick:
        return torch.optim.Adam(net.parameters(), lr=1e-3)
    return torch.optim.Adadelta(net.parameters(), lr=1.0)


def pieces(x: Tensor, size: int) -> list[Tensor]:
    """x cut along its first axis into parts of at most `size` rows."""
    return [x[start : start + size] for start in range(0, len(x), size)]


@torch.no_grad()
def answers(
    net: DigitNet, x: UInt8[Tensor, "n 3 32 32"], *, batch: int = 1000
) -> Int[Tensor, "n s"]:
    """What each network of a stack answers to the same images."""
    device = next(net.parameters()).device
    predicted = []
    for part in pieces(x, batch):
        seen = unit_range(part.to(device)).repeat(1, net.stack, 1, 1)
        predicted.append(net(seen).reshape(len(part), net.stack, -1).argmax(2))
    return torch.cat(predicted)


def single(net: DigitNet, row: int) -> DigitNet:
    """One network of a stack."""
    one = DigitNet(net.classes)
    one.load_state_dict(unstacked(net.state_dict(), net.stack)[row])
    return one.eval().requires_grad_(False)
