"""Edits against literal pixels: patch, box, background, pairs of a column."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from counterlens.data.sets import array_set
from counterlens.data.synthetic import backgrounds
from counterlens.errors import InputError
from counterlens.images import write_png
from counterlens.workflows.repair.edits import made as edits
from counterlens.workflows.repair.groups import Grouped

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (8, 20, 20, 3), dtype=np.uint8)
IMAGES = array_set("some", PIXELS, [0, 0, 0, 0, 1, 1, 1, 1], ("cat", "dog"))
BY = Grouped(
    IMAGES.labels, np.array([0, 1, 0, 1, 0, 1, 0, 1]), ("cat", "dog"), ("plain", "patched")
)
ROWS = np.arange(8)


def disc(k: int) -> np.ndarray:
    rows, columns = np.mgrid[:20, :20]
    return (rows - 9) ** 2 + (columns - 9 - k % 3) ** 2 < 25


def test_donors_have_another_value_and_class_where_there_are_any() -> None:
    chosen = edits.donors(ROWS, BY, np.random.default_rng(1))
    for row, donor in enumerate(chosen.tolist()):
        assert BY.values[donor] != BY.values[row] and BY.labels[donor] != BY.labels[row]
    one = replace(BY, values=BY.labels)  # no minority: donors are of the other class
    assert (BY.labels[edits.donors(ROWS, one, np.random.default_rng(1))] != BY.labels).all()
    alone = replace(BY, labels=BY.labels * 0, values=BY.values * 0)
    assert (edits.donors(ROWS, alone, np.random.default_rng(1)) == -1).all()


def test_a_box_comes_from_the_donor_and_nothing_else_changes() -> None:
    made = edits.box_edit(IMAGES, ROWS, BY, (0.1, 0.2, 0.5, 0.25), np.random.default_rng(2))
    assert (made.values != BY.values).all()
    for j in range(8):
        out, own = made.read(j), PIXELS[made.rows[j]]
        outside = np.ones((20, 20), dtype=bool)
        outside[2:12, 4:9] = False
        assert (out[outside] == own[outside]).all()
        assert any((out[2:12, 4:9] == PIXELS[k][2:12, 4:9]).all() for k in range(8) if k != j)
        moved = (made.unrelated(j) != own).any(2)
        assert not moved[2:12, 4:9].any()


def test_a_patch_is_drawn_on_those_that_lack_it() -> None:
    patch, box = np.full((4, 4, 3), (250, 0, 200), dtype=np.uint8), (0.0, 0.0, 0.25, 0.25)
    pixels = PIXELS.copy()
    for i in np.flatnonzero(BY.values):
        pixels[i] = edits.drawn(pixels[i], patch, box)
    images = array_set("patched", pixels, IMAGES.labels, ("cat", "dog"))
    made = edits.patch_edit(images, ROWS, BY, (patch, box), np.random.default_rng(0))
    assert made.rows.tolist() == [0, 2, 4, 6] and (made.values == 1).all()
    for j, row in enumerate(made.rows):
        out, other = made.read(j), made.unrelated(j)
        assert (out[:5, :5] == [250, 0, 200]).all() and (out[5:] == pixels[row][5:]).all()
        assert (other[:15] == pixels[row][:15]).all() and (other[15:, 15:] != [250, 0, 200]).any()
        assert any((other[15:, 15:] == pixels[k][15:, 15:]).all() for k in made.rows)


def test_an_object_on_another_background_by_hand() -> None:
    """Oracle: pixel by pixel; the strip beside the donor's box is tiled over its object."""
    masks = [disc(k) for k in range(8)]
    out = edits.swapped(IMAGES, lambda i: masks[i], 0, 5)
    top, bottom, left, right = 5, 14, 5 + 5 % 3, 14 + 5 % 3
    assert backgrounds.box_of(masks[5]) == (top, bottom, left, right)
    own = PIXELS[5]
    beside = (own[:top], own[bottom:], own[:, :left], own[:, right:])
    strip = max(beside, key=lambda part: part.size)
    behind = PIXELS[5].copy()
    for r in range(top, bottom):
        for c in range(left, right):
            behind[r, c] = strip[r % strip.shape[0], c % strip.shape[1]]
    for r in range(20):
        for c in range(20):
            if masks[0][r, c]:
                assert (out[r, c] == PIXELS[0][r, c]).all()
                continue
            rows, columns = np.nonzero(masks[0])
            apart = np.sqrt((rows - r) ** 2 + (columns - c) ** 2).min()
            share = max(0.0, 1 - apart / 3)
            blend = share * PIXELS[0][r, c] + (1 - share) * behind[r, c]
            assert np.abs(out[r, c] - blend).max() <= 0.51


