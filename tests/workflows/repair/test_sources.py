"""Where groups come from, on small sets with known answers; splits and stored features."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from counterlens.classifier import Classifier
from counterlens.data.sets import array_set, subset
from counterlens.errors import InputError
from counterlens.images import ImageSet
from counterlens.models.weights import weights_hash
from counterlens.review.store import Store, Verdict, store_path
from counterlens.runs import Run
from counterlens.workflows.repair import features, groups, sources
from counterlens.workflows.repair.data import NONE, OTHER, OWN, Opened, open_sets

CLASSES = ("cat", "dog")


class Means(nn.Module):
    """A network whose features are the mean colours; a small one, for none is trained on these."""

    def __init__(self, blue: float) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2)
        with torch.no_grad():
            self.fc.weight.copy_(torch.tensor([[-1.0, 0, -blue], [1.0, 0, blue]]))
            self.fc.bias.zero_()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x.mean((2, 3)) - 0.5)


def classifier(blue: float = 4.0) -> Classifier:
    return Classifier(Means(blue), CLASSES, size=16).eval().requires_grad_(False)


def pictures(n: int, seed: int) -> ImageSet:
    """Red is the class, blue a shortcut; a square in the middle is the object."""
    rng = np.random.default_rng(seed)
    y, z = np.arange(n) % 2, rng.random(n) < 0.5
    x = rng.integers(60, 190, (n, 16, 16, 3))
    x[..., 0] += (50 * (2 * y - 1))[:, None, None]
    x[..., 2] += (50 * (2 * z - 1))[:, None, None]
    made = array_set(f"set{seed}", x.clip(0, 255).astype(np.uint8), y, CLASSES)
    mask = np.zeros((n, 16, 16), dtype=np.uint8)
    mask[:, 5:11, 5:11] = 1
    return replace(made, extra={"blue": z.astype(int), "mask": mask})


def opened(n: int = 80) -> Opened:
    sets = (pictures(n, 1), pictures(n, 2))
    return open_sets(CLASSES, ("set1", "set2"), sets, pair_column=None, seed=0)


def passes(model: Classifier, sets: Opened):  # type: ignore[no-untyped-def]
    store = features.FeatureStore.open(None, model)
    return lambda which: features.compute(model, sets.sets[which], store)


def ranked(folder: Path, model: Classifier, rows: list[dict[str, object]]) -> Path:
    run = Run.create(folder, "neurons", {"data": "set"})
    run.note(weights_hash=weights_hash(model))
    run.write_table("spurious", rows)
    run.finish()
    return folder


UNIT = {"kind": "unit", "number": 2, "class": "dog", "verdict": "background"}


def test_a_shortcut_names_the_groups_that_it_tells_apart(tmp_path: Path) -> None:
    model, sets = classifier(), opened()
    first = {"kind": "unit", "number": 1, "class": "cat", "verdict": ""}
    run = ranked(tmp_path / "run", model, [first, UNIT])
    data = sources.grouped(sets, f"shortcut:{run}", model, passes(model, sets))
    for by, images in ((data.fix_by, data.fix), (data.check_by, data.check)):
        high = np.array([name.endswith("high") for name in by.names])[by.values]
        assert (high == images.extra["blue"].astype(bool)).all()
    assert "unit 2" in data.notes[0]


@pytest.mark.parametrize(
    ("rows", "model", "message"),
    [
        ([], 4.0, "ranks no features"),
        ([UNIT | {"verdict": "object"}], 4.0, "no feature that lives on the background"),
        ([UNIT], 3.0, "looked into weights of hash"),
    ],
)
def test_a_run_without_a_shortcut_is_refused(
    tmp_path: Path, rows: list[dict[str, object]], model: float, message: str
) -> None:
    run = ranked(tmp_path / "run", classifier(4.0), rows)
    with pytest.raises(InputError, match=message):
        sources.shortcut(Run.open(run), classifier(model))


def test_tags_are_those_of_the_reviewers(tmp_path: Path) -> None:
    model, sets = classifier(), opened()
    folder = tmp_path / "run"
    names = [str(one) for images in sets.sets for one in images.ids]
    blue = np.concatenate([images.extra["blue"] for images in sets.sets])
    store = Store.create(store_path(folder), names, about="these")
    store.add(
        Verdict(name, who, "accept", tags=("background",) if flag else ())
        for name, flag in zip(names[:-1], blue[:-1], strict=True)
        for who in ("Ada", "Bo")
    )
    with pytest.raises(InputError, match="1 of the 80 images of set2 were not reviewed"):
        sources.grouped(sets, f"tags:{folder}", model, passes(model, sets))
    store.add(Verdict(names[-1], "Ada", "accept", tags=("background",) if blue[-1] else ()))
    data = sources.grouped(sets, f"tags:{folder}", model, passes(model, sets))
    assert data.fix_by.names == ("background", "no tag")
    assert (data.check_by.values == 1 - sets.sets[1].extra["blue"]).all()


def test_without_groups_errors_stand_for_them_on_the_fitting_half_alone() -> None:
    model, sets = classifier(), opened(160)
    data = sources.grouped(sets, "none", model, passes(model, sets))
    x = torch.from_numpy(passes(model, sets)(0))
    wrong = (model.net.fc(x).argmax(1).numpy() != sets.labels[0]).astype(int)
    assert (data.fix_by.values[data.fit] == wrong[data.fit]).all()
    assert not data.fix_by.values[data.choose].any() and not data.check_by.values.any()
    assert "worst class" in data.notes[0]
    honest = classifier(0.0)
    data = sources.grouped(sets, "none", honest, passes(honest, sets))
    assert not data.fix_by.values.any() and "fewer than 20" in data.notes[0]


def test_slices_of_audits_are_groups_and_images_that_were_not_searched_take_no_part(
    tmp_path: Path,
) -> None:
    model, sets = classifier(), opened(80)
    runs = []
    for number, images in enumerate(sets.sets):
        run = Run.create(tmp_path / f"audit{number}", "audit", {})
        rows = [
            {"image": str(name), "slice": "1: cat: dark" if i % 4 == 0 else "", "half": "fit"}
            for i, name in enumerate(images.ids)
        ]
        run.write_table("slice_images", rows)
        runs.append(str(run.folder))
    data = sources.grouped(sets, f"slices:{','.join(runs)}", model, passes(model, sets))
    assert data.fix_by.names == ("1: cat: dark", "no slice")
    assert (data.check_by.values == (np.arange(len(sets.sets[1])) % 4 != 0)).all()
    assert sources.searched(f"slices:{','.join(runs)}", sets.sets) == (sets.sets, ())
    more = pictures(90, 1)  # the first audit searched 80 of these 90
    (fix, check), notes = sources.searched(f"slices:{','.join(runs)}", (more, sets.sets[1]))
    assert list(fix.ids) == list(sets.sets[0].ids) and check is sets.sets[1]
    assert notes[0].startswith("10 of the 90 images of set1 take no part")
    with pytest.raises(InputError, match="none of the 80 images of set2 was searched"):
        sources.searched(f"slices:{runs[0]}", sets.sets)


def test_masks_give_each_picture_three_backgrounds_within_its_split() -> None:
    model, sets = classifier(), opened(40)
    data = sources.grouped(sets, "masks:own", model, passes(model, sets))
    assert data.fix_by.names == (OWN, OTHER, NONE)
    assert len(data.fix) == 3 * (len(sets.fit) + len(sets.choose)) and len(data.check) == 120
    object_ = np.zeros((16, 16), dtype=bool)
    object_[5:11, 5:11] = True
    for rows, photos in ((data.fit, sets.fit), (data.choose, sets.choose)):
        sources_of = {str(sets.sets[0].ids[i]) for i in photos}
        assert {str(data.fix.ids[i]).partition("#")[0] for i in rows} == sources_of
        outside = {sets.sets[0].read(int(i))[0, 0].tobytes() for i in photos}
        for i in rows[:30].tolist():
            own = sets.sets[0].read(sets.sets[0].ids.index(str(data.fix.ids[i]).partition("#")[0]))
            got = data.fix.read(i)
            assert (got[object_] == own[object_]).all()
            value = data.fix_by.names[data.fix_by.values[i]]
            assert (got[0, 0] == own[0, 0]).all() == (value == OWN)
            assert value != NONE or not got[~object_].any()
            assert value != OTHER or got[0, 0].tobytes() in outside
    assert data.partners is not None
    assert sum(text == "" for text in data.partners) == len(data.fix) // 3


def test_two_means_is_the_best_cut() -> None:
    """Oracle: every cut tried."""
    values = np.random.default_rng(0).normal(size=60) + np.repeat([0.0, 3.0], 30)
    cut = sources.two_means(values)

    def spread(at: float) -> float:
        parts = values[values <= at], values[values > at]
        return sum(((p - p.mean()) ** 2).sum() for p in parts if len(p))

    assert spread(cut) == pytest.approx(min(spread(v) for v in np.sort(values)[:-1]))
    with pytest.raises(InputError, match="one value on all"):
        sources.two_means(np.ones(5))


def test_versions_of_one_picture_stay_in_one_half() -> None:
    first = pictures(60, 3)
    fix = replace(first, extra={"photo": np.array([f"p{i // 2}" for i in range(60)])})
    sets = open_sets(CLASSES, ("a", "b"), (fix, pictures(30, 4)), pair_column="photo", seed=1)
    half = dict.fromkeys(sets.fit.tolist(), 0) | dict.fromkeys(sets.choose.tolist(), 1)
    assert all(half[i] == half[i + 1] for i in range(0, 60, 2) if {i, i + 1} <= half.keys())
    assert 5 < len(sets.fit) < 55


def test_near_copies_leave_the_choosing_half() -> None:
    base = pictures(60, 5)
    pixels = np.stack([base.read(i) for i in range(60)])
    near = np.concatenate([pixels, pixels // 4 * 4])
    images = array_set("twice", near.astype(np.uint8), [*base.labels, *base.labels], CLASSES)
    hashes, prints = groups.content_hashes(images), groups.prints_of(images)
    fit, choose = groups.split(hashes, prints, 0)
    assert not {i % 60 for i in fit.tolist()} & {i % 60 for i in choose.tolist()}


def test_features_are_stored_by_pixels_and_by_the_network_before_the_head(tmp_path: Path) -> None:
    images, model = pictures(20, 6), classifier()
    store = features.FeatureStore.open(tmp_path, model)
    x = features.compute(model, images, store)
    with torch.no_grad():
        planes = np.stack([images.read(i) for i in range(20)]).transpose(0, 3, 1, 2)
        expected = (torch.from_numpy(planes.copy()).float() / 255).mean((2, 3)) - 0.5
    assert np.allclose(x, expected.numpy(), atol=1e-6)
    assert features.backbone_hash(classifier(1.0)) == features.backbone_hash(model)
    again = features.FeatureStore.open(tmp_path, classifier(1.0))
    assert len(again.known) == 20
    assert (features.compute(model, subset(images, [3]), again) == x[3]).all()
    other = Classifier(Means(4.0), CLASSES, mean=0.1, size=16)
    assert features.backbone_hash(other) != features.backbone_hash(model)
    assert features.known_share(model, images, again) == 1
