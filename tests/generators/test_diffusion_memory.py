"""Memory of a search: what is counted, what is planned, and gradients that do not depend on it.

Oracles: the gradient with everything kept; live storages counted over whole updates, which a plan
must not exceed; sizes known by hand; a budget that a simulated device enforces.
"""

import gc

import pytest
import torch
from torch import nn

from counterlens.ball import row_seeds
from counterlens.errors import InputError
from counterlens.explanations.counterfactuals.prepare import NEURON, attention_maps
from counterlens.generators.diffusion import memory
from counterlens.generators.diffusion.attention import inject
from counterlens.generators.diffusion.ddim import Hooks, ddim
from counterlens.generators.diffusion.memory import at_most, less, measure, room, steps_to_keep
from counterlens.generators.diffusion.meter import Live, needed
from counterlens.generators.diffusion.optimise import (
    ChainSettings,
    Inputs,
    Term,
    ascend,
    augmented,
    begin,
)
from counterlens.generators.diffusion.recompute import blocks, blocks_again
from counterlens.generators.diffusion.words import mixing
from counterlens.objectives import entry
from counterlens.workflows._shared.batches import in_parts
from diffusion_models import tiny_model

pytest.importorskip("diffusers")
pytestmark = pytest.mark.usefixtures("one_thread")
STEPS = 4
SHORT = ChainSettings(steps=STEPS, updates=1, cuts=6, last=3)


@pytest.fixture(scope="module")
def model():
    return tiny_model()


