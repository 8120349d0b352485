"""The mask criterion, what a classifier looks at, stacks of classifiers.

Oracles: real digits as masks and their negatives; a reader and classifiers whose answers are
known in closed form; counting by hand.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from counterlens.data.synthetic.digit_factors import open_digits
from counterlens.data.synthetic.mnist_variants import variant
from counterlens.errors import InputError
from counterlens.generators.cgn.model import CGN
from counterlens.workflows.cgn.generate import make_shard, sizes
from counterlens.workflows.cgn.masks import examine
from counterlens.workflows.cgn.measure import flips, measured, open_test, overlap
from counterlens.workflows.cgn.stack import Shuffled, TrainingPool, answers, single, train_stack

DIGITS = open_digits("sample:mnist")


pytestmark = pytest.mark.usefixtures("one_thread")


class Copies(nn.Module):
    """A stand-in for a CGN of four: real digits, their negatives, one digit only, faint ones."""

    stack = 4

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        first = [int(np.flatnonzero(DIGITS[0].labels == k)[0]) for k in range(10)]
        self.shown = torch.from_numpy(DIGITS[0].grey[first]).float() / 255

    def masks(self, u: Tensor, y: Tensor) -> Tensor:
        real = self.shown[y[:, 0]]
        three = self.shown[torch.full_like(y[:, 0], 3)]
        return torch.stack([real, 1 - real, three, real * 0.1], 1)[:, :, None]


class Nearest(nn.Module):
    """A reader in closed form: the template with the largest correlation."""

    def __init__(self, templates: Tensor) -> None:
        super().__init__()
        flat = templates.flatten(1) - templates.flatten(1).mean(1, keepdim=True)
        self.templates = flat / flat.norm(dim=1, keepdim=True)

    def forward(self, x: Tensor) -> Tensor:
        flat = x[:, 0].flatten(1)
        return (flat - flat.mean(1, keepdim=True)) @ self.templates.T


class Looks(nn.Module):
    """A classifier in closed form: the class whose colour the corner, or the digit, has."""

    stack = 1

    def __init__(self, table: np.ndarray) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.table = torch.from_numpy(table) * 2 - 1

    def forward(self, x: Tensor) -> Tensor:
        corner = x[:, :3, 0, 0]
        return -(corner[:, None] - self.table).square().sum(2)


def test_real_digits_are_intact_and_negatives_collapsed():
    fake = Copies()
    health = examine(fake, Nearest(fake.shown), count=3)  # type: ignore[arg-type]
    intact = health.intact
    assert intact[0].all() and not intact[1].any()
    assert intact[2].tolist() == [k == 3 for k in range(10)]  # every mask shows a three
    assert not intact[3].any() and (health.area[3] < 0.05).all()  # read right, but hardly there
    assert (health.inside[1] < 0).all() and (health.read[3] == 1).all()


def test_a_classifier_that_reads_the_background_flips_with_it_alone():
    split = variant("double-coloured", "test", DIGITS)
    test = open_test(split, torch.device("cpu"))
    net = Looks(split.background_table)
    turned = flips(net, test)  # type: ignore[arg-type]
    often = {factor: measured(flags[:, 0]) for factor, flags in turned.items()}
    assert often["background"].low > 0.98 and often["object"].high < 0.03
    assert often["object"].n == len(split)
    said = answers(net, test.x)[:, 0]  # type: ignore[arg-type]
    assert (said.numpy() == split.background).mean() > 0.99
    for factor, x in test.changed.items():
        assert (x != test.x).flatten(1).any(1).all(), factor


def test_a_mean_of_values_has_an_interval_as_wide_as_its_standard_error_says():
    values = torch.rand(4000, generator=torch.Generator().manual_seed(3)) ** 2
    found = measured(values)
    half = 1.96 * (values.var() / len(values)).sqrt().item()
    assert found.n == 4000 and abs(found.mean - values.mean().item()) < 1e-6
    assert abs((found.high - found.low) / 2 - half) < 0.1 * half
    assert found.low < found.mean < found.high


def test_every_picture_comes_once_an_epoch_in_an_order_of_each_network():
    order = Shuffled(10, 3, 2, seed=5, device=torch.device("cpu"))
    first = torch.cat([order(step) for step in range(3)])
    assert all(len(set(column.tolist())) == 9 for column in first.T)
    assert not torch.equal(first[:, 0], first[:, 1])
    again = Shuffled(10, 3, 2, seed=5, device=torch.device("cpu"))
    assert torch.equal(again(4), order(4)) and not torch.equal(order(3), order(0))
    with pytest.raises(InputError, match="at least one batch"):
        Shuffled(2, 3, 1, seed=0, device=torch.device("cpu"))


def test_stacked_classifiers_learn_each_from_its_own_pictures(tmp_path: Path):
    x = torch.zeros(64, 3, 32, 32, dtype=torch.uint8)
    x[:32, :, 8:24, 8:24] = 255  # a square, or nothing
    y = (torch.arange(64) < 32).long()
    pool = TrainingPool(
        torch.cat([x, x]), torch.cat([y, 1 - y])
    )  # the second half says the contrary
    arms = [torch.arange(64), torch.arange(64, 128)]
    net = train_stack(
        pool, arms, [0, 1], epochs=10, folder=tmp_path, log=print, batch=16, quick=True
    )
    said = answers(net, x)
    assert torch.equal(said[:, 0], y) and torch.equal(said[:, 1], 1 - y)
    assert torch.equal(answers(single(net, 1), x)[:, 0], 1 - y)
    split = variant("coloured", "test", DIGITS)
    both, alone = overlap(single(net, 0), open_test(split, torch.device("cpu")), count=6)
    assert len(both) == len(alone) == 6 and (alone <= 1).all()
    with pytest.raises(InputError, match="equally many"):
        train_stack(pool, [arms[0], arms[1][:9]], [0, 1], epochs=1, folder=tmp_path, log=print)


def test_sizes_follow_the_number_of_masks():
    assert sizes(25_050, 1) == [10_000, 10_000, 5_000]
    with pytest.raises(InputError, match="at least 100 · ratio"):
        sizes(1_999, 20)
    assert sizes(4_100, 20) == [4_000]
    assert sum(sizes(1_000_000, 7)) == 1_000_000 // 700 * 700


def test_a_shard_depends_on_its_number_and_seed_alone():
    torch.manual_seed(0)
    net = CGN(width=4).eval().requires_grad_(False)
    one = make_shard(net, 3, 200, ratio=2, seed=1)
    torch.manual_seed(99)
    two, other = make_shard(net, 3, 200, ratio=2, seed=1), make_shard(net, 4, 200, ratio=2, seed=1)
    assert torch.equal(one.x, two.x) and torch.equal(one.y, two.y)
    assert not torch.equal(one.x, other.x)
    same = (one.object == one.y).float().mean()
    assert 0 <= same < 0.4  # a tenth by chance
