"""Label spaces: timm's and torchvision's own lists, counts from the papers, and a file of facts."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import timm.data
from torchvision.models._meta import _IMAGENET_CATEGORIES

from counterlens.errors import InputError
from counterlens.label_spaces import (
    CIFAR10,
    CIFAR100,
    LabelMap,
    declared_map,
    everything,
    imagenet,
    imagenet_index,
    imagenet_names,
    match_classes,
    members,
)
from counterlens.label_spaces.imagenet import by_name

INFO = Path(timm.data.__file__).parent / "_info"


def listed(name: str) -> list[str]:
    return (INFO / name).read_text().split()


def test_wordnet_ids_and_their_order_are_timms():
    assert [s.wnid for s in imagenet()] == listed("imagenet_synsets.txt")


def test_first_names_are_torchvisions_and_all_different():
    assert list(imagenet_names()) == _IMAGENET_CATEGORIES
    assert len(set(imagenet_names())) == 1000


@pytest.mark.parametrize(("space", "letter"), [("imagenet-a", "a"), ("imagenet-r", "r")])
def test_the_200_classes_are_timms(space, letter):
    expected = dict(
        zip(
            listed(f"imagenet_{letter}_synsets.txt"),
            map(int, listed(f"imagenet_{letter}_indices.txt")),
            strict=True,
        )
    )
    assert {wnid: group[0] for wnid, group in members(space).items()} == expected
    assert list(members(space)) == sorted(expected) and len(expected) == 200


def test_imagenet_o_has_200_classes_of_which_59_are_imagenet_as():
    o, a = set(members("imagenet-o")), set(members("imagenet-a"))
    assert len(o) == 200 and len(o & a) == 59


def test_imagenet9_maps_370_classes_and_leaves_630():
    mapping = declared_map("imagenet-9", imagenet_names()).mapping(1000)
    assert sum(k >= 0 for k in mapping) == 370 and sum(k < 0 for k in mapping) == 630


def test_restricted_imagenet_has_203_classes_so_10150_validation_images():
    groups = members("restricted-imagenet")
    assert len(groups) == 9 and sum(map(len, groups.values())) * 50 == 10_150
    assert imagenet_names()[groups["dog"][0]] == "Chihuahua"
    assert imagenet_names()[groups["fish"][-1]] == "puffer"


def test_all_spaces_equal_the_file_of_facts(shared_data):
    facts = json.loads((shared_data / "label_spaces.json").read_text())
    assert [s.wnid for s in imagenet()] == [row["wnid"] for row in facts["imagenet1k"]]
    assert all(
        row["name"] in s.names for row, s in zip(facts["imagenet1k"], imagenet(), strict=True)
    )
    assert list(members("imagenet-a")) == facts["imagenet_a"]
    assert list(members("imagenet-o")) == facts["imagenet_o"]
    nine = declared_map("imagenet-9", imagenet_names())
    assert list(nine.classes) == facts["imagenet9"]["classes"]
    assert list(nine.mapping(1000)) == facts["imagenet9"]["of_index"]
    assert {c: list(g) for c, g in members("cue-conflict").items()} == facts["sixteen_class"]
    ranges = facts["restricted_imagenet"]["inclusive_ranges"]
    assert {c: [g[0], g[-1]] for c, g in members("restricted-imagenet").items()} == ranges


def test_the_cifar10_column_covers_the_overlap_found_for_tiny_imagenet(shared_data):
    with np.load(shared_data / "ood32_tinyimagenet_val.npz") as pack:
        pairs = list(zip(pack["classes"].tolist(), pack["cifar10_overlap"].tolist(), strict=True))
    column = {s.wnid: s.cifar10 for s in imagenet()}
    inside = [(column[c.split()[0]], other) for c, other in pairs if c.split()[0] in column]
    assert len(inside) > 100 and all(ours == theirs for ours, theirs in inside)
    assert {s.cifar10 for s in imagenet()} - {""} == set(CIFAR10)


def test_cifar_names_are_sorted_and_complete():
    assert len(CIFAR10) == 10 and len(CIFAR100) == 100
    assert list(CIFAR100) == sorted(set(CIFAR100)) and list(CIFAR10) == sorted(CIFAR10)


def test_an_imagenet_model_is_known_by_names_ids_or_both():
    long = [", ".join(s.names) for s in imagenet()]
    both = [f"{s.wnid} {s.names[0]}" for s in imagenet()]
    for names in (imagenet_names(), _IMAGENET_CATEGORIES, long, both, [s.wnid for s in imagenet()]):
        assert imagenet_index(names) == tuple(range(1000))
    plain = [
        s.names[1] if s.names[0] in ("crane bird", "maillot tank suit") else s.names[0]
        for s in imagenet()
    ]
    assert plain[134] == plain[517] == "crane"
    assert imagenet_index(plain) == tuple(range(1000))  # a shared name is the one at its place
    assert imagenet_index(["background", *imagenet_names()])[:3] == (-1, 0, 1)
    assert imagenet_index(CIFAR10) is None


def test_a_model_in_another_order_gets_the_same_groups_of_names():
    shuffled = np.random.default_rng(0).permutation(1000)
    names = [imagenet_names()[i] for i in shuffled]
    straight, mixed = (declared_map("cue-conflict", n) for n in (imagenet_names(), names))
    for a, b in zip(straight.groups, mixed.groups, strict=True):
        assert {imagenet_names()[i] for i in a} == {names[i] for i in b}


@pytest.mark.parametrize(
    ("data_class", "model_class", "how"),
    [
        ("truck", "truck", "exact"),
        ("Truck", "truck", "spelling"),
        ("trucks", "truck", "spelling"),
        ("010.truck", "truck", "spelling"),
        ("lawn-mower", "lawn_mower", "spelling"),
        ("Butterflies", "butterfly", "spelling"),
        ("pine trees", "pine_tree", "spelling"),
        ("boxes", "box", "spelling"),
        ("aeroplane", "airplane", "alias"),
        ("cars", "automobile", "alias"),
        ("bus", "bus", "exact"),
        ("lorries", "truck", "alias"),
        ("CHA\u0302TEAU", "ch\u00e2teau", "spelling"),  # accent as a sign of its own
    ],
)
def test_names_are_matched_as_people_spell_them(data_class, model_class, how):
    names = (
        "airplane",
        "automobile",
        "truck",
        "lawn_mower",
        "butterfly",
        "pine_tree",
        "box",
        "bus",
        "château",
    )
    row = match_classes(names, [data_class]).rows[0]
    assert (row.model_class, row.how) == (model_class, how)


def test_wordnet_ids_and_synonyms_match_imagenet_models_however_their_classes_are_written():
    data = [
        "n01440764",
        "n02102040 English springer",
        "Siamese",
        "cassette player",
        "Carassius auratus",
    ]
    expected = [0, 217, 284, 482, 1]
    for names in (imagenet_names(), [", ".join(s.names) for s in imagenet()]):
        matching = match_classes(names, data)
        assert list(matching.position) == expected
        assert [r.how for r in matching.rows][:3] == ["wnid", "wnid", "synonym"]
    ids = match_classes([s.wnid for s in imagenet()], ["tench", "goldfish"])
    assert list(ids.position) == [0, 1] and {r.how for r in ids.rows} == {"synonym"}


def test_every_name_that_one_class_alone_has_finds_that_class():
    single = {labels[0]: [] for labels in by_name().values() if len(labels) == 1}
    for name, labels in by_name().items():
        if len(labels) == 1:
            single[labels[0]].append(name)
    assert len(single) > 990
    for k in range(max(map(len, single.values()))):
        names = {names[k]: label for label, names in single.items() if len(names) > k}
        assert match_classes(imagenet_names(), list(names)).position == tuple(names.values())


def test_a_model_class_is_given_away_once_and_best_first():
    matching = match_classes(("automobile", "cat", "dog"), ["cars", "automobile", "cat"])
    assert [r.model_class for r in matching.rows] == [None, "automobile", "cat"]
    assert matching.unmatched == ("cars",)
    assert "2 of 3 classes matched (2 by exact); not known to the model: cars" in matching.summary()


def test_folders_named_by_numbers_are_indices_only_when_that_is_no_guess():
    model = ("airplane", "automobile", "bird", "cat")
    matching = match_classes(model, ["0", "1", "2", "3"])
    assert matching.position == (0, 1, 2, 3) and matching.rows[2].how == "index"
    for numbers in (
        ["1", "2", "3", "4"],
        ["0"],
        ["1", "2", "3"],
        ["0", "4", "1"],
        ["0", "00", "1"],
    ):
        with pytest.raises(InputError):
            match_classes(model, numbers)
    with pytest.raises(InputError):  # flower number 1 is not a goldfish
        match_classes(imagenet_names(), [f"{k:03d}" for k in range(1, 103)])
    digits = tuple("0123456789")
    assert {r.how for r in match_classes(digits, digits).rows} == {"exact"}


def test_labels_become_places_in_the_protocol():
    matching = match_classes(("automobile", "cat", "dog"), ["dog", "rock", "car"])
    assert matching.relabel(np.array([0, 1, 2, -1, 0])).tolist() == [2, -1, 0, -1, 2]
    assert matching.map == everything(("automobile", "cat", "dog"))
    assert matching.table()[1] == {"data_class": "rock", "model_class": None, "how": "none"}


def test_a_declared_subset_restricts_an_imagenet_model_to_its_200_columns():
    matching = match_classes(imagenet_names(), ["n01531178 goldfinch", "n01498041"], "imagenet-a")
    assert matching.map.rule == "subset" and len(matching.map.classes) == 200
    assert matching.map.columns[:2] == (6, 11)  # stingray, goldfinch
    assert matching.relabel(np.array([0, 1])).tolist() == [1, 0]
    assert matching.rows[0].model_class == "goldfinch"
    small = match_classes(list(members("imagenet-a")), ["n01498041", "n01531178"], "imagenet-a")
    assert small.position == (0, 1) and len(small.map.classes) == 200  # a model of the 200


def test_coarse_spaces_group_an_imagenet_model_but_not_one_that_has_their_classes():
    names = ["dog", "bird", "fish"]
    coarse = match_classes(imagenet_names(), names, "restricted-imagenet")
    assert coarse.map.rule == "argmax" and coarse.rows[0].model_class == "dog: 118 classes"
    assert coarse.relabel(np.array([2])).tolist() == [list(coarse.map.classes).index("fish")]
    own = match_classes(list(members("restricted-imagenet")), names, "restricted-imagenet")
    assert own.map.rule == "subset" and {r.how for r in own.rows} == {"exact"}
    nine = match_classes(imagenet_names(), ["00_dog", "02_wheeled vehicle"], "imagenet-9")
    assert nine.map.classes[nine.position[1]] == "vehicle"


def test_too_little_in_common_is_refused_with_what_is_missing_and_what_is_near():
    with pytest.raises(InputError) as caught:
        match_classes(CIFAR10, ["forest", "street", "truk", "glacier", "cat"])
    text = str(caught.value)
    assert "1 of 5 classes" in text and "forest, street, truk, glacier" in text
    assert "truk ~ truck" in text and "\n" not in text
    with pytest.raises(InputError, match="no class names"):
        match_classes(CIFAR10, [])
    assert match_classes(CIFAR10, ["cat", "dog", "rock"]).unmatched == ("rock",)


def test_undeclared_spaces_and_crooked_maps_are_refused():
    with pytest.raises(InputError, match=r"imagenet-z is not declared, expected one of imagenet-a"):
        members("imagenet-z")
    with pytest.raises(InputError, match="2 classes and 1 groups"):
        LabelMap("x", ("a", "b"), ((0,),), "mean")
    with pytest.raises(InputError, match="one output for each class"):
        LabelMap("x", ("a",), ((0, 1),), "subset")
    assert declared_map("imagenet-a", CIFAR10) is None


def test_label_spaces_load_no_torch():
    code = (
        "import sys; import counterlens.label_spaces as s; s.imagenet();"
        "sys.exit(any(m.split('.')[0] in ('torch', 'torchvision', 'timm') for m in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
