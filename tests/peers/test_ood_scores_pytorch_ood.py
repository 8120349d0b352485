"""OOD scores against pytorch-ood on one fitted linear head: the same values up to a monotone map.

pytorch-ood gives outlier scores (high = unknown); ours are the negatives. Its covariances are sums
over the images, not means, so its Mahalanobis distances are ours divided by their number.
"""

import pytest
import torch
from torch import Tensor, nn

from counterlens.metrics.ood_scores import LinearHead, fit

api = pytest.importorskip("pytorch_ood.detector", reason="pytorch-ood is not installed")

WIDTH, CLASSES = 16, 5


@pytest.fixture(scope="module")
def case() -> tuple[nn.Linear, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    layer = nn.Linear(WIDTH, CLASSES)
    centres = 2 * torch.randn(CLASSES, WIDTH)
    labels = torch.arange(400) % CLASSES
    bank = (centres[labels] + torch.randn(400, WIDTH)).relu()
    return layer.requires_grad_(False), bank, labels, (1.5 * torch.randn(60, WIDTH)).relu()


def ours(name: str, case: tuple[nn.Linear, Tensor, Tensor, Tensor]) -> Tensor:
    layer, bank, labels, fresh = case
    head = LinearHead(layer.weight.double(), layer.bias.double())
    return fit(name, bank, labels, head).score(fresh)


def agree(mine: Tensor, outlier: Tensor, rtol: float = 1e-4) -> None:
    torch.testing.assert_close(mine.double(), -outlier.double(), rtol=rtol, atol=1e-4)


@pytest.mark.parametrize(("name", "theirs"), [("energy", "EnergyBased"), ("max_logit", "MaxLogit")])
def test_scores_of_logits(case, name, theirs):
    layer, _, _, fresh = case
    agree(ours(name, case), getattr(api, theirs)(layer).predict(fresh))


def test_msp_orders_as_theirs(case):
    layer, _, _, fresh = case
    outlier = api.MaxSoftmax(layer).predict(fresh)
    assert torch.equal(ours("msp", case).argsort(), outlier.double().argsort(descending=True))


def test_entropy(case):
    layer, _, _, fresh = case
    agree(ours("entropy", case), api.Entropy(layer).predict(fresh))


@pytest.mark.parametrize(
    ("name", "theirs", "factor"),
    [("mahalanobis", "Mahalanobis", 2), ("relative_mahalanobis", "RMD", 1)],
)
def test_mahalanobis_and_its_relative_form(case, name, theirs, factor):
    """Their covariance is a sum over images; the plain form is halved."""
    _, bank, labels, fresh = case
    detector = getattr(api, theirs)(nn.Identity())
    detector.fit_features(bank, labels)
    outlier = detector.predict_features(fresh) * len(bank) * factor
    agree(ours(name, case), outlier, rtol=2e-3)


def test_vim_in_the_same_dimension(case):
    layer, bank, labels, fresh = case
    detector = api.ViM(nn.Identity(), d=WIDTH // 2, w=layer.weight, b=layer.bias)
    detector.fit_features(bank, labels)
    agree(ours("vim", case), detector.predict_features(fresh), rtol=2e-3)


def test_knn_at_unit_length(case):
    _, bank, labels, fresh = case
    detector = api.KNN(nn.Identity(), k=1)
    detector.fit_features(bank, labels)
    agree(ours("knn", case), detector.predict_features(fresh), rtol=1e-3)


def test_react_at_the_same_percentile(case):
    layer, bank, labels, fresh = case
    detector = api.ReAct(nn.Identity(), nn.Sequential(nn.Flatten(), layer), percentile=0.9)
    detector.fit_feature_maps(bank[:, :, None, None], labels)
    agree(ours("react", case), detector.predict_feature_maps(fresh[:, :, None, None]))


@pytest.mark.parametrize("variant", ["s", "b"])
def test_ash_of_each_image(case, variant):
    layer, _, _, fresh = case
    detector = api.ASH(
        nn.Identity(), nn.Sequential(nn.Flatten(), layer), variant=f"ash-{variant}", percentile=0.9
    )
    outlier = detector.predict_feature_maps(fresh[:, :, None, None])
    agree(ours(f"ash_{variant}", case), outlier)
