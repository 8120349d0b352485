"""The shipped image–text pair on shipped pictures. Oracles: labels, channels swapped by hand."""

import pytest
import torch

from counterlens import zoo
from counterlens.data import open_set
from counterlens.models import load
from counterlens.runs import Number

pytest.importorskip("transformers")
pytest.importorskip("diffusers")
MOST = 6_000_000


@pytest.fixture(scope="module")
def sample():
    images = open_set("sample:cifar10", limit=200)
    x = torch.stack([torch.from_numpy(images.read(i)).permute(2, 0, 1) for i in range(200)]) / 255
    return x, torch.from_numpy(images.labels), images.classes


def test_its_ten_classes_are_told_apart_as_the_card_says(sample):
    """Four standard errors below the card's accuracy would be 0.72."""
    x, y, classes = sample
    net = load("zoo:cifar10-clip", device="cpu")
    assert net.classes == tuple(classes)
    told = Number.from_json(net.card["numbers"]["test.zero_shot"])
    right = (net(x).argmax(1) == y).float().mean().item()
    error = (told.value * (1 - told.value) / len(x)) ** 0.5
    assert abs(right - told.value) < 4 * error


def test_classes_are_words_of_ones_own(sample):
    x, y, classes = sample
    net = load("zoo:cifar10-clip#dog,cat", device="cpu")
    assert net.classes == ("dog", "cat")
    cats, dogs = (torch.nonzero(y == classes.index(name)).flatten() for name in ("cat", "dog"))
    said = [
        (net(x[rows]).argmax(1) == place).float().mean() for rows, place in ((dogs, 0), (cats, 1))
    ]
    assert min(said) > 0.5 and sum(said) / 2 > 0.65


def test_two_texts_ask_for_a_colour(sample):
    """Red and blue of every automobile are exchanged: what was redder becomes bluer."""
    x, y, classes = sample
    net = load("zoo:cifar10-clip#=a red automobile|a blue automobile", device="cpu")
    cars = x[y == classes.index("automobile")]
    gap = net(cars) @ torch.tensor([1.0, -1.0])
    swapped = net(cars.flip(1)) @ torch.tensor([1.0, -1.0])
    redder = (cars[:, 0] - cars[:, 2])[:, 8:24, 8:24].mean((1, 2))
    clear = redder.abs() > 0.05
    assert clear.sum() >= 5
    assert ((gap - swapped)[clear].sign() == redder[clear].sign()).float().mean() >= 0.9
    assert net(cars).abs().max() <= 1  # raw cosines


def test_the_card_is_whole_and_the_folder_small():
    (name,) = zoo.pairs()
    card = next(one for one in zoo.cards() if one["name"] == name)
    assert card["training"]["updates"] < card["training"]["planned"] == card["recipe"]["steps"]
    assert not card["training"]["finished"] and card["licence"] and card["summary"]
    for number in map(Number.from_json, card["numbers"].values()):
        assert number.n == 2000 and number.low < number.value < number.high
    assert sum(path.stat().st_size for path in zoo.pair(name).iterdir()) <= MOST
