"""Lines in the spelling from before methods were commands are turned into the new one."""

import pytest

from counterlens.cli import explain, neurons

EXPLAIN = [
    ("m x", "pixel m x"),
    ("m x --method cam", "cam m x"),
    ("--method=dvce m x --steps 9 --robust r", "dvce m x --sampling-steps 9 --robust r"),
    ("m x --method pixel --steps 9", "pixel m x --steps 9"),
    ("m d --evaluate --arm pixel --steps 9", "evaluate m d --arm pixel --steps 9"),
    ("run --worst 3", "pixel run --worst 3"),
]
NEURONS = [
    ("m --unit 3", "show m --unit 3"),
    ("m --unit 3 --image x", "show m --unit 3 --image x"),
    ("m --npca cat --data d", "npca m --npca cat --data d"),
    ("m --spurious --npca all --data d --masks cam", "spurious m --npca all --data d --mask cam"),
    ("m --unit 3 --method diffusion", "diffusion m --unit 3"),
    ("m --unit 3 --image x --method=diffusion", "counterfactual m --unit 3 --image x"),
]


@pytest.mark.parametrize(("line", "now"), EXPLAIN)
def test_explain(line: str, now: str) -> None:
    assert explain.earlier(line.split()) == now.split()


@pytest.mark.parametrize(("line", "now"), NEURONS)
def test_neurons(line: str, now: str) -> None:
    assert neurons.earlier(line.split()) == now.split()
