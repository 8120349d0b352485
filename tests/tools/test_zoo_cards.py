"""Cards of the shipped classifiers. Oracles: the sample cards, the weights' own held-out images."""

import pytest
import torch

from counterlens import zoo
from counterlens.data import open_set
from counterlens.explanations.counterfactuals.pixel import confidences, temperature_of
from counterlens.metrics import calibration
from counterlens.models import load
from counterlens.runs import Number

NAMES = zoo.names()


@pytest.mark.parametrize("name", NAMES)
def test_every_card_has_a_temperature_fitted_on_images_it_was_not_trained_on(name):
    card = zoo.card(name)
    heat = Number.from_json(card["numbers"]["calibration.temperature"])
    assert card["temperature"] == heat.value and heat.low < heat.value < heat.high
    held = zoo.sample_card("cifar10-calibration")
    assert "cifar10-calibration" in heat.protocol and heat.n == held["images"]
    assert card["recipe"]["held_out_rule"] == card["data"]["held_out"]["rule"] == "last"
    assert held["first_index"] >= card["data"]["in"]["n"]  # the first 48,000 were trained on
    assert card["recipe"]["keep_best"] is False  # so they chose no checkpoint either


@pytest.mark.parametrize("name", NAMES)
def test_every_card_says_how_good_the_temperature_is_on_all_test_images(name):
    numbers = {k: Number.from_json(v) for k, v in zoo.card(name)["numbers"].items()}
    for key in ("accuracy.top1", "calibration.ece", "calibration.ece_scaled"):
        assert numbers[key].n == 10_000 and numbers[key].low < numbers[key].value
    assert numbers["calibration.ece_scaled"].value < max(0.05, numbers["calibration.ece"].value)


def test_a_shipped_robust_model_is_better_calibrated_with_the_temperature_of_its_card():
    """Applied once: the logits are as before, the confidences are those after temperature."""
    net = load("zoo:cifar10-ratio-small", device="cpu")
    images = open_set("sample:cifar10", limit=200)
    x = torch.stack([torch.from_numpy(images.read(i)).permute(2, 0, 1) for i in range(200)]) / 255
    y = torch.from_numpy(images.labels)
    with torch.no_grad():
        logits = net(x)
    sure = confidences(net, x)
    assert torch.allclose(sure, (logits / temperature_of(net)).softmax(1), atol=1e-6)
    assert torch.equal(sure.argmax(1), logits.argmax(1))
    before, after = (calibration.ece(p, y) for p in (logits.softmax(1), sure))
    assert after < before / 2
