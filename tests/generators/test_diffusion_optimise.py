"""Optimised inputs: cut-outs against pooling and interpolation of torch, Adam against torch's.

Oracles: adaptive_avg_pool2d and interpolate on the same crops, torch.optim.Adam and its cosine
schedule, laws (noise keeps its length, never below the start, rows alone or in company).
"""

from dataclasses import replace

import pytest
import torch

from counterlens.ball import row_seeds
from counterlens.errors import InputError
from counterlens.generators.diffusion.cutouts import cutouts, seen, window
from counterlens.generators.diffusion.memory import measure, parse_memory, steps_to_keep
from counterlens.generators.diffusion.optimise import (
    WORDS,
    ChainSettings,
    Term,
    ascend,
    augmented,
    begin,
    near,
    prompt_distance,
    rescaled,
    score,
)
from counterlens.objectives import entry
from counterlens.search.adam import Iterate, VariableGroup, adam, rate_at
from diffusion_models import tiny_model

pytest.importorskip("diffusers")
SHORT = ChainSettings(steps=3, updates=3, cuts=2, last=2)


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def model():
    return tiny_model()


@pytest.fixture(scope="module")
def term():
    weight = torch.randn(3 * 16 * 16, 5, generator=torch.Generator().manual_seed(0))
    return Term(entry(lambda x: x.flatten(1) @ weight, torch.tensor([1, 2])), 16)


