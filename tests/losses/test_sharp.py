"""The loss of an autoencoder of photographs against its terms written out, pixel by pixel.

The networks are tiny and random, the perceptual distance has random weights of AlexNet's form:
what is tested is the arithmetic and who learns from it.
"""

import math

import pytest
import torch
from torch import nn

from counterlens.losses.sharp import Sharpness, hinge
from counterlens.models.nets.lpips import Lpips
from counterlens.models.nets.patch_critic import PatchCritic


class Tiny(nn.Module):
    """A reconstruction that is the image times a weight, and a posterior of one number."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(0.5))

    def forward(self, x, noise):
        mean = (1 + x.mean((1, 2, 3), keepdim=True)) * self.weight
        return self.weight * x + 0 * noise.mean(), mean, 2 * mean


@pytest.fixture
def random_lpips(rng):
    shapes = ((64, 3, 11), (192, 64, 5), (384, 192, 3), (256, 384, 3), (256, 256, 3))
    weights = [torch.randn(o, i, k, k, generator=rng) / (i * k * k) ** 0.5 for o, i, k in shapes]
    heads = [torch.rand(1, o, 1, 1, generator=rng) for o, _, _ in shapes]
    return Lpips(weights, [torch.zeros(o) for o, _, _ in shapes], heads).eval()


@pytest.fixture
def batch(rng):
    x = torch.rand(2, 3, 64, 64, generator=rng) * 2 - 1
    return {"x": x, "noise": torch.zeros(2, 1, 1, 1)}


def test_the_terms_are_those_of_the_formula(random_lpips, batch):
    critic, net = PatchCritic((4, 8)).eval(), Tiny()
    loss = Sharpness(critic, random_lpips, perceptual=0.6, adversarial=0.06, kl=0.01)
    terms = loss.autoencoder_terms(net, batch, 0)
    x = batch["x"]
    pixels = sum(abs(float(v) - 0.5 * float(v)) for v in x.flatten()) / x.numel()
    assert terms["pixels"].item() == pytest.approx(pixels, rel=1e-5)
    means = [0.5 * (1 + float(one.mean())) for one in x]
    kl = sum((m * m + math.exp(2 * m) - 1 - 2 * m) / 2 for m in means) / 2
    assert terms["kl"].item() == pytest.approx(0.01 * kl, rel=1e-3)
    seen = random_lpips(0.25 * x + 0.5, x / 2 + 0.5).mean().item()
    assert terms["perceptual"].item() == pytest.approx(0.6 * seen, rel=1e-5)
    assert terms["fool"].item() == pytest.approx(-0.06 * critic(0.5 * x).mean().item(), rel=1e-4)


def test_the_autoencoder_teaches_the_critic_nothing_and_the_critic_learns_from_it(batch):
    critic, net = PatchCritic((4, 8)), Tiny()
    loss = Sharpness(critic, None)
    sum(loss.autoencoder_terms(net, batch, 0).values()).backward()
    assert net.weight.grad is not None
    assert all(weight.grad is None for weight in critic.parameters())
    before = net.weight.grad.clone()
    terms = loss.critic_terms(critic, batch, 0)
    sum(terms.values()).backward()
    assert torch.equal(net.weight.grad, before)
    assert any(weight.grad.abs().sum() > 0 for weight in critic.parameters())
    wanted = hinge(critic(batch["x"]), critic(0.5 * batch["x"]))
    # spectral norm refines its estimate with every pass in training mode
    torch.testing.assert_close(terms["fake"], wanted[1], rtol=0.2, atol=0.05)


def test_before_its_update_the_critic_takes_no_part(batch):
    critic, net = PatchCritic((4, 8)), Tiny()
    loss = Sharpness(critic, None, begins=5)
    before = loss.autoencoder_terms(net, batch, 4)
    assert before["fool"].item() == 0
    terms = loss.critic_terms(critic, batch, 4)
    sum(terms.values()).backward()
    assert all(weight.grad.abs().sum() == 0 for weight in critic.parameters())
    after = loss.autoencoder_terms(net, batch, 5)
    assert list(after) == list(before)  # an epoch may have updates of both kinds
    assert after["fool"].item() != 0
    assert [loss.phase(step) for step in (4, 5)] == [False, True]


def test_the_gradient_of_the_perceptual_distance_is_its_slope(random_lpips, rng):
    net = random_lpips.double()
    x = torch.rand(1, 3, 64, 64, generator=rng, dtype=torch.float64)
    z = (x + 0.05 * torch.randn(x.shape, generator=rng, dtype=torch.float64)).requires_grad_()
    gradient = torch.autograd.grad(net(z, x).sum(), z)[0]
    direction = torch.randn(x.shape, generator=rng, dtype=torch.float64)
    step = 1e-6
    with torch.no_grad():
        slope = (net(z + step * direction, x) - net(z - step * direction, x)) / (2 * step)
    assert slope.item() == pytest.approx((gradient * direction).sum().item(), rel=1e-4)


def test_a_patch_score_depends_on_its_patch_alone(rng):
    critic = PatchCritic((4, 8)).eval()
    x = torch.rand(1, 3, 64, 64, generator=rng) * 2 - 1
    changed = x.clone()
    changed[..., :8, :8] = 0
    difference = (critic(x) - critic(changed))[0, 0].abs()
    assert difference[0, 0] > 0 and difference[4:, 4:].max() == 0
