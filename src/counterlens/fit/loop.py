"""The training loop: updates, checks of the losses, judgements, checkpoints."""

import importlib.util
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from counterlens.errors import DiskFull, InputError, TrainingFailed
from counterlens.fit.distributed import World
from counterlens.fit.plan import NetworkJudge, Plan, Progress, Trainable
from counterlens.fit.update import Mixed, Update, WeightAverage
from counterlens.progress import doing
from counterlens.runs import atomic
from counterlens.types import Batch


def fit(
    trainables: Trainable | Sequence[Trainable],
    batches: Callable[[int], Batch],
    *,
    plan: Plan,
    folder: Path,
    generator: torch.Generator | None = None,
    judge: NetworkJudge | None = None,
    **hooks: Any,
) -> tuple[Progress, list[nn.Module]]:
    """Train; return its history and the final networks (averaged, best judged if so planned).

    Args:
        trainables: one network with its loss and optimiser, or several trained in turn.
        batches: the batch of an update, a function of its number; random choices in it are
            drawn from `generator`, which is seeded anew for each update.
        folder: where the checkpoint lives; one that is there is continued.
        judge: measures a network; its "score", if any, chooses the best moment.
        hooks: `phase(step)`, a value that changes when the loss does other work (attack steps
            that grow); `log(line)` for progress; `flops(step)`, work per update; `peak`, the
            device's rate; `events`, a folder for TensorBoard; `world`, the processes of a
            distributed training.
    """
    team = [trainables] if isinstance(trainables, Trainable) else list(trainables)
    trainer = _Trainer(team, batches, plan, folder, generator, judge, hooks)
    with trainer.stoppable():
        return _run(trainer, team[0].net)