def test_variants_take_away_object_or_background() -> None:
    mask, own = disc(0), PIXELS[0]
    assert (backgrounds.only_foreground(own, mask)[~mask] == 0).all()
    assert (backgrounds.only_foreground(own, mask)[mask] == own[mask]).all()
    assert (backgrounds.no_foreground(own, mask)[mask] == 0).all()
    assert (backgrounds.no_foreground(own, mask)[~mask] == own[~mask]).all()
    boxed = backgrounds.only_background_box(own, mask)
    assert (boxed[5:14, 5:14] == 0).all() and (boxed[:5] == own[:5]).all()
    assert backgrounds.only_background_tiled(own, np.ones((20, 20), dtype=bool)) is None


def test_empty_full_and_odd_masks_are_refused_by_name() -> None:
    odd = [np.zeros((20, 20), dtype=bool), np.ones((20, 20), dtype=bool), None, np.eye(4) > 0]
    with pytest.raises(InputError, match="1 empty, 1 full, 1 missing, 1 of 4 × 4 pixels for 20"):
        edits.usable_masks(IMAGES, lambda i: odd[i], range(4))
    good = edits.usable_masks(IMAGES, lambda i: disc(i) if i else odd[0], range(8))
    assert good.tolist() == [False] + [True] * 7


def test_versions_of_one_picture_are_pairs_of_one_class() -> None:
    texts = ["a", "a", "", "b", "c", "c", "", "d"]
    made = edits.column_edit(ROWS, texts, BY, IMAGES)
    assert made.rows.tolist() == [0, 1, 4, 5] and made.values.tolist() == [1, 0, 1, 0]
    assert (made.read(0) == PIXELS[1]).all() and (made.unrelated(0) == PIXELS[0][:, ::-1]).all()
    with pytest.raises(InputError, match="are a pair and have different labels"):
        edits.column_edit(ROWS, ["a"] * 8, BY, IMAGES)
    with pytest.raises(InputError, match="no two fix images share"):
        edits.column_edit(ROWS, [""] * 8, BY, IMAGES)


@pytest.mark.parametrize("text", ["box:1,2", "box:0,0,0.9,0.9", "patch:f.png", "ring:0", "masks:"])
def test_edits_that_cannot_be_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="pairs"):
        edits.parse_pairs(text)


def test_versions_made_elsewhere_are_pairs_by_name(tmp_path: Path) -> None:
    images = array_set("set", np.zeros((4, 8, 8, 3), np.uint8), np.array([0, 0, 1, 1]), ("a", "b"))
    by = Grouped(images.labels, np.array([0, 1, 0, 1]), ("a", "b"), ("no", "yes"))
    (tmp_path / "set").mkdir()
    for row in (1, 2):
        write_png(tmp_path / f"{images.ids[row]}.png", np.full((8, 8, 3), 40 * row, np.uint8))
    edit = edits.files_edit(images, np.arange(4), by, tmp_path)
    assert edit.rows.tolist() == [1, 2] and edit.values.tolist() == [0, 1]
    assert [int(edit.read(j)[0, 0, 0]) for j in (0, 1)] == [40, 80]
    with pytest.raises(InputError, match="edited version of none"):
        edits.files_edit(images, np.array([0, 3]), by, tmp_path)
    with pytest.raises(InputError, match="expected a folder"):
        edits.files_edit(images, np.arange(4), by, tmp_path / "nowhere")
