"""Filtration against literal loops over images, and against networks whose answers are known."""

import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torchvision.transforms.functional import ten_crop

from counterlens.classifier import Classifier
from counterlens.data.sets import array_set
from counterlens.data.sources.pools import join_parts
from counterlens.errors import InputError
from counterlens.filters import natural_adversarial, out_of_distribution
from counterlens.filters.funnel import Rule, capped, first, run_funnel, where
from counterlens.filters.label_errors import suspects
from counterlens.filters.opinions import Filter, Judge, Opinions
from counterlens.filters.screens import Copies, _nearer, embed, leaks, near_duplicates
from counterlens.images import prepare, resize, ten_crops
from counterlens.screen.duplicates import nearest
from counterlens.types import Preprocess
from curate_pools import COLOURS, by_colour, by_corner, flat, literal_ten_crops, noisy

NAMES = tuple(COLOURS)


def pictures(seed: int, count: int, side: int = 16) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, side, side, 3)).astype(np.uint8)


def test_ten_crops_are_torchvisions() -> None:
    pixels = pictures(0, 1, 40)[0][:, :32]
    preprocess = Preprocess((14, 14), 14 / 16, "bilinear")
    ours = torch.from_numpy(ten_crops(pixels, preprocess))
    small = torch.from_numpy(resize(pixels, (20, 16), "bilinear")).permute(2, 0, 1)
    theirs = torch.stack(ten_crop(small, [14, 14]))  # corners, centre, then mirrored
    assert {tuple(c.flatten().tolist()) for c in ours} == {
        tuple(c.flatten().tolist()) for c in theirs
    }
    assert torch.equal(ours, literal_ten_crops(small, 14))
    assert np.array_equal(ours[0].numpy(), prepare(pixels, preprocess))


@pytest.mark.parametrize("crop", [1.0, None])
def test_a_model_that_sees_the_whole_picture_gets_crops_of_an_enlarged_one(crop) -> None:
    pixels = pictures(1, 1, 28)[0]
    preprocess = Preprocess((28, 28), crop, "bilinear")
    big = torch.from_numpy(resize(pixels, (32, 32), "bilinear")).permute(2, 0, 1)
    assert torch.equal(torch.from_numpy(ten_crops(pixels, preprocess)), literal_ten_crops(big, 28))


def opinions(pixels: np.ndarray, labels, **changes) -> tuple[Opinions, Judge]:
    pool = join_parts([array_set("pool", pixels, labels, NAMES)], np.asarray(labels))
    request = Opinions(pool, ("mean", "corner"), ((0, 1, 2), (0, 1, 2)), batch=5, **changes)
    return request, Judge(request, [by_colour(0.875), by_corner()])


def test_opinions_are_those_of_a_literal_loop() -> None:
    labels = np.arange(23) % 3
    pixels = pictures(2, 23, 20)
    _, judge = opinions(pixels, labels)
    table = judge(0, 23)
    models = [by_colour(0.875), by_corner()]
    for i in range(23):
        usual, cropped = [], []
        for model in models:
            view = torch.from_numpy(prepare(pixels[i], model.preprocess))[None].float() / 255
            usual.append(model(view).double().softmax(1)[0])
            crops = torch.from_numpy(ten_crops(pixels[i], model.preprocess)).float() / 255
            cropped.append(model(crops).double().softmax(1))
        seen = all(int(p.argmax()) != labels[i] for p in usual)
        for f in range(2):
            assert table[f"{f}_answer"][i] == int(usual[f].argmax())
            assert table[f"{f}_confidence"][i] == pytest.approx(float(usual[f].max()), abs=1e-6)
            assert table[f"{f}_true"][i] == pytest.approx(float(usual[f][labels[i]]), abs=1e-6)
            assert table[f"{f}_crops"][i] == (10 if seen else 0)
            if seen:
                true = cropped[f][:, labels[i]]
                assert table[f"{f}_right"][i] == int((cropped[f].argmax(1) == labels[i]).sum())
                assert table[f"{f}_true_max"][i] == pytest.approx(float(true.max()), abs=1e-6)
                assert table[f"{f}_true_mean"][i] == pytest.approx(float(true.mean()), abs=1e-6)
                assert table[f"{f}_crop_answer"][i] == int(cropped[f].mean(0).argmax())
    assert 0 < (table["0_crops"] == 10).sum() < 23  # both branches were walked