def _run(trainer: "_Trainer", net: nn.Module) -> tuple[Progress, list[nn.Module]]:
    if next(net.parameters()).is_cuda:  # a graph is captured on a stream of its own
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
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
        team: list[Trainable],
        batches: Callable[[int], Batch],
        plan: Plan,
        folder: Path,
        generator: torch.Generator | None,
        judge: NetworkJudge | None,
        hooks: Mapping[str, Any],
    ) -> None:
        self.team, self.batches, self.plan, self.judge = team, batches, plan, judge
        self.file = Path(folder) / "checkpoint.pt"
        self.generator = generator
        self.world: World = hooks.get("world") or World()
        self.log: Callable[[str], None] = hooks.get("log") or (lambda line: None)
        self.flops: Callable[[int], float] = hooks.get("flops") or (lambda step: 0.0)
        self.peak: float = hooks.get("peak") or 0.0
        self.events = _events(hooks.get("events") if self.world.main else None)
        phase = hooks.get("phase") or (lambda step: 0)
        self.updates = [Update(trainable, plan, generator, phase, self.log) for trainable in team]
        self.averages = [WeightAverage(p.net, plan.average) for p in team] if plan.average else []
        self.rates = [[group["lr"] for group in p.optimizer.param_groups] for p in team]
        self.progress = Progress()
        self.stopped_by = 0
        self.saved_step = -1
        self.terms: list[Tensor] = []
        self.sums: dict[str, float] = {}
        self.seen = 0
        self.work = 0.0
        self.images = 0

    @contextmanager
    def stoppable(self) -> Iterator[None]:
        """Inside, SIGTERM or Ctrl-C writes a checkpoint and stops; a second one ends at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {which: signal.getsignal(which) for which in (signal.SIGTERM, signal.SIGINT)}

        def stop(which: int, frame: object) -> None:
            self.stopped_by = which
            self.log("stopping after this update; a checkpoint will be written.")
            for one, handler in before.items():
                signal.signal(one, handler)

        try:
            for which in before:
                signal.signal(which, stop)
            yield
        finally:
            for which, handler in before.items():
                signal.signal(which, handler)

    def train(self) -> Progress:
        """Update until the plan is fulfilled or the time is up."""
        self.load()
        progress, plan = self.progress, self.plan
        started = saved = epoch_began = time.monotonic()
        before = progress.seconds
        while progress.step < plan.steps:
            self.update(progress.step)
            progress.step += 1
            doing("training, updates", progress.step, plan.steps)
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
            over = bool(self.stopped_by) or (
                plan.max_minutes is not None and now - started > 60 * plan.max_minutes
            )
            if over or now - saved > 60 * plan.checkpoint_minutes:
                self.save()
                saved = now
            if plan.patience is not None and progress.waited >= plan.patience:
                self.log(f"no better score in {progress.waited} judgements: stopped early.")
                break
            if over and progress.step < plan.steps:
                self.log(f"stopped at update {progress.step} of {plan.steps}; checkpoint written.")
                progress.stopped_by = self.stopped_by  # after the state was written without it
                return progress
        progress.done = True
        self.save()
        return progress

    def update(self, step: int) -> None:
        """One update of every network."""
        if self.generator is not None:
            self.generator.manual_seed(update_seed(self.plan.seed, step, self.world.rank))
        batch = self.batches(step)
        rate = self.plan.rate(step)
        all_terms = []
        for trainable in self.team:  # all of them: one's loss may use another
            trainable.net.train()
        for trainable, run, full in zip(self.team, self.updates, self.rates, strict=True):
            for group, lr in zip(trainable.optimizer.param_groups, full, strict=True):
                group["lr"] = lr * rate
            terms = run(batch, step)
            grads = [p.grad for p in trainable.net.parameters() if p.grad is not None]
            stats = [b for b in trainable.net.buffers() if b.is_floating_point()]
            self.world.mean_([*grads, *stats, terms])
            trainable.optimizer.step()
            all_terms.append(terms)
        for average in self.averages:
            average.update(step)
        self.terms.append(torch.cat(all_terms))
        self.images += self.world.size * max(len(value) for value in batch.values())
        self.work += self.world.size * self.flops(step)

    def read_terms(self) -> None:
        """Read the losses since the last call: the only place that waits for the device."""
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
                "and resume, or check the data."
            )
        for name, value in zip(names, table.sum(0).tolist(), strict=True):
            self.sums[name] = self.sums.get(name, 0.0) + value
        self.seen += len(table)

    def end_epoch(self, seconds: float) -> None:
        """Judge if due, record the epoch, log its line."""
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
            progress.waited += 1
            if score is not None and score >= progress.best:
                progress.best, progress.best_step, progress.waited = score, progress.step, 0
                if plan.keep_best:
                    state = self.current()[0].state_dict()
                    progress.best_state = {k: v.detach().cpu().clone() for k, v in state.items()}
        row["seconds"] = progress.seconds
        progress.rows.append(row)
        self.sums, self.seen, self.work, self.images = {}, 0, 0.0, 0
        if self.world.main:
            self.events(row)
            self.log(_line(row, plan, seconds))

    def current(self) -> list[nn.Module]:
        """The networks as they would be returned now."""
        if self.averages:
            return [average.module() for average in self.averages]
        return [trainable.net.eval() for trainable in self.team]

    def result(self) -> list[nn.Module]:
        """The networks to return: the best judged if so planned, else the last."""
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
                "nets": [trainable.net.state_dict() for trainable in self.team],
                "optimizers": [trainable.optimizer.state_dict() for trainable in self.team],
                "averages": [average.module().state_dict() for average in self.averages],
            }
            try:
                with atomic(self.file) as part:
                    torch.save(state, part)
            except (DiskFull, RuntimeError) as error:  # torch reports a failed write as the latter
                if isinstance(error, RuntimeError) and "write" not in str(error):
                    raise
                intact = (
                    f"that of update {self.saved_step} is intact" if self.saved_step >= 0 else ""
                )
                raise InputError(
                    f"the checkpoint of update {self.progress.step} could not be written to "
                    f"{self.file.parent}: the disk is full{' (' + intact + ')' if intact else ''}. "
                    "Free some space and go on with resume=True."
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
        for trainable, net, optimizer in zip(
            self.team, state["nets"], state["optimizers"], strict=True
        ):
            trainable.net.load_state_dict(net)
            trainable.optimizer.load_state_dict(optimizer)
        for average, net in zip(self.averages, state["averages"], strict=True):
            average.net.load_state_dict(net)
        self.saved_step = self.progress.step
        self.log(f"continuing at update {self.progress.step} of {self.plan.steps}.")


def update_seed(seed: int, step: int, rank: int) -> int:
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


def _events(folder: Path | None) -> Callable[[Mapping[str, Any]], None]:
    """Writes each epoch's numbers for TensorBoard, where that is installed."""
    if folder is None or importlib.util.find_spec("tensorboard") is None:
        return lambda row: None
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(folder))

    def write(row: Mapping[str, Any]) -> None:
        for key, value in row.items():
            if key not in ("epoch", "step"):
                writer.add_scalar(key.replace(".", "/"), value, row["step"])
        writer.flush()

    return write
