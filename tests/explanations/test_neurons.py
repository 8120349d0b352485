"""Neuron pictures: a linear unit has a known optimum; the Fourier code is checked with NumPy."""

import numpy as np
import pytest
import torch
from torch import nn

from counterlens.classifier import Classifier, numbered
from counterlens.errors import InputError
from counterlens.explanations.features.feature_attack import feature_attack
from counterlens.explanations.features.neurons import neuron_pictures, picture
from counterlens.types import Preprocess

SIDE = 16


def stripes() -> Classifier:
    """Units that like a bright left half, a bright top half, and red."""
    bank = torch.zeros(3, 3, SIDE, SIDE)
    bank[0, :, :, : SIDE // 2] = 1
    bank[0, :, :, SIDE // 2 :] = -1
    bank[1, :, : SIDE // 2] = 1
    bank[1, :, SIDE // 2 :] = -1
    bank[2, 0], bank[2, 1], bank[2, 2] = 1, -1, -1
    first = nn.Linear(3 * SIDE * SIDE, 3)
    first.weight.data = bank.flatten(1) / bank[0].numel()
    first.bias.data.zero_()
    net = nn.Sequential(nn.Flatten(), first, nn.Linear(3, 4))
    return Classifier(net, numbered(4), preprocess=Preprocess((SIDE, SIDE))).eval()


def test_a_picture_shows_what_its_unit_likes():
    model = stripes()
    result = neuron_pictures(model, [0, 1, 2], steps=80)
    left, top, red = result.images
    assert left[..., : SIDE // 2].mean() > left[..., SIDE // 2 :].mean() + 0.3
    assert top[:, : SIDE // 2].mean() > top[:, SIDE // 2 :].mean() + 0.3
    assert red[0].mean() > red[1:].mean() + 0.2
    assert (result.activation > result.start).all()
    assert result.images.min() >= 0 and result.images.max() <= 1
    values = model.net[1](result.images.flatten(1))[range(3), range(3)]
    torch.testing.assert_close(values.detach(), result.activation.detach())


def test_a_unit_gets_the_same_picture_in_any_company_and_the_same_seed():
    model = stripes().double()
    joint = neuron_pictures(model, [2, 0], steps=10, seed=3)
    alone = neuron_pictures(model, [0], steps=10, seed=3)
    torch.testing.assert_close(joint.images[1], alone.images[0], rtol=0, atol=1e-9)
    other = neuron_pictures(model, [0], steps=10, seed=4)
    assert (other.images - alone.images).abs().max() > 1e-3


def test_logits_can_be_lowered_too():
    model = stripes()
    up = neuron_pictures(model, [1], kind="logit", steps=30)
    down = neuron_pictures(model, [1], kind="logit", steps=30, sign=-1)
    assert model(up.images)[0, 1] > model(down.images)[0, 1]


def test_a_unit_that_sleeps_at_the_start_is_woken():
    model = stripes()
    model.net[1].bias.data.fill_(-0.05)  # a grey picture is below the threshold
    model.net[1] = nn.Sequential(model.net[1], nn.ReLU())
    result = neuron_pictures(model, [0], steps=60)
    assert result.start.item() == 0
    assert result.activation.item() > 0.1


def test_the_fourier_code_equals_numpys_inverse_transform(rng):
    code = torch.randn(1, 1, 6, 4, 2, generator=rng, dtype=torch.float64)
    spectrum = (code[..., 0] + 1j * code[..., 1]).numpy()[0, 0]
    down, across = np.fft.fftfreq(6)[:, None], np.fft.rfftfreq(6)[None]
    scaled = spectrum / np.maximum(np.sqrt(down**2 + across**2), 1 / 6)
    plane = np.fft.irfft2(scaled, s=(6, 6), norm="ortho") / 4
    expected = 1 / (1 + np.exp(-plane))
    np.testing.assert_allclose(picture(code, (6, 6))[0, 0].numpy(), expected, atol=1e-7)


def test_a_feature_attack_climbs_a_linear_unit_to_the_corner_of_the_box(rng):
    model = stripes()
    x = torch.rand(2, 3, SIDE, SIDE, generator=rng)
    result = feature_attack(model, x, 0)
    best = (model.net[1].weight[0] > 0).float().view(3, SIDE, SIDE)
    torch.testing.assert_close(result.images, best.expand_as(x), atol=1e-3, rtol=0)
    assert (result.activation > result.start).all()


def test_units_that_do_not_exist_are_refused():
    model = stripes()
    with pytest.raises(InputError, match="no unit 3"):
        neuron_pictures(model, [3])
    with pytest.raises(InputError, match="no logit 9"):
        neuron_pictures(model, [9], kind="logit")
    with pytest.raises(InputError, match="units 0 … 2"):
        feature_attack(model, torch.rand(1, 3, SIDE, SIDE), 5)