@pytest.fixture(scope="module")
def term():
    """A classifier that keeps much: its cut-outs weigh more than the decoded image."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 48, 3, padding=1), nn.SiLU(), nn.Conv2d(48, 8, 3), nn.SiLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(),
    )  # fmt: skip
    return Term(entry(net.eval().requires_grad_(False), torch.tensor([1])), 16)


def start(model, images=1):
    return begin(model, ["a photograph of a cat"] * images, row_seeds(images, 0), steps=STEPS)


def leaves_of(given):
    return [t.detach().clone().requires_grad_() for t in (given.z, given.cond, given.null)]


@pytest.mark.parametrize("stored", [0, 2, "blocks"])
def test_gradients_are_the_same_however_little_is_kept(model, stored):
    def gradients(stored):
        leaves = leaves_of(start(model, 2))
        out = ddim(model, *leaves, last=2, stored=stored)
        return torch.autograd.grad(sum(z.square().sum() for z in out.originals), leaves)

    for one, other in zip(gradients(None), gradients(stored), strict=True):
        assert (one - other).abs().max() <= 1e-5 * one.abs().max()


def test_attention_that_is_put_in_is_there_when_a_block_is_computed_again(model):
    text = "a photograph of a cat"
    given = start(model)
    maps = attention_maps(model, given, NEURON)
    mix = mixing(model, [text], [text], [("cat", "cat")])
    other = begin(model, ["a bridge"], row_seeds(1, 5), steps=STEPS)

    def gradients(stored, counts):
        leaves = leaves_of(other)
        around = inject(model, maps, mix, counts)
        out = ddim(model, *leaves, stored=stored, hooks=Hooks(around=around))
        return torch.autograd.grad(out.z.square().sum(), leaves)

    want, found, without = gradients(None, [2]), gradients("blocks", [2]), gradients(None, [0])
    for one, again, bare in zip(want, found, without, strict=True):
        assert (one - again).abs().max() <= 1e-5 * one.abs().max()
        assert (one - bare).abs().max() > 1e-3 * one.abs().max()  # so it would have been noticed


def test_decoding_and_cut_outs_in_parts_give_the_same_gradient(model, term):
    z = start(model).z

    def gradient(lean):
        leaf = z.clone().requires_grad_()
        if lean:
            with blocks_again(model.vae):
                x = model.decode(leaf)
        else:
            x = model.decode(leaf)
        worth = augmented([term], x, SHORT, row_seeds(1, 3), part=4 if lean else None)
        return worth.detach(), torch.autograd.grad(worth.sum(), leaf)[0]

    (a, one), (b, other) = gradient(False), gradient(True)
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    assert (one - other).abs().max() <= 1e-5 * one.abs().max()


def test_networks_are_as_before_after_blocks_were_computed_again(model):
    assert len(blocks(model.unet)) > 8 and len(blocks(model.vae)) > 4
    with pytest.raises(KeyError), blocks_again(model.unet):
        assert all("forward" in vars(block) for block in blocks(model.unet))
        raise KeyError
    assert not any("forward" in vars(block) for block in blocks(model.unet))


@pytest.mark.parametrize("stored", [None, 1, 0, "blocks"])
def test_a_whole_search_ends_alike_however_little_is_kept(model, term, stored):
    found = ascend(
        model, start(model), [term], settings=SHORT, seeds=row_seeds(1, 0), stored=stored
    )  # fmt: skip
    want = ascend(model, start(model), [term], settings=SHORT, seeds=row_seeds(1, 0))
    torch.testing.assert_close(found.trace, want.trace, rtol=1e-4, atol=1e-5)


def test_live_bytes_are_those_of_tensors_that_are_alive():
    given = torch.zeros(1000)
    with Live() as live:
        view = given.view(10, 100).t()
        assert live.now == 0  # was there before
        one = given + 1
        two = one * 2
        assert live.now == 8000
        del one, view
        assert live.now == 4000 and live.peak == 8000
        part = two[:10]
        del two
        assert live.now == 4000  # a view holds the whole
        del part
        assert live.now == 0


def test_a_computation_keeps_what_its_gradient_needs():
    x = torch.rand(1000, requires_grad=True)
    found = needed(
        lambda: x.exp().sin().sum(), [x]
    )  # exp keeps what it made, sin what it was given
    assert found.stored == 4000 + 4 and found.peak >= 8000


def peak_of(model, given, terms, stored):
    gc.collect()
    with Live() as live:
        ascend(model, given, terms, settings=SHORT, seeds=row_seeds(len(given.z), 0), stored=stored)
    return live.peak


def test_less_kept_takes_less_and_blocks_least(model, term):
    peaks = [peak_of(model, start(model), [term], stored) for stored in (None, 2, 0, "blocks")]
    assert peaks == sorted(peaks, reverse=True) and len(set(peaks)) == 4


@pytest.mark.parametrize("images", [1, 2])
def test_a_plan_keeps_to_its_budget(model, term, images):
    """Counted, not planned: a whole search with each plan, against the budget it was made for."""
    many = term.rows([0] * images)
    given = start(model, images)
    step, picture = measure(model, start(model), SHORT, [term])
    assert picture.peak > picture.stored and step.peak > step.stored
    least = memory.SLACK * at_most(step, picture, 0)
    plans = set()
    for factor in (1.3, 2.0, 12.0):
        budget = int(factor * images * least)
        stored, size = steps_to_keep(model, given, SHORT, budget, [many])
        assert stored != "blocks"
        plans.add((stored, size))
        some = Inputs(given.z[:size], given.cond[:size], given.null[:size])
        part = many.rows(range(size))
        assert peak_of(model, some, [part], stored) <= budget
    assert len(plans) == 3 and max(plans)[0] == STEPS
    assert steps_to_keep(model, given, SHORT, int(0.5 * least), [many]) == ("blocks", 1)


def test_planning_leaves_nothing_behind(model, term):
    """Hooks on what autograd saves can tie a graph to itself, and then it is never freed."""

    def tensors():
        gc.collect()
        return sum(issubclass(type(one), torch.Tensor) for one in gc.get_objects())

    steps_to_keep(model, start(model), SHORT, 10**9, [term])
    before = tensors()
    for _ in range(3):
        steps_to_keep(model, start(model), SHORT, 10**9, [term])
    assert tensors() <= before


def test_where_not_even_measuring_fits_blocks_are_planned(model, monkeypatch):
    def full(*given):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(memory, "measure", full)
    assert steps_to_keep(model, start(model), SHORT, 10**12) == ("blocks", 1)

    def broken(*given):
        raise RuntimeError("shapes differ")

    monkeypatch.setattr(memory, "measure", broken)
    with pytest.raises(RuntimeError, match="shapes differ"):
        steps_to_keep(model, start(model), SHORT, 10**12)


def test_a_budget_on_a_cpu_is_for_the_search():
    assert room("12GB", torch.device("cpu")) == 12 * 10**9
    assert room(None, torch.device("cpu")) > 0


def test_less_and_less_is_tried_until_there_is_nothing_less():
    tried = [(5, 4)]
    while (further := less(*tried[-1])) is not None:
        tried.append(further)
    assert tried == [(5, 4), (0, 2), (0, 1), ("blocks", 1)]
    assert less(None, 1) == (0, 1) and less(3, 1) == (0, 1)


def test_a_part_that_ran_out_is_made_with_less_and_no_row_is_lost_or_made_twice():
    made, said, tried = [], [], []

    def make(rows, stored):
        tried.append((len(rows), stored))
        if len(rows) > 1 or (stored != "blocks" and rows[0] >= 3):
            raise torch.OutOfMemoryError("CUDA out of memory")
        made.extend(rows)

    in_parts(range(5), lambda: (2, 4), make, steps=20, log=said.append)
    assert made == list(range(5))
    assert tried[:3] == [(4, 2), (2, 0), (1, 0)] and tried[-1] == (1, "blocks")
    assert any("nothing is lost" in line for line in said)
    assert any("every block computed twice" in line for line in said)

    def never(rows, stored):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    with pytest.raises(InputError, match="go on with resume=True"):
        in_parts(range(2), lambda: (2, 2), never, steps=20, log=said.append)

    def broken(rows, stored):
        raise RuntimeError("something else")

    with pytest.raises(RuntimeError, match="something else"):
        in_parts(range(2), lambda: (2, 2), broken, steps=20, log=said.append)


def test_what_filled_memory_is_gone_when_the_next_try_begins():
    alive = []

    class Big:
        pass

    import weakref

    def make(rows, stored):
        assert not any(ref() is not None for ref in alive)
        big = Big()
        alive.append(weakref.ref(big))
        if len(rows) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")

    in_parts(range(4), lambda: (0, 4), make, steps=20, log=lambda line: None)
    assert len(alive) == 6
