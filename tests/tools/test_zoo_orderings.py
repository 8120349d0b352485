"""The study of the paper's orderings, read from audits. Oracles: verdicts known by hand, DeLong's
interval of another module for one set, a bootstrap with scikit-learn for several, the normal
interval of a paired share, and the numbers that a real audit wrote itself."""

import importlib
import sys
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from counterlens import zoo
from counterlens.classifier import Classifier
from counterlens.label_spaces import CIFAR10
from counterlens.models.nets import resnets as nets
from counterlens.models.sources import checkpoint
from counterlens.runs import Number, Run, key_part, read_json, store_logits, stored_logits
from counterlens.types import Preprocess
from counterlens.workflows.audit.ood import worst as worst_case
from counterlens.workflows.audit.run import audit as real_audit
from counterlens.workflows.audit.settings import Settings
from counterlens.workflows.compare.pairs import difference_of_aurocs
from counterlens.workflows.reproduce.table1_paper import printed

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
study = importlib.import_module("zoo_orderings")
kept = importlib.import_module("zoo_audits")
twice = importlib.import_module("zoo_doubled")

N, OUT = 400, 100
SETS = ("street view", "flowers")
SURE = 3.0 + np.linspace(0, 0.1, N)
SPREAD = np.linspace(-2, 2, OUT)


def logits_of(scores):
    """Two logits whose log-odds are the scores, right where class 0 is true."""
    return np.stack([scores, np.zeros_like(scores)], 1).astype(np.float32)


def made(folder, row, *, right=1.0, robust=1.0, outside=-3.0, worst=-3.0, attacked=N, **more):
    """An audit of a made-up model: confidence 0.95, right and robust on the first images.

    Args:
        outside, worst: how far the scores of unknown images lie above those of the known ones.
        attacked: how many images were attacked.
        more: what else differs, as settings or as facts of the manifest.
    """
    names = {"ood", "attack", "attack_version", "ood_attack"} & set(more)
    asked = {"ood": (*SETS, "noise:uniform"), "attack": ("l2:0.5",), "ood_attack": "l2:1.0"}
    asked |= {name: more.pop(name) for name in names}
    settings = Settings(model=f"cifar10-{row}", data="test", **asked)
    heat, finished = more.pop("heat", 1.0), more.pop("finished", True)
    first, turned = more.pop("first", 0), more.pop("turned", 1)
    run = Run.create(folder, "audit", asdict(settings))
    known = ["uniform" if spec == "noise:uniform" else spec for spec in asked["ood"]]
    facts = {
        "model": f"cifar10-{row}", "data": "test", "weights_hash": row, "about": {"parameters": 1},
        "data_fingerprint": {name: f"{name} 1" for name in ("test", *known)},
    }  # fmt: skip
    run.note(**(facts | more))
    ids, order = np.array([f"test/{first + i}" for i in range(N)]), np.arange(N)[::turned]
    labels = (np.arange(N) >= round(right * N)).astype(int)  # class 0 is what it says
    store_logits(
        run, "test", heat * logits_of(SURE[order]), labels=labels[order], ids=ids[order],
        temperature=heat,
    )  # fmt: skip
    numbers = {"accuracy.top1": right, "calibration.ece_scaled": 0.01}
    for attack in asked["attack"]:
        held = np.arange(N) < round(robust * N)
        key = key_part(attack)
        path = run.path("tables", f"adversarial-{key}.npz")
        np.savez(path, robust=held[order][:attacked], all_ids=ids[order][:attacked])
        numbers[f"robust.{key}.accuracy"] = robust
    for name in known:
        key, there = name.replace(" ", "_"), np.array([f"{name}/{i}" for i in range(OUT)])
        # a low confidence is a small lead, whatever its sign
        scores = [np.abs(3.05 + above + SPREAD) for above in (outside, worst)]
        store_logits(
            run, key, heat * logits_of(scores[0]), labels=[-1] * OUT, ids=there, role="ood",
            temperature=heat,
        )  # fmt: skip
        path = run.path("tables", f"worst-{key}.npz")
        np.savez(path, logits=heat * logits_of(scores[1])[::turned], ids=there[::turned])
        for metric, found in zip(("auroc", "worst_auroc"), scores, strict=True):
            numbers[f"ood.{key}.{metric}"] = area(SURE, found)
    run.add_numbers({k: Number(v, attacked, None, None, "made up") for k, v in numbers.items()})
    if finished:
        run.finish()
    return folder


