"""Gradients that are missing, useless or elsewhere: Square alone, transfer, BPDA, lambdas."""

import functools

import pytest
import torch
from torch import nn

import counterlens
from attack_models import Quantised, Wrapped, images, short, small_cnn
from counterlens.ball import Ball
from counterlens.errors import InputError
from counterlens.objectives import margin_of
from counterlens.search import AttackSettings, fab, robust, worst_confidence
from counterlens.search.result import networks_of

ROWS = 30


@pytest.fixture(scope="module")
def case():
    """A network, images with its own answers, and the radius at which about half of them hold."""
    net = small_cnn(4)
    x = images(ROWS)
    with torch.no_grad():
        y = net(x).argmax(1)
    radius = fab(net, x, y, Ball("l2", 1.0), steps=10).distances.median().item()
    return net, x, y, Ball("l2", radius)


def attacked(case, model, **options):
    _, x, y, ball = case
    stages = options.pop("stages", short(4, "l2")[:1])
    settings = AttackSettings(batch=64, trust=options.pop("trust", False))
    return robust(model, x, y, ball, version=stages, settings=settings, **options)


class Detached(Wrapped):
    def forward(self, x):
        return self.net(x).detach()


class Numpy(Wrapped):
    def forward(self, x):
        return self.net(torch.from_numpy(x.numpy())).clone()


class Ungraded(Wrapped):
    @torch.no_grad()
    def forward(self, x):
        return self.net(x)


def scripted(net):
    return torch.jit.trace(Detached(net).eval(), images(2))


WITHOUT = {"detached": Detached, "NumPy": Numpy, "no_grad": Ungraded}


@pytest.mark.parametrize("kind", WITHOUT)
def test_a_model_without_gradients_is_attacked_by_square_alone_and_not_quoted(case, kind):
    """Square asks for values alone: with and without gradients it finds the same."""
    net = case[0]
    square = short(4, "l2", queries=60)[-1:]
    blind = attacked(case, WITHOUT[kind](net).eval(), stages=short(4, "l2", queries=60), trust=True)
    seeing = attacked(case, net, stages=square)
    assert [s["stage"] for s in blind.stages] == ["square"]
    assert torch.equal(blind.robust, seeing.robust) and blind.accuracy < 1
    assert blind.trust.verdict == "do not quote"
    assert any("no gradients" in reason for reason in blind.trust.reasons)
    assert "Square alone" in blind.protocol


@pytest.mark.filterwarnings("ignore:.torch.jit:FutureWarning")
def test_torchscript_without_gradients_is_attacked(case):
    result = attacked(case, scripted(case[0]), stages=short(4, "l2", queries=20))
    assert [s["stage"] for s in result.stages] == ["square"]


def test_a_norm_without_square_says_what_to_do(case):
    net, x, y, _ = case
    with pytest.raises(InputError, match=r"no gradients.*l1, l2 or linf"):
        robust(Detached(net), x, y, Ball("l1.5", 1.0), version="fast")
    with pytest.raises(InputError, match=r"no gradients.*l1, l2 or linf"):
        worst_confidence(Detached(net), x, Ball("l1.5", 1.0))


def test_the_worst_confidence_of_a_model_without_gradients_is_searched(case, monkeypatch):
    """What Square finds lies between the clean confidence and what gradients find."""
    monkeypatch.setattr("counterlens.search.ensemble.extremes.QUERIES", 100)
    net, x, _, ball = case
    clean = net(x).log_softmax(1).amax(1).detach()
    blind = worst_confidence(Detached(net).eval(), x, ball)
    seeing = worst_confidence(net, x, ball, steps=20, restarts=1)
    assert (blind.scores >= clean - 1e-6).all() and blind.scores.mean() > clean.mean()
    assert blind.scores.mean() < seeing.scores.mean()


def test_points_found_against_another_model_break_one_with_zero_gradients(case):
    net, x, y, ball = case
    masked = Quantised(net).eval()
    alone, honest = attacked(case, masked), attacked(case, net)
    result = attacked(case, masked, surrogates=[net], trust=True)
    assert alone.accuracy > honest.accuracy + 0.2  # its own gradients find nothing
    assert result.accuracy <= honest.accuracy + 0.05
    broken = [name == "transfer-1" for name in result.broken_by]
    assert sum(broken) >= 5
    points = result.points[broken]
    assert ball.contains(points, x[broken]).all()
    assert (margin_of(masked(points), y[broken]) >= 0).all()
    flag = next(flag for flag in result.trust.flags if flag.name == "transfer")
    assert flag.status == "bad" and "masked" in flag.detail
    assert result.trust.verdict == "do not quote" and "transfer-1" in result.protocol


