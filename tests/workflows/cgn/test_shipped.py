"""The shipped CGNs draw digits, and what they draw is what their cards say.

Oracles: real digits as masks, the nearest of which reads a mask; the file's hash.
"""

import hashlib

import pytest
import torch

from counterlens import zoo
from counterlens.data.synthetic.digit_factors import open_digits
from counterlens.data.synthetic.mnist_variants import WHICH
from counterlens.generators.cgn import model as cgn
from counterlens.workflows.cgn.generate import make

pytestmark = pytest.mark.usefixtures("one_thread")


def test_there_is_one_for_every_set_and_it_is_small():
    assert zoo.cgns() == sorted(f"{which}-mnist-cgn" for which in WHICH)
    for name in zoo.cgns():
        weights = zoo.cgn(name) / "model.safetensors"
        card = cgn.load(f"zoo:{name}")[1]
        assert weights.stat().st_size < 3e6
        assert hashlib.sha256(weights.read_bytes()).hexdigest() == card["weights_sha256"]
        assert card["licence"] and card["numbers"]["cgn.cgn.test"]["n"] == 10_000


@pytest.mark.parametrize("name", zoo.cgns())
def test_its_masks_are_digits_inside_a_frame(name):
    net, card = cgn.load(f"zoo:{name}")
    rng = torch.Generator().manual_seed(1)
    y = torch.arange(10).repeat_interleave(20)
    with torch.no_grad():
        masks = net.masks(torch.randn(200, 1, cgn.NOISE, generator=rng), y[:, None])[:, 0, 0]
    assert 0.05 < masks.mean() < 0.3
    assert masks[:, 12:20, 12:20].mean() > 3 * masks[:, :2].mean()
    real = open_digits("sample:mnist")[0]
    known = torch.from_numpy(real.grey > 128).float().flatten(1)
    near = torch.cdist((masks > 0.5).float().flatten(1), known).argmin(1)
    read = torch.from_numpy(real.labels.copy())[near] == y
    assert read.float().mean() > 0.8, card["training"]


def test_counterfactuals_are_labelled_by_their_shape_whatever_they_are_painted_with():
    net, _ = cgn.load("zoo:double-coloured-mnist-cgn")
    x, y = make(net, 200, seed=3)
    again, same = make(net, 200, seed=3)
    assert torch.equal(x, again) and torch.equal(y, same)
    corners = x[:, :, :3, :3].float().mean((2, 3))
    for digit in range(10):  # in the training data every digit has a background of its own
        spread = corners[y == digit].std(0).max()
        assert spread > 30, digit