def test_opinions_do_not_depend_on_how_rows_are_cut() -> None:
    _, judge = opinions(pictures(3, 17), np.arange(17) % 3)
    whole = judge(0, 17)
    parts = [judge(0, 6), judge(6, 17)]
    for key, column in whole.items():
        joined = np.concatenate([p[key] for p in parts])
        if column.dtype.kind == "f":
            np.testing.assert_allclose(joined, column, atol=1e-6)
        else:
            assert (joined == column).all()


def test_photographs_are_held_at_full_size_one_at_a_time() -> None:
    """However large a batch is: two threads decode ahead, and crops are cut from one picture."""
    alive, most = 0, 0

    def gone() -> None:
        nonlocal alive
        alive -= 1

    def read(i: int) -> np.ndarray:
        nonlocal alive, most
        pixels = np.repeat(np.repeat(flat(("red", "green", "blue")[i % 3], 16), 12, 0), 16, 1)
        alive += 1
        most = max(most, alive)
        weakref.finalize(pixels, gone)
        return pixels

    labels = np.arange(48) % 2  # a third of the labels is right
    pool = replace(array_set("large", np.zeros((48, 1, 1, 3), np.uint8), labels, ("a", "b")))
    pool = replace(pool, read=read, labels=labels)
    models = [by_colour(), by_corner()]
    request = Opinions(pool, ("x", "y"), ((0, 1, 2), (0, 1, 2)), batch=16)
    table = Judge(request, models)(0, 48)
    assert (table["0_crops"] == 10).sum() == 32
    assert most <= 3  # one per thread, and one being cropped


def test_a_subset_of_the_classes_is_all_a_filter_may_answer() -> None:
    restricted = Filter(by_colour(), (2, 0))
    p = restricted.probabilities(prepare(flat("green"), Preprocess((16, 16)))[None])
    red, blue = COLOURS["green"][0] / 255, COLOURS["green"][2] / 255
    expected = torch.tensor([8 * blue, 8 * red]).double().softmax(0).numpy()
    np.testing.assert_allclose(p[0], expected, atol=1e-6)


def test_broken_tiny_and_oblong_images_are_set_aside() -> None:
    pixels = pictures(4, 3)

    class Read:
        def __call__(self, i: int) -> np.ndarray:
            if i == 0:
                raise InputError("a.png is no whole picture (truncated).")
            return (pixels[1][:4], np.zeros((8, 900, 3), np.uint8))[i - 1] if i < 3 else pixels[2]

    base = array_set("pool", pictures(4, 4), [0, 1, 2, 0], NAMES)
    pool = replace(base, read=Read())
    request = Opinions(pool, ("mean",), ((0, 1, 2),), least_side=8)
    table = Judge(request, [by_colour()])(0, 4)
    assert table["why"].tolist() == [
        "no whole picture",
        "shorter side below 8 pixels",
        "too oblong",
        "",
    ]
    assert table["0_answer"][:3].tolist() == [-1, -1, -1] and table["0_answer"][3] >= 0


def random_table(rng: np.random.Generator, n: int, filters: int) -> dict[str, np.ndarray]:
    table = {"why": np.where(rng.random(n) < 0.1, "broken", "").astype(object)}
    for f in range(filters):
        table[f"{f}_answer"] = rng.integers(0, 3, n)
        table[f"{f}_right"] = rng.integers(0, 2, n)
        table[f"{f}_true_max"] = rng.random(n).astype(np.float32) / 3
        table[f"{f}_true_mean"] = table[f"{f}_true_max"] / 2
        table[f"{f}_crop_answer"] = rng.integers(0, 3, n)
        table[f"{f}_confidence"] = rng.random(n).astype(np.float32)
    return table


@pytest.mark.parametrize("per", ["crop", "mean"])
def test_the_adversarial_funnel_is_a_literal_loop(per) -> None:
    rng = np.random.default_rng(5)
    n, cap, most = 3000, 0.15, 3
    table, labels = random_table(rng, n, 2), rng.integers(-1, 3, n)
    limits = natural_adversarial.Limits(cap, per, most, 20)
    result = run_funnel(n, natural_adversarial.rules(table, labels, 2, limits))
    column = "true_max" if per == "crop" else "true_mean"
    left = []
    for i in range(n):
        if table["why"][i] or labels[i] < 0:
            continue
        if any(table[f"{f}_answer"][i] == labels[i] for f in (0, 1)):
            continue
        if any(table[f"{f}_right"][i] for f in (0, 1)):
            continue
        sure = max(float(table[f"{f}_{column}"][i]) for f in (0, 1))
        if sure <= cap:
            left.append((sure, i))
    counts: dict = {}
    expected_rows = []
    for sure, i in sorted(left):
        pair = (labels[i], table["0_crop_answer"][i])
        counts[pair] = counts.get(pair, 0) + 1
        if counts[pair] <= most:
            expected_rows.append((sure, i))
    assert len(left) > len(expected_rows)  # the cap binds
    assert result.rows.tolist() == [i for _, i in sorted(expected_rows)][:20]
    assert [s.name for s in result.stages][2:5] == [
        "wrong in the usual view",
        "wrong in all crops",
        "not nearly right",
    ]
    assert result.stages[4].after == len(left)