def area(inside, outside):
    truth = np.r_[np.ones(len(inside)), np.zeros(len(outside))]
    return float(roc_auc_score(truth, np.r_[inside, outside]))


def read(*folders, seen=()):
    """Rows of the table from folders of audits."""
    audits = kept.opened([str(folder) for folder in folders])
    return {row: kept.gathered(row, runs, seen) for row, runs in audits.items()}


def by_name(models):
    rows = study.pairs(models)
    found = {(row["column"], row["higher"], row["lower"]): row for row in rows}
    return found, [key for key, row in found.items() if row["verdict"] == "not measured"]


def test_every_pair_that_the_paper_prints_is_there_once_the_higher_first():
    """Counted by hand: 8 models in five columns, 7 (no TRADES) in l∞ and MMC."""
    paper, rows = printed(), study.pairs({})
    assert len(rows) == 5 * 28 + 2 * 21
    named = {(row["column"], frozenset((row["higher"], row["lower"]))) for row in rows}
    assert len(named) == len(rows) and all(len(both) == 2 for _, both in named)
    for row in rows:
        higher, lower = (paper[row[key]][row["column"]] for key in ("higher", "lower"))
        assert higher >= lower and row["paper"] == pytest.approx((higher - lower) / 100)
    assert {row["verdict"] for row in rows} == {"not measured"}  # no model came


def test_verdicts_say_on_which_side_the_interval_lies():
    assert study.verdict(0.01, 0.05) == "reproduced"
    assert study.verdict(-0.01, 0.05) == "open"
    assert study.verdict(-0.05, -0.01) == "reversed"


def test_a_verdict_stands_beyond_chance_where_the_wider_interval_says_the_same():
    """z of 0.05/2/100 is 3.481: the half-width 0.01 becomes 0.01776."""

    def row(value):
        return {"ours": {"value": value, "low": value - 0.01, "high": value + 0.01}}

    assert study.stretched(row(0.0179), 100) == "reproduced"
    assert study.stretched(row(0.0177), 100) == "open"
    assert study.stretched(row(-0.0179), 100) == "reversed"
    assert study.stretched(row(0.0101), 1) == "reproduced"


def test_counts_are_of_the_rows(tmp_path):
    models = read(
        made(tmp_path / "1", "ratio-0.25", robust=0.7),
        made(tmp_path / "2", "at-0.25", robust=0.6),
        made(tmp_path / "3", "acet", robust=0.8),
    )
    found = study.counts(study.pairs(models))
    robust = found["l2 0.5"]  # RATIO above AT; ACET is above both, the paper's is below
    assert (robust["reproduced"], robust["reversed"], robust["open"]) == (1, 2, 0)
    assert robust["reversed beyond chance"] == 2
    assert robust["pairs"] == 28 and robust["not measured"] == 25
    assert found["clean"]["open"] == 3 and found["l2 1.0"]["not measured"] == 28
    for word in ("pairs", "reproduced", "open", "not measured"):
        assert found["all"][word] == sum(found[column][word] for column in study.COLUMNS)


def test_models_that_the_paper_prints_alike_get_no_verdict(tmp_path):
    attack = {"attack": ("l2:1.0",)}
    rows, _ = by_name(
        read(
            made(tmp_path / "1", "plain", robust=0.1, **attack),
            made(tmp_path / "2", "oe", robust=0.0, **attack),
        )
    )
    row = rows["l2 1.0", "plain", "oe"]
    assert row["paper"] == 0 and row["verdict"] == "equal in the paper"
    assert row["ours"]["value"] == pytest.approx(0.1) and "beyond_chance" not in row


