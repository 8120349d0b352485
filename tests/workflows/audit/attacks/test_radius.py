"""Confidence curves against a closed form: two classes apart by a plane.

With logits ±w·(x − ½) the confidence in the true class at distance r is at least
σ(2 (m − r‖w‖) / T), and in any class at most σ(2 (|m| + r‖w‖) / T), m the signed margin.
"""

import numpy as np
import pytest
import torch

from attack_models import Plane
from counterlens.classifier import Classifier
from counterlens.data.sets import array_set
from counterlens.errors import InputError
from counterlens.report import render
from counterlens.runs import Run
from counterlens.types import Preprocess
from counterlens.workflows.audit.attacks.radius import RADII, radius_curves
from counterlens.workflows.audit.protocol import Inside, choose
from counterlens.workflows.audit.run import audit
from counterlens.workflows.audit.settings import Settings

SIDE, HEAT, FAR = Plane.SIDE, 2.0, 0.8


@pytest.fixture(scope="module")
def curves(tmp_path_factory):
    net = Plane()
    model = Classifier(
        net, ("up", "down"), [0.5] * 3, [1.0] * 3, preprocess=Preprocess((SIDE, SIDE))
    ).eval()
    for p in model.parameters():
        p.requires_grad_(False)
    rng = np.random.default_rng(0)
    pixels = rng.integers(110, 146, (20, SIDE, SIDE, 3), dtype=np.uint8)  # far from the box
    x = torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255
    margin = (x - 0.5).flatten(1) @ net.weight
    known = array_set("known", pixels, (margin < 0).long().numpy(), model.classes)
    other = array_set("other", pixels[:7], [0] * 7, model.classes)
    protocol = choose(model, known)
    inside = Inside(protocol, model(x), torch.from_numpy(known.labels), HEAT)
    run = Run.create(tmp_path_factory.mktemp("radius") / "run", "audit", {"model": "m"})
    asked = Settings(model="m", data="known", radius_curve=f"l2:{FAR}")
    with pytest.MonkeyPatch.context() as patch:
        # a plane needs no more
        patch.setattr("counterlens.workflows.audit.attacks.radius.STEPS", 30)
        radius_curves(
            run, model, known, np.arange(20), inside, [(other, inside)], asked, quiet=True
        )
    return run, margin, net.weight.norm().item()


def rows(run, word):
    return [r for r in run.table("confidence_radius") if word in r["set"]]


def test_the_true_class_falls_as_the_closed_form_says(curves):
    run, margin, slope = curves
    found = rows(run, "true class")
    assert [r["radius"] for r in found] == pytest.approx(np.linspace(0, FAR, RADII + 1))
    for row in found:
        exact = torch.sigmoid(2 * (margin.abs() - row["radius"] * slope) / HEAT).mean().item()
        assert row["confidence"] == pytest.approx(exact, abs=2e-3)
        assert row["low"] <= row["confidence"] <= row["high"] and row["n"] == 20


def test_any_class_rises_as_the_closed_form_says(curves):
    run, margin, slope = curves
    for row in rows(run, "any class"):
        exact = torch.sigmoid(2 * (margin[:7].abs() + row["radius"] * slope) / HEAT).mean().item()
        assert row["confidence"] == pytest.approx(exact, abs=2e-3)
        assert row["n"] == 7


def test_the_report_draws_both(curves):
    text = render(curves[0]).read_text()
    assert "Confidence over l₂ radius" in text
    assert "known, true class under attack" in text and "other, any class" in text


def test_a_ball_that_is_none_is_refused_before_anything_is_loaded(tmp_path):
    with pytest.raises(InputError, match="NORM:RADIUS"):
        audit(["zoo:none"], "sample:cifar10", radius_curve="far", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_curve_whose_budget_ended_says_so(curves, tmp_path):
    """A flat line that no attack has made must not look like a robust model."""
    run = Run.create(tmp_path / "run", "audit", {"model": "m", "data": "d"})
    rows = [{**row, "complete": row["radius"] == 0} for row in curves[0].table("confidence_radius")]
    run.write_table("confidence_radius", rows)
    page = render(run).read_text("utf-8")
    assert f"The budget ended first in {2 * RADII} of {2 * RADII} searches" in page
    whole = Run.create(tmp_path / "whole", "audit", {"model": "m", "data": "d"})
    whole.write_table("confidence_radius", curves[0].table("confidence_radius"))
    assert all(row["complete"] for row in curves[0].table("confidence_radius"))
    assert "The budget ended first" not in render(whole).read_text("utf-8")
