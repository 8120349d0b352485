"""The ensemble against exact answers: linear models, every point of a grid, long plain PGD."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from attack_models import Linear, images, short, small_cnn
from counterlens.ball import Ball, row_seeds
from counterlens.classifier import Classifier
from counterlens.errors import InputError
from counterlens.objectives import confidence_anywhere_of, margin, margin_of
from counterlens.search import (
    AttackSettings,
    lowest_confidence,
    pgd,
    robust,
    worst_confidence,
)
from counterlens.search.ensemble.protocols import VERSIONS, stages_of
from counterlens.types import Preprocess

QUICK = AttackSettings(batch=16, trust=False)


@pytest.mark.parametrize("classes", [2, 3, 4, 6])
@pytest.mark.parametrize(("norm", "dual"), [("l2", 2.0), ("linf", 1.0)])
def test_breaks_exactly_the_points_a_linear_boundary_allows(classes, norm, dual):
    model = Linear(classes, 27)
    x = 0.5 + 0.05 * torch.randn(40, 3, 3, 3, generator=torch.Generator().manual_seed(1))
    y = model(x).argmax(1)
    y[0] = (y[0] + 1) % classes  # wrong without attack
    gaps = model(x).gather(1, y[:, None]) - model(x)
    w = model.weight.detach()
    slopes = torch.linalg.vector_norm(w[None] - w[y][:, None], dual, dim=2).clamp_min(1e-9)
    exact = (gaps / slopes).scatter(1, y[:, None], torch.inf).amin(1).detach()
    radius = exact[1:].median().item()
    result = robust(model, x, y, Ball(norm, radius), version=short(classes, norm), settings=QUICK)
    clear = (exact / radius - 1).abs() > 0.01
    assert torch.equal(result.robust[clear], (exact > radius)[clear])
    assert result.accuracy == pytest.approx(result.robust.float().mean().item())
    assert result.broken_by[0] == "clean" and result.distances[0] == 0
    assert result.correct.sum() == 39

    broken = ~result.robust & result.correct
    assert (model(result.points).argmax(1) != y)[broken].all()
    assert Ball(norm, radius).contains(result.points, x).all()
    assert torch.equal(result.points[result.robust], x[result.robust])
    near = result.distances[result.robust & clear]  # FAB also says how far the others would be
    assert torch.isfinite(near).all()
    torch.testing.assert_close(near, exact[result.robust & clear], rtol=0.08, atol=0)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_two_pixels_against_every_point_of_a_grid(classes, norm):
    torch.manual_seed(classes)
    model = nn.Sequential(nn.Flatten(), nn.Linear(2, 24), nn.Tanh(), nn.Linear(24, classes))
    x = torch.rand(30, 1, 1, 2, generator=torch.Generator().manual_seed(2))
    ball = Ball(norm, 0.12)
    line = torch.linspace(-0.12, 0.12, 97)
    steps = torch.cartesian_prod(line, line).view(-1, 1, 1, 2)
    best = torch.empty(30)
    with torch.no_grad():
        model[1].weight.mul_(8)
        model[3].bias.sub_(model(x).mean(0))  # so that every class has a region
        y = model(x).argmax(1)
        for row in range(30):
            grid = x[row] + steps
            grid = grid[ball.contains(grid, x[row : row + 1].expand_as(grid))]
            best[row] = margin_of(model(grid), y[row].expand(len(grid))).max()
    result = robust(model, x, y, ball, version=short(classes, norm), settings=QUICK)
    clear = best.abs() > 0.02  # the grid itself is only so fine
    assert 5 < int((best > 0).sum()) < 25
    assert torch.equal(result.robust[clear], (best <= 0)[clear])


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.usefixtures("one_thread")
def test_few_classes_against_a_thousand_steps_of_plain_pgd(classes):
    model = small_cnn(classes, act=nn.SiLU)
    x = images(32)
    y = model(x).argmax(1)
    ball = Ball("l2", 0.2)
    result = robust(model, x, y, ball, version=short(classes), settings=QUICK)
    often, labels = x.repeat(3, 1, 1, 1), y.repeat(3)  # three starts at once
    long = pgd(margin(model, labels), often, ball, steps=1000, generator=row_seeds(96, 0))
    alive = (long.scores <= 0).view(3, 32).all(0)
    assert 3 < int(alive.sum()) < 30
    assert not (result.robust & ~alive).any()


def test_standard_adapts_to_the_number_of_classes_and_says_so():
    stages, notes = stages_of("standard", 10, "l2")
    assert [(s.name, s.variants) for s in stages] == [
        ("apgd-ce", 1),
        ("apgd-t", 9),
        ("fab-t", 9),
        ("square", 1),
    ]
    assert notes == []
    stages, notes = stages_of("standard", 3, "linf")
    assert [s.variants for s in stages] == [1, 2, 2, 1]
    assert any("targeted DLR is undefined" in note for note in notes)
    _, notes = stages_of("ratio-era", 2, "l2")
    assert any("DLR is undefined, the margin" in note for note in notes)
    stages, notes = stages_of("standard", 10, "l1")
    assert [s.name for s in stages] == ["apgd-ce", "apgd-t", "fab-t", "square"]
    assert notes == []
    stages, notes = stages_of("standard", 10, "l1.5")
    assert [s.name for s in stages] == ["apgd-ce", "apgd-t"]
    assert notes == ["no FAB for l1.5", "no Square for l1.5"]
    plus = [(s.name, s.variants) for s in stages_of("plus", 10, "l2")[0]]
    assert plus[:4] == [("apgd-ce", 5), ("apgd-dlr", 5), ("fab", 1), ("fab", 4)]
    with pytest.raises(InputError, match="expected one of standard"):
        stages_of("best", 10, "l2")


@pytest.mark.parametrize("version", VERSIONS)
def test_every_protocol_runs(version):
    model = small_cnn(4)
    x = images(6)
    y = model(x).argmax(1)
    stages, _ = stages_of(version, 4, "l2")
    shorter = []
    for stage in stages:
        few = {"steps": 5} if hasattr(stage.rule, "steps") else {"queries": 20}
        shorter.append(replace(stage, rule=replace(stage.rule, **few)))
    result = robust(model, x, y, Ball("l2", 0.3), version=shorter, settings=QUICK)
    assert len(result.stages) == len(stages) and result.complete
    assert result.counts["forwards"] > 0


def test_the_answer_does_not_depend_on_batch_size_and_the_model_is_left_alone():
    model = small_cnn(4)
    model.train()
    before = copy.deepcopy(model.state_dict())
    x = images(24)
    y = model(x).argmax(1)
    small = robust(model, x, y, Ball("l2", 0.3), version=short(4), settings=QUICK)
    large = robust(
        model, x, y, Ball("l2", 0.3), version=short(4), settings=replace(QUICK, batch=500)
    )
    assert torch.equal(small.robust, large.robust)
    assert 0 < small.robust.sum() < 24
    again = robust(model, x, y, Ball("l2", 0.3), version=short(4), settings=QUICK)
    assert torch.equal(small.points, again.points) and small.broken_by == again.broken_by
    assert model.training and all(w.requires_grad and w.grad is None for w in model.parameters())
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


def test_broken_points_leave_and_the_batch_is_filled_again():
    net = small_cnn(4)
    sizes = []

    def model(z):
        if torch.is_grad_enabled():
            sizes.append(len(z))
        return net(z)

    x = images(40)
    y = net(x).argmax(1)
    stages = short(4)[:1]
    result = robust(model, x, y, Ball("l2", 0.3), version=stages, settings=replace(QUICK, batch=8))
    assert int((~result.robust).sum()) > 5
    assert sizes.pop(0) == 1  # the first image shows whether the model has gradients at all
    assert set(sizes[:-21]) == {8}  # full to the last item's start
    assert sum(sizes) == result.counts["backwards"] == result.stages[0]["evaluations"]
    assert sum(sizes) < 0.8 * 40 * 21  # what all points to the end would cost


def test_bf16_search_never_claims_what_float32_denies():
    model = small_cnn(4)
    x = images(24)
    y = model(x).argmax(1)
    ball = Ball("l2", 0.3)
    half = robust(model, x, y, ball, version=short(4), settings=replace(QUICK, precision="bf16"))
    whole = robust(model, x, y, ball, version=short(4), settings=QUICK)
    broken = ~half.robust & half.correct
    assert (margin_of(model(half.points), y) > 0)[broken].all()
    assert (half.robust != whole.robust).sum() <= 1


def test_an_empty_budget_gives_bounds_and_no_verdict():
    model = small_cnn(4)
    x = images(10)
    y = model(x).argmax(1)
    y[3] = (y[3] + 1) % 4
    result = robust(model, x, y, Ball("l2", 0.3), settings=replace(QUICK, budget=0.0))
    assert not result.complete and result.bounds == (0.0, 0.9)
    assert result.trust.verdict == "weak" and "budget" in result.trust.reasons[0]
    whole = robust(model, x, y, Ball("l2", 0.3), version=short(4), settings=QUICK)
    assert whole.bounds == (whole.accuracy, whole.accuracy)
    assert result.bounds[0] <= whole.accuracy <= result.bounds[1]


def test_radius_zero_is_clean_accuracy():
    model = small_cnn(4)
    x = images(10)
    y = model(x).argmax(1)
    y[3] = (y[3] + 1) % 4
    result = robust(model, x, y, Ball("l2", 0), version=short(4), settings=QUICK)
    assert result.accuracy == pytest.approx(0.9) and torch.equal(result.points, x)


def test_worst_confidence_of_a_linear_model_is_the_best_corner_of_its_ball():
    model = Linear(2, 9)
    x = 0.5 + 0.05 * torch.randn(12, 1, 3, 3, generator=torch.Generator().manual_seed(1))
    result = worst_confidence(model, x, Ball("l2", 0.2), steps=30, restarts=2, settings=QUICK)
    w = (model.weight[0] - model.weight[1]).detach()
    gap = (model(x) @ torch.tensor([1.0, -1.0])).abs().detach() + 0.2 * w.norm()
    exact = torch.nn.functional.logsigmoid(gap)
    torch.testing.assert_close(result.scores, exact, rtol=1e-3, atol=1e-5)
    assert (result.scores >= confidence_anywhere_of(model(x)).detach() - 1e-6).all()
    assert Ball("l2", 0.2).contains(result.points, x).all()
    torch.testing.assert_close(
        confidence_anywhere_of(model(result.points)).detach(), result.scores, rtol=0, atol=1e-6
    )
    y = model(x).argmax(1)
    low = lowest_confidence(model, x, y, Ball("l2", 0.2), steps=30, settings=QUICK)
    clean_gap = (model(x) @ torch.tensor([1.0, -1.0])).abs().detach()
    lowest = torch.nn.functional.logsigmoid(clean_gap - 0.2 * w.norm())
    torch.testing.assert_close(low.scores, lowest, rtol=1e-3, atol=1e-5)


def classifier():
    return Classifier(
        small_cnn(4), list("abcd"), mean=(0.0,), std=(1.0,), preprocess=Preprocess((8, 8))
    ).eval()


BAD = [
    (lambda x, y: (x, y + 4), "spans 4 … 7, expected 0 … 3"),
    (lambda x, y: (x, y - 1), "expected 0 … 3"),
    (lambda x, y: (x, y[:-1]), "one per image"),
    (lambda x, y: (x, y.float()), "whole numbers"),
    (lambda x, y: (torch.full_like(x, torch.nan), y), "NaN or infinite"),
    (lambda x, y: (x * 255, y), "divided by 255"),
    (lambda x, y: ((x * 255).to(torch.uint8), y), "x.float\\(\\) / 255"),
    (lambda x, y: (x[0], y), "batch, channels, height, width"),
    (lambda x, y: (x[:, :, :4], y), "Sequential takes \\(1, 8, 8\\)"),
    (lambda x, y: (x.expand(-1, 3, -1, -1), y), "Sequential takes \\(1, 8, 8\\)"),
    (lambda x, y: (x[:0], y[:0]), "empty"),
]


@pytest.mark.parametrize(("spoil", "message"), BAD)
def test_bad_input_is_named(spoil, message):
    model = classifier()
    x = images(4)
    y = torch.tensor([0, 1, 2, 3])
    with pytest.raises(InputError, match=message):
        robust(model, *spoil(x, y), Ball("l2", 0.1), settings=QUICK)


def test_bad_models_are_named():
    x, y = images(2), torch.tensor([0, 1])
    net = small_cnn(4)
    with pytest.raises(InputError, match="tuple, expected one tensor of logits"):
        robust(lambda z: (net(z), z), x, y, Ball("l2", 0.1), settings=QUICK)
    with pytest.raises(InputError, match="1 class, expected at least 2"):
        robust(lambda z: net(z)[:, :1], x, y, Ball("l2", 0.1), settings=QUICK)
    with pytest.raises(InputError, match="refuses images of shape"):
        robust(net, images(2, side=9), y, Ball("l2", 0.1), settings=QUICK)
    with pytest.raises(InputError, match="radius is -1"):
        Ball("l2", -1.0)
    with pytest.raises(InputError, match="batch is 0"):
        robust(net, x, y, Ball("l2", 0.1), settings=replace(QUICK, batch=0))
    with pytest.raises(InputError, match="one per row"):
        robust(net, x, y, Ball("l2", torch.ones(2)), settings=QUICK)


def test_fast_finds_what_a_linear_boundary_allows_and_is_never_trusted():
    """The distance to the boundary of a linear model is exact; no attack passes it."""
    model = Linear(5, 27)
    x = 0.5 + 0.05 * torch.randn(12, 3, 3, 3, generator=torch.Generator().manual_seed(1))
    y = model(x).argmax(1)
    gaps = model(x).gather(1, y[:, None]) - model(x)
    w = model.weight.detach()
    slopes = torch.linalg.vector_norm(w[None] - w[y][:, None], 2, dim=2).clamp_min(1e-9)
    exact = (gaps / slopes).scatter(1, y[:, None], torch.inf).amin(1).detach()
    radius = exact.median().item() * 1.02
    result = robust(
        model, x, y, Ball("l2", radius), version="fast", settings=AttackSettings(batch=16)
    )
    clear = (exact / radius - 1).abs() > 0.01
    assert torch.equal(result.robust[clear], (exact > radius)[clear])
    assert result.trust.verdict != "trusted"
    assert any("upper bound" in reason for reason in result.trust.reasons)
    assert [stage.variants for stage in stages_of("fast", 10, "l2")[0]] == [1, 3]
    assert "AutoAttack" not in result.protocol
