"""Families of models: layers and cards read against nets built here, figures against the tables.

Oracles: networks whose layers are known by construction, Wilson's interval
written out, and the numbers the audits hold.
"""

import re
from math import sqrt
from pathlib import Path

import pytest
from torch import nn

from counterlens.classifier import Classifier
from counterlens.errors import InputError
from counterlens.models.nets.resnets import build
from counterlens.report.html import html
from counterlens.report.pages.families import sections
from counterlens.runs import Run
from counterlens.types import Preprocess
from counterlens.workflows.audit.network_facts import attention, network_facts, training
from counterlens.workflows.compare import families
from counterlens.workflows.compare.run import compare
from report_runs import audit_run

MODELS = {
    "plain": (1_000_000, "resnet", "none", "plain"),
    "noise": (1_000_000, "resnet", "none", "uniform noise"),
    "large": (4_000_000, "resnet", "none", "plain"),
    "gated": (1_150_000, "resnet", "SE", "plain"),
    "other": (2_000_000, "wideresnet", "none", "plain"),
}


def made(net: nn.Module, card: dict[str, object]) -> Classifier:
    return Classifier(
        net, ["a", "b"], [0.5] * 3, [0.5] * 3, preprocess=Preprocess((32, 32)), card=card
    )


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Run:
    root = tmp_path_factory.mktemp("families")
    folders = []
    keys = ("parameters", "family", "attention", "training")
    for i, (name, values) in enumerate(MODELS.items()):
        run = audit_run(root / name, model=name, seed=i, skill=2.0 + 0.1 * i, finish=False)
        run.note(about=dict(zip(keys, values, strict=True)))
        run.finish()
        folders.append(run.folder)
    return compare(folders, about=["other: training=PGD-10"], out=root / "compare")


def test_facts_are_read_off_layers_and_cards() -> None:
    plain = build({"kind": "resnext29", "widths": [8, 16, 32]}, 2)
    gated = build({"kind": "resnext29", "widths": [8, 16, 32], "gated": True}, 2)
    recipe = {"loss": "random-strength", "kind": "pgd", "near": {"steps": 10, "radius": 0.03}}
    card = {"architecture": {"kind": "resnext29"}, "recipe": recipe}
    one, two = network_facts(made(plain, card)), network_facts(made(gated, card))
    assert one["family"] == two["family"] == "resnext"
    assert (one["attention"], two["attention"]) == ("none", "SE")
    assert one["training"] == "PGD-10"
    assert one["parameters"] == sum(p.numel() for p in plain.parameters())
    looks = nn.Sequential(nn.Flatten(), nn.MultiheadAttention(4, 1))
    assert attention(looks) == "self-attention"


@pytest.mark.parametrize(
    ("card", "words"),
    [
        ({"recipe": {"loss": "plain"}}, "plain"),
        ({"recipe": {"loss": "ratio", "near": {"norm": "l2", "radius": 0.25}}}, "ratio l2 0.25"),
        ({"spec": "timm:resnet18", "tag": "a1_in1k"}, "a1_in1k"),
        ({"spec": "timm:resnet18@mine.pth", "tag": "a1_in1k"}, "not stated"),
        ({}, "not stated"),
    ],
)
def test_training_is_told_only_where_it_is_known(card: dict[str, object], words: str) -> None:
    assert training(card) == words


def test_facts_may_be_told_and_mistakes_are_named() -> None:
    told = families.facts_of(["zoo:a: family=x", "zoo:a: training=y"], ["zoo:a", "zoo"])
    assert told == {"zoo:a": {"family": "x", "training": "y"}}
    with pytest.raises(InputError, match="NAME one of plain, gated"):
        families.facts_of(["plian: family=x"], ["plain", "gated"])
    with pytest.raises(InputError, match="KEY one of family, attention, training"):
        families.facts_of(["plain: size=3"], ["plain"])