def test_orderings_of_made_up_audits_get_the_verdicts_known_by_hand(tmp_path):
    """RATIO holds 40 images more than AT 0.25, 40 fewer than ACET; rows come in other orders."""
    rows, absent = by_name(
        read(
            made(tmp_path / "1", "ratio-0.25", robust=0.7, heat=0.3),
            made(tmp_path / "2", "at-0.25", robust=0.6, worst=0.0, turned=-1),
            made(tmp_path / "3", "acet", robust=0.8, turned=-1),
            made(tmp_path / "4", "plain", robust=0.0, worst=8.0),
        )
    )
    robust = rows["l2 0.5", "ratio-0.25", "at-0.25"]
    assert robust["verdict"] == "reproduced" and robust["ours"]["value"] == pytest.approx(0.1)
    # 40 images differ, all of them one way: were they not paired by id, 280 would
    assert robust["ours"]["low"] == pytest.approx(0.1 - 1.96 * np.sqrt(40 - 4) / N, abs=5e-3)
    assert robust["ours"]["n"] == N and robust["paper"] == pytest.approx(0.0547)
    assert rows["l2 0.5", "ratio-0.25", "acet"]["verdict"] == "reversed"
    same = rows["WC-AUC", "ratio-0.25", "acet"]  # the same points at another temperature
    assert same["verdict"] == "open" and same["ours"]["value"] == pytest.approx(0, abs=1e-9)
    assert rows["WC-AUC", "ratio-0.25", "plain"]["verdict"] == "reproduced"
    assert set(rows["WC-AUC", "ratio-0.25", "plain"]["sets"]) == set(SETS)  # no noise
    assert rows["clean", "plain", "ratio-0.25"]["verdict"] == "open"
    assert ("clean", "oe", "plain") in absent  # its model did not come
    assert ("l2 1.0", "ratio-0.25", "at-0.25") in absent  # not attacked
    mean = rows["MMC", "plain", "at-0.25"]  # the same images, so the same confidence
    assert mean["verdict"] == "open" and mean["ours"]["n"] == 2 * OUT


def test_only_sets_that_both_models_saw_and_no_training_did_are_compared(tmp_path):
    models = read(
        made(tmp_path / "1", "ratio-0.25", ood=("street view",)),
        made(tmp_path / "2", "at-0.25", worst=0.0),
    )
    rows, _ = by_name(models)
    assert list(rows["WC-AUC", "ratio-0.25", "at-0.25"]["sets"]) == ["street view"]
    assert rows["WC-AUC", "ratio-0.25", "at-0.25"]["ours"]["n"] == OUT
    _, absent = by_name(read(tmp_path / "1", tmp_path / "2", seen=["street view"]))
    assert ("WC-AUC", "ratio-0.25", "at-0.25") in absent
    assert "no worst-case AUC on flowers" in study.failing(models)["ratio-0.25"]["not_judged"]


def test_the_most_images_attacked_in_the_same_way_by_both_are_compared(tmp_path):
    """1,000 by `standard` on a card and all by `fast`, in the small."""
    few = {"attacked": 40, "robust": 0.05}
    fast = {"attack_version": "fast", "ood": ()}
    made(tmp_path / "1", "ratio-0.25", **few)
    made(tmp_path / "1-fast", "ratio-0.25", robust=0.7, **fast)
    made(tmp_path / "1-few", "ratio-0.25", **few, **fast)
    made(tmp_path / "2", "at-0.25", **few)
    made(tmp_path / "2-fast", "at-0.25", robust=0.6, **fast)
    ordering = ("l2 0.5", "ratio-0.25", "at-0.25")

    def ours(*names):
        rows, absent = by_name(read(*(tmp_path / name for name in names)))
        return None if ordering in absent else rows[ordering]["ours"]

    rows, _ = by_name(read(*(tmp_path / name for name in ("1", "1-fast", "2", "2-fast"))))
    (beside,) = rows[ordering]["others"].items()
    assert beside[0] == "standard" and beside[1]["n"] == 40 and beside[1]["value"] == 0
    all_four = ours("1", "1-fast", "2", "2-fast")
    assert (all_four["n"], all_four["value"]) == (N, pytest.approx(0.1))
    assert all_four["protocol"].startswith("AutoAttack fast")
    assert ours("2-fast", "2", "1-fast", "1", "1-few") == all_four  # in whatever order
    assert ours("1-few", "1", "1-fast", "2", "2-fast") == all_four
    one_card = ours("1", "1-fast", "2")
    assert (one_card["n"], one_card["value"]) == (40, 0)
    assert one_card["protocol"].startswith("AutoAttack standard")
    assert ours("1-fast", "2") is None  # another attack each
    numbers = read(tmp_path / "1", tmp_path / "1-fast")["ratio-0.25"].card["numbers"]
    assert numbers["robust.l2-0.5.accuracy"]["value"] == 0.05  # what a failure is judged by
    assert numbers["robust.l2-0.5-fast.accuracy"]["value"] == 0.7


