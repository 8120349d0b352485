"""A tie is decided by arg-max, in accuracy and under attack alike: models with a closed form."""

import pytest
import torch
from torch import nn

from attack_models import short, small_cnn
from counterlens.ball import Ball
from counterlens.objectives import decision_margin_of, margin_of
from counterlens.search import AttackSettings, fab, robust

QUICK = AttackSettings(batch=16, trust=False)


class CutOff(nn.Module):
    """One class has the logit max(mean pixel − 1/4, 0), all others have 0: it can only be tied."""

    def __init__(self, answer: int) -> None:
        super().__init__()
        self.answer = answer
        self.weight = nn.Parameter(torch.tensor(1.0))

    def forward(self, x):
        logits = x.new_zeros(len(x), 4) - self.weight
        logits[:, self.answer] = self.weight * (x.mean((1, 2, 3)) - 0.25)
        return logits.relu()


@pytest.mark.parametrize(("answer", "held"), [(2, [False, True]), (0, [True, True])])
def test_a_point_whose_class_loses_a_tie_is_broken(answer, held):
    """Oracle: in l∞ 0.1 a mean of 0.3 falls below 1/4, one of 0.5 does not; class 0 wins ties."""
    x = torch.tensor([0.3, 0.5]).view(2, 1, 1, 1).expand(2, 1, 4, 4).clone()
    y = torch.full((2,), answer)
    model = CutOff(answer)
    ball = Ball("linf", 0.1)
    result = robust(model, x, y, ball, version=short(4, "linf"), settings=QUICK)
    assert result.robust.tolist() == held
    assert torch.equal(model(result.points).argmax(1) == y, result.robust)
    assert margin_of(model(result.points), y).max() <= 0  # no more than a tie was ever reached


def test_the_boundary_attack_ends_at_a_tie_that_is_lost():
    x, y = torch.full((1, 1, 4, 4), 0.3), torch.tensor([2])
    met = fab(CutOff(2), x, y, Ball("linf", 1.0), target=torch.tensor([1]), steps=10)
    assert met.distances.item() == pytest.approx(0.05, abs=0.01)


def test_the_decision_margin_is_positive_exactly_where_arg_max_differs():
    rng = torch.Generator().manual_seed(0)
    logits = torch.randint(0, 3, (500, 5), generator=rng).float()
    label = torch.randint(0, 5, (500,), generator=rng)
    assert torch.equal(decision_margin_of(logits, label) > 0, logits.argmax(1) != label)
    assert (margin_of(logits, label) == 0).sum() > 100


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_images_and_models_of_double_precision_are_attacked(kind):
    model = small_cnn(4).double()
    if kind == torch.float32:  # a model that takes its images as they come
        model = nn.Sequential(Doubled(), model)
    x = torch.full((3, 1, 8, 8), 0.5, dtype=kind) + torch.arange(3).view(3, 1, 1, 1) / 10
    with torch.no_grad():
        y = model(x).argmax(1)
    result = robust(model, x, y, Ball("l2", 1.0), version=short(4, queries=20), settings=QUICK)
    assert result.points.dtype == kind
    assert torch.equal(model(result.points).argmax(1) == y, result.robust)


class Doubled(nn.Module):
    def forward(self, x):
        return x.double()
