"""Objectives against torch's own losses, hand arithmetic and their invariances."""

import math

import pytest
import torch
from torch.nn import functional

from counterlens import objectives
from counterlens.errors import InputError


@pytest.fixture
def logits(rng):
    return torch.randn(6, 5, generator=rng, dtype=torch.float64) * 3


LABEL = torch.tensor([0, 1, 2, 3, 4, 0])


def test_wrongness_is_the_cross_entropy(logits):
    expected = functional.cross_entropy(logits, LABEL, reduction="none")
    torch.testing.assert_close(objectives.ce(logits, LABEL), expected)


def test_margin_is_above_zero_exactly_where_the_answer_is_wrong(logits):
    wrong = logits.argmax(1) != LABEL
    assert torch.equal(objectives.margin_of(logits, LABEL) > 0, wrong)
    by_hand = torch.tensor([[1.0, 4.0, 2.0]])
    assert objectives.margin_of(by_hand, torch.tensor([2])).item() == 2.0


def test_dlr_by_hand():
    logits = torch.tensor([[5.0, 3.0, 2.0, 1.0]], dtype=torch.float64)
    assert objectives.dlr_of(logits, torch.tensor([0])).item() == pytest.approx(-2 / 3)
    targeted = objectives.targeted_dlr_of(logits, torch.tensor([0]), torch.tensor([2]))
    assert targeted.item() == pytest.approx(-3 / (5 - 1.5))


def test_dlr_does_not_see_scale_and_shift_but_cross_entropy_does(logits):
    moved = 7 * logits + 3
    torch.testing.assert_close(
        objectives.dlr_of(moved, LABEL), objectives.dlr_of(logits, LABEL), rtol=1e-9, atol=1e-9
    )
    target = (LABEL + 1) % 5
    torch.testing.assert_close(
        objectives.targeted_dlr_of(moved, LABEL, target),
        objectives.targeted_dlr_of(logits, LABEL, target),
        rtol=1e-9,
        atol=1e-9,
    )
    assert not torch.allclose(objectives.ce(moved, LABEL), objectives.ce(logits, LABEL))


def test_too_few_classes_are_named():
    two, three = torch.zeros(1, 2), torch.zeros(1, 3)
    zero = torch.tensor([0])
    with pytest.raises(InputError, match="needs 3 classes or more, the model has 2"):
        objectives.dlr_of(two, zero)
    with pytest.raises(InputError, match="needs 4 classes or more, the model has 3"):
        objectives.targeted_dlr_of(three, zero, zero)


def test_divergence_from_uniform_is_zero_for_equal_logits_and_the_kl_elsewhere(logits):
    even = torch.full((2, 7), 3.0, dtype=torch.float64)
    torch.testing.assert_close(
        objectives.uniform_divergence_of(even), torch.zeros(2, dtype=torch.float64)
    )
    uniform = torch.full_like(logits, 1 / 5)
    kl = functional.kl_div(logits.log_softmax(1), uniform, reduction="none").sum(1)
    torch.testing.assert_close(objectives.uniform_divergence_of(logits), kl)


def test_confidences_are_log_probabilities_that_do_not_saturate(logits):
    probs = logits.softmax(1)
    torch.testing.assert_close(objectives.confidence_anywhere_of(logits), probs.amax(1).log())
    torch.testing.assert_close(
        objectives.log_confidence_of(logits, LABEL), probs[torch.arange(6), LABEL].log()
    )
    sure = torch.tensor([[90.0, 0.0], [91.0, 0.0]])
    low = objectives.log_confidence_of(sure, torch.tensor([1, 1]))
    assert low[0] > low[1] > -math.inf
    assert objectives.lead_of(sure).tolist() == [90.0, 91.0]


def test_half_precision_logits_are_scored_in_float32():
    logits = torch.tensor([[8.0, 8.0625, 0.0]], dtype=torch.bfloat16)
    score = objectives.ce(logits, torch.tensor([0]))
    assert score.dtype == torch.float32
    exact = functional.cross_entropy(logits.float(), torch.tensor([0]))
    assert score.item() == pytest.approx(exact.item())


def test_objectives_close_over_their_rows_and_add_up():
    def predict(z):
        return z.flatten(1)

    z = torch.tensor([[1.0, 4.0, 2.0, 0.5]]).view(1, 1, 2, 2)
    y, t = torch.tensor([0]), torch.tensor([2])
    flat = z.flatten(1)
    pairs = [
        (objectives.wrongness(predict, y), objectives.ce(flat, y)),
        (objectives.margin(predict, y), objectives.margin_of(flat, y)),
        (objectives.dlr(predict, y), objectives.dlr_of(flat, y)),
        (objectives.targeted_dlr(predict, y, t), objectives.targeted_dlr_of(flat, y, t)),
        (objectives.log_confidence(predict, t), objectives.log_confidence_of(flat, t)),
        (objectives.confidence_anywhere(predict), objectives.confidence_anywhere_of(flat)),
        (objectives.lead(predict), objectives.lead_of(flat)),
        (objectives.uniform_divergence(predict), objectives.uniform_divergence_of(flat)),
    ]
    for objective, expected in pairs:
        assert torch.equal(objective(z), expected)
    both = objectives.weighted((2.0, pairs[0][0]), (-1.0, pairs[1][0]))
    assert torch.equal(both(z), 2 * pairs[0][1] - pairs[1][1])
    with pytest.raises(InputError, match="no terms"):
        objectives.weighted()


def test_a_labelled_objective_for_some_rows_and_for_crops_of_each(rng):
    weight = torch.randn(12, 4, generator=rng, dtype=torch.float64)
    z = torch.rand(3, 3, 2, 2, generator=rng, dtype=torch.float64)
    label = torch.tensor([1, 3, 0])
    whole = objectives.entry(lambda x: x.flatten(1) @ weight, label)
    by_hand = torch.stack([z[i].flatten() @ weight[:, k] for i, k in enumerate(label.tolist())])
    torch.testing.assert_close(whole(z), by_hand)
    torch.testing.assert_close(whole.rows([2, 0])(z[[2, 0]]), by_hand[[2, 0]])
    crops = whole.rows(torch.arange(3).repeat_interleave(2))
    torch.testing.assert_close(crops(z.repeat_interleave(2, 0)), by_hand.repeat_interleave(2))
    wrong = objectives.wrongness(lambda x: x.flatten(1) @ weight, label)
    assert torch.equal(wrong.rows([1])(z[[1]]), wrong(z)[[1]])


def test_tables_and_doubt_are_those_of_the_softmax_after_temperature(logits):
    for temperature in (1.0, 2.5):
        probs = (logits / temperature).softmax(1)
        own = probs[torch.arange(6), LABEL]
        images = torch.zeros(6, 1, 1, 1)

        def predict(_):
            return logits

        confidence = objectives.entry(objectives.probabilities(predict, temperature), LABEL)
        torch.testing.assert_close(confidence(images), own)
        logs = objectives.entry(objectives.log_probabilities(predict, temperature), LABEL)
        torch.testing.assert_close(logs(images), own.log())
        doubt = objectives.log_doubt(predict, LABEL, temperature)
        torch.testing.assert_close(doubt(images), (1 - own).log())