def test_a_difference_under_attack_carries_the_worse_verdict_of_both_models(tmp_path):
    models = read(
        made(tmp_path / "1", "ratio-0.25"),
        made(tmp_path / "2", "at-0.25"),
        made(tmp_path / "3", "plain", robust=0.0, worst=8.0),
    )
    told = {"ratio-0.25": "trusted", "at-0.25": "weak", "plain": "trusted"}
    for row, points in models.items():
        for key in ("robust.l2-0.5.accuracy", "ood.flowers.worst_auroc"):
            points.card["numbers"][key]["trust"] = {"verdict": told[row]}
    rows, _ = by_name(models)
    assert rows["l2 0.5", "ratio-0.25", "at-0.25"]["ours"]["trust"]["verdict"] == "weak"
    weak = rows["WC-AUC", "ratio-0.25", "at-0.25"]
    assert weak["ours"]["trust"]["verdict"] == "weak"
    assert weak["sets"]["flowers"]["trust"]["verdict"] == "weak"
    assert "trust" not in weak["sets"]["street view"]  # its audit tells none
    assert rows["WC-AUC", "ratio-0.25", "plain"]["ours"]["trust"]["verdict"] == "trusted"
    assert "trust" not in rows["AUC", "ratio-0.25", "at-0.25"]["ours"]  # nothing was attacked


def test_the_difference_of_aurocs_on_one_set_is_delong_s():
    rng = np.random.default_rng(0)
    known = [rng.normal(1 + i, 1, 60) for i in range(2)]
    unknown = [rng.normal(0, 1, 40) for _ in range(2)]
    # of two classes the confidence is a matter of the absolute lead
    theirs = difference_of_aurocs(*(np.abs(x) for i in range(2) for x in (known[i], unknown[i])))
    points = []
    for i in range(2):
        scores = [kept.scored(range(len(z)), logits_of(z), 1.0) for z in (known[i], unknown[i])]
        points.append(kept.Points({"numbers": {}}, "", 1.0, {}, scores[0], worst={"x": scores[1]}))
    ours = study.gap(*points, "WC-AUC", ["x"])
    assert (ours.value, ours.low, ours.high) == pytest.approx(theirs)


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


def test_failure_cases_follow_the_stated_limits_and_the_plain_model_of_the_same_form(tmp_path):
    models = read(
        made(tmp_path / "1", "plain", robust=0.0, worst=8.0),
        made(tmp_path / "2", "plain-small", right=0.5, about={"parameters": 2}),
        made(tmp_path / "3", "ratio-0.25", right=0.96),
        made(tmp_path / "4", "at-0.5", right=0.94),
        made(tmp_path / "5", "oe", about={"parameters": 3}, attack=()),
    )
    found = study.failing(models)
    assert "robust accuracy below 50 %" in found["plain"]["failures"]
    assert (
        "worst-case AUC below 50 % on street_view, flowers, uniform" in found["plain"]["failures"]
    )
    far = "clean accuracy 6.0 points below the plain model, more than 5"
    assert far in found["at-0.5"]["failures"] and far not in found["ratio-0.25"]["failures"]
    assert found["ratio-0.25"] == {"failures": [], "not_judged": []}
    assert found["oe"]["not_judged"] == [
        "clean accuracy: no plain model of the same architecture",
        "no robust accuracy by `standard`",
    ]


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


