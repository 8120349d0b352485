"""Attacks against torchattacks, pyautoattack and foolbox on the same small networks."""

import pytest
import torch
from torch import nn

from attack_models import short
from counterlens.ball import Ball
from counterlens.objectives import margin_of, wrongness
from counterlens.search import AttackSettings, fab, pgd, robust

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # foolbox uses old scipy names
]

QUERIES = 100


def network(seed: int) -> nn.Module:
    """Ten classes on 3 × 16 × 16 images, random weights, frozen."""
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Conv2d(3, 12, 3, padding=1),
        nn.BatchNorm2d(12),
        nn.ReLU(),
        nn.Conv2d(12, 16, 3, stride=2, padding=1),
        nn.SiLU(),
        nn.Flatten(),
        nn.Linear(16 * 64, 10),
    ).eval()
    return net.requires_grad_(False)


def case(seed: int, norm: str):
    """A network, points it gets right, and the radius at which about half of them hold."""
    net = network(seed)
    rng = torch.Generator().manual_seed(seed)
    x = 0.2 + 0.6 * torch.rand(30, 3, 16, 16, generator=rng)
    y = net(x).argmax(1)
    radius = fab(net, x, y, norm, steps=20).distances.median().item()
    return net, x, y, Ball(norm, radius)


@pytest.fixture(params=[(0, "l2"), (1, "linf")], ids=["l2", "linf"])
def setting(request):
    return case(*request.param)


def test_l1_projection_is_that_of_autoattack():
    from pyautoattack.autopgd_base import L1_projection

    rng = torch.Generator().manual_seed(4)
    x = torch.rand(20, 3, 8, 8, generator=rng)
    delta = torch.randn(20, 3, 8, 8, generator=rng)
    for radius in (0.5, 5.0, 60.0):
        theirs = x + delta + L1_projection(x, delta, radius)
        torch.testing.assert_close(
            Ball("l1", radius).project(x + delta, x), theirs, atol=5e-5, rtol=0
        )


def test_no_more_points_hold_in_l1_than_under_pyautoattack():
    from pyautoattack import AutoAttack

    net, x, y, ball = case(5, "l1")
    attack = AutoAttack(net, norm="L1", eps=ball.radius, seed=0, device="cpu")
    attack.square.n_queries = QUERIES
    out = attack.run_standard_evaluation(x, y, batch_size=30)
    out = out[0] if isinstance(out, tuple) else out
    theirs = net(out).argmax(1) == y
    result = ours(net, x, y, ball)
    assert 0 < result.robust.sum() < len(x)
    assert result.robust.sum() <= theirs.sum() + 1


def ours(net, x, y, ball):
    stages = short(10, ball.norm, steps=100, queries=QUERIES)
    return robust(net, x, y, ball, version=stages, settings=AttackSettings(batch=64, trust=False))


NAMES = {"l2": "L2", "linf": "Linf"}


def test_no_more_points_hold_than_under_pyautoattack(setting):
    from pyautoattack import AutoAttack

    net, x, y, ball = setting
    attack = AutoAttack(net, norm=NAMES[ball.norm], eps=ball.radius, seed=0, device="cpu")
    attack.square.n_queries = QUERIES
    out = attack.run_standard_evaluation(x, y, batch_size=30)
    out = out[0] if isinstance(out, tuple) else out
    theirs = net(out).argmax(1) == y
    result = ours(net, x, y, ball)
    assert 0 < result.robust.sum() < len(x)
    assert (result.robust & ~theirs).sum() <= 1
    assert result.robust.sum() <= theirs.sum()


def test_no_more_points_hold_than_under_torchattacks(setting):
    import torchattacks

    net, x, y, ball = setting
    attack = torchattacks.AutoAttack(
        net, norm=NAMES[ball.norm], eps=ball.radius, n_classes=10, seed=0
    )
    for part in attack._autoattack.attacks:
        if hasattr(part, "n_queries"):
            part.n_queries = QUERIES
    theirs = net(attack(x, y)).argmax(1) == y
    result = ours(net, x, y, ball)
    assert result.robust.sum() <= theirs.sum()


def test_one_step_is_foolbox_fgsm():
    import foolbox

    net, x, y, _ = case(2, "linf")
    model = foolbox.PyTorchModel(net, bounds=(0, 1), device="cpu")
    _, theirs, _ = foolbox.attacks.FGSM(random_start=False)(model, x, y, epsilons=0.03)
    result = pgd(wrongness(net, y), x, Ball("linf", 0.03), steps=1, step_size=0.03)
    torch.testing.assert_close(result.points, theirs)


def test_boundary_points_are_as_near_as_foolbox_finds_them():
    import foolbox

    net, x, y, _ = case(3, "l2")
    model = foolbox.PyTorchModel(net, bounds=(0, 1), device="cpu")
    attack = foolbox.attacks.L2DeepFoolAttack(steps=50, overshoot=0.02, candidates=10)
    _, theirs, _ = attack(model, x, y, epsilons=None)
    near = Ball("l2", 1).distance(theirs, x)
    result = fab(net, x, y, "l2", steps=100)
    assert (margin_of(net(result.points), y) > 0).all()
    assert (result.distances <= near * 1.01).float().mean() > 0.95


def test_a_relu_on_the_logits_leaves_what_pyautoattack_leaves(setting):
    """Ties: with a cut-off at zero many points are broken by nothing more than a lost tie."""
    from pyautoattack import AutoAttack

    net, x, y, ball = setting
    cut = nn.Sequential(net, nn.ReLU()).eval()
    right = cut(x).argmax(1) == y
    attack = AutoAttack(cut, norm=NAMES[ball.norm], eps=ball.radius, seed=0, device="cpu")
    attack.square.n_queries = QUERIES
    out = attack.run_standard_evaluation(x, y, batch_size=30)
    out = out[0] if isinstance(out, tuple) else out
    theirs = (cut(out).argmax(1) == y) & right
    result = ours(cut, x, y, ball)
    assert (result.robust != theirs).sum() <= 1
    assert result.robust.sum() <= theirs.sum()
