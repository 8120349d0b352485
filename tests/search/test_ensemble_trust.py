"""Trust against models whose gradient is known to lie, and honest ones that must not be blamed."""

import pytest
import torch
from torch import nn

from attack_models import (
    BrokenGradient,
    Linear,
    Quantised,
    Randomised,
    Scaled,
    Shattered,
    Squashed,
    images,
    short,
    small_cnn,
)
from counterlens.ball import Ball
from counterlens.search import AttackSettings, Flag, fab, robust, weigh
from counterlens.search.apgd import Apgd
from counterlens.search.ensemble import protocols
from counterlens.search.ensemble.stage import SearchStage
from counterlens.search.ensemble.state import initial_state
from counterlens.search.ensemble.trust import PROBED, examine, spread
from counterlens.search.fast.engine import open_engine


def judged(model, *, norm="l2", rows=40, clean=None, surrogates=(), stages=4):
    """The verdict on a model at the radius where about half of the points hold."""
    x = images(rows)
    clean = clean or model
    with torch.no_grad():
        logits = clean(x)
    y = logits.argmax(1)
    radius = fab(clean, x, y, Ball(norm, 1.0), steps=10).distances.median().item()
    stages = short(logits.shape[1], norm, queries=300)[:stages]
    settings = AttackSettings(batch=64)
    return robust(
        model, x, y, Ball(norm, radius), version=stages, settings=settings, surrogates=surrogates
    )


def honest_models():
    torch.manual_seed(5)
    mlp = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 3)).eval()
    normed = nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(96, 5),
    ).eval()
    return {
        "linear, two classes": (Linear(2, 64), "l2"),
        "relu network": (small_cnn(4), "l2"),
        "smooth network, l∞": (small_cnn(4, act=nn.SiLU, seed=3), "linf"),
        "tanh network": (mlp, "l2"),
        "network with batch norm": (normed, "l2"),
    }


@pytest.mark.parametrize("name", honest_models())
def test_an_honest_model_may_be_quoted(name):
    model, norm = honest_models()[name]
    result = judged(model, norm=norm)
    assert 0.25 < result.accuracy < 0.75
    assert result.trust.verdict != "do not quote", result.trust.reasons


MASKED = [
    (Randomised, "randomness"),
    (Quantised, "zero-gradients"),
    (BrokenGradient, "honest-gradient"),
]


@pytest.mark.parametrize(("mask", "reason"), MASKED)
def test_a_model_that_hides_its_gradient_is_not_quoted(mask, reason):
    net = small_cnn(4)
    result = judged(mask(net).eval(), clean=net)
    assert result.trust.verdict == "do not quote"
    bad = {flag.name for flag in result.trust.flags if flag.status == "bad"}
    assert reason in bad
    assert result.trust.reasons and result.trust.to_json()["verdict"] == "do not quote"


def test_a_mask_that_no_sign_was_tuned_to_is_not_quoted():
    net = small_cnn(4)
    result = judged(Shattered(net).eval(), clean=net)
    assert result.accuracy > judged(net).accuracy + 0.05  # the attack did fail
    assert result.trust.verdict == "do not quote"
    bad = {flag.name for flag in result.trust.flags if flag.status == "bad"}
    assert "more-steps" in bad


def test_a_mask_the_attack_sees_through_is_not_blamed():
    net = small_cnn(4)
    result = judged(Squashed(net).eval(), clean=net)
    assert result.accuracy <= judged(net).accuracy + 0.03
    assert result.trust.verdict != "do not quote"


def test_logits_that_are_no_numbers_are_not_quoted():
    net = small_cnn(4)

    class Overflowing(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, x):
            return self.net(x) + torch.where(x.amax((1, 2, 3)) > 0.805, torch.nan, 0.0)[:, None]

    result = judged(Overflowing().eval(), rows=12, clean=net)
    assert result.trust.verdict == "do not quote"
    assert any(flag.name == "finite" and flag.status == "bad" for flag in result.trust.flags)