def test_twice_the_steps_count_by_the_worse_of_both(tmp_path):
    folder = made(tmp_path / "1", "ratio-0.25", worst=-1.0, heat=2.0)
    ids = [f"street view/{i}" for i in range(OUT)]
    with np.load(folder / "tables" / "worst-street_view.npz") as file:
        first = file["logits"]

    def moved(logits):
        (points,) = read(folder).values()
        (tmp_path / "d").mkdir(exist_ok=True)
        np.savez(tmp_path / "d" / "street_view.npz", logits=logits, ids=ids)
        kept.add_doubled(points, tmp_path / "d")
        return study.doubled(points)["street view"]

    assert moved(first)["holds"] and moved(first)["worse_of_both"]["value"] == 0
    assert moved(2 * logits_of(np.full(OUT, 0.1)))["holds"]  # finds nothing
    assert not moved(2 * logits_of(np.full(OUT, 9.0)))["holds"]
    # raise point after point above all known ones: an AUC of 0.5 points less is the limit
    scores = np.sort(np.abs(2.05 + SPREAD))[::-1]
    for count in (25, 26):
        higher = np.r_[np.full(count, 9.0), np.zeros(OUT - count)]
        order = np.argsort(-np.abs(2.05 + SPREAD))
        logits = np.zeros((OUT, 2), np.float32)
        logits[order] = 2 * logits_of(higher)
        by = area(SURE, scores) - area(SURE, np.maximum(scores, higher))
        found = moved(logits)
        assert found["worse_of_both"]["value"] == pytest.approx(by)
        assert found["holds"] == (count == 25), by  # 0.2 and 0.8 points


def run_study(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["zoo_orderings.py", *map(str, arguments)])
    return study.main()


def test_audits_are_named_by_model_training_folder_or_command(tmp_path, monkeypatch, capsys):
    made(tmp_path / "0", "x", model="runs/train/cifar10-oe/model")
    assert list(read(tmp_path / "0")) == ["oe"]
    made(tmp_path / "1", "ratio-0.25")
    made(tmp_path / "cifar10-ratio-0.25-anneal", "x", model="runs/final")
    made(tmp_path / "3", "at-0.25", model="zoo:cifar10-at-0.25", robust=0.5)
    folders = [tmp_path / name for name in ("1", "cifar10-ratio-0.25-anneal", "3")]
    assert run_study(monkeypatch, *folders, "--seen", "flowers", "--out", tmp_path / "a.json") == 0
    result = read_json(tmp_path / "a.json")
    assert result["protocol"].endswith("of Table 1 has.\n") and "Run:" not in result["protocol"]
    assert list(result["models"]) == ["ratio-0.25", "ratio-0.25-anneal", "at-0.25"]
    assert result["models"]["at-0.25"]["sets"] == {
        "street view": "unseen", "flowers": "seen", "uniform": "noise",
    }  # fmt: skip
    assert str(tmp_path) not in (tmp_path / "a.json").read_text()  # no path of this machine
    said = capsys.readouterr().out
    assert "l2 0.5: ratio-0.25 > at-0.25" in said and "+50.0 [" in said and "100 of 1 sets" in said
    assert "not measured" in said and "l2 0.5: pairs 28, reproduced 1, reversed 0" in said
    named = f"cifar10-ratio-0.25={folders[1]}"
    assert run_study(monkeypatch, named, folders[2], "--out", tmp_path / "b.json") == 0
    assert list(read_json(tmp_path / "b.json")["models"]) == ["ratio-0.25", "at-0.25"]


