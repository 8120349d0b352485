"""The study of the paper's orderings. Oracles: verdicts known by hand, DeLong's interval of another
module for one set, a bootstrap with scikit-learn for several, the networks themselves."""

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from counterlens.classifier import Classifier
from counterlens.label_spaces import CIFAR10
from counterlens.metrics.paired import paired_auroc
from counterlens.models import checkpoint, nets
from counterlens.runs import Number, read_json, write_json
from counterlens.types import Preprocess
from counterlens.workflows.table1 import printed

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
study = importlib.import_module("zoo_orderings")
kept = importlib.import_module("zoo_points")

N, OUT = 400, 100
UNSEEN = {"scenes": "unseen", "flowers": "unseen"}


def logits_of(scores):
    """Two logits whose log-odds are the scores, right where class 0 is true."""
    return torch.stack([scores, torch.zeros_like(scores)], 1).float()


def model(right=1.0, robust=1.0, outside=-3.0, worst=-3.0, architecture="a"):
    """Points of a model: answers with confidence 0.95, right and robust on the first images."""
    sure = torch.full((N,), 3.0) + torch.linspace(0, 0.1, N)
    labels = (torch.arange(N) >= round(right * N)).long()  # class 0 is what it says
    points = kept.Points(
        {"temperature": 1.0, "architecture": architecture}, logits_of(sure), labels
    )
    points.robust["l2:0.5"] = torch.arange(N) < round(robust * N)
    spread = torch.linspace(-1, 1, OUT)
    for name in UNSEEN:  # a low confidence is a small lead, whatever its sign
        points.outside[name] = logits_of((3.05 + outside + 2 * spread).abs())
        points.worst[name] = logits_of((3.05 + worst + 2 * spread).abs())
    return points


def test_every_ordering_is_true_of_the_paper_by_a_point_or_more_and_by_its_margin():
    paper = printed()
    for column, high, low, margin in study.ORDERINGS:
        one, two = (paper[study.ALIKE.get(row, row)][column] for row in (high, low))
        assert one - two >= max(1.0, 100 * margin), (column, high, low)
    assert len({row[:3] for row in study.ORDERINGS}) == len(study.ORDERINGS)


def test_verdicts_say_on_which_side_the_interval_lies():
    def number(low, high):
        return Number((low + high) / 2, 9, low, high, "made up")

    assert study.verdict(number(0.01, 0.05)) == "reproduced"
    assert study.verdict(number(-0.01, 0.05)) == "open"
    assert study.verdict(number(-0.05, -0.01)) == "not reproduced"
    assert study.verdict(number(0.2, 0.4), study.FAR) == "open"
    assert study.verdict(number(0.1, 0.2), study.FAR) == "not reproduced"
    assert study.verdict(number(0.4, 0.5), study.FAR) == "reproduced"


def test_orderings_of_made_up_models_get_the_verdicts_known_by_hand():
    """RATIO holds 40 images more than AT 0.25, as many as AT 0.5, 40 fewer than ACET."""
    models = {
        "ratio-0.25": model(robust=0.7),
        "at-0.25": model(robust=0.6, worst=0.0),
        "acet": model(robust=0.8),
        "plain": model(robust=0.0, worst=8.0),
    }
    rows = {
        (row["column"], row["higher"], row["lower"]): row
        for row in study.orderings(models, {**UNSEEN, "uniform": "noise"})
    }
    robust = rows["l2 0.5", "ratio-0.25", "at-0.25"]
    assert robust["verdict"] == "reproduced" and robust["ours"]["value"] == pytest.approx(0.1)
    assert robust["ours"]["n"] == N and robust["paper"] == pytest.approx(0.0547)
    assert rows["l2 0.5", "ratio-0.25", "acet"]["verdict"] == "not reproduced"
    assert rows["WC-AUC", "ratio-0.25", "acet"]["verdict"] == "open"  # the same points
    assert rows["WC-AUC", "ratio-0.25", "plain"]["verdict"] == "reproduced"
    assert set(rows["WC-AUC", "ratio-0.25", "plain"]["sets"]) == set(UNSEEN)  # no noise
    assert rows["clean", "plain", "ratio-0.25"]["verdict"] == "open"
    assert not any("oe" in key for key in rows)  # its model did not come
    assert not any(key[0] == "l2 1.0" for key in rows)  # not measured


