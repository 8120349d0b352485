"""Losses against each other where they must agree, and five named mistakes that must not pass.

Oracles: closed relations (radius 0 removes an attack, λ = 0 removes the outside), float64
gradients, and batch statistics of one forward pass taken by hand. Each named mutant is the real
code with one mistake patched in; the check that the real loss passes must fail on it.
"""

import contextlib
import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from counterlens.ball import Ball
from counterlens.errors import InputError
from counterlens.losses import (
    Attack,
    acet_terms,
    adversarial_terms,
    half_adversarial_terms,
    inner,
    outlier_exposure,
    outlier_exposure_terms,
    plain_terms,
    random_strength_terms,
    ratio,
    ratio_terms,
    three_part_ratio_terms,
    trades_terms,
)
from counterlens.losses.trades import apart, divergence, trades_points

NEAR = Attack(Ball("l2", 0.5), ((0, 3),), 0.2)
FAR = Attack(Ball("l2", 1.0), ((0, 3),), 0.4)
STILL = Attack(Ball("l2", 0.0), ((0, 3),), 0.2)


def network(*, norm: bool = True, dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    middle = nn.BatchNorm2d(6) if norm else nn.Identity()
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), middle, nn.SiLU(), nn.Flatten(), nn.Linear(6 * 36, 4)
    ).to(dtype)


@pytest.fixture
def batch(rng: torch.Generator) -> dict[str, Tensor]:
    return {
        "x": torch.rand(6, 3, 6, 6, generator=rng),
        "y": torch.randint(4, (6,), generator=rng),
        "out": torch.rand(6, 3, 6, 6, generator=rng),
    }


def gradients(net: nn.Module, terms: dict[str, Tensor]) -> list[Tensor]:
    return list(torch.autograd.grad(sum(terms.values()), list(net.parameters())))


def same(a: list[Tensor], b: list[Tensor]) -> None:
    for left, right in zip(a, b, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-6, atol=1e-7)


def test_ratio_with_both_radii_zero_is_outlier_exposure(batch):
    first, second = network(), network()
    a = ratio_terms(first, batch, 0, near=STILL, far=STILL, out_weight=0.7)
    b = outlier_exposure_terms(second, batch, 0, out_weight=0.7)
    assert {k: v.item() for k, v in a.items()} == {k: v.item() for k, v in b.items()}
    same(gradients(first, a), gradients(second, b))


def test_ratio_without_an_outside_weight_is_adversarial_training_up_to_its_scale(batch):
    net = network(norm=False)  # batch statistics would see the outside images
    a = gradients(net, ratio_terms(net, batch, 0, near=NEAR, far=FAR, out_weight=0.0))
    b = gradients(net, adversarial_terms(net, batch, 0, near=NEAR))
    same([2 * g for g in a], b)


def test_adversarial_training_with_radius_zero_is_plain_training(batch):
    first, second = network(), network()
    a, b = adversarial_terms(first, batch, 0, near=STILL), plain_terms(second, batch, 0)
    assert a["in"].item() == b["in"].item()
    same(gradients(first, a), gradients(second, b))


def test_acet_is_ratio_without_an_inside_attack(batch):
    first, second = network(), network()
    a = acet_terms(first, batch, 0, far=FAR)
    b = ratio_terms(second, batch, 0, near=STILL, far=FAR)
    same(gradients(first, a), gradients(second, b))


def test_outlier_exposure_against_the_equation_written_out(batch):
    net = network().eval()
    terms = outlier_exposure_terms(net, batch, 0, out_weight=3.0, scale=1.0)
    inside, outside = net(batch["x"]).softmax(1), net(batch["out"]).softmax(1)
    ce = sum(-inside[i, batch["y"][i]].log() for i in range(6)) / 6
    kl = sum((0.25 * (0.25 / outside[i])[k].log()) for i in range(6) for k in range(4)) / 6
    torch.testing.assert_close(terms["in"], ce)
    torch.testing.assert_close(terms["out"], 3.0 * kl)


def test_half_clean_training_averages_its_halves(batch):
    net = network(norm=False)
    terms = half_adversarial_terms(net, batch, 0, near=NEAR)
    first = {"x": batch["x"][:3], "y": batch["y"][:3]}
    second = {"x": batch["x"][3:], "y": batch["y"][3:]}
    torch.testing.assert_close(terms["clean"], 0.5 * plain_terms(net, first, 0)["in"])
    torch.testing.assert_close(
        terms["in"], 0.5 * adversarial_terms(net, second, 0, near=NEAR)["in"]
    )