def test_confusions_within_a_group_are_not_egregious() -> None:
    """Against a literal loop; a class without a group is near to nothing, not even itself."""
    rng = np.random.default_rng(7)
    groups = ("dog", "dog", "cat", "", "")
    labels = rng.integers(0, 5, 200)
    answers = rng.integers(0, 5, (2, 200))
    table = {"why": np.full(200, "", object)}
    for f in range(2):
        table |= {
            f"{f}_answer": np.full(200, -1), f"{f}_right": np.zeros(200, int),
            f"{f}_true_max": np.zeros(200), f"{f}_crop_answer": answers[f],
        }  # fmt: skip
    limits = natural_adversarial.Limits(confusion=200, groups=groups)
    expected_rows = run_funnel(200, natural_adversarial.rules(table, labels, 2, limits)).rows
    expected = [
        i
        for i in range(200)
        if not any(groups[labels[i]] and groups[labels[i]] == groups[answers[f, i]] for f in (0, 1))
    ]
    assert sorted(expected_rows.tolist()) == expected and 0 < len(expected) < 200
    free = natural_adversarial.Limits(confusion=200)
    assert len(run_funnel(200, natural_adversarial.rules(table, labels, 2, free)).rows) == 200


def test_stages_chain_and_every_image_has_one_fate() -> None:
    rng = np.random.default_rng(6)
    table, labels = random_table(rng, 500, 1), rng.integers(0, 3, 500)
    limits = natural_adversarial.Limits(confusion=2)
    result = run_funnel(500, natural_adversarial.rules(table, labels, 1, limits))
    assert [s.before for s in result.stages] == [500, *(s.after for s in result.stages[:-1])]
    dropped = [int((result.fate == k).sum()) for k in range(len(result.stages))]
    assert dropped == [s.before - s.after for s in result.stages]
    assert (result.fate == -1).sum() == len(result.rows)


def test_a_confidence_of_exactly_the_cap_stays() -> None:
    table = random_table(np.random.default_rng(7), 2, 1)
    table["why"][:] = ""
    table["0_answer"][:], table["0_right"][:] = 1, 0
    table["0_true_max"] = np.array([0.25, 0.2500001], np.float32)
    limits = natural_adversarial.Limits(0.25)
    result = run_funnel(2, natural_adversarial.rules(table, np.zeros(2, int), 1, limits))
    assert result.rows.tolist() == [0]


def test_the_ood_funnel_keeps_the_surest_foreigners() -> None:
    rng = np.random.default_rng(8)
    table, foreign = random_table(rng, 400, 2), rng.random(400) < 0.7
    limits = out_of_distribution.OutsideLimits(0.6, answer=4, shortlist=9)
    result = run_funnel(400, out_of_distribution.rules(table, foreign, 2, limits))
    expected_rows, counts = [], {}
    sure = np.minimum(table["0_confidence"], table["1_confidence"]).astype(float)
    for i in sorted(range(400), key=lambda i: (-sure[i], i)):
        if not table["why"][i] and foreign[i] and sure[i] >= 0.6:
            answer = table["0_answer"][i]
            counts[answer] = counts.get(answer, 0) + 1
            if counts[answer] <= 4:
                expected_rows.append(i)
    assert result.rows.tolist() == expected_rows[:9]


def test_of_copies_only_the_first_stays_and_leaks_are_dropped() -> None:
    rng = np.random.default_rng(9)
    base = [noisy(NAMES[i % 3], rng, 32) for i in range(6)]
    brighter = (base[1].astype(int) + 4).clip(0, 255).astype(np.uint8)
    pool = array_set("pool", np.stack([*base, brighter]), [0] * 7, NAMES)
    known = array_set("train", np.stack([base[4], noisy("red", rng, 32)]), [0, 0], NAMES)
    record = Copies()
    result = run_funnel(7, [near_duplicates(pool, record), leaks(pool, known, record)])
    assert result.rows.tolist() == [0, 1, 2, 3, 5]
    assert [(r["id"], r["copy_of"]) for r in record.rows] == [
        ("pool/6", "pool/1"),
        ("pool/4", "train/0"),
    ]


