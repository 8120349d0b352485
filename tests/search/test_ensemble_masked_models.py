"""Nine masked models around a shipped network: none of their attack results may be quoted.

Oracle: by construction. Each mask hides the gradient of the same network, whose own robustness is
known; where the attack finds less on the masked model, that is the mask's doing.
"""

import numpy as np
import pytest
import torch

from counterlens.ball import Ball
from counterlens.data import open_set
from counterlens.models import load
from counterlens.search import AttackSettings, robust, worst_confidence
from counterlens.workflows.audit.attacks.search import pixels
from masked_models import MASKED

BALL = Ball("linf", 8 / 255)
NO_TIME = AttackSettings(batch=64, budget=0.0)


@pytest.fixture(scope="module")
def case():
    """A robust network with images from all over the sample."""
    net = load("zoo:cifar10-ratio-small", device="cpu")
    return net, *sample("sample:cifar10", net, 8)


def sample(spec, net, count):
    data = open_set(spec, seed=0, size=(32, 32), channels=3)
    rows = np.linspace(0, len(data) - 1, count).astype(int)
    return pixels(data, rows, net), torch.from_numpy(data.labels[rows])


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", MASKED)
def test_no_budget_is_so_small_that_a_mask_goes_unseen(case, name):
    net, x, y = case
    model = MASKED[name](net).eval()
    result = robust(model, x, y, BALL, settings=NO_TIME)
    assert not result.complete
    assert result.trust.verdict == "do not quote", result.trust.flags
    extreme = worst_confidence(model, x, Ball("l2", 1.0), settings=NO_TIME)
    assert not extreme.complete
    assert extreme.trust.verdict == "do not quote", extreme.trust.flags


@pytest.mark.usefixtures("one_thread")
def test_the_network_behind_the_masks_is_only_unfinished(case):
    net, x, y = case
    for result in (
        robust(net, x, y, BALL, settings=NO_TIME),
        worst_confidence(net, x, Ball("l2", 1.0), settings=NO_TIME),
    ):
        doubts = {flag.name for flag in result.trust.flags if flag.status not in ("ok", "skipped")}
        assert result.trust.verdict == "weak" and doubts == {"complete"}, result.trust.flags


@pytest.mark.slow
@pytest.mark.parametrize("name", MASKED)
def test_a_mask_is_seen_by_the_whole_attack(case, name):
    net, x, y = case
    model = MASKED[name](net).eval()
    result = robust(model, x, y, BALL, settings=AttackSettings(batch=64))
    assert result.complete and result.trust.verdict == "do not quote", result.trust.flags
    extreme = worst_confidence(model, x, Ball("l2", 1.0), settings=AttackSettings(batch=64))
    assert extreme.complete and extreme.trust.verdict == "do not quote", extreme.trust.flags


HEALTHY = ("plain-small", "ratio-small", "ratio-0.25", "at-0.5")


@pytest.mark.slow
@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_model_is_trusted_on_few_points(name):
    net = load(f"zoo:cifar10-{name}", device="cpu")
    x, y = sample("sample:cifar10", net, 24)
    result = robust(net, x, y, BALL, settings=AttackSettings(batch=64))
    assert result.trust.verdict == "trusted", result.trust.reasons
    extreme = worst_confidence(net, x, Ball("l2", 1.0), settings=AttackSettings(batch=64))
    assert extreme.trust.verdict == "trusted", extreme.trust.reasons