def test_the_difference_of_aurocs_on_one_set_is_delong_s():
    rng = np.random.default_rng(0)
    known = [torch.from_numpy(rng.normal(1 + i, 1, 60)) for i in range(2)]
    unknown = [torch.from_numpy(rng.normal(0, 1, 40)) for _ in range(2)]
    pairs = [tuple(logits_of(side[i]) for side in (known, unknown)) for i in range(2)]
    (theirs,) = paired_auroc(*pairs, name="x").values()
    points = [kept.Points({"temperature": 1.0}, *[p[0], torch.zeros(60).long()]) for p in pairs]
    for one, (_, out) in zip(points, pairs, strict=True):
        one.worst["x"] = out
    ours = study.gap(*points, "WC-AUC", ["x"])
    assert (ours.value, ours.low, ours.high) == pytest.approx(
        (theirs.value, theirs.low, theirs.high)
    )


def test_the_interval_of_a_mean_over_sets_is_that_of_a_bootstrap():
    """Known images are drawn once for all sets: taking sets as independent would be too narrow."""
    rng = np.random.default_rng(1)
    base = rng.normal(1.0, 1, 50)
    inside = base + rng.normal(0, 0.5, 50), 0.6 * base + rng.normal(0, 1, 50)
    outside = [tuple(rng.normal(0, 1, (2, 300))) for _ in range(2)]
    ours = study.auroc_gap(inside, outside, ["a", "b"])

    def mean_gap(rows, columns):
        truth = np.r_[np.ones(len(rows)), np.zeros(300)]
        areas = [
            [roc_auc_score(truth, np.r_[inside[i][rows], out[i][cols]]) for i in range(2)]
            for out, cols in zip(outside, columns, strict=True)
        ]
        return np.mean([one - two for one, two in areas])

    assert ours.value == pytest.approx(mean_gap(np.arange(50), [np.arange(300)] * 2))
    drawn = [mean_gap(rng.integers(0, 50, 50), rng.integers(0, 300, (2, 300))) for _ in range(250)]
    assert (ours.high - ours.low) / 2 == pytest.approx(1.96 * np.std(drawn), rel=0.15)


def test_failure_cases_follow_the_stated_limits_and_the_plain_model_of_the_same_form():
    models = {
        "plain": model(robust=0.0, worst=8.0),
        "plain-small": model(right=0.5, architecture="b"),
        "ratio-0.25": model(right=0.96),
        "at-0.5": model(right=0.94),
        "oe": model(architecture="c"),
    }
    found = study.failing(models, UNSEEN)
    assert "robust accuracy below 50 %" in found["plain"]["failures"]
    assert "worst-case AUC below 50 % on scenes" in found["plain"]["failures"]
    far = "clean accuracy far below the plain model"
    assert far in found["at-0.5"]["failures"] and far not in found["ratio-0.25"]["failures"]
    assert found["ratio-0.25"]["not_judged"] == []
    assert found["oe"]["not_judged"] == ["no plain model of the same architecture"]
    more = study.failing(models, {**UNSEEN, "uniform": "noise"})
    assert "no worst-case AUC on uniform" in more["ratio-0.25"]["not_judged"]


@pytest.mark.parametrize(
    ("changes", "expected", "why"),
    [
        ({}, "reproduced", "ratio-0.5, ratio-0.25"),
        ({"ratio-0.5": (["weak"], [])}, "not reproduced", "ratio-0.5 has one"),
        ({"acet": ([], [])}, "not reproduced", "acet has none"),
        ({"acet": ([], ["no AUC"])}, "open", "acet not judged in full"),
        ({"ratio-0.25": ([], ["no AUC"])}, "open", "ratio-0.25 not judged in full"),
        ({"acet": (["weak"], ["no AUC"])}, "reproduced", "every other"),
        ({"oe": None}, "open", "no oe"),
    ],
)
def test_ratio_is_alone_without_a_failure_case_only_when_all_others_have_one(
    changes, expected, why
):
    rows = {row: ([] if "ratio" in row else ["weak"], []) for row in study.TABLE_1} | changes
    found = {
        row: {"failures": facts[0], "not_judged": facts[1]} for row, facts in rows.items() if facts
    }
    verdict, told = study.alone(found)
    assert verdict == expected and why in told