def test_three_parts_share_one_forward_and_weigh_a_third_each(batch):
    net = network(norm=False)
    terms = three_part_ratio_terms(net, batch, 0, near=NEAR, far=FAR)
    halves = half_adversarial_terms(net, batch, 0, near=NEAR)
    whole = ratio_terms(net, batch, 0, near=NEAR, far=FAR)
    torch.testing.assert_close(terms["clean"], halves["clean"] * 2 / 3)
    torch.testing.assert_close(terms["in"], halves["in"] * 2 / 3)
    torch.testing.assert_close(terms["out"], whole["out"] * 2 / 3)


def test_the_divergence_of_trades_has_no_gradient_at_the_image_itself(batch):
    net, x = network(dtype=torch.float64).eval(), batch["x"].double().requires_grad_(True)
    score = apart(net, net(x).detach())(x)
    (grad,) = torch.autograd.grad(score.sum(), x)
    assert grad.abs().max() < 1e-15


def test_the_first_step_of_trades_moves_and_teaches(batch, rng):
    net = network()
    one = Attack(Ball("l2", 0.5), ((0, 1),), 0.2)
    z = trades_points(net, batch["x"], 0, near=one, generator=rng)
    moved = (z - batch["x"]).flatten(1).norm(dim=1)
    assert (moved > 0.05).all() and (moved <= 0.5 + 1e-5).all()
    terms = trades_terms(net, batch, 0, near=one, generator=rng)
    grads = torch.autograd.grad(terms["near"], list(net.parameters()))
    assert terms["near"] > 0 and any(g.abs().max() > 1e-4 for g in grads)


def test_divergence_against_torch(rng):
    p, q = torch.randn(5, 4, generator=rng), torch.randn(5, 4, generator=rng)
    wanted = nn.functional.kl_div(q.log_softmax(1), p.softmax(1), reduction="none").sum(1)
    torch.testing.assert_close(divergence(p, q), wanted)


@pytest.mark.parametrize("kind", ["noise", "fgsm", "pgd"])
def test_perturbations_of_random_strength_stay_in_their_ball(kind, batch, rng, monkeypatch):
    seen = []
    net = network()
    net.register_forward_pre_hook(
        lambda module, args: seen.append(args[0]) if module.training else None
    )
    terms = random_strength_terms(net, batch, 0, kind=kind, generator=rng)
    (z,) = seen
    size = (z - batch["x"]).abs().flatten(1).amax(1)
    assert (size <= 8 / 255 + 1e-6).all() and size.std() > 0.002 and terms["in"] > 0


@pytest.mark.parametrize("raises", ["margin", "ce"])
def test_attacks_of_equal_steps_searched_together_find_what_each_finds_alone(batch, raises):
    net = network(dtype=torch.float64)
    x, out = batch["x"].double(), batch["out"].double()
    near = Attack(Ball("l2", 0.5), ((0, 3), (10, 4)), 0.2, raises=raises)
    calls = []
    net.register_forward_hook(lambda module, args, _: calls.append(len(args[0])))
    joint = inner.attack_both(near, FAR, net, x, batch["y"], out, 0)
    assert calls == [12] * 4  # three steps and a last look, all rows at once
    torch.testing.assert_close(joint[0], near.near(net, x, batch["y"], 0))
    torch.testing.assert_close(joint[1], FAR.far(net, out, 0))
    calls.clear()
    inner.attack_both(near, FAR, net, x, batch["y"], out, 10)
    assert set(calls) == {6}  # other steps, so apart


def test_attack_steps_grow_at_their_stages():
    attack = Attack(Ball("l2", 1.0), ((0, 20), (10, 25), (20, 30)))
    assert [attack.steps(s) for s in (0, 9, 10, 19, 20, 99)] == [20, 20, 25, 25, 30, 30]


def test_a_loss_that_misses_its_out_images_says_so(batch):
    del batch["out"]
    with pytest.raises(
        InputError, match=r"RATIO loss needs out-distribution images.*out_data=SPEC"
    ):
        ratio_terms(network(), batch, 0, near=NEAR, far=FAR)


# Five checks that the real loss passes


def attacks_leave_the_network_alone(batch: dict[str, Tensor]) -> None:
    """Statistics move once, by the joint forward; weights and flags stay."""
    net = network()
    weights = [p.clone() for p in net.parameters()]
    ratio_terms(net, batch, 0, near=NEAR, far=FAR)
    assert net[1].num_batches_tracked == 1
    assert all(p.grad is None and p.requires_grad for p in net.parameters())
    assert net.training and all(m.training for m in net.modules())
    assert all(torch.equal(p, w) for p, w in zip(net.parameters(), weights, strict=True))


