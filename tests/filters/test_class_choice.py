"""Classes proposed for a set, against cases in which the right answer is plain."""

from pathlib import Path

import numpy as np
import pytest

from counterlens.errors import InputError
from counterlens.filters.class_choice import propose
from counterlens.images import write_png
from counterlens.label_spaces import imagenet, imagenet_names
from counterlens.workflows.curate.classes import choose_classes


def rows(*vectors: tuple[float, ...]) -> np.ndarray:
    return np.array(vectors, float)


def test_of_two_overlapping_classes_the_larger_stays() -> None:
    near = rows((1, 0, 0), (1, 0.1, 0), (0, 0, 1))
    result = propose(["hog", "boar", "hen"], np.array([6, 9, 7]), near, least=5, cosine=0.9)
    assert [(c.keep, c.why, c.other) for c in result] == [
        (False, "overlaps", "boar"),
        (True, "", ""),
        (True, "", ""),
    ]
    assert result[0].cosine == pytest.approx(1 / np.sqrt(1.01))


def test_a_class_that_was_dropped_drops_no_other() -> None:
    """b overlaps a and c; a is larger than b, so c may stay."""
    chain = rows((1, 0), (np.sqrt(0.5), np.sqrt(0.5)), (0, 1))
    result = propose(["a", "b", "c"], np.array([9, 8, 7]), chain, least=1, cosine=0.7)
    assert [c.keep for c in result] == [True, False, True]


def test_rare_and_backdrop_classes_go() -> None:
    names = imagenet_names()
    counts = np.full(1000, 10)
    counts[0] = 4
    result = propose(names, counts, np.eye(1000), least=5)
    assert result[0].why == "rare"
    assert result[names.index("crane")].keep  # a crane that lifts is no coarse kind of bird
    assert {c.name for c in result if c.why == "backdrop"} == {
        *("alp", "bubble", "cliff", "coral reef", "geyser", "lakeside", "promontory"),
        *("sandbar", "seashore", "valley", "volcano"),
    }


def test_of_a_wordnet_group_the_classes_with_most_images_stay() -> None:
    names = ["Norwich terrier", "pug", "candle", "beagle"]
    result = propose(names, np.array([5, 9, 6, 7]), np.eye(4), least=1, per_group=2)
    assert [(c.why, c.other, c.group) for c in result] == [
        ("group", "pug", "dog"),
        ("", "", "dog"),
        ("", "", "source of illumination"),
        ("", "", "dog"),
    ]


def test_groups_are_wordnets_and_what_they_tell_of_the_papers_classes_is_on_the_page() -> None:
    """Pairs within a group by a literal loop: the paper's 200 avoid dogs and little else."""
    groups = [s.group for s in imagenet()]
    chosen = [i for i, s in enumerate(imagenet()) if "A" in s.subsets]
    assert len(chosen) == 200 and groups.count("dog") == 118
    assert {i for i, g in enumerate(groups) if g == "dog"} == set(range(151, 269))

    def pairs(rows: list[int]) -> int:
        return sum(
            bool(groups[i]) and groups[i] == groups[j] for k, i in enumerate(rows) for j in rows[:k]
        )

    others = [i for i in range(1000) if groups[i] != "dog"]
    counted = (
        *(pairs(list(range(1000))), pairs(chosen)),
        *(pairs(others), pairs([i for i in chosen if groups[i] != "dog"])),
    )
    assert counted == (9931, 139, 3028, 129)
    page = (Path(__file__).parents[2] / "docs/papers/nae2021.md").read_text(encoding="utf-8")
    assert "139 of its 19,900 pairs" in page and "129 where 121" in page


def test_the_list_can_be_edited_and_given_back(tmp_path) -> None:
    from counterlens.workflows.curate.run import adversarial

    rng = np.random.default_rng(0)
    for name, count in (("cat", 6), ("dog", 5), ("frog", 1), ("ship", 5)):
        for i in range(count):
            pixels = rng.integers(0, 256, (32, 32, 3)).astype(np.uint8)
            write_png(tmp_path / "pool" / name / f"{i}.png", pixels)
    pool, model = [str(tmp_path / "pool")], "zoo:cifar10-plain-small"
    run = choose_classes(pool, model=model, least=2, cosine=0.99, out=tmp_path / "a")
    path = run.folder / "classes.txt"
    assert path.read_text(encoding="utf-8").split("\n")[:3] == [
        "cat",
        "dog",
        "# frog   (rare, 1 images)",
    ]
    path.write_text(path.read_text(encoding="utf-8").replace("dog\n", ""), encoding="utf-8")
    result = adversarial(
        pool, filters=[model], label_space=str(path), out=tmp_path / "b", quiet=True
    )
    assert "the 2 classes of classes.txt" in result.manifest["protocol"]
    remaining = {row["stage"]: row["kept"] for row in result.table("funnel")}
    assert remaining["known class"] == 11
    with pytest.raises(InputError, match="least takes"):
        choose_classes(pool, model=model, least=0)