def test_kept_points_stand_for_the_audits_they_came_from(tmp_path, monkeypatch, capsys):
    made(tmp_path / "1", "ratio-0.25", robust=0.7, heat=0.3, worst=-1.0)
    fast = {"attack_version": "fast", "ood": (), "heat": 0.3}
    made(tmp_path / "1-fast", "ratio-0.25", robust=0.6, **fast)
    made(tmp_path / "2", "at-0.25", robust=0.5, turned=-1)
    (tmp_path / "d").mkdir()
    ids = [f"street view/{i}" for i in range(OUT)]
    np.savez(tmp_path / "d" / "street_view.npz", logits=logits_of(np.full(OUT, 0.1)), ids=ids)
    audits = [tmp_path / name for name in ("1", "1-fast", "2")]
    more = ("--seen", "flowers", "--doubled", f"ratio-0.25={tmp_path / 'd'}")
    keep, out = tmp_path / "kept", tmp_path / "a.json"
    assert run_study(monkeypatch, *audits, *more, "--keep", keep, "--out", out) == 0
    files = sorted(keep.iterdir(), reverse=True)  # in the order of the audits
    assert [file.name for file in files] == ["ratio-0.25.npz", "at-0.25.npz"]
    assert run_study(monkeypatch, *files, "--out", tmp_path / "b.json") == 0
    assert read_json(tmp_path / "b.json") == read_json(out)
    both = [files[0], tmp_path / "2"]  # what comes as an audit comes first
    assert run_study(monkeypatch, *both, "--seen", "flowers", "--out", tmp_path / "c.json") == 0
    assert read_json(tmp_path / "c.json")["pairs"] == read_json(out)["pairs"]
    capsys.readouterr()

    made(tmp_path / "3", "oe", data_fingerprint={"test": "test 2"})
    (tmp_path / "no.npz").write_text("no points")
    for given, expected in (
        ((files[0], files[0]), "ratio-0.25 came twice"),
        ((tmp_path / "3", files[0]), "the known images differ: oe saw test 2, ratio-0.25 test 1"),
        ((tmp_path / "no.npz",), "holds no points that zoo_orderings.py kept"),
        ((tmp_path / "gone.npz",), "holds no points that zoo_orderings.py kept"),
        ((tmp_path / "d" / "street_view.npz",), "holds no points that zoo_orderings.py kept"),
    ):
        assert run_study(monkeypatch, *given, "--out", tmp_path / "e.json") == 2
        said = capsys.readouterr().err
        assert expected in said and said.count("\n") == 1


def test_later_audits_replace_what_they_measured_anew_of_kept_points(tmp_path, monkeypatch, capsys):
    fast = {"attack_version": "fast", "ood": ()}
    sets = {name: f"{name} 1" for name in ("test", *SETS, "uniform")}
    made(tmp_path / "1", "ratio-0.25", robust=0.7, heat=0.3, attacked=40)
    made(tmp_path / "1-fast", "ratio-0.25", robust=0.6, heat=0.3, **fast)
    keep, out = tmp_path / "kept", tmp_path / "a.json"
    before = [tmp_path / "1", tmp_path / "1-fast"]
    assert run_study(monkeypatch, *before, "--keep", keep, "--out", out) == 0
    file = keep / "ratio-0.25.npz"
    whole = made(tmp_path / "whole", "ratio-0.25", robust=0.5, heat=0.3, ood=())
    other = sets | {"flowers": "flowers 2"}  # the set has other images now, and was not searched
    apart = made(
        tmp_path / "apart", "ratio-0.25", heat=0.302, attack=(), ood=("flowers",),
        data_fingerprint=other,
    )  # fmt: skip
    (apart / "tables" / "worst-flowers.npz").unlink()
    audits = kept.opened([str(whole), str(apart)])
    old = study.zoo_points.read(file)[1]
    points = kept.gathered("ratio-0.25", audits["ratio-0.25"], [], old)
    assert points.temperature == 0.3  # scores of both are after the same one
    assert len(points.robust["l2 0.5", "standard"]) == N
    assert points.robust["l2 0.5", "fast"] == old.robust["l2 0.5", "fast"]
    assert points.worst["street view"] == old.worst["street view"]
    assert "flowers" not in points.worst and points.marks["flowers"] == "flowers 2"
    assert points.card["numbers"]["robust.l2-0.5.accuracy"]["value"] == 0.5
    assert points.kinds == old.kinds
    strange = made(tmp_path / "others", "ratio-0.25", weights_hash="others")
    assert run_study(monkeypatch, strange, file, "--out", out) == 2
    assert "its audits are of other weights (others) than its kept" in capsys.readouterr().err


