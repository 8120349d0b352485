"""SpuFix against a literal computation, and as a layer of a network."""

import numpy as np
import pytest
import torch
from torch import nn

from counterlens.models.sources.repaired import Clipped
from counterlens.workflows.repair.groups import Grouped
from counterlens.workflows.repair.heads import Clips, Examples, Head, Problem
from counterlens.workflows.repair.spufix import contributions, spufix, unnamed


def feeder(n: int, seed: int) -> Examples:
    """Feature 1, a feeder, is on a fifth of the birds and a tenth of the others."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n)
    z = (rng.random(n) < np.where(y == 1, 0.2, 0.1)).astype(np.int64)
    x = rng.normal(size=(n, 5))
    x[:, 0] += 2.0 * (2 * y - 1)
    x[:, 1] += 6.0 * z
    return Examples(x, Grouped(y, z, ("other", "bird"), ("no feeder", "feeder")))


HEAD = Head(np.array([[-1.0, 0, 0, 0, 0], [1.0, 1.0, 0, 0, 0.1]]), np.array([0.0, -0.3]))


def test_contributions_are_the_projections_on_principal_axes() -> None:
    """Oracle: numpy's singular value decomposition of w ⊙ φ."""
    own = feeder(400, 0)
    x = own.x[own.by.labels == 1]
    weight, bias = contributions(HEAD, x, 1)
    psi = x * HEAD.weight[1]
    _, _, axes = np.linalg.svd(psi - psi.mean(0), full_matrices=True)
    for k in range(5):
        alpha = axes[k].sum() * (psi - psi.mean(0)) @ axes[k]
        assert np.allclose(x @ weight[k] + bias[k], alpha, atol=1e-9)


def test_clipping_takes_only_positive_parts_off_only_their_logit() -> None:
    x = feeder(50, 1).x
    clips = Clips(np.array([1, 1, 0]), np.eye(3, 5), np.array([0.5, -1.0, 0.0]))
    got = Head(HEAD.weight, HEAD.bias, clips).logits(x)
    for i in range(50):
        alpha = [x[i, 0] + 0.5, x[i, 1] - 1.0, x[i, 2]]
        expected = HEAD.weight @ x[i] + HEAD.bias
        expected[1] -= max(alpha[0], 0) + max(alpha[1], 0)
        expected[0] -= max(alpha[2], 0)
        assert np.allclose(got[i], expected)


def test_a_feeder_no_longer_makes_a_bird() -> None:
    fit, choose, check = feeder(1500, 2), feeder(1500, 3), feeder(4000, 4)
    problem = Problem(HEAD, fit, choose)
    new, placebo = spufix(problem), unnamed(problem)
    assert new.clips is not None
    assert check.worst(HEAD) < 0.3
    assert check.worst(new) > check.worst(HEAD) + 0.3
    assert check.worst(new) > check.worst(placebo) + 0.2
    assert check.accuracy(new) > check.accuracy(HEAD)


@pytest.mark.parametrize("layer", [nn.Linear(5, 2), nn.Conv2d(5, 2, 1)])
def test_the_layer_of_a_network_gives_the_same_logits(layer: nn.Linear | nn.Conv2d) -> None:
    x = feeder(20, 5).x
    clips = Clips(np.array([1, 0]), np.eye(2, 5), np.array([0.5, -1.0]))
    head = Head(HEAD.weight, HEAD.bias, clips)
    state = head.state()
    with torch.no_grad():
        layer.weight.copy_(state["weight"].reshape(layer.weight.shape))
        assert layer.bias is not None
        layer.bias.copy_(state["bias"])
    net = Clipped(layer.double(), *(state[f"clip_{k}"] for k in ("weight", "bias", "classes")))
    given = torch.from_numpy(x)
    if isinstance(layer, nn.Conv2d):
        given = given[:, :, None, None]
    assert np.allclose(net(given).detach().flatten(1).numpy(), head.logits(x))
