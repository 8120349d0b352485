"""The engine against the model it was built from: the fast copy must give the same outputs."""

import copy

import pytest
import torch
from torch import nn

from attack_models import BrokenGradient, images, short, small_cnn
from counterlens.ball import Ball
from counterlens.classifier import Classifier
from counterlens.objectives import margin_of
from counterlens.search import AttackSettings, robust
from counterlens.search.fast.engine import _round_up, auto_batch, open_engine
from counterlens.search.fast.folding import Exact, fold, lighten
from counterlens.types import Preprocess


def normed_net(seed=0):
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1, bias=False),
        nn.BatchNorm2d(6),
        nn.SiLU(),
        nn.Conv2d(6, 8, 3, stride=2, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(128, 4),
    )
    for part in net.modules():  # statistics as after training
        if isinstance(part, nn.BatchNorm2d):
            part.running_mean.normal_()
            part.running_var.uniform_(0.5, 2)
            part.weight.data.normal_()
            part.bias.data.normal_()
    return net.eval()


def score(logits, y, _):
    return margin_of(logits, y)


def by_hand(model, x, y):
    z = x.clone().requires_grad_(True)
    value = margin_of(model(z), y)
    (grad,) = torch.autograd.grad(value.sum(), z)
    return value.detach(), grad


def test_folding_removes_batch_norms_and_changes_no_answer():
    net = normed_net()
    folded = fold(copy.deepcopy(net))
    assert not any(isinstance(part, nn.BatchNorm2d) for part in folded.modules())
    x = images(5)
    torch.testing.assert_close(folded(x), net(x), rtol=1e-4, atol=1e-5)


def test_folding_goes_through_a_classifier_that_cannot_be_traced():
    wrapped = Classifier(normed_net(), list("abcd"), (0.5,), (0.25,), preprocess=Preprocess((8, 8)))
    wrapped.eval()
    folded = fold(copy.deepcopy(wrapped))
    assert not any(isinstance(part, nn.BatchNorm2d) for part in folded.modules())
    x = images(5)
    torch.testing.assert_close(folded(x), wrapped(x), rtol=1e-4, atol=1e-5)


def test_folding_leaves_layers_whose_weights_are_computed():
    torch.manual_seed(0)
    conv = torch.nn.utils.spectral_norm(nn.Conv2d(1, 4, 3))  # a hook sets its weight at each call
    net = nn.Sequential(conv, nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 2))
    net[1].running_var.fill_(4.0)
    net.eval()
    x = images(5)
    torch.testing.assert_close(fold(copy.deepcopy(net))(x), net(x))


class Twice(nn.Module):
    """One convolution, a norm for each of its two calls."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 1, 3, padding=1)
        self.first, self.second = nn.BatchNorm2d(1), nn.BatchNorm2d(1)
        self.second.running_mean.fill_(1.0)

    def forward(self, x):
        return self.second(self.conv(self.first(self.conv(x)))).flatten(1)


def test_folding_leaves_a_convolution_that_is_called_twice():
    torch.manual_seed(0)
    net = Twice().eval()
    x = images(5)
    torch.testing.assert_close(fold(copy.deepcopy(net))(x), net(x))


@pytest.mark.parametrize("pads", [False, True])
def test_the_engine_gives_score_margin_and_gradient_of_the_model(pads):
    net = normed_net()
    x = images(11)
    y = torch.arange(11) % 4
    value, grad = by_hand(net, x, y)
    with open_engine(net, x) as engine:
        assert engine.fast_copy is not net
        engine.pads = pads
        evaluation = engine.slope(score, x, y, y)
        torch.testing.assert_close(evaluation.score, value, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(evaluation.margin, value, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(evaluation.grad, grad, rtol=1e-3, atol=1e-5)
        plain = engine.value(score, x, y, y)
        torch.testing.assert_close(plain.score, value, rtol=1e-4, atol=1e-5)
        assert (engine.counts.forwards, engine.counts.backwards) == (22, 11)


def test_few_sizes_cover_all_batches():
    assert [_round_up(n) for n in (1, 8, 9, 650, 844, 1804, 2048)] == [
        8, 8, 16, 656, 848, 1824, 2048,
    ]  # fmt: skip
    assert len({_round_up(n) for n in range(1025, 2049)}) == 32


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_keeps_the_first_and_last_layer_exact(precision):
    net = normed_net()
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    light = lighten(fold(copy.deepcopy(net)), dtype)
    layers = [part for part in light.modules() if type(part) in (nn.Conv2d, nn.Linear)]
    assert [layer.weight.dtype for layer in layers] == [torch.float32, dtype, torch.float32]
    assert sum(isinstance(part, Exact) for part in light.modules()) == 2
    x = images(16)
    y = torch.arange(16) % 4
    value, grad = by_hand(net, x, y)
    with open_engine(net, x, precision=precision) as engine:
        assert engine.precision == precision
        evaluation = engine.slope(score, x, y, y)
        torch.testing.assert_close(evaluation.score, value, rtol=0.05, atol=0.1)
        cosine = nn.functional.cosine_similarity(evaluation.grad.flatten(1), grad.flatten(1))
        assert (cosine > 0.99).all()


def test_a_precision_that_cannot_hold_the_numbers_is_not_used():
    net = small_cnn(4)
    with torch.no_grad():
        net[2].weight.mul_(1e6)  # beyond fp16; the last layer undoes it
        net[2].bias.mul_(1e6)
        net[5].weight.mul_(1e-6)
    with open_engine(net, images(8), precision="fp16") as engine:
        assert engine.precision == "bf16"
        assert any("fp16 changes the logits" in note for note in engine.notes)


def test_a_gradient_written_by_hand_is_kept():
    model = BrokenGradient(small_cnn(4)).eval()
    x = images(4)
    y = torch.zeros(4, dtype=torch.int64)
    _, grad = by_hand(model, x, y)
    with open_engine(model, x) as engine:
        torch.testing.assert_close(engine.slope(score, x, y, y).grad, grad)
        assert any("no fast copy" in note for note in engine.notes)


def test_averaging_is_for_models_that_answer_at_random():
    calls = []

    def model(z):
        calls.append(len(z))
        return torch.stack([z.flatten(1).sum(1), z.flatten(1).sum(1) * 0 + len(calls)], 1)

    x = images(2)
    y = torch.zeros(2, dtype=torch.int64)
    with open_engine(model, x, repeats=4) as engine:
        calls.clear()
        evaluation = engine.value(score, x, y, y)
    expected = 2.5 - x.flatten(1).sum(1)  # the mean of 1 … 4
    torch.testing.assert_close(evaluation.margin, expected)


def test_the_batch_shrinks_with_the_picture():
    with open_engine(small_cnn(4), images(1)) as engine:
        small = auto_batch(engine, images(1))
        large = auto_batch(engine, torch.rand(1, 3, 224, 224))
    assert small == 128 and large == 8


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_compiled_twin_breaks_the_same_points():
    model = small_cnn(4)
    x = images(16)
    y = model(x).argmax(1)
    stages = short(4, steps=10, queries=20)
    plain = AttackSettings(batch=16, trust=False)
    eager = robust(model, x, y, Ball("l2", 0.2), version=stages, settings=plain)
    fast = AttackSettings(batch=16, trust=False, compiled=True)
    compiled = robust(model, x, y, Ball("l2", 0.2), version=stages, settings=fast)
    assert torch.equal(eager.robust, compiled.robust)
    assert compiled.compiling > 0