def test_what_is_told_replaces_what_was_read(compared: Run) -> None:
    rows = {row["model"]: row for row in compared.table("families")}
    assert rows["other"]["training"] == "PGD-10"
    assert rows["plain"]["training"] == "plain"


def test_only_models_that_differ_in_one_thing_are_set_against_each_other(compared: Run) -> None:
    (section,) = sections(compared)
    texts = [block.text for block in section.blocks if block.kind == "text"]
    assert len(texts) == 2
    assert texts[0].startswith("Training, resnet")
    assert "uniform noise" in texts[0]
    assert texts[1].startswith("Attention, resnet")
    assert "SE" in texts[1]
    pair = next(
        row
        for row in compared.table("paired")
        if row["key"] == "accuracy.top1" and (row["first"], row["second"]) == ("plain", "noise")
    )
    shown = re.search(r"uniform noise ([+−][\d.]+) points", texts[0])
    assert shown
    assert float(shown[1].replace("−", "-")) == pytest.approx(-100 * pair["difference"], abs=0.051)


def test_models_of_one_kind_are_joined_over_their_size(compared: Run) -> None:
    (section,) = sections(compared)
    figure = next(f for b in section.blocks if b.kind == "row" for f in b.figures)
    assert figure.title == "Accuracy against size"
    assert [name for _, name in figure.legend] == [
        "resnet, no attention, plain",
        "resnet, no attention, uniform noise",
        "resnet, SE, plain",
        "wideresnet, no attention, PGD-10",
    ]
    joined = re.findall(r'<path class="line s\d" d="([^"]*)"', str(figure.svg))
    assert len(joined) == 1  # plain and large alone
    for name in MODELS:
        assert f"<title>{name}</title>" in str(figure.svg)


def test_response_curves_carry_wilson_intervals(compared: Run) -> None:
    rows = [row for row in compared.table("response_rate") if row["model"] == "plain"]
    last = max(rows, key=lambda row: row["rate"])
    p, n, z = last["accuracy"], last["n"], 1.959964
    half = z * sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    middle = (p + z * z / (2 * n)) / (1 + z * z / n)
    assert (last["low"], last["high"]) == pytest.approx((middle - half, middle + half), abs=1e-6)


def test_a_filter_of_the_set_stands_apart(tmp_path: Path) -> None:
    folders = []
    names = ("held-out", "third", "fourth")
    for name, mined in (("filter", True), *((name, False) for name in names)):
        run = audit_run(tmp_path / name, model=name, seed=len(name), finish=False)
        size = 1_000_000 + 10 * len(name)
        facts = {"family": "resnet", "attention": "none", "training": name, "filter": mined}
        run.note(about={"parameters": size, **facts})
        run.finish()
        folders.append(run.folder)
    run = compare(folders, out=tmp_path / "compare")
    page = html(run)
    assert "(filter of the set)" in page
    texts = [b.text for b in sections(run)[0].blocks if b.kind == "text"]
    assert len(texts) == 1
    assert "filter" not in texts[0]


def test_audits_that_noted_nothing_are_compared_as_before(tmp_path: Path) -> None:
    folders = [audit_run(tmp_path / name, model=name, seed=i).folder for i, name in enumerate("ab")]
    run = compare(folders, out=tmp_path / "compare")
    assert run.table("families") == []
    assert "Accuracy against coverage" in html(run)


@pytest.mark.parametrize(("models", "plotted"), [("ab", False), ("abc", False), ("abcd", True)])
def test_nothing_is_plotted_against_size_below_four_models(
    tmp_path: Path, models: str, plotted: bool
) -> None:
    folders = []
    for i, name in enumerate(models):
        run = audit_run(tmp_path / name, model=name, seed=i, finish=False)
        facts = {"family": "resnet", "attention": "none", "training": "plain", "filter": False}
        run.note(about={"parameters": 1_000_000 * (i + 1), **facts})
        run.finish()
        folders.append(run.folder)
    page = html(compare(folders, out=tmp_path / "compare"))
    assert ("against size" in page) is plotted
    assert "Models by kind" in page