def statistics_are_those_of_the_mixture(batch: dict[str, Tensor]) -> None:
    """The running mean after one update is 0.1 times the mean over in- and out-images together."""
    net = network()
    conv = copy.deepcopy(net[0])
    ratio_terms(net, batch, 0, near=STILL, far=STILL)
    mixture = conv(torch.cat([batch["x"], batch["out"]])).mean((0, 2, 3))
    torch.testing.assert_close(net[1].running_mean, 0.1 * mixture)
    assert net[1].num_batches_tracked == 1


def the_out_term_grows_with_certainty(batch: dict[str, Tensor]) -> None:
    """0 for a uniform answer, above it for a certain one, higher still at the attacked point."""
    net = network(norm=False)
    nn.init.zeros_(net[4].weight)
    nn.init.zeros_(net[4].bias)
    assert abs(ratio_terms(net, batch, 0, near=NEAR, far=FAR)["out"].item()) < 1e-6
    net = network(norm=False)
    attacked = ratio_terms(net, batch, 0, near=STILL, far=FAR)["out"].item()
    assert attacked > ratio_terms(net, batch, 0, near=STILL, far=STILL)["out"].item() > 0


def the_out_term_follows_its_weight(batch: dict[str, Tensor]) -> None:
    """λ multiplies the out-term."""
    net = network().eval()
    one = ratio_terms(net, batch, 0, near=NEAR, far=FAR, out_weight=1.0)
    three = ratio_terms(net, batch, 0, near=NEAR, far=FAR, out_weight=3.0)
    torch.testing.assert_close(three["out"], 3 * one["out"])
    torch.testing.assert_close(three["in"], one["in"])


def no_gradient_flows_through_the_attack(batch: dict[str, Tensor]) -> None:
    """The weights' gradient is the one at the attacked points held fixed."""
    net = network(norm=False)
    result = gradients(net, ratio_terms(net, batch, 0, near=NEAR, far=FAR))
    fixed = {
        "x": NEAR.near(net, batch["x"], batch["y"], 0).detach(),
        "y": batch["y"],
        "out": FAR.far(net, batch["out"], 0).detach(),
    }
    same(result, gradients(net, outlier_exposure_terms(net, fixed, 0)))


# The five mistakes


def flipped_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    real = outlier_exposure.uniform_divergence_of
    monkeypatch.setattr(outlier_exposure, "uniform_divergence_of", lambda z: -real(z))


def flipped_attack(monkeypatch: pytest.MonkeyPatch) -> None:
    real = inner.uniform_divergence
    monkeypatch.setattr(inner, "uniform_divergence", lambda net: lambda z: -real(net)(z))


def attack_in_train_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inner, "frozen", lambda net: contextlib.nullcontext())


def split_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    def apart(
        net: nn.Module, x: Tensor, y: Tensor, out: Tensor, *, out_weight: float, scale: float
    ):
        return {
            "in": scale * nn.functional.cross_entropy(net(x), y),
            "out": scale * out_weight * outlier_exposure.uniform_divergence_of(net(out)).mean(),
        }

    monkeypatch.setattr(ratio, "joint_terms", apart)


def ignored_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    real = outlier_exposure.joint_terms

    def joint(*args: Tensor, out_weight: float, scale: float) -> dict[str, Tensor]:
        return real(*args, out_weight=1.0, scale=scale)

    monkeypatch.setattr(ratio, "joint_terms", joint)


def missing_detach(monkeypatch: pytest.MonkeyPatch) -> None:
    def one_step(self, net, objective, x, step, generator=None):
        z = x.detach().requires_grad_(True)
        (grad,) = torch.autograd.grad(objective(z).sum(), z, create_graph=True)
        return self.ball.project(x + self.ball.steepest(grad), x)

    monkeypatch.setattr(Attack, "search", one_step)


CHECKS = (
    attacks_leave_the_network_alone,
    statistics_are_those_of_the_mixture,
    the_out_term_grows_with_certainty,
    the_out_term_follows_its_weight,
    no_gradient_flows_through_the_attack,
)
KILLED_BY = {
    flipped_sign: the_out_term_grows_with_certainty,
    flipped_attack: the_out_term_grows_with_certainty,
    attack_in_train_mode: attacks_leave_the_network_alone,
    split_forward: statistics_are_those_of_the_mixture,
    ignored_weight: the_out_term_follows_its_weight,
    missing_detach: no_gradient_flows_through_the_attack,
}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_real_loss_passes(check: Callable[[dict[str, Tensor]], None], batch):
    check(batch)


@pytest.mark.parametrize("mutant", KILLED_BY, ids=lambda mutant: mutant.__name__)
def test_the_mutant_is_killed(mutant: Callable[[pytest.MonkeyPatch], None], batch, monkeypatch):
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        KILLED_BY[mutant](batch)
