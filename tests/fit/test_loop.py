"""The training loop against plain loops, and a killed run against one that was left alone.

Oracles: SGD-Nesterov and the weight average written out, schedules by formula, bit-equality of a
run that was stopped anywhere and continued with one that ran through.
"""

import errno
import signal
from pathlib import Path

import pytest
import torch
from torch import nn

from counterlens.errors import InputError, TrainingFailed
from counterlens.fit import Mixed, Plan, Trainable, WeightAverage, fit
from counterlens.fit.loop import update_seed


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 9, 3)
    )


def loss(net, batch, step):
    return {"in": nn.functional.cross_entropy(net(batch["x"]), batch["y"])}


def trainable(net: nn.Module) -> Trainable:
    optimizer = torch.optim.SGD(
        net.parameters(), lr=0.2, momentum=0.9, nesterov=True, weight_decay=1e-3
    )
    return Trainable(net, loss, optimizer)


def make_batches(generator: torch.Generator):
    def batches(step: int):
        x = torch.rand(8, 1, 5, 5, generator=generator)
        return {"x": x, "y": (x.mean((1, 2, 3)) * 60 - 28.5).long().clamp(0, 2)}

    return batches


PLAN = Plan(steps=12, per_epoch=5, schedule="cosine", warmup=2, average=0.9, log_every=1)


def train(folder: Path, plan: Plan = PLAN, **extra):
    generator = torch.Generator()
    net = network()
    batches = extra.pop("batches", None) or make_batches(generator)
    return fit(trainable(net), batches, plan=plan, folder=folder, generator=generator, **extra)


class Killed(Exception):
    pass


def killing(generator: torch.Generator, at: int):
    real = make_batches(generator)

    def batches(step: int):
        if step == at:
            raise Killed
        return real(step)

    return batches


@pytest.mark.parametrize("at", [1, 5, 7, 11])
def test_a_run_killed_anywhere_continues_to_the_same_bits(tmp_path, at):
    _, (whole,) = train(tmp_path / "whole")
    plan = Plan(**{**vars(PLAN), "checkpoint_minutes": 0.0})
    generator = torch.Generator()
    with pytest.raises(Killed):
        fit(
            trainable(network()),
            killing(generator, at),
            plan=plan,
            folder=tmp_path / "cut",
            generator=generator,
        )
    progress, (continued,) = train(tmp_path / "cut", plan)
    assert progress.done and progress.step == 12
    for (key, a), b in zip(
        whole.state_dict().items(), continued.state_dict().values(), strict=True
    ):
        assert torch.equal(a, b), key


def test_time_runs_out_with_everything_kept(tmp_path):
    plan = Plan(**{**vars(PLAN), "max_minutes": 0.0})
    steps = []
    for _ in range(12):
        progress, (net,) = train(tmp_path / "pieces", plan)
        steps.append(progress.step)
    assert steps == list(range(1, 13)) and progress.done
    _, (whole,) = train(tmp_path / "whole")
    assert all(
        torch.equal(a, b)
        for a, b in zip(whole.state_dict().values(), net.state_dict().values(), strict=True)
    )
    assert [row["epoch"] for row in progress.rows] == [1, 2, 3]


@pytest.mark.parametrize("which", [signal.SIGTERM, signal.SIGINT])
def test_a_request_to_end_keeps_the_state(tmp_path, which):
    handlers = [signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT)]
    generator = torch.Generator()
    real = make_batches(generator)

    def batches(step):
        if step == 4:
            signal.raise_signal(which)
        return real(step)

    progress, _ = train(tmp_path, batches=batches)
    assert progress.step == 5 and not progress.done and progress.stopped_by == which
    assert torch.load(tmp_path / "checkpoint.pt", weights_only=True)["progress"]["step"] == 5
    assert handlers == [signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT)]


def test_training_stops_early_when_no_judgement_is_better(tmp_path):
    scores = iter([0.5, 0.4, 0.3, 0.9])
    plan = Plan(steps=20, per_epoch=2, patience=2)
    progress, _ = train(tmp_path, plan, judge=lambda net, step: {"score": next(scores)})
    assert progress.step == 6 and progress.done and progress.best_step == 2


def test_updates_and_average_against_a_plain_loop(tmp_path):
    _, (found,) = train(tmp_path)
    net = network()
    weights = dict(net.named_parameters())
    mean = {k: v.detach().clone() for k, v in net.state_dict().items()}
    velocity = {k: torch.zeros_like(v) for k, v in weights.items()}
    generator = torch.Generator()
    for step in range(12):
        generator.manual_seed(update_seed(0, step, 0))
        batch = make_batches(generator)(step)
        value = loss(net, batch, step)["in"]
        grads = torch.autograd.grad(value, list(weights.values()))
        lr = 0.2 * PLAN.rate(step)
        with torch.no_grad():
            for (key, weight), grad in zip(weights.items(), grads, strict=True):
                g = grad + 1e-3 * weight
                velocity[key] = g.clone() if step == 0 else 0.9 * velocity[key] + g
                weight -= lr * (g + 0.9 * velocity[key])
        decay = min(0.9, (1 + step) / (10 + step))
        for key, value in net.state_dict().items():
            if value.is_floating_point():
                mean[key] = decay * mean[key] + (1 - decay) * value
    for key, value in found.state_dict().items():
        if value.is_floating_point():
            torch.testing.assert_close(value, mean[key], rtol=1e-4, atol=1e-6)