def test_conditions_stay_within_reach_of_their_start(model, term):
    """Lengths measured anew; without a bound the same steps go further."""
    ends = {}
    for reach in (None, 0.5):
        settings = replace(SHORT, text_rate=0.5, reach=reach)
        start = begin(model, ["a cat", "a wheel"], row_seeds(2, 0), steps=3)
        made = ascend(model, start, [term], settings=settings, seeds=row_seeds(2, 0))
        ends[reach] = max(
            (new - old).flatten(2).norm(dim=2).max().item()
            for new, old in ((made.inputs.cond, start.cond), (made.inputs.null, start.null))
        )
    texts = [f"a photograph of a {word}" for word in WORDS]
    rows = [model.embed([text]).double().flatten() for text in texts]
    gaps = [(a - b).norm().item() for k, a in enumerate(rows) for b in rows[:k]]
    assert prompt_distance(model) == pytest.approx(sorted(gaps)[(len(gaps) - 1) // 2], rel=1e-6)
    assert ends[0.5] <= 0.5 * prompt_distance(model) * (1 + 1e-5) < ends[None]


def test_what_is_within_reach_stays_as_it_is(rng):
    start = torch.randn(2, 3, 4, 5, generator=rng)
    back = near(start, 1.0)
    inside = start + 0.9 * torch.nn.functional.normalize(
        torch.randn_like(start).flatten(2), dim=2
    ).view_as(start)
    torch.testing.assert_close(back(inside), inside)
    far = back(start + 7 * (inside - start))
    torch.testing.assert_close(far, start + (inside - start) / 0.9)
    assert near(start, None) is None


@pytest.mark.parametrize("size", [24, 31, 57, 64])
def test_a_shrinking_crop_is_average_pooled(size, rng):
    x = torch.rand(1, 3, 64, 64, generator=rng, dtype=torch.float64)
    start = torch.tensor([[3.0]], dtype=torch.float64)
    if size == 64:
        start = torch.zeros_like(start)
    cut = window(start, torch.full_like(start, size), 64, 24)[:, :, 0]
    mine = cut[0, 0] @ x[0] @ cut[0, 0].T
    at = int(start)
    crop = x[:, :, at : at + size, at : at + size]
    torch.testing.assert_close(mine, torch.nn.functional.adaptive_avg_pool2d(crop, 24)[0])


@pytest.mark.parametrize("size", [19, 20, 27, 31])
def test_a_growing_crop_is_interpolated(size, rng):
    x = torch.rand(1, 3, 32, 32, generator=rng, dtype=torch.float64)
    start = torch.ones(1, 1, dtype=torch.float64)
    cut = window(start, torch.full_like(start, size), 32, 32)[:, :, 0]
    mine = cut[0, 0] @ x[0] @ cut[0, 0].T
    crop = x[:, :, 1 : 1 + size, 1 : 1 + size]
    theirs = torch.nn.functional.interpolate(crop, (32, 32), mode="bilinear")[0]
    torch.testing.assert_close(mine, theirs)


def test_a_shifted_crop_repeats_the_edge(rng):
    x = torch.rand(1, 1, 32, 32, generator=rng, dtype=torch.float64)
    start = torch.full((1, 1), -3.0, dtype=torch.float64)
    cut = window(start, torch.full_like(start, 32), 32, 32)[0, 0, 0]
    moved = cut @ x[0, 0]
    torch.testing.assert_close(moved[3:], x[0, 0, :29])
    torch.testing.assert_close(moved[:3], x[0, 0, :1].expand(3, -1))


@pytest.mark.parametrize(("whole", "side"), [(32, 32), (64, 24), (48, 40)])
def test_crops_differ_from_each_other_but_not_by_company(whole, side, rng):
    x = torch.rand(3, 3, whole, whole, generator=rng)
    seeds = row_seeds(3, 5)
    crops = cutouts(x, side, count=16, sigma=0.0, seeds=seeds)
    assert crops.shape == (3, 16, 3, side, side)
    assert all((crops[0, 0] - crops[0, k]).abs().max() > 1e-3 for k in range(1, 16))
    torch.testing.assert_close(
        crops[1:2], cutouts(x[1:2], side, count=16, sigma=0.0, seeds=seeds[1:2])
    )
    assert crops.min() >= 0 and crops.max() <= 1 + 1e-6


def test_noise_has_the_asked_deviation():
    x = torch.full((2, 3, 32, 32), 0.5)
    crops = cutouts(x, 32, count=16, sigma=0.05, seeds=row_seeds(2, 1))
    assert (crops - 0.5).std().item() == pytest.approx(0.05, rel=0.02)


def test_large_crops_are_more_likely():
    """E[u^0.3] = 1/1.3: the mean side of crops of 64 for a classifier of 28."""
    ramp = torch.arange(64.0).view(1, 1, 1, 64).expand(1, 1, 64, 64)
    crops = cutouts(ramp, 28, count=1000, sigma=0.0, seeds=row_seeds(1, 2))
    sides = (crops[..., 0, -1] - crops[..., 0, 0]).flatten() * 28 / 27
    assert sides.mean().item() == pytest.approx(28 + 36 / 1.3, rel=0.03)


def test_whole_images_are_judged_at_the_classifiers_side(rng):
    x = torch.rand(1, 3, 64, 64, generator=rng)
    assert seen(x, 64) is x
    assert seen(x, 32).shape == (1, 3, 32, 32)


def test_adam_walks_as_torchs_own(rng):
    a, b = torch.randn(3, 4, generator=rng), torch.randn(3, 2, 2, generator=rng)
    pull = torch.randn(3, 4, generator=rng)

    def worth(values):
        return (
            (pull * values["a"]).sum(1) - values["a"].pow(4).sum(1) - values["b"].pow(2).sum((1, 2))
        )

    def look(values, k):
        now = worth(values)
        return Iterate(
            now, torch.full((3,), float(k)), now.view(3, 1, 1, 1)
        )  # the last is judged best

    groups = {"a": VariableGroup(a, 0.1), "b": VariableGroup(b, 0.01)}
    _, mine = adam(look, groups, steps=7, clip=0.05, schedule="cosine", floor="shared")
    leaves = {"a": a.clone().requires_grad_(), "b": b.clone().requires_grad_()}
    peer = torch.optim.Adam(
        [{"params": [leaves["a"]], "lr": 0.1}, {"params": [leaves["b"]], "lr": 0.01}]
    )
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(peer, 7, eta_min=0.01)
    for _ in range(7):
        peer.zero_grad()
        (-worth(leaves).sum()).backward()
        for leaf in leaves.values():  # the paper clips each image's gradient by its largest entry
            for row in leaf.grad:
                row.mul_((0.05 / row.abs().max()).clamp(max=1))
        peer.step()
        falling.step()
    for name in mine:
        torch.testing.assert_close(mine[name], leaves[name].detach(), rtol=1e-5, atol=1e-6)


def test_the_shared_floor_lets_small_steps_grow_and_ours_does_not():
    groups = {
        "c": VariableGroup(torch.zeros(1, 1), 0.025),
        "z": VariableGroup(torch.zeros(1, 1), 0.00025),
    }
    assert rate_at(15, 15, groups, "z", "cosine", "shared") == pytest.approx(0.0025)
    assert rate_at(15, 15, groups, "z", "cosine", "own") == pytest.approx(0.000025)
    assert rate_at(0, 15, groups, "z", "cosine", "own") == pytest.approx(0.00025)


def test_adam_returns_the_best_it_saw_and_its_variables():
    def look(values, k):
        now = -(values["a"] - 1).abs().sum(1)
        return Iterate(-now, now, values["a"].view(1, 1, 1, 1))  # pulled away from the best

    found, best = adam(look, {"a": VariableGroup(torch.full((1, 1), 0.9), 0.5)}, steps=4)
    assert found.scores.item() == found.start.item() == pytest.approx(-0.1)
    assert best["a"].item() == pytest.approx(0.9)
    with pytest.raises(InputError, match="steps are -1"):
        adam(look, {}, steps=-1)


def test_noise_keeps_its_length_and_scores_do_not_fall(model, term):
    start = begin(model, ["a cat"] * 2, row_seeds(2, 0), steps=3)
    lengths = []

    def callback(k, now):
        lengths.append(now.judged)

    found = ascend(model, start, [term], settings=SHORT, seeds=row_seeds(2, 9), callback=callback)
    assert len(lengths) == SHORT.updates + 1 == len(found.trace)
    torch.testing.assert_close(
        found.inputs.z.flatten(1).norm(dim=1), start.z.flatten(1).norm(dim=1), rtol=1e-6, atol=0
    )
    assert (found.scores > found.start).all()
    torch.testing.assert_close(score([term], found.images), found.scores)
    torch.testing.assert_close(score([term], found.start_images), found.start)
    assert not torch.equal(found.inputs.cond[:, 0], found.inputs.cond[:, 1])  # each step its own


def test_without_guidance_the_null_text_stays_and_the_rest_is_searched(model, term):
    """At guidance 1 it has no gradient: the search ends where it stands, not in an error."""
    start = begin(model, ["a cat", "a wheel"], row_seeds(2, 0), steps=3)
    settings = replace(SHORT, guidance=1.0)
    made = ascend(model, start, [term], settings=settings, seeds=row_seeds(2, 9))
    assert torch.equal(made.inputs.null, start.null)
    assert not torch.equal(made.inputs.cond, start.cond) and not torch.equal(made.inputs.z, start.z)
    assert (made.scores >= made.start).all()


def test_rescaling_brings_back_the_length(rng):
    z = torch.randn(2, 4, 8, 8, generator=rng)
    torch.testing.assert_close(
        rescaled(3 * z, torch.tensor([1.0, 2.0])).flatten(1).norm(dim=1), torch.tensor([1.0, 2.0])
    )


def test_keeping_fewer_steps_changes_nothing(model, term):
    start = begin(model, ["a cat"] * 2, row_seeds(2, 0), steps=3)
    whole = ascend(model, start, [term], settings=SHORT, seeds=row_seeds(2, 9))
    again = ascend(model, start, [term], settings=SHORT, seeds=row_seeds(2, 9), stored=0)
    torch.testing.assert_close(whole.trace, again.trace, rtol=1e-4, atol=1e-4)


def test_an_image_fares_the_same_alone(model, term):
    start = begin(model, ["a cat"] * 2, row_seeds(2, 0), steps=3)
    both = ascend(model, start, [term], settings=SHORT, seeds=row_seeds(2, 9))
    second = term.rows([1])
    part = type(start)(start.z[1:], start.cond[1:], start.null[1:])
    alone = ascend(model, part, [second], settings=SHORT, seeds=row_seeds(2, 9)[1:])
    torch.testing.assert_close(both.scores[1:], alone.scores, rtol=1e-3, atol=1e-3)


def test_two_networks_get_crops_of_their_own(model):
    asked = []

    def table(x):
        asked.append(x)
        return x.mean((1, 2, 3))[:, None]

    terms = [Term(entry(table, torch.zeros(1, dtype=torch.long)), 16, w) for w in (1.0, -1.0)]
    x = torch.rand(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    assert augmented(terms, x, SHORT, row_seeds(1, 0)).abs() > 0
    assert not torch.equal(asked[0], asked[1])
    asked.clear()
    assert score(terms, x).abs().item() < 1e-7


def test_memory_is_parsed_and_buys_steps(model):
    start = begin(model, ["a cat"] * 4, row_seeds(4, 0), steps=3)
    one = type(start)(start.z[:1], start.cond[:1], start.null[:1])
    step, picture = measure(model, one, SHORT)
    assert step.stored > picture.stored > 0
    assert steps_to_keep(model, start, SHORT, 10**9) == (3, 4)
    few, images = steps_to_keep(model, start, SHORT, int(1.3 * (step.peak + picture.peak)))
    assert few in (0, 1) and images == 1
    with pytest.raises(InputError, match="memory is 'lots'"):
        parse_memory("lots")