def test_images_made_against_another_model_count():
    net = small_cnn(4)
    result = judged(BrokenGradient(net).eval(), clean=net, surrogates=[net], stages=2)
    transfer = next(flag for flag in result.trust.flags if flag.name == "transfer")
    assert transfer.status == "bad" and transfer.value > 0.05
    honest = judged(net, stages=1)
    skipped = next(flag for flag in honest.trust.flags if flag.name == "transfer")
    assert skipped.status == "skipped"


def test_one_bad_sign_forbids_and_one_weak_sign_weakens():
    ok = Flag("a", "ok", 0.0, "fine")
    weak = Flag("b", "weak", 0.1, "hm")
    bad = Flag("c", "bad", 0.9, "no")
    assert weigh([ok]).verdict == "trusted"
    assert weigh([ok, weak]).verdict == "weak"
    both = weigh([ok, weak, bad])
    assert both.verdict == "do not quote" and both.reasons == ("no", "hm")


def test_a_number_whose_probes_were_not_run_is_not_trusted():
    model, x = small_cnn(4), images(8)
    y = model(x).argmax(1)
    stages = short(4, "l2", queries=20)[:1]
    settings = AttackSettings(batch=64, trust=False)
    result = robust(model, x, y, Ball("l2", 0.05), version=stages, settings=settings)
    assert result.complete and result.trust.verdict == "weak"
    assert any("probes" in reason for reason in result.trust.reasons), result.trust.reasons


@pytest.fixture
def short_square(monkeypatch):
    """Version standard with a Square of 200 queries."""
    monkeypatch.setattr(protocols, "QUERIES", 200)


def standard(model, version="standard"):
    x = images(12)
    with torch.no_grad():
        y = model(x).argmax(1)
    return robust(model, x, y, Ball("l2", 0.2), version=version, settings=AttackSettings(batch=64))


@pytest.mark.usefixtures("short_square", "one_thread")
def test_the_scale_of_the_logits_changes_neither_number_nor_verdict():
    net = small_cnn(4, act=nn.SiLU)
    plain = standard(net)
    assert 0 < plain.accuracy < 1 and plain.trust.verdict == "trusted", plain.trust.reasons
    for factor in (1e4, 1e-6):
        scaled = standard(Scaled(net, factor).eval())
        assert scaled.accuracy == plain.accuracy
        assert scaled.trust.verdict == "trusted", (factor, scaled.trust.reasons)


@pytest.mark.usefixtures("short_square", "one_thread")
def test_what_is_weaker_than_standard_is_never_trusted():
    net = small_cnn(4, act=nn.SiLU)
    five_steps = [SearchStage("apgd-ce", Apgd(5), protocols.SCORES["ce"])]
    for version in (five_steps, "rand", "fast", "ratio-era"):
        result = standard(net, version)
        assert result.trust.verdict == "weak", (version, result.trust.flags)
        assert "weaker than version standard" in result.trust.reasons[0]
    assert standard(net, "plus").trust.verdict == "trusted"


@pytest.mark.parametrize(
    ("later", "lacking", "status"),
    [([], (), "ok"), (["fab-t"] * 3, (), "weak"), ([], ("square",), "weak")],
)
def test_a_switch_of_the_loss_weakens_only_if_more_was_found_after_it(later, lacking, status):
    """Oracle: the rule itself, on a record written by hand."""
    net, x = small_cnn(4), images(20)
    y = net(x).argmax(1)
    with open_engine(net, x) as engine:
        attack = initial_state(engine, x, y, Ball("l2", 0.2), seed=0, batch=20)
        by = ["apgd-t"] * 8 + later
        attack.broken_by[: len(by)] = by
        attack.robust[:] = False
        attack.tallies = [
            {"stage": name, "odd": 0} for name in ("apgd-ce", "apgd-t", "fab-t", "square")
        ]
        trust = examine(engine, attack, lacking=lacking, complete=True, probes=True)
    switch = next(flag for flag in trust.flags if flag.name == "loss-switch")
    assert switch.value == 0.4 and switch.status == status, switch


def test_the_probed_points_come_from_the_whole_set():
    rows = torch.arange(1000).numpy()
    some = spread(rows, PROBED)
    assert len(set(some.tolist())) == PROBED and (some[0], some[-1]) == (0, 999)
    assert spread(rows[:5], PROBED).tolist() == [0, 1, 2, 3, 4]