def test_rates_follow_their_schedules():
    linear = Plan(steps=10, per_epoch=1, schedule="linear", warmup=2)
    assert [linear.rate(s) for s in (0, 1, 2, 6)] == pytest.approx([1 / 3, 2 / 3, 1, 0.5])
    cosine = Plan(steps=10, per_epoch=1, schedule="cosine")
    assert [cosine.rate(s) for s in (0, 5)] == pytest.approx([1, 0.5])
    steps = Plan(steps=220, per_epoch=1, schedule="step", drops=(100 / 220, 150 / 220, 200 / 220))
    assert [steps.rate(s) for s in (99, 100, 149, 150, 199, 200)] == pytest.approx(
        [1, 0.1, 0.1, 0.01, 0.01, 0.001]
    )
    with pytest.raises(InputError, match="schedule is 'sine'"):
        Plan(steps=1, per_epoch=1, schedule="sine").rate(0)


def test_a_term_that_is_no_number_stops_with_step_term_and_last_checkpoint(tmp_path):
    def bad(net, batch, step):
        value = loss(net, batch, step)["in"]
        return {"in": value, "out": value * (float("nan") if step == 7 else 1.0)}

    net = network()
    plan = Plan(steps=12, per_epoch=3, log_every=4, checkpoint_minutes=0.0)
    with pytest.raises(TrainingFailed, match=r"'out' is nan at update 7 .*update 6: .*checkpoint"):
        fit(
            Trainable(net, bad, torch.optim.SGD(net.parameters(), lr=0.1)),
            make_batches(torch.Generator().manual_seed(0)),
            plan=plan,
            folder=tmp_path,
        )
    kept = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert kept["progress"]["step"] == 6
    assert all(v.isfinite().all() for v in kept["nets"][0].values())


def test_a_full_disk_names_folder_and_cure_and_spares_the_old_checkpoint(tmp_path, monkeypatch):
    real, calls = torch.save, []

    def full(state, path):
        calls.append(path)
        if len(calls) == 2:
            Path(path).write_bytes(b"half of it")
            raise OSError(errno.ENOSPC, "No space left on device")
        real(state, path)

    monkeypatch.setattr(torch, "save", full)
    plan = Plan(steps=12, per_epoch=3, log_every=3, checkpoint_minutes=0.0)
    with pytest.raises(
        InputError, match=r"update 6 .*disk is full .*update 3 is intact.*resume=True"
    ):
        train(tmp_path, plan)
    assert torch.load(tmp_path / "checkpoint.pt", weights_only=True)["progress"]["step"] == 3
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint.pt"]


def test_the_best_judged_weights_are_kept_if_asked(tmp_path):
    states = {}

    def judge(net, step):
        states[step] = {k: v.clone() for k, v in net.net.state_dict().items()}
        return {"score": {5: 0.3, 10: 0.9, 12: 0.5}[step]}

    plan = Plan(**{**vars(PLAN), "keep_best": True})
    progress, (kept,) = train(tmp_path / "best", plan, judge=judge)
    assert progress.best_step == 10 and progress.best == 0.9
    assert all(torch.equal(v, states[10][k]) for k, v in kept.state_dict().items())
    _, (last,) = train(tmp_path / "last", judge=judge)
    assert all(torch.equal(v, states[12][k]) for k, v in last.state_dict().items())


def test_two_players_each_follow_their_own_loss(tmp_path):
    first, second = network(), network()
    flat = Trainable(second, lambda n, b, s: {"size": n(b["x"]).square().mean()}, None)
    flat = Trainable(second, flat.loss, torch.optim.SGD(second.parameters(), lr=0.05))
    plan = Plan(steps=20, per_epoch=10)
    progress, nets = fit(
        [trainable(first), flat],
        make_batches(torch.Generator().manual_seed(0)),
        plan=plan,
        folder=tmp_path,
    )
    assert nets == [first, second]
    row = progress.rows[-1]
    assert row["loss.1.size"] < progress.rows[0]["loss.1.size"] and "loss.0.in" in row


def test_half_precision_arithmetic_keeps_float32_logits_and_weights():
    net = network()
    out = Mixed(net, "bf16")(torch.rand(2, 1, 5, 5))
    exact = Mixed(net, "fp32")(torch.rand(2, 1, 5, 5))
    assert out.dtype == exact.dtype == torch.float32
    assert {p.dtype for p in net.parameters()} == {torch.float32}


def test_counters_of_the_average_are_those_of_the_network():
    net = network()
    average = WeightAverage(net, 0.9)
    net(torch.rand(4, 1, 5, 5))
    assert average.module()[1].num_batches_tracked == 1
