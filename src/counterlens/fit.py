"""The one training loop; the only file that knows Accelerate.

Everything random in update n is drawn from a generator seeded with (seed, n, process), and the
batches are a function of n: a run that was killed continues from weights, optimiser, average and
n alone, to the bit on a CPU. On a GPU forward and backward are compiled, captured once as a CUDA
graph and replayed; the host reads the losses every `log_every` updates and waits for nothing else.

Paper: Augustin et al. 2020 (ratio2020) for the optimiser, its schedules and the average.
Differs: several processes average gradients and running statistics after the backward pass in
       place of overlapping the two, so that attacks run on the bare network.
"""

import copy
import errno
import math
import os
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from counterlens.errors import InputError, TrainingFailed
from counterlens.runs import atomic

Batch = Mapping[str, Tensor]
Loss = Callable[[nn.Module, Batch, int], dict[str, Tensor]]
Judge = Callable[[nn.Module, int], dict[str, float]]
Schedule = Literal["linear", "cosine", "step", "constant"]

WARM_UP = 3  # updates before a graph is captured: kernels are compiled and chosen in them


@dataclass(frozen=True)
class Player:
    """One network, what it minimises and with which optimiser; a GAN has two."""

    net: nn.Module
    loss: Loss
    optimizer: torch.optim.Optimizer


@dataclass(frozen=True)
class Plan:
    """How long and how to train.

    Args:
        steps: updates in all; the schedule is laid out over them.
        per_epoch: updates per epoch: the rhythm of judging and of progress lines.
        schedule: how the learning rate falls.
        warmup: updates over which it first rises.
        drops: for "step": fractions of the run after each of which it is divided by ten.
        average: decay of the weight average per update; 0 for none.
        precision: bf16 arithmetic with float32 weights, or float32 throughout.
        compile, graph: torch.compile, and CUDA graphs on top of it.
        draws: whether the loss draws random numbers, which a captured graph must know.
        judge_every: epochs between judgements; the last epoch is always judged.
        keep_best: return the best judged weights in place of the last.
        log_every: updates between two looks at the losses.
        checkpoint_minutes: time between two checkpoints.
        max_minutes: stop after so long, checkpoint written; a later call continues.
    """

    steps: int
    per_epoch: int
    seed: int = 0
    schedule: Schedule = "linear"
    warmup: int = 0
    drops: tuple[float, ...] = ()
    average: float = 0.0
    precision: Literal["bf16", "fp32"] = "fp32"
    compile: bool = False
    graph: bool = False
    draws: bool = False
    judge_every: int = 1
    keep_best: bool = False
    log_every: int = 50
    checkpoint_minutes: float = 5.0
    max_minutes: float | None = None

    def rate(self, step: int) -> float:
        """The learning rate of update `step` as a share of the full one.

        >>> plan = Plan(steps=100, per_epoch=10, schedule="step", drops=(0.5, 0.75))
        >>> plan.rate(49), plan.rate(50), round(plan.rate(75), 3)
        (1.0, 0.1, 0.01)
        """
        if step < self.warmup:
            return (step + 1) / (self.warmup + 1)
        done = (step - self.warmup) / max(1, self.steps - self.warmup)
        match self.schedule:
            case "linear":
                return 1 - done
            case "cosine":
                return (1 + math.cos(math.pi * done)) / 2
            case "step":
                passed = sum(step >= drop * self.steps - 1e-9 for drop in self.drops)
                return float(0.1**passed)
            case "constant":
                return 1.0
        raise InputError(
            f"schedule is {self.schedule!r}, expected linear, cosine, step or constant."
        )


@dataclass
class Progress:
    """What a run has come to: where it stands, its history, its best moment."""

    step: int = 0
    seconds: float = 0.0
    rows: list[dict[str, Any]] = field(default_factory=list)
    best: float = -math.inf
    best_step: int = -1
    best_state: dict[str, Tensor] | None = None
    done: bool = False


