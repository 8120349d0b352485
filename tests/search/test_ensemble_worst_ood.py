"""Worst-case OOD detection against a closed form: two classes apart by a plane.

With logits ±w·(x − ½) the confidence in any class within r is at most σ(2 (|m| + r‖w‖) / T), m the
signed margin; its mean is the worst-case MMC, and ranks against the known images give the AUROC.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from attack_models import Plane
from counterlens.classifier import Classifier
from counterlens.data.sets import array_set
from counterlens.images import ImageSet
from counterlens.runs import Run
from counterlens.types import Preprocess
from counterlens.workflows.audit.attacks.search import attacked_rows
from counterlens.workflows.audit.ood import worst as worst_case
from counterlens.workflows.audit.protocol import Inside, choose
from counterlens.workflows.audit.settings import Settings

SIDE, HEAT, FAR = Plane.SIDE, 2.0, 0.3


@pytest.fixture
def asked(tmp_path: Path) -> tuple[Run, Classifier, ImageSet, Inside, torch.Tensor]:
    model = Classifier(
        Plane(), ("up", "down"), [0.5] * 3, [1.0] * 3, preprocess=Preprocess((SIDE, SIDE))
    )
    model.eval().requires_grad_(False)
    rng = np.random.default_rng(0)
    pixels = rng.integers(110, 146, (40, SIDE, SIDE, 3), dtype=np.uint8)  # far from the box
    x = torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255
    margin = (x - 0.5).flatten(1) @ model.net.weight
    known = array_set("known", pixels[:25], (margin[:25] < 0).long().numpy(), model.classes)
    other = array_set("other", pixels[25:], [0] * 15, model.classes)
    inside = Inside(choose(model, known), model(x[:25]), torch.from_numpy(known.labels), HEAT)
    run = Run.create(tmp_path / "run", "audit", {"model": "m"})
    return run, model, other, inside, margin


def measure(asked: Any, budget: str | None = None) -> Run:
    run, model, other, inside, _ = asked
    settings = Settings(model="m", data="known", budget=budget)
    worst_case.worst_ood(run, model, other, inside, f"l2:{FAR}", settings, quiet=True)
    return run


def test_the_worst_case_is_that_of_the_closed_form(asked: Any) -> None:
    run, margin = measure(asked), asked[-1]
    norm = asked[1].net.weight.norm()
    known = torch.sigmoid(2 * margin[:25].abs() / HEAT)
    worst = torch.sigmoid(2 * (margin[25:].abs() + FAR * norm) / HEAT)
    mmc, auroc = (run.numbers[f"ood.other.worst_{name}"] for name in ("mmc", "auroc"))
    assert mmc.value == pytest.approx(worst.mean().item(), abs=1e-4)
    truth = [1] * 25 + [0] * 15
    expected = roc_auc_score(truth, torch.cat([known, worst]).numpy())
    assert auroc.value == pytest.approx(expected, abs=1e-3)
    assert auroc.trust is not None
    assert auroc.trust["verdict"] == "trusted"
    with np.load(run.path("tables", "worst-other.npz")) as kept:  # to compare models by, in pairs
        odds = torch.from_numpy(kept["logits"]).div(HEAT).softmax(1).amax(1)
        assert kept["ids"].tolist() == list(asked[2].ids)
    torch.testing.assert_close(odds, worst.float(), atol=1e-3, rtol=0)


def test_the_budget_binds_the_search_and_its_probe(
    asked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    budgets = []

    def noted(*args: Any, **options: Any) -> Any:
        budgets.append(options["settings"].budget)
        return worst_confidence(*args, **options)

    worst_confidence = worst_case.worst_confidence
    monkeypatch.setattr(worst_case, "worst_confidence", noted)
    run = measure(asked, "0s")
    assert budgets == [0.0]  # what was cut short needs no probe of twice the steps
    auroc, mmc = (run.numbers[f"ood.other.worst_{name}"] for name in ("auroc", "mmc"))
    assert auroc.trust is not None
    assert auroc.trust["verdict"] == "weak"
    assert "the budget ended first; the true worst case is worse" in auroc.trust["reasons"]
    assert (auroc.bound, auroc.low) == ("upper", 0.0) and (mmc.bound, mmc.high) == ("lower", 1.0)
    assert auroc.reason == "budget ended, 0 of 15 settled"
    measure(asked, "1h")
    assert budgets[1:] == [3600.0, 3600.0]


def test_a_probe_cut_short_is_not_called_passed(
    asked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search ends, its probe is given no time."""
    calls = []

    def hurried(*args: Any, **options: Any) -> Any:
        calls.append(1)
        budget = None if len(calls) == 1 else 0.0
        options["settings"] = worst_case.replace(options["settings"], budget=budget)
        return worst_confidence(*args, **options)

    worst_confidence = worst_case.worst_confidence
    monkeypatch.setattr(worst_case, "worst_confidence", hurried)
    trust = measure(asked, "1h").numbers["ood.other.worst_auroc"].trust
    assert trust is not None
    assert trust["verdict"] == "weak"
    assert "before the probe of twice the steps did" in trust["reasons"][0]


def test_of_a_set_sorted_by_class_images_of_all_classes_are_attacked() -> None:
    sorted_by_class = np.repeat([3, 5, 0, 9, 1, 8, 2, 7, 4, 6], 50)  # a folder's order, matched
    few = Settings(model="m", data="known", attack_points=100, seed=3)
    rows, said = attacked_rows(sorted_by_class, few)
    assert len(set(rows.tolist())) == 100 and set(sorted_by_class[rows]) == set(range(10))
    assert said == "100 drawn by seed 3 of the"
    assert np.array_equal(rows, attacked_rows(sorted_by_class, few)[0])
    mixed = np.arange(500) % 10
    first, said = attacked_rows(mixed, few)
    assert np.array_equal(first, np.arange(100)) and said == "the first 100 of the"
    assert len(attacked_rows(mixed, few, 40)[0]) == 40
    whole, said = attacked_rows(mixed[:100], few)
    assert np.array_equal(whole, np.arange(100)) and said == "all"


def test_the_protocol_says_that_unknown_images_were_drawn(asked: Any) -> None:
    run, model, other, inside, _ = asked
    few = Settings(model="m", data="known", attack_points=6)
    worst_case.worst_ood(run, model, other, inside, f"l2:{FAR}", few, quiet=True)
    number = run.numbers["ood.other.worst_auroc"]
    assert number.n == 6 and "6 drawn by seed 0 of the 15 unknown" in number.protocol
