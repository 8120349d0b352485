"""Features on the background: a network whose units look at known places of the picture.

Oracle: unit 0 is the brightness of the middle, unit 1 that of a corner, unit 2 of everything; their
shares outside a mask are counted by hand. Masks and statistics against NumPy and SciPy.
"""

import numpy as np
import pytest
import torch
from scipy.stats import ttest_1samp
from torch import nn

from counterlens.classifier import Classifier
from counterlens.data import open_set, write_pack
from counterlens.data.masks import object_of, open_masks, own_masks
from counterlens.errors import InputError
from counterlens.images import png_bytes, write_png
from counterlens.metrics.spurious import placed, ranked, verdicts
from counterlens.types import Preprocess
from counterlens.workflows.neurons.run import neurons

pytestmark = pytest.mark.usefixtures("one_thread")
SIDE, CELL = 16, 4


class Places(nn.Module):
    """Three maps on a 4 × 4 grid: middle, corner, everywhere; features are means."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = nn.Conv2d(3, 3, CELL, CELL, bias=False)
        self.pool.weight.data.fill_(1 / (3 * CELL * CELL))
        gates = torch.zeros(3, 4, 4)
        gates[0, 1:3, 1:3] = 1
        gates[1, 0, 0] = 1
        gates[2] = 1
        self.gate = Gate(gates)
        self.linear = nn.Linear(3, 2)
        self.linear.weight.data = torch.tensor([[1.0, 4.0, 0.0], [0.0, 0.0, 1.0]])
        self.linear.bias.data = torch.tensor([0.0, 0.25])

    def forward(self, x):
        return self.linear(self.gate(self.pool(x)).mean((2, 3)))


class Gate(nn.Module):
    def __init__(self, gates):
        super().__init__()
        self.gates = nn.Parameter(gates)

    def forward(self, x):
        return x * self.gates


@pytest.fixture
def places() -> Classifier:
    classifier = Classifier(
        Places(), ("cat", "dog"), preprocess=Preprocess((SIDE, SIDE)), name="places"
    )
    return classifier.eval().requires_grad_(False)


def pictures(n: int = 24) -> tuple[list[np.ndarray], list[int], list[np.ndarray]]:
    """Cats with a bright middle and corner, dogs grey; the object is the middle."""
    rng = np.random.default_rng(0)
    images, labels, masks = [], [], []
    for i in range(n):
        image = rng.integers(20, 60, (SIDE, SIDE, 3)).astype(np.uint8)
        label = i % 2
        image[4:12, 4:12] += np.uint8(120 if label == 0 else 60)
        if label == 0:
            image[:4, :4] = 230
        mask = np.zeros((SIDE, SIDE), np.uint8)
        mask[4:12, 4:12] = 255
        images, labels, masks = [*images, image], [*labels, label], [*masks, mask]
    return images, labels, masks


@pytest.fixture
def pack(tmp_path):
    images, labels, masks = pictures()
    encoded = [png_bytes(np.repeat(mask[..., None], 3, 2)) for mask in masks]
    path = tmp_path / "set.npz"
    write_pack(
        path, images, labels, ("cat", "dog"),
        mask_png=np.frombuffer(b"".join(encoded), np.uint8),
        mask_offsets=np.cumsum([0] + [len(data) for data in encoded]),
    )  # fmt: skip
    return f"pack:{path}"


def test_the_corner_unit_ranks_first_and_the_middle_one_last(places, pack, tmp_path):
    run = neurons(places, method="spurious", unit=[0, 1, 2], data=pack, out=tmp_path / "run",
                  quiet=True).run  # fmt: skip
    rows = run.table("spurious")
    assert [row["number"] for row in rows] == [1, 2, 0]
    corner, everywhere, middle = rows
    # enlarged bilinearly, an eighth of the corner cell reaches the middle along each side
    assert corner["outside"] == pytest.approx(1 - 1 / 64, abs=1e-6)
    assert corner["verdict"] == "background"
    assert corner["background"] == pytest.approx(0.75)
    assert everywhere["verdict"] == "object"  # the middle is brighter
    assert middle["outside"] < 0.45 and middle["verdict"] == "object"
    assert all(row["n"] == 8 and row["low"] <= row["outside"] <= row["high"] for row in rows)
    assert run.numbers["spurious.unit-1.outside"].value == corner["outside"]
    page = (run.folder / "report.html").read_text()
    assert "Features on the background" in page and "key:mask" in page


def test_units_of_each_class_are_judged_on_its_own_images(places, pack, tmp_path):
    run = neurons(places, method="spurious", data=pack, out=tmp_path / "run", quiet=True).run
    rows = run.table("spurious")
    assert {(row["class"], row["number"]) for row in rows} == {("cat", 0), ("cat", 1), ("dog", 2)}
    assert (rows[0]["class"], rows[0]["number"]) == ("cat", 1)
    assert "cat-unit-1" in "".join(run.numbers)


def test_components_can_be_ranked_too(places, pack, tmp_path):
    run = neurons(
        places, method="spurious", npca=["cat"], data=pack, out=tmp_path / "run", quiet=True
    ).run
    assert {row["kind"] for row in run.table("spurious")} == {"component"}


def test_masks_by_the_models_own_map_are_named_as_such(places, pack, tmp_path):
    run = neurons(
        places, method="spurious", unit=[1], data=pack, mask="cam", out=tmp_path / "run", quiet=True
    ).run
    assert "no independent mask" in run.manifest["masks"]


def test_masks_are_found_in_folders_and_arrays(tmp_path):
    images, labels, masks = pictures(4)
    for i, image in enumerate(images):
        (tmp_path / "set" / "ab"[labels[i]]).mkdir(parents=True, exist_ok=True)
        write_png(tmp_path / "set" / "ab"[labels[i]] / f"{i}.png", image)
    folder = tmp_path / "masks"
    folder.mkdir()
    write_png(folder / "2.png", masks[2])
    result = open_set(str(tmp_path / "set"))
    read = open_masks(str(folder), str(tmp_path / "set"), result)
    got = {str(result.ids[i]): read(i) for i in range(4)}
    assert sum(mask is not None for mask in got.values()) == 1
    (mask,) = [mask for name, mask in got.items() if name.endswith("2.png")]
    np.testing.assert_array_equal(mask, masks[2] > 0)
    path = tmp_path / "dense.npz"
    write_pack(path, images, labels, ("a", "b"), masks=np.stack(masks) > 0)
    own = own_masks(f"pack:{path}", open_set(f"pack:{path}"))
    assert own is not None and own[0] == "masks"
    np.testing.assert_array_equal(own[1](3), masks[3] > 0)
    assert own_masks(str(tmp_path / "set"), result) is None


def test_masks_follow_a_part_of_a_set(pack):
    part = open_set(pack, limit=5, seed=3)
    own = own_masks(pack, part)
    assert own is not None
    for i in range(5):
        np.testing.assert_array_equal(own[1](i), pictures()[2][0] > 0)


def test_values_of_a_mask_are_read_as_people_write_them():
    def grey(*values):
        return np.array(values, np.uint8).reshape(1, -1, 1).repeat(3, 2)

    assert object_of(grey(0, 1)).tolist() == [[False, True]]
    assert object_of(grey(0, 100, 200)).tolist() == [[False, False, True]]
    assert object_of(grey(1, 2, 3), border=True).tolist() == [[True, False, True]]
    assert object_of(grey(0, 0)).tolist() == [[False, False]]


def test_chance_is_students_and_shares_over_all_rows(rng):
    outside = torch.rand(12, generator=rng).double().numpy()
    area = torch.rand(12, generator=rng).double().numpy()
    place = placed(outside, area)
    assert place is not None
    expected = ttest_1samp(outside - area, 0, alternative="greater").pvalue
    assert place.chance == pytest.approx(expected)
    assert place.outside == pytest.approx(outside.mean()) and place.n == 12
    sure = placed(np.full(9, 0.9) + 0.01 * np.arange(9), np.full(9, 0.5))
    small = placed(np.full(9, 0.95), np.full(9, 0.97))
    assert sure is not None and small is not None
    assert verdicts([place, sure, small])[1:] == ["background", "object"]
    assert ranked([small, sure])[0] == 1  # a small object alone puts nothing first
    gaps = outside.copy()
    gaps[:4] = np.nan
    assert placed(gaps, area).n == 8
    assert placed(np.array([0.5, np.nan]), np.array([0.5, 0.5])) is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"method": "spurious"}, "needs data"),
        ({"method": "npca", "npca": ["cat:0"]}, "needs data"),
        ({"method": "npca", "npca": ["cow:0"], "data": True}, "no class 'cow'"),
        ({"method": "npca", "npca": ["cat:3"], "data": True}, "components are 0 … 2"),
        ({"method": "npca", "npca": ["cat:-1"], "data": True}, "expected 0 or more"),
        ({"unit": [3], "method": "spurious", "data": True}, "units 0 … 2"),
        ({"method": "spurious", "data": True, "mask": "nowhere"}, "masks are 'nowhere'"),
        ({"method": "spurious", "data": True, "mask": "key:none"}, "no arrays none_png"),
        ({"method": "spurious", "data": True, "image": ["a.png"]}, "belongs to method='show'"),
        ({"method": "spurious", "data": True, "limit": 3}, "no class has 8 images"),
        ({"method": "npca", "npca": ["cat"], "data": True, "logit": ["cat"]}, "belongs to"),
        ({"unit": [1], "mask": "cam"}, "belongs to method='spurious'"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(places, pack, tmp_path, options, words):
    given = {**options, **({"data": pack} if options.get("data") else {})}
    with pytest.raises(InputError, match=words) as caught:
        neurons(places, **given, out=tmp_path / "run", quiet=True)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run" / "DONE").exists()


def test_empty_masks_are_refused(places, tmp_path):
    images, labels, _ = pictures()
    path = tmp_path / "empty.npz"
    write_pack(path, images, labels, ("cat", "dog"), masks=np.zeros((24, SIDE, SIDE), bool))
    with pytest.raises(InputError, match="none of the 24 masks"):
        neurons(places, method="spurious", data=f"pack:{path}", out=tmp_path / "run", quiet=True)


def test_a_model_without_a_linear_head_is_refused(pack, tmp_path):
    net = nn.Sequential(nn.Conv2d(3, 2, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model = Classifier(net, ("cat", "dog"), preprocess=Preprocess((SIDE, SIDE)), name="bare")
    with pytest.raises(InputError, match="no features"):
        neurons(
            model.eval(), method="npca", npca=["cat:0"], data=pack, out=tmp_path / "run", quiet=True
        )


def test_components_show_what_they_contribute_and_what_harm_they_do(places, pack, tmp_path):
    run = neurons(
        places, method="npca", npca=["cat:0", "dog"], data=pack, out=tmp_path / "run", quiet=True
    ).run
    table = run.table("components")
    assert [(row["class"], row["component"]) for row in table][:2] == [("cat", 0), ("dog", 0)]
    assert len(table) == 4 and all(row["n"] == 12 for row in table)
    assert sum(row["variance"] for row in table[1:]) == pytest.approx(1)
    rows = run.table("neurons")
    best = [row for row in rows if row["name"] == "cat, component 0" and "other" not in row["how"]]
    assert best[0]["activation"] == max(row["activation"] for row in best)
    assert run.numbers["npca.cat-component-0.taken"].n == 12
    page = (run.folder / "report.html").read_text()
    assert "What components contribute" in page and run.done