class Mixed(nn.Module):
    """A network in the arithmetic of the plan: channels last, logits in float32."""

    def __init__(self, net: nn.Module, precision: str) -> None:
        super().__init__()
        self.net = net
        self.half = precision == "bf16"

    def forward(self, x: Tensor) -> Tensor:
        """The network's output, in float32 at least."""
        if x.ndim == 4 and self.half:
            x = x.contiguous(memory_format=torch.channels_last)
        if not self.half:
            out: Tensor = self.net(x)
            return out
        with torch.autocast(x.device.type, torch.bfloat16, cache_enabled=False):
            out = self.net(x)
        return out.float()


class World:
    """The processes that train together; alone, it costs nothing."""

    def __init__(self) -> None:
        self.size = int(os.environ.get("WORLD_SIZE", "1"))
        self.rank = 0
        self._state: Any = None
        if self.size > 1:
            from accelerate import PartialState

            self._state = PartialState(cpu=not torch.cuda.is_available())
            self.size, self.rank = self._state.num_processes, self._state.process_index

    @property
    def main(self) -> bool:
        """Whether this process writes."""
        return self.rank == 0

    def device(self, device: torch.device) -> torch.device:
        """The device of this process."""
        return self._state.device if self._state is not None else device

    def mean_(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors by their mean over all processes."""
        if self.size == 1 or not tensors:
            return
        from accelerate.utils import reduce

        flat = reduce(torch.cat([t.reshape(-1) for t in tensors]), reduction="mean")
        for tensor, part in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
            tensor.copy_(part.view_as(tensor))

    def wait(self) -> None:
        """Until all processes are here."""
        if self._state is not None:
            self._state.wait_for_everyone()


class Average:
    """Exponential moving average of weights and running statistics.

    Equation: ratio2020 §A   θ̄ ← d θ̄ + (1 − d) θ,  d = min(decay, (1 + n)/(10 + n))
    """

    def __init__(self, net: nn.Module, decay: float) -> None:
        self.decay = decay
        self.net = copy.deepcopy(net).eval().requires_grad_(False)
        self._live, self._mean = _floats(net), _floats(self.net)
        self._others = [
            (live, mean)
            for live, mean in zip(net.buffers(), self.net.buffers(), strict=True)
            if not live.is_floating_point()
        ]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the weights after update `step`."""
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(self._mean, self._live, 1 - decay)

    def module(self) -> nn.Module:
        """The averaged network."""
        for live, mean in self._others:
            mean.copy_(live)
        return self.net


def _floats(net: nn.Module) -> list[Tensor]:
    buffers = [b for b in net.buffers() if b.is_floating_point()]
    return [p.detach() for p in net.parameters()] + buffers


class _Update:
    """Forward and backward of one player: plainly, or as a captured graph."""

    def __init__(
        self,
        player: Player,
        plan: Plan,
        generator: torch.Generator | None,
        phase: Callable[[int], Hashable],
        say: Callable[[str], None],
    ) -> None:
        self.player, self.phase, self.say = player, phase, say
        self.generator = generator if plan.draws else None
        fast: nn.Module = Mixed(player.net, plan.precision)
        self.fast = torch.compile(fast, dynamic=False) if plan.compile else fast
        self.graphed = plan.graph and next(player.net.parameters()).is_cuda
        self.names: tuple[str, ...] = ()
        self._graph: Any = None
        self._key: Hashable = None
        self._left = 0
        self._inputs: dict[str, Tensor] = {}
        self._terms = torch.zeros(0)

    def __call__(self, batch: Batch, step: int) -> Tensor:
        """Leave the gradients in place; return the terms, still on the device."""
        if not self.graphed:
            self.player.optimizer.zero_grad(set_to_none=True)
            return self._run(batch, step)
        if self.phase(step) != self._key:
            first = self._key is None
            self._key, self._left, self._graph = self.phase(step), WARM_UP if first else 1, None
        if self._left:
            self._left -= 1
            self.player.optimizer.zero_grad(set_to_none=True)
            return self._run(batch, step)
        if self._graph is None and not self._capture(batch, step):
            self.player.optimizer.zero_grad(set_to_none=True)
            return self._run(batch, step)
        for key, value in batch.items():
            self._inputs[key].copy_(value)
        self._graph.replay()
        return self._terms.clone()

    def _run(self, batch: Batch, step: int) -> Tensor:
        terms = self.player.loss(self.fast, batch, step)
        self.names = tuple(terms)
        total = torch.stack(list(terms.values()))
        total.sum().backward()
        return total.detach()

    def _capture(self, batch: Batch, step: int) -> bool:
        """Record the work of an update without doing it; if that fails, go on without graphs."""
        self._inputs = {key: value.clone() for key, value in batch.items()}
        self.player.optimizer.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        if self.generator is not None:
            graph.register_generator_state(self.generator)
        try:
            with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
                self._terms = self._run(self._inputs, step)
        except RuntimeError as error:
            self.say(f"no CUDA graph, a little slower: {str(error).splitlines()[0]}")
            self.graphed = False
            return False
        self._graph = graph
        return True


def fit(
    players: Player | Sequence[Player],
    batches: Callable[[int], Batch],
    *,
    plan: Plan,
    folder: Path,
    generator: torch.Generator | None = None,
    judge: Judge | None = None,
    **hooks: Any,
) -> tuple[Progress, list[nn.Module]]:
    """Train; return how it went and the networks to keep (averaged, best judged if asked).

    Args:
        players: one network with its loss and optimiser, or several trained in turn.
        batches: the batch of an update, a function of its number; random choices in it are
            drawn from `generator`, which is seeded anew for each update.
        folder: where the checkpoint lives; one that is there is continued.
        judge: measures a network; its "score", if any, chooses the best moment.
        hooks: `phase(step)`, a value that changes when the loss does other work (attack steps
            that grow); `say(line)` for progress; `flops(step)`, work per update; `peak`, the
            device's rate; `world`, the processes that train together.
    """
    team = [players] if isinstance(players, Player) else list(players)
    trainer = _Trainer(team, batches, plan, folder, generator, judge, hooks)
    if next(team[0].net.parameters()).is_cuda:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            progress = trainer.train()
        torch.cuda.current_stream().wait_stream(stream)
    else:
        progress = trainer.train()
    return progress, trainer.result()


class _Trainer:
    """The state of one call of `fit`."""

    def __init__(
        self,
        team: list[Player],
        batches: Callable[[int], Batch],
        plan: Plan,
        folder: Path,
        generator: torch.Generator | None,
        judge: Judge | None,
        hooks: Mapping[str, Any],
    ) -> None:
        self.team, self.batches, self.plan, self.judge = team, batches, plan, judge
        self.file = Path(folder) / "checkpoint.pt"
        self.generator = generator
        self.world: World = hooks.get("world") or World()
        self.say: Callable[[str], None] = hooks.get("say") or (lambda line: None)
        self.flops: Callable[[int], float] = hooks.get("flops") or (lambda step: 0.0)
        self.peak: float = hooks.get("peak") or 0.0
        self.events: Callable[[dict[str, Any]], None] = hooks.get("events") or (lambda row: None)
        phase = hooks.get("phase") or (lambda step: 0)
        self.updates = [_Update(player, plan, generator, phase, self.say) for player in team]
        self.averages = [Average(p.net, plan.average) for p in team] if plan.average else []
        self.rates = [[group["lr"] for group in p.optimizer.param_groups] for p in team]
        self.progress = Progress()
        self.saved_step = -1
        self.terms: list[Tensor] = []
        self.sums: dict[str, float] = {}
        self.seen = 0
        self.work = 0.0
        self.images = 0

    def train(self) -> Progress:
        """Update until the plan is fulfilled or the time is up."""
        self.load()
        progress, plan = self.progress, self.plan
        started = saved = epoch_began = time.monotonic()
        before = progress.seconds
        while progress.step < plan.steps:
            self.update(progress.step)
            progress.step += 1
            ended = progress.step % plan.per_epoch == 0 or progress.step == plan.steps
            if not ended and len(self.terms) < plan.log_every:
                continue
            self.read_terms()
            now = time.monotonic()
            progress.seconds = before + now - started
            if ended:
                self.end_epoch(now - epoch_began)
                epoch_began = now = time.monotonic()
                progress.seconds = before + now - started
            over = plan.max_minutes is not None and now - started > 60 * plan.max_minutes
            if over or now - saved > 60 * plan.checkpoint_minutes:
                self.save()
                saved = now
            if over and progress.step < plan.steps:
                self.say(f"time is up at update {progress.step} of {plan.steps}; state kept.")
                return progress
        progress.done = True
        self.save()
        return progress

    def update(self, step: int) -> None:
        """One update of every player."""
        if self.generator is not None:
            self.generator.manual_seed(_seed(self.plan.seed, step, self.world.rank))
        batch = self.batches(step)
        rate = self.plan.rate(step)
        found = []
        for player, run, full in zip(self.team, self.updates, self.rates, strict=True):
            player.net.train()
            for group, lr in zip(player.optimizer.param_groups, full, strict=True):
                group["lr"] = lr * rate
            terms = run(batch, step)
            grads = [p.grad for p in player.net.parameters() if p.grad is not None]
            stats = [b for b in player.net.buffers() if b.is_floating_point()]
            self.world.mean_([*grads, *stats, terms])
            player.optimizer.step()
            found.append(terms)
        for average in self.averages:
            average.update(step)
        self.terms.append(torch.cat(found))
        self.images += self.world.size * max(len(value) for value in batch.values())
        self.work += self.world.size * self.flops(step)

    def read_terms(self) -> None:
        """Look at the losses since the last look: the only place that waits for the device."""
        if not self.terms:
            return
        names = [
            name if len(self.team) == 1 else f"{i}.{name}"
            for i, run in enumerate(self.updates)
            for name in run.names
        ]
        table = torch.stack(self.terms).double().cpu()
        self.terms = []
        bad = (~table.isfinite()).nonzero()
        if len(bad):
            row, column = bad[0].tolist()
            step = self.progress.step - len(table) + row
            last = (
                f"The last good checkpoint is of update {self.saved_step}: {self.file}."
                if self.saved_step >= 0
                else "No checkpoint was written yet."
            )
            raise TrainingFailed(
                f"loss term {names[column]!r} is {table[row, column].item()} at update {step} "
                f"(epoch {step // self.plan.per_epoch}). {last} Lower the learning rate "
                "(--set lr=…) and resume, or look at the data."
            )
        for name, value in zip(names, table.sum(0).tolist(), strict=True):
            self.sums[name] = self.sums.get(name, 0.0) + value
        self.seen += len(table)

    def end_epoch(self, seconds: float) -> None:
        """Judge if it is time, note the epoch, say how it went."""
        plan, progress = self.plan, self.progress
        epoch = math.ceil(progress.step / plan.per_epoch)
        row: dict[str, Any] = {"epoch": epoch, "step": progress.step}
        row |= {f"loss.{name}": value / self.seen for name, value in self.sums.items()}
        row["lr"] = self.team[0].optimizer.param_groups[0]["lr"]
        row["images_per_second"] = self.images / seconds
        if self.work:
            row["tflops"] = self.work / seconds / 1e12
            if self.peak:
                row["flop_share"] = self.work / seconds / self.peak
        last = progress.step == plan.steps
        if self.judge is not None and (last or epoch % plan.judge_every == 0):
            row |= self.judge(Mixed(self.current()[0], plan.precision), progress.step)
            score = row.get("score")
            if score is not None and score >= progress.best:
                progress.best, progress.best_step = score, progress.step
                if plan.keep_best:
                    state = self.current()[0].state_dict()
                    progress.best_state = {k: v.detach().cpu().clone() for k, v in state.items()}
        row["seconds"] = progress.seconds
        progress.rows.append(row)
        self.sums, self.seen, self.work, self.images = {}, 0, 0.0, 0
        if self.world.main:
            self.events(row)
            self.say(_line(row, plan, seconds))

    def current(self) -> list[nn.Module]:
        """The networks as they would be kept now."""
        if self.averages:
            return [average.module() for average in self.averages]
        return [player.net.eval() for player in self.team]

    def result(self) -> list[nn.Module]:
        """The networks to keep: the best judged if asked for, else the last."""
        nets = self.current()
        if self.plan.keep_best and self.progress.best_state is not None:
            nets[0].load_state_dict(self.progress.best_state)
        return [net.eval() for net in nets]

    def save(self) -> None:
        """Write the checkpoint, whole or not at all."""
        self.read_terms()
        if self.world.main:
            state = {
                "progress": vars(self.progress),
                "nets": [player.net.state_dict() for player in self.team],
                "optimizers": [player.optimizer.state_dict() for player in self.team],
                "averages": [average.module().state_dict() for average in self.averages],
            }
            try:
                with atomic(self.file) as part:
                    torch.save(state, part)
            except (OSError, RuntimeError) as error:  # torch reports a failed write as the latter
                full = getattr(error, "errno", None) == errno.ENOSPC or "write" in str(error)
                if not full:
                    raise
                kept = f"that of update {self.saved_step} is intact" if self.saved_step >= 0 else ""
                raise InputError(
                    f"the checkpoint of update {self.progress.step} could not be written to "
                    f"{self.file.parent}: the disk is full{' (' + kept + ')' if kept else ''}. "
                    "Free some space and repeat the command with --resume."
                ) from error
        self.saved_step = self.progress.step
        self.world.wait()

    def load(self) -> None:
        """Continue from the checkpoint, if there is one."""
        if not self.file.exists():
            return
        device = next(self.team[0].net.parameters()).device
        state = torch.load(self.file, map_location=device, weights_only=True)
        self.progress = Progress(**state["progress"])
        for player, net, optimizer in zip(
            self.team, state["nets"], state["optimizers"], strict=True
        ):
            player.net.load_state_dict(net)
            player.optimizer.load_state_dict(optimizer)
        for average, net in zip(self.averages, state["averages"], strict=True):
            average.net.load_state_dict(net)
        self.saved_step = self.progress.step
        self.say(f"continuing at update {self.progress.step} of {self.plan.steps}.")


def _seed(seed: int, step: int, rank: int) -> int:
    """One number from three, far apart for neighbours."""
    return (
        seed * 0x9E3779B97F4A7C15 + step * 0xD1B54A32D192ED03 + rank * 0x8CB92BA72F3D8DD7
    ) % 2**63


def _line(row: Mapping[str, Any], plan: Plan, seconds: float) -> str:
    """One epoch in one line."""
    left = (plan.steps - row["step"]) / plan.per_epoch * seconds
    parts = [f"epoch {row['epoch']}/{math.ceil(plan.steps / plan.per_epoch)}"]
    parts += [f"{k.removeprefix('loss.')} {v:.4f}" for k, v in row.items() if k.startswith("loss.")]
    parts.append(f"lr {row['lr']:.4g}")
    known = ("epoch", "step", "lr", "images_per_second", "tflops", "flop_share", "seconds", "score")
    parts += [
        f"{k} {v:.4g}" for k, v in row.items() if k not in known and not k.startswith("loss.")
    ]
    parts.append(f"{seconds:.1f} s, {row['images_per_second']:.0f} images/s")
    if "tflops" in row:
        share = f" = {row['flop_share']:.2f} of peak" if "flop_share" in row else ""
        parts.append(f"{row['tflops']:.0f} TFLOP/s{share}")
    parts.append(f"left {left / 60:.1f} min")
    return " · ".join(parts)
