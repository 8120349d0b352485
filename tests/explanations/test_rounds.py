"""Going on where a counterfactual is not sure yet.

Oracles: a search written as a table of worths, by hand; the law that a round only halves the
weights and touches nothing else, on a tiny random generator.
"""

import math
from dataclasses import replace

import pytest
import torch

from counterlens.ball import row_seeds
from counterlens.explanations.counterfactuals.rounds import go_on
from counterlens.explanations.counterfactuals.uvce import Change, EditSettings, prepare, uvce
from counterlens.generators.diffusion.optimise import Ascent, ChainSettings, Inputs, Term
from counterlens.objectives import entry
from diffusion_models import tiny_model

pytest.importorskip("diffusers")
pytestmark = pytest.mark.usefixtures("one_thread")

CAT, BRIDGE = "a photograph of a cat", "a photograph of a steel arch bridge"


def ascent(values: list[float]) -> Ascent:
    """Images whose value stands in every pixel, in levels of 255."""
    levels = torch.tensor(values) / 255
    x = levels.view(-1, 1, 1, 1).expand(-1, 3, 2, 2).clone()
    inputs = Inputs(x[:, :1], x[:, 0], x[:, 0])
    return Ascent(x, levels, x, levels, inputs, levels[None])


def test_images_that_are_sure_are_left_alone_and_the_surest_round_is_taken():
    table = {1: {1: 50.0, 2: 90.0, 3: 30.0}, 2: {1: 70.0, 3: 20.0}}
    requests = []

    def search(rows, here, number):
        requests.append((number, rows, (here.z[:, 0, 0, 0] * 255).round().tolist()))
        return ascent([table[number][row] for row in rows])

    result, taken = go_on(
        ascent([85.0, 10.0, 20.0, 40.0]), search, lambda rows, x: x[:, 0, 0, 0] * 255,
        enough=80.0, rounds=2,
    )  # fmt: skip
    # each goes on from where its last round left it, better or not
    assert requests == [(1, [1, 2, 3], [10, 20, 40]), (2, [1, 3], [50, 30])]
    assert taken == (0, 2, 1, 0)
    for value in (result.images[:, 0, 0, 0], result.scores, result.inputs.cond[:, 0, 0]):
        assert (value * 255).round().tolist() == [85, 70, 90, 40]
    assert (result.start_images[:, 0, 0, 0] * 255).round().tolist() == [85, 10, 20, 40]


def test_images_are_asked_about_as_eight_bits_hold_them():
    seen = []

    def worth(rows, x):
        seen.append(x)
        return x.new_zeros(len(x))

    go_on(ascent([10.3]), lambda *given: ascent([1.0]), worth, enough=-1.0, rounds=3)
    assert len(seen) == 1 and torch.equal(seen[0] * 255, (seen[0] * 255).round())


def test_rounds_make_a_counterfactual_surer_and_none_is_the_papers_search():
    model = tiny_model()
    x = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(3))
    weight = torch.randn(3 * 16 * 16, 5, generator=torch.Generator().manual_seed(0)) / 10
    term = Term(entry(lambda x: (x.flatten(1) @ weight).log_softmax(1), torch.tensor([1, 2])), 16)
    paper = EditSettings(chain=ChainSettings(steps=4, updates=3, cuts=2, last=2), inner=3)
    iterates = []

    def edit(settings):
        ready = prepare(model, x, [CAT] * 2, ["cat"] * 2, settings=settings)
        return uvce(
            model, ready, [term], [Change(BRIDGE, ("cat", "steel arch bridge"))] * 2,
            settings=settings, seeds=row_seeds(2, 0),
            callback=lambda k, iterate: iterates.append(len(iterate.points)),
        )  # fmt: skip

    def confidence(result):
        bits = (result.images * 255).round() / 255
        return term.objective(bits)

    first = edit(paper)
    assert first.rounds == (0, 0)
    before = confidence(first)
    between = math.exp(before.mean().item())  # one of the two is below
    more = edit(replace(paper, rounds=2, sure=between))
    low, high = int(before.argmin()), int(before.argmax())
    assert more.rounds[high] == 0 and torch.equal(more.images[high], first.images[high])
    assert more.rounds[low] > 0 and confidence(more)[low] > before[low]
    assert torch.equal(more.trace, first.trace)
    assert iterates[:8] == [2] * 8 and set(iterates[8:]) == {1}
