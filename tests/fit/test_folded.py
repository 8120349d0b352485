"""The folded copy that a training attack evaluates, against the network itself.

Oracles: convolution and norm written out in float64, the network in evaluation mode, the same
training without folding.
"""

import copy
import functools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from counterlens.ball import Ball
from counterlens.classifier import Classifier
from counterlens.fit import Mixed, Plan, Trainable, fit
from counterlens.fit.folded import Folded, folded_copy, refresh
from counterlens.losses import Attack, ratio_terms
from counterlens.models.nets import resnets as nets
from counterlens.search import frozen
from counterlens.types import Preprocess

SMALL = {"kind": "resnet18", "widths": [4, 4, 8, 8], "activation": "silu"}
FOLDED = [
    (SMALL, 20),
    ({"kind": "resnet50", "widths": [4, 4, 4, 4]}, 53),
    ({"kind": "wideresnet", "depth": 10, "width": 1}, 3),  # norms before an activation stay
]


def lived(net: nn.Module) -> nn.Module:
    """A network whose norms have statistics and weights as after some training."""
    draw = torch.Generator().manual_seed(1)
    for part in net.modules():
        if isinstance(part, nn.BatchNorm2d) and part.affine:
            part.running_mean.normal_(generator=draw)
            part.running_var.uniform_(0.5, 2, generator=draw)
            part.weight.data.uniform_(-1.5, 1.5, generator=draw)
            part.bias.data.normal_(generator=draw)
    return net


def classifier(architecture: dict) -> Classifier:
    torch.manual_seed(0)
    net = nets.build(architecture, 4)
    sizes = {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.25)}
    return Classifier(lived(net), list("abcd"), **sizes, preprocess=Preprocess((16, 16)))