def test_twice_the_steps_count_by_the_worse_of_both():
    points = model(worst=-1.0)
    points.doubled["scenes"] = points.worst["scenes"]
    points.doubled["flowers"] = logits_of(torch.full((OUT,), 9.0))
    found = study.doubled(points)
    assert found["scenes"]["holds"] and found["scenes"]["worse_of_both"]["value"] == 0
    assert not found["flowers"]["holds"]
    weaker = model(worst=-1.0)
    weaker.doubled["scenes"] = logits_of(torch.full((OUT,), 0.1))  # finds nothing
    assert study.doubled(weaker)["scenes"]["holds"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two tiny networks with random weights, saved as checkpoints."""
    made = []
    for seed in range(2):
        torch.manual_seed(seed)
        shape = {"kind": "resnet18", "widths": [4, 4, 4, 4]}
        net = Classifier(
            nets.build(shape, 10), CIFAR10, [0.5] * 3, [0.25] * 3, preprocess=Preprocess((32, 32))
        ).eval()
        folder = tmp_path_factory.mktemp("nets") / "model"
        checkpoint.save(folder, net, {"name": f"tiny{seed}", "architecture": shape})
        made.append(folder)
    return made


def run(monkeypatch, folders, out, *more):
    names = ("cifar10-plain-small", "cifar10-ratio-small")
    models = [f"{name}={folder}" for name, folder in zip(names, folders, strict=True)]
    arguments = (
        *models, "--data", "sample:cifar10", "--ood", "textures=sample:textures",
        "--ood", "noise:uniform", "--double", "textures", "--points", "10", "--ood-points", "6",
        "--steps", "2", "--restarts", "1", "--chunk", "6", "--device", "cpu", "--out", str(out),
    )  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["zoo_orderings.py", *arguments, *more])
    return study.main()


@pytest.mark.usefixtures("one_thread")
def test_a_study_goes_on_where_it_was_stopped_and_says_what_is_missing(
    folders, tmp_path, monkeypatch, capsys
):
    assert run(monkeypatch, folders, tmp_path, "--minutes", "0") == 0
    assert read_json(tmp_path / "zoo_orderings.json")["models"] == {}
    assert not list(tmp_path.rglob("*.npz"))  # no time, no points
    assert run(monkeypatch, folders, tmp_path) == 0
    files = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.npz")}
    assert len(files) == 2 * 8  # clean, two sets, two chunks, two worst cases, one doubled
    whole = read_json(tmp_path / "zoo_orderings.json")
    assert [row["column"] for row in whole["orderings"]] == ["l2 0.5", "WC-AUC", "clean"]
    assert whole["models"]["ratio-small"]["temperature_from"].startswith("fitted")
    lost = next(path for path in files if path.name.startswith("worst-textures"))
    lost.unlink()
    capsys.readouterr()
    assert run(monkeypatch, folders, tmp_path, "--minutes", "0") == 0
    part = read_json(tmp_path / "zoo_orderings.json")
    assert [row["column"] for row in part["orderings"]] == ["l2 0.5", "clean"]
    assert len(part["left"]) == 1 and "worst textures" in part["left"][0]
    monkeypatch.setattr(sys, "argv", ["zoo_orderings.py", "--out", str(tmp_path)])
    assert study.main() == 0  # without models: from the points alone
    assert read_json(tmp_path / "zoo_orderings.json") == {**part, "left": []}
    said = capsys.readouterr().out
    assert "no time for 1" in said and "WC-AUC" not in said
    assert run(monkeypatch, folders, tmp_path) == 0
    assert read_json(tmp_path / "zoo_orderings.json") == whole  # bit by bit what was lost
    assert all(p.stat().st_mtime_ns == then for p, then in files.items() if p != lost)
    for name, told in whole["models"].items():
        for kind in ("textures", "uniform"):
            worst, clean = (told["numbers"][f"ood.{kind}.{k}mmc"] for k in ("worst_", ""))
            assert worst["value"] >= clean["value"], name


def test_the_search_sees_the_network_after_temperature(folders):
    net = checkpoint.load(folders[0]).eval()
    x = torch.rand(3, 3, 32, 32)
    with torch.no_grad():
        assert torch.allclose(kept.heated(net, 0.3)(x), net(x) / 0.3, atol=1e-5)
        assert torch.equal(net(x), checkpoint.load(folders[0]).eval()(x))  # itself untouched


def test_a_set_that_did_not_come_is_one_clear_line(folders, tmp_path, monkeypatch, capsys):
    assert run(monkeypatch, folders, tmp_path, "--seen", "moon") == 2
    assert "no set 'moon' among --ood: textures, uniform" in capsys.readouterr().err


def test_points_of_another_temperature_are_refused(folders, tmp_path, monkeypatch, capsys):
    run(monkeypatch, folders, tmp_path, "--minutes", "0")
    about = next(tmp_path.rglob("about.json"))
    facts = read_json(about)
    folder = folders[int(facts["name"][-1])]
    before = (folder / "card.json").read_text()
    card = read_json(folder / "card.json")
    heat = {"value": 2 * facts["temperature"], "n": 1, "low": None, "high": None, "protocol": "x"}
    numbers = {"calibration.temperature": heat}
    write_json(folder / "card.json", {**card, "temperature": heat["value"], "numbers": numbers})
    assert run(monkeypatch, folders, tmp_path, "--minutes", "0") == 2
    assert "were made at temperature" in capsys.readouterr().err
    (folder / "card.json").write_text(before)


def test_a_folder_without_points_is_one_clear_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["zoo_orderings.py", "--out", str(tmp_path)])
    assert study.main() == 2 and "holds no points" in capsys.readouterr().err