def test_the_stored_verdicts_are_those_of_the_stored_points(tmp_path, monkeypatch):
    results = Path(study.__file__).parent / "results"
    files = sorted((results / "points").glob("*.npz"))
    asked = ("--table", tmp_path / "b.json", "--out", tmp_path / "a.json")
    assert run_study(monkeypatch, *files, *asked) == 0
    again, stored = read_json(tmp_path / "a.json"), read_json(results / "zoo_orderings.json")
    assert len(again["pairs"]) == 182 and sorted(again["models"]) == sorted(stored["models"])
    for key in ("protocol", "pairs", "counts", "alone"):
        assert again[key] == stored[key], key
    assert read_json(tmp_path / "b.json") == zoo.pairs_of_table1()  # what reports show


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"row": "ratio-0.25"}, "are audits of different weights. Name them: NAME=AUDIT"),
        ({"data_fingerprint": {"test": "test 2"}}, "the known images differ: "),
        ({"data_fingerprint": {"flowers": "flowers 2"}}, "flowers differ: "),
        ({"first": 1000}, "0 images have the same id in both"),
        ({"row": "moon", "model": "runs/a/model"}, "a is no recipe, expected NAME=AUDIT"),
        ({"finished": False}, "is no finished audit"),
        ({"ood_attack": "l2:0.5"}, "searched within l2:0.5, expected l2:1.0"),
        ({"row": "ratio-0.25", "weights_hash": "ratio-0.25", "heat": 2.0}, "has temperature 2, "),
    ],
)
def test_audits_that_cannot_be_compared_are_one_clear_line(
    tmp_path, monkeypatch, capsys, changes, expected
):
    made(tmp_path / "1", "ratio-0.25", weights_hash="ratio-0.25")
    made(tmp_path / "2", **({"row": "at-0.25", "weights_hash": "other"} | changes))
    out = tmp_path / "a.json"
    assert run_study(monkeypatch, tmp_path / "1", tmp_path / "2", "--out", out) == 2
    said = capsys.readouterr().err
    assert expected in said and said.count("\n") == 1 and not out.exists()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--seen", "moon"], "no audit has this set, they have flowers, street view, uniform"),
        (["--doubled", "oe=d"], "expected NAME=FOLDER of ratio-0.25"),
        (["--doubled", "ratio-0.25"], "expected NAME=FOLDER of ratio-0.25"),
        (["--doubled", "ratio-0.25=empty"], "has no .npz file, expected some of street_view.npz"),
        (["--doubled", "ratio-0.25=d"], "has moon.npz, expected some of street_view.npz"),
        (["--doubled", "ratio-0.25=bad"], "is no .npz file with ids, logits"),
        (["--doubled", "ratio-0.25=short"], "is no .npz file with ids, logits: they differ"),
        (["--doubled", "cifar10-ratio-0.25=other"], "is of other weights than the audit"),
    ],
)
def test_bad_arguments_are_one_clear_line(tmp_path, monkeypatch, capsys, arguments, expected):
    monkeypatch.chdir(tmp_path)
    for name in ("empty", "d", "bad", "short", "other"):
        Path(name).mkdir()
    rows, ids = np.zeros((3, 2), np.float32), list("abc")
    np.savez("d/moon.npz", logits=rows, ids=ids)
    Path("bad/flowers.npz").write_text("no numbers")
    np.savez("short/flowers.npz", logits=rows, ids=ids[:2])
    np.savez("other/flowers.npz", logits=rows, ids=ids, weights_hash="another")
    made(tmp_path / "1", "ratio-0.25")
    assert run_study(monkeypatch, "1", *arguments, "--out", "a.json") == 2
    said = capsys.readouterr().err
    assert expected in said and said.count("\n") == 1


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two tiny networks with random weights, saved as checkpoints."""
    found = []
    for seed in range(2):
        torch.manual_seed(seed)
        shape = {"kind": "resnet18", "widths": [4, 4, 4, 4]}
        net = Classifier(
            nets.build(shape, 10), CIFAR10, [0.5] * 3, [0.25] * 3, preprocess=Preprocess((32, 32))
        ).eval()
        folder = tmp_path_factory.mktemp("nets") / "model"
        checkpoint.save(folder, net, {"name": f"tiny{seed}", "architecture": shape})
        found.append(folder)
    return found


def search(monkeypatch, model, out, *more):
    arguments = (
        "--ood", "textures=sample:textures", "noise:uniform", "--points", "5", "--steps", "4",
        "--device", "cpu", "--out",
    )  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["zoo_doubled.py", *map(str, (model, *arguments, out, *more))])
    return twice.main()


def check_same_images(monkeypatch, model, out, audited):
    """Where the search stays at its images, the model says what it said about them in the audit."""
    with monkeypatch.context() as patch:
        stays = lambda net, x, *_, **__: SimpleNamespace(points=x)  # noqa: E731
        patch.setattr(twice, "worst_confidence", stays)
        assert search(patch, model, out) == 0
    for name in ("textures", "uniform"):
        clean = stored_logits(audited)[name]
        with np.load(audited.folder / "tables" / f"worst-{name}.npz") as attacked:
            ids = attacked["ids"].tolist()
        with np.load(out / f"{name}.npz") as file:
            assert file["ids"].tolist() == ids and len(ids) == 5
            expected = clean.logits[[clean.ids.index(i) for i in ids]]
            assert np.allclose(file["logits"], expected, atol=1e-5)


@pytest.mark.usefixtures("one_thread")
def test_real_audits_and_longer_searches_fit_together(folders, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(worst_case, "STEPS", 2)
    monkeypatch.setattr(worst_case, "RESTARTS", 1)
    monkeypatch.setattr(worst_case, "QUERIES", 5)
    names = ("plain", "ratio-0.25")
    runs = [
        real_audit(
            [f"cifar10-{name}={folder}"], "sample:cifar10", attack=["l2:0.5"], ood_attack="l2:1.0",
            ood=["textures=sample:textures", "noise:uniform"], attack_version="fast",
            attack_points=5, calibrate="sample:cifar10-calibration", anyway=True, device="cpu",
            out=tmp_path / name, quiet=True,
        ).run
        for name, folder in zip(names, folders, strict=True)
    ]  # fmt: skip
    assert search(monkeypatch, folders[0], tmp_path / "twice") == 0
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "twice").iterdir()}
    assert {path.name for path in files} == {"textures.npz", "uniform.npz"}
    assert search(monkeypatch, folders[0], tmp_path / "twice") == 0  # goes on: nothing is left
    assert {path: path.stat().st_mtime_ns for path in files} == files
    assert search(monkeypatch, folders[1], tmp_path / "twice") == 2
    assert "is of other weights. Give another --out" in capsys.readouterr().err
    check_same_images(monkeypatch, folders[0], tmp_path / "still", runs[0])

    doubled = f"cifar10-plain={tmp_path / 'twice'}"
    out, paths = tmp_path / "a.json", [run.folder for run in runs]
    assert run_study(monkeypatch, *paths, "--doubled", doubled, "--out", out) == 0
    result = read_json(out)
    rows = {row["column"]: row for row in result["pairs"] if "ours" in row}
    assert set(rows) == {"l2 0.5", "AUC", "WC-AUC", "clean", "MMC"}
    first, second = (run.numbers for run in reversed(runs))
    for column, key in (
        ("l2 0.5", "robust.l2-0.5.accuracy"),
        ("AUC", "ood.textures.auroc"),
        ("WC-AUC", "ood.textures.worst_auroc"),
        ("MMC", "ood.textures.mmc"),
        ("clean", "accuracy.top1"),
    ):
        sign = 1 if rows[column]["higher"] == "ratio-0.25" else -1
        gap = sign * (first[key].value - second[key].value)  # as the audits themselves say
        near = 5e-5 if column == "AUC" else 1e-6  # points keep single precision, which ties some
        assert rows[column]["ours"]["value"] == pytest.approx(gap, abs=near), column
    for name, moved in result["models"]["plain"]["doubled"].items():
        assert moved["worse_of_both"]["value"] >= 0, name
        assert moved["worse_of_both"]["n"] == 5


def test_sets_of_one_name_are_not_searched(folders, tmp_path, monkeypatch, capsys):
    assert search(monkeypatch, folders[0], tmp_path, "--ood", "textures=noise:smooth") == 2
    assert "two sets of --ood have one name" in capsys.readouterr().err
