"""NPCA: contributions add up to the logit; components against NumPy's SVD; counts by hand."""

import numpy as np
import pytest
import torch
from torch import nn

from counterlens.classifier import Classifier, numbered
from counterlens.errors import InputError
from counterlens.explanations.features.directions import (
    driven,
    logits_of,
    strongest_units,
    unit_direction,
)
from counterlens.explanations.features.npca import neural_pca
from counterlens.types import Preprocess


def head_and_features(
    rng: torch.Generator, n: int = 30, d: int = 7
) -> tuple[nn.Linear, torch.Tensor]:
    last = nn.Linear(d, 4).double()
    with torch.no_grad():
        last.weight.normal_(generator=rng)
        last.bias.normal_(generator=rng)
    return last, torch.randn(n, d, generator=rng, dtype=torch.float64).relu()


@pytest.mark.parametrize("n", [3, 30])  # fewer images than features leave a null space
def test_contributions_mean_and_bias_add_up_to_the_logit(rng, n):
    last, phi = head_and_features(rng, n)
    result = neural_pca(last, phi, 2)
    fresh = torch.randn(9, 7, generator=rng, dtype=torch.float64)
    total = result.contributions(fresh).sum(1) + result.mean.sum() + result.bias
    torch.testing.assert_close(total, last(fresh)[:, 2].detach(), rtol=0, atol=1e-12)


def test_components_and_variances_are_those_of_a_singular_value_decomposition(rng):
    last, phi = head_and_features(rng)
    result = neural_pca(last, phi, 1)
    psi = phi.numpy() * last.weight[1].detach().numpy()
    _, values, rows = np.linalg.svd(psi - psi.mean(0), full_matrices=True)
    np.testing.assert_allclose(result.variances.numpy(), values**2 / (len(psi) - 1), atol=1e-12)
    overlap = np.abs(rows @ result.vectors.numpy())
    np.testing.assert_allclose(overlap, np.eye(7), atol=1e-8)


def test_the_sign_of_a_component_changes_no_contribution(rng):
    from dataclasses import replace

    last, phi = head_and_features(rng)
    result = neural_pca(last, phi, 0)
    signs = torch.tensor([1.0, -1, -1, 1, -1, 1, -1], dtype=torch.float64)
    turned = replace(result, vectors=result.vectors * signs)
    torch.testing.assert_close(
        result.contributions(phi), turned.contributions(phi), rtol=0, atol=1e-13
    )
    torch.testing.assert_close(result.direction(4, "a").weight, turned.direction(4, "a").weight)


def test_a_component_is_a_direction_of_the_features(rng):
    last, phi = head_and_features(rng)
    result = neural_pca(last, phi, 3)
    alpha = result.contributions(phi)
    assert alpha.mean(0).abs().max() < 1e-12  # measured from the class's mean image
    for number in (0, 6):
        torch.testing.assert_close(
            result.direction(number, "3").values(phi), alpha[:, number], rtol=0, atol=1e-12
        )
    with pytest.raises(InputError, match="components are 0 … 6"):
        result.direction(7, "3")


def test_too_few_images_and_broken_features_are_refused(rng):
    last, phi = head_and_features(rng)
    with pytest.raises(InputError, match="1 image of the class"):
        neural_pca(last, phi[:1], 0)
    phi[3, 2] = float("nan")
    with pytest.raises(InputError, match="NaN"):
        neural_pca(last, phi, 0)


def test_units_that_speak_for_a_class_are_found_by_weight_times_mean():
    last = nn.Linear(4, 2, bias=False)
    last.weight.data = torch.tensor([[1.0, 3.0, -2.0, 0.5], [0.0, 0.0, 0.0, 0.0]])
    net = nn.Sequential(nn.Flatten(), last)
    model = Classifier(net, numbered(2), preprocess=Preprocess((2, 2))).eval()
    phi = torch.tensor([[4.0, 1.0, 9.0, 0.0], [2.0, 1.0, 9.0, 0.0]])  # means 3, 1, 9, 0
    assert strongest_units(model, phi, 0, 3) == [0, 1]
    torch.testing.assert_close(logits_of(model, phi), last(phi).detach().double())
    assert unit_direction(model, 2).values(phi).tolist() == [9, 9]
    with pytest.raises(InputError, match="units 0 … 3"):
        unit_direction(model, 4)


def test_an_image_is_driven_where_the_usual_value_would_change_the_answer():
    # class 0; 0 is of it, 1 is driven, 2 taken for it for another reason, 6 unknown
    logits = torch.tensor(
        [[9.0, 0.0], [3.0, 1.0], [6.0, 1.0], [0.0, 2.0], [0.0, 2.0], [0.0, 2.0], [5.0, 0.0]]
    ).double()
    values = torch.tensor([3.0, 3.0, 3.0, 0.0, 0.0, 0.0, 9.0]).double()
    labels = torch.tensor([0, 1, 1, 1, 1, 1, -1])
    taken, pushed = driven(logits, values, 0, labels)
    assert taken.tolist() == [False, True, True, False, False, False, False]
    assert pushed.tolist() == [False, True, False, False, False, False, False]
    with pytest.raises(InputError, match="another class"):
        driven(logits[:1], values[:1], 0, labels[:1])
