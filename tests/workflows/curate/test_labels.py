"""Label repair: planted errors are ranked first, reviewed, and corrected in the manifest."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from counterlens import Classifier
from counterlens.data.sets import array_set
from counterlens.errors import CounterlensError, InputError
from counterlens.filters.out_of_fold import doubtful, fold_of
from counterlens.images import ImageSet
from counterlens.review import Store, Verdict, store_path
from counterlens.runs import Run
from counterlens.workflows.curate.labels import labels, relabel

CLASSES = ("red", "green", "blue")


class Means(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x.mean((2, 3)))


def planted(n: int = 150, wrong: int = 6) -> tuple[ImageSet, list[int], np.ndarray]:
    rng = np.random.default_rng(0)
    y = np.arange(n) % 3
    x = rng.integers(0, 120, (n, 8, 8, 3))
    x[np.arange(n), :, :, y] += 90
    rows = sorted(rng.choice(n, wrong, replace=False).tolist())
    said = y.copy()
    said[rows] = (y[rows] + 1) % 3
    return array_set("colours", x.astype(np.uint8), said, CLASSES), rows, y


def model() -> Classifier:
    return Classifier(Means(), ("a", "b"), size=8)


def test_planted_errors_come_first_and_the_review_corrects_them(tmp_path: Path) -> None:
    images, rows, true = planted()
    result = labels(
        images, model=model(), out=tmp_path / "run", features=tmp_path / "f", quiet=True
    )
    doubts = result.table("shortlist")
    assert len(doubts) >= 5  # the sixth is less sure of its class than that class is on average
    assert {row["id"] for row in doubts[:5]} <= {str(images.ids[i]) for i in rows}
    by_id = {str(name): CLASSES[k] for name, k in zip(images.ids, true, strict=True)}
    assert all(row["answer"] == by_id[row["id"]] for row in doubts[:5])
    assert result.numbers["labels.agree"].low > 0.85
    with pytest.raises(InputError, match="nobody has reviewed"):
        relabel(result, to=tmp_path / "a.csv", quiet=True)
    ids = [row["id"] for row in doubts]
    store = Store.create(store_path(result.folder), ids, about="test")
    store.add(Verdict(ids[0], "ann", "reject", tags=(by_id[ids[0]],)))
    store.add(Verdict(ids[1], "ann", "reject"))
    store.add(Verdict(ids[2], "ann", "accept"))
    facts = relabel(result, to=tmp_path / "a.csv", root=Path("photos"), quiet=True)
    wanted = {"changed": 1, "dropped": 1, "kept": len(images) - len(ids) + 1, "contested": 0}
    assert {key: facts[key] for key in wanted} == wanted
    assert facts["pending"] == len(ids) - 3
    with (tmp_path / "a.csv").open(encoding="utf-8") as file:
        lines = {row["id"]: row for row in csv.DictReader(file)}
    assert lines[ids[0]]["label"] == by_id[ids[0]] != lines[ids[0]]["label_before"]
    assert ids[1] not in lines and lines[ids[2]]["path"] == f"photos/{ids[2]}"
    taken = relabel(result, to=tmp_path / "b.csv", take_answers=True, quiet=True)
    assert (taken["changed"], taken["dropped"]) == (2, 0)
    with pytest.raises(CounterlensError, match="exists"):
        relabel(result, to=tmp_path / "b.csv", quiet=True)


def test_the_confident_joint_is_that_of_the_paper() -> None:
    """Oracle: equation 1 written out image by image."""
    rng = np.random.default_rng(1)
    probs = rng.dirichlet(np.ones(4), 200)
    said = rng.integers(0, 4, 200)
    least = [probs[said == k, k].mean() for k in range(4)]
    found, counted = doubtful(probs, said)
    for i in range(200):
        able = [k for k in range(4) if probs[i, k] >= least[k]]
        assert counted[i] == (max(able, key=lambda k: probs[i, k]) if able else said[i])
    assert sorted(found.rows.tolist()) == np.flatnonzero(counted != said).tolist()
    assert (np.diff(found.score) <= 0).all()


def test_copies_share_a_fold_and_classes_are_spread() -> None:
    keys = [f"{i // 2}" for i in range(60)]
    y = np.repeat([0, 1], 30)
    folds = fold_of(keys, y, 5, 0)
    assert (folds[::2] == folds[1::2]).all()
    assert (np.bincount(folds[y == 0], minlength=5) == 6).all()


@pytest.mark.parametrize(
    ("options", "text"), [({"folds": 1}, "folds is 1"), ({"folds": 80}, "expected at least one")]
)
def test_folds_that_cannot_be_are_refused(
    options: dict[str, int], text: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=text):
        labels(planted()[0], model=model(), out=tmp_path / "run", quiet=True, **options)
    assert not (tmp_path / "run").exists()


def test_a_run_of_another_kind_is_refused(tmp_path: Path) -> None:
    other = Run.create(tmp_path / "run", "audit", {})
    with pytest.raises(InputError, match="no run of counterlens curate labels"):
        relabel(other, to=tmp_path / "a.csv")