def pictures(count: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(count, 3, 16, 16, generator=torch.Generator().manual_seed(seed))


def parts(folded: nn.Module | None) -> list[Folded]:
    assert folded is not None
    return [part for part in folded.modules() if isinstance(part, Folded)]


@given(
    st.integers(1, 3),
    st.integers(1, 2),
    st.booleans(),
    st.sampled_from(["zeros", "reflect"]),
    st.integers(0, 99),
)
def test_a_folded_pair_is_convolution_and_norm_by_formula(stride, groups, bias, mode, seed):
    torch.manual_seed(seed)
    conv = nn.Conv2d(4, 6, 3, stride, 1, groups=groups, bias=bias, padding_mode=mode)
    norm = lived(nn.Sequential(nn.BatchNorm2d(6, eps=0.1)))[0]
    folded = Folded(conv, norm, torch.float32)
    folded.refresh()
    x = torch.rand(2, 4, 7, 7)
    y = copy.deepcopy(conv).double()(x.double())
    side = (1, -1, 1, 1)
    mean, var = norm.running_mean.double().view(side), norm.running_var.double().view(side)
    gain, shift = norm.weight.double().view(side), norm.bias.double().view(side)
    wanted = gain * (y - mean) / (var + 0.1).sqrt() + shift
    torch.testing.assert_close(folded(x).double(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("architecture", "count"), FOLDED)
def test_in_evaluation_mode_the_folded_copy_answers_like_the_network(architecture, count):
    net = classifier(architecture)
    fast = Mixed(net, "fp32", folds=True)
    x = pictures(3)
    with frozen(fast):
        assert len(parts(fast.folded)) == count
        torch.testing.assert_close(fast(x), net(x), rtol=1e-4, atol=1e-4)
    assert torch.equal(fast(x), copy.deepcopy(net)(x))  # training mode is the network's own


def test_half_precision_is_as_near_as_without_folding():
    net = classifier(SMALL).eval()
    x = pictures(32)
    off = []
    for folds in (False, True):
        fast = Mixed(net, "bf16", folds=folds)
        with frozen(fast), torch.no_grad():
            off.append((fast(x) - net(x)).square().mean().sqrt() / net(x).std())
    assert 0 < off[1] < 1.5 * off[0] < 0.1


def test_evaluation_begins_with_the_weights_and_statistics_of_now():
    net = classifier(SMALL)
    fast = Mixed(net, "fp32", folds=True)
    x = pictures(4)
    with frozen(fast):
        before = fast(x)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for seed in range(3):
        fast(pictures(8, seed)).square().sum().backward()
        optimizer.step()
    with frozen(fast):
        after = fast(x)
        torch.testing.assert_close(after, net(x), rtol=1e-4, atol=1e-4)
    assert (after - before).abs().max() > 0.1


@pytest.mark.parametrize(("architecture", "count"), FOLDED)
def test_an_attack_through_the_folded_copy_finds_the_same_points_and_changes_nothing(
    architecture, count
):
    net = classifier(architecture)
    fast = Mixed(net, "fp32", folds=True)
    x, y = pictures(6), torch.arange(6) % 4
    attack = Attack(Ball("l2", 0.5), ((0, 5),))
    kept = {key: value.clone() for key, value in net.state_dict().items()}
    found = attack.near(fast, x, y, 0)
    assert len(parts(fast.folded)) == count
    assert (found - x).flatten(1).norm(dim=1).min() > 0.05
    torch.testing.assert_close(found, attack.near(net, x, y, 0), rtol=0, atol=1e-3)
    assert all(torch.equal(kept[key], value) for key, value in net.state_dict().items())
    assert all(weight.grad is None and weight.requires_grad for weight in net.parameters())
    assert fast.training and net.training


def test_the_folded_copy_stays_in_evaluation_mode_and_shares_every_weight():
    net = classifier({"kind": "wideresnet", "depth": 10, "width": 1})
    fast = Mixed(net, "fp32", folds=True)
    fast.eval()
    fast.train()  # as the attack of TRADES does
    assert fast.folded is not None
    assert not any(part.training for part in fast.folded.modules())
    assert net.training and all(part.training for part in net.modules())
    assert {id(w) for w in fast.folded.parameters()} == {id(w) for w in net.parameters()}


def test_without_evaluation_no_copy_is_folded():
    fast = Mixed(classifier(SMALL), "fp32", folds=True)
    fast(pictures(2))
    assert fast.folded is None


class Odd(nn.Conv2d):
    def forward(self, x):
        return super().forward(x.flip(3))


def special(kind: str) -> nn.Module:
    conv: nn.Module = (Odd if kind == "subclass" else nn.Conv2d)(3, 4, 3)
    norm = nn.BatchNorm2d(4, affine=kind != "plain norm")
    if kind == "computed weights":
        torch.nn.utils.parametrizations.weight_norm(conv)
    if kind == "spectral hook":
        torch.nn.utils.spectral_norm(conv)
    if kind == "hook":
        norm.register_forward_hook(lambda module, inputs, output: 2 * output)
    return lived(nn.Sequential(conv, norm, nn.Flatten(), nn.Linear(4 * 196, 2)))


@pytest.mark.parametrize(
    "kind", ["subclass", "plain norm", "computed weights", "spectral hook", "hook"]
)
def test_layers_that_do_more_than_their_class_says_stay_as_they_are(kind):
    torch.manual_seed(0)
    net = special(kind).eval()
    folded = folded_copy(net, torch.float32)
    assert folded is not None
    refresh(folded)
    assert not parts(folded)
    with torch.no_grad():
        net[0].bias.add_(0.1)  # shared: the folded copy follows by itself
    torch.testing.assert_close(folded(pictures(2)), net(pictures(2)))


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
def test_a_network_that_cannot_be_copied_is_looked_at_itself():
    conv = torch.nn.utils.weight_norm(nn.Conv2d(3, 4, 3))
    net = nn.Sequential(conv, nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 196, 2))
    fast = Mixed(net, "fp32", folds=True)
    with frozen(fast):
        assert torch.equal(fast(pictures(2)), net(pictures(2)))
    assert fast.folded is None and not fast.folds


def ratio_losses(folder, device: str = "cpu", **options) -> list[float]:
    """The loss of each update of a short RATIO training whose attack grows on the way."""
    net = classifier(SMALL).to(device)
    generator = torch.Generator(device)
    near = Attack(Ball("l2", 0.5), ((0, 2), (6, 4)))
    far = Attack(Ball("l2", 1.0), ((0, 2), (6, 4)), step_size=0.3)
    loss = functools.partial(ratio_terms, near=near, far=far)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True)

    def batches(step: int) -> dict[str, torch.Tensor]:
        x = torch.rand(16, 3, 16, 16, generator=torch.Generator().manual_seed(step)).to(device)
        return {"x": x[:8], "y": torch.arange(8, device=device) % 4, "out": x[8:]}

    plan = Plan(steps=12, per_epoch=1, log_every=1, schedule="constant", **options)
    lines: list[str] = []
    progress, _ = fit(
        Trainable(net, loss, optimizer),
        batches,
        plan=plan,
        folder=folder,
        generator=generator,
        phase=near.steps,
        log=lines.append,
    )
    assert len(lines) == 12  # one per epoch, and none that gives up a graph
    return [row["loss.in"] + row["loss.out"] for row in progress.rows]


def test_a_training_that_folds_is_the_same_training(tmp_path, monkeypatch):
    plain = ratio_losses(tmp_path / "plain")
    monkeypatch.setattr(torch, "compile", lambda module, **options: module)
    folds = ratio_losses(tmp_path / "folds", compile=True)
    assert plain == pytest.approx(folds, rel=1e-3)

    fresh = []  # a folded copy that is never refreshed would be noticed
    monkeypatch.setattr(
        "counterlens.fit.update.refresh", lambda folded: fresh or fresh.append(refresh(folded))
    )
    stale = ratio_losses(tmp_path / "stale", compile=True)
    assert plain != pytest.approx(stale, rel=1e-3)


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")  # the compiler warns of what it imports itself
def test_compiled_and_recorded_it_is_the_same_training(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    plain = ratio_losses(tmp_path / "plain", "cuda")
    folds = ratio_losses(tmp_path / "folds", "cuda", compile=True, graph=True)
    assert plain == pytest.approx(folds, rel=1e-3)