def test_transfer_finds_nothing_more_against_an_honest_model(case):
    net = case[0]
    result = attacked(
        case, net, surrogates=[net], stages=short(4, "l2", steps=10, queries=20), trust=True
    )
    flag = next(flag for flag in result.trust.flags if flag.name == "transfer")
    assert flag.status == "ok"
    assert (
        result.accuracy == attacked(case, net, stages=short(4, "l2", steps=10, queries=20)).accuracy
    )


def test_transfer_goes_on_where_it_was_stopped(case, tmp_path):
    net, x, y, ball = case
    masked, stages = Quantised(net).eval(), short(4, "l2")[:1]

    def run(budget):
        settings = AttackSettings(batch=64, budget=budget, state=tmp_path, trust=False)
        return robust(masked, x, y, ball, version=stages, settings=settings, surrogates=[net])

    assert not run(0.0).complete
    settings = AttackSettings(batch=64, trust=False)
    whole = robust(masked, x, y, ball, version=stages, settings=settings, surrogates=[net])
    assert torch.equal(run(None).robust, whole.robust)
    with pytest.raises(InputError, match="another attack"):
        robust(
            masked, x, y, ball, version=stages,
            settings=AttackSettings(batch=64, state=tmp_path, trust=False),
            surrogates=[small_cnn(4, seed=1)],
        )  # fmt: skip


def test_a_surrogate_that_does_not_fit_is_refused(case):
    with pytest.raises(InputError, match="has 5 classes, the model 4"):
        attacked(case, case[0], surrogates=[small_cnn(5)])
    with pytest.raises(InputError, match="surrogate 1 has no gradients"):
        attacked(case, case[0], surrogates=[Detached(case[0])])


def test_an_identity_in_place_of_a_quantiser_gives_the_number_of_the_unquantised_model():
    """255 levels change no answer worth a point, so its robust accuracy is the network's own."""
    net, x = small_cnn(4), images(200)
    with torch.no_grad():
        y = net(x).argmax(1)
    radius = fab(net, x[:40], y[:40], Ball("l2", 1.0), steps=10).distances.median().item()
    levels = lambda z: (z * 255).round() / 255  # noqa: E731

    def accuracy(model):
        settings = AttackSettings(batch=256, trust=False)
        stages = short(4, "l2", steps=30)[:2]
        return robust(model, x, y, Ball("l2", radius), version=stages, settings=settings).accuracy

    masked = nn.Sequential(counterlens.bpda(levels, lambda z: z * 0), net).eval()
    honest = nn.Sequential(counterlens.bpda(levels, nn.Identity()), net).eval()
    assert accuracy(masked) > accuracy(net) + 0.2
    assert accuracy(honest) == pytest.approx(accuracy(net), abs=0.01 + 1e-9)


def test_bpda_keeps_values_exactly_and_never_differentiates_the_real_function(case):
    net, x, *_ = case
    calls = []

    def real(z):
        calls.append(z.requires_grad)
        return net(torch.from_numpy(z.numpy()))

    both = counterlens.bpda(real, net)
    z = x.clone().requires_grad_()
    out = both(z)
    assert torch.equal(out, net(x)) and calls == [False]
    (mine,) = torch.autograd.grad(out[:, 0].sum(), z)
    (own,) = torch.autograd.grad(net(z)[:, 0].sum(), z)
    assert torch.equal(mine, own)
    with pytest.raises(InputError, match="same shape"):
        counterlens.bpda(net, nn.Identity())(x.clone().requires_grad_())


class Holder:
    def __init__(self, net):
        self.parts = {"net": [net]}

    def answer(self, x):
        return self.parts["net"][0](x)


def test_networks_behind_callables_are_found(case):
    net = case[0]
    inner = lambda x: net(x)  # noqa: E731
    for function in (
        inner,
        lambda x, other=net: other(x),
        functools.partial(lambda which, x: which(x), net),
        Holder(net).answer,
        lambda x: inner(x).relu(),
    ):
        assert networks_of(function) == [net]
    assert networks_of(torch.relu) == [] == networks_of(lambda x: torch.sin(x))


def test_a_lambda_over_a_network_in_training_mode_is_frozen(case):
    torch.manual_seed(0)
    net = nn.Sequential(*list(case[0])[:4], nn.Dropout(0.9), *list(case[0])[4:]).train()
    of_lambda = attacked(case, lambda x: net(x))
    assert net.training and net[0].weight.requires_grad  # given back as it was
    of_module = attacked(case, net.eval())
    assert torch.equal(of_lambda.robust, of_module.robust)