def test_a_mirrored_leak_is_found_by_features_where_hashes_miss_it() -> None:
    rng = np.random.default_rng(10)
    base = np.stack([noisy("red", rng, 16) for _ in range(5)])
    pool = array_set("pool", base, [0] * 5, NAMES)
    known = array_set("train", base[2:3, :, ::-1], [0], NAMES)

    class RowSums(nn.Module):  # blind to left and right
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(48, 3)

        def forward(self, x):
            return self.linear((x - 0.5).sum(3).flatten(1))

    judge = Classifier(RowSums(), NAMES, preprocess=Preprocess((16, 16)))
    sums = (base[:, :, :, :].astype(float) / 255 - 0.5).sum(2).transpose(0, 2, 1).reshape(5, -1)
    np.testing.assert_allclose(embed(judge, pool, [3, 1]), sums[[3, 1]], atol=1e-4)
    assert run_funnel(5, [leaks(pool, known, Copies())]).rows.tolist() == [0, 1, 2, 3, 4]
    record = Copies()
    rule = leaks(pool, known, record, classifier=judge, cosine=0.999)
    assert run_funnel(5, [rule]).rows.tolist() == [0, 1, 3, 4]
    assert record.rows[0]["cosine"] == pytest.approx(1, abs=1e-5)


def test_features_that_have_collapsed_make_no_leaks_of_look_alikes() -> None:
    """Two tight clusters, as a well-trained network has them: near is not the same."""
    rng = np.random.default_rng(12)
    centres = rng.normal(size=(2, 16))
    known = np.repeat(centres, 1000, 0) + 0.03 * rng.normal(size=(2000, 16))
    ours = np.repeat(centres, 1000, 0) + 0.03 * rng.normal(size=(2000, 16))
    assert (nearest(ours, known)[1] > 0.99).all()  # a fixed limit would drop all of them
    assert len(_nearer(ours, known, 0.9)) <= 10  # half a per cent, where 0.1 is expected
    assert [(i, j) for i, j, _ in _nearer(known[7:8], known, 0.9)] == [(0, 7)]
    spread = rng.normal(size=(200, 16))
    near = spread[3:4] + 0.05 * rng.normal(size=(1, 16))
    assert [(i, j) for i, j, _ in _nearer(near, spread, 0.9)] == [(0, 3)]


def test_rules_that_invent_images_are_caught() -> None:
    with pytest.raises(AssertionError, match="invents"):
        run_funnel(3, [Rule("bad", "", lambda rows: np.array([7]))])


def test_small_rules() -> None:
    order = lambda rows: rows[::-1]  # noqa: E731
    rows = run_funnel(4, [capped("c", "", list("aabb"), order, 1)]).rows
    assert rows.tolist() == [1, 3]
    assert run_funnel(4, [first("f", "", order, 2)]).rows.tolist() == [3, 2]
    assert run_funnel(2, [where("w", "", np.array([False, True]))]).rows.tolist() == [1]


@pytest.mark.parametrize(
    "limits",
    [
        lambda: natural_adversarial.Limits(0.0),
        lambda: natural_adversarial.Limits(per="crops"),
        lambda: natural_adversarial.Limits(confusion=0),
        lambda: out_of_distribution.OutsideLimits(1.0),
        lambda: out_of_distribution.OutsideLimits(shortlist=0),
    ],
)
def test_thresholds_that_make_no_sense_are_refused(limits) -> None:
    with pytest.raises(InputError, match=r"expected|take"):
        limits()


def test_suspects_are_contradicted_by_all_models_alike() -> None:
    rng = np.random.default_rng(11)
    table, labels = random_table(rng, 600, 2), rng.integers(-1, 3, 600)
    for m in (0, 1):
        table[f"{m}_true"] = rng.random(600).astype(np.float32)
    record = suspects(table, labels, 2)
    due = []
    for i in range(600):
        answered = {int(table[f"{m}_answer"][i]) for m in (0, 1)}
        if table["why"][i] or labels[i] < 0 or len(answered) > 1 or labels[i] in answered:
            continue
        gaps = [float(table[f"{m}_confidence"][i]) - float(table[f"{m}_true"][i]) for m in (0, 1)]
        due.append((-(gaps[0] / 2 + gaps[1] / 2), i))
    assert record.rows.tolist() == [i for _, i in sorted(due)]
    np.testing.assert_allclose(record.score, [-s for s, _ in sorted(due)], atol=1e-9)
